"""An accountant for Opacus: `PrivacyEngine(accountant="betastar")` once `betastar.training` is imported."""

from __future__ import annotations

from math import inf
from typing import Any

from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant

from betastar.risk.analyze import analyze
from betastar.risk.interval import Bound
from betastar.risk.risk import Risk
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import Membership


class BetastarAccountant(IAccountant):  # type: ignore[misc]
    """Keeps (noise, rate, steps), as Opacus's accountants do, and reads everything off the exact trade-off curve."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]]

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        return "betastar"

    @property
    def run(self) -> DPSGD:
        """What was run so far."""
        return run_of(self)

    def risk(self, relation: str = "substitution", method: str = "exact") -> Risk:
        """Membership inference against the run so far."""
        return analyze(self.run, Membership(relation), method)

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """ε of (ε, δ)-DP for adding or removing a record, from the exact curve (its upper end)."""
        if not self.history:
            return 0.0
        if any(noise == 0.0 for noise, _, _ in self.history):
            return inf
        return float(self.risk("add-remove").epsilon(delta).upper)

    def bayes_security(self, relation: str = "substitution") -> Bound:
        return self.risk(relation).bayes_security

    def advantage(self, relation: str = "substitution") -> Bound:
        return self.risk(relation).advantage

    def tpr(self, fpr: Any, relation: str = "substitution") -> Bound:
        return self.risk(relation).tpr(fpr)


def run_of(accountant: IAccountant) -> DPSGD:
    """What an accountant of Opacus has seen."""
    if not accountant.history:
        raise ValueError("no step was taken yet: there is nothing to account for.")
    runs = [DPSGD(noise, min(rate, 1.0), steps) for noise, rate, steps in accountant.history]
    total = runs[0]
    for one in runs[1:]:
        total = total + one
    return total


register_accountant("betastar", BetastarAccountant, force=True)
