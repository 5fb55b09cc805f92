"""The exact worst case of attribute inference: a dynamic programme over the attacker's choice of pair (theory, section 11).

With r the likelihood ratio so far times a threshold, v(r) = E[min(P, rQ)] of the steps still to come satisfies, backwards,
    v ← min over pairs of E_P[v(r·Q/P)],   starting from min(1, r).
What is kept is the deficit f(x) = e^{-x/2}·(min(1, r) - v(r)) at the nodes x = log r = jΔ. It is even, 0 at first, and one step
turns it into max over pairs of source + f + jump * f (`kernels.Kernel`), a sum of positive terms; f(0) is the advantage.

From above, kernels that tell more than their pairs, of angles so close that `kernels.between` covers those between. From below,
kernels that tell less, of a few angles: the value of a strategy that exists. Many steps at once: f moves along a quadratic path
f(τ), τ = 0…k, given by its Bernstein coefficients w0, w1, w2. A drift F(f) = source + jump * f is affine, so
    f(τ+1) - f(τ) ≥ F(f(τ)) for all τ   if the Bernstein coefficients of both sides, at τ = 0 and τ = k, are so ordered.
The path is predicted, and where it violates this by up to κ relative to ψ = e^{-|x|/2}, k·κ·ψ is added, which is safe since
jump * ψ ≤ 0; so is a constant. From below no such path is needed: the strategy keeps its pair for a block of steps, and
chooses anew by what it saw, so that each block is one step with a composed law.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, expm1, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.certified import kernels
from betastar.certified.grid import FFT_ERROR
from betastar.certified.kernels import Kernel, Laws
from betastar.curves import NodeCurve
from betastar.steps.base import EPS, Step
from betastar.steps.poisson import PoissonStep

#: Half of the grid in standard deviations of the whole run.
WIDTH = 6.5
#: The deficit that all steps may have beyond the largest loss on the grid, in standard deviations: little, or more where
#: rare large losses would take up most of the grid.
BEYOND = (1e-5, 5e-4)
#: Largest log r on the grid. A run with larger losses has no security left.
WIDEST = 60.0
#: Longest tail, in half grids: with rare losses that are so large one hit tells everything, and other bounds are as good.
FARTHEST_TAIL = 20.0
#: Coarsest grid, in standard deviations of one step: beyond it other bounds are better.
COARSEST = 3.0
#: Nodes beyond which fewer pairs are looked at, so that it does not take longer.
CROWDED = 6000
#: Nodes of the law of many steps, on either side of 0, about.
LARGEST_LAW = 1 << 20
#: Cells of angles on a side, at most, of pairs on a circle.
FINEST = 17
#: Rates and ratios R/σ below these are left to other bounds.
LEAST_RATE, LEAST_RATIO = 1e-12, 1e-8
#: Rounding of the probabilities of cells, in units of the rate; and of numbers that are computed without cancellation.
ROUNDING = 256.0 * EPS
#: Two curves that are farther on the wrong side of each other contradict each other.
ROUNDED = 1e-9
#: Rows that a path is predicted with.
GUIDES = 4
#: Share of the leakage whose distances do not decide where the smallest kind is.
NEGLIGIBLE = 0.01
#: A block ends where its first entry ends if that is this much of it.
MOST_OF_A_BLOCK = 0.3
#: Factor of coins, and what they may lack far from α = 1, in all steps, as a share of the deviation of the loss of the run.
MORE, SLACK = 1.0005, 5e-4
#: Steps that a strategy takes one by one before the first block.
ALONE = 30
#: Share of the variance, times the number of kinds, from which on a kind decides how fine the grid is.
RELEVANT = 0.2
#: Share of the largest pace below which prices do not follow the drift of a kind.
AROUND = 0.001
#: Share of f that a block may cost before its steps are taken one by one, if they are not more than that.
POOR, MOST_ALONE = 0.003, 300
#: Rounding of the number of steps of a kind in a block.
NOTHING_OF = 1e-12
#: Where the profile e^{-|x|/2} is smaller than this, what a path lacks is added everywhere.
FAR = 0.1


@dataclass(frozen=True)
class Fineness:
    """How fine the programme is. It changes how close the two ends are, never that they are valid.

    angles: of pairs, from above and from below. nodes: of the grid on either side of 0, at most. inflation: share that splitting
    outcomes between nodes may add to the variance of the loss, if there is room. share, pause: steps at once, as a share of those
    done, from above and (with one pair) from below. cells: widths of the cells of outcomes, in standard deviations. kinds,
    levels: different steps that kernels are computed for, from above and from below. alone: steps that are taken one by one
    before the first path. proved: more steps than kinds are rounded up, and do not become coins between kinds.
    """

    angles: tuple[int, int] = (17, 5)
    nodes: int = 16384
    inflation: float = 0.002
    share: float = 0.2
    pause: float = 0.03
    cells: tuple[float, float] = (0.12, 0.05)
    kinds: int = 12
    levels: int = 128
    alone: int = 30
    proved: bool = True


#: A figure in less than a tenth of a second, some per cent above the best one; from above only.
COARSE = Fineness((9, 0), 1024, 0.01, 0.7, 0.03, (0.3, 0.15), 5, 0, proved=False)
#: The same with a proof.
COARSE_PROVED = replace(COARSE, kinds=16, proved=True)
#: Both ends in some tenths of a second, one to three per cent apart.
MODERATE = Fineness((13, 5), 6144, 0.005, 0.25, 0.05, (0.15, 0.06), 10, 64, 30, False)
#: The same of steps that differ: a few hundred ones, and more.
SHORT = Fineness((13, 5), 8192, 0.001, 0.25, 0.05, (0.15, 0.06), 10, 64, 400, False)
MANY = Fineness((9, 4), 3072, 0.008, 0.35, 0.12, (0.2, 0.08), 8, 64, 400, False)
#: And in longer blocks, from above.
LONG = replace(MANY, alone=100, share=0.4)
#: Many different steps up to which `SHORT` is affordable.
FEW_STEPS = 100
#: And with a proof: distances are rounded up, which is safe, to as many as are affordable.
MANY_PROVED = Fineness((9, 4), 4096, 0.002, 0.25, 0.06, (0.15, 0.06), 48, 96, 400)
FEW_PROVED = replace(MANY_PROVED, angles=(13, 5), kinds=32)
LONG_PROVED = Fineness((9, 4), 3072, 0.004, 0.3, 0.1, (0.15, 0.06), 28, 64, 100)


def fineness_for(count: int) -> Fineness:
    """Fewer steps leave time for more pairs and a finer grid."""
    if count <= 64:
        return Fineness((65, 17), inflation=2e-4, cells=(0.1, 0.025))
    if count <= 3000:
        return Fineness((33, 9), inflation=1e-3, share=0.08, cells=(0.08, 0.035))
    return Fineness((25, 7), share=0.1, cells=(0.1, 0.04)) if count <= 20_000 else Fineness()


@dataclass(frozen=True)
class Solution:
    """The advantage and the curve of the worst case, enclosed. below: None if it was not asked for."""

    above: NodeCurve
    below: NodeCurve | None


def solve(steps: Sequence[PoissonStep], fineness: Fineness, both_ends: bool = True) -> Solution | None:
    """The worst case of these steps, taken in their order; None where other bounds are better than any affordable grid.

    both_ends: also from below.
    """
    return _solve(tuple(step for step in steps if step.leaks), fineness, both_ends)


@lru_cache(maxsize=64)
def _solve(steps: tuple[PoissonStep, ...], fineness: Fineness, both_ends: bool) -> Solution | None:
    """The same, of a tuple of steps that leak. What was asked is kept."""
    plan = _plan(steps, fineness) if steps and all(_is_suited(step) for step in set(steps)) else None
    if plan is None:
        return None
    above = plan.above()
    below = plan.below() if both_ends else np.zeros(1)
    # What is no curve, or is not above the attack, cannot be relied on, nor can the attack: other bounds are there.
    if not np.all(np.isfinite(above)) or np.any(above < -ROUNDED) or np.any(below > above[: len(below)] + ROUNDED):
        return None
    return Solution(NodeCurve(plan.grid, above, True), NodeCurve(plan.grid, below, False) if both_ends else None)


def _is_suited(step: PoissonStep) -> bool:
    """Whether a grid can be affordable: a record is not always sampled, leaks enough, and under enough noise."""
    leaks_enough = step.rate >= LEAST_RATE and step.distance / step.noise >= LEAST_RATIO
    return step.rate < 1.0 and leaks_enough and step.noise >= kernels.LEAST_NOISE


def _plan(steps: Sequence[PoissonStep], fineness: Fineness) -> _Plan | None:
    """The grid for these steps; None if it would be too coarse."""
    counts = counted(steps)
    if fineness.proved:
        table: dict[PoissonStep, Parts] = {step: ((up, 1.0),) for step, up in _rounded(counts, fineness.kinds, True).items()}
    else:
        table = _anchored(counts, fineness.kinds)
    kinds = list(dict.fromkeys(kind for parts in table.values() for kind, _ in parts))
    sizes = {kind: _size(kind) for kind in kinds}
    variances = {one: sum(part * sizes[kind][0] ** 2 for kind, part in parts) for one, parts in table.items()}
    variance = sum(count * variances[one] for one, count in counts.items())
    count = sum(counts.values())
    width = min(WIDTH * sqrt(variance), WIDEST)
    for beyond in BEYOND:
        slack = beyond * min(1.0, sqrt(variance)) / count
        tail = min(max(_tail(kind, size[1:], fineness.angles[0], slack) for kind, size in sizes.items()), WIDEST)
        if tail <= width:
            break
    if tail > FARTHEST_TAIL * width or WIDTH * sqrt(variance) > WIDEST:
        return None
    finest = {kind: _finest(*size, fineness.inflation) for kind, size in sizes.items()}
    nodes = fineness.nodes if tail <= width else 3 * fineness.nodes // 4  # a wide kernel costs as much as the grid
    shares = dict.fromkeys(kinds, 0.0)
    for one, parts in table.items():
        for kind, part in parts:
            shares[kind] += counts[one] * part * sizes[kind][0] ** 2 / variance
    relevant = [kind for kind in kinds if shares[kind] >= RELEVANT / len(kinds)]
    grid = max(min(finest[kind] for kind in relevant), min(width + tail, 1.5 * width + 1.0) / nodes)
    if grid > COARSEST * sqrt(variance / count):
        return None
    half = min(nodes, ceil((width + tail) / grid))
    if half > CROWDED:
        angles = max(13, fineness.angles[0] * CROWDED // half)
        fineness = replace(fineness, angles=(angles, fineness.angles[1]))
    fine = max(max(1, ceil(grid / finest[kind])) for kind in relevant)
    given = SLACK * min(sqrt(variance), 1.0) if any(len(parts) > 1 for parts in table.values()) else 0.0
    return _Plan(_Schedule(steps, table, kinds, variances), fineness, grid, half, tail, fine, given)


#: A step as a coin between kinds: each kind with its probability.
Parts = tuple[tuple[PoissonStep, float], ...]


def _anchored(counts: dict[PoissonStep, int], most: int) -> dict[PoissonStep, Parts]:
    """Each step as itself, if they are few, or as a coin between two of `most` kinds that leaks more, and hardly so.

    H grows with R, and is convex but for α near 1: there H = p·erf(R/(2√2σ)), whose slope falls by no more than e^{-bR} up to a
    distance R₂ = 4bσ², as for `enclosure._weight`. Where it is not quite so, far from α = 1, SLACK is given: no proof.
    """
    groups: dict[tuple[type, float, float], list[PoissonStep]] = {}
    for step in sorted(counts, key=lambda step: step.distance):
        groups.setdefault((type(step), step.rate, step.noise), []).append(step)
    room = max(2, most // len(groups))
    table: dict[PoissonStep, Parts] = {}
    for group in groups.values():
        if len(group) <= room:
            table |= {step: ((step, 1.0),) for step in group}
            continue
        distances = np.array([step.distance for step in group])
        leaking = np.cumsum([step.distance * counts[step] for step in group])
        little = float(distances[np.searchsorted(leaking, NEGLIGIBLE * leaking[-1])])
        anchors = np.append(0.0, np.geomspace(min(little, 0.8 * distances[-1]), distances[-1], room))
        kinds = [replace(group[0], distance=anchor) for anchor in anchors.tolist()]
        for step in group:
            i = max(1, int(np.searchsorted(anchors, step.distance)))
            low, high = float(anchors[i - 1]), float(anchors[i])
            bend = 0.25 * high / step.noise**2
            part = min(expm1(-bend * (step.distance - low)) / expm1(-bend * (high - low)) * (1.0 + 64.0 * EPS), 1.0)
            if part < 1.0:
                part *= MORE
            table[step] = ((kinds[i], part),) if i == 1 or part == 1.0 else ((kinds[i - 1], MORE - part), (kinds[i], part))
    return table


class _Schedule:
    """The steps in reverse, and blocks of them: how many of which kind."""

    def __init__(
        self,
        steps: Sequence[PoissonStep],
        table: dict[PoissonStep, Parts],
        kinds: list[PoissonStep],
        variances: dict[PoissonStep, float],
    ) -> None:
        self.steps, self.kinds = list(reversed(steps)), kinds
        place = {kind: i for i, kind in enumerate(kinds)}
        number = np.array([step.count for step in self.steps], dtype=np.float64)
        self.ends = np.cumsum(number)
        self.parts = np.zeros((len(self.steps), len(kinds)))
        for row, step in zip(self.parts, self.steps, strict=True):
            for kind, part in table[_alone(step)]:
                row[place[kind]] = part
        self.variance = np.array([variances[_alone(step)] for step in self.steps])
        self.taken = np.concatenate([np.zeros((1, len(kinds))), np.cumsum(number[:, None] * self.parts, axis=0)])
        self.spreads = np.append(0.0, np.cumsum(number * self.variance))

    def kinds_until(self, time: float) -> NDArray[Any]:
        """How many of each kind there are in the first steps."""
        i = min(int(np.searchsorted(self.ends, time)), len(self.steps) - 1)
        return self.taken[i + 1] - (self.ends[i] - time) * self.parts[i]

    def numbers(self, start: float, end: float) -> NDArray[Any]:
        """How many steps of each entry lie between these times."""
        return np.diff(np.clip(np.append(0.0, self.ends), start, end))

    def blocks(self, share: float, doubling: bool, alone: int) -> Iterator[tuple[int, int, float]]:
        """(start, end, spread at the end) of each block."""
        time, total = 0, int(self.ends[-1])
        while time < total:
            i = int(np.searchsorted(self.ends, time, side="right"))
            spread = float(self.spreads[i + 1] - (self.ends[i] - time) * self.variance[i])
            left = int(self.ends[i]) - time
            at_once = max(1, int(share * (spread / self.variance[i] - alone)))
            if at_once > left:
                last = min(int(np.searchsorted(self.ends, time + at_once)), len(self.steps) - 1)
                largest = float(self.variance[i : last + 1].max())
                at_once = max(left, int(share * (spread / largest - alone)))
            if MOST_OF_A_BLOCK * at_once <= left < at_once:
                at_once = left
            at_once = min(at_once, total - time)
            if doubling and at_once <= left:  # few different numbers, so that what is computed for each can be used again
                at_once = 1 << (at_once.bit_length() - 1)
            time += at_once
            j = int(np.searchsorted(self.ends, time))
            yield time - at_once, time, float(self.spreads[j + 1] - (self.ends[j] - time) * self.variance[j])


def _alone(step: PoissonStep) -> PoissonStep:
    """One step of these."""
    return replace(step, count=1)


def _size(step: PoissonStep) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Standard deviation of the loss of one step (under √(PQ)) at its largest, and the outcomes of the pair on a line."""
    some = [step.turned(theta) for theta in step.angles(3).tolist()]
    outcomes = [kernels.spread(step.rate, pair, (0.4, 0.1)) for pair in some]
    deviations = [sqrt(float(np.sum(mass * np.exp(0.5 * loss) * loss * loss))) for loss, mass in outcomes]
    return max(deviations), *outcomes[0]


