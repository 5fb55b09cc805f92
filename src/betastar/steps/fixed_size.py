"""Batches of a fixed size: steps of Poisson sampling, but with fewer pairs of gradients (theory, section 13).

All gradients are relative to the one that the challenge replaces, in units of 2: norms at most 1, as in a step of Poisson
sampling. But a, b and the origin g must also fit into a ball of radius 1 (half a unit). What matters are (ii) ‖a - g‖ = 2 and ‖a
- b‖ = R with no acute angle at b, and (i) triangles with no obtuse angle on the circle of radius 1, with ‖a - b‖ ≤ R. A triangle
on the circle with the angle γ at g and β at b has ‖a - g‖ = 2·sin β, ‖b - g‖ = 2·sin(β + γ) and (a - g)·(b - g) = 4·sin β·sin(β +
γ)·cos γ. A pair is dominated by any other with norms that are not smaller and a scalar product that is not larger: so a cell of
angles is covered by one pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import acos, asin, cos, pi, sin, sqrt

import numpy as np

from betastar.steps.poisson import GradientPair, PoissonStep

#: Distance, in units of 2, from which on triangles on the circle are covered by cells: for less, pairs of the ball are better.
WIDE = 0.75
#: What rounding may change of a scalar product, relative to the squares of the norms.
ROUNDING = 1e-12


@dataclass(frozen=True)
class FixedSizeStep(PoissonStep):
    """`count` steps with batches of a fixed size. `clamped` makes it a step of Poisson sampling, with all pairs of the ball."""

    @property
    def is_restricted(self) -> bool:
        """Whether fewer pairs are looked at than those of the ball."""
        return self.distance >= WIDE

    @property
    def widest_angle(self) -> float:
        """The angle at which ‖b‖ = 1, or at which the angle at b is a right one."""
        return acos(min(self.distance if self.is_restricted else 0.5 * self.distance, 1.0))

    def covering_pairs(self, number: int) -> Iterator[GradientPair]:
        """Pairs that cover all triangles on the circle: about number²/2 of them."""
        if not self.is_restricted:
            return
        largest = asin(min(self.distance, 1.0))
        gammas, shares = np.linspace(0.0, largest, number + 1).tolist(), np.linspace(0.0, 1.0, number // 2 + 1).tolist()
        for low, high in pairwise(gammas):
            for start, end in pairwise(shares):
                # β = (π - share·γ)/2 from π/2 (‖a - g‖ = 2) to the isosceles triangle, and α = π - β - γ at a.
                beta = 0.5 * (pi - end * high), 0.5 * (pi - start * low)
                alpha = 0.5 * pi - (1.0 - 0.5 * start) * high, 0.5 * pi - (1.0 - 0.5 * end) * low
                scalar = sin(alpha[0]) * sin(beta[0]) * cos(high) - ROUNDING
                yield _from_products(sin(beta[1]) ** 2, sin(alpha[1]) ** 2, scalar, self.noise)

    def existing_pairs(self, number: int) -> list[GradientPair]:
        """Pairs with ‖a‖ = 1 up to a right angle at b, and triangles on the circle."""
        right = acos(min(self.distance, 1.0))
        some = [self.turned(theta) for theta in np.linspace(0.0, right, number if right > 0.0 else 1).tolist()]
        gamma = asin(min(self.distance, 1.0))
        for beta in np.linspace(0.5 * (pi - gamma), 0.5 * pi, number)[:-1].tolist():
            alpha = pi - gamma - beta
            some.append(_from_products(sin(beta) ** 2, sin(alpha) ** 2, sin(alpha) * sin(beta) * cos(gamma), self.noise))
        return some


def _from_products(first: float, second: float, scalar: float, noise: float) -> GradientPair:
    """The pair with ‖a‖², ‖b‖² and a·b."""
    distance = sqrt(max(first + second - 2.0 * scalar, 0.0))
    along = (first - scalar) / distance
    return GradientPair(sqrt(max(first - along * along, 0.0)) / noise, along / noise, (along - distance) / noise)
