"""One step of DP-SGD on a grid of losses: its tails in both directions, and their polygon (theory, sections 2 and 4)."""

from __future__ import annotations

from math import inf, log1p
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from betastar.arrays import Real
from betastar.certified.grid import EPS, GridStep, Nodes, Tails, one_sided, two_sided
from betastar.scenario.step import Step, head, loss, one_step_advantage, tail, threshold

#: Add/remove: where all losses below 0 lie within so many cells, two sides would be too coarse to fit together.
FEW_CELLS = 8.0


class Directions(NamedTuple):
    """What a grid needs to know of one step, rounded outwards: up for a bound from above, down for one from below.

    advantage: total variation. ahead: tails of the loss, which is above `most` with a probability that is given to the attacker.
    behind, farthest: the same with the worlds exchanged; None if the pair is symmetric. least: no loss is smaller.
    """

    advantage: float
    ahead: Tails
    most: float
    behind: Tails | None = None
    farthest: float = 0.0
    least: float = -inf


def reach(step: Step, slack: float) -> float:
    """How far from its mean all steps together have an outcome with probability `slack`."""
    return -float(ndtri(min(0.01, slack / step.count))) * step.noise


def largest_loss(step: Step, slack: float) -> float:
    """The loss of that outcome."""
    return float(loss(np.array([1.0 + reach(step, slack)]), step.rate, step.noise, step.distance)[0])


def poisson(step: Step, symmetric: bool, above: bool, slack: float) -> Directions:
    """The glued curve of a step with Poisson sampling, or the pair of adding and removing.

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

    advantage = one_step_advantage(p, sigma, distance)
    most = largest_loss(step, slack)
    if symmetric:
        return Directions(advantage, ahead, most)
    least = float(loss(np.array([near]), p, sigma, distance)[0])
    return Directions(advantage, ahead, most, behind, -least, log1p(-p) if p < 1.0 else -inf)


def on_grid(count: int, directions: Directions, nodes: Nodes, above: bool) -> GridStep:
    """The curve of one step on the grid, from above or from below."""
    advantage, ahead, most, behind, farthest, least = directions
    if behind is None:
        return two_sided(count, nodes, above, advantage, (ahead, most), None)
    if least > -FEW_CELLS * nodes.step:
        return one_sided(count, nodes, above, least, (ahead, most))
    return two_sided(count, nodes, above, advantage, (ahead, most), (behind, farthest))
