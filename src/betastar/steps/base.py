"""What the methods ask of a step of a run, whatever its kind.

A kind of step is one class: its own file, a subclass of `Step` with a small `StepFactor` beside it. Steps of different kinds
compose: exactly by their transforms, certified by their masses on a grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log, log1p, nan, pi
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from betastar.curves import Answers

EPS = float(np.finfo(float).eps)
#: Rates and distances below the first, and noise above the second, would be lost when they are squared and multiplied.
LEAST, MOST = 1e-40, 1e40
#: Accuracy of a threshold, relative to the noise or to itself: a deviation counts in second order.
EXACT = 1e-10
#: Affinities below this one are lost in the rounding of 1 - ρ, and exponents above the other.
LEAST_AFFINITY = 1e-9
MOST_EXPONENT = -log(LEAST_AFFINITY)

#: Which pair of gradients a step with a choice has: on a line, which is all there is for add/remove; the glued curve, which
#: dominates every pair at a distance (theory, section 2); or the symmetric pair of the plane.
Family = Literal["line", "glued", "symmetric"]
#: (gain, mass) = (P(S) - Q(S), Q(S)) of the outcomes S with a loss above each l.
Tails = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


class Directions(NamedTuple):
    """What a grid needs to know of one step, rounded outwards: up for a bound from above, down for one from below.

    advantage: total variation. ahead: tails of the loss, which is above `most` with a probability that is given to the attacker.
    behind, farthest: the same with the worlds exchanged; None if the pair is symmetric. least: no loss is smaller.
    """

    advantage: float
    ahead: Tails
    most: float
    behind: Tails | None = None
    farthest: float = 0.0
    least: float = -inf


class Step(ABC):
    """`count` equal steps: a pair of worlds P and Q, of which an attacker sees an outcome at each step.

    A subclass is a frozen dataclass.
    """

    count: int
    #: Whether its curve is enclosed at some thresholds only: finer grids gain little, and its affinity is an estimate.
    tabulated: ClassVar[bool] = False

    @property
    def integrable(self) -> bool:
        """Whether the exact method has its transform; otherwise the certified one answers for it."""
        return True

    @abstractmethod
    def factor(self, family: Family) -> StepFactor:
        """The steps as the exact method composes them; of steps with a choice, those of a family of pairs."""

    @abstractmethod
    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        """Tails of one step for the grid, from above or from below.

        symmetric: whether the threat is. Outcomes that all steps together have with probability `slack` are given to the
        attacker.
        """

    def largest_loss(self, slack: float) -> float:
        """The largest loss on the grid."""
        return self.directions(True, True, slack).most

    @abstractmethod
    def advantage(self) -> float:
        """Total variation of one step, or more."""

    @property
    def leaks(self) -> bool:
        """Whether the step tells the two worlds apart at all."""
        return self.advantage() > 0.0

    @abstractmethod
    def log_never_sampled(self) -> float:
        """Logarithm of the probability that one step tells nothing, whatever the noise is."""

    @abstractmethod
    def clamped(self, least_distance: float = LEAST) -> Step:
        """The step, or one that leaks a little more and whose leakage is not lost in rounding."""

    @abstractmethod
    def with_min_noise(self, noise: float) -> Step:
        """The same step with at least so much noise."""

    @property
    @abstractmethod
    def least_noise(self) -> float:
        """The least noise in it."""

    @abstractmethod
    def attained_step(self, symmetric: bool) -> Step | None:
        """A step with the same count that some data attain and that leaks no more; the step itself if data attain it."""

    @abstractmethod
    def gap(self) -> float:
        """Mean distance between the two worlds in units of the noise multiplier, about."""


class StepFactor(ABC):
    """`count` equal steps as a factor of the composed transform; counts may be fractional when they are weights of an
    interpolation.

    A subclass is a frozen dataclass. reverse: the two worlds are exchanged. What is not overridden has no closed form.
    """

    count: float
    reverse: bool

    @property
    @abstractmethod
    def sampled(self) -> float:
        """Probability that a step depends on the challenge: what the nodes do not see is a share of it."""

    @abstractmethod
    def exchanged(self) -> StepFactor:
        """The same steps with the two worlds exchanged."""

    @abstractmethod
    def transform(self, wide: bool) -> Transform:
        """M(z) of one step. wide: with far tails and the sector that the trade-off curve needs."""

    @property
    def least_loss(self) -> float | None:
        """A loss that a step with the record has at least (before it is reversed); None if there is no such loss."""
        return None

    @property
    def mu_square(self) -> float | None:
        """μ² of one step, if its worlds are N(0, 1) and N(μ, 1)."""
        return None

    def exponent(self) -> float:
        """λ = -ln ∫√(PQ) of one step; MOST_EXPONENT stands for all that is larger."""
        gap = self.transform(False).affinity_gap()
        return -log1p(-gap) if gap < 1.0 - LEAST_AFFINITY else MOST_EXPONENT

    def overlap(self) -> float | None:
        """β* of one step."""
        return None

    def closed_form(self) -> bool:
        """Whether `answers` and `guess` are known for one step."""
        return False

    def answers(self, taus: NDArray[Any]) -> Answers:
        """Answers of one step at thresholds ≥ 0, or, of a factor that was reversed for that, at thresholds < 0."""
        raise NotImplementedError

    def guess(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """The thresholds of one step that belong to false-positive rates, nearly."""
        raise NotImplementedError


def attained_steps(steps: Sequence[Step], symmetric: bool) -> list[Step]:
    """Steps that some data attain, all at once, and that leak no more than these; the steps themselves if they are attained."""
    some = [step.attained_step(symmetric) for step in steps]
    return [step for step in some if step is not None]


# The transform M(z) of one step: every exact answer is an integral of it.
#
# For a pair (P, Q) with privacy loss L = log P/Q, M(z) = E_Q[exp(zL)] = ∫ P^z Q^(1-z). Transforms of independent steps
# multiply, M(1/2) is the affinity of the pair and M(1/2 + iu) the characteristic function that Fourier inversion needs.
#
# A pair becomes a short list of weights w_j and losses L_j with M(z) - 1 = Σ_j w_j (e^{zL_j} - 1). Three choices make that
# list short and its sum exact to rounding:
#
# - M - 1 is summed, never M, so that it keeps its digits when the loss is tiny (p = 1e-8, 10⁹ steps), and mass at L = 0
#   costs nothing;
# - the trapezoidal rule converges exponentially, because the integrand is analytic in x between the branch points of log P
#   and log Q, at distance πσ² from the real line;
# - x runs above the real line, where e^{iuL} decays instead of oscillating: a fixed number of nodes serves every u ≥ 0.
#   Beyond a branch point the path climbs, so that L stays within a sector and z may leave the vertical line, too.

#: Step of the trapezoidal rule as a share of the distance to the nearest singularity: exp(-2π / .19) = 4e-15.
DENSITY = 0.19
#: The same where singularities are far away and one step of many hardly moves e^{zL}: noise ≥ 1.5, at least 100 steps.
COARSE_DENSITY, COARSE_NOISE, COARSE_COUNT = 0.34, 1.5, 100.0
#: Nodes farther than this many standard deviations from every mean carry less than 1e-18. Wide: far tails, on a path that climbs.
REACH, WIDE_REACH = 9.0, 18.0
#: How real M'' must come out, relative to itself, for M to be known to 1e-9: for large θ the nodes do not reach far enough.
REAL = 1e-9
#: Mass at losses that are too large for the nodes, from which on M is not known beyond 1.
LOST = 1e-25
#: Relative error of log M where `doubt` has all that the nodes have wrong, and the modulus of M where it has died.
ROUNDING, NOTHING = 4e-16, 2.0**-53
#: Entries of the node-times-argument matrix that are worked on at once: fits the cache, bounds the memory.
BLOCK = 1 << 14


def complex_expm1(re: NDArray[Any], im: NDArray[Any]) -> NDArray[Any]:
    """exp(re + i·im) - 1 without cancellation near 0, by the tangent of im/2: one function instead of a sine and a cosine."""
    gain = np.expm1(re)
    tangent = np.tan(0.5 * im)
    square = tangent * tangent
    share = 2.0 * (gain + 1.0) / (1.0 + square)  # 2·e^re·cos²(im/2)
    out = np.empty(gain.shape, dtype=np.complex128)
    np.multiply(share, tangent, out=out.imag)
    np.subtract(gain, share * square, out=out.real)
    return out


def complex_exp(re: NDArray[Any], im: NDArray[Any]) -> NDArray[Any]:
    """exp(re + i·im), in the same way."""
    tangent = np.tan(0.5 * im)
    square = tangent * tangent
    share = np.exp(re) / (1.0 + square)
    out = np.empty(share.shape, dtype=np.complex128)
    np.multiply(2.0 * share, tangent, out=out.imag)
    np.multiply(share, 1.0 - square, out=out.real)
    return out


def complex_log1p(w: NDArray[Any]) -> NDArray[Any]:
    """Principal logarithm of 1 + w without cancellation near 0; log(0) becomes a very negative number."""
    a, b = w.real, w.imag
    with np.errstate(over="ignore"):
        square = 2.0 * a + a * a + b * b  # |1 + w|² - 1
    out = np.empty(w.shape, dtype=np.complex128)
    near = 0.5 * np.log1p(np.maximum(square, -0.9))
    far = np.log(np.maximum(np.hypot(1.0 + a, b), 1e-150))
    out.real = np.where(np.abs(square) < 0.5, near, far)
    out.imag = np.arctan2(b, 1.0 + a)
    return out


@dataclass(frozen=True)
class Transform:
    """M(z) of one step, as weights and losses on a path in the complex plane.

    mirrored: the list holds the half of a symmetric law with positive loss; the other half is its mirror image (-L, with
    weights exchanged), as for symmetric pairs and for the glued curve.
    atom: mass at loss 0 that no node carries: M(z) tends to it along every vertical.
    rest: loss of a step whose output is 0. Low noise piles mass up there, so that M^T oscillates like e^{z·T·rest}.
    lost: probability of the first distribution that no node carries, as its loss is so large that e^L overflows. In the strip
        0 < Re z < 1 it does not count; beyond, M is not known if it is more than LOST.
    deficit: what Σ w·e^L of the nodes lacks for that reason: the probability beyond the last node, on the path itself.
    missing: the same of a transform that was reversed, at losses of -∞: M(z) - 1 is less by so much.
    doubt: probability that the nodes have wrong, in either world, where the law is known to an absolute error only.
    dies: beyond this imaginary part of z the nodes are too far apart, and M counts as 0.
    most_tilted: beyond this real part of z (and, mirrored, of 1 - z) the nodes are too far apart before M has died.
    irrelevant: nodes with less mass than this do not decide how far z may lean: they are on a path that climbs.
    """

    weight: NDArray[Any]
    loss: NDArray[Any]
    mirrored: bool = False
    atom: float = 0.0
    rest: float = 0.0
    lost: float = 0.0
    deficit: float = 0.0
    missing: float = 0.0
    irrelevant: float = 1e-17
    doubt: float = 0.0
    dies: float = inf
    most_tilted: float = inf
    _gain: float = field(init=False, repr=False)  # Σ w (e^L - 1): 0 for a whole law, the total variation for a half

    def __post_init__(self) -> None:
        gain = (
            (self.weight @ complex_expm1(self.loss.real, self.loss.imag)).real + self.deficit if self.mirrored else self.missing
        )
        object.__setattr__(self, "_gain", float(gain))

    def excess(self, z: NDArray[Any]) -> NDArray[Any]:
        """M(z) - 1 for an array of z in the upper half plane."""
        direct = self._sum(z, self.weight)
        if not self.mirrored:
            return self._ended(z, direct - self.missing if self.missing else direct)
        reflected = 1.0 - z.conj()
        other = direct if np.array_equal(reflected, z) else self._sum(reflected, self.weight)
        return self._ended(z, direct + other.conj() - self._gain)

    def _ended(self, z: NDArray[Any], excess: NDArray[Any]) -> NDArray[Any]:
        """M - 1, with M as small as rounding errors are where it has died."""
        if self.dies < inf:
            excess[z.imag > self.dies] = -1.0
            excess[np.abs(1.0 + excess) < NOTHING] = -1.0 + NOTHING
        return excess

    def tilted(self, thetas: NDArray[Any]) -> Callable[[NDArray[Any], float], NDArray[Any]]:
        """A function of offsets ζ in the upper half plane: M(θ + ζ)·e^{-ζ·origin} - 1, rows for ζ and columns for θ.

        It is Σ w e^{θL} (e^{ζ(L - origin)} - 1) + M(θ) - 1: the exponentials of ζ are computed once and serve every θ. Where
        offsets leave the vertical, the origin `rest` keeps M from under- and overflowing.
        """
        start = self.moments(thetas)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            columns = self.weight[:, None] * np.exp(np.multiply.outer(self.loss, thetas))
            mirror = self.weight[:, None] * np.exp(np.multiply.outer(self.loss, 1.0 - thetas)) if self.mirrored else columns
        both = np.concatenate([columns, mirror], axis=1) if self.mirrored else columns

        def shifted(offsets: NDArray[Any], origin: float) -> NDArray[Any]:
            with np.errstate(over="ignore", invalid="ignore"):
                if not self.mirrored:
                    return self._ended(offsets, start + self._sum(offsets, columns, origin))
                if not offsets.real.any():
                    sums = self._sum(offsets, both)
                    return self._ended(offsets, start + sums[:, : len(thetas)] + sums[:, len(thetas) :].conj())
                return start + self._sum(offsets, columns) + self._sum(-offsets.conj(), mirror).conj()

        return shifted

    def _sum(self, z: NDArray[Any], weights: NDArray[Any], origin: float = 0.0) -> NDArray[Any]:
        """Σ w (e^{z(L - origin)} - 1), in blocks of z, for one or several columns of weights."""
        rows = max(1, BLOCK // max(self.loss.size, 1))
        if len(z) <= rows:
            return self._block(z, weights, origin)
        return np.concatenate([self._block(z[i : i + rows], weights, origin) for i in range(0, len(z), rows)])

    def _block(self, z: NDArray[Any], weights: NDArray[Any], origin: float) -> NDArray[Any]:
        x, y = z.real[:, None], z.imag[:, None]
        a, b = self.loss.real - origin, self.loss.imag
        growth = np.minimum(x * a - y * b, 300.0)  # beyond that only a failed path goes, and its error will show
        out: NDArray[Any] = complex_expm1(growth, x * b + y * a) @ weights
        return out

    def moments(self, thetas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """M(θ) - 1, M'(θ), M''(θ) at each real θ; nan where θ is so large that the nodes no longer resolve M."""
        with np.errstate(over="ignore", invalid="ignore"):
            value, slope, bend, size = self._moments(thetas)
            if self.mirrored:
                half = len(thetas) == 1 and thetas[0] == 0.5
                other = (value, slope, bend, size) if half else self._moments(1.0 - thetas)
                value, slope, bend = value + other[0].conj(), slope - other[1].conj(), bend + other[2].conj()
            real = np.abs(bend.imag) <= REAL * bend.real + 1e-12 * size  # a real number, or nothing
            real &= (REAL * bend.real + 1e-12 * size < inf) & np.isfinite(value.real)
            if self.lost > LOST:
                real &= (thetas < 1.0) & ((thetas > 0.0) | (not self.mirrored))
            real &= (thetas <= self.most_tilted) & (thetas >= 1.0 - self.most_tilted)
        unknown = np.where(real, 0.0, nan)
        return value.real - self._gain + unknown, slope.real + unknown, bend.real + unknown

    def accuracy(self, nodes: float) -> float:
        """Relative error of log M that the nodes may have: this one, or rounding where `doubt` says what they have wrong."""
        return nodes if self.doubt == 0.0 else ROUNDING

    def unreal(self, thetas: NDArray[Any]) -> NDArray[Any]:
        """|Im M''(θ)| / Re M''(θ) as it is computed: what the nodes have wrong where θ is so large that they hardly reach."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            bend = self._moments(thetas)[2]
            if self.mirrored:
                bend = bend + self._moments(1.0 - thetas)[2].conj()
            return np.nan_to_num(np.abs(bend.imag) / np.abs(bend.real), nan=1.0)

    def _moments(self, thetas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        a, b = np.multiply.outer(thetas, self.loss.real), np.multiply.outer(thetas, self.loss.imag)
        gain = complex_expm1(a, b)
        first = self.weight * self.loss
        second = first * self.loss
        tilted = 1.0 + gain
        return gain @ self.weight, tilted @ first, tilted @ second, np.abs(tilted) @ np.abs(second)

    def affinity_gap(self) -> float:
        """1 - ρ = ½∫(√P - √Q)²: a sum of positive terms (theory, section 5)."""
        root = complex_expm1(0.5 * self.loss.real, 0.5 * self.loss.imag)
        half = 0.5 * (float((self.weight @ (root * root)).real) + self.deficit + self.missing)
        return 2.0 * half if self.mirrored else half

    def reversed(self) -> Transform:
        """The transform of (Q, P): L becomes -L, and the path is reflected so that e^{iuL} decays again."""
        if self.mirrored:
            return self
        weight = (self.weight * np.exp(self.loss)).conj()
        return replace(self, weight=weight, loss=-self.loss.conj(), rest=-self.rest, deficit=self.missing, missing=self.deficit)

    def sector(self, sign: float) -> float:
        """Largest angle by which z may lean towards `sign` from the vertical with every e^{z(L - rest)} decaying."""
        sides = (self.loss, -self.loss.conj()) if self.mirrored else (self.loss - self.rest,)
        angle = pi / 4
        relevant = np.abs(self.weight) * (1.0 + np.abs(np.exp(self.loss))) > self.irrelevant
        for loss in sides:
            grows = relevant & (sign * loss.real > 1e-9)
            if grows.any():
                angle = min(angle, float(np.arctan2(loss.imag[grows], abs(loss.real[grows])).min()))
        return max(angle, 0.0)


# One step whose loss increases with the outcome: its answers are those of half-lines.


def on_half_line(taus: NDArray[Any], gain: NDArray[Any], mass: NDArray[Any], density: NDArray[Any]) -> Answers:
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


def half_line(
    mass: Callable[[NDArray[Any]], NDArray[Any]], goals: NDArray[Any], low: float, high: float, upwards: bool
) -> NDArray[Any]:
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


def between(x: NDArray[Any], low: Any, high: Any, noise: float) -> NDArray[Any]:
    """Pr[N(high,σ²) > x] - Pr[N(low,σ²) > x], from the side on which both are small."""
    lower, upper = (low - x) / noise, (high - x) / noise
    flip = lower + upper > 0.0
    small, large = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    # ndtr(large) - ndtr(small) with small ≤ large, both mostly negative: relative accuracy by logarithms.
    return np.exp(log_ndtr(large)) * -np.expm1(log_ndtr(small) - log_ndtr(large))
