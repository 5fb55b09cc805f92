"""A trade-off curve from privacy losses on a grid: what FFT accountants compute, and what can be proved.

A pair (P, Q) is given by the law of the loss under P, the law of minus the loss under Q, and the mass that each world puts
where the other has none. Each direction answers for α ≥ 1, where it has no cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, expm1
from typing import Any

import numpy as np

from betastar.arrays import Real
from betastar.bounds.exact import FourierCurve, Value

#: Largest finite loss that is told from an infinite one (e^700 is about the largest number there is).
FARTHEST = 700.0
#: Corners that are looked at on each side of the best one.
ASIDE = 64


@dataclass(frozen=True)
class Side:
    """One direction: masses of the first distribution at increasing losses ≥ 0, and its mass at loss +∞.

    beyond: the part of the infinite mass whose loss is finite but above FARTHEST.
    """

    losses: Real
    mass: Real
    infinite: float
    beyond: float = 0.0

    @classmethod
    def of(cls, losses: Real, mass: Real, infinite: float) -> Side:
        """Keep what counts for α ≥ 1."""
        near = (losses >= 0.0) & (losses <= FARTHEST)
        beyond = float(mass[losses > FARTHEST].sum())
        return cls(losses[near], mass[near], infinite + beyond, beyond)

    def doubt(self, tau: float) -> float:
        """By how much H_{e^τ} may be too large because a loss above FARTHEST counts as infinite."""
        return self.beyond * exp(min(tau - FARTHEST, 0.0))

    @cached_property
    def _above(self) -> tuple[Real, Real]:
        """Mass of the first and of the second distribution at the losses from each index on."""
        first = np.append(np.cumsum(self.mass[::-1])[::-1], 0.0)
        second = np.append(np.cumsum((self.mass * np.exp(-self.losses))[::-1])[::-1], 0.0)
        return first, second

    @cached_property
    def _corners(self) -> Real:
        """H at α = 1 and at each loss."""
        first, second = self._above
        index = np.arange(1, len(self.losses) + 1)
        values = np.concatenate([[first[0] - second[0]], first[index] - np.exp(self.losses) * second[index]])
        return np.maximum(values, 0.0) + self.infinite

    def hockey_stick(self, tau: float) -> float:
        """H_{e^τ} = Σ over losses l > τ of mass·(1 - e^{τ-l}), plus the infinite mass, for τ ≥ 0."""
        first, second = self._above
        i = int(np.searchsorted(self.losses, tau, side="right"))
        value = float(first[i] - exp(min(tau, FARTHEST)) * second[i])
        return max(value, 0.0) + self.infinite

    def best(self, fpr: float) -> tuple[float, float]:
        """min over τ ≥ 0 of H_{e^τ} + e^τ·fpr, and that τ; H is linear in e^τ between the losses, with slope -Q(L > τ)."""
        near = self._around(self._above[1], fpr)
        taus = self._taus[near]
        return _least(self._corners[near] + np.exp(taus) * fpr, taus)

    def best_reversed(self, fpr: float) -> tuple[float, float]:
        """The same over τ ≤ 0, where H_{e^τ} = 1 - e^τ + e^τ·H(-τ) with this side being the reversed direction."""
        near = self._around(self._above[0], 1.0 - fpr - self.infinite)
        taus = -self._taus[near]
        return _least(1.0 - np.exp(taus) * (1.0 - self._corners[near] - fpr), taus)

    @cached_property
    def _taus(self) -> Real:
        return np.append(0.0, self.losses)

    @staticmethod
    def _around(falling: Real, level: float) -> slice:
        """The corners around the one where masses that fall reach a level; a few, as rounding may move the least value."""
        corner = len(falling) - int(np.searchsorted(falling[::-1], level, side="right"))
        return slice(max(0, corner - ASIDE), corner + ASIDE)


def _least(values: Real, taus: Real) -> tuple[float, float]:
    i = int(np.argmin(values))
    return float(values[i]), float(taus[i])


class DiscreteCurve:
    """The curve of a pair on a grid; `error` bounds what computing it may have added or lost."""

    def __init__(self, forward: Side, backward: Side, error: float = 0.0) -> None:
        self.forward, self.backward, self.error = forward, backward, error

    def reversed(self) -> DiscreteCurve:
        if self.forward is self.backward:
            return self
        return DiscreteCurve(self.backward, self.forward, self.error)

    def hockey_stick(self, tau: float) -> Value:
        if tau >= 0.0:
            return Value(self.forward.hockey_stick(tau), self.error + self.forward.doubt(tau))
        doubt = self.backward.doubt(-tau)
        return Value(-expm1(tau) + exp(tau) * self.backward.hockey_stick(-tau), self.error + doubt)

    def overlap(self) -> Value:
        value, error = self.hockey_stick(0.0)
        return Value(1.0 - value, error)

    def true_positives(self, fpr: float) -> Value:
        return Value(min(max(self._touching(fpr)[0], fpr), 1.0), self.error)

    def threshold(self, fpr: float) -> float:
        return self._touching(fpr)[1]

    def _touching(self, fpr: float) -> tuple[float, float]:
        return min(self.forward.best(fpr), self.backward.best_reversed(fpr))


class NodeCurve:
    """A symmetric trade-off curve known at α = e^{iΔ}, i ≥ 0: from above, or from below."""

    def __init__(self, grid: float, values: Real, above: bool) -> None:
        self.grid, self.values, self.above = grid, np.clip(values, 0.0, 1.0), above

    def reversed(self) -> NodeCurve:
        return self

    def hockey_stick(self, tau: float) -> Value:
        """From above: linear in α between the nodes, as H is convex. From below: the value at the next node, as H decreases."""
        if tau < 0.0:
            return Value(-expm1(tau) + exp(tau) * self.hockey_stick(-tau).value, 0.0)
        last = len(self.values) - 1
        place = tau / self.grid
        i = int(min(place, last))
        if not self.above:
            i = min(ceil(place), last + 1)
            return Value(float(self.values[i]) if i <= last else 0.0, 0.0)
        if i == last:
            return Value(float(self.values[last]), 0.0)
        part = expm1(tau - i * self.grid) / expm1(self.grid)
        return Value(float(self.values[i] + part * (self.values[i + 1] - self.values[i])), 0.0)

    def overlap(self) -> Value:
        return Value(1.0 - float(self.values[0]), 0.0)

    @cached_property
    def _corners(self) -> tuple[Real, Real]:
        """α and H at points between which H + α·fpr cannot be smaller."""
        nodes = np.exp(self.grid * np.arange(len(self.values)))
        return (nodes, self.values) if self.above else (nodes, np.append(self.values[1:], 0.0))

    def true_positives(self, fpr: float) -> Value:
        """min over α of H_α + α·fpr; for α < 1, H_α = 1 - α + α·H_{1/α}."""
        alpha, value = self._corners
        if not self.above:
            inverse = 1.0 / (alpha * exp(self.grid))
            reverse = float(np.min(1.0 - (1.0 - value) / alpha + inverse * fpr))
        else:
            reverse = float(np.min(1.0 - (1.0 - value - fpr) / alpha))
        rate = min(float(np.min(value + alpha * fpr)), reverse)
        return Value(min(max(rate, fpr), 1.0), 0.0)

    def threshold(self, fpr: float) -> float:
        """The log of the α at which `true_positives` has its least value."""
        alpha, value = self._corners
        ahead, behind = value + alpha * fpr, 1.0 - (1.0 - value - fpr) / alpha
        i, j = int(np.argmin(ahead)), int(np.argmin(behind))
        return self.grid * i if ahead[i] <= behind[j] else -self.grid * j


class LeastCurve:
    """The better of symmetric curves that all dominate the same runs."""

    def __init__(self, *curves: Any) -> None:
        self.curves = curves

    def reversed(self) -> LeastCurve:
        return self

    def overlap(self) -> Value:
        return max((curve.overlap() for curve in self.curves), key=lambda overlap: overlap.value - overlap.error)

    def hockey_stick(self, tau: float) -> Value:
        return min((curve.hockey_stick(tau) for curve in self.curves), key=sum)

    def true_positives(self, fpr: float) -> Value:
        return min((curve.true_positives(fpr) for curve in self.curves), key=sum)

    def threshold(self, fpr: float) -> float:
        return min(self.curves, key=lambda curve: sum(curve.true_positives(fpr))).threshold(fpr)

    def hockey_sticks(self, taus: Real) -> tuple[Real, Real]:
        rows = [
            np.stack(curve.hockey_sticks(taus))
            if isinstance(curve, FourierCurve)
            else np.array([curve.hockey_stick(tau) for tau in taus.tolist()]).T
            for curve in self.curves
        ]
        values, errors = self._least(rows)
        return values, errors

    def rates(self, fprs: Real) -> tuple[Real, Real, Real]:
        rows = [
            np.stack(curve.rates(fprs))
            if isinstance(curve, FourierCurve)
            else np.array([(*curve.true_positives(fpr), curve.threshold(fpr)) for fpr in fprs.tolist()]).T
            for curve in self.curves
        ]
        values, errors, thresholds = self._least(rows)
        return values, errors, thresholds

    @staticmethod
    def _least(rows: Sequence[Real]) -> Real:
        """Of (values, errors, …) of each curve the ones whose value and error are least together."""
        every = np.array(rows)
        best = np.argmin(every[:, 0] + every[:, 1], axis=0)
        return np.take_along_axis(every, best[None, None, :], axis=0)[0]
