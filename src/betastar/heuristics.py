"""An attacker who sees the final model only, if all losses were linear: a heuristic, never a bound (theory, section 14).

With a constant learning rate and without momentum, the model at the end is then its start minus the sum of all updates. The sum
of T steps holds the record Bin(T, p) times, under noise of standard deviation σ√T: one step with a mixture of shifts.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.analyze import METHODS, TOLERANCE
from betastar.dpsgd import DPSGD, only_plain
from betastar.risk import Risk
from betastar.sequences import StepSequence
from betastar.steps.group import MixtureStep, binomial
from betastar.threats import Membership, Threat, only_general

#: What the figures are.
FINAL_MODEL = "a heuristic for an attacker who sees the final model only, not a bound"
#: Standard deviation of the number of hits up to which laws are convolved term by term, and from which on it counts as normal.
FEW_HITS, MANY_HITS = 30.0, 1e5
#: Half of the window of the number of hits, in deviations; terms in the deviation of what noise leaves of it.
WINDOW, FINENESS = 12.0, 1.5


def final_model(run: DPSGD, threat: Threat | None = None) -> Risk:
    """What an attacker is expected to do who sees the final model only, and no update. It is no bound: models leak more or less.

    Parameters
    ----------
    run : DPSGD
        What was run, with Poisson sampling, or a sweep over several runs.
    threat : Membership, optional
        Who attacks; membership inference by substitution by default.

    Returns
    -------
    Risk
        Every metric has an estimate, and nan for its ends: nothing to rely on, and no target is met.

    Raises
    ------
    TypeError
        If run is not a DPSGD.
    ValueError
        If the threat is not Membership, or the sampling is not Poisson's.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD.from_epochs(noise_multiplier=3.51, batch_size=256, dataset_size=26048, epochs=20)
    >>> print(bs.heuristics.final_model(run).bayes_security)
    0.899403 (a heuristic, not a bound)
    """
    threat = Membership() if threat is None else threat
    if not isinstance(run, DPSGD):
        raise TypeError(f"run must be a DPSGD, got {run!r}.")
    if not isinstance(threat, Membership):
        raise ValueError(f"threat must be Membership for the final model, got {threat!r}; analyze answers for every update.")
    only_general(threat, "an attacker who sees the final model only")
    outcomes = []
    for scalar in run.scalars():
        step = StepSequence((final_step(scalar, threat),), threat.symmetric, threat.oriented)
        outcomes.append(METHODS["exact"](step, TOLERANCE, "best", True))
    return Risk(outcomes, run.shape, threat.describe(), "exact", heuristic=FINAL_MODEL, run=run)


def final_step(run: DPSGD, threat: Membership) -> MixtureStep:
    """The sum of all steps."""
    only_plain(run, "an attacker who sees the final model only")
    noise = sqrt(sum(segment.steps * segment.noise_multiplier**2 for segment in run.segments))
    trials = [(threat.records * segment.steps, segment.sample_rate) for segment in run.segments]
    weights, shifts = _hits(trials, noise)
    return MixtureStep(tuple(weights.tolist()), tuple(shifts.tolist()), noise, threat.symmetric, 1)


def _hits(trials: list[tuple[int, float]], noise: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities and numbers of hits in independent coins; where these are many, only those that the noise leaves visible."""
    spread = sqrt(sum(n * p * (1.0 - p) for n, p in trials))
    if spread <= FEW_HITS:
        weights, first = np.ones(1), 0
        for n, p in trials:
            more, start = binomial(n, p)
            weights, first = np.convolve(weights, more), first + start
        return weights, first + np.arange(len(weights), dtype=np.float64)
    mean = sum(n * p for n, p in trials)
    # Sums over every m-th term are right if noise and law together are smooth at that scale (Poisson's summation formula).
    apart = max(1, floor(spread * noise / sqrt(spread**2 + noise**2) / FINENESS))
    low, high = max(0, floor(mean - WINDOW * spread)), min(sum(n for n, _ in trials), ceil(mean + WINDOW * spread))
    hits = np.arange(low, high + 1, apart, dtype=np.float64)
    normal = np.exp(-0.5 * ((hits - mean) / spread) ** 2)
    weights = normal if spread > MANY_HITS else _pmf(trials, low, high)[::apart]
    return weights / weights.sum(), hits


def _pmf(trials: list[tuple[int, float]], low: int, high: int) -> NDArray[Any]:
    """Probabilities of low … high hits, to 1e-15, by a Fourier transform of Π (1 - p + p·e^{iθ})^n."""
    from scipy.fft import irfft, next_fast_len

    length = next_fast_len(high - low + 1, real=True)
    angles = 2.0 * np.pi * np.arange(length // 2 + 1) / length
    power = np.zeros(len(angles), dtype=np.complex128)
    turned = 0.0
    for n, p in trials:
        power += n * (np.log(1.0 - p + p * np.exp(-1j * angles)) if p < 1.0 else 0.0)
        turned += n if p >= 1.0 else 0
    power += 1j * np.fmod(angles * (low - turned), 2.0 * np.pi)
    return np.maximum(irfft(np.exp(power), length), 0.0)[: high - low + 1]
