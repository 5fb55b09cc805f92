"""Records as a model and its criterion see them: the model's arguments and the target, the first dimension counting records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

#: Records are read in portions of this many.
PORTION = 8192
#: The key of the target among the arguments of a record, next to positions and names.
TARGET = "target of the criterion"


@dataclass(frozen=True)
class Records:
    """model(*inputs, **named) and criterion(output, target) for some records.

    shared: positions and names of arguments that are the same for all records, so that their rows are not counted or taken apart.
    """

    inputs: tuple[Any, ...]
    target: Any = None
    named: dict[str, Any] = field(default_factory=dict)
    shared: frozenset[int | str] = frozenset()

    def arguments(self) -> dict[int | str, Any]:
        """Every argument by its position or name, and the target."""
        arguments: dict[int | str, Any] = dict(enumerate(self.inputs))
        arguments.update(self.named)
        return arguments | {TARGET: self.target}

    def rows(self) -> dict[int | str, Tensor]:
        """The arguments that have one row a record."""
        return {k: v for k, v in self.arguments().items() if isinstance(v, Tensor) and v.ndim and k not in self.shared}

    def __len__(self) -> int:
        for value in self.rows().values():
            return int(value.shape[0])
        raise TypeError("the records hold no tensor whose first dimension counts them; pass split=... to say where they are.")

    def changed(self, change: Callable[[int | str, Any], Any]) -> Records:
        made = {key: change(key, value) for key, value in self.arguments().items()}
        target = made.pop(TARGET)
        return replace(
            self,
            inputs=tuple(made[i] for i in range(len(self.inputs))),
            target=target,
            named={name: made[name] for name in self.named},
        )

    def map(self, change: Callable[[Tensor], Tensor], rows: int | None = None) -> Records:
        """The same change for each tensor that has one row a record."""
        number, mine = len(self) if rows is None else rows, self.rows()

        def one(key: int | str, value: Any) -> Any:
            if key not in mine:
                return value
            if len(value) != number:
                raise ValueError(
                    f"argument {key!r} has {len(value)} rows for {number} records: each argument must have one row a record, or "
                    "be the same for all records."
                )
            return change(value)

        return self.changed(one)

    def take(self, index: Any) -> Records:
        return self.map(lambda tensor: tensor[index])

    def repeat(self, times: int, rows: int | None = None) -> Records:
        """Each record `times` times in a row."""
        return self.map(lambda tensor: tensor.repeat_interleave(times, dim=0), rows)

    def to(self, device: torch.device) -> Records:
        return self.changed(lambda _, value: value.to(device) if isinstance(value, Tensor) else value)

    def detach(self) -> Records:
        return self.changed(lambda _, value: value.detach() if isinstance(value, Tensor) else value)

    def tensors(self) -> list[Tensor]:
        return [value for value in self.arguments().values() if isinstance(value, Tensor)]

    def versions(self) -> list[int]:
        """Change when somebody writes into a tensor."""
        return [tensor._version for tensor in self.tensors()]

    def get(self, argument: int | str) -> Any:
        return self.inputs[argument] if isinstance(argument, int) else self.named[argument]

    def put(self, argument: int | str, value: Any) -> Records:
        return self.changed(lambda key, old: value if key == argument else old)

    def fingerprints(self) -> Tensor:
        """A 64-bit number for each record that depends on all of its contents, the same in every batch and order."""
        total = torch.zeros(len(self), dtype=torch.int64)
        for number, tensor in enumerate(self.rows().values() if len(self) else ()):
            bits = (tensor.detach().cpu().double().reshape(len(self), -1) + 0.0).view(torch.int64)  # + 0.0: the two zeros are one
            generator = torch.Generator().manual_seed(number)
            factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) * 2 + 1
            mixed = (bits ^ (bits >> 29)) * factors  # integer arithmetic wraps around: the order of a sum does not matter
            total += (mixed ^ (mixed >> 31)).sum(dim=1)
        return total


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

    def _read(self, indices: Sequence[int] | Tensor) -> Records:
        if type(self.dataset) is TensorDataset:
            batch: Any = self.dataset[torch.as_tensor(indices)]
        else:
            batch = self._collate([self.dataset[int(i)] for i in indices])
        return self._split(batch).to(self._device)

    @cached_property
    def example(self) -> dict[int | str, Any]:
        """The arguments of a few records."""
        return self._read(range(min(3, len(self)))).arguments()

    @cached_property
    def shared(self) -> frozenset[int | str]:
        """Arguments that are the same for all records: batches of two sizes tell."""
        most = min(3, len(self))
        sizes = sorted({max(1, most - 1), most})
        read = [self._read(range(sizes[0])).arguments(), self.example][-len(sizes) :]
        keys = []
        for key in read[-1]:
            if any(_holds_tensors(arguments[key]) for arguments in read):
                raise ValueError(
                    f"argument {key!r} is a {type(read[-1][key]).__name__} of tensors, which cannot be told apart by record: let "
                    "split give each tensor as an argument of its own."
                )
            lengths = [len(a[key]) if isinstance(a[key], Tensor) and a[key].ndim else None for a in read]
            if len(set(lengths)) < len(sizes):
                keys.append(key)
            elif lengths != sizes:
                raise ValueError(
                    f"argument {key!r} has {lengths[0]} rows for {sizes[0]} records and {lengths[-1]} for {sizes[-1]}: each "
                    "argument must have one row a record, or be the same for all records."
                )
        return frozenset(keys) if len(sizes) > 1 else frozenset()

    def read(self, indices: Sequence[int] | Tensor) -> Records:
        return replace(self._read(indices), shared=self.shared)

    def portions(self, indices: Sequence[int] | Tensor) -> Iterator[tuple[Tensor, Records]]:
        for some in torch.as_tensor(indices).split(PORTION):
            yield some, self.read(some)

    @cached_property
    def fingerprints(self) -> Tensor:
        """One number for each record, in the order of the data set."""
        return torch.cat([records.fingerprints() for _, records in self.portions(range(len(self)))])


def _holds_tensors(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(part, Tensor) or _holds_tensors(part) for part in parts)
