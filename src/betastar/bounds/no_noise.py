"""The ceiling: a record that is never sampled leaks nothing, whatever the noise.

Without noise the attacker learns everything as soon as the record is sampled once, with probability 1 - Π(1-p_t)^{T_t}, and
nothing otherwise. No run with the same sampling is riskier, so a target looser than that needs no noise at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1

import numpy as np

from betastar.bounds import kinds
from betastar.bounds.discrete import DiscreteCurve, Side
from betastar.scenario.step import AnyStep


def never_sampled(steps: Sequence[AnyStep]) -> float:
    """Logarithm of the probability that the record is not in any batch whose step tells the two worlds apart."""
    return sum(step.count * kinds.kind(step).idle(step) for step in steps if kinds.telling(step))


def curve(steps: Sequence[AnyStep]) -> DiscreteCurve:
    """The trade-off curve of the same sampling without noise."""
    idle = never_sampled(steps)
    side = Side(np.zeros(1), np.array([exp(idle)]), -expm1(idle))
    return DiscreteCurve(side, side)
