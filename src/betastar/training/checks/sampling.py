"""Compares the batches that a training loop uses with the sampling that the steps are charged with.

A sampler promises how its batches look. N is the number of records, p_t the rate at step t.
- Poisson: the size of a batch, and the sum of all sizes, are sums of independent coins, with means N·p_t and N·Σ p_t; a size
  equals the one before with at most the largest probability of a binomial law, 1/√(2e·N·p(1-p)) (Herzog 1947).
- Poisson, cut off at B: no batch is larger. Below B its size has the lower tail of the binomial law, and repeats as rarely. The
  sum of all sizes has its upper tail. A size of B is a coin with probability Pr[Bin(N, p) ≥ B].
- Fixed size: all batches have it.
- All of these: the number of times that one record was sampled is a sum of independent coins with means of at most p_t. Given its
  size, a batch is a uniform subset, whatever the batch before was (`BatchOverlap`).
- Balls in bins, and shuffling: `EpochCheck`.
By Chernoff, a sum of independent coins with mean μ is at least k > μ (at most k < μ) with probability ≤ exp(k - μ - k·ln(k/μ)).
A loop with the right sampling is refused with a probability of at most ERROR over the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from math import e, inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc
from torch import Tensor

from betastar.drawn_steps import DrawnBatch, SamplingScheme

# ---- Errors: how rarely a right training may be refused, and Chernoff's bound.

#: The largest probability that a run with the right sampling is refused, over all of its steps.
ERROR = 1e-6
#: The part of it that a test of all steps together may spend. The tests of single steps spend at most 7/8.
PART = 1.0 / 8.0


class SamplingError(RuntimeError):
    """The batches of the loop are not sampled as the steps are charged."""


def log_tail(count: float, mean: float) -> float:
    """The logarithm of Chernoff's bound for a sum of independent coins that is as far from its mean as `count`."""
    if count == mean:
        return 0.0
    if mean <= 0.0:
        return -inf
    return count - mean - (count * log(count / mean) if count else 0.0)


def times_in(fingerprints: ArrayLike | Tensor, keys: list[int]) -> dict[int, int]:
    """How often each key occurs."""
    every = np.asarray(fingerprints)
    return {key: int((every == key).sum()) for key in keys}


# ---- Overlap: a batch that is drawn anew has its share of the records of the batch before.
#
# Given the sizes n and m of two batches in a row, which are uniform subsets of N records, H of their records are the same, with a
# hypergeometric law of mean nm/N. Its moment-generating function is at most that of a binomial law (Hoeffding 1963), so
# E[2^{-H}] ≤ exp(-nm/(2N)), and exp(M/2 - ln 2·ΣH) with M = Σ nm/N is a supermartingale. By Ville's inequality it ever
# reaches 1/α with probability at most α. Loaders that take each record once an epoch have no records in common, and reach it.


