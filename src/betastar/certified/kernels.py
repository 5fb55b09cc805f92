"""One step of the adaptive programme on a grid: what a pair of gradients does to a function of the likelihood ratio.

A pair with ‖a‖ = 1, ‖a - b‖ = R and angle θ between a and a - b (theory, section 11). Seen along a - b (coordinate t) and across
it (coordinate s), in standard deviations, the means are a = (s0, ta) and b = (s0, tb): the coordinate s has the same law in both
worlds, and tells only how likely it is that the record was sampled. With Z = dN(s0)/dN(0) at s the two densities relative to
pure noise are 1 - p + pZX and 1 - p + pZY, affine in Z. So a function that is concave in these two can be bounded on both sides
with finitely many outcomes:

- from below, by `spread`: the law of Z, and then the likelihood ratio of each interval of t, moved apart to the ends of cells;
- from above, by `merged`: every rectangle of (s, t) becomes one outcome.

`between` covers the angles between two nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, cos, inf, log, log2, sin, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from betastar.certified.grid import FFT_ERROR
from betastar.curves import FARTHEST
from betastar.steps.poisson import GradientPair, log_mixture

#: Outcomes farther than this many standard deviations from every mean are given to the attacker (or taken from them).
REACH = 9.0
#: The outer part of that, where cells are wider.
FAR = 3.5
#: Less noise than this makes losses so large that other bounds are better.
LEAST_NOISE = 0.15
#: Largest exponent of a likelihood ratio that is kept apart from an infinite one.
LARGEST_EXPONENT = 600.0
#: Tilts of Chernoff's bound, times the grid; lengths of laws of many losses differ by this factor.
TILTS, LONGER = np.geomspace(1e-6, 1e2, 28), 1.5


@dataclass(frozen=True)
class Kernel:
    """A step, in terms of f(x) = e^{-x/2}·(min(1, r) - v(r)), r = e^x, x = jΔ: f becomes source·e^{-|x|/2} + f + jump * f.

    jump: mass √(PQ) at the losses -JΔ…JΔ, minus 1 at loss 0, which leaves at least 0. source: hockey-stick divergences at the
    nodes -J…J; rest: beyond. terms: numbers ≥ 0 that any of them is a sum of, at most.
    """

    jump: NDArray[Any]
    source: NDArray[Any]
    rest: tuple[float, float]
    terms: int

    @property
    def reach(self) -> int:
        return len(self.jump) // 2

    def source_on(self, half: int) -> NDArray[Any]:
        """source·e^{|x|/2} at the nodes -half…half."""
        source = np.where(np.arange(-half, half + 1) < 0, self.rest[0], self.rest[1])
        inside = min(half, self.reach)
        source[half - inside : half + inside + 1] = self.source[self.reach - inside : self.reach + inside + 1]
        return source


def spread(rate: float, pair: GradientPair, cells: tuple[float, float]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(loss, Q's mass) of outcomes that tell at least as much as the pair. cells: widths in s and t."""
    s0, ta, tb = pair
    z, weight = _spread_rates(s0, cells[0])
    t = edges(min(tb, 0.0) - REACH, ta + REACH, cells[1])
    unsampled, first, second = (weights(t, mean) for mean in (0.0, ta, tb))
    with np.errstate(divide="ignore"):
        start = np.log(z)[:, None]
    upper, lower = start + ta * t - 0.5 * ta * ta, start + tb * t - 0.5 * tb * tb
    above, below = log_mixture(upper, rate), log_mixture(lower, rate)
    share, other = rate * np.exp(upper - above), rate * np.exp(lower - below)  # posterior probability of having been sampled
    gap = (ta - tb) * t - 0.5 * (ta - tb) * (ta + tb)
    ratio = other * np.expm1(np.minimum(gap, LARGEST_EXPONENT))
    near = (ratio > -0.5) & (gap < 30.0)
    loss = np.where(near, np.log1p(np.where(near, ratio, 0.0)), above - below)
    low, high = _range(loss, t, gap, (other, (1.0 - rate) * np.exp(-below)), share, ta, tb)
    sampled = rate * (z * weight)[:, None]
    gain, mass = sampled * (first - second), (1.0 - rate) * weight[:, None] * unsampled + sampled * second
    small, large = np.expm1(low), np.expm1(np.minimum(high, FARTHEST))
    part = np.where(large > small, (gain - mass * small) / np.where(large > small, large - small, 1.0), 0.0)
    part = np.clip(part, 0.0, mass)
    return np.concatenate([low.ravel(), high.ravel()]), np.concatenate([(mass - part).ravel(), part.ravel()])


