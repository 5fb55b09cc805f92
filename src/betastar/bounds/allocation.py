"""Random allocation ("balls in bins"): an epoch of t batches, in one of which each record is, as the exact method composes it.

The transform M(z) = E_Q[e^{zL}] of an epoch is a sum over nodes of the loss, weighted with its density (`epoch_density.py`). The
density is analytic, so that the trapezoidal rule converges exponentially, on the real line and above it. Nodes are dense in the
bulk of the law and farther apart in its tail, where the path climbs: there e^{zL} decays by itself.

What is not exact is reported: the rule over frequencies with its step doubled tells how well it converged, and how far the masses
of both worlds are from 1 tells the rest (`Transform.doubt`). No digits are left of a tail whose probability is of that order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, erf, expm1, pi, sinh, sqrt
from typing import NoReturn

import numpy as np

from betastar.arrays import Complex, Real
from betastar.bounds import transform
from betastar.bounds.answers import Answers
from betastar.bounds.epoch_density import EpochDensity
from betastar.bounds.transform import Transform

#: Step of the nodes as a share of the height of a path that climbs with this slope.
NODES, SLOPE = 0.17, 0.39
#: The path climbs from so many deviations on, and its height stays below this share of the largest loss, and below this one.
CLIMBS, SHARE, HIGHEST = 3.0, 0.17, (0.15, 0.3)
#: The path is the real line, and the step that of so many deviations, unless that takes more nodes than this.
WIDE, MOST_NODES = 0.75, 1200
#: On the real line, M must have fallen to this before the nodes are too far apart; otherwise the step is divided.
DIED, FINER, FINEST = 1e-14, 1.5, 0.06
#: The same for tilted laws, and how they are tilted.
TILTED_DIED, TILTS = 1e-11, (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 30.0, 40.0)
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
        values = density.at(sizes if first else -sizes, first)[0].real
        visible = np.flatnonzero(np.abs(values) * sizes > SEEN)
        sides.append(float(sizes[min(int(visible[-1]) + 1, PILOTS)]) if visible.size else far)
        root = values * np.exp(-0.5 * sizes)
        areas.append(float(np.trapezoid(root, sizes)))
        peaks.append(float(root.max()))
    return _Extent(sides[1], sides[0], sum(areas) / (max(peaks) * sqrt(2.0 * pi)))


def _path(extent: _Extent, mirrored: bool, dense: float) -> tuple[Complex, Complex]:
    """Losses on the path, and dL times the step: the real part a(v) solves a/E + asinh(a/c)/SLOPE = v, so that da/dv = e(a)
    with 1/e = 1/E + 1/(SLOPE·√(a² + c²)); the height is a share of e(a)."""
    c = CLIMBS * extent.deviation
    widest = WIDE * extent.deviation
    real = widest > HIGHEST[mirrored] or (extent.left * (not mirrored) + extent.right) / (dense * widest) < MOST_NODES
    coarsest, share = (min(widest if real else HIGHEST[mirrored], SHARE * extent.right), 0.0 if real else 1.0)

    def arc(a: Real) -> Real:
        return np.asarray(a / coarsest + np.arcsinh(a / c) / SLOPE)

    first, last = arc(np.array([0.0 if mirrored else extent.left, extent.right])).tolist()
    v = dense * (np.arange(-ceil(first / dense), ceil(last / dense)) + 0.5)
    low, high = np.minimum(v * coarsest, 0.0), np.maximum(v * coarsest, 0.0)
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = arc(middle) < v
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    a = 0.5 * (low + high)
    root = np.hypot(a, c)
    height = 1.0 / (1.0 / coarsest + 1.0 / (SLOPE * root))
    return a + 1j * share * height, dense * height * (1.0 + 1j * share * height**2 * a / (SLOPE * root**3))


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
    losses, steps = _path(extent, mirrored, dense)
    values, coarse = np.empty((2, len(losses)), dtype=np.complex128)
    ahead = losses.real >= 0.0
    back = np.exp(-losses[ahead])
    values[ahead], coarse[ahead] = (back * one for one in density.at(losses[ahead]))
    if not ahead.all():
        values[~ahead], coarse[~ahead] = density.at(losses[~ahead], False)
    weight = steps * values
    both = 1.0 + np.exp(losses)
    # The error of a rule that converges geometrically is squared when its step is halved.
    halved = float(np.abs(steps * (coarse - values)) @ np.abs(both)) ** 2
    if mirrored:
        masses = abs(complex(weight @ both).real - 1.0)
    else:
        masses = abs(complex(weight.sum()) - 1.0) + abs(complex(weight @ (both - 1.0)) - 1.0)
    built = Transform(weight, losses, mirrored=mirrored, irrelevant=0.0, doubt=ROUNDING + 4.0 * masses + halved)
    if losses.imag.any():
        return built
    dies, level, most = _died(built, float(steps.real.max()))
    if level > DIED and dense > FINEST:
        return epoch(batches, noise, mirrored, dense / FINER)
    return replace(built, doubt=built.doubt + level, dies=dies, most_tilted=most)


def _died(built: Transform, widest: float) -> tuple[float, float, float]:
    """Where M has died on vertical lines before nodes with this largest distance see its next period, how small it is there, and
    the largest real part (and of 1 - z) at which it has died, too."""
    frequencies = np.linspace(0.0, pi / widest, 200)

    def sizes(theta: float) -> Real:
        """The largest modulus beyond each frequency, relative to that at 0."""
        values = np.abs(1.0 + built.excess(theta + 1j * frequencies))
        return np.maximum.accumulate(values[::-1])[::-1] / values[0]

    strip = np.max([sizes(theta) for theta in (0.0, 0.5, 1.0)], axis=0)
    last = int(np.argmax(strip <= max(DIED, float(strip[-1]))))
    most = 1.0
    for theta in TILTS:
        if max(sizes(one)[last] for one in ((theta, 1.0 - theta) if not built.mirrored else (theta,))) > TILTED_DIED:
            break
        most = theta
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
