"""Many different distances at the price of a few.

log M_R(z) / R² is a smooth function of the distance R, so Σ_t log M_{R_t}(z) is, to many digits, a weighted sum over a few
Chebyshev nodes: fractional counts at made-up distances, whatever z is. The exact method composes those.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

import numpy as np

from betastar.scenario.step import Step

#: Up to this many different distances are composed one by one.
FEW = 24
#: Nodes on each panel, and the largest ratio of distances within a panel.
NODES, RATIO = 14, 2.0


def condense(steps: Sequence[Step]) -> list[tuple[float, float, float, float]]:
    """(count, rate, noise, distance) of equivalent steps; steps at distance 0 tell nothing and are dropped."""
    groups: dict[tuple[float, float], dict[float, float]] = {}
    for step in steps:
        if step.distance > 0.0:
            counts = groups.setdefault((step.rate, step.noise), {})
            counts[step.distance] = counts.get(step.distance, 0.0) + step.count
    condensed = []
    for (rate, noise), counts in groups.items():
        if len(counts) > FEW:
            counts = _on_nodes(np.array(list(counts)), np.array(list(counts.values())))
        condensed += [(count, rate, noise, distance) for distance, count in counts.items()]
    return condensed


def _on_nodes(distances: np.ndarray, counts: np.ndarray) -> dict[float, float]:
    """Weights of Chebyshev nodes, panel by panel: Σ_t n_t (R_t/R_j)² ℓ_j(R_t)."""
    low, high = float(distances.min()), float(distances.max())
    panels = max(1, ceil(log(high / low) / log(RATIO)))
    edges = np.geomspace(low, high, panels + 1)
    edges[0], edges[-1] = low, high
    weights: dict[float, float] = {}
    for i in range(panels):
        inside = (distances >= edges[i]) & ((distances < edges[i + 1]) | (i == panels - 1))
        if inside.sum() <= NODES:
            for distance, count in zip(distances[inside], counts[inside], strict=True):
                weights[float(distance)] = weights.get(float(distance), 0.0) + float(count)
            continue
        k = np.arange(NODES)
        nodes = 0.5 * (edges[i] + edges[i + 1]) + 0.5 * (edges[i + 1] - edges[i]) * np.cos(np.pi * k / (NODES - 1))
        nodes = np.minimum(nodes, 2.0)
        signs = (-1.0) ** k * np.where((k == 0) | (k == NODES - 1), 0.5, 1.0)
        gaps = distances[inside][:, None] - nodes[None, :]
        hit = gaps == 0.0
        pulls = np.where(hit.any(axis=1)[:, None], hit, signs / np.where(hit, 1.0, gaps))
        basis = pulls / pulls.sum(axis=1, keepdims=True)
        share = (counts[inside] * distances[inside] ** 2) @ basis / nodes**2
        for node, weight in zip(nodes, share, strict=True):
            weights[float(node)] = weights.get(float(node), 0.0) + float(weight)
    return weights
