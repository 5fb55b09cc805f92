"""Closed forms: the paper's, the affinity with its proof, and the ceiling without noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import erfc, exp, expm1, inf, log, log1p, sqrt
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebfit, chebval
from numpy.typing import NDArray

from betastar.curves import DiscreteCurve, Side
from betastar.dpsgd import IN_EPOCHS, Segment
from betastar.steps.base import MOST_EXPONENT, Family, Step
from betastar.steps.poisson import QUIET, PoissonStep, exponent, factors
from betastar.steps.truncated import truncation

# The paper's closed form: its theorem, of which both corollaries are cases.
#
# β* ≈ erfc(p·‖R‖₂ / (2√2σ)), with R = 2 at each step for membership (corollary 1) and the measured distances for
# attribute inference (corollary 2). Here noise and rate may change between steps: p‖R‖/σ becomes the root of Σ(p_t R_t/σ_t)².
# The error term of its proof is explicit: √(Σ p_t(1-p_t)/σ_t²)/2 for each of the two worlds (theory, section 1).


def paper_bayes_security(steps: Sequence[PoissonStep]) -> float:
    """The closed form, an approximation."""
    signal = sum(step.count * (step.rate * step.distance / step.noise) ** 2 for step in steps)
    return erfc(sqrt(signal) / (2.0 * sqrt(2.0)))


def paper_error_term(steps: Sequence[PoissonStep]) -> float:
    """What the proof allows the closed form to be wrong by; often above 1, and then it says nothing."""
    return sqrt(sum(step.count * step.rate * (1.0 - step.rate) / step.noise**2 for step in steps))


def outside_regime(steps: Sequence[PoissonStep]) -> bool:
    """Whether the paper itself advises against its closed form (noise below 1)."""
    return any(step.noise < 1.0 and step.rate < 1.0 and step.distance > 0.0 for step in steps)


# Closed form with a proof: affinities multiply (theory, section 5).
#
# ρ = ∫√(PQ) of one step and λ = -ln ρ. With Λ° from the glued curve and Λ* from fixed pairs,
#     1 - √(1 - e^{-2Λ°})  ≤  β*  ≤  e^{-Λ*},      β* ≈ erfc(√Λ*).

#: Relative error that quadrature (and interpolation between distances) may have; both ends are moved outwards by it.
PAD = 1e-8
#: Terms of the interpolation between distances.
TERMS = 64
#: Below this noise the exponent is too steep for it: distances are rounded up to multiples of 2/GRID instead.
STEEP, GRID = 0.2, 512


def total(family: Family, steps: Sequence[Step]) -> float:
    """Λ: the exponents of all steps added up; less noise than QUIET counts as QUIET."""
    loud = [step if isinstance(step, PoissonStep) else step.with_min_noise(QUIET) for step in steps]
    return sum(factor.count * factor.exponent() for factor in factors(loud, family))


def largest(family: Family, steps: Sequence[Step]) -> float:
    """Λ, not below the truth: infinite if a step's exponent cannot be told from the largest, or has less noise than QUIET."""
    leaking = [step for step in steps if step.leaks]
    if any(step.least_noise < QUIET for step in leaking):
        return inf
    exponents = [factor.exponent() for factor in factors(leaking, family)]
    return inf if np.isinf(_unbounded(np.array(exponents))).any() else total(family, steps)


def leakage(rate: float, noise: float, distances: Any) -> NDArray[Any]:
    """λ°(R) of one step for many distances, rounded up: interpolated, as ln(λ°/R²) is a smooth function of R.

    It grows with R, and is infinite where it cannot be told from MOST_EXPONENT.
    """
    far = np.asarray(distances, dtype=np.float64)
    if noise < QUIET:
        return np.where(far > 0.0, inf, 0.0)
    if noise < STEEP:
        exponents = [exponent("glued", rate, noise, node) for node in (np.arange(GRID + 1) * (2.0 / GRID)).tolist()]
        return _unbounded(np.array(exponents)[np.ceil(far * (0.5 * GRID)).astype(int)]) * (1.0 + 1e-6)
    with np.errstate(divide="ignore"):
        logs = chebval(far - 1.0, _smooth(rate, noise)) + 2.0 * np.log(far)
    return np.exp(logs) * (1.0 + 1e-6)


