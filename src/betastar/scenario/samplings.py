"""How batches are drawn: the samplings that there are, and the numbers that fit each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from betastar.rounding import plain

if TYPE_CHECKING:
    from betastar.scenario.run import DPSGD, Segment

SAMPLINGS = ("poisson", "fixed-size", "balls-in-bins", "shuffled")
#: Samplings whose epochs have 1 / sample_rate steps, in each of which every record takes part once.
IN_EPOCHS = ("balls-in-bins", "shuffled")
#: How far from a whole number 1 / sample_rate may be, relative to itself, by rounding.
WHOLE = 1e-9


def check(segment: Segment) -> None:
    """Raise an error if the numbers of a segment do not fit its sampling."""
    if segment.sampling in IN_EPOCHS:
        batches(segment.sample_rate, segment.sampling)
        epochs(segment)
    if segment.max_batch_size is None and segment.dataset_size is None:
        return
    if segment.sampling != "poisson":
        raise ValueError(
            f"max_batch_size and dataset_size must be left out with sampling={segment.sampling!r}, whose batches are not cut off."
        )
    if segment.max_batch_size is None or segment.dataset_size is None:
        missing = "max_batch_size" if segment.max_batch_size is None else "dataset_size"
        raise ValueError(f"{missing} must be given as well: batches that are cut off need max_batch_size and dataset_size.")
    expected = float(np.max(segment.sample_rate)) * segment.dataset_size
    if segment.max_batch_size < expected * (1.0 - WHOLE):
        raise ValueError(
            f"max_batch_size must be at least the expected batch size sample_rate * dataset_size = {plain(expected)}, "
            f"got {segment.max_batch_size}."
        )


def batches(sample_rate: Any, sampling: str) -> Any:
    """Number of batches in an epoch, 1 / sample_rate, which must be whole."""
    numbers = np.round(1.0 / np.asarray(sample_rate, dtype=np.float64))
    wrong = np.abs(numbers * sample_rate - 1.0) > WHOLE
    if np.any(wrong):
        rate = float(np.asarray(sample_rate)[wrong].flat[0])
        number = round(1.0 / rate)
        raise ValueError(
            f"sample_rate must be 1 divided by a whole number of batches with sampling={sampling!r}, "
            f"got {rate!r}; 1/{number} = {plain(1.0 / number)} would work."
        )
    return numbers.astype(np.int64) if numbers.ndim else int(numbers)


def epochs(segment: Segment) -> Any:
    """Number of epochs of a segment, which must be whole."""
    length = batches(segment.sample_rate, segment.sampling)
    number, rest = np.divmod(segment.steps, length)
    if np.any(rest):
        raise ValueError(
            f"steps must be a whole number of epochs with sampling={segment.sampling!r}, "
            f"got {segment.steps!r} steps where an epoch has {length!r}."
        )
    return number if np.ndim(number) else int(number)


def only_poisson(run: DPSGD) -> None:
    """Refuse a run of another sampling than plain Poisson sampling."""
    for segment in run.segments:
        if segment.sampling != "poisson" or segment.max_batch_size is not None:
            raise ValueError(f"sampling must be 'poisson' without max_batch_size for this question, got {run!r}.")
