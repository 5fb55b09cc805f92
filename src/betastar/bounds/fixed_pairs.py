"""Attacks on attributes that exist: the pair on a line and the symmetric pair of the plane, from below (theory, section 2).

The outcome of the line pair is rounded to intervals and that of the symmetric pair to rectangles, which only weakens the
attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from betastar.arrays import Real
from betastar.bounds.discrete import DiscreteCurve
from betastar.bounds.distances import rounded
from betastar.bounds.grid import EPS, GridStep, Nodes, Tails, one_sided, two_sided
from betastar.bounds.kernels import weights
from betastar.bounds.refinement import Grid
from betastar.scenario.step import Step

#: Length of the intervals of the line pair, and side of the rectangles of the symmetric pair, in standard deviations.
INTERVAL, CELL = 0.01, 0.05
#: Different distances of the line pair and of the symmetric pair; more are rounded down, where every pair is admissible.
LINE_LEVELS, PLANE_LEVELS = 256, 64
#: Steps of the grids that are tried, in units of the first one.
WIDER = (1.0, 4.0, 16.0)


def attained(steps: Sequence[Step], grid: Grid, slack: float, rounding: float) -> list[DiscreteCurve]:
    """Curves that are attained, or less, by the line pair and by the symmetric pair.

    Where the outcomes of a pair are too few for a fine grid, so that its two directions do not fit together, a coarser one is
    used.
    """
    families: tuple[tuple[Callable[[Step], tuple[Real, Real]], int], ...] = (
        (_line_cells, LINE_LEVELS),
        (_plane_cells, PLANE_LEVELS),
    )
    grids = [replace(grid, nodes=replace(grid.nodes, step=wider * grid.nodes.step)) for wider in WIDER]
    curves = []
    for cells, levels in families:
        laws: list[list[GridStep]] = [[] for _ in grids]
        for step in rounded(steps, levels, up=False):
            assert isinstance(step, Step)
            gain, mass = cells(step)
            # Differences of close probabilities: give up their rounding error, which mixes P with a little of Q.
            gain *= 1.0 - 64.0 * EPS * (1.0 + step.noise / step.distance)
            for one, on in zip(laws, _from_cells(step.count, gain, mass, [wide.nodes for wide in grids]), strict=True):
                one.append(on)
        ways = [(i, few) for i in range(len(grids)) for few in ((True, False) if grid.few_frequencies else (False,))]
        for i, few in ways:
            curve = replace(grids[i], few_frequencies=few).compose(laws[i], False, slack, rounding)
            if curve is not None and curve.error <= rounding:
                curves.append(curve)
                break
    return curves


def _from_cells(count: int, gain: Real, mass: Real, grids: Sequence[Nodes]) -> list[GridStep]:
    """Dominated grid steps, on several grids, of a pair with finitely many outcomes, given P - Q and Q of each."""
    losses = np.log1p(gain / mass)
    order = np.argsort(losses)
    losses, gain, mass = losses[order], gain[order], mass[order]

    def tails_of(losses: Real, gain: Real, mass: Real) -> Tails:
        above_gain, above_mass = (
            np.append(np.cumsum(part[::-1], dtype=np.longdouble)[::-1], 0.0).astype(np.float64) for part in (gain, mass)
        )

        def tails(at: Real) -> tuple[Real, Real]:
            first = np.searchsorted(losses, at, side="right")
            return above_gain[first], above_mass[first]

        return tails

    ahead = tails_of(losses, gain, mass), float(losses[-1])
    behind = tails_of(-losses[::-1], -gain[::-1], (mass + gain)[::-1]), -float(losses[0])
    advantage = float(gain[losses > 0.0].sum())
    return [
        one_sided(count, nodes, False, float(losses[0]), ahead)
        if losses[0] > -nodes.step
        else two_sided(count, nodes, False, advantage, ahead, behind)
        for nodes in grids
    ]


def _edges(low: float, high: float, width: float = CELL) -> Real:
    return np.linspace(low, high, int((high - low) / width) + 2)


def _line_cells(step: Step) -> tuple[Real, Real]:
    """The pair on a line, rounded to intervals: (P - Q, Q) of each."""
    p, b, sigma = step.rate, (1.0 - step.distance) / step.noise, step.noise
    edges = _edges(min(b, 0.0) - 8.0, 1.0 / sigma + 8.0, INTERVAL)
    other = weights(edges, b)
    return p * (weights(edges, 1.0 / sigma) - other), (1.0 - p) * weights(edges, 0.0) + p * other


def _plane_cells(step: Step) -> tuple[Real, Real]:
    """The symmetric pair of the plane, rounded to rectangles: (P - Q, Q) of each."""
    p, sigma, h = step.rate, step.noise, 0.5 * step.distance
    c = sqrt((1.0 - h) * (1.0 + h))
    along, across = _edges(-8.0, c / sigma + 8.0), _edges(-h / sigma - 8.0, h / sigma + 8.0)
    sampled = weights(along, c / sigma)[:, None]
    first, second = weights(across, h / sigma)[None, :], weights(across, -h / sigma)[None, :]
    idle = weights(along, 0.0)[:, None] * weights(across, 0.0)[None, :]
    gain = p * sampled * (first - second)
    mass = (1.0 - p) * idle + p * sampled * second
    keep = mass > 1e-30
    return gain[keep], mass[keep]
