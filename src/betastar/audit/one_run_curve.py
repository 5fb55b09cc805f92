"""What right guesses about the canaries of one run refute: a claimed trade-off curve, or (ε, δ)-DP.

The canaries of one run are not independent games, so that no binomial interval holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from betastar import validation
from betastar.analyze import analyze
from betastar.audit import intervals
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.threats import Threat

# --- The trade-off curve that a training claims, as straight lines above it: TPR ≤ e^ε·FPR + δ

#: Number of lines, and the δ of the steepest. Fewer lines make a p-value larger, never smaller.
LINES, STEEPEST_DELTA = 400, 1e-13
#: Relative error of a Gaussian's δ, with room; it is rounded up by it.
GAUSSIAN_ROUNDING = 1e-9


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
    def of_lines(cls, epsilons: Sequence[float] | NDArray[Any], deltas: Sequence[float] | NDArray[Any]) -> ClaimedCurve:
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
        return cls.of_lines(epsilons, np.clip(first - second + GAUSSIAN_ROUNDING * first, 0.0, 1.0))

    @classmethod
    def of_risk(cls, risk: Risk) -> ClaimedCurve:
        """The lines of `analyze`, with its numerical error on the side of more risk.

        δ is the mean over the two directions, from "in" to "out" and back: the coin of each canary is fair (equation 21).
        """
        if risk.shape != ():
            raise ValueError(f"risk must be of a single run, got a sweep of shape {risk.shape}.")
        steepest = float(risk.epsilon(STEEPEST_DELTA).upper)
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


# --- How likely right guesses are, at most, if the run keeps to a trade-off curve
#
# After Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024), for guesses among any number of
# values, with a proof of its own (theory, section 16).

#: What sums of that many terms may lose, with room; a p-value is rounded up by it.
SUM_ROUNDING = 1e-8
#: A p-value is too large by at most this, relative to itself; smaller ones than the second number are not distinguished.
TOLERANCE, SMALLEST_P_VALUE = 1e-5, 1e-30


def curve_p_value(right: int, guesses: int, canaries: int, claim: ClaimedCurve, values: int = 2) -> float:
    """Bound the probability of this many right guesses if no attack on a canary exceeds the lines of the claim.

    Each of m canaries has one of M values, all equally likely. The attacker guesses for r of them, r fixed beforehand, and p_a
    is the probability of a right guesses. With R_i = Σ_{a≥i} a·p_a and H_i = Σ_{a≥i} (r - a)·p_a/(M - 1), the claim says
    R_{i+1} ≤ e^ε·H_i + m·δ for each of its lines (equation 21). If Pr[right ≥ v] ≥ τ, then R_i, H_i and the sum of the p_a
    are at least those of the recursion of `refutes`, which puts τ at v (Theorem 12). The p-value is a τ at which that sum
    exceeds 1.

    Parameters
    ----------
    right : int
        The number of right guesses, v.
    guesses : int
        The number of guesses, r, known before any score is.
    canaries : int
        The number of canaries, m, with those for which no guess is made.
    claim : ClaimedCurve
        What is claimed.
    values : int
        The number of values that a canary may have, M; "in" and "out" are two.
    """
    if right == 0 or not refutes(right, guesses, canaries, claim, 1.0, values):
        return 1.0
    high, low = 1.0, 0.1
    while refutes(right, guesses, canaries, claim, low, values):
        high, low = low, 0.1 * low
        if low < SMALLEST_P_VALUE:
            return high
    while high > low * (1.0 + TOLERANCE):
        middle = sqrt(low * high)
        low, high = (low, middle) if refutes(right, guesses, canaries, claim, middle, values) else (middle, high)
    return high


def refutes(right: int, guesses: int, canaries: int, claim: ClaimedCurve, level: float, values: int = 2) -> bool:
    """Whether the claim gives this many right guesses a probability below `level`.

    That is so if the least sum of the p_a with τ = `level` at v exceeds 1. Going down from i = v - 1:
    H_i = max(H_{i+1}, max over lines of e^-ε·(R_{i+1} - m·δ)), p_i = (M - 1)·(H_i - H_{i+1})/(r - i), R_i = R_{i+1} + i·p_i.
    The lines become flatter as R grows. Where H stops growing, nothing changes any more. A sum that is broken off early is
    smaller, which is safe.
    """
    right, guesses, canaries = counts(right, guesses, canaries)
    others = validation.one_whole("values", values, 2) - 1
    lines = [(exp(-epsilon), canaries * delta) for epsilon, delta in zip(claim.epsilons, claim.deltas, strict=True)]
    r_sum, h_sum, mass = right * level, (guesses - right) * level / others, level
    factor, offset = lines[0]
    flatter, beyond, before = 1, len(lines), 0.0
    for i in range(right - 1, -1, -1):
        grown = factor * (r_sum - offset)
        while flatter < beyond and (other := lines[flatter][0] * (r_sum - lines[flatter][1])) >= grown:
            grown, (factor, offset), flatter = other, lines[flatter], flatter + 1
        if grown <= h_sum:
            return False
        added = others * (grown - h_sum) / (guesses - i)
        h_sum, r_sum, mass = grown, r_sum + i * added, mass + added
        if mass > 1.0 + SUM_ROUNDING:
            return True
        if added < before and added * i < SUM_ROUNDING * (1.0 - mass):  # past the largest p_i, and too little is left
            return False
        before = added
    return False


def gaussian_at_least(right: int, guesses: int, canaries: int, confidence: float, values: int = 2) -> float:
    """The largest μ of Gaussian DP that these right guesses refute; 0 if none. Too large with probability ≤ 1 - confidence."""
    miss = 1.0 - validation.probability("confidence", confidence, strict=True)
    return largest_refuted(lambda mu: refutes(right, guesses, canaries, ClaimedCurve.gaussian(mu), miss, values))


# --- How likely right guesses are, at most, if the run is (ε, δ)-DP
#
# After Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run" (2023), with a proof of its own (see
# `epsilon_delta_p_value`).

#: Relative error of SciPy's binomial tails, with room; a p-value is rounded up by it.
TAIL_ROUNDING = 1e-9


def epsilon_delta_p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float, values: int = 2) -> float:
    """Bound the probability of this many right guesses if the training is (ε, δ)-DP for a canary that changes its value.

    Each of m canaries has one of M values, all equally likely ("in" and "out" are two values); the attacker sees what the
    training gives out, guesses for r of them, r fixed beforehand, and is right for v. With q = e^ε/(M - 1 + e^ε), X
    binomial(r, q) and f = Pr[X ≥ v]:

        Pr[right ≥ v] ≤ f + (1 - f)·min(1, m·δ·f / (v·Pr[X = v])).

    Proof, for two values; with more of them, write e^ε/(M - 1) for e^ε (theory, section 16, shows why). Let p_a be the
    probability of a right guesses. Flip the coin of a canary that was guessed right: the guesses stay,
    and one of the a right ones is wrong. Over all canaries and coins, every outcome with a right guesses is met a times, every
    one with a - 1 is reached r - a + 1 times, and DP, applied for each canary and each setting of the other coins to the set of
    outputs with a right guesses, for all a in A at once, gives: the sum over A of b_a = a·p_a - e^ε·(r - a + 1)·p_{a-1} is at
    most m·δ. Take for A those with b_a > 0. For δ = 0 this says p_a/p_{a-1} ≤ the same ratio of X, hence Pr[right ≥ v] ≤ f.
    In general let g solve a·g(a) - e^ε·(r - a)·g(a + 1) = 1[a ≥ v] - f (Stein's equation of the binomial law). Its mean is
    Σ b_a·g(a) = Pr[right ≥ v] - f. The solution is a·Pr[X = a]·g(a) = f·Pr[X < a] up to v and (1 - f)·Pr[X ≥ a] from v on. So
    0 ≤ g, and g(a) ≤ g(v) = f·(1 - f)/(v·Pr[X = v]), because Pr[X < a]/(a·Pr[X = a]) grows with a and
    Pr[X ≥ a]/(a·Pr[X = a]) falls, each term of their sums doing so. Hence the bound; beyond 1 it says nothing.

    Nothing smaller is true. Call the right side F: it is reached by the mechanism that draws the number of right guesses from
    X, given X ≥ v with probability F and given X < v otherwise, and then which canaries are guessed and which guesses are
    right, all equally likely. Its only b_a above 0 is b_v ≤ m·δ, and its ratios p_a/p_{a+1} are at most those of X. F grows
    with ε, since f and f/Pr[X = v] do, and falls with v.
    The paper's second term is 2·m·δ·max_i (Pr[X ≥ v - i] - f)/i. That is more wherever f is small; where f is near 1 it is
    less, and F shows that it is then too small (v = 1, r = m = 3, ε = 0); no audit is decided there.
    """
    if right == 0:
        return 1.0
    tail = intervals.p_value(right, guesses, 1.0 / (1.0 + (values - 1) * exp(-epsilon)))
    share = 0.0
    if delta > 0.0:
        odds = epsilon - log(values - 1)
        more = np.arange(1, guesses - right + 1)  # log Pr[X = v + j]/Pr[X = v]
        terms = np.concatenate(([0.0], np.cumsum(odds + np.log((guesses - right + 1 - more) / (right + more)))))
        peak = float(terms.max())
        share = exp(min(0.0, log(canaries * delta / right) + peak + log(float(np.exp(terms - peak).sum()))))
    return min(1.0, (tail + (1.0 - tail) * share) * (1.0 + TAIL_ROUNDING))


def epsilon_at_least(right: int, guesses: int, canaries: int, delta: float, confidence: float, values: int = 2) -> float:
    """The largest ε that these right guesses refute at this δ; 0 if none. Too large with probability at most 1 - confidence."""
    right, guesses, canaries = counts(right, guesses, canaries)
    delta, values = validation.probability("delta", delta), validation.whole("values", values, low=2)
    miss = 1.0 - validation.probability("confidence", confidence, strict=True)
    return largest_refuted(lambda epsilon: epsilon_delta_p_value(right, guesses, canaries, epsilon, delta, values) <= miss)


def largest_refuted(refuted: Callable[[float], bool]) -> float:
    """The largest parameter that is refuted, by bisection; 0 if none is. The one that is returned is refuted."""
    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while refuted(high):
        low, high = high, 2.0 * high
    while high - low > 1e-7 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def counts(right: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    """The three numbers, if they can be those of an audit."""
    canaries = validation.whole("canaries", canaries)
    guesses = validation.whole("guesses", guesses, low=0)
    if guesses > canaries:
        raise ValueError(f"guesses must be at most the number of canaries, {canaries}, got {guesses!r}.")
    right = validation.whole("right", right, low=0)
    if right > guesses:
        raise ValueError(f"right must be at most the number of guesses, {guesses}, got {right!r}.")
    return right, guesses, canaries
