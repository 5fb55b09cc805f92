r"""Poisson sampling, one record: a pair of distributions on the line, or in the plane (theory, sections 1 and 2).

In units of the clipping norm an observer of one step sees P = (1-p)N(0,σ²) + pN(a,σ²) or Q = (1-p)N(0,σ²) + pN(b,σ²), on a line
with a = 1 and b = 1 - R. Probabilities come as (gain, mass) = (P(S) - Q(S), Q(S)) of a set S, because the hockey-stick divergence
is gain - (α-1)·mass, and the gain keeps its digits where P(S) - Q(S) would lose them. In the transforms t = x/σ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import acos, ceil, cos, erf, erfc, expm1, inf, log, log1p, pi, sin, sqrt
from typing import Any, NamedTuple

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
    EXACT,
    LEAST,
    LEAST_AFFINITY,
    MOST,
    MOST_EXPONENT,
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

#: Thresholds from which on a table helps.
MANY = 1 << 15
#: Least noise that exponents are computed for.
QUIET = 0.07
#: Where the path of a wide transform may climb if it has fewer nodes, in deviations.
LATE = 6.5
#: Logarithm of the finest scale at which the end point of the glued law is seen: what lies below weighs e^{-32}.
FINEST = -16.0
#: Up to this many different distances are composed one by one.
FEW = 24
#: Nodes on each panel of distances, and the largest ratio of distances within a panel.
NODES, RATIO = 14, 2.0


RealFunction = Callable[[NDArray[Any]], NDArray[Any]]


class GradientPair(NamedTuple):
    """Two gradients a = (across, first) and b = (across, second), seen along a - b and across it, in standard deviations.

    ‖a‖ ≥ ‖b‖; the attacker may also exchange them.
    """

    across: float
    first: float
    second: float


@dataclass(frozen=True)
class PoissonStep(Step):
    """`count` steps with the same rate p, noise σ and distance R between the two candidate gradients."""

    rate: float
    noise: float
    distance: float
    count: int

    def factor(self, family: Family) -> PoissonFactor:
        return PoissonFactor(self.count, family, self.rate, self.noise, self.distance)

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        """The glued curve, or the pair of adding and removing."""
        p, sigma, distance = self.rate, self.noise, self.distance
        beyond = self.reach(slack)
        start, far, near = 1.0 - 0.5 * distance, 1.0 + beyond, -beyond

        # The gain is a difference of two tails that are close for small distances: its rounding error, outwards.
        outwards = 1.0 + (8.0 if above else -8.0) * EPS * (1.0 + sigma / distance)

        def ahead(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            low = start if symmetric else near - 1.0
            gain, mass = tail(threshold(losses, p, sigma, distance, low, far), p, sigma, distance)
            return outwards * gain, mass

        def behind(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            gain, mass = head(threshold(-losses, p, sigma, distance, near, start), p, sigma, distance)
            return outwards * gain, mass

        advantage = one_step_advantage(p, sigma, distance)
        most = self.largest_loss(slack)
        if symmetric:
            return Directions(advantage, ahead, most)
        least = float(loss(np.array([near]), p, sigma, distance)[0])
        return Directions(advantage, ahead, most, behind, -least, log1p(-p) if p < 1.0 else -inf)

    def largest_loss(self, slack: float) -> float:
        return float(loss(np.array([1.0 + self.reach(slack)]), self.rate, self.noise, self.distance)[0])

    def reach(self, slack: float) -> float:
        """How far from its mean all steps together have an outcome with probability `slack`."""
        return -float(ndtri(min(0.01, slack / self.count))) * self.noise

    def advantage(self) -> float:
        return one_step_advantage(self.rate, self.noise, self.distance)

    @property
    def leaks(self) -> bool:
        return self.distance > 0.0

    def log_never_sampled(self) -> float:
        return 0.0 if self.distance == 0.0 else log1p(-self.rate) if self.rate < 1.0 else -inf

    def clamped(self, least_distance: float = LEAST) -> PoissonStep:
        """With a rate, a noise and a distance that are not lost.

        Safe: the outcome at a smaller rate q is that at p, replaced with probability 1 - q/p by noise alone; more noise is noise
        that is added to the outcome; and a bound for a distance holds for all smaller ones.
        """
        distance = max(self.distance, least_distance) if self.distance else 0.0
        return PoissonStep(max(self.rate, LEAST), min(self.noise, MOST), distance, self.count)

    def with_min_noise(self, noise: float) -> PoissonStep:
        return replace(self, noise=max(self.noise, noise))

    @property
    def least_noise(self) -> float:
        return float(self.noise)

    def attained_step(self, symmetric: bool) -> PoissonStep | None:
        return self if not symmetric or self.distance == 2.0 else None

    def gap(self) -> float:
        return float(self.rate * self.distance / self.noise)

    # Pairs of gradients that an attacker who adapts may choose from: ‖a‖ = 1, ‖a - b‖ = R, ‖b‖ ≤ 1 (theory, section 11).

    def turned(self, theta: float) -> GradientPair:
        """‖a‖ = 1, ‖a - b‖ = R, with the angle θ between a and a - b."""
        return GradientPair(sin(theta) / self.noise, cos(theta) / self.noise, (cos(theta) - self.distance) / self.noise)

    @property
    def widest_angle(self) -> float:
        """The angle at which ‖b‖ = 1, too."""
        return acos(min(0.5 * self.distance, 1.0))

    def angles(self, number: int) -> NDArray[Any]:
        """Equally spaced from the line pair on."""
        widest = self.widest_angle
        return np.linspace(0.0, widest, number) if widest > 0.0 else np.zeros(1)

    def covering_pairs(self, number: int) -> Iterator[GradientPair]:
        """Pairs that dominate all others that no angle has; none here."""
        return iter(())

    def existing_pairs(self, number: int) -> list[GradientPair]:
        """Pairs that exist, `number` of each family: the attacker's choice from below."""
        return [self.turned(theta) for theta in self.angles(number).tolist()]


