"""Equal steps, as the exact method composes them: what it needs to know of a kind of step, and that of Poisson sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, log1p, sqrt
from typing import Protocol

import numpy as np

from betastar.arrays import Real
from betastar.curves import Answers
from betastar.exact import transform
from betastar.exact.transform import COARSE_COUNT, COARSE_DENSITY, COARSE_NOISE, DENSITY, Transform
from betastar.scenario.step import head, loss, one_step_overlap, tail, threshold

#: Where the path of a wide transform may climb if it has fewer nodes, in deviations.
LATE = 6.5
EPS = float(np.finfo(float).eps)


class AnyPart(Protocol):
    """`count` equal steps; counts may be fractional or negative when they are the weights of an interpolation.

    reverse: the two worlds are exchanged.
    """

    @property
    def count(self) -> float: ...

    @property
    def reverse(self) -> bool: ...

    @property
    def sampled(self) -> float:
        """Probability that a step depends on the challenge: what the nodes do not see is a share of it."""
        ...

    @property
    def least_loss(self) -> float | None:
        """A loss that a step with the record has at least (before it is reversed); None if there is no such loss."""
        ...

    @property
    def mu_square(self) -> float | None:
        """μ² of one step, if its worlds are N(0, 1) and N(μ, 1)."""
        ...

    def exchanged(self) -> AnyPart:
        """The same steps with the two worlds exchanged."""
        ...

    def transform(self, wide: bool) -> Transform:
        """M(z) of one step. wide: with far tails and the sector that the trade-off curve needs."""
        ...

    def overlap(self) -> float | None:
        """β* of one step, if it has a closed form."""
        ...

    def closed_form(self) -> bool:
        """Whether `answers` and `guess` are known for one step."""
        ...

    def answers(self, taus: Real) -> Answers:
        """Answers of one step at thresholds ≥ 0, or, of a part that was reversed for that, at thresholds < 0."""
        ...

    def guess(self, fprs: Real) -> Real:
        """The thresholds of one step that belong to false-positive rates, nearly."""
        ...


@dataclass(frozen=True)
class Part:
    """`count` steps with Poisson sampling, of a family of pairs: `line`, `glued` or `symmetric` of `transform.py`."""

    count: float
    build: Callable[..., Transform]
    rate: float
    noise: float
    distance: float
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return self.rate

    @property
    def least_loss(self) -> float | None:
        """A record that is added leaves log P/Q ≥ log(1-p)."""
        if self.build is not transform.line or self.distance != 1.0 or self.count <= 0.0 or self.rate >= 1.0:
            return None
        return log1p(-self.rate)

    @property
    def mu_square(self) -> float | None:
        return None if self.rate < 1.0 else (self.distance / self.noise) ** 2

    def exchanged(self) -> Part:
        return Part(self.count, self.build, self.rate, self.noise, self.distance, not self.reverse)

    def transform(self, wide: bool) -> Transform:
        many = self.noise >= COARSE_NOISE and abs(self.count) >= COARSE_COUNT
        if wide and self.rate < 0.5:  # the path climbs from here on, which fewer nodes see only where hardly any mass is left
            many = many and 0.5 / self.noise + self.noise * log((1.0 - self.rate) / self.rate) > LATE
        built = self.build(self.rate, self.noise, self.distance, wide, COARSE_DENSITY if many else DENSITY)
        return built.reversed() if self.reverse else built

    def overlap(self) -> float:
        return one_step_overlap(self.rate, self.noise, self.distance)

    def closed_form(self) -> bool:
        """If the loss exceeds a threshold on a half-line."""
        if self.build is transform.symmetric:
            return False
        turns = self.build is transform.line and self.distance < 1.0  # and the loss returns to 0 at the far left
        return not (turns and self.reverse)

    def answers(self, taus: Real) -> Answers:
        p, sigma, distance = self.rate, self.noise, self.distance
        start, reach = 1.0 - 0.5 * distance, 38.0 * sigma
        sizes = np.abs(taus)
        if self.reverse:
            x = threshold(-sizes, p, sigma, distance, min(0.0, 1.0 - distance) - reach, start)
            gain, mass = head(x, p, sigma, distance)
        else:
            x = threshold(sizes, p, sigma, distance, start, 1.0 + reach)
            gain, mass = tail(x, p, sigma, distance)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            near = 1e-5 * sigma
            slope = np.abs(loss(x + near, p, sigma, distance) - loss(x - near, p, sigma, distance)) / (2.0 * near)
            mean = 1.0 if self.reverse else 1.0 - distance  # the second distribution is P of a step that is reversed
            peaks = (1.0 - p) * np.exp(-0.5 * (x / sigma) ** 2) + p * np.exp(-0.5 * ((x - mean) / sigma) ** 2)
            density = peaks / (sqrt(2.0 * np.pi) * sigma) / slope
        return on_half_line(taus, gain, mass, density)

    def guess(self, fprs: Real) -> Real:
        """The loss at the end of the half-line that has this mass under Q, by bisection."""
        p, sigma, distance = self.rate, self.noise, self.distance
        side = head if self.reverse else tail
        x = half_line(
            lambda x: side(x, p, sigma, distance)[1],
            fprs,
            min(0.0, 1.0 - distance) - 38.0 * sigma,
            1.0 + 38.0 * sigma,
            self.reverse,
        )
        return (-1.0 if self.reverse else 1.0) * loss(x, p, sigma, distance)


def on_half_line(taus: Real, gain: Real, mass: Real, density: Real) -> Answers:
    """Gain minus (e^τ - 1) times mass of the half-line where the loss exceeds τ; for τ < 0, of the half-line where it does not.

    (gain, mass): of that half-line for the step, or for τ < 0 for the step reversed. density: of the loss under its second world.
    """
    sizes = np.abs(taus)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        stick = np.maximum(gain - np.where(mass > 0.0, np.expm1(sizes) * mass, 0.0), 0.0)
        hit = np.where(mass > 0.0, np.exp(sizes) * mass, 0.0)
    error = 64.0 * EPS * gain
    if taus[0] >= 0.0:
        return Answers(stick, 1.0 - stick, error, mass, 64.0 * EPS * mass, hit, density)
    alpha = np.exp(taus)
    rest = 1.0 - gain - mass  # Q(L > τ)
    back = -np.expm1(taus) + alpha * stick
    return Answers(
        back, alpha * (1.0 - stick), alpha * error, rest, 64.0 * EPS * np.ones(len(taus)), alpha * rest, density / alpha
    )


def half_line(mass: Callable[[Real], Real], goals: Real, low: float, high: float, upwards: bool) -> Real:
    """The ends of half-lines that have so much mass, by bisection. upwards: the mass grows with the end."""
    left, right = np.full(len(goals), low), np.full(len(goals), high)
    for _ in range(60):
        middle = 0.5 * (left + right)
        less = mass(middle) < goals
        if upwards:
            left, right = np.where(less, middle, left), np.where(less, right, middle)
        else:
            left, right = np.where(less, left, middle), np.where(less, middle, right)
    return right
