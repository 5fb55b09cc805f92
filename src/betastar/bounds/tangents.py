"""Searches along a trade-off curve whose tangents are known: which threshold belongs to a false-positive rate, or to a δ.

A threshold τ gives a point (Q(L > τ), P(L > τ)) of the curve and the tangent there, with slope e^τ. The curve is concave: it lies
below its tangents and above the chords between its points, so that every search knows how far it is from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from scipy.special import ndtri

from betastar.arrays import Real
from betastar.bounds.contour import Answers

#: A rate is found when tangent and chord differ by less, relative to it; ε when its bracket is narrower, relative to it.
SEARCH = 1e-8
WIDTH = 2e-10
#: ε above this is reported as infinite.
LARGEST_EPSILON = 1e12
#: Most evaluations of a search; most are done after three.
ROUNDS = 80
#: Smallest and largest threshold of a rate.
LOWEST, HIGHEST = -700.0, 700.0

Evaluation = Callable[[Real], Answers]


class _Points:
    """Points of the curve, in the order of their thresholds; at first its two ends (1, 1) and (0, 0)."""

    def __init__(self) -> None:
        zeros = [0.0, 0.0]
        self._rows = np.array([[-inf, inf], [1.0, 0.0], zeros, [1.0, 0.0], zeros, [1.0, 0.0], zeros])

    def add(self, taus: Real, answers: Answers) -> None:
        power = answers.stick + answers.hit
        new = np.stack([taus, answers.stick, answers.error, answers.mass, answers.mass_error, power, answers.density])
        rows = np.concatenate([self._rows, new], axis=1)
        self._rows = rows = rows[:, np.argsort(rows[0], kind="stable")]
        self.tau, self.stick, self.error, mass, mass_error, self.power, self.density = rows
        self.mass = np.minimum.accumulate(np.clip(mass, 0.0, 1.0))  # what an error turned round is turned back, and counts
        self.mass_error = mass_error + np.abs(self.mass - mass)
        finite = np.isfinite(self.tau) & (self.mass != mass)  # such a point moves along its tangent
        self.power = np.where(finite, self.stick + np.exp(np.where(finite, self.tau, 0.0)) * self.mass, self.power)

    def tangent(self, index: Real, fprs: Real) -> Real:
        """H + e^τ·FPR of the tangents at these points."""
        with np.errstate(over="ignore"):
            return self.stick[index] + np.exp(self.tau[index]) * fprs

    def doubt(self, left: Real, right: Real) -> Real:
        """By how much a chord may lie too high because Q(L > τ) at its ends is not exact: they move along their tangents."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            bend = np.exp(self.tau[right]) - np.exp(self.tau[left])
            last = np.where(self.mass[left] > 0.0, self.stick[left] / self.mass[left], inf)  # the chord to (0, 0)
            bend = np.where(np.isfinite(self.tau[right]), bend, last)
            errors = self.mass_error[left] + self.mass_error[right]
            return np.where(errors > 0.0, np.minimum(bend * errors, 1.0), 0.0)

    def between(self, left: Real, right: Real, goals: Real) -> Real:
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


def rates(evaluate: Evaluation, guesses: Real, fprs: Real) -> tuple[Real, Real, Real]:
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
        right = np.searchsorted(-points.mass, -fprs[open_], side="left")  # the first point with Q(L > τ) ≤ FPR
        right = np.clip(right, 1, len(points.tau) - 1)
        left = right - 1
        above = np.stack([points.tangent(left, fprs[open_]), points.tangent(right, fprs[open_])])
        touch = np.where(above[0] <= above[1], left, right)
        top = above.min(axis=0)
        width = points.mass[left] - points.mass[right]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (points.power[left] - points.power[right]) / width
            chord = points.power[right] + slope * (fprs[open_] - points.mass[right])
            kink = np.log(slope)
        bottom = np.where(width > 0.0, chord, points.power[right])
        gap, doubt, error = np.maximum(top - np.maximum(bottom, fprs[open_]), 0.0), points.doubt(left, right), points.error[touch]
        low, high = points.tau[left], points.tau[right]
        smooth = points.between(left, right, goals[open_])
        inside = (smooth > low) & (smooth < high)
        values[open_], errors[open_] = top, np.minimum(error + gap + doubt, 1.0)
        best[open_] = np.where(inside, smooth, points.tau[touch])
        more = (gap > np.maximum(SEARCH * top, 0.3 * error)) | (doubt > np.maximum(SEARCH * top, error))
        middle = 0.5 * (np.maximum(low, LOWEST) + np.minimum(high, HIGHEST))
        taus = np.where((kink > low) & (kink < high) & (turn % 3 != 2), kink, middle)
        taus = np.where(inside & ((turn < 3) | (turn % 3 == 0)), smooth, taus)
        more &= (taus > low) & (taus < high)
        open_, taus = open_[more], taus[more]
        if not open_.size:
            break
    return np.clip(values, fprs, 1.0), errors, np.clip(best, LOWEST, HIGHEST)


def epsilons(evaluate: Evaluation, guesses: Real, deltas: Real) -> tuple[Real, Real, Real]:
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


def _sides(evaluate: Evaluation, values: Real, slack: Real, deltas: Real, start: Answers) -> tuple[Real, Real, Real]:
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
            width = np.where(enough < inf, np.sqrt(short * np.minimum(enough, 1e300)), 4.0 * width)
    return lower, values, upper
