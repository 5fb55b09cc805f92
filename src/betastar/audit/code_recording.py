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
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Subset, dataloader

from betastar.audit.challenges import Data, digest, leaves
from betastar.audit.code_findings import ReplayError
from betastar.audit.one_game import seeded
from betastar.audit.watched_optimizers import StepSettings, WatchedOptimizers, is_split, scheme_of_batches
from betastar.drawn_steps import SamplingScheme
from betastar.training import noise as own_noise
from betastar.training import processes
from betastar.training.private_training import STEPPING

# --- The batches that a training draws from the data: noted in one training, and given again in another

#: The class whose objects iterate over loaders of PyTorch.
ITERATOR: Any = dataloader._BaseDataLoaderIter


@dataclass
class DrawnBatches:
    """The batches of one training, in their order.

    Attributes
    ----------
    fetched : list of list of int
        The numbers of the records of each batch that a loader of the data has asked for.
    random_states : list
        The states of the random number generators after each batch was delivered.
    schemes : list of SamplingScheme or None
        How each loader draws; None where that is not known.
    records : int
        The number of records, if a loader has drawn from them.
    """

    fetched: list[list[int]] = field(default_factory=list)
    random_states: list[Any] = field(default_factory=list)
    schemes: list[SamplingScheme | None] = field(default_factory=list)
    records: int = 0


class LoaderWatch:
    """Notes the batches that loaders of the data draw. It can make them those of an earlier training.

    Parameters
    ----------
    data : Dataset
        The data of the training.
    given : DrawnBatches, optional
        The batches of an earlier training, which are drawn in place of the loader's own.
    removed : int, optional
        The record of the earlier training that is not in the data any more. Its random numbers are given again, too.
    """

    def __init__(self, data: object, given: DrawnBatches | None = None, removed: int | None = None) -> None:
        self._data, self._given, self._removed = data, given, removed
        self.batches = DrawnBatches()
        self._waiting: dict[int, list[list[int]]] = {}  # batches that were asked for, and not delivered yet, by iterator
        self._since: set[int] | None = None
        #: How many batches were delivered since the last step.
        self.delivered = 0
        #: The numbers that the records of the last delivered batch have in the data of the earlier training.
        self.last: tuple[int, ...] = ()
        self._iterators: dict[int, object] = {}  # kept, so that their ids stay theirs
        self._state: Any = None

    def take(self) -> frozenset[int] | None:
        """The records that were delivered since the last call; None if no loader of the data has delivered anything."""
        since, self._since, self.delivered = self._since, None, 0
        return None if since is None else frozenset(since)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all loaders of the data meanwhile."""
        ask, deliver = ITERATOR._next_index, ITERATOR.__next__

        def next_index(iterator: Any) -> Any:
            return self._asked(iterator, ask(iterator))

        def next_batch(iterator: Any) -> Any:
            batch = deliver(iterator)
            self._delivered(iterator)
            return batch

        ITERATOR._next_index, ITERATOR.__next__ = next_index, next_batch
        try:
            yield
        finally:
            ITERATOR._next_index, ITERATOR.__next__ = ask, deliver

    def _asked(self, iterator: Any, index: Any) -> Any:
        places = records_of(iterator._dataset, self._data, index)
        if places is None:
            return index
        if id(iterator) not in self._iterators:
            self._iterators[id(iterator)] = iterator
            self.batches.records = len(self._data)  # type: ignore[arg-type]
            self.batches.schemes.append(scheme_of_batches(iterator._index_sampler, len(iterator._dataset)))
        if self._given is not None and len(self.batches.fetched) < len(self._given.fetched):
            places = self._again(self._given.fetched[len(self.batches.fetched)])
            if iterator._dataset is not self._data:
                raise ReplayError(
                    "train must give its loader the data themselves, not a part of them, to be replayed without a record: split "
                    "the data before, or test substitution."
                )
            if is_split(iterator._index_sampler):
                raise ReplayError(
                    "batches that BatchMemoryManager splits cannot be replayed without a record, because the number of physical "
                    "batches depends on it: leave BatchMemoryManager out for this test, or test substitution."
                )
            index = places
        self.batches.fetched.append(places)
        self._waiting.setdefault(id(iterator), []).append(places)
        self._state = generator_states()
        return index

    def _again(self, batch: list[int]) -> list[int]:
        """A batch of the earlier training by the numbers that its records have now."""
        gone = self._removed
        return batch if gone is None else [place - (place > gone) for place in batch if place != gone]

    def _delivered(self, iterator: Any) -> None:
        waiting = self._waiting.get(id(iterator))
        if not waiting:
            return
        places, number = waiting.pop(0), len(self.batches.random_states)
        if torch.is_grad_enabled():  # without gradients, a batch is for an evaluation
            self._since, self.delivered = (self._since or set()) | set(places), self.delivered + 1
            self.last = tuple(place + (self._removed is not None and place >= self._removed) for place in places)
        if self._removed is not None and self._given is not None and number < len(self._given.random_states):
            if iterator._num_workers == 0 and not same_states(self._state, generator_states()):
                raise ReplayError(
                    "data that draw random numbers (augmentation) cannot be replayed without a record, because the other records "
                    "then get other random numbers: test substitution, or leave out the augmentation."
                )
            set_generator_states(self._given.random_states[number])
        self.batches.random_states.append(generator_states())


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


def set_generator_states(states: tuple[Any, ...]) -> None:
    """Go on from states that `generator_states` returned."""
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])
    np.random.set_state(states[2])
    random.setstate(states[3])


def same_states(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether no random number was drawn between two states."""
    torch_same = torch.equal(one[0], other[0]) and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=False))
    numpy_same = all(np.array_equal(a, b) for a, b in zip(one[2], other[2], strict=True))
    return torch_same and numpy_same and bool(one[3] == other[3])


