"""The only module that touches what Opacus does not promise (see `internals.py`).

`OpacusAdapter` checks at the start whether each of these parts is there, and refuses by name and version of Opacus if not.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from opacus import PrivacyEngine
from opacus import optimizers as of_opacus
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import GradSampleHooks
from opacus.grad_sample import grad_sample_module_fast_gradient_clipping as ghost_clipping
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.utils import batch_memory_manager, fast_gradient_clipping_utils
from torch import Tensor, nn
from torch.utils.data import DataLoader

from betastar.drawn_steps import DrawnBatch
from betastar.training.gradients.record_gradients import TrainedModel
from betastar.training.opacus import internals, samplers
from betastar.training.opacus.internals import require_internals, require_parts

# ---- The loader of a training


def logical_sampler(loader: DataLoader[Any]) -> Any:
    """The batch sampler of a loader, without what BatchMemoryManager puts around it. Epochs of a shuffling one are counted."""
    sampler = loader.batch_sampler
    return samplers.counted(sampler.sampler if isinstance(sampler, batch_memory_manager.BatchSplittingSampler) else sampler)


def drawn_by(loader: Any) -> DrawnBatch:
    """How the last batch of a loader was drawn. Raises `TypeError` or `ValueError` if that is not known or not analysed."""
    samplers.require_numbers(loader)
    # With a record x in an otherwise empty batch the sum is g(x), and without x it is the gradient of the random record: the two
    # are up to 2C apart, not C.
    if getattr(loader.collate_fn, "rand_on_empty", False):
        raise ValueError(
            "loader replaces an empty batch by a random record (rand_on_empty=True), so that a record can move the sum by twice "
            "the clipping norm: call make_private with rand_on_empty=False, or use PrivateTraining."
        )
    return samplers.drawn_of(logical_sampler(loader), len(cast(Sized, loader.dataset)))


class MadePrivate(NamedTuple):
    """What `make_private` has made, at the moment when it asks the accountant for its step hook."""

    loader: Any
    optimizer: Any
    #: Whether `make_private_with_epsilon` called it.
    for_epsilon: bool
    #: A warning that the optimizer divides by a number which depends on the number of records; empty if it does not divide.
    divisor: str


def made_private() -> MadePrivate | None:
    """What the `make_private` has made that asks an accountant for its step hook; None if something else asks.

    Opacus tells an accountant the rate 1 / batches, whatever the sampling, and not which loader it is of. So the loader is read
    from the local variables of `make_private`, two calls up; `require_internals` checks that it has these variables.
    """
    frame = sys._getframe(2)
    if frame.f_code is not PrivacyEngine.make_private.__code__:
        return None
    require_internals()
    loader, optimizer = frame.f_locals["data_loader"], frame.f_locals["optimizer"]
    caller = frame.f_back
    for_epsilon = caller is not None and caller.f_code is PrivacyEngine.make_private_with_epsilon.__code__
    divisor = ""
    if optimizer.loss_reduction == "mean":
        records, batches = len(loader.dataset), len(loader)
        number = optimizer.expected_batch_size * getattr(optimizer, "world_size", 1)  # Opacus keeps the part of one process
        divisor = (
            f"Opacus divides each noisy sum by ⌊N·rate⌋ = ⌊{records} · {1 / batches:.4g}⌋ = {number:g}, where N is the number of "
            "records, so that with a record more or less it can be another number. ε and other figures for relation 'add-remove' "
            f"hold only if {number:g} and the rate are public and are the same without the record. Figures for 'substitution' "
            "are not affected. PrivateTraining divides by a number that you give."
        )
    return MadePrivate(loader, optimizer, for_epsilon, divisor)


# ---- The optimizer of a training

#: The optimizers that release nothing but a sum of clipped gradients with the noise that they state.
COUNTED = (
    *(DPOptimizer, DPPerLayerOptimizer, of_opacus.DPOptimizerFastGradientClipping),
    *(of_opacus.DistributedDPOptimizer, of_opacus.DistributedDPOptimizerFastGradientClipping),
    *(of_opacus.SimpleDistributedPerLayerOptimizer, of_opacus.FSDPOptimizerFastGradientClipping),
)
#: What is said of an optimizer that keeps a part of each weight in each process.
FSDP = (
    "of FSDPOptimizerFastGradientClipping, the noise multiplier and the rate of the loader are counted. That each process adds "
    "noise of its own to its part of the weights, and draws its records independently of the others, is not checked."
)


def refuse_adaptive(optimizer: Any) -> None:
    """Refuse an optimizer whose clipping norm follows the gradients. There are two kinds in Opacus.

    Both release at each step the sum with the noise multiplier v, where 1/v² = 1/z² - 1/(2s)², and the number of gradients that
    were not clipped with the standard deviation s, and both report z. That follows Theorem 1 of Andrew et al.
    (arXiv:1905.03871), where a record adds ±1/2 to the count: then (1/v)² + (1/2/s)² = (1/z)². But Opacus adds 0 or 1. Adding or
    removing a record moves the pair by √(1/v² + 1/s²) = √(1/z² + 3/(4s²)) standard deviations: 1.865 and not 1 if z = 1 and
    s = .55, an advantage of .649 and not .383 at rate 1. (Substitution moves it by √(4/v² + 1/s²) = 2/z, as reported.)

    Charging this would still be too little. Opacus divides the noisy count by the true size of the batch, which has no noise and
    which Poisson sampling keeps secret; in the second kind (ghost clipping with `PrivacyEngineAdaptiveClipping`), s and with it
    the noise of the sum are proportional to that size. So both kinds are refused.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, of_opacus.AdaClipDPOptimizer) or internals.LEFT_BY_ADAPTIVE_CLIPPING in vars(optimizer):
        raise ValueError(
            f"the optimizer clips adaptively ({name}): besides the sum it releases a noisy count of unclipped gradients, divided "
            "by the true size of the batch, which the noise multiplier that it reports does not cover. Use clipping='flat' with "
            "PrivacyEngine, or PrivateTraining."
        )


