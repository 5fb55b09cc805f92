"""Maxima, sums and collections over the processes of a distributed training. A single process gets back what it gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

Made = TypeVar("Made")


def together() -> bool:
    """Whether several processes train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def count() -> int:
    """The number of processes that train together."""
    return distributed.get_world_size() if together() else 1


def alike(value: Any) -> bool:
    """Whether all processes have the same value. All of them have to call this."""
    if not together():
        return True
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, value)
    return all(one == every[0] for one in every)


def share(number: int) -> torch.Tensor:
    """The numbers of the records, among `number` ones, that this process measures."""
    every = torch.arange(number)
    return every[distributed.get_rank() :: distributed.get_world_size()] if together() else every


def part(records: torch.Tensor) -> torch.Tensor:
    """The share of this process of some records. Each record is in the share of one process."""
    return records[share(len(records))] if together() else records


def of_first(make: Callable[[], Made]) -> Made:
    """What the first process makes, for all processes. All of them have to call this."""
    if not together():
        return make()
    made: list[Any] = [make() if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(made, src=0)
    return made[0]


def maximum(value: float) -> float:
    """The largest value over all processes."""
    return float(maxima(np.array([value]))[0]) if together() else value


def maxima(values: NDArray[Any]) -> NDArray[Any]:
    """The largest value over all processes, for each entry."""
    if not together():
        return values
    largest = torch.from_numpy(np.array(values, dtype=np.float64))
    if distributed.get_backend() == "nccl":
        largest = largest.cuda()
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return largest.cpu().numpy()


def sums(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, for each entry."""
    if not together():
        return tensor
    total = tensor.clone()
    distributed.all_reduce(total, op=distributed.ReduceOp.SUM)
    return total
