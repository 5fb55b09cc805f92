r"""Exact composition: every point of the trade-off curve is one contour integral of the composed transform.

With M(z) = Π_t M_t(z) and L the total privacy loss (theory, section 3, on any path and not only Re z = 1/2):

    E[min(P, e^τ Q)] = (1/2πi) ∫ M(z) e^{(1-z)τ} / (z(1-z)) dz,    0 < Re z < 1     (overlap; β* at τ = 0)
    H_{e^τ}(P‖Q)     = (1/2πi) ∫ M(z) e^{(1-z)τ} / (z(z-1)) dz,    1 < Re z         (hockey-stick divergence)

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
from math import asinh, copysign, cos, exp, expm1, inf, isfinite, isnan, log, log1p, nan, pi, sin, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from betastar.arrays import Complex, Real
from betastar.bounds import transform
from betastar.bounds.transform import COARSE_COUNT, COARSE_DENSITY, COARSE_NOISE, DENSITY, Transform
from betastar.scenario.step import head, one_step_overlap, tail, threshold

#: What two steps of the rule in v must agree to, relative to the integral of the modulus.
TOLERANCE = 1e-9
#: First and finest step in v.
COARSE, FINE = 0.125, 2.0**-9
#: Relative error of log M that the nodes of a transform may have: bulk only, and with tails and sector.
NODES, WIDE_NODES = 1e-11, 2e-9
#: Least noise that is integrated. With less, membership leaks what it can leak, to 1e-11: the ceiling and the risk at this
#: noise enclose the truth.
LEAST_NOISE = 0.07
#: A transform below this one may come out as 0 or less.
LOST = 1e-12
#: Error of a true-positive rate from the search for the best threshold, relative to it and to its complement.
SEARCH = 1e-8
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
    bulk: float  # the v within which a Gaussian integrand has its mass
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
        self._sticks: dict[float, Value] = {}
        self._touched: dict[float, tuple[float, Value]] = {}

    def reversed(self) -> FourierCurve:
        """The curve of (Q, P)."""
        return self._reversed

    @cached_property
    def _reversed(self) -> FourierCurve:
        if self.symmetric:
            return self
        other = FourierCurve([replace(part, reverse=not part.reverse) for part in self.parts], False)
        other.__dict__["_reversed"] = self
        return other

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
        for count, one in terms:
            gap, first, second = one.moments(theta)
            if not gap > -1.0:
                return nan, nan, nan
            size = 1.0 + gap
            value += count * log1p(gap)
            slope += count * first / size
            bend += count * (second / size - (first / size) ** 2)
        return value, slope, max(bend, 1e-300)

    # One integral.

    def _saddle(self, tau: float, beyond: bool) -> tuple[float, float, float]:
        """Minimum of log M(θ) + (1-θ)τ - log|θ(1-θ)| over (0, 1), or beyond 1: θ, the minimum, (log M)''(θ).

        The function is convex on either interval: Newton's method, damped where a step leads upwards or out of reach.
        """
        terms = self._wide if beyond else self._bulk
        theta = 0.5
        if beyond:
            theta = 1.0 + min(1.0, 1.0 / sqrt(self._cumulants(terms, 1.0)[2]))
        best = (theta, inf, 1.0)
        for _ in range(80):
            value, slope, bend = self._cumulants(terms, theta)
            height = value + (1.0 - theta) * tau - log(abs(theta * (1.0 - theta)))
            if not height <= best[1]:
                theta = 0.5 * (theta + (1.0 if best[1] == inf else best[0]))
                if abs(theta - best[0]) < 1e-3 * abs(1.0 - theta):
                    break
                continue
            best = (theta, height, bend)
            if height < -800.0:
                break
            gradient = slope - tau - 1.0 / theta + 1.0 / (1.0 - theta)
            move = -gradient / (bend + theta**-2 + (1.0 - theta) ** -2)
            room = min(theta, abs(1.0 - theta))
            if abs(move) < 0.05 * min(room, 1.0 / sqrt(bend)):
                break
            limit = room if beyond and move > 0.0 else 0.5 * room
            theta += max(-limit, min(limit, move))
        return best

    def _integral(self, tau: float, theta: float, bend: float) -> Value:
        """(1/2πi) ∫ M(z) e^{(1-z)τ} / (z(z-1)) dz, upwards through θ."""
        still = self.symmetric and tau == 0.0  # no plateau oscillates: steps in v may be halved as often as it takes
        terms, nodes = (self._bulk, NODES) if 0.0 < theta < 1.0 else (self._wide, WIDE_NODES)
        scale = min(2.0 / sqrt(bend), theta, abs(1.0 - theta))
        path = _Path(theta, scale, asinh(7.5 / (sqrt(bend) * scale)))
        modulus, value, error = self._sum(path, tau, terms, FINE if still else COARSE / 2)
        if error > TOLERANCE and not still:
            terms, nodes = self._wide, WIDE_NODES
            sign = 1.0 if tau >= self._rest else -1.0
            lean = 0.5 * sign * min(one.sector(sign) for _, one in terms)
            leaning = self._sum(replace(path, lean=lean), tau, terms, FINE, error * modulus)
            if leaning[2] * leaning[0] < error * modulus:
                modulus, value, error = leaning
        return Value(value, modulus * (error + self._distrust(terms, theta, nodes)))

    @staticmethod
    def _distrust(terms: Terms, theta: float, nodes: float) -> float:
        """Relative error of M(θ): from the nodes, proportional to log M, and from rounding M - 1 (and M, if it is small)."""
        error = 8.0 * EPS
        for count, one in terms:
            size = max(1.0 + one.moments(theta)[0], EPS)
            error += abs(count * log(size)) * nodes + EPS * (sqrt(abs(count)) + 2.0 * abs(count) * max(1.0 / size - 2.0, 0.0))
        return error + nodes

    def _sum(self, path: _Path, tau: float, terms: Terms, finest: float, known: float = inf) -> tuple[float, float, float]:
        """Trapezoidal rule along a path, halved until two steps agree: (∫|f|, ∫f, error relative to ∫|f|).

        known: an error that is had already; a path whose rounding alone is worse is not worth halving.
        """

        def integrand(v: Real) -> tuple[Real, Real]:
            z, f = path.at(v)
            f = f / (pi * z * (z - 1.0))
            tilt = (1.0 - z) * tau
            power = tilt.copy()
            for count, one in terms:
                power += count * one.log(z, leaning=path.lean != 0.0)
            mass = np.exp(np.minimum(power.real, 300.0) + 1j * power.imag)
            if self._atom > -60.0:
                mass = mass - np.exp(self._atom + tilt)
            f = f * mass
            f[v == 0.0] *= 0.5
            return np.abs(f), f.imag

        step, far, v = COARSE, asinh(1e16 / path.scale), 0.0
        modulus = value = every_second = peak = 0.0
        count = 2 * int(0.5 * path.bulk / step) + 12  # even: every second node is a node of the double step
        while True:  # blocks, until the integrand has died
            size, part = integrand(v + step * np.arange(count))
            modulus += float(size.sum())
            value += float(part.sum())
            every_second += float(part[::2].sum())
            peak = max(peak, float(size.max()))
            v += count * step
            count = 32
            if size[-8:].max() <= 1e-17 * peak or v > far:
                break
        error = abs(value - 2.0 * every_second) / max(modulus, TINY)
        while error > TOLERANCE and step > finest and EPS * step * modulus < known:
            modulus_between = value_between = 0.0
            for start in np.arange(0.5 * step, v, 256 * step):
                size, part = integrand(np.arange(start, min(v, start + 256 * step - 1e-9), step))
                modulus_between += float(size.sum())
                value_between += float(part.sum())
            error = abs(value - value_between) / max(modulus + modulus_between, TINY)
            modulus, value, step = modulus + modulus_between, value + value_between, 0.5 * step
        return step * modulus, step * value, error

    # The curve.

    @cached_property
    def _single(self) -> Part | None:
        """The step of a run of one step, if its loss exceeds a threshold on a half-line: then H has a closed form."""
        if len(self.parts) != 1 or self.parts[0].count != 1 or self.parts[0].build is transform.symmetric:
            return None
        only = self.parts[0]
        turns = only.build is transform.line and only.distance < 1.0  # and the loss returns to 0 at the far left
        return None if turns and only.reverse else only

    def overlap(self) -> Value:
        """E[min(P, Q)] = β*, accurate relative to itself."""
        if not self.parts:
            return Value(1.0, 0.0)
        if len(self.parts) == 1 and self.parts[0].count == 1:
            value = one_step_overlap(self.parts[0].rate, self.parts[0].noise, self.parts[0].distance)
            return Value(value, 8.0 * EPS * value)
        if isnan(self._cumulants(self._bulk, 0.5)[0]):  # β* ≤ M(1/2), which is lost in rounding
            return Value(0.0, LOST)
        if self.symmetric:
            theta, bend = 0.5, self._cumulants(self._bulk, 0.5)[2]
        else:
            theta, _, bend = self._saddle(0.0, beyond=False)
        value, error = self._integral(0.0, theta, bend)
        return Value(exp(self._atom) - value, error)

    def hockey_stick(self, tau: float) -> Value:
        """H_{e^τ}(P‖Q) = P(L > τ) - e^τ Q(L > τ), accurate relative to itself where it is small. What was asked is kept."""
        if tau not in self._sticks:
            self._sticks[tau] = self._hockey_stick(tau)
        return self._sticks[tau]

    def _hockey_stick(self, tau: float) -> Value:
        if tau < 0.0:
            value, error = self.reversed().hockey_stick(-tau)
            return Value(-expm1(tau) + exp(tau) * value, exp(tau) * error)
        if tau == 0.0 or not self.parts:
            value, error = self.overlap()
            return Value(1.0 - value, error)
        if self._single is not None:
            return self._one_step(self._single, tau)
        theta, height, bend = self._saddle(tau, beyond=True)
        if height < -740.0:
            return Value(0.0, TINY)
        inside = self._saddle(tau, beyond=False)
        if height <= inside[1]:
            value, error = self._integral(tau, theta, bend)
            return Value(max(value, 0.0), error)
        value, error = self._integral(tau, inside[0], inside[2])
        return Value(1.0 - exp(self._atom) + value, error)

    def _one_step(self, part: Part, tau: float) -> Value:
        """Gain minus (e^τ - 1) times mass of the half-line where the loss exceeds τ."""
        p, sigma, distance = part.rate, part.noise, part.distance
        start, reach = 1.0 - 0.5 * distance, 38.0 * sigma
        if part.reverse:
            low = threshold(np.array([-tau]), p, sigma, distance, min(0.0, 1.0 - distance) - reach, start)
            gain, mass = head(low, p, sigma, distance)
        else:
            gain, mass = tail(threshold(np.array([tau]), p, sigma, distance, start, 1.0 + reach), p, sigma, distance)
        value = float(gain[0]) - expm1(tau) * float(mass[0])
        return Value(max(value, 0.0), 64.0 * EPS * float(gain[0]))

    def true_positives(self, fpr: float) -> Value:
        """Largest P(reject) over tests with Q(reject) ≤ fpr: the minimum over τ of H_{e^τ} + e^τ·fpr.

        Every τ gives an upper bound, and a deviation from the best τ counts in second order only.
        """
        if fpr <= 0.0 or fpr >= 1.0 or not self.parts:
            return Value(min(max(fpr, 0.0), 1.0), 0.0)
        value, error = self._touching(fpr)[1]
        value = min(max(value, fpr), 1.0)
        return Value(value, error + SEARCH * min(value, 1.0 - value))

    def threshold(self, fpr: float) -> float:
        """The τ of the best test with this false-positive rate: the logarithm of the curve's slope there."""
        return self._touching(fpr)[0] if self.parts else 0.0

    def _touching(self, fpr: float) -> tuple[float, Value]:
        """The τ with the least H_{e^τ} + e^τ·fpr, and that value. What was asked is kept."""
        if fpr not in self._touched:
            self._touched[fpr] = self._touch(fpr)
        return self._touched[fpr]

    def _touch(self, fpr: float) -> tuple[float, Value]:
        from scipy.optimize import minimize_scalar

        seen: dict[float, Value] = {}

        def rate(tau: float) -> float:
            value, error = self.hockey_stick(tau)
            seen[tau] = Value(value + exp(tau) * fpr, error)
            return seen[tau].value

        ceiling = -log(fpr)  # there e^τ·fpr = 1
        spread = sqrt(self._cumulants(self._wide, 0.5)[2])
        middle = min(max(self._guess(fpr), -45.0), ceiling)
        width = 1.5 * spread
        low, high = max(middle - width, -45.0), min(middle + width, ceiling)
        for _ in range(200):  # until there is a minimum between low and high, or at an end of the range
            width *= 2.0
            if low > -45.0 and rate(low) <= rate(middle):
                low, middle, high = max(low - width, -45.0), low, middle
            elif high < ceiling and rate(high) <= rate(middle):
                low, middle, high = middle, high, min(high + width, ceiling)
            else:
                break
        minimize_scalar(rate, bounds=(low, high), method="bounded", options={"xatol": 3e-5 * spread})
        best = min(seen, key=lambda tau: seen[tau])
        return best, seen[best]

    def _guess(self, fpr: float) -> float:
        """A guess of the τ with Q(L > τ) = fpr: the signed root of 2(θK' - K), with K = log M, is nearly normal under Q."""
        goal = -float(ndtri(fpr))
        _, slope, bend = self._cumulants(self._wide, 0.0)
        theta = copysign(min(abs(goal) / sqrt(bend), 1.0), goal)
        for _ in range(30):
            value, first, second = self._cumulants(self._wide, theta)
            if not isfinite(value):
                break
            slope = first
            root = copysign(sqrt(max(2.0 * (theta * slope - value), 0.0)), theta)
            if abs(goal - root) < 0.01 * (1.0 + abs(goal)) or theta == 0.0:
                break
            factor = 1.0 + (goal - root) * root / (theta * theta * second)
            theta *= max(0.5, min(1.5, factor))
        return slope
