"""The ledger: how much each record has leaked about its secret so far (λ° of theory, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erfc

from betastar import validation
from betastar.arrays import Real
from betastar.training.leakage import LeakageSum


@dataclass(frozen=True)
class Exposure:
    """One record of the ledger. bayes_security: its β* against an attacker who wants its secret, lower is worse."""

    record: int
    leakage: float
    bayes_security: float


class Ledger:
    """Leakage of each record, Σ λ°(R_t) over the steps so far, with the scope that it was measured in.

    In batch scope a record is measured now and then, when it is sampled; the mean of what was measured is then taken for all
    steps, an estimate. In dataset scope every step counts with what was measured last.
    """

    def __init__(self, records: int, scope: str) -> None:
        self.scope = scope
        self.steps = 0
        #: How often each record was measured.
        self.counts: Any = np.zeros(records, dtype=np.int64)
        self._leakage = LeakageSum(records)
        self._last: Real | None = None

    def step(self, gaps: Real | None, rate: float, noise: float) -> None:
        """One step: gaps has one entry a record, negative where it was not measured; None where none was."""
        self.steps += 1
        if self.scope == "dataset":
            gaps = self._last if gaps is None else gaps
            self._last = gaps
        if gaps is not None:
            measured = gaps >= 0.0
            self._leakage.add(gaps[measured], rate, noise, measured)
            self.counts[measured] += 1

    @property
    def measured(self) -> Any:
        """Records that were measured at least once."""
        return self.counts > 0

    @property
    def leakage(self) -> Real:
        sums = self._leakage.sums
        return sums * (self.steps / np.maximum(self.counts, 1)) if self.scope == "batch" else sums.copy()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "counts": self.counts.copy(), "sums": self._leakage.sums.copy(), "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self._last = state["steps"], state["last"]
        self.counts, self._leakage.sums = np.array(state["counts"]), np.array(state["sums"])

    @property
    def bayes_security(self) -> Real:
        """β* of each record: a lower bound for the gaps that occurred (dataset scope), an estimate, erfc(√λ) (batch scope)."""
        leakage = self.leakage
        if self.scope == "batch":
            return erfc(np.sqrt(leakage))
        square = np.exp(-2.0 * leakage)
        return square / (1.0 + np.sqrt(-np.expm1(-2.0 * leakage)))

    def most_exposed(self, number: int = 10) -> list[Exposure]:
        """Records with the largest leakage first."""
        number = validation.whole("number", number)
        beta, leakage = self.bayes_security, self.leakage
        order = np.argsort(-leakage, kind="stable")
        order = order[self.measured[order]][:number]
        return [Exposure(int(i), float(leakage[i]), float(beta[i])) for i in order]

    def quantiles(self, probabilities: Any = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)) -> dict[float, float]:
        """Distribution of leakage over the records that were measured."""
        points = np.atleast_1d(validation.probability("probabilities", list(probabilities)))
        values = np.quantile(self.leakage[self.measured], points) if self.measured.any() else np.zeros(len(points))
        return {float(q): float(v) for q, v in zip(points, values, strict=True)}

    def histogram(self, bins: int = 30) -> tuple[Real, Real]:
        """(counts, edges) of β* over the records that were measured."""
        return np.histogram(self.bayes_security[self.measured], bins=validation.whole("bins", bins))

    def __repr__(self) -> str:
        return f"Ledger({int(self.measured.sum())} of {len(self.leakage)} records measured, {self.scope} scope)"
