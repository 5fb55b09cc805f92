r"""Exact composition: the trade-off curve of independent steps, from contour integrals of their composed transform.

`composition.py` multiplies the transforms, `contour.py` inverts the product at many thresholds at once, `tangents.py` searches
the thresholds that belong to given false-positive rates or δ. A single step, and steps without sampling, have closed forms.

Errors, all reported: the step in v (measured, by halving), the nodes of the transform (exponentially small, a constant
that the tests verify), rounding, and the search (bounded from both sides).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from betastar.arrays import Real
from betastar.bounds import tangents
from betastar.bounds.answers import Answers
from betastar.bounds.composition import Composition, cumulants, plain_overlap
from betastar.bounds.contour import LOST, TINY, Inversion
from betastar.bounds.parts import EPS, AnyPart, Part

__all__ = ["EPS", "LEAST_NOISE", "TINY", "AnyPart", "FourierCurve", "Part", "Value"]

#: Least noise that is integrated. With less, membership leaks what it can leak, to 1e-11: the ceiling and the risk at this
#: noise enclose the truth.
LEAST_NOISE = 0.07


class Value(NamedTuple):
    """A number and the estimate of its numerical error."""

    value: float
    error: float


class FourierCurve:
    """The trade-off curve of independent steps, from their transforms."""

    def __init__(self, parts: Sequence[AnyPart], symmetric: bool) -> None:
        self.parts = tuple(parts)
        self.symmetric = symmetric

    def reversed(self) -> FourierCurve:
        """The curve of (Q, P)."""
        return self._reversed

    @cached_property
    def _reversed(self) -> FourierCurve:
        if self.symmetric:
            return self
        other = FourierCurve([part.exchanged() for part in self.parts], False)
        other.__dict__["_reversed"] = self
        return other

    @cached_property
    def _composition(self) -> Composition:
        return Composition(self.parts)

    @cached_property
    def _single(self) -> AnyPart | None:
        """The step of a run of one step, if H has a closed form."""
        if len(self.parts) != 1 or self.parts[0].count != 1 or not self.parts[0].closed_form():
            return None
        return self.parts[0]

    @cached_property
    def _gaussian(self) -> float | None:
        """μ, if every record takes part in every step: then the worlds are N(0, 1) and N(μ, 1), μ² = Σ (R/σ)²."""
        square = 0.0
        for part in self.parts:
            if (one := part.mu_square) is None:
                return None
            square += part.count * one
        return sqrt(square) if square > 0.0 else None

    # Answers.

    def overlap(self) -> Value:
        """E[min(P, Q)] = β*, accurate relative to itself."""
        return self._overlap

    @cached_property
    def _overlap(self) -> Value:
        if not self.parts:
            return Value(1.0, 0.0)
        if len(self.parts) == 1 and self.parts[0].count == 1 and (one := self.parts[0].overlap()) is not None:
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

    def hockey_sticks(self, taus: Real) -> tuple[Real, Real]:
        """H_{e^τ}(P‖Q) at each τ, and their errors, in one pass."""
        answers = self._inversion()(np.asarray(taus, dtype=np.float64))
        return answers.stick, answers.error

    def true_positives(self, fpr: float) -> Value:
        """Largest P(reject) over tests with Q(reject) ≤ fpr."""
        values, errors, _ = self.rates(np.array([fpr]))
        return Value(float(values[0]), float(errors[0]))

    def threshold(self, fpr: float) -> float:
        """The τ of the best test with this false-positive rate: the logarithm of the curve's slope there."""
        return float(self.rates(np.array([fpr]))[2][0])

    def rates(self, fprs: Real) -> tuple[Real, Real, Real]:
        """True-positive rates, their errors and the thresholds of the best tests at each false-positive rate, in one pass."""
        fprs = np.asarray(fprs, dtype=np.float64)
        values, errors, taus = fprs.copy(), np.zeros(len(fprs)), np.zeros(len(fprs))
        within = (fprs > 0.0) & (fprs < 1.0)
        if not self.parts or not within.any():
            return values, errors, taus
        asked = fprs[within]
        around = np.array([0.9 * asked.min(), 0.1 + 0.9 * asked.max()])  # so that every rate has points on both sides
        ends = [end for end in self._composition.range if np.isfinite(end)]  # where Q(L > τ) is known
        guesses = np.append(self._guesses(np.concatenate([asked, around])), ends)
        values[within], errors[within], taus[within] = tangents.rates(self._inversion(), guesses, asked)
        return values, errors, taus

    def epsilons(self, deltas: Real) -> tuple[Real, Real, Real]:
        """ε ≥ 0 with H_{e^ε} = δ for each δ, from below, as it is, and from above."""
        deltas = np.asarray(deltas, dtype=np.float64)
        if not self.parts:
            nothing = np.zeros(len(deltas))
            return nothing, nothing, nothing
        return tangents.epsilons(self._inversion(), self._epsilon_guesses(deltas), deltas)

    # How H and Q(L > τ) are computed.

    def _inversion(self) -> tangents.Evaluation:
        """A function of thresholds; lines of integration that it has computed serve later calls."""
        if not self.parts:
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

        def one_step(taus: Real) -> Answers:
            answers = np.empty((len(Answers._fields), len(taus)))
            for chosen, answer in zip((taus >= 0.0, taus < 0.0), sides, strict=True):
                if chosen.any():
                    answers[:, chosen] = answer(taus[chosen])
            return Answers(*answers)

        return one_step

    def _without_sampling(self, taus: Real) -> Answers:
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

    def _guesses(self, fprs: Real) -> Real:
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

    def _epsilon_guesses(self, deltas: Real) -> Real:
        """The τ with H_{e^τ} = δ, nearly: the integral by Laplace's method."""
        if self._gaussian is not None:
            return np.maximum(self._gaussian * (0.5 * self._gaussian - ndtri(deltas)), 0.0)
        if self._single is not None or not len(self._composition.beyond):
            return np.ones(len(deltas))
        strip = self._composition.beyond
        t, taus = strip.thetas, strip.taus
        sizes = strip.value + (1.0 - t) * taus - np.log(t * (t - 1.0)) - 0.5 * np.log(2.0 * np.pi * strip.curvature)
        return np.maximum(np.interp(-np.log(deltas), np.maximum.accumulate(-sizes), taus), 0.0)


def _nothing(taus: Real) -> Answers:
    """A run that tells nothing: P = Q."""
    stick, zero = np.maximum(-np.expm1(taus), 0.0), np.zeros(len(taus))
    return Answers(stick, 1.0 - stick, zero, 1.0 * (taus < 0.0), zero, np.exp(taus) * (taus < 0.0), zero)
