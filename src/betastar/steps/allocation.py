r"""Random allocation ("balls in bins"): an epoch of t batches, in one of which each record is (theory, section 15).

The transform M(z) = E_Q[e^{zL}] of an epoch is a sum over nodes of the loss, weighted with its density. The density is analytic,
so that the trapezoidal rule converges exponentially. On the real line M of the nodes is periodic, more or less: it counts as 0
from where it has died, which must be before its next period (`Transform.dies`). What is not exact is reported: the rule over
frequencies with its step doubled tells how well it converged, and how far the masses of both worlds are from 1 tells the rest
(`Transform.doubt`). No digits are left of a tail whose probability is of that order.

The density of the loss is an integral over one frequency. With s = 1/σ and independent y_i ~ N(0, s²), one for each batch, the
likelihoods of the two worlds against "no record" are (1/t)·Σ e^{y_i - s²/2} and (1/t)·Σ e^{-y_i - s²/2} (add/remove: 1). The
loss exceeds τ where

    W = Σ sinh(y_i - τ/2) > 0   (substitution),        W = Σ e^{y_i - s²/2} - t·e^τ > 0   (add/remove),

a sum of independent variables, and the first world is the mean over which y_i has the mean s². So its density at τ is

    substitution: ½·E[Σ cosh(y_j - τ/2)·δ(W)] = (1/2π)∫ (D₁·φ^{t-1} + (t-1)·φ₁·D₀·φ^{t-2}) du/u,
        D = -(i/2)·E[(y - mean)/s²·e^{iuw}] = (u/2)·E[cosh(y - τ/2)·e^{iuw}] by integration by parts,
    add/remove: e^τ·t·E[δ(W)] = (1/2π)∫ e^τ·t·φ₁·φ^{t-1}·e^{-iu·t·e^τ} du,

where w is one term of the sum, φ = E[e^{iuw}], and the index 1 means that its y has the mean s². Two paths make the integrals
short:

- y runs above the real line, where e^{iuw} decays twice exponentially: a fixed number of nodes serves every u, and for
  substitution every τ, as τ only shifts the Gaussian weights: all of them come from one product of matrices;
- u runs on a ray that leans towards the side on which e^{iuW} decays; its logarithm is at equal steps, which sees every scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, erf, expm1, floor, inf, log, log1p, pi, sinh, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from betastar.steps.base import LEAST, MOST, Directions, Family, Step, StepFactor, Transform, complex_expm1, complex_log1p
from betastar.steps.epoch_bounds import Direction, EpochCurve, attack_curve, epoch_curve
from betastar.steps.poisson import PoissonStep, line

#: Step of the nodes in units of e(a), which is at most WIDEST deviations and grows from GROWS deviations on.
NODES, WIDEST, GROWS, SLOPE = 0.17, 0.75, 3.0, 0.39
#: M must have fallen to this before the nodes are too far apart; otherwise the step is divided, as long as it is above the last.
DIED, FINER, FINEST = 2e-13, 1.5, 0.06
#: Modulus of M that is rounding alone.
SILENT = 2e-15
#: The same for tilted laws; how much is added to the real part of z first, by what it grows, and its end in units of 1/deviation.
TILTED_DIED, LEAST_TILT, TILT_RATIO, MOST_TILT = 1e-11, 0.2, 1.25, 60.0
#: Points at which the width of the law is looked at, and what a loss must contribute there to be covered.
PILOTS, SEEN = 60, 3e-18
#: Rounding errors of the masses, at least.
ROUNDING = 2e-15
#: Least noise that is integrated: with less, the nodes are too many.
LEAST_NOISE = 0.17

#: Of the density:
#: Step in y as a share of the distance to where the integrand grows; steps of the logarithm of u for s ≤ 1, and above.
DENSITY, STEP, COARSE_STEP = 0.15, 0.035, 0.05
#: Largest heights of the path of y above the real line (also in units of s), and by how much u leans.
HEIGHT, HEIGHT_OF_LITTLE, LEAN = 0.5 * pi, 1.2, 0.45
#: The same on the side of losses below 0 where the law is nearly Gaussian there: towards the other side.
LEFT_LEAN = -0.2
#: Deviations beyond which nodes in y have no weight, and which all losses together stay within.
REACH, FAR = 9.5, 8.7
#: Logarithms: of what is left out at the smallest frequencies, and of φ^t where the largest ones end.
NEGLIGIBLE, DEAD, LOST_IN_ROUNDING = -38.0, -45.0, -33.0
#: Add/remove: Σ(w - 1) instead of Σw keeps more digits while frequencies are small.
SMALL_SPREAD, MODERATE_SPREAD, MANY_BATCHES = 0.3, 1.2, 100
#: With two batches the law ends so abruptly on the left that more noise is needed.
SMALL_SPREAD_OF_TWO = 0.15
#: Losses that are worked on at once: bounds the memory.
TOGETHER = 512
#: Where the lower end of the law is nearly Gaussian: FAR deviations are less than this; of fewer than MANY_BATCHES batches.
GAUSSIAN_LEFT, GAUSSIAN_LEFT_OF_FEW = 1.3, 0.8


@dataclass(frozen=True)
class AllocationStep(Step):
    """`count` epochs of `batches` batches, in each of which every record is in one batch, drawn uniformly and independently.

    mirrored : the challenge is replaced (substitution); otherwise it is left out (add/remove).
    distance : of the two gradients, if it is replaced. Below 2, the step is a curve above all pairs of gradients.
    """

    batches: int
    noise: float
    mirrored: bool
    count: int

    distance: float = 2.0

    tabulated: ClassVar[bool] = True

    @property
    def integrable(self) -> bool:
        return self.distance == 2.0

    def factor(self, family: Family) -> EpochFactor:
        """Below distance 2, an estimate of how much the step leaks, for the choice of grids."""
        return EpochFactor(self.count, self.batches, 2.0 * self.noise / self.distance, self.mirrored)

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        if self.batches == 1:
            step = PoissonStep(1.0, self.noise, self.distance if self.mirrored else 1.0, self.count)
            return step.directions(symmetric, above, slack)
        ways: tuple[Direction, ...] = ("replaced",) if self.mirrored else ("added", "removed")
        return self._of([epoch_curve(self.batches, self.noise, way, self.distance) for way in ways], above)

    def _of(self, curves: list[EpochCurve], above: bool) -> Directions:
        ahead, behind = curves[0], curves[-1]
        # Both directions agree at α = 1, up to their errors.
        advantage = min(one.above[0] for one in curves) if above else max(one.gain[0] for one in curves)
        most, farthest = float(ahead.losses[-1]), float(behind.losses[-1])
        if self.mirrored:
            return Directions(advantage, ahead.tails(above), most)
        return Directions(advantage, ahead.tails(above), most, behind.tails(above), farthest)

    def advantage(self) -> float:
        """By its χ² divergence, or as if the batch were known."""
        square = min(self.noise**-2, 600.0)
        spread = sinh(square) if self.mirrored else 0.25 * expm1(square)
        far = self.distance if self.mirrored else 1.0
        return min(sqrt(spread / self.batches), erf(far / (2.0 * sqrt(2.0) * self.noise)))

    def log_never_sampled(self) -> float:
        return -inf  # the record is in every epoch

    def clamped(self, least_distance: float = LEAST) -> AllocationStep:
        return replace(self, noise=min(self.noise, MOST))

    def with_min_noise(self, noise: float) -> AllocationStep:
        return replace(self, noise=max(self.noise, noise, LEAST_NOISE))

    @property
    def least_noise(self) -> float:
        return float(self.noise) if self.noise >= LEAST_NOISE else 0.0

    def attained_step(self, symmetric: bool) -> AllocationStep | None:
        return self if self.integrable else None

    def gap(self) -> float:
        return (self.distance if self.mirrored else 1.0) / (self.noise * sqrt(self.batches))


@dataclass(frozen=True)
class RepeatedAllocationAttack(AllocationStep):
    """An attack on `count` epochs in each of which every record is in `times` of the batches (theory, section 15)."""

    times: int = 1

    @property
    def integrable(self) -> bool:
        return False

    def factor(self, family: Family) -> EpochFactor:
        """An estimate of how much the step leaks, for the choice of grids."""
        return EpochFactor(self.count * self.times, max(1, self.batches // self.times), self.noise, self.mirrored)

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        ways: tuple[Direction, ...] = ("replaced",) if self.mirrored else ("added", "removed")
        return self._of([attack_curve(self.batches, self.times, self.noise, way) for way in ways], above)

    def advantage(self) -> float:
        """As if the batches were known."""
        return erf(sqrt(self.times) * (1.0 + self.mirrored) / (2.0 * sqrt(2.0) * self.noise))

    def attained_step(self, symmetric: bool) -> AllocationStep:
        return self


def blocks(batches: int, times: int, noise: float, mirrored: bool, count: int) -> tuple[Step, ...]:
    """Steps that dominate `count` epochs in each of which every record is in `times` of the batches.

    The batches are divided at random into `times` blocks, which everybody may know; the record is in one batch of each.
    """
    size, longer = divmod(batches, times)
    every: list[Step] = []
    for batches_of_block, number in ((size, times - longer), (size + 1, longer)):
        if number and batches_of_block == 1:
            every.append(PoissonStep(1.0, noise, 2.0 if mirrored else 1.0, count * number))
        elif number:
            every.append(AllocationStep(batches_of_block, noise, mirrored, count * number))
    return tuple(every)


@dataclass(frozen=True)
class EpochFactor(StepFactor):
    """`count` epochs of random allocation."""

    count: float
    batches: int
    noise: float
    mirrored: bool
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return 1.0

    @property
    def mu_square(self) -> float | None:
        return ((1.0 + self.mirrored) / self.noise) ** 2 if self.batches == 1 else None

    def exchanged(self) -> EpochFactor:
        return replace(self, reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        built = epoch(self.batches, self.noise, self.mirrored)
        return built.reversed() if self.reverse else built


@dataclass(frozen=True)
class _Extent:
    """Losses -left ... right that carry the law, and the deviation of its bulk."""

    left: float
    right: float
    deviation: float


def _extent(density: EpochDensity) -> _Extent:
    """What a look at some losses on both sides tells: of √(PQ), whose width is that of the bulk, and where nothing is left."""
    sides: list[float] = []
    areas: list[float] = []
    peaks: list[float] = []
    for first, far in ((True, density.farthest[1]), (False, density.farthest[0])):
        if density.mirrored and not first:
            sides.append(sides[0])
            areas.append(areas[0])
            continue
        sizes = far * np.append(0.0, np.geomspace(1e-5, 1.0, PILOTS))
        values, _ = density.at(sizes if first else -sizes, first)
        visible = np.flatnonzero(np.abs(values) * sizes > SEEN)
        sides.append(float(sizes[min(int(visible[-1]) + 1, PILOTS)]) if visible.size else far)
        root = values * np.exp(-0.5 * sizes)
        areas.append(0.5 * float((root[1:] + root[:-1]) @ np.diff(sizes)))  # by trapezoids
        peaks.append(float(root.max()))
    return _Extent(sides[1], sides[0], sum(areas) / (max(peaks) * sqrt(2.0 * pi)))


def _nodes(extent: _Extent, mirrored: bool, dense: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Losses, and their distances: a(v) at equal steps of v with a/E + asinh(a/c)/SLOPE = v, so that da/dv = e(a) with
    1/e = 1/E + 1/(SLOPE·√(a² + c²)): nodes are dense in the bulk."""
    c, widest = GROWS * extent.deviation, WIDEST * extent.deviation

    def arc(a: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(a / widest + np.arcsinh(a / c) / SLOPE)

    first, last = arc(np.array([0.0 if mirrored else extent.left, extent.right])).tolist()
    v = dense * (np.arange(-ceil(first / dense), ceil(last / dense)) + 0.5)
    low, high = np.minimum(v * widest, 0.0), np.maximum(v * widest, 0.0)
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = arc(middle) < v
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    a = 0.5 * (low + high)
    return a, dense / (1.0 / widest + 1.0 / (SLOPE * np.hypot(a, c)))


@lru_cache(maxsize=256)
def epoch(batches: int, noise: float, mirrored: bool, dense: float = NODES) -> Transform:
    """The transform of one epoch: of (1/t)Σ N(e_i, σ²I) against (1/t)Σ N(-e_i, σ²I) (mirrored), or against N(0, σ²I).

    Parameters
    ----------
    batches : t, at least 1; an epoch of one batch is the Gaussian mechanism.
    noise : σ, at least LEAST_NOISE.
    mirrored : the challenge is replaced (substitution); otherwise it is left out (add/remove).
    dense : step of the nodes.
    """
    if batches == 1:
        return line(1.0, noise, 2.0 if mirrored else 1.0, True)
    density = EpochDensity(batches, noise, mirrored)
    extent = _extent(density)
    losses, steps = _nodes(extent, mirrored, dense)
    values, coarse = np.empty((2, len(losses)))
    ahead = losses >= 0.0
    values[ahead], coarse[ahead] = (np.exp(-losses[ahead]) * one for one in density.at(losses[ahead]))
    if not ahead.all():
        values[~ahead], coarse[~ahead] = density.at(losses[~ahead], False)
    weight = steps * values
    # The error of a rule that converges geometrically is squared when its step is halved.
    halved = float(np.abs(steps * (coarse - values)) @ (1.0 + np.exp(losses))) ** 2
    masses = (float(weight.sum()), float(weight @ np.exp(losses)))
    wrong = abs(sum(masses) - 1.0) if mirrored else max(abs(mass - 1.0) for mass in masses)
    doubt = ROUNDING + 8.0 * wrong + halved
    built = Transform(weight.astype(np.complex128), losses.astype(np.complex128), mirrored=mirrored, doubt=doubt)
    dies, level, most = _died(built, float(steps.max()), MOST_TILT / extent.deviation)
    if level > DIED and dense > FINEST:
        return epoch(batches, noise, mirrored, dense / FINER)
    # What is cut off, and what nodes add to M, counts with the weight dz/(z(1 - z)) beyond that frequency.
    return replace(built, doubt=built.doubt + level / max(dies, 1.0), dies=dies, most_tilted=most)


def _died(built: Transform, widest: float, tilt: float) -> tuple[float, float, float]:
    """Where M has died on vertical lines before nodes with this largest distance see its next period, how small it is there, and
    the largest real part (and of 1 - z) at which it has died, too."""
    frequencies = np.linspace(0.0, pi / widest, 200)

    def sizes(theta: float) -> NDArray[Any]:
        """The largest modulus beyond each frequency, relative to that at 0 if that is above 1."""
        values = np.abs(1.0 + built.excess(theta + 1j * frequencies))
        return np.maximum.accumulate(values[::-1])[::-1] / np.maximum(values[0], 1.0)

    strip = np.max([sizes(theta) for theta in (0.0, 0.5, 1.0)], axis=0)
    last = int(np.argmax(strip <= max(SILENT, 2.0 * float(strip[-1]))))
    most = 1.0
    for more in np.geomspace(LEAST_TILT, max(tilt, 1.0), max(2, ceil(log(max(tilt, 1.0) / LEAST_TILT) / log(TILT_RATIO)))):
        with np.errstate(over="ignore", invalid="ignore"):
            left = max(float(sizes(one)[last]) for one in ((1.0 + more,) if built.mirrored else (1.0 + more, -more)))
        if not left <= TILTED_DIED:
            break
        most = 1.0 + float(more)
    return float(frequencies[last]), float(strip[last]), most


@dataclass(frozen=True)
class Frequencies:
    """u on a ray, and e^{iuw} - 1 for each u (rows) and each node of y (columns)."""

    u: NDArray[Any]
    turned: NDArray[Any]


@dataclass(frozen=True)
class EpochDensity:
    """Density of the loss of one epoch of at least two batches. mirrored: substitution; otherwise add/remove."""

    batches: int
    noise: float
    mirrored: bool
    density: float = DENSITY

    @property
    def step(self) -> float:
        return STEP if self.spread <= 1.0 else COARSE_STEP

    @property
    def spread(self) -> float:
        """s: the standard deviation of each y."""
        return 1.0 / self.noise

    @cached_property
    def _variance(self) -> float:
        """Of the mean of the terms of W at τ = 0, for few deviations."""
        square = min(self.spread**2, 60.0)
        return (4.0 * sinh(square) if self.mirrored else expm1(square)) / self.batches

    @cached_property
    def farthest(self) -> tuple[float, float]:
        """Losses -a and b that the law hardly leaves: under the second world to the left, under the first one to the right.

        To the right, either a sum of many deviations or one that stands out; the loss is not larger than that of the largest y
        (substitution: and the mean of all, as a geometric mean is below the arithmetic one). To the left, by Chernoff.
        """
        s, t = self.spread, self.batches
        alone = np.linspace(0.0, FAR, 200)
        together = np.sqrt(np.maximum(FAR**2 - alone**2, 0.0)) * sqrt(self._variance * (t - 1) / t)
        exponent = np.maximum(0.5 * s * s + alone * s, -0.5 * s * s + np.sqrt(alone**2 + 2.0 * log(t)) * s)
        jump = np.log1p(np.expm1(exponent) / t)
        mean = FAR * s / sqrt(t)
        largest = max(s * s + FAR * s, sqrt(FAR**2 + 2.0 * log(t)) * s)
        if self.mirrored:
            jump = jump - np.log1p(np.expm1(-exponent - s * s) / t)
            right = min(1.02 * float((together + jump).max()), largest + s * s / t + mean)
            return right, right
        right = min(1.02 * float((together + jump).max()), largest - 0.5 * s * s)
        return self._farthest_left(), right

    def _farthest_left(self) -> float:
        """Add/remove: the a with Pr[mean likelihood < e^{-a}] ≤ min over λ of (e^{λe^{-a}}·E[e^{-λX}])^t = e^{-FAR²/2}."""
        s, t = self.spread, self.batches
        y = s * np.linspace(-REACH - s, REACH, 600 + 20 * ceil(s))
        weights = np.exp(-0.5 * (y / s) ** 2)
        weights /= weights.sum()
        largest = max(s * s + (REACH + s) * s, -log(s)) + 4.0
        rates = np.exp(np.arange(-0.5 * log(t) - log(s) - 5.0 - s * s, largest, 0.1))

        def shares(likelihoods: NDArray[Any]) -> NDArray[Any]:
            """(FAR²/2t + log E[e^{-λX}])/λ, of the likelihoods X or of X - 1."""
            exponents = np.log(weights) - np.multiply.outer(rates, likelihoods)
            most = exponents.max(axis=1)
            return (0.5 * FAR**2 / t + most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))) / rates

        least = -float(shares(np.exp(y - 0.5 * s * s)).min())
        return -log(least) if least < 0.5 else -log1p(-float(shares(np.expm1(y - 0.5 * s * s)).min()))

    @property
    def _left(self) -> float:
        """By how much the mean likelihood falls below 1, at most, while its law is nearly Gaussian there."""
        return 1.03 * FAR * sqrt(self._variance)

    @property
    def _is_gaussian_left(self) -> bool:
        return self._left < (GAUSSIAN_LEFT if self.batches >= MANY_BATCHES else GAUSSIAN_LEFT_OF_FEW)

    @cached_property
    def _centred(self) -> bool:
        """Add/remove: whether 1 is taken from each term of W."""
        little = self.spread <= (SMALL_SPREAD if self.batches > 2 else SMALL_SPREAD_OF_TWO) or (
            self.spread <= MODERATE_SPREAD and self.batches >= MANY_BATCHES
        )
        return not self.mirrored and (little or self._is_gaussian_left)

    @cached_property
    def _leans(self) -> tuple[float, float, float]:
        """Height of the path of y, and by how much u leans for losses above 0 and below."""
        height = min(HEIGHT_OF_LITTLE * self.spread, HEIGHT)
        lean = min(LEAN, 0.6 * height)
        left = max(LEFT_LEAN, -0.3 * height) if not self.mirrored and self._is_gaussian_left else lean
        return height, lean, left

    @cached_property
    def _nodes(self) -> tuple[float, NDArray[Any]]:
        """Step and nodes: of y - τ/2 (substitution), or of y."""
        height, lean, _ = self._leans
        s = self.spread
        width = self.density * (height - lean if s > 1.0 else height)
        low, high = -REACH * s - (0.5 * self.farthest[1] if self.mirrored else 0.0), s * s + REACH * s
        return width, width * np.arange(floor(low / width), ceil(high / width) + 1) + 1j * height

    @cached_property
    def _terms(self) -> NDArray[Any]:
        """w at each node: its part that depends on y."""
        _, y = self._nodes
        if self.mirrored:
            return np.sinh(y)
        exponent = y - 0.5 * self.spread**2
        return complex_expm1(exponent.real, exponent.imag) if self._centred else np.exp(exponent)

    def _weights(self, taus: NDArray[Any], mean: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Weights of the nodes (rows) for y ~ N(mean, s²), at each τ (columns), and (y - mean)/s²."""
        width, nodes = self._nodes
        y = nodes[:, None] + (0.5 * taus if self.mirrored else 0.0 * taus) - mean
        z = y / self.spread
        return width / (sqrt(2.0 * pi) * self.spread) * np.exp(-0.5 * z * z), y / self.spread**2

    def _turned(self, u: NDArray[Any]) -> NDArray[Any]:
        exponent = 1j * np.multiply.outer(u, self._terms)
        size = np.clip(exponent.real, -700.0, 300.0)
        return complex_expm1(size, np.where(size < -50.0, 0.0, exponent.imag))

    def _ray(self, lean: float, centred: bool) -> Frequencies:
        """Frequencies from where the integrand is NEGLIGIBLE to where φ^t is dead. centred: as W is with its mean at τ = 0."""
        s, t, far = self.spread, self.batches, self.farthest[1]
        size = 0.5 * s * s + max(s * s, 0.5 * far) if self.mirrored else far
        first = NEGLIGIBLE - log(t) - size - log(-expm1(-far))
        every = first - NEGLIGIBLE - 8.0 + 0.5 * np.arange(500)
        weights, _ = self._weights(np.zeros(1), 0.0)
        last = inf
        for some in np.split(every, 10):
            u = np.exp(some - 1j * lean)
            fallen = t * complex_log1p(self._turned(u) @ weights)[:, 0].real
            if self._centred and not centred:
                fallen = fallen + t * (1j * u).real
            dead = fallen < max(DEAD, t * LOST_IN_ROUNDING)
            if dead.any():
                last = float(some[np.argmax(dead)])
                break
        count = ceil((min(last, float(every[-1])) - first) / self.step) // 2 * 2 + 2
        u = np.exp(first + self.step * np.arange(count) - 1j * lean)
        return Frequencies(u, self._turned(u))

    @cached_property
    def _right(self) -> Frequencies:
        return self._ray(self._leans[1], False)

    @cached_property
    def _left_side(self) -> Frequencies:
        return self._ray(self._leans[2], self._is_gaussian_left)

    def at(self, taus: NDArray[Any], first: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
        """The density at each τ, and the same with twice the step in u.

        first: under the first world, for τ ≥ 0; otherwise (add/remove) under the second one, for τ ≤ 0.
        """
        values, coarse = np.empty((2, len(taus)))
        for start in range(0, len(taus), TOGETHER):
            some = slice(start, start + TOGETHER)
            integrand = self._symmetric(taus[some]) if self.mirrored else self._one_sided(taus[some], first)
            even, odd = integrand[::2].sum(axis=0).real, integrand[1::2].sum(axis=0).real
            values[some], coarse[some] = self.step / pi * (even + odd), 2.0 * self.step / pi * even
        return values, coarse

    def _symmetric(self, taus: NDArray[Any]) -> NDArray[Any]:
        t, s, number = self.batches, self.spread, len(taus)
        plain, slope = self._weights(taus, 0.0)
        moved, moved_slope = self._weights(taus, s * s)
        columns = np.concatenate([plain, moved, -0.5j * slope * plain, -0.5j * moved_slope * moved], axis=1)
        sums = self._right.turned @ columns
        phi, phi_moved, d, d_moved = (sums[:, i * number : (i + 1) * number] for i in range(4))
        power = complex_log1p(phi)
        return d_moved * np.exp((t - 1) * power) + (t - 1) * (1.0 + phi_moved) * d * np.exp((t - 2) * power)

    def _one_sided(self, taus: NDArray[Any], first: bool) -> NDArray[Any]:
        t, s = self.batches, self.spread
        ray = self._right if first else self._left_side
        zero = np.zeros(1)
        means = (0.0, s * s) if first else (0.0,)
        powers = complex_log1p(ray.turned @ np.concatenate([self._weights(zero, mean)[0] for mean in means], axis=1))
        power = (t - 1) * powers[:, 0] + powers[:, 1] if first else t * powers[:, 0]
        threshold = t * (np.expm1(taus) if self._centred else np.exp(taus))
        exponent = power[:, None] - 1j * np.multiply.outer(ray.u, threshold)
        turned = np.exp(np.minimum(exponent.real, 300.0) + 1j * exponent.imag)
        return np.multiply.outer(ray.u, t * np.exp(taus)) * turned
