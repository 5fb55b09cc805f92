"""Source: reads the records of a data set by their numbers, as a model and its criterion see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from betastar.training.records import SPLIT, Records

#: Records are read in portions of this many.
PORTION = 8192


class Source:
    """Reads the records of a data set by their numbers. Unlike a DataLoader, it draws no random number."""

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], split: Callable[[Any], Records], device: torch.device
    ) -> None:
        self.dataset = dataset
        self._collate = collate
        self._split = split
        self._device = device

    def __len__(self) -> int:
        return len(self.dataset)

    def _read(self, indices: Sequence[int] | Tensor) -> Records:
        numbers = torch.as_tensor(indices)
        if self._rows_of_tensors:
            batch: Any = tuple(tensor.index_select(0, numbers.to(tensor.device)) for tensor in self.dataset.tensors)
        elif hasattr(self.dataset, "__getitems__"):
            batch = self._collate(self.dataset.__getitems__(numbers.tolist()))
        else:
            batch = self._collate([self.dataset[i] for i in numbers.tolist()])
        records = self._split(batch)
        if not isinstance(records, Records):
            raise TypeError(f"split must return Records, got {type(records).__name__}: {SPLIT}.")
        return records.to(self._device)

    @cached_property
    def _rows_of_tensors(self) -> bool:
        """Whether a batch is rows of the tensors of a data set, and nothing that `collate` makes of them."""
        if type(self.dataset) is not TensorDataset:
            return False
        few = min(3, len(self))
        rows = [tensor[:few] for tensor in self.dataset.tensors]
        made = self._collate([self.dataset[i] for i in range(few)]) if few else rows
        parts = made if isinstance(made, list | tuple) and len(made) == len(rows) else [None] * len(rows)
        return all(isinstance(part, Tensor) and torch.equal(part, row) for part, row in zip(parts, rows, strict=True))

    @cached_property
    def example(self) -> dict[int | str, Any]:
        """The arguments of a few records."""
        return self._read(range(min(3, len(self)))).arguments()

    @cached_property
    def shared(self) -> frozenset[int | str]:
        """The arguments that are the same for all records. They are found by reading batches of two sizes."""
        most = min(3, len(self))
        sizes = sorted({max(1, most - 1), most})
        read = [self._read(range(sizes[0])).arguments(), self.example][-len(sizes) :]
        keys = []
        for key in read[-1]:
            if any(_holds_tensors(arguments[key]) for arguments in read):
                raise ValueError(
                    f"argument {key!r} is a {type(read[-1][key]).__name__} of tensors, which cannot be divided by record: the "
                    f"model has to take each tensor as an argument of its own; {SPLIT}."
                )
            lengths = [len(a[key]) if isinstance(a[key], Tensor) and a[key].ndim else None for a in read]
            if len(set(lengths)) < len(sizes):
                keys.append(key)
            elif lengths != sizes:
                raise ValueError(
                    f"argument {key!r} has {lengths[0]} rows for {sizes[0]} records and {lengths[-1]} for {sizes[-1]}: each "
                    "argument must have one row for each record, or be the same for all records."
                )
        return frozenset(keys) if len(sizes) > 1 else frozenset()

    def read(self, indices: Sequence[int] | Tensor) -> Records:
        """The records with these numbers."""
        return replace(self._read(indices), shared=self.shared)

    def portions(self, indices: Sequence[int] | Tensor) -> Iterator[tuple[Tensor, Records]]:
        """The records with these numbers in portions, each with the numbers of its records."""
        for some in torch.as_tensor(indices).split(PORTION):
            yield some, self.read(some)


def _holds_tensors(value: object) -> bool:
    """Whether a list, tuple or mapping holds a tensor, at any depth."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(part, Tensor) or _holds_tensors(part) for part in parts)
