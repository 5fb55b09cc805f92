"""What a step is charged with under each sampling: an upper bound of its leakage λ° (theory, sections 5, 11 and 12)."""

from __future__ import annotations

from typing import Any

import numpy as np

from betastar.arrays import Real
from betastar.bounds import affinity
from betastar.scenario.run import Segment
from betastar.scenario.samplings import IN_EPOCHS
from betastar.scenario.truncation import truncation


def charge(segment: Segment, distances: Any) -> Real:
    """λ° of one step of a segment for many distances; of balls in bins and of shuffling, λ° of an epoch with these distances.

    An epoch is charged as if everybody knew in which of its steps the record takes part. So what counts is the largest distance
    of the epoch, at rate 1.
    """
    rate, noise, far = segment.sample_rate, segment.noise_multiplier, np.asarray(distances, dtype=np.float64)
    if segment.sampling in IN_EPOCHS:
        return affinity.leakage(1.0, noise, far)
    if segment.sampling == "fixed-size":  # relative to the gradient that the record takes the place of: norms up to 2
        return affinity.leakage(rate, 0.5 * noise, 0.5 * far)
    if segment.max_batch_size is None:
        return affinity.leakage(rate, noise, far)
    assert segment.dataset_size is not None
    cut = truncation(rate, segment.dataset_size, segment.max_batch_size)
    if cut.full == 0.0:
        return affinity.leakage(rate, noise, far)
    # A public coin: affinities are averaged, ρ = (1 - c)·ρ₁ + c·ρ₂.
    in_addition, in_place = affinity.leakage(rate, noise, far), affinity.leakage(cut.rate, 0.5 * noise, 0.5 * far)
    with np.errstate(invalid="ignore"):
        mixed = -np.log1p((1.0 - cut.full) * np.expm1(-in_addition) + cut.full * np.expm1(-in_place))
    return np.where(np.isinf(in_addition) & np.isinf(in_place), np.inf, mixed) * (1.0 + 1e-9)
