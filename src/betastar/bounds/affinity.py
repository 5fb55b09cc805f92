"""Closed form with a proof: affinities multiply (theory, section 5).

ρ = ∫√(PQ) of one step and λ = -ln ρ. With Λ° from the glued curve and Λ* from fixed pairs,
    1 - √(1 - e^{-2Λ°})  ≤  β*  ≤  e^{-Λ*},      β* ≈ erfc(√Λ*).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import erfc, exp, expm1, inf, log, log1p, sqrt
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebfit, chebval

from betastar.arrays import Real
from betastar.bounds import kinds, transform
from betastar.bounds.parts import AnyPart, Part
from betastar.scenario.step import AnyStep

#: Relative error that quadrature (and interpolation between distances) may have; both ends are moved outwards by it.
PAD = 1e-8
#: Terms of the interpolation between distances.
TERMS = 64
#: Below this noise the exponent is too steep for it: distances are rounded up to multiples of 2/GRID instead.
STEEP, GRID = 0.2, 512
#: Least noise that exponents are computed for.
QUIET = 0.07
#: Affinities below this one are lost in the rounding of 1 - ρ.
LEAST = 1e-9
MOST = -log(LEAST)


@lru_cache(maxsize=4096)
def exponent(build: Callable[..., transform.Transform], rate: float, noise: float, distance: float) -> float:
    """λ = -ln ∫√(PQ) of one step of a family of pairs; MOST stands for all that is larger, and less noise than QUIET counts as
    QUIET: the truth may be above."""
    if distance == 0.0:
        return 0.0
    gap = build(rate, max(noise, QUIET), distance).affinity_gap()
    return -log1p(-gap) if gap < 1.0 - LEAST else MOST


def exponent_of(part: AnyPart) -> float:
    """λ of one step of any kind, in the same way; less noise than QUIET must have been replaced by QUIET."""
    if isinstance(part, Part):
        return exponent(part.build, part.rate, part.noise, part.distance)
    gap = part.transform(False).affinity_gap()
    return -log1p(-gap) if gap < 1.0 - LEAST else MOST


def total(build: Callable[..., transform.Transform], steps: Sequence[AnyStep]) -> float:
    """Λ: the exponents of all steps added up."""
    loud = [step if kinds.plain([step]) else kinds.kind(step).louder(step, QUIET) for step in steps]
    return sum(part.count * exponent_of(part) for part in kinds.parts(loud, build))


def largest(build: Callable[..., transform.Transform], steps: Sequence[AnyStep]) -> float:
    """Λ, not below the truth: infinite if a step's exponent cannot be told from MOST, or has less noise than QUIET."""
    telling = [step for step in steps if kinds.telling(step)]
    if any(kinds.kind(step).least_noise(step) < QUIET for step in telling):
        return inf
    exponents = [exponent_of(part) for part in kinds.parts(telling, build)]
    return inf if np.isinf(_unbounded(np.array(exponents))).any() else total(build, steps)


def leakage(rate: float, noise: float, distances: Any) -> Real:
    """λ°(R) of one step for many distances, rounded up: interpolated, as ln(λ°/R²) is a smooth function of R.

    It grows with R, and is infinite where it cannot be told from MOST.
    """
    far = np.asarray(distances, dtype=np.float64)
    if noise < QUIET:
        return np.where(far > 0.0, inf, 0.0)
    if noise < STEEP:
        exponents = [exponent(transform.glued, rate, noise, node) for node in (np.arange(GRID + 1) * (2.0 / GRID)).tolist()]
        return _unbounded(np.array(exponents)[np.ceil(far * (0.5 * GRID)).astype(int)]) * (1.0 + 1e-6)
    with np.errstate(divide="ignore"):
        logs = chebval(far - 1.0, _smooth(rate, noise)) + 2.0 * np.log(far)
    return np.exp(logs) * (1.0 + 1e-6)


@lru_cache(maxsize=256)
def _smooth(rate: float, noise: float) -> Real:
    """Chebyshev coefficients of ln(λ°(R)/R²) on 0 < R < 2; relative error of λ° below 5e-7 for noise above .1."""
    nodes = np.cos(np.pi * (np.arange(TERMS) + 0.5) / TERMS)
    values = [log(exponent(transform.glued, rate, noise, 1.0 + node)) - 2.0 * log(1.0 + node) for node in nodes.tolist()]
    return chebfit(nodes, values, TERMS - 1)


def _unbounded(exponents: Real) -> Real:
    return np.where(exponents < MOST * (1.0 - PAD), exponents, inf)


def allowance(bayes_security: float) -> float:
    """Λ° that a proof of this β* allows: the inverse of 1 - √(1 - e^{-2Λ})."""
    return -0.5 * log1p(-((1.0 - bayes_security) ** 2)) * (1.0 - PAD) if bayes_security > 0.0 else inf


def bounds(largest: float, attained: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of β* from Λ° and Λ*."""
    largest, attained = largest * (1.0 + PAD), attained * (1.0 - PAD)
    return proved(largest), erfc(sqrt(attained)), exp(-attained)


def proved(exponent: float) -> float:
    """β* ≥ 1 - √(1 - e^{-2Λ°}), without cancellation for large Λ°."""
    square = exp(-2.0 * exponent)
    return square / (1.0 + sqrt(-expm1(-2.0 * exponent)))
