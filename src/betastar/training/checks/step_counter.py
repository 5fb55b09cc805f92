"""Counts every step that any optimizer takes on the parameters of a private model, and keeps the weights that a step has left."""

from __future__ import annotations

import weakref
from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


def same_contents(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit, so that NaN equals itself."""
    return len(some) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and (torch.equal(a, b) or _bits_equal(a, b))
        for a, b in zip(some, others, strict=True)
    )


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def digest(tensors: list[Tensor]) -> str:
    """A number that differs for tensors with other contents."""
    sha = sha256()
    for tensor in tensors:
        sha.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


class StepCounter:
    """Counts the steps of all optimizers of PyTorch that hold a parameter of a module.

    Parameters
    ----------
    module : Module
        The model.
    steps : int
        The number of steps that were taken before.
    """

    def __init__(self, module: nn.Module, steps: int = 0) -> None:
        self.steps = steps
        self._trained = module
        self._parameters = {id(p) for p in module.parameters()}
        self._left: list[Tensor] = []
        self.accept_weights()
        here = weakref.ref(self)

        def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
            counter = here()
            if counter is not None:
                counter._stepped(optimizer)

        handle = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, handle.remove)

    def _stepped(self, optimizer: Optimizer) -> None:
        if any(id(p) in self._parameters for group in optimizer.param_groups for p in group["params"]):
            self.steps += 1
            self.accept_weights()

    def accept_weights(self) -> None:
        """Take the weights as they are now for those that the last step has left."""
        self._left = [p.detach().clone() for p in self._trained.parameters()]

    def weights_unchanged(self) -> bool:
        """Whether the weights are those that the last step has left."""
        return same_contents(self._left, [p.detach() for p in self._trained.parameters()])