def require_counted(optimizer: Any) -> None:
    """Refuse an optimizer of which it is not known that its noise multiplier and the sampling cover what it releases."""
    refuse_adaptive(optimizer)
    if type(optimizer) not in COUNTED:
        raise TypeError(
            f"{type(optimizer).__name__} is not an optimizer of Opacus whose steps can be counted: what it releases is not "
            "known. Use one that make_private returns with clipping='flat', or PrivateTraining. If you know that it releases a "
            "sum with the noise that it states, count its steps yourself: accountant.step(noise_multiplier=…, sample_rate=…)."
        )


def warn_of_shards(optimizer: Any) -> None:
    """Warn of an optimizer that keeps a part of each weight in each process."""
    if isinstance(optimizer, of_opacus.FSDPOptimizerFastGradientClipping):
        warnings.warn(FSDP, stacklevel=4)


def noise_of_step(optimizer: Any) -> float:
    """The noise multiplier of the step that an optimizer takes. Raises if that does not say what the step releases."""
    require_counted(optimizer)
    if optimizer.accumulated_iterations > 1:  # a record may be in several of them
        raise ValueError(
            "a step was taken on several batches at once, so that a record may count more than once in it: call optimizer.step() "
            "and zero_grad() after each batch, or use BatchMemoryManager of Opacus for large batches."
        )
    return float(optimizer.noise_multiplier)


# ---- The adapter


