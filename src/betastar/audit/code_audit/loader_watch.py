"""The batches that a training draws from the data: noted in one training, and given again in another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, dataloader

from betastar.audit.code_audit.findings import ReplayError
from betastar.drawn_steps import SamplingScheme
from betastar.training.opacus.watched_optimizers import is_split, scheme_of_batches

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
