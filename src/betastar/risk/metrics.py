"""Every metric of one scalar run, read off its trade-off curves, or off β* where a method has no curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log
from typing import Protocol

import numpy as np
from scipy.special import log_ndtr, ndtri

from betastar.arrays import Real
from betastar.bounds.exact import Value
from betastar.risk import conversions
from betastar.risk.interval import Bound, GaussianFit

#: The curve lowered by its error, as it is, and raised.
SIDES = (-1.0, 0.0, 1.0)
#: ε above this is reported as infinite.
LARGEST_EPSILON = 1e12
#: The Gaussian fit: slopes that are looked at, times that the best of them is refined, relative error, and largest log slope.
SLOPES, FINER, MU_ACCURACY, LARGEST_SLOPE = 17, 3, 1e-8, 700.0


class Curve(Protocol):
    """A trade-off curve between two worlds P (positive) and Q. Answers are (value, numerical error)."""

    def reversed(self) -> Curve: ...

    def overlap(self) -> Value: ...

    def hockey_stick(self, tau: float) -> Value: ...

    def true_positives(self, fpr: float) -> Value: ...

    def threshold(self, fpr: float) -> float: ...


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

    def tpr(self, fpr: float) -> Bound:
        if self.worst:
            return self._read(lambda curve: curve.true_positives(fpr), fpr, 1.0, both_ways=not self.oriented)
        adv = self._advantage
        highest, middle = (conversions.tpr_at_most(a, fpr) for a in (adv.upper, adv.estimate))
        return Bound(conversions.tpr_at_least(adv.lower, fpr), middle, highest)

    def success(self, prior: float) -> Bound:
        """Best guess of two worlds, the positive one with probability `prior`: 1 - π + π·H at α = (1-π)/π."""
        idle = max(prior, 1.0 - prior)
        if prior in (0.0, 1.0):
            return Bound(1.0, 1.0, 1.0)
        if self.worst:
            tau = log((1.0 - prior) / prior)

            def guess(curve: Curve) -> Value:
                value, error = curve.hockey_stick(tau)
                return Value(1.0 - prior + prior * value, prior * error)

            return self._read(guess, idle, 1.0, both_ways=not self.oriented)
        adv = self._advantage
        highest, middle = (conversions.success_at_most(a, prior) for a in (adv.upper, adv.estimate))
        return Bound(0.5 * (1.0 + adv.lower) if prior == 0.5 else idle, middle, highest)

    def success_among(self, largest_prior: float) -> Bound:
        """Best guess among M secrets: ≤ 1 - β*(1 - max π), and ≤ TPR at FPR max π."""
        beta, rate = self.bayes_security, self.tpr(largest_prior)
        upper = min(1.0 - beta.lower * (1.0 - largest_prior), rate.upper)
        estimate = min(1.0 - beta.estimate * (1.0 - largest_prior), rate.estimate)
        return Bound(largest_prior, estimate, upper)

    def delta(self, epsilon: float) -> Bound:
        if self.worst:
            return self._read(lambda curve: curve.hockey_stick(epsilon), 0.0, 1.0, both_ways=True)
        adv = self._advantage
        return Bound(conversions.delta_at_least(adv.lower, epsilon), adv.estimate, adv.upper)

    def epsilon(self, delta: float) -> Bound:
        if self.worst:
            return self._enclose(lambda curve: _epsilon(curve, delta))
        beta = self.bayes_security
        least = conversions.epsilon_from_bayes_security(beta.upper, delta)
        middle = conversions.epsilon_from_bayes_security(beta.estimate, delta)
        return Bound(least, middle, 0.0 if delta >= 1.0 - beta.lower else inf)

    def gaussian(self, smallest_fpr: float) -> GaussianFit:
        if not self.worst:
            beta = self.bayes_security
            least, middle = (conversions.mu_from_overlap(b) for b in (beta.upper, beta.estimate))
            some = inf if beta.lower < 1.0 else 0.0
            return GaussianFit(least, middle, some, some, smallest_fpr)
        mu = self._enclose(lambda curve: _mu(curve, smallest_fpr))
        regret = max(_regret(curve, mu.upper) for curve in self.worst)
        return GaussianFit(mu.lower, mu.estimate, mu.upper, regret, smallest_fpr)

    def _enclose(self, metric: Callable[[Curve], tuple[float, float, float]]) -> Bound:
        """The worst of the curves, both ways, for a metric that gives (lower, value, upper) of a curve."""
        worst = [metric(curve) for curve in _both_ways(self.worst)]
        attained = worst if self.attained is self.worst else [metric(curve) for curve in _both_ways(self.attained)]
        middle = max(value for _, value, _ in (attained or worst))
        lower = max((low for low, _, _ in attained), default=0.0)
        return Bound(min(lower, middle), middle, max(middle, *(high for _, _, high in worst)))

    def _read(self, metric: Callable[[Curve], Value], least: float, most: float, both_ways: bool) -> Bound:
        """The worst of the curves; never below `least`, what an attacker without the model has."""
        facing = _both_ways if both_ways else tuple
        worst = [metric(curve) for curve in facing(self.worst)]
        attained = worst if self.attained is self.worst else [metric(curve) for curve in facing(self.attained)]
        upper = max(value + error for value, error in worst)
        lower = max((value - error for value, error in attained), default=least)
        estimate = max(value for value, _ in (attained or worst))
        inside = [min(max(number, least), most) for number in (lower, estimate, upper)]
        return Bound(min(inside[:2]), inside[1], max(inside[1:]))


def _both_ways(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """The curves and their reversals, without repeating the symmetric ones."""
    found: list[Curve] = []
    for curve in curves:
        other = curve.reversed()
        found += [curve] if other is curve else [curve, other]
    return tuple(found)


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
    found = [[conversions.mu_from_overlap(max(value - side * error, 0.0)) for side in SIDES]]
    rate, slack = curve.true_positives(smallest_fpr)
    lowest, middle, highest = (max(rate + side * slack, smallest_fpr) for side in SIDES)
    if lowest <= 1.0 - smallest_fpr:
        rates = (lowest, min(middle, 1.0 - smallest_fpr), min(highest, 1.0 - smallest_fpr))
        found.append([float(ndtri(rate) - ndtri(smallest_fpr)) for rate in rates])
    first, last = max(0.0, -curve.reversed().threshold(smallest_fpr)), min(curve.threshold(smallest_fpr), LARGEST_SLOPE)
    if first < last:
        taus = np.linspace(first, last, SLOPES)
        rows = _mu_at(curve, taus)
        top = int(np.argmax(rows[:, 1]))
        found += rows.tolist()
        for _ in range(FINER):  # around the largest, ever finer
            taus = np.linspace(taus[max(top - 1, 0)], taus[min(top + 1, len(taus) - 1)], 7)
            rows = _mu_at(curve, taus)
            top = int(np.argmax(rows[:, 1]))
            found += rows.tolist()
    low, middle, high = (max(column) for column in zip(*found, strict=True))
    return low, middle, high * (1.0 + MU_ACCURACY)


def _mu_at(curve: Curve, taus: Real) -> Real:
    """μ of the Gaussian with the curve's H_{e^τ} at each τ ≥ 0: with H lowered by its error, as it is, and raised."""
    sticks = [curve.hockey_stick(float(tau)) for tau in taus]
    goals = np.array([[min(max(value + side * error, 0.0), 1.0) for side in SIDES] for value, error in sticks])
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
        return 0.0 if mu == 0.0 else inf
    taus = np.linspace(-1.0, 1.0, 41) * min(0.5 * mu * mu + 4.0 * mu, LARGEST_SLOPE)
    gaps = [(_gaussian_delta(mu, float(tau)) - curve.hockey_stick(float(tau)).value) / (1.0 + exp(tau)) for tau in taus]
    return max(0.0, *gaps)


@lru_cache(maxsize=1024)
def _gaussian_delta(mu: float, tau: float) -> float:
    """H_{e^τ} between N(μ, 1) and N(0, 1)."""
    return exp(log_ndtr(0.5 * mu - tau / mu)) - exp(tau + log_ndtr(-0.5 * mu - tau / mu))
