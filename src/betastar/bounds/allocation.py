"""Random allocation ("balls in bins"): an epoch of t batches, in one of which each record is, as the exact method composes it.

The transform M(z) = E_Q[e^{zL}] of an epoch is a sum over nodes of the loss, weighted with its density (`epoch_density.py`). The
density is analytic, so that the trapezoidal rule converges exponentially. On the real line M of the nodes is periodic, more or
less: it counts as 0 from where it has died, which must be before its next period (`Transform.dies`).

What is not exact is reported: the rule over frequencies with its step doubled tells how well it converged, and how far the masses
of both worlds are from 1 tells the rest (`Transform.doubt`). No digits are left of a tail whose probability is of that order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, erf, expm1, log, pi, sinh, sqrt
from typing import NoReturn

import numpy as np

from betastar.arrays import Real
from betastar.bounds.epoch_density import EpochDensity
from betastar.curves import Answers
from betastar.exact import transform
from betastar.exact.transform import Transform

#: Step of the nodes in units of e(a), which is at most so many deviations and grows from so many deviations on.
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


def _nodes(extent: _Extent, mirrored: bool, dense: float) -> tuple[Real, Real]:
    """Losses, and their distances: a(v) at equal steps of v with a/E + asinh(a/c)/SLOPE = v, so that da/dv = e(a) with
    1/e = 1/E + 1/(SLOPE·√(a² + c²)): nodes are dense in the bulk."""
    c, widest = GROWS * extent.deviation, WIDEST * extent.deviation

    def arc(a: Real) -> Real:
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
        return transform.line(1.0, noise, 2.0 if mirrored else 1.0, True)
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

    def sizes(theta: float) -> Real:
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
class EpochPart:
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
    def least_loss(self) -> float | None:
        return None

    @property
    def mu_square(self) -> float | None:
        return ((1.0 + self.mirrored) / self.noise) ** 2 if self.batches == 1 else None

    def exchanged(self) -> EpochPart:
        return replace(self, reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        built = epoch(self.batches, self.noise, self.mirrored)
        return built.reversed() if self.reverse else built

    def overlap(self) -> float | None:
        return None

    def closed_form(self) -> bool:
        return False

    def answers(self, taus: Real) -> Answers:
        raise ValueError(f"an epoch of {self.batches} batches has no closed form.")

    def guess(self, fprs: Real) -> Real:
        raise ValueError(f"an epoch of {self.batches} batches has no closed form.")


def largest_advantage(batches: int, noise: float, mirrored: bool) -> float:
    """At most the total variation of one epoch: by its χ² divergence, or as if the batch were known."""
    square = min(noise**-2, 600.0)
    spread = sinh(square) if mirrored else 0.25 * expm1(square)
    return min(sqrt(spread / batches), erf((1.0 + mirrored) / (2.0 * sqrt(2.0) * noise)))


def not_certified() -> NoReturn:
    """Refuse: the integrals of an epoch have an error that is measured, not proved."""
    raise ValueError(
        "method must be 'exact' or 'affinity' where each record is in one random batch of an epoch, got 'certified': "
        "an epoch is an integral whose error is estimated, not proved. Ask with method='exact'."
    )
