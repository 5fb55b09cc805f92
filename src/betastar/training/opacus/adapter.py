"""The only module that touches what Opacus does not promise.

`OpacusAdapter` looks at the start whether each of these parts is there, and refuses by name and version of Opacus if not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import opacus
import torch
from opacus.accountants import IAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule, GradSampleHooks, GradSampleModule, functorch
from opacus.grad_sample import grad_sample_module_fast_gradient_clipping as ghost_clipping
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers import optimizer as dp_optimizer
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
from opacus.optimizers.fsdpoptimizer_fast_gradient_clipping import FSDPOptimizerFastGradientClipping
from opacus.utils import batch_memory_manager, fast_gradient_clipping_utils
from torch import Tensor, nn

from betastar.training import processes
from betastar.training.opacus.samplers import poisson_rate, refuse_repeating, require_batch_size

#: Parts of modules and classes of Opacus, and what each object that `make_private` returned must have.
OF_OPACUS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (dp_optimizer, ("_check_processed_flag", "_generate_noise", "_mark_as_processed")),
    (functorch, ("ft_compute_per_sample_gradient",)),
    (batch_memory_manager, ("BatchSplittingSampler",)),
    (fast_gradient_clipping_utils, ("DPLossFastGradientClipping",)),
    (ghost_clipping, ("GradSampleHooksFastGradientClipping",)),
    (GradSampleModule, ("GRAD_SAMPLERS", "iterate_submodules", "disable_hooks", "enable_hooks")),
    (DPOptimizer, ("pre_step", "clip_and_accumulate", "add_noise", "accumulated_iterations", "params")),
)
OF_MODEL = ("_module", "hooks_enabled", "batch_first")
OF_OPTIMIZER = (
    *("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction"),
    *("generator", "secure_mode", "step_hook", "_step_skip_queue", "_is_last_step_skipped"),
)
OF_PARAMETER = ("grad_sample", "summed_grad")
DISTRIBUTED = (DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping, FSDPOptimizerFastGradientClipping)


class UnsupportedOpacus(RuntimeError):  # noqa: N818
    """The installed version of Opacus lacks a part that the measurement or its checks rest on."""

    def __init__(self, what: str) -> None:
        super().__init__(f"Opacus {opacus.__version__} {what}: install a version of Opacus that betastar[training] allows.")


def _require(owner: Any, where: str, names: Sequence[str]) -> None:
    for name in names:
        # A model of Opacus passes questions on to the module inside, which may have an attribute of this name, too.
        there = name in {**vars(owner), **owner._modules} if isinstance(owner, nn.Module) else hasattr(owner, name)
        if not there:
            raise UnsupportedOpacus(f"has no {where}.{name}, on which what is measured and proved rests")


def require_internals() -> None:
    """That Opacus has the parts of its modules and classes that are used here."""
    for owner, names in OF_OPACUS:
        _require(owner, owner.__name__, names)


class OpacusAdapter:
    """A model, an optimizer and a loader that `PrivacyEngine.make_private` has returned.

    amplification: whether steps are charged with the loader's sampling rate, which must then be Poisson sampling; else with 1.
    accountant: of the engine, where the optimizer's step hook does not lead to it.
    """

    def __init__(
        self, model: Any, optimizer: Any, loader: Any, amplification: bool = True, accountant: IAccountant | None = None
    ) -> None:
        require_internals()
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
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self._require_parts()
        if not model.batch_first:
            raise ValueError("model must have the records in its first dimension; make it private with batch_first=True.")
        self.quiet = False  # inside `silence`
        self.outer: nn.Module = model._module
        self.module: nn.Module = self.outer
        while isinstance(self.module, DifferentiallyPrivateDistributedDataParallel | nn.parallel.DistributedDataParallel):
            self.module = self.module.module
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
        self.accountant = self._find_accountant(accountant)
        rate = self.sample_rate()
        if not amplification:
            refuse_repeating(self._batch_sampler())
        elif self.loss_reduction == "mean":
            number = torch.distributed.get_world_size() if self._distributed else 1
            require_batch_size(optimizer.expected_batch_size * number, len(loader.dataset), rate)

    def _require_parts(self) -> None:
        """That the given objects have the parts that are used here, and which kind of clipping and of optimizer they have."""
        _require(self.model, type(self.model).__name__, OF_MODEL)
        _require(self.optimizer, type(self.optimizer).__name__, OF_OPTIMIZER)
        for parameter in self.optimizer.params:
            if parameter.requires_grad:
                _require(parameter, "Parameter", OF_PARAMETER)
        #: Whether norms of gradients are clipped without the gradients being kept.
        self.ghost = isinstance(self.model, ghost_clipping.GradSampleHooksFastGradientClipping)
        if self.ghost:
            _require(type(self.model), type(self.model).__name__, ("per_sample_gradient_norms",))
            _require(self.model, type(self.model).__name__, ("max_grad_norm",))
        #: Whether the gradient is clipped as a whole, not layer by layer.
        self.flat = not isinstance(self.optimizer, DPPerLayerOptimizer) and not hasattr(self.optimizer, "max_grad_norms")
        if not self.flat:
            _require(self.optimizer, type(self.optimizer).__name__, ("max_grad_norms",))
        #: Whether several processes add their sums up, of which the first one adds noise.
        marks = (hasattr(self.optimizer, name) for name in ("rank", "world_size"))
        self._distributed = isinstance(self.optimizer, DISTRIBUTED) or any(marks)
        if self._distributed:
            _require(self.optimizer, type(self.optimizer).__name__, ("rank", "world_size"))

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
        clips = norm
        if not self.flat:
            clips = float(sum(c * c for c in self.layer_norms()) ** 0.5)
        elif self.ghost:
            clips = float(self.model.max_grad_norm)
        if abs(clips - norm) > 1e-5 * norm:
            raise ValueError(
                f"max_grad_norm of the optimizer is {norm:g}, but gradients are clipped to {clips:g}, which the noise "
                "does not fit: schedules of the clipping norm work with flat clipping in the modes 'hooks' and 'functorch' only."
            )
        return norm

    def layer_norms(self) -> tuple[float, ...]:
        """The norm that the gradient of each parameter of the optimizer is clipped to; empty with flat clipping."""
        return () if self.flat else tuple(self.optimizer.max_grad_norms)

    def settings(self) -> tuple[Any, ...]:
        """What distances depend on besides weights, buffers and records."""
        return self.max_grad_norm(), self.layer_norms(), self.outer.training

    def _batch_sampler(self) -> Any:
        sampler = self.loader.batch_sampler
        return sampler.sampler if isinstance(sampler, batch_memory_manager.BatchSplittingSampler) else sampler

    def sample_rate(self) -> float:
        """The probability with which each record is sampled at this moment; 1 without amplification."""
        return poisson_rate(self._batch_sampler()) if self._amplified else 1.0

    def _find_accountant(self, given: IAccountant | None) -> IAccountant | None:
        """The given accountant, or the one that Opacus's own step hook reports to; None where that cannot be told."""
        if given is not None and not isinstance(given, IAccountant):
            raise TypeError(f"accountant must be the accountant of a PrivacyEngine, got {type(given).__name__}.")
        cells = getattr(self.optimizer.step_hook, "__closure__", None) or ()
        reported = [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, IAccountant)]
        return given if given is not None else reported[0] if reported else None

    def steps_accounted(self) -> int:
        """The number of steps that the accountant of Opacus has seen."""
        if self.accountant is None:
            raise ValueError(
                "the optimizer's step hook does not lead to an accountant of Opacus, which must count the steps: pass "
                "accountant=privacy_engine.accountant."
            )
        return sum(steps for _, _, steps in self.accountant.history)

    @property
    def hooks_are_enabled(self) -> bool:
        """Whether Opacus computes gradients of single records."""
        return bool(self.model.hooks_enabled)

    def units(self) -> list[nn.Module]:
        """Modules whose gradients Opacus computes, one by one."""
        skipped = (DPRNN, DPLSTM, DPGRU)
        return [unit for unit in self.model.iterate_submodules(self.outer) if type(unit) not in skipped]

    def recurrent(self) -> list[nn.Module]:
        """Modules whose linear layers are units of their own."""
        return [unit for unit in self.module.modules() if isinstance(unit, DPRNN | DPLSTM | DPGRU)]

    def parameter_names(self) -> list[str]:
        names = {id(p): name for name, p in self.module.named_parameters()}
        return [names[id(p)] for p in self.parameters]

    def contents(self) -> list[Tensor]:
        """A copy of all weights and buffers."""
        return [tensor.detach().clone() for tensor in self.tensors()]

    def tensors(self) -> list[Tensor]:
        """All weights and buffers."""
        return [*(p.detach() for p in self.module.parameters()), *self.module.buffers()]

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

    def around_step(self, run: Callable[[Callable[[], bool]], bool]) -> Callable[[], None]:
        """Let `run` decide about each step before the optimizer clips; returns a function that undoes this.

        run: is given a function that makes Opacus clip, add up and add noise, and returns its result: whether a step is taken
        (False for a physical batch that is not the last one of its logical batch).
        """
        inner = self.optimizer.pre_step

        def pre_step(closure: Any = None) -> bool:
            return run(lambda: bool(inner(closure)))

        def undo() -> None:
            if vars(self.optimizer).get("pre_step") is pre_step:
                del self.optimizer.pre_step

        self.optimizer.pre_step = pre_step
        return undo

    def inside_logical_batch(self) -> bool:
        """Whether further physical batches of a logical batch are to come."""
        return bool(self.optimizer._step_skip_queue)

    def replace_clipping(self) -> None:
        """Opacus computes and clips no gradients of single records any more; the sums are those of `provide_sums`."""
        self.model.disable_hooks()
        self.optimizer.clip_and_accumulate = self._accumulate_provided
        self.optimizer.add_noise = self._add_noise
        self._provided: Mapping[Tensor, Tensor] | None = None

    def provide_sums(self, sums: Mapping[Tensor, Tensor], records: int) -> None:
        """The clipped sums of the coming batch, in double precision, one for each parameter."""
        self._provided = sums
        for parameter in self.optimizer.params:
            parameter.grad_sample = parameter.new_empty(records, 0)  # Opacus looks whether there are any

    def require_sums_used(self) -> None:
        """That Opacus has called what `replace_clipping` put in the place of its own clipping."""
        if self._provided is not None:
            raise UnsupportedOpacus("takes a step without DPOptimizer.clip_and_accumulate, which gap clipping replaces")

    def _accumulate_provided(self) -> None:
        if self._provided is None:
            raise RuntimeError("the optimizer clips without a batch: call optimizer.step(), and nothing else of it.")
        for parameter in self.optimizer.params:
            if parameter.summed_grad is None:
                parameter.summed_grad = self._provided[parameter]
            else:  # in place: Opacus marks what it has used, and refuses to use it again
                parameter.summed_grad += self._provided[parameter]
        self._provided = None

    def _add_noise(self) -> None:
        """Add noise as Opacus does, but to sums in double precision: single precision is enough for noised sums only."""
        optimizer = self.optimizer
        deviation = self.noise_multiplier() * self.max_grad_norm()
        for parameter in optimizer.params:
            dp_optimizer._check_processed_flag(parameter.summed_grad)
            total = processes.sums(parameter.summed_grad)
            if self._rank == 0:
                noise = dp_optimizer._generate_noise(deviation, parameter, optimizer.generator, optimizer.secure_mode)
                parameter.grad = (total + noise).to(parameter.dtype)
                parameter.summed_grad = total
            else:  # Opacus adds the gradients of all processes up
                parameter.grad = torch.zeros_like(parameter)
            dp_optimizer._mark_as_processed(parameter.summed_grad)

    def gradients(self, batch: int = 0, batches: int = 1) -> list[Tensor] | None:
        """The gradients that Opacus has of the records of one of several batches since the last step, one tensor a parameter.

        None where it keeps none, or has others.
        """
        parts = [_batches(p) for p in self.parameters]
        if any(len(tensors) != batches or not isinstance(tensors[batch], Tensor) for tensors in parts):
            return None
        return [tensors[batch].detach() for tensors in parts]

    def ghost_norms(self) -> Tensor | None:
        """Norms of the gradients of the last batch, one a record, with ghost clipping; None before a backward pass."""
        known = self.ghost and hasattr(self.model, "per_sample_gradient_norms")  # a property that raises until it is known
        return self.model.per_sample_gradient_norms.detach() if known else None

    def rows(self) -> int | None:
        """The number of records whose gradients the coming step will use, None where that is not known."""
        tensors = _batches(self.parameters[0])
        return sum(len(part) for part in tensors) if all(isinstance(part, Tensor) for part in tensors) else None

    def clipped_sum(self, parameter: Any) -> Tensor | None:
        """The sum of the clipped gradients of this step, before noise was added; None where there is none."""
        total = parameter.summed_grad
        if total is None:
            return None
        scale = 1 if self._rank == 0 else self._divisor()  # where no noise is added, Opacus divides the sum itself
        return total.detach().view_as(parameter) * scale

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

    @property
    def _rank(self) -> int:
        """The number of the process; the first one adds noise."""
        return int(self.optimizer.rank) if self._distributed else 0

    def _divisor(self) -> float:
        """What Opacus divides noised sums by."""
        optimizer = self.optimizer
        return optimizer.expected_batch_size * optimizer.accumulated_iterations if self.loss_reduction == "mean" else 1.0


