"""A budget that turns monitoring into a proof: a target fixed in advance, and a stop before the step that would break it.

Theorem (theory, section 5). If R_t, p_t, σ_t and the decision to go on are functions of the released history, R_t is at least
the gap of the record's values at that history, and Σ λ°(R_t) ≤ Λ_max on every path, then β* ≥ 1 - √(1 - e^{-2Λ_max}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar import closed_forms, validation
from betastar.drawn_steps import DrawnBatch
from betastar.rounding import plain, significant
from betastar.threats import FARTHEST
from betastar.training.ledger import LeakageSum

#: Single precision may understate a distance, and a loss that differs by less than `checks.gradients.NORM` is not noticed: a
#: distance is charged with this much more (relative and absolute).
CHARGE = 1.1e-3, 1e-5
#: Opacus adds the gradients of a batch up in single precision, which moves the sum by up to this for each record.
SUM_ROUNDING = 2.0**-23


class NotProved(ValueError):  # noqa: N818
    """Something happened that a guarantee does not cover; the message says what."""


class BudgetExhausted(RuntimeError):  # noqa: N818
    """The next step would break the budget. It was not taken, so that the weights are those that the proof covers."""


@dataclass(frozen=True)
class Budget:
    """A β* against attribute inference that training must not fall below. It is fixed before training.

    Attributes
    ----------
    bayes_security : float
        The β* that is to be proved, between 0 and 1.
    per_record : bool
        Whether each record is charged with its own gap instead of the largest one. Training can then take more steps.

    Raises
    ------
    ValueError
        If bayes_security is not strictly between 0 and 1.

    Examples
    --------
    >>> from betastar.training import Budget
    >>> Budget(bayes_security=0.95)
    Budget(bayes_security=0.95, per_record=False)
    >>> round(Budget(bayes_security=0.95).allowance, 6)
    0.001252
    """

    bayes_security: float
    per_record: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bayes_security", validation.probability("bayes_security", self.bayes_security, strict=True))

    @property
    def allowance(self) -> float:
        """Λ_max, the leakage that all steps together may have."""
        return closed_forms.allowance(self.bayes_security)


@dataclass(frozen=True)
class Proof:
    """What a run under a budget has proved. The β* was fixed in advance, so that the proof may be published.

    Attributes
    ----------
    bayes_security : float
        The β* that every attacker on the attribute faces at least.
    spent : float
        The leakage of the steps so far.
    allowance : float
        The leakage that the budget allows.
    steps : int
        The number of steps so far.
    per_record : bool
        Whether each record was charged with its own gap.

    Examples
    --------
    >>> from betastar.training import Proof
    >>> proof = Proof(bayes_security=0.95, spent=0.001, allowance=0.00125, steps=20, per_record=False)
    >>> print(proof)  # doctest: +ELLIPSIS
    Proved: an attacker who wants the secret of any record faces β* ≥ 0.95 (budget fixed in advance; 20 steps spent ... of ...).
    """

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
    """What was spent, rounded up, and what may be spent, rounded down."""
    return f"spent {significant(spent, 4)} of {significant(allowance, 4, upwards=False)}"


class BudgetAccount:
    """Adds up what the steps have spent of a budget."""

    def __init__(self, budget: Budget, records: int) -> None:
        self.budget = budget
        self.exhausted = False
        self._leakage = LeakageSum(records if budget.per_record else 1)

    def _charged(self, largest: float | None, gaps: NDArray[Any] | None, batch: float) -> NDArray[Any] | float:
        """The distances that a step is charged with. A step that was not measured is charged with the largest possible distance.

        `batch` is a size that the batch does not exceed.
        """
        distances = gaps if self.budget.per_record else largest
        rounding = CHARGE[1] + SUM_ROUNDING * batch
        return FARTHEST if distances is None else np.minimum(FARTHEST, np.asarray(distances) * (1.0 + CHARGE[0]) + rounding)

    def affordable(self, largest: float | None, gaps: NDArray[Any] | None, drawn: DrawnBatch, noise: float, batch: float) -> bool:
        """Whether the budget allows one more step with these distances, sampling and noise."""
        after = self._leakage.after(self._charged(largest, gaps, batch), drawn, noise)
        return float(after.max()) <= self.budget.allowance

    def pay(self, largest: float | None, gaps: NDArray[Any] | None, drawn: DrawnBatch, noise: float, batch: float) -> None:
        """Charge one step."""
        self._leakage.add(self._charged(largest, gaps, batch), drawn, noise)

    @property
    def spent(self) -> float:
        """The leakage of the record that has spent most."""
        return self._leakage.largest

    def refusal(self, steps: int) -> BudgetExhausted:
        """The error that refuses the next step, after so many steps."""
        self.exhausted = True
        return BudgetExhausted(
            f"the next step would break the budget of β* ≥ {plain(self.budget.bayes_security)} "
            f"({steps} steps {_spending(self.spent, self.budget.allowance)}); it was not taken."
        )

    def proof(self, steps: int) -> Proof:
        """What so many steps have proved."""
        return Proof(self.budget.bayes_security, self.spent, self.budget.allowance, steps, self.budget.per_record)

    def state_dict(self) -> dict[str, Any]:
        """What was spent, to be saved."""
        return {"spent": self._leakage.state_dict(), "exhausted": self.exhausted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        self._leakage.load_state_dict(state["spent"])
        self.exhausted = bool(state["exhausted"])
