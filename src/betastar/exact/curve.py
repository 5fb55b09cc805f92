"""Exact composition: the trade-off curve of independent steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import erfc, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from betastar.curves import LARGEST_EPSILON, Answers, Curve, Value
from betastar.exact.inversion import LOST, TINY, Composition, Inversion, cumulants, plain_overlap
from betastar.steps.base import EPS, StepFactor

# ---- tangents
# Searches along a trade-off curve whose tangents are known: which threshold belongs to a false-positive rate, or to a δ.
#
# A threshold τ gives a point (Q(L > τ), P(L > τ)) of the curve and the tangent there, with slope e^τ. The curve is concave: it
# lies below its tangents and above the chords between its points, so that every search knows how far it is from the end.

#: A rate is found when tangent and chord differ by less, relative to it; ε when its bracket is narrower, relative to it.
SEARCH = 1e-8
WIDTH = 2e-10
#: Most evaluations of a search; most are done after three.
ROUNDS = 80
#: Most points whose side is not sure before a search is given up.
UNSURE = 8
#: Smallest and largest threshold of a rate.
LOWEST, HIGHEST = -700.0, 700.0

Evaluation = Callable[[NDArray[Any]], Answers]


class _Points:
    """Points of the curve, in the order of their thresholds; at first its two ends (1, 1) and (0, 0)."""

    def __init__(self) -> None:
        zeros = [0.0, 0.0]
        self._rows = np.array([[-inf, inf], [1.0, 0.0], zeros, [1.0, 0.0], zeros, [1.0, 0.0], zeros])

    def add(self, taus: NDArray[Any], answers: Answers) -> None:
        power = answers.stick + answers.hit
        new = np.stack([taus, answers.stick, answers.error, answers.mass, answers.mass_error, power, answers.density])
        rows = np.concatenate([self._rows, new], axis=1)
        self._rows = rows[:, np.argsort(rows[0], kind="stable")]
        self.tau, self.stick, self.error, self.mass, self.mass_error, self.power, self.density = self._rows

    def around(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """For each rate the nearest points on either side that are there for sure, whatever the errors of Q(L > τ) are."""
        last = len(self.tau) - 1
        left = last - np.argmax((self.mass - self.mass_error >= fprs[:, None])[:, ::-1], axis=1)
        right = np.argmax(self.mass + self.mass_error <= fprs[:, None], axis=1)
        return left, np.maximum(right, left + 1)

    def lowest(self, left: NDArray[Any], right: NDArray[Any], fprs: NDArray[Any]) -> NDArray[Any]:
        """The point between these whose tangent is the lowest at each rate."""
        index = np.arange(len(self.tau))
        with np.errstate(over="ignore"):
            values = self.stick + np.exp(self.tau) * fprs[:, None]
        return np.argmin(np.where((index >= left[:, None]) & (index <= right[:, None]), values, inf), axis=1)

    def tangent(self, index: NDArray[Any], fprs: NDArray[Any]) -> NDArray[Any]:
        """H + e^τ·FPR of the tangents at these points."""
        with np.errstate(over="ignore"):
            return self.stick[index] + np.exp(self.tau[index]) * fprs

    def gap(self, left: NDArray[Any], right: NDArray[Any], touch: NDArray[Any], fprs: NDArray[Any]) -> NDArray[Any]:
        """By how much the tangent at `touch` may lie above the curve, which runs from the point `left` to the point `right`.

        The curve lies above the chord between the two; as Q(L > τ) there is not exact, they may move along their tangents. And it
        leaves the tangent where that touches, with a slope that changes by no more than from `left` to `right`.
        """
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            bend = np.exp(self.tau[right]) - np.exp(self.tau[left])
            to_end = np.maximum(self.stick[left] / self.mass[left], self.stick[touch] / fprs)  # the chord to (0, 0)
            bend = np.where(np.isfinite(self.tau[right]), bend, to_end)
            slope = (self.power[left] - self.power[right]) / (self.mass[left] - self.mass[right])
            chord = self.power[right] + slope * (fprs - self.mass[right])
            errors = self.mass_error[left] + self.mass_error[right]
            above = np.maximum(self.tangent(touch, fprs) - np.maximum(chord, fprs), 0.0) + np.where(
                errors > 0.0, bend * errors, 0.0
            )
            apart = np.abs(self.mass[touch] - fprs) + self.mass_error[touch]
            beside = np.where(np.isfinite(self.tau[touch]), bend * apart, inf)
        return np.fmin(np.fmin(above, beside), 1.0)

    def between(self, left: NDArray[Any], right: NDArray[Any], goals: NDArray[Any]) -> NDArray[Any]:
        """The threshold with this normal quantile of Q(L > τ), by the cubic through two points with the slopes there."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ends, slopes = [], []
            for index in (left, right):
                quantile = -ndtri(self.mass[index])
                ends.append(quantile)
                slopes.append(np.exp(-0.5 * quantile**2) / np.sqrt(2.0 * np.pi) / self.density[index])
            width = ends[1] - ends[0]
            t = (goals - ends[0]) / width
            start = (1.0 + 2.0 * t) * (1.0 - t) ** 2 * self.tau[left] + t * t * (3.0 - 2.0 * t) * self.tau[right]
            return start + width * t * (1.0 - t) * ((1.0 - t) * slopes[0] - t * slopes[1])


