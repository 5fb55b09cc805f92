"""A run on grids of losses that get finer, from above and from below, until the interval of β* is as narrow as it shall be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, sqrt

from betastar.bounds import affinity, band_limited, grid, kinds, transform
from betastar.bounds.discrete import DiscreteCurve
from betastar.bounds.distances import blended, rounded
from betastar.bounds.grid import Blends, GridStep, Nodes
from betastar.bounds.kinds import grid_step, largest_loss
from betastar.scenario.step import AnyStep

#: Points of the composed law, at few frequencies and with a fast transform: what takes milliseconds, and what fits in memory.
SIZES = ((1 << 17, 1 << 19), (1 << 22, 1 << 23))
#: Different steps that are put on the grid of a fast transform; more are rounded up to that many distances.
LEVELS = 64
#: Deviation of the loss beyond which the first grid does not get coarser.
WIDEST_SPREAD = 64.0
#: Steps from which on their law may be smooth enough to be composed at few frequencies.
MANY_STEPS = 16
#: Nodes per octave there, times the root of the tolerance; rounds, each with twice as many nodes.
NODES, NODE_ROUNDS = 0.3, 4
#: Tolerance that decides how fine the first grids are where a larger one is asked for: coarser ones save nothing.
COARSEST = 3e-4
#: Steps that leak less than this share of the whole do not decide how fine the lattice is.
SMALL_SHARE = 1e-4


def losses_given_up(tolerance: float) -> tuple[float, float]:
    """(slack, rounding): the probability of outcomes that are given to the attacker, and what rounding to the grid may cost."""
    return min(1e-12, 1e-3 * tolerance), 1e-2 * tolerance


@dataclass(frozen=True)
class Grid:
    """Nodes for one step, and how steps on them are composed: at few frequencies, or with a fast transform of all.

    most: points of the composed law, beyond which it is not computed.
    """

    nodes: Nodes
    few_frequencies: bool
    most: int

    def compose(
        self, steps: Sequence[GridStep], above: bool, slack: float, rounding: float, blends: Blends | None = None
    ) -> DiscreteCurve | None:
        """The curve of all steps together; None if this grid does not work."""
        if self.few_frequencies:
            return band_limited.compose(steps, self.nodes.step, slack, above, self.most, blends)
        return grid.compose(steps, self.nodes.step, slack, rounding, self.most, blends)


def refined(
    steps: Sequence[AnyStep], symmetric: bool, tolerance: float, spread: float, coarse: bool
) -> tuple[DiscreteCurve, DiscreteCurve, Grid] | None:
    """The run from above and from below on the best grid that was tried, and that grid; None if no grid works.

    spread: standard deviation of the loss, about. The grid gets finer until the interval of β* is as narrow as the tolerance;
    coarse: the first grid that works is fine enough. The curve from below is that of the run itself only if steps of the same
    rate and noise have the same distance; otherwise it tells how fine the grid is.
    """
    slack, rounding = losses_given_up(tolerance)
    advantage = sqrt(1.0 - exp(-0.25 * spread * spread))  # at most, by the affinity
    nodes, blends = blended(steps, LEVELS, tolerance / max(advantage, tolerance), slack)
    best: tuple[DiscreteCurve, DiscreteCurve, Grid] | None = None
    narrowest = 2.0

    def enclosed(on: Grid) -> tuple[float, float]:
        """(width of the interval of β* on this grid, the part of it that is numerical error); infinite if it does not work."""
        nonlocal best, narrowest
        curves = []
        for above in (True, False):
            laws = [grid_step(step, on.nodes, symmetric, above, slack) for step in nodes]
            told = any(max(law.ahead_infinite, law.behind_infinite) >= 1.0 for law in laws)  # a single step tells everything
            curve = None if told else on.compose(laws, above, slack, rounding, blends)
            if curve is None:
                return inf, inf
            curves.append(curve)
        (most, most_error), (least, least_error) = (curve.hockey_stick(0.0) for curve in curves)
        width = (most + most_error) - max(least - least_error, 0.0)
        if width < narrowest:
            best, narrowest = (curves[0], curves[1], on), width
        return width, most_error + least_error

    root = sqrt(min(tolerance, COARSEST))
    sparse = Nodes(_smallest_deviation(nodes, symmetric) * root, ceil(NODES / root))
    largest, size = max(spread, *(largest_loss(step, slack) for step in steps)), min(spread, WIDEST_SPREAD) / 8.0
    for few, many in SIZES:  # first what takes milliseconds
        for _ in range(NODE_ROUNDS if sum(step.count for step in steps) >= MANY_STEPS else 0):
            width, error = enclosed(Grid(sparse, True, few))
            if width <= tolerance or (coarse and best):
                return best
            if error > 0.5 * width or width == inf:
                break
            sparse = Nodes(0.125 * sparse.step, 2 * (sparse.per_octave or 1))
        while largest / size <= many:
            width, _ = enclosed(Grid(Nodes(size, ceil(1.0 / root)), False, many))
            if width <= tolerance or (coarse and best):
                return best
            size *= 0.25 if width == inf else min(0.5, max(0.25, 0.8 * sqrt(tolerance / width)))
    fewer = rounded(steps, LEVELS, up=True)
    if best is None and len(fewer) < len(steps):  # too many to be blended on grids as fine as they need
        return refined(fewer, symmetric, tolerance, spread, coarse)
    return best


def _smallest_deviation(steps: Sequence[AnyStep], symmetric: bool) -> float:
    """Standard deviation of the loss of one step, about √(8λ), least over the steps that count."""
    build = transform.glued if symmetric else transform.line
    exponents = [affinity.exponent_of(kinds.kind(step).part(step, build)) for step in steps]
    total = sum(step.count * exponent for step, exponent in zip(steps, exponents, strict=True))
    counting = [e for step, e in zip(steps, exponents, strict=True) if step.count * e >= SMALL_SHARE * total]
    return sqrt(8.0 * min(counting, default=max(exponents)))
