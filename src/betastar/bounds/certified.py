"""Certified interval: the run on a grid from above and from below, refined until the interval is narrow enough.

Membership: the pair itself from both sides. Attribute distances below 2: the glued curve from above, which bounds every
admissible run, and from below the two fixed pairs that are known to do most damage (theory, section 2): the pair on a line,
and the symmetric pair of the plane with its outcome rounded to small rectangles, which only weakens the attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, exp, inf, log1p, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from betastar.arrays import Real
from betastar.bounds import affinity, band_limited, no_noise, transform
from betastar.bounds.discrete import DiscreteCurve
from betastar.bounds.exact import LEAST_NOISE
from betastar.bounds.grid import EPS, PAD, GridStep, Nodes, Tails, compose, one_sided, two_sided
from betastar.scenario.step import Step, head, loss, one_step_advantage, tail, threshold, visible

#: Length of the intervals of the line pair, and side of the rectangles of the symmetric pair, in standard deviations.
INTERVAL, CELL = 0.01, 0.05
#: Different steps that are put on the grid; more are rounded to that many distances, outwards.
LEVELS = 64
#: Smallest distance: the other gradient is at 1 - distance, which keeps few digits of a smaller one.
NEAREST = 1e-12
#: The largest number below 1, which β* does not reach when anything leaks.
BELOW_ONE = float(np.nextafter(1.0, 0.0))
#: Add/remove: where all losses below 0 lie within so many cells, two sides would be too coarse to fit together.
FEW_CELLS = 8.0
#: Where β* is surely below this, one grid that works is enough.
NOTHING_LEFT = 1e-6
#: Points of the composed law, at few frequencies and with a fast transform: what takes milliseconds, and what fits in memory.
SIZES = ((1 << 17, 1 << 19), (1 << 22, 1 << 23))
#: Deviation of the loss beyond which the first grid does not get coarser.
WIDEST_SPREAD = 64.0
#: Steps from which on their law may be smooth enough to be composed at few frequencies.
MANY_STEPS = 16
#: Nodes per octave there, times the root of the tolerance; rounds, each with twice as many nodes.
NODES, NODE_ROUNDS = 0.3, 4
#: Steps that leak less than this share of the whole do not decide how fine the lattice is.
SMALL_SHARE = 1e-4


@dataclass(frozen=True)
class Certificate:
    """Curves that enclose the truth: `above` dominates every admissible run, each of `below` is attained or less."""

    above: DiscreteCurve | None
    below: tuple[DiscreteCurve, ...]
    lower: float
    upper: float


def certify(steps: Sequence[Step], symmetric: bool, tolerance: float, attained: bool = True) -> Certificate:
    """Enclose β*. symmetric: substitution or attributes; otherwise add/remove, where all distances are 1.

    attained: also look for attacks that exist, where the dominating curve is not one.
    """
    steps = [step for step in steps if step.distance > 0.0]
    if not steps:
        return Certificate(None, (), 1.0, 1.0)
    if (more := [visible(step, NEAREST) for step in steps]) != steps:
        worse = certify(more, symmetric, tolerance, attained)
        better = certify([step for step in steps if step in more], symmetric, tolerance, attained)  # an attack on these only
        return Certificate(worse.above, better.below, worse.lower, better.upper)
    if any(step.noise < LEAST_NOISE for step in steps):
        louder = certify([replace(s, noise=max(s.noise, LEAST_NOISE)) for s in steps], symmetric, tolerance, attained)
        lower = exp(no_noise.never_sampled(steps)) * (1.0 - PAD)
        return Certificate(no_noise.curve(steps), louder.below, min(lower, louder.upper, BELOW_ONE), louder.upper)
    build = transform.glued if symmetric else transform.line
    exponent = affinity.total(build, steps)
    families = (transform.line, transform.symmetric) if symmetric and attained else (transform.line,)
    lower, _, upper = affinity.bounds(affinity.largest(build, steps), max(affinity.total(family, steps) for family in families))
    lower = min(lower, BELOW_ONE)
    enclosed = _refined(_rounded(steps, up=True), symmetric, tolerance, sqrt(8.0 * exponent), upper < NOTHING_LEFT)
    if enclosed is None:
        idle = min(exp(no_noise.never_sampled(steps)) * (1.0 - PAD), upper, BELOW_ONE)
        return Certificate(no_noise.curve(steps), (), idle, upper) if idle > lower else Certificate(None, (), lower, upper)
    above, under, grid = enclosed
    below: tuple[DiscreteCurve, ...] = ()
    if not symmetric or all(step.distance == 2.0 for step in steps):
        below = (under,)
    elif attained:
        below = tuple(_fixed_pairs(_rounded(steps, up=False), grid, *_losses_given_up(tolerance)))
    lower = max(lower, min(1.0 - sum(above.hockey_stick(0.0)), BELOW_ONE))
    for curve in below:
        value, error = curve.hockey_stick(0.0)
        upper = min(upper, 1.0 - (value - error))
    return Certificate(above, below, min(lower, upper), upper)


def _losses_given_up(tolerance: float) -> tuple[float, float]:
    """(slack, rounding): the probability of outcomes that are given to the attacker, and what rounding to the grid may cost."""
    return min(1e-12, 1e-3 * tolerance), 1e-2 * tolerance


@dataclass(frozen=True)
class _Grid:
    """Nodes for one step, and how steps on them are composed: at few frequencies, or with a fast transform of all.

    most: points of the composed law, beyond which it is not computed.
    """

    nodes: Nodes
    few_frequencies: bool
    most: int

    def compose(self, steps: Sequence[GridStep], above: bool, slack: float, rounding: float) -> DiscreteCurve | None:
        if self.few_frequencies:
            return band_limited.compose(steps, self.nodes.step, slack, above, self.most)
        return compose(steps, self.nodes.step, slack, rounding, self.most)


def _refined(
    steps: Sequence[Step], symmetric: bool, tolerance: float, spread: float, coarse: bool
) -> tuple[DiscreteCurve, DiscreteCurve, _Grid] | None:
    """The run from above and from below on the best grid that was tried, and that grid; None if no grid works.

    spread: standard deviation of the loss, about. The grid gets finer until the interval of β* is as narrow as the tolerance;
    coarse: the first grid that works is fine enough.
    """
    slack, rounding = _losses_given_up(tolerance)
    best: tuple[DiscreteCurve, DiscreteCurve, _Grid] | None = None
    narrowest = 2.0

    def enclosed(grid: _Grid) -> tuple[float, float]:
        """(width of the interval of β* on this grid, the part of it that is numerical error); infinite if the grid does not work."""
        nonlocal best, narrowest
        curves = []
        for above in (True, False):
            on_grid = [_grid_step(step, grid.nodes, symmetric, above, slack) for step in steps]
            curve = grid.compose(on_grid, above, slack, rounding)
            if curve is None:
                return inf, inf
            curves.append(curve)
        (most, most_error), (least, least_error) = (curve.hockey_stick(0.0) for curve in curves)
        width = (most + most_error) - max(least - least_error, 0.0)
        if width < narrowest:
            best, narrowest = (curves[0], curves[1], grid), width
        return width, most_error + least_error

    root = sqrt(tolerance)
    sparse = Nodes(_smallest_deviation(steps, symmetric) * root, ceil(NODES / root))
    largest, size = max(spread, *(_largest_loss(step, slack) for step in steps)), min(spread, WIDEST_SPREAD) / 8.0
    for few, many in SIZES:  # first what takes milliseconds
        for _ in range(NODE_ROUNDS if sum(step.count for step in steps) >= MANY_STEPS else 0):
            width, error = enclosed(_Grid(sparse, True, few))
            if width <= tolerance or (coarse and best):
                return best
            if error > 0.5 * width or width == inf:
                break
            sparse = Nodes(0.125 * sparse.step, 2 * (sparse.per_octave or 1))
        while largest / size <= many:
            width, _ = enclosed(_Grid(Nodes(size, ceil(1.0 / root)), False, many))
            if width <= tolerance or (coarse and best):
                return best
            size *= 0.25 if width == inf else min(0.5, max(0.25, 0.8 * sqrt(tolerance / width)))
    return best


def _smallest_deviation(steps: Sequence[Step], symmetric: bool) -> float:
    """Standard deviation of the loss of one step, about √(8λ), least over the steps that count."""
    build = transform.glued if symmetric else transform.line
    exponents = [affinity.exponent(build, step.rate, step.noise, step.distance) for step in steps]
    total = sum(step.count * exponent for step, exponent in zip(steps, exponents, strict=True))
    counting = [e for step, e in zip(steps, exponents, strict=True) if step.count * e >= SMALL_SHARE * total]
    return sqrt(8.0 * min(counting, default=max(exponents)))


def _rounded(steps: Sequence[Step], up: bool) -> list[Step]:
    """At most LEVELS different distances: rounded up, which covers every pair, or down, where every pair is admissible."""
    if len(steps) <= LEVELS:
        return list(steps)
    ordered = sorted(steps, key=lambda step: (step.rate, step.noise, step.distance))
    groups: dict[tuple[float, float, int], list[Step]] = {}
    for i, step in enumerate(ordered):
        groups.setdefault((step.rate, step.noise, i * LEVELS // len(ordered)), []).append(step)
    pick = max if up else min
    return [
        Step(rate, noise, pick(step.distance for step in group), sum(step.count for step in group))
        for (rate, noise, _), group in groups.items()
    ]


def _reach(step: Step, slack: float) -> float:
    """How far from its mean all steps together have an outcome with probability `slack`."""
    return -float(ndtri(min(0.01, slack / step.count))) * step.noise


def _largest_loss(step: Step, slack: float) -> float:
    return float(loss(np.array([1.0 + _reach(step, slack)]), step.rate, step.noise, step.distance)[0])


def _grid_step(step: Step, nodes: Nodes, symmetric: bool, above: bool, slack: float) -> GridStep:
    """The glued curve (or the add/remove pair) of one step on the grid, from above or from below.

    Outcomes so far out that all steps together have them with probability `slack` are given to the attacker.
    """
    p, sigma, distance = step.rate, step.noise, step.distance
    reach = _reach(step, slack)
    start, far, near = 1.0 - 0.5 * distance, 1.0 + reach, -reach

    # The gain is a difference of two tails that are close for small distances: its rounding error, outwards.
    outwards = 1.0 + (8.0 if above else -8.0) * EPS * (1.0 + sigma / distance)

    def ahead(losses: Real) -> tuple[Real, Real]:
        low = start if symmetric else near - 1.0
        gain, mass = tail(threshold(losses, p, sigma, distance, low, far), p, sigma, distance)
        return outwards * gain, mass

    def behind(losses: Real) -> tuple[Real, Real]:
        gain, mass = head(threshold(-losses, p, sigma, distance, near, start), p, sigma, distance)
        return outwards * gain, mass

    least, most = float(loss(np.array([near]), p, sigma, distance)[0]), _largest_loss(step, slack)
    advantage = one_step_advantage(p, sigma, distance)
    if symmetric:
        return two_sided(step.count, nodes, above, advantage, (ahead, most), None)
    if p < 1.0 and log1p(-p) > -FEW_CELLS * nodes.step:
        return one_sided(step.count, nodes, above, log1p(-p), (ahead, most))
    return two_sided(step.count, nodes, above, advantage, (ahead, most), (behind, -least))


def _fixed_pairs(steps: Sequence[Step], grid: _Grid, slack: float, rounding: float) -> list[DiscreteCurve]:
    """Curves that are attained, or less, by the line pair and by the symmetric pair.

    Where the outcomes of a pair are too few for a fine grid, so that its two directions do not fit together, a coarser one is used.
    """
    curves = []
    for cells in (_line_cells, _plane_cells):
        pairs = []
        for step in steps:
            gain, mass = cells(step)
            # Differences of close probabilities: give up their rounding error, which mixes P with a little of Q.
            pairs.append((step.count, gain * (1.0 - 64.0 * EPS * (1.0 + step.noise / step.distance)), mass))
        for wider, few in product((1.0, 4.0, 16.0), (True, False) if grid.few_frequencies else (False,)):
            nodes = replace(grid.nodes, step=wider * grid.nodes.step)
            laws = [_from_cells(count, gain, mass, nodes) for count, gain, mass in pairs]
            curve = _Grid(nodes, few, grid.most).compose(laws, False, slack, rounding)
            if curve is not None and curve.error <= rounding:
                curves.append(curve)
                break
    return curves


def _from_cells(count: int, gain: Real, mass: Real, nodes: Nodes) -> GridStep:
    """A dominated grid step of a pair with finitely many outcomes, given P - Q and Q of each."""
    losses = np.log1p(gain / mass)
    order = np.argsort(losses)
    losses, gain, mass = losses[order], gain[order], mass[order]

    def tails_of(losses: Real, gain: Real, mass: Real) -> Tails:
        above_gain, above_mass = (
            np.append(np.cumsum(part[::-1], dtype=np.longdouble)[::-1], 0.0).astype(np.float64) for part in (gain, mass)
        )

        def tails(at: Real) -> tuple[Real, Real]:
            first = np.searchsorted(losses, at, side="right")
            return above_gain[first], above_mass[first]

        return tails

    ahead = tails_of(losses, gain, mass), float(losses[-1])
    if losses[0] > -nodes.step:
        return one_sided(count, nodes, False, float(losses[0]), ahead)
    behind = tails_of(-losses[::-1], -gain[::-1], (mass + gain)[::-1]), -float(losses[0])
    advantage = float(gain[losses > 0.0].sum())
    return two_sided(count, nodes, False, advantage, ahead, behind)


def _edges(low: float, high: float, width: float = CELL) -> Real:
    return np.linspace(low, high, int((high - low) / width) + 2)


def _weights(edges: Real, mean: float) -> Real:
    """Probability that N(mean, 1) falls between neighbouring edges, from the side where it is accurate."""
    shifted = edges - mean
    return np.where(shifted[:-1] > 0.0, ndtr(-shifted[:-1]) - ndtr(-shifted[1:]), ndtr(shifted[1:]) - ndtr(shifted[:-1]))


def _line_cells(step: Step) -> tuple[Real, Real]:
    """The pair on a line, rounded to intervals: (P - Q, Q) of each."""
    p, b, sigma = step.rate, (1.0 - step.distance) / step.noise, step.noise
    edges = _edges(min(b, 0.0) - 8.0, 1.0 / sigma + 8.0, INTERVAL)
    other = _weights(edges, b)
    return p * (_weights(edges, 1.0 / sigma) - other), (1.0 - p) * _weights(edges, 0.0) + p * other


def _plane_cells(step: Step) -> tuple[Real, Real]:
    """The symmetric pair of the plane, rounded to rectangles: (P - Q, Q) of each."""
    p, sigma, h = step.rate, step.noise, 0.5 * step.distance
    c = sqrt((1.0 - h) * (1.0 + h))
    along, across = _edges(-8.0, c / sigma + 8.0), _edges(-h / sigma - 8.0, h / sigma + 8.0)
    sampled = _weights(along, c / sigma)[:, None]
    first, second = _weights(across, h / sigma)[None, :], _weights(across, -h / sigma)[None, :]
    idle = _weights(along, 0.0)[:, None] * _weights(across, 0.0)[None, :]
    gain = p * sampled * (first - second)
    mass = (1.0 - p) * idle + p * sampled * second
    keep = mass > 1e-30
    return gain[keep], mass[keep]
