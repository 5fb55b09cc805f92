"""One training by the user's own code: each step as its optimizer applies it, and everything else that can be seen of it."""

from __future__ import annotations

import io
import logging
import random
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Subset, dataloader

from betastar.audit.challenges import Data, digest, leaves
from betastar.audit.code_findings import ReplayError
from betastar.audit.one_game import seeded
from betastar.audit.watched_optimizers import StepSettings, WatchedOptimizers, is_split, scheme_of_batches
from betastar.drawn_steps import SamplingScheme
from betastar.training import processes

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
    """

    fetched: list[list[int]] = field(default_factory=list)
    random_states: list[Any] = field(default_factory=list)
    schemes: list[SamplingScheme | None] = field(default_factory=list)


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
        #: The numbers that the records of the last delivered batch have in the data of the earlier training.
        self.last: tuple[int, ...] = ()
        self._iterators: dict[int, object] = {}  # kept, so that their ids stay theirs
        self._state: Any = None

    def take(self) -> frozenset[int] | None:
        """The records that were delivered since the last call; None if no loader of the data has delivered anything."""
        since, self._since = self._since, None
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
            self._since = (self._since or set()) | set(places)
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

#: A function that trains on the data from the beginning to the end. It may be a generator that yields what it logs.
Train = Callable[[Data], Any]
#: Prefixes of the names of parameters that wrappers of models add.
WRAPPERS = ("_module.", "module.")


class EnoughError(BaseException):
    """Ends a training after enough steps. It is no Exception, so that the user's code does not catch it."""


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
    """

    steps: list[RecordedStep] = field(default_factory=list)
    batches: DrawnBatches = field(default_factory=DrawnBatches)
    output: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)
    ended: bool = False


class Recorder:
    """Runs a training and records it.

    Parameters
    ----------
    train : callable
        The user's function.
    steps : int
        The number of steps after which the training is ended.
    fixed : bool
        Refuse models that draw random numbers.
    other_noise : Recording, optional
        An earlier training. From each use of the model until the next step, this one has other random numbers; then it goes on
        with the earlier one's. So it draws the same batches and other noise.
    """

    def __init__(self, train: Train, steps: int, fixed: bool = False, other_noise: Recording | None = None) -> None:
        self._train, self._most, self._fixed, self._other_noise = train, steps, fixed, other_noise
        self._seeds = 0
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
                for context in (seeded(seed), self._optimizers.watching(), watch.watching(), self._hooks()):
                    stack.enter_context(context)
                stack.enter_context(redirect_stdout(printed))
                stack.enter_context(warnings.catch_warnings())
                returned = self._train(data)
                if isinstance(returned, types.GeneratorType):
                    returned = list(returned)
                recording.ended = True
                recording.output |= dict(leaves("what train returns", returned))
        except EnoughError:
            pass
        finally:
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
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _called(self, module: nn.Module, _: object) -> None:
        self._depth += 1
        if self._depth > 1:
            return
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
        if self._depth == 0 and self._other_noise is not None:
            self._seeds += 1
            torch.manual_seed(self._seeds)
            np.random.seed(self._seeds)
            random.seed(self._seeds)

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
        if len(self.recording.steps) == self._most:
            raise EnoughError
        names = {self._name(one): one for one in held}
        settings = self._optimizers.settings(optimizer)
        sums = {name: self._optimizers.clipped_sum(optimizer, one) for name, one in names.items()} if settings else {}
        step = RecordedStep(
            type(optimizer).__name__,
            {name: one.grad.detach().clone() for name, one in names.items()},
            {name: total for name, total in sums.items() if total is not None},
            settings,
            _numbers(optimizer),
            _everywhere(self._watch.take()),
            self._digests(),
            generator_states(),
            self._watch.last,
            self._optimizers.record_numbers(optimizer),
        )
        replaced = self._watcher(len(self.recording.steps), step) if self._watcher is not None else None
        if self._other_noise is not None:
            set_generator_states(self._other_noise.steps[len(self.recording.steps)].states)
        self.recording.steps.append(step)
        if replaced is not None:
            for name, one in names.items():
                if name in replaced:
                    one.grad.copy_(replaced[name])


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