def rates_on_tangents(
    evaluate: Evaluation, guesses: NDArray[Any], fprs: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The true-positive rate at each false-positive rate in (0, 1): the lowest tangent; its error; its threshold.

    guesses: thresholds around those of the rates. Thresholds are interpolated between the points that are known, or taken from
    the slope of a chord where that does not get nearer.
    """
    points = _Points()
    goals = -ndtri(fprs)
    taus = np.clip(guesses, LOWEST, HIGHEST)
    open_ = np.arange(len(fprs))
    values, errors, best = np.ones(len(fprs)), np.zeros(len(fprs)), np.zeros(len(fprs))
    for turn in range(ROUNDS):
        asked = np.unique(taus)
        points.add(asked, evaluate(asked))
        left, right = points.around(fprs[open_])
        touch = points.lowest(left, right, fprs[open_])
        top = points.tangent(touch, fprs[open_])
        gap, error = points.gap(left, right, touch, fprs[open_]), points.error[touch]
        with np.errstate(divide="ignore", invalid="ignore"):
            kink = np.log((points.power[left] - points.power[right]) / (points.mass[left] - points.mass[right]))
        low, high = points.tau[left], points.tau[right]
        smooth = points.between(left, right, goals[open_])
        inside = (smooth > low) & (smooth < high)
        values[open_], errors[open_] = top, error + gap
        best[open_] = np.where(inside, smooth, points.tau[touch])
        more = gap > np.maximum(SEARCH * top, 0.3 * error)
        middle = 0.5 * (np.maximum(low, LOWEST) + np.minimum(high, HIGHEST))
        taus = np.where((kink > low) & (kink < high) & (turn % 3 != 2), kink, middle)
        taus = np.where(inside & ((turn < 3) | (turn % 3 == 0)), smooth, taus)
        more &= (taus > low) & (taus < high) & (right - left <= UNSURE)
        open_, taus = open_[more], taus[more]
        if not open_.size:
            break
    return np.clip(values, fprs, 1.0), errors, np.clip(best, LOWEST, HIGHEST)


def epsilons_on_tangents(
    evaluate: Evaluation, guesses: NDArray[Any], deltas: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """ε ≥ 0 with H_{e^ε} = δ, for each δ: from below, as it is, and from above. Newton's method on log H, in a bracket."""
    start = evaluate(np.zeros(1))
    size = len(deltas)
    low, high = np.zeros(size), np.full(size, inf)
    values, slack = np.zeros(size), np.zeros(size)
    open_ = np.flatnonzero(start.stick[0] > deltas)
    taus = np.maximum(guesses[open_], 1e-300)
    for _ in range(ROUNDS):
        if not open_.size:
            break
        answers = evaluate(taus)
        above = answers.stick > deltas[open_]
        low[open_[above]], high[open_[~above]] = taus[above], taus[~above]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            move = np.log(answers.stick / deltas[open_]) * answers.stick / answers.hit
            slack[open_] = np.where(answers.hit > 0.0, (np.abs(answers.stick - deltas[open_]) + answers.error) / answers.hit, 0.0)
        values[open_] = taus
        enough = np.minimum(0.05 * answers.error, 0.01 * deltas[open_])
        off = np.abs(answers.stick - deltas[open_])
        settled = (off <= enough) | ((np.abs(move) <= 1e-12 * taus) & (off <= 1e-6 * deltas[open_]))
        new = taus + move
        least, most = low[open_], high[open_]
        middle = np.where(most < inf, 0.5 * (least + most), 2.0 * np.maximum(taus, 0.5))
        new = np.where((new > least) & (new < most) & (new < 4.0 * taus + 1.0), new, middle)
        settled |= (new <= least) | (new >= most) | (most <= least * (1.0 + 1e-13))
        values[open_[new > LARGEST_EPSILON]] = inf
        more = ~settled & (new <= LARGEST_EPSILON)
        open_, taus = open_[more], new[more]
    return _sides(evaluate, values, slack, deltas, start)


def _sides(
    evaluate: Evaluation, values: NDArray[Any], slack: NDArray[Any], deltas: NDArray[Any], start: Answers
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """ε from both sides: the nearest ends at which H, with its error, is not below δ, and not above it."""
    known = values < inf
    lower, upper = np.where(known, 0.0, LARGEST_EPSILON), np.full(len(values), inf)
    upper[(values == 0.0) & (start.stick[0] + start.error[0] <= deltas)] = 0.0
    first = np.where(values > 0.0, 1.1 * np.nan_to_num(slack, posinf=0.0) + WIDTH * values + 1e-300, 1e-9)
    first = np.where((values > 0.0) & known, np.minimum(first, 0.05 * values), first)
    for sign, ends in ((-1.0, lower), (1.0, upper)):
        at = np.flatnonzero(known & (np.where(sign < 0.0, values, upper) > 0.0))
        width, short, enough = first.copy(), np.zeros(len(values)), np.full(len(values), inf)
        for _ in range(ROUNDS):  # four times as far until it is enough, then between what is enough and what is not
            if not at.size:
                break
            tried = np.maximum(values[at] + sign * width[at], 0.0)
            answers = evaluate(tried)
            done = (
                (sign * (answers.stick + sign * answers.error - deltas[at]) <= 0.0) | (tried == 0.0) | (tried > LARGEST_EPSILON)
            )
            ends[at[done]] = np.where(tried[done] > LARGEST_EPSILON, inf, tried[done])
            enough[at[done]], short[at[~done]] = width[at[done]], width[at[~done]]
            at = at[(enough[at] == inf) | ((short[at] > 0.0) & (enough[at] > 1.5 * short[at]))]
            width = np.where(enough < inf, np.sqrt(short * np.minimum(enough, 1e200)), 4.0 * width)
    return lower, values, upper


# ---- exact
# Exact composition: the trade-off curve of independent steps, from contour integrals of their composed transform.
#
# `composition.py` multiplies the transforms, `contour.py` inverts the product at many thresholds at once, `tangents.py` searches
# the thresholds that belong to given false-positive rates or δ. A single step, and steps without sampling, have closed forms.
#
# Errors, all reported: the step in v (measured, by halving), the nodes of the transform (exponentially small, a constant
# that the tests verify), rounding, and the search (bounded from both sides).


#: Least noise that is integrated. With less, membership leaks what it can leak, to 1e-11: the ceiling and the risk at this
#: noise enclose the truth.
LEAST_NOISE = 0.07


class FourierCurve(Curve):
    """The trade-off curve of independent steps, from their transforms."""

    def __init__(self, factors: Sequence[StepFactor], symmetric: bool) -> None:
        self.factors = tuple(factors)
        self.symmetric = symmetric

    def reversed(self) -> FourierCurve:
        """The curve of (Q, P)."""
        return self._reversed

    @cached_property
    def _reversed(self) -> FourierCurve:
        if self.symmetric:
            return self
        other = FourierCurve([factor.exchanged() for factor in self.factors], False)
        other.__dict__["_reversed"] = self
        return other

    @cached_property
    def _composition(self) -> Composition:
        return Composition(self.factors)

    @cached_property
    def _single(self) -> StepFactor | None:
        """The step of a run of one step, if H has a closed form."""
        if len(self.factors) != 1 or self.factors[0].count != 1 or not self.factors[0].closed_form():
            return None
        return self.factors[0]

    @cached_property
    def _gaussian(self) -> float | None:
        """μ, if every record takes part in every step: then the worlds are N(0, 1) and N(μ, 1), μ² = Σ (R/σ)²."""
        square = 0.0
        for factor in self.factors:
            if (one := factor.mu_square) is None:
                return None
            square += factor.count * one
        return sqrt(square) if square > 0.0 else None

    # Answers.

    def overlap(self) -> Value:
        """E[min(P, Q)] = β*, accurate relative to itself."""
        return self._overlap

    @cached_property
    def _overlap(self) -> Value:
        if not self.factors:
            return Value(1.0, 0.0)
        if len(self.factors) == 1 and self.factors[0].count == 1 and (one := self.factors[0].overlap()) is not None:
            return Value(one, 8.0 * EPS * one)
        if self._gaussian is not None:
            value = erfc(self._gaussian / (2.0 * sqrt(2.0)))
            return Value(value, 8.0 * EPS * value * (1.0 + self._gaussian**2))
        if (plain := plain_overlap(self._composition)) is not None:
            return Value(*plain)
        if not len(self._composition.inside):  # β* ≤ M(1/2), which is lost in rounding
            return Value(0.0, LOST)
        answers = Inversion(self._composition, overlap_only=True).at(np.zeros(1))
        return Value(float(answers.overlap[0]), float(answers.error[0]))

    def hockey_stick(self, tau: float) -> Value:
        """H_{e^τ}(P‖Q) = P(L > τ) - e^τ Q(L > τ), accurate relative to itself where it is small."""
        values, errors = self.hockey_sticks(np.array([tau]))
        return Value(float(values[0]), float(errors[0]))

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """H_{e^τ}(P‖Q) at each τ, and their errors, in one pass."""
        answers = self._inversion()(np.asarray(taus, dtype=np.float64))
        return answers.stick, answers.error

    def true_positive_rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        values, errors, _ = self.rates(fprs)
        return values, errors

    def true_positives(self, fpr: float) -> Value:
        """Largest P(reject) over tests with Q(reject) ≤ fpr."""
        values, errors, _ = self.rates(np.array([fpr]))
        return Value(float(values[0]), float(errors[0]))

    def threshold(self, fpr: float) -> float:
        """The τ of the best test with this false-positive rate: the logarithm of the curve's slope there."""
        return float(self.rates(np.array([fpr]))[2][0])

    def rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """True-positive rates, their errors and the thresholds of the best tests at each false-positive rate, in one pass."""
        fprs = np.asarray(fprs, dtype=np.float64)
        values, errors, taus = fprs.copy(), np.zeros(len(fprs)), np.zeros(len(fprs))
        within = (fprs > 0.0) & (fprs < 1.0)
        if not self.factors or not within.any():
            return values, errors, taus
        asked = fprs[within]
        around = np.array([0.9 * asked.min(), 0.1 + 0.9 * asked.max()])  # so that every rate has points on both sides
        ends = [end for end in self._composition.range if np.isfinite(end)]  # where Q(L > τ) is known
        guesses = np.append(self._guesses(np.concatenate([asked, around])), ends)
        values[within], errors[within], taus[within] = rates_on_tangents(self._inversion(), guesses, asked)
        return values, errors, taus

    def epsilons(self, deltas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """ε ≥ 0 with H_{e^ε} = δ for each δ, from below, as it is, and from above."""
        deltas = np.asarray(deltas, dtype=np.float64)
        if not self.factors:
            nothing = np.zeros(len(deltas))
            return nothing, nothing, nothing
        return epsilons_on_tangents(self._inversion(), self._epsilon_guesses(deltas), deltas)

    # How H and Q(L > τ) are computed.

    def _inversion(self) -> Evaluation:
        """A function of thresholds; lines of integration that it has computed serve later calls."""
        if not self.factors:
            return _nothing
        if self._gaussian is not None:
            return self._without_sampling
        ahead, behind = self._single, self.reversed()._single
        if ahead is not None and behind is not None:
            sides = ahead.answers, behind.answers
        else:
            general = Inversion(self._composition).at
            if ahead is None and behind is None:
                return general
            sides = ahead.answers if ahead else general, behind.answers if behind else general

        def one_step(taus: NDArray[Any]) -> Answers:
            answers = np.empty((len(Answers._fields), len(taus)))
            for chosen, answer in zip((taus >= 0.0, taus < 0.0), sides, strict=True):
                if chosen.any():
                    answers[:, chosen] = answer(taus[chosen])
            return Answers(*answers)

        return one_step

    def _without_sampling(self, taus: NDArray[Any]) -> Answers:
        """H = Φ(μ/2 - τ/μ) - e^τ Φ(-μ/2 - τ/μ), by logarithms."""
        mu = self._gaussian
        assert mu is not None
        a, b = 0.5 * mu - taus / mu, -0.5 * mu - taus / mu
        first, second = log_ndtr(a), taus + log_ndtr(b)
        with np.errstate(divide="ignore", under="ignore", over="ignore"):
            power, hit, mass = np.exp(first), np.exp(second), ndtr(b)
            stick = power * -np.expm1(np.minimum(second - first, 0.0))
            density = np.exp(-0.5 * b * b) / (sqrt(2.0 * np.pi) * mu)
        error = 16.0 * EPS * power * (1.0 + np.minimum(a, 0.0) ** 2 + np.minimum(np.abs(taus), hit)) + TINY
        return Answers(stick, 1.0 - stick, error, mass, 16.0 * EPS * mass * (1.0 + b * b), hit, density)

    # First guesses of thresholds.

    def _guesses(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """The τ with Q(L > τ) = FPR, nearly: r* = r + log(u/r)/r is almost normal under Q, with r² = 2(θK' - K), u² = θ²K''."""
        if self._gaussian is not None:
            return -self._gaussian * (ndtri(fprs) + 0.5 * self._gaussian)
        if self._single is not None:
            return self._single.guess(fprs)
        table = [self._composition.inside, self._composition.beyond]
        thetas, value, slope, bend = (
            np.concatenate([getattr(strip, name) for strip in table]) for name in ("thetas", "value", "slope", "bend")
        )
        if fprs.max() > 0.4:
            left = 1.0 - (self._composition.beyond.thetas[::-1] if len(self._composition.beyond) else np.full(1, 1.5))
            more = cumulants(self._composition.wide, left)
            known = np.isfinite(more[0]) & np.isfinite(more[2])
            thetas, value, slope, bend = (
                np.concatenate([new[known], old]) for new, old in zip((left, *more), (thetas, value, slope, bend), strict=True)
            )
        if not len(thetas):
            return np.zeros(len(fprs))
        root = np.sign(thetas) * np.sqrt(np.maximum(2.0 * (thetas * slope - value), 0.0))
        far = np.abs(root) > 0.02
        if far.sum() < 2:
            return np.interp(-ndtri(fprs), root, slope)
        spread = np.sqrt(bend[np.argmin(np.abs(root))])
        root, ratio, slope = root[far], (thetas * np.sqrt(bend))[far], slope[far]
        normal = np.maximum.accumulate(root + np.log(np.maximum(ratio / root, 1e-300)) / root)
        goals, slope = -ndtri(fprs), np.maximum.accumulate(slope)
        outside = np.minimum(goals - normal[0], 0.0) + np.maximum(goals - normal[-1], 0.0)
        return np.interp(goals, normal, slope) + spread * outside

    def _epsilon_guesses(self, deltas: NDArray[Any]) -> NDArray[Any]:
        """The τ with H_{e^τ} = δ, nearly: the integral by Laplace's method."""
        if self._gaussian is not None:
            return np.maximum(self._gaussian * (0.5 * self._gaussian - ndtri(deltas)), 0.0)
        if self._single is not None or not len(self._composition.beyond):
            return np.ones(len(deltas))
        strip = self._composition.beyond
        t, taus = strip.thetas, strip.taus
        sizes = strip.value + (1.0 - t) * taus - np.log(t * (t - 1.0)) - 0.5 * np.log(2.0 * np.pi * strip.curvature)
        return np.maximum(np.interp(-np.log(deltas), np.maximum.accumulate(-sizes), taus), 0.0)


def _nothing(taus: NDArray[Any]) -> Answers:
    """A run that tells nothing: P = Q."""
    stick, zero = np.maximum(-np.expm1(taus), 0.0), np.zeros(len(taus))
    return Answers(stick, 1.0 - stick, zero, 1.0 * (taus < 0.0), zero, np.exp(taus) * (taus < 0.0), zero)