class OpacusAdapter(TrainedModel):
    """A model, an optimizer and a loader that `PrivacyEngine.make_private` has returned.

    Parameters
    ----------
    model, optimizer, loader : objects
        What `make_private` returned.

    Raises
    ------
    UnsupportedOpacus
        If the installed version of Opacus lacks a part.
    TypeError, ValueError
        If the objects are not those that `make_private` returned, or if they cannot be measured.
    """

    ignores_padding_idx = True
    limits_cancellation = False

    def __init__(self, model: Any, optimizer: Any, loader: DataLoader[Any]) -> None:
        require_internals()
        if not isinstance(model, GradSampleHooks):
            raise TypeError(
                f"model must be what make_private of Opacus returned with grad_sample_mode 'hooks', 'functorch' or 'ghost', "
                f"got {type(model).__name__}."
            )
        if not isinstance(optimizer, DPOptimizer):
            raise TypeError(f"optimizer must be what make_private of Opacus returned, got {type(optimizer).__name__}.")
        refuse_adaptive(optimizer)
        self.model, self.optimizer, self.loader = model, optimizer, loader
        require_parts(model, internals.OF_MODEL)
        require_parts(optimizer, internals.OF_OPTIMIZER)
        #: Whether Opacus clips gradients by their norms without keeping the gradients.
        self.ghost = isinstance(model, ghost_clipping.GradSampleHooksFastGradientClipping)
        #: Whether the gradient is clipped as a whole, not layer by layer.
        self.flat = not isinstance(optimizer, DPPerLayerOptimizer) and not hasattr(optimizer, "max_grad_norms")
        require_parts(model, internals.OF_GHOST_MODEL if self.ghost else ())
        require_parts(optimizer, () if self.flat else internals.OF_LAYERWISE_OPTIMIZER)
        if not model.batch_first:
            raise ValueError("model must have the records in its first dimension; make it private with batch_first=True.")
        self._poisson: DrawnBatch | None = None  # how all batches are drawn, if by Poisson sampling
        #: Whether the code inside `silence` is running.
        self.quiet = False
        self.outer: nn.Module = model._module
        self.module: nn.Module = self.outer
        while isinstance(self.module, DifferentiallyPrivateDistributedDataParallel | nn.parallel.DistributedDataParallel):
            self.module = self.module.module
        if not self.outer.training:
            raise ValueError("model is in eval mode: call model.train() before attaching a monitor.")
        mine = {id(p) for p in self.parameters}
        idle = [name for name, p in self.module.named_parameters() if p.requires_grad and id(p) not in mine]
        if idle:
            raise ValueError(f"{idle[0]} is trainable but not in the optimizer: add it, or freeze it with requires_grad_(False).")
        self.noise_multiplier()
        self.max_grad_norm()
        self.loss_reduction: str = optimizer.loss_reduction
        self.drawn()
        samplers.warn_of_shuffling(logical_sampler(loader))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer trains at this moment."""
        return [p for p in self.optimizer.params if p.requires_grad]

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self.parameters[0].device

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
            clips = float(sum(c * c for c in self.layer_norms().values()) ** 0.5)
        elif self.ghost:
            clips = float(self.model.max_grad_norm)
        if abs(clips - norm) > 1e-5 * norm:
            raise ValueError(
                f"max_grad_norm of the optimizer is {norm:g}, but gradients are clipped to {clips:g}, which the noise "
                "does not fit: schedules of the clipping norm work with flat clipping in the modes 'hooks' and 'functorch' only."
            )
        return norm

    def layer_norms(self) -> dict[Tensor, float]:
        """The norm that the gradient of each parameter of the optimizer is clipped to; empty with flat clipping."""
        return {} if self.flat else dict(zip(self.optimizer.params, self.optimizer.max_grad_norms, strict=True))

    def drawn(self) -> DrawnBatch:
        """How the last batch of the loader was drawn."""
        sampler: Any = self.loader.batch_sampler
        known = self._poisson
        if known is None or type(sampler) not in samplers.POISSON or sampler.sample_rate != known.scheme.sample_rate:
            known = drawn_by(self.loader)
            self._poisson = known if known.scheme.plain else None
        return known

    def read_norms(self, seen: list[Tensor] | None) -> None:
        """Let Opacus tell the norms by which it clips, when it divides the clipping norm by them; None: no longer.

        Each pass adds the norms of its records, or with clipping by layer those of each layer, all of them larger by 1e-6. A
        schedule may write another clipping norm on the optimizer: call this before each pass.
        """
        owner: Any = self.model if self.ghost else self.optimizer
        if self.flat:
            told = _told(owner.max_grad_norm, seen)
            if told is not owner.max_grad_norm:  # a module takes its time to write an attribute
                owner.max_grad_norm = told
        else:
            owner.max_grad_norms = [_told(norm, seen) for norm in owner.max_grad_norms]

    @property
    def trains(self) -> bool:
        """Whether a forward pass at this moment belongs to the training."""
        return not self.quiet and self.model.hooks_enabled and self.outer.training and torch.is_grad_enabled()

    def units(self) -> list[nn.Module]:
        """Modules for each of which Opacus computes gradients of single records."""
        skipped = (DPRNN, DPLSTM, DPGRU)
        return [unit for unit in self.model.iterate_submodules(self.outer) if type(unit) not in skipped]

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Run the module inside without Opacus seeing or keeping anything of it.

        Backward hooks are taken off meanwhile, because PyTorch warns of one on a layer whose input needs no gradient, even if the
        hook does nothing.
        """
        enabled, quiet = self.model.hooks_enabled, self.quiet
        self.model.disable_hooks()
        self.quiet = True
        hooks = {layer: layer._backward_hooks for layer in self.module.modules()}
        for layer in hooks:
            layer._backward_hooks = OrderedDict()
        try:
            yield
        finally:
            self.quiet = quiet
            for layer, kept in hooks.items():
                layer._backward_hooks = kept
            if enabled:
                self.model.enable_hooks()


class _Told(float):
    """A clipping norm that keeps what it is divided by. A copy of it is an ordinary number."""

    seen: list[Tensor]

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Tensor):
            self.seen.append(other.detach() if other.requires_grad else other)
        return float(self) / other

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)


def _told(norm: Any, seen: list[Tensor] | None) -> float:
    """A clipping norm that adds what it is divided by to a list; an ordinary number without one."""
    if seen is None or (type(norm) is _Told and norm.seen is seen):
        return float(norm) if seen is None else norm
    made = _Told(norm)
    made.seen = seen
    return made


def loss_of(criterion: Any) -> Any:
    """The criterion without the wrapper that Opacus puts around it for ghost clipping."""
    return criterion.criterion if isinstance(criterion, fast_gradient_clipping_utils.DPLossFastGradientClipping) else criterion
