"""One training by the user's own code: each step as its optimizer applies it, and everything else that can be seen of it."""

from __future__ import annotations

import io
import logging
import random
import signal
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
from opacus.optimizers.fsdpoptimizer_fast_gradient_clipping import FSDPOptimizerFastGradientClipping
from opacus.utils import batch_memory_manager
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten
from torch.utils.data import Subset, dataloader

from betastar.audit.common import AuditError, EnoughError, RecordedStep, Recording, StepSettings
from betastar.audit.evidence.challenges import Data, digest, leaves, seeded
from betastar.drawn_steps import SamplingScheme
from betastar.training import noise as own_noise
from betastar.training import processes
from betastar.training.opacus import internals, samplers
from betastar.training.private_training import STEPPING

# --- Private optimizers that a training makes for itself: which there are, and what they do at a step

#: Optimizers whose processes add up their sums.
DISTRIBUTED = (DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping, FSDPOptimizerFastGradientClipping)


class WatchedOptimizers:
    """The private optimizers that are made while `watching` runs."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._own_sums: dict[int, Tensor] = {}  # of this process, by the id of the parameter; only with several processes

    def watching(self) -> Any:
        """A context in which each private optimizer that Opacus makes is noted."""
        internals.require_internals()
        inner = DPOptimizer.__init__

        def noted(private: Any, *arguments: Any, **named: Any) -> None:
            inner(private, *arguments, **named)
            self.made.append(private)
            if isinstance(private, DISTRIBUTED):
                self._keep_own_sums(private)

        return mock.patch.object(DPOptimizer, "__init__", noted)

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
        return next((one for one in self.made if one.original_optimizer is optimizer), None)

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

    def record_number(self, optimizer: Optimizer) -> int | None:
        """How many records' gradients Opacus has of the last batch; None if it does not keep them."""
        private = self._around(optimizer)
        numbers = set()
        for parameter in private.params if private is not None else ():
            kept = getattr(parameter, "grad_sample", None)
            last = kept[-1] if isinstance(kept, list) and kept else kept
            last = last if isinstance(last, Tensor) else getattr(parameter, "_norm_sample", None)
            numbers |= {len(last)} if isinstance(last, Tensor) else set()
        return numbers.pop() if len(numbers) == 1 else None


def is_private(model: nn.Module) -> bool:
    """Whether Opacus has wrapped a model, or has left attributes on its parameters."""
    return isinstance(model, AbstractGradSampleModule) or any(hasattr(p, "grad_sample") for p in model.parameters())


def has_clipped_sum(parameter: Any) -> bool:
    """Whether an optimizer of Opacus has clipped and added up gradients of this parameter for the coming step."""
    return getattr(parameter, "summed_grad", None) is not None


def _is_split(index_sampler: Any) -> bool:
    """Whether BatchMemoryManager splits the batches of a loader into physical batches."""
    return isinstance(index_sampler, batch_memory_manager.BatchSplittingSampler)


def _scheme_of(index_sampler: Any, records: int) -> SamplingScheme | None:
    """How the batches of a loader are drawn; None if its batch sampler is none of those that are known."""
    inside = index_sampler.sampler if _is_split(index_sampler) else index_sampler
    try:
        return samplers.scheme_of(inside, records)
    except ValueError:
        return None


# --- The batches that a training draws from the data: noted in one training, and given again in another

#: The class whose objects iterate over loaders of PyTorch.
ITERATOR: Any = dataloader._BaseDataLoaderIter