def _tail(step: PoissonStep, outcomes: tuple[NDArray[Any], NDArray[Any]], number: int, slack: float) -> float:
    """The loss beyond which a step has a deficit of `slack`, with what covers the angles between `number` of them."""
    angles = step.angles(number)
    sides = [outcomes]
    for angle in angles[[0, -1]]:
        extra = kernels.between(step.rate, step.noise, step.distance, angle, _width(angles))
        sides += [extra[:2], extra[2:]]
    return max(_beyond(loss, mass, slack) for loss, mass in sides)


def _beyond(loss: NDArray[Any], mass: NDArray[Any], slack: float) -> float:
    """The loss l with H_{e^l} = slack."""
    low, high = 0.0, max(float(loss.max()), 0.0) if loss.size else 0.0
    for _ in range(24):
        middle = 0.5 * (low + high)
        over = loss > middle
        if float((mass[over] * (np.exp(loss[over]) - exp(middle))).sum()) > slack:
            low = middle
        else:
            high = middle
    return high


def _finest(deviation: float, loss: NDArray[Any], mass: NDArray[Any], inflation: float) -> float:
    """The grid on which splitting outcomes between nodes adds this share to the variance of the loss."""
    weight = mass * np.exp(0.5 * loss) / deviation**2
    low, high = 1e-6 * deviation, deviation
    for _ in range(20):
        middle = sqrt(low * high)
        part = np.abs(loss) % middle
        low, high = (low, middle) if float(weight @ (part * (middle - part))) > inflation else (middle, high)
    return low


