"""A budget that turns monitoring into a proof: a target fixed in advance, and a stop before the step that would break it.

Theorem (theory, section 5). If R_t, p_t, σ_t and the decision to go on are functions of the released history, R_t is at least
the gap of the record's values at that history, and Σ λ°(R_t) ≤ Λ_max on every path, then β* ≥ 1 - √(1 - e^{-2Λ_max}).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from betastar import validation
from betastar.arrays import Real
from betastar.bounds import affinity
from betastar.rounding import plain, significant
from betastar.scenario.threats import FARTHEST
from betastar.training.leakage import LeakageSum

#: Single precision may understate a distance, and a loss that differs by less than `checks.gradients.NORM` is not noticed: a
#: distance is charged with this much more (relative and absolute).
CHARGE = 1.1e-3, 1e-5
#: Opacus adds the gradients of a batch up in single precision, which moves the sum by up to this for each record.
SUM_ROUNDING = 2.0**-23


class BudgetExhausted(RuntimeError):  # noqa: N818
    """The next step would break the budget. It was not taken: the weights are those that the proof covers."""


@dataclass(frozen=True)
class Budget:
    """bayes_security: the β* against attribute inference that is to be proved.

    per_record: charge each record with its own gap (a statement about each record, and more steps), instead of all with
    the largest one.
    """

    bayes_security: float
    per_record: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bayes_security", validation.probability("bayes_security", self.bayes_security, strict=True))

    @property
    def allowance(self) -> float:
        """Λ_max."""
        return affinity.allowance(self.bayes_security)


@dataclass(frozen=True)
class Proof:
    """What a run under a budget has proved: fixed in advance, so it may be published."""

    bayes_security: float
    spent: float
    allowance: float
    steps: int
    per_record: bool

    def __str__(self) -> str:
        who = "of each record" if self.per_record else "of any record"
        return (
            f"Proved: an attacker who wants the secret {who} faces β* ≥ {plain(self.bayes_security)} "
            f"(budget fixed in advance; {self.steps} steps {_spending(self.spent, self.allowance)})."
        )


def _spending(spent: float, allowance: float) -> str:
    return f"spent {significant(spent, 4)} of {significant(allowance, 4, upwards=False)}"


class BudgetAccount:
    """Adds up what the steps have spent of a budget."""

    def __init__(self, budget: Budget, records: int) -> None:
        self.budget = budget
        self.exhausted = False
        self._leakage = LeakageSum(records if budget.per_record else 1)

    def _charged(self, largest: float | None, gaps: Real | None, batch: float) -> Any:
        """The distances that a step is charged with; a step that is not measured counts as if every gap were possible.

        batch: a size that the batch does not exceed.
        """
        distances: Any = gaps if self.budget.per_record else largest
        rounding = CHARGE[1] + SUM_ROUNDING * batch
        return FARTHEST if distances is None else np.minimum(FARTHEST, np.asarray(distances) * (1.0 + CHARGE[0]) + rounding)

    def affordable(self, largest: float | None, gaps: Real | None, rate: float, noise: float, batch: float) -> bool:
        after = self._leakage.after(self._charged(largest, gaps, batch), rate, noise)
        return float(after.max()) <= self.budget.allowance

    def pay(self, largest: float | None, gaps: Real | None, rate: float, noise: float, batch: float) -> None:
        self._leakage.add(self._charged(largest, gaps, batch), rate, noise)

    @property
    def spent(self) -> float:
        """By the record that has spent most."""
        return self._leakage.largest

    def refusal(self, steps: int) -> BudgetExhausted:
        self.exhausted = True
        return BudgetExhausted(
            f"the next step would break the budget of β* ≥ {plain(self.budget.bayes_security)} "
            f"({steps} steps {_spending(self.spent, self.budget.allowance)}); it was not taken."
        )

    def proof(self, steps: int) -> Proof:
        return Proof(self.budget.bayes_security, self.spent, self.budget.allowance, steps, self.budget.per_record)

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self._leakage.sums.copy(), "exhausted": self.exhausted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._leakage.sums, self.exhausted = np.array(state["spent"]), bool(state["exhausted"])