class LoaderWatch:
    """Notes the batches that loaders of the data draw, in a recording."""

    def __init__(self, data: object, recording: Recording) -> None:
        self._data, self._recording = data, recording
        self._waiting: dict[Any, list[list[int]]] = {}  # batches that were asked for, and not delivered yet, by iterator
        self._since: set[int] | None = None
        #: How many batches were delivered since the last step, and the records of the last one.
        self.delivered, self.last = 0, tuple[int, ...]()

    def take(self) -> frozenset[int] | None:
        """The records that were delivered since the last call; None if no loader of the data has delivered anything."""
        since, self._since, self.delivered = self._since, None, 0
        return None if since is None else frozenset(since)

    def watching(self) -> Any:
        """A context in which all loaders of the data are watched."""
        ask, deliver = ITERATOR._next_index, ITERATOR.__next__

        def next_batch(iterator: Any) -> Any:
            batch = deliver(iterator)
            self._delivered(iterator)
            return batch

        return mock.patch.multiple(ITERATOR, _next_index=lambda one: self._asked(one, ask(one)), __next__=next_batch)

    def _asked(self, iterator: Any, index: Any) -> Any:
        places = records_of(iterator._dataset, self._data, index)
        if places is None:
            return index
        if iterator not in self._waiting:
            self._recording.records = len(self._data)  # type: ignore[arg-type]
            self._recording.schemes.append(_scheme_of(iterator._index_sampler, len(iterator._dataset)))
        self._recording.fetched.append(places)
        self._waiting.setdefault(iterator, []).append(places)
        return index

    def _delivered(self, iterator: Any) -> None:
        waiting = self._waiting.get(iterator)
        places = waiting.pop(0) if waiting else None
        if places is not None and torch.is_grad_enabled():  # without gradients, a batch is for an evaluation
            self._since, self.delivered, self.last = (self._since or set()) | set(places), self.delivered + 1, tuple(places)


def records_of(dataset: Any, data: object, index: Any) -> list[int] | None:
    """The numbers that records of a loader's data set have in the data; None if the data set is not made of the data."""
    if not isinstance(index, Sequence):
        return None
    places = [int(place) for place in index]
    while dataset is not data:
        if not isinstance(dataset, Subset):
            return None
        places, dataset = [int(dataset.indices[place]) for place in places], dataset.dataset
    return places


