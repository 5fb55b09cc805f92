r"""Inversion of the composed transform for many thresholds at once.

With M(z) = Π_t M_t(z), a real θ and a threshold τ of the total privacy loss L (theory, section 3):

    (1/2πi) ∫ M(z) e^{(1-z)τ} / (z(z-1)) dz  =  H_{e^τ}(P‖Q)  for Re z = θ > 1,    H_{e^τ}(P‖Q) - 1  for 0 < θ < 1
    (1/2πi) ∫ M(z) e^{-zτ} / z dz            =  Q(L > τ)      for θ > 0

A path crosses the real line close to the saddle point of its threshold, so that a result of 1e-12 keeps its digits. Thresholds
whose saddle points are near each other share a line, and lines share their offsets ζ = z - θ, so that the exponentials of a
step's transform are computed once for all of them. Offsets are at equal steps of v in ζ = iw·sinh(v), which sees every scale
from the Gaussian bulk to the plateau that low noise leaves behind. Where that plateau oscillates, the path leans into the half
plane where it decays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import asinh, cos, inf, log, pi, sin, sqrt
from typing import NamedTuple

import numpy as np

from betastar.arrays import Complex, Real
from betastar.bounds.transform import COARSE_COUNT, COARSE_DENSITY, COARSE_NOISE, DENSITY, Transform, log1p

#: What two steps of the rule in v must agree to, relative to the integral of the modulus: for H, and for Q(L > τ).
TOLERANCE, MASS_TOLERANCE = 1e-9, 1e-7
#: First and finest step in v.
COARSE, FINE = 0.125, 2.0**-9
#: Relative error of log M that the nodes of a transform may have: bulk only, and with tails and sector.
NODES, WIDE_NODES = 1e-11, 2e-9
#: Widest range of saddle points on one line, in deviations of its integrand: at its ends a line loses a factor e^{1/2}.
SHARED = 2.0
#: Points of the table of log M inside of (0, 1), and beyond 1.
INSIDE, BEYOND = 25, 48
#: A transform below this one may come out as 0 or less.
LOST = 1e-12
EPS = float(np.finfo(float).eps)
TINY = 5e-324

Terms = list[tuple[float, Transform]]


@dataclass(frozen=True)
class Part:
    """`count` equal steps; counts may be fractional or negative when they are the weights of an interpolation."""

    count: float
    build: Callable[..., Transform]
    rate: float
    noise: float
    distance: float
    reverse: bool = False

    def transform(self, wide: bool) -> Transform:
        many = self.noise >= COARSE_NOISE and abs(self.count) >= COARSE_COUNT
        built = self.build(self.rate, self.noise, self.distance, wide, COARSE_DENSITY if many else DENSITY)
        return built.reversed() if self.reverse else built


class Composition:
    """The composed transform of independent steps."""

    def __init__(self, parts: Sequence[Part]) -> None:
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
    def inside(self) -> Strip:
        """Saddle points in (0, 1)."""
        thetas = 1.0 / (1.0 + np.exp(-np.linspace(-6.0, 6.0, INSIDE)))
        return Strip(thetas, *cumulants(self.bulk, thetas))

    @cached_property
    def beyond(self) -> Strip:
        """Saddle points beyond 1, as far as the nodes reach."""
        spread = sqrt(float(cumulants(self.wide, np.ones(1))[2][0]))
        near, far = 0.03 * min(1.0, 1.0 / spread), 80.0 / min(spread, 1e8)
        thetas = 1.0 + np.geomspace(near, max(far, 100.0 * near), BEYOND)
        strip = Strip(thetas, *cumulants(self.wide, thetas))
        if 0 < len(strip) < BEYOND:  # look closer where the nodes no longer reach
            thetas = np.concatenate([strip.thetas, np.linspace(*thetas[len(strip) - 1 : len(strip) + 1], 12)[1:-1]])
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


class Answers(NamedTuple):
    """At each threshold: H_{e^τ}(P‖Q), 1 - H, their error; Q(L > τ), its error, e^τ·Q(L > τ); the density of L under Q."""

    stick: Real
    overlap: Real
    error: Real
    mass: Real
    mass_error: Real
    hit: Real
    density: Real


class Inversion:
    """H and Q(L > τ) at many thresholds. Lines that were computed for some thresholds serve later ones nearby."""

    def __init__(self, composition: Composition, inside_only: bool = False) -> None:
        self.composition = composition
        self.inside_only = inside_only
        self._groups: list[_Lines] = []

    def at(self, taus: Real) -> Answers:
        composition = self.composition
        found, leaning = np.zeros((len(Answers._fields), len(taus))), np.zeros(len(taus), dtype=bool)
        inside = composition.inside.height(taus)
        beyond = np.full(len(taus), inf) if self.inside_only else composition.beyond.height(taus)
        right = beyond + log(WIDE_NODES / NODES) < inside  # where the error is smaller
        unknown = np.isinf(inside) & np.isinf(beyond)
        lost = right & (beyond < -735.0)
        near = ~right & ~unknown
        if near.any():
            found[:, near], leaning[near] = self._strip(composition.inside, taus[near], beyond=False)
        # A path that leans needs the wide nodes anyway, and has the smaller error where the integrand is smaller.
        far = (right & ~lost) | (leaning & (beyond < inside))
        if far.any():
            found[:, far], _ = self._strip(composition.beyond, taus[far], beyond=True)
        found[:, lost] = np.array([0.0, 1.0, TINY, 0.0, TINY, 0.0, 0.0])[:, None]
        with np.errstate(over="ignore"):  # E[min(P, e^τ Q)] ≤ M(1/2)·e^{τ/2}, and M(1/2) is lost in rounding
            found[2, unknown] = np.minimum(LOST * np.exp(0.5 * taus[unknown]), 1.0)
        found[0, unknown] = found[4, unknown] = 1.0
        return Answers(*found)

    def _strip(self, strip: Strip, taus: Real, beyond: bool) -> tuple[Real, Real]:
        """Answers, and which of them a leaning path gave."""
        places = strip.place(taus)
        found, leaning = np.zeros((len(Answers._fields), len(taus))), np.zeros(len(taus), dtype=bool)
        open_ = np.ones(len(taus), dtype=bool)
        for lines in self._groups:
            if lines.beyond == beyond and open_.any():
                nearest = np.argmin(np.abs(places[:, None] - lines.places), axis=1)
                served = open_ & (np.abs(places - lines.places[nearest]) <= 0.6 * SHARED)
                if served.any():
                    found[:, served], leaning[served] = lines.at(taus[served], nearest[served])
                    open_ &= ~served
        if open_.any():
            thetas, bends, number = strip.lines(places[open_])
            lines = _Lines(self.composition, thetas, bends, np.interp(thetas, strip.thetas, strip.arcs), beyond)
            self._groups.append(lines)
            found[:, open_], leaning[open_] = lines.at(taus[open_], number)
        return found, leaning


class _Lines:
    """Several lines in one strip, with the composed transform on offsets that they share."""

    def __init__(self, composition: Composition, thetas: Real, bends: Real, places: Real, beyond: bool) -> None:
        self.composition, self.thetas, self.bends, self.places, self.beyond = composition, thetas, bends, places, beyond
        self.scale = float(np.minimum(2.0 / np.sqrt(bends), np.minimum(thetas, np.abs(1.0 - thetas))).min())
        self._paths: dict[float, _Path] = {}

    def at(self, taus: Real, line: Real) -> tuple[Real, Real]:
        """Answers at thresholds, each on the line with its number, and which of them a leaning path gave."""
        composition = self.composition
        terms, nodes = (composition.wide, WIDE_NODES) if self.beyond else (composition.bulk, NODES)
        past = taus - composition.rest
        still = past == 0.0  # no plateau oscillates: steps in v may be halved as often as it takes
        sums, error = self._path(0.0, terms, COARSE).integrate(taus, line, np.where(still, FINE, COARSE / 2))
        failed = ((error[0] > TOLERANCE * sums[3]) | (error[1] > MASS_TOLERANCE * sums[4])) & ~still
        error = error + self._distrust(terms, nodes)[line] * sums[3:5]
        leaning = np.zeros(len(taus), dtype=bool)
        for sign in (1.0, -1.0):
            chosen = np.flatnonzero(failed & (sign * past > 0.0))
            lean = 0.5 * sign * min(one.sector(sign) for _, one in composition.wide) if chosen.size else 0.0
            if lean == 0.0:
                continue
            path = self._path(lean, composition.wide, COARSE / 2, float(np.abs(past[chosen]).min()))
            leant, off = path.integrate(taus[chosen], line[chosen], np.full(chosen.size, FINE))
            off = off + self._distrust(composition.wide, WIDE_NODES)[line[chosen]] * leant[3:5]
            better = off[0] + 1e-3 * off[1] < error[0, chosen] + 1e-3 * error[1, chosen]
            sums[:, chosen[better]], error[:, chosen[better]] = leant[:, better], off[:, better]
            leaning[chosen[better]] = True
        return self._answers(taus, sums, error), leaning

    def _answers(self, taus: Real, sums: Real, error: Real) -> Real:
        """With what the residues at 0 and 1, and an atom at loss 0, contribute."""
        kept = np.exp(self.composition.atom)
        stick, hit, density = sums[:3]
        overlap = 1.0 - stick
        if not self.beyond:
            overlap = kept - stick if kept else -stick
            stick = (1.0 - kept) + stick
        if kept:
            jump = kept * np.maximum(-np.expm1(taus), 0.0)
            stick, overlap, hit = stick + jump, overlap - jump, hit + kept * np.exp(taus) * (taus < 0.0)
        back = np.exp(-np.maximum(taus, -700.0))
        return np.stack([np.maximum(stick, 0.0), overlap, error[0], back * hit, back * error[1], hit, back * density])

    def _distrust(self, terms: Terms, nodes: float) -> Real:
        """Relative error of M(θ): from the nodes, proportional to log M, and from rounding M - 1 (and M, if it is small)."""
        error = np.full(len(self.thetas), 8.0 * EPS + nodes)
        for count, one in terms:
            size = np.maximum(1.0 + np.nan_to_num(one.moments(self.thetas)[0], nan=-1.0), EPS)
            rounding = sqrt(abs(count)) + 2.0 * abs(count) * np.maximum(1.0 / size - 2.0, 0.0)
            error += np.abs(count * np.log(size)) * nodes + EPS * rounding
        return error

    def _path(self, lean: float, terms: Terms, step: float, past: float = 0.0) -> _Path:
        key = lean if lean == 0.0 or lean not in self._paths or self._paths[lean].past <= past else inf
        if lean not in self._paths or key == inf:
            self._paths[lean] = _Path(self, lean, terms, step, past)
        return self._paths[lean]


class _Path:
    """Offsets ζ = iw·sinh(v - i·lean), moved to start at 0, and the composed transform on them, refined when it is needed."""

    def __init__(self, lines: _Lines, lean: float, terms: Terms, step: float, past: float) -> None:
        self.lines, self.lean, self.terms, self.step, self.past = lines, lean, terms, step, past
        self._levels: list[tuple[Complex, Complex]] = []
        self._grow()

    def _on(self, v: Real) -> tuple[Complex, Complex]:
        """Offsets, and for each line (M(θ+ζ)e^{-ζ·rest}/M(θ) less its atom)·dζ/dv/π."""
        lines = self.lines
        sinh, cosh = np.sinh(v), np.cosh(v)
        across, along = lines.scale * sin(self.lean), lines.scale * cos(self.lean)
        offsets, speed = across * (cosh - 1.0) + 1j * along * sinh, across * sinh + 1j * along * cosh
        power = np.zeros((len(v), len(lines.thetas)), dtype=np.complex128)
        for count, one in self.terms:
            power += count * log1p(one.shifted(lines.thetas, offsets))
        if not self._levels:
            self.start = power[0].real.copy()  # log M(θ)
        power -= self.start
        mass = np.exp(np.minimum(power.real, 300.0) + 1j * power.imag)
        if lines.composition.atom > -60.0:
            mass = mass - np.exp(lines.composition.atom - self.start)
        return offsets, mass * (speed[:, None] / pi)

    def _grow(self) -> None:
        """The first level: blocks, until the integrand has died."""
        lines, step = self.lines, self.step
        far, v, peak = asinh(1e16 / lines.scale), 0.0, np.zeros(len(lines.thetas))
        bulk = asinh(7.5 / (sqrt(float(lines.bends.min())) * lines.scale))
        count = 2 * int(0.5 * bulk / step) + 12  # even: every second node is a node of the double step
        blocks: list[tuple[Complex, Complex]] = []
        while True:
            offsets, mass = self._on(v + step * np.arange(count))
            if not blocks:
                mass[0] *= 0.5
                self._levels.append((offsets, mass))
            blocks.append((offsets, mass))
            z = lines.thetas + offsets[:, None]
            size = np.abs(mass / (z * (z - 1.0))) * np.exp(-np.abs(offsets.real) * self.past)[:, None]
            peak = np.maximum(peak, size.max(axis=0))
            v += count * step
            count = 32
            if np.all(size[-8:].max(axis=0) <= 1e-17 * peak) or v > far:
                break
        self.length = v
        offsets, mass = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        self._levels = [(offsets, mass)]

    def _level(self, number: int) -> tuple[Complex, Complex]:
        """Level 0 has step h, level k the nodes that halving it for the k-th time adds."""
        while len(self._levels) <= number:
            step = self.step * 0.5 ** (len(self._levels) - 1)
            self._levels.append(self._on(np.arange(0.5 * step, self.length, step)))
        return self._levels[number]

    def integrate(self, taus: Real, line: Real, finest: Real) -> tuple[Real, Real]:
        """∫ over the path for H, Q(L > τ) and the density, and ∫|·| of the first two; then the errors of these two.

        The trapezoidal rule is halved until two steps agree.
        """
        whole, half = self._sums(0, taus, line)
        step = self.step
        wrong = np.abs(whole[:2] - 2.0 * half[:2])
        sums, error = step * whole, step * wrong
        level = 0
        while True:
            rough = (error[0] > TOLERANCE * sums[3]) | (error[1] > MASS_TOLERANCE * sums[4])
            open_ = np.flatnonzero(rough & (step > finest))
            if not open_.size:
                break
            level, step = level + 1, 0.5 * step
            between, _ = self._sums(level, taus[open_], line[open_])
            before = whole[:, open_]
            whole[:, open_] += between
            sums[:, open_] = step * whole[:, open_]
            error[:, open_] = step * np.abs(before[:2] - between[:2])
        scale = np.exp(self.start[line] + (1.0 - self.lines.thetas[line]) * taus)
        return sums * scale, error * scale

    def _sums(self, level: int, taus: Real, line: Real) -> tuple[Real, Real]:
        """Σ over the nodes of a level, and over every second one."""
        offsets, mass = self._level(level)
        whole, half = np.empty((5, len(taus))), np.zeros((3, len(taus)))
        past = taus - self.lines.composition.rest
        for k, theta in enumerate(self.lines.thetas):
            rows = np.flatnonzero(line == k)
            if not rows.size:
                continue
            z = theta + offsets
            columns = np.stack([mass[:, k] / (z * (z - 1.0)), mass[:, k] / z, mass[:, k]], axis=1)
            turns = np.exp(np.multiply.outer(-past[rows], offsets))
            whole[:3, rows] = (turns @ columns).imag.T
            whole[3:, rows] = (np.abs(turns) @ np.abs(columns[:, :2])).T
            if level == 0:
                half[:, rows] = (turns[:, ::2] @ columns[::2]).imag.T
        return whole, half