def one_step_advantage(rate: float, noise: float, distance: float) -> float:
    """Total variation of a single step, p·erf(R/(2√2σ)): the same for every pair at distance R."""
    return rate * erf(distance / (2.0 * sqrt(2.0) * noise))


def one_step_overlap(rate: float, noise: float, distance: float) -> float:
    """β* of a single step, 1 - p·erf(R/(2√2σ)) without cancellation."""
    return (1.0 - rate) + rate * erfc(distance / (2.0 * sqrt(2.0) * noise))


def loss(x: NDArray[Any], rate: float, noise: float, distance: float) -> NDArray[Any]:
    """log P/Q at x, by log(A/B) with A = 1 + p(e^{(x-1/2)/σ²} - 1), B = 1 + p(e^{(bx-b²/2)/σ²} - 1)."""
    b = 1.0 - distance
    variance = noise * noise
    return log_mixture((x - 0.5) / variance, rate) - log_mixture((b * x - 0.5 * b * b) / variance, rate)


def log_mixture(exponent: NDArray[Any], rate: float) -> NDArray[Any]:
    """log(1 - p + p·e^exponent), by log1p and expm1 while e^exponent is moderate."""
    if rate >= 1.0:
        return exponent
    moderate = np.log1p(rate * np.expm1(np.minimum(exponent, 600.0)))
    return np.where(exponent > 600.0, exponent + np.log(rate), moderate)


def threshold(losses: NDArray[Any], rate: float, noise: float, distance: float, low: float, high: float) -> NDArray[Any]:
    """x in [low, high] with loss(x) = l for each l; the loss must increase between low and high."""
    return inverted(
        losses, lambda x: loss(x, rate, noise, distance), lambda x: _slope(x, rate, noise, distance), noise, low, high
    )


def inverted(
    losses: NDArray[Any], loss: RealFunction, slope: RealFunction, noise: float, low: float, high: float
) -> NDArray[Any]:
    """x in [low, high] with loss(x) = l for each l, of a loss that increases there; slope: its derivative."""
    if losses.size < MANY:
        return _bisected(losses, loss, np.full_like(losses, low), np.full_like(losses, high))
    # Many at once: from a table, and three steps of Newton's method, after which hardly any still moves.
    table = np.linspace(low, high, MANY)
    known = np.maximum.accumulate(loss(table))
    cell = np.clip(np.searchsorted(known, losses, side="right") - 1, 0, MANY - 2)
    left, right = table[cell], table[cell + 1]
    x, before = 0.5 * (left + right), left
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(4):
            newton = x - (loss(x) - losses) / slope(x)
            x, before = np.clip(np.where(np.isfinite(newton), newton, left), left, right), x
    moves = np.flatnonzero(np.abs(x - before) > EXACT * (noise + np.abs(x)))
    if moves.size:
        x[moves] = _bisected(losses[moves], loss, left[moves], right[moves])
    return x


