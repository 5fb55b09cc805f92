"""Checks that a model neither draws random numbers nor writes into its state, and restores what a measurement has changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class GradientError(RuntimeError):
    """Gradients of single records cannot be computed, are not finite, or are not those that the training uses."""


def _numpy_state() -> Any:
    return np.random.get_state(legacy=True)


@dataclass
class RandomStates:
    """The states of the global random number generators of PyTorch, NumPy and Python."""

    cpu: Tensor = field(default_factory=torch.get_rng_state)
    numpy: Any = field(default_factory=_numpy_state)
    python: Any = field(default_factory=random.getstate)
    cuda: list[Tensor] = field(
        default_factory=lambda: (
            torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
        )
    )

    def same(self) -> bool:
        """Whether no random number was drawn since."""
        now = RandomStates()
        return (
            torch.equal(self.cpu, now.cpu)
            and np.array_equal(self.numpy[1], now.numpy[1])
            and self.numpy[2:] == now.numpy[2:]
            and self.python == now.python
            and all(torch.equal(a, b) for a, b in zip(self.cuda, now.cuda, strict=False))
        )

    def restore(self) -> None:
        """Set the generators back to these states."""
        torch.set_rng_state(self.cpu)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


@contextmanager
def unchanged(module: nn.Module, thorough: bool) -> Iterator[None]:
    """Refuse models that draw random numbers or write into their own state when they run.

    With `thorough`, the generators of Python and NumPy are compared as well, which takes longer.
    """
    states = RandomStates() if thorough else None
    before = torch.get_rng_state()
    state = [*module.parameters(), *module.buffers()]
    versions = [tensor._version for tensor in state]
    yield
    if not torch.equal(before, torch.get_rng_state()) or (states is not None and not states.same()):
        torch.set_rng_state(before)
        if states is not None:
            states.restore()
        names = [name for name, part in module.named_modules() if getattr(part, "p", 0) or getattr(part, "dropout", 0)]
        where = f" ({', '.join(names)})" if names else ""
        raise GradientError(
            f"the model draws random numbers when it runs{where}: the gap then does not follow from the weights. "
            "Set the probability of dropout to 0, or use nn.Dropout or torch.nn.functional.dropout, whose masks are repeated."
        )
    if versions != [tensor._version for tensor in state]:
        raise GradientError("the model writes into its own weights or buffers when it runs (running statistics? max_norm?).")


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore weights, buffers and random number generators afterwards, whatever happens inside."""
    states = RandomStates()
    tensors = [*module.parameters(), *module.buffers()]
    versions = [tensor._version for tensor in tensors]
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        if not states.same():
            states.restore()
        for tensor, version, copy in zip(tensors, versions, copies, strict=True):
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(copy)