def generator_states() -> tuple[Any, ...]:
    """The states of the random number generators of PyTorch, NumPy and Python."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


# --- The steps, and everything else that can be seen of a training

#: A function of data and a seed that trains from the beginning to the end. It may be a generator that yields what it logs.
Train = Callable[[Data, int], Any]
#: Prefixes of the names of parameters that wrappers of models add.
WRAPPERS = ("_module.", "module.")


class TooLongError(EnoughError):
    """Ends a training after enough time."""


#: It sees a step before it is applied, and returns gradients to apply in place of the step's, by name.
Watcher = Callable[[int, RecordedStep], Mapping[str, Tensor] | None]


@dataclass(frozen=True)
class Scaled:
    """Normal numbers that may be noise are multiplied by a factor, so that the noise can be told from the rest of an update.

    Attributes
    ----------
    factor : float
        The factor, of the distance from their mean.
    reference : Recording
        The same training, which says when a model is used for the last time before a step: noise is drawn after that.
    always : bool
        Also numbers that are drawn earlier, but for weights that are initialised.
    """

    factor: float
    reference: Recording
    always: bool = False


class _ScaledNormals(TorchDispatchMode):
    """Multiplies normal numbers, from whichever generator of PyTorch they are."""

    def __init__(self, factor: float, wanted: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._factor, self._wanted = factor, wanted

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in ("normal_", "normal", "randn", "randn_like"):
            return drawn
        if (name == "normal_" and isinstance(args[0], nn.Parameter)) or not self._wanted():
            return drawn
        mean = (args[1] if len(args) > 1 else 0.0) if name == "normal_" else args[0] if name == "normal" else 0.0
        return drawn.sub_(mean).mul_(self._factor).add_(mean)


#: The recorder of the training that runs at this moment.
_ACTIVE: ContextVar[Recorder | None] = ContextVar("_ACTIVE", default=None)


def released(update: Any, without_noise: Any = None) -> Any:
    """What your own loop is about to apply: tell the audit of it, and apply what this returns.

    Use it where no optimizer of PyTorch applies the update. Outside of an audit it returns the update as it is.

    Parameters
    ----------
    update : array, tensor, or a dict, list or tuple of these
        The noisy sum, divided by what you divide it by.
    without_noise : the same, optional
        The same without noise. It is needed if the noise is not drawn by PyTorch, so that it can be compared with the claim.

    Returns
    -------
    the same
        The update to apply: in a replay, that of the first training.

    Raises
    ------
    AuditError
        In an audit, if the update holds something else than numbers.

    Examples
    --------
    >>> from betastar import audit
    >>> audit.released([1.0, 2.0])
    [1.0, 2.0]
    """
    recorder = _ACTIVE.get()
    return update if recorder is None else recorder.released(update, without_noise)


@contextmanager
def recorded(optimizer: Optimizer) -> Iterator[list[dict[str, Tensor]]]:
    """A list of what an optimizer of PyTorch applies meanwhile: an update a step, for `train(data, seed)` to return.

    Parameters
    ----------
    optimizer : Optimizer
        Any optimizer of PyTorch, private or not.

    Returns
    -------
    context manager
        It gives the list, which grows with each step.

    Raises
    ------
    AttributeError
        If it is no optimizer.

    Examples
    --------
    >>> import torch
    >>> from betastar import audit
    >>> weight = torch.zeros(2, requires_grad=True)
    >>> optimizer = torch.optim.SGD([weight], lr=1.0)
    >>> with audit.recorded(optimizer) as updates:
    ...     weight.sum().backward()
    ...     optimizer.step()
    >>> updates
    [{'0.0': tensor([1., 1.])}]
    """
    updates: list[dict[str, Tensor]] = []
    inner = getattr(optimizer, "original_optimizer", optimizer)

    def noted(stepping: Optimizer, *_: object) -> None:
        if stepping is inner:
            held = enumerate(enumerate(group["params"]) for group in stepping.param_groups)
            updates.append({f"{i}.{j}": p.grad.detach().clone() for i, ps in held for j, p in ps if p.grad is not None})

    handle = register_optimizer_step_pre_hook(noted)
    try:
        yield updates
    finally:
        handle.remove()


def _flattened(update: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors of an update, by where each of them is in it; and its form."""
    pairs, form = tree_flatten_with_path(update)
    try:
        parts = {
            ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) or "update": (
                part if isinstance(part, Tensor) else torch.as_tensor(np.asarray(part))
            ).detach()
            for path, part in pairs
        }
    except (TypeError, ValueError):
        raise AuditError(f"an update must be an array, a tensor, or a dict or list of these, got {update!r}.") from None
    return parts, form


def _like(part: Any, new: Tensor) -> Any:
    """Another tensor in the form of a part of an update."""
    return new.clone() if isinstance(part, Tensor) else new.item() if isinstance(part, int | float) else new.numpy().copy()


