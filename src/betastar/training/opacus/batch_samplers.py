"""Batch samplers that a proof is known for, besides the Poisson sampler of Opacus: balls in bins, fixed size, truncated Poisson.

A sampler draws all batches of an epoch when the epoch begins, so that several processes can share one draw, and so that a
training that was interrupted within an epoch can go on with the batches that are left.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from betastar import validation
from betastar.drawn_steps import SamplingScheme
from betastar.training import processes

#: The batches of an epoch, each the numbers of its records.
Batches: TypeAlias = list[Tensor]


class EpochSampler(Sampler[list[int]]):
    """Draws the batches of one epoch after the other; the base of the batch samplers.

    Each iteration is an epoch, whose batches are drawn anew. With several processes (torch.distributed), the first one draws, and
    each takes its share of each batch.

    Attributes
    ----------
    dataset_size : int
        The number of records.
    steps : int
        The number of batches of an epoch.
    generator : torch.Generator, optional
        Where random numbers come from; torch's own generator by default.
    """

    def __init__(self, dataset_size: int, steps: int, generator: torch.Generator | None) -> None:
        self.dataset_size: int = validation.whole("dataset_size", dataset_size)
        self.steps: int = validation.whole("steps", steps)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}.")
        self.generator = generator
        self._epoch = ""
        self._left: Batches = []  # the batches that this epoch still has
        self._resumed = False  # whether the next iteration goes on with what is left

    @property
    @abstractmethod
    def scheme(self) -> SamplingScheme:
        """How the batches are drawn, as it is analysed."""

    @abstractmethod
    def _draw(self) -> Batches:
        """The batches of an epoch."""

    @property
    def sample_rate(self) -> float:
        """The probability of each record at each step."""
        return self.scheme.sample_rate

    @property
    def epoch(self) -> str:
        """A text that is another one for each epoch: that of the last batch; empty before the first."""
        return self._epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        if not self._resumed:
            self._begin()
        self._resumed = False
        epoch, left = self._epoch, self._left
        while left:
            self._epoch, self._left = epoch, left  # another iteration may have begun meanwhile
            yield processes.part(left.pop(0)).tolist()

    def _begin(self) -> None:
        """Begin an epoch. All processes have to, at the same time."""
        self._epoch, self._left = processes.of_first(lambda: (uuid.uuid4().hex, self._draw()))

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the sampler, to be saved next to the model's.

        Whoever knows it knows who is sampled next, so that it has to be kept secret until the training is complete. A loader with
        worker processes draws batches ahead of the training: save it between epochs then.

        Returns
        -------
        dict
            A sampler that is made alike goes on with the same batches after `load_state_dict`.
        """
        sizes = torch.tensor([len(batch) for batch in self._left], dtype=torch.int64)
        return {
            "made": self._made(),
            "epoch": self._epoch,
            "sizes": sizes,
            "records": torch.cat(self._left) if self._left else torch.zeros(0, dtype=torch.int64),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

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
        for name, mine in self._made().items():
            theirs = state["made"].get(name)
            if theirs != mine:
                raise ValueError(f"the state belongs to another sampler: its {name} is {theirs!r}, not {mine!r}.")
        if (self.generator is None) != (state["generator"] is None):
            raise ValueError("generator must be given to the sampler that was saved and to this one, or to none of them.")
        self._epoch, self._left = state["epoch"], list(state["records"].split(state["sizes"].tolist()))
        self._resumed = bool(self._left)
        if self.generator is not None:
            self.generator.set_state(state["generator"])

    def _made(self) -> dict[str, Any]:
        """What a saved state must have been made with."""
        return {"sampler": type(self).__name__, "dataset_size": self.dataset_size, "steps": self.steps}

    def __repr__(self) -> str:
        given = {name: value for name, value in self._made().items() if name != "sampler"}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in given.items())})"


