"""One run's canaries: the p-value is the true maximum, the bound on ε holds as often as it says, faults are found."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import comb, exp, inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom

import betastar as bs
from betastar.audit.one_run_audit import guesses as guesses_module
from betastar.audit.one_run_audit.guesses import (
    best_guesses,
    epsilon_at_least,
    judge_one_run,
    numbers_of_guesses,
    one_run_verdict,
    p_value,
)

ADD_REMOVE = bs.Membership("add-remove")


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
        assert p_value(right, guesses, canaries, epsilon, delta) == pytest.approx(exact, abs=1e-6)


def worst_law(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> Any:
    """The number of right guesses of the mechanism that reaches the p-value."""
    law = binom.pmf(np.arange(guesses + 1), guesses, 1.0 / (1.0 + exp(-epsilon)))
    share = p_value(right, guesses, canaries, epsilon, delta) / (1.0 + guesses_module.ROUNDING)
    law[right:] *= share / law[right:].sum()
    law[:right] *= (1.0 - share) / law[:right].sum()
    return law


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
        assert tail[0] < p_value(right, guesses, canaries, epsilon, delta) < published


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.data(), st.floats(0.0, 8.0), st.floats(0.0, 2.0), st.sampled_from([0.0, 1e-9, 1e-5, 1e-2, 1.0]))
def test_p_value_is_monotone(guesses: int, data: st.DataObject, epsilon: float, more: float, delta: float) -> None:
    right, canaries = data.draw(st.integers(0, guesses)), guesses + data.draw(st.integers(0, 3000))
    here = p_value(right, guesses, canaries, epsilon, delta) * (1.0 - 1e-8)
    assert 0.0 <= here <= 1.0
    assert here <= p_value(right, guesses, canaries, epsilon + more, delta)
    assert here <= p_value(right, guesses, canaries, epsilon, min(1.0, 3.0 * delta))
    assert here <= p_value(right, guesses, canaries + 10, epsilon, delta)
    assert here <= p_value(max(right - 1, 0), guesses, canaries, epsilon, delta)
    assert p_value(right, guesses, canaries, epsilon, 0.0) == pytest.approx(
        binom.sf(right - 1, guesses, 1.0 / (1.0 + exp(-epsilon))), rel=1e-8, abs=1e-300
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.data(), st.sampled_from([0.0, 1e-6, 1e-3]), st.sampled_from([0.5, 0.95, 1.0 - 1e-9]))
def test_the_bound_on_epsilon_is_just_refuted(guesses: int, data: st.DataObject, delta: float, confidence: float) -> None:
    right = data.draw(st.integers(0, guesses))
    bound, miss = epsilon_at_least(right, guesses, guesses, delta, confidence), 1.0 - confidence
    if bound > 0.0:
        assert p_value(right, guesses, guesses, bound, delta) <= miss
    assert p_value(right, guesses, guesses, bound * (1.0 + 2e-7) + 1e-12, delta) > miss


def randomized_response(generator: Any, games: int, canaries: int, epsilon: float, delta: float = 0.0) -> tuple[Any, Any]:
    """(scores, coins) of so many audits: the coin itself with probability δ, else right with probability e^ε/(1 + e^ε)."""
    coins = generator.random((games, canaries)) < 0.5
    truth = generator.random((games, canaries)) < delta
    kept = generator.random((games, canaries)) < 1.0 / (1.0 + exp(-epsilon))
    return np.where(truth, 2.0, 1.0) * np.where(coins == (kept | truth), 1.0, -1.0), coins


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (3.0, 0.0), (1.0, 0.002), (0.5, 0.05)])
def test_p_values_of_extreme_mechanisms_are_not_too_small(epsilon: float, delta: float) -> None:
    """2,000 audits each: a claim that holds gets a p-value of at most u in no more than a share u of them."""
    generator = np.random.default_rng(0)
    scores, coins = randomized_response(generator, 2000, 100, epsilon, delta)
    p_values, missed = [], 0
    cache: dict[Any, Any] = {}
    for one, other in zip(scores, coins, strict=True):
        tried = best_guesses(one, other, seed=1)
        if tried not in cache:
            verdict = judge_one_run(one, other, epsilon, delta, seed=1)
            cache[tried] = verdict.p_value, verdict.epsilon
        p_values.append(cache[tried][0])
        missed += cache[tried][1] > epsilon
    for level in (0.001, 0.01, 0.05, 0.2, 0.5):
        assert binom.sf(np.sum(np.array(p_values) <= level) - 1, 2000, level) > 1e-3
    assert binom.sf(missed - 1, 2000, 0.05) > 1e-3
    # With all guesses and no abstention, randomized response is as bad as (ε, 0) can be: little is wasted.
    if delta == 0.0:
        rights = np.sum((scores > 0.0) == coins, axis=1)
        p_value_of = {v: p_value(int(v), 100, 100, epsilon, 0.0) for v in set(rights.tolist())}
        assert np.mean([p_value_of[v] <= 0.2 for v in rights.tolist()]) > 0.12


def test_the_worst_mechanism_for_a_number_is_judged_right() -> None:
    """20,000 draws from the mechanism that is the worst for 75 of 100 right guesses."""
    limit = p_value(75, 100, 1000, 0.7, 1e-4)
    law = worst_law(75, 100, 1000, 0.7, 1e-4)
    drawn = np.random.default_rng(0).choice(101, size=20_000, p=law / law.sum())
    p_values = np.array([p_value(int(v), 100, 1000, 0.7, 1e-4) for v in range(101)])[drawn]
    count = int(np.sum(p_values <= limit))
    assert binom.sf(count - 1, 20_000, limit) > 1e-3
    assert binom.cdf(count, 20_000, limit) > 1e-3


def gaussian(generator: Any, canaries: int, noise: float) -> tuple[Any, Any]:
    """Each canary adds 1 in a direction of its own, and the attacker sees the sum with noise in every direction."""
    coins = generator.random(canaries) < 0.5
    return coins + generator.normal(scale=noise, size=canaries), coins


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_bound_on_epsilon_holds_for_gaussian_canaries(noise: float) -> None:
    truth = bs.analyze(bs.DPSGD(noise, 1.0, 1), ADD_REMOVE).epsilon(1e-5).lower
    generator = np.random.default_rng(2)
    bounds = [judge_one_run(*gaussian(generator, 300, noise), inf, 1e-5).epsilon for _ in range(120)]
    assert np.mean(np.array(bounds) > truth) <= 0.05
    assert max(bounds) > 0.0


def test_power() -> None:
    """A thousand canaries: most of a large ε is found for randomized response, less for a Gaussian, which is not as extreme."""
    generator = np.random.default_rng(3)
    scores, coins = randomized_response(generator, 1, 1000, 4.0, 1e-5)
    assert 2.0 < judge_one_run(scores[0], coins[0], inf, 1e-5).epsilon <= 4.0
    truth = bs.analyze(bs.DPSGD(0.5, 1.0, 1), ADD_REMOVE).epsilon(1e-5).lower
    assert 0.25 * truth < judge_one_run(*gaussian(generator, 1000, 0.5), inf, 1e-5).epsilon <= truth
    assert epsilon_at_least(1000, 1000, 1000, 1e-5, 0.95) > 5.0


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_is_too_small_is_found(seed: int) -> None:
    """One step in which every record takes part; the claim is noise 3."""
    claim, generator = bs.DPSGD(3.0, 1.0, 1), np.random.default_rng(seed)
    honest = one_run_verdict(*gaussian(generator, 1000, 3.0), claim, 1e-5)
    assert not honest.violated
    assert honest.sentence.startswith("No violation: of 1,000 canaries the attacker guessed ")
    assert honest.epsilon < honest.claimed
    faulty = one_run_verdict(*gaussian(generator, 1000, 0.3), claim, 1e-5)
    assert faulty.violated
    assert faulty.p_value < 1e-3
    assert faulty.epsilon > faulty.claimed
    assert faulty.sentence.startswith("Bound violated: of 1,000 canaries the attacker guessed ")
    assert "A reading, not a proof" in faulty.sentence
    assert faulty.twin is not None
    assert 0.3 < faulty.twin.noise_multiplier < 3.0
    twin = bs.analyze(bs.DPSGD(faulty.twin.noise_multiplier, 1.0, 1), ADD_REMOVE)
    assert twin.epsilon(1e-5).estimate == pytest.approx(faulty.epsilon, rel=1e-4)
    assert faulty.twin.bayes_security == twin.bayes_security


def test_ties_and_order_tell_nothing() -> None:
    """Equal scores of canaries that come sorted by their coin: a guess is as good as a coin."""
    coins = np.arange(1000) < 500
    for flipped in (coins, ~coins):
        verdict = judge_one_run(np.zeros(1000), flipped, 0.0, 0.0)
        assert verdict.epsilon == 0.0
        assert verdict.p_value > 0.01
        assert "which refutes no ε" in verdict.sentence
    scores = np.repeat([0.0, 1.0], 500)
    assert best_guesses(scores, ~coins, seed=1)[0] == (1000, 1000)
    assert best_guesses(-scores, ~coins, seed=1)[0] == (1000, 0)


def test_numbers_of_guesses() -> None:
    assert numbers_of_guesses(1000) == (1000, 500, 250, 124, 62, 30)
    assert numbers_of_guesses(21) == (20,)
    assert len(numbers_of_guesses(10**6)) == 6


def test_what_a_verdict_says() -> None:
    generator = np.random.default_rng(5)
    scores, coins = gaussian(generator, 400, 0.5)
    verdict = one_run_verdict(scores, coins, bs.DPSGD(1.0, 0.5, 4) + bs.DPSGD(2.0, 0.5, 4), 1e-5, confidence=0.9)
    assert verdict.twin is None, "noise and rate change"
    assert (verdict.guesses, verdict.right) in verdict.tried
    told = json.loads(json.dumps(verdict.as_dict()))
    assert told["epsilon"] == verdict.epsilon
    assert told["claimed"] == verdict.claimed
    assert told["twin"] is None
    assert told["sentence"] == verdict.sentence
    assert verdict == one_run_verdict(scores, coins.astype(int), verdict.run, 1e-5, confidence=0.9)  # type: ignore[arg-type]
    unclaimed = judge_one_run(scores, coins, inf, 1e-5)
    assert unclaimed.p_value == 1.0
    assert "claimed is no finite ε" in unclaimed.sentence
    assert json.loads(json.dumps(unclaimed.as_dict(), allow_nan=False))["claimed"] is None
    assert "at least 1.234 at δ = 1e-5" in replace(unclaimed, epsilon=1.2349).sentence
    single = one_run_verdict(scores, coins, bs.DPSGD(1.0, 0.5, 8), 1e-5)
    assert json.loads(json.dumps(single.as_dict()))["twin"]["noise_multiplier"] > 0.0


ZEROS, COINS = np.zeros(100), np.arange(100) % 2 == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: p_value(3, 2, 5, 1.0, 0.0), r"right must be at most the number of guesses, 2, got 3"),
        (lambda: p_value(2, 6, 5, 1.0, 0.0), r"guesses must be at most the number of canaries, 5, got 6"),
        (lambda: p_value(-1, 2, 5, 1.0, 0.0), r"right must be a whole number of at least 0, got -1"),
        (lambda: p_value(1, 2, 5, -1.0, 0.0), r"epsilon must be a finite number of at least 0, got -1\.0"),
        (lambda: p_value(1, 2, 5, 1.0, 1.5), r"delta must be between 0 and 1, got 1\.5"),
        (lambda: epsilon_at_least(1, 2, 5, 0.0, 1.0), r"confidence must be strictly between 0 and 1, got 1\.0"),
        (lambda: best_guesses(ZEROS[:19], COINS[:19]), r"scores must be a list for at least 20 canaries, got shape \(19,\)"),
        (
            lambda: best_guesses(ZEROS, COINS[:99]),
            r"included must have one entry for each of the 100 canaries, got shape \(99,\)",
        ),
        (lambda: best_guesses(ZEROS + nan, COINS), r"scores must be finite numbers"),
        (lambda: best_guesses(ZEROS, COINS * 0.5), r"included must be true or false for each canary, got float64"),
        (lambda: best_guesses(ZEROS, COINS * 2), r"included must be true or false for each canary, got int64"),
        (lambda: best_guesses(ZEROS, np.ones(100, bool)), r"included must come from a fair coin .* got 100 of 100 that were in"),
        (lambda: best_guesses(ZEROS, COINS, seed=-1), r"seed must be a whole number of at least 0, got -1"),
        (lambda: judge_one_run(ZEROS, COINS, -1.0, 0.1), r"claimed must be a number of at least 0, or infinite, got -1\.0"),
        (lambda: one_run_verdict(ZEROS, COINS, 1.0, 0.1), r"run must be a DPSGD, got 1\.0"),  # type: ignore[arg-type]
        (lambda: one_run_verdict(ZEROS, COINS, bs.DPSGD([1.0, 2.0], 0.1, 5), 0.1), r"run must be a single run, got a sweep"),
        (lambda: one_run_verdict(ZEROS, COINS, bs.DPSGD(1.0, 0.1, 5), 0.0), r"delta must be strictly between 0 and 1, got 0\.0"),
    ],
)
def test_bad_input(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
