"""The pairs of gradients that an attacker may choose from at a step (theory, sections 11 and 13).

A pair is given by where a and b are, seen along a - b and across it, in standard deviations: a = (across, first) and
b = (across, second), with ‖a‖ ≥ ‖b‖. The attacker may also exchange a and b.

A step of Poisson sampling: ‖a‖ = 1, ‖a - b‖ = R, ‖b‖ ≤ 1. A step of a fixed size has these in units of 2, with all gradients
relative to the one that is replaced, but a, b and the origin g must also fit into a ball of radius 1 (half a unit). What matters
are (ii) ‖a - g‖ = 2 and ‖a - b‖ = R with no acute angle at b, and (i) triangles with no obtuse angle on the circle of radius 1,
with ‖a - b‖ ≤ R. A triangle on the circle with the angle γ at g and β at b has ‖a - g‖ = 2·sin β, ‖b - g‖ = 2·sin(β + γ) and
(a - g)·(b - g) = 4·sin β·sin(β + γ)·cos γ. A pair is dominated by any other with norms that are not smaller and a scalar product
that is not larger: so a cell of angles is covered by one pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import acos, asin, cos, pi, sin, sqrt
from typing import NamedTuple

import numpy as np

from betastar.arrays import Real
from betastar.scenario.step import Step

#: Distance, in units of 2, from which on triangles on the circle are covered by cells: for less, pairs of the ball are better.
WIDE = 0.75
#: What rounding may change of a scalar product, relative to the squares of the norms.
ROUNDING = 1e-12


class Pair(NamedTuple):
    """a = (across, first) and b = (across, second), in standard deviations."""

    across: float
    first: float
    second: float


def turned(noise: float, distance: float, theta: float) -> Pair:
    """‖a‖ = 1, ‖a - b‖ = R, with the angle θ between a and a - b."""
    return Pair(sin(theta) / noise, cos(theta) / noise, (cos(theta) - distance) / noise)


def widest_angle(step: Step) -> float:
    """Of the pairs with ‖a‖ = 1 and ‖a - b‖ = R: at it ‖b‖ = 1, or, in batches of a fixed size, the angle at b is a right one."""
    return acos(min(step.distance if is_restricted(step) else 0.5 * step.distance, 1.0))


def is_restricted(step: Step) -> bool:
    """Whether fewer pairs are looked at than those of the ball."""
    return step.fixed_size and step.distance >= WIDE


def angles(step: Step, number: int) -> Real:
    """Equally spaced from the line pair on."""
    widest = widest_angle(step)
    return np.linspace(0.0, widest, number) if widest > 0.0 else np.zeros(1)


def cells(step: Step, number: int) -> Iterator[Pair]:
    """Pairs that cover all triangles on the circle, for a step of a fixed size: about number²/2 of them."""
    if not is_restricted(step):
        return
    largest = asin(min(step.distance, 1.0))
    gammas, shares = np.linspace(0.0, largest, number + 1).tolist(), np.linspace(0.0, 1.0, number // 2 + 1).tolist()
    for low, high in pairwise(gammas):
        for start, end in pairwise(shares):
            # β = (π - share·γ)/2 from π/2 (‖a - g‖ = 2) to the isosceles triangle, and α = π - β - γ at a.
            beta = 0.5 * (pi - end * high), 0.5 * (pi - start * low)
            alpha = 0.5 * pi - (1.0 - 0.5 * start) * high, 0.5 * pi - (1.0 - 0.5 * end) * low
            scalar = sin(alpha[0]) * sin(beta[0]) * cos(high) - ROUNDING
            yield _from_products(sin(beta[1]) ** 2, sin(alpha[1]) ** 2, scalar, step.noise)


def attained(step: Step, number: int) -> list[Pair]:
    """Pairs that exist, so many of each family: the attacker's choice from below."""
    if not step.fixed_size:
        return [turned(step.noise, step.distance, theta) for theta in angles(step, number).tolist()]
    right = acos(min(step.distance, 1.0))
    some = [turned(step.noise, step.distance, theta) for theta in np.linspace(0.0, right, number if right > 0.0 else 1).tolist()]
    gamma = asin(min(step.distance, 1.0))
    for beta in np.linspace(0.5 * (pi - gamma), 0.5 * pi, number)[:-1].tolist():
        alpha = pi - gamma - beta
        some.append(_from_products(sin(beta) ** 2, sin(alpha) ** 2, sin(alpha) * sin(beta) * cos(gamma), step.noise))
    return some


def _from_products(first: float, second: float, scalar: float, noise: float) -> Pair:
    """The pair with ‖a‖², ‖b‖² and a·b."""
    distance = sqrt(max(first + second - 2.0 * scalar, 0.0))
    along = (first - scalar) / distance
    return Pair(sqrt(max(first - along * along, 0.0)) / noise, along / noise, (along - distance) / noise)
