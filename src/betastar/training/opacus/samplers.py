"""Batch samplers of a loader: which sampling they are, which epoch a batch belongs to, and which draw a record at most once."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sized
from typing import Any, cast

from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler

from betastar.drawn_steps import DrawnBatch, SamplingScheme
from betastar.training.opacus.batch_samplers import EpochSampler

POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


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
    if isinstance(sampler, EpochSampler):
        if sampler.dataset_size != records:
            raise ValueError(
                f"loader has a sampler for {sampler.dataset_size} records, but its data set has {records}: make both of one size."
            )
        return sampler.scheme
    refuse_repeating(sampler)
    if _shuffles(sampler):
        batch_sampler = cast(BatchSampler, sampler)
        inner = _unwrapped(batch_sampler.sampler)
        number = inner.num_replicas if isinstance(inner, DistributedSampler) else 1
        batches = len(batch_sampler)
        return SamplingScheme("shuffled", 1.0 / batches, batches, records, batch_sampler.batch_size * number)
    raise ValueError(
        "loader must sample each record with the same probability, independently (Poisson), got "
        f"{type(_unwrapped(getattr(sampler, 'sampler', sampler))).__name__}. "
        "Use the loader that make_private returns with poisson_sampling=True, one that private_loader makes, "
        "or analyse every step as if all records took part: amplification=False of a monitor, or sample_rate=1 in steps that you "
        "count yourself with BetastarAccountant().step."
    )


def _shuffles(sampler: object) -> bool:
    """Whether a batch sampler permutes all records at each epoch and cuts them into batches, as loaders of PyTorch do."""
    if type(sampler) is not BatchSampler:
        return False
    inner = _unwrapped(sampler.sampler)
    if type(inner) is RandomSampler:
        return not inner.replacement and inner.num_samples == len(inner.data_source)
    return type(inner) is DistributedSampler and bool(inner.shuffle)


def _unwrapped(sampler: object) -> object:
    return sampler.inner if isinstance(sampler, CountedSampler) else sampler


def require_batch_size(expected: float, records: int, sampler: object, rate: float) -> None:
    """Refuse an optimizer that divides by another number than the mean size of the batches.

    Parameters
    ----------
    expected : float
        The batch size by which the optimizer divides.
    records : int
        The number of records in the data set.
    sampler : object
        The batch sampler of the loader.
    rate : float
        The sampling rate.

    Raises
    ------
    ValueError
        If the two do not match.
    """
    mean = records * rate
    # What make_private computes from this loader. It differs if a fixed batch size does not divide the data set.
    computed = records // len(cast(Sized, sampler)) if isinstance(sampler, EpochSampler) else mean
    if min(abs(expected - mean), abs(expected - computed)) > max(1.0, 0.01 * mean):
        raise ValueError(
            f"expected_batch_size {expected:g} of the optimizer does not match the loader, whose rate "
            f"{rate:.4g} gives {mean:.1f}: use both as make_private returned them."
        )


def refuse_repeating(sampler: object) -> None:
    """Refuse a sampler that may draw a record twice for one step: its gradient then counts twice, whatever the rate.

    Parameters
    ----------
    sampler : object
        The batch sampler of a loader.

    Raises
    ------
    ValueError
        If the sampler is not known to draw each record at most once.
    """
    inside = _unwrapped(sampler.sampler if isinstance(sampler, BatchSampler) else sampler)
    if isinstance(inside, DistributedSampler):  # unless all processes have equally many records, it gives some to two of them
        fine = inside.drop_last or inside.total_size == len(inside.dataset)  # type: ignore[arg-type]
    elif isinstance(inside, SubsetRandomSampler):
        fine = len(set(inside.indices)) == len(inside.indices)
    elif isinstance(inside, RandomSampler):
        fine = not inside.replacement and inside.num_samples <= len(inside.data_source)
    else:
        fine = isinstance(inside, (SequentialSampler, EpochSampler, *POISSON))
    if fine:
        return
    raise ValueError(
        f"loader has the sampler {type(inside).__name__}, which may draw a record more than once for a step, so that its "
        "gradient counts more than once: use the loader that make_private returns with poisson_sampling=True, or a sampler of "
        "PyTorch without replacement and amplification=False."
    )
