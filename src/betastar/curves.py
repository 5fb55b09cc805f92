"""Trade-off curves between two worlds P (positive) and Q: what every curve answers, and curves that are known on a grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, exp, expm1, inf, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Largest loss that counts as finite (e^700 is about the largest number there is).
FARTHEST = 700.0
#: ε above this is reported as infinite.
LARGEST_EPSILON = 1e12
#: Corners that are looked at on each side of the best one.
ASIDE = 64


class Value(NamedTuple):
    """A number and its numerical error: an estimate of it, or a bound."""

    value: float
    error: float


class Answers(NamedTuple):
    """At each threshold: H_{e^τ}(P‖Q), 1 - H, their error; Q(L > τ), its error, e^τ·Q(L > τ); the density of L under Q."""

    stick: NDArray[Any]
    overlap: NDArray[Any]
    error: NDArray[Any]
    mass: NDArray[Any]
    mass_error: NDArray[Any]
    hit: NDArray[Any]
    density: NDArray[Any]


class Curve(ABC):
    """A trade-off curve. Questions with an array are answered number by number, unless a curve can do it in one pass."""

    @abstractmethod
    def reversed(self) -> Curve:
        """The curve of (Q, P)."""

    @abstractmethod
    def overlap(self) -> Value:
        """E[min(P, Q)] = β*."""

    @abstractmethod
    def hockey_stick(self, tau: float) -> Value:
        """H_{e^τ}(P‖Q) = P(L > τ) - e^τ Q(L > τ)."""

    @abstractmethod
    def true_positives(self, fpr: float) -> Value:
        """Largest P(reject) over tests with Q(reject) ≤ fpr."""

    @abstractmethod
    def threshold(self, fpr: float) -> float:
        """The τ of the best test with this false-positive rate: the logarithm of the curve's slope there."""

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """H_{e^τ} at each τ, and their errors."""
        return _columns([self.hockey_stick(tau) for tau in taus.tolist()])

    def true_positive_rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The true-positive rate at each false-positive rate, and their errors."""
        return _columns([self.true_positives(fpr) for fpr in fprs.tolist()])

    def epsilons(self, deltas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """ε ≥ 0 with H_{e^ε} = δ, for each δ: with the curve lowered by its error, as it is, and raised."""
        rows = np.array([self._epsilon(delta) for delta in deltas.tolist()]).reshape(-1, 3)
        return rows[:, 0], rows[:, 1], rows[:, 2]

    def _epsilon(self, delta: float) -> tuple[float, float, float]:
        """ε of one δ, from the three curves."""
        points: dict[float, Value] = {}

        def solve(side: float) -> float:
            def excess(epsilon: float) -> float:
                if epsilon not in points:
                    points[epsilon] = self.hockey_stick(epsilon)
                value, error = points[epsilon]
                return log(max(value + side * error if side else value, 1e-320) / delta)

            if excess(0.0) <= 0.0:
                return 0.0
            from scipy.optimize import brentq

            known = sorted(points)
            low = max((e for e in known if excess(e) > 0.0), default=0.0)
            high = min((e for e in known if excess(e) <= 0.0), default=max(1.0, 2.0 * low))
            while excess(high) > 0.0:
                low, high = high, 2.0 * high
                if high > LARGEST_EPSILON:
                    return inf
            return float(brentq(excess, low, high, xtol=1e-12, rtol=1e-10)) * (1.0 + side * 2e-10)

        value = solve(0.0)
        return solve(-1.0), value, solve(1.0)


def _columns(values: Sequence[Value]) -> tuple[NDArray[Any], NDArray[Any]]:
    rows = np.array(values, dtype=np.float64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


# Curves from privacy losses on a grid: what FFT accountants compute, and what can be proved. A pair (P, Q) is given by the law of
# the loss under P, the law of minus the loss under Q, and the mass that each world puts where the other has none. Each direction
# answers for α ≥ 1, where it has no cancellation.


@dataclass(frozen=True)
class Side:
    """One direction: masses of the first distribution at increasing losses ≥ 0, and its mass at loss +∞.

    beyond: the part of the infinite mass whose loss is finite but above FARTHEST; far: these losses and their masses.
    """

    losses: NDArray[Any]
    mass: NDArray[Any]
    infinite: float
    beyond: float = 0.0
    far: tuple[NDArray[Any], NDArray[Any]] = (np.zeros(0), np.zeros(0))
    #: Losses ≥ 0 in their order, and by how much H may be wrong at a threshold below each, and beyond them; none: not at all.
    errors: tuple[NDArray[Any], NDArray[Any]] | None = None

    @classmethod
    def of(cls, losses: NDArray[Any], mass: NDArray[Any], infinite: float) -> Side:
        """Keep what counts for α ≥ 1."""
        near, far = (losses >= 0.0) & (losses <= FARTHEST), losses > FARTHEST
        beyond = float(mass[far].sum())
        return cls(losses[near], mass[near], infinite + beyond, beyond, (losses[far], mass[far]))

    def with_errors(self, losses: NDArray[Any], errors: NDArray[Any], more: float) -> Side:
        """With a bound of the error of the mass at each loss, and of what lies beyond all of them."""
        ahead = losses >= 0.0
        return replace(self, errors=(losses[ahead], np.append(np.cumsum(errors[ahead][::-1])[::-1], 0.0) + more))

    def doubt(self, tau: float) -> float:
        """By how much H_{e^τ} may be wrong; besides, a loss above FARTHEST counts as infinite where τ is below it."""
        wrong = 0.0 if self.errors is None else float(self.errors[1][np.searchsorted(self.errors[0], tau, side="right")])
        return wrong + (0.0 if tau > FARTHEST else self.beyond * exp(min(tau - FARTHEST, 0.0)))

    @cached_property
    def _above(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Mass of the first and of the second distribution at the losses from each index on."""
        first = np.append(np.cumsum(self.mass[::-1])[::-1], 0.0)
        second = np.append(np.cumsum((self.mass * np.exp(-self.losses))[::-1])[::-1], 0.0)
        return first, second

    @cached_property
    def _corners(self) -> NDArray[Any]:
        """H at α = 1 and at each loss."""
        first, second = self._above
        index = np.arange(1, len(self.losses) + 1)
        values = np.concatenate([[first[0] - second[0]], first[index] - np.exp(self.losses) * second[index]])
        return np.maximum(values, 0.0) + self.infinite

    def hockey_stick(self, tau: float) -> float:
        """H_{e^τ} = Σ over losses l > τ of mass·(1 - e^{τ-l}), plus the infinite mass, for τ ≥ 0."""
        if tau > FARTHEST:
            losses, mass = self.far
            above = losses > tau
            return float(-np.expm1(tau - losses[above]) @ mass[above]) + max(self.infinite - self.beyond, 0.0)
        first, second = self._above
        i = int(np.searchsorted(self.losses, tau, side="right"))
        value = float(first[i] - exp(tau) * second[i])
        return max(value, 0.0) + self.infinite

    def best(self, fpr: float, sign: float = 0.0) -> tuple[float, float]:
        """min over τ ≥ 0 of H_{e^τ} + e^τ·fpr, and that τ; H is linear in e^τ between the losses, with slope -Q(L > τ).

        sign: -1 or 1 for H without, or with, its errors.
        """
        near = self._around(self._above[1], fpr)
        taus = self._taus[near]
        return _least((self._corners + sign * self._errors_at_corners)[near] + np.exp(taus) * fpr, taus)

    def best_reversed(self, fpr: float, sign: float = 0.0) -> tuple[float, float]:
        """The same over τ ≤ 0, where H_{e^τ} = 1 - e^τ + e^τ·H(-τ) with this side being the reversed direction."""
        near = self._around(self._above[0], 1.0 - fpr - self.infinite)
        taus = -self._taus[near]
        return _least(1.0 - np.exp(taus) * (1.0 - (self._corners + sign * self._errors_at_corners)[near] - fpr), taus)

    @cached_property
    def _errors_at_corners(self) -> Any:
        """By how much H may be wrong at a corner, and down to the one before it."""
        return 0.0 if self.errors is None else self.errors[1][np.searchsorted(self.errors[0], self._taus, side="left")]

    @cached_property
    def _taus(self) -> NDArray[Any]:
        return np.append(0.0, self.losses)

    def _around(self, falling: NDArray[Any], level: float) -> slice:
        """The corners around the one where masses that fall reach a level; a few, as rounding may move the least value."""
        if self.errors is not None:
            return slice(None)
        corner = len(falling) - int(np.searchsorted(falling[::-1], level, side="right"))
        return slice(max(0, corner - ASIDE), corner + ASIDE)