def _bisected(losses: NDArray[Any], loss: RealFunction, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    for _ in range(64):
        middle = 0.5 * (left + right)
        below = loss(middle) <= losses
        left, right = np.where(below, middle, left), np.where(below, right, middle)
    return right


def _slope(x: NDArray[Any], rate: float, noise: float, distance: float) -> NDArray[Any]:
    """Derivative of the loss."""

    b = 1.0 - distance
    return (sampled_share(x, 1.0, rate, noise) - b * sampled_share(x, b, rate, noise)) / (noise * noise)


def sampled_share(x: NDArray[Any], mean: float, rate: float, noise: float) -> NDArray[Any]:
    """Probability that the record was sampled, given x: p·e^u/(1 - p + p·e^u)."""
    exponent = (mean * x - 0.5 * mean * mean) / (noise * noise)
    return np.exp(np.log(rate) + exponent - log_mixture(exponent, rate))


def tail(x: NDArray[Any], rate: float, noise: float, distance: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """(gain, mass) of the half-line above x."""
    b = 1.0 - distance
    near = between(x, b, 1.0, noise)
    return rate * near, (1.0 - rate) * ndtr(-x / noise) + rate * ndtr((b - x) / noise)


def head(x: NDArray[Any], rate: float, noise: float, distance: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """(gain, mass) of the half-line below x with the roles exchanged: Q(S) - P(S) and P(S)."""
    b = 1.0 - distance
    return rate * between(x, b, 1.0, noise), (1.0 - rate) * ndtr(x / noise) + rate * ndtr((x - 1.0) / noise)


# Transforms of the families of pairs. The notation: a, b are the means under P and Q.


def odds(p: float) -> float:
    """log((1-p)/p): where the two components of a mixture balance."""
    return -inf if p >= 1.0 else log((1.0 - p) / p)


def path_height(p: float, sigma: float) -> float:
    """Height of the path above the real line, in units of σ: half way to the branch points at πσ."""
    return 1.2 if p >= 1.0 else min(0.5 * pi * sigma, 1.2)


def _complex_loss(p: float, upper: NDArray[Any], lower: NDArray[Any], gap: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """log A/B and B for A = 1 - p + p·e^upper, B = 1 - p + p·e^lower, with gap = upper - lower given exactly.

    log1p((A - B)/B) keeps its digits when A ≈ B, and log(A/B) when A ≪ B.
    """
    grown = p * np.exp(lower)
    below = (1.0 - p) + grown
    if p >= 1.0:
        return gap, below
    raised = p * np.exp(upper)
    ratio = np.where(gap.real > 30.0, raised - grown, grown * complex_expm1(np.minimum(gap.real, 30.0), gap.imag)) / below
    near = (ratio.real > -0.5) & (np.abs(ratio) < 1e8)
    far = np.log(((1.0 - p) + raised) / below)
    return np.where(near, complex_log1p(np.where(near, ratio, 0.0)), far), below


def climb(t: NDArray[Any], start: float, slope: float, scale: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """A smooth path that is flat before `start` and climbs with `slope` after it, and its derivative."""
    root = np.hypot(t - start, scale)
    return 0.5 * slope * (root + (t - start)), 0.5 * slope * (1.0 + (t - start) / root)


def follow_branch(loss: NDArray[Any], start: int) -> None:
    """Continue log A/B along a climbing path, outwards from its node `start`, where the principal value is right."""
    loss.imag[start:] = np.unwrap(loss.imag[start:])
    loss.imag[start::-1] = np.unwrap(loss.imag[start::-1])


def _turning_point(p: float, sigma: float, distance: float) -> float:
    """Where the loss of the line pair stops falling and starts to grow, as t = x/σ; -∞ for R ≥ 1 or p = 1.

    With both means on one side of 0 the loss returns to 0 at the far left. L' > 0 where a·e^upper/A > b·e^lower/B.
    """
    a, b = 1.0, 1.0 - distance
    if b <= 0.0 or p >= 1.0:
        return -inf

    def rising(t: float) -> bool:
        upper, lower = (a * t - 0.5 * a * a / sigma) / sigma, (b * t - 0.5 * b * b / sigma) / sigma
        first = log(a) + upper - np.logaddexp(log(1.0 - p), log(p) + upper)
        return bool(first > log(b) + lower - np.logaddexp(log(1.0 - p), log(p) + lower))

    low, high = -WIDE_REACH - 40.0, (1.0 - 0.5 * distance) / sigma
    if rising(low):
        return -inf
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rising(middle) else (middle, high)
    return high


def _below_then_above(t: NDArray[Any], turn: float, height: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """A path below the real line before the turning point of the loss and above it afterwards, and its derivative."""
    if turn == -inf:
        return np.full_like(t, height), np.zeros_like(t)
    wave = np.tanh((t - turn) / height)
    return height * wave, 1.0 - wave * wave


@lru_cache(maxsize=4096)
def line(p: float, sigma: float, distance: float, wide: bool = False, density: float = DENSITY) -> Transform:
    """The pair on a line: means a = 1 and b = 1 - R. R = 2 is substitution, R = 1 is add/remove (b = 0).

    `wide` covers the far tails and opens the sector that the trade-off curve needs; β* of a symmetric pair needs neither.
    """
    a, b = 1.0, 1.0 - distance
    symmetric = distance == 2.0
    height = path_height(p, sigma)
    step = density * height * (1.0 if b <= 0.0 else 0.35)  # a turning point bends the path: finer nodes
    reach = WIDE_REACH if wide else REACH
    right = ceil((a / sigma + reach) / step)
    left = 0 if symmetric else ceil((reach - min(b, 0.0) / sigma) / step)
    t = step * (np.arange(-left, right) + 0.5)
    y, slope = _below_then_above(t, _turning_point(p, sigma, distance), height)
    if wide and p < 0.5:
        # Branch points of log A lie at Re t = 1/(2σ) + σ·odds, of log B (b < 0) at the left: climb beyond them.
        for mean, side in ((a, 1.0), (b, -1.0)):
            if mean * side <= 0.0:
                continue
            start = (0.5 * mean * side / sigma) + sigma * odds(p) / (mean * side)
            rise = min(0.4, 1.5 / max(mean * side / sigma - start, 1e-9))
            lift, lifted = climb(side * t, start, rise, min(sigma, 1.0))
            y, slope = y + lift, slope + side * lifted
    z = t + 1j * y
    upper, lower = (a * z - 0.5 * a * a / sigma) / sigma, (b * z - 0.5 * b * b / sigma) / sigma
    gap = distance * (z - (1.0 - 0.5 * distance) / sigma) / sigma
    loss, below = _complex_loss(p, upper, lower, gap)
    if wide:
        follow_branch(loss, left)
    weight = step * (1.0 + 1j * slope) * np.exp(-0.5 * z * z) / sqrt(2 * pi) * below
    rest = 0.0  # without sampling there is no plateau
    if p < 1.0 and not symmetric:
        rest = log1p(p * expm1(-0.5 / sigma**2)) - log1p(p * expm1(-0.5 * (b / sigma) ** 2))
    return Transform(weight, loss, mirrored=symmetric, rest=rest)


@lru_cache(maxsize=4096)
def glued(p: float, sigma: float, distance: float, wide: bool = False, density: float = DENSITY) -> Transform:
    """The glued curve of theory section 2, which dominates every admissible pair at this distance.

    The law starts at x0 = 1 - R/2 with positive density, so the rule must see the end point at every scale: t - t0 = q(s)
    with q = log(1 + e^s), exponentially fine at the left and linear at the right.
    """
    if distance == 2.0:
        return line(p, sigma, distance, wide, density)
    a, b = 1.0, 1.0 - distance
    height = path_height(p, sigma)
    step = density * min(height, 0.8)
    reach = WIDE_REACH if wide else REACH
    t0 = (1.0 - 0.5 * distance) / sigma
    s = np.arange(FINEST, a / sigma - t0 + reach + step, step)
    q, dq = np.logaddexp(0.0, s), 1.0 / (1.0 + np.exp(-s))
    y, slope = height * q / (height + q), (height / (height + q)) ** 2
    if wide and p < 0.5:
        start = 0.5 / sigma + sigma * odds(p)
        rise = min(0.4, 1.5 / max(1.0 / sigma - start, 1e-9)) if start > t0 else 0.0
        if start > t0:
            lift, lifted = climb(q, start - t0, rise, min(sigma, 1.0))
            base, _ = climb(np.zeros(1), start - t0, rise, min(sigma, 1.0))
            y, slope = y + lift - base, slope + lifted
    offset = q + 1j * y
    z = t0 + offset
    upper, lower = (a * z - 0.5 * a * a / sigma) / sigma, (b * z - 0.5 * b * b / sigma) / sigma
    loss, below = _complex_loss(p, upper, lower, distance * offset / sigma)
    if wide:
        follow_branch(loss, 0)
    weight = step * dq * (1.0 + 1j * slope) * np.exp(-0.5 * z * z) / sqrt(2 * pi) * below
    return Transform(weight, loss, mirrored=True, atom=(1.0 - p) * erf(t0 / sqrt(2.0)))


@lru_cache(maxsize=512)
def symmetric(p: float, sigma: float, distance: float, wide: bool = False, density: float = DENSITY) -> Transform:
    """The pair ‖a‖ = ‖b‖ = 1, a·b = 1 - R²/2, in the plane: a, b = (c, ±R/2). The path leaves the real line in y only."""
    if distance == 2.0:
        return line(p, sigma, distance, wide, density)
    h = 0.5 * distance
    c = sqrt((1.0 - h) * (1.0 + h))
    height = 1.2 if p >= 1.0 else min(0.45 * pi * sigma / h, 1.2)  # Im L = 2h·height/σ stays below π
    across = 1.2 if p >= 1.0 else min((pi * sigma - h * height) / c, 1.2)  # nearest singularity in the other direction
    reach = 13.0 if wide else REACH  # no climbing path here, so no need to go as far as in one dimension
    step_x, step_y = density * across, density * height
    x = step_x * np.arange(-ceil(reach / step_x), ceil((c / sigma + reach) / step_x) + 1)
    y = step_y * (np.arange(ceil((h / sigma + reach) / step_y)) + 0.5) + 1j * height
    mass = np.exp(-0.5 * x * x)[:, None] * np.exp(-0.5 * y * y)[None, :] * (step_x * step_y / (2 * pi))
    along, off = (c * x - 0.5 / sigma)[:, None] / sigma, (h * y / sigma)[None, :]
    upper, lower = (along + off).ravel(), (along - off).ravel()
    loss, below = _complex_loss(p, upper, lower, np.broadcast_to(2.0 * off, mass.shape).ravel())
    weight = mass.ravel() * below
    share = np.abs(weight) * (1.0 + np.abs(np.exp(loss))) * np.minimum(np.abs(loss), 1.0) ** 2
    keep = share > share.sum() * (1e-40 if wide else 1e-20)
    return Transform(weight[keep], loss[keep], mirrored=True)


#: The transforms of the families of pairs.
TRANSFORMS: dict[Family, Callable[..., Transform]] = {"line": line, "glued": glued, "symmetric": symmetric}


@lru_cache(maxsize=4096)
def exponent(family: Family, rate: float, noise: float, distance: float) -> float:
    """λ = -ln ∫√(PQ) of one step of a family of pairs (theory, section 5).

    MOST_EXPONENT stands for all that is larger, and less noise than QUIET counts as QUIET: the truth may be above.
    """
    if distance == 0.0:
        return 0.0
    gap = TRANSFORMS[family](rate, max(noise, QUIET), distance).affinity_gap()
    return -log1p(-gap) if gap < 1.0 - LEAST_AFFINITY else MOST_EXPONENT


@dataclass(frozen=True)
class PoissonFactor(StepFactor):
    """`count` steps with Poisson sampling, of a family of pairs."""

    count: float
    family: Family
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
        if self.family != "line" or self.distance != 1.0 or self.count <= 0.0 or self.rate >= 1.0:
            return None
        return log1p(-self.rate)

    @property
    def mu_square(self) -> float | None:
        return None if self.rate < 1.0 else (self.distance / self.noise) ** 2

    def exchanged(self) -> PoissonFactor:
        return replace(self, reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        many = self.noise >= COARSE_NOISE and abs(self.count) >= COARSE_COUNT
        if wide and self.rate < 0.5:  # the path climbs from here on, which fewer nodes see only where hardly any mass is left
            many = many and 0.5 / self.noise + self.noise * log((1.0 - self.rate) / self.rate) > LATE
        built = TRANSFORMS[self.family](self.rate, self.noise, self.distance, wide, COARSE_DENSITY if many else DENSITY)
        return built.reversed() if self.reverse else built

    def exponent(self) -> float:
        return exponent(self.family, self.rate, self.noise, self.distance)

    def overlap(self) -> float:
        return one_step_overlap(self.rate, self.noise, self.distance)

    def closed_form(self) -> bool:
        """If the loss exceeds a threshold on a half-line."""
        if self.family == "symmetric":
            return False
        turns = self.family == "line" and self.distance < 1.0  # and the loss returns to 0 at the far left
        return not (turns and self.reverse)

    def answers(self, taus: NDArray[Any]) -> Answers:
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

    def guess(self, fprs: NDArray[Any]) -> NDArray[Any]:
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


def all_poisson(steps: Sequence[Step]) -> bool:
    """Whether all steps are of Poisson sampling and one record: some methods are for these only."""
    return all(isinstance(step, PoissonStep) for step in steps)


def only_poisson(question: str, steps: Sequence[Step]) -> list[PoissonStep]:
    """The steps, for a question that is about Poisson sampling and one record; any others are refused."""
    some = [step for step in steps if isinstance(step, PoissonStep)]
    if len(some) < len(steps):
        raise ValueError(
            f"{question} is for one record of norm 1 and Poisson sampling; analyze with method='exact' answers for this run."
        )
    return some


# Many different distances at the price of a few: log M_R(z) / R² is a smooth function of the distance R, so Σ_t log M_{R_t}(z)
# is, to many digits, a weighted sum over a few Chebyshev nodes: fractional counts at made-up distances, whatever z is.


def factors(steps: Sequence[Step], family: Family) -> list[StepFactor]:
    """Steps as the exact method composes them; of many different distances, a few."""
    few = condense([step for step in steps if isinstance(step, PoissonStep)])
    every: list[StepFactor] = [PoissonFactor(count, family, rate, noise, distance) for count, rate, noise, distance in few]
    return every + [step.factor(family) for step in steps if not isinstance(step, PoissonStep) and step.leaks]


def condense(steps: Sequence[PoissonStep]) -> list[tuple[float, float, float, float]]:
    """(count, rate, noise, distance) of equivalent steps; steps at distance 0 tell nothing and are dropped."""
    groups: dict[tuple[float, float], dict[float, float]] = {}
    for step in steps:
        if step.distance > 0.0:
            counts = groups.setdefault((step.rate, step.noise), {})
            counts[step.distance] = counts.get(step.distance, 0.0) + step.count
    condensed = []
    for (rate, noise), counts in groups.items():
        if len(counts) > FEW:
            counts = _on_nodes(np.array(list(counts)), np.array(list(counts.values())))
        condensed += [(count, rate, noise, distance) for distance, count in counts.items()]
    return condensed


def _on_nodes(distances: NDArray[Any], counts: NDArray[Any]) -> dict[float, float]:
    """Weights of Chebyshev nodes, panel by panel: Σ_t n_t (R_t/R_j)² ℓ_j(R_t)."""
    low, high = float(distances.min()), float(distances.max())
    panels = max(1, ceil(log(high / low) / log(RATIO)))
    edges = np.geomspace(low, high, panels + 1)
    edges[0], edges[-1] = low, high
    weights: dict[float, float] = {}
    for i in range(panels):
        inside = (distances >= edges[i]) & ((distances < edges[i + 1]) | (i == panels - 1))
        if inside.sum() <= NODES:
            for distance, count in zip(distances[inside], counts[inside], strict=True):
                weights[float(distance)] = weights.get(float(distance), 0.0) + float(count)
            continue
        k = np.arange(NODES)
        nodes = 0.5 * (edges[i] + edges[i + 1]) + 0.5 * (edges[i + 1] - edges[i]) * np.cos(np.pi * k / (NODES - 1))
        nodes = np.minimum(nodes, 2.0)
        signs = (-1.0) ** k * np.where((k == 0) | (k == NODES - 1), 0.5, 1.0)
        gaps = distances[inside][:, None] - nodes[None, :]
        hit = gaps == 0.0
        pulls = np.where(hit.any(axis=1)[:, None], hit, signs / np.where(hit, 1.0, gaps))
        basis = pulls / pulls.sum(axis=1, keepdims=True)
        share = (counts[inside] * distances[inside] ** 2) @ basis / nodes**2
        for node, weight in zip(nodes, share, strict=True):
            weights[float(node)] = weights.get(float(node), 0.0) + float(weight)
    return weights
