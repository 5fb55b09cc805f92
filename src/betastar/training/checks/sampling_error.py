"""The error of a loop that samples otherwise than it says, how rarely a right one may be refused, and Chernoff's bound."""

from __future__ import annotations

from math import inf, log

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

#: The largest probability that a run with the right sampling is refused, over all of its steps.
ERROR = 1e-6
#: The part of it that a test of all steps together may spend. The tests of single steps spend at most 7/8.
PART = 1.0 / 8.0


class SamplingError(RuntimeError):
    """The batches of the loop are not sampled as the steps are charged."""


def log_tail(count: float, mean: float) -> float:
    """The logarithm of Chernoff's bound for a sum of independent coins that is as far from its mean as `count`."""
    if count == mean:
        return 0.0
    if mean <= 0.0:
        return -inf
    return count - mean - (count * log(count / mean) if count else 0.0)


def times_in(fingerprints: ArrayLike | Tensor, keys: list[int]) -> dict[int, int]:
    """How often each key occurs."""
    every = np.asarray(fingerprints)
    return {key: int((every == key).sum()) for key in keys}
