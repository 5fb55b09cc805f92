"""Composition of very many steps at a price that hardly depends on their number (theory, section 4).

The loss of one step lies on a lattice much finer than the loss of the whole run needs, with few nodes (`grid.Nodes`). The
Fourier transform of the composed law vanishes beyond a frequency that the variance of a step within short intervals bounds
(`_Spectrum`). Below it the transform is summed node by node, which keeps the digits that many steps would magnify, and the law
is found on a coarse grid, from above or from below:

- above: each loss is split between the two ends of its cell, such that both worlds keep their probability. The curve stays
  what it is at the ends, and is replaced by its chords between them;
- below: the losses of a cell are merged to one outcome, which is what an attacker sees who rounds. The curve stays what it
  is at the ends of the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, floor, log, log2, pi, sqrt

import numpy as np

from betastar.arrays import Complex, Real, Whole
from betastar.bounds.discrete import DiscreteCurve, Side
from betastar.bounds.grid import EPS, FFT_ERROR, Blends, GridStep, Law, blended_power, error_norm, loss_window, overfull

#: Least number of cells of the coarse grid, and the widest that they may be.
CELLS, WIDEST = 1 << 14, 0.25
#: Most cells of the coarse grid, points of the lattice in the window, and products (nodes times frequencies) of all steps.
MOST_CELLS, MOST_POINTS, MOST_PRODUCTS = 1 << 22, 1 << 41, 3_000_000_000
#: A blend of two laws costs as much as so many nodes.
BLENDING = 20
#: Ratio of neighbouring frequencies at which the decay is bounded.
RATIO = 1.04
#: Windows on either side of 0 in which the variance is looked at.
WINDOWS = 6
#: Nodes whose terms are summed at a time.
TOGETHER = 128


def compose(
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
        side = _compose_one([one.law(step, reverse) for one in steps], blends, step, slack, above, most)
        if side is None:
            return None
        sides.append(side)
    return DiscreteCurve(sides[0][0], sides[-1][0], max(sides[0][1], sides[-1][1]))


def _compose_one(
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


def _change(index: Whole, mass: Real, infinite: float, angle: float, last: int) -> tuple[Complex, Real]:
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


def _turned(angles: Real) -> Complex:
    """e^{-i·angle} - 1."""
    turned = np.empty(angles.shape, dtype=np.complex128)
    turned.real = -2.0 * np.sin(0.5 * angles) ** 2
    turned.imag = -np.sin(angles)
    return turned


def _kernels(angles: Real, ratio: int, step: float, part: float) -> tuple[Complex, Complex]:
    """Transforms of a cell, divided by its number of points: of all of it, and of the part that goes to the right end.

    A point x above the left end goes to the right one with the share (1 - e^{-x})/(1 - e^{-width}) of the first world's
    probability: both worlds keep theirs.
    """

    def geometric(fall: float) -> Complex:
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

    ends: Real
    bounds: Real

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

    def _sums(self, window: float) -> Real:
        each = 2.0 * self.bounds * (np.diff(self.ends) * window / (2.0 * pi) + 1.0)
        return np.append(np.cumsum(each[::-1])[::-1], 0.0)


def _variances(index: Whole, mass: Real, points: Whole) -> Real:
    """m₀m₂ - m₁² of the masses within windows of points + 1 places, added up over neighbouring windows around 0.

    Windows that start at 0, end there, or have it in the middle: whatever is largest.
    """
    middle = int(np.searchsorted(index, 1))
    ahead, behind = index[middle:], index[:middle][::-1]  # the sums start at 0, where the masses count that may be lost in others
    sums_ahead = [np.append(0.0, np.cumsum(mass[middle:] * ahead.astype(np.float64) ** i)) for i in range(3)]
    sums_behind = [np.append(0.0, np.cumsum(mass[:middle][::-1] * behind.astype(np.float64) ** i)) for i in range(3)]

    def up_to(place: Whole) -> list[Real]:
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


def _evened_out(index: Whole, mass: Real, angles: Real) -> Real:
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
