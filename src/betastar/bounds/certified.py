"""Certified interval: the run on a grid from above and from below, refined until the interval is narrow enough.

Membership: the pair itself from both sides. Attribute distances below 2: the glued curve from above, which bounds every
admissible run, and from below the two fixed pairs that are known to do most damage (theory, section 2): the pair on a line,
and the symmetric pair of the plane with its outcome rounded to small rectangles, which only weakens the attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt

import numpy as np

from betastar.bounds import affinity, fixed_pairs, no_noise, transform
from betastar.bounds.discrete import DiscreteCurve
from betastar.bounds.exact import LEAST_NOISE
from betastar.bounds.grid import PAD
from betastar.bounds.refinement import losses_given_up, refined
from betastar.scenario.step import Step, visible

#: Smallest distance: the other gradient is at 1 - distance, which keeps few digits of a smaller one.
NEAREST = 1e-12
#: The largest number below 1, which β* does not reach when anything leaks.
BELOW_ONE = float(np.nextafter(1.0, 0.0))
#: Where β* is surely below this, one grid that works is enough.
NOTHING_LEFT = 1e-6


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
    enclosed = refined(steps, symmetric, tolerance, sqrt(8.0 * exponent), upper < NOTHING_LEFT)
    if enclosed is None:
        idle = min(exp(no_noise.never_sampled(steps)) * (1.0 - PAD), upper, BELOW_ONE)
        return Certificate(no_noise.curve(steps), (), idle, upper) if idle > lower else Certificate(None, (), lower, upper)
    above, under, grid = enclosed
    below: tuple[DiscreteCurve, ...] = ()
    if not symmetric or all(step.distance == 2.0 for step in steps):
        below = (under,)
    elif attained:
        below = tuple(fixed_pairs.attained(steps, grid, *losses_given_up(tolerance)))
    lower = max(lower, min(1.0 - sum(above.hockey_stick(0.0)), BELOW_ONE))
    for curve in below:
        value, error = curve.hockey_stick(0.0)
        upper = min(upper, 1.0 - (value - error))
    return Certificate(above, below, min(lower, upper), upper)
