r"""Exact composition: every point of the trade-off curve is one contour integral of the composed transform.

With M(z) = Π_t M_t(z) and L the total privacy loss (theory, section 3, on any path and not only Re z = 1/2):

    E[min(P, e^τ Q)] = (1/2πi) ∫ M(z) e^{(1-z)τ} / (z(1-z)) dz,    0 < Re z < 1     (overlap; β* at τ = 0)
    H_{e^τ}(P‖Q)     = (1/2πi) ∫ M(z) e^{(1-z)τ} / (z(z-1)) dz,    1 < Re z         (hockey-stick divergence)
    Q(L > τ)         = (1/2πi) ∫ M(z) e^{-zτ} / z dz,              0 < Re z         (false-positive rate)

The path crosses the real line at the saddle point, so that a result of 1e-12 keeps its digits, and is sampled at equal
steps of v in z = θ + iw·sinh(v), which sees every scale from the Gaussian bulk to the plateau that low noise leaves behind.
Where that plateau oscillates, the path leans into the half plane where it decays.

Errors, all reported: the step in v (measured, by halving), the nodes of the transform (exponentially small, a constant
that the tests verify), rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import asinh, copysign, cos, exp, inf, isfinite, log, log1p, nan, pi, sin, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from betastar.arrays import Complex, Real
from betastar.step import one_step_overlap
from betastar.transform import COARSE_COUNT, COARSE_DENSITY, COARSE_NOISE, DENSITY, Transform
from betastar.transform import log1p as complex_log1p

#: What two steps of the rule in v must agree to, relative to the integral of the modulus.
TOLERANCE = 1e-9
#: First and finest step in v.
COARSE, FINE = 0.125, 2.0**-9
#: Relative error of log M that the nodes of a transform may have: bulk only, and with tails and sector.
NODES, WIDE_NODES = 1e-12, 2e-9
EPS = float(np.finfo(float).eps)
TINY = 5e-324

Terms = list[tuple[float, Transform]]


class Value(NamedTuple):
    """A number and the estimate of its numerical error."""

    value: float
    error: float


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


@dataclass(frozen=True)
class _Path:
    """z = θ + iw·sinh(v - i·lean), moved to start at θ: a vertical line, or a hyperbola that leans to one side."""

    theta: float
    scale: float
    lean: float = 0.0

    def at(self, v: Real) -> tuple[Complex, Complex]:
        sinh, cosh = np.sinh(v), np.cosh(v)
        across, along = self.scale * sin(self.lean), self.scale * cos(self.lean)
        return self.theta + across * (cosh - 1.0) + 1j * along * sinh, across * sinh + 1j * along * cosh


class FourierCurve:
    """The trade-off curve of independent steps, from their transforms."""

    def __init__(self, parts: Sequence[Part], symmetric: bool) -> None:
        self.parts = tuple(parts)
        self.symmetric = symmetric

    def reversed(self) -> FourierCurve:
        """The curve of (Q, P)."""
        if self.symmetric:
            return self
        return FourierCurve([replace(part, reverse=not part.reverse) for part in self.parts], False)

    # The composed transform.

    @cached_property
    def _bulk(self) -> Terms:
        return [(part.count, part.transform(False)) for part in self.parts]

    @cached_property
    def _wide(self) -> Terms:
        return [(part.count, part.transform(True)) for part in self.parts]

    @cached_property
    def _atom(self) -> float:
        """Logarithm of the mass at loss 0 that never decays (glued steps)."""
        return sum((n * log(t.atom) if t.atom > 0.0 else -inf) for n, t in self._bulk)

    @cached_property
    def _rest(self) -> float:
        """Loss of a run in which the record is never sampled and the noise is 0: where the plateau sits."""
        return sum(n * t.rest for n, t in self._bulk)

    @staticmethod
    def _cumulants(terms: Terms, theta: float) -> tuple[float, float, float]:
        """log M and its first two derivatives at a real θ; nan where the nodes do not reach."""
        value = slope = bend = 0.0
        for count, transform in terms:
            gap, first, second = transform.moments(theta)
            if not gap > -1.0:
                return nan, nan, nan
            size = 1.0 + gap
            value += count * log1p(gap)
            slope += count * first / size
            bend += count * (second / size - (first / size) ** 2)
        return value, slope, max(bend, 1e-300)

    # One integral.

    def _saddle(self, tau: float, poles: tuple[float, ...], side: int) -> tuple[float, float, float]:
        """Minimum of log M(θ) + (1-θ)τ - Σ log|θ - pole| before (-1), between (0) or beyond (1) the poles.

        Returns θ, the minimum and the second derivative of log M there. The function is convex between the poles.
        """
        terms = self._bulk if side == 0 else self._wide
        edge = poles[0] if side < 0 else poles[-1]
        theta = 0.5 if side == 0 else edge + side / sqrt(self._cumulants(terms, edge)[2])
        best = (theta, inf, 1.0)
        for _ in range(80):
            value, slope, bend = self._cumulants(terms, theta)
            if not isfinite(value):
                theta = 0.5 * (theta + (edge if best[1] == inf else best[0]))
                continue
            height = value + (1.0 - theta) * tau - sum(log(abs(theta - pole)) for pole in poles)
            best = (theta, height, bend)
            if height < -800.0:
                break
            gradient = slope - tau - sum(1.0 / (theta - pole) for pole in poles)
            move = -gradient / (bend + sum((theta - pole) ** -2 for pole in poles))
            room = min(abs(theta - pole) for pole in poles)
            if abs(move) < 0.05 * min(room, 1.0 / sqrt(bend)):
                break
            limit = 0.5 * room if side == 0 or move * side < 0.0 else room
            theta += max(-limit, min(limit, move))
        return best

    def _integral(self, tau: float, theta: float, bend: float, poles: tuple[float, ...]) -> Value:
        """(1/2πi) ∫ M(z) e^{(1-z)τ} / Π(z - pole) dz, upwards through θ."""
        plain = self.symmetric and theta == 0.5 and tau == 0.0
        terms, nodes = (self._bulk, NODES) if plain else (self._wide, WIDE_NODES)
        scale = min([2.0 / sqrt(bend), *(abs(theta - pole) for pole in poles)])
        path = _Path(theta, scale)
        modulus, value, error = self._sum(path, tau, terms, poles, FINE if plain else COARSE / 2)
        if error > TOLERANCE and not plain:
            sign = 1.0 if tau >= self._rest else -1.0
            lean = 0.5 * sign * min(transform.sector(sign) for _, transform in terms)
            leaning = self._sum(replace(path, lean=lean), tau, terms, poles, FINE)
            if leaning[2] * leaning[0] < error * modulus:
                modulus, value, error = leaning
        return Value(value, modulus * (error + self._distrust(terms, theta, nodes)))

    @staticmethod
    def _distrust(terms: Terms, theta: float, nodes: float) -> float:
        """Relative error of M(θ): from the nodes, proportional to log M, and from rounding M - 1 (and M, if it is small)."""
        error = 8.0 * EPS
        for count, transform in terms:
            size = max(1.0 + transform.moments(theta)[0], EPS)
            error += abs(count * log(size)) * nodes + EPS * (sqrt(abs(count)) + 2.0 * abs(count) * max(1.0 / size - 2.0, 0.0))
        return error + nodes

    def _sum(self, path: _Path, tau: float, terms: Terms, poles: tuple[float, ...], finest: float) -> tuple[float, float, float]:
        """Trapezoidal rule along a path, halved until two steps agree: (∫|f|, ∫f, error relative to ∫|f|)."""

        def integrand(v: Real) -> tuple[Real, Real]:
            z, f = path.at(v)
            f = f / pi
            for pole in poles:
                f = f / (z - pole)
            tilt = (1.0 - z) * tau
            power = tilt.copy()
            for count, transform in terms:
                power += count * complex_log1p(transform.excess(z))
            mass = np.exp(np.minimum(power.real, 300.0) + 1j * power.imag)
            if self._atom > -60.0:
                mass = mass - np.exp(self._atom + tilt)
            f = f * mass
            f[v == 0.0] *= 0.5
            return np.abs(f), f.imag

        step, far, v = COARSE, asinh(1e16 / path.scale), 0.0
        modulus = value = every_second = peak = 0.0
        while True:  # blocks, until the integrand has died
            size, part = integrand(v + step * np.arange(48))
            modulus += float(size.sum())
            value += float(part.sum())
            every_second += float(part[::2].sum())
            peak = max(peak, float(size.max()))
            v += 48 * step
            if size[-8:].max() <= 1e-17 * peak or v > far:
                break
        error = abs(value - 2.0 * every_second) / max(modulus, TINY)
        while error > TOLERANCE and step > finest:
            modulus_between = value_between = 0.0
            for start in np.arange(0.5 * step, v, 256 * step):
                size, part = integrand(np.arange(start, min(v, start + 256 * step - 1e-9), step))
                modulus_between += float(size.sum())
                value_between += float(part.sum())
            error = abs(value - value_between) / max(modulus + modulus_between, TINY)
            modulus, value, step = modulus + modulus_between, value + value_between, 0.5 * step
        return step * modulus, step * value, error

    # The curve.

    def overlap(self, tau: float = 0.0) -> Value:
        """E[min(P, e^τ Q)] = 1 - H_{e^τ}; accurate relative to itself. At τ = 0 this is β*."""
        poles = (0.0, 1.0)
        if not self.parts:
            return Value(min(1.0, exp(tau)), 0.0)
        if tau == 0.0 and len(self.parts) == 1 and self.parts[0].count == 1:
            only = self.parts[0]
            overlap = one_step_overlap(only.rate, only.noise, only.distance)
            return Value(overlap, 8.0 * EPS * overlap)
        if tau == 0.0 and self.symmetric:
            theta, bend = 0.5, self._cumulants(self._bulk, 0.5)[2]
        else:
            theta, _, bend = self._saddle(tau, poles, 0)
        value, error = self._integral(tau, theta, bend, poles)
        return Value(exp(self._atom + min(tau, 0.0)) - value, error)

    def hockey_stick(self, tau: float) -> Value:
        """H_{e^τ}(P‖Q) = P(L > τ) - e^τ Q(L > τ); accurate relative to itself where it is small."""
        poles = (0.0, 1.0)
        if tau > 0.0 and self.parts:
            theta, height, bend = self._saddle(tau, poles, 1)
            if height < -740.0:
                return Value(0.0, TINY)
            if height < self._saddle(tau, poles, 0)[1]:
                value, error = self._integral(tau, theta, bend, poles)
                return Value(max(value, 0.0), error)
        value, error = self.overlap(tau)
        return Value(1.0 - value, error)

    def false_positives(self, tau: float) -> Value:
        """Q(L > τ), accurate relative to the smaller of itself and its complement."""
        side = 1 if tau >= self._cumulants(self._wide, 0.0)[1] else -1
        theta, height, bend = self._saddle(tau, (0.0,), side)
        if height - tau < -740.0:
            return Value(0.0 if side > 0 else 1.0, TINY)
        value, error = self._integral(tau, theta, bend, (0.0,))
        value, error, atom = exp(-tau) * value, exp(-tau) * error, exp(self._atom)
        return Value(value + atom * (tau < 0.0), error) if side > 0 else Value(1.0 + value - atom * (tau >= 0.0), error)

    def _threshold(self, fpr: float) -> float:
        """A guess of the τ with Q(L > τ) = fpr: the signed root 2(θK' - K) of the tilt θ is nearly normal under Q."""
        goal = -float(ndtri(fpr))
        _, slope, bend = self._cumulants(self._wide, 0.0)
        if abs(goal) < 0.1:
            return slope
        theta = goal / sqrt(bend)
        for _ in range(30):
            value, first, second = self._cumulants(self._wide, theta)
            if not isfinite(value):
                theta *= 0.5
                continue
            slope = first
            root = copysign(sqrt(max(2.0 * (theta * slope - value), 0.0)), theta)
            if abs(goal - root) < 0.01:
                break
            factor = 1.0 + (goal - root) * root / (theta * theta * second)
            theta *= max(0.5, min(2.0, factor))
        return slope

    def true_positives(self, fpr: float) -> Value:
        """Largest P(reject) over tests with Q(reject) ≤ fpr: min over τ of H_{e^τ} + e^τ·fpr, at Q(L > τ) = fpr.

        Every τ gives an upper bound, and a deviation from the best τ counts in second order only.
        """
        if fpr <= 0.0 or fpr >= 1.0 or not self.parts:
            return Value(min(max(fpr, 0.0), 1.0), 0.0)

        def excess(tau: float) -> float:
            return log(max(self.false_positives(tau).value, 1e-300) / fpr)

        ceiling = -log(fpr)  # Markov: Q(L > τ) ≤ e^{-τ}
        spread = sqrt(self._cumulants(self._wide, 0.0)[2])
        low = high = min(self._threshold(fpr), ceiling)
        if high < -45.0 and excess(-45.0) < 0.0:
            return Value(1.0, exp(-45.0))
        width = 0.02 * spread
        if excess(high) < 0.0:
            while excess(low := low - width) < 0.0:
                high, width = low, 4.0 * width
        else:
            while high < ceiling and excess(high := min(high + width, ceiling)) > 0.0:
                low, width = high, 4.0 * width
        from scipy.optimize import brentq

        tau = low if low == high else float(brentq(excess, low, high, xtol=1e-7 * min(1.0, spread), rtol=4 * EPS))
        value, error = self.hockey_stick(tau)
        return Value(min(max(value + exp(tau) * fpr, fpr), 1.0), error)
