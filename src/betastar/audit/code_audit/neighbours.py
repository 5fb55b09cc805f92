"""The data sets that are compared: the data, and the same with one record changed or left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.audit.code_audit.findings import ReplayError
from betastar.audit.training_audit.challenges import same_record, with_values
from betastar.audit.training_audit.changed_data import Changed, Data, Split, changed, read, without
from betastar.training import Secret

#: A record whose numbers are so many times larger has a gradient that has to be clipped.
LARGER = 100.0
#: The number of other values of a secret that are replayed, at most.
VALUES = 4


@dataclass(frozen=True)
class Neighbour:
    """A data set that differs from the data in one record.

    Attributes
    ----------
    title : str
        How it differs, for people.
    data : Data
        The data set.
    made_up : bool
        Whether the record was made up here, so that the training need not cope with it.
    base : Data or None
        What it is compared with, if not with the data.
    """

    title: str
    data: Data
    made_up: bool = False
    base: Data | None = None


class Replaced(Changed):
    """A data set with some records replaced. What is replaced is read all the same, so that it draws its random numbers."""

    def __getitem__(self, index: int) -> Any:
        own = self.data[index]
        return self.replaced.get(index, own)


def replaced(data: Data, records: dict[int, Any]) -> Data:
    """The data with some records replaced; the same kind of data set as was given, where it holds tensors."""
    return changed(data, records) if type(data) is TensorDataset else Replaced(data, records)


def neighbours(
    data: Data,
    record: int,
    removed: bool,
    replacements: Sequence[Any] | None,
    secret: Secret | None,
    values: Sequence[Any] | None,
    split: Split,
) -> list[Neighbour]:
    """The data sets that differ from the data in this record, as the threat wants it.

    Parameters
    ----------
    data : Data
        The records.
    record : int
        The number of the record.
    removed : bool
        Whether the record is left out, instead of another one in its place.
    replacements : sequence, optional
        The records to put in its place.
    secret : Secret, optional
        The attribute whose value is another one.
    values : sequence, optional
        Its other values; by default some of them.
    split : callable
        Turns a batch into `Records`.

    Returns
    -------
    list of Neighbour
        At least one.
    """
    own = data[record]
    if removed:
        _require_fixed(data, record)
        rest, large = without(data, record), larger(own, None)
        made = [Neighbour("left out", rest)]
        if large is not None:
            title = f"its numbers {LARGER:g} times larger, and left out"
            made.append(Neighbour(title, rest, made_up=True, base=replaced(data, {record: large})))
        return made
    if replacements is not None:
        given = [Neighbour(f"replacement {number}", replaced(data, {record: one})) for number, one in enumerate(replacements, 1)]
        if not given:
            raise validation.wrong("replacements", f"must be at least one record, got {replacements!r}.")
        return given
    if secret is not None:
        return _other_values(data, record, secret, values, split)
    other = _another(data, record)
    made = [Neighbour("another record of the data", replaced(data, {record: other}))]
    large = larger(own, other)
    if large is not None:
        made.append(Neighbour(f"its numbers {LARGER:g} times larger", replaced(data, {record: large}), made_up=True))
    return made


def _other_values(data: Data, record: int, secret: Secret, values: Sequence[Any] | None, split: Split) -> list[Neighbour]:
    """The data with other values of the secret at the record."""
    try:
        mine = int(secret.own(read(data, torch.tensor([record]), split))[0])
    except TypeError as problem:
        raise ReplayError(
            f"secret needs records that split can take apart, or replacements= with other values: {problem}"
        ) from None
    numbers = [number for number in (range(secret.count) if values is None else secret.only(*values)) if number != mine]
    if not numbers:
        raise validation.wrong("values", f"must have another value than record {record} has, got {values!r}.")
    if len(numbers) > VALUES:  # from all over the list
        numbers = [numbers[i] for i in torch.linspace(0, len(numbers) - 1, VALUES).long().tolist()]
    return [
        Neighbour(f"{secret.name} {secret.labels[number]}", replaced(data, {record: one}))
        for number, one in zip(numbers, with_values(data, record, secret, numbers, split), strict=True)
    ]


def _another(data: Data, record: int) -> Any:
    """Another record of the data, if possible with another target."""
    places = [(record + step) % len(data) for step in range(1, min(len(data), 50))]
    own = _target(data[record])
    different = (place for place in places if not same_record(_target(data[place]), own))
    return data[next(different, places[0])]


def _target(record: Any) -> Any:
    return record[-1] if isinstance(record, tuple | list) and record else None


def larger(record: Any, other: Any) -> Any | None:
    """The record with its numbers larger, and with another one's target if that is a class; None if it has no such numbers."""
    if isinstance(record, tuple | list):
        parts = [_times(part) for part in record]
        target = _target(other)
        if parts[-1] is record[-1] and target is not None:
            parts[-1] = target
        different = any(part is not own for part, own in zip(parts[:-1] or parts, record, strict=False))
        return type(record)(parts) if different else None
    if isinstance(record, dict):
        made = {name: _times(part) for name, part in record.items()}
        return made if any(made[name] is not record[name] for name in record) else None
    return None


def _times(part: Any) -> Any:
    floating = isinstance(part, Tensor) and part.is_floating_point() and part.ndim > 0
    return part * LARGER if floating else part


def _require_fixed(data: Data, record: int) -> None:
    """Refuse data that give another record when they are read again."""
    for place in {0, record, len(data) - 1}:
        if not same_record(data[place], data[place]):
            raise ReplayError(
                "data that draw random numbers (augmentation) cannot be replayed without a record, because the other records "
                "then get other random numbers: test substitution, or leave out the augmentation."
            )
