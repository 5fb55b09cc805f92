"""Golden values of fixed sizes and of batches that are cut off, made without betastar: `make golden` writes samplings.json.

Adding or removing a record: the loss of one step is put on a fine grid, by midpoints, and the laws of all steps are convolved. A
step of a fixed size shows (1-p)·N(0, σ²) + p·N(2, σ²) or N(0, σ²); a batch that is cut off is, with the probability that the
others fill it, such a step with its own rate, and otherwise one of Poisson sampling, by sums of binomial probabilities.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

HERE = Path(__file__).parent
#: Number of records, batch (or largest batch and rate), noise, steps.
FIXED = [(1000, 100, 1.0, 20), (50, 10, 2.0, 40), (26048, 256, 3.51, 60)]
CUT = [(100, 0.1, 12, 1.0, 20), (4, 0.5, 2, 1.0, 3), (1000, 0.02, 22, 0.8, 50)]
#: Step of the grid of losses.
GRID = 2e-4


def law(rate: float, shift: float, sigma: float, weight: float) -> tuple[Any, Any]:
    """(loss, probability without the record) of fine intervals of outcomes, times a weight."""
    edges = np.arange(-9.0, shift / sigma + 9.0, 2e-4)
    middle = 0.5 * (edges[1:] + edges[:-1])
    loss = np.log1p(rate * np.expm1(shift / sigma * middle - 0.5 * (shift / sigma) ** 2))
    return loss, weight * np.diff(norm.cdf(edges))


def total_variation(parts: list[tuple[Any, Any]], steps: int) -> float:
    """E[(1 - e^L)₊] without the record, after so many steps."""
    loss, mass = (np.concatenate(column) for column in zip(*parts, strict=True))
    low = np.floor(loss.min() / GRID)
    place = loss / GRID - low
    index = np.floor(place).astype(int)
    size = int(index.max()) + 2
    share = np.expm1((place - index) * GRID) / np.expm1(GRID)  # the mean of e^L is kept
    one = np.bincount(index, mass * (1.0 - share), size) + np.bincount(index + 1, mass * share, size)
    whole, start, left, power, first = np.ones(1), 0.0, steps, one, low
    while left:
        if left % 2:
            whole, start = fftconvolve(whole, power), start + first
        power, first, left = fftconvolve(power, power), 2.0 * first, left // 2
        keep = np.flatnonzero(power > 1e-18)  # far out there is nothing
        power, first = power[keep[0] : keep[-1] + 1], first + keep[0]
    values = GRID * (start + np.arange(len(whole)))
    return float(np.sum(np.maximum(whole, 0.0) * np.maximum(-np.expm1(np.minimum(values, 0.0)), 0.0)))


def cut(size: int, rate: float, most: int, sigma: float, steps: int) -> float:
    others = np.arange(size)
    chances = binom.pmf(others, size - 1, rate)
    full = float(chances[most:].sum())
    taken = float((chances * rate * most / (others + 1.0))[most:].sum()) / full
    return total_variation([law(rate, 1.0, sigma, 1.0 - full), law(taken, 2.0, sigma, full)], steps)


def main() -> None:
    rows = [
        {
            "kind": "fixed-size",
            "numbers": list(one),
            "advantage": total_variation([law(one[1] / one[0], 2.0, one[2], 1.0)], one[3]),
        }
        for one in FIXED
    ]
    rows += [{"kind": "cut", "numbers": list(one), "advantage": cut(*one)} for one in CUT]
    (HERE / "samplings.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