class BatchOverlap:
    """Compares each batch with the one before, for a data set of so many records."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._last: NDArray[Any] = np.zeros(0, dtype=np.int64)
        self._same, self._expected = 0, 0.0

    def step(self, keys: NDArray[Any], counts: NDArray[Any]) -> None:
        """Refuse a batch, by its fingerprints and how often each occurs, if batches have too few records in common.

        Records that are alike count as the same, which makes more of them common, never fewer.
        """
        size = int(counts.sum())
        self._same += int(counts[np.isin(keys, self._last)].sum())
        self._expected += len(self._last) * size / self.records
        self._last = np.repeat(keys, counts)
        if 0.5 * self._expected - log(2.0) * self._same > -log(ERROR * PART):
            raise SamplingError(
                f"batches in a row have {self._same} records in common, but {self._expected:.4g} on average if each is drawn "
                "anew: the loop iterates over a loader that takes each record once an epoch. Use the loader that was passed."
            )

    def state_dict(self) -> dict[str, Any]:
        """What was counted, to be saved."""
        return vars(self).copy()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        vars(self).update(state)


# ---- Epochs: samplers that take each record once an epoch, which are balls in bins and shuffling.
#
# N records, t batches an epoch. No epoch has more batches, none of its records comes twice, and a whole epoch has all records
# (with shuffling, all that fill its batches).
# - Balls in bins: of the n records that are left before the last k batches, the next batch takes Bin(n, 1/k). Its size equals the
#   one before with at most the largest probability of that law, q = 1/√(2e·n(1/k)(1 - 1/k)). So 2^{repeats}·exp(-Σq) is a
#   supermartingale, and ever reaches 1/α with probability at most α (Ville). Two batches at the same place of two
#   epochs in a row that hold u different records have the same ones with probability at most t^{-u}.
# - Shuffling: what is proved needs no more than that no record comes twice in an epoch.


class EpochCheck:
    """Checks one step after the other, for a data set of so many records."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._epoch: str | None = None
        self._batches, self._used = 0, 0  # of this epoch: the number of batches, and of their records
        self._last: int | None = None
        self._repeats, self._expected_repeats = 0, 0.0
        self._times: dict[int, int] = {}  # of this epoch: how often each record, by its fingerprint, was used
        self._digests: list[str] = []  # of each batch of this epoch
        self._before: list[str] = []  # of each batch of the epoch before

    def step(self, size: int, drawn: DrawnBatch, likely: float) -> None:
        """Refuse a step with a batch of a size that this sampling never, or hardly ever, gives.

        `likely` is the logarithm of a probability. What is less likely is refused.
        """
        self._begin(drawn)
        batches = drawn.scheme.batches
        assert batches is not None
        left, places = self.records - self._used, batches - self._batches
        if places < 1:
            raise SamplingError(f"an epoch has {self._batches + 1} steps, but only {batches} batches: a batch was used twice.")
        if drawn.scheme.sampling == "balls-in-bins":
            self._in_bins(size, left, places, likely)
        self._batches, self._used, self._last = self._batches + 1, self._used + size, size
        if self._used > self.records:
            raise SamplingError(
                f"an epoch has used {self._used} records so far, of {self.records}: a record took part more than once."
            )

    def _in_bins(self, size: int, left: int, places: int, likely: float) -> None:
        rate, mean = 1.0 / places, left / places
        if (places == 1 and size != left) or log_tail(size, mean) < likely:
            raise SamplingError(
                f"the batch has {size} records, but {left} records in {places} bins give {mean:.6g} on average: the loop does "
                "not iterate over the loader that was passed. Use the loader that make_private returned."
            )
        if self._last is not None:
            self._repeats += size == self._last
            self._expected_repeats += min(1.0, 1.0 / sqrt(2.0 * e * max(left * rate * (1.0 - rate), 1e-9)))
        if log(2.0) * self._repeats - self._expected_repeats > -log(ERROR * PART):
            raise SamplingError(
                f"{self._repeats} batches have exactly as many records as the one before, which balls in bins do not give: the "
                "loop iterates over a loader with batches of a fixed size."
            )

    def sampled(
        self, keys: NDArray[Any], counts: NDArray[Any], drawn: DrawnBatch, likely: float, known: Callable[[], ArrayLike | Tensor]
    ) -> None:
        """Refuse a step whose records, by their fingerprints, this sampling never, or hardly ever, gives."""
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            times = self._times[key] = self._times.get(key, 0) + count
            if times > 1 and times > times_in(known(), [key])[key]:
                raise SamplingError(
                    "a record took part twice in an epoch, and is charged once: do not repeat batches, and let the loader begin "
                    "each epoch."
                )
        self._digests.append(sha256(np.repeat(keys, counts).tobytes()).hexdigest())
        place, batches = len(self._digests) - 1, drawn.scheme.batches
        assert batches is not None
        if drawn.scheme.sampling != "balls-in-bins" or len(keys) == 0 or batches == 1:
            return
        if place < len(self._before) and self._before[place] == self._digests[place]:
            alike = times_in(known(), keys.tolist())
            single = sum(alike[key] == 1 for key in keys.tolist())
            if -single * log(batches) < likely:
                raise SamplingError(
                    f"a batch has the same {single} records as in the epoch before, which balls in bins do not give that are "
                    "drawn anew: do not seed the sampler's generator again."
                )

    def _begin(self, drawn: DrawnBatch) -> None:
        """Begin another epoch, if the batch belongs to another one than the last."""
        if drawn.epoch == self._epoch:
            return
        self._epoch, self._batches, self._used = drawn.epoch, 0, 0
        self._times, self._before, self._digests = {}, self._digests, []

    def state_dict(self) -> dict[str, Any]:
        """What was counted, to be saved."""
        return {name: value.copy() if isinstance(value, dict | list) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        vars(self).update({name: value.copy() if isinstance(value, dict | list) else value for name, value in state.items()})


# ---- Sampling of single steps


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
