"""Compares the batches that a training loop uses with the sampling that the steps are charged with.

Batches should be drawn from N records, each independently with probability p_t at step t. Then, for any number of steps,
- the size of a batch, and the sum of all sizes, are sums of independent coins, with means N·p_t and N·Σ p_t;
- a size equals the one before with at most the largest probability of a binomial law, 1/√(2e·N·p(1-p)) (Herzog 1947);
- the number of times that one record was sampled is such a sum, too, with mean Σ p_t.
By Chernoff, a sum of independent coins with mean μ is at least k > μ (at most k < μ) with probability ≤ exp(k - μ - k·ln(k/μ)).
A loop with the right sampling is refused with a probability of at most ERROR over the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import e, exp, inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

#: The largest probability that a run with the right sampling is refused, over all of its steps.
ERROR = 1e-6


class SamplingError(RuntimeError):
    """The batches of the loop are not sampled with the rate that the steps are charged with."""


def log_tail(count: float, mean: float) -> float:
    """The logarithm of Chernoff's bound for a sum of independent coins that is as far from its mean as `count`."""
    if count == mean:
        return 0.0
    if mean <= 0.0:
        return -inf
    return count - mean - (count * log(count / mean) if count else 0.0)


class SamplingCheck:
    """Checks one step after the other, for a data set of so many records.

    Step t may refuse a right training with probability ERROR/(2·t·(t+1)) for its size, and with the same for its records.
    """

    def __init__(self, records: int) -> None:
        self.records = records
        self.steps = 0
        self._rates = 0.0  # Σ p_t
        self._sizes = 0  # the sum of all sizes
        self._last: int | None = None
        self._repeats, self._expected_repeats = 0, 0.0
        self._times: dict[int, int] = {}  # how often each record, by its fingerprint, was sampled

    def step(self, size: int, rate: float) -> None:
        """Refuse a step with a batch of a size that this rate hardly ever gives."""
        self.steps += 1
        self._rates += rate
        self._sizes += size
        if self._last is not None:
            self._repeats += size == self._last
            self._expected_repeats += min(1.0, 1.0 / sqrt(2.0 * e * max(self.records * rate * (1.0 - rate), 1e-9)))
        self._last = size
        likely = log(self._share() / 4.0)
        for count, mean, what in (
            (size, self.records * rate, f"the batch has {size} records"),
            (self._sizes, self.records * self._rates, f"the {self.steps} batches so far have {self._sizes} records"),
        ):
            if log_tail(count, mean) < likely:
                raise SamplingError(
                    f"{what}, but {self.records} records sampled with rate {rate:.6g} give {mean:.6g} on average: the loop does "
                    "not iterate over the loader that was passed, or its rate was changed. Use the loader that make_private "
                    "returned."
                )
        if self._repeats > self._expected_repeats and log_tail(self._repeats, self._expected_repeats) < likely:
            raise SamplingError(
                f"{self._repeats} of {self.steps - 1} batches have exactly as many records as the one before, which Poisson "
                "sampling with independent coins does not give: the loop iterates over a loader with batches of a fixed size."
            )

    def sampled(self, fingerprints: ArrayLike | Tensor, rate: float, known: Callable[[], ArrayLike | Tensor]) -> None:
        """Refuse a step whose records this rate hardly ever gives.

        `known` returns the fingerprints of the whole data set. It is called only if a record occurs suspiciously often.
        """
        keys, counts = np.unique(np.asarray(fingerprints), return_counts=True)
        doubt = [(int(k), int(n)) for k, n in zip(keys, counts, strict=True) if n > 1]
        if doubt:
            alike = times_in(known(), [key for key, _ in doubt])
            repeated = max(n - max(1, alike[key]) for key, n in doubt)
            if repeated > 0:
                raise SamplingError(
                    "a record occurs more than once in a batch, and would be charged once: sample without replacement, and do "
                    "not repeat records in the loop."
                )
        if rate >= 1.0:
            return
        likely = log(self._share() / (2.0 * self.records))
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            times = self._times[key] = self._times.get(key, 0) + count
            if times > self._rates and log_tail(times, self._rates) < likely:
                mean = self._rates * max(1, times_in(known(), [key])[key])
                if times > mean and log_tail(times, mean) < likely:
                    raise SamplingError(
                        f"one record was sampled {times} times in {self.steps} steps, but its rate gives {mean:.4g} on average: "
                        "the records are not sampled alike. Use the loader that make_private returned."
                    )

    def _share(self) -> float:
        """The part of ERROR that this step may spend on its size, or on its records."""
        return ERROR / (2.0 * self.steps * (self.steps + 1))

    def state_dict(self) -> dict[str, Any]:
        """What was counted, to be saved."""
        return {name: value.copy() if isinstance(value, dict) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        for name in vars(self):
            setattr(self, name, state[name])


def times_in(fingerprints: ArrayLike | Tensor, keys: list[int]) -> dict[int, int]:
    """How often each key occurs."""
    every = np.asarray(fingerprints)
    return {key: int((every == key).sum()) for key in keys}


def largest_batch(records: int, rate: float) -> float:
    """A size that a batch exceeds with a probability far below ERROR."""
    mean = records * rate
    spread = 10.0 * sqrt(mean) + 40.0
    assert exp(log_tail(mean + spread, mean)) < 1e-9
    return min(float(records), mean + spread)
