"""TextField: which arguments of a model hold the tokens of a text, and what belongs to each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from betastar.training.records import TARGET, Records

#: The name of the criterion's target among the arguments.
CRITERION = "target"


@dataclass(frozen=True)
class TextField:
    """Where a model reads the text of a record.

    Every argument that has one entry for each token must be named, because it may have to change with the text.

    Attributes
    ----------
    ids : int or str
        The position or name of the argument that holds the ids of the tokens, one row for each record.
    labels : int or str, optional
        The argument that holds the tokens that a language model predicts; "target" is the target of the criterion.
    along : dict
        Other arguments with one entry for each token, and the entry that each has at padding: `{"attention_mask": 0}`.
    fixed : tuple
        Arguments that seem to have one entry for each token but do not change with the text, such as given position ids.
    pad : int, optional
        The id that fills up short texts. It is needed if candidates have different lengths.
    padding_side : "right" or "left"
        Where texts are filled up.
    ignored : int
        The label of tokens that are not predicted.
    next_token : bool
        Whether the label at a position is the token of the next position. By default it is the token of the same position,
        as in Hugging Face's models.

    Raises
    ------
    ValueError
        If an argument is named twice, or if padding is on neither side.

    Examples
    --------
    >>> from betastar.training import TextField
    >>> TextField("input_ids", labels="labels", along={"attention_mask": 0}, pad=0).padding_side
    'right'
    """

    ids: int | str = 0
    labels: int | str | None = None
    along: Mapping[int | str, int] = field(default_factory=dict)
    fixed: tuple[int | str, ...] = ()
    pad: int | None = None
    padding_side: Literal["right", "left"] = "right"
    ignored: int = -100
    next_token: bool = False

    def __post_init__(self) -> None:
        if self.padding_side not in ("right", "left"):
            raise ValueError(f"padding_side must be 'right' or 'left', got {self.padding_side!r}.")
        if not isinstance(self.along, Mapping):
            raise ValueError(f"along must be a dict such as {{'attention_mask': 0}}, got {self.along!r}.")
        if isinstance(self.fixed, str):
            raise ValueError(f"fixed must be a tuple of arguments, got {self.fixed!r}.")
        if len(set(self.arguments())) < len(self.arguments()):
            raise ValueError(f"ids, labels, along and fixed must name different arguments, got {self.arguments()}.")

    def arguments(self) -> list[int | str]:
        """List the arguments that this field names.

        Returns
        -------
        list
            Positions and names.
        """
        return [self.ids, *([] if self.labels is None else [self.labels]), *self.along, *self.fixed]


@dataclass(frozen=True)
class TokenEntries:
    """A tensor with one entry for each token.

    Attributes
    ----------
    key : int or str
        The argument, as `Records` calls it.
    tensor : Tensor
        The entries, (n, positions).
    filler : int
        The entry at padding.
    holds_tokens : bool
        Whether the entries are tokens, as ids and labels are.
    ahead : int
        The entry at position t belongs to the token at position t + ahead.
    """

    key: int | str
    tensor: Tensor
    filler: int
    holds_tokens: bool = False
    ahead: int = 0

    def free(self, side: str) -> Tensor:
        """The number of entries at this end of each text that are padding, (n,)."""
        used = self.tensor != self.filler
        return (~(used.flip(1) if side == "right" else used)).long().cumprod(dim=1).sum(dim=1)


def token_ids(text: TextField, records: Records, name: str) -> Tensor:
    """The tokens of the records, (n, positions). `name` is the name of the secret."""
    ids = _argument(records, text.ids, name)
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(
            f"the secret {name!r} needs ids of tokens in argument {text.ids!r}, whole numbers with one row for each record, got "
            f"{str(ids.dtype).removeprefix('torch.')} of shape {tuple(ids.shape)}."
        )
    return ids


def token_entries(text: TextField, records: Records, name: str, mask: str | None = None) -> list[TokenEntries]:
    """Everything that has one entry for each token; ids come first. `mask` is a keyword argument that marks the span."""
    ids = token_ids(text, records, name)
    entries = [TokenEntries(_key(text.ids, records), ids, -1 if text.pad is None else text.pad, holds_tokens=True)]
    along = dict(text.along)
    if mask is not None:
        along[mask] = 0
    for argument, filler in along.items():
        entries.append(TokenEntries(_key(argument, records), _argument(records, argument, name), filler))
    if text.labels is not None:
        labels = _argument(records, text.labels, name)
        entries.append(TokenEntries(_key(text.labels, records), labels, text.ignored, True, int(text.next_token)))
    for one in entries[1:]:
        widths = [ids.shape[1], ids.shape[1] - 1] if one.ahead else [ids.shape[1]]
        if one.tensor.ndim != 2 or len(one.tensor) != len(ids) or one.tensor.shape[1] not in widths:
            raise ValueError(
                f"argument {_shown(one.key)!r} must have one entry for each token of {text.ids!r}, which has shape "
                f"{tuple(ids.shape)}, got shape {tuple(one.tensor.shape)}."
            )
    return entries


def refuse_unnamed(text: TextField, records: Records, name: str, mask: str | None = None) -> None:
    """Refuse arguments with one entry for each token that the field does not name: variants would leave them as they are."""
    ids = token_ids(text, records, name)
    named = {_key(argument, records) for argument in text.arguments()} | ({mask} if mask else set())
    for key, value in records.rows().items():
        next_tokens = value.ndim == 2 and value.shape[1] == ids.shape[1] - 1 > 1 and not value.is_floating_point()
        alike = ids.shape[1] in value.shape[1:] or next_tokens
        if key not in named and alike:
            raise ValueError(
                f"argument {_shown(key)!r} has shape {tuple(value.shape)}, one entry for each token of {text.ids!r}, but the "
                f"TextField of {name!r} does not name it: say whether it holds the labels of a language model (labels=), moves "
                "along with the tokens (along=), or stays as it is (fixed=)."
            )


def _key(argument: int | str, records: Records) -> int | str:
    return TARGET if argument == CRITERION and CRITERION not in records.named else argument


def _shown(key: int | str) -> int | str:
    return CRITERION if key == TARGET else key


def _argument(records: Records, argument: int | str, name: str) -> Tensor:
    known = records.arguments()
    key = _key(argument, records)
    if key not in known:
        there = ", ".join(repr(_shown(one)) for one in known)
        raise ValueError(
            f"the text of the secret {name!r} is in argument {argument!r}, which the model is not called with; there are {there}."
        )
    value = known[key]
    if not isinstance(value, Tensor):
        raise ValueError(f"the text of the secret {name!r} is in argument {argument!r}, no tensor but {type(value).__name__}.")
    return value