def _least(values: NDArray[Any], taus: NDArray[Any]) -> tuple[float, float]:
    i = int(np.argmin(values))
    return float(values[i]), float(taus[i])


class DiscreteCurve(Curve):
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

    def tails(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """P(L > τ) and Q(L > τ) at each τ."""
        first, second = (np.empty(len(taus)) for _ in range(2))
        ahead, behind = taus >= 0.0, taus < 0.0
        i = np.searchsorted(self.forward.losses, taus[ahead], side="right")
        first[ahead], second[ahead] = self.forward._above[0][i] + self.forward.infinite, self.forward._above[1][i]
        j = np.searchsorted(self.backward.losses, -taus[behind], side="left")  # -L ≥ -τ
        first[behind], second[behind] = (
            1.0 - self.backward._above[1][j],
            1.0 - self.backward._above[0][j] - self.backward.infinite,
        )
        return first, second

    def overlap(self) -> Value:
        value, error = self.hockey_stick(0.0)
        return Value(1.0 - value, error)

    def true_positives(self, fpr: float) -> Value:
        least, most = (min(max(self._touching(fpr, sign)[0], fpr), 1.0) for sign in (-1.0, 1.0))
        return Value(0.5 * (least + most), 0.5 * (most - least) + self.error)

    def threshold(self, fpr: float) -> float:
        return self._touching(fpr, 0.0)[1]

    def _touching(self, fpr: float, sign: float) -> tuple[float, float]:
        return min(self.forward.best(fpr, sign), self.backward.best_reversed(fpr, sign))


class NodeCurve(Curve):
    """A symmetric trade-off curve known at α = e^{iΔ}, i ≥ 0: from above, or from below."""

    def __init__(self, grid: float, values: NDArray[Any], above: bool) -> None:
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
    def _corners(self) -> tuple[NDArray[Any], NDArray[Any]]:
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


class LeastCurve(Curve):
    """The better of curves that all dominate the same runs."""

    def __init__(self, *curves: Curve) -> None:
        self.curves = curves

    def reversed(self) -> LeastCurve:
        others = [curve.reversed() for curve in self.curves]
        return self if all(a is b for a, b in zip(others, self.curves, strict=True)) else LeastCurve(*others)

    def overlap(self) -> Value:
        return max((curve.overlap() for curve in self.curves), key=lambda overlap: overlap.value - overlap.error)

    def hockey_stick(self, tau: float) -> Value:
        return min((curve.hockey_stick(tau) for curve in self.curves), key=sum)

    def true_positives(self, fpr: float) -> Value:
        return min((curve.true_positives(fpr) for curve in self.curves), key=sum)

    def threshold(self, fpr: float) -> float:
        return min(self.curves, key=lambda curve: sum(curve.true_positives(fpr))).threshold(fpr)

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._least([np.stack(curve.hockey_sticks(taus)) for curve in self.curves])

    def true_positive_rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._least([np.stack(curve.true_positive_rates(fprs)) for curve in self.curves])

    def epsilons(self, deltas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """H falls: where the least curve crosses δ, the first of the curves does."""
        every = np.array([np.stack(curve.epsilons(deltas)) for curve in self.curves])
        lower, value, upper = np.take_along_axis(every, np.argmin(every[:, 2], axis=0)[None, None, :], axis=0)[0]
        return lower, value, upper

    @staticmethod
    def _least(rows: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of (values, errors) of each curve the ones that are least together."""
        every = np.array(rows)
        best = np.argmin(every[:, 0] + every[:, 1], axis=0)
        values, errors = np.take_along_axis(every, best[None, None, :], axis=0)[0]
        return values, errors
