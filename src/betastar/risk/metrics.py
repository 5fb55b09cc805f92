"""Every metric of one scalar run, read off its trade-off curves, or off β* where a method has no curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any, Protocol

import numpy as np
from scipy.special import log_ndtr, ndtri

from betastar.arrays import Real
from betastar.bounds.discrete import LeastCurve
from betastar.bounds.exact import Value
from betastar.bounds.tangents import LARGEST_EPSILON
from betastar.risk import conversions
from betastar.risk.interval import Bound, GaussianFit, stack

#: The curve lowered by its error, as it is, and raised.
SIDES = (-1.0, 0.0, 1.0)
#: The Gaussian fit: slopes that are looked at, times that the best of them is refined, relative error, and largest log slope.
SLOPES, FINER, MU_ACCURACY, LARGEST_SLOPE = 17, 3, 1e-8, 700.0


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


@dataclass(frozen=True)
class Outcome:
    """worst: curves above every attack. attained: curves of attacks that exist. Both are empty if only β* is known.

    oriented: the positive world is P; otherwise either may be.
    """

    bayes_security: Bound
    worst: tuple[Curve, ...] = ()
    attained: tuple[Curve, ...] = ()
    oriented: bool = False

    @property
    def source(self) -> str:
        return "trade-off curve" if self.worst else "Bayes security"

    @property
    def _advantage(self) -> Bound:
        return self.bayes_security.complement()

    def tpr(self, fpr: Any) -> Bound:
        """At a false-positive rate, or at each of an array."""
        if self.worst:
            return self._read(true_positives, fpr, least=fpr, both_ways=not self.oriented)
        adv = self._advantage

        def one(fpr: float) -> Bound:
            highest, middle = (conversions.tpr_at_most(a, fpr) for a in (adv.upper, adv.estimate))
            return Bound(conversions.tpr_at_least(adv.lower, fpr), middle, highest)

        return _at_each(one, fpr)

    def success(self, prior: float) -> Bound:
        """Best guess of two worlds, the positive one with probability `prior`: 1 - π + π·H at α = (1-π)/π."""
        idle = max(prior, 1.0 - prior)
        if prior in (0.0, 1.0):
            return Bound(1.0, 1.0, 1.0)
        if self.worst:

            def guess(curve: Curve, tau: Real) -> tuple[Real, Real]:
                values, errors = hockey_sticks(curve, tau)
                return 1.0 - prior + prior * values, prior * errors

            return self._read(guess, log((1.0 - prior) / prior), least=idle, both_ways=not self.oriented)
        adv = self._advantage
        highest, middle = (conversions.success_at_most(a, prior) for a in (adv.upper, adv.estimate))
        return Bound(0.5 * (1.0 + adv.lower) if prior == 0.5 else idle, middle, highest)

    def success_among(self, largest_prior: float) -> Bound:
        """Best guess among M secrets: ≤ 1 - β*(1 - max π), and ≤ TPR at FPR max π."""
        beta, rate = self.bayes_security, self.tpr(largest_prior)
        upper = min(1.0 - beta.lower * (1.0 - largest_prior), rate.upper)
        estimate = min(1.0 - beta.estimate * (1.0 - largest_prior), rate.estimate)
        return Bound(largest_prior, estimate, upper)

    def delta(self, epsilon: Any) -> Bound:
        """At an ε ≥ 0, or at each of an array."""
        if self.worst:
            return self._read(hockey_sticks, epsilon, least=0.0, both_ways=True)
        adv = self._advantage
        return _at_each(lambda one: Bound(conversions.delta_at_least(adv.lower, one), adv.estimate, adv.upper), epsilon)

    def epsilon(self, delta: Any) -> Bound:
        """At a δ, or at each of an array."""
        if self.worst:
            deltas = np.ravel(np.asarray(delta, dtype=np.float64))
            return _of_shape(self._enclose(lambda curve: epsilons(curve, deltas)), delta)
        beta = self.bayes_security

        def one(delta: float) -> Bound:
            least = conversions.epsilon_from_bayes_security(beta.upper, delta)
            middle = conversions.epsilon_from_bayes_security(beta.estimate, delta)
            return Bound(least, middle, 0.0 if delta >= 1.0 - beta.lower else inf)

        return _at_each(one, delta)

    def gaussian(self, smallest_fpr: float) -> GaussianFit:
        if not self.worst:
            beta = self.bayes_security
            least, middle = (conversions.mu_from_overlap(b) for b in (beta.upper, beta.estimate))
            some = inf if beta.lower < 1.0 else 0.0
            return GaussianFit(least, middle, some, some, smallest_fpr)
        mu = _of_shape(self._enclose(lambda curve: _mu(curve, smallest_fpr)), smallest_fpr)
        regret = max(_regret(curve, mu.upper) for curve in self.worst)
        return GaussianFit(mu.lower, mu.estimate, mu.upper, regret, smallest_fpr)

    def _enclose(self, metric: Callable[[Curve], tuple[Any, Any, Any]]) -> Bound:
        """The worst of the curves, both ways, for a metric that gives (lower, value, upper) of a curve."""
        worst = _ends(metric, self.worst)
        attained = worst if self.attained is self.worst else _ends(metric, self.attained)
        middle = (worst if attained is None else attained)[1]
        lower = 0.0 if attained is None else attained[0]
        return Bound(np.minimum(lower, middle), middle, np.maximum(middle, worst[2]))

    def _read(self, metric: Callable[[Curve, Real], tuple[Real, Real]], given: Any, least: Any, both_ways: bool) -> Bound:
        """The worst of the curves, at most 1 and never below `least`, what an attacker without the model has.

        given: a number or an array, at which the metric is read."""
        facing = _both_ways if both_ways else tuple
        asked = np.ravel(np.asarray(given, dtype=np.float64))
        worst = [metric(curve, asked) for curve in facing(self.worst)]
        attained = worst if self.attained is self.worst else [metric(curve, asked) for curve in facing(self.attained)]
        least = np.ravel(np.asarray(least, dtype=np.float64))
        upper = np.max([values + errors for values, errors in worst], axis=0)
        lower = np.max([values - errors for values, errors in attained], axis=0) if attained else least
        estimate = np.max([values for values, _ in (attained or worst)], axis=0)
        low, middle, high = (np.minimum(np.maximum(one, least), 1.0) for one in (lower, estimate, upper))
        return _of_shape(Bound(np.minimum(low, middle), middle, np.maximum(middle, high)), given)


def joined(proved: Sequence[Outcome], exist: Sequence[Outcome], oriented: bool) -> Outcome:
    """One outcome of several: each of `proved` is above every attack, each of `exist` is below an attack that exists."""
    lower = max(one.bayes_security.lower for one in proved)
    upper = min((one.bayes_security.upper for one in exist), default=1.0)
    estimate = min((one.bayes_security.estimate for one in exist), default=lower)
    lower = min(lower, upper)
    curves = [one.worst for one in proved if one.worst]
    least = curves[0] if len(curves) == 1 else (LeastCurve(*(curve for some in curves for curve in some)),) if curves else ()
    attacks = tuple(curve for one in exist for curve in one.attained) if least else ()
    return Outcome(Bound(lower, min(max(estimate, lower), upper), upper), least, attacks, oriented)


def _ends(metric: Callable[[Curve], tuple[Any, Any, Any]], curves: Sequence[Curve]) -> Any:
    """(lower, value, upper) of the worst of the curves, both ways; None without curves."""
    if not curves:
        return None
    return np.max([np.stack(np.broadcast_arrays(*metric(curve))) for curve in _both_ways(curves)], axis=0)


def _of_shape(bound: Bound, given: Any) -> Bound:
    """A bound of arrays in the shape of what was given; of numbers if that was a number."""
    ends = (bound.lower, bound.estimate, bound.upper)
    if np.ndim(given) == 0:
        return Bound(*(float(np.ravel(end)[0]) for end in ends))
    return Bound(*(np.reshape(end, np.shape(given)) for end in ends))


def _at_each(metric: Callable[[float], Bound], given: Any) -> Bound:
    """A metric at a number, or at each of an array."""
    if np.ndim(given) == 0:
        return metric(float(given))
    return stack([metric(one) for one in np.ravel(given).tolist()], np.shape(given))


def _both_ways(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """The curves and their reversals, without repeating the symmetric ones."""
    facing: list[Curve] = []
    for curve in curves:
        other = curve.reversed()
        facing += [curve] if other is curve else [curve, other]
    return tuple(facing)


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


def _mu(curve: Curve, smallest_fpr: float) -> tuple[float, float, float]:
    """The smallest μ whose Gaussian curve is not below this one where both error rates are at least `smallest_fpr`.

    If they touch inside of that region, they share a tangent there, so H is at most the Gaussian's at every slope e^τ that the
    curve has in the region, and equal at one: the largest μ(τ) with equal H. Or they touch at the smallest FPR. Slopes below 1
    are the reversed curve's.
    """
    value, error = curve.overlap()
    candidates = [[conversions.mu_from_overlap(max(value - side * error, 0.0)) for side in SIDES]]
    rate, slack = curve.true_positives(smallest_fpr)
    lowest, middle, highest = (max(rate + side * slack, smallest_fpr) for side in SIDES)
    if lowest <= 1.0 - smallest_fpr:
        rates = (lowest, min(middle, 1.0 - smallest_fpr), min(highest, 1.0 - smallest_fpr))
        candidates.append([float(ndtri(rate) - ndtri(smallest_fpr)) for rate in rates])
    first, last = max(0.0, -curve.reversed().threshold(smallest_fpr)), min(curve.threshold(smallest_fpr), LARGEST_SLOPE)
    if first < last:
        taus = np.linspace(first, last, SLOPES)
        rows = _mu_at(curve, taus)
        top = int(np.argmax(rows[:, 1]))
        candidates += rows.tolist()
        for _ in range(FINER):  # around the largest, ever finer
            taus = np.linspace(taus[max(top - 1, 0)], taus[min(top + 1, len(taus) - 1)], 7)
            rows = _mu_at(curve, taus)
            top = int(np.argmax(rows[:, 1]))
            candidates += rows.tolist()
    low, middle, high = (max(column) for column in zip(*candidates, strict=True))
    return low, middle, high * (1.0 + MU_ACCURACY)


def _mu_at(curve: Curve, taus: Real) -> Real:
    """μ of the Gaussian with the curve's H_{e^τ} at each τ ≥ 0: with H lowered by its error, as it is, and raised."""
    values, errors = hockey_sticks(curve, taus)
    goals = np.clip(np.stack([values + side * errors for side in SIDES], axis=1), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        logs = np.log(goals)
    low, high = np.full(goals.shape, log(1e-12)), np.full(goals.shape, log(100.0))
    for _ in range(60):  # bisection
        middle = 0.5 * (low + high)
        below = _gaussian_log_delta(np.exp(middle), taus[:, None]) < logs
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(goals <= 0.0, 0.0, np.where(high >= log(100.0), inf, np.exp(high)))


def _gaussian_log_delta(mu: Real, tau: Real) -> Real:
    """Logarithm of H_{e^τ} between N(μ, 1) and N(0, 1)."""
    first, second = log_ndtr(0.5 * mu - tau / mu), tau + log_ndtr(-0.5 * mu - tau / mu)
    with np.errstate(divide="ignore"):
        return first + np.log(-np.expm1(np.minimum(second - first, 0.0)))


def _regret(curve: Curve, mu: float) -> float:
    """Largest difference in the success of an attacker, over priors 1/(1+e^τ): (H_μ(τ) - H(τ)) / (1 + e^τ)."""
    if not 0.0 < mu < inf:
        return 0.0 if mu == 0.0 else 1.0  # a difference of probabilities
    taus = np.linspace(-1.0, 1.0, 41) * min(0.5 * mu * mu + 4.0 * mu, LARGEST_SLOPE)
    sticks, _ = hockey_sticks(curve, taus)
    return max(0.0, float(np.max((_gaussian_delta(mu, taus) - sticks) / (1.0 + np.exp(taus)))))


def _gaussian_delta(mu: float, taus: Real) -> Real:
    """H_{e^τ} between N(μ, 1) and N(0, 1)."""
    return np.exp(log_ndtr(0.5 * mu - taus / mu)) - np.exp(taus + log_ndtr(-0.5 * mu - taus / mu))