# --- The steps, and everything else that can be seen of a training

#: A function of data and a seed that trains from the beginning to the end. It may be a generator that yields what it logs.
Train = Callable[[Data, int], Any]
#: Prefixes of the names of parameters that wrappers of models add.
WRAPPERS = ("_module.", "module.")


class EnoughError(BaseException):
    """Ends a training after enough steps. It is no Exception, so that the user's code does not catch it."""


class TooLongError(EnoughError):
    """Ends a training after enough time."""


@dataclass(frozen=True)
class RecordedStep:
    """A step of an optimizer, before it is applied.

    Attributes
    ----------
    optimizer : str
        The name of the optimizer's class.
    gradients : dict
        What the optimizer is about to apply, by the names of the parameters.
    sums : dict
        The clipped sums without noise, by name; without those that no private optimizer has clipped.
    settings : StepSettings or None
        The settings of the private optimizer; None if the optimizer is not private.
    numbers : dict
        The learning rate and the other numbers of the optimizer's groups of parameters.
    drawn : frozenset of int or None
        The records of the batch; None if that is not known.
    contents : dict
        A digest of each weight and buffer before the step, by name.
    states : tuple
        The states of the random number generators.
    last : tuple of int
        The records of the last batch, in their order.
    rows : Tensor or None
        Numbers of each of these records' own gradients, in the same order; None if they are not known.
    uses : int
        How often models were used since the step before.
    batches : int
        How many batches were delivered since the step before.
    """

    optimizer: str
    gradients: dict[str, Tensor]
    sums: dict[str, Tensor]
    settings: StepSettings | None
    numbers: dict[str, float]
    drawn: frozenset[int] | None
    contents: dict[str, str]
    states: tuple[Any, ...]
    last: tuple[int, ...]
    rows: Tensor | None
    uses: int = 0
    batches: int = 0


#: It sees a step before it is applied, and returns gradients to apply in place of the step's, by name.
Watcher = Callable[[int, RecordedStep], Mapping[str, Tensor] | None]


@dataclass
class Recording:
    """What can be seen of a training.

    Attributes
    ----------
    steps : list of RecordedStep
        The steps of all optimizers, in their order.
    batches : DrawnBatches
        The batches.
    output : dict
        What was printed, logged, yielded and returned, by where it was seen.
    contents : dict
        A digest of each weight and buffer after the training.
    buffers : set of str
        The names of the model's buffers.
    ended : bool
        Whether the training came to its end, and was not ended after enough steps.
    late : bool
        Whether it was ended because it took too long.
    listed : bool
        Whether the steps are those that the training returned, so that they could not be replayed.
    models : list of Module
        The models that were used.
    draws : int
        How many times normal numbers were drawn that may be noise.
    """

    steps: list[RecordedStep] = field(default_factory=list)
    batches: DrawnBatches = field(default_factory=DrawnBatches)
    output: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)
    ended: bool = False
    late: bool = False
    listed: bool = False
    models: list[nn.Module] = field(default_factory=list)
    draws: int = 0


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
    ReplayError
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


