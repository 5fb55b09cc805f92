"""Steps on a grid of losses, from above and from below, and their composition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, floor, log, log1p, log2, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.curves import DiscreteCurve, Side
from betastar.steps.base import EPS, Step, Tails, complex_log1p

# One step on a grid of losses, from above and from below, and the composition of such steps (theory, section 4).
#
# The hockey-stick curve h(α) of a step is convex. From above, the polygon through its values at the nodes α_i = e^{c+iΔ}
# dominates it ("connect the dots"). From below, a polygon whose piece over each cell lies under a tangent of h is dominated
# by it. A polygon with corners at the nodes is the curve of a pair whose losses are c + iΔ, and such pairs compose with a
# Fourier transform. Rounding, of h and of the masses, is a relative error of h and turned outwards by a pad; taking the lower
# convex hull keeps both properties.
#
# Two kinds of grid. Two-sided, c = 0: one polygon for α ≥ 1 in each direction, meeting at α = 1. One-sided: every loss lies
# above c, as for a record that is added and hardly ever sampled, when each step says "probably not there" by log(1-p).

#: Relative rounding error allowed in a computed probability and in the masses made from it.
PAD = 256.0 * EPS
#: A probability that is not lost among rounding errors.
VISIBLE = 1e-12
#: Add/remove: where all losses below 0 lie within this many cells, two sides would be too coarse to fit together.
FEW_CELLS = 8.0
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

    def up_to(self, reach: float) -> NDArray[Any]:
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
    ahead_index: NDArray[Any]
    ahead: NDArray[Any]
    behind_index: NDArray[Any]
    behind: NDArray[Any]
    ahead_infinite: float
    behind_infinite: float

    def law(self, step: float, reverse: bool) -> tuple[float, NDArray[Any], NDArray[Any], float]:
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

    count: NDArray[Any]
    first: NDArray[Any]
    second: NDArray[Any]
    weight: NDArray[Any]

    @classmethod
    def none(cls, steps: Sequence[GridStep]) -> Blends:
        """Each step as it is, without coins."""
        each = np.arange(len(steps))
        return cls(np.array([step.count for step in steps], dtype=np.float64), each, each, np.zeros(len(steps)))

    def uses(self, number: int) -> NDArray[Any]:
        """How many steps are this law or a blend with it, for each of a number of laws."""
        blended = np.where(self.weight > 0.0, self.count, 0.0)
        return np.bincount(self.first, self.count, number) + np.bincount(self.second, blended, number)

    def mean(self, values: Any) -> NDArray[Any]:
        """The mean of two values of laws (along the first axis), for each pair."""
        values = np.asarray(values)
        weight = self.weight.reshape((-1,) + (1,) * (values.ndim - 1))
        return values[self.first] + weight * (values[self.second] - values[self.first])


def on_grid(step: Step, nodes: Nodes, symmetric: bool, above: bool, slack: float) -> GridStep:
    """The curve of a step on the grid, from above or from below."""
    advantage, ahead, most, behind, farthest, least = step.directions(symmetric, above, slack)
    if behind is None:
        return two_sided(step.count, nodes, above, advantage, (ahead, most), None)
    if least > -FEW_CELLS * nodes.step:
        return one_sided(step.count, nodes, above, least, (ahead, most))
    return two_sided(step.count, nodes, above, advantage, (ahead, most), (behind, farthest))


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


def _first_cut(tails: Tails, cuts: NDArray[Any]) -> tuple[float, float, float]:
    """(cut, tails there): the first one that has outcomes below it, as far as rounding can tell."""
    for some in (cuts[:1], cuts):
        gain, mass = tails(some)
        visible = np.flatnonzero(1.0 - mass > VISIBLE)
        if visible.size:
            return float(some[visible[0]]), float(gain[visible[0]]), float(mass[visible[0]])
    return float(cuts[0]), 0.0, 1.0


def _halves(nodes: NDArray[Any]) -> NDArray[Any]:
    """The middle of each cell; the last node starts one that is as wide as the cell before it."""
    widths = np.diff(nodes)
    return nodes + 0.5 * np.append(widths, widths[-1])


def _polygon(tails: Tails, nodes: NDArray[Any], above: bool, advantage: float) -> NDArray[Any]:
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


def _under(tails: Tails, nodes: NDArray[Any], cuts: NDArray[Any]) -> NDArray[Any]:
    """Values at the nodes under the tangents of both cells that meet there; the tangent of each cell is that at its cut.

    A cell whose tangent ends below 0 gets nothing, nor does what follows.
    """
    gain, mass = tails(cuts)

    def tangent(at: NDArray[Any]) -> NDArray[Any]:
        lost = np.expm1(at) * mass
        return gain - lost - PAD * (gain + np.abs(lost))

    starts, ends = tangent(nodes), tangent(np.append(nodes[1:], 2.0 * nodes[-1] - nodes[-2]))
    values = starts.copy()
    values[1:] = np.minimum(starts[1:], ends[:-1])
    over = np.flatnonzero(np.minimum(ends, values) <= 0.0)
    values[(over[0] if over.size else len(values) - 1) :] = 0.0
    return values


def _corners(values: NDArray[Any], base: float, step: float, index: NDArray[Any]) -> tuple[NDArray[Any], float]:
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


def _steepness(values: NDArray[Any], base: float, step: float, index: NDArray[Any]) -> NDArray[Any]:
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


def overfull(steps: Sequence[GridStep], step: float) -> NDArray[Any]:
    """By how much the masses beside the base add up to more than 1, in either direction of each step."""
    return np.array([max(-float(one.law(step, reverse)[2].min()) for reverse in (False, True)) - 1.0 for one in steps])


Law = tuple[float, NDArray[Any], NDArray[Any], float]


def blended_power(transforms: Iterable[tuple[NDArray[Any], NDArray[Any]]], blends: Blends) -> tuple[NDArray[Any], NDArray[Any]]:
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


def error_norm(composed: NDArray[Any], doubt: NDArray[Any]) -> float:
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

    def transforms() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
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


def _direct(index: NDArray[Any], mass: NDArray[Any], infinite: float, angle: float) -> tuple[complex, float]:
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


# Composition of very many steps at a price that hardly depends on their number (theory, section 4).
#
# The loss of one step lies on a lattice much finer than the loss of the whole run needs, with few nodes (`Nodes`). The
# Fourier transform of the composed law vanishes beyond a frequency that the variance of a step within short intervals bounds
# (`_Spectrum`). Below it the transform is summed node by node, which keeps the digits that many steps would magnify, and the law
# is found on a coarse grid, from above or from below:
#
# - above: each loss is split between the two ends of its cell, such that both worlds keep their probability. The curve stays
#   what it is at the ends, and is replaced by its chords between them;
# - below: the losses of a cell are merged to one outcome, which is what an attacker sees who rounds. The curve stays what it
#   is at the ends of the cells.

#: Least number of cells of the coarse grid, and the widest that they may be.
CELLS, WIDEST = 1 << 14, 0.25
#: Most cells of the coarse grid, points of the lattice in the window, and products (nodes times frequencies) of all steps.
MOST_CELLS, MOST_POINTS, MOST_PRODUCTS = 1 << 22, 1 << 41, 3_000_000_000
#: A blend of two laws costs as much as this many nodes.
BLENDING = 20
#: Ratio of neighbouring frequencies at which the decay is bounded.
RATIO = 1.04
#: Windows on either side of 0 in which the variance is looked at.
WINDOWS = 6
#: Nodes whose terms are summed at a time.
TOGETHER = 128


def compose_at_few_frequencies(
    steps: Sequence[GridStep], step: float, slack: float, above: bool, most: int = MOST_CELLS, blends: Blends | None = None
) -> DiscreteCurve | None:
    """The curve of all steps together, from above or from below; None if that takes more than `most` cells.

    slack: probability that may be wrapped around at each end, and that may be lost with the high frequencies. blends: how
    often which of the steps are composed, if it is not each as often as it says.
    """
    if overfull(steps, step).max() > 0.0:
        return None
    blends = Blends.none(steps) if blends is None else blends
    symmetric = all(one.ahead is one.behind for one in steps)
    sides = []
    for reverse in (False,) if symmetric else (False, True):
        side = _compose_one_at_few_frequencies([one.law(step, reverse) for one in steps], blends, step, slack, above, most)
        if side is None:
            return None
        sides.append(side)
    return DiscreteCurve(sides[0][0], sides[-1][0], max(sides[0][1], sides[-1][1]))


def _compose_one_at_few_frequencies(
    laws: Sequence[Law], blends: Blends, step: float, slack: float, above: bool, most: int
) -> tuple[Side, float] | None:
    from scipy.fft import irfft, next_fast_len

    low, high = loss_window(laws, blends, step, slack)
    base = float(blends.count @ blends.mean([shift for shift, *_ in laws]))
    spectrum = _Spectrum.of(laws, blends, step)
    highest = spectrum.highest(1.1 * (high - low) + 16.0 * step, slack)
    cells = max(CELLS, ceil((high - low) / WIDEST), ceil((high - low) * highest / pi) + 4)
    if cells > most:
        return None
    ratio = max(1, floor((high - low) / (cells * step)))  # points of the lattice in a cell
    width = ratio * step
    # Cell j holds the losses from j·width on: the points first + j·ratio + (0 ... ratio - 1) of the lattice, up from `part`.
    first = ceil(-base / step)
    part = min(max(base + step * first, 0.0), step)
    bottom = floor((base + low) / width) - 1
    length = next_fast_len(ceil((base + high) / width) - bottom + 3, real=True)
    last = min((length - 1) // 2, ceil(highest * length * width / (2.0 * pi)))
    products = last * (sum(len(index) for _, index, *_ in laws) + BLENDING * len(blends.count))
    if length * ratio > MOST_POINTS or products > MOST_PRODUCTS:
        return None
    angle = 2.0 * pi / (length * ratio)
    power, doubt = blended_power((_change(index, mass, infinite, angle, last) for _, index, mass, infinite in laws), blends)
    stays = float(blends.count @ np.log1p(-blends.mean([infinite for *_, infinite in laws])))
    composed = np.exp(power)
    # ‖error‖₁ ≤ √n·‖error‖₂ = norm of the error of the transform; then the inverse transform's own, and what is left out.
    norm = sqrt(2.0 * float(np.sum(np.abs(composed) ** 2)))
    total = error_norm(composed, doubt)
    total += (FFT_ERROR * log2(length) + 32.0 * EPS) * norm + 3.0 * slack + 8.0 * EPS * (abs(base) + high)
    total += spectrum.left(length * width, angle * last / step)
    k = np.arange(last + 1)
    composed *= np.exp(1j * angle * (k * ((first + bottom * ratio) % (length * ratio)) % (length * ratio)))
    kept, sums = np.zeros(length // 2 + 1, dtype=np.complex128), []
    for kernel in _kernels(angle * k, ratio, step, part):
        kept[: last + 1] = composed * kernel
        every = irfft(kept, length)
        sums.append(every[-bottom - 1 :] if bottom < 0 else np.append(0.0, every))  # from the cell below loss 0 on
    mass, starts = np.maximum(sums[0], 0.0), width * (max(bottom, 0) + np.arange(-1, len(sums[0]) - 1))
    right = np.clip(sums[1], 0.0, mass)
    if above:
        losses, mass = starts, mass - right + np.append(0.0, right[:-1])
    else:
        share = np.divide(right, mass, out=np.full_like(mass, 0.5), where=mass > 0.0)
        losses = starts - np.log1p(share * expm1(-width))
    # A wrong mass counts in both worlds: in the second one times α·e^{-loss} ≤ e^width.
    return Side.of(losses[1:], mass[1:], -expm1(stays)), 2.0 * (1.0 + exp(width)) * total


def _change(
    index: NDArray[Any], mass: NDArray[Any], infinite: float, angle: float, last: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Σ mass·(e^{-i·angle·k·index} - 1) - infinite for k = 0 ... last, and a bound of its rounding error.

    With k = jB + r and x = e^{-i·angle·jB·index}, y = e^{-i·angle·r·index}: xy - 1 = (x - 1)y + (y - 1), a product of matrices.
    Each term is as small as its angle, hence nothing cancels.
    """
    keep = (index != 0) & (mass != 0.0)
    index, mass = index[keep], mass[keep]
    block = ceil(sqrt(last + 1))
    blocks = ceil((last + 1) / block)
    change = np.zeros((blocks, block), dtype=np.complex128)
    for at in range(0, len(index), TOGETHER):
        some, weight = index[at : at + TOGETHER].astype(np.float64), mass[at : at + TOGETHER]
        fine = _turned(angle * np.outer(np.arange(block), some))
        coarse = _turned(angle * np.outer(block * np.arange(blocks), some)) * weight
        change += coarse @ (1.0 + fine.T) + fine @ weight
    k = np.arange(last + 1)
    rounding = EPS * (4 * TOGETHER + 4 * (len(index) // TOGETHER) + 64)
    return change.ravel()[: last + 1] - infinite, rounding * (k * angle * float(np.abs(mass) @ np.abs(index)) + infinite)


def _turned(angles: NDArray[Any]) -> NDArray[Any]:
    """e^{-i·angle} - 1."""
    turned = np.empty(angles.shape, dtype=np.complex128)
    turned.real = -2.0 * np.sin(0.5 * angles) ** 2
    turned.imag = -np.sin(angles)
    return turned


def _kernels(angles: NDArray[Any], ratio: int, step: float, part: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Transforms of a cell, divided by its number of points: of all of it, and of the part that goes to the right end.

    A point x above the left end goes to the right one with the share (1 - e^{-x})/(1 - e^{-width}) of the first world's
    probability: both worlds keep theirs.
    """

    def geometric(fall: float) -> NDArray[Any]:
        """Mean of e^{(i·angle - fall)s} over s = 0 ... ratio - 1."""
        if fall == 0.0:
            single, double = _turned(-angles), _turned(-angles * ratio)
            single[angles == 0.0], double[angles == 0.0] = 1.0 / ratio, 1.0
        else:
            single, double = (
                expm1(-fall * n) * np.cos(angles * n) + _turned(-angles * n).real + 1j * exp(-fall * n) * np.sin(angles * n)
                for n in (1, ratio)
            )
        return double / (single * ratio)

    all_of_it = geometric(0.0)
    return all_of_it, (all_of_it - exp(-part) * geometric(step)) / -expm1(-ratio * step)


@dataclass(frozen=True)
class _Spectrum:
    """Bounds of the transform of a composed law on intervals of frequencies, up to the highest one of the lattice."""

    ends: NDArray[Any]
    bounds: NDArray[Any]

    @classmethod
    def of(cls, laws: Sequence[Law], blends: Blends, step: float) -> _Spectrum:
        """|φ(u)|² = F² - E(1 - cos u(L - L')) ≤ 1 - (2u²/π²)·E[(L - L')²; both in one A], for intervals A not longer than π/u.

        L and L' are independent losses of a step, F ≤ 1 is the probability that one is finite, and 1 - cos x ≥ 2x²/π² for
        |x| ≤ π. Each interval contributes 2·(m₀m₂ - m₁²) to the mean, with the moments m of L within it. High frequencies
        cancel where the masses hardly change from node to node (`_evened_out`).
        """
        variances = blends.mean([np.abs(mass) @ (index * step) ** 2 for _, index, mass, _ in laws])
        scale = max(sqrt(float(blends.count @ variances)), step)
        ends = np.geomspace(1e-2 / scale, pi / step, ceil(log(1e2 * pi * scale / step) / log(RATIO)) + 2)
        points = np.maximum(np.floor(pi / (ends[1:] * step) * (1.0 + 4.0 * EPS)), 1.0).astype(np.int64)  # A: one more
        less = []  # by how much |φ| < 1
        for _, index, mass, _ in laws:
            within = _variances(index, np.where(index == 0, 1.0 + mass, mass), points)
            square = np.minimum((2.0 * step * ends[:-1] / pi) ** 2 * within, 1.0 - 1e-12)
            less.append(np.maximum(-np.expm1(0.5 * np.log1p(-square)), _evened_out(index, mass, step * ends)))
        shares = np.minimum(blends.mean(less) * (1.0 - 1e-6), 1.0 - 1e-12)
        return cls(ends, np.exp(blends.count @ np.log1p(-shares)))

    def left(self, window: float, above: float) -> float:
        """Sum of the bounds over all frequencies 2πk/window above one, k of both signs."""
        first = max(0, int(np.searchsorted(self.ends, above, side="right")) - 1)
        return float(self._sums(window)[min(first, len(self.bounds))])

    def highest(self, window: float, slack: float) -> float:
        """The frequency above which that sum is at most `slack`."""
        return float(self.ends[int(np.argmax(self._sums(window) <= slack))])

    def _sums(self, window: float) -> NDArray[Any]:
        each = 2.0 * self.bounds * (np.diff(self.ends) * window / (2.0 * pi) + 1.0)
        return np.append(np.cumsum(each[::-1])[::-1], 0.0)


def _variances(index: NDArray[Any], mass: NDArray[Any], points: NDArray[Any]) -> NDArray[Any]:
    """m₀m₂ - m₁² of the masses within windows of points + 1 places, added up over neighbouring windows around 0.

    Windows that start at 0, end there, or have it in the middle: whatever is largest.
    """
    middle = int(np.searchsorted(index, 1))
    ahead, behind = index[middle:], index[:middle][::-1]  # the sums start at 0, where the masses count that may be lost in others
    sums_ahead = [np.append(0.0, np.cumsum(mass[middle:] * ahead.astype(np.float64) ** i)) for i in range(3)]
    sums_behind = [np.append(0.0, np.cumsum(mass[:middle][::-1] * behind.astype(np.float64) ** i)) for i in range(3)]

    def up_to(place: NDArray[Any]) -> list[NDArray[Any]]:
        """Moments of the places from 1 to this one; minus those of the places above this one, up to 0."""
        i, j = np.searchsorted(ahead, place, side="right"), np.searchsorted(-behind, -place, side="left")
        return [np.where(place > 0, f[i], -b[j]) for f, b in zip(sums_ahead, sums_behind, strict=True)]

    best = np.zeros(len(points))
    for shift in (0 * points, -points, -(points // 2)):
        total = np.zeros(len(points))
        for window in range(-WINDOWS, WINDOWS):
            start = window * (points + 1) + shift
            m0, m1, m2 = (end - before for end, before in zip(up_to(start + points), up_to(start - 1), strict=True))
            m1, m2 = m1 - start * m0, m2 - 2.0 * start * m1 + start.astype(np.float64) ** 2 * m0
            total += np.maximum(m0 * m2 - m1**2, 0.0)
        best = np.maximum(best, total)
    return best


def _evened_out(index: NDArray[Any], mass: NDArray[Any], angles: NDArray[Any]) -> NDArray[Any]:
    """By how much |φ| < 1 at least, between neighbouring angles (frequency times step).

    Nodes with masses m_i at equal distances g contribute at most V/(2 sin(½·angle·g)) to |φ| instead of Σm_i, while angle·g ≤ π:
    summation by parts, with V = m_first + Σ|m_{i+1} - m_i| + m_last.
    """
    less = np.zeros(len(angles) - 1)
    for side in (index > 0, index < 0):
        places, weights = np.abs(index[side]), mass[side]
        order = np.argsort(places)
        places, weights = places[order], weights[order]
        gaps = np.diff(places)
        starts = np.append(0, np.flatnonzero(np.diff(gaps)) + 1)
        for start, end in zip(starts, np.append(starts[1:], len(gaps)), strict=True):  # nodes start ... end - 1, or the last one
            block = weights[start : end + (end == len(gaps))]
            if len(block) > 2:
                half = 0.5 * gaps[start] * angles
                variation = float(block[0] + np.abs(np.diff(block)).sum() + block[-1])
                spared = block.sum() - variation / (2.0 * np.sin(np.minimum(half[:-1], 0.5 * pi)))
                less += np.where(half[1:] <= 0.5 * pi * (1.0 + 4.0 * EPS), np.maximum(spared, 0.0), 0.0)
    return less
