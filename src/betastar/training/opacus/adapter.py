"""The only module that touches what Opacus does not promise (see `internals.py`).

`OpacusAdapter` checks at the start whether each of these parts is there, and refuses by name and version of Opacus if not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from opacus import PrivacyEngine
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
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from betastar.drawn_steps import DrawnBatch, poisson
from betastar.training import processes
from betastar.training.opacus import internals, samplers
from betastar.training.opacus.internals import UnsupportedOpacus, require_internals, require_parts

# ---- The loader of a training, where Opacus keeps it to itself.


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


# ---- The adapter

DISTRIBUTED = (DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping, FSDPOptimizerFastGradientClipping)


class OpacusAdapter:
    """A model, an optimizer and a loader that `PrivacyEngine.make_private` has returned.

    Parameters
    ----------
    model, optimizer, loader : objects
        What `make_private` returned.
    amplification : bool
        Whether steps are charged as the loader draws its batches, which must be in a way that can be analysed. Otherwise every
        step is charged as if all records took part in it.
    accountant : IAccountant, optional
        The accountant of the engine, if the optimizer's step hook does not lead to it.

    Raises
    ------
    UnsupportedOpacus
        If the installed version of Opacus lacks a part.
    TypeError, ValueError
        If the objects are not those that `make_private` returned, or if they cannot be measured.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: DataLoader[Any],
        amplification: bool = True,
        accountant: IAccountant | None = None,
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
        #: Whether the code inside `silence` is running.
        self.quiet = False
        self._hooks: list[RemovableHandle] = list(model.autograd_grad_sample_hooks)
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
        self._amplified, self._sampler = amplification, logical_sampler(loader)
        self.accountant = self._find_accountant(accountant)
        self._require_sampling()

    def _require_parts(self) -> None:
        """Refuse objects without the parts that are used here, and tell the kinds of clipping and of optimizer apart."""
        require_parts(self.model, internals.OF_MODEL)
        require_parts(self.optimizer, internals.OF_OPTIMIZER)
        for parameter in self.optimizer.params:
            if parameter.requires_grad:
                require_parts(parameter, internals.OF_PARAMETER)
        #: Whether Opacus clips gradients by their norms without keeping the gradients.
        self.ghost = isinstance(self.model, ghost_clipping.GradSampleHooksFastGradientClipping)
        if self.ghost:
            require_parts(type(self.model), internals.OF_GHOST_CLASS, where=type(self.model).__name__)
            require_parts(self.model, internals.OF_GHOST_MODEL)
        #: Whether the gradient is clipped as a whole, not layer by layer.
        self.flat = not isinstance(self.optimizer, DPPerLayerOptimizer) and not hasattr(self.optimizer, "max_grad_norms")
        if not self.flat:
            require_parts(self.optimizer, internals.OF_LAYERWISE_OPTIMIZER)
        #: Whether several processes add up their sums. The first one adds noise.
        marks = (hasattr(self.optimizer, name) for name in internals.OF_DISTRIBUTED_OPTIMIZER)
        self._distributed = isinstance(self.optimizer, DISTRIBUTED) or any(marks)
        if self._distributed:
            require_parts(self.optimizer, internals.OF_DISTRIBUTED_OPTIMIZER)

    def _require_sampling(self) -> None:
        """Refuse a loader whose batches are not sampled as the steps are charged."""
        rate = self.drawn().scheme.sample_rate
        if not self._amplified:
            samplers.refuse_repeating(self._sampler)
            return
        samplers.warn_of_shuffling(self._sampler)
        if self.accountant is not None and hasattr(self.accountant, "follow"):
            self.accountant.follow(self.loader)
        if self.loss_reduction == "mean":
            number = torch.distributed.get_world_size() if self._distributed else 1
            divisor = self.optimizer.expected_batch_size * number
            samplers.require_batch_size(divisor, self._records(), self._sampler, rate)

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self.parameters[0].device

    @property
    def all_parameters(self) -> list[nn.Parameter]:
        """The parameters of the optimizer, in its order, frozen ones included."""
        return list(self.optimizer.params)

    def noise_multiplier(self) -> float:
        """The noise multiplier that the optimizer has at this moment."""
        noise = float(self.optimizer.noise_multiplier)
        if not noise > 0.0:
            raise ValueError(f"noise_multiplier must be greater than 0, got {noise:g}: without noise nothing is protected.")
        return noise

    def max_grad_norm(self) -> float:
        """The clipping norm C of the optimizer at this moment, which scales the noise. Gradients must be clipped to it."""
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

    def settings(self) -> tuple[float, tuple[float, ...], bool]:
        """The settings that distances depend on, besides weights, buffers and records."""
        return self.max_grad_norm(), self.layer_norms(), self.outer.training

    def _records(self) -> int:
        return len(cast(Sized, self.loader.dataset))

    def drawn(self) -> DrawnBatch:
        """How the last batch of the loader was drawn; without amplification, as if every batch held all records."""
        return samplers.drawn_of(self._sampler, self._records()) if self._amplified else poisson(1.0)

    def _find_accountant(self, given: IAccountant | None) -> IAccountant | None:
        """The given accountant, or the one that Opacus's own step hook reports to; None if the hook is not Opacus's own."""
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
        """Modules for each of which Opacus computes gradients of single records."""
        skipped = (DPRNN, DPLSTM, DPGRU)
        return [unit for unit in self.model.iterate_submodules(self.outer) if type(unit) not in skipped]

    def recurrent(self) -> list[nn.Module]:
        """Recurrent modules, whose linear layers are among the `units`."""
        return [unit for unit in self.module.modules() if isinstance(unit, DPRNN | DPLSTM | DPGRU)]

    def parameter_names(self) -> list[str]:
        """The name of each trainable parameter, in the order of `parameters`."""
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
        """Run the module inside without Opacus seeing or keeping anything of it.

        The hooks of Opacus are taken off meanwhile, because PyTorch warns of a backward hook on a layer whose input needs no
        gradient, even if the hook does nothing. Ignoring that warning by `warnings.catch_warnings` would make Python forget which
        warnings the training loop has already shown, so that the loop would show its own at every step.
        """
        layers = list(self.module.modules())
        left = [vars(layer).get(internals.LEFT_ON_LAYERS) for layer in layers]
        enabled, quiet = self.model.hooks_enabled, self.quiet
        self.model.disable_hooks()
        self.quiet = True
        try:
            with ExitStack() as stack:
                for handle in self._hooks:
                    stack.enter_context(_taken_off(handle))
                yield
        finally:
            self.quiet = quiet
            if enabled:
                self.model.enable_hooks()
            for layer, before in zip(layers, left, strict=True):
                if before is not None:
                    setattr(layer, internals.LEFT_ON_LAYERS, before)
                elif internals.LEFT_ON_LAYERS in vars(layer):
                    delattr(layer, internals.LEFT_ON_LAYERS)

    def around_step(self, run: Callable[[Callable[[], bool]], bool]) -> Callable[[], None]:
        """Call `run` at each step, before the optimizer clips.

        Parameters
        ----------
        run : callable
            It is given a function that makes Opacus clip, add up and add noise, and that returns whether a step is taken (False
            for a physical batch that is not the last one of its logical batch). `run` must call it and return its result, or
            raise an error to refuse the step.

        Returns
        -------
        callable
            A function that undoes the change.
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
        """Whether further physical batches of the current logical batch will follow."""
        return bool(self.optimizer._step_skip_queue)

    def gradients(self, batch: int = 0, batches: int = 1) -> list[Tensor] | None:
        """The gradients of single records that Opacus has computed since the last step, one tensor for each parameter.

        Parameters
        ----------
        batch : int
            The number of the batch.
        batches : int
            The number of batches since the last step.

        Returns
        -------
        list of Tensor or None
            None if Opacus keeps no gradients, or those of another number of batches.
        """
        parts = [_batches(p) for p in self.parameters]
        if any(len(tensors) != batches or not isinstance(tensors[batch], Tensor) for tensors in parts):
            return None
        return [tensors[batch].detach() for tensors in parts]

    def ghost_norms(self) -> Tensor | None:
        """With ghost clipping, the norm of the gradient of each record of the last batch; None before a backward pass."""
        known = self.ghost and hasattr(
            self.model, "per_sample_gradient_norms"
        )  # the property raises an error before a backward pass
        return self.model.per_sample_gradient_norms.detach() if known else None

    def rows(self) -> int | None:
        """The number of records whose gradients the coming step will use; None with ghost clipping, which keeps no gradients."""
        tensors = _batches(self.parameters[0])
        return sum(len(part) for part in tensors) if all(isinstance(part, Tensor) for part in tensors) else None

    def clipped_sum(self, parameter: nn.Parameter) -> Tensor | None:
        """The sum of the clipped gradients of this step without noise; None if no gradients were clipped."""
        total: Tensor | None = parameter.summed_grad  # type: ignore[attr-defined]
        if total is None:
            return None
        scale = 1 if self.rank == 0 else self._divisor()  # in a process that adds no noise, Opacus divides the sum itself
        return total.detach().view_as(parameter) * scale

    def added_noise(self) -> list[Tensor] | None:
        """The noise that the optimizer has just added to each clipped sum; None in a process that adds no noise."""
        if self.rank != 0:
            return None
        noise = []
        for p in self.parameters:
            total = self.clipped_sum(p)
            if p.grad is None or total is None:
                return [torch.zeros_like(p) for p in self.parameters]
            noise.append((p.grad.detach().double() * self._divisor() - total.double()).to(p.dtype))
        return noise

    @property
    def rank(self) -> int:
        """The number of this process. Process 0 adds the noise."""
        return int(self.optimizer.rank) if self._distributed else 0

    def _divisor(self) -> float:
        """The number by which Opacus divides the sums with noise."""
        optimizer = self.optimizer
        return optimizer.expected_batch_size * optimizer.accumulated_iterations if self.loss_reduction == "mean" else 1.0


@contextmanager
def _taken_off(handle: RemovableHandle) -> Iterator[None]:
    """Take one hook off a layer, and put it back at its place among the layer's hooks afterwards."""
    hooks = handle.hooks_dict_ref()
    if hooks is None or handle.id not in hooks:  # the layer is gone, or the user has removed the hooks of Opacus
        yield
        return
    before = dict(hooks)
    del hooks[handle.id]
    try:
        yield
    finally:
        now = {handle.id: before[handle.id], **hooks}  # other hooks may have come or gone meanwhile
        hooks.clear()
        hooks.update({key: hook for key, hook in before.items() if key in now} | now)


