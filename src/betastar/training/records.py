"""Records as a model and its criterion see them: the model's arguments and the target, the first dimension counting records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

#: Records are read in portions of this many.
PORTION = 8192


@dataclass(frozen=True)
class Records:
    """model(*inputs, **named) and criterion(output, target) for some records."""

    inputs: tuple[Any, ...]
    target: Any = None
    named: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        for value in (*self.inputs, *self.named.values(), self.target):
            if isinstance(value, Tensor) and value.ndim:
                return int(value.shape[0])
        raise TypeError("the records hold no tensor whose first dimension counts them; pass split=... to say where they are.")

    def map(self, change: Callable[[Tensor], Tensor], rows: int | None = None) -> Records:
        """The same change for each tensor that has one row a record."""
        rows = len(self) if rows is None else rows

        def one(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows else value

        named = {name: one(value) for name, value in self.named.items()}
        return Records(tuple(one(value) for value in self.inputs), one(self.target), named)

    def take(self, index: Any) -> Records:
        return self.map(lambda tensor: tensor[index])

    def repeat(self, times: int, rows: int | None = None) -> Records:
        """Each record `times` times in a row."""
        return self.map(lambda tensor: tensor.repeat_interleave(times, dim=0), rows)

    def to(self, device: torch.device) -> Records:
        return self.map(lambda tensor: tensor.to(device))

    def detach(self) -> Records:
        return self.map(Tensor.detach)

    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.inputs, *self.named.values(), self.target) if isinstance(value, Tensor)]

    def versions(self) -> list[int]:
        """Change when somebody writes into a tensor."""
        return [tensor._version for tensor in self.tensors()]

    def get(self, argument: int | str) -> Any:
        return self.inputs[argument] if isinstance(argument, int) else self.named[argument]

    def put(self, argument: int | str, value: Any) -> Records:
        if isinstance(argument, str):
            return Records(self.inputs, self.target, {**self.named, argument: value})
        inputs = (*self.inputs[:argument], value, *self.inputs[argument + 1 :])
        return Records(inputs, self.target, self.named)


def pair(batch: Any) -> Records:
    """The usual batch: inputs, target, and perhaps more that the model does not see."""
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes) or len(batch) < 2:
        raise TypeError(
            f"a batch must be (inputs, target, ...), got {type(batch).__name__}; "
            "pass split=lambda batch: Records((inputs,), target) to say where they are."
        )
    return Records((batch[0],), batch[1])


class Source:
    """The records of a data set, in its order, without drawing a random number (a DataLoader would)."""

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], split: Callable[[Any], Records], device: torch.device
    ) -> None:
        self.dataset = dataset
        self._collate = collate
        self._split = split
        self._device = device

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int] | Tensor) -> Records:
        if type(self.dataset) is TensorDataset:
            batch: Any = self.dataset[torch.as_tensor(indices)]
        else:
            batch = self._collate([self.dataset[int(i)] for i in indices])
        return self._split(batch).to(self._device)

    def portions(self, indices: Sequence[int] | Tensor) -> Iterator[tuple[Tensor, Records]]:
        for some in torch.as_tensor(indices).split(PORTION):
            yield some, self.read(some)
