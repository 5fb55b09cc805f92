"""Which records take part in each step of a `PrivateTraining`: Poisson sampling, capped or not, fixed size, balls in bins."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log1p
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betastar import validation
from betastar.drawn_steps import DrawnBatch, SamplingScheme
from betastar.training import noise

#: How batches can be drawn.
SAMPLINGS = ("poisson", "fixed-size", "balls-in-bins")


def poisson(random: np.random.Generator, records: int, rate: float) -> NDArray[np.int64]:
    """Each record with this probability, independently. The gaps between drawn records are geometric, so only these are drawn."""
    if rate >= 1.0:
        return np.arange(records)
    expected = records * rate
    places: list[NDArray[np.int64]] = []
    last = -1
    while last < records:
        uniform = 1.0 - random.random(int(expected + 6.0 * expected**0.5 + 16.0))  # in (0, 1]
        gaps = np.minimum(np.floor(np.log(uniform) / log1p(-rate)), float(records)) + 1.0
        places.append(last + np.cumsum(gaps.astype(np.int64)))
        last = int(places[-1][-1])
    drawn = np.concatenate(places)
    return drawn[: np.searchsorted(drawn, records)]


class Draws:
    """Draws batches from its own entropy.

    Parameters
    ----------
    records : int
        The number of records.
    batch_size : int
        The mean size of a batch.
    sampling : "poisson", "fixed-size" or "balls-in-bins"
        As in `betastar.DPSGD`.
    max_batch_size : int, optional
        With "poisson": larger batches are cut down to this many records, at random.
    entropy : int
        What the batches are a function of, besides the number of the step.
    times_per_epoch : int
        With "balls-in-bins": in how many batches of an epoch each record is.
    rates : array, optional
        With "poisson": the probability of each record at each step, where these differ.
    """

    def __init__(
        self,
        records: int,
        batch_size: int,
        sampling: str,
        max_batch_size: int | None,
        entropy: int,
        times_per_epoch: int = 1,
        rates: NDArray[Any] | None = None,
    ) -> None:
        self.records, self.batch_size, self.entropy = records, batch_size, entropy
        if batch_size > records:
            raise validation.wrong("batch_size", f"must be at most the {records} records of the data set, got {batch_size}.")
        validation.choice("sampling", sampling, SAMPLINGS)
        if max_batch_size is not None:
            if sampling != "poisson":
                raise validation.wrong("max_batch_size", f"belongs to sampling 'poisson', got sampling {sampling!r}.")
            if validation.whole("max_batch_size", max_batch_size) < batch_size:
                raise validation.wrong("max_batch_size", f"must be at least batch_size, {batch_size}, got {max_batch_size}.")
        times = validation.one_whole("times_per_epoch", times_per_epoch)
        if times > 1 and sampling != "balls-in-bins":
            raise validation.wrong("times_per_epoch", f"belongs to sampling 'balls-in-bins', got sampling {sampling!r}.")
        #: The number of steps of an epoch.
        self.steps_per_epoch = ceil(times * records / batch_size)
        rate = times / self.steps_per_epoch if sampling == "balls-in-bins" else batch_size / records
        #: The probability of each record at each step, where these differ; and the records that have the same one.
        self.rates, self._alike = rates, []
        if rates is not None:
            rate = float(rates.max())
            self._alike = [(float(one), np.flatnonzero(rates == one)) for one in np.unique(rates)]
        #: How batches are drawn; the rate is the largest of any record.
        self.scheme = SamplingScheme(
            sampling,
            rate,
            self.steps_per_epoch,
            records,
            batch_size if sampling == "fixed-size" else None,
            max_batch_size,
            times,
        )
        self._bins: tuple[int, list[NDArray[np.int64]]] | None = None  # the number of an epoch, and its batches
        self._begun: tuple[int, int] | None = None  # the number of an epoch that a saved training had begun, and its entropy

    @property
    def divisor(self) -> float:
        """The public number that sums of gradients are divided by: the mean size of a batch."""
        return self.scheme.sample_rate * self.records if self.rates is None else float(self.batch_size)

    def drawn(self, step: int) -> DrawnBatch:
        """How the batch of a step is drawn."""
        return DrawnBatch(self.scheme, str(step // self.steps_per_epoch))

    def indices(self, step: int) -> Tensor:
        """The numbers of the records that take part in a step, in ascending order."""
        return torch.from_numpy(self._batch(step))

    def _batch(self, step: int) -> NDArray[np.int64]:
        scheme = self.scheme
        if scheme.sampling == "balls-in-bins":
            return self._bin(*divmod(step, self.steps_per_epoch))
        random = noise.generator(self.entropy, noise.SAMPLING, step)
        if scheme.sampling == "fixed-size":
            return np.sort(random.choice(self.records, self.batch_size, replace=False, shuffle=False))
        if self.rates is not None:
            return np.sort(np.concatenate([some[poisson(random, len(some), rate)] for rate, some in self._alike]))
        drawn = poisson(random, self.records, scheme.sample_rate)
        if scheme.max_batch_size is not None and len(drawn) > scheme.max_batch_size:
            return np.sort(random.choice(drawn, scheme.max_batch_size, replace=False, shuffle=False))
        return drawn

    def _bin(self, epoch: int, number: int) -> NDArray[np.int64]:
        """One of the batches of an epoch, in which each record has drawn one step, or several different ones."""
        if self._bins is None or self._bins[0] != epoch:
            random = noise.generator(self._entropy_of(epoch), noise.SAMPLING, epoch)
            steps, times = self.steps_per_epoch, self.scheme.times_per_epoch
            bins = np.empty((times, self.records), dtype=np.int64)
            for i, last in enumerate(range(steps - times, steps)):  # Floyd: a step up to `last`, or `last` if that is taken
                drawn = random.integers(last + 1, size=self.records)
                bins[i] = np.where((bins[:i] == drawn).any(axis=0), last, drawn)
            every = bins.T.ravel()
            sizes = np.bincount(every, minlength=steps)
            self._bins = epoch, np.split(np.argsort(every, kind="stable") // times, np.cumsum(sizes)[:-1])
        return self._bins[1][number]

    def _entropy_of(self, epoch: int) -> int:
        return self._begun[1] if self._begun is not None and self._begun[0] == epoch else self.entropy

    def state_dict(self, step: int) -> dict[str, Any]:
        """What a training needs to go on within an epoch, after this many steps. It tells who is drawn next: keep it secret."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return {"epoch": epoch, "entropy": f"{self._entropy_of(epoch):x}"} if self.scheme.in_epochs and within else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with an epoch that a saved training had begun. All other batches are drawn anew."""
        if state:
            self._begun, self._bins = (state["epoch"], int(state["entropy"], 16)), None
