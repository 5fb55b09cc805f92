"""The composed transform M(z) = Π_t M_t(z) of independent steps, its saddle points, and β* from the line Re z = 1/2 alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import asinh, inf, log, pi, sqrt

import numpy as np

from betastar.arrays import Real
from betastar.bounds.complex_functions import log1p
from betastar.bounds.parts import EPS, AnyPart
from betastar.bounds.transform import Transform

#: What two steps of the trapezoidal rule must agree to, relative to the integral of the modulus.
TOLERANCE = 1e-9
#: Step in v of the rule for β* alone.
COARSE = 0.125
#: Relative error of log M that the nodes of a transform may have: bulk only, and with tails and sector.
NODES, WIDE_NODES = 1e-11, 2e-9
#: What the nodes of a step do not see, more than the mass beyond their reach: bulk only, and wide.
BEYOND_REACH, BEYOND_WIDE_REACH = 2e-19, 1e-50
#: A modulus of M that counts as a plateau.
PLATEAU = 1e-9
#: Points of the table of log M inside of (0, 1), and beyond 1.
INSIDE, BEYOND = 25, 48
#: Widest range of saddle points on one line, in deviations of its integrand: at its ends a line loses a factor e^{1/2}.
SHARED = 2.0

Terms = list[tuple[float, Transform]]


class Composition:
    """The composed transform of independent steps."""

    def __init__(self, parts: Sequence[AnyPart]) -> None:
        self.parts = tuple(parts)

    @cached_property
    def bulk(self) -> Terms:
        return [(part.count, part.transform(False)) for part in self.parts]

    @cached_property
    def wide(self) -> Terms:
        return [(part.count, part.transform(True)) for part in self.parts]

    @cached_property
    def atom(self) -> float:
        """Logarithm of the mass at loss 0 that never decays (glued steps)."""
        return sum((n * log(t.atom) if t.atom > 0.0 else -inf) for n, t in self.bulk)

    @cached_property
    def rest(self) -> float:
        """Loss of a run in which the record is never sampled and the noise is 0: where the plateau sits."""
        return sum(n * t.rest for n, t in self.bulk)

    @cached_property
    def lost(self) -> float:
        """Probability of losses that are too large for the nodes."""
        return sum(abs(n) * t.lost for n, t in self.wide)

    @cached_property
    def doubt(self) -> float:
        """Probability that the nodes have wrong."""
        return sum(abs(n) * t.doubt for n, t in self.bulk)

    @cached_property
    def plateau(self) -> bool:
        """Whether M has not died on Re z = 1/2 where that of a Gaussian law has, so that straight paths are of little use."""
        bend = float(cumulants(self.bulk, np.array([0.5]))[2][0])
        z = np.array([0.5 + 1j * min(8.0 / sqrt(bend), 1e15)])
        return sum(n * float(log1p(one.excess(z)).real[0]) for n, one in self.bulk) > log(PLATEAU)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Losses that L cannot leave, if any: a record that is added leaves log P/Q ≥ log(1-p) at each step."""
        floor = 0.0
        for part in self.parts:
            if (least := part.least_loss) is None:
                return -inf, inf
            floor += part.count * least
        ways = {part.reverse for part in self.parts}
        return (floor if ways == {False} else -inf), (-floor if ways == {True} else inf)

    @cached_property
    def inside(self) -> Strip:
        """Saddle points in (0, 1); none, if M is so small there that rounding leaves nothing of it."""
        thetas = 1.0 / (1.0 + np.exp(-np.linspace(-6.0, 6.0, INSIDE)))
        table = cumulants(self.bulk, thetas)
        known = np.isfinite(np.stack(table)).all(axis=0)
        first, last = 0, INSIDE
        if any(
            one.lost > 0.0 or one.missing != 0.0 for _, one in self.bulk
        ):  # losses that are too large for the nodes are missed near the ends
            first = INSIDE // 2 + 1 - int(np.argmin(np.append(known[INSIDE // 2 :: -1], False)))
            last = INSIDE // 2 + int(np.argmin(np.append(known[INSIDE // 2 :], False)))
        elif not known.all():
            last = 0
        return Strip(thetas[first:last], *(one[first:last] for one in table))

    @cached_property
    def beyond(self) -> Strip:
        """Saddle points beyond 1, as far as the nodes reach."""
        spread = sqrt(float(cumulants(self.wide, np.ones(1))[2][0]))
        near, far = 0.03 * min(1.0, 1.0 / spread), 80.0 / min(spread, 1e8)
        thetas = 1.0 + np.geomspace(near, max(far, 100.0 * near), BEYOND)
        strip = Strip(thetas, *cumulants(self.wide, thetas))
        if 0 < len(strip) < BEYOND:  # look closer where the nodes no longer reach
            last, first = thetas[len(strip) - 1], thetas[len(strip)]
            thetas = np.concatenate([strip.thetas, np.linspace(last, first, 12)[1:-1]])
            strip = Strip(thetas, *cumulants(self.wide, thetas))
        return strip


