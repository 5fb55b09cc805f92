"""What is known of a run without betastar: a law of losses below the worst pair's and one above it, on a grid, composed by FFT.

A step's outcomes are cut into fragments, whose probabilities in both worlds are known. To cut is to forget: an attack on
fragments is one on outcomes. Both laws are rounded to the grid so that the mean of Q/P stays: the error is of second order.
For attributes the law below is that of an attacker who chooses a pair for each block of steps by the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr, ndtri
from scipy.stats import binom

import betastar as bs

Array = NDArray[np.float64]
#: Deviations of the noise beyond which an outcome is revealed.
REACH = 9.0
#: Most cells of the grid of one step, and of all steps.
CELLS, MOST = 1 << 16, 1 << 19
#: Losses that matter.
FARTHEST = 600.0
#: A deviation of one step's loss that the fragments can resolve.
SMALLEST = 1e-7


@dataclass(frozen=True)
class Fragments:
    """Probabilities of the fragments of one step in both worlds, and the least and the largest loss of each, if known."""

    first: Array
    second: Array
    low: Array | None = None
    high: Array | None = None

    @cached_property
    def losses(self) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.first > 0.0, np.log(self.first) - np.log(self.second), -np.inf)

    @property
    def deviation(self) -> float:
        seen = np.isfinite(self.losses) & (np.abs(self.losses) < FARTHEST)
        return float(np.sqrt(self.first[seen] @ self.losses[seen] ** 2))

    @property
    def farthest(self) -> float:
        seen = self.first > 1e-15
        return float(min(FARTHEST, np.max(np.abs(self.losses[seen]), initial=0.0)))

    def swapped(self) -> Fragments:
        ends = (None, None) if self.low is None or self.high is None else (-self.high, -self.low)
        return Fragments(self.second, self.first, *ends)


def _masses(edges: Array, mean: float, noise: float) -> Array:
    """N(mean, noise²) between edges."""
    z = (edges - mean) / noise
    low, high = z[:-1], z[1:]
    return np.where(low < 0.0, ndtr(high) - ndtr(low), ndtr(-low) - ndtr(-high))


Mixture = Sequence[tuple[float, float]]  # (probability, mean)
Point = tuple[float, float]


def on_a_line(first: Mixture, second: Mixture, noise: float, number: int = 1 << 14, cut: float | None = None) -> Fragments:
    """Two mixtures of Gaussians on the line whose loss does not fall: the ends of a fragment's loss are those at its edges.

    cut: where the loss is 0, which shall be an edge.
    """
    means = [mean for _, mean in [*first, *second]]
    edges = np.linspace(min(means) - REACH * noise, max(means) + REACH * noise, number)
    if cut is not None:
        edges = np.union1d(edges, [cut])
    bounds = np.concatenate([[-np.inf], edges, [np.inf]])
    p, q = (sum(chance * _masses(bounds, mean, noise) for chance, mean in law) for law in (first, second))

    def density(law: Mixture) -> Array:
        with np.errstate(divide="ignore"):
            rows = [np.log(chance) - 0.5 * ((edges - mean) / noise) ** 2 for chance, mean in law]
        return np.logaddexp.reduce(rows)

    at = density(first) - density(second)
    low, high = np.concatenate([[-np.inf], at]), np.concatenate([at, [np.inf]])
    return Fragments(np.asarray(p), np.asarray(q), low, high)


def in_the_plane(rate: float, a: Point, b: Point, noise: float, origin: Point = (0.0, 0.0), number: int = 160) -> Fragments:
    """With probability `rate` a mean a or b, otherwise the origin: rectangles of the plane."""
    sides = []
    for axis in (0, 1):
        means = [point[axis] for point in (a, b, origin)]
        edges = np.linspace(min(means) - 7.5 * noise, max(means) + 7.5 * noise, number)
        sides.append([_masses(np.concatenate([[-np.inf], edges, [np.inf]]), mean, noise) for mean in means])
    at_a, at_b, none = (np.outer(x, y).ravel() for x, y in zip(*sides, strict=True))
    return Fragments((1.0 - rate) * none + rate * at_a, (1.0 - rate) * none + rate * at_b)


def glued(line: Fragments) -> Fragments:
    """Of a pair on the line, what has a loss above 0, and its mirror image: above every pair of this distance."""
    assert line.low is not None
    assert line.high is not None
    seen = (line.high > 0.0) & (np.arange(len(line.high)) > int(np.argmin(line.high)))
    p, q, low, high = (one[seen] for one in (line.first, line.second, line.low, line.high))
    low = np.maximum(low, 0.0)
    rest = max(1.0 - float(p.sum() + q.sum()), 0.0)
    return Fragments(
        np.concatenate([p, q, [rest]]), np.concatenate([q, p, [rest]]), np.concatenate([low, -high, [0.0]]),
        np.concatenate([high, -low, [0.0]]),
    )  # fmt: skip


@dataclass(frozen=True)
class Rounded:
    """Probabilities of the losses start·grid, (start+1)·grid, … of one step, and of an infinite one."""

    start: int
    mass: Array
    infinite: float


#: A step that tells nothing.
NOTHING = Rounded(0, np.ones(1), 0.0)


def below(pieces: Fragments, grid: float) -> Rounded:
    """A law whose H is never larger: cells of fragments around the nodes give tangents of H; the chords below them."""
    seen = (pieces.first > 0.0) & (pieces.losses > -FARTHEST)
    mass, losses = pieces.first[seen], np.minimum(pieces.losses[seen], FARTHEST)
    place = np.rint(losses / grid).astype(np.int64)
    lowest, highest = place == place.min(), place == place.max()
    place[lowest], place[highest] = np.ceil(losses[lowest] / grid).max(), np.floor(losses[highest] / grid).min()
    nodes = np.unique(place)
    for _ in range(200):
        if len(nodes) < 2:
            return NOTHING  # the grid does not resolve the step: it is not looked at
        middle = 0.5 * (nodes[1:] + nodes[:-1])
        cell = np.searchsorted(middle, place)
        first = np.flatnonzero(cell == 0)  # the lowest cell has no lower neighbour: its P - α·Q is at most 0
        first = first[np.argsort(losses[first])]
        sums = np.cumsum(-mass[first] * np.expm1(nodes[0] * grid - losses[first]))
        cell[first[sums > 0.0]] = 1
        gaps, size = grid * np.diff(nodes), len(nodes)
        # P - α·Q of a cell: above 0 it takes some of its lower neighbour's mass, below 0 of its upper neighbour's.
        off = np.bincount(cell, -mass * np.expm1(nodes[cell] * grid - losses), size)
        up, down = np.maximum(off, 0.0)[1:] / np.expm1(gaps), np.minimum(off, 0.0)[:-1] / np.expm1(-gaps)
        law = np.bincount(cell, mass, size)
        law[1:] += up - down
        law[:-1] += down - up
        bent = law < 0.0  # not convex: without these nodes
        bent[-1] |= off[-1] < 0.0  # there is no upper neighbour
        if not bent.any():
            break
        nodes = nodes[~bent]
    else:
        return NOTHING
    whole = np.zeros(int(nodes[-1] - nodes[0]) + 1)
    whole[nodes - nodes[0]] = np.maximum(law, 0.0)
    return Rounded(int(nodes[0]), whole, 0.0)


def above(pieces: Fragments, grid: float) -> Rounded:
    """A law whose H is never smaller: each fragment is split between ends that enclose its losses."""
    assert pieces.low is not None
    assert pieces.high is not None
    wide = (pieces.high > FARTHEST) | (pieces.low < -FARTHEST)
    infinite = float(pieces.first[wide].sum())
    seen = ~wide & (pieces.first > 0.0)
    mass, losses = pieces.first[seen], pieces.losses[seen]
    bottom, top = (np.floor(pieces.low[seen] / grid), np.ceil(pieces.high[seen] / grid))
    top = np.maximum(top, bottom + 1.0)
    # P·(1 - e^(bottom - L)) = share·P·(1 - e^(bottom - top)), L the loss of the fragment's mean Q/P
    share = np.clip(np.expm1(bottom * grid - losses) / np.expm1((bottom - top) * grid), 0.0, 1.0)
    start = int(bottom.min())
    lower, upper = (bottom - start).astype(np.int64), (top - start).astype(np.int64)
    size = int(upper.max()) + 1
    return Rounded(start, np.bincount(lower, mass * (1.0 - share), size) + np.bincount(upper, mass * share, size), infinite)


class Law:
    """Losses of all steps together on a grid: H at each of its nodes, with an error."""

    def __init__(self, steps: Sequence[tuple[Rounded, int]], grid: float) -> None:
        self.grid = grid
        reach = [_chernoff(steps, grid, sign) for sign in (-1.0, 1.0)]
        self.start, end = -int(reach[0] / grid) - 2, int(reach[1] / grid) + 2
        length = next_fast_len(end - self.start + 1, real=True)
        if length > MOST:
            raise TooLongError
        whole = np.ones(length // 2 + 1, dtype=np.complex128)
        finite, count = 1.0, 0
        for one, times in steps:
            law = np.bincount((one.start + np.arange(len(one.mass))) % length, one.mass, length)
            whole *= rfft(law) ** times
            finite *= (1.0 - one.infinite) ** times
            count += times
        self.mass = np.maximum(np.roll(irfft(whole, length), -self.start), 0.0)
        self.nodes = (self.start + np.arange(length)) * grid
        self.error = 1e-12 + 3e-14 * count  # of the fragments' probabilities, of which there are thousands
        rising = self.mass[::-1]
        with np.errstate(over="ignore"):
            scale = np.exp(-np.clip(self.nodes, -700.0, 700.0))[::-1]
        after = np.cumsum(rising) - rising  # of larger losses
        lost = np.cumsum(rising * scale) - rising * scale
        sticks = (after - lost / scale)[::-1] + (1.0 - finite)
        #: Where P' was rounded down, Q/P' may add up to more than 1, and H of the law itself may be below 1 - α.
        self.raw = np.where(self.nodes < -700.0, 1.0, sticks)
        self.sticks = np.where(
            self.nodes < -700.0, 1.0, np.clip(sticks, np.maximum(-np.expm1(np.minimum(self.nodes, 0.0)), 0.0), 1.0)
        )


class TooLongError(Exception):
    """The grid would have too many nodes."""


def _chernoff(steps: Sequence[tuple[Rounded, int]], grid: float, sign: float) -> float:
    """A loss beyond which all steps together have at most 1e-14."""
    far = max(max(abs(one.start), abs(one.start + len(one.mass))) for one, _ in steps) * grid
    wide = sum(times * float(one.mass @ (((one.start + np.arange(len(one.mass))) * grid) ** 2)) for one, times in steps) ** 0.5
    best = sum(times for _, times in steps) * far
    for tilt in np.concatenate([np.geomspace(0.3, 30.0, 12) / max(wide, 1e-300), np.geomspace(0.3, 500.0, 8) / max(far, 1e-300)]):
        if tilt * far > 500.0:
            continue
        growth = sum(
            times * np.log(one.mass @ np.exp(sign * tilt * grid * (one.start + np.arange(len(one.mass)))) + 1e-300)
            for one, times in steps
        )
        best = min(best, (float(growth) + 33.0) / tilt)
    return max(best, grid)


class Curve:
    """H at nodes, as it is known from one side; `back` of the worlds exchanged, if it is another one.

    between: "chords" if H is linear in α between nodes, "convex" if it is only convex, "unknown" if it is anything that falls.
    """

    def __init__(self, taus: Array, sticks: Array, error: float, between: str, back: Curve | None = None) -> None:
        self.taus, self.sticks, self.error, self.between, self.back = taus, sticks, error, between, back

    @classmethod
    def of(cls, law: Law) -> Curve:
        near = np.abs(law.nodes) <= 100.0
        return cls(law.nodes[near], law.sticks[near], law.error, "chords")

    def _chord(self, tau: float) -> float:
        """H between two nodes, if it is linear in α there."""
        i = int(np.clip(np.searchsorted(self.taus, tau) - 1, 0, len(self.taus) - 2))
        share = np.expm1(tau - self.taus[i]) / np.expm1(self.taus[i + 1] - self.taus[i])
        return float(self.sticks[i] + share * (self.sticks[i + 1] - self.sticks[i]))

    def least(self, tau: float) -> float:
        """H; or at the next node, since H falls. It is at least 1 - α."""
        i = int(np.searchsorted(self.taus, tau - 1e-12))
        floor = -float(np.expm1(min(tau, 0.0)))
        if i == len(self.taus):
            return floor
        return max(floor, (self._chord(tau) if self.between == "chords" and i > 0 else float(self.sticks[i])) - self.error)

    def most(self, tau: float) -> float:
        """H; or at the node before."""
        i = int(np.searchsorted(self.taus, tau + 1e-12)) - 1
        if i < 0:
            return 1.0
        return (self._chord(tau) if self.between == "chords" and i < len(self.taus) - 1 else float(self.sticks[i])) + self.error

    def tpr(self, fpr: float) -> float:
        """The infimum of H_α + α·FPR."""
        with np.errstate(over="ignore"):
            alpha = np.exp(self.taus)
        level = self.sticks + alpha * fpr
        i = int(np.argmin(level))
        lowest = float(level[i])
        if self.between == "convex" and 1 < i < len(level) - 2:  # above the chords of the neighbouring cells, prolonged
            for j in (i - 1, i):
                left = (level[j] - level[j - 1]) / (alpha[j] - alpha[j - 1])
                right = (level[j + 2] - level[j + 1]) / (alpha[j + 2] - alpha[j + 1])
                wide = alpha[j + 1] - alpha[j]
                if right > left:
                    x = (level[j + 1] - level[j] - right * wide) / (left - right)
                    lowest = min(lowest, float(level[j] + left * np.clip(x, 0.0, wide)))
        if self.between == "convex":  # outside of the nodes H is at least 0, and at least 1 - α
            lowest = min(lowest, float(alpha[-1]) * fpr, 1.0 - float(alpha[0]) * (1.0 - fpr))
        return min(1.0, lowest)

    def largest_epsilon(self, delta: float) -> float:
        """The last place at which H is above δ; or the last node."""
        over = np.flatnonzero((self.taus >= 0.0) & (self.sticks - self.error > delta))
        least = 0.0
        if len(over):
            i = int(over[-1])
            least = float(self.taus[i])
            if self.between == "chords" and i + 1 < len(self.taus):
                share = (self.sticks[i] - self.error - delta) / (self.sticks[i] - self.sticks[i + 1])
                least += float(np.log1p(share * np.expm1(self.taus[i + 1] - self.taus[i])))
        return max(least, self.back.largest_epsilon(delta) if self.back else 0.0)

    def enough_epsilon(self, delta: float) -> float:
        """The first node from 0 on at which H is not above δ."""
        under = self.taus[(self.taus >= 0.0) & (self.sticks + self.error <= delta)]
        return max(float(under[0]) if len(under) else np.inf, self.back.enough_epsilon(delta) if self.back else 0.0)


@dataclass(frozen=True)
class Bracket:
    """Curves that some attack attains, each of them, and one above all attacks."""

    attained: list[Curve]
    proved: Curve | None

    def sides(self, name: str) -> tuple[float, float]:
        """(what some attack attains of a metric of the fuzz test, what none exceeds)."""
        low = max((_metric(curve, name, False) for curve in self.attained), default=-np.inf)
        return low, np.inf if self.proved is None else _metric(self.proved, name, True)


def _metric(curve: Curve, name: str, above: bool) -> float:
    """From this side; without a bound if it is not known."""

    def stick(tau: float, one: Curve = curve) -> float:
        return one.most(tau) if above else one.least(tau)

    def rate(fpr: float) -> float:
        if above:
            return curve.tpr(fpr) + curve.error
        return -np.inf if curve.between == "unknown" else curve.tpr(fpr) - curve.error

    def success(prior: float) -> float:
        return 1.0 - prior + prior * stick(float(np.log((1.0 - prior) / prior)))

    if name == "bayes_security":
        raise KeyError(name)
    if name in ("advantage", "delta(0)"):
        return stick(0.0)
    if name == "delta(1)":
        return max(stick(1.0), stick(1.0, curve.back) if curve.back else 0.0)
    if name.startswith("success(."):
        return success(float(name[8:-1]))
    if name.startswith("tpr"):
        return rate(float(name[4:-1]))
    if name.startswith("reconstruction"):
        return rate(1.0 / 74.0)
    if name.startswith("epsilon"):
        delta = float(name[8:-1])
        return curve.enough_epsilon(delta) if above else curve.largest_epsilon(delta)
    if above or name != "gdp_mu":
        return np.inf if above else -np.inf
    fprs = np.append(np.geomspace(1e-5, 0.5, 60), 1.0 - np.geomspace(0.5, 1e-5, 60)[1:])  # both error rates are at least 1e-5
    rates = np.array([rate(float(one)) for one in fprs])
    seen = (rates > 0.0) & (rates <= 1.0 - 1e-5)
    return float(np.max(ndtri(rates[seen]) - ndtri(fprs[seen]), initial=0.0))


Part = tuple[Fragments, int]


def _grid(parts: Sequence[Part]) -> float:
    # The smallest deviation that matters: of the steps that make up most of the variance.
    noisy = [(piece.deviation, count) for piece, count in parts]
    total = sum(count * one**2 for one, count in noisy)
    one = min((one for one, count in noisy if count * one**2 > 1e-3 * total), default=0.0)
    if not one > SMALLEST:
        raise TooLongError
    far = max(piece.farthest for piece, _ in parts)
    return max(one / 8.0, far / CELLS, 20.0 * total**0.5 / (MOST / 4))


def _composed(parts: Sequence[Part], rounding: Callable[[Fragments, float], Rounded]) -> Curve:
    grid = _grid(parts)
    for _ in range(3):
        try:
            return Curve.of(Law([(rounding(piece, grid), count) for piece, count in parts], grid))
        except TooLongError:
            grid *= 2.0
    raise TooLongError


def both_ways(parts: Sequence[Part], rounding: Callable[[Fragments, float], Rounded], symmetric: bool) -> Curve:
    curve = _composed(parts, rounding)
    if not symmetric:
        curve.back = _composed([(piece.swapped(), count) for piece, count in parts], rounding)
    return curve


def membership(run: bs.DPSGD, relation: str, records: int = 1) -> Bracket:
    """Poisson samples: records at 1 and -1, or at 1 and none."""
    parts = []
    for one in run.segments:
        rate, sign = float(one.sample_rate), -1.0 if relation == "substitution" else 0.0
        chances = binom.pmf(np.arange(records + 1), records, rate)
        first = [(float(chance), float(j)) for j, chance in enumerate(chances) if chance > 0.0]
        second = [(chance, sign * j) for chance, j in first]
        if sign == 0.0:
            second = [(1.0, 0.0)]
        parts.append((on_a_line(first, second, float(one.noise_multiplier)), int(one.steps)))
    symmetric = relation == "substitution"
    return Bracket([both_ways(parts, below, symmetric)], both_ways(parts, above, symmetric))


#: Norms of the other gradient, as shares of the way from the nearest to 1.
NORMS = (0.0, 0.5, 1.0)
#: Blocks of steps in each of which the attacker keeps the pair, and nodes of the programme.
BLOCKS, STATES = 24, 1 << 13
LEVELS = 8


def _pairs(rate: float, noise: float, distance: float) -> list[Fragments]:
    """Pairs at this distance; the last one is its own mirror image."""
    pairs = []
    for share in NORMS:
        nearest = abs(1.0 - distance)
        norm = nearest + share * (1.0 - nearest)
        cosine = float(np.clip((1.0 + norm**2 - distance**2) / (2.0 * max(norm, 1e-12)), -1.0, 1.0))
        other = (norm * cosine, norm * float(np.sqrt(1.0 - cosine**2)))
        pairs.append(in_the_plane(rate, (1.0, 0.0), other, noise))
        if share < 1.0:
            pairs.append(pairs[-1].swapped())
    return pairs


def _levels(distances: Array) -> Array:
    """The distances, rounded down to a few."""
    if len(np.unique(distances)) <= LEVELS:
        return distances
    edges = np.quantile(distances, np.linspace(0.0, 1.0, LEVELS + 1)[:-1])
    return edges[np.searchsorted(edges, distances, side="right") - 1]


def adaptive(steps: Sequence[tuple[Sequence[Fragments], int]]) -> Curve:
    """H of an attacker who chooses one pair for each block of steps, by the history. steps: the pairs, and a count."""
    parts = [(pairs[-1], count) for pairs, count in steps]
    grid = max(_grid(parts), 20.0 * sum(count * piece.deviation**2 for piece, count in parts) ** 0.5 / STATES)
    taus = grid * (np.arange(STATES) - STATES // 2)
    gain = np.zeros(STATES)
    floor = np.maximum(-np.expm1(np.minimum(taus, 0.0)), 0.0)
    total, error = sum(count for _, count in steps), 0.0
    blocks: list[list[tuple[Sequence[Fragments], int]]] = [[]]
    room = per = max(1, total // BLOCKS)
    for pairs, count in steps:
        while count:
            taken = min(count, room)
            blocks[-1].append((pairs, taken))
            count, room = count - taken, room - taken
            if not room:
                blocks.append([])
                room = per
    rounded: dict[int, Rounded] = {}
    kernels: dict[tuple[tuple[int, int], ...], list[tuple[Array, Array]]] = {}
    length = next_fast_len(2 * STATES, real=True)
    for block in reversed([one for one in blocks if one]):
        alike = {id(pairs): (pairs, 0) for pairs, _ in block}
        for pairs, count in block:
            alike[id(pairs)] = (pairs, alike[id(pairs)][1] + count)
        key = tuple(sorted((which, count) for which, (_, count) in alike.items()))
        if key not in kernels:
            kernels[key] = []
            for choice in range(len(block[0][0])):
                several = []
                for pairs, count in alike.values():
                    one = pairs[choice]
                    if id(one) not in rounded:
                        rounded[id(one)] = below(one, grid)
                    several.append((rounded[id(one)], count))
                law = Law(several, grid)
                error = max(error, law.error)
                known = (taus >= law.nodes[0] - 0.5 * grid) & (taus <= law.nodes[-1] + 0.5 * grid)
                base = np.where(known, np.interp(taus, law.nodes, law.raw) - floor, 0.0)
                place = np.rint(law.nodes / grid).astype(np.int64)
                near = np.abs(place) < STATES // 2
                spread = np.bincount(place[near] % length, law.mass[near], length)
                kernels[key].append((base, rfft(spread)))
        moved = rfft(gain, length)
        gain = np.max([base + irfft(moved * wave, length)[:STATES] for base, wave in kernels[key]], axis=0)
        gain = np.maximum(gain, 0.0)
    near = np.abs(taus) <= 100.0
    return Curve(taus[near], (floor + gain)[near], error * len(blocks), "convex")


def attributes(run: bs.DPSGD, distances: Array, sampling: str = "poisson") -> Bracket:
    """distances: of each step, in order, or of equal steps if it has one number.

    With batches of a fixed size the gradient of another record, the origin of the plane, is at most 1 from its middle.
    """
    fixed = sampling == "fixed-size"
    scale = 0.5 if fixed else 1.0
    lower: list[tuple[Sequence[Fragments], int]] = []
    pairs: dict[tuple[float, float, float], list[Fragments]] = {}
    counts: dict[tuple[float, float, float], int] = {}
    start = 0
    for one in run.segments:
        rate, noise, steps = float(one.sample_rate), float(one.noise_multiplier), int(one.steps)
        mine = distances if len(distances) == 1 else distances[start : start + steps]
        start += steps
        low, up = _levels(mine), -_levels(-mine)
        first = np.concatenate([[0], np.flatnonzero(np.diff(low)) + 1])
        lengths = [steps] if len(mine) == 1 else np.diff(np.append(first, steps)).tolist()
        for distance, count in zip(low[first].tolist(), lengths, strict=True):
            at = (rate, noise, distance)
            if distance > 0.0:
                if at not in pairs:
                    pairs[at] = [*(_triples(*at) if fixed else []), *_pairs(*at)]
                lower.append((pairs[at], count))
        for distance, count in zip(*np.unique(up, return_counts=True), strict=True):
            at = (rate, noise, float(distance))
            counts[at] = counts.get(at, 0) + int(count if len(mine) > 1 else steps)
    bounds = []
    for (rate, noise, distance), count in counts.items():
        both = [(1.0 - rate, 0.0), (rate, 1.0)], [(1.0 - rate, 0.0), (rate, 1.0 - scale * distance)]
        bounds.append((glued(on_a_line(*both, scale * noise, cut=1.0 - 0.5 * scale * distance)), count))
    return Bracket([adaptive(lower)] if lower else [], _composed(bounds, above))


def _triples(rate: float, noise: float, distance: float) -> list[Fragments]:
    """Another record opposite to the challenge: its values in a row with it, or on both sides of the middle."""
    across = 0.5 * distance, (1.0 - 0.25 * distance**2) ** 0.5
    row = in_the_plane(rate, (1.0, 0.0), (1.0 - distance, 0.0), noise, (-1.0, 0.0))
    return [row, row.swapped(), in_the_plane(rate, across, (-across[0], across[1]), noise, (0.0, -1.0))]


def fixed_size(run: bs.DPSGD, relation: str) -> Bracket:
    """Batches of a fixed size: another gradient is 0, or opposite to the challenge's; above, Poisson's at half of the noise."""
    (one,) = run.segments
    rate, noise, steps = float(one.sample_rate), float(one.noise_multiplier), int(one.steps)
    far = on_a_line([(1.0 - rate, -1.0), (rate, 1.0)], [(1.0, -1.0)], noise)
    if relation == "add-remove":
        return Bracket([both_ways([(far, steps)], below, False)], both_ways([(far, steps)], above, False))
    near = on_a_line([(1.0 - rate, 0.0), (rate, 1.0)], [(1.0 - rate, 0.0), (rate, -1.0)], noise)
    attained = [both_ways([(piece, steps)], below, False) for piece in (far, far.swapped(), near)]
    return Bracket(attained, attributes(run, np.array([2.0]), "fixed-size").proved)


def truncated(run: bs.DPSGD) -> bs.DPSGD:
    """If all other gradients are 0, a batch that is cut off is a Poisson sample: the record stays in it with a probability."""
    (one,) = run.segments
    rate, size, most = float(one.sample_rate), int(one.dataset_size), int(one.max_batch_size)
    others = np.arange(size + 1)
    stays = binom.pmf(others, size, rate) @ np.minimum(1.0, most / (1.0 + others))
    return bs.DPSGD(float(one.noise_multiplier), rate * float(stays) * (1.0 - 1e-12), int(one.steps))


#: Games of random allocation, and the logarithm of one over the probability that an interval of one of them is wrong.
GAMES, CONFIDENCE = 20_000, 25.0


def balls_in_bins(run: bs.DPSGD, relation: str, random: np.random.Generator) -> Bracket:
    """Each record in one batch of each epoch: games with aligned gradients, and Bernstein's inequality."""
    (one,) = run.segments
    noise, bins = float(one.noise_multiplier), round(1.0 / float(one.sample_rate))
    taus = np.array([-2.0, 0.0, 0.5, 1.0, 2.0, np.log(9.0), 3.0, 5.0, 8.0, 12.0])
    sides: dict[float, tuple[Array, Array]] = {}
    for world in (1.0, -1.0 if relation == "substitution" else 0.0):
        total = np.zeros(GAMES)
        for _ in range(round(int(one.steps) / bins)):
            seen = noise * random.standard_normal((GAMES, bins))
            seen[:, 0] += world
            first = np.logaddexp.reduce(seen / noise**2, axis=1)
            second = (
                np.logaddexp.reduce(-seen / noise**2, axis=1) if relation == "substitution" else np.log(bins) + 0.5 / noise**2
            )
            total += first - second
        losses = total if world == 1.0 else -total
        gains = np.maximum(-np.expm1(np.minimum(taus[:, None] - losses, 0.0)), 0.0)
        error = np.sqrt(2.0 * gains.var(axis=1) * CONFIDENCE / GAMES) + 7.0 * CONFIDENCE / (3.0 * (GAMES - 1))
        mean = gains.mean(axis=1)
        sides[world] = (np.maximum(mean - error, 0.0), np.minimum(mean + error, 1.0))
    curves = []
    for i in (0, 1):
        ahead, back = (Curve(taus, side[i], 0.0, "unknown") for side in sides.values())
        ahead.back = back
        curves.append(ahead)
    return Bracket([curves[0]], curves[1])


def bracket(run: bs.DPSGD, threat: Any) -> Bracket | None:
    """Of a setting of the fuzz test; None if the grid cannot resolve it."""
    one, sampling = run.segments[0], run.segments[0].sampling
    try:
        if isinstance(threat, bs.AttributeInference):
            distances = np.atleast_1d(np.asarray(threat.distances, dtype=np.float64))
            if threat.counts is not None:
                distances = np.repeat(distances, threat.counts)
            if sampling == "balls-in-bins":
                return None
            known = attributes(truncated(run) if one.max_batch_size else run, distances, sampling)
            return Bracket(known.attained, None) if one.max_batch_size else known
        if one.max_batch_size:
            return Bracket(membership(truncated(run), threat.relation).attained, None)
        if sampling == "fixed-size":
            return fixed_size(run, threat.relation)
        if sampling == "balls-in-bins":
            return balls_in_bins(run, threat.relation, np.random.default_rng([31, int(one.steps)]))
        return membership(run, threat.relation, threat.records)
    except TooLongError:
        return None
