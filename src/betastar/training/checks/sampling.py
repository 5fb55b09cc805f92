"""Compares the batches that a training loop uses with the sampling that the steps are charged with.

A sampler promises how its batches look. N is the number of records, p_t the rate at step t.
- Poisson: the size of a batch, and the sum of all sizes, are sums of independent coins, with means N·p_t and N·Σ p_t; a size
  equals the one before with at most the largest probability of a binomial law, 1/√(2e·N·p(1-p)) (Herzog 1947).
- Poisson, cut off at B: no batch is larger. Below B its size has the lower tail of the binomial law, and repeats as rarely. The
  sum of all sizes has its upper tail. A size of B is a coin with probability Pr[Bin(N, p) ≥ B].
- Fixed size: all batches have it.
- All of these: the number of times that one record was sampled is a sum of independent coins with means of at most p_t. Given its
  size, a batch is a uniform subset, whatever the batch before was (`batch_overlap.py`).
- Balls in bins, and shuffling: `epochs.py`.
By Chernoff, a sum of independent coins with mean μ is at least k > μ (at most k < μ) with probability ≤ exp(k - μ - k·ln(k/μ)).
A loop with the right sampling is refused with a probability of at most ERROR over the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import e, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc
from torch import Tensor

from betastar.drawn_steps import DrawnBatch, SamplingScheme
from betastar.training.checks.batch_overlap import BatchOverlap
from betastar.training.checks.epochs import EpochCheck
from betastar.training.checks.sampling_error import ERROR, SamplingError, log_tail, times_in


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
        self._full, self._expected_full = 0, 0.0  # batches of the largest size, where batches are cut off
        self._times: dict[int, int] = {}  # how often each record, by its fingerprint, was sampled
        self._overlap, self._epochs = BatchOverlap(records), EpochCheck(records)

    def step(self, size: int, drawn: DrawnBatch) -> None:
        """Refuse a step with a batch of a size that this sampling hardly ever gives."""
        self.steps += 1
        scheme = drawn.scheme
        likely = log(self._share() / 4.0)
        if scheme.in_epochs:
            self._epochs.step(size, drawn, likely)
            return
        if scheme.sampling == "fixed-size":
            self._require_size(size, scheme)
            self._rates += scheme.sample_rate
            return
        self._count(size, scheme)
        if scheme.max_batch_size is not None:
            self._require_cut(size, scheme, likely)
        else:
            self._require_likely(size, scheme.sample_rate, likely)
        if self._repeats > self._expected_repeats and log_tail(self._repeats, self._expected_repeats) < likely:
            raise SamplingError(
                f"{self._repeats} of {self.steps - 1} batches have exactly as many records as the one before, which Poisson "
                "sampling with independent coins does not give: the loop iterates over a loader with batches of a fixed size."
            )

    def _count(self, size: int, scheme: SamplingScheme) -> None:
        """Count a batch of Poisson sampling. Sizes at which batches are cut off repeat often, and are counted by themselves."""
        rate, most = scheme.sample_rate, scheme.max_batch_size
        self._rates += rate
        self._sizes += size
        if self._last is not None:
            self._repeats += size == self._last and size != most
            self._expected_repeats += min(1.0, 1.0 / sqrt(2.0 * e * max(self.records * rate * (1.0 - rate), 1e-9)))
        self._last = size
        if most is not None:
            self._full += size == most
            self._expected_full += float(betainc(most, self.records - most + 1, rate)) if most <= self.records else 0.0

    @staticmethod
    def _require_size(size: int, scheme: SamplingScheme) -> None:
        if size != scheme.batch_size:
            raise SamplingError(
                f"the batch has {size} records, but the sampler gives {scheme.batch_size} each time: the loop does not iterate "
                "over the loader that was passed. Use the loader that make_private returned."
            )

    def _require_cut(self, size: int, scheme: SamplingScheme, likely: float) -> None:
        """Refuse sizes that Poisson sampling hardly ever gives if batches are cut off."""
        most, rate = scheme.max_batch_size, scheme.sample_rate
        assert most is not None
        mean, total = self.records * rate, self.records * self._rates
        if size > most:
            raise SamplingError(
                f"the batch has {size} records, but batches are cut off at {most}: use the loader that was passed."
            )
        if size < min(most, mean) and log_tail(size, mean) < likely:
            raise self._unlikely(f"the batch has {size} records", rate, mean)
        if self._sizes > total and log_tail(self._sizes, total) < likely:
            raise self._unlikely(f"the {self.steps} batches so far have {self._sizes} records", rate, total)
        if self._full > self._expected_full and log_tail(self._full, self._expected_full) < likely:
            raise SamplingError(
                f"{self._full} of {self.steps} batches have the largest size {most}, but only {self._expected_full:.4g} are cut "
                "off on average: the loop iterates over a loader with batches of a fixed size."
            )

    def _require_likely(self, size: int, rate: float, likely: float) -> None:
        """Refuse sizes that Poisson sampling hardly ever gives."""
        for count, mean, what in (
            (size, self.records * rate, f"the batch has {size} records"),
            (self._sizes, self.records * self._rates, f"the {self.steps} batches so far have {self._sizes} records"),
        ):
            if log_tail(count, mean) < likely:
                raise self._unlikely(what, rate, mean)

    def _unlikely(self, what: str, rate: float, mean: float) -> SamplingError:
        return SamplingError(
            f"{what}, but {self.records} records sampled with rate {rate:.6g} give {mean:.6g} on average: the loop does "
            "not iterate over the loader that was passed, or its rate was changed. Use the loader that make_private "
            "returned."
        )

    def sampled(self, fingerprints: ArrayLike | Tensor, drawn: DrawnBatch, known: Callable[[], ArrayLike | Tensor]) -> None:
        """Refuse a step whose records this sampling hardly ever gives.

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
        if drawn.scheme.sample_rate >= 1.0:
            return
        likely = log(self._share() / (2.0 * self.records))
        if drawn.scheme.in_epochs:
            self._epochs.sampled(keys, counts, drawn, likely, known)
            return
        self._overlap.step(keys, counts)
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
        return {name: _saved(value) for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        for name, value in vars(self).items():
            if isinstance(value, BatchOverlap | EpochCheck):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])


def _saved(value: Any) -> Any:
    if isinstance(value, BatchOverlap | EpochCheck):
        return value.state_dict()
    return value.copy() if isinstance(value, dict) else value
