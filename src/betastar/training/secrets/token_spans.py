"""Spans of tokens: where each text holds a value of a secret, and the same text with other values there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from betastar.training.secrets.text_field import TokenEntries

#: The number of the value of a text that holds none, and of one that holds several different ones.
NONE, SEVERAL = -1, -2


@dataclass(frozen=True)
class Candidates:
    """The values of a secret as tokens. A value may have several forms, such as with and without a space before it.

    Attributes
    ----------
    tokens : Tensor
        (forms, values, longest); what is beyond a candidate's length is 0.
    lengths : Tensor
        (forms, values).
    """

    tokens: Tensor
    lengths: Tensor

    @staticmethod
    def of(forms: Sequence[Sequence[tuple[int, ...]]]) -> Candidates:
        """Candidates of which each form is a list with one sequence of tokens for each value."""
        lengths = torch.tensor([[len(tokens) for tokens in form] for form in forms])
        widest = int(lengths.max())
        return Candidates(
            torch.tensor([[[*tokens, *[0] * (widest - len(tokens))] for tokens in form] for form in forms]), lengths
        )

    @property
    def differ(self) -> bool:
        """Whether candidates of a form have different lengths."""
        return bool((self.lengths != self.lengths[:, :1]).any())

    def shared(self) -> Tensor:
        """The number of tokens with which all candidates of each form begin, (forms,)."""
        same = (self.tokens == self.tokens[:, :1]).all(dim=1)
        inside = torch.arange(self.tokens.shape[2]) < self.lengths.amin(dim=1)[:, None]
        return (same & inside).long().cumprod(dim=1).sum(dim=1)

    def to(self, device: torch.device) -> Candidates:
        """The same on a device."""
        return Candidates(self.tokens.to(device), self.lengths.to(device))


@dataclass(frozen=True)
class Spans:
    """Where texts hold a value. Each has up to k spans, and all spans of a text hold the same value.

    Attributes
    ----------
    number : Tensor
        The number of the value, `NONE` or `SEVERAL`, (n,).
    starts, forms, lengths : Tensor
        The first position of each span, the number of its form, and the length that it has, (n, k).
    present : Tensor
        Whether a text has so many spans, (n, k).
    """

    number: Tensor
    starts: Tensor
    forms: Tensor
    lengths: Tensor
    present: Tensor

    @staticmethod
    def at(found: Tensor, values: Tensor, forms: Tensor, candidates: Candidates) -> Spans:
        """Spans that start where `found`, (n, positions), with the numbers of values and forms that start there."""
        rows, columns = found.nonzero(as_tuple=True)
        rank = (found.long().cumsum(dim=1) - 1)[rows, columns]
        shape = len(found), max(1, int(rank.max()) + 1 if len(rank) else 1)
        starts, kinds, held = (torch.zeros(shape, dtype=torch.long, device=found.device) for _ in range(3))
        present = torch.zeros(shape, dtype=torch.bool, device=found.device)
        starts[rows, rank], kinds[rows, rank], held[rows, rank] = columns, forms[rows, columns], values[rows, columns]
        present[rows, rank] = True
        first = held[:, :1]
        alike = ((held == first) | ~present).all(dim=1)
        number = torch.where(present[:, 0], torch.where(alike, held[:, 0], SEVERAL), NONE)
        there = present & (number >= 0)[:, None]
        return Spans(number, starts, kinds, candidates.lengths.to(found.device)[kinds, held] * there, there)

    def growth(self, candidates: Candidates) -> Tensor:
        """How many positions more than the text has it needs with its longest candidate, (n,)."""
        forms = len(candidates.lengths)
        times = torch.stack([((self.forms == form) & self.present).sum(dim=1) for form in range(forms)], dim=1)
        kinds, which = times.unique(dim=0, return_inverse=True)
        longest = (kinds.cpu() @ candidates.lengths.cpu()).amax(dim=1).to(times.device)
        return longest[which] - self.lengths.sum(dim=1)


@dataclass(frozen=True)
class Splices:
    """The spans of texts with candidates of other lengths in them.

    Attributes
    ----------
    starts, lengths : Tensor
        Of each span with each kind of candidates, (n, kinds, k).
    growth : Tensor
        The number of positions by which a text gets longer, (n, kinds).
    which : Tensor
        The kind of each value, (values,). Values whose candidates are as long as each other are of one kind.
    left : bool
        Whether padding is on the left, so that the end of a text stays where it is.
    """

    starts: Tensor
    lengths: Tensor
    growth: Tensor
    which: Tensor
    left: bool

    @staticmethod
    def of(spans: Spans, candidates: Candidates, values: Tensor, side: str) -> Splices:
        """Put values into the spans of texts."""
        kinds, which = candidates.lengths[:, values].T.unique(dim=0, return_inverse=True)
        lengths = kinds.T[spans.forms].movedim(2, 1) * spans.present[:, None]
        change = lengths - spans.lengths[:, None]
        growth, left = change.sum(dim=2), side == "left"
        starts = spans.starts[:, None] + change.cumsum(dim=2) - change - (growth[:, :, None] if left else 0)
        return Splices(starts, lengths, growth, which, left)

    def sources(self, spans: Spans, extent: int) -> Tensor:
        """The position of the text from which each position of a variant comes, (n, kinds, extent).

        All tokens of a span come from the last token of the span that was there: they have the same entries, such as a mask.
        """
        position = torch.arange(extent, device=self.starts.device)
        source = position.expand(*self.growth.shape, -1) + (self.growth[:, :, None] if self.left else 0)
        for k in range(spans.starts.shape[1]):
            there, length = spans.present[:, k, None, None], self.lengths[:, :, k, None]
            offset = position - self.starts[:, :, k, None]
            source = source - (there & (offset >= length)) * (length - spans.lengths[:, k, None, None])
            last = (spans.starts + spans.lengths)[:, k, None, None] - 1
            source = torch.where(there & (offset >= 0) & (offset < length), last, source)
        return source


def spliced(entries: Sequence[TokenEntries], spans: Spans, candidates: Candidates, values: Tensor, side: str) -> list[Tensor]:
    """Each of the entries with the values in turn, (n · values, positions).

    What follows a span moves (with padding on the left: what precedes it). Positions that this leaves empty are padding, and what
    would move beyond the end must have been padding.
    """
    splices = Splices.of(spans, candidates, values, side)
    source = splices.sources(spans, max(one.tensor.shape[1] + one.ahead for one in entries))
    made = []
    for one in entries:
        moved = _moved(one, source).index_select(1, splices.which)
        if one.holds_tokens:
            _write_tokens(moved, one, spans, splices, candidates.tokens[:, values])
        made.append(moved.flatten(0, 1))
    return made


def _moved(one: TokenEntries, source: Tensor) -> Tensor:
    """The entries from `source`, (n, kinds, positions)."""
    width = one.tensor.shape[1]
    index = source[:, :, one.ahead : one.ahead + width] - one.ahead
    rows = one.tensor[:, None].expand(-1, source.shape[1], -1)
    inside = (index >= 0) & (index < width)
    return torch.where(inside, rows.gather(2, index.clamp(0, width - 1)), one.filler)


def _write_tokens(made: Tensor, one: TokenEntries, spans: Spans, splices: Splices, tokens: Tensor) -> None:
    """Write tokens, (forms, values, longest), into variants, (n, values, positions). Labels that are ignored stay so."""
    width = made.shape[2]
    for k in range(spans.starts.shape[1]):
        starts, lengths = splices.starts[:, splices.which, k], splices.lengths[:, splices.which, k]
        for offset in range(tokens.shape[2]):
            place = starts + offset - one.ahead
            wanted = (offset < lengths) & (place >= 0) & (place < width)
            index = place.clamp(0, width - 1)[:, :, None]
            old = made.gather(2, index)[:, :, 0]
            new = tokens[spans.forms[:, k], :, offset].to(made.dtype)
            made.scatter_(2, index, torch.where(wanted & (old != one.filler), new, old)[:, :, None])
