"""How likely right guesses about the canaries of one run are, at most, if the run keeps to a trade-off curve.

After Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024), for guesses among any number of values,
with a proof of its own (theory, section 16).
"""

from __future__ import annotations

from math import exp, sqrt

from betastar import validation
from betastar.audit.one_run_audit.claimed_curve import ClaimedCurve
from betastar.audit.one_run_audit.epsilon_delta import counts, largest_refuted

#: What sums of so many terms may lose, with room; a p-value is rounded up by it.
ROUNDING = 1e-8
#: A p-value is too large by at most this, relative to itself; smaller ones than the second number are not told apart.
TOLERANCE, SMALLEST = 1e-5, 1e-30


def curve_p_value(right: int, guesses: int, canaries: int, claim: ClaimedCurve, values: int = 2) -> float:
    """How likely so many right guesses are, at most, if no attack on a canary exceeds the lines of the claim.

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
        if low < SMALLEST:
            return high
    while high > low * (1.0 + TOLERANCE):
        middle = sqrt(low * high)
        low, high = (low, middle) if refutes(right, guesses, canaries, claim, middle, values) else (middle, high)
    return high


def refutes(right: int, guesses: int, canaries: int, claim: ClaimedCurve, level: float, values: int = 2) -> bool:
    """Whether the claim gives so many right guesses a probability below `level`.

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
        if mass > 1.0 + ROUNDING:
            return True
        if added < before and added * i < ROUNDING * (1.0 - mass):  # past the largest p_i, and too little is left
            return False
        before = added
    return False


def gaussian_at_least(right: int, guesses: int, canaries: int, confidence: float, values: int = 2) -> float:
    """The largest μ of Gaussian DP that so many right guesses refute; 0 if none. Too large with probability ≤ 1 - confidence."""
    miss = 1.0 - validation.probability("confidence", confidence, strict=True)
    return largest_refuted(lambda mu: refutes(right, guesses, canaries, ClaimedCurve.gaussian(mu), miss, values))
