"""Closed form with a proof: affinities multiply (theory, section 5).

ρ = ∫√(PQ) of one step and λ = -ln ρ. With Λ° from the glued curve and Λ* from fixed pairs,
    1 - √(1 - e^{-2Λ°})  ≤  β*  ≤  e^{-Λ*},      β* ≈ erfc(√Λ*).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import erfc, exp, expm1, log1p, sqrt

from betastar import transform
from betastar.bounds.interpolate import condense
from betastar.step import Step

#: Relative error that quadrature (and interpolation between distances) may have; both ends are moved outwards by it.
PAD = 1e-8


@lru_cache(maxsize=4096)
def exponent(build: Callable[..., transform.Transform], rate: float, noise: float, distance: float) -> float:
    """λ = -ln ∫√(PQ) of one step of a family of pairs."""
    return 0.0 if distance == 0.0 else -log1p(-min(build(rate, noise, distance).affinity_gap(), 1.0 - 1e-16))


def total(build: Callable[..., transform.Transform], steps: Sequence[Step]) -> float:
    """Λ: the exponents of all steps added up."""
    return sum(count * exponent(build, rate, noise, distance) for count, rate, noise, distance in condense(steps))


def bounds(largest: float, attained: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of β* from Λ° and Λ*."""
    largest, attained = largest * (1.0 + PAD), attained * (1.0 - PAD)
    return _hellinger(largest), erfc(sqrt(attained)), exp(-attained)


def _hellinger(exponent: float) -> float:
    """1 - √(1 - e^{-2Λ}) without cancellation for large Λ."""
    square = exp(-2.0 * exponent)
    return square / (1.0 + sqrt(-expm1(-2.0 * exponent)))
