"""Exact composition: the trade-off curve of independent steps, from contour integrals of their transforms (theory, section 3).

`Composition` multiplies the transforms, `Inversion` inverts the product at many thresholds at once, and the searches at the end
find the thresholds that belong to given false-positive rates or δ. A single step, and steps without sampling, have closed forms.

Errors, all reported: the step in v (measured, by halving), the nodes of the transform (exponentially small, a constant that the
tests verify), rounding, and the search (bounded from both sides).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import asinh, cos, erfc, inf, log, pi, sin, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from betastar.curves import LARGEST_EPSILON, Answers, Curve, Value
from betastar.steps.base import EPS, StepFactor, Transform, complex_exp, complex_log1p

#: Least noise that is integrated. With less, membership leaks what it can leak, to 1e-11: the ceiling and the risk at this
#: noise enclose the truth.
LEAST_NOISE = 0.07


class FourierCurve(Curve):
    """The trade-off curve of independent steps, from their transforms."""

    def __init__(self, factors: Sequence[StepFactor], symmetric: bool, doubt: float = 0.0) -> None:
        self.factors = tuple(factors)
        self.symmetric = symmetric
        self._doubt = doubt  # by how much the steps are not those of the run

    def reversed(self) -> FourierCurve:
        """The curve of (Q, P)."""
        return self._reversed

    @cached_property
    def _reversed(self) -> FourierCurve:
        if self.symmetric:
            return self
        other = FourierCurve([factor.exchanged() for factor in self.factors], False, self._doubt)
        other.__dict__["_reversed"] = self
        return other

    @cached_property
    def _composition(self) -> Composition:
        return Composition(self.factors, self._doubt)

    @cached_property
    def _single(self) -> StepFactor | None:
        """The step of a run of one step, if H has a closed form."""
        if len(self.factors) != 1 or self.factors[0].count != 1 or not self.factors[0].closed_form():
            return None
        return self.factors[0]

    @cached_property
    def _gaussian(self) -> float | None:
        """μ, if every record takes part in every step: then the worlds are N(0, 1) and N(μ, 1), μ² = Σ (R/σ)²."""
        square = 0.0
        for factor in self.factors:
            if (one := factor.mu_square) is None:
                return None
            square += factor.count * one
        return sqrt(square) if square > 0.0 else None

    # Answers.

    def overlap(self) -> Value:
        """E[min(P, Q)] = β*, accurate relative to itself."""
        return self._overlap

    @cached_property
    def _overlap(self) -> Value:
        if not self.factors:
            return Value(1.0, 0.0)
        if len(self.factors) == 1 and self.factors[0].count == 1 and (one := self.factors[0].overlap()) is not None:
            return Value(one, 8.0 * EPS * one)
        if self._gaussian is not None:
            value = erfc(self._gaussian / (2.0 * sqrt(2.0)))
            return Value(value, 8.0 * EPS * value * (1.0 + self._gaussian**2))
        if (plain := plain_overlap(self._composition)) is not None:
            return Value(*plain)
        if not len(self._composition.inside):  # β* ≤ M(1/2), which is lost in rounding
            return Value(0.0, LOST)
        answers = Inversion(self._composition, overlap_only=True).at(np.zeros(1))
        return Value(float(answers.overlap[0]), float(answers.error[0]))

    def hockey_stick(self, tau: float) -> Value:
        """H_{e^τ}(P‖Q) = P(L > τ) - e^τ Q(L > τ), accurate relative to itself where it is small."""
        values, errors = self.hockey_sticks(np.array([tau]))
        return Value(float(values[0]), float(errors[0]))

    def answers(self, taus: NDArray[Any]) -> Answers:
        """H_{e^τ}(P‖Q), Q(L > τ) and the density of L at each τ, with their errors, in one pass."""
        return self._inversion()(np.asarray(taus, dtype=np.float64))

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """H_{e^τ}(P‖Q) at each τ, and their errors, in one pass."""
        answers = self.answers(taus)
        return answers.stick, answers.error

    def true_positive_rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        values, errors, _ = self.rates(fprs)
        return values, errors

    def true_positives(self, fpr: float) -> Value:
        """Largest P(reject) over tests with Q(reject) ≤ fpr."""
        values, errors, _ = self.rates(np.array([fpr]))
        return Value(float(values[0]), float(errors[0]))

    def threshold(self, fpr: float) -> float:
        """The τ of the best test with this false-positive rate: the logarithm of the curve's slope there."""
        return float(self.rates(np.array([fpr]))[2][0])

    def rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """True-positive rates, their errors and the thresholds of the best tests at each false-positive rate, in one pass."""
        fprs = np.asarray(fprs, dtype=np.float64)
        values, errors, taus = fprs.copy(), np.zeros(len(fprs)), np.zeros(len(fprs))
        within = (fprs > 0.0) & (fprs < 1.0)
        if not self.factors or not within.any():
            return values, errors, taus
        asked = fprs[within]
        around = np.array([0.9 * asked.min(), 0.1 + 0.9 * asked.max()])  # so that every rate has points on both sides
        ends = [end for end in self._composition.range if np.isfinite(end)]  # where Q(L > τ) is known
        guesses = np.append(self._guesses(np.concatenate([asked, around])), ends)
        values[within], errors[within], taus[within] = rates_on_tangents(self._inversion(), guesses, asked)
        return values, errors, taus

    def epsilons(self, deltas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """ε ≥ 0 with H_{e^ε} = δ for each δ, from below, as it is, and from above."""
        deltas = np.asarray(deltas, dtype=np.float64)
        if not self.factors:
            nothing = np.zeros(len(deltas))
            return nothing, nothing, nothing
        return epsilons_on_tangents(self._inversion(), self._epsilon_guesses(deltas), deltas)

    # How H and Q(L > τ) are computed.

    def _inversion(self) -> Evaluation:
        """A function of thresholds; lines of integration that it has computed serve later calls."""
        if not self.factors:
            return _nothing
        if self._gaussian is not None:
            return self._without_sampling
        ahead, behind = self._single, self.reversed()._single
        if ahead is not None and behind is not None:
            sides = ahead.answers, behind.answers
        else:
            general = Inversion(self._composition).at
            if ahead is None and behind is None:
                return general
            sides = ahead.answers if ahead else general, behind.answers if behind else general

        def one_step(taus: NDArray[Any]) -> Answers:
            answers = np.empty((len(Answers._fields), len(taus)))
            for chosen, answer in zip((taus >= 0.0, taus < 0.0), sides, strict=True):
                if chosen.any():
                    answers[:, chosen] = answer(taus[chosen])
            return Answers(*answers)

        return one_step

    def _without_sampling(self, taus: NDArray[Any]) -> Answers:
        """H = Φ(μ/2 - τ/μ) - e^τ Φ(-μ/2 - τ/μ), by logarithms."""
        mu = self._gaussian
        assert mu is not None
        a, b = 0.5 * mu - taus / mu, -0.5 * mu - taus / mu
        first, second = log_ndtr(a), taus + log_ndtr(b)
        with np.errstate(divide="ignore", under="ignore", over="ignore"):
            power, hit, mass = np.exp(first), np.exp(second), ndtr(b)
            stick = power * -np.expm1(np.minimum(second - first, 0.0))
            density = np.exp(-0.5 * b * b) / (sqrt(2.0 * np.pi) * mu)
        error = 16.0 * EPS * power * (1.0 + np.minimum(a, 0.0) ** 2 + np.minimum(np.abs(taus), hit)) + TINY
        return Answers(stick, 1.0 - stick, error, mass, 16.0 * EPS * mass * (1.0 + b * b), hit, density)

    # First guesses of thresholds.

    def _guesses(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """The τ with Q(L > τ) = FPR, nearly: r* = r + log(u/r)/r is almost normal under Q, with r² = 2(θK' - K), u² = θ²K''."""
        if self._gaussian is not None:
            return -self._gaussian * (ndtri(fprs) + 0.5 * self._gaussian)
        if self._single is not None:
            return self._single.guess(fprs)
        table = [self._composition.inside, self._composition.beyond]
        thetas, value, slope, bend = (
            np.concatenate([getattr(strip, name) for strip in table]) for name in ("thetas", "value", "slope", "bend")
        )
        if fprs.max() > 0.4:
            left = 1.0 - (self._composition.beyond.thetas[::-1] if len(self._composition.beyond) else np.full(1, 1.5))
            more = cumulants(self._composition.wide, left)
            known = np.isfinite(more[0]) & np.isfinite(more[2])
            thetas, value, slope, bend = (
                np.concatenate([new[known], old]) for new, old in zip((left, *more), (thetas, value, slope, bend), strict=True)
            )
        if not len(thetas):
            return np.zeros(len(fprs))
        root = np.sign(thetas) * np.sqrt(np.maximum(2.0 * (thetas * slope - value), 0.0))
        far = np.abs(root) > 0.02
        if far.sum() < 2:
            return np.interp(-ndtri(fprs), root, slope)
        spread = np.sqrt(bend[np.argmin(np.abs(root))])
        root, ratio, slope = root[far], (thetas * np.sqrt(bend))[far], slope[far]
        normal = np.maximum.accumulate(root + np.log(np.maximum(ratio / root, 1e-300)) / root)
        goals, slope = -ndtri(fprs), np.maximum.accumulate(slope)
        outside = np.minimum(goals - normal[0], 0.0) + np.maximum(goals - normal[-1], 0.0)
        return np.interp(goals, normal, slope) + spread * outside

    def _epsilon_guesses(self, deltas: NDArray[Any]) -> NDArray[Any]:
        """The τ with H_{e^τ} = δ, nearly: the integral by Laplace's method."""
        if self._gaussian is not None:
            return np.maximum(self._gaussian * (0.5 * self._gaussian - ndtri(deltas)), 0.0)
        if self._single is not None or not len(self._composition.beyond):
            return np.ones(len(deltas))
        strip = self._composition.beyond
        t, taus = strip.thetas, strip.taus
        sizes = strip.value + (1.0 - t) * taus - np.log(t * (t - 1.0)) - 0.5 * np.log(2.0 * np.pi * strip.curvature)
        return np.maximum(np.interp(-np.log(deltas), np.maximum.accumulate(-sizes), taus), 0.0)


def _nothing(taus: NDArray[Any]) -> Answers:
    """A run that tells nothing: P = Q."""
    stick, zero = np.maximum(-np.expm1(taus), 0.0), np.zeros(len(taus))
    return Answers(stick, 1.0 - stick, zero, 1.0 * (taus < 0.0), zero, np.exp(taus) * (taus < 0.0), zero)


# The composed transform M(z) = Π_t M_t(z) of independent steps, its saddle points, and β* from the line Re z = 1/2 alone.

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
#: No node has a larger loss, as its exponential must not overflow.
LARGEST_LOSS = 650.0
#: Widest range of saddle points on one line, in deviations of its integrand: at its ends a line loses a factor e^{1/2}.
SHARED = 2.0

Terms = list[tuple[float, Transform]]


class Composition:
    """The composed transform of independent steps."""

    def __init__(self, factors: Sequence[StepFactor], doubt: float = 0.0) -> None:
        self.factors, self._doubt = tuple(factors), doubt

    @cached_property
    def bulk(self) -> Terms:
        return [(factor.count, factor.transform(False)) for factor in self.factors]

    @cached_property
    def wide(self) -> Terms:
        return [(factor.count, factor.transform(True)) for factor in self.factors]

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

    def missed(self, taus: NDArray[Any]) -> NDArray[Any]:
        """What losses that are too large for the nodes may contribute to E[min(P, e^τ Q)], at the most.

        Markov's inequality for e^{-(1-θ)L}, in runs with a step whose loss is above LARGEST_LOSS: Π (M_t + λ_t) - Π M_t with
        λ_t = lost_t·e^{-(1-θ)·LARGEST_LOSS}.
        """
        thetas, value, more = self.inside.thetas, self.inside.value, np.zeros(len(self.inside))
        if not len(thetas):
            return np.ones(len(taus))
        for count, one in self.wide:
            more += abs(count) * np.log1p(one.lost * np.exp((thetas - 1.0) * LARGEST_LOSS) / (1.0 + one.moments(thetas)[0]))
        with np.errstate(divide="ignore", over="ignore"):
            sizes = value + np.where(more < 1.0, np.log(np.expm1(np.minimum(more, 1.0))), more)
        sizes = np.nan_to_num(sizes, nan=np.inf) + np.multiply.outer(taus, 1.0 - thetas)
        return np.asarray(np.exp(np.minimum(sizes.min(axis=1), 0.0)))

    @cached_property
    def doubt(self) -> float:
        """Probability that the nodes have wrong."""
        return self._doubt + sum(abs(n) * t.doubt for n, t in self.bulk)

    @cached_property
    def plateau(self) -> bool:
        """Whether M has not died on Re z = 1/2 where that of a Gaussian law has, so that straight paths are of little use."""
        bend = float(cumulants(self.bulk, np.array([0.5]))[2][0])
        z = np.array([0.5 + 1j * min(8.0 / sqrt(bend), 1e15)])
        return sum(n * float(complex_log1p(one.excess(z)).real[0]) for n, one in self.bulk) > log(PLATEAU)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Losses that L cannot leave, if any: a record that is added leaves log P/Q ≥ log(1-p) at each step."""
        floor = 0.0
        for factor in self.factors:
            if (least := factor.least_loss) is None:
                return -inf, inf
            floor += factor.count * least
        ways = {factor.reverse for factor in self.factors}
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


def cumulants(terms: Terms, thetas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
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
        power = sum(n * complex_log1p(one.excess(z)) for n, one in composition.bulk)
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

    def __init__(self, thetas: NDArray[Any], value: NDArray[Any], slope: NDArray[Any], bend: NDArray[Any]) -> None:
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

    def place(self, taus: NDArray[Any]) -> NDArray[Any]:
        """Where the saddle points are, in deviations along the strip."""
        return np.interp(taus, self.taus, self.arcs)

    def height(self, taus: NDArray[Any]) -> NDArray[Any]:
        """Logarithm of the size of the integrand at its saddle point."""
        if not len(self):
            return np.full(len(taus), inf)
        theta = np.interp(taus, self.taus, self.thetas)
        level = self.value - np.log(np.abs(self.thetas * (1.0 - self.thetas)))
        return np.interp(theta, self.thetas, level) + (1.0 - theta) * taus

    def lines(self, places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """θ and (log M)'' of lines that serve these places, and the number of the line of each."""
        low, high = float(places.min()), float(places.max())
        bins = max(1, int(np.ceil((high - low) / SHARED)))
        width = max((high - low) / bins, 1e-9)
        used, number = np.unique(np.minimum((places - low) / width, bins - 1).astype(int), return_inverse=True)
        centres = low + np.minimum((used + 0.5) * width, high - low)
        return np.interp(centres, self.arcs, self.thetas), np.interp(centres, self.arcs, self.bend), number


# Inversion of the composed transform for many thresholds at once.
#
# With M(z) = Π_t M_t(z), a real θ and a threshold τ of the total privacy loss L (theory, section 3):
#
#     (1/2πi) ∫ M(z) e^{(1-z)τ} / (z(z-1)) dz  =  H_{e^τ}(P‖Q)  for Re z = θ > 1,    H_{e^τ}(P‖Q) - 1  for 0 < θ < 1
#     (1/2πi) ∫ M(z) e^{-zτ} / z dz            =  Q(L > τ)      for θ > 0
#
# A path crosses the real line close to the saddle point of its threshold, so that a result of 1e-12 keeps its digits. Thresholds
# whose saddle points are near each other share a line, and lines share their offsets ζ = z - θ, so that the exponentials of a
# step's transform are computed once for all of them. Offsets are at equal steps of v in ζ = iw·sinh(v), which sees every scale
# from the Gaussian bulk to the plateau that low noise leaves behind. Where that plateau oscillates, the path leans into the half
# plane where it decays.

#: The same as TOLERANCE, for Q(L > τ).
MASS_TOLERANCE = 1e-6
#: First step in v on lines, on paths that lean, and the finest.
STEP, LEANING_STEP, FINE = 0.1, 0.05, 2.0**-9
#: A plateau is taken out of the integrand if less than this share of its size is left, and if it stands for at most e^{that}.
HELPS, LARGEST_LIFT = 0.01, 20.0
#: An integrand that is larger than this has too few digits of a probability, however well the sums agree.
LARGEST = 1e3
#: A transform below this one may come out as 0 or less.
LOST = 1e-12
TINY = 5e-324


class Inversion:
    """H and Q(L > τ) at many thresholds. Lines that were computed for some thresholds serve later ones nearby.

    overlap_only: 1 - H at τ = 0 is all that is asked, in (0, 1), and Q(L > τ) need not be accurate.
    """

    def __init__(self, composition: Composition, overlap_only: bool = False) -> None:
        self.composition = composition
        self.overlap_only = overlap_only
        self._groups: list[_Lines] = []
        self._leans = composition.plateau

    def at(self, taus: NDArray[Any]) -> Answers:
        least, most = self.composition.range
        low, high = taus <= least, taus >= most
        answers = np.zeros((len(Answers._fields), len(taus)))
        within = ~(low | high)
        with np.errstate(over="ignore", invalid="ignore"):
            if within.any():
                answers[:, within] = self._at(taus[within])
            stick, overlap, error = answers[:3]
            failed = ~np.isfinite(answers).all(axis=0) | (error >= 1.0) | (overlap + error < 0.0)
            failed |= np.maximum(stick, overlap) - error > 1.0
        answers[:, failed] = np.array([1.0, 0.0, 1.0, 0.5, 1.0, 0.5, 0.0])[:, None]  # anything is possible
        answers[1, high] = answers[3, low] = 1.0
        answers[0, low], answers[1, low], answers[5, low] = -np.expm1(taus[low]), np.exp(taus[low]), np.exp(taus[low])
        return Answers(*answers)

    def _at(self, taus: NDArray[Any]) -> NDArray[Any]:
        composition = self.composition
        answers, leaning = np.zeros((len(Answers._fields), len(taus))), np.zeros(len(taus), dtype=bool)
        inside = composition.inside.height(taus)
        beyond = np.full(len(taus), inf) if self.overlap_only else composition.beyond.height(taus)
        right = beyond + (0.0 if self._leans else log(WIDE_NODES / NODES)) < inside  # where the error is smaller
        unknown = np.isinf(inside) & np.isinf(beyond)
        lost = right & (beyond < -735.0)
        near = ~right & ~unknown
        if near.any():
            answers[:, near], leaning[near] = self._strip(composition.inside, taus[near], beyond=False)
            self._leans |= bool(leaning.any())
        # A path that leans needs the wide nodes anyway, and few digits of 1 - H are few digits of H.
        again = near & (beyond < inside) & (leaning | (answers[2] > 1e-7 * answers[0]))
        far = (right & ~lost) | again
        if far.any():
            other = np.zeros((len(Answers._fields), len(taus)))
            other[:, far], _ = self._strip(composition.beyond, taus[far], beyond=True)
            better = far & (~again | (other[2] + 1e-3 * other[4] < answers[2] + 1e-3 * answers[4]))
            answers[:, better] = other[:, better]
        unseen = BEYOND_WIDE_REACH * sum(abs(factor.count) * factor.sampled for factor in composition.factors)
        unseen += composition.lost + composition.doubt
        answers[:, lost] = np.array([0.0, 1.0, unseen, 0.0, unseen, 0.0, 0.0])[:, None]
        if composition.lost > 0.0:
            answers[2] += composition.missed(taus)
        # E[min(P, e^τ Q)] ≤ M(1/2)·e^{τ/2}, and M(1/2) is lost in rounding.
        answers[2, unknown] = np.minimum(LOST * np.exp(0.5 * taus[unknown]), 1.0)
        answers[0, unknown] = answers[4, unknown] = 1.0
        return answers

    def _strip(self, strip: Strip, taus: NDArray[Any], beyond: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Answers, and which of them a leaning path gave."""
        places = strip.place(taus)
        answers, leaning = np.zeros((len(Answers._fields), len(taus))), np.zeros(len(taus), dtype=bool)
        open_ = np.ones(len(taus), dtype=bool)
        for lines in self._groups:
            if lines.beyond == beyond and open_.any():
                nearest = np.argmin(np.abs(places[:, None] - lines.places), axis=1)
                served = open_ & (np.abs(places - lines.places[nearest]) <= 0.6 * SHARED)
                if served.any():
                    answers[:, served], leaning[served] = lines.at(taus[served], nearest[served])
                    open_ &= ~served
        if open_.any():
            thetas, bends, number = strip.lines(places[open_])
            placed = np.interp(thetas, strip.thetas, strip.arcs)
            lines = _Lines(self.composition, thetas, bends, placed, beyond, self.overlap_only)
            self._groups.append(lines)
            answers[:, open_], leaning[open_] = lines.at(taus[open_], number)
        return answers, leaning


class _Lines:
    """Several lines in one strip, with the composed transform on offsets that they share."""

    def __init__(
        self,
        composition: Composition,
        thetas: NDArray[Any],
        bends: NDArray[Any],
        places: NDArray[Any],
        beyond: bool,
        overlap_only: bool,
    ) -> None:
        self.composition, self.thetas, self.bends, self.places = composition, thetas, bends, places
        self.beyond, self.overlap_only = beyond, overlap_only
        self.scale = float(np.minimum(2.0 / np.sqrt(bends), np.minimum(thetas, np.abs(1.0 - thetas))).min())
        self._paths: dict[float, _Path] = {}

    def at(self, taus: NDArray[Any], line: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Answers at thresholds, each on the line with its number, and which of them a leaning path gave."""
        past = taus - self.composition.rest
        still = past == 0.0  # no plateau oscillates: steps in v may be halved as often as it takes
        answers, leaning = np.full((len(Answers._fields), len(taus)), inf), np.zeros(len(taus), dtype=bool)
        rough = np.ones(len(taus), dtype=bool)

        def follow(lean: float, chosen: NDArray[Any], finest: float) -> None:
            path = self._path(lean, float(np.abs(past[chosen]).min()) if lean else 0.0)
            other, uneven = path.at(taus[chosen], line[chosen], np.where(still[chosen], FINE, finest))
            better = other[2] + 1e-3 * other[4] < answers[2, chosen] + 1e-3 * answers[4, chosen]
            answers[:, chosen[better]] = other[:, better]
            leaning[chosen[better]], rough[chosen] = lean != 0.0, uneven

        def follow_leaning() -> None:
            for sign in (1.0, -1.0):
                chosen = np.flatnonzero(rough & (sign * past > 0.0))
                lean = sign * self._sector(sign) if chosen.size else 0.0
                if lean != 0.0:
                    follow(lean, chosen, FINE)

        if self.composition.plateau:
            follow_leaning()
        for finest in (STEP / 2, FINE):
            if rough.any():
                follow(0.0, np.flatnonzero(rough), finest)
            if rough.any() and finest > FINE and not self.composition.plateau:
                follow_leaning()
        return answers, leaning

    def _sector(self, sign: float) -> float:
        """By how much a path leans: half of what the nodes allow."""
        return 0.5 * min(one.sector(sign) for _, one in self.composition.wide)

    def _path(self, lean: float, past: float) -> _Path:
        """The path with this lean; `past`: smallest distance of a threshold from the plateau, which says how far it goes."""
        if lean not in self._paths or self._paths[lean].past > past:
            # Thresholds that come later may be nearer; from the second time on, much nearer.
            self._paths[lean] = _Path(self, lean, (0.01 if lean in self._paths else 0.2) * past)
        return self._paths[lean]


class _Nodes(NamedTuple):
    """Offsets ζ, dζ/dv/π, and for each line M(θ+ζ)/M(θ), times e^{-ζ·rest} on a path that leans, and the error of that."""

    offsets: NDArray[Any]
    speed: NDArray[Any]
    mass: NDArray[Any]
    doubt: NDArray[Any]


class _Path:
    """Offsets ζ = iw·sinh(v - i·lean), moved to start at 0, and the composed transform on them, refined when it is needed."""

    def __init__(self, lines: _Lines, lean: float, past: float) -> None:
        self.lines, self.lean, self.past = lines, lean, past
        composition = lines.composition
        wide = lines.beyond or lean != 0.0
        self.terms, nodes = (composition.wide, WIDE_NODES) if wide else (composition.bulk, NODES)
        self.accuracy = [np.maximum(one.accuracy(nodes), 10.0 * one.unreal(lines.thetas)) for _, one in self.terms]
        self.tilted = [one.tilted(lines.thetas) for _, one in self.terms]
        mass = BEYOND_WIDE_REACH if wide else BEYOND_REACH
        self.unseen = mass * sum(abs(factor.count) * factor.sampled for factor in composition.factors)
        self.doubt = composition.doubt
        if lines.beyond:
            self.unseen += composition.lost
        self.step, self.origin = (LEANING_STEP, composition.rest) if lean else (STEP, 0.0)
        first = self._first()
        self.plateau = self._plateau(first)
        self.length = self.alive
        if self.plateau.any() and lines.composition.atom <= -60.0:  # what is taken out goes on where the rest has died
            decay = abs(lines.scale * sin(lean)) * past  # of e^{-ζ(τ - rest)}, along the path
            self.length = max(self.alive, asinh(min(1e16 / lines.scale, 40.0 / decay if decay > 0.0 else inf)))
            beyond = self._bare(np.arange(self.alive, self.length, self.step))
            first = _Nodes(*(np.concatenate(arrays) for arrays in zip(first, beyond, strict=True)))
        self._levels = [first]
        self._kept: dict[tuple[int, int], tuple[NDArray[Any], NDArray[Any]]] = {}

    def _bare(self, v: NDArray[Any]) -> _Nodes:
        """Nodes at which the transform counts as 0."""
        sinh, cosh = np.sinh(v), np.cosh(v)
        across, along = self.lines.scale * sin(self.lean), self.lines.scale * cos(self.lean)
        nothing = np.zeros((len(v), len(self.lines.thetas)))
        offsets, speed = across * (cosh - 1.0) + 1j * along * sinh, across * sinh + 1j * along * cosh
        return _Nodes(offsets, speed / pi, nothing + 0j, nothing)

    def _on(self, v: NDArray[Any]) -> _Nodes:
        lines = self.lines
        offsets, speed, _, _ = self._bare(v)
        power = np.zeros((len(v), len(lines.thetas)), dtype=np.complex128)
        doubt = np.full(power.shape, 8.0 * EPS)
        for (count, one), shifted, accuracy in zip(self.terms, self.tilted, self.accuracy, strict=True):
            origin = one.rest if self.lean else 0.0
            excess = shifted(offsets, origin)
            logarithm = complex_log1p(excess)
            power += count * logarithm
            # The nodes limit the digits of log M; rounding limits those of M - 1, whose terms are as large as its root.
            inverse = np.maximum(1.0 / np.maximum(np.abs(1.0 + excess), 1e-300), 1.0)
            doubt = doubt + abs(count) * accuracy * np.abs(logarithm + origin * offsets[:, None]) * inverse
            doubt = doubt + EPS * (sqrt(abs(count)) + 2.0 * abs(count) * np.maximum(inverse - 2.0, 0.0))
        if v[0] == 0.0:
            self.start = power[0].real.copy()  # log M(θ)
        power -= self.start
        mass = np.exp(np.minimum(power.real, 300.0) + 1j * power.imag)
        return _Nodes(offsets, speed, mass, np.abs(mass) * doubt)

    def _first(self) -> _Nodes:
        """The first level: blocks of nodes, until the integrand has died."""
        lines, step = self.lines, self.step
        far, v, peak = asinh(1e16 / lines.scale), 0.0, np.zeros(len(lines.thetas))
        bulk = asinh(7.5 / (sqrt(float(lines.bends.min())) * lines.scale))
        count = 2 * int(0.5 * bulk / step) + 12  # even: every second node is a node of the double step
        blocks: list[_Nodes] = []
        while True:
            nodes = self._on(v + step * np.arange(count))
            blocks.append(nodes)
            size = self._weights(nodes) * np.abs(nodes.mass)
            peak = np.maximum(peak, size.max(axis=0))
            v += count * step
            count = 32
            if np.all(size[-8:].max(axis=0) <= 1e-17 * peak) or v > far:
                break
        self.alive = v
        offsets, speed, mass, doubt = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        speed[0] *= 0.5
        return _Nodes(offsets, speed, mass, doubt)

    def _weights(self, nodes: _Nodes) -> NDArray[Any]:
        """|dz/(z(z-1))| on each line, with the decay of e^{-ζ(τ - rest)} at the slowest threshold."""
        z = self.lines.thetas + nodes.offsets[:, None]
        decay = np.abs(nodes.speed) * np.exp(-np.abs(nodes.offsets.real) * self.past)
        return decay[:, None] / np.abs(z * (z - 1.0))

    def _plateau(self, nodes: _Nodes) -> NDArray[Any]:
        """A mass at the plateau's loss that is taken out of the law, and added to the answers: what makes the integrand smallest.

        It is the mass at loss 0 that never decays (glued steps), or the weighted median of the integrand if that helps much.
        """
        atom = self.lines.composition.atom
        if atom > -60.0:
            return np.exp(atom - self.start)
        weights, turned = self._weights(nodes), nodes.mass / self._turn(nodes)[:, None]
        values = turned.real
        order = np.argsort(values, axis=0)
        share = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
        middle = np.argmax(share >= 0.5 * share[-1], axis=0)
        median = np.take_along_axis(values, np.take_along_axis(order, middle[None, :], axis=0), axis=0)[0]
        left = (weights * np.abs(turned - median)).sum(axis=0)
        helps = (left < HELPS * (weights * np.abs(nodes.mass)).sum(axis=0)) & (self._lift() < LARGEST_LIFT)
        return np.where(helps, median, 0.0)

    def _lift(self) -> NDArray[Any]:
        """Logarithm of the mass of P that belongs to 1 on the plateau of a line; of Q it is e^{-rest} times that."""
        return self.start + (1.0 - self.lines.thetas) * self.lines.composition.rest

    def _turn(self, nodes: _Nodes) -> NDArray[Any]:
        """How the plateau oscillates along the path: e^{ζ·rest}, or not at all where that is taken out already."""
        return np.exp(nodes.offsets * (self.lines.composition.rest - self.origin))

    def _level(self, number: int) -> _Nodes:
        """Level 0 has step h, level k the nodes that halving it for the k-th time adds."""
        while len(self._levels) <= number:
            step = self.step * 0.5 ** (len(self._levels) - 1)
            v = np.arange(0.5 * step, self.length, step)
            parts = (self._on(v[v < self.alive]), self._bare(v[v >= self.alive]))
            self._levels.append(_Nodes(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))))
        return self._levels[number]

    def at(self, taus: NDArray[Any], line: NDArray[Any], finest: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Answers, and whether two steps of the trapezoidal rule disagree even after all halvings that are allowed."""
        scale = np.exp(self.start[line] + (1.0 - self.lines.thetas[line]) * taus)
        whole, half = self._sums(0, taus, line)
        level, step = 0, self.step
        sums, error = step * whole, step * np.abs(whole[:2] - 2.0 * half[:2])
        while True:
            rough = error[0] > TOLERANCE * sums[3] + sums[5]
            if not self.lines.overlap_only:
                rough |= error[1] > MASS_TOLERANCE * sums[4] + sums[6]
            open_ = np.flatnonzero(rough & (step > finest))
            if not open_.size:
                break
            level, step = level + 1, 0.5 * step
            between, _ = self._sums(level, taus[open_], line[open_])
            before = whole[:, open_]
            whole[:, open_] += between
            sums[:, open_] = step * whole[:, open_]
            error[:, open_] = step * np.abs(before[:2] - between[:2])
        error[1] = np.where(rough, 10.0 * error[1], error[1])  # two values that are both far off may be near each other
        rough |= sums[3] * scale > LARGEST
        return self._answers(taus, line, sums * scale, (error + sums[5:7]) * scale), rough

    def _columns(self, level: int, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Integrands of H, e^τ·Q(L > τ) and the density on a line but for e^{-ζτ}; sizes and errors of the first two."""
        if (level, k) not in self._kept:
            nodes = self._levels[level]
            z = self.lines.thetas[k] + nodes.offsets
            factors = np.stack([nodes.speed / (z * (z - 1.0)), nodes.speed / z, nodes.speed], axis=1)
            mass = nodes.mass[:, k] - (self.plateau[k] * self._turn(nodes) if self.plateau[k] else 0.0)
            columns = factors * mass[:, None]
            sizes = np.concatenate([np.abs(columns[:, :2]), np.abs(factors[:, :2]) * nodes.doubt[:, k, None]], axis=1)
            self._kept[level, k] = columns, sizes
        return self._kept[level, k]

    def _sums(self, level: int, taus: NDArray[Any], line: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Σ over the nodes of a level, of the three integrands, two sizes and two errors; then of two over every second node."""
        nodes = self._level(level)
        whole, half = np.empty((7, len(taus))), np.zeros((2, len(taus)))
        past = taus - self.origin
        for k in range(len(self.lines.thetas)):
            rows = np.flatnonzero(line == k)
            if not rows.size:
                continue
            columns, sizes = self._columns(level, k)
            turns = complex_exp(
                np.multiply.outer(-past[rows], nodes.offsets.real), np.multiply.outer(-past[rows], nodes.offsets.imag)
            )
            whole[:3, rows] = (turns @ columns).imag.T
            whole[3:, rows] = (np.abs(turns) @ sizes).T if self.lean else sizes.sum(axis=0)[:, None]
            if level == 0:
                half[:, rows] = (turns[:, ::2] @ columns[::2, :2]).imag.T
        return whole, half

    def _answers(self, taus: NDArray[Any], line: NDArray[Any], sums: NDArray[Any], error: NDArray[Any]) -> NDArray[Any]:
        """With what the residue at 1, and the mass of the plateau, contribute."""
        rest = self.lines.composition.rest
        kept = (self.plateau * np.exp(np.minimum(self._lift(), LARGEST_LIFT)))[line]
        stick, hit, density = sums[:3]
        below = np.minimum(taus - rest, 0.0)
        if self.lines.beyond:
            stick = stick - np.where(below < 0.0, kept * np.expm1(below), 0.0)
            overlap = 1.0 - stick
        else:
            overlap = kept * np.exp(below) - stick
            stick = 1.0 - overlap
        used = np.where((below < 0.0) | (not self.lines.beyond), np.abs(kept), 0.0)
        hit = hit + np.where(below < 0.0, kept * np.exp(below), 0.0)
        unseen = self.unseen * np.where(self.lines.beyond, 1.0, sums[3])
        error = error + 8.0 * EPS * used + unseen + self.doubt
        if self.lines.composition.atom <= -60.0:  # narrow, but no atom: half of it may lie on either side of `rest`
            split = np.where(taus == rest, 0.5 * np.abs(kept), 0.0)
            hit, error[1] = hit + split, error[1] + split
        back = np.exp(-np.maximum(taus, -700.0))
        return np.stack([np.maximum(stick, 0.0), overlap, error[0], back * hit, back * error[1], hit, back * density])


# Searches along a trade-off curve whose tangents are known: which threshold belongs to a false-positive rate, or to a δ.
#
# A threshold τ gives a point (Q(L > τ), P(L > τ)) of the curve and the tangent there, with slope e^τ. The curve is concave: it
# lies below its tangents and above the chords between its points, so that every search knows how far it is from the end.

#: A rate is found when tangent and chord differ by less, relative to it; ε when its bracket is narrower, relative to it.
SEARCH = 1e-8
WIDTH = 2e-10
#: Most evaluations of a search; most are done after three.
ROUNDS = 80
#: Most points, besides the first guesses, whose side is not sure before a search is given up.
UNSURE = 8
#: Losses below this one are not told apart first.
SMALL = 1e-6
#: Smallest and largest threshold of a rate.
LOWEST, HIGHEST = -700.0, 700.0

Evaluation = Callable[[NDArray[Any]], Answers]


class _Points:
    """Points of the curve, in the order of their thresholds; at first its two ends (1, 1) and (0, 0)."""

    def __init__(self) -> None:
        zeros = [0.0, 0.0]
        self._rows = np.array([[-inf, inf], [1.0, 0.0], zeros, [1.0, 0.0], zeros, [1.0, 0.0], zeros])

    def add(self, taus: NDArray[Any], answers: Answers) -> None:
        power = answers.stick + answers.hit
        new = np.stack([taus, answers.stick, answers.error, answers.mass, answers.mass_error, power, answers.density])
        rows = np.concatenate([self._rows, new], axis=1)
        self._rows = rows[:, np.argsort(rows[0], kind="stable")]
        self.tau, self.stick, self.error, self.mass, self.mass_error, self.power, self.density = self._rows

    def around(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """For each rate the nearest points on either side that are there for sure, whatever the errors of Q(L > τ) are."""
        last = len(self.tau) - 1
        left = last - np.argmax((self.mass - self.mass_error >= fprs[:, None])[:, ::-1], axis=1)
        right = np.argmax(self.mass + self.mass_error <= fprs[:, None], axis=1)
        return left, np.maximum(right, left + 1)

    def halfway(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """Between the points on either side of each rate, if their Q(L > τ) is right; on a scale that resolves small losses."""
        right = np.maximum(np.argmax(self.mass <= fprs[:, None], axis=1), 1)
        ends = [np.arcsinh(np.clip(self.tau[index], LOWEST, HIGHEST) / SMALL) for index in (right - 1, right)]
        return np.asarray(SMALL * np.sinh(0.5 * (ends[0] + ends[1])))

    def lowest(self, left: NDArray[Any], right: NDArray[Any], fprs: NDArray[Any]) -> NDArray[Any]:
        """The point between these whose tangent is the lowest at each rate."""
        index = np.arange(len(self.tau))
        with np.errstate(over="ignore"):
            values = self.stick + np.exp(self.tau) * fprs[:, None]
        return np.argmin(np.where((index >= left[:, None]) & (index <= right[:, None]), values, inf), axis=1)

    def tangent(self, index: NDArray[Any], fprs: NDArray[Any]) -> NDArray[Any]:
        """H + e^τ·FPR of the tangents at these points."""
        with np.errstate(over="ignore"):
            return self.stick[index] + np.exp(self.tau[index]) * fprs

    def gap(self, left: NDArray[Any], right: NDArray[Any], touch: NDArray[Any], fprs: NDArray[Any]) -> NDArray[Any]:
        """By how much the tangent at `touch` may lie above the curve, which runs from the point `left` to the point `right`.

        The curve lies above the chord between the two; as Q(L > τ) there is not exact, they may move along their tangents. And it
        leaves the tangent where that touches, with a slope that changes by no more than from `left` to `right`.
        """
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            bend = np.exp(self.tau[right]) - np.exp(self.tau[left])
            to_end = np.maximum(self.stick[left] / self.mass[left], self.stick[touch] / fprs)  # the chord to (0, 0)
            bend = np.where(np.isfinite(self.tau[right]), bend, to_end)
            slope = (self.power[left] - self.power[right]) / (self.mass[left] - self.mass[right])
            chord = self.power[right] + slope * (fprs - self.mass[right])
            errors = self.mass_error[left] + self.mass_error[right]
            above = np.maximum(self.tangent(touch, fprs) - np.maximum(chord, fprs), 0.0) + np.where(
                errors > 0.0, bend * errors, 0.0
            )
            apart = np.abs(self.mass[touch] - fprs) + self.mass_error[touch]
            beside = np.where(np.isfinite(self.tau[touch]), bend * apart, inf)
        return np.fmin(np.fmin(above, beside), 1.0)

    def between(self, left: NDArray[Any], right: NDArray[Any], goals: NDArray[Any]) -> NDArray[Any]:
        """The threshold with this normal quantile of Q(L > τ), by the cubic through two points with the slopes there."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ends, slopes = [], []
            for index in (left, right):
                quantile = -ndtri(self.mass[index])
                ends.append(quantile)
                slopes.append(np.exp(-0.5 * quantile**2) / np.sqrt(2.0 * np.pi) / self.density[index])
            width = ends[1] - ends[0]
            t = (goals - ends[0]) / width
            start = (1.0 + 2.0 * t) * (1.0 - t) ** 2 * self.tau[left] + t * t * (3.0 - 2.0 * t) * self.tau[right]
            return start + width * t * (1.0 - t) * ((1.0 - t) * slopes[0] - t * slopes[1])


def rates_on_tangents(
    evaluate: Evaluation, guesses: NDArray[Any], fprs: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The true-positive rate at each false-positive rate in (0, 1): the lowest tangent; its error; its threshold.

    guesses: thresholds around those of the rates. Thresholds are interpolated between the points that are known, or taken from
    the slope of a chord where that does not get nearer.
    """
    points = _Points()
    goals = -ndtri(fprs)
    taus = np.clip(guesses, LOWEST, HIGHEST)
    open_ = np.arange(len(fprs))
    values, errors, best = np.ones(len(fprs)), np.zeros(len(fprs)), np.zeros(len(fprs))
    for turn in range(ROUNDS):
        asked = np.unique(taus)
        points.add(asked, evaluate(asked))
        left, right = points.around(fprs[open_])
        touch = points.lowest(left, right, fprs[open_])
        top = points.tangent(touch, fprs[open_])
        gap, error = points.gap(left, right, touch, fprs[open_]), points.error[touch]
        with np.errstate(divide="ignore", invalid="ignore"):
            kink = np.log((points.power[left] - points.power[right]) / (points.mass[left] - points.mass[right]))
        low, high = points.tau[left], points.tau[right]
        smooth = points.between(left, right, goals[open_])
        inside = (smooth > low) & (smooth < high)
        values[open_], errors[open_] = top, error + gap
        best[open_] = np.where(inside, smooth, points.tau[touch])
        more = gap > np.maximum(SEARCH * top, 0.3 * error)
        middle = 0.5 * (np.maximum(low, LOWEST) + np.minimum(high, HIGHEST))
        taus = np.where((kink > low) & (kink < high) & (turn % 3 != 2), kink, middle)
        taus = np.where(inside & ((turn < 3) | (turn % 3 == 0)), smooth, taus)
        again = np.isin(taus, points.tau)  # its side is not sure: what Q(L > τ) seems to be tells
        taus[again] = points.halfway(fprs[open_[again]])
        more &= (taus > low) & (taus < high) & (right - left <= UNSURE + len(guesses)) & ~np.isin(taus, points.tau)
        open_, taus = open_[more], taus[more]
        if not open_.size:
            break
    return np.clip(values, fprs, 1.0), errors, np.clip(best, LOWEST, HIGHEST)


def epsilons_on_tangents(
    evaluate: Evaluation, guesses: NDArray[Any], deltas: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """ε ≥ 0 with H_{e^ε} = δ, for each δ: from below, as it is, and from above. Newton's method on log H, in a bracket."""
    start = evaluate(np.zeros(1))
    size = len(deltas)
    low, high = np.zeros(size), np.full(size, inf)
    values, slack = np.zeros(size), np.zeros(size)
    open_ = np.flatnonzero(start.stick[0] > deltas)
    taus = np.maximum(guesses[open_], 1e-300)
    for _ in range(ROUNDS):
        if not open_.size:
            break
        answers = evaluate(taus)
        above = answers.stick > deltas[open_]
        low[open_[above]], high[open_[~above]] = taus[above], taus[~above]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            move = np.log(answers.stick / deltas[open_]) * answers.stick / answers.hit
            slack[open_] = np.where(answers.hit > 0.0, (np.abs(answers.stick - deltas[open_]) + answers.error) / answers.hit, 0.0)
        values[open_] = taus
        enough = np.minimum(0.05 * answers.error, 0.01 * deltas[open_])
        off = np.abs(answers.stick - deltas[open_])
        settled = (off <= enough) | ((np.abs(move) <= 1e-12 * taus) & (off <= 1e-6 * deltas[open_]))
        new = taus + move
        least, most = low[open_], high[open_]
        middle = np.where(most < inf, 0.5 * (least + most), 2.0 * np.maximum(taus, 0.5))
        new = np.where((new > least) & (new < most) & (new < 4.0 * taus + 1.0), new, middle)
        settled |= (new <= least) | (new >= most) | (most <= least * (1.0 + 1e-13))
        values[open_[new > LARGEST_EPSILON]] = inf
        more = ~settled & (new <= LARGEST_EPSILON)
        open_, taus = open_[more], new[more]
    return _sides(evaluate, values, slack, deltas, start)


def _sides(
    evaluate: Evaluation, values: NDArray[Any], slack: NDArray[Any], deltas: NDArray[Any], start: Answers
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """ε from both sides: the nearest ends at which H, with its error, is not below δ, and not above it."""
    known = values < inf
    lower, upper = np.where(known, 0.0, LARGEST_EPSILON), np.full(len(values), inf)
    upper[(values == 0.0) & (start.stick[0] + start.error[0] <= deltas)] = 0.0
    first = np.where(values > 0.0, 1.1 * np.nan_to_num(slack, posinf=0.0) + WIDTH * values + 1e-300, 1e-9)
    first = np.where((values > 0.0) & known, np.minimum(first, 0.05 * values), first)
    for sign, ends in ((-1.0, lower), (1.0, upper)):
        at = np.flatnonzero(known & (np.where(sign < 0.0, values, upper) > 0.0))
        width, short, enough = first.copy(), np.zeros(len(values)), np.full(len(values), inf)
        for _ in range(ROUNDS):  # four times as far until it is enough, then between what is enough and what is not
            if not at.size:
                break
            tried = np.maximum(values[at] + sign * width[at], 0.0)
            answers = evaluate(tried)
            done = (
                (sign * (answers.stick + sign * answers.error - deltas[at]) <= 0.0) | (tried == 0.0) | (tried > LARGEST_EPSILON)
            )
            ends[at[done]] = np.where(tried[done] > LARGEST_EPSILON, inf, tried[done])
            enough[at[done]], short[at[~done]] = width[at[done]], width[at[~done]]
            close = np.where(enough > 0.02 * values, 1.02, 1.5)  # of an end that is far off, more digits
            at = at[(enough[at] == inf) | ((short[at] > 0.0) & (enough[at] > close[at] * short[at]))]
            width = np.where(enough < inf, np.sqrt(short * np.minimum(enough, 1e200)), 4.0 * width)
    return lower, np.where(np.isinf(upper), inf, values), upper  # what has no upper end is not known
