"""Adds up what steps leak: Λ° = Σ λ°(R_t) over the steps so far (theory, section 5)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from betastar.arrays import Real
from betastar.bounds import affinity


@lru_cache(maxsize=16)
def _one(rate: float, noise: float, distance: float) -> Real:
    return affinity.leakage(rate, noise, distance)


def _of_step(distances: Any, rate: float, noise: float) -> Real:
    return affinity.leakage(rate, noise, distances) if np.ndim(distances) else _one(rate, noise, float(distances))


class LeakageSum:
    """sums: Λ° of each of several records, or a single one that stands for all of them."""

    def __init__(self, records: int = 1) -> None:
        self.sums: Real = np.zeros(records)

    def after(self, distances: Any, rate: float, noise: float) -> Real:
        """The sums as they would be after one more step. distances: one number for all records, or one a record."""
        return self.sums + _of_step(distances, rate, noise)

    def add(self, distances: Any, rate: float, noise: float, records: Any = slice(None)) -> None:
        """Add one step. records: those that the distances belong to; the sums of others stay."""
        self.sums[records] += _of_step(distances, rate, noise)

    @property
    def largest(self) -> float:
        return float(self.sums.max())
