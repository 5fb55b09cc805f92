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
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


class OpacusAdapter:
    """A model, an optimizer and a loader made private by Opacus."""

    def __init__(
        self, model: Any, optimizer: Any, loader: Any, amplification: bool = True, accountant: IAccountant | None = None
    ) -> None:
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
        self.accountant = self._find_accountant(accountant)
        if amplification:
            self._check_batch_size()
        else:
            _refuse_repeating(self._batch_sampler())

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

    def _batch_sampler(self) -> Any:
        sampler = self.loader.batch_sampler
        return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler

    def sample_rate(self) -> float:
        """With which each record is sampled at this moment; 1 without amplification."""
        if not self._amplified:
            return 1.0
        sampler = self._batch_sampler()
        if isinstance(sampler, POISSON):
            rate = float(sampler.sample_rate)
            if not 0.0 < rate <= 1.0:
                raise ValueError(f"sample_rate of the loader must be greater than 0 and at most 1, got {rate:g}.")
            return rate
        _refuse_repeating(sampler)
        raise ValueError(
            "loader must sample each record with the same probability, independently (Poisson), got "
            f"{type(getattr(sampler, 'sampler', sampler)).__name__}. "
            "Use the loader that make_private returns with poisson_sampling=True, "
            "or pass amplification=False to analyse every step as if all records took part (sample_rate 1)."
        )

    def _check_batch_size(self) -> None:
        expected = self.optimizer.expected_batch_size
        if expected is None or self.loss_reduction != "mean":
            self.sample_rate()
            return
        processes = torch.distributed.get_world_size() if hasattr(self.optimizer, "world_size") else 1
        rate = self.sample_rate()
        mean = len(self.loader.dataset) * rate
        if abs(expected * processes - mean) > max(1.0, 0.01 * mean):
            raise ValueError(
                f"expected_batch_size {expected * processes:g} of the optimizer does not match the loader, whose rate "
                f"{rate:.4g} gives {mean:.1f}: use both as make_private returned them."
            )

    def units(self) -> list[nn.Module]:
        """Modules whose gradients Opacus computes, one by one."""
        skipped = (DPRNN, DPLSTM, DPGRU)
        return [unit for unit in self.model.iterate_submodules(self.outer) if type(unit) not in skipped]

    def recurrent(self) -> list[nn.Module]:
        """Modules whose linear layers are units of their own."""
        return [unit for unit in self.module.modules() if isinstance(unit, DPRNN | DPLSTM | DPGRU)]

    def gradients(self, batch: int = 0, batches: int = 1) -> list[Tensor] | None:
        """The gradients that Opacus has of the records of one of several batches since the last step, one tensor a parameter.

        None where it keeps none, or has others.
        """
        found = []
        for p in self.parameters:
            sample = getattr(p, "grad_sample", None)
            parts: list[Any] = sample if isinstance(sample, list) else [sample]
            if len(parts) != batches or not isinstance(parts[batch], Tensor):
                return None
            found.append(parts[batch].detach())
        return found

    def ghost_norms(self) -> Tensor | None:
        """Norms of the gradients of the last batch, one a record, with ghost clipping; None without."""
        return self.model.per_sample_gradient_norms.detach() if hasattr(self.model, "per_sample_gradient_norms") else None

    def rows(self) -> int | None:
        """Records whose gradients the coming step will use, None where that is not known."""
        sample = getattr(self.parameters[0], "grad_sample", None)
        parts: list[Any] = sample if isinstance(sample, list) else [sample]
        return sum(len(part) for part in parts) if all(isinstance(part, Tensor) for part in parts) else None

    def added_noise(self) -> list[Tensor] | None:
        """What the optimizer has just added to the clipped sums, one tensor a parameter; None where another process adds it."""
        if self._rank != 0:
            return None
        noise = []
        for p in self.parameters:
            total = self.clipped_sum(p)
            if p.grad is None or total is None:
                return [torch.zeros_like(p) for p in self.parameters]
            noise.append(p.grad.detach().double() * self._divisor() - total.double())
        return noise

    def clipped_sum(self, parameter: Any) -> Tensor | None:
        """Of the gradients of this step, before noise was added; None where there is none."""
        found = parameter.summed_grad
        if found is None:
            return None
        scale = 1 if self._rank == 0 else self._divisor()  # where no noise is added, Opacus divides the sum itself
        return found.detach().view_as(parameter) * scale

    @property
    def _rank(self) -> int:
        """Of the process; noise is added by the first one."""
        return getattr(self.optimizer, "rank", 0)

    def _divisor(self) -> float:
        """What Opacus divides noised sums by."""
        return (
            self.optimizer.expected_batch_size * self.optimizer.accumulated_iterations if self.loss_reduction == "mean" else 1.0
        )

    def parameter_names(self) -> list[str]:
        names = {id(p): name for name, p in self.module.named_parameters()}
        return [names[id(p)] for p in self.parameters]

    def _find_accountant(self, given: IAccountant | None) -> IAccountant | None:
        """The given one, or the one that Opacus's own step hook reports to; None where that cannot be told."""
        if given is not None and not isinstance(given, IAccountant):
            raise TypeError(f"accountant must be the accountant of a PrivacyEngine, got {type(given).__name__}.")
        cells = getattr(self.optimizer.step_hook, "__closure__", None) or ()
        found = [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, IAccountant)]
        return given if given is not None else found[0] if found else None

    def steps_accounted(self) -> int:
        """Steps that the accountant of Opacus has seen."""
        if self.accountant is None:
            raise ValueError(
                "the optimizer's step hook does not lead to an accountant of Opacus, which must count the steps: pass "
                "accountant=privacy_engine.accountant."
            )
        return sum(steps for _, _, steps in self.accountant.history)

    def check_precision(self) -> None:
        """That the loop computes in single or double precision, as the monitor does: a gap drowns in the rounding of less."""
        strange = [p.dtype for p in self.parameters if p.dtype not in (torch.float32, torch.float64)]
        if strange:
            raise ValueError(f"module must have weights in float32 or float64, got {strange[0]}: a gap would drown in rounding.")
        if torch.is_autocast_enabled(self.device.type):
            raise ValueError(
                "the loop runs the model under torch.autocast, whose rounding moves gradients further apart than the values of a "
                "secret do: train in float32 (leave torch.autocast out)."
            )
        if torch.get_float32_matmul_precision() != "highest":
            raise ValueError(
                f"torch.get_float32_matmul_precision() must be 'highest', got {torch.get_float32_matmul_precision()!r}, which "
                "rounds products of matrices: call torch.set_float32_matmul_precision('highest')."
            )

    def contents(self) -> list[Tensor]:
        """A copy of all weights and buffers."""
        return [tensor.detach().clone() for tensor in self.tensors()]

    def tensors(self) -> list[Tensor]:
        """All weights and buffers."""
        return [*(p.detach() for p in self.module.parameters()), *self.module.buffers()]

    def settings(self) -> tuple[Any, ...]:
        """What distances depend on besides weights, buffers and records."""
        return self.max_grad_norm(), tuple(getattr(self.optimizer, "max_grad_norms", ())), self.outer.training

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


def _refuse_repeating(sampler: Any) -> None:
    """Samplers that may draw a record twice for one step: its gradient then counts twice, whatever the rate."""
    inside = getattr(sampler, "sampler", None) if isinstance(sampler, BatchSampler) else sampler
    if isinstance(inside, DistributedSampler):  # it fills up with records that others have, too, unless all have equally many
        fine = inside.drop_last or inside.total_size == len(inside.dataset)  # type: ignore[arg-type]
    elif isinstance(inside, SubsetRandomSampler):
        fine = len(set(inside.indices)) == len(inside.indices)
    elif isinstance(inside, RandomSampler):
        fine = not inside.replacement and inside.num_samples <= len(inside.data_source)
    else:
        fine = isinstance(inside, (SequentialSampler, *POISSON))
    if fine:
        return
    raise ValueError(
        f"loader has the sampler {type(inside).__name__}, which may draw a record more than once for a step, so that its "
        "gradient counts more than once: use the loader that make_private returns with poisson_sampling=True, or a sampler of "
        "PyTorch without replacement and amplification=False."
    )
