"""One step on a grid of losses, from above and from below, and the composition of such steps (theory, section 4).

The hockey-stick curve h(α) of a step is convex. From above, the polygon through its values at the nodes α_i = e^{c+iΔ}
dominates it ("connect the dots"). From below, a polygon whose piece over each cell lies under a tangent of h is dominated
by it. A polygon with corners at the nodes is the curve of a pair whose losses are c + iΔ, and such pairs compose with a
Fourier transform. Rounding, of h and of the masses, is a relative error of h and turned outwards by a pad; taking the lower
convex hull keeps both properties.

Two kinds of grid. Two-sided, c = 0: one polygon for α ≥ 1 in each direction, meeting at α = 1. One-sided: every loss lies
above c, as for a record that is added and hardly ever sampled, when each step says "probably not there" by log(1-p).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, expm1, floor, log, log1p, log2, pi, sqrt
from typing import Any

import numpy as np

from betastar.arrays import Complex, Real, Whole
from betastar.bounds.complex_functions import log1p as complex_log1p
from betastar.bounds.discrete import DiscreteCurve, Side

#: (gain, mass) = (P(S) - Q(S), Q(S)) of the outcomes S with a loss above each l.
Tails = Callable[[Real], tuple[Real, Real]]

EPS = float(np.finfo(float).eps)
#: Relative rounding error allowed in a computed probability and in the masses made from it.
PAD = 256.0 * EPS
#: A probability that is not lost among rounding errors.
VISIBLE = 1e-12
#: Largest grid (points) that is tried.
LARGEST = 1 << 23
#: Most points times blends.
MOST_BLENDED = 200_000_000
#: Error of a fast Fourier transform, and of a pairwise sum, in units of log₂(length)·Σ|terms|.
FFT_ERROR = 4.0 * EPS
#: Terms that are summed anew, at the most, where the fast transform is not accurate enough.
DIRECT = 50_000_000


@dataclass(frozen=True)
class Nodes:
    """Losses at which the polygons of a step have their corners: multiples of `step`.

    per_octave: at losses above 2·per_octave·step the nodes are spread out, so that this many lie between a loss and its
    double; None: every multiple is a node.
    """

    step: float
    per_octave: int | None = None

    def up_to(self, reach: float) -> Whole:
        """The multiples that are nodes, from 0 to the first multiple that is not below `reach`."""
        cells = max(2, ceil(reach / self.step) + 1)
        if self.per_octave is None or cells <= 2 * self.per_octave:
            return np.arange(cells)
        first = 2 * self.per_octave
        octaves = ceil(log2(cells / first))
        spread = [first * 2**i + 2 ** (i + 1) * np.arange(self.per_octave, dtype=np.int64) for i in range(octaves)]
        index = np.concatenate([np.arange(first), *spread])
        return np.append(index[: int(np.searchsorted(index, cells - 1))], cells - 1)


@dataclass(frozen=True)
class GridStep:
    """`count` equal steps. ahead: Q's mass at base + ahead_index·Δ; behind: P's mass at -behind_index·Δ; the rest: base."""

    count: int
    base: float
    ahead_index: Whole
    ahead: Real
    behind_index: Whole
    behind: Real
    ahead_infinite: float
    behind_infinite: float

    def law(self, step: float, reverse: bool) -> tuple[float, Whole, Real, float]:
        """(base, loss in steps from it, mass minus a unit mass at 0, infinite mass) of P, or of Q with the loss reversed."""
        i, j = self.ahead_index, self.behind_index
        if reverse:
            up, down, infinite = np.exp(step * j - self.base) * self.behind, self.ahead, self.behind_infinite
            i, j, base = j, i, -self.base
        else:
            up, down, infinite = np.exp(step * i + self.base) * self.ahead, self.behind, self.ahead_infinite
            base = self.base
        centre = -(up.sum() + down.sum() + infinite)
        return base, np.concatenate([-j[::-1], [0], i]), np.concatenate([down[::-1], [centre], up]), infinite


@dataclass(frozen=True)
class Blends:
    """What is composed: count[i] times law first[i], or instead, with probability weight[i], law second[i].

    The coin is seen by all. The curve of such a pair is the mean of the curves of the two laws, and so are its masses. The two
    laws are neighbours in the list of laws, or the same one.
    """

    count: Real
    first: Whole
    second: Whole
    weight: Real

    @classmethod
    def none(cls, steps: Sequence[GridStep]) -> Blends:
        """Each step as it is, without coins."""
        each = np.arange(len(steps))
        return cls(np.array([step.count for step in steps], dtype=np.float64), each, each, np.zeros(len(steps)))

    def uses(self, number: int) -> Real:
        """How many steps are this law or a blend with it, for each of a number of laws."""
        blended = np.where(self.weight > 0.0, self.count, 0.0)
        return np.bincount(self.first, self.count, number) + np.bincount(self.second, blended, number)

    def mean(self, values: Any) -> Real:
        """The mean of two values of laws (along the first axis), for each pair."""
        values = np.asarray(values)
        weight = self.weight.reshape((-1,) + (1,) * (values.ndim - 1))
        return values[self.first] + weight * (values[self.second] - values[self.first])


def two_sided(
    count: int, nodes: Nodes, above: bool, advantage: float, ahead: tuple[Tails, float], behind: tuple[Tails, float] | None
) -> GridStep:
    """A step whose losses have both signs. Each direction: its tails, and the loss beyond which nothing matters.

    behind = None: the pair is symmetric. advantage: h(1), in which both directions agree.
    """
    sides = [ahead] if behind is None else [ahead, behind]
    places = [nodes.up_to(reach) for _, reach in sides]
    polygons = [_polygon(tails, nodes.step * index, above, advantage) for (tails, _), index in zip(sides, places, strict=True)]
    start = min(float(values[0]) for values in polygons)
    corners = []
    for values, index in zip(polygons, places, strict=True):
        values[0] = start
        corners.append((index[1:], *_corners(values, 0.0, nodes.step, index)))
    (i, first, infinite), (j, second, other) = corners[0], corners[-1]
    return GridStep(count, 0.0, i, first, j, second, infinite, other)


def one_sided(count: int, nodes: Nodes, above: bool, least: float, ahead: tuple[Tails, float]) -> GridStep:
    """A step none of whose losses is below `least` < 0. Below the first node the curve is h(α) = 1 - α."""
    tails, reach = ahead
    index = nodes.up_to(reach - least)
    offsets = nodes.step * index
    if above:
        base = least
        losses = base + offsets
        gain, mass = tails(losses)
        values = np.maximum(gain - np.expm1(losses) * mass, 0.0) + PAD * (gain + np.abs(np.expm1(losses)) * mass)
    else:
        # Outcomes below the first cut become one outcome; its loss is the base, and the tangent there meets 1 - α.
        halves = _halves(offsets)
        cut, out, seen = _first_cut(tails, least + halves)
        base = log1p(-out * (1.0 - 2.0 * PAD / (1.0 - seen)) / (1.0 - seen)) if seen < 1.0 else 0.0
        losses = base + offsets
        cuts = np.append(cut, np.maximum(base + halves[1:], cut))
        values = _under(tails, losses, cuts)
        if values[0] == 0.0:
            base = 0.0  # the grid is too coarse to see anything
    values[0] = -expm1(base)
    first, infinite = _corners(values, base, nodes.step, index)
    nothing = np.zeros(0, dtype=np.int64)
    return GridStep(count, base, index[1:], first, nothing, np.zeros(0), infinite, 0.0)


def _first_cut(tails: Tails, cuts: Real) -> tuple[float, float, float]:
    """(cut, tails there): the first one that has outcomes below it, as far as rounding can tell."""
    for some in (cuts[:1], cuts):
        gain, mass = tails(some)
        visible = np.flatnonzero(1.0 - mass > VISIBLE)
        if visible.size:
            return float(some[visible[0]]), float(gain[visible[0]]), float(mass[visible[0]])
    return float(cuts[0]), 0.0, 1.0


def _halves(nodes: Real) -> Real:
    """The middle of each cell; the last node starts one that is as wide as the cell before it."""
    widths = np.diff(nodes)
    return nodes + 0.5 * np.append(widths, widths[-1])


def _polygon(tails: Tails, nodes: Real, above: bool, advantage: float) -> Real:
    """Values at the nodes (losses from 0 on) of a polygon above or below the curve of one direction.

    What is left beyond the last node becomes mass at +∞ (above) or is given up (below).
    """
    if above:
        gain, mass = tails(nodes)
        lost = np.expm1(nodes) * mass
        values = np.maximum(gain - lost, 0.0) + PAD * (gain + lost)
        values[0] = advantage * (1.0 + PAD)
        return values
    values = _under(tails, nodes, _halves(nodes))
    values[0] = min(values[0], advantage * (1.0 - PAD))
    return values


def _under(tails: Tails, nodes: Real, cuts: Real) -> Real:
    """Values at the nodes under the tangents of both cells that meet there; the tangent of each cell is that at its cut.

    A cell whose tangent ends below 0 gets nothing, nor does what follows.
    """
    gain, mass = tails(cuts)

    def tangent(at: Real) -> Real:
        lost = np.expm1(at) * mass
        return gain - lost - PAD * (gain + np.abs(lost))

    starts, ends = tangent(nodes), tangent(np.append(nodes[1:], 2.0 * nodes[-1] - nodes[-2]))
    values = starts.copy()
    values[1:] = np.minimum(starts[1:], ends[:-1])
    over = np.flatnonzero(np.minimum(ends, values) <= 0.0)
    values[(over[0] if over.size else len(values) - 1) :] = 0.0
    return values


def _corners(values: Real, base: float, step: float, index: Whole) -> tuple[Real, float]:
    """Q's mass at the losses base + index·Δ, but the first, of the lower convex hull of a polygon, and P's mass at +∞."""
    zeros = np.flatnonzero(values == 0.0)
    end = int(zeros[0]) if zeros.size else len(values) - 1
    corner = np.arange(len(values))
    if end > 0:  # the last edge that goes down, at once: the flattest one that ends there
        widths = step * (index[end] - index[:end])  # differences of integers are exact
        steepness = (values[:end] - values[end]) / (np.exp(base + step * index[:end]) * np.expm1(widths))
        last = int(np.argmin(steepness))
        corner = np.concatenate([corner[: last + 1], [end], corner[-1:] if end < len(values) - 1 else []]).astype(np.int64)
    while len(corner) > 2:  # a point above the chord of its neighbours is no corner
        slope = _steepness(values[corner], base, step, index[corner])
        above = np.flatnonzero(slope[:-1] <= slope[1:])
        if not above.size:
            break
        corner = np.delete(corner, above + 1)
    slope = _steepness(values[corner], base, step, index[corner])
    mass = np.zeros(len(values))
    mass[corner[1:]] = slope - np.append(slope[1:], 0.0)
    return mass[1:], float(values[-1])


def _steepness(values: Real, base: float, step: float, index: Whole) -> Real:
    """Minus the slope in α of the edge that starts at each corner but the last."""
    return -np.diff(values) / (np.exp(base + step * index[:-1]) * np.expm1(step * np.diff(index)))


def compose(
    steps: Sequence[GridStep], step: float, slack: float, rounding: float, most: int = LARGEST, blends: Blends | None = None
) -> DiscreteCurve | None:
    """The curve of all steps together; None if the grid would have more than `most` points.

    slack: probability that may be wrapped around at each end (Chernoff). rounding: how much rounding is tolerated before
    the transform is computed again with more care. Both count in the error of the curve. blends: how often which of the steps
    are composed, if it is not each as often as it says.
    """
    sides = []
    blends = Blends.none(steps) if blends is None else blends
    uses = blends.uses(len(steps))
    excess = overfull(steps, step)
    if excess.max() > 1e-9:
        return None  # the two directions do not fit together at α = 1: too coarse
    symmetric = all(one.ahead is one.behind for one in steps)
    for reverse in (False,) if symmetric else (False, True):
        side = _compose_one([one.law(step, reverse) for one in steps], blends, step, slack, rounding, most)
        if side is None:
            return None
        sides.append(side)
    error = max(sides[0][1], sides[-1][1]) + 4.0 * float(uses @ np.maximum(excess, 0.0))
    return DiscreteCurve(sides[0][0], sides[-1][0], error)


def overfull(steps: Sequence[GridStep], step: float) -> Real:
    """By how much the masses beside the base add up to more than 1, in either direction of each step."""
    return np.array([max(-float(one.law(step, reverse)[2].min()) for reverse in (False, True)) - 1.0 for one in steps])


Law = tuple[float, Whole, Real, float]


def blended_power(transforms: Iterable[tuple[Complex, Real]], blends: Blends) -> tuple[Complex, Real]:
    """(power, doubt): Σ count·log φ of the blends, and its error, from φ - 1 of each law and its error, in their order."""
    last = np.maximum(blends.first, blends.second)
    rows: dict[int, list[int]] = {}
    for row in range(len(last)):
        rows.setdefault(int(last[row]), []).append(row)
    power, doubt, before = np.zeros(0, dtype=np.complex128), np.zeros(0), (np.zeros(0, dtype=np.complex128), np.zeros(0))
    for i, now in enumerate(transforms):
        if i == 0:
            power, doubt = np.zeros(len(now[0]), dtype=np.complex128), np.zeros(len(now[0]))
        for row in rows.get(i, ()):
            (change, error), (other, other_error) = (now if at == i else before for at in (blends.first[row], blends.second[row]))
            if blends.weight[row] > 0.0:
                change, error = change + blends.weight[row] * (other - change), np.maximum(error, other_error)
            power += blends.count[row] * complex_log1p(change)
            doubt += blends.count[row] * error / np.maximum(np.abs(1.0 + change), EPS)
        before = now
    return power, doubt


def error_norm(composed: Complex, doubt: Real) -> float:
    """Norm of the error of e^power over all frequencies, given half of them and the error of the power; no error exceeds 2."""
    return sqrt(2.0 * float(np.sum(np.minimum(np.abs(composed) * np.expm1(np.minimum(doubt, 50.0)), 2.0) ** 2)))


def _compose_one(
    laws: Sequence[Law], blends: Blends, step: float, slack: float, rounding: float, most: int
) -> tuple[Side, float] | None:
    from scipy.fft import irfft, next_fast_len, rfft

    low, high = loss_window(laws, blends, step, slack)
    start = floor(low / step) - 1  # rounding must not push the lowest loss out of the window, to wrap around to the top
    size = ceil(high / step) - start + 2
    if size > most or size * len(blends.count) > MOST_BLENDED:
        return None
    length = next_fast_len(size, real=True)

    def transforms() -> Iterator[tuple[Complex, Real]]:
        for count, (_, index, mass, infinite) in zip(blends.uses(len(laws)), laws, strict=True):
            change = rfft(np.bincount(index % length, weights=mass, minlength=length))
            error = np.full(len(change), FFT_ERROR * log2(length) * float(np.abs(mass).sum()))
            # Many steps magnify the error of the transform: sum anew, term by term, where it would show.
            shows = count * error * np.exp(count * np.log(np.minimum(np.abs(1.0 + change) + error, 1.0)))
            if sqrt(float(np.sum(shows**2))) > rounding:
                for k in np.argsort(-shows)[: DIRECT // index.size]:
                    if shows[k] < 1e-3 * rounding:
                        break
                    change[k], error[k] = _direct(index, mass, infinite, 2.0 * pi * k / length)
            yield change, error

    power, doubt = blended_power(transforms(), blends)
    base = float(blends.count @ blends.mean([shift for shift, *_ in laws]))
    stays = float(blends.count @ np.log1p(-blends.mean([infinite for *_, infinite in laws])))
    composed = np.exp(power)
    # ‖error‖₁ ≤ √n·‖error‖₂ = norm of the error of the transform; the last term is the inverse transform's own.
    total = error_norm(composed, doubt)
    total += FFT_ERROR * log2(length) * sqrt(2.0 * float(np.sum(np.abs(composed) ** 2))) + 3.0 * slack
    composed = np.roll(irfft(composed, length), -start)  # composed[k]: mass at the loss base + (start + k)Δ
    losses = base + step * (start + np.arange(length))
    return Side.of(losses, np.maximum(composed, 0.0), -expm1(stays)), total


def _direct(index: Whole, mass: Real, infinite: float, angle: float) -> tuple[complex, float]:
    """One coefficient of the transform and its error: Σ mass·(e^{-i·angle·index} - 1) - infinite, without cancellation."""
    half = np.sin(0.5 * angle * index)
    real, imaginary = mass @ (half * half), mass @ np.sin(angle * index)
    error = FFT_ERROR * log2(len(index) + 2) * float(np.abs(mass) @ np.abs(half))
    return complex(-2.0 * float(real) - infinite, -float(imaginary)), error


def loss_window(laws: Sequence[Law], blends: Blends, step: float, slack: float) -> tuple[float, float]:
    """Losses (from the base) outside of which the composed law has at most `slack` mass on either side, by Chernoff."""
    parts = [(index[mass > 0.0], mass[mass > 0.0]) for _, index, mass, _ in laws]
    variance = float(blends.count @ blends.mean([mass @ (index * step) ** 2 for index, mass in parts]))
    if variance == 0.0:
        return 0.0, 0.0
    ends = []
    for sign in (-1.0, 1.0):
        farthest = step * np.array([float((sign * index).max(initial=0.0)) for index, _ in parts])
        end = float(blends.count @ np.maximum(farthest[blends.first], farthest[blends.second]))
        # Tilts on the scale of the deviation, and on that of the largest loss, which few hits may add up to.
        tilts = np.geomspace(0.1, 60.0, 40) / sqrt(variance)
        if farthest.max() > 0.0:
            tilts = np.sort(np.concatenate([tilts, np.geomspace(0.1, 600.0, 40) / farthest.max()]))
            tilts = tilts[tilts * farthest.max() <= 600.0]
        means = [np.expm1(np.outer(sign * step * tilts, index)) @ mass for index, mass in parts]
        growth = blends.count @ np.log1p(np.maximum(blends.mean(means), VISIBLE - 1.0))
        ends.append(min(end, float(np.min((growth - log(slack)) / tilts))))
    return -ends[0], max(ends[1], -ends[0])
