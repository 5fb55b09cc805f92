"""Every metric of one scalar run, read off its trade-off curves, or off β* where a method has no curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np

from betastar.arrays import Real
from betastar.bounds.discrete import LeastCurve
from betastar.risk import conversions, gaussian_fit
from betastar.risk.curve import Curve, epsilons, hockey_sticks, true_positives
from betastar.risk.interval import Bound, GaussianFit, stack


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

    def mean_delta(self, epsilons: Real) -> Real:
        """At each ε ≥ 0, the upper end of the mean of δ from P to Q and from Q to P; δ itself if either world may be P."""
        if not self.worst or not self.oriented:
            return np.asarray(self.delta(epsilons).upper)
        ways = [[hockey_sticks(one, epsilons) for one in facing] for facing in (self.worst, [c.reversed() for c in self.worst])]
        each = [np.max([values + errors for values, errors in way], axis=0) for way in ways]
        return np.asarray(0.5 * sum(np.clip(one, 0.0, 1.0) for one in each))

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
        mu = _of_shape(self._enclose(lambda curve: gaussian_fit.mu(curve, smallest_fpr)), smallest_fpr)
        regret = max(gaussian_fit.regret(curve, mu.upper) for curve in self.worst)
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
