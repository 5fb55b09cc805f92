"""LeakageSum: adds up the leakage of steps, Λ° = Σ λ°(R_t) (theory, section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from betastar.arrays import Real
from betastar.closed_forms import step_leakage as charge
from betastar.dpsgd import Segment
from betastar.drawn_steps import DrawnBatch


@lru_cache(maxsize=16)
def _one(step: Segment, distance: float) -> Real:
    return charge(step, distance)


def _charge(step: Segment, distances: Real | float) -> Real:
    return _one(step, float(distances)) if np.ndim(distances) == 0 else charge(step, distances)


class LeakageSum:
    """The leakage of each of several records, or a single sum that stands for all of them.

    Of samplings in epochs, a record is charged once an epoch, with the step of the epoch that leaks most.

    Attributes
    ----------
    sums : array
        Λ° of each record.
    """

    def __init__(self, records: int = 1) -> None:
        self.sums: Real = np.zeros(records)
        self._epoch = ""
        self._in_epoch: Real = np.zeros(records)  # what the sums contain of the current epoch

    def after(self, distances: Real | float, drawn: DrawnBatch, noise: float) -> Real:
        """The sums as they would be after one more step. `distances` is one number for all records, or one for each."""
        return self.sums + self._more(distances, drawn, noise, slice(None))

    def add(self, distances: Real | float, drawn: DrawnBatch, noise: float, records: Real | slice = slice(None)) -> None:
        """Add one step. `records` are those that the distances belong to. The sums of the others stay."""
        more = self._more(distances, drawn, noise, records)
        if drawn.scheme.in_epochs:
            if drawn.epoch != self._epoch:
                self._epoch, self._in_epoch = drawn.epoch, np.zeros_like(self.sums)
            self._in_epoch[records] += more
        self.sums[records] += more

    def _more(self, distances: Real | float, drawn: DrawnBatch, noise: float, records: Real | slice) -> Real:
        """What one step adds to the sums of some records."""
        leaks = _charge(drawn.scheme.one_step(noise), distances)
        if not drawn.scheme.in_epochs or drawn.epoch != self._epoch:
            return leaks
        with np.errstate(invalid="ignore"):
            return np.fmax(leaks - self._in_epoch[records], 0.0)  # infinite, if it was not before

    @property
    def largest(self) -> float:
        """The largest sum."""
        return float(self.sums.max())

    def state_dict(self) -> dict[str, Any]:
        """The sums, to be saved."""
        return {"sums": self.sums.copy(), "epoch": self._epoch, "in_epoch": self._in_epoch.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved sums."""
        self.sums, self._epoch, self._in_epoch = np.array(state["sums"]), state["epoch"], np.array(state["in_epoch"])
