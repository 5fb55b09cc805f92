"""What `PrivacyEngine.make_private` returned: its sampling rate, noise and clipping, read and checked, and its hooks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.accountants import IAccountant
from opacus.grad_sample import GradSampleHooks
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch import Tensor, nn
from torch.utils.data import WeightedRandomSampler

from betastar.training.gradients import Gradients

#: Opacus divides by the norm plus this.
TINY = 1e-6
POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


class Wiring:
    """A model, an optimizer and a loader made private by Opacus."""

    def __init__(self, model: Any, optimizer: Any, loader: Any, amplification: bool = True) -> None:
        if not isinstance(model, GradSampleHooks):
            raise TypeError(
                f"model must be what make_private of Opacus returned with grad_sample_mode 'hooks', 'functorch' or 'ghost', "
                f"got {type(model).__name__}."
            )
        if not isinstance(optimizer, DPOptimizer):
            raise TypeError(f"optimizer must be what make_private of Opacus returned, got {type(optimizer).__name__}.")
        if isinstance(optimizer, AdaClipDPOptimizer):
            raise ValueError(
                "optimizer clips adaptively: it releases a count of clipped gradients besides their sum, which the distances "
                "do not cover. Use clipping='flat' or 'per_layer'."
            )
        if not model.batch_first:
            raise ValueError("model must have the records in its first dimension; make it private with batch_first=True.")
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.quiet = False  # inside `silence`
        self.outer: nn.Module = model._module
        self.module: nn.Module = self.outer
        while type(self.module).__name__ in ("DifferentiallyPrivateDistributedDataParallel", "DistributedDataParallel"):
            self.module = self.module.module  # type: ignore[assignment]
        if not self.outer.training:
            raise ValueError("model is in eval mode: call model.train() before attaching a monitor.")
        self.parameters: list[nn.Parameter] = [p for p in optimizer.params if p.requires_grad]
        mine = {id(p) for p in self.parameters}
        idle = [name for name, p in self.module.named_parameters() if p.requires_grad and id(p) not in mine]
        if idle:
            raise ValueError(f"{idle[0]} is trainable but not in the optimizer: add it, or freeze it with requires_grad_(False).")
        self.noise_multiplier()
        self.max_grad_norm()
        self.loss_reduction: str = optimizer.loss_reduction
        self._amplified = amplification
        self.flat = not isinstance(optimizer, DPPerLayerOptimizer) and not hasattr(optimizer, "max_grad_norms")
        self.sample_rate = self._sample_rate() if amplification else 1.0
        if amplification:
            self._check_batch_size()

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def noise_multiplier(self) -> float:
        noise = float(self.optimizer.noise_multiplier)
        if not noise > 0.0:
            raise ValueError(f"noise_multiplier must be greater than 0, got {noise:g}: without noise nothing is protected.")
        return noise

    def max_grad_norm(self) -> float:
        """C, which scales the noise; gradients must be clipped to the same."""
        norm = float(self.optimizer.max_grad_norm)
        if not norm > 0.0:
            raise ValueError(f"max_grad_norm must be greater than 0, got {norm:g}.")
        layers = getattr(self.optimizer, "max_grad_norms", None)
        clips = getattr(self.model, "max_grad_norm", norm) if layers is None else sum(c * c for c in layers) ** 0.5
        if abs(float(clips) - norm) > 1e-5 * norm:
            raise ValueError(
                f"max_grad_norm of the optimizer is {norm:g}, but gradients are clipped to {float(clips):g}, which the noise "
                "does not fit: schedules of the clipping norm work with flat clipping in the modes 'hooks' and 'functorch' only."
            )
        return norm

    def _sample_rate(self) -> float:
        sampler = self.loader.batch_sampler
        if isinstance(sampler, BatchSplittingSampler):
            sampler = sampler.sampler
        if isinstance(sampler, POISSON):
            return float(sampler.sample_rate)
        inside = getattr(sampler, "sampler", sampler)
        how = "weighted sampling" if isinstance(inside, WeightedRandomSampler) else f"{type(inside).__name__}"
        raise ValueError(
            f"loader must sample each record with the same probability, independently (Poisson), got {how}. "
            "Use the loader that make_private returns with poisson_sampling=True, "
            "or pass amplification=False to analyse every step as if all records took part (sample_rate 1)."
        )

    def _check_batch_size(self) -> None:
        expected = self.optimizer.expected_batch_size
        if expected is None or self.loss_reduction != "mean":
            return
        processes = torch.distributed.get_world_size() if hasattr(self.optimizer, "world_size") else 1
        mean = len(self.loader.dataset) * self.sample_rate
        if abs(expected * processes - mean) > max(1.0, 0.01 * mean):
            raise ValueError(
                f"expected_batch_size {expected * processes:g} of the optimizer does not match the loader, whose rate "
                f"{self.sample_rate:.4g} gives {mean:.1f}: use both as make_private returned them."
            )

    def units(self) -> list[nn.Module]:
        """Modules whose gradients Opacus computes, one by one."""
        skipped = (DPRNN, DPLSTM, DPGRU)
        return [unit for unit in self.model.iterate_submodules(self.outer) if type(unit) not in skipped]

    def recurrent(self) -> list[nn.Module]:
        """Modules whose linear layers are units of their own."""
        return [unit for unit in self.module.modules() if isinstance(unit, DPRNN | DPLSTM | DPGRU)]

    def clip(self, gradients: Gradients) -> Gradients:
        """By the optimizer's own rule; the result is in clipping norms."""
        total = self.max_grad_norm()
        if self.flat:
            scale = (total / (gradients.norms.sqrt() + TINY)).clamp(max=1.0) / total
            return gradients.scaled([scale] * len(gradients.factors), gradients.norms * scale.square())
        limits = {id(p): norm for p, norm in zip(self.optimizer.params, self.optimizer.max_grad_norms, strict=True)}
        scales: list[Tensor] = []
        for factor in gradients.factors:
            (parameter,) = factor.parameters
            scales.append((limits[id(parameter)] / (factor.norms().sqrt() + TINY)).clamp(max=1.0) / total)
        return gradients.scaled(scales)

    def norms(self) -> Tensor | None:
        """Norms of the gradients that Opacus has right now, one a record; None where it keeps none."""
        if hasattr(self.model, "per_sample_gradient_norms"):  # ghost clipping
            return self.model.per_sample_gradient_norms.detach()
        samples = [getattr(p, "grad_sample", None) for p in self.parameters]
        if any(not isinstance(sample, Tensor) for sample in samples):
            return None
        return torch.stack([sample.detach().flatten(1).norm(dim=1) for sample in samples if sample is not None]).norm(dim=0)

    def rows(self) -> int | None:
        """Records whose gradients the coming step will use, None where that is not known."""
        sample = getattr(self.parameters[0], "grad_sample", None)
        parts: list[Any] = sample if isinstance(sample, list) else [sample]
        return sum(len(part) for part in parts) if all(isinstance(part, Tensor) for part in parts) else None

    def steps_accounted(self) -> int:
        """Steps that the accountant of Opacus has seen; 0 where it cannot be asked."""
        for cell in getattr(self.optimizer.step_hook, "__closure__", None) or ():
            if isinstance(cell.cell_contents, IAccountant):
                return sum(steps for _, _, steps in cell.cell_contents.history)
        return 0

    def state(self) -> tuple[Any, ...]:
        """Changes whenever the distances may: weights, clipping, mode."""
        return (*(p._version for p in self.module.parameters()), self.max_grad_norm(), self.outer.training)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Opacus neither sees nor keeps anything of what the module does inside."""
        units = list(self.module.modules())
        had = [vars(unit).get("max_batch_len") for unit in units]
        enabled, quiet = self.model.hooks_enabled, self.quiet
        self.model.disable_hooks()
        self.quiet = True
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                yield
        finally:
            self.quiet = quiet
            if enabled:
                self.model.enable_hooks()
            for unit, before in zip(units, had, strict=True):
                if before is not None:
                    unit.max_batch_len = before
                elif "max_batch_len" in vars(unit):
                    del unit.max_batch_len


def loss_of(criterion: Any) -> Any:
    """The criterion itself, out of the wrapper that Opacus puts around it for ghost clipping."""
    return criterion.criterion if type(criterion).__name__.startswith("DPLossFastGradientClipping") else criterion