class BallsInBinsSampler(EpochSampler):
    """Draws, for each record independently, one of the steps of the epoch: each record takes part exactly once an epoch.

    The sizes of the batches vary, and a batch may be empty: `private_loader` makes a loader that copes with that.

    Parameters
    ----------
    dataset_size : int
        The number of records.
    steps : int
        The number of batches of an epoch.
    generator : torch.Generator, optional
        Where random numbers come from; torch's own generator by default.

    Raises
    ------
    ValueError, TypeError
        If a number is outside its range, or if something is not of its type.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import BallsInBinsSampler
    >>> sampler = BallsInBinsSampler(dataset_size=10, steps=3, generator=torch.Generator().manual_seed(0))
    >>> batches = list(sampler)
    >>> len(batches), sorted(record for batch in batches for record in batch)
    (3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(self, dataset_size: int, steps: int, generator: torch.Generator | None = None) -> None:
        super().__init__(dataset_size, steps, generator)

    @property
    def scheme(self) -> SamplingScheme:
        """How the batches are drawn, as it is analysed."""
        return SamplingScheme("balls-in-bins", 1.0 / self.steps, self.steps, self.dataset_size)

    def _draw(self) -> Batches:
        bins = torch.randint(self.steps, (self.dataset_size,), generator=self.generator)
        sizes = torch.bincount(bins, minlength=self.steps)
        return list(torch.argsort(bins, stable=True).split(sizes.tolist()))


class FixedSizeSampler(EpochSampler):
    """Draws so many records without replacement, anew at each step.

    Parameters
    ----------
    dataset_size : int
        The number of records.
    batch_size : int
        The number of records of each batch.
    steps : int, optional
        The number of batches of an epoch; by default as many as a loader of PyTorch has, ⌈dataset_size / batch_size⌉. Opacus
        divides sums of gradients by ⌊dataset_size / steps⌋, which is the batch size if that divides the data set.
    generator : torch.Generator, optional
        Where random numbers come from; torch's own generator by default.

    Raises
    ------
    ValueError, TypeError
        If a number is outside its range, if a batch is larger than the data set, or if something is not of its type.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import FixedSizeSampler
    >>> sampler = FixedSizeSampler(dataset_size=10, batch_size=4, generator=torch.Generator().manual_seed(0))
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    >>> sampler.sample_rate
    0.4
    """

    def __init__(
        self, dataset_size: int, batch_size: int, steps: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        size, batch = validation.whole("dataset_size", dataset_size), validation.whole("batch_size", batch_size)
        if batch > size:
            raise validation.wrong("batch_size", f"must be at most the {size} records of the data set, got {batch}.")
        super().__init__(size, -(-size // batch) if steps is None else steps, generator)
        self.batch_size: int = batch

    @property
    def scheme(self) -> SamplingScheme:
        """How the batches are drawn, as it is analysed."""
        rate = self.batch_size / self.dataset_size
        return SamplingScheme("fixed-size", rate, self.steps, self.dataset_size, self.batch_size)

    def _draw(self) -> Batches:
        return [self._batch() for _ in range(self.steps)]

    def _batch(self) -> Tensor:
        return torch.randperm(self.dataset_size, generator=self.generator)[: self.batch_size].sort().values

    def _made(self) -> dict[str, Any]:
        return super()._made() | {"batch_size": self.batch_size}


class TruncatedPoissonSampler(EpochSampler):
    """Draws each record with probability 1 / steps, independently, and keeps at most so many records of a batch, at random.

    Parameters
    ----------
    dataset_size : int
        The number of records.
    steps : int
        The number of batches of an epoch.
    max_batch_size : int
        The largest size of a batch, at least the mean size dataset_size / steps before batches are cut off.
    generator : torch.Generator, optional
        Where random numbers come from; torch's own generator by default.

    Raises
    ------
    ValueError, TypeError
        If a number is outside its range, if the largest size is below the mean, or if something is not of its type.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import TruncatedPoissonSampler
    >>> sampler = TruncatedPoissonSampler(1000, steps=10, max_batch_size=110, generator=torch.Generator().manual_seed(0))
    >>> max(len(batch) for batch in sampler) <= 110
    True
    """

    def __init__(self, dataset_size: int, steps: int, max_batch_size: int, generator: torch.Generator | None = None) -> None:
        super().__init__(dataset_size, steps, generator)
        self.max_batch_size: int = validation.whole("max_batch_size", max_batch_size)
        if self.max_batch_size * self.steps < self.dataset_size:
            mean = f"{self.dataset_size} / {self.steps} = {self.dataset_size / self.steps:g}"
            raise validation.wrong("max_batch_size", f"must be at least the mean batch size, {mean}, got {max_batch_size}.")

    @property
    def scheme(self) -> SamplingScheme:
        """How the batches are drawn, as it is analysed."""
        return SamplingScheme("poisson", 1.0 / self.steps, self.steps, self.dataset_size, max_batch_size=self.max_batch_size)

    def _draw(self) -> Batches:
        return [self._batch() for _ in range(self.steps)]

    def _batch(self) -> Tensor:
        # In double precision: single precision has 2²⁴ values, so that a small probability would be off by some of its digits.
        coins = torch.rand(self.dataset_size, generator=self.generator, dtype=torch.float64)
        drawn = (coins < 1.0 / self.steps).nonzero().flatten()
        if len(drawn) <= self.max_batch_size:
            return drawn
        kept = torch.randperm(len(drawn), generator=self.generator)[: self.max_batch_size]
        return drawn[kept].sort().values

    def _made(self) -> dict[str, Any]:
        return super()._made() | {"max_batch_size": self.max_batch_size}


#: What a loader can be made to do. Opacus makes plain Poisson sampling itself, and loaders of PyTorch shuffle.
SAMPLINGS = ("balls-in-bins", "fixed-size", "poisson")


def private_loader(
    loader: DataLoader[Any],
    sampling: str = "balls-in-bins",
    *,
    max_batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> DataLoader[Any]:
    """Make a loader of the same data set whose batches are drawn in a way that a proof is known for.

    An epoch has as many batches as the given loader, and the size of batches is about the same. Give the new loader to
    `make_private` of Opacus with `poisson_sampling=False`, so that Opacus leaves it as it is. Opacus divides the noisy sum by a
    fixed number, the mean size of a batch, whatever the size of the batch.

    Parameters
    ----------
    loader : DataLoader
        The loader whose data set, workers and collation are taken. What it does to draw batches is not used.
    sampling : "balls-in-bins", "fixed-size" or "poisson"
        How batches are drawn, as in `betastar.DPSGD`. "fixed-size" takes as many records as Opacus divides by, the data set
        divided by the number of batches, rounded down. "poisson" needs max_batch_size: for plain Poisson sampling give the
        loader to `make_private` with poisson_sampling=True.
    max_batch_size : int, optional
        With "poisson": of a larger batch, so many records are kept at random.
    generator : torch.Generator, optional
        Where the sampler's random numbers come from; by default the generator of the loader, or torch's own.

    Returns
    -------
    DataLoader
        Its `batch_sampler` is a `BallsInBinsSampler`, `FixedSizeSampler` or `TruncatedPoissonSampler`. Empty batches have tensors
        with no rows.

    Raises
    ------
    TypeError
        If the loader is not a DataLoader, or if its batches are not made of tensors.
    ValueError
        If the sampling is another word, if max_batch_size does not fit, or if the data set has no length.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from betastar.training import private_loader
    >>> loader = DataLoader(TensorDataset(torch.randn(100, 3)), batch_size=20, shuffle=True)
    >>> loader = private_loader(loader, "balls-in-bins")
    >>> loader.batch_sampler
    BallsInBinsSampler(dataset_size=100, steps=5)
    >>> sum(len(inputs) for inputs, in loader)
    100
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a DataLoader of PyTorch, got {loader!r}.")
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise ValueError("loader must draw batches of records by their numbers, got one without a batch sampler.")
    validation.choice("sampling", sampling, SAMPLINGS)
    source = loader.generator if generator is None else generator
    sampler = _sampler(sampling, len(loader.dataset), len(loader), max_batch_size, source)  # type: ignore[arg-type]
    return with_batch_sampler(loader, sampler)