def _batches(parameter: Any) -> list[Any]:
    """The gradients of single records that Opacus keeps of a parameter, one entry a backward pass."""
    return parameter.grad_sample if isinstance(parameter.grad_sample, list) else [parameter.grad_sample]


def per_sample_gradients(module: nn.Module, inputs: list[Tensor], error: Tensor) -> dict[nn.Parameter, Tensor]:
    """Gradients of a module's parameters for each record, as Opacus computes them from the error at its output."""
    sampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), functorch.ft_compute_per_sample_gradient)
    gradients: dict[nn.Parameter, Tensor] = sampler(module, inputs, error)
    return gradients


def loss_of(criterion: Any) -> Any:
    """The criterion itself, out of the wrapper that Opacus puts around it for ghost clipping."""
    return criterion.criterion if isinstance(criterion, fast_gradient_clipping_utils.DPLossFastGradientClipping) else criterion


def is_private(model: nn.Module) -> bool:
    """Whether Opacus has wrapped a model, or has left something on its parameters."""
    require_internals()
    return isinstance(model, AbstractGradSampleModule) or any(hasattr(p, "grad_sample") for p in model.parameters())


def has_clipped_sum(parameter: Any) -> bool:
    """Whether an optimizer of Opacus has clipped and added up gradients of this parameter for the coming step."""
    return getattr(parameter, "summed_grad", None) is not None