def _range(
    loss: NDArray[Any],
    t: NDArray[Any],
    gap: NDArray[Any],
    posterior: tuple[NDArray[Any], NDArray[Any]],
    share: NDArray[Any],
    ta: float,
    tb: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Bounds of the loss L in each interval of t. gap: log X/Y; share: posterior of having been sampled, at a.

    posterior: the same at b, `other`, and what it lacks to 1. L' = ta·share - tb·other is positive if tb ≤ 0, or if gap ≥ 0, as
    then share ≥ other. Otherwise both posteriors grow with t, and L' = (ta - tb)·share + tb·(share - other) with
    share - other = other·(1 - other)·(e^gap - 1) / (1 - other + other·e^gap).
    """
    low, high = loss[:, :-1].copy(), loss[:, 1:].copy()
    if tb > 0.0 and gap[0] < 0.0:
        n = int(np.count_nonzero(gap[1:] <= 0.0))  # intervals on which gap ≤ 0
        (few, many), (much, little) = ((one[:, :n], one[:, 1 : n + 1]) for one in posterior)
        even = np.where((few < 0.5) & (many > 0.5), 0.25, np.maximum(few * much, many * little))
        least = (ta - tb) * share[:, :n] + tb * even * np.expm1(gap[:n]) / (little + many * np.exp(gap[:n]))
        even = np.minimum(few * much, many * little)
        most = (ta - tb) * share[:, 1 : n + 1] + tb * even * np.expm1(gap[1 : n + 1]) / (much + few * np.exp(gap[1 : n + 1]))
        down, up = np.minimum(least, 0.0) * np.diff(t)[:n], np.maximum(most, 0.0) * np.diff(t)[:n]
        start, end = loss[:, :n], loss[:, 1 : n + 1]
        low[:, :n], high[:, :n] = np.maximum(start + down, end - up), np.minimum(start + up, end - down)
        if n < len(t) - 1:  # the interval with gap = 0 inside
            low[:, n] = np.log1p(posterior[0][:, n + 1] * np.expm1(gap[n]))
    return low, high


def _spread_rates(s0: float, width: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and probabilities of Z = e^{s0·s - s0²/2}, s normal, moved to the ends of cells of s with the mean kept."""
    if s0 < 1e-8:
        return np.ones(1), np.ones(1)  # its standard deviation is lost in the rounding that is allowed for
    s = edges(-REACH, s0 + REACH, width)
    z = np.exp(s0 * s - 0.5 * s0 * s0)
    z[0] = 0.0
    unsampled, sampled = weights(s, 0.0), weights(s, s0)
    high = np.clip((sampled - z[:-1] * unsampled) / np.diff(z), 0.0, unsampled)
    total = np.append(unsampled - high, 0.0) + np.insert(high, 0, 0.0)
    keep = total * (1.0 + z) > 1e-24
    return z[keep], total[keep]


def between(
    rate: float, noise: float, distance: float, theta: float, width: float
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """What an angle between the nodes can add to the chord of two nodes at most `width` apart, near θ.

    With a fixed and b turned, H_α = E[(x - αy)₊] has H'' ≥ -α·E[1{x > αy}·y''] and y'' = pY·ψ, ψ = ρ²(ζ²-1) + ρu, where ρ = R/σ
    and (u, ζ) are the coordinates of the outcome from b along and across a - b. So the chord is exceeded by at most
    width²/8·αp·Pr_b-mean of ψ₊ on {L > log α}, for all angles of the cell at once; the same for the reversed direction with ψ₋.
    α·1{α ≤ e^L} ≤ e^L/(e^L - 1)·(2e^L - 1 - α)₊ turns it into outcomes: (loss, Q's mass) ahead, (loss, P's mass) behind.
    """
    tau, rho = 1.0 / noise, distance / noise
    along, across = edges(-REACH, rho + REACH, 0.1), edges(-REACH, REACH, 0.1)  # α·N_b reaches as far as N_a, which is at u = ρ
    u0, u1 = along[:-1, None], along[1:, None]
    z0, z1 = across[None, :-1], across[None, 1:]
    square = np.maximum(z0 * z0, z1 * z1)
    least = np.where(z0 * z1 < 0.0, 0.0, np.minimum(z0 * z0, z1 * z1))
    # log X = τ²/2 + τ((u - ρ)cos θ + ζ sin θ): the largest in the box, for all angles within `width` of θ.
    ahead = u1 - rho
    exponent = 0.5 * tau * tau + tau * (
        ahead * cos(theta) + z1 * sin(theta) + width * np.hypot(ahead, np.maximum(abs(z0), abs(z1)))
    )
    mass = width * width / 8.0 * rate * weights(along, 0.0)[:, None] * weights(across, 0.0)[None, :]
    sides = []
    for up in (True, False):
        psi = rho * rho * (square - 1.0) + rho * u1 if up else -rho * rho * (least - 1.0) - rho * u0
        odds = rho * u1 - 0.5 * rho * rho if up else 0.5 * rho * rho - rho * u0 + 0.0 * z0  # |log X/Y|, the largest in the box
        top = exponent if up else exponent + odds  # the larger of log X, log Y
        keep = (psi > 0.0) & (odds > 0.0) & (mass > 0.0)
        psi, odds, top = (np.broadcast_to(part, keep.shape)[keep] for part in (psi, odds, top))
        loss = _loss(top, odds, rate)
        growth = np.expm1(np.minimum(loss, 0.5 * FARTHEST))
        weight = mass[keep] * psi * (1.0 + growth if up else 1.0) / growth
        sides += [np.log1p(2.0 * growth), weight]
    return sides[0], sides[1], sides[2], sides[3]


def _loss(top: NDArray[Any], odds: NDArray[Any], rate: float) -> NDArray[Any]:
    """log((1-p+p·e^top) / (1-p+p·e^(top-odds))) for odds > 0, without cancellation."""
    above = log_mixture(top, rate)
    share = rate * np.exp(top - above)
    near = (odds < 1.0) | (share < 0.5)
    return np.where(near, -np.log1p(np.where(near, share * np.expm1(-odds), 0.0)), above - log_mixture(top - odds, rate))


def merged(rate: float, pair: GradientPair, cells: tuple[float, float]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(P - Q, Q) of the rectangles of the plane: an attacker who sees only which one it is."""
    s0, ta, tb = pair
    s = edges(-REACH, s0 + REACH, cells[0]) if s0 > 1e-8 else np.array([-2.0 * REACH, 2.0 * REACH])
    t = edges(min(tb, 0.0) - REACH, ta + REACH, cells[1])
    sampled, second = rate * weights(s, s0)[:, None], weights(t, tb)[None, :]
    gain = sampled * (weights(t, ta)[None, :] - second)
    mass = (1.0 - rate) * weights(s, 0.0)[:, None] * weights(t, 0.0)[None, :] + sampled * second
    keep = mass > 1e-30
    return gain[keep], mass[keep]


@lru_cache(maxsize=256)
def edges(low: float, high: float, width: float) -> NDArray[Any]:
    """Cells of that width, and wider ones towards the ends, where hardly anything is."""
    inner = np.linspace(low + FAR, high - FAR, ceil((high - low - 2.0 * FAR) / width) + 1)
    outer = np.linspace(0.0, FAR, ceil(FAR / (3.0 * width)) + 1)[:-1]
    cuts = np.concatenate([low + outer, inner, high - outer[::-1]])
    cuts.flags.writeable = False  # it is kept
    return cuts


def weights(cuts: NDArray[Any], mean: float) -> NDArray[Any]:
    """Probability that N(mean, 1) falls between neighbouring cuts, from the side where it is accurate."""
    shifted = cuts - mean
    return np.where(shifted[:-1] > 0.0, ndtr(-shifted[:-1]) - ndtr(-shifted[1:]), ndtr(shifted[1:]) - ndtr(shifted[:-1]))


def from_above(
    outcomes: tuple[NDArray[Any], NDArray[Any]],
    extra: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]] | None,
    grid: float,
    most: int,
) -> Kernel:
    """Outcomes split between neighbouring nodes, linearly in the likelihood ratio: the new ones tell more.

    most: nodes on either side; what lies beyond is split between the last one and infinity.
    """
    loss, mass = outcomes
    ahead, behind = loss > 0.0, loss < 0.0
    sides = [[(loss[ahead], mass[ahead])], [(-loss[behind], mass[behind] * np.exp(loss[behind]))]]
    if extra is not None:
        sides[0].append((extra[0], extra[1]))
        sides[1].append((extra[2], extra[3]))
    top = max(float(part[0].max()) for side in sides for part in side if part[0].size)
    reach = min(most, ceil(top / grid) + 1)
    plain = [_on_grid(*side[0], grid, reach) for side in sides]
    if extra is not None:
        plain = _with(plain, [_on_grid(*side[1], grid, reach) for side in sides], grid)
    terms = 2 * reach + sum(part[0].size for side in sides for part in side)
    return _kernel(plain[0], plain[1], grid, terms)


def undominated(every: list[Kernel]) -> list[Kernel]:
    """Kernels without those whose hockey-stick divergences are at no node above those of another, one way or the other.

    These are linear between the nodes, so that the other kernel then tells at least as much.
    """
    half = max(kernel.reach for kernel in every)
    rows = [kernel.source_on(half) for kernel in every]
    kept: list[int] = []
    for i in sorted(range(len(every)), key=lambda i: -float(rows[i][half])):
        if not any(np.all(rows[j] >= rows[i]) or np.all(rows[j][::-1] >= rows[i]) for j in kept):
            kept.append(i)
    return [every[i] for i in sorted(kept)]


def _with(
    plain: list[tuple[NDArray[Any], float]], more: list[tuple[NDArray[Any], float]], grid: float
) -> list[tuple[NDArray[Any], float]]:
    """A curve H, and a curve e that is added to it, such that the mass at loss 0 stays ≥ 0: what is added is taken from there.

    Small losses need much of it; (e^l - α)₊ ≤ (e^l - 1)/(e^k - 1)·(e^k - α)₊ for α ≥ 1 and l ≤ k replaces them by larger ones. If
    that is not enough, everything is revealed with probability λ = e_1/(1 - H_1): (1 - λ)·H_α + λ ≥ H_α + e_α, as e_α ≤ e_1.
    """
    start = [float(_hockey_stick(*one, grid)[0]) for one in more]
    most = max(start)
    if most == 0.0:
        return plain
    scales = [most / one for one in start]  # both directions agree at α = 1
    more = [(scale * part, scale * infinite) for (part, infinite), scale in zip(more, scales, strict=True)]
    growth = np.expm1(grid * np.arange(1, len(more[0][0]) + 1))
    least = 0
    while least < len(growth):
        sides = []
        for (base, end), (part, infinite) in zip(plain, more, strict=True):
            lifted = np.where(np.arange(len(part)) < least, 0.0, part)
            lifted[least] += float((part[:least] * growth[:least]).sum()) / growth[least]
            sides.append((base + lifted, end + infinite))
        if _moved(sides[0], sides[1], grid) <= 1.0:
            return sides
        least = 2 * least + 1
    told = min(most / max(1.0 - max(float(_hockey_stick(*one, grid)[0]) for one in plain), 1e-300), 1.0)
    return [((1.0 - told) * base, (1.0 - told) * end + told) for base, end in plain]


def _moved(ahead: tuple[NDArray[Any], float], behind: tuple[NDArray[Any], float], grid: float) -> float:
    """Q's mass at losses other than 0."""
    nodes = grid * np.arange(1, len(ahead[0]) + 1)
    return float(ahead[0].sum()) + float((behind[0] * np.exp(nodes)).sum()) + behind[1]


@dataclass(frozen=True, eq=False)
class Laws:
    """Laws of the loss on the nodes -reach…reach, under P and under Q, minus 1 at 0; `error`: what rounding may have changed."""

    first: NDArray[Any]
    second: NDArray[Any]
    error: float = 0.0
    _logs: dict[int, list[NDArray[Any]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def reach(self) -> int:
        return len(self.first) // 2

    def logs(self, length: int) -> list[NDArray[Any]]:
        """Logarithms of the transforms of both laws."""
        from scipy.fft import rfft

        if length not in self._logs:
            rows = np.zeros((2, length))
            rows[:, np.arange(-self.reach, self.reach + 1)] = self.first, self.second
            kept = 1.0 + rfft(rows, axis=1)
            self._logs[length] = list(np.log(np.where(np.abs(kept) < 1e-200, 1e-200, kept)))
        return self._logs[length]

    @cached_property
    def growth(self) -> NDArray[Any]:
        """log E[e^{±tL}] of both laws at each of TILTS; infinite where it is too large."""
        nodes = np.arange(-self.reach, self.reach + 1)
        fits = TILTS * self.reach < 300.0
        table = np.full((2, 2, len(TILTS)), inf)
        for i, law in enumerate((self.first, self.second)):
            for j, sign in enumerate((1.0, -1.0)):
                table[i, j, fits] = np.log1p(np.expm1(sign * np.outer(TILTS[fits], nodes)) @ law)
        return table


def rounded(outcomes: tuple[NDArray[Any], NDArray[Any]], grid: float, most: float) -> Laws:
    """Outcomes (P - Q, Q) with their loss rounded at random to a neighbouring node. An attacker may round as they like."""
    gain, mass = outcomes
    loss = np.clip(np.log1p(np.maximum(gain / mass, -1.0 + 1e-15)), -most, most)
    return Laws(_rounded(loss, mass + gain, grid), _rounded(loss, mass, grid))


def _rounded(loss: NDArray[Any], mass: NDArray[Any], grid: float) -> NDArray[Any]:
    place = loss / grid
    reach = ceil(float(np.abs(place).max())) + 1
    index = np.floor(place).astype(np.int64)
    part = place - index
    law = np.bincount(index + reach, weights=mass * (1.0 - part), minlength=2 * reach + 1)
    law += np.bincount(index + 1 + reach, weights=mass * part, minlength=2 * reach + 1)
    law[reach] = 0.0
    law[reach] = -law.sum()
    return law


def composed(several: Sequence[tuple[Laws, int]], fine: float, variance: float, grid: float) -> Laws:
    """Laws of the sum of this many losses of each law, on a finer grid, rounded to the grid afterwards."""
    from scipy.fft import irfft, next_fast_len

    total = sum(times for _, times in several)
    half = min(total, 3) * max(one.reach for one, _ in several) + ceil(12.0 * sqrt(variance) / fine)
    half = ceil(LONGER ** ceil(log(half) / log(LONGER)))  # few different lengths: transforms are kept
    length = next_fast_len(2 * half + 1, real=True)
    laws, error = [], 0.0
    for which in (0, 1):
        power = np.exp(sum(times * one.logs(length)[which] for one, times in several))
        # ‖error‖₁ ≤ √n·‖error‖₂, which is the norm of the error of the transform; then what is wrapped around (Chernoff).
        doubt = FFT_ERROR * log2(length) * (np.abs(power) * (total + 1.0))
        leaves = sum(times * one.growth[which] for one, times in several) - TILTS * half
        wrapped = float(np.exp(np.minimum(leaves, 0.0).min(axis=1)).sum())
        error = max(error, sqrt(2.0 * float(np.sum(doubt * doubt))) + wrapped)
        mass = np.maximum(np.roll(irfft(power, length), half)[: 2 * half + 1], 0.0)
        laws.append(_rounded(fine * np.arange(-half, half + 1), mass, grid))
    return Laws(laws[0], laws[1], error)


def _on_grid(loss: NDArray[Any], mass: NDArray[Any], grid: float, reach: int) -> tuple[NDArray[Any], float]:
    """One direction: the second world's mass at the losses grid·(1…reach), and the first world's at infinity."""
    capped = np.minimum(loss, reach * grid)
    beyond = float((mass * np.exp(capped) * np.expm1(np.minimum(loss - capped, LARGEST_EXPONENT))).sum())
    index = np.minimum((capped / grid).astype(np.int64), reach - 1)
    part = mass * np.clip(np.expm1(capped - index * grid) / np.expm1(grid), 0.0, 1.0)
    masses = np.bincount(index, weights=mass - part, minlength=reach + 1) + np.bincount(
        index + 1, weights=part, minlength=reach + 1
    )
    return masses[1:], beyond


def _hockey_stick(mass: NDArray[Any], infinite: float, grid: float) -> NDArray[Any]:
    """H_α at α = e^{kΔ}, k = 0…reach: a sum of positive terms, Σ_{i≥k} (e^{(i+1)Δ} - e^{iΔ})·(mass beyond i)."""
    beyond = np.cumsum(mass[::-1])[::-1]
    rises = np.exp(grid * np.arange(len(mass))) * np.expm1(grid) * beyond
    return np.append(np.cumsum(rises[::-1])[::-1], 0.0) + infinite


def _kernel(ahead: tuple[NDArray[Any], float], behind: tuple[NDArray[Any], float], grid: float, terms: int) -> Kernel:
    reach = len(ahead[0])
    nodes = grid * np.arange(1, reach + 1)
    up, down = ahead[0] * np.exp(0.5 * nodes), behind[0] * np.exp(0.5 * nodes)
    centre = -min(_moved(ahead, behind, grid), 1.0)
    right, left = _hockey_stick(*ahead, grid), _hockey_stick(*behind, grid)
    start = max(float(right[0]), float(left[0]))
    return Kernel(
        np.concatenate([down[::-1], [centre], up]),
        np.concatenate([left[:0:-1], [start], right[1:]]),
        (behind[1], ahead[1]),
        terms,
    )
