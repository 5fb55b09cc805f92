"""Statistics of a trace that reveal trainings which are not what they claim; they mislead an attacker who believes the claim.

A trace holds one number for each step: what was seen of the challenge, which is larger in the positive world. Each statistic is
large in the positive world; one half of the games chooses the best of them, and the other half measures it.
"""

from __future__ import annotations

import numpy as np

from betastar.arrays import Booleans, Real
from betastar.dpsgd import DPSGD


def statistics(traces: Real, positive: Booleans, run: DPSGD) -> list[Real]:
    """All statistics of the traces, which have the shape (games, steps)."""
    return [traces.sum(axis=1), outliers(traces), *repeated_batches(traces, run), repeated_randomness(traces, positive)]


def outliers(traces: Real) -> Real:
    """The largest and the smallest number against the median.

    Noise that is the same at each step, or too small, cannot hide a single hit.
    """
    return traces.max(axis=1) + traces.min(axis=1) - 2.0 * np.median(traces, axis=1)


def repeated_batches(traces: Real, run: DPSGD) -> list[Real]:
    """The largest and the smallest sum over steps of equal number in each round of 1/p steps.

    They reveal batches that come in the same order in each round.
    """
    length = round(1.0 / float(np.max([segment.sample_rate for segment in run.segments])))
    whole = traces.shape[1] // length
    if length < 2 or whole < 2:
        return []
    folded = traces[:, : whole * length].reshape(len(traces), whole, length).sum(axis=1)
    return [folded.max(axis=1) + folded.min(axis=1)]


def repeated_randomness(traces: Real, positive: Booleans) -> Real:
    """How much nearer the nearest even game of the positive world is than the nearest one of the other world.

    It reveals randomness that repeats itself.
    """
    even = np.arange(len(traces)) % 2 == 0
    nearest = []
    for world in (positive, ~positive):
        known = traces[even & world]
        if not len(known):
            return np.zeros(len(traces))
        squares = (traces**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2.0 * traces @ known.T
        squares[np.flatnonzero(even & world), np.arange(len(known))] = np.inf  # not its own neighbour
        nearest.append(np.sqrt(np.maximum(squares.min(axis=1), 0.0)))
    return nearest[1] - nearest[0]
