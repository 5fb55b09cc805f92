"""What (ε, δ)-DP allows an attacker who guesses the canaries of one training run, and what right guesses refute of it.

After Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run" (2023). The canaries of one run are not independent
games, so that no binomial interval holds; what (ε, δ)-DP allows is bounded here by a proof of its own (see `p_value`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log

import numpy as np

from betastar import validation
from betastar.audit import intervals

#: Relative error of SciPy's binomial tails, with room; a p-value is rounded up by it.
ROUNDING = 1e-9


def p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float, values: int = 2) -> float:
    """How likely so many right guesses are, at most, if the training is (ε, δ)-DP for a canary that changes its value.

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
    right, guesses, canaries = counts(right, guesses, canaries)
    values = validation.whole("values", values, low=2)
    epsilon = validation.numbers("epsilon", epsilon, "a finite number of at least 0", low=0.0, high=inf)
    return _p_value(right, guesses, canaries, epsilon, validation.probability("delta", delta), values)


def _p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float, values: int) -> float:
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
    return min(1.0, (tail + (1.0 - tail) * share) * (1.0 + ROUNDING))


def epsilon_at_least(right: int, guesses: int, canaries: int, delta: float, confidence: float, values: int = 2) -> float:
    """The largest ε that so many right guesses refute at this δ; 0 if none. Too large with probability at most 1 - confidence."""
    right, guesses, canaries = counts(right, guesses, canaries)
    delta, values = validation.probability("delta", delta), validation.whole("values", values, low=2)
    miss = 1.0 - validation.probability("confidence", confidence, strict=True)
    return largest_refuted(lambda epsilon: _p_value(right, guesses, canaries, epsilon, delta, values) <= miss)


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
