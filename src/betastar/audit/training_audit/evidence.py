"""The evidence for each candidate over the steps of a run, by the likelihood of what was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

import numpy as np
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from betastar.arrays import Real
from betastar.dpsgd import DPSGD, IN_EPOCHS, Segment
from betastar.dpsgd import batches_per_epoch as batches
from betastar.scenario.step import log_mixture


def segment_at(run: DPSGD, step: int) -> tuple[Segment, int]:
    """The segment of a step, and the number of the step in it; beyond the last step, the last segment."""
    for segment in run.segments:
        if step < segment.steps:
            break
        step -= segment.steps
    return segment, step


def rate_and_noise(run: DPSGD, step: int) -> tuple[float, float]:
    """Rate and noise of a step; beyond the last step those of the last."""
    segment = segment_at(run, step)[0]
    return float(segment.sample_rate), float(segment.noise_multiplier)


@dataclass
class Evidence:
    """The log-likelihood of each candidate so far, up to a constant.

    Where each record takes part once in each epoch (balls in bins, shuffled batches), an epoch speaks for a candidate by the mean
    over its steps of the likelihood ratios; otherwise, each step speaks for itself.

    Attributes
    ----------
    run : DPSGD
        What the attacker believes to be run.
    logs : array of float
        The log-likelihoods.
    copies : int
        The number of records, all alike, that a candidate consists of; each is sampled by itself.
    """

    run: DPSGD
    logs: Real
    copies: int = 1
    _epoch: Real | None = field(default=None, init=False)

    def add(self, step: int, towards: Real, squares: Real) -> None:
        """Add a step. For each candidate, with one hit the log-likelihood ratio is towards - squares / 2."""
        segment, place = segment_at(self.run, step)
        rate = float(segment.sample_rate)
        if self.copies > 1:  # of copies in epochs this forgets that each is there once: weaker, and valid all the same
            self.logs = self.logs + log_of_hits(towards, squares, rate, self.copies)
        elif segment.sampling not in IN_EPOCHS:
            self.logs = self.logs + log_mixture(towards - 0.5 * squares, rate)
        else:
            length = int(batches(segment.sample_rate, segment.sampling))
            ratio = towards - 0.5 * squares
            self._epoch = ratio if self._epoch is None else np.logaddexp(self._epoch, ratio)
            if place % length == length - 1:
                self.logs, self._epoch = self.logs + self._epoch - log(length), None


def log_of_hits(towards: Real, squares: Real, rate: float, copies: int) -> Real:
    """log Σ_j Bin(j; copies, rate)·exp(j·towards - j²·squares/2)."""
    hits = np.arange(copies + 1.0)
    chances = gammaln(copies + 1.0) - gammaln(hits + 1.0) - gammaln(copies - hits + 1.0)
    chances = chances + xlogy(hits, rate) + xlog1py(copies - hits, -rate)
    answer: Real = logsumexp(chances + np.multiply.outer(towards, hits) - 0.5 * np.multiply.outer(squares, hits**2), axis=-1)
    return answer
