"""private_loader: a loader like a given one, with a batch sampler that a proof is known for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from betastar import validation
from betastar.training.batch_samplers import BallsInBinsSampler, EpochSampler, FixedSizeSampler, TruncatedPoissonSampler

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