def _sampler(
    sampling: str, records: int, steps: int, max_batch_size: int | None, generator: torch.Generator | None
) -> EpochSampler:
    if sampling == "poisson":
        if max_batch_size is None:
            raise ValueError(
                "max_batch_size must be given with sampling 'poisson': for plain Poisson sampling give the loader to "
                "make_private with poisson_sampling=True."
            )
        return TruncatedPoissonSampler(records, steps, max_batch_size, generator)
    if max_batch_size is not None:
        raise ValueError(f"max_batch_size must be left out with sampling {sampling!r}, got {max_batch_size!r}.")
    if sampling == "fixed-size":
        return FixedSizeSampler(records, max(1, records // steps), steps, generator)
    return BallsInBinsSampler(records, steps, generator)


def with_batch_sampler(loader: DataLoader[Any], sampler: Sampler[list[int]]) -> DataLoader[Any]:
    """A loader like the given one with another batch sampler, which may draw empty batches."""
    return DataLoader(
        dataset=loader.dataset,
        batch_sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=CollateWithEmpty(loader.collate_fn, loader.dataset[0]),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


class CollateWithEmpty:
    """Makes a batch of records, and of no records a batch whose tensors have no rows.

    Parameters
    ----------
    collate : callable
        Makes a batch of at least one record.
    record : object
        Any record of the data set: a batch of it shows what tensors a batch has.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], record: Any) -> None:
        self.collate = collate
        self._empty = _without_rows(collate([record]))

    def __call__(self, records: list[Any]) -> Any:
        return self.collate(records) if records else self._empty


def _without_rows(batch: Any) -> Any:
    """A batch of the same structure with no records."""
    if isinstance(batch, Tensor) and batch.ndim:
        return batch[:0].clone()
    if isinstance(batch, Mapping):
        return {name: _without_rows(part) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_without_rows(part) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_without_rows(part) for part in batch)
    raise TypeError(
        "loader must collate records into tensors with a row for each, or into lists, tuples and mappings of them, got "
        f"{batch!r}: a batch may be empty, and must look like the others."
    )
