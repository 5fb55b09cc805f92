"""Samplers of a loader: their sampling rate, and which of them draw each record at most once for a step."""

from __future__ import annotations

from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


def poisson_rate(sampler: object) -> float:
    """Give the probability with which a sampler draws each record, independently of the others.

    Parameters
    ----------
    sampler : object
        The batch sampler of a loader.

    Returns
    -------
    float
        The sampling rate.

    Raises
    ------
    ValueError
        If the sampler does not draw batches by Poisson sampling, or if its rate is not a probability.
    """
    if isinstance(sampler, POISSON):
        rate = float(sampler.sample_rate)
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"sample_rate of the loader must be greater than 0 and at most 1, got {rate:g}.")
        return rate
    refuse_repeating(sampler)
    raise ValueError(
        "loader must sample each record with the same probability, independently (Poisson), got "
        f"{type(getattr(sampler, 'sampler', sampler)).__name__}. "
        "Use the loader that make_private returns with poisson_sampling=True, "
        "or pass amplification=False to analyse every step as if all records took part (sample_rate 1)."
    )


def require_batch_size(expected: float, records: int, rate: float) -> None:
    """Refuse an optimizer that divides by another number than the mean size of the batches.

    Parameters
    ----------
    expected : float
        The batch size by which the optimizer divides.
    records : int
        The number of records in the data set.
    rate : float
        The sampling rate.

    Raises
    ------
    ValueError
        If the two do not match.
    """
    mean = records * rate
    if abs(expected - mean) > max(1.0, 0.01 * mean):
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
    inside: object = sampler.sampler if isinstance(sampler, BatchSampler) else sampler
    if isinstance(inside, DistributedSampler):  # unless all processes have equally many records, it gives some to two of them
        fine = inside.drop_last or inside.total_size == len(inside.dataset)  # type: ignore[arg-type]
    elif isinstance(inside, SubsetRandomSampler):
        fine = len(set(inside.indices)) == len(inside.indices)
    elif isinstance(inside, RandomSampler):
        fine = not inside.replacement and inside.num_samples <= len(inside.data_source)
    else:
        fine = isinstance(inside, (SequentialSampler, *POISSON))
    if fine:
        return
    raise ValueError(
        f"loader has the sampler {type(inside).__name__}, which may draw a record more than once for a step, so that its "
        "gradient counts more than once: use the loader that make_private returns with poisson_sampling=True, or a sampler of "
        "PyTorch without replacement and amplification=False."
    )
