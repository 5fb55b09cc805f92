"""The ledger: how much each record has leaked about its secret so far (λ° of theory, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erfc

from betastar import checks
from betastar.arrays import Real
from betastar.bounds import affinity


@dataclass(frozen=True)
class Exposure:
    """One record of the ledger. bayes_security: its β* against an attacker who wants its secret, lower is worse."""

    record: int
    leakage: float
    bayes_security: float


class Ledger:
    """Leakage of each record, Σ λ°(R_t) over the steps so far, with the scope that it was measured in.

    In batch scope a record is measured when it is sampled; its leakage is then divided by the sampling rate, which makes
    the sum an estimate of what all steps, sampled or not, would have given. In dataset scope nothing is estimated.
    """

    def __init__(self, records: int, scope: str) -> None:
        self.leakage: Real = np.zeros(records)
        self.scope = scope
        #: Records that were measured at least once.
        self.measured: Any = np.zeros(records, dtype=bool)
        self._last: Real | None = None

    def step(self, gaps: Real | None, rate: float, noise: float, every: int = 1) -> None:
        """One step: gaps has one entry a record, negative where it was not measured; None where none was.

        In dataset scope the last gaps are taken for a step that is not measured, in batch scope each one counts for `every`.
        """
        if self.scope == "dataset":
            gaps = self._last if gaps is None else gaps
            self._last, weight = gaps, 1.0
        else:
            weight = every / rate
        if gaps is None:
            return
        seen = gaps >= 0.0
        self.leakage[seen] += weight * affinity.leakage(rate, noise, gaps[seen])
        self.measured |= seen

    def state_dict(self) -> dict[str, Any]:
        return {"leakage": self.leakage.copy(), "measured": self.measured.copy(), "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.leakage, self.measured, self._last = np.array(state["leakage"]), np.array(state["measured"]), state["last"]

    @property
    def bayes_security(self) -> Real:
        """β* of each record: a lower bound for the gaps that occurred (dataset scope), an estimate, erfc(√λ) (batch scope)."""
        if self.scope == "batch":
            return erfc(np.sqrt(self.leakage))
        square = np.exp(-2.0 * self.leakage)
        return square / (1.0 + np.sqrt(-np.expm1(-2.0 * self.leakage)))

    def most_exposed(self, number: int = 10) -> list[Exposure]:
        """Records with the largest leakage first."""
        number = checks.whole("number", number)
        beta = self.bayes_security
        order = np.argsort(-self.leakage, kind="stable")
        order = order[self.measured[order]][:number]
        return [Exposure(int(i), float(self.leakage[i]), float(beta[i])) for i in order]

    def quantiles(self, probabilities: Any = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)) -> dict[float, float]:
        """Distribution of leakage over the records that were measured."""
        points = np.atleast_1d(checks.probability("probabilities", list(probabilities)))
        values = np.quantile(self.leakage[self.measured], points) if self.measured.any() else np.zeros(len(points))
        return {float(q): float(v) for q, v in zip(points, values, strict=True)}

    def histogram(self, bins: int = 30) -> tuple[Real, Real]:
        """(counts, edges) of β* over the records that were measured."""
        return np.histogram(self.bayes_security[self.measured], bins=checks.whole("bins", bins))

    def __repr__(self) -> str:
        return f"Ledger({int(self.measured.sum())} of {len(self.leakage)} records measured, {self.scope} scope)"
