"""Data sets with some records replaced, added or left out, and records with other arguments of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from betastar.training import Records
from betastar.training.records import pair

#: Turns a batch into what the model and the criterion get.
Split: TypeAlias = Callable[[Any], Records]


class Data(Protocol):
    """Records with a length, by their numbers: a data set of PyTorch, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Any: ...


class Changed(Dataset[Any]):
    """A data set with some records replaced, and others added at its end."""

    def __init__(self, data: Data, replaced: dict[int, Any], added: Sequence[Any] = ()) -> None:
        self.data, self.replaced, self.added = data, replaced, list(added)

    def __len__(self) -> int:
        return len(self.data) + len(self.added)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self.data):
            return self.added[index - len(self.data)]
        return self.replaced[index] if index in self.replaced else self.data[index]


class Without(Dataset[Any]):
    """A data set without some of its records."""

    def __init__(self, data: Data, left_out: Sequence[int]) -> None:
        self.data, self.kept = data, sorted(set(range(len(data))) - set(left_out))

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Any:
        return self.data[self.kept[index]]


def changed(data: Data, replaced: dict[int, Any], added: Sequence[Any] = ()) -> Data:
    """The same kind of data set as was given, where it holds tensors."""
    if type(data) is not TensorDataset:
        return Changed(data, replaced, added)
    columns = [column.clone() for column in data.tensors]
    for index, record in replaced.items():
        for column, value in zip(columns, record, strict=True):
            column[index] = value
    if added:
        columns = [torch.cat([column, torch.stack([record[i] for record in added])]) for i, column in enumerate(columns)]
    return TensorDataset(*columns)


def without(data: Data, *left_out: int) -> Data:
    """The data without some records; the same kind of data set as was given, where it holds tensors."""
    if type(data) is not TensorDataset:
        return Without(data, left_out)
    kept = torch.ones(len(data), dtype=torch.bool)
    kept[list(left_out)] = False
    return TensorDataset(*(column[kept] for column in data.tensors))


def read(data: Data, indices: Tensor, split: Split = pair) -> Records:
    """Some of the records, as a model sees them."""
    return split(data[indices] if type(data) is TensorDataset else default_collate([data[int(i)] for i in indices]))


def as_seen(records: Sequence[Any], split: Split) -> Records:
    """These records as a model sees them."""
    return split(default_collate(list(records)))


def with_arguments(record: Any, split: Split, arguments: Mapping[int | str, Tensor]) -> Any:
    """The record with other arguments of the model, or another target, in the form in which the data set has it.

    Parameters
    ----------
    record : object
        A record of the data set: tuples, lists and mappings of tensors and numbers.
    split : callable
        Turns a batch into `Records`.
    arguments : mapping
        The new arguments, without a dimension for records, by their position or name in `Records`.

    Raises
    ------
    ValueError
        If an argument is not a part of the batch, but computed from it.
    """
    batch = default_collate([record])
    given = split(batch).arguments()
    new = {id(given[key]): value for key, value in arguments.items()}
    found: set[int] = set()

    def rebuilt(own: Any, part: Any) -> Any:
        if id(part) in new:
            found.add(id(part))
            value = new[id(part)]
            return value.item() if isinstance(own, int | float) else value.numpy() if isinstance(own, np.ndarray) else value
        if isinstance(own, Mapping):
            return {key: rebuilt(own[key], part[key]) for key in own}
        if isinstance(own, tuple) and hasattr(own, "_fields"):
            return type(own)(*(rebuilt(a, b) for a, b in zip(own, part, strict=True)))
        if isinstance(own, list | tuple):
            return type(own)(rebuilt(a, b) for a, b in zip(own, part, strict=True))
        return own

    made = rebuilt(record, batch)
    if missing := [key for key in arguments if id(given[key]) not in found]:
        raise ValueError(
            f"split must take the arguments of the model out of a batch as they are, got {missing[0]!r}, which it computes: let "
            "the model or the data set compute it."
        )
    return made
