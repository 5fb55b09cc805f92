"""Replaces the clipping of an optimizer of Opacus by sums of gradients that gap clipping provides."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from opacus.optimizers import optimizer as dp_optimizer
from torch import Tensor

from betastar.training import processes
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.opacus.internals import UnsupportedOpacus


class ProvidedSums:
    """The optimizer of an adapter adds noise to sums that are provided; Opacus clips no gradients of single records any more.

    Parameters
    ----------
    adapter : OpacusAdapter
        The adapter whose optimizer is changed.
    """

    def __init__(self, adapter: OpacusAdapter) -> None:
        self._adapter, self._optimizer = adapter, adapter.optimizer
        self._sums: Mapping[Tensor, Tensor] | None = None
        adapter.model.disable_hooks()
        self._optimizer.clip_and_accumulate = self._accumulate
        self._optimizer.add_noise = self._add_noise

    def provide(self, sums: Mapping[Tensor, Tensor], records: int) -> None:
        """Provide the sums of clipped gradients of the coming batch.

        Parameters
        ----------
        sums : mapping
            One tensor in double precision for each parameter of the optimizer.
        records : int
            The number of records in the batch.
        """
        self._sums = sums
        for parameter in self._optimizer.params:
            parameter.grad_sample = parameter.new_empty(records, 0)  # Opacus refuses a step without gradients of single records

    def require_used(self) -> None:
        """Raise `UnsupportedOpacus` unless the optimizer has used the sums that were provided last."""
        if self._sums is not None:
            raise UnsupportedOpacus("takes a step without DPOptimizer.clip_and_accumulate, which gap clipping replaces")

    def _accumulate(self) -> None:
        if self._sums is None:
            raise RuntimeError("the optimizer clips without a batch: call optimizer.step(), and nothing else of it.")
        for parameter in self._optimizer.params:
            if parameter.summed_grad is None:
                parameter.summed_grad = self._sums[parameter]
            else:  # in place, because Opacus marks sums that it has used, and refuses to use them again
                parameter.summed_grad += self._sums[parameter]
        self._sums = None

    def _add_noise(self) -> None:
        """Add noise as Opacus does, but to sums in double precision: single precision is enough only once noise was added."""
        optimizer = self._optimizer
        deviation = self._adapter.noise_multiplier() * self._adapter.max_grad_norm()
        for parameter in optimizer.params:
            dp_optimizer._check_processed_flag(parameter.summed_grad)
            total = processes.sums(parameter.summed_grad)
            if self._adapter.rank == 0:
                noise = dp_optimizer._generate_noise(deviation, parameter, optimizer.generator, optimizer.secure_mode)
                parameter.grad = (total + noise).to(parameter.dtype)
                parameter.summed_grad = total
            else:  # Opacus adds up the gradients of all processes
                parameter.grad = torch.zeros_like(parameter)
            dp_optimizer._mark_as_processed(parameter.summed_grad)
