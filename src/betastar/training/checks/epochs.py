"""Compares the batches of a loop with samplers that take each record once an epoch: balls in bins, and shuffling.

N records, t batches an epoch. No epoch has more batches, none of its records comes twice, and a whole epoch has all records (with
shuffling, all that fill its batches).
- Balls in bins: of the n records that are left before the last k batches, the next batch takes Bin(n, 1/k). Its size equals the
  one before with at most the largest probability of that law, q = 1/√(2e·n(1/k)(1 - 1/k)). So 2^{repeats}·exp(-Σq) is a
  supermartingale, and ever reaches 1/α with probability at most α (Ville). Two batches at the same place of two
  epochs in a row that hold u different records have the same ones with probability at most t^{-u}.
- Shuffling: what is proved needs no more than that no record comes twice in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from math import e, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from betastar.arrays import Whole
from betastar.drawn_steps import DrawnBatch
from betastar.training.checks.sampling_error import ERROR, PART, SamplingError, log_tail, times_in


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
        self, keys: Whole, counts: Whole, drawn: DrawnBatch, likely: float, known: Callable[[], ArrayLike | Tensor]
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
