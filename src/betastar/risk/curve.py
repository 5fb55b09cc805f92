"""What a trade-off curve answers, and the same for arrays: in one pass where a curve can, number by number where not."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import Protocol

import numpy as np

from betastar.arrays import Real
from betastar.bounds.exact import Value
from betastar.bounds.tangents import LARGEST_EPSILON


class Curve(Protocol):
    """A trade-off curve between two worlds P (positive) and Q. Answers are (value, numerical error).

    A curve may also answer arrays in one pass: `hockey_sticks(taus)` with (values, errors), `rates(fprs)` with (values, errors,
    thresholds) and `epsilons(deltas)` with (lower, value, upper). Curves without these are asked number by number.
    """

    def reversed(self) -> Curve: ...

    def overlap(self) -> Value: ...

    def hockey_stick(self, tau: float) -> Value: ...

    def true_positives(self, fpr: float) -> Value: ...

    def threshold(self, fpr: float) -> float: ...


def hockey_sticks(curve: Curve, taus: Real) -> tuple[Real, Real]:
    """H_{e^τ} at each τ, and their errors."""
    if hasattr(curve, "hockey_sticks"):
        values, errors = curve.hockey_sticks(taus)
        return values, errors
    return _columns([curve.hockey_stick(tau) for tau in taus.tolist()])


def true_positives(curve: Curve, fprs: Real) -> tuple[Real, Real]:
    """True-positive rates at each false-positive rate, and their errors."""
    if hasattr(curve, "rates"):
        values, errors, _ = curve.rates(fprs)
        return values, errors
    return _columns([curve.true_positives(fpr) for fpr in fprs.tolist()])


def epsilons(curve: Curve, deltas: Real) -> tuple[Real, Real, Real]:
    """ε ≥ 0 with H_{e^ε} = δ, for each δ: with the curve lowered by its error, as it is, and raised."""
    if hasattr(curve, "epsilons"):
        lower, middle, upper = curve.epsilons(deltas)
        return lower, middle, upper
    rows = np.array([_epsilon(curve, delta) for delta in deltas.tolist()]).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _columns(values: Sequence[Value]) -> tuple[Real, Real]:
    rows = np.array(values, dtype=np.float64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _epsilon(curve: Curve, delta: float) -> tuple[float, float, float]:
    """ε ≥ 0 with H_{e^ε} = δ: with the curve lowered by its error, as it is, and raised."""
    points: dict[float, Value] = {}

    def solve(side: float) -> float:
        def excess(epsilon: float) -> float:
            if epsilon not in points:
                points[epsilon] = curve.hockey_stick(epsilon)
            value, error = points[epsilon]
            return log(max(value + side * error, 1e-320) / delta)

        if excess(0.0) <= 0.0:
            return 0.0
        from scipy.optimize import brentq

        known = sorted(points)
        low = max((e for e in known if excess(e) > 0.0), default=0.0)
        high = min((e for e in known if excess(e) <= 0.0), default=max(1.0, 2.0 * low))
        while excess(high) > 0.0:
            low, high = high, 2.0 * high
            if high > LARGEST_EPSILON:
                return inf
        return float(brentq(excess, low, high, xtol=1e-12, rtol=1e-10)) * (1.0 + side * 2e-10)

    value = solve(0.0)
    return solve(-1.0), value, solve(1.0)
