r"""Steps that are mixtures of several shifts: their transform, their tails, and the closed forms of a single one.

A(x) = Σ_j w_j e^{(s_j x - s_j²/2)/σ²} is the likelihood of the person's records against none. The path of the transform must
not cross a branch point of log A(±x). Where the w_j are those of a sum of independent coins and the s_j are 0, 1, 2, …, the zeros
of A nearest to the real line have Im x = ±πσ² (a lemma in theory, section 12), as for one record. Otherwise no zero is nearer to
it than πσ²/(largest - smallest shift): so near to the real line all terms point into one half plane.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log, pi, sqrt
from math import log1p as log1p_real

import numpy as np
from scipy.special import ndtri

from betastar.arrays import Booleans, Complex, Real
from betastar.bounds.one_step import Directions
from betastar.bounds.parts import EPS, half_line, on_half_line
from betastar.curves import Answers
from betastar.exact.transform import COARSE_COUNT, COARSE_DENSITY, COARSE_NOISE, DENSITY, REACH, Transform, expm1, log1p
from betastar.scenario.mixture import UNSEEN, Pair, pair
from betastar.scenario.step import MixtureStep

#: What takes the place of WIDE_REACH on a path that does not climb: beyond it there is less than 1e-30.
FAR = 11.5
#: Largest loss of a node, and of minus the logarithm of its weight: their exponentials must not overflow.
LARGEST = 650.0
#: Overlap of the two worlds of one step below which it tells everything.
NOTHING_LEFT = 1e-40
#: Likelihood of the outcome 0, less than 1 by so much, at which no plateau is left.
NO_PLATEAU = 1.0 - 1e-12
#: Nodes at which a sum is computed at once: few enough that not all terms matter at them.
TOGETHER = 128


@lru_cache(maxsize=512)
def mixture(step: MixtureStep, wide: bool = False, density: float = DENSITY) -> Transform:
    """The transform of one step of a mixture; its count does not matter."""
    worlds = pair(step)
    sigma, mirrored = step.noise, step.mirrored
    if worlds.overlap() < NOTHING_LEFT:  # M(z) ≤ √(2·overlap) at z = 1/2 is lost in rounding
        nothing = np.zeros(0, dtype=np.complex128)
        return Transform(nothing, nothing, mirrored=mirrored, lost=1.0, deficit=1.0, missing=0.0 if mirrored else 1.0)
    reach = FAR if wide else REACH
    end = _end(worlds.weights / worlds.sampled, worlds.shifts / sigma, reach)
    weights, shifts = _seen(worlds.weights, worlds.shifts / sigma, end)
    unseen = float(worlds.weights[len(weights) :].sum())
    height = _height(shifts, sigma, step.real_zeros)
    width = density * height
    right, left = max(1, ceil(end / width)), 0 if mirrored else ceil(reach / width)
    z = width * (np.arange(-left, right) + 0.5) + 1j * height
    loss, log_below = _losses(z, weights, shifts, unseen, mirrored)
    _follow_branch(z, loss, left, weights, shifts, unseen, mirrored)
    log_weight = log_below - 0.5 * z * z + log(width / sqrt(2.0 * pi))
    held = (loss.real < LARGEST) & (log_weight.real > -LARGEST)
    ends = sigma * (float(z[-1].real if held.all() else z[~held][0].real) - 0.5 * width)
    lost = worlds.probability_above(ends)
    deficit = float(np.exp((log_weight + loss)[~held]).sum().real)
    weight, loss = np.exp(log_weight[held]), loss[held]
    idle = float(np.expm1(-0.5 * shifts**2) @ weights) - unseen  # A(0) - 1
    rest = log1p_real(idle) if not mirrored and worlds.sampled < 1.0 and idle > -NO_PLATEAU else 0.0
    return Transform(weight, loss, mirrored=mirrored, rest=rest, lost=lost, deficit=deficit, irrelevant=0.0)


def _end(shares: Real, means: Real, reach: float) -> float:
    """Where the nodes end, as t = x/σ: what all shifts but 0 have beyond it is less than what one Gaussian has beyond `reach`."""
    room = reach**2 + 2.0 * np.log(shares)
    counts = (means > 0.0) & (room > 0.0)
    return float((means[counts] + np.sqrt(room[counts])).max())


def _seen(weights: Real, means: Real, end: float) -> tuple[Real, Real]:
    """The terms that matter at a node: a larger shift matters most at the last one."""
    logs = np.log(weights) + means * end - 0.5 * means**2
    last = int(np.flatnonzero(logs > logs.max() + UNSEEN)[-1]) + 1
    return weights[:last], means[:last]


def _height(means: Real, sigma: float, real_zeros: bool) -> float:
    """Height of the path above the real line: half way to the branch points, at most 1.2."""
    if len(means) == 1:
        return 1.2
    unit = float(means[1] - means[0]) if real_zeros else float(means[-1] - means[0])
    return min(0.5 * pi / unit, 1.2)


def _losses(z: Complex, weights: Real, means: Real, unseen: float, mirrored: bool) -> tuple[Complex, Complex]:
    """log A(z)/B(z) and log B(z), up to multiples of 2πi, with B(z) = A(-z), or 1. unseen: weight of terms that are 0 in A.

    log1p((A - B)/B) keeps its digits where A ≈ B.
    """
    loss, below = np.empty(len(z), dtype=np.complex128), np.zeros(len(z), dtype=np.complex128)
    logs = np.log(weights) - 0.5 * means**2
    for at in range(0, len(z), TOGETHER):
        some = z[at : at + TOGETHER]
        ahead, seen = _log_sum(some, logs, means)
        if mirrored:
            behind, other = _log_sum(-some, logs, means)
            seen |= other
            gap = np.multiply.outer(some, 2.0 * means[seen])
            shares = np.exp(logs[seen] - np.multiply.outer(some, means[seen]) - behind[:, None])
        else:
            behind = np.zeros(len(some), dtype=np.complex128)
            gap = np.multiply.outer(some, means[seen]) - 0.5 * means[seen] ** 2
            shares = np.broadcast_to(weights[seen], gap.shape).astype(np.complex128)
        far = gap.real.max(axis=1) >= 30.0
        ratio = (shares * expm1(np.minimum(gap.real, 30.0), gap.imag)).sum(axis=1)  # (A - B)/B
        if not mirrored:
            ratio -= weights[~seen].sum() + unseen  # of terms that are 0 in A, but not in B = Σ w
        near = ~far & (ratio.real > -0.5) & (np.abs(ratio) < 1e8)
        loss[at : at + TOGETHER] = np.where(near, log1p(np.where(near, ratio, 0.0)), ahead - behind)
        below[at : at + TOGETHER] = behind
    return loss, below


def _log_sum(z: Complex, logs: Real, means: Real) -> tuple[Complex, Booleans]:
    """log Σ_j e^{logs_j + z·means_j} at each z, and which terms matter at any of them."""
    size = np.multiply.outer(z.real, means) + logs
    most = size.max(axis=1)
    seen = (size - most[:, None] > UNSEEN).any(axis=0)
    terms = np.exp(size[:, seen] - most[:, None] + 1j * np.multiply.outer(z.imag, means[seen]))
    return np.log(terms.sum(axis=1)) + most, seen


def _follow_branch(z: Complex, loss: Complex, start: int, weights: Real, means: Real, unseen: float, mirrored: bool) -> None:
    """Continue the loss from the real line, where it is real, up to the node `start`, and along the path from there."""
    logs, x = np.log(weights) - 0.5 * means**2, z[start : start + 1].real + 0j
    slope, steps = 0.0, 16
    for side in (1.0, -1.0) if mirrored else (1.0,):  # the phase grows like the mean of the terms, and bends with their spread
        total, seen = _log_sum(side * x, logs, means)
        slope += float(np.exp(logs[seen] + side * x.real * means[seen] - total.real) @ means[seen])
        steps += ceil(4.0 * z[start].imag * float(means[seen][-1] - means[seen][0]))
    heights = z[start].imag * np.arange(steps + 1) / steps
    phases = np.unwrap(_losses(x + 1j * heights, weights, means, unseen, mirrored)[0].imag - slope * heights)
    loss.imag[start] = phases[-1] - phases[0] + slope * heights[-1]
    loss.imag[start:] = np.unwrap(loss.imag[start:])
    loss.imag[start::-1] = np.unwrap(loss.imag[start::-1])


@dataclass(frozen=True)
class MixturePart:
    """`count` steps of a mixture."""

    count: float
    step: MixtureStep
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return pair(self.step).sampled

    @property
    def least_loss(self) -> float | None:
        least = pair(self.step).least_loss
        return least if np.isfinite(least) and self.count > 0.0 else None

    @property
    def mu_square(self) -> float | None:
        worlds = pair(self.step)
        if len(worlds.shifts) > 1:
            return None
        return float(((1.0 + worlds.mirrored) * worlds.shifts[0] / worlds.noise) ** 2)

    def exchanged(self) -> MixturePart:
        return replace(self, reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        many = self.step.noise >= COARSE_NOISE and abs(self.count) >= COARSE_COUNT
        built = mixture(replace(self.step, count=1), wide, COARSE_DENSITY if many else DENSITY)
        return built.reversed() if self.reverse else built

    def overlap(self) -> float:
        return pair(self.step).overlap()

    def closed_form(self) -> bool:
        return True

    def answers(self, taus: Real) -> Answers:
        worlds = pair(self.step)
        low, high = -worlds.upper_quantile(1e-300), worlds.upper_quantile(1e-300)
        low = low if worlds.mirrored else -38.0 * worlds.noise
        sizes = np.abs(taus)
        if self.reverse:
            x = worlds.threshold(-sizes, low, worlds.middle)
            gain, mass = worlds.head(x)
        else:
            x = worlds.threshold(sizes, worlds.middle, high)
            gain, mass = worlds.tail(x)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            density = worlds.density(x, self.reverse) / worlds.slope(x)
        return on_half_line(taus, gain, mass, density)

    def guess(self, fprs: Real) -> Real:
        worlds = pair(self.step)
        side = worlds.head if self.reverse else worlds.tail
        high = worlds.upper_quantile(1e-300)
        x = half_line(lambda x: side(x)[1], fprs, -high, high, self.reverse)
        return (-1.0 if self.reverse else 1.0) * worlds.loss(x)


def directions(step: MixtureStep, above: bool, slack: float) -> Directions:
    """What a grid needs to know of one step. Outcomes that all steps together have with probability `slack` are given away."""
    worlds = pair(replace(step, count=1))
    rare = min(0.01, slack / step.count)
    middle = worlds.middle
    far, most = _end_of_grid(worlds, middle, worlds.upper_quantile(rare))
    near, farthest = _end_of_grid(worlds, middle, float(ndtri(rare)) * step.noise)
    least = float(worlds.shifts[worlds.shifts > 0.0][0])
    # Rounding of the weights, of differences of two close tails, and of their sum, outwards.
    rounding = EPS * (64.0 + 8.0 * (1.0 + step.noise / least) + sqrt(len(worlds.shifts)))
    outwards = 1.0 + (rounding if above else -rounding)

    def ahead(losses: Real) -> tuple[Real, Real]:
        gain, mass = worlds.tail(worlds.threshold(losses, 0.0 if step.mirrored else near - least, far))
        return outwards * gain, mass

    def behind(losses: Real) -> tuple[Real, Real]:
        gain, mass = worlds.head(worlds.threshold(-losses, near, middle))
        return outwards * gain, mass

    advantage = outwards * worlds.advantage()
    if step.mirrored:
        return Directions(advantage, ahead, most)
    return Directions(advantage, ahead, most, behind, farthest, worlds.least_loss)


def _end_of_grid(worlds: Pair, middle: float, far: float) -> tuple[float, float]:
    """An outcome, and the size of the loss at which the grid ends: those of `far`, or LARGEST and an outcome beyond it.

    Of outcomes with a larger loss the curve at LARGEST says all that is given to the attacker, or taken from them.
    """
    size = abs(float(worlds.loss(np.array([far]))[0]))
    if size <= LARGEST:
        return far, size
    near = middle
    for _ in range(60):
        between = 0.5 * (near + far)
        near, far = (between, far) if abs(float(worlds.loss(np.array([between]))[0])) < 1.05 * LARGEST else (near, between)
    return far, LARGEST
