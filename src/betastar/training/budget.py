"""A budget that turns monitoring into a proof: a target fixed in advance, and a stop before the step that would break it.

Theorem (theory, section 5). If R_t, p_t, σ_t and the decision to go on are functions of the released history, R_t is at least
the gap of the record's values at that history, and Σ λ°(R_t) ≤ Λ_max on every path, then β* ≥ 1 - √(1 - e^{-2Λ_max}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import asin, log1p, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar import closed_forms, validation
from betastar.drawn_steps import DrawnBatch
from betastar.rounding import down, plain, significant
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
    """A β* that training must not fall below. It is fixed before training.

    With a secret it is about attribute inference, and training ends in time. Without one, and with `per_record=True`, it is about
    membership: each record is charged with the norm of its own gradient, and sits out the steps that it cannot pay for.

    Attributes
    ----------
    bayes_security : float
        The β* that is to be proved, between 0 and 1.
    per_record : bool
        Whether each record is charged with its own gap, or norm, instead of the largest one. Training can then take more steps.
    every : int
        Of a budget for membership: all norms are measured once in this many steps. A gradient is clipped to the norm that was
        measured last.

    Raises
    ------
    ValueError
        If bayes_security is not strictly between 0 and 1, or every not a whole number of at least 1.

    Examples
    --------
    >>> from betastar.training import Budget
    >>> Budget(bayes_security=0.95)
    Budget(bayes_security=0.95, per_record=False, every=1)
    >>> round(Budget(bayes_security=0.95).allowance, 6)
    0.001252
    """

    bayes_security: float
    per_record: bool = False
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "bayes_security", validation.probability("bayes_security", self.bayes_security, strict=True))
        object.__setattr__(self, "every", validation.one_whole("every", self.every))

    @property
    def allowance(self) -> float:
        """Λ_max, the leakage about a secret that all steps together may have."""
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
        """The error that refuses the next step, after this many steps."""
        self.exhausted = True
        return BudgetExhausted(
            f"the next step would break the budget of β* ≥ {plain(self.budget.bayes_security)} "
            f"({steps} steps {_spending(self.spent, self.budget.allowance)}); it was not taken."
        )

    def proof(self, steps: int) -> Proof:
        """What this many steps have proved."""
        return Proof(self.budget.bayes_security, self.spent, self.budget.allowance, steps, self.budget.per_record)

    def state_dict(self) -> dict[str, Any]:
        """What was spent, to be saved."""
        return {"spent": self._leakage.state_dict(), "exhausted": self.exhausted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        self._leakage.load_state_dict(state["spent"])
        self.exhausted = bool(state["exhausted"])


# ---- Membership: records that sit out (theory, section 20)

#: Norms are rounded up to multiples of one by this number.
NODES = 512


@dataclass(frozen=True)
class MembershipProof:
    """What a budget for membership has proved of each record. It was fixed in advance, so that it may be published.

    Attributes
    ----------
    bayes_security : float
        The β* of an attacker who asks which of two records, or persons, was trained on.
    records : int
        The number of records of a person.

    Examples
    --------
    >>> from betastar.training import MembershipProof
    >>> print(MembershipProof(bayes_security=0.95))
    Proved: an attacker who asks whether a record was trained on faces β* ≥ 0.95, or 0.9749 if nothing were in its place (budget \
fixed in advance; training must not end because of who sits out).
    """

    bayes_security: float
    records: int = 1

    @property
    def add_remove(self) -> float:
        """The β* of an attacker who asks whether the record was trained on, or nothing in its place: half of the angle."""
        return 1.0 - sin(0.5 * asin(1.0 - self.bayes_security))

    def __str__(self) -> str:
        whose, place = ("a record was", "its") if self.records == 1 else (f"a person's {self.records} records were", "their")
        return (
            f"Proved: an attacker who asks whether {whose} trained on faces β* ≥ {plain(self.bayes_security)}, or "
            f"{down(self.add_remove)} if nothing were in {place} place (budget fixed in advance; training must not end because "
            "of who sits out)."
        )


class MembershipAccount:
    """What each record has spent of a budget for membership, and whether it can pay for another step.

    A step charges each record that may be drawn with λ(n) = -ln ∫√(PQ) of P = (1-p)·N(0) + p·N(n) and Q = N(0), where n is the
    norm that its gradient is clipped to. Norms, charges and who sits out are functions of the history. On every path the charges
    of a record add up to at most Λ = -ln cos θ, so that ∫√(PQ) ≥ cos θ for the worlds with it and without it. The angle
    arccos ∫√(PQ) obeys the triangle inequality: between worlds that differ in k records, each replaced by another, it is at most
    2kθ = arcsin(1 - β*), and the total variation at most its sine.

    Parameters
    ----------
    budget : Budget
        The β* that is to be proved.
    rates : array
        The sampling rate of each record.
    noise : float
        The noise multiplier.
    persons : int
        The number of records of a person.
    rounding : float
        What rounding may add to the norm of a gradient, in clipping norms; the noise is larger by as much.

    Raises
    ------
    ValueError
        If the budget does not pay for one step of a record whose gradient has the full clipping norm.
    """

    def __init__(self, budget: Budget, rates: NDArray[Any], noise: float, persons: int, rounding: float) -> None:
        self.budget, self.persons = budget, persons
        theta = 0.5 * asin(1.0 - budget.bayes_security) / persons
        #: Λ, what the charges of a record may add up to.
        self.allowance = -0.5 * log1p(-(sin(theta) ** 2)) * (1.0 - closed_forms.PAD)
        #: What each record has spent, and whether it sat out the last step.
        self.spent: NDArray[Any] = np.zeros(len(rates))
        self.retired: NDArray[Any] = np.zeros(len(rates), dtype=bool)
        self._node: NDArray[Any] = np.full(len(rates), NODES)
        different, self._kind = np.unique(rates, return_inverse=True)
        nodes = (np.arange(NODES + 1) / NODES + rounding) / (1.0 + rounding)
        self._charges = np.stack([closed_forms.absence_leakage(float(rate), noise, nodes) for rate in different])
        if float(self._charges.max()) > self.allowance:
            raise validation.wrong(
                "budget",
                f"must pay for a step with the full clipping norm, and bayes_security={plain(budget.bayes_security)} does not: "
                "use more noise, or smaller batches.",
            )

    def due(self, step: int) -> bool:
        """Whether norms are measured before a step."""
        return step % self.budget.every == 0

    def measured(self, norms: NDArray[Any]) -> None:
        """Take the norm of each record, in clipping norms and at most 1."""
        self._node = np.maximum(np.ceil(norms * NODES), 1.0).astype(np.int64)

    @property
    def norms(self) -> NDArray[Any]:
        """The norm that the gradient of each record has to be clipped to."""
        return self._node / NODES

    def pay(self) -> NDArray[np.bool_]:
        """Charge one step; which records take part if they are drawn. The others cannot pay, and are not charged."""
        charges = self._charges[self._kind, self._node]
        self.retired = self.spent + charges > self.allowance
        self.spent = np.where(self.retired, self.spent, self.spent + charges)
        return ~self.retired

    @property
    def proof(self) -> MembershipProof:
        """What was fixed in advance."""
        return MembershipProof(self.budget.bayes_security, self.persons)

    def state_dict(self) -> dict[str, Any]:
        """What was spent and measured, to be saved."""
        return {"spent": self.spent.copy(), "node": self._node.copy(), "retired": self.retired.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        self.spent, self._node, self.retired = (np.array(state[name]) for name in ("spent", "node", "retired"))
