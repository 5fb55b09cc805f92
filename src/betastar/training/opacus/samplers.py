"""Batch samplers of a loader: which sampling they are, which epoch a batch belongs to, and `private_loader`, which makes others.

Besides Opacus's Poisson sampling, these have a known risk: balls in bins, fixed size, and Poisson sampling with a largest batch.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict
from typing import Any, cast

import torch
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from betastar import validation
from betastar.drawn_steps import DrawnBatch, SamplingScheme
from betastar.training import processes

POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


class EpochSampler(Sampler[list[int]]):
    """Draws the batches of one epoch after the other.

    Each iteration is an epoch, whose batches are drawn when it begins, so that several processes can share one draw, and so that
    a training that was interrupted within an epoch can go on with the batches that are left. With several processes
    (torch.distributed), the first one draws, and each takes its share of each batch.

    Parameters
    ----------
    scheme : SamplingScheme
        How the batches are drawn.
    generator : torch.Generator, optional
        Where random numbers come from; torch's own generator by default.
    """

    def __init__(self, scheme: SamplingScheme, generator: torch.Generator | None = None) -> None:
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}.")
        self.scheme, self.generator = scheme, generator
        #: A text that is another one for each epoch: that of the last batch; empty before the first.
        self.epoch = ""
        self._left: list[Tensor] = []  # the batches that this epoch still has, each the numbers of its records
        self._resumed = False  # whether the next iteration goes on with what is left

    def __len__(self) -> int:
        return cast(int, self.scheme.batches)

    def __iter__(self) -> Iterator[list[int]]:
        if not self._resumed:
            self.epoch, self._left = processes.of_first(lambda: (uuid.uuid4().hex, self._draw()))
        self._resumed = False
        epoch, left = self.epoch, self._left
        while left:
            self.epoch, self._left = epoch, left  # another iteration may have begun meanwhile
            yield processes.part(left.pop(0)).tolist()

    def _draw(self) -> list[Tensor]:
        """The batches of an epoch."""
        records, steps = cast(int, self.scheme.records), len(self)
        if self.scheme.sampling == "balls-in-bins":
            times = self.scheme.times_per_epoch
            bins = torch.empty((times, records), dtype=torch.int64)
            for i, last in enumerate(range(steps - times, steps)):  # Floyd: a step up to `last`, or `last` if that is taken
                drawn = torch.randint(last + 1, (records,), generator=self.generator)
                bins[i] = torch.where((bins[:i] == drawn).any(dim=0), last, drawn)
            every = bins.T.flatten()
            sizes = torch.bincount(every, minlength=steps)
            return list((torch.argsort(every, stable=True) // times).split(sizes.tolist()))
        return [self._batch(records) for _ in range(steps)]

    def _batch(self, records: int) -> Tensor:
        if self.scheme.sampling == "fixed-size":
            return torch.randperm(records, generator=self.generator)[: self.scheme.batch_size].sort().values
        # In double precision: single precision has 2²⁴ values, so that a small probability would be off by some of its digits.
        coins = torch.rand(records, generator=self.generator, dtype=torch.float64)
        drawn, most = (coins < self.scheme.sample_rate).nonzero().flatten(), cast(int, self.scheme.max_batch_size)
        if len(drawn) <= most:
            return drawn
        return drawn[torch.randperm(len(drawn), generator=self.generator)[:most]].sort().values

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the sampler, to be saved next to the model's.

        It tells who is sampled next, so that it has to be kept secret until the training is complete. A loader with
        worker processes draws batches ahead of the training: save it between epochs then.

        Returns
        -------
        dict
            A sampler that is made alike goes on with the same batches after `load_state_dict`.
        """
        generator = None if self.generator is None else self.generator.get_state()
        return {"scheme": asdict(self.scheme), "epoch": self.epoch, "left": list(self._left), "generator": generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. If torch's own generator is used, its state has to be set as well (torch.set_rng_state).

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to another sampler.
        """
        if state["scheme"] != asdict(self.scheme):
            raise ValueError(f"the state belongs to another sampler: {state['scheme']}, not {asdict(self.scheme)}.")
        if (self.generator is None) != (state["generator"] is None):
            raise ValueError("generator must be given to the sampler that was saved and to this one, or to none of them.")
        self.epoch, self._left = state["epoch"], list(state["left"])
        self._resumed = bool(self._left)
        if self.generator is not None:
            self.generator.set_state(state["generator"])


#: What a loader can be made to do. Opacus makes plain Poisson sampling itself, and loaders of PyTorch shuffle.
SAMPLINGS = ("balls-in-bins", "fixed-size", "poisson")


def private_loader(
    loader: DataLoader[Any],
    sampling: str = "balls-in-bins",
    *,
    max_batch_size: int | None = None,
    times_per_epoch: int = 1,
    generator: torch.Generator | None = None,
) -> DataLoader[Any]:
    """Make a loader of the same data set whose batches are drawn in a way that a proof is known for.

    An epoch has as many batches as the given loader, and the size of batches is about the same. Give the new loader to
    `make_private` of Opacus with `poisson_sampling=False`, so that Opacus leaves it as it is. Opacus divides the noisy sum by a
    fixed number, the mean size of a batch, whatever the size of the batch.

    With times_per_epoch=k an epoch has k times as many batches, of the same size. Opacus divides by the records over the batches
    of an epoch, which then is a k-th of the mean size: divide the learning rate by k. The guarantee does not depend on it.

    Parameters
    ----------
    loader : DataLoader
        The loader whose data set, workers and collation are taken. What it does to draw batches is not used.
    sampling : "balls-in-bins", "fixed-size" or "poisson"
        How batches are drawn, as in `betastar.DPSGD`. "fixed-size" takes as many records as Opacus divides by, the data set
        divided by the number of batches, rounded down. "poisson" needs max_batch_size: for plain Poisson sampling give the
        loader to `make_private` with poisson_sampling=True.
    max_batch_size : int, optional
        With "poisson": larger batches are cut down to this many records, at random.
    times_per_epoch : int
        With "balls-in-bins": in how many batches of an epoch each record is, all subsets of that size being equally likely.
    generator : torch.Generator, optional
        Where the sampler's random numbers come from; by default the generator of the loader, or torch's own.

    Returns
    -------
    DataLoader
        Its `batch_sampler` has `state_dict` and `load_state_dict`, with which a training goes on within an epoch. Empty batches
        have tensors with no rows.

    Raises
    ------
    TypeError
        If the loader is not a DataLoader, or if its batches are not made of tensors.
    ValueError
        If the sampling is another word, if max_batch_size or times_per_epoch do not fit, or if the data set has no length.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from betastar.training import private_loader
    >>> loader = DataLoader(TensorDataset(torch.randn(100, 3)), batch_size=20, shuffle=True)
    >>> loader = private_loader(loader, "balls-in-bins")
    >>> len(loader), sum(len(inputs) for inputs, in loader)
    (5, 100)
    """
    require_numbers(loader)
    validation.choice("sampling", sampling, SAMPLINGS)
    scheme = _scheme(sampling, len(cast(Sized, loader.dataset)), len(loader), max_batch_size, times_per_epoch)
    collate = loader.collate_fn
    empty = _without_rows(collate([loader.dataset[0]]))
    kept = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")
    return DataLoader(
        dataset=loader.dataset,
        batch_sampler=EpochSampler(scheme, loader.generator if generator is None else generator),
        collate_fn=_CollateWithEmpty(collate, empty),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        **{name: getattr(loader, name) for name in kept},
    )


def require_numbers(loader: object) -> None:
    """Refuse what is no loader of PyTorch that draws records by their numbers."""
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a DataLoader of PyTorch, got {type(loader).__name__}: how it draws is not known.")
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise ValueError(
            f"loader must draw batches of records by their numbers, got one of {type(loader.dataset).__name__} without a batch "
            "sampler: how it draws is not known. Use a data set with a length, and make_private or private_loader."
        )


def _scheme(sampling: str, records: int, steps: int, most: int | None, times: int) -> SamplingScheme:
    """How the batches of a loader are drawn: with as many batches an epoch, or `times` as many."""
    if validation.one_whole("times_per_epoch", times) > 1 and sampling != "balls-in-bins":
        raise validation.wrong("times_per_epoch", f"belongs to sampling 'balls-in-bins', got sampling {sampling!r}.")
    if sampling != "poisson":
        if most is not None:
            raise ValueError(f"max_batch_size must be left out with sampling {sampling!r}, got {most!r}.")
        if sampling == "balls-in-bins":
            return SamplingScheme(sampling, 1.0 / steps, int(times) * steps, records, times_per_epoch=int(times))
        size = max(1, records // steps)
        return SamplingScheme(sampling, size / records, steps, records, size)
    if most is None:
        raise ValueError(
            "max_batch_size must be given with sampling 'poisson': for plain Poisson sampling give the loader to "
            "make_private with poisson_sampling=True."
        )
    if validation.whole("max_batch_size", most) * steps < records:
        mean = f"{records} / {steps} = {records / steps:g}"
        raise validation.wrong("max_batch_size", f"must be at least the mean batch size, {mean}, got {most}.")
    return SamplingScheme(sampling, 1.0 / steps, steps, records, max_batch_size=most)


class _CollateWithEmpty:
    """Makes a batch of records, and of no records a batch whose tensors have no rows. Worker processes get a copy of it."""

    def __init__(self, collate: Any, empty: Any) -> None:
        self._collate, self._empty = collate, empty

    def __call__(self, records: list[Any]) -> Any:
        return self._collate(records) if records else self._empty


def _without_rows(batch: Any) -> Any:
    """A batch of the same structure with no records."""

    def without(part: Any) -> Tensor:
        if isinstance(part, Tensor) and part.ndim:
            return part[:0].clone()
        raise TypeError(
            "loader must collate records into tensors with a row for each, or into lists, tuples and mappings of them, got "
            f"{part!r}: a batch may be empty, and must look like the others."
        )

    return pytree.tree_map(without, dict(batch) if isinstance(batch, Mapping) else batch)


# ---- What a loader does


class ShufflingWarning(UserWarning):
    """A warning: the loader shuffles, so that the risk is known as a wide interval only.

    Examples
    --------
    >>> import warnings
    >>> from betastar.training import ShufflingWarning
    >>> warnings.simplefilter("ignore", ShufflingWarning)  # for somebody who knows
    """


SHUFFLES = (
    "the loader shuffles, so that the risk is an interval: what is proved is as if everybody knew in which batch of an epoch a "
    "record is, and nothing better is known. One line makes it balls in bins, whose risk is exact: "
    'loader = private_loader(loader, "balls-in-bins"), before make_private(…, poisson_sampling=False).'
)


class CountedSampler(Sampler[int]):
    """A sampler of PyTorch that also says which iteration the last record came from.

    Parameters
    ----------
    inner : Sampler
        The sampler whose records are given, in its order.
    """

    def __init__(self, inner: Sampler[int]) -> None:
        self.inner, self.epoch = inner, ""
        #: Whether somebody was warned of this sampler.
        self.warned = False

    def __iter__(self) -> Iterator[int]:
        epoch = uuid.uuid4().hex
        for record in self.inner:
            self.epoch = epoch
            yield record

    def __len__(self) -> int:
        return len(cast(Sized, self.inner))

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.inner, name)


def counted(sampler: Any) -> Any:
    """The batch sampler, after which the epochs of a shuffling one are counted."""
    if _shuffles(sampler) and not isinstance(sampler.sampler, CountedSampler):
        sampler.sampler = CountedSampler(sampler.sampler)
    return sampler


def warn_of_shuffling(sampler: Any) -> None:
    """Warn once of a batch sampler whose epochs are counted, which shuffles."""
    if isinstance(getattr(sampler, "sampler", None), CountedSampler) and not sampler.sampler.warned:
        sampler.sampler.warned = True
        warnings.warn(SHUFFLES, ShufflingWarning, stacklevel=5)


def drawn_of(sampler: object, records: int) -> DrawnBatch:
    """How the last batch of a batch sampler was drawn. Raises `ValueError` if that cannot be analysed, as `scheme_of` does."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return DrawnBatch(scheme_of(sampler, records), inner.epoch if isinstance(inner, EpochSampler | CountedSampler) else "")


def scheme_of(sampler: object, records: int) -> SamplingScheme:
    """Say how a batch sampler draws from a data set.

    Parameters
    ----------
    sampler : object
        The batch sampler of a loader.
    records : int
        The number of records of the data set.

    Returns
    -------
    SamplingScheme
        The sampling and its numbers.

    Raises
    ------
    ValueError
        If the sampler is none of those that can be analysed, or if its rate is not a probability.
    """
    if type(sampler) in POISSON:  # one that inherits from them may draw otherwise
        rate = float(cast(Any, sampler).sample_rate)
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"sample_rate of the loader must be greater than 0 and at most 1, got {rate:g}.")
        return SamplingScheme("poisson", rate)
    if type(sampler) is EpochSampler:
        made = sampler.scheme.records
        if made != records:
            raise ValueError(f"loader has a sampler for {made} records, but its data set has {records}: make both of one size.")
        return sampler.scheme
    if _shuffles(sampler):
        batch_sampler = cast(BatchSampler, sampler)
        inner = _unwrapped(batch_sampler.sampler)
        number = inner.num_replicas if isinstance(inner, DistributedSampler) else 1
        batches = len(batch_sampler)
        return SamplingScheme("shuffled", 1.0 / batches, batches, records, batch_sampler.batch_size * number)
    raise ValueError(
        "loader must sample each record with the same probability, independently (Poisson), got "
        f"{type(_unwrapped(getattr(sampler, 'sampler', sampler))).__name__}. "
        "Use the loader that make_private returns with poisson_sampling=True, or one that private_loader makes. If each record "
        "takes part in a step once at most, you can count steps yourself: BetastarAccountant().step with sample_rate=1."
    )


def _shuffles(sampler: object) -> bool:
    """Whether a batch sampler permutes all records at each epoch and cuts them into batches, as loaders of PyTorch do."""
    if type(sampler) is not BatchSampler:
        return False
    inner = _unwrapped(sampler.sampler)
    if type(inner) is RandomSampler:
        return not inner.replacement and inner.num_samples == len(inner.data_source)
    if type(inner) is not DistributedSampler or not inner.shuffle:
        return False  # unless all processes have equally many records, it gives some to two of them
    return inner.drop_last or inner.total_size == len(cast(Sized, inner.dataset))


def _unwrapped(sampler: object) -> object:
    return sampler.inner if isinstance(sampler, CountedSampler) else sampler