class Recorder:
    """Runs a training and records it.

    Parameters
    ----------
    train : callable
        The user's function.
    steps : int
        The number of steps after which the training is ended.
    limit : float
        The number of seconds after which it is ended.
    scaled : Scaled, optional
        Which normal numbers are multiplied.
    cut : bool
        End the training with the last step, and not when it comes to the next one, since that takes too long.
    """

    def __init__(self, train: Train, steps: int, limit: float, scaled: Scaled | None = None, cut: bool = False) -> None:
        self._train, self._most, self._limit, self._scaled, self._cut = train, steps, limit, scaled, cut
        self._uses = 0
        self._optimizers = WatchedOptimizers()
        self._names: dict[int, str] = {}
        self._tensors: dict[str, Tensor] = {}
        self._roots: list[nn.Module] = []
        self._places: dict[tuple[int, str], str] = {}
        self._depth = 0
        self.recording = Recording()

    def run(self, data: Data, seed: int, watcher: Watcher | None = None) -> Recording:
        """Train on the data with this seed; raises what the training raises. watcher: sees each step before it is applied."""
        recording, self._watcher, self._watch = self.recording, watcher, LoaderWatch(data, self.recording)
        printed, logged = io.StringIO(), _Logged()
        root = logging.getLogger()
        handlers, root.handlers = root.handlers, [logged]  # otherwise each line would be shown once for each replay
        contexts: tuple[Any, ...] = (
            seeded(seed),
            self._optimizers.watching(),
            self._watch.watching(),
            self._hooks(),
            _in_time(self._limit),
        )
        patched = mock.patch.object(own_noise, "fresh_entropy", partial(random.getrandbits, 256))  # follows from the seed
        scaling = [] if self._scaled is None else [_ScaledNormals(self._scaled.factor, self._is_noise)]
        try:
            with ExitStack() as stack:
                for context in (*contexts, patched, redirect_stdout(printed), warnings.catch_warnings(), *scaling):
                    stack.enter_context(context)
                returned = self._train(data, seed)
                if isinstance(returned, types.GeneratorType):
                    returned = list(returned)
                recording.ended = True
                if not recording.steps and isinstance(returned, list | tuple) and returned:
                    self._listed(returned)
                else:
                    recording.output |= dict(leaves("what train returns", returned))
        except TooLongError:
            recording.late = True
        except EnoughError:
            pass
        finally:
            recording.models, root.handlers = self._roots, handlers
            recording.private = bool(self._optimizers.made) or any(step.settings is not None for step in recording.steps)
            recording.contents = self._digests()
            for title, lines in (("printed line", printed.getvalue().splitlines()), ("logged line", logged.lines)):
                recording.output |= {f"{title} {number}": line for number, line in enumerate(lines, 1)}
        return recording

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = [
            register_module_forward_pre_hook(self._called),
            register_module_forward_hook(self._returned, always_call=True),
            register_optimizer_step_pre_hook(self._step),
        ]
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)
            for handle in handles:
                handle.remove()

    def _is_noise(self) -> bool:
        """Whether normal numbers that are drawn now may be noise."""
        assert self._scaled is not None
        number, before = len(self.recording.steps), self._scaled.reference.steps
        first = number == 0 and self._uses == 0
        if self._depth or number >= len(before):
            return False
        return self._scaled.always or (self._uses >= before[number].uses and not (first and not before[0].uses))

    def _called(self, module: nn.Module, _: object) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._uses += 1
        parameters = dict(module.named_parameters())
        if all(isinstance(one, nn.Parameter) for one in parameters.values()):  # not those of torch.func.functional_call
            self._know(module)

    def _returned(self, *_: object) -> None:
        self._depth -= 1

    def _know(self, module: nn.Module) -> None:
        """Learn the names of a model's weights and buffers, when it is used for the first time."""
        if any(part is module for root in self._roots for part in root.modules()) and module not in self._roots:
            return
        if module not in self._roots:
            self._roots.append(module)
        for raw, tensor in (*module.named_parameters(), *module.named_buffers()):
            key = (self._roots.index(module), raw)
            if id(tensor) not in self._names and key not in self._places:
                name, number = _plain(raw), 2
                while name in self._tensors:
                    name, number = f"{_plain(raw)} of model {number}", number + 1
                self._places[key] = name
            if key in self._places:  # a buffer may be another tensor each time
                self._tensors[self._places[key]], self._names[id(tensor)] = tensor, self._places[key]
                if not isinstance(tensor, nn.Parameter):
                    self.recording.buffers.add(self._places[key])

    def _name(self, tensor: Tensor) -> str:
        if id(tensor) not in self._names:
            self._names[id(tensor)] = f"parameter {len(self._names) + 1} of shape {tuple(tensor.shape)}"
            self._tensors[self._names[id(tensor)]] = tensor
        return self._names[id(tensor)]

    def _digests(self) -> dict[str, str]:
        for root in self._roots:
            self._know(root)
        return {name: digest(tensor) for name, tensor in self._tensors.items()}

    def _step(self, optimizer: Optimizer, *_: object) -> None:
        held = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        if not held:
            return
        names = {self._name(one): one for one in held}
        gradients = {name: one.grad.detach().clone() for name, one in names.items()}
        told: dict[str, Any] = {"numbers": _numbers(optimizer)}
        own, settings = STEPPING.get(), self._optimizers.settings(optimizer)
        if own is not None:  # betastar's own step: what it adds is a function of the number of the step
            number = len(own._steps) - 1
            settings = StepSettings(own.noise_multiplier, own.max_grad_norm, own._draws.divisor)
            added = dict(zip(map(id, own._model.parameters), own._noise.like(own._model.parameters, number), strict=True))
            factor = own.noise_multiplier * own.max_grad_norm
            told["sums"] = {
                name: gradients[name].double() * settings.divisor - factor * added[id(one)].to(one.device)
                for name, one in names.items()
            }
            told["drawn"] = frozenset(own._draws.indices(number).tolist())
            self.recording.schemes.append(own._draws.scheme)
        elif settings is not None:
            totals = {name: self._optimizers.clipped_sum(optimizer, one) for name, one in names.items()}
            told["sums"] = {k: v for k, v in totals.items() if v is not None}
            told["rows"] = self._optimizers.record_number(optimizer)
        replaced = self._add(type(optimizer).__name__, gradients, settings=settings, **told)
        for name, one in names.items():
            if replaced is not None and name in replaced:
                one.grad.copy_(replaced[name])

    def released(self, update: Any, without_noise: Any) -> Any:
        """A step that no optimizer of PyTorch applies."""
        parts, form = _flattened(update)
        sums = {} if without_noise is None else _flattened(without_noise)[0]
        replaced = self._add("train", {k: v.clone() for k, v in parts.items()}, sums=sums)
        if replaced is None:
            return update
        own = zip(tree_flatten_with_path(update)[0], parts, strict=True)
        return tree_unflatten([_like(part, replaced[name]) for (_, part), name in own], form)

    def _listed(self, returned: Any) -> None:
        """The steps that a training returned."""
        self.recording.listed = True
        for number, update in enumerate(returned[: self._most], 1):
            parts = _flattened(update)[0]
            first = self.recording.steps[0].gradients if self.recording.steps else parts
            if {k: v.shape for k, v in parts.items()} != {k: v.shape for k, v in first.items()}:
                shapes = [tuple(v.shape) for v in parts.values()], [tuple(v.shape) for v in first.values()]
                text = f"updates of one shape, got {shapes[0]} at step {number}, {shapes[1]} at step 1."
                raise AuditError(f"train must return {text}")
            self.recording.steps.append(RecordedStep("train", parts))

    def _add(self, optimizer: str, gradients: dict[str, Tensor], **told: Any) -> Mapping[str, Tensor] | None:
        """Record a step, and return what is to be applied in its place."""
        if len(self.recording.steps) == self._most:
            raise EnoughError
        batches, taken = self._watch.delivered, self._watch.take()
        told.setdefault("drawn", None)
        told["drawn"] = _everywhere(taken) if told["drawn"] is None else told["drawn"]
        seen: dict[str, Any] = {"contents": self._digests(), "states": generator_states(), "last": self._watch.last}
        step = RecordedStep(optimizer, gradients, uses=self._uses, batches=batches, **told, **seen)
        self._uses = 0
        replaced = self._watcher(len(self.recording.steps), step) if self._watcher is not None else None
        self.recording.steps.append(step)
        if self._cut and len(self.recording.steps) == self._most:
            raise EnoughError
        return replaced


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Ends a training that takes longer, wherever it is; outside of the main thread it goes on."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _everywhere(drawn: frozenset[int] | None) -> frozenset[int] | None:
    """The records that any of the processes has drawn."""
    if not processes.together():
        return drawn
    every: list[Any] = [None] * processes.count()
    torch.distributed.all_gather_object(every, drawn)
    known = [one for one in every if one is not None]
    return frozenset().union(*known) if known else None


def _plain(name: str) -> str:
    """The name of a parameter in the user's own model."""
    while name.startswith(WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _numbers(optimizer: Optimizer) -> dict[str, float]:
    """The numbers of the groups of parameters, such as the learning rate."""
    return {
        f"{key} of group {number}" if len(optimizer.param_groups) > 1 else key: float(value)
        for number, group in enumerate(optimizer.param_groups, 1)
        for key, value in group.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    }


class _Logged(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
