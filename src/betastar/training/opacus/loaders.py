"""The loader of a training, where Opacus keeps it to itself."""

from __future__ import annotations

import sys
from typing import Any

from opacus import PrivacyEngine
from opacus.utils import batch_memory_manager
from torch.utils.data import DataLoader

from betastar.training.opacus import internals, samplers


def logical_sampler(loader: DataLoader[Any]) -> Any:
    """The batch sampler of a loader, without what BatchMemoryManager puts around it. Epochs of a shuffling one are counted."""
    sampler = loader.batch_sampler
    return samplers.counted(sampler.sampler if isinstance(sampler, batch_memory_manager.BatchSplittingSampler) else sampler)


def loader_of_make_private() -> DataLoader[Any] | None:
    """The loader of the `make_private` that asks an accountant for its step hook; None if something else asks.

    Opacus tells an accountant the rate 1 / batches, whatever the sampling, and not which loader it is of. So the loader is read
    from the local variables of `make_private`, two calls up; `require_internals` checks that it has this variable.
    """
    frame = sys._getframe(2)
    if frame.f_code is not PrivacyEngine.make_private.__code__:
        return None
    internals.require_internals()
    loader = frame.f_locals["data_loader"]
    return loader if isinstance(loader, DataLoader) else None
