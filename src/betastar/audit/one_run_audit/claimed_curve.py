"""The trade-off curve that a training claims, as straight lines above it: TPR ≤ e^ε·FPR + δ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.special import log_ndtr, ndtr

from betastar import validation
from betastar.analyze import analyze
from betastar.arrays import Real
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.threats import Threat

#: Number of lines, and the δ of the steepest. Fewer lines make a p-value larger, never smaller.
LINES, SMALLEST = 400, 1e-13
#: Relative error of a Gaussian's δ, with room; it is rounded up by it.
ROUNDING = 1e-9


@dataclass(frozen=True)
class ClaimedCurve:
    """Lines that no attack may exceed: for each pair (ε, δ), a TPR is at most e^ε times the FPR, plus δ.

    Whatever lines are left out, what follows from the others is true.

    Attributes
    ----------
    epsilons, deltas : tuple of float
        The lines, the steepest first.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @classmethod
    def of_lines(cls, epsilons: Sequence[float] | Real, deltas: Sequence[float] | Real) -> ClaimedCurve:
        """The curve below these lines: a single pair is (ε, δ)-DP."""
        slopes = np.atleast_1d(validation.numbers("epsilons", epsilons, "finite numbers of at least 0", low=0.0, high=inf))
        heights = np.atleast_1d(validation.probability("deltas", deltas))
        if slopes.ndim != 1 or slopes.shape != heights.shape:
            raise ValueError(f"deltas must have one entry for each of epsilons, got shapes {heights.shape} and {slopes.shape}.")
        order = np.argsort(-slopes)
        return cls(tuple(slopes[order].tolist()), tuple(heights[order].tolist()))

    @classmethod
    def gaussian(cls, mu: float) -> ClaimedCurve:
        """The curve of Gaussian differential privacy: δ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ)."""
        mu = float(validation.numbers("mu", mu, "a finite number of at least 0", low=0.0, high=inf))
        if mu == 0.0:
            return cls((0.0,), (0.0,))
        epsilons = np.linspace(0.0, mu * (0.5 * mu + 7.5), LINES)  # at the end, δ is below Φ(-7.5)
        first = ndtr(0.5 * mu - epsilons / mu)
        second = np.exp(epsilons + log_ndtr(-0.5 * mu - epsilons / mu))
        return cls.of_lines(epsilons, np.clip(first - second + ROUNDING * first, 0.0, 1.0))

    @classmethod
    def of_risk(cls, risk: Risk) -> ClaimedCurve:
        """The lines of `analyze`, with its numerical error on the side of more risk.

        δ is the mean over the two directions, from "in" to "out" and back: the coin of each canary is fair (equation 21).
        """
        if risk.shape != ():
            raise ValueError(f"risk must be of a single run, got a sweep of shape {risk.shape}.")
        steepest = float(risk.epsilon(SMALLEST).upper)
        if not steepest < inf:
            ends = np.asarray(risk.epsilon(np.geomspace(1e-12, 0.5, 64)).upper)
            steepest = float(np.max(ends[np.isfinite(ends)], initial=0.0))
        epsilons = np.linspace(0.0, steepest, LINES) if steepest > 0.0 else np.zeros(1)
        return cls.of_lines(epsilons, np.clip(risk.mean_delta(epsilons), 0.0, 1.0))

    @classmethod
    def of_run(cls, run: DPSGD, threat: Threat) -> ClaimedCurve:
        """The curve that `analyze` computes for a run and a threat."""
        return cls.of_risk(analyze(run, threat))

    def tpr(self, fpr: float) -> float:
        """The largest true-positive rate that the lines allow."""
        return float(min(1.0, np.min(np.exp(self.epsilons) * fpr + np.array(self.deltas))))
