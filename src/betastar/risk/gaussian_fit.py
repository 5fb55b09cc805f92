"""The Gaussian curve that lies above a trade-off curve: its μ, proved from above, and by how much it overstates."""

from __future__ import annotations

from math import inf, log
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtri

from betastar.arrays import Real
from betastar.risk import conversions
from betastar.risk.curve import Curve, hockey_sticks

#: The curve lowered by its error, as it is, and raised.
SIDES = (-1.0, 0.0, 1.0)
#: Slopes that are looked at first, largest log slope, and relative error of the bisections.
SLOPES, LARGEST_SLOPE, ACCURACY = 17, 700.0, 1e-8
#: How close the proved μ comes to the largest one that is known, relative to it; parts of a cell that is divided, how often cells
#: are divided, and the most that are.
CLOSE, PARTS, FINER, MOST_CELLS = 1e-5, 4, 6, 512


def mu(curve: Curve, smallest_fpr: float) -> tuple[float, float, float]:
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
    most = max(one[2] for one in candidates)
    if first < last:
        rows, inside = _largest_mu(curve, first, last)
        candidates += rows.tolist()
        most = max(most, inside)
    low, middle, _ = (max(column) for column in zip(*candidates, strict=True))
    return low, middle, most * (1.0 + ACCURACY)


def _largest_mu(curve: Curve, first: float, last: float) -> tuple[Real, float]:
    """μ at slopes between two, as rows of (lower, value, upper), and a bound of μ at all slopes between them.

    H is convex in α = e^τ, hence below its chords: no slope of a cell needs a larger μ than the chord does. Cells that may hold
    a larger μ than the largest one that is known are divided until the two agree.
    """
    taus = np.linspace(first, last, SLOPES)
    rows, sticks = _mu_at(curve, taus)
    cells = np.stack([taus[:-1], taus[1:], sticks[:-1], sticks[1:]])
    every, done = [rows], 0.0
    for finer in range(FINER + 1):
        bounds = _mu_of_chords(*cells)
        enough = float(np.max(np.concatenate(every)[:, 1])) * (1.0 + CLOSE)
        open_cells = bounds > enough
        done = max(done, float(bounds[~open_cells].max(initial=0.0)))
        if not open_cells.any():
            break
        if finer == FINER or open_cells.sum() > MOST_CELLS:
            done = max(done, float(bounds.max()))
            break
        left, right, above_left, above_right = cells[:, open_cells]
        parts = np.linspace(left, right, PARTS + 1)
        rows, sticks = _mu_at(curve, parts[1:-1].ravel())
        every.append(rows)
        levels = np.concatenate([above_left[None], sticks.reshape(PARTS - 1, -1), above_right[None]])
        cells = np.stack([one.ravel() for one in (parts[:-1], parts[1:], levels[:-1], levels[1:])])
    return np.concatenate(every), done


def _mu_of_chords(left: Real, right: Real, above_left: Real, above_right: Real) -> Real:
    """The smallest μ whose H is nowhere below a chord that has these values at the slopes `left` and `right`, for each chord.

    H_μ minus the chord is convex in α and least where -dH_μ/dα = Φ(-μ/2 - τ/μ) is the fall of the chord.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        width = np.exp(left) * np.expm1(right - left)
        fall = np.clip((above_left - above_right) / width, 0.0, 1.0)
        turn = ndtri(fall)

        def covered(mu: Real) -> Any:
            tau = np.clip(-mu * (turn + 0.5 * mu), left, right)
            chord = above_left - fall * np.exp(left) * np.expm1(tau - left)
            return _gaussian_log_delta(mu, tau) >= np.log(np.maximum(chord, 0.0))

        low, high = np.full(left.shape, log(1e-12)), np.full(left.shape, log(100.0))
        for _ in range(50):  # bisection
            middle = 0.5 * (low + high)
            enough = covered(np.exp(middle))
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(above_left <= 0.0, 0.0, np.where(high >= log(100.0), inf, np.exp(high)))


def _mu_at(curve: Curve, taus: Real) -> tuple[Real, Real]:
    """μ of the Gaussian with the curve's H_{e^τ} at each τ ≥ 0: with H lowered by its error, as it is, and raised; and that H."""
    values, errors = hockey_sticks(curve, taus)
    goals = np.clip(np.stack([values + side * errors for side in SIDES], axis=1), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        logs = np.log(goals)
    low, high = np.full(goals.shape, log(1e-12)), np.full(goals.shape, log(100.0))
    for _ in range(60):  # bisection
        middle = 0.5 * (low + high)
        below = _gaussian_log_delta(np.exp(middle), taus[:, None]) < logs
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(goals <= 0.0, 0.0, np.where(high >= log(100.0), inf, np.exp(high))), goals[:, 2]


def _gaussian_log_delta(mu: Real, tau: Real) -> Real:
    """Logarithm of H_{e^τ} between N(μ, 1) and N(0, 1)."""
    first, second = log_ndtr(0.5 * mu - tau / mu), tau + log_ndtr(-0.5 * mu - tau / mu)
    with np.errstate(divide="ignore"):
        return first + np.log(-np.expm1(np.minimum(second - first, 0.0)))


def regret(curve: Curve, mu: float) -> float:
    """Largest difference in the success of an attacker, over priors 1/(1+e^τ): (H_μ(τ) - H(τ)) / (1 + e^τ)."""
    if not 0.0 < mu < inf:
        return 0.0 if mu == 0.0 else 1.0  # a difference of probabilities
    taus = np.linspace(-1.0, 1.0, 41) * min(0.5 * mu * mu + 4.0 * mu, LARGEST_SLOPE)
    sticks, _ = hockey_sticks(curve, taus)
    return max(0.0, float(np.max((_gaussian_delta(mu, taus) - sticks) / (1.0 + np.exp(taus)))))


def _gaussian_delta(mu: float, taus: Real) -> Real:
    """H_{e^τ} between N(μ, 1) and N(0, 1)."""
    return np.exp(log_ndtr(0.5 * mu - taus / mu)) - np.exp(taus + log_ndtr(-0.5 * mu - taus / mu))
