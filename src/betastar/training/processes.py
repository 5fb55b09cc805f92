"""Maxima over the processes of a distributed training run; with one process, what was given."""

from __future__ import annotations

import numpy as np
import torch
from torch import distributed

from betastar.arrays import Real


def together() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def share(number: int) -> torch.Tensor:
    """Of `number` records, those that this process looks after."""
    if not together():
        return torch.arange(number)
    return torch.arange(distributed.get_rank(), number, distributed.get_world_size())


def maximum(value: float) -> float:
    return float(maxima(np.array([value]))[0]) if together() else value


def maxima(values: Real) -> Real:
    """Entry by entry."""
    if not together():
        return values
    tensor = torch.from_numpy(np.array(values, dtype=np.float64))
    if distributed.get_backend() == "nccl":
        tensor = tensor.cuda()
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
    return tensor.cpu().numpy()
