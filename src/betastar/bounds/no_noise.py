"""The ceiling: a record that is never sampled leaks nothing, whatever the noise.

Without noise the attacker learns everything as soon as the record is sampled once, with probability 1 - Π(1-p_t)^{T_t}, and
nothing otherwise. No run with the same sampling is riskier, so a target looser than that needs no noise at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, inf, log1p

import numpy as np

from betastar.bounds.discrete import DiscreteCurve, Side
from betastar.scenario.step import Step


def never_sampled(steps: Sequence[Step]) -> float:
    """Logarithm of the probability that the record is not in any batch whose step tells the two worlds apart."""
    telling = [step for step in steps if step.distance > 0.0]
    return sum(step.count * log1p(-step.rate) if step.rate < 1.0 else -inf for step in telling)


def curve(steps: Sequence[Step]) -> DiscreteCurve:
    """The trade-off curve of the same sampling without noise."""
    idle = never_sampled(steps)
    side = Side(np.zeros(1), np.array([exp(idle)]), -expm1(idle))
    return DiscreteCurve(side, side)