def _batches(parameter: Any) -> list[Any]:
    """The gradients of single records that Opacus keeps for a parameter, one entry for each backward pass."""
    return parameter.grad_sample if isinstance(parameter.grad_sample, list) else [parameter.grad_sample]


def per_sample_gradients(module: nn.Module, inputs: list[Tensor], error: Tensor) -> dict[nn.Parameter, Tensor]:
    """Gradients of a module's parameters for each record, as Opacus computes them from the error at its output."""
    sampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), functorch.ft_compute_per_sample_gradient)
    gradients: dict[nn.Parameter, Tensor] = sampler(module, inputs, error)
    return gradients


def loss_of(criterion: Any) -> Any:
    """The criterion without the wrapper that Opacus puts around it for ghost clipping."""
    return criterion.criterion if isinstance(criterion, fast_gradient_clipping_utils.DPLossFastGradientClipping) else criterion


def is_private(model: nn.Module) -> bool:
    """Whether Opacus has wrapped a model, or has left attributes on its parameters."""
    require_internals()
    return isinstance(model, AbstractGradSampleModule) or any(hasattr(p, "grad_sample") for p in model.parameters())


def has_clipped_sum(parameter: Any) -> bool:
    """Whether an optimizer of Opacus has clipped and added up gradients of this parameter for the coming step."""
    return getattr(parameter, "summed_grad", None) is not None


# ---- Sums of gradients that gap clipping provides, in place of the clipping of an optimizer of Opacus.


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
