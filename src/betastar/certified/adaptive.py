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
from math import ceil, exp, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.certified import kernels
from betastar.certified.grid import FFT_ERROR
from betastar.certified.kernels import Kernel, Laws
from betastar.curves import NodeCurve
from betastar.steps.base import EPS
from betastar.steps.poisson import PoissonStep

#: Half of the grid in standard deviations of the whole run.
WIDTH = 6.5
#: The deficit that all steps may have beyond the largest loss on the grid, in standard deviations: little, or more where
#: rare large losses would take up most of the grid.
BEYOND = (1e-5, 5e-4)
#: Largest log r on the grid. A run with larger losses has no security left.
WIDEST = 60.0
#: Longest tail, in half grids: with rare losses that are so large one hit tells everything, and other bounds are as good.
FARTHEST_TAIL = 5.0
#: Coarsest grid, in standard deviations of one step: beyond it other bounds are better.
COARSEST = 3.0
#: Steps that are taken one by one before the first path.
ALONE = 30
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
#: Rows that a path is predicted with.
GUIDES = 4
#: Where the profile e^{-|x|/2} is smaller than this, what a path lacks is added everywhere.
FAR = 0.1


@dataclass(frozen=True)
class Fineness:
    """How fine the programme is. It changes how close the two ends are, never that they are valid.

    angles: of pairs, from above and from below. nodes: of the grid on either side of 0, at most. inflation: share that splitting
    outcomes between nodes may add to the variance of the loss, if there is room. share, pause: steps at once, as a share of those
    done, from above and (with one pair) from below. cells: widths of the cells of outcomes, in standard deviations.
    """

    angles: tuple[int, int] = (17, 5)
    nodes: int = 16384
    inflation: float = 0.002
    share: float = 0.2
    pause: float = 0.03
    cells: tuple[float, float] = (0.12, 0.05)


#: A figure in less than a tenth of a second, some per cent above the best one; from above only.
COARSE = Fineness((9, 0), 1024, 0.01, 0.7, 0.03, (0.3, 0.15))
#: Both ends in some tenths of a second, one to three per cent apart.
MODERATE = Fineness((13, 5), 6144, 0.005, 0.25, 0.05, (0.15, 0.06))


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
    plan = _plan(steps, fineness) if steps and all(_is_suited(step) for step in steps) else None
    if plan is None:
        return None
    above = plan.above()
    if not np.all(np.isfinite(above)):
        return None
    below = NodeCurve(plan.grid, plan.below(), False) if both_ends else None
    return Solution(NodeCurve(plan.grid, above, True), below)


def _is_suited(step: PoissonStep) -> bool:
    """Whether a grid can be affordable: a record is not always sampled, leaks enough, and under enough noise."""
    leaks_enough = step.rate >= LEAST_RATE and step.distance / step.noise >= LEAST_RATIO
    return step.rate < 1.0 and leaks_enough and step.noise >= kernels.LEAST_NOISE


