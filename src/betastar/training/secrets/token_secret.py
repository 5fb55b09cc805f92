"""Tokens: a span of a text whose place is given. Word: a span that is found by the candidates that stand there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from betastar.training.records import Records
from betastar.training.secrets.held_values import argument_of
from betastar.training.secrets.text_field import TextField, token_ids
from betastar.training.secrets.text_secret import TextSecret
from betastar.training.secrets.token_spans import Spans
from betastar.training.secrets.token_trie import TokenTrie
from betastar.training.secrets.word_forms import WordBoundaries


class Tokens(TextSecret):
    """A span at a given place: a position, or a keyword argument with a position for each record or a mask of the span."""

    def __init__(
        self,
        start: int | str,
        candidates: Sequence[tuple[int, ...]],
        text: TextField,
        labels: list[Any],
        name: str,
        unseen: bool,
    ) -> None:
        super().__init__(text, [candidates], labels, name, unseen)
        self.start = start
        if isinstance(start, int):
            self._refuse_positions()
        self._trie = TokenTrie(candidates)

    def place(self) -> tuple[object, ...]:
        return (self.start,)

    def mask(self, records: Records) -> str | None:
        if isinstance(self.start, int) or argument_of(records, self.start, self.name).ndim != 2:
            return None
        return self.start

    def find(self, records: Records) -> Spans:
        ids = token_ids(self.text, records, self.name)
        starts = self._marked(records, ids)
        if starts.ndim == 2:
            return self._masked(ids, starts)
        if len(starts) and not 0 <= int(starts.min()) <= int(starts.max()) < ids.shape[1]:
            outside = int(starts.max()) if int(starts.max()) >= ids.shape[1] else int(starts.min())
            raise ValueError(
                f"the secret {self.name!r} starts at position {outside}, but texts have positions 0 to {ids.shape[1] - 1}."
            )
        longest = self.candidates.tokens.shape[2]
        window = starts[:, None] + torch.arange(longest, device=ids.device)
        tokens = torch.where(window < ids.shape[1], ids.gather(1, window.clamp(max=ids.shape[1] - 1)), -1)
        value = self._trie.longest(tokens)[:, :1]
        found = torch.zeros_like(ids, dtype=torch.bool).scatter(1, starts[:, None], value >= 0)
        return Spans.at(found, value.expand_as(ids), torch.zeros_like(ids), self.candidates)

    def _marked(self, records: Records, ids: Tensor) -> Tensor:
        """The first position of each record's span, (n,), or a mask of it, (n, positions)."""
        if isinstance(self.start, int):
            return torch.full((len(ids),), self.start, dtype=torch.long, device=ids.device)
        given = argument_of(records, self.start, self.name)
        if given.shape not in (ids.shape, ids.shape[:1]) or given.is_floating_point():
            raise ValueError(
                f"argument {self.start!r} must hold the first position of each record's span, or 1 at its tokens and 0 at "
                f"others, got {str(given.dtype).removeprefix('torch.')} of shape {tuple(given.shape)} for ids of shape "
                f"{tuple(ids.shape)}."
            )
        if given.ndim == 2 and not bool(((given == 0) | (given == 1)).all()):
            raise ValueError(f"argument {self.start!r} must be 1 at the tokens of the span and 0 at others.")
        if given.ndim == 1:
            self._refuse_positions()
        return given.long()

    def _refuse_positions(self) -> None:
        if self.text.padding_side == "left" and self.candidates.differ:
            raise ValueError(
                f"start must name a mask of the span for {self.name!r}: with padding on the left, candidates of different "
                f"lengths start at different positions, got {self.start!r}."
            )

    def _masked(self, ids: Tensor, mask: Tensor) -> Spans:
        """Spans of ones in a mask, which must be candidates as a whole."""
        edges = torch.nn.functional.pad(mask, (1, 1)).diff(dim=1)
        begins, ends = edges[:, :-1] == 1, edges == -1
        value = self._trie.longest(torch.where(mask == 1, ids, -1), may_end=ends)
        # A run of ones that is no candidate makes the record one that holds none of them.
        broken = (begins & (value < 0)).any(dim=1, keepdim=True)
        return Spans.at(begins & ~broken, value, torch.zeros_like(ids), self.candidates)

    def found_instead(self, records: Records, row: int) -> str:
        ids = token_ids(self.text, records, self.name)
        starts = self._marked(records, ids)
        if starts.ndim == 2:
            return f"the tokens {ids[row][starts[row] == 1].tolist()} where argument {self.start!r} is 1"
        begin = int(starts[row])
        return f"{ids[row, begin : begin + self.candidates.tokens.shape[2]].tolist()} from position {begin} on"


class Word(TextSecret):
    """A word that is found by the candidates. `forms` are those of `word_forms`."""

    def __init__(
        self,
        forms: Sequence[Sequence[tuple[int, ...]]],
        boundaries: WordBoundaries | None,
        text: TextField,
        labels: list[Any],
        name: str,
        unseen: bool,
        keeps_others: bool,
    ) -> None:
        super().__init__(text, forms, labels, name, unseen)
        self.keeps_others = keeps_others
        self._boundaries = boundaries
        self._tries = [TokenTrie(form) for form in forms]
        self._without_space = [boundaries is not None and boundaries.without_space(form) for form in forms]

    way_out = 'Leave such records out, or keep them as they are with others="keep": nothing is then said about them.'

    def find(self, records: Records) -> Spans:
        ids = token_ids(self.text, records, self.name)
        lengths = self.candidates.lengths.to(ids.device)
        may_end = None if self._boundaries is None else self._boundaries.may_end(ids)
        value, form, length = (torch.full_like(ids, fill, dtype=torch.long) for fill in (-1, 0, 0))
        for number, trie in enumerate(self._tries):
            found = trie.longest(ids, may_end)
            if self._boundaries is not None and self._without_space[number]:
                found = torch.where(self._boundaries.may_start(ids), found, -1)
            size = torch.where(found >= 0, lengths[number][found], 0)
            longer = size > length
            value, form = torch.where(longer, found, value), torch.where(longer, number, form)
            length = torch.where(longer, size, length)
        return Spans.at(_leftmost(length), value, form, self.candidates)


def _leftmost(length: Tensor) -> Tensor:
    """Of spans that overlap, those that are met first from left to right; `length` is 0 where none starts, (n, positions)."""
    kept = torch.zeros_like(length, dtype=torch.bool)
    free = torch.zeros(len(length), dtype=torch.long, device=length.device)
    for position in (length > 0).any(dim=0).nonzero().flatten().tolist():
        kept[:, position] = (length[:, position] > 0) & (position >= free)
        free = torch.where(kept[:, position], position + length[:, position], free)
    return kept