class _Plan:
    """How the steps are taken, the last one first: the grid grows with the spread of what was done, and so do the blocks.

    half: nodes of the grid on either side of 0. tail: the largest loss of a step that counts. fine: the parts of a cell of the
    grid that laws of several steps of a kind are composed on. given: what coins may lack, in all, relative to the profile.
    """

    def __init__(
        self,
        schedule: _Schedule,
        fineness: Fineness,
        grid: float,
        half: int,
        tail: float,
        fine: int,
        given: float,
    ) -> None:
        self.schedule, self.fineness, self.grid, self.half, self.tail = schedule, fineness, grid, half, tail
        self.fine, self.given = fine, given

    def above(self) -> NDArray[Any]:
        """H at the nodes from 0 on, from above."""
        f, relative, constant = np.zeros(1), self.given, 0.0
        angles, cells = self.fineness.angles[0], self.fineness.cells
        reach = min(self.half, ceil(self.tail / self.grid) + 1)
        every = [_kernels(kind, self.grid, reach, angles, cells) for kind in self.schedule.kinds]
        operator: Above | None = None
        for start, end, spread in self.schedule.blocks(self.fineness.share, False, self.fineness.alone):
            if operator is None or self._need(spread) > operator.half:
                operator = Above(self.schedule.kinds, self.grid, self._size(self._need(spread), f), every)
                f = operator.widened(f)
            with np.errstate(over="ignore", invalid="ignore"):
                after, more, everywhere = operator.advance(f, end - start, self._numbers(start, end))
            poor = not more + everywhere <= POOR * float(after.max())
            if poor and 1 < end - start <= MOST_ALONE:  # no prices serve all kinds: one by one
                after, more, everywhere = f, 0.0, 0.0
                for time in range(start, end):
                    after, some, other = operator.advance(after, 1, self._numbers(time, time + 1))
                    more, everywhere = more + some, everywhere + other
            f, relative, constant = after, relative + more, constant + everywhere
        assert operator is not None  # there are steps
        return operator.curve(f, relative, constant)

    def below(self) -> NDArray[Any]:
        """H at the nodes from 0 on, from below."""
        f, wrong = np.zeros(1), 0.0
        laws = _StrategyLaws(self)
        operator: Below | None = None
        for start, end, spread in self.schedule.blocks(self.fineness.pause, True, ALONE):
            key = laws.key(start, end)
            if operator is None or operator.key != key or self._need(spread) > operator.half:
                operator = Below(key, end - start, self.grid, self._size(self._need(spread), f), laws.of(key))
                f = operator.widened(f)
            f, error = operator.once(f)
            wrong += error
        assert operator is not None  # there are steps
        return operator.curve(f, wrong)

    def _numbers(self, start: int, end: int) -> NDArray[Any]:
        """How many steps of each kind there are in a block."""
        numbers = self.schedule.kinds_until(end) - self.schedule.kinds_until(start)
        return np.where(numbers > NOTHING_OF * (end - start), numbers, 0.0)

    def _need(self, spread: float) -> int:
        return min(self.half, ceil((WIDTH * sqrt(spread) + self.tail) / self.grid))

    def _size(self, need: int, f: NDArray[Any]) -> int:
        return max(min(self.half, ceil(1.4 * need)), len(f) // 2)


@lru_cache(maxsize=64)
def _kernels(step: PoissonStep, grid: float, most: int, number: int, cells: tuple[float, float]) -> list[Kernel]:
    """Kernels above every pair, in the order of their angles."""
    angles = step.angles(number)
    width = _width(angles)
    covering = [
        kernels.from_above(
            kernels.spread(step.rate, step.turned(angle), cells),
            kernels.between(step.rate, step.noise, step.distance, angle, width) if width > 0.0 else None,
            grid,
            most,
        )
        for angle in angles.tolist()
    ]
    some = [
        kernels.from_above(kernels.spread(step.rate, pair, cells), None, grid, most)
        for pair in step.covering_pairs(min(number, FINEST))
    ]
    return kernels.undominated([*covering, *some]) if some else covering


def _width(angles: NDArray[Any]) -> float:
    """Distance of neighbouring angles; 0 if there is only one."""
    return float(angles[1] - angles[0]) if len(angles) > 1 else 0.0


@lru_cache(maxsize=256)
def _laws(
    step: PoissonStep, deviation: float, times: int, grid: float, fine: int, tail: float, number: int, cells: tuple[float, float]
) -> list[Laws]:
    """The laws of the sum of `times` losses, one for each pair."""
    if times == 1:
        return [kernels.rounded(kernels.merged(step.rate, pair, cells), grid, tail) for pair in step.existing_pairs(number)]
    fine = max(1, min(fine, int(LARGEST_LAW * grid / (12.0 * sqrt(times) * deviation + 3.0 * tail))))
    single = _laws(step, deviation, 1, grid / fine, 1, tail, number, cells)
    return [kernels.composed([(one, times)], grid / fine, times * deviation**2, grid) for one in single]


class _StrategyLaws:
    """Laws of blocks for an attacker who keeps the pair, in terms of shares of the widest angle, for a block.

    Of many distances some are rounded down: a smaller distance is admissible.
    """

    def __init__(self, plan: _Plan) -> None:
        self.plan, schedule = plan, plan.schedule
        alone = [_alone(step) for step in schedule.steps]
        levels = _rounded(counted(schedule.steps), plan.fineness.levels, False)
        self.levels = list(dict.fromkeys(levels.values()))
        place = {level: i for i, level in enumerate(self.levels)}
        self.which = np.array([place[levels[one]] for one in alone])
        self.deviation = [_deviation(level) for level in self.levels]

    def key(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """(level, times) of a block."""
        numbers = self.plan.schedule.numbers(start, end)
        times = np.bincount(self.which, numbers, len(self.levels))
        return tuple((int(i), round(float(times[i]))) for i in np.flatnonzero(times > 0.5))

    def of(self, key: tuple[tuple[int, int], ...]) -> list[Laws]:
        """The laws of the sum of the losses of a block, one for each pair."""
        plan, number, cells = self.plan, self.plan.fineness.angles[1], self.plan.fineness.cells
        if len(key) == 1:
            ((level, times),) = key
            return _laws(self.levels[level], self.deviation[level], times, plan.grid, plan.fine, plan.tail, number, cells)
        variance = sum(times * self.deviation[level] ** 2 for level, times in key)
        fine = max(1, min(plan.fine, int(LARGEST_LAW * plan.grid / (12.0 * sqrt(variance) + 3.0 * plan.tail))))
        grid = plan.grid / fine
        single = [_laws(self.levels[level], self.deviation[level], 1, grid, 1, plan.tail, number, cells) for level, _ in key]
        most = max(map(len, single))
        single = [some * most if len(some) == 1 else some for some in single]  # at distance 2 there is only one pair
        return [
            kernels.composed([(one, times) for one, (_, times) in zip(pairs, key, strict=True)], grid, variance, plan.grid)
            for pairs in zip(*single, strict=True)
        ]


def counted(steps: Sequence[Step]) -> dict[Any, int]:
    """How many there are of each step that leaks."""
    counts: dict[Any, int] = {}
    for step in steps:
        if step.leaks:
            alone = replace(step, count=1)  # type: ignore[type-var]
            counts[alone] = counts.get(alone, 0) + step.count
    return counts


@lru_cache(maxsize=1024)
def _deviation(step: PoissonStep) -> float:
    return _size(step)[0]


def _rounded(counts: dict[PoissonStep, int], most: int, up: bool) -> dict[PoissonStep, PoissonStep]:
    """For each step one of about `most` different ones, which leaks more, or less, and hardly so."""
    groups: dict[tuple[float, float], list[PoissonStep]] = {}
    for step in counts:
        groups.setdefault((step.rate, step.noise), []).append(step)
    room = max(1, most // len(groups))
    table: dict[PoissonStep, PoissonStep] = {}
    for group in groups.values():
        group.sort(key=lambda step: step.distance, reverse=up)
        leaking = np.cumsum([counts[step] * step.distance for step in group])
        places = np.arange(len(group))
        if len(group) > room:
            places = np.minimum(room * (leaking - leaking[0]) / leaking[-1], room - 1).astype(int)
        first: dict[int, PoissonStep] = {}
        for place, step in zip(places.tolist(), group, strict=True):
            table[step] = first.setdefault(place, step)
    return table


# What a step does to a function of the likelihood ratio on a grid, for many pairs at once, with Fourier transforms.
#
# Two functions are followed: the worst case from above (`Above`), and a strategy that exists (`Below`).


class Propagation:
    """Drifts F(f) = source + jump * f, one a row, on the nodes -half…half."""

    def __init__(self, grid: float, half: int, jumps: Sequence[NDArray[Any]], sources: Sequence[NDArray[Any]]) -> None:
        from scipy.fft import next_fast_len, rfft

        self.grid, self.half = grid, half
        self.length = next_fast_len(2 * half + 1 + 2 * max(len(jump) // 2 for jump in jumps), real=True)
        rows = np.zeros((len(jumps), self.length))
        for row, jump in zip(rows, jumps, strict=True):
            row[np.arange(-(len(jump) // 2), len(jump) // 2 + 1)] = jump
        self.spectra: NDArray[Any] = rfft(rows, axis=1)
        self.source = np.array(sources)
        self.norm = max(float(np.abs(jump).sum()) for jump in jumps)
        self.nodes = grid * np.arange(-half, half + 1)

    def beyond(self, f: NDArray[Any], room: int) -> NDArray[Any]:
        """f at `room` nodes beyond the last one, and on the other side."""
        raise NotImplementedError

    def widened(self, f: NDArray[Any]) -> NDArray[Any]:
        more = self.beyond(f, self.half - len(f) // 2)
        return np.concatenate([more[::-1], f, more])

    def _spectrum(self, f: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """The transform of f, continued beyond the grid, and its norm."""
        from scipy.fft import rfft

        room = (self.length - len(f)) // 2
        beyond = self.beyond(f, room)
        whole = np.zeros(self.length)
        whole[: len(f)], whole[len(f) : len(f) + room], whole[self.length - room :] = f, beyond, beyond[::-1]
        return rfft(whole), sqrt(float(np.sum(whole * whole)))

    def _drifts(self, f: NDArray[Any], rows: Any = slice(None)) -> tuple[NDArray[Any], float]:
        """F(f) of some rows, and how much rounding may have changed it."""
        from scipy.fft import irfft

        spectrum, norm = self._spectrum(f)
        moved = irfft(self.spectra[rows] * spectrum, self.length, axis=1)[:, : len(f)]
        # Three transforms (no node is wrong by more than the Euclidean norm), the products, and the kernel itself.
        error = (3.0 * log2(self.length) + 1.0) * FFT_ERROR * self.norm * norm
        return moved + self.source[rows], error + ROUNDING * (self.norm * float(np.abs(f).max()))


class Above(Propagation):
    """f(x) = e^{-x/2}·(min(1, r) - v(r)) from above, for kernels that tell more than their pairs. Profile: e^{-|x|/2}."""

    def __init__(self, kinds: Sequence[PoissonStep], grid: float, half: int, every: Sequence[Sequence[Kernel]]) -> None:
        self.profile = np.exp(-0.5 * grid * np.abs(np.arange(-half, half + 1)))
        kernels = [kernel for some in every for kernel in some]
        sources = [kernel.source_on(half) * self.profile for kernel in kernels]
        super().__init__(grid, half, [kernel.jump for kernel in kernels], sources)
        self.kind = np.repeat(np.arange(len(kinds)), [len(some) for some in every])
        self.angle = np.concatenate([np.arange(len(some)) for some in every])
        # A pair's drift is at most its total variation times the profile, and an average of its hockey-stick divergences, which
        # are sums of that many positive terms.
        self.rounding = np.array(
            [
                kind.rate
                * (ROUNDING + (ROUNDING + EPS * max(kernel.terms for kernel in some)) * min(1.0, kind.distance / kind.noise))
                for kind, some in zip(kinds, every, strict=True)
            ]
        )
        self.variance = np.array([kernel.jump @ np.arange(-kernel.reach, kernel.reach + 1) ** 2 for kernel in kernels])

    def beyond(self, f: NDArray[Any], room: int) -> NDArray[Any]:
        """v(r) does not fall beyond the last node, nor does v(r)/r rise before the first one."""
        return f[-1] * np.exp(-0.5 * self.grid * np.arange(1, room + 1))

    def advance(self, f: NDArray[Any], steps: int, numbers: NDArray[Any]) -> tuple[NDArray[Any], float, float]:
        """f after `steps` more steps, and what it may be wrong by: relative to the profile, and everywhere.

        numbers: how many there are of each kind, in any order.
        """
        kinds = np.flatnonzero(numbers)
        rows = np.flatnonzero(np.isin(self.kind, kinds))
        numbers, of = numbers[kinds], np.searchsorted(kinds, self.kind[rows])
        first, error = self._drifts(f, rows)
        rounding = float(numbers @ self.rounding[kinds])
        if steps == 1:
            change = sum(number * self.best(first[of == i]) for i, number in enumerate(numbers.tolist()))
            end = f + change
            return end, rounding, error + 8.0 * EPS * float(end.max())
        block = _Block(steps, numbers, of, rows)
        middle, end = self._predicted(f, block, self._guides(first, block))
        violations, _ = self._violations(f, middle, end, block, first)
        if len(kinds) > 1:  # prices that serve all nodes add up to more than the steps: the path goes on so much faster
            middle, end = (f + block.scale * (part - f) for part in (middle, end))
            violations, _ = self._violations(f, middle, end, block, first)
        # What the path lacks, as it would spread: the path is corrected once.
        half, whole = self._spread(np.mean(violations, axis=0), block)
        middle, end = (np.maximum(part, part[::-1]) for part in (middle + half, end + whole))
        violations, more = self._violations(f, middle, end, block, first)
        lacks = np.maximum(np.max(violations, axis=0), 0.0)
        near = float((lacks / self.profile)[self.profile > FAR].max())
        error = max(error, more) / min(1.0, float(block.prices.min()))
        return end, steps * near + rounding, steps * (error + float((lacks - near * self.profile).max()))

    def _violations(
        self, f: NDArray[Any], middle: NDArray[Any], end: NDArray[Any], block: _Block, first: NDArray[Any]
    ) -> tuple[list[NDArray[Any]], float]:
        """What the path through these three lacks to be above all drifts, at its Bernstein coefficients, and rounding.

        A step of a kind with the price c goes on by c along the path, f(τ + c) - f(τ) = c·f' + c²·f''/2: prices add up to the
        number of steps, and no order of the steps gets farther.
        """
        steps = block.steps
        w1 = 2.0 * middle - 0.5 * (f + end)
        slope0, slope1 = w1 - f, end - w1
        bend = (slope1 - slope0) / steps**2
        if len(block.numbers) > 1:
            bend = np.minimum(bend, 0.0) * max(1.0, float(block.prices.max()))
        start, finish = 2.0 / steps * slope0 + bend, 2.0 / steps * slope1 + bend
        (second, more), (third, most) = self._drifts(w1, block.rows), self._drifts(end, block.rows)
        pace = (start, 0.5 * (start + finish), finish)
        rounding = 16.0 * EPS * float(np.abs(w1).max() + np.abs(end).max())  # of the pace
        if len(block.numbers) == 1:
            tops = [self.best(drifts) for drifts in (first, second, third)]
        else:
            each = [[self.best(drifts[block.of == i]) for i in range(len(block.numbers))] for drifts in (first, second, third)]
            if not block.priced:
                floors = [have + AROUND * float(have.max()) for have in pace]
                ratios = [[float((one / most).max()) for one in some] for some, most in zip(each, floors, strict=True)]
                block.set_prices(np.max(ratios, axis=0))
            tops = [np.max(np.array(some) / block.prices[:, None], axis=0) for some in each]
        return [top - have for top, have in zip(tops, pace, strict=True)], max(more, most) + rounding

    def _spread(self, change: NDArray[Any], block: _Block) -> tuple[NDArray[Any], NDArray[Any]]:
        """What a constant change of the drift does in half of the steps and in all of them."""
        from scipy.fft import irfft, rfft

        jump = np.zeros(self.spectra.shape[1])
        for i, number in enumerate(block.numbers.tolist()):
            some = block.rows[block.of == i]
            jump += number / block.steps * self.spectra[some[np.argmax(self.variance[some])]].real
        jump = np.minimum(jump, 0.0)
        still = jump > -1e-13
        power = np.maximum(1.0 + jump, 0.0) ** (0.5 * block.steps)
        total = np.where(still, 0.5 * block.steps, (power - 1.0) / np.where(still, 1.0, jump)) * rfft(change, self.length)
        half, whole = (irfft(part, self.length)[: len(change)] for part in (total, total * (1.0 + power)))
        return half, whole

    def _predicted(
        self, f: NDArray[Any], block: _Block, guides: tuple[NDArray[Any], NDArray[Any]]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """About what f is after half of the steps and after all of them: powers of the best of a few rows at each node.

        Shorter and shorter ones: near 0 the best pair changes sides, at every scale down to a single step.
        """
        from scipy.fft import irfft, rfft

        spectra, source = guides
        powers = _powers(spectra, rfft(source, self.length, axis=1), 0.5 * block.steps)
        stages = []
        for _ in range(2):
            for kept, grown in powers:
                f = self.best(irfft(kept * self._spectrum(f)[0] + grown, self.length, axis=1)[:, : len(f)])
            stages.append(f)
        return stages[0], stages[1]

    def _guides(self, drifts: NDArray[Any], block: _Block) -> tuple[NDArray[Any], NDArray[Any]]:
        """The few angles that are the best at most nodes, counted by how much they change: means of their rows of all kinds."""
        angles, total = self.angle[block.rows], np.zeros(int(self.angle.max()) + 1)
        for i, number in enumerate(block.numbers.tolist()):
            some = drifts[block.of == i]
            total += number * np.bincount(angles[block.of == i][np.argmax(some, axis=0)], some.max(axis=0), len(total))
        chosen = np.sort(np.argsort(-total)[: min(GUIDES, len(total))])
        if len(block.numbers) == 1:
            rows = block.rows[np.isin(angles, chosen)]
            return self.spectra[rows], self.source[rows]
        shares = np.zeros((len(chosen), len(self.kind)))
        for i, number in enumerate(block.numbers.tolist()):
            some = block.rows[block.of == i]
            for row, angle in zip(shares, chosen, strict=True):
                row[some[np.argmin(np.abs(self.angle[some] - angle))]] += number / block.steps
        return shares[:, block.rows] @ self.spectra[block.rows], shares[:, block.rows] @ self.source[block.rows]

    def best(self, rows: NDArray[Any]) -> NDArray[Any]:
        best = rows.max(axis=0)
        return np.maximum(best, best[::-1])

    def curve(self, f: NDArray[Any], relative: float, constant: float) -> NDArray[Any]:
        return (f[self.half :] + constant) * np.exp(0.5 * self.nodes[self.half :]) + relative


class _Block:
    """Steps that are taken at once: how many, of which kinds, and the prices of these in terms of steps; rows and their kinds."""

    def __init__(self, steps: int, numbers: NDArray[Any], of: NDArray[Any], rows: NDArray[Any]) -> None:
        self.steps, self.numbers, self.of, self.rows = steps, numbers, of, rows
        self.prices, self.priced, self.scale = np.ones(len(numbers)), False, 1.0

    def set_prices(self, values: NDArray[Any]) -> None:
        """In proportion to these, such that all steps together cost their number."""
        prices = np.maximum(values, 1e-3 * values.max())
        self.scale = float(self.numbers @ prices) / self.steps
        self.prices, self.priced = prices / self.scale, True


def _powers(jumps: NDArray[Any], source: NDArray[Any], steps: float) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """K^n and (1 + … + K^(n-1))·source, K = 1 + jump, for steps·(1/2 + 1/4 + … + 2^-m + 2^-m), by squaring."""
    still = np.abs(jumps) < 1e-12
    kept = 1.0 + jumps
    halvings = max(0, ceil(log2(steps)))
    size = steps / 2**halvings
    power = np.exp(size * np.log(np.where(np.abs(kept) < 1e-200, 1e-200, kept)))
    total = np.where(still, size, (power - 1.0) / np.where(still, 1.0, jumps))
    powers = [(power, total * source)] * (2 if halvings else 1)
    for _ in range(halvings - 1):
        total, power = total * (1.0 + power), power * power
        powers.insert(0, (power, total * source))
    return powers


class Below(Propagation):
    """f(x) = A(x) - 1{x>0} - ½·1{x=0}, where A(x) is the probability under P of deciding for Q, by a strategy that starts at x.

    Its state is log r, rounded at random to a node after each step; it decides by the sign at the end, and when it leaves the
    grid. By symmetry it decides for P under Q with probability A(-x), so that v(r) ≤ A(x) + r·A(-x). Profile: 1.
    Rows: the pairs, and then the same with P and Q exchanged, as they are used at -x.
    """

    def __init__(self, key: Any, times: int, grid: float, half: int, laws: Sequence[Laws]) -> None:
        jumps = [one.first for one in laws] + [one.second[::-1] for one in laws]
        sources = []
        for jump in jumps:
            # The mass that moves from x > 0 to below 0 counts as decided for P, and the other way round; half of it at 0.
            reach = len(jump) // 2
            total = np.append(0.0, np.cumsum(jump))
            step_up = 0.5 * (total[1:] + total[:-1])  # Σ_{l<i} + half of l = i: the change of A at the node i, for all i
            source = np.zeros(2 * half + 1)
            inside = min(half, reach)
            source[half - inside : half + inside + 1] = step_up[reach - inside : reach + inside + 1]
            sources.append(source)
        super().__init__(grid, half, jumps, sources)
        self.key, self.wrong = key, max(one.error for one in laws) + ROUNDING * times
        self.ratio = np.exp(self.nodes[half:])

    def beyond(self, f: NDArray[Any], room: int) -> NDArray[Any]:
        return np.zeros(room)

    def once(self, f: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """f before one more block, with the best pair at each node, and what rounding may have changed."""
        drifts, error = self._drifts(f)
        return f + self._picked(drifts, self._choice(drifts)), error + self.wrong

    def _choice(self, rows: NDArray[Any]) -> NDArray[Any]:
        """At each node from 0 on the row that makes A(x) + r·A(-x) smallest."""
        other = np.roll(rows, len(rows) // 2, axis=0)[:, self.half :: -1]
        return np.argmin(rows[:, self.half :] + self.ratio * other, axis=0)

    def _picked(self, rows: NDArray[Any], choice: NDArray[Any]) -> NDArray[Any]:
        right = np.take_along_axis(rows[:, self.half :], choice[None, :], axis=0)[0]
        opposite = (choice + len(rows) // 2) % len(rows)
        left = np.take_along_axis(rows[:, self.half :: -1], opposite[None, :], axis=0)[0]
        return np.concatenate([left[:0:-1], [0.5 * (left[0] + right[0])], right[1:]])

    def curve(self, f: NDArray[Any], wrong: float) -> NDArray[Any]:
        return -(f[self.half :] + wrong) - self.ratio * (f[self.half :: -1] + wrong)