def _plan(steps: Sequence[PoissonStep], fineness: Fineness) -> _Plan | None:
    """The grid for these steps; None if it would be too coarse."""
    sizes = {one: _size(one) for one in dict.fromkeys(_alone(step) for step in steps)}
    variance = sum(step.count * sizes[_alone(step)][0] ** 2 for step in steps)
    count = sum(step.count for step in steps)
    width = min(WIDTH * sqrt(variance), WIDEST)
    for beyond in BEYOND:
        slack = beyond * min(1.0, sqrt(variance)) / count
        tail = min(max(_tail(one, size[1:], fineness.angles[0], slack) for one, size in sizes.items()), WIDEST)
        if tail <= width:
            break
    if tail > FARTHEST_TAIL * width or WIDTH * sqrt(variance) > WIDEST:
        return None
    finest = {one: _finest(*size, fineness.inflation) for one, size in sizes.items()}
    nodes = fineness.nodes if tail <= width else 3 * fineness.nodes // 4  # a wide kernel costs as much as the grid
    grid = max(min(finest.values()), min(width + tail, 1.5 * width + 1.0) / nodes)
    if grid > COARSEST * sqrt(variance / count):
        return None
    half = min(nodes, ceil((width + tail) / grid))
    if half > CROWDED:
        angles = max(13, fineness.angles[0] * CROWDED // half)
        fineness = replace(fineness, angles=(angles, fineness.angles[1]))
    blocks = [(step, sizes[_alone(step)][0], max(1, ceil(grid / finest[_alone(step)]))) for step in reversed(steps)]
    return _Plan(blocks, fineness, grid, half, tail)


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

    steps: with the deviation of one, and the parts of a cell of the grid that laws of several are composed on. half: nodes of the
    grid on either side of 0. tail: the largest loss of a step that counts.
    """

    def __init__(
        self, steps: Sequence[tuple[PoissonStep, float, int]], fineness: Fineness, grid: float, half: int, tail: float
    ) -> None:
        self.steps, self.fineness, self.grid, self.half, self.tail = steps, fineness, grid, half, tail

    def above(self) -> NDArray[Any]:
        """H at the nodes from 0 on, from above."""
        f, relative, constant = np.zeros(1), 0.0, 0.0
        angles, cells = self.fineness.angles[0], self.fineness.cells
        reach = min(self.half, ceil(self.tail / self.grid) + 1)
        operator: Above | None = None
        for step, _, _, at_once, need in self._blocks(self.fineness.share, False):
            if operator is None or operator.step is not step or need > operator.half:
                every = _kernels(step, self.grid, reach, angles, cells)
                operator = Above(step, self.grid, self._size(need, f), every)
                f = operator.widened(f)
            f, more, everywhere = operator.advance(f, at_once)
            relative, constant = relative + more, constant + everywhere
        assert operator is not None  # there are steps
        return operator.curve(f, relative, constant)

    def below(self) -> NDArray[Any]:
        """H at the nodes from 0 on, from below."""
        f, wrong = np.zeros(1), 0.0
        pairs, cells = self.fineness.angles[1], self.fineness.cells
        operator: Below | None = None
        for step, deviation, fine, at_once, need in self._blocks(self.fineness.pause, True):
            if operator is None or operator.key != (step, at_once) or need > operator.half:
                laws = _laws(step, deviation, at_once, self.grid, fine, self.tail, pairs, cells)
                operator = Below((step, at_once), self.grid, self._size(need, f), laws)
                f = operator.widened(f)
            f, error = operator.once(f)
            wrong += error
        assert operator is not None  # there are steps
        return operator.curve(f, wrong)

    def _blocks(self, share: float, doubling: bool) -> Iterator[tuple[PoissonStep, float, int, int, int]]:
        """(step, its deviation, parts of a cell, steps at once, nodes needed)."""
        spread = 0.0
        for step, deviation, fine in self.steps:
            left = step.count
            while left:
                at_once = min(left, max(1, int(share * (spread / deviation**2 - ALONE))))
                if doubling:  # few different numbers, so that what is computed for each can be used again
                    at_once = 1 << (at_once.bit_length() - 1)
                spread += at_once * deviation**2
                left -= at_once
                need = min(self.half, ceil((WIDTH * sqrt(spread) + self.tail) / self.grid))
                yield step, deviation, fine, at_once, need

    def _size(self, need: int, f: NDArray[Any]) -> int:
        return max(min(self.half, ceil(1.4 * need)), len(f) // 2)


@lru_cache(maxsize=4)
def _kernels(step: PoissonStep, grid: float, most: int, number: int, cells: tuple[float, float]) -> list[Kernel]:
    p, sigma, distance = step.rate, step.noise, step.distance
    angles = step.angles(number)
    width = _width(angles)
    covering = [
        kernels.from_above(
            kernels.spread(p, step.turned(angle), cells),
            kernels.between(p, sigma, distance, angle, width) if width > 0.0 else None,
            grid,
            most,
        )
        for angle in angles.tolist()
    ]
    some = [
        kernels.from_above(kernels.spread(p, pair, cells), None, grid, most) for pair in step.covering_pairs(min(number, FINEST))
    ]
    return kernels.undominated([*covering, *some]) if some else covering


def _width(angles: NDArray[Any]) -> float:
    """Distance of neighbouring angles; 0 if there is only one."""
    return float(angles[1] - angles[0]) if len(angles) > 1 else 0.0


@lru_cache(maxsize=64)
def _laws(
    step: PoissonStep, deviation: float, times: int, grid: float, fine: int, tail: float, number: int, cells: tuple[float, float]
) -> list[Laws]:
    """The laws of the sum of `times` losses, one for each pair."""
    if times == 1:
        return [kernels.rounded(kernels.merged(step.rate, pair, cells), grid, tail) for pair in step.existing_pairs(number)]
    fine = max(1, min(fine, int(LARGEST_LAW * grid / (12.0 * sqrt(times) * deviation + 3.0 * tail))))
    single = _laws(step, deviation, 1, grid / fine, 1, tail, number, cells)
    return [kernels.composed(one, grid / fine, times, deviation, grid) for one in single]


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

    def _drifts(self, f: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """F(f), and how much rounding may have changed it."""
        from scipy.fft import irfft

        spectrum, norm = self._spectrum(f)
        moved = irfft(self.spectra * spectrum, self.length, axis=1)[:, : len(f)]
        # Three transforms (no node is wrong by more than the Euclidean norm), the products, and the kernel itself.
        error = (3.0 * log2(self.length) + 1.0) * FFT_ERROR * self.norm * norm
        return moved + self.source, error + ROUNDING * (self.norm * float(np.abs(f).max()))


class Above(Propagation):
    """f(x) = e^{-x/2}·(min(1, r) - v(r)) from above, for kernels that tell more than their pairs. Profile: e^{-|x|/2}."""

    def __init__(self, step: PoissonStep, grid: float, half: int, kernels: Sequence[Kernel]) -> None:
        self.profile = np.exp(-0.5 * grid * np.abs(np.arange(-half, half + 1)))
        sources = [kernel.source_on(half) * self.profile for kernel in kernels]
        super().__init__(grid, half, [kernel.jump for kernel in kernels], sources)
        # A pair's drift is at most its total variation times the profile, and an average of its hockey-stick divergences, which
        # are sums of that many positive terms.
        terms = max(kernel.terms for kernel in kernels)
        self.step = step
        self.rounding = step.rate * (ROUNDING + (ROUNDING + EPS * terms) * min(1.0, step.distance / step.noise))
        self.widest = int(np.argmax([kernel.jump @ np.arange(-kernel.reach, kernel.reach + 1) ** 2 for kernel in kernels]))

    def beyond(self, f: NDArray[Any], room: int) -> NDArray[Any]:
        """v(r) does not fall beyond the last node, nor does v(r)/r rise before the first one."""
        return f[-1] * np.exp(-0.5 * self.grid * np.arange(1, room + 1))

    def advance(self, f: NDArray[Any], steps: int) -> tuple[NDArray[Any], float, float]:
        """f after `steps` more steps, and what it may be wrong by: relative to the profile, and everywhere."""
        first, error = self._drifts(f)
        if steps == 1:
            end = f + self.best(first)
            return end, self.rounding, error + EPS * float(end.max())
        middle, end = self._predicted(f, steps, self._guides(first))
        violations, _ = self._violations(f, middle, end, steps, first)
        # What the path lacks, as it would spread: the path is corrected once.
        half, whole = self._spread(np.mean(violations, axis=0), steps)
        middle, end = (np.maximum(part, part[::-1]) for part in (middle + half, end + whole))
        violations, more = self._violations(f, middle, end, steps, first)
        lacks = np.maximum(np.max(violations, axis=0), 0.0)
        near = float((lacks / self.profile)[self.profile > FAR].max())
        return end, steps * (near + self.rounding), steps * (max(error, more) + float((lacks - near * self.profile).max()))

    def _violations(
        self, f: NDArray[Any], middle: NDArray[Any], end: NDArray[Any], steps: int, first: NDArray[Any]
    ) -> tuple[list[NDArray[Any]], float]:
        """What the path through these three lacks to be above all drifts, at its Bernstein coefficients, and rounding."""
        w1 = 2.0 * middle - 0.5 * (f + end)
        slope0, slope1 = w1 - f, end - w1
        bend = (slope1 - slope0) / steps**2
        start, finish = 2.0 / steps * slope0 + bend, 2.0 / steps * slope1 + bend
        (second, more), (third, most) = self._drifts(w1), self._drifts(end)
        pace = (start, 0.5 * (start + finish), finish)
        rounding = 16.0 * EPS * float(np.abs(w1).max() + np.abs(end).max())  # of the pace
        lacks = [self.best(drifts) - have for drifts, have in zip((first, second, third), pace, strict=True)]
        return lacks, max(more, most) + rounding

    def _spread(self, change: NDArray[Any], steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """What a constant change of the drift does in half of the steps and in all of them."""
        from scipy.fft import irfft, rfft

        jump = np.minimum(self.spectra[self.widest].real, 0.0)
        still = jump > -1e-13
        power = np.maximum(1.0 + jump, 0.0) ** (0.5 * steps)
        total = np.where(still, 0.5 * steps, (power - 1.0) / np.where(still, 1.0, jump)) * rfft(change, self.length)
        half, whole = (irfft(part, self.length)[: len(change)] for part in (total, total * (1.0 + power)))
        return half, whole

    def _predicted(self, f: NDArray[Any], steps: int, guides: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """About what f is after half of the steps and after all of them: powers of the best of a few rows at each node.

        Shorter and shorter ones: near 0 the best pair changes sides, at every scale down to a single step.
        """
        from scipy.fft import irfft, rfft

        powers = _powers(self.spectra[guides], rfft(self.source[guides], self.length, axis=1), 0.5 * steps)
        stages = []
        for _ in range(2):
            for kept, grown in powers:
                f = self.best(irfft(kept * self._spectrum(f)[0] + grown, self.length, axis=1)[:, : len(f)])
            stages.append(f)
        return stages[0], stages[1]

    def _guides(self, drifts: NDArray[Any]) -> NDArray[Any]:
        """The few rows that are the best at most nodes, counted by how much they change."""
        total = np.bincount(np.argmax(drifts, axis=0), weights=drifts.max(axis=0), minlength=len(drifts))
        return np.sort(np.argsort(-total)[:GUIDES])

    def best(self, rows: NDArray[Any]) -> NDArray[Any]:
        best = rows.max(axis=0)
        return np.maximum(best, best[::-1])

    def curve(self, f: NDArray[Any], relative: float, constant: float) -> NDArray[Any]:
        return (f[self.half :] + constant) * np.exp(0.5 * self.nodes[self.half :]) + relative


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

    def __init__(self, key: tuple[PoissonStep, int], grid: float, half: int, laws: Sequence[Laws]) -> None:
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
        self.key, self.wrong = key, max(one.error for one in laws) + ROUNDING * key[1]
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
