"""Private optimizers that a training makes for itself: which there are, and what they do at a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
from opacus.optimizers.fsdpoptimizer_fast_gradient_clipping import FSDPOptimizerFastGradientClipping
from opacus.utils import batch_memory_manager
from torch import Tensor, nn
from torch.optim import Optimizer

from betastar.drawn_steps import SamplingScheme
from betastar.training import processes
from betastar.training.opacus import internals, samplers

#: Optimizers whose processes add up their sums.
DISTRIBUTED = (DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping, FSDPOptimizerFastGradientClipping)


@dataclass(frozen=True)
class StepSettings:
    """What a private optimizer does at a step, besides its gradients.

    Attributes
    ----------
    noise_multiplier : float
        The noise multiplier.
    max_grad_norm : float
        The clipping norm by which the noise is scaled.
    divisor : float
        The number by which the noisy sum of all processes is divided.
    adaptive : bool
        Whether the clipping norm follows a count of clipped gradients.
    """

    noise_multiplier: float
    max_grad_norm: float
    divisor: float
    adaptive: bool


class WatchedOptimizers:
    """The private optimizers that are made while `watching` runs."""

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._own_sums: dict[int, Tensor] = {}  # of this process, by the id of the parameter; only with several processes

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note each private optimizer that Opacus makes meanwhile."""
        internals.require_internals()
        inner = DPOptimizer.__init__

        def noted(private: Any, *arguments: Any, **named: Any) -> None:
            inner(private, *arguments, **named)
            self._made.append(private)
            if isinstance(private, DISTRIBUTED):
                self._keep_own_sums(private)

        DPOptimizer.__init__ = noted
        try:
            yield
        finally:
            DPOptimizer.__init__ = inner

    def _keep_own_sums(self, optimizer: Any) -> None:
        """Keep the sums of this process before the processes exchange theirs, which writes over them."""
        inner = optimizer.pre_step

        def pre_step(closure: Any = None) -> bool:
            taken = bool(inner(closure))
            if taken:
                mean = optimizer.loss_reduction == "mean" and optimizer.rank != 0  # Opacus has divided these sums already
                divisor = optimizer.expected_batch_size * optimizer.accumulated_iterations if mean else 1.0
                for p in optimizer.params:
                    self._own_sums[id(p)] = p.summed_grad.detach().double() * divisor
            return taken

        optimizer.pre_step = pre_step

    def _around(self, optimizer: Optimizer) -> Any | None:
        return next((one for one in self._made if one.original_optimizer is optimizer), None)

    def __len__(self) -> int:
        return len(self._made)

    def settings(self, optimizer: Optimizer) -> StepSettings | None:
        """The settings of the private optimizer around an optimizer of PyTorch; None if there is none."""
        private = self._around(optimizer)
        if private is None:
            return None
        number = torch.distributed.get_world_size() if isinstance(private, DISTRIBUTED) else 1
        if all(map(has_clipped_sum, private.params)):  # otherwise the step is not one of the private optimizer
            number *= private.accumulated_iterations
        mean = private.loss_reduction == "mean"
        return StepSettings(
            float(private.noise_multiplier),
            float(private.max_grad_norm),
            float(private.expected_batch_size * number) if mean else 1.0,
            isinstance(private, AdaClipDPOptimizer),
        )

    def clipped_sum(self, optimizer: Optimizer, parameter: Tensor) -> Tensor | None:
        """The sum of the clipped gradients of this step over all processes, without noise; None if nothing was clipped."""
        if not has_clipped_sum(parameter):
            return None
        private = self._around(optimizer)
        if not isinstance(private, DISTRIBUTED):
            return parameter.summed_grad.detach().reshape(parameter.shape).double()  # type: ignore[attr-defined]
        return processes.sums(self._own_sums[id(parameter)].reshape(parameter.shape))

    def record_numbers(self, optimizer: Optimizer) -> Tensor | None:
        """A row of numbers for each record of the last batch, from its own gradient before clipping: at each parameter the norm
        and the sum of the entries (with ghost clipping the norm alone). None if Opacus does not keep them."""
        private = self._around(optimizer)
        columns: list[Tensor] = []
        for parameter in private.params if private is not None else ():
            kept, norms = getattr(parameter, "grad_sample", None), getattr(parameter, "_norm_sample", None)
            last = kept[-1] if isinstance(kept, list) and kept else kept
            if isinstance(last, Tensor):
                flat = last.detach().reshape(len(last), last[0].numel() if len(last) else 0).double()
                columns += [flat.norm(dim=1), flat.sum(dim=1)]
            elif isinstance(norms, Tensor):
                columns.append(norms.detach().double())
        same = len({len(column) for column in columns}) == 1
        return torch.stack(columns, dim=1) if same else None


def is_private(model: nn.Module) -> bool:
    """Whether Opacus has wrapped a model, or has left attributes on its parameters."""
    return isinstance(model, AbstractGradSampleModule) or any(hasattr(p, "grad_sample") for p in model.parameters())


def has_clipped_sum(parameter: Any) -> bool:
    """Whether an optimizer of Opacus has clipped and added up gradients of this parameter for the coming step."""
    return getattr(parameter, "summed_grad", None) is not None


def is_split(index_sampler: Any) -> bool:
    """Whether BatchMemoryManager splits the batches of a loader into physical batches."""
    return isinstance(index_sampler, batch_memory_manager.BatchSplittingSampler)


def scheme_of_batches(index_sampler: Any, records: int) -> SamplingScheme | None:
    """How the batches of a loader are drawn; None if its batch sampler is none of those that are known."""
    inside = index_sampler.sampler if is_split(index_sampler) else index_sampler
    try:
        return samplers.scheme_of(inside, records)
    except ValueError:
        return None
