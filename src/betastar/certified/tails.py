"""The tails of a run, from above and from below, with an error that is small beside them (theory, section 4).

The transform of a composed law has an absolute error, beside which a probability of 1e-15 is nothing. So each law is multiplied
by e^{θ·loss}, composed, and divided by that again: the error then falls like e^{-θ·loss}, too, and each loss has the tilt θ for
which it is the least. No tilt serves a law whose tail is a single large loss: it would see nothing else. So outcomes are
sorted by the largest loss of a step in them: below a first level, above it but below the next one, and so on. Each of these
shells is composed by itself, with tilts of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, floor, inf, log, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.certified.grid import (
    FFT_ERROR,
    VISIBLE,
    Blends,
    GridStep,
    Law,
    Nodes,
    loss_window,
    on_grid,
    overfull,
)
from betastar.curves import DiscreteCurve, Side
from betastar.steps.base import EPS, Step, complex_expm1, complex_log1p

#: Probability of what is given up, or to the attacker.
SLACK = 1e-26
#: Expected numbers of larger losses that the levels have.
LEVELS = (1e-6, 1e-12, 1e-18)
#: Tilts that are tried, on the scale of the deviation and on that of the largest loss; losses at which they are compared.
TILTS, COMPARED = 40, 48
#: An error of a loss beside its probability that is small enough, or by itself; and how much more than the least error, in its
#: logarithm, is taken for one tilt less.
ENOUGH, FAINTEST, SPARED = 1e-9, 1e-28, 2.0
#: Cells of the grid in a deviation of a single step, and beside the widest that they may be; nodes an octave far out.
PER_DEVIATION, COARSEST, PER_OCTAVE = 8.0, 1.0, 64
#: Masses below this one are lost in underflow.
TINY = 1e-300
#: Points of the composed law, at most.
MOST = 1 << 18


def compose_tails(steps: Sequence[GridStep], step: float) -> DiscreteCurve | None:
    """The curve of all steps together, whose error falls with the threshold; None if it has too many points."""
    counts, excess = np.array([one.count for one in steps], dtype=np.float64), np.maximum(overfull(steps, step), 0.0)
    if excess.max() > 1e-9:
        return None
    sides = []
    for reverse in (False,) if all(one.ahead is one.behind for one in steps) else (False, True):
        with np.errstate(all="ignore"):
            side = _side([one.law(step, reverse) for one in steps], counts, step, 4.0 * float(counts @ excess))
        if side is None:
            return None
        sides.append(side)
    return DiscreteCurve(sides[0], sides[-1])


def _side(laws: Sequence[Law], counts: NDArray[Any], step: float, overfull: float) -> Side | None:
    """One direction. overfull: by how much the masses of all steps add up to more than 1.

    That costs a share of H only: a step less leaks less.
    """
    from scipy.fft import next_fast_len

    each = np.arange(len(laws))
    low, high = loss_window(laws, Blends(counts, each, each, np.zeros(len(laws))), step, SLACK)
    start = floor(low / step) - 1
    size = ceil(high / step) - start + 2
    if size > MOST:
        return None
    length = next_fast_len(size, real=True)
    losses = step * (start + np.arange(length))
    base = float(counts @ [shift for shift, *_ in laws])
    stays = float(counts @ np.log1p([-infinite for *_, infinite in laws]))
    levels = _levels(laws, counts, step)
    shells = [_Shell(laws, counts, step, -inf, levels[0])]
    shells += [_Shell(laws, counts, step, low, high) for low, high in zip(levels, [*levels[1:], inf], strict=True)]
    shells = [shell for shell in shells if shell.occurs]
    if not all(len(shell.thetas) for shell in shells):  # every tilt overflows, as in a hopeless run
        return None
    asked = np.linspace(min(max(-base, float(losses[0])), float(losses[-1])), float(losses[-1]), COMPARED)
    likely = np.max([shell.likely(asked) for shell in shells], axis=0)
    mass, wrong = np.zeros(length), np.zeros(length)
    for shell in shells:
        more, error = shell.composed(losses, start, asked, np.maximum(likely + log(ENOUGH), log(FAINTEST)))
        mass, wrong = mass + more, wrong + error
    side = Side.of(base + losses, mass, -expm1(stays))
    return side.with_errors(base + losses, wrong + overfull * mass, SLACK)


def _levels(laws: Sequence[Law], counts: NDArray[Any], step: float) -> list[float]:
    """Losses that are exceeded that many times in the whole run, or hardly more often."""
    every = np.concatenate([step * index for _, index, *_ in laws])
    times = np.concatenate([n * np.where(index > 0, mass, 0.0) for n, (_, index, mass, _) in zip(counts, laws, strict=True)])
    order = np.argsort(every)
    above = np.cumsum(times[order][::-1])[::-1] - times[order]
    return sorted({max(float(every[order][int(np.argmax(above <= level))]), step) for level in LEVELS})


class _Shell:
    """Outcomes in which no step has a loss above `high`, and one at least has a loss above `low`, unless that is -∞."""

    def __init__(self, laws: Sequence[Law], counts: NDArray[Any], step: float, low: float, high: float) -> None:
        self.counts, self.innermost, self.step = counts, low == -inf, step
        self.inner: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self.outer: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        rest = []
        for _, index, mass, infinite in laws:
            losses = step * index
            split = high if self.innermost else low
            for part, chosen in ((self.inner, losses <= split), (self.outer, (losses > split) & (losses <= high))):
                some = chosen & (index != 0) & (mass > 0.0)
                part.append((index[some], losses[some], mass[some]))
            rest.append(infinite + float(mass[(losses > split) & (index != 0)].sum()))
        self.rest = np.array(rest)
        self.occurs = self.innermost or any(index.size for index, *_ in self.outer)
        every = np.concatenate([losses for _, losses, _ in (*self.inner, *self.outer)])
        largest, smallest = max(float(every.max(initial=0.0)), 0.0), max(-float(every.min(initial=0.0)), 0.0)
        deviation = sqrt(sum(n * float(m @ x**2) for n, (_, x, m) in zip(counts, self.inner, strict=True)))
        scales = np.geomspace(0.05, 60.0, TILTS)
        thetas = np.unique(np.concatenate([scales / max(one, step) for one in (deviation, largest, smallest)]))
        thetas = np.concatenate([-thetas[-thetas * smallest > -600.0][::-1], [0.0], thetas[thetas * largest < 600.0]])
        grown = [self.growth(theta) for theta in thetas.tolist()]
        known = np.array([total < inf for _, total in grown])
        self.thetas = thetas[known]
        self.growths = [inner for inner, total in grown if total < inf]
        self.totals = np.array([total for _, total in grown if total < inf])

    def likely(self, losses: NDArray[Any]) -> NDArray[Any]:
        """Logarithm of the probability of each loss, about: what Chernoff's bound says."""
        return np.asarray((self.totals[:, None] - np.multiply.outer(self.thetas, losses)).min(axis=0))

    def growth(self, theta: float) -> tuple[NDArray[Any], float]:
        """log E[e^{θL}; L ≤ low] of each step, and log E[e^{θ·loss}] over the shell."""
        less = np.array([float(np.expm1(theta * losses) @ mass) for _, losses, mass in self.inner]) - self.rest
        if np.any(less <= VISIBLE - 1.0):
            return less, inf
        inner = np.log1p(less)
        total = float(self.counts @ inner)
        if not self.innermost:
            outer = np.array([float(np.exp(theta * losses) @ mass) for _, losses, mass in self.outer])
            hits = float(self.counts @ np.log1p(outer * np.exp(-inner)))
            total = total + log(expm1(hits)) if 0.0 < hits < 500.0 else inf
        return inner, total

    def composed(
        self, losses: NDArray[Any], start: int, asked: NDArray[Any], enough: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The mass at each loss, and a bound of its error. enough: logarithm of an error that is small, at some losses."""
        apart = np.subtract.outer(self.thetas, self.thetas)  # θ - θ' of a tilt (row) and another one
        # Relative to the whole: what is wrapped around, by Chernoff, and what the transform may have wrong, about.
        over = np.where(apart < 0.0, self.totals + apart * float(losses[-1]), inf).min(axis=1) - self.totals
        under = np.where(apart > 0.0, self.totals + apart * float(losses[0]), inf).min(axis=1) - self.totals
        wrapped = np.exp(np.minimum(over, 700.0)) + np.exp(np.minimum(under, 700.0))
        moved = sum(n * min(float(m.sum()), 1.0) for n, (_, _, m) in zip(self.counts, self.inner, strict=True))
        expected = FFT_ERROR * log2(len(losses)) * (1.0 + moved) / sqrt(len(losses))
        places = -1.0 / np.expm1(-np.maximum(self.thetas * self.step, 1.0 / len(losses)))  # that count beyond a threshold
        errors = (self.totals + np.log(places * (wrapped + expected)))[:, None] - np.multiply.outer(self.thetas, asked)
        errors = np.nan_to_num(errors, nan=inf, posinf=inf)
        mass, wrong = np.zeros(len(losses)), np.full(len(losses), inf)
        for i in _chosen(errors, np.maximum(errors.min(axis=0) + SPARED, enough)):
            law, error = self._law(i, len(losses))
            exponent = float(self.totals[i]) - float(self.thetas[i]) * losses
            factor = np.exp(exponent)
            now = np.maximum(np.roll(law, -start), 0.0)
            doubt = (error + wrapped[i] + 64.0 * EPS * (2.0 + np.abs(exponent)) * now) * factor + TINY
            better = doubt < wrong  # what overflows is not
            mass[better], wrong[better] = (now * factor)[better], doubt[better]
        return mass, wrong

    def _law(self, i: int, length: int) -> tuple[NDArray[Any], float]:
        """The mass times e^{θ·loss}, divided by its sum, and a bound of the error at each loss."""
        from scipy.fft import irfft

        each, size = FFT_ERROR * log2(length), length // 2 + 1
        theta, inner = float(self.thetas[i]), self.growths[i]
        whole = float(self.totals[i] - self.counts @ inner)  # beside the losses up to `low`
        power, doubt, hits, more = np.zeros(size, complex), np.zeros(size), np.zeros(size, complex), np.zeros(size)
        most, lost = np.zeros(size), np.zeros(size, dtype=bool)
        for count, level, near, far in zip(self.counts, inner.tolist(), self.inner, self.outer, strict=True):
            (change, error), (hit, beside) = (_tilted(part, theta, level, length, each) for part in (near, far))
            change, error = change - change[0].real, 2.0 * error  # with the mass at loss 0, but for 1
            modulus = np.maximum(np.abs(1.0 + change), EPS)
            power += count * complex_log1p(change)
            doubt += count * error / modulus
            if not self.innermost:
                ratio = hit / (1.0 + change)
                hits += count * complex_log1p(ratio)
                more += count * (beside + np.abs(ratio) * error) / np.maximum(modulus - np.abs(hit) - beside, EPS)
                most += count * np.log(modulus + error + np.abs(hit) + beside)
                lost |= ~(np.abs(hit) < 0.5 * modulus)
        composed = np.exp(power - whole)
        wrong = np.abs(composed) * np.expm1(np.minimum(doubt, 50.0))
        if not self.innermost:
            several = complex_expm1(hits.real, hits.imag)
            grown = np.exp(hits.real) * np.expm1(np.minimum(more, 50.0))
            wrong = wrong * (np.abs(several) + grown) + np.abs(composed) * grown
            composed = composed * several
            composed[lost], wrong[lost] = 0.0, np.exp(most[lost] - whole)  # Π(|a| + |b|) - Π|a| is not more
        # |error of a mass| ≤ ‖error‖₂ = norm of the error of the transform / √n; then the inverse transform's own.
        norm = sqrt(2.0 * float(wrong @ wrong)) + (each + 32.0 * EPS) * sqrt(2.0 * float(np.sum(np.abs(composed) ** 2)))
        return irfft(composed, length), norm / sqrt(length)


def _tilted(
    part: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], theta: float, level: float, length: int, each: float
) -> tuple[NDArray[Any], float]:
    """Transform of masses times e^{θ·loss - level}, and its error."""
    from scipy.fft import rfft

    index, losses, mass = part
    if not index.size:
        return np.zeros(length // 2 + 1, complex), 0.0
    tilted = mass * np.exp(theta * losses - level)
    rounding = 8.0 * EPS * float(tilted @ (4.0 + np.abs(theta * losses) + abs(level)))
    return rfft(np.bincount(index % length, weights=tilted, minlength=length)), each * float(tilted.sum()) + rounding


def _chosen(errors: NDArray[Any], goals: NDArray[Any]) -> list[int]:
    """Rows, few of which reach each goal."""
    open_, chosen = np.ones(len(goals), dtype=bool), []
    while open_.any():
        served = (errors <= goals) & open_
        chosen.append(int(np.argmax(served.sum(axis=1))))
        open_ &= ~served[chosen[-1]]
    return chosen


def on_tails(steps: Sequence[Step], symmetric: bool, above: bool, deviation: float) -> DiscreteCurve | None:
    """The curve of a run from above or from below, for what happens rarely; None if no affordable grid is fine enough.

    deviation: of the loss of a single step, about.
    """
    size = deviation / PER_DEVIATION
    while size <= COARSEST * deviation:
        nodes = Nodes(size, PER_OCTAVE)
        curve = compose_tails([on_grid(step, nodes, symmetric, above, SLACK) for step in steps], size)
        if curve is not None:
            return curve
        size *= 2.0
    return None
