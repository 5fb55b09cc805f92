"""Certified interval: the run on a grid from above and from below, refined until the interval is narrow enough.

Membership: the pair itself from both sides. Attribute distances below 2: the dynamic programme of `adaptive` from both sides
(`enclose`), and `certify` as a second opinion and where the programme has no affordable grid: the glued curve from above,
which bounds every admissible run, and from below the two fixed pairs that are known to do most damage (theory, section 2): the
pair on a line, and the symmetric pair of the plane with its outcome rounded to small rectangles, which only weakens the attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from math import exp, log1p, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from betastar.arrays import Real
from betastar.bounds import adaptive, affinity, no_noise, transform
from betastar.bounds.discrete import DiscreteCurve, LeastCurve, NodeCurve
from betastar.bounds.exact import LEAST_NOISE
from betastar.bounds.grid import EPS, LARGEST, PAD, GridStep, Tails, compose, one_sided, two_sided
from betastar.scenario.step import Step, head, loss, one_step_advantage, tail, threshold, visible

#: Side of the rectangles of the symmetric pair, in standard deviations.
CELL = 0.05
#: Different steps that are put on the grid; more are rounded to that many distances, outwards.
LEVELS = 64
#: Smallest distance: the other gradient is at 1 - distance, which keeps few digits of a smaller one.
NEAREST = 1e-12
#: The largest number below 1, which β* does not reach when anything leaks.
BELOW_ONE = float(np.nextafter(1.0, 0.0))
#: Grids that are tried: too coarse a grid composes to losses without end, each round is up to four times finer.
ROUNDS = 24
#: Add/remove: where all losses below 0 lie within so many cells, two sides would be too coarse to fit together.
FEW_CELLS = 8.0
#: Where β* is surely below this, one grid that works is enough.
NOTHING_LEFT = 1e-6
#: Points of one step beyond which no grid is tried if none has worked so far.
HOPELESS = 1 << 21
#: Tolerance from which on the adaptive programme is solved on a coarse grid only, as for a first look or a search.
COARSE = 1e-3
#: Different steps up to which the programme takes its time, and beyond which it would take too long.
FEW_KINDS, MANY_KINDS = 4, 32
#: Tolerance of the glued curve beside the programme, as a share of the advantage: it is better far out, if anywhere.
SECOND = 0.02


@dataclass(frozen=True)
class Certificate:
    """Curves that enclose the truth: `above` dominates every admissible run, each of `below` is attained or less."""

    above: DiscreteCurve | NodeCurve | LeastCurve | None
    below: tuple[DiscreteCurve | NodeCurve, ...]
    lower: float
    upper: float
    #: The ends are the adaptive programme's: no attack is known that is better than the one of `upper`.
    adaptive: bool = False


def enclose(steps: Sequence[Step], in_order: Sequence[Step] | None, tolerance: float, attained: bool = True) -> Certificate:
    """Enclose β* of a symmetric threat. in_order: steps in their order that dominate those of the run; None if it is not known.

    Each end is the better of the adaptive programme's and of `certify`'s. attained: as for `certify`.
    """
    steps = [step for step in steps if step.distance > 0.0]
    count = sum(step.count for step in steps)
    if in_order is None or count <= 1 or all(step.distance == 2.0 for step in steps):
        return certify(steps, True, tolerance, attained)
    in_order = [step for step in in_order if step.distance > 0.0]
    kinds = len({(step.rate, step.noise, step.distance) for step in in_order})
    if kinds > MANY_KINDS:
        return certify(steps, True, tolerance, attained)
    quick = tolerance >= COARSE
    effort = adaptive.QUICK if quick else adaptive.effort(count) if kinds <= FEW_KINDS else adaptive.MODERATE
    same_steps = sorted(map(astuple, in_order)) == sorted(map(astuple, steps))
    solution = adaptive.solve(in_order, effort, attained and same_steps and not quick)
    if solution is None:
        return certify(steps, True, tolerance, attained)
    above, below = solution.above, solution.below
    advantage = float(above.values[0])
    rough = max(tolerance, SECOND * advantage)
    second = certify(steps, True, rough, attained and below is None)
    if not quick and rough > tolerance and second.lower + rough > 1.0 - advantage:
        # It may be the better one after all, as for a histogram or distances near 2.
        second = certify(steps, True, tolerance, attained and below is None)
    lower = min(max(1.0 - advantage, second.lower), BELOW_ONE)
    upper = second.upper if below is None else min(second.upper, 1.0 - float(below.values[0]))
    curve = LeastCurve(above, second.above) if isinstance(second.above, DiscreteCurve) else above
    return Certificate(curve, second.below if below is None else (below,), min(lower, upper), upper, True)


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


def _refined(
    steps: Sequence[Step], symmetric: bool, tolerance: float, spread: float, coarse: bool
) -> tuple[DiscreteCurve, DiscreteCurve, float] | None:
    """The run from above and from below on the finest grid that was tried, and that grid; None if no grid works.

    spread: standard deviation of the loss, about. The grid gets finer until the interval of β* is as narrow as the tolerance;
    coarse: the first grid that works is fine enough.
    """
    slack, rounding = _losses_given_up(tolerance)
    largest = max(spread, *(_largest_loss(step, slack) for step in steps))
    grid, best = spread / 8.0, None
    for _ in range(ROUNDS):
        if largest / grid > (HOPELESS if best is None else LARGEST):
            break
        above = compose([_grid_step(step, grid, symmetric, True, slack) for step in steps], grid, slack, rounding)
        under = compose([_grid_step(step, grid, symmetric, False, slack) for step in steps], grid, slack, rounding)
        shrink = 0.25
        if above is not None and under is not None:
            best = above, under, grid
            (most, most_error), (least, least_error) = above.hockey_stick(0.0), under.hockey_stick(0.0)
            width = (most + most_error) - max(least - least_error, 0.0)
            if width <= tolerance or coarse:
                break
            shrink = min(0.5, max(shrink, 0.8 * sqrt(tolerance / width)))
        grid *= shrink
    return best


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


def _grid_step(step: Step, grid: float, symmetric: bool, above: bool, slack: float) -> GridStep:
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
        return two_sided(step.count, grid, above, advantage, (ahead, most), None)
    if p < 1.0 and log1p(-p) > -FEW_CELLS * grid:
        return one_sided(step.count, grid, above, log1p(-p), (ahead, most))
    return two_sided(step.count, grid, above, advantage, (ahead, most), (behind, -least))


def _fixed_pairs(steps: Sequence[Step], grid: float, slack: float, rounding: float) -> list[DiscreteCurve]:
    """Curves that are attained, or less, by the line pair and by the symmetric pair."""
    found = []
    for cells in (_line_cells, _plane_cells):
        laws = []
        for step in steps:
            gain, mass = cells(step)
            # Differences of close probabilities: give up their rounding error, which mixes P with a little of Q.
            laws.append(_from_cells(step.count, gain * (1.0 - 64.0 * EPS * (1.0 + step.noise / step.distance)), mass, grid))
        curve = compose(laws, grid, slack, rounding)
        if curve is not None:
            found.append(curve)
    return found


def _from_cells(count: int, gain: Real, mass: Real, grid: float) -> GridStep:
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
    if losses[0] > -grid:
        return one_sided(count, grid, False, float(losses[0]), ahead)
    behind = tails_of(-losses[::-1], -gain[::-1], (mass + gain)[::-1]), -float(losses[0])
    advantage = float(gain[losses > 0.0].sum())
    return two_sided(count, grid, False, advantage, ahead, behind)


def _edges(low: float, high: float) -> Real:
    return np.linspace(low, high, int((high - low) / CELL) + 2)


def _weights(edges: Real, mean: float) -> Real:
    """Probability that N(mean, 1) falls between neighbouring edges, from the side where it is accurate."""
    shifted = edges - mean
    return np.where(shifted[:-1] > 0.0, ndtr(-shifted[:-1]) - ndtr(-shifted[1:]), ndtr(shifted[1:]) - ndtr(shifted[:-1]))


def _line_cells(step: Step) -> tuple[Real, Real]:
    """The pair on a line, rounded to intervals: (P - Q, Q) of each."""
    p, b, sigma = step.rate, (1.0 - step.distance) / step.noise, step.noise
    edges = _edges(min(b, 0.0) - 8.0, 1.0 / sigma + 8.0)
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
