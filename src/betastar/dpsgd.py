"""What was run: DP-SGD, as a sum of segments with constant noise, rate and sampling."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from betastar import validation
from betastar.rounding import plain
from betastar.validation import WrongValueError

# How batches are drawn: the samplings that there are, and the numbers that fit each.

SAMPLINGS = ("poisson", "fixed-size", "balls-in-bins", "shuffled")
#: Samplings whose epochs have 1 / sample_rate steps, in each of which every record takes part once.
IN_EPOCHS = ("balls-in-bins", "shuffled")
#: How far from a whole number 1 / sample_rate may be, relative to itself, by rounding.
WHOLE = 1e-9


def check_segment(segment: Segment) -> None:
    """Raise an error if the numbers of a segment do not fit its sampling."""
    if segment.times_per_epoch > 1 and segment.sampling != "balls-in-bins":
        raise WrongValueError(
            "times_per_epoch",
            "{argument} must be 1 with sampling {word}, got {value}; it goes with sampling 'balls-in-bins'.",
            {"word": repr(segment.sampling), "value": str(segment.times_per_epoch)},
        )
    if segment.sampling in IN_EPOCHS:
        epochs_of(segment)
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


def batches_per_epoch(sample_rate: Any, sampling: str, times: int = 1) -> Any:
    """Number of batches in an epoch, times / sample_rate, which must be whole."""
    numbers = np.round(times / np.asarray(sample_rate, dtype=np.float64))
    wrong = np.abs(numbers * sample_rate - times) > WHOLE * times
    if np.any(wrong):
        rate = float(np.asarray(sample_rate)[wrong].flat[0])
        number = max(times, round(times / rate))
        raise WrongValueError(
            "sample_rate",
            "{argument} must be {times} divided by a whole number of batches with sampling {word}, got {rate}; {times}/{number} "
            "= {near} would work.",
            {
                "word": repr(sampling),
                "rate": repr(rate),
                "times": str(times),
                "number": str(number),
                "near": plain(times / number),
            },
        )
    return numbers.astype(np.int64) if numbers.ndim else int(numbers)


def length_of(segment: Segment) -> Any:
    """Number of batches in an epoch of a segment."""
    return batches_per_epoch(segment.sample_rate, segment.sampling, segment.times_per_epoch)


def epochs_of(segment: Segment) -> Any:
    """Number of epochs of a segment, which must be whole."""
    length = length_of(segment)
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


# What was run: DP-SGD, as a sum of segments with constant noise, rate and sampling.

#: Ratio of two sampling rates that is worth a word.
NOTICEABLE = 1.05


@dataclass(frozen=True)
class Segment:
    """Steps with the same noise, sampling rate and sampling. Each number may be an array where a person sweeps.

    max_batch_size: of Poisson sampling whose batches are cut off; None otherwise. dataset_size: None if it is not known. mixture:
    with sampling "mixture", which only `from_dp_event` makes, pairs (shift, probability): with a record, a step shows one of the
    shifts plus noise, without it noise alone. times_per_epoch: of balls in bins, in how many batches of an epoch a record is.
    """

    noise_multiplier: Any
    sample_rate: Any
    steps: Any
    sampling: str = "poisson"
    max_batch_size: int | None = None
    dataset_size: int | None = None
    mixture: tuple[tuple[float, float], ...] | None = None
    times_per_epoch: int = 1

    @property
    def numbers(self) -> tuple[Any, Any, Any]:
        return self.noise_multiplier, self.sample_rate, self.steps

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(np.shape(field) for field in self.numbers))


class RateWarning(UserWarning):
    """A warning: Opacus would sample with a rate that is noticeably smaller than batch_size / dataset_size.

    Examples
    --------
    >>> import betastar as bs
    >>> bs.DPSGD.from_epochs(1.0, batch_size=80, dataset_size=100, epochs=1, opacus=True).sample_rate  # does not warn
    0.5
    """


def opacus_differs(batch_size: Any, dataset_size: Any) -> str | None:
    """A sentence if batch_size / dataset_size is more than 5 % above the rate of Opacus for some setting."""
    batch, size = np.broadcast_arrays(np.asarray(batch_size), np.asarray(dataset_size))
    expected, taken = batch / size, 1.0 / -(-size // batch)
    worst = np.unravel_index(int(np.argmax(expected / taken)), batch.shape)
    if expected[worst] <= NOTICEABLE * taken[worst]:
        return None
    return (
        f"the rate is batch_size / dataset_size = {plain(expected[worst])}, but Opacus would sample with 1 / ⌈dataset_size / "
        f"batch_size⌉ = {plain(taken[worst])}, which leaks less. Say opacus=True if Opacus trains, and opacus=False if not."
    )


#: The numbers that make a run, and what each is.
NUMBERS = {
    "noise_multiplier": "the standard deviation of the noise divided by the clipping norm, e.g. 1.0",
    "sample_rate": "the probability of each record at each step, e.g. 0.01",
    "batch_size": "the expected number of records in a batch, e.g. 256",
    "dataset_size": "the number of training records, e.g. 50000",
    "steps": "the total number of updates, e.g. 2000",
    "epochs": "the number of passes over the training records, e.g. 20",
}


def missing_numbers(
    given: Collection[str], *, counts_records: bool = False, opacus: bool | None = None
) -> tuple[list[str], tuple[str, ...]]:
    """Which numbers of a run are missing, and which are needed in all. Numbers that contradict each other are a `TypeError`.

    counts_records: the sampling needs the number of records beside the rate.
    """
    if opacus is not None and "sample_rate" in given:
        text = "{argument} must be left out with {sample_rate}: it says how {batch_size} and {dataset_size} make the rate."
        raise validation.WrongTypeError("opacus", text)
    if "sample_rate" in given and ("batch_size" in given or ("dataset_size" in given and not counts_records)):
        text = "{argument} must be left out with {batch_size} or {dataset_size}, which make the rate."
        raise validation.WrongTypeError("sample_rate", text)
    if "steps" in given and "epochs" in given:
        raise validation.WrongTypeError("steps", "{argument} must be left out with {epochs}, or the other way round.")
    if "epochs" in given and "sample_rate" in given:
        text = "{argument} must come with {batch_size} and {dataset_size}; give {steps} with {sample_rate}."
        raise validation.WrongTypeError("epochs", text)
    sized = "batch_size" in given or ("dataset_size" in given and not counts_records)
    needed: tuple[str, ...] = ("noise_multiplier", "batch_size", "dataset_size", "steps" if "steps" in given else "epochs")
    if "sample_rate" in given or ("steps" in given and not sized):
        needed = ("noise_multiplier", "sample_rate", "steps")
    return [name for name in needed if name not in given], needed


class DPSGD:
    """A run of DP-SGD.

    Each of the steps samples each record with probability `sample_rate`, clips its gradient to norm C, sums the gradients, and
    adds Gaussian noise of standard deviation `noise_multiplier`·C to the sum. Arrays broadcast like NumPy's: a sweep over noise
    and rate is one run. The sum of two runs is one run after the other, also if their samplings differ.

    Parameters
    ----------
    noise_multiplier : float or array
        The standard deviation of the noise, divided by the clipping norm.
    sample_rate : float or array
        The probability of each record at each step.
    steps : int or array
        The number of updates.
    sampling : "poisson", "fixed-size", "balls-in-bins" or "shuffled"
        How the batches are drawn. "poisson": each record is in a batch with probability `sample_rate`, independently.
        "fixed-size": this many records without replacement, anew at each step. "balls-in-bins": each record is in one batch of an
        epoch of 1 / `sample_rate` batches, drawn uniformly and independently. "shuffled": the records are permuted at each epoch,
        and cut into 1 / `sample_rate` batches.
    max_batch_size : int, optional
        With "poisson": larger batches are cut down to this many records, at random.
    dataset_size : int, optional
        The number of records, with max_batch_size.
    times_per_epoch : int
        With "balls-in-bins": in how many batches of an epoch each record is. An epoch then has `times_per_epoch` / `sample_rate`
        batches, of which each record is in that many, drawn uniformly.

    Raises
    ------
    ValueError
        If a number is outside its range, the shapes do not broadcast, or the numbers do not fit the sampling.
    TypeError
        If something is not a number.

    Examples
    --------
    >>> import betastar as bs
    >>> bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500)
    DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500)
    >>> (bs.DPSGD(2.0, 0.01, 500) + bs.DPSGD(1.0, 0.01, 300)).steps
    800
    >>> bs.DPSGD([1.0, 2.0, 4.0], 0.01, 500).shape
    (3,)
    """

    __slots__ = ("segments", "shape")

    segments: tuple[Segment, ...]
    shape: tuple[int, ...]

    def __init__(
        self,
        noise_multiplier: Any,
        sample_rate: Any,
        steps: Any,
        sampling: str = "poisson",
        *,
        max_batch_size: int | None = None,
        dataset_size: int | None = None,
        times_per_epoch: int = 1,
    ) -> None:
        segment = Segment(
            validation.positive("noise_multiplier", noise_multiplier),
            validation.fraction("sample_rate", sample_rate),
            validation.whole("steps", steps),
            validation.choice("sampling", sampling, SAMPLINGS),
            None if max_batch_size is None else validation.one_whole("max_batch_size", max_batch_size),
            None if dataset_size is None else validation.one_whole("dataset_size", dataset_size),
            times_per_epoch=validation.one_whole("times_per_epoch", times_per_epoch),
        )
        check_segment(segment)
        self._set((segment,))

    def _set(self, segments: tuple[Segment, ...]) -> None:
        try:
            shape = np.broadcast_shapes(*(segment.shape for segment in segments))
        except ValueError:
            fields = [np.shape(number) for segment in segments for number in segment.numbers]
            shapes = ", ".join(str(shape) for shape in fields)
            raise ValueError(f"noise_multiplier, sample_rate and steps must broadcast together, got shapes {shapes}.") from None
        for number in (number for segment in segments for number in segment.numbers if isinstance(number, np.ndarray)):
            number.setflags(write=False)  # those of a copy or of a saved run can be changed
        object.__setattr__(self, "segments", segments)
        object.__setattr__(self, "shape", shape)

    @classmethod
    def _of(cls, segments: tuple[Segment, ...]) -> DPSGD:
        run = object.__new__(cls)
        run._set(segments)
        return run

    @classmethod
    def from_epochs(
        cls,
        noise_multiplier: Any,
        batch_size: Any,
        dataset_size: Any,
        epochs: Any,
        opacus: bool | None = None,
        *,
        sampling: str = "poisson",
        max_batch_size: int | None = None,
        times_per_epoch: int = 1,
    ) -> DPSGD:
        """From what a training script has. The rate is batch_size / dataset_size.

        Parameters
        ----------
        noise_multiplier : float or array
            The standard deviation of the noise, divided by the clipping norm.
        batch_size : int or array
            The expected number of records in a batch.
        dataset_size : int or array
            The number of training records.
        epochs : float or array
            An epoch has ⌈dataset_size / batch_size⌉ steps, as many as a PyTorch loader has batches. A fraction of an epoch is
            rounded up to whole steps; with sampling "balls-in-bins" or "shuffled", epochs must be whole.
        opacus : bool, optional
            True for the rate that Opacus takes from such a loader, 1 / ⌈dataset_size / batch_size⌉, which is the smaller one
            unless the batches fill the data set exactly (batch 80 of 100: 0.5 instead of 0.8). False for
            batch_size / dataset_size. None is the latter, with a RateWarning where the two differ by more than 5 %. With
            sampling "poisson" only.
        sampling : "poisson", "fixed-size", "balls-in-bins" or "shuffled"
            How the batches are drawn, as for `DPSGD`.
        max_batch_size : int, optional
            With "poisson": larger batches are cut down to this many records, at random.
        times_per_epoch : int
            With "balls-in-bins": in how many of its batches each record is. An epoch then has that many times as many batches.

        Returns
        -------
        DPSGD
            The run.

        Raises
        ------
        ValueError
            If a number is outside its range, or a batch is larger than the data set.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.DPSGD.from_epochs(noise_multiplier=1.0, batch_size=100, dataset_size=10_000, epochs=2)
        DPSGD(noise_multiplier=1.0, sample_rate=0.01, steps=200)
        """
        rate, batches, notice = _rate_of_sizes(batch_size, dataset_size, opacus, sampling, times_per_epoch)
        if notice:
            warnings.warn(notice, RateWarning, stacklevel=2)
        known = sampling != "poisson" or max_batch_size is not None
        return cls(
            noise_multiplier,
            rate,
            _steps_of_epochs(epochs, batches, sampling),
            sampling,
            max_batch_size=max_batch_size,
            dataset_size=one_size(dataset_size) if known else None,
            times_per_epoch=times_per_epoch,
        )

    @classmethod
    def from_numbers(
        cls,
        noise_multiplier: Any = None,
        sample_rate: Any = None,
        steps: Any = None,
        *,
        batch_size: Any = None,
        dataset_size: Any = None,
        epochs: Any = None,
        sampling: str = "poisson",
        max_batch_size: int | None = None,
        times_per_epoch: int = 1,
        opacus: bool | None = None,
    ) -> DPSGD:
        """From whichever numbers are known: the rate or the sizes, the steps or the epochs.

        Parameters
        ----------
        noise_multiplier, sample_rate, steps : float, optional
            As for `DPSGD`.
        batch_size, dataset_size, epochs : float, optional
            As for `from_epochs`. The two sizes stand for the rate, and the epochs for the steps.
        sampling, max_batch_size, times_per_epoch, opacus
            As for `from_epochs`.

        Returns
        -------
        DPSGD
            The run.

        Raises
        ------
        TypeError
            If a number is missing, or two of them contradict each other.
        ValueError
            If a number is outside its range.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.DPSGD.from_numbers(noise_multiplier=1.0, batch_size=100, dataset_size=10_000, steps=50)
        DPSGD(noise_multiplier=1.0, sample_rate=0.01, steps=50)
        """
        numbers = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
        numbers |= {"batch_size": batch_size, "dataset_size": dataset_size, "epochs": epochs}
        given = [name for name, value in numbers.items() if value is not None]
        counts_records = sampling != "poisson" or max_batch_size is not None
        missing, _ = missing_numbers(given, counts_records=counts_records, opacus=opacus)
        if missing:
            other = " (or give {sample_rate} and {steps})" if missing[0] == "batch_size" and "dataset_size" in missing else ""
            raise validation.WrongTypeError(missing[0], f"{{argument}} is missing: {NUMBERS[missing[0]]}{other}.")
        if sample_rate is None:
            sample_rate, batches, notice = _rate_of_sizes(batch_size, dataset_size, opacus, sampling, times_per_epoch)
            if notice:
                warnings.warn(notice, RateWarning, stacklevel=2)
            steps = _steps_of_epochs(epochs, batches, sampling) if steps is None else steps
            dataset_size = one_size(dataset_size) if counts_records else None
        given_batches = {"max_batch_size": max_batch_size, "dataset_size": dataset_size, "times_per_epoch": times_per_epoch}
        return cls(noise_multiplier, sample_rate, steps, sampling, **given_batches)

    @classmethod
    def from_dp_event(cls, event: Any) -> DPSGD:
        """From a dp_accounting event.

        Parameters
        ----------
        event : DpEvent
            Gaussian mechanisms, Poisson-sampled, sampled without replacement, Poisson-sampled and truncated, or not sampled, and
            mixtures of Gaussians, composed in any way. The latter are about adding or removing a record.

        Returns
        -------
        DPSGD
            The run.

        Raises
        ------
        ValueError
            If the event has another mechanism in it, or one sample for several mechanisms.
        """
        segments = tuple(segments_of(event))
        if not segments:
            raise ValueError(f"event must contain a Gaussian mechanism, got {event!r}.")
        return cls._of(segments)

    def __add__(self, other: object) -> DPSGD:
        if not isinstance(other, DPSGD):
            return NotImplemented
        return DPSGD._of(self.segments + other.segments)

    def _only(self, field: str) -> Any:
        if len(self.segments) > 1:
            raise ValueError(f"{field} changes during this run of {len(self.segments)} segments; see its segments.")
        return getattr(self.segments[0], field)

    @property
    def noise_multiplier(self) -> Any:
        return self._only("noise_multiplier")

    @property
    def sample_rate(self) -> Any:
        return self._only("sample_rate")

    @property
    def sampling(self) -> str:
        chosen: str = self._only("sampling")
        return chosen

    @property
    def steps(self) -> Any:
        """Steps of all segments together."""
        return sum(segment.steps for segment in self.segments)

    def shortened(self, steps: int) -> DPSGD:
        """The first steps, this many, of a run of one segment."""
        segment = replace(self.segments[0], steps=min(steps, self._only("steps")))
        check_segment(segment)
        return DPSGD._of((segment,))

    def scalars(self) -> Iterator[DPSGD]:
        """The runs of a sweep one by one, in the order of its shape."""
        if self.shape == ():
            yield self
            return
        fields = [
            [np.broadcast_to(np.asarray(number), self.shape).ravel() for number in segment.numbers] for segment in self.segments
        ]
        for i in range(int(np.prod(self.shape, dtype=np.int64))):
            numbers = [(float(noise[i]), float(rate[i]), int(steps[i])) for noise, rate, steps in fields]
            yield DPSGD._of(
                tuple(
                    replace(segment, noise_multiplier=noise, sample_rate=rate, steps=steps)
                    for segment, (noise, rate, steps) in zip(self.segments, numbers, strict=True)
                )
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return DPSGD._of, (self.segments,)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a DPSGD run is frozen; make a new one instead of setting {name}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DPSGD):
            return NotImplemented
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        def show(segment: Segment) -> str:
            noise, rate, steps = (repr(f.tolist()) if isinstance(f, np.ndarray) else repr(f) for f in segment.numbers)
            said: dict[str, Any] = {"sampling": segment.sampling} if segment.sampling != "poisson" else {}
            others = ("max_batch_size", "dataset_size", "mixture")
            said |= {name: getattr(segment, name) for name in others if getattr(segment, name) is not None}
            said |= {"times_per_epoch": segment.times_per_epoch} if segment.times_per_epoch > 1 else {}
            more = "".join(f", {name}={value!r}" for name, value in said.items())
            return f"DPSGD(noise_multiplier={noise}, sample_rate={rate}, steps={steps}{more})"

        return " + ".join(show(segment) for segment in self.segments)


def _rate_of_sizes(
    batch_size: Any, dataset_size: Any, opacus: bool | None, sampling: str, times: int
) -> tuple[Any, Any, str | None]:
    """The sampling rate, the number of batches of an epoch, and a notice if Opacus would take another rate."""
    batch = np.asarray(validation.whole("batch_size", batch_size))
    size = np.asarray(validation.whole("dataset_size", dataset_size))
    if (batch > size).any():
        sizes = {"batch": repr(batch_size), "records": repr(dataset_size)}
        raise validation.WrongValueError(
            "batch_size", "{argument} must be at most {dataset_size}, got {batch} > {records}.", sizes
        )
    validation.choice("sampling", sampling, SAMPLINGS)
    times = validation.one_whole("times_per_epoch", times)
    batches = -(-times * size // batch)
    if sampling != "poisson" and opacus is not None:
        text = "{argument} must be left out with sampling {word}: it is about the rate of Poisson sampling."
        raise validation.WrongValueError("opacus", text, {"word": repr(sampling)})
    if opacus or sampling in IN_EPOCHS:
        return times / batches, batches, None
    return batch / size, batches, opacus_differs(batch, size) if opacus is None and sampling == "poisson" else None


def _steps_of_epochs(epochs: Any, batches: Any, sampling: str) -> Any:
    """The steps of this many epochs; a fraction of an epoch is rounded up to whole steps."""
    length = np.asarray(validation.positive("epochs", epochs))
    if sampling in IN_EPOCHS:
        whole_epochs(length, sampling)
    return validation.whole("steps (epochs times batches)", np.ceil(length * batches - 1e-9))


# Events of dp_accounting become runs. Needs the extra `interop`.

#: What the probabilities of a mixture may differ from 1 by, in all.
ROUNDING = 1e-9


def segments_of(event: Any, rate: float = 1.0, count: int = 1) -> Iterator[Segment]:
    """Segments of an event: Gaussians, sampled in several ways, mixtures of them, and their (self-)compositions."""
    from dp_accounting import dp_event as dp

    composed = isinstance(event, dp.ComposedDpEvent) and len(event.events) > 1
    repeated = isinstance(event, dp.SelfComposedDpEvent) and event.count > 1
    if rate != 1.0 and (composed or repeated):
        raise ValueError(f"event must sample anew for each mechanism, got one sample for several: {event!r}.")
    if isinstance(event, dp.ComposedDpEvent):
        for part in event.events:
            yield from segments_of(part, rate, count)
    elif isinstance(event, dp.SelfComposedDpEvent):
        yield from segments_of(event.event, rate, count * validation.whole("count", event.count))
    elif isinstance(event, dp.PoissonSampledDpEvent):
        inner = validation.fraction("sampling_probability", event.sampling_probability)
        yield from segments_of(event.event, rate * inner, count)
    elif isinstance(event, dp.GaussianDpEvent):
        yield Segment(validation.positive("noise_multiplier", event.noise_multiplier), rate, count)
    elif isinstance(event, dp.MixtureOfGaussiansDpEvent):
        yield _mixture(event, rate, count)
    elif isinstance(event, dp.SampledWithoutReplacementDpEvent):
        yield from _without_replacement(event, rate, count)
    elif isinstance(event, dp.TruncatedSubsampledGaussianDpEvent):
        _only_once(event, rate)
        size = validation.whole("dataset_size", event.dataset_size)
        most = validation.whole("truncated_batch_size", event.truncated_batch_size)
        chance = validation.fraction("sampling_probability", event.sampling_probability)
        noise = validation.positive("noise_multiplier", event.noise_multiplier)
        yield Segment(noise, chance, count, max_batch_size=most, dataset_size=size)
    elif not isinstance(event, dp.NoOpDpEvent):
        raise ValueError(
            "event must be made of Gaussians, sampled by Poisson sampling (truncated or not) or without replacement, of mixtures "
            f"of Gaussians, and of their compositions, got {type(event).__name__}: its privacy is not that of DP-SGD."
        )


def _only_once(event: Any, rate: float) -> None:
    if rate != 1.0:
        raise ValueError(f"event must not sample from a sample, got another sampling around {event!r}.")


def _without_replacement(event: Any, rate: float, count: int) -> Iterator[Segment]:
    """A fixed number of records, drawn anew each time."""
    _only_once(event, rate)
    size = validation.whole("source_dataset_size", event.source_dataset_size)
    drawn = validation.whole("sample_size", event.sample_size)
    if drawn > size:
        raise ValueError(f"sample_size must be at most source_dataset_size = {size}, got {drawn}.")
    inside = list(segments_of(event.event))
    if len(inside) != 1 or inside[0].steps != 1 or inside[0] != Segment(inside[0].noise_multiplier, 1.0, 1):
        raise ValueError(f"event must sample anew for each mechanism, and only once, for a Gaussian, got {event!r}.")
    yield Segment(inside[0].noise_multiplier, drawn / size, count, "fixed-size", dataset_size=size)


def _mixture(event: Any, rate: float, count: int) -> Segment:
    """A Gaussian of random sensitivity; if it is sampled, the sensitivity is 0 otherwise."""
    noise = validation.positive("standard_deviation", event.standard_deviation)
    shifts = np.atleast_1d(validation.numbers("sensitivities", event.sensitivities, "at least 0", low=0.0, high=np.inf))
    chances = np.atleast_1d(validation.probability("sampling_probs", event.sampling_probs))
    if shifts.shape != chances.shape or abs(chances.sum() - 1.0) > ROUNDING:
        raise ValueError(
            f"sampling_probs must add up to 1, one for each of the sensitivities, got {event.sampling_probs!r} for "
            f"{event.sensitivities!r}."
        )
    law = {0.0: 1.0 - rate} if rate < 1.0 else {}
    for shift, chance in zip(shifts.tolist(), chances.tolist(), strict=True):
        law[shift] = law.get(shift, 0.0) + rate * chance
    pairs = tuple((shift, law[shift]) for shift in sorted(law) if law[shift] > 0.0)
    sampled = min(1.0, sum(chance for shift, chance in pairs if shift > 0.0))
    return Segment(noise, sampled or 1.0, count, "mixture", mixture=pairs)
