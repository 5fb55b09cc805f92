"""One step of DP-SGD on a grid of losses: the glued curve, or the pair of adding and removing (theory, sections 2 and 4)."""

from __future__ import annotations

from math import log1p

import numpy as np
from scipy.special import ndtri

from betastar.arrays import Real
from betastar.bounds.grid import EPS, GridStep, Nodes, one_sided, two_sided
from betastar.scenario.step import Step, head, loss, one_step_advantage, tail, threshold

#: Add/remove: where all losses below 0 lie within so many cells, two sides would be too coarse to fit together.
FEW_CELLS = 8.0


def reach(step: Step, slack: float) -> float:
    """How far from its mean all steps together have an outcome with probability `slack`."""
    return -float(ndtri(min(0.01, slack / step.count))) * step.noise


def largest_loss(step: Step, slack: float) -> float:
    """The loss of that outcome."""
    return float(loss(np.array([1.0 + reach(step, slack)]), step.rate, step.noise, step.distance)[0])


def grid_step(step: Step, nodes: Nodes, symmetric: bool, above: bool, slack: float) -> GridStep:
    """The glued curve (or the add/remove pair) of one step on the grid, from above or from below.

    Outcomes so far out that all steps together have them with probability `slack` are given to the attacker.
    """
    p, sigma, distance = step.rate, step.noise, step.distance
    beyond = reach(step, slack)
    start, far, near = 1.0 - 0.5 * distance, 1.0 + beyond, -beyond

    # The gain is a difference of two tails that are close for small distances: its rounding error, outwards.
    outwards = 1.0 + (8.0 if above else -8.0) * EPS * (1.0 + sigma / distance)

    def ahead(losses: Real) -> tuple[Real, Real]:
        low = start if symmetric else near - 1.0
        gain, mass = tail(threshold(losses, p, sigma, distance, low, far), p, sigma, distance)
        return outwards * gain, mass

    def behind(losses: Real) -> tuple[Real, Real]:
        gain, mass = head(threshold(-losses, p, sigma, distance, near, start), p, sigma, distance)
        return outwards * gain, mass

    least, most = float(loss(np.array([near]), p, sigma, distance)[0]), largest_loss(step, slack)
    advantage = one_step_advantage(p, sigma, distance)
    if symmetric:
        return two_sided(step.count, nodes, above, advantage, (ahead, most), None)
    if p < 1.0 and log1p(-p) > -FEW_CELLS * nodes.step:
        return one_sided(step.count, nodes, above, log1p(-p), (ahead, most))
    return two_sided(step.count, nodes, above, advantage, (ahead, most), (behind, -least))
