"""Many different distances at the price of a few, with a proof (theory, section 4).

A step at distance R between two others, R₁ ≤ R ≤ R₂, is dominated by a coin that all see: with probability w it shows the
step at R₂, otherwise that at R₁. The coin errs by the square of R₂ - R₁, rounding up to R₂ by R₂ - R₁.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from betastar.arrays import Real
from betastar.bounds.grid import EPS, Blends
from betastar.bounds.one_step import reach
from betastar.scenario.step import AnyStep, Step

#: Most distances that are put on the grid, in all.
MOST = 512


def rounded(steps: Sequence[AnyStep], levels: int, up: bool) -> list[AnyStep]:
    """About `levels` different distances: rounded up, which covers every pair, or down, where every pair is admissible."""
    others = [step for step in steps if not isinstance(step, Step)]
    if len(steps) <= levels or len(others) == len(steps):
        return list(steps)
    ordered = sorted((step for step in steps if isinstance(step, Step)), key=lambda step: (step.rate, step.noise, step.distance))
    so_far = np.cumsum([step.count * step.distance for step in ordered])  # what leaks more gets more levels
    places = np.minimum(levels * so_far / so_far[-1], levels - 1).astype(int).tolist()
    groups: dict[tuple[float, float, int], list[Step]] = {}
    for place, step in zip(places, ordered, strict=True):
        groups.setdefault((step.rate, step.noise, place), []).append(step)
    pick = max if up else min
    fewer = [
        Step(rate, noise, pick(step.distance for step in group), sum(step.count for step in group))
        for (rate, noise, _), group in groups.items()
    ]
    return fewer + others


def blended(steps: Sequence[AnyStep], levels: int, accuracy: float, slack: float) -> tuple[list[AnyStep], Blends | None]:
    """(steps to put on the grid, how they are blended) that dominate the given ones; `steps` and None if they are few.

    accuracy: how much larger the advantage may get, about, relative to itself. slack: as for the steps on the grid.
    """
    if len(steps) <= levels:
        return list(steps), None
    groups: dict[tuple[float, float], dict[float, int]] = {}
    others = [step for step in steps if not isinstance(step, Step)]
    for step in steps:
        if isinstance(step, Step):
            counts = groups.setdefault((step.rate, step.noise), {})
            counts[step.distance] = counts.get(step.distance, 0) + step.count
    while True:
        nodes: list[AnyStep] = []
        rows: list[tuple[float, int, int, float]] = []
        for (rate, noise), counts in groups.items():
            distances = np.array(sorted(counts, reverse=True))
            total = sum(counts.values())
            ends = _cells(distances, rate, noise, total, accuracy, slack)
            first = len(nodes)
            nodes += [Step(rate, noise, float(distances[i]), total) for i in ends]
            for cell, (start, end) in enumerate(zip(ends, [*ends[1:], ends[-1]], strict=True)):
                rows.append((counts[float(distances[start])], first + cell, first + cell, 0.0))
                bend = _bend(rate, noise, float(distances[start]), total, slack)
                for i in range(start + 1, end):
                    weight = _weight(float(distances[i]), float(distances[end]), float(distances[start]), bend)
                    rows.append((counts[float(distances[i])], first + cell + 1, first + cell, weight))
        if len(nodes) <= max(MOST, 2 * len(groups)):
            break
        accuracy *= 2.0
    rows += [(step.count, len(nodes) + i, len(nodes) + i, 0.0) for i, step in enumerate(others)]
    nodes += others
    count, low, high, weights = (np.array(column) for column in zip(*rows, strict=True))
    return nodes, Blends(count.astype(np.float64), low, high, weights)


def _cells(distances: Real, rate: float, noise: float, total: int, accuracy: float, slack: float) -> list[int]:
    """Where cells start, from the largest distance on: places of the distances that are put on the grid.

    A coin between R₁ and R₂ = R₁ + d adds about bend·d²/(12·R₁), in the mean over the cell, to an advantage that grows like R.
    """
    ends, i = [0], 0
    while i < len(distances) - 1:
        largest = float(distances[i])
        room = 6.0 * accuracy / _bend(rate, noise, largest, total, slack)  # d² ≤ room·R₁/2: half of what is allowed
        least = largest + 0.25 * room - sqrt((0.25 * room) ** 2 + 0.5 * room * largest)
        i = max(i + 1, int(np.searchsorted(-distances, -least, side="right")) - 1)
        ends.append(i)
    return ends


def _bend(rate: float, noise: float, largest: float, total: int, slack: float) -> float:
    """Bound of -∂²H/∂R² over ∂H/∂R for distances up to the largest and all outcomes that count: (x - 1 + R)/σ²."""
    return (reach(Step(rate, noise, largest, total), slack) + largest) / (noise * noise) * (1.0 + 16.0 * EPS)


def _weight(distance: float, low: float, high: float, bend: float) -> float:
    """Probability of the larger distance: (1 - e^{-bend·(R - R₁)})/(1 - e^{-bend·(R₂ - R₁)}), rounded up.

    H grows with R and its slope falls by no more than e^{-bend·d} over a distance d: what it has gained at R, as a share of
    what it gains from R₁ to R₂, is largest for a slope that falls just so.
    """
    share = np.expm1(-bend * (distance - low)) / np.expm1(-bend * (high - low))
    return float(min(1.0, share * (1.0 + 64.0 * EPS)))
