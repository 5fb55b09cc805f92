"""The transform M(z) of one step: every exact answer is an integral of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, erf, inf, log, nan, pi, sqrt
from math import expm1 as expm1_real
from math import log1p as log1p_real

import numpy as np

from betastar.arrays import Complex, Real

# ---- complex functions
# exp, exp - 1 and log(1 + w) of complex numbers, without cancellation near 0.


def expm1(re: Real, im: Real) -> Complex:
    """exp(re + i·im) - 1 without cancellation near 0, by the tangent of im/2: one function instead of a sine and a cosine."""
    gain = np.expm1(re)
    tangent = np.tan(0.5 * im)
    square = tangent * tangent
    share = 2.0 * (gain + 1.0) / (1.0 + square)  # 2·e^re·cos²(im/2)
    out = np.empty(gain.shape, dtype=np.complex128)
    np.multiply(share, tangent, out=out.imag)
    np.subtract(gain, share * square, out=out.real)
    return out


def exp(re: Real, im: Real) -> Complex:
    """exp(re + i·im), in the same way."""
    tangent = np.tan(0.5 * im)
    square = tangent * tangent
    share = np.exp(re) / (1.0 + square)
    out = np.empty(share.shape, dtype=np.complex128)
    np.multiply(2.0 * share, tangent, out=out.imag)
    np.multiply(share, 1.0 - square, out=out.real)
    return out


def log1p(w: Complex) -> Complex:
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


# ---- transform
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
#
# Notation: everything is in units of the clipping norm; t = x/σ; a, b are the means under P and Q.

#: Step of the trapezoidal rule as a share of the distance to the nearest singularity: exp(-2π / .19) = 4e-15.
DENSITY = 0.19
#: The same where singularities are far away and one step of many hardly moves e^{zL}: noise ≥ 1.5, at least 100 steps.
COARSE_DENSITY, COARSE_NOISE, COARSE_COUNT = 0.34, 1.5, 100.0
#: Nodes farther than this many standard deviations from every mean carry less than 1e-18. Wide: far tails, on a path that climbs.
REACH, WIDE_REACH = 9.0, 18.0
#: Logarithm of the finest scale at which the end point of the glued law is seen: what lies below weighs e^{-32}.
FINEST = -16.0
#: How real M'' must come out, relative to itself, for M to be known to 1e-9: for large θ the nodes do not reach far enough.
REAL = 1e-9
#: Mass at losses that are too large for the nodes, from which on M is not known beyond 1.
LOST = 1e-25
#: Relative error of log M where `doubt` has all that the nodes have wrong, and the modulus of M where it has died.
ROUNDING, NOTHING = 4e-16, 2.0**-53
#: Entries of the node-times-argument matrix that are worked on at once: fits the cache, bounds the memory.
BLOCK = 1 << 14


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

    weight: Complex
    loss: Complex
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
        gain = (self.weight @ expm1(self.loss.real, self.loss.imag)).real + self.deficit if self.mirrored else self.missing
        object.__setattr__(self, "_gain", float(gain))

    def excess(self, z: Complex) -> Complex:
        """M(z) - 1 for an array of z in the upper half plane."""
        direct = self._sum(z, self.weight)
        if not self.mirrored:
            return self._ended(z, direct - self.missing if self.missing else direct)
        reflected = 1.0 - z.conj()
        other = direct if np.array_equal(reflected, z) else self._sum(reflected, self.weight)
        return self._ended(z, direct + other.conj() - self._gain)

    def _ended(self, z: Complex, excess: Complex) -> Complex:
        """M - 1, with M as small as rounding errors are where it has died."""
        if self.dies < inf:
            excess[z.imag > self.dies] = -1.0
            excess[np.abs(1.0 + excess) < NOTHING] = -1.0 + NOTHING
        return excess

    def tilted(self, thetas: Real) -> Callable[[Complex, float], Complex]:
        """A function of offsets ζ in the upper half plane: M(θ + ζ)·e^{-ζ·origin} - 1, rows for ζ and columns for θ.

        It is Σ w e^{θL} (e^{ζ(L - origin)} - 1) + M(θ) - 1: the exponentials of ζ are computed once and serve every θ. Where
        offsets leave the vertical, the origin `rest` keeps M from under- and overflowing.
        """
        start = self.moments(thetas)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            columns = self.weight[:, None] * np.exp(np.multiply.outer(self.loss, thetas))
            mirror = self.weight[:, None] * np.exp(np.multiply.outer(self.loss, 1.0 - thetas)) if self.mirrored else columns
        both = np.concatenate([columns, mirror], axis=1) if self.mirrored else columns

        def shifted(offsets: Complex, origin: float) -> Complex:
            with np.errstate(over="ignore", invalid="ignore"):
                if not self.mirrored:
                    return self._ended(offsets, start + self._sum(offsets, columns, origin))
                if not offsets.real.any():
                    sums = self._sum(offsets, both)
                    return self._ended(offsets, start + sums[:, : len(thetas)] + sums[:, len(thetas) :].conj())
                return start + self._sum(offsets, columns) + self._sum(-offsets.conj(), mirror).conj()

        return shifted

    def _sum(self, z: Complex, weights: Complex, origin: float = 0.0) -> Complex:
        """Σ w (e^{z(L - origin)} - 1), in blocks of z, for one or several columns of weights."""
        rows = max(1, BLOCK // max(self.loss.size, 1))
        if len(z) <= rows:
            return self._block(z, weights, origin)
        return np.concatenate([self._block(z[i : i + rows], weights, origin) for i in range(0, len(z), rows)])

    def _block(self, z: Complex, weights: Complex, origin: float) -> Complex:
        x, y = z.real[:, None], z.imag[:, None]
        a, b = self.loss.real - origin, self.loss.imag
        growth = np.minimum(x * a - y * b, 300.0)  # beyond that only a failed path goes, and its error will show
        out: Complex = expm1(growth, x * b + y * a) @ weights
        return out

    def moments(self, thetas: Real) -> tuple[Real, Real, Real]:
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

    def unreal(self, thetas: Real) -> Real:
        """|Im M''(θ)| / Re M''(θ) as it is computed: what the nodes have wrong where θ is so large that they hardly reach."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            bend = self._moments(thetas)[2]
            if self.mirrored:
                bend = bend + self._moments(1.0 - thetas)[2].conj()
            return np.nan_to_num(np.abs(bend.imag) / np.abs(bend.real), nan=1.0)

    def _moments(self, thetas: Real) -> tuple[Complex, Complex, Complex, Real]:
        a, b = np.multiply.outer(thetas, self.loss.real), np.multiply.outer(thetas, self.loss.imag)
        gain = expm1(a, b)
        first = self.weight * self.loss
        second = first * self.loss
        tilted = 1.0 + gain
        return gain @ self.weight, tilted @ first, tilted @ second, np.abs(tilted) @ np.abs(second)

    def affinity_gap(self) -> float:
        """1 - ρ = ½∫(√P - √Q)²: a sum of positive terms (theory, section 5)."""
        root = expm1(0.5 * self.loss.real, 0.5 * self.loss.imag)
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


