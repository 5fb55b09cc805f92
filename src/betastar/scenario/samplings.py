"""How batches are drawn: the samplings that there are, and the numbers that fit each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from betastar.rounding import plain
from betastar.validation import WrongValueError

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
        epochs(segment)
    if segment.max_batch_size is not None:
        _check_cap(segment)
    if segment.dataset_size is None:
        return
    if segment.sampling == "poisson" and segment.max_batch_size is None:
        raise WrongValueError(
            "dataset_size", "{argument} must be left out with sampling 'poisson', unless {max_batch_size} is given."
        )
    if segment.sampling == "fixed-size":
        drawn = np.asarray(segment.sample_rate, dtype=np.float64) * segment.dataset_size
        wrong = (np.abs(drawn - np.round(drawn)) > WHOLE * drawn) | (np.round(drawn) < 1.0)
        if np.any(wrong):
            number = float(np.atleast_1d(drawn)[np.atleast_1d(wrong)][0])
            near = max(1, round(number))
            raise WrongValueError(
                "sample_rate",
                "{argument} must be a whole number of records divided by {dataset_size} with sampling 'fixed-size', got "
                "{drawn} records; {near}/{size} = {rate} would work.",
                {
                    "drawn": plain(number),
                    "near": str(near),
                    "size": str(segment.dataset_size),
                    "rate": plain(near / segment.dataset_size),
                },
            )


def _check_cap(segment: Segment) -> None:
    assert segment.max_batch_size is not None
    if segment.sampling != "poisson":
        raise WrongValueError(
            "max_batch_size",
            "{argument} must be left out with sampling {word}, whose batches are not cut off; it goes with sampling 'poisson'.",
            {"word": repr(segment.sampling)},
        )
    if segment.dataset_size is None:
        raise WrongValueError(
            "dataset_size", "{argument} must be given as well: it decides how often {max_batch_size} is reached."
        )
    expected = float(np.max(segment.sample_rate)) * segment.dataset_size
    if segment.max_batch_size < expected * (1.0 - WHOLE):
        raise WrongValueError(
            "max_batch_size",
            "{argument} must be at least the expected batch size, {sample_rate} times {dataset_size} = {expected}, got {value}.",
            {"expected": plain(expected), "value": str(segment.max_batch_size)},
        )


def batches(sample_rate: Any, sampling: str) -> Any:
    """Number of batches in an epoch, 1 / sample_rate, which must be whole."""
    numbers = np.round(1.0 / np.asarray(sample_rate, dtype=np.float64))
    wrong = np.abs(numbers * sample_rate - 1.0) > WHOLE
    if np.any(wrong):
        rate = float(np.asarray(sample_rate)[wrong].flat[0])
        number = round(1.0 / rate)
        raise WrongValueError(
            "sample_rate",
            "{argument} must be 1 divided by a whole number of batches with sampling {word}, got {rate}; 1/{number} = {near} "
            "would work.",
            {"word": repr(sampling), "rate": repr(rate), "number": str(number), "near": plain(1.0 / number)},
        )
    return numbers.astype(np.int64) if numbers.ndim else int(numbers)


def epochs(segment: Segment) -> Any:
    """Number of epochs of a segment, which must be whole."""
    length = batches(segment.sample_rate, segment.sampling)
    number, rest = np.divmod(segment.steps, length)
    if np.any(rest):
        wrong = np.flatnonzero(np.ravel(rest))[0]
        count, size = (int(np.broadcast_to(one, np.shape(rest)).ravel()[wrong]) for one in (segment.steps, length))
        near = [str(number * size) for number in (count // size, count // size + 1) if number]
        raise WrongValueError(
            "steps",
            "{argument} must be a whole number of epochs with sampling {word}, got {count} where an epoch has {size} steps; "
            "{near} would work.",
            {"word": repr(segment.sampling), "count": str(count), "size": str(size), "near": " or ".join(near)},
        )
    return number if np.ndim(number) else int(number)


def whole_epochs(epochs: Any, sampling: str) -> None:
    """Refuse a fraction of an epoch."""
    numbers = np.ravel(epochs)
    if np.any(numbers != np.round(numbers)):
        fraction = float(numbers[numbers != np.round(numbers)][0])
        near = " or ".join(str(number) for number in (int(fraction), int(fraction) + 1) if number)
        raise WrongValueError(
            "epochs",
            "{argument} must be whole with sampling {word}, got {value}; {near} would work.",
            {"word": repr(sampling), "value": plain(fraction), "near": near},
        )


def one_size(sizes: Any) -> int | None:
    """The number of records, or None if a sweep has several."""
    distinct = np.unique(sizes)
    return int(distinct[0]) if len(distinct) == 1 else None


def is_plain(segment: Segment) -> bool:
    """Whether a segment has Poisson sampling whose batches are not cut off."""
    return segment.sampling == "poisson" and segment.max_batch_size is None


def all_plain(run: DPSGD) -> bool:
    """Whether all segments are plain."""
    return all(is_plain(segment) for segment in run.segments)


def only_plain(run: DPSGD, what: str) -> None:
    """Refuse a run of another sampling, for something that knows plain Poisson sampling only."""
    if not all_plain(run):
        raise WrongValueError(
            "sampling",
            "{argument} must be 'poisson', without max_batch_size, for {what}, got {run}.",
            {"what": what, "run": repr(run)},
        )
