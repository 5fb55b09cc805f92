"""How a loader draws its batches, and the run that steps with such batches add up to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.dpsgd import DPSGD, IN_EPOCHS, Segment


@dataclass(frozen=True)
class SamplingScheme:
    """How a loader draws its batches.

    Attributes
    ----------
    sampling : "poisson", "fixed-size", "balls-in-bins" or "shuffled"
        As in `betastar.DPSGD`.
    sample_rate : float
        The probability of each record at each step.
    batches : int or None
        The number of batches of an epoch; None if that is not known and does not matter.
    records : int or None
        The number of records; None if that is not known and does not matter.
    batch_size : int or None
        A size that no batch exceeds; None if sizes vary.
    max_batch_size : int or None
        With "poisson": larger batches are cut down to this many records, at random.
    times_per_epoch : int
        With "balls-in-bins": in how many batches of an epoch each record is.
    """

    sampling: str
    sample_rate: float
    batches: int | None = None
    records: int | None = None
    batch_size: int | None = None
    max_batch_size: int | None = None
    times_per_epoch: int = 1

    @property
    def in_epochs(self) -> bool:
        """Whether each record takes part equally often in every epoch, so that whole epochs are analysed."""
        return self.sampling in IN_EPOCHS

    @property
    def plain(self) -> bool:
        """Whether this is Poisson sampling whose batches are not cut off."""
        return self.sampling == "poisson" and self.max_batch_size is None

    def largest_batch(self, records: int) -> float:
        """A size that a batch of a data set of this many records exceeds with a probability below 1e-9."""
        if self.batch_size is not None:
            return float(self.batch_size)
        mean = records * self.sample_rate
        most = min(float(records), mean + 10.0 * sqrt(mean) + 40.0)
        return most if self.max_batch_size is None else min(most, float(self.max_batch_size))

    def run(self, noise_multiplier: float, steps: int) -> DPSGD:
        """This many steps with this noise. An unfinished epoch counts as a whole one, of which the attacker sees more."""
        if self.in_epochs:
            assert self.batches is not None
            steps = self.batches * -(-steps // self.batches)
        return DPSGD(
            noise_multiplier,
            min(self.sample_rate, 1.0),  # of several batches that Opacus accumulated it may be above
            steps,
            self.sampling,
            max_batch_size=self.max_batch_size,
            dataset_size=None if self.plain else self.records,
            times_per_epoch=self.times_per_epoch,
        )

    def one_step(self, noise_multiplier: float) -> Segment:
        """One step with this noise, without a check of whether a single step can be analysed."""
        size = None if self.plain else self.records
        return Segment(
            noise_multiplier, self.sample_rate, 1, self.sampling, self.max_batch_size, size, times_per_epoch=self.times_per_epoch
        )

    def told(self) -> dict[str, Any]:
        """What a log says of the sampling, besides the rate; nothing for plain Poisson sampling."""
        if self.plain:
            return {}
        cut = {} if self.max_batch_size is None else {"max_batch_size": self.max_batch_size}
        often = {} if self.times_per_epoch == 1 else {"times_per_epoch": self.times_per_epoch}
        return {"sampling": self.sampling, **cut, **often, "dataset_size": self.records}


@dataclass(frozen=True)
class DrawnBatch:
    """How one batch was drawn.

    Attributes
    ----------
    scheme : SamplingScheme
        How the loader drew it.
    epoch : str
        A text that differs for each epoch that a sampler has begun; empty where epochs do not matter.
    """

    scheme: SamplingScheme
    epoch: str = ""


def poisson(sample_rate: float) -> DrawnBatch:
    """A batch of plain Poisson sampling."""
    return DrawnBatch(SamplingScheme("poisson", sample_rate))


class DrawnSteps:
    """Counts steps, each with its noise and with how its batch was drawn."""

    def __init__(self) -> None:
        self._groups: list[tuple[float, DrawnBatch, int]] = []  # steps in a row that are alike, and their number

    def __len__(self) -> int:
        return sum(count for _, _, count in self._groups)

    def add(self, noise: float, drawn: DrawnBatch, steps: int = 1) -> None:
        """Add a step, or several that are alike."""
        if drawn.epoch and not drawn.scheme.in_epochs:
            drawn = DrawnBatch(drawn.scheme)
        if self._groups and self._groups[-1][:2] == (noise, drawn):
            self._groups[-1] = (noise, drawn, self._groups[-1][2] + steps)
        else:
            self._groups.append((noise, drawn, steps))

    @property
    def plain(self) -> bool:
        """Whether all steps had Poisson sampling whose batches are not cut off."""
        return all(drawn.scheme.plain for _, drawn, _ in self._groups)

    def triples(self) -> list[tuple[float, float, int]]:
        """(noise, rate, steps) of steps in a row that have these two in common."""
        parts: list[tuple[float, float, int]] = []
        for noise, drawn, count in self._groups:
            rate = drawn.scheme.sample_rate
            before = parts.pop()[2] if parts and parts[-1][:2] == (noise, rate) else 0
            parts.append((noise, rate, before + count))
        return parts

    @property
    def epochs(self) -> int:
        """The number of epochs of which a step was taken, of samplings in epochs."""
        return len(self.whole_epochs())

    def each(self) -> Iterator[tuple[float, SamplingScheme, int]]:
        """Noise and scheme of each step, and the number of epochs that had begun then, of samplings in epochs."""
        epochs, last = 0, None
        for noise, drawn, count in self._groups:
            epochs += drawn.scheme.in_epochs and drawn != last
            last = drawn
            yield from [(noise, drawn.scheme, epochs)] * count

    def whole_epochs(self) -> list[tuple[float, SamplingScheme, int]]:
        """(noise, scheme, steps) of each epoch of which a step was taken, in their order; the noise is the least of the epoch."""
        epochs: list[tuple[float, SamplingScheme, int]] = []
        last: DrawnBatch | None = None
        for noise, drawn, count in self._groups:
            if drawn.scheme.in_epochs and drawn == last:  # the noise has changed within an epoch
                epochs[-1] = (min(noise, epochs[-1][0]), drawn.scheme, epochs[-1][2] + count)
            elif drawn.scheme.in_epochs:
                epochs.append((noise, drawn.scheme, count))
            last = drawn
        return epochs

    @property
    def run(self) -> DPSGD:
        """What was run. Raises `ValueError` if no step was taken."""
        return self._parts()[0]

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """A value for each step of the run, from a value for each step that was taken.

        Steps that an unfinished epoch lacks have the value 0.
        """
        run, places = self._parts()
        every = np.zeros(int(run.steps))
        every[places] = values
        return every

    def _parts(self) -> tuple[DPSGD, NDArray[Any]]:
        """The run, and the number of each step that was taken among the steps of the run."""
        if not self._groups:
            raise ValueError("no step was taken yet: there is nothing to analyse.")
        parts: list[tuple[float, SamplingScheme, int]] = []  # noise, scheme, steps of the run
        places: list[NDArray[Any]] = []
        start, whole = 0, iter(self.whole_epochs())
        last: DrawnBatch | None = None
        for noise, drawn, count in self._groups:
            scheme, steps = drawn.scheme, count
            if scheme.in_epochs and drawn == last:
                places.append(places[-1][-1] + 1 + np.arange(count))
                continue
            if scheme.in_epochs:
                noise, _, taken = next(whole)
                steps = int(scheme.run(noise, taken).steps)
            places.append(np.arange(start, start + count))
            _append(parts, noise, scheme, steps)
            start, last = start + steps, drawn
        runs = [scheme.run(noise, steps) for noise, scheme, steps in parts]
        return sum(runs[1:], start=runs[0]), np.concatenate(places)

    def state_dict(self) -> list[dict[str, Any]]:
        """All steps, to be saved."""
        return [
            {"noise": noise, "scheme": asdict(drawn.scheme), "epoch": drawn.epoch, "count": count}
            for noise, drawn, count in self._groups
        ]

    def load_state_dict(self, state: list[Mapping[str, Any]]) -> None:
        """Go on from what was saved."""
        self._groups = [(one["noise"], DrawnBatch(SamplingScheme(**one["scheme"]), one["epoch"]), one["count"]) for one in state]


def _append(parts: list[tuple[float, SamplingScheme, int]], noise: float, scheme: SamplingScheme, steps: int) -> None:
    """Add steps to a list of parts, to its last part if that is alike."""
    if parts and parts[-1][:2] == (noise, scheme):
        parts[-1] = (noise, scheme, parts[-1][2] + steps)
    else:
        parts.append((noise, scheme, steps))