def _odds(p: float) -> float:
    """log((1-p)/p): where the two components of a mixture balance."""
    return -inf if p >= 1.0 else log((1.0 - p) / p)


def _height(p: float, sigma: float) -> float:
    """Height of the path above the real line, in units of σ: half way to the branch points at πσ."""
    return 1.2 if p >= 1.0 else min(0.5 * pi * sigma, 1.2)


def _loss(p: float, upper: Complex, lower: Complex, gap: Complex) -> tuple[Complex, Complex]:
    """log A/B and B for A = 1 - p + p·e^upper, B = 1 - p + p·e^lower, with gap = upper - lower given exactly.

    log1p((A - B)/B) keeps its digits when A ≈ B, and log(A/B) when A ≪ B.
    """
    grown = p * np.exp(lower)
    below = (1.0 - p) + grown
    if p >= 1.0:
        return gap, below
    raised = p * np.exp(upper)
    ratio = np.where(gap.real > 30.0, raised - grown, grown * expm1(np.minimum(gap.real, 30.0), gap.imag)) / below
    near = (ratio.real > -0.5) & (np.abs(ratio) < 1e8)
    far = np.log(((1.0 - p) + raised) / below)
    return np.where(near, log1p(np.where(near, ratio, 0.0)), far), below


def _climb(t: Real, start: float, slope: float, scale: float) -> tuple[Real, Real]:
    """A smooth path that is flat before `start` and climbs with `slope` after it, and its derivative."""
    root = np.hypot(t - start, scale)
    return 0.5 * slope * (root + (t - start)), 0.5 * slope * (1.0 + (t - start) / root)


