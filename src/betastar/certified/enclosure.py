"""Certified interval: the run on a grid from above and from below, refined until the interval is narrow enough.

Membership: the pair itself from both sides. Attribute distances below 2: the dynamic programme of `adaptive` from both sides
(`enclose`), and `certify` as a second opinion and where the programme has no affordable grid: the glued curve from above,
which bounds every admissible run, and from below the two fixed pairs that are known to do most damage (theory, section 2): the
pair on a line, and the symmetric pair of the plane with its outcome rounded to small rectangles, which only weakens the
attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar import closed_forms, coins
from betastar.certified import adaptive, grid
from betastar.certified.grid import PAD, Blends, GridStep, Nodes, on_grid, one_sided, two_sided
from betastar.certified.kernels import weights
from betastar.certified.tails import on_tails
from betastar.curves import Curve, DiscreteCurve, LeastCurve
from betastar.exact import LEAST_NOISE
from betastar.steps.base import EPS, Step, Tails, attained_steps
from betastar.steps.poisson import PoissonStep, all_poisson

#: How much an answer may take: milliseconds, a tenth of a second, or seconds where attackers adapt.
EFFORTS = ("quick", "normal", "best")
#: Smallest distance: the other gradient is at 1 - distance, which keeps few digits of a smaller one.
NEAREST = 1e-12
#: The largest number below 1, which β* does not reach when anything leaks.
BELOW_ONE = float(np.nextafter(1.0, 0.0))
#: More than rounding changes of β*.
CONTRADICTION = 1e-9
#: Where β* is surely below this, one grid that works is enough.
NOTHING_LEFT = 1e-6
#: Different steps up to which the programme takes its time.
FEW_DIFFERENT = 4
#: Tolerance of the glued curve beside the programme, as a share of the advantage: it is better far out, if anywhere.
SECOND = 0.02
#: Most distances that are put on the grid, in all.
MOST_DISTANCES = 512
#: Points of the composed law, at few frequencies and with a fast transform: what takes milliseconds, and what fits in memory.
SIZES = ((1 << 17, 1 << 19), (1 << 22, 1 << 23))
#: Different steps that are put on the grid of a fast transform; more are rounded up to that many distances.
LEVELS = 64
#: Deviation of the loss beyond which the first grid does not get coarser.
WIDEST_SPREAD = 64.0
#: Steps from which on their law may be smooth enough to be composed at few frequencies.
MANY_STEPS = 16
#: Nodes per octave there, times the root of the tolerance; rounds, each with twice as many nodes.
NODES, NODE_ROUNDS = 0.3, 4
#: Tolerance that decides how fine the first grids are where a larger one is asked for: coarser ones save nothing.
COARSEST = 3e-4
#: An interval that is not narrower by this factor does not get narrower on finer grids, if a step is tabulated.
NO_NARROWER = 0.6
#: Steps that leak less than this share of the whole do not decide how fine the lattice is.
SMALL_SHARE = 1e-4
#: Length of the intervals of the line pair, and side of the rectangles of the symmetric pair, in standard deviations.
INTERVAL, CELL = 0.01, 0.05
#: Different distances of the line pair and of the symmetric pair; more are rounded down, where every pair is admissible.
LINE_LEVELS, PLANE_LEVELS = 256, 64
#: Steps of the grids that are tried, in units of the first one.
WIDER = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class Certificate:
    """Curves that enclose the truth: `above` dominates every admissible run, each of `below` is attained or less."""

    above: Curve | None
    below: tuple[Curve, ...]
    lower: float
    upper: float
    #: The ends are the adaptive programme's: no attack is known that is better than the one of `upper`.
    adaptive: bool = False


def enclose(
    steps: Sequence[Step], in_order: Sequence[PoissonStep] | None, tolerance: float, effort: str, both_ends: bool = True
) -> Certificate:
    """Enclose β* of a symmetric threat. in_order: steps in their order that dominate those of the run; None if it is not known.

    Each end is the better of the adaptive programme's and of `certify`'s. both_ends: as for `certify`.
    """
    steps = [step for step in steps if step.leaks]
    solution = _adapted(steps, in_order, effort, both_ends)
    if solution is None:
        return certify(steps, True, tolerance, both_ends)
    above, below = solution.above, solution.below
    advantage = float(above.values[0])
    rough = max(tolerance, SECOND * advantage)
    second = certify(steps, True, rough, both_ends and below is None)
    if effort == "best" and rough > tolerance and second.lower + rough > 1.0 - advantage:
        # It may be the better one after all, as for a histogram or distances near 2.
        second = certify(steps, True, tolerance, both_ends and below is None)
    lower = min(max(1.0 - advantage, second.lower), BELOW_ONE)
    upper = second.upper if below is None else min(second.upper, 1.0 - float(below.values[0]))
    if both_ends and all_poisson(steps):
        upper = min(upper, closed_forms.bounds(0.0, closed_forms.total("symmetric", steps))[2])
    curve = above if second.above is None else LeastCurve(above, second.above)
    return Certificate(curve, second.below if below is None else (below,), _not_above(lower, upper), upper, True)


def _not_above(lower: float, upper: float) -> float:
    """The lower end, which is above the upper one by rounding at most: two proofs may not contradict each other."""
    if lower > upper + CONTRADICTION:
        raise RuntimeError(f"two proofs contradict each other: β* ≥ {lower!r} and β* ≤ {upper!r}. Please report this run.")
    return min(lower, upper)


def _adapted(
    steps: Sequence[Step], in_order: Sequence[PoissonStep] | None, effort: str, both_ends: bool
) -> adaptive.Solution | None:
    """The worst case of attackers who adapt; None where they gain nothing, or other bounds are better."""
    count = sum(step.count for step in steps)
    if in_order is None or count <= 1 or effort == "quick" or attained_steps(steps, True) == steps:
        return None
    in_order = [step for step in in_order if step.leaks]
    if effort == "normal":
        return adaptive.solve(in_order, adaptive.COARSE_PROVED, False)
    different = len(adaptive.counted(in_order))
    if different <= FEW_DIFFERENT:
        fineness = adaptive.fineness_for(count)
    elif count <= adaptive.MANY_PROVED.alone:
        fineness = adaptive.FEW_PROVED if different <= adaptive.FEW_PROVED.kinds else adaptive.MANY_PROVED
    else:
        fineness = adaptive.LONG_PROVED
    # No attack on the steps of the largest distances need exist.
    return adaptive.solve(in_order, fineness, both_ends and adaptive.counted(in_order) == adaptive.counted(steps))


def certify(steps: Sequence[Step], symmetric: bool, tolerance: float, both_ends: bool = True) -> Certificate:
    """Enclose β*. symmetric: substitution or attributes; otherwise add/remove, where all distances are 1.

    both_ends: also look for attacks that exist, where the dominating curve is not one.
    """
    steps = [step for step in steps if step.leaks]
    if not steps:
        return Certificate(None, (), 1.0, 1.0)
    clamped = [step.clamped(NEAREST) for step in steps]
    if clamped != steps:
        worse = certify(clamped, symmetric, tolerance, both_ends)
        better = certify([step for step in steps if step in clamped], symmetric, tolerance, both_ends)  # an attack on these only
        return Certificate(worse.above, better.below, worse.lower, better.upper)
    if any(step.least_noise < LEAST_NOISE for step in steps):
        noisier = certify([step.with_min_noise(LEAST_NOISE) for step in steps], symmetric, tolerance, both_ends)
        lower = exp(closed_forms.log_never_sampled(steps)) * (1.0 - PAD)
        return _with_coins(
            steps, symmetric, Certificate(closed_forms.noiseless_curve(steps), noisier.below, lower, noisier.upper)
        )

    # By the affinity, which also says how wide the law of the loss is.
    poisson = all_poisson(steps)
    attacked = steps if poisson else attained_steps(steps, symmetric)
    exponent = closed_forms.total("glued" if symmetric else "line", steps)
    least = closed_forms.total("line", attacked)
    if symmetric and both_ends and poisson:
        least = max(least, closed_forms.total("symmetric", attacked))
    lower, _, upper = closed_forms.bounds(closed_forms.largest("glued" if symmetric else "line", steps), least)
    lower = min(lower, BELOW_ONE)
    if any(step.tabulated for step in steps):
        lower, upper = 0.0, 1.0

    # On a grid, unless a single step tells everything.
    hopeless = not poisson and any(step.advantage() >= 1.0 for step in steps)
    enclosed = None if hopeless else refined(steps, symmetric, tolerance, sqrt(8.0 * exponent), upper < NOTHING_LEFT)
    if enclosed is None:
        never = min(exp(closed_forms.log_never_sampled(steps)) * (1.0 - PAD), upper, BELOW_ONE)
        if never > lower:
            return _with_coins(steps, symmetric, Certificate(closed_forms.noiseless_curve(steps), (), never, upper))
        return _with_coins(steps, symmetric, Certificate(None, (), lower, upper))
    above, under, lattice = enclosed
    below: tuple[DiscreteCurve, ...] = ()
    if attained_steps(steps, symmetric) == steps:
        below = (under,)
    elif both_ends:
        below = tuple(_fixed_pairs(attacked, lattice, tolerance) if poisson else _below(attacked, symmetric, lattice, tolerance))
    lower = max(lower, min(1.0 - sum(above.hockey_stick(0.0)), BELOW_ONE))
    for curve in below:
        value, error = curve.hockey_stick(0.0)
        upper = min(upper, 1.0 - (value - error))
    return _with_coins(steps, symmetric, Certificate(above, below, _not_above(lower, upper), upper))


def _with_coins(steps: Sequence[Step], symmetric: bool, known: Certificate) -> Certificate:
    """With what is proved of an attacker who knows when the record takes part, and, with little noise, of one who sees it."""
    poisson = [step for step in steps if isinstance(step, PoissonStep)]
    upper = known.upper
    even = not symmetric or len(poisson) < len(steps) or attained_steps(steps, symmetric) == steps
    told = None if even else coins.told(poisson)
    seen = coins.seen(poisson) if told is not None and any(step.noise < LEAST_NOISE for step in poisson) else None
    above, below, lower = known.above, known.below, known.lower
    if told is not None and 1.0 - sum(told.hockey_stick(0.0)) > lower:
        above, lower = told if above is None else LeastCurve(above, told), 1.0 - sum(told.hockey_stick(0.0))
    if seen is not None:
        value, error = seen.hockey_stick(0.0)
        below, upper = (*below, seen), min(upper, 1.0 - (value - error))
    return replace(known, above=above, below=below, lower=min(_not_above(lower, upper), BELOW_ONE), upper=upper)


def _fixed_pairs(steps: Sequence[Step], lattice: Lattice, tolerance: float) -> list[DiscreteCurve]:
    """The curves of attackers who keep to a pair of gradients, from below."""
    return fixed_pair_curves([step for step in steps if isinstance(step, PoissonStep)], lattice, *losses_given_up(tolerance))


def _below(steps: Sequence[Step], symmetric: bool, lattice: Lattice, tolerance: float) -> list[DiscreteCurve]:
    """The curve of steps that some data attain, from below."""
    slack, rounding = losses_given_up(tolerance)
    laws = [on_grid(step, lattice.nodes, symmetric, False, slack) for step in steps]
    curve = lattice.compose(laws, False, slack, rounding) if laws else None
    return [] if curve is None else [curve]


# A run on grids of losses that get finer, from above and from below, until the interval of β* is as narrow as it shall be.


def losses_given_up(tolerance: float) -> tuple[float, float]:
    """(slack, rounding): the probability of outcomes that are given to the attacker, and what rounding to the grid may cost."""
    return min(1e-12, 1e-3 * tolerance), 1e-2 * tolerance


@dataclass(frozen=True)
class Lattice:
    """Nodes for one step, and how steps on them are composed: at few frequencies, or with a fast transform of all.

    most: points of the composed law, beyond which it is not computed.
    """

    nodes: Nodes
    few_frequencies: bool
    most: int

    def compose(
        self, steps: Sequence[GridStep], above: bool, slack: float, rounding: float, blends: Blends | None = None
    ) -> DiscreteCurve | None:
        """The curve of all steps together; None if this grid does not work."""
        if self.few_frequencies:
            return grid.compose_at_few_frequencies(steps, self.nodes.step, slack, above, self.most, blends)
        return grid.compose(steps, self.nodes.step, slack, rounding, self.most, blends)


def refined(
    steps: Sequence[Step], symmetric: bool, tolerance: float, spread: float, coarse: bool
) -> tuple[DiscreteCurve, DiscreteCurve, Lattice] | None:
    """The run from above and from below on the best grid that was tried, and that grid; None if no grid works.

    spread: standard deviation of the loss, about. The grid gets finer until the interval of β* is as narrow as the tolerance;
    coarse: the first grid that works is fine enough. The curve from below is that of the run itself only if steps of the same
    rate and noise have the same distance; otherwise it tells how fine the grid is.
    """
    tried = _Refinement(steps, symmetric, tolerance, spread, coarse)
    for few, many in SIZES:  # first what takes milliseconds
        if tried.at_few_frequencies(few) or tried.with_a_fast_transform(many):
            return tried.best
    fewer = rounded(steps, LEVELS, up=True)
    if tried.best is None and len(fewer) < len(steps):  # too many to be blended on grids as fine as they need
        return refined(fewer, symmetric, tolerance, spread, coarse)
    return tried.best


class _Refinement:
    """The grids that were tried, the best of them, and how fine the next ones are."""

    def __init__(self, steps: Sequence[Step], symmetric: bool, tolerance: float, spread: float, coarse: bool) -> None:
        self.symmetric, self.tolerance, self.coarse = symmetric, tolerance, coarse
        self.slack, self.rounding = losses_given_up(tolerance)
        self.count = sum(step.count for step in steps)
        self.tabulated = any(step.tabulated for step in steps)
        advantage = sqrt(1.0 - exp(-0.25 * spread * spread))  # at most, by the affinity
        self.steps, self.blends = blended(steps, LEVELS, tolerance / max(advantage, tolerance), self.slack)
        self.root = sqrt(min(tolerance, COARSEST))
        self.sparse = Nodes(_smallest_deviation(self.steps, symmetric) * self.root, ceil(NODES / self.root))
        self.largest = max(spread, *(step.largest_loss(self.slack) for step in steps))
        self.size = min(spread, WIDEST_SPREAD) / 8.0
        self.best: tuple[DiscreteCurve, DiscreteCurve, Lattice] | None = None
        self.narrowest = 2.0

    def at_few_frequencies(self, most: int) -> bool:
        """Ever more nodes, composed at few frequencies, with at most `most` points; whether they are fine enough."""
        for _ in range(NODE_ROUNDS if self.count >= MANY_STEPS else 0):
            width, error = self._enclosed(Lattice(self.sparse, True, most))
            if self._is_enough(width):
                return True
            if error > 0.5 * width or width == inf:
                return False
            self.sparse = Nodes(0.125 * self.sparse.step, 2 * (self.sparse.per_octave or 1))
        return False

    def with_a_fast_transform(self, most: int) -> bool:
        """Ever finer grids of at most `most` points; whether they are fine enough."""
        while self.largest / self.size <= most:
            before = self.narrowest
            width, _ = self._enclosed(Lattice(Nodes(self.size, ceil(1.0 / self.root)), False, most))
            if self._is_enough(width) or (self.tabulated and NO_NARROWER * before < width < inf):
                return True
            self.size *= 0.25 if width == inf else min(0.5, max(0.25, 0.8 * sqrt(self.tolerance / width)))
        return False

    def _is_enough(self, width: float) -> bool:
        return width <= self.tolerance or (self.coarse and self.best is not None)

    def _enclosed(self, on: Lattice) -> tuple[float, float]:
        """(width of the interval of β* on this grid, the part of it that is numerical error); infinite if it does not work."""
        curves = []
        for above in (True, False):
            laws = [on_grid(step, on.nodes, self.symmetric, above, self.slack) for step in self.steps]
            told = any(max(law.ahead_infinite, law.behind_infinite) >= 1.0 for law in laws)  # a single step tells everything
            curve = None if told else on.compose(laws, above, self.slack, self.rounding, self.blends)
            if curve is None:
                return inf, inf
            curves.append(curve)
        (most, most_error), (least, least_error) = (curve.hockey_stick(0.0) for curve in curves)
        width = (most + most_error) - max(least - least_error, 0.0)
        if width < self.narrowest:
            self.best, self.narrowest = (curves[0], curves[1], on), width
        return width, most_error + least_error


@lru_cache(maxsize=32)
def tails(steps: tuple[Step, ...], symmetric: bool) -> tuple[DiscreteCurve | None, DiscreteCurve | None]:
    """Curves from above, and of an attack from below, that have digits far out; None where no grid is affordable."""
    leaking = [step for step in steps if step.leaks]
    if (
        not 0 < len(leaking) <= LEVELS
        or any(step.tabulated or step.least_noise < LEAST_NOISE for step in leaking)
        or [step.clamped(NEAREST) for step in leaking] != leaking
    ):
        return None, None
    deviation = _smallest_deviation(leaking, symmetric)
    above = on_tails(leaking, symmetric, True, deviation)
    if above is None or attained_steps(leaking, symmetric) != leaking:
        return above, None
    return above, on_tails(leaking, symmetric, False, deviation)


def _smallest_deviation(steps: Sequence[Step], symmetric: bool) -> float:
    """Standard deviation of the loss of one step, about √(8λ), least over the steps that count."""
    exponents = [step.factor("glued" if symmetric else "line").exponent() for step in steps]
    total = sum(step.count * exponent for step, exponent in zip(steps, exponents, strict=True))
    counting = [e for step, e in zip(steps, exponents, strict=True) if step.count * e >= SMALL_SHARE * total]
    return sqrt(8.0 * min(counting, default=max(exponents)))


# Many different distances at the price of a few, with a proof (theory, section 4). A step at distance R between two others,
# R₁ ≤ R ≤ R₂, is dominated by a coin that all see: with probability w it shows the step at R₂, otherwise that at R₁. The coin
# errs by the square of R₂ - R₁, rounding up to R₂ by R₂ - R₁.


def rounded(steps: Sequence[Step], levels: int, up: bool) -> list[Step]:
    """About `levels` different distances: rounded up, which covers every pair, or down, where every pair is admissible."""
    others = [step for step in steps if not isinstance(step, PoissonStep)]
    if len(steps) <= levels or len(others) == len(steps):
        return list(steps)
    ordered = sorted(
        (step for step in steps if isinstance(step, PoissonStep)), key=lambda step: (step.rate, step.noise, step.distance)
    )
    so_far = np.cumsum([step.count * step.distance for step in ordered])  # what leaks more gets more levels
    places = np.minimum(levels * so_far / so_far[-1], levels - 1).astype(int).tolist()
    groups: dict[tuple[float, float, int], list[PoissonStep]] = {}
    for place, step in zip(places, ordered, strict=True):
        groups.setdefault((step.rate, step.noise, place), []).append(step)
    pick = max if up else min
    fewer = [
        PoissonStep(rate, noise, pick(step.distance for step in group), sum(step.count for step in group))
        for (rate, noise, _), group in groups.items()
    ]
    return fewer + others


def blended(steps: Sequence[Step], levels: int, accuracy: float, slack: float) -> tuple[list[Step], Blends | None]:
    """(steps to put on the grid, how they are blended) that dominate the given ones; `steps` and None if they are few.

    accuracy: how much larger the advantage may get, about, relative to itself. slack: as for the steps on the grid.
    """
    if len(steps) <= levels:
        return list(steps), None
    groups: dict[tuple[float, float], dict[float, int]] = {}
    others = [step for step in steps if not isinstance(step, PoissonStep)]
    for step in steps:
        if isinstance(step, PoissonStep):
            counts = groups.setdefault((step.rate, step.noise), {})
            counts[step.distance] = counts.get(step.distance, 0) + step.count
    while True:
        nodes: list[Step] = []
        rows: list[tuple[float, int, int, float]] = []
        for (rate, noise), counts in groups.items():
            distances = np.array(sorted(counts, reverse=True))
            total = sum(counts.values())
            ends = _cells(distances, rate, noise, total, accuracy, slack)
            first = len(nodes)
            nodes += [PoissonStep(rate, noise, float(distances[i]), total) for i in ends]
            for cell, (start, end) in enumerate(zip(ends, [*ends[1:], ends[-1]], strict=True)):
                rows.append((counts[float(distances[start])], first + cell, first + cell, 0.0))
                bend = _bend(rate, noise, float(distances[start]), total, slack)
                for i in range(start + 1, end):
                    weight = _weight(float(distances[i]), float(distances[end]), float(distances[start]), bend)
                    rows.append((counts[float(distances[i])], first + cell + 1, first + cell, weight))
        if len(nodes) <= max(MOST_DISTANCES, 2 * len(groups)):
            break
        accuracy *= 2.0
    rows += [(step.count, len(nodes) + i, len(nodes) + i, 0.0) for i, step in enumerate(others)]
    nodes += others
    count, low, high, weights = (np.array(column) for column in zip(*rows, strict=True))
    return nodes, Blends(count.astype(np.float64), low, high, weights)


def _cells(distances: NDArray[Any], rate: float, noise: float, total: int, accuracy: float, slack: float) -> list[int]:
    """Where cells start, from the largest distance on: places of the distances that are put on the grid.

    A coin between R₁ and R₂ = R₁ + d adds about bend·d²/(12·R₁), in the mean over the cell, to an advantage that grows like R.
    """
    ends, i = [0], 0
    while i < len(distances) - 1:
        largest = float(distances[i])
        room = 6.0 * accuracy / _bend(rate, noise, largest, total, slack)  # d² ≤ room·R₁/2: half of what is allowed
        least = largest + 0.25 * room - sqrt((0.25 * room) ** 2 + 0.5 * room * largest)
        i = max(i + 1, int(np.searchsorted(-distances, -least, side="right")) - 1)
        ends.append(i)
    return ends


def _bend(rate: float, noise: float, largest: float, total: int, slack: float) -> float:
    """Bound of -∂²H/∂R² over ∂H/∂R for distances up to the largest and all outcomes that count: (x - 1 + R)/σ²."""
    return (PoissonStep(rate, noise, largest, total).reach(slack) + largest) / (noise * noise) * (1.0 + 16.0 * EPS)


def _weight(distance: float, low: float, high: float, bend: float) -> float:
    """Probability of the larger distance: (1 - e^{-bend·(R - R₁)})/(1 - e^{-bend·(R₂ - R₁)}), rounded up.

    H grows with R and its slope falls by no more than e^{-bend·d} over a distance d: what it has gained at R, as a share of
    what it gains from R₁ to R₂, is largest for a slope that falls just so.
    """
    share = np.expm1(-bend * (distance - low)) / np.expm1(-bend * (high - low))
    return float(min(1.0, share * (1.0 + 64.0 * EPS)))


# Attacks on attributes that exist: the pair on a line and the symmetric pair of the plane, from below (theory, section 2). The
# outcome of the line pair is rounded to intervals and that of the symmetric pair to rectangles, which only weakens the attacker.


def fixed_pair_curves(steps: Sequence[PoissonStep], lattice: Lattice, slack: float, rounding: float) -> list[DiscreteCurve]:
    """Curves that are attained, or less, by the line pair and by the symmetric pair.

    Where the outcomes of a pair are too few for a fine grid, so that its two directions do not fit together, a coarser one is
    used.
    """
    families: tuple[tuple[Callable[[PoissonStep], tuple[NDArray[Any], NDArray[Any]]], int], ...] = (
        (_line_cells, LINE_LEVELS),
        (_plane_cells, PLANE_LEVELS),
    )
    wider = [replace(lattice, nodes=replace(lattice.nodes, step=times * lattice.nodes.step)) for times in WIDER]
    curves = []
    for cells, levels in families:
        laws: list[list[GridStep]] = [[] for _ in wider]
        for step in rounded(steps, levels, up=False):
            assert isinstance(step, PoissonStep)
            gain, mass = cells(step)
            # Differences of close probabilities: give up their rounding error, which mixes P with a little of Q.
            gain *= 1.0 - 64.0 * EPS * (1.0 + step.noise / step.distance)
            for one, on in zip(laws, _from_cells(step.count, gain, mass, [one.nodes for one in wider]), strict=True):
                one.append(on)
        ways = [(i, few) for i in range(len(wider)) for few in ((True, False) if lattice.few_frequencies else (False,))]
        for i, few in ways:
            curve = replace(wider[i], few_frequencies=few).compose(laws[i], False, slack, rounding)
            if curve is not None and curve.error <= rounding:
                curves.append(curve)
                break
    return curves


def _from_cells(count: int, gain: NDArray[Any], mass: NDArray[Any], grids: Sequence[Nodes]) -> list[GridStep]:
    """Dominated grid steps, on several grids, of a pair with finitely many outcomes, given P - Q and Q of each."""
    losses = np.log1p(gain / mass)
    order = np.argsort(losses)
    losses, gain, mass = losses[order], gain[order], mass[order]

    def tails_of(losses: NDArray[Any], gain: NDArray[Any], mass: NDArray[Any]) -> Tails:
        above_gain, above_mass = (
            np.append(np.cumsum(part[::-1], dtype=np.longdouble)[::-1], 0.0).astype(np.float64) for part in (gain, mass)
        )

        def tails(at: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            first = np.searchsorted(losses, at, side="right")
            return above_gain[first], above_mass[first]

        return tails

    ahead = tails_of(losses, gain, mass), float(losses[-1])
    behind = tails_of(-losses[::-1], -gain[::-1], (mass + gain)[::-1]), -float(losses[0])
    advantage = float(gain[losses > 0.0].sum())
    return [
        one_sided(count, nodes, False, float(losses[0]), ahead)
        if losses[0] > -nodes.step
        else two_sided(count, nodes, False, advantage, ahead, behind)
        for nodes in grids
    ]


def _edges(low: float, high: float, width: float = CELL) -> NDArray[Any]:
    return np.linspace(low, high, int((high - low) / width) + 2)


def _line_cells(step: PoissonStep) -> tuple[NDArray[Any], NDArray[Any]]:
    """The pair on a line, rounded to intervals: (P - Q, Q) of each."""
    p, b, sigma = step.rate, (1.0 - step.distance) / step.noise, step.noise
    edges = _edges(min(b, 0.0) - 8.0, 1.0 / sigma + 8.0, INTERVAL)
    other = weights(edges, b)
    return p * (weights(edges, 1.0 / sigma) - other), (1.0 - p) * weights(edges, 0.0) + p * other


def _plane_cells(step: PoissonStep) -> tuple[NDArray[Any], NDArray[Any]]:
    """The symmetric pair of the plane, rounded to rectangles: (P - Q, Q) of each."""
    p, sigma, h = step.rate, step.noise, 0.5 * step.distance
    c = sqrt((1.0 - h) * (1.0 + h))
    along, across = _edges(-8.0, c / sigma + 8.0), _edges(-h / sigma - 8.0, h / sigma + 8.0)
    sampled = weights(along, c / sigma)[:, None]
    first, second = weights(across, h / sigma)[None, :], weights(across, -h / sigma)[None, :]
    unsampled = weights(along, 0.0)[:, None] * weights(across, 0.0)[None, :]
    gain = p * sampled * (first - second)
    mass = (1.0 - p) * unsampled + p * sampled * second
    keep = mass > 1e-30
    return gain[keep], mass[keep]
