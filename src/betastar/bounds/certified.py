"""Certified interval: the run on a grid from above and from below, refined until the interval is narrow enough.

Membership: the pair itself from both sides. Attribute distances below 2: the dynamic programme of `adaptive` from both sides
(`enclose`), and `certify` as a second opinion and where the programme has no affordable grid: the glued curve from above,
which bounds every admissible run, and from below the two fixed pairs that are known to do most damage (theory, section 2): the
pair on a line, and the symmetric pair of the plane with its outcome rounded to small rectangles, which only weakens the attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import exp, sqrt

import numpy as np

from betastar.bounds import adaptive, affinity, fixed_pairs, kinds, no_noise, transform
from betastar.bounds.discrete import DiscreteCurve, LeastCurve, NodeCurve
from betastar.bounds.exact import LEAST_NOISE
from betastar.bounds.grid import PAD
from betastar.bounds.refinement import Grid, losses_given_up, refined
from betastar.scenario.step import AnyStep, Step

#: Smallest distance: the other gradient is at 1 - distance, which keeps few digits of a smaller one.
NEAREST = 1e-12
#: The largest number below 1, which β* does not reach when anything leaks.
BELOW_ONE = float(np.nextafter(1.0, 0.0))
#: Where β* is surely below this, one grid that works is enough.
NOTHING_LEFT = 1e-6
#: Tolerance from which on the adaptive programme is solved on a coarse grid only, as for a first look or a search.
COARSE = 1e-3
#: Tolerance from which on the programme is left out, as while a slider moves: the glued curve bounds attackers who adapt, too.
GLUED = 0.1
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


def enclose(steps: Sequence[AnyStep], in_order: Sequence[Step] | None, tolerance: float, attained: bool = True) -> Certificate:
    """Enclose β* of a symmetric threat. in_order: steps in their order that dominate those of the run; None if it is not known.

    Each end is the better of the adaptive programme's and of `certify`'s. attained: as for `certify`.
    """
    steps = [step for step in steps if kinds.telling(step)]
    count = sum(step.count for step in steps)
    if in_order is None or count <= 1 or tolerance >= GLUED or kinds.attained(steps, True) == steps:
        return certify(steps, True, tolerance, attained)
    in_order = [step for step in in_order if step.distance > 0.0]
    different = len({(step.rate, step.noise, step.distance) for step in in_order})
    if different > MANY_KINDS:
        return certify(steps, True, tolerance, attained)
    quick = tolerance >= COARSE
    effort = adaptive.QUICK if quick else adaptive.effort(count) if different <= FEW_KINDS else adaptive.MODERATE
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


def certify(steps: Sequence[AnyStep], symmetric: bool, tolerance: float, attained: bool = True) -> Certificate:
    """Enclose β*. symmetric: substitution or attributes; otherwise add/remove, where all distances are 1.

    attained: also look for attacks that exist, where the dominating curve is not one.
    """
    steps = [step for step in steps if kinds.telling(step)]
    if not steps:
        return Certificate(None, (), 1.0, 1.0)
    if (more := [kinds.kind(step).visible(step, NEAREST) for step in steps]) != steps:
        worse = certify(more, symmetric, tolerance, attained)
        better = certify([step for step in steps if step in more], symmetric, tolerance, attained)  # an attack on these only
        return Certificate(worse.above, better.below, worse.lower, better.upper)
    if any(kinds.kind(step).least_noise(step) < LEAST_NOISE for step in steps):
        louder = certify([kinds.kind(s).louder(s, LEAST_NOISE) for s in steps], symmetric, tolerance, attained)
        lower = exp(no_noise.never_sampled(steps)) * (1.0 - PAD)
        return Certificate(no_noise.curve(steps), louder.below, min(lower, louder.upper, BELOW_ONE), louder.upper)
    build = transform.glued if symmetric else transform.line
    exponent = affinity.total(build, steps)
    plain = kinds.plain(steps)
    exist = steps if plain else kinds.attained(steps, symmetric)
    families = (transform.line, transform.symmetric) if symmetric and attained and plain else (transform.line,)
    lower, _, upper = affinity.bounds(affinity.largest(build, steps), max(affinity.total(family, exist) for family in families))
    lower = min(lower, BELOW_ONE)
    told = not plain and any(kinds.kind(step).advantage(step) >= 1.0 for step in steps)  # no grid is needed to know it
    enclosed = None if told else refined(steps, symmetric, tolerance, sqrt(8.0 * exponent), upper < NOTHING_LEFT)
    if enclosed is None:
        idle = min(exp(no_noise.never_sampled(steps)) * (1.0 - PAD), upper, BELOW_ONE)
        return Certificate(no_noise.curve(steps), (), idle, upper) if idle > lower else Certificate(None, (), lower, upper)
    above, under, grid = enclosed
    below: tuple[DiscreteCurve, ...] = ()
    if kinds.attained(steps, symmetric) == steps:
        below = (under,)
    elif attained:
        pairs = [step for step in steps if isinstance(step, Step)]
        below = tuple(
            fixed_pairs.attained(pairs, grid, *losses_given_up(tolerance)) if plain else _below(exist, symmetric, grid, tolerance)
        )
    lower = max(lower, min(1.0 - sum(above.hockey_stick(0.0)), BELOW_ONE))
    for curve in below:
        value, error = curve.hockey_stick(0.0)
        upper = min(upper, 1.0 - (value - error))
    return Certificate(above, below, min(lower, upper), upper)


def _below(steps: Sequence[AnyStep], symmetric: bool, grid: Grid, tolerance: float) -> list[DiscreteCurve]:
    """The curve of steps that some data attain, from below."""
    slack, rounding = losses_given_up(tolerance)
    laws = [kinds.grid_step(step, grid.nodes, symmetric, False, slack) for step in steps]
    curve = grid.compose(laws, False, slack, rounding) if laws else None
    return [] if curve is None else [curve]
