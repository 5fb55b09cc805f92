"""The paper's closed form: its theorem, of which both corollaries are cases.

β* ≈ erfc(p·‖R‖₂ / (2√2σ)), with R = 2 at each step for membership (corollary 1) and the measured distances for
attribute inference (corollary 2). Here noise and rate may change between steps: p‖R‖/σ becomes the root of Σ(p_t R_t/σ_t)².
The error term of its proof is explicit: √(Σ p_t(1-p_t)/σ_t²)/2 for each of the two worlds (theory, section 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt

from betastar.scenario.step import Step


def bayes_security(steps: Sequence[Step]) -> float:
    """The closed form, an approximation."""
    signal = sum(step.count * (step.rate * step.distance / step.noise) ** 2 for step in steps)
    return erfc(sqrt(signal) / (2.0 * sqrt(2.0)))


def error_term(steps: Sequence[Step]) -> float:
    """What the proof allows the closed form to be wrong by; often above 1, and then it says nothing."""
    return sqrt(sum(step.count * step.rate * (1.0 - step.rate) / step.noise**2 for step in steps))


def outside_regime(steps: Sequence[Step]) -> bool:
    """Whether the paper itself advises against its closed form (noise below 1)."""
    return any(step.noise < 1.0 and step.rate < 1.0 and step.distance > 0.0 for step in steps)
