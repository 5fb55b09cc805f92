"""What is refused about candidates in a text, and about texts that hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from betastar.training.records import TARGET
from betastar.training.secrets.text_field import CRITERION, TextField, TokenEntries
from betastar.training.secrets.token_spans import Candidates, Spans


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
        _refuse(wrong, f"argument {_shown(one)!r} must hold {wanted}, which it does not for record", name)
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
                f"record {row} has no room for the longest candidate of {name!r}: argument {_shown(one)!r} has "
                f"{one.tensor.shape[1]} positions, and the text would need {int(short[row])} more. Pad texts to "
                f"{one.tensor.shape[1] + int(short.max())} positions or cut them earlier (padding is {one.filler} on the "
                f"{text.padding_side})."
            )


def _refuse(wrong: Tensor, sentence: str, name: str) -> None:
    if wrong.any():
        raise ValueError(f"{sentence} {int(wrong.nonzero()[0])} of the secret {name!r}.")


def _shown(one: TokenEntries) -> int | str:
    return CRITERION if one.key == TARGET else one.key
