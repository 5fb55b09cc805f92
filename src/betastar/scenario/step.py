"""One step of DP-SGD as a pair of distributions on the line, in real arithmetic (the certified bounds build on it).

In units of the clipping norm an observer of one step sees P = (1-p)N(0,σ²) + pN(a,σ²) or Q = (1-p)N(0,σ²) + pN(b,σ²),
with a = 1 and b = 1 - R (theory, section 2). Probabilities come as (gain, mass) = (P(S) - Q(S), Q(S)) of a set S, because
the hockey-stick divergence is gain - (α-1)·mass, and the gain keeps its digits where P(S) - Q(S) would lose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, erfc, sqrt
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from betastar.arrays import Real


@dataclass(frozen=True)
class Step:
    """`count` steps with the same rate p, noise σ and distance R between the two candidate gradients."""

    rate: float
    noise: float
    distance: float
    count: int
    #: In units of 2: the gradients are relative to one that the challenge replaces. Some pairs then do not exist.
    fixed_size: bool = False


@dataclass(frozen=True)
class MixtureStep:
    """`count` steps that show Σ_j w_j N(s_j, σ²) or, in the other world, the same with the shifts mirrored, or N(0, σ²).

    It is a step of a person with several records, of whom a random number takes part (theory, section 12).

    weights : the probabilities w_j, whose sum is 1.
    shifts : the sums of gradients s_j ≥ 0, in clipping norms, in increasing order.
    mirrored : the other world has the shifts -s_j (substitution); otherwise it has none (add/remove).
    real_zeros : the shifts are 0, 1, 2, … (or multiples of one number), and the polynomial Σ_j w_j z^j has real zeros only, as
        that of a sum of independent coins has. The exact method is faster then.
    """

    weights: tuple[float, ...]
    shifts: tuple[float, ...]
    noise: float
    mirrored: bool
    count: int
    real_zeros: bool = False


@dataclass(frozen=True)
class CoinStep:
    """`count` times one of several steps, which a coin chooses with known chances. The attacker sees the coin.

    chances : the probabilities of the steps, whose sum is 1.
    steps : the steps; how often the coin is tossed is `count`, their own counts do not matter.
    attained : a step that some training data attain, if the coin is a bound of a step that is known to leak less.
    """

    chances: tuple[float, ...]
    steps: tuple[Step, ...]
    count: int
    attained: Step | None = None


@dataclass(frozen=True)
class AllocationStep:
    """`count` epochs of so many batches, in each of which every record is in one batch, drawn uniformly and independently.

    mirrored : the challenge is replaced (substitution); otherwise it is left out (add/remove).
    """

    batches: int
    noise: float
    mirrored: bool
    count: int


AnyStep = Step | MixtureStep | CoinStep | AllocationStep


#: Rates and distances below the first, and noise above the second, would be lost when they are squared and multiplied.
LEAST, MOST = 1e-40, 1e40
#: Accuracy of a threshold, relative to the noise or to itself: a deviation counts in second order. From so many on a table helps.
EXACT, MANY = 1e-10, 1 << 15


def visible(step: Step, least: float = LEAST) -> Step:
    """The step, or one that leaks a little more and whose leakage is not lost; `least`: smallest distance.

    Safe: the outcome at a smaller rate q is that at p, replaced with probability 1 - q/p by noise alone; more noise is noise that
    is added to the outcome; and a bound for a distance holds for all smaller ones.
    """
    return Step(max(step.rate, LEAST), min(step.noise, MOST), max(step.distance, least) if step.distance else 0.0, step.count)


def one_step_advantage(rate: float, noise: float, distance: float) -> float:
    """Total variation of a single step, p·erf(R/(2√2σ)): the same for every pair at distance R."""
    return rate * erf(distance / (2.0 * sqrt(2.0) * noise))


def one_step_overlap(rate: float, noise: float, distance: float) -> float:
    """β* of a single step, 1 - p·erf(R/(2√2σ)) without cancellation."""
    return (1.0 - rate) + rate * erfc(distance / (2.0 * sqrt(2.0) * noise))


def loss(x: Real, rate: float, noise: float, distance: float) -> Real:
    """log P/Q at x, by log(A/B) with A = 1 + p(e^{(x-1/2)/σ²} - 1), B = 1 + p(e^{(bx-b²/2)/σ²} - 1)."""
    b = 1.0 - distance
    variance = noise * noise
    return log_mixture((x - 0.5) / variance, rate) - log_mixture((b * x - 0.5 * b * b) / variance, rate)


def log_mixture(exponent: Real, rate: float) -> Real:
    """log(1 - p + p·e^exponent), by log1p and expm1 while e^exponent is moderate."""
    if rate >= 1.0:
        return exponent
    moderate = np.log1p(rate * np.expm1(np.minimum(exponent, 600.0)))
    return np.where(exponent > 600.0, exponent + np.log(rate), moderate)


def threshold(losses: Real, rate: float, noise: float, distance: float, low: float, high: float) -> Real:
    """x in [low, high] with loss(x) = l for each l; the loss must increase between low and high."""
    if losses.size < MANY:
        return _bisected(losses, rate, noise, distance, np.full_like(losses, low), np.full_like(losses, high))
    # Many at once: from a table, and three steps of Newton's method, after which hardly any still moves.
    table = np.linspace(low, high, MANY)
    known = np.maximum.accumulate(loss(table, rate, noise, distance))
    cell = np.clip(np.searchsorted(known, losses, side="right") - 1, 0, MANY - 2)
    left, right = table[cell], table[cell + 1]
    x, before = 0.5 * (left + right), left
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(4):
            newton = x - (loss(x, rate, noise, distance) - losses) / _slope(x, rate, noise, distance)
            x, before = np.clip(np.where(np.isfinite(newton), newton, left), left, right), x
    moves = np.flatnonzero(np.abs(x - before) > EXACT * (noise + np.abs(x)))
    if moves.size:
        x[moves] = _bisected(losses[moves], rate, noise, distance, left[moves], right[moves])
    return x


def _bisected(losses: Real, rate: float, noise: float, distance: float, left: Real, right: Real) -> Real:
    for _ in range(64):
        middle = 0.5 * (left + right)
        below = loss(middle, rate, noise, distance) <= losses
        left, right = np.where(below, middle, left), np.where(below, right, middle)
    return right


def _slope(x: Real, rate: float, noise: float, distance: float) -> Real:
    """Derivative of the loss."""

    def share(mean: float) -> Real:
        """Probability that the record was sampled, given x: p·e^u/(1 - p + p·e^u)."""
        exponent = (mean * x - 0.5 * mean * mean) / (noise * noise)
        return np.exp(np.log(rate) + exponent - log_mixture(exponent, rate))

    b = 1.0 - distance
    return (share(1.0) - b * share(b)) / (noise * noise)


def tail(x: Real, rate: float, noise: float, distance: float) -> tuple[Real, Real]:
    """(gain, mass) of the half-line above x."""
    b = 1.0 - distance
    near = between(x, b, 1.0, noise)
    return rate * near, (1.0 - rate) * ndtr(-x / noise) + rate * ndtr((b - x) / noise)


def head(x: Real, rate: float, noise: float, distance: float) -> tuple[Real, Real]:
    """(gain, mass) of the half-line below x with the roles exchanged: Q(S) - P(S) and P(S)."""
    b = 1.0 - distance
    return rate * between(x, b, 1.0, noise), (1.0 - rate) * ndtr(x / noise) + rate * ndtr((x - 1.0) / noise)


def between(x: Real, low: Any, high: Any, noise: float) -> Real:
    """Pr[N(high,σ²) > x] - Pr[N(low,σ²) > x], from the side on which both are small."""
    lower, upper = (low - x) / noise, (high - x) / noise
    flip = lower + upper > 0.0
    small, large = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    # ndtr(large) - ndtr(small) with small ≤ large, both mostly negative: relative accuracy by logarithms.
    return np.exp(log_ndtr(large)) * -np.expm1(log_ndtr(small) - log_ndtr(large))
