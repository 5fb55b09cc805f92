"""TextSecret: a span of a text that could have been another one. Tokens and Word say how the span is found."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from betastar.training.records import Records
from betastar.training.secrets.abstract_secret import listed
from betastar.training.secrets.held_values import refuse_unseen
from betastar.training.secrets.secret import Secret
from betastar.training.secrets.text_checks import refuse_candidates, require_entries, require_room
from betastar.training.secrets.text_field import TextField, refuse_unnamed, token_entries, token_ids
from betastar.training.secrets.token_spans import SEVERAL, Candidates, Spans, Splices, spliced

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

    def first_position(self, records: Records) -> Tensor | None:
        spans = self._spans(records)
        width = token_ids(self.text, records, self.name).shape[1]
        first = spans.starts[:, 0] + self.candidates.shared().to(spans.starts.device)[spans.forms[:, 0]]
        if self.text.padding_side == "left" and self.candidates.differ:
            first = torch.zeros_like(first)
        return torch.where(spans.present[:, 0], first, width).cpu()

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
