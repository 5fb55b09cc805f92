"""What (ε, δ)-DP allows who guesses one run's canaries: the p-value is the true maximum over all mechanisms."""

from __future__ import annotations

import itertools
from math import comb, exp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom

from betastar.audit.one_run_curve import TAIL_ROUNDING, epsilon_at_least, epsilon_delta_p_value


def most(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Largest Pr[right guesses ≥ right] of all (ε, δ)-DP mechanisms whose output is that many guesses: a linear program.

    Its variables: the law of the output for every setting of the coins, and what each probability has above e^ε times that
    with one coin flipped.
    """
    coins = list(itertools.product((-1, 1), repeat=canaries))
    outputs = [t for t in itertools.product((-1, 0, 1), repeat=canaries) if canaries - t.count(0) == guesses]
    law = {(s, t): i for i, (s, t) in enumerate(itertools.product(coins, outputs))}
    flips = list(itertools.product(coins, range(canaries)))
    size = len(law) + len(flips) * len(outputs)
    above, limit = np.zeros((len(flips) * (len(outputs) + 1), size)), np.zeros(len(flips) * (len(outputs) + 1))
    row, extra = 0, len(law)
    for s, i in flips:
        other = (*s[:i], -s[i], *s[i + 1 :])
        for t in outputs:
            above[row, [law[s, t], law[other, t], extra]] = 1.0, -exp(epsilon), -1.0
            row, extra = row + 1, extra + 1
        above[row, extra - len(outputs) : extra], limit[row] = 1.0, delta
        row += 1
    goal, total = np.zeros(size), np.zeros((len(coins), size))
    for (s, t), i in law.items():
        goal[i] = -(sum(a == b for a, b in zip(s, t, strict=True)) >= right) / len(coins)
        total[coins.index(s), i] = 1.0
    return -float(linprog(goal, above, limit, total, np.ones(len(coins)), (0, None), method="highs").fun)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("delta", [0.0, 0.003, 0.1])
@pytest.mark.parametrize(("guesses", "canaries"), [(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)])
def test_p_value_is_the_maximum_over_all_mechanisms(guesses: int, canaries: int, epsilon: float, delta: float) -> None:
    for right in range(guesses + 1):
        exact = most(right, guesses, canaries, epsilon, delta)
        assert epsilon_delta_p_value(right, guesses, canaries, epsilon, delta) == pytest.approx(exact, abs=1e-6)


def worst_law(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> Any:
    """The number of right guesses of the mechanism that reaches the p-value."""
    law = binom.pmf(np.arange(guesses + 1), guesses, 1.0 / (1.0 + exp(-epsilon)))
    share = epsilon_delta_p_value(right, guesses, canaries, epsilon, delta) / (1.0 + TAIL_ROUNDING)
    law[right:] *= share / law[right:].sum()
    law[:right] *= (1.0 - share) / law[:right].sum()
    return law


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.data(), st.floats(0.0, 5.0), st.integers(2, 9))
def test_more_values_shift_epsilon(guesses: int, data: st.DataObject, epsilon: float, values: int) -> None:
    """Guesses among M values under ε are as guesses among two under ε - log(M - 1), if that is not below 0."""
    right, shift = data.draw(st.integers(0, guesses)), float(np.log(values - 1))
    for delta in (0.0, 1e-4):
        here = epsilon_delta_p_value(right, guesses, 2 * guesses, epsilon + shift, delta, values)
        assert here == pytest.approx(epsilon_delta_p_value(right, guesses, 2 * guesses, epsilon, delta), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.data(), st.floats(0.0, 5.0), st.floats(-6.0, -0.3))
def test_p_value_is_reached(guesses: int, more: int, data: st.DataObject, epsilon: float, exponent: float) -> None:
    """The mechanism of the docstring is (ε, δ)-DP, both ways; so nothing smaller is a p-value."""
    right, canaries, delta = data.draw(st.integers(1, guesses)), guesses + more, 10.0**exponent
    law = worst_law(right, guesses, canaries, epsilon, delta)
    each = law / [comb(guesses, a) for a in range(guesses + 1)]  # times the number of choices of the guessed canaries
    among = np.array([comb(guesses - 1, a) for a in range(guesses)], dtype=float)  # settings of the other guesses
    excess = among * np.maximum(each[1:] - exp(epsilon) * each[:-1], 0.0)
    excess += among * np.maximum(each[:-1] - exp(epsilon) * each[1:], 0.0)
    assert excess.sum() * guesses / canaries <= delta * (1.0 + 1e-6) + 1e-9


def test_the_papers_term_is_larger_where_it_matters() -> None:
    for right, guesses, canaries, epsilon, delta in [
        (75, 100, 1000, 0.7, 1e-4),
        (480, 500, 1000, 2.8, 1e-5),
        (60, 62, 99, 2, 1e-3),
    ]:
        rate = 1.0 / (1.0 + exp(-epsilon))
        tail = [binom.sf(right - i - 1, guesses, rate) for i in range(right + 1)]
        published = tail[0] + 2.0 * canaries * delta * max((tail[i] - tail[0]) / i for i in range(1, right + 1))
        assert tail[0] < epsilon_delta_p_value(right, guesses, canaries, epsilon, delta) < published


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.data(), st.floats(0.0, 8.0), st.floats(0.0, 2.0), st.sampled_from([0.0, 1e-9, 1e-5, 1e-2, 1.0]))
def test_p_value_is_monotone(guesses: int, data: st.DataObject, epsilon: float, more: float, delta: float) -> None:
    right, canaries = data.draw(st.integers(0, guesses)), guesses + data.draw(st.integers(0, 3000))
    here = epsilon_delta_p_value(right, guesses, canaries, epsilon, delta) * (1.0 - 1e-8)
    assert 0.0 <= here <= 1.0
    assert here <= epsilon_delta_p_value(right, guesses, canaries, epsilon + more, delta)
    assert here <= epsilon_delta_p_value(right, guesses, canaries, epsilon, min(1.0, 3.0 * delta))
    assert here <= epsilon_delta_p_value(right, guesses, canaries + 10, epsilon, delta)
    assert here <= epsilon_delta_p_value(max(right - 1, 0), guesses, canaries, epsilon, delta)
    assert epsilon_delta_p_value(right, guesses, canaries, epsilon, 0.0) == pytest.approx(
        binom.sf(right - 1, guesses, 1.0 / (1.0 + exp(-epsilon))), rel=1e-8, abs=1e-300
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.data(), st.sampled_from([0.0, 1e-6, 1e-3]), st.sampled_from([0.5, 0.95, 1.0 - 1e-9]))
def test_the_bound_on_epsilon_is_just_refuted(guesses: int, data: st.DataObject, delta: float, confidence: float) -> None:
    right = data.draw(st.integers(0, guesses))
    bound, miss = epsilon_at_least(right, guesses, guesses, delta, confidence), 1.0 - confidence
    if bound > 0.0:
        assert epsilon_delta_p_value(right, guesses, guesses, bound, delta) <= miss
    assert epsilon_delta_p_value(right, guesses, guesses, bound * (1.0 + 2e-7) + 1e-12, delta) > miss


def test_the_worst_mechanism_for_a_number_is_judged_right() -> None:
    """20,000 draws from the mechanism that is the worst for 75 of 100 right guesses."""
    limit = epsilon_delta_p_value(75, 100, 1000, 0.7, 1e-4)
    law = worst_law(75, 100, 1000, 0.7, 1e-4)
    drawn = np.random.default_rng(0).choice(101, size=20_000, p=law / law.sum())
    p_values = np.array([epsilon_delta_p_value(int(v), 100, 1000, 0.7, 1e-4) for v in range(101)])[drawn]
    count = int(np.sum(p_values <= limit))
    assert binom.sf(count - 1, 20_000, limit) > 1e-3
    assert binom.cdf(count, 20_000, limit) > 1e-3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon_at_least(3, 2, 5, 0.0, 0.95), r"right must be at most the number of guesses, 2, got 3"),
        (lambda: epsilon_at_least(2, 6, 5, 0.0, 0.95), r"guesses must be at most the number of canaries, 5, got 6"),
        (lambda: epsilon_at_least(-1, 2, 5, 0.0, 0.95), r"right must be a whole number of at least 0, got -1"),
        (lambda: epsilon_at_least(1, 2, 5, 1.5, 0.95), r"delta must be between 0 and 1, got 1\.5"),
        (lambda: epsilon_at_least(1, 2, 5, 0.0, 1.0), r"confidence must be strictly between 0 and 1, got 1\.0"),
    ],
)
def test_bad_input(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
