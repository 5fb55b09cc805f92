r"""Poisson sampling of two records that differ: unequal norms and unequal rates (theory, section 19).

An observer sees P = (1-p)N(0,σ²) + pN(n,σ²), with the record, or Q = (1-q)N(0,σ²) + qN(-m,σ²), with the other one in its place,
in units of the clipping norm. The two gradients are opposite, which is the worst case. The loss log P/Q = log A/B, with
A = 1 + p(e^{(nx-n²/2)/σ²} - 1) and B = 1 + q(e^{(-mx-m²/2)/σ²} - 1), increases with x. In the transform t = x/σ.

Without the other record (m = 0) this is the step of `PoissonStep` with noise σ/n and distance 1: make that one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, expm1, inf, log1p, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from betastar.curves import Answers
from betastar.steps.base import (
    COARSE_COUNT,
    COARSE_DENSITY,
    COARSE_NOISE,
    DENSITY,
    EPS,
    LEAST,
    MOST,
    REACH,
    WIDE_REACH,
    Directions,
    Family,
    Step,
    StepFactor,
    Transform,
    between,
    complex_expm1,
    complex_log1p,
    half_line,
    on_half_line,
)
from betastar.steps.poisson import LATE, climb, follow_branch, inverted, log_mixture, odds, path_height, sampled_share

#: Branch points farther than this, in deviations, are beyond all nodes.
FAR = 100.0


@dataclass(frozen=True)
class UnequalStep(Step):
    """`count` steps that distinguish two records whose gradients and rates may differ.

    rate, norm : the probability that the record is drawn, and the norm of its gradient, in clipping norms.
    other_rate, other_norm : the same of the record that may be in its place.
    """

    rate: float
    noise: float
    norm: float
    other_rate: float
    other_norm: float
    count: int

    def factor(self, family: Family) -> UnequalFactor:
        return UnequalFactor(self.count, self)

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        reach = -float(ndtri(min(0.01, slack / self.count))) * self.noise
        low, middle, high = -self.other_norm - reach, self._middle(), self.norm + reach
        # The gain is a sum of two differences of close tails: their rounding error, outwards.
        outwards = 1.0 + (32.0 if above else -32.0) * EPS * (1.0 + (self.rate + self.other_rate) / self.gap())

        def ahead(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            gain, mass = self.tail(self.threshold(losses, middle, high))
            return outwards * gain, mass

        def behind(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            gain, mass = self.head(self.threshold(-losses, low, middle))
            return outwards * gain, mass

        ends = self.loss(np.array([low, high])).tolist()
        return Directions(outwards * self.advantage(), ahead, ends[1], behind, -ends[0])

    def largest_loss(self, slack: float) -> float:
        ahead = self.directions(False, True, slack)
        return max(ahead.most, ahead.farthest)

    def loss(self, x: NDArray[Any]) -> NDArray[Any]:
        """log P/Q at x."""
        n, m, variance = self.norm, self.other_norm, self.noise * self.noise
        ahead = log_mixture((n * x - 0.5 * n * n) / variance, self.rate)
        return ahead - log_mixture((-m * x - 0.5 * m * m) / variance, self.other_rate)

    def slope(self, x: NDArray[Any]) -> NDArray[Any]:
        """Derivative of the loss."""
        ahead = self.norm * sampled_share(x, self.norm, self.rate, self.noise)
        behind = self.other_norm * sampled_share(x, -self.other_norm, self.other_rate, self.noise)
        return (ahead + behind) / (self.noise * self.noise)

    def threshold(self, losses: NDArray[Any], low: float, high: float) -> NDArray[Any]:
        """x in [low, high] with loss(x) = l for each l."""
        return inverted(losses, self.loss, self.slope, self.noise, low, high)

    def tail(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(gain, mass) of the half-line above x: P(S) - Q(S) and Q(S)."""
        s, q = self.noise, self.other_rate
        return self._gain(x), (1.0 - q) * ndtr(-x / s) + q * ndtr((-self.other_norm - x) / s)

    def head(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(gain, mass) of the half-line below x with the worlds exchanged: Q(S) - P(S) and P(S)."""
        s, p = self.noise, self.rate
        return self._gain(x), (1.0 - p) * ndtr(x / s) + p * ndtr((x - self.norm) / s)

    def _gain(self, x: NDArray[Any]) -> NDArray[Any]:
        """p·Pr[x in (0, n) + noise] + q·Pr[x in (-m, 0) + noise]: no cancellation."""
        return self.rate * between(x, 0.0, self.norm, self.noise) + self.other_rate * between(
            x, -self.other_norm, 0.0, self.noise
        )

    def _middle(self) -> float:
        """The outcome at which both worlds are equally likely."""
        return float(inverted(np.zeros(1), self.loss, self.slope, self.noise, -0.5 * self.other_norm, 0.5 * self.norm)[0])

    def advantage(self) -> float:
        return min(float(self._gain(np.array([self._middle()]))[0]), 1.0)

    @property
    def leaks(self) -> bool:
        return max(self.norm, self.other_norm) > 0.0

    def log_never_sampled(self) -> float:
        """If one of the two is more often drawn, the other one's chance of not being drawn is larger, and does not count."""
        drawn = max(self.rate if self.norm > 0.0 else 0.0, self.other_rate if self.other_norm > 0.0 else 0.0)
        return log1p(-drawn) if drawn < 1.0 else -inf

    def clamped(self, least_distance: float = LEAST) -> UnequalStep:
        """Larger norms and rates, and less noise, leak more."""
        return replace(
            self,
            rate=max(self.rate, LEAST),
            noise=min(self.noise, MOST),
            norm=max(self.norm, least_distance),
            other_rate=max(self.other_rate, LEAST),
            other_norm=max(self.other_norm, least_distance),
        )

    def with_min_noise(self, noise: float) -> UnequalStep:
        return replace(self, noise=max(self.noise, noise * max(self.norm, self.other_norm)))

    @property
    def least_noise(self) -> float:
        """The noise in units of the larger norm."""
        return float(self.noise / max(self.norm, self.other_norm))

    def attained_step(self, symmetric: bool) -> UnequalStep:
        return self

    def gap(self) -> float:
        return (self.rate * self.norm + self.other_rate * self.other_norm) / self.noise


@lru_cache(maxsize=4096)
def opposite(step: UnequalStep, wide: bool = False, density: float = DENSITY) -> Transform:
    """The transform of one step; its count does not matter."""
    p, q, sigma, n, m = step.rate, step.other_rate, step.noise, step.norm, step.other_norm
    height = path_height(min(p, q), sigma / max(n, m))
    width = density * height
    reach = WIDE_REACH if wide else REACH
    left, right = ceil((m / sigma + reach) / width), ceil((n / sigma + reach) / width)
    t = width * (np.arange(-left, right) + 0.5)
    y, slope = np.full_like(t, height), np.zeros_like(t)
    for mean, rate, side in ((n, p, 1.0), (m, q, -1.0)) if wide else ():
        start = _start(mean, rate, sigma)
        if start < FAR:
            rise = min(0.4, 1.5 / max(mean / sigma - start, 1e-9))
            lift, lifted = climb(side * t, start, rise, min(sigma / mean, 1.0))
            y, slope = y + lift, slope + side * lifted
    z = t + 1j * y
    upper, lower = (n * z - 0.5 * n * n / sigma) / sigma, (-m * z - 0.5 * m * m / sigma) / sigma
    raised, grown = p * np.exp(upper), q * np.exp(lower)
    below = (1.0 - q) + grown
    few = np.minimum(upper.real, 30.0), np.minimum(lower.real, 30.0)
    ratio = (p * complex_expm1(few[0], upper.imag) - q * complex_expm1(few[1], lower.imag)) / below  # (A - B)/B
    near = (upper.real < 30.0) & (lower.real < 30.0) & (ratio.real > -0.5) & (np.abs(ratio) < 1e8)
    loss = np.where(near, complex_log1p(np.where(near, ratio, 0.0)), np.log((1.0 - p) + raised) - np.log(below))
    if wide:
        follow_branch(loss, left)
    weight = width * (1.0 + 1j * slope) * np.exp(-0.5 * z * z) / sqrt(2.0 * pi) * below
    rest = 0.0
    if max(p, q) < 1.0:  # what the outcome 0 says; without sampling there is no plateau
        rest = log1p(p * expm1(-0.5 * (n / sigma) ** 2)) - log1p(q * expm1(-0.5 * (m / sigma) ** 2))
    return Transform(weight, loss, rest=rest)


def _start(mean: float, rate: float, sigma: float) -> float:
    """Where branch points of the logarithm of a mixture are, as |Re t|; infinite if the path need not climb there."""
    return 0.5 * mean / sigma + sigma * odds(rate) / mean if mean > 0.0 and rate < 0.5 else inf


@dataclass(frozen=True)
class UnequalFactor(StepFactor):
    """`count` steps of two records that differ."""

    count: float
    step: UnequalStep
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return max(self.step.rate, self.step.other_rate)

    @property
    def mu_square(self) -> float | None:
        step = self.step
        return ((step.norm + step.other_norm) / step.noise) ** 2 if min(step.rate, step.other_rate) >= 1.0 else None

    def exchanged(self) -> UnequalFactor:
        return replace(self, reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        step, many = self.step, self.step.least_noise >= COARSE_NOISE and abs(self.count) >= COARSE_COUNT
        for mean, rate in ((step.norm, step.rate), (step.other_norm, step.other_rate)) if wide else ():
            if mean > 0.0 and rate < 0.5:  # as for equal records
                many = many and 0.5 * mean / step.noise + step.noise * odds(rate) / mean > LATE
        built = opposite(replace(step, count=1), wide, COARSE_DENSITY if many else DENSITY)
        return built.reversed() if self.reverse else built

    def overlap(self) -> float:
        step, x = self.step, np.array([self.step._middle()])
        return min(float(step.tail(x)[1][0] + step.head(x)[1][0]), 1.0)

    def closed_form(self) -> bool:
        return True

    def answers(self, taus: NDArray[Any]) -> Answers:
        step, far = self.step, 38.0 * self.step.noise
        sizes = np.abs(taus)
        if self.reverse:
            x = step.threshold(-sizes, -step.other_norm - far, step._middle())
            gain, mass = step.head(x)
        else:
            x = step.threshold(sizes, step._middle(), step.norm + far)
            gain, mass = step.tail(x)
        p, mean = (step.rate, step.norm) if self.reverse else (step.other_rate, -step.other_norm)
        peaks = (1.0 - p) * np.exp(-0.5 * (x / step.noise) ** 2) + p * np.exp(-0.5 * ((x - mean) / step.noise) ** 2)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            density = peaks / (sqrt(2.0 * pi) * step.noise) / step.slope(x)
        return on_half_line(taus, gain, mass, density)

    def guess(self, fprs: NDArray[Any]) -> NDArray[Any]:
        step, far = self.step, 38.0 * self.step.noise
        side = step.head if self.reverse else step.tail
        x = half_line(lambda x: side(x)[1], fprs, -step.other_norm - far, step.norm + far, self.reverse)
        return (-1.0 if self.reverse else 1.0) * step.loss(x)