def cumulants(terms: Terms, thetas: Real) -> tuple[Real, Real, Real]:
    """log M and its first two derivatives at each real θ; nan where the nodes do not reach."""
    value, slope, bend = (np.zeros(len(thetas)) for _ in range(3))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for count, one in terms:
            gap, first, second = one.moments(thetas)
            gap = np.where(gap > -1.0, gap, np.nan)
            size = 1.0 + gap
            value += count * np.log1p(gap)
            slope += count * first / size
            bend += count * (second / size - (first / size) ** 2)
    return value, slope, np.maximum(bend, 1e-300)


def plain_overlap(composition: Composition) -> tuple[float, float] | None:
    """E[min(P, Q)] and its error, on the line Re z = 1/2 alone; None where that is not good enough.

    The short way to β*, for many runs at once.
    """
    (value,), (slope,), (bend,) = cumulants(composition.bulk, np.array([0.5]))
    if not abs(slope) <= sqrt(bend + 8.0):  # the saddle point is elsewhere, or M(1/2) is lost in rounding
        return None
    scale = min(2.0 / sqrt(bend), 0.5)
    v, count = 0.0, 2 * int(0.5 * asinh(7.5 / (sqrt(bend) * scale)) / COARSE) + 12
    size = whole = half = peak = 0.0
    kept = np.exp(composition.atom)
    while v < 40.0:
        nodes = v + COARSE * np.arange(count)
        z = 0.5 + 1j * scale * np.sinh(nodes)
        power = sum(n * log1p(one.excess(z)) for n, one in composition.bulk)
        f = (np.exp(power) - kept) * (scale / pi * np.cosh(nodes)) / (z * (1.0 - z)).real  # z(1-z) is real here
        f[nodes == 0.0] *= 0.5
        sizes, part = np.abs(f), f.real
        size, whole, half = size + float(sizes.sum()), whole + float(part.sum()), half + float(part[::2].sum())
        peak = max(peak, float(sizes.max()))
        v, count = v + COARSE * count, 32
        if sizes[-8:].max() <= 1e-17 * peak:
            break
    wrong = abs(whole - 2.0 * half)
    if wrong > TOLERANCE * size:
        return None
    doubt = 8.0 * EPS + max(one.accuracy(NODES) for _, one in composition.bulk) * (1.0 + abs(value))
    for n, one in composition.bulk:
        least = max(1.0 + float(one.moments(np.array([0.5]))[0][0]), EPS) if len(composition.bulk) > 1 else np.exp(value / n)
        doubt += EPS * (sqrt(abs(n)) + 2.0 * abs(n) * max(1.0 / least - 2.0, 0.0))
    return float(kept + COARSE * whole), float(COARSE * (wrong + doubt * size)) + composition.doubt


class Strip:
    """Saddle points on one side of the pole at 1: where log M(θ) + (1-θ)τ - log|θ(1-θ)| is least, for any τ.

    The curvature of that function does not depend on τ, so that its root measures how far apart two saddle points are.
    """

    def __init__(self, thetas: Real, value: Real, slope: Real, bend: Real) -> None:
        known = np.isfinite(value) & np.isfinite(slope) & np.isfinite(bend)
        last = len(thetas) if known.all() else int(np.argmin(known))
        self.thetas, self.value, self.slope, self.bend = (one[:last] for one in (thetas, value, slope, bend))
        t = self.thetas
        self.taus = np.maximum.accumulate(self.slope - 1.0 / t + 1.0 / (1.0 - t))  # the τ whose saddle point this is
        self.curvature = self.bend + t**-2 + (1.0 - t) ** -2
        root = np.sqrt(self.curvature)
        self.arcs = np.concatenate([[0.0], np.cumsum(0.5 * (root[1:] + root[:-1]) * np.diff(t))])[:last]

    def __len__(self) -> int:
        return len(self.thetas)

    def place(self, taus: Real) -> Real:
        """Where the saddle points are, in deviations along the strip."""
        return np.interp(taus, self.taus, self.arcs)

    def height(self, taus: Real) -> Real:
        """Logarithm of the size of the integrand at its saddle point."""
        if not len(self):
            return np.full(len(taus), inf)
        theta = np.interp(taus, self.taus, self.thetas)
        level = self.value - np.log(np.abs(self.thetas * (1.0 - self.thetas)))
        return np.interp(theta, self.thetas, level) + (1.0 - theta) * taus

    def lines(self, places: Real) -> tuple[Real, Real, Real]:
        """θ and (log M)'' of lines that serve these places, and the number of the line of each."""
        low, high = float(places.min()), float(places.max())
        bins = max(1, int(np.ceil((high - low) / SHARED)))
        width = max((high - low) / bins, 1e-9)
        used, number = np.unique(np.minimum((places - low) / width, bins - 1).astype(int), return_inverse=True)
        centres = low + np.minimum((used + 0.5) * width, high - low)
        return np.interp(centres, self.arcs, self.thetas), np.interp(centres, self.arcs, self.bend), number
