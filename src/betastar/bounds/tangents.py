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
from betastar.bounds.answers import Answers

#: A rate is found when tangent and chord differ by less, relative to it; ε when its bracket is narrower, relative to it.
SEARCH = 1e-8
WIDTH = 2e-10
#: ε above this is reported as infinite.
LARGEST_EPSILON = 1e12
#: Most evaluations of a search; most are done after three.
ROUNDS = 80
#: Most points whose side is not sure before a search is given up.
UNSURE = 8
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
        self._rows = rows[:, np.argsort(rows[0], kind="stable")]
        self.tau, self.stick, self.error, self.mass, self.mass_error, self.power, self.density = self._rows

    def around(self, fprs: Real) -> tuple[Real, Real]:
        """For each rate the nearest points on either side that are there for sure, whatever the errors of Q(L > τ) are."""
        last = len(self.tau) - 1
        left = last - np.argmax((self.mass - self.mass_error >= fprs[:, None])[:, ::-1], axis=1)
        right = np.argmax(self.mass + self.mass_error <= fprs[:, None], axis=1)
        return left, np.maximum(right, left + 1)

    def lowest(self, left: Real, right: Real, fprs: Real) -> Real:
        """The point between these whose tangent is the lowest at each rate."""
        index = np.arange(len(self.tau))
        with np.errstate(over="ignore"):
            values = self.stick + np.exp(self.tau) * fprs[:, None]
        return np.argmin(np.where((index >= left[:, None]) & (index <= right[:, None]), values, inf), axis=1)

    def tangent(self, index: Real, fprs: Real) -> Real:
        """H + e^τ·FPR of the tangents at these points."""
        with np.errstate(over="ignore"):
            return self.stick[index] + np.exp(self.tau[index]) * fprs

    def gap(self, left: Real, right: Real, touch: Real, fprs: Real) -> Real:
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
            width = np.where(enough < inf, np.sqrt(short * np.minimum(enough, 1e200)), 4.0 * width)
    return lower, values, upper