def _follow_branch(loss: Complex, start: int) -> None:
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


def _below_then_above(t: Real, turn: float, height: float) -> tuple[Real, Real]:
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
    height = _height(p, sigma)
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
            start = (0.5 * mean * side / sigma) + sigma * _odds(p) / (mean * side)
            rise = min(0.4, 1.5 / max(mean * side / sigma - start, 1e-9))
            lift, lifted = _climb(side * t, start, rise, min(sigma, 1.0))
            y, slope = y + lift, slope + side * lifted
    z = t + 1j * y
    upper, lower = (a * z - 0.5 * a * a / sigma) / sigma, (b * z - 0.5 * b * b / sigma) / sigma
    gap = distance * (z - (1.0 - 0.5 * distance) / sigma) / sigma
    loss, below = _loss(p, upper, lower, gap)
    if wide:
        _follow_branch(loss, left)
    weight = step * (1.0 + 1j * slope) * np.exp(-0.5 * z * z) / sqrt(2 * pi) * below
    rest = 0.0  # without sampling there is no plateau
    if p < 1.0 and not symmetric:
        rest = log1p_real(p * expm1_real(-0.5 / sigma**2)) - log1p_real(p * expm1_real(-0.5 * (b / sigma) ** 2))
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
    height = _height(p, sigma)
    step = density * min(height, 0.8)
    reach = WIDE_REACH if wide else REACH
    t0 = (1.0 - 0.5 * distance) / sigma
    s = np.arange(FINEST, a / sigma - t0 + reach + step, step)
    q, dq = np.logaddexp(0.0, s), 1.0 / (1.0 + np.exp(-s))
    y, slope = height * q / (height + q), (height / (height + q)) ** 2
    if wide and p < 0.5:
        start = 0.5 / sigma + sigma * _odds(p)
        rise = min(0.4, 1.5 / max(1.0 / sigma - start, 1e-9)) if start > t0 else 0.0
        if start > t0:
            lift, lifted = _climb(q, start - t0, rise, min(sigma, 1.0))
            base, _ = _climb(np.zeros(1), start - t0, rise, min(sigma, 1.0))
            y, slope = y + lift - base, slope + lifted
    offset = q + 1j * y
    z = t0 + offset
    upper, lower = (a * z - 0.5 * a * a / sigma) / sigma, (b * z - 0.5 * b * b / sigma) / sigma
    loss, below = _loss(p, upper, lower, distance * offset / sigma)
    if wide:
        _follow_branch(loss, 0)
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
    loss, below = _loss(p, upper, lower, np.broadcast_to(2.0 * off, mass.shape).ravel())
    weight = mass.ravel() * below
    share = np.abs(weight) * (1.0 + np.abs(np.exp(loss))) * np.minimum(np.abs(loss), 1.0) ** 2
    keep = share > share.sum() * (1e-40 if wide else 1e-20)
    return Transform(weight[keep], loss[keep], mirrored=True)