def _parts(where: str, update: Any) -> dict[str, Tensor]:
    """The tensors of an update, by where each of them is in it."""
    if isinstance(update, Mapping):
        pairs: Any = update.items()
    elif isinstance(update, list | tuple) and not all(isinstance(one, int | float) for one in update):
        pairs = enumerate(update)
    else:
        try:
            return {where or "update": torch.as_tensor(np.asarray(update) if not isinstance(update, Tensor) else update).detach()}
        except (TypeError, ValueError):
            raise ReplayError(f"an update must be an array, a tensor, or a dict or list of these, got {update!r}.") from None
    return {name: one for key, part in pairs for name, one in _parts(f"{where}.{key}" if where else str(key), part).items()}


def _with_parts(where: str, update: Any, parts: Mapping[str, Tensor]) -> Any:
    """The update with other tensors, in its own form."""
    if isinstance(update, Mapping):
        return {key: _with_parts(f"{where}.{key}" if where else str(key), part, parts) for key, part in update.items()}
    if isinstance(update, list | tuple) and not all(isinstance(one, int | float) for one in update):
        made = [_with_parts(f"{where}.{key}" if where else str(key), part, parts) for key, part in enumerate(update)]
        return type(update)(made)
    one = parts[where or "update"]
    if isinstance(update, Tensor):
        return one.clone()
    if isinstance(update, np.ndarray):
        return one.numpy().copy()
    plain: Any = one.tolist()
    return type(update)(plain)


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
    fixed : bool
        Refuse models that draw random numbers.
    scaled : Scaled, optional
        Which normal numbers are multiplied.
    cut : bool
        End the training with the last step, and not when it comes to the next one, since that takes too long.
    """

    def __init__(
        self, train: Train, steps: int, limit: float, fixed: bool = False, scaled: Scaled | None = None, cut: bool = False
    ) -> None:
        self._train, self._most, self._limit, self._fixed, self._scaled, self._cut = train, steps, limit, fixed, scaled, cut
        self._uses = 0
        self._optimizers = WatchedOptimizers()
        self._names: dict[int, str] = {}
        self._tensors: dict[str, Tensor] = {}
        self._roots: list[nn.Module] = []
        self._places: dict[tuple[int, str], str] = {}
        self._depth, self._before = 0, generator_states()
        self.recording = Recording()

    def run(self, data: Data, seed: int, watch: LoaderWatch, watcher: Watcher | None = None) -> Recording:
        """Train on the data with this seed; raises what the training raises."""
        recording, self._watch, self._watcher = self.recording, watch, watcher
        printed, logged = io.StringIO(), _Logged()
        root = logging.getLogger()
        handlers, root.handlers = root.handlers, [logged]  # otherwise each line would be shown once for each replay
        try:
            with ExitStack() as stack:
                for context in (
                    seeded(seed),
                    self._optimizers.watching(),
                    watch.watching(),
                    self._hooks(),
                    _in_time(self._limit),
                ):
                    stack.enter_context(context)
                stack.enter_context(mock.patch.object(own_noise, "fresh_entropy", _entropy))
                stack.enter_context(redirect_stdout(printed))
                stack.enter_context(warnings.catch_warnings())
                if self._scaled is not None:
                    stack.enter_context(_ScaledNormals(self._scaled.factor, self._is_noise))
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
            recording.models = self._roots
            root.handlers = handlers
            recording.batches = watch.batches
            recording.contents = self._digests()
            for title, lines in (("printed line", printed.getvalue().splitlines()), ("logged line", logged.lines)):
                recording.output |= {f"{title} {number}": line for number, line in enumerate(lines, 1)}
        return recording

    @property
    def any_private(self) -> bool:
        """Whether the training has made a private optimizer."""
        return len(self._optimizers) > 0

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
        wanted = (
            self._depth == 0
            and number < len(before)
            and (self._scaled.always or (self._uses >= before[number].uses and not (first and not before[0].uses)))
        )
        self.recording.draws += wanted
        return wanted

    def _called(self, module: nn.Module, _: object) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._uses += 1
        parameters = dict(module.named_parameters())
        if all(isinstance(one, nn.Parameter) for one in parameters.values()):  # not those of torch.func.functional_call
            self._know(module)
        if self._fixed:
            self._before = generator_states()

    def _returned(self, module: nn.Module, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._fixed and not same_states(self._before, generator_states()):
            raise ReplayError(
                f"a model that draws random numbers (dropout?) cannot be replayed without a record, got {type(module).__name__}, "
                "because the other records then get other random numbers: set dropout to 0 for this test, or test substitution."
            )

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
        settings, rows, own = self._optimizers.settings(optimizer), None, STEPPING.get()
        drawn: frozenset[int] | None = None
        if own is not None:  # betastar's own step: what it adds is a function of the number of the step
            number = len(own._steps) - 1
            settings = StepSettings(own.noise_multiplier, own.max_grad_norm, own._draws.divisor, False)
            added = dict(zip(map(id, own._model.parameters), own._noise.like(own._model.parameters, number), strict=True))
            factor = own.noise_multiplier * own.max_grad_norm
            sums = {
                name: gradients[name].double() * settings.divisor - factor * added[id(one)].to(one.device)
                for name, one in names.items()
            }
            drawn = frozenset(own._draws.indices(number).tolist())
            self._watch.batches.schemes.append(own._draws.scheme)
        elif settings is not None:
            totals = {name: self._optimizers.clipped_sum(optimizer, one) for name, one in names.items()}
            sums, rows = {k: v for k, v in totals.items() if v is not None}, self._optimizers.record_numbers(optimizer)
        else:
            sums = {}
        replaced = self._add(type(optimizer).__name__, gradients, sums, settings, _numbers(optimizer), rows, drawn)
        for name, one in names.items():
            if replaced is not None and name in replaced:
                one.grad.copy_(replaced[name])

    def released(self, update: Any, without_noise: Any) -> Any:
        """A step that no optimizer of PyTorch applies."""
        gradients = _parts("", update)
        sums = {} if without_noise is None else _parts("", without_noise)
        replaced = self._add("train", {k: v.clone() for k, v in gradients.items()}, sums, None, {}, None, None)
        return update if replaced is None else _with_parts("", update, replaced)

    def _listed(self, returned: Any) -> None:
        """The steps that a training returned."""
        self.recording.listed = True
        for number, update in enumerate(returned[: self._most], 1):
            parts = _parts("", update)
            step = RecordedStep("train", parts, {}, None, {}, None, {}, (), (), None)
            first = (self.recording.steps or [step])[0].gradients
            if {k: v.shape for k, v in parts.items()} != {k: v.shape for k, v in first.items()}:
                shapes = [tuple(v.shape) for v in parts.values()], [tuple(v.shape) for v in first.values()]
                raise ReplayError(
                    f"train must return updates of one shape, got {shapes[0]} at step {number}, {shapes[1]} at step 1."
                )
            self.recording.steps.append(step)

    def _add(
        self,
        optimizer: str,
        gradients: dict[str, Tensor],
        sums: dict[str, Tensor],
        settings: StepSettings | None,
        numbers: dict[str, float],
        rows: Tensor | None,
        drawn: frozenset[int] | None,
    ) -> Mapping[str, Tensor] | None:
        """Record a step, and return what is to be applied in its place."""
        if len(self.recording.steps) == self._most:
            raise EnoughError
        batches, taken = self._watch.delivered, self._watch.take()
        drawn = _everywhere(taken) if drawn is None else drawn
        states, last = generator_states(), self._watch.last
        step = RecordedStep(
            optimizer, gradients, sums, settings, numbers, drawn, self._digests(), states, last, rows, self._uses, batches
        )
        self._uses = 0
        replaced = self._watcher(len(self.recording.steps), step) if self._watcher is not None else None
        self.recording.steps.append(step)
        if self._cut and len(self.recording.steps) == self._most:
            raise EnoughError
        return replaced


def _entropy() -> int:
    """Entropy that follows from the seed of the replay, for PrivateTraining."""
    return random.getrandbits(256)


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
