"""Secrets in texts: a span that could have been another one. `Tokens` and `Word` say how the span is found."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from betastar.training.records import Records, argument_of
from betastar.training.secrets.secret import Secret, listed, refuse_unseen
from betastar.training.secrets.text_tokens import (
    SEVERAL,
    Candidates,
    Spans,
    Splices,
    TextField,
    TokenEntries,
    TokenTrie,
    WordBoundaries,
    refuse_unnamed,
    shown,
    spliced,
    token_entries,
    token_ids,
)

# ---- Checks: what is refused about candidates in a text, and about texts that hold them.


def refuse_candidates(text: TextField, forms: Sequence[Sequence[tuple[int, ...]]], labels: Sequence[object], name: str) -> None:
    """Refuse candidates that are fewer than two, empty, alike, or that hold tokens of padding."""
    if len(labels) < 2 or len(labels) != len(forms[0]):
        raise ValueError(f"candidates must be at least two with one label each, got {len(forms[0])} and {len(labels)} labels.")
    seen: dict[tuple[int, ...], int] = {}
    for form in forms:
        for number, tokens in enumerate(form):
            label = labels[number]
            if not tokens:
                raise ValueError(f"candidates must have at least one token, but {label!r} of {name!r} has none.")
            if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in tokens):
                raise ValueError(f"candidates must be ids of tokens, whole numbers of at least 0, got {tokens} for {label!r}.")
            if tokens in seen:
                other = labels[seen[tokens]]
                raise ValueError(
                    f"candidates must differ, but {other!r} and {label!r} of {name!r} are the same tokens to the model, "
                    f"{list(tokens)}."
                )
            seen[tokens] = number
            for what, filler in (("pad", text.pad), ("ignored", text.ignored)):
                if filler in tokens:
                    raise ValueError(f"candidates must not contain {what}={filler}, but {label!r} of {name!r} does.")
    if text.pad is None and any(len({len(tokens) for tokens in form}) > 1 for form in forms):
        raise ValueError(
            f"pad must be the id that fills up short texts, because the candidates of {name!r} have different lengths, got None."
        )


def require_entries(entries: Sequence[TokenEntries], spans: Spans, text: TextField, candidates: Candidates, name: str) -> None:
    """Refuse spans within which the entries of tokens are not those of a whole span."""
    ids = entries[0].tensor
    offset = torch.arange(candidates.tokens.shape[2], device=ids.device)
    inside = (offset < spans.lengths[:, :, None]).flatten(1)
    places = (spans.starts[:, :, None] + offset).flatten(1)
    for one in entries[1:]:
        index = places - one.ahead
        held = one.tensor.gather(1, index.clamp(0, one.tensor.shape[1] - 1))
        there = inside & (index >= 0)
        if one.holds_tokens:
            tokens = ids.gather(1, places.clamp(max=ids.shape[1] - 1))
            shape = (*spans.starts.shape, len(offset))
            trained = ((held == tokens) | ~there).reshape(shape).all(dim=2)
            ignored = ((held == one.filler) | ~there).reshape(shape).all(dim=2)
            wrong = ~(trained | ignored).all(dim=1)
            wanted = f"the tokens of the span, or {one.filler} at all of them (see next_token and ignored of TextField)"
        else:
            last = one.tensor.gather(1, (spans.starts + spans.lengths - 1).clamp(min=0))
            wrong = ((held != last.repeat_interleave(len(offset), dim=1)) & there).any(dim=1)
            wanted = "the same number at all tokens of the span"
        _refuse(wrong, f"argument {shown(one.key)!r} must hold {wanted}, which it does not for record", name)
    if candidates.differ and any(one.ahead for one in entries):
        first = (spans.present & (spans.starts == 0)).any(dim=1)
        _refuse(first, "a text must not begin with the span if labels are those of the next token, but so does record", name)


def require_room(entries: Sequence[TokenEntries], spans: Spans, text: TextField, candidates: Candidates, name: str) -> None:
    """Refuse texts that have no room for the longest candidate, of which variants would lose tokens."""
    growth = spans.growth(candidates)
    ids = entries[0].tensor
    for one in entries:
        # Labels that see one token more than the ids do: this token would have to move into the ids.
        beyond = int(text.padding_side == "right" and one.tensor.shape[1] + one.ahead > ids.shape[1])
        short = growth + beyond - one.free(text.padding_side)
        wrong = (short > 0) & spans.present[:, 0]
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"record {row} has no room for the longest candidate of {name!r}: argument {shown(one.key)!r} has "
                f"{one.tensor.shape[1]} positions, and the text would need {int(short[row])} more. Pad texts to "
                f"{one.tensor.shape[1] + int(short.max())} positions or cut them earlier (padding is {one.filler} on the "
                f"{text.padding_side})."
            )


def _refuse(wrong: Tensor, sentence: str, name: str) -> None:
    if wrong.any():
        raise ValueError(f"{sentence} {int(wrong.nonzero()[0])} of the secret {name!r}.")


# ---- Secrets

#: Tokens of variants that are looked at in one go when a secret is checked.
AT_ONCE = 1 << 21


class TextSecret(Secret):
    """A span of a text that could have been one of several candidates. All of its occurrences in a text change together.

    `forms` has one list for each form of the candidates, with one sequence of tokens for each value.
    """

    #: Whether records that do not hold exactly one of the candidates are left as they are.
    keeps_others = False
    #: What to do about a record that does not hold exactly one of the candidates.
    way_out = "Leave such records out, or describe the secret with Secret.function."

    def __init__(
        self, text: TextField, forms: Sequence[Sequence[tuple[int, ...]]], labels: list[Any], name: str, unseen: bool
    ) -> None:
        refuse_candidates(text, forms, labels, name)
        self.text, self.candidates = text, Candidates.of(forms)
        self.labels, self.name, self.unseen = labels, name, unseen
        self._tokens = torch.tensor(sorted({token for form in forms for tokens in form for token in tokens}))

    @abstractmethod
    def find(self, records: Records) -> Spans:
        """Find the spans of the records. Records are not refused here.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Spans
            The spans.
        """

    def concerned(self, records: Records) -> Tensor:  # those that hold exactly one of the candidates
        return self.find(records).number.cpu() >= 0

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        return self._variants(records, self._spans(records), values)

    def own(self, records: Records) -> Tensor:
        return self._spans(records).number.clamp(min=0).cpu()

    def shares(self, records: Records) -> Tensor:
        """The mean over the values must not tell which of them the record holds: every batch is checked."""
        self.check(records, complete=False)
        return super().shares(records)

    def tables(self) -> tuple[Tensor | None, ...]:
        return self.candidates.tokens, self.candidates.lengths

    def digest(self) -> str:
        text = self.text
        where = (text.ids, text.labels, sorted(text.along.items(), key=repr), text.fixed, text.pad, text.padding_side)
        parts = (super().digest(), where, text.ignored, text.next_token, self.keeps_others, *self.place())
        return sha256(repr(parts).encode()).hexdigest()

    def mask(self, records: Records) -> str | None:
        """Name the keyword argument that is 1 at the tokens of the span and 0 at others.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        str or None
            None if there is no such argument.
        """
        return None

    def place(self) -> tuple[object, ...]:
        """Where the span is, as far as that is the same for all records.

        Returns
        -------
        tuple
            It is empty if the span may be anywhere.
        """
        return ()

    def check(self, records: Records, complete: bool) -> None:
        """Refuse records that hold none of the candidates, and records with a variant whose span would not be found again."""
        refuse_unnamed(self.text, records, self.name, self.mask(records))
        spans = self._spans(records)
        self._require_found_again(records, spans)
        if complete and not self.unseen:
            held = set(spans.number.unique().tolist())
            refuse_unseen([label for number, label in enumerate(self.labels) if number not in held], self.name)

    def _variants(self, records: Records, spans: Spans, values: Sequence[int]) -> Records:
        entries = token_entries(self.text, records, self.name, self.mask(records))
        device = entries[0].tensor.device
        numbers = torch.as_tensor(list(values), dtype=torch.long, device=device)
        made = spliced(entries, spans, self.candidates.to(device), numbers, self.text.padding_side)
        changed = {one.key: tensor for one, tensor in zip(entries, made, strict=True)}
        return records.repeat(len(values)).changed(lambda key, value: changed.get(key, value))

    def _spans(self, records: Records) -> Spans:
        """The spans of records that are as they must be, so that nothing of them gets lost in variants."""
        spans = self.find(records)
        if not self.keeps_others and bool((spans.number < 0).any()):
            row = int((spans.number < 0).nonzero()[0])
            found = "several different ones" if int(spans.number[row]) == SEVERAL else self.found_instead(records, row)
            raise ValueError(
                f"each record must hold one of the candidates of {self.name!r} ({listed(self.labels)}), but record {row} holds "
                f"{found}. {self.way_out}"
            )
        entries = token_entries(self.text, records, self.name, self.mask(records))
        require_entries(entries, spans, self.text, self.candidates, self.name)
        if self.candidates.differ:
            require_room(entries, spans, self.text, self.candidates, self.name)
        return spans

    def found_instead(self, records: Records, row: int) -> str:
        """Say what a record holds that holds none of the candidates.

        Parameters
        ----------
        records : Records
            The records.
        row : int
            Which of them.

        Returns
        -------
        str
            The end of a sentence.
        """
        return "none of them"

    def _require_found_again(self, records: Records, spans: Spans) -> None:
        """Refuse a record of which a variant would be read as another one, by the tokens beside its span.

        That can happen only if a token beside the span is one of the candidates' tokens.
        """
        if self.mask(records):
            return
        ids = token_ids(self.text, records, self.name)
        ends, width = spans.starts + spans.lengths, ids.shape[1]
        before = ids.gather(1, (spans.starts - 1).clamp(min=0))
        after = ids.gather(1, ends.clamp(max=width - 1))
        tokens = self._tokens.to(ids.device)
        beside = (torch.isin(before, tokens) & (spans.starts > 0)) | (torch.isin(after, tokens) & (ends < width))
        doubtful = (beside & spans.present).any(dim=1).nonzero().flatten()
        for rows in doubtful.split(max(1, AT_ONCE // (self.count * width))):
            self._find_again(records.take(rows), rows)

    def _find_again(self, records: Records, rows: Tensor) -> None:
        """Find the spans of all variants, which must be where they were put. `rows` are the numbers of the records."""
        spans = self.find(records)
        made = self._variants(records, spans, range(self.count))
        again = self.find(made)
        device = spans.starts.device
        numbers = torch.arange(self.count, device=device)
        wanted = Splices.of(spans, self.candidates.to(device), numbers, self.text.padding_side)
        starts = wanted.starts[:, wanted.which]
        found = again.number == numbers.repeat(len(rows))
        if again.starts.shape[1] == spans.starts.shape[1]:
            there = spans.present.repeat_interleave(self.count, dim=0)
            forms = spans.forms.repeat_interleave(self.count, dim=0)
            same = ((again.starts == starts.flatten(0, 1)) & (again.forms == forms)) | ~there
            found &= (same & (again.present == there)).all(dim=1)
        else:
            found &= again.present.sum(dim=1) == spans.present.sum(dim=1).repeat_interleave(self.count)
        if not found.all():
            wrong = int((~found).nonzero()[0])
            raise ValueError(
                f"record {int(rows[wrong // self.count])} with {self.labels[wrong % self.count]!r} as its {self.name!r} would be "
                "read as another one, because of the tokens beside it: which texts the attacker considers must not depend on the "
                "secret. Mark the span (Secret.tokens with the name of a mask), or leave the record out."
            )


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
