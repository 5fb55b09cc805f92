"""What each record has leaked about its secret so far (λ° of theory, section 5): the sum over steps, and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc, erfcinv

from betastar import validation
from betastar.closed_forms import step_leakage
from betastar.dpsgd import Segment
from betastar.drawn_steps import DrawnBatch, poisson
from betastar.threats import FARTHEST


@lru_cache(maxsize=16)
def _of_one_distance(step: Segment, distance: float) -> NDArray[Any]:
    return step_leakage(step, distance)


class LeakageSum:
    """The leakage of each of several records, or a single sum that stands for all of them.

    Of samplings in epochs, a record is charged once an epoch, with the step of the epoch that leaks most.

    Attributes
    ----------
    sums : array
        Λ° of each record.
    """

    def __init__(self, records: int = 1) -> None:
        self.sums: NDArray[Any] = np.zeros(records)
        self._epoch = ""
        self._in_epoch: NDArray[Any] = np.zeros(records)  # what the sums contain of the current epoch

    def after(self, distances: NDArray[Any] | float, drawn: DrawnBatch, noise: float) -> NDArray[Any]:
        """The sums as they would be after one more step. `distances` is one number for all records, or one for each."""
        return self.sums + self._more(distances, drawn, noise, slice(None))

    def add(
        self, distances: NDArray[Any] | float, drawn: DrawnBatch, noise: float, records: NDArray[Any] | slice = slice(None)
    ) -> None:
        """Add one step. `records` are those that the distances belong to. The sums of the others stay."""
        more = self._more(distances, drawn, noise, records)
        if drawn.scheme.in_epochs:
            if drawn.epoch != self._epoch:
                self._epoch, self._in_epoch = drawn.epoch, np.zeros_like(self.sums)
            self._in_epoch[records] += more
        self.sums[records] += more

    def _more(
        self, distances: NDArray[Any] | float, drawn: DrawnBatch, noise: float, records: NDArray[Any] | slice
    ) -> NDArray[Any]:
        """What one step adds to the sums of some records."""
        step = drawn.scheme.one_step(noise)
        leaks = _of_one_distance(step, float(distances)) if np.ndim(distances) == 0 else step_leakage(step, distances)
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


@dataclass(frozen=True)
class Exposure:
    """How exposed one record is.

    Attributes
    ----------
    record : int
        The number of the record in the data set.
    leakage : float
        Its leakage over the steps so far.
    bayes_security : float
        Its β* against an attacker who wants its secret; lower is worse.

    Examples
    --------
    >>> from betastar.training import Ledger
    >>> import numpy as np
    >>> ledger = Ledger(records=3, scope="dataset")
    >>> ledger.step(np.array([0.1, 0.5, 0.2]), rate=0.1, noise=2.0)
    >>> ledger.most_exposed(1)[0].record
    1
    """

    record: int
    leakage: float
    bayes_security: float


class Ledger:
    """Keeps the leakage of each record, Σ λ°(R_t) over the steps so far.

    In batch scope a record is measured only when it is sampled. The mean over the steps at which it was measured is then taken
    for all steps, which is an estimate. In dataset scope every step is charged with the distance that was measured last.

    With balls in bins and with shuffling, a record takes part once an epoch, and is charged once an epoch, as if everybody knew
    at which step: with its largest distance of the epoch. In batch scope the mean is then over epochs.

    Parameters
    ----------
    records : int
        The number of records in the data set.
    scope : "batch" or "dataset"
        The scope of the monitor.

    Examples
    --------
    >>> import numpy as np
    >>> from betastar.training import Ledger
    >>> ledger = Ledger(records=3, scope="dataset")
    >>> ledger.step(np.array([0.1, 0.5, 0.2]), rate=0.1, noise=2.0)
    >>> ledger
    Ledger(3 of 3 records measured, dataset scope)
    >>> [one.record for one in ledger.most_exposed(2)]
    [1, 2]
    """

    def __init__(self, records: int, scope: str) -> None:
        self.scope = scope
        self.steps = 0
        #: How often each record was measured, with samplings in epochs at most once an epoch.
        self.counts: NDArray[Any] = np.zeros(records, dtype=np.int64)
        self._leakage = LeakageSum(records)
        #: The leakage of the largest distance of each step.
        self._any_record = LeakageSum()
        self._last: NDArray[Any] | None = None
        self._epochs = 0  # of samplings in epochs
        self._epoch = ""
        self._counted = np.zeros(records, dtype=bool)  # whether each record was measured in this epoch

    def step(
        self, gaps: NDArray[Any] | None, rate: float, noise: float, drawn: DrawnBatch | None = None, largest: float | None = None
    ) -> None:
        """Add one step.

        Parameters
        ----------
        gaps : array or None
            The distance of each record, negative if it was not measured; None if no record was measured.
        rate, noise : float
            The sampling rate and the noise multiplier of the step.
        drawn : DrawnBatch, optional
            How the batch was drawn; by Poisson sampling with this rate by default.
        largest : float, optional
            The largest distance of the step, with which an attacker on any record is charged; that of the gaps by default.
        """
        drawn = poisson(rate) if drawn is None else drawn
        self.steps += 1
        if drawn.scheme.in_epochs and (drawn.epoch != self._epoch or not self._epochs):
            self._epoch, self._epochs = drawn.epoch, self._epochs + 1
            self._counted[:] = False
        if self.scope == "dataset":
            gaps = self._last if gaps is None else gaps
            self._last = gaps
        if largest is None:
            largest = FARTHEST if gaps is None else float(gaps.max(initial=0.0))
        self._any_record.add(largest, drawn, noise)
        if gaps is not None:
            measured = gaps >= 0.0
            self._leakage.add(gaps[measured], drawn, noise, measured)
            self.counts[measured & ~self._counted] += 1
            if drawn.scheme.in_epochs:
                self._counted |= measured

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Whether each record was measured at least once."""
        return self.counts > 0

    @property
    def leakage(self) -> NDArray[Any]:
        """The leakage of each record over the steps so far."""
        sums = self._leakage.sums
        times = self._epochs or self.steps
        return sums * (times / np.maximum(self.counts, 1)) if self.scope == "batch" else sums.copy()

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the ledger, to be saved.

        Returns
        -------
        dict
            What `load_state_dict` takes.
        """
        state: dict[str, Any] = {"steps": self.steps, "counts": self.counts.copy(), "last": self._last}
        state |= {"leakage": self._leakage.state_dict(), "any_record": self._any_record.state_dict()}
        return state | {"epochs": self._epochs, "epoch": self._epoch, "counted": self._counted.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.
        """
        self.steps, self._last, self.counts = state["steps"], state["last"], np.array(state["counts"])
        self._leakage.load_state_dict(state["leakage"])
        self._any_record.load_state_dict(state["any_record"])
        self._epochs, self._epoch, self._counted = state["epochs"], state["epoch"], np.array(state["counted"])

    @property
    def bayes_security(self) -> NDArray[Any]:
        """β* of each record: in dataset scope a lower bound for the gaps that occurred, in batch scope the estimate erfc(√λ)."""
        leakage = self.leakage
        if self.scope == "batch":
            return erfc(np.sqrt(leakage))
        square = np.exp(-2.0 * leakage)
        return square / (1.0 + np.sqrt(-np.expm1(-2.0 * leakage)))

    def beside(self, any_record: float) -> NDArray[Any]:
        """Estimate the β* of each record so that it can stand beside the β* that holds for any record.

        The leakage of a record is a share of the leakage of the largest distances, at most all of it: what was extrapolated
        beyond them did not occur. The estimate erfc(√λ) with that share is 1 for a record that leaks nothing, and the β* of any
        record for one that is the farthest at each step.

        Parameters
        ----------
        any_record : float
            The β* that holds for any record, as the monitor computes it from the largest distance of each step.

        Returns
        -------
        array
            The β* of each record, not below `any_record`.
        """
        any_record = float(validation.probability("any_record", any_record))
        if any_record < np.finfo(float).tiny:  # erfcinv is infinite there
            return self.bayes_security
        total = self._any_record.largest
        share = np.minimum(self.leakage / total, 1.0) if total > 0.0 else np.zeros(len(self.counts))
        return np.maximum(erfc(np.sqrt(share) * erfcinv(any_record)), any_record)

    def most_exposed(self, number: int = 10) -> list[Exposure]:
        """List the records with the largest leakage.

        Parameters
        ----------
        number : int
            How many records to list.

        Returns
        -------
        list of Exposure
            The most exposed record comes first.

        Raises
        ------
        ValueError
            If number is not a whole number of at least 1.
        """
        number = validation.whole("number", number)
        beta, leakage = self.bayes_security, self.leakage
        order = np.argsort(-leakage, kind="stable")
        order = order[self.measured[order]][:number]
        return [Exposure(int(i), float(leakage[i]), float(beta[i])) for i in order]

    def __repr__(self) -> str:
        return f"Ledger({int(self.measured.sum())} of {len(self.leakage)} records measured, {self.scope} scope)"
