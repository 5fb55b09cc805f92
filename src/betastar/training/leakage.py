"""LeakageSum: adds up the leakage of steps, Λ° = Σ λ°(R_t) (theory, section 5)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from betastar.arrays import Real
from betastar.bounds import affinity


@lru_cache(maxsize=16)
def _one(rate: float, noise: float, distance: float) -> Real:
    return affinity.leakage(rate, noise, distance)


def _of_step(distances: Real | float, rate: float, noise: float) -> Real:
    return _one(rate, noise, float(distances)) if np.ndim(distances) == 0 else affinity.leakage(rate, noise, distances)


class LeakageSum:
    """The leakage of each of several records, or a single sum that stands for all of them.

    Attributes
    ----------
    sums : array
        Λ° of each record.
    """

    def __init__(self, records: int = 1) -> None:
        self.sums: Real = np.zeros(records)

    def after(self, distances: Real | float, rate: float, noise: float) -> Real:
        """The sums as they would be after one more step. `distances` is one number for all records, or one for each."""
        return self.sums + _of_step(distances, rate, noise)

    def add(self, distances: Real | float, rate: float, noise: float, records: Real | slice = slice(None)) -> None:
        """Add one step. `records` are those that the distances belong to. The sums of the others stay."""
        self.sums[records] += _of_step(distances, rate, noise)

    @property
    def largest(self) -> float:
        """The largest sum."""
        return float(self.sums.max())
