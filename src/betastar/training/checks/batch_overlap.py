"""Checks that batches are drawn independently of each other: a batch has its share of the records of the batch before.

Given the sizes n and m of two batches in a row, which are uniform subsets of N records, H of their records are the same, with a
hypergeometric law of mean nm/N. Its moment-generating function is at most that of a binomial law (Hoeffding 1963), so
E[2^{-H}] ≤ exp(-nm/(2N)), and exp(M/2 - ln 2·ΣH) with M = Σ nm/N is a supermartingale. By Ville's inequality it ever reaches 1/α
with probability at most α. Loaders that take each record once an epoch have no records in common, and reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np

from betastar.arrays import Whole
from betastar.training.checks.sampling_error import ERROR, PART, SamplingError


class BatchOverlap:
    """Compares each batch with the one before, for a data set of so many records."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._last: Whole = np.zeros(0, dtype=np.int64)
        self._same, self._expected = 0, 0.0

    def step(self, keys: Whole, counts: Whole) -> None:
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
