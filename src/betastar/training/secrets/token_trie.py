"""TokenTrie: finds the longest of many token sequences at every position of many texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenTrie:
    """A prefix tree of token sequences. All texts walk through it at once, and the result is exact.

    Parameters
    ----------
    sequences : sequence of tuple of int
        Different sequences of at least one token.
    """

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        self._base = 1 + max(token for tokens in sequences for token in tokens)
        self._depth = max(map(len, sequences))
        steps: dict[tuple[int, int], int] = {}  # (node, token) -> node
        ends: dict[int, int] = {}  # node -> number of the sequence that ends there
        for number, tokens in enumerate(sequences):
            node = 0
            for token in tokens:
                node = steps.setdefault((node, token), len(steps) + 1)
            ends[node] = number
        size = len(steps) + 2  # the last node is the one from which no step leads on
        keys, nodes = zip(*sorted((node * self._base + token, to) for (node, token), to in steps.items()), strict=True)
        self._keys, self._nodes = torch.tensor(keys), torch.tensor(nodes)
        self._ends = torch.tensor([ends.get(node, -1) for node in range(size)])

    def longest(self, ids: Tensor, may_end: Tensor | None = None) -> Tensor:
        """Find the longest sequence that starts at each position.

        Parameters
        ----------
        ids : Tensor
            The tokens of texts, (n, positions).
        may_end : Tensor, optional
            Whether a sequence may end before each position, (n, positions + 1).

        Returns
        -------
        Tensor
            The numbers of sequences, -1 where none starts, (n, positions).
        """
        keys, nodes, ends = (table.to(ids.device) for table in (self._keys, self._nodes, self._ends))
        node, found = torch.zeros_like(ids, dtype=torch.long), torch.full_like(ids, -1, dtype=torch.long)
        for depth in range(min(self._depth, ids.shape[1])):
            inside = slice(0, ids.shape[1] - depth)
            token = ids[:, depth:].long()
            key = node[:, inside] * self._base + token
            place = torch.searchsorted(keys, key).clamp_(max=len(keys) - 1)
            known = (keys[place] == key) & (token >= 0) & (token < self._base)
            node = torch.where(known, nodes[place], len(ends) - 1)
            number = ends[node]
            if may_end is not None:
                number = torch.where(may_end[:, depth + 1 :], number, -1)
            found[:, inside] = torch.where(number >= 0, number, found[:, inside])
        return found