def absence_leakage(rate: float, noise: float, norms: NDArray[Any]) -> NDArray[Any]:
    """λ = -ln ∫√(PQ) of (1-p)·N(0) + p·N(n) against N(0) for some norms n, rounded up; at most -½ ln(1-p), without any noise."""
    most = -0.5 * log1p(-rate) if rate < 1.0 else inf
    exponents = [exponent("line", rate, noise / n, 1.0) if 0.0 < n * QUIET <= noise else inf for n in norms.tolist()]
    exponents = [0.0 if n == 0.0 else one for n, one in zip(norms.tolist(), exponents, strict=True)]
    return np.minimum(np.maximum.accumulate(_unbounded(np.array(exponents))) * (1.0 + PAD), most)


@lru_cache(maxsize=256)
def _smooth(rate: float, noise: float) -> NDArray[Any]:
    """Chebyshev coefficients of ln(λ°(R)/R²) on 0 < R < 2; relative error of λ° below 5e-7 for noise above .1."""
    nodes = np.cos(np.pi * (np.arange(TERMS) + 0.5) / TERMS)
    values = [log(exponent("glued", rate, noise, 1.0 + node)) - 2.0 * log(1.0 + node) for node in nodes.tolist()]
    return chebfit(nodes, values, TERMS - 1)


def _unbounded(exponents: NDArray[Any]) -> NDArray[Any]:
    return np.where(exponents < MOST_EXPONENT * (1.0 - PAD), exponents, inf)


def allowance(bayes_security: float) -> float:
    """Λ° that a proof of this β* allows: the inverse of 1 - √(1 - e^{-2Λ})."""
    return -0.5 * log1p(-((1.0 - bayes_security) ** 2)) * (1.0 - PAD) if bayes_security > 0.0 else inf


def bounds(largest: float, least: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of β* from Λ° and Λ*."""
    largest, least = largest * (1.0 + PAD), least * (1.0 - PAD)
    lower, upper = proved(largest), max(exp(-least), 5e-324)  # with noise β* is never 0: ε is finite
    return lower, min(max(erfc(sqrt(least)), lower), upper), upper


def proved(exponent: float) -> float:
    """β* ≥ 1 - √(1 - e^{-2Λ°}), without cancellation for large Λ°."""
    square = exp(-2.0 * exponent)
    return square / (1.0 + sqrt(-expm1(-2.0 * exponent)))


# What a step is charged with under each sampling: an upper bound of its leakage λ° (theory, sections 5, 13 and 15).


def step_leakage(segment: Segment, distances: Any) -> NDArray[Any]:
    """λ° of one step of a segment for many distances; of balls in bins and of shuffling, λ° of an epoch with these distances.

    An epoch is charged as if everybody knew in which of its steps the record takes part. So what counts is the largest distance
    of the epoch, at rate 1, as often as the record takes part.
    """
    rate, noise, far = segment.sample_rate, segment.noise_multiplier, np.asarray(distances, dtype=np.float64)
    if segment.sampling in IN_EPOCHS:
        return segment.times_per_epoch * leakage(1.0, noise, far)
    if segment.sampling == "fixed-size":  # relative to the gradient that the record takes the place of: norms up to 2
        return leakage(rate, 0.5 * noise, 0.5 * far)
    if segment.max_batch_size is None:
        return leakage(rate, noise, far)
    assert segment.dataset_size is not None
    cut = truncation(rate, segment.dataset_size, segment.max_batch_size)
    if cut.full == 0.0:
        return leakage(rate, noise, far)
    # A public coin: affinities are averaged, ρ = (1 - c)·ρ₁ + c·ρ₂.
    in_addition, in_place = leakage(rate, noise, far), leakage(cut.rate, 0.5 * noise, 0.5 * far)
    with np.errstate(invalid="ignore"):
        mixed = -np.log1p((1.0 - cut.full) * np.expm1(-in_addition) + cut.full * np.expm1(-in_place))
    return np.where(np.isinf(in_addition) & np.isinf(in_place), np.inf, mixed) * (1.0 + 1e-9)


# The ceiling: a record that is never sampled leaks nothing, whatever the noise.
#
# Without noise the attacker learns everything as soon as the record is sampled once, with probability 1 - Π(1-p_t)^{T_t}, and
# nothing otherwise. No run with the same sampling is riskier, so a target looser than that needs no noise at all.


def log_never_sampled(steps: Sequence[Step]) -> float:
    """Logarithm of the probability that the record is not in any batch whose step tells the two worlds apart."""
    return sum(step.count * step.log_never_sampled() for step in steps if step.leaks)


def noiseless_curve(steps: Sequence[Step]) -> DiscreteCurve:
    """The trade-off curve of the same sampling without noise."""
    never = log_never_sampled(steps)
    side = Side(np.zeros(1), np.array([exp(never)]), -expm1(never))
    return DiscreteCurve(side, side)
