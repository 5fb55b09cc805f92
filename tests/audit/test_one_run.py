"""One run against a trade-off curve: above the maximum over all mechanisms, near published values, right as often as it says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from math import exp, inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import brentq, linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

import betastar as bs
from betastar import audit
from betastar.audit import ClaimedCurve, judge_run
from betastar.audit.evidence.mechanism import attacks, corners, play, play_values, strongest
from betastar.audit.verdict.one_run import (
    SHARES,
    curve_p_value,
    gaussian_at_least,
    planned_guesses,
    right_guesses,
)

ADD_REMOVE = bs.Membership("add-remove")


def few_lines(mu: float, lines: int = 9) -> ClaimedCurve:
    whole = ClaimedCurve.gaussian(mu)
    return ClaimedCurve.of_lines(whole.epsilons[:: 400 // lines], whole.deltas[:: 400 // lines])


def most(right: int, guesses: int, canaries: int, claim: ClaimedCurve, values: int) -> float:
    """Largest Pr[right guesses ≥ right] of all mechanisms below the lines, whose output is that many guesses: a linear program.

    Its variables: the law of the output for every setting of the secrets, and for each line, what each probability has above e^ε
    times that with one secret changed.
    """
    secrets = list(itertools.product(range(values), repeat=canaries))
    outputs = [t for t in itertools.product(range(-1, values), repeat=canaries) if canaries - t.count(-1) == guesses]
    law = {(s, t): i for i, (s, t) in enumerate(itertools.product(secrets, outputs))}
    pairs = [(s, (*s[:i], v, *s[i + 1 :])) for s in secrets for i in range(canaries) for v in range(values) if v != s[i]]
    rows, columns, entries, limit = [], [], [], []
    extra = len(law)
    for (s, other), (epsilon, delta) in itertools.product(pairs, zip(claim.epsilons, claim.deltas, strict=True)):
        for t in outputs:
            rows += [len(limit)] * 3
            columns += [law[s, t], law[other, t], extra]
            entries += [1.0, -exp(epsilon), -1.0]
            limit.append(0.0)
            extra += 1
        rows += [len(limit)] * len(outputs)
        columns += range(extra - len(outputs), extra)
        entries += [1.0] * len(outputs)
        limit.append(delta)
    above = sparse.csr_matrix((entries, (rows, columns)), shape=(len(limit), extra))
    goal = np.zeros(extra)
    for (s, t), i in law.items():
        goal[i] = -(sum(a == b for a, b in zip(s, t, strict=True)) >= right) / len(secrets)
    total = sparse.csr_matrix(
        ([1.0] * len(law), ([i // len(outputs) for i in range(len(law))], range(len(law)))), shape=(len(secrets), extra)
    )
    return -float(linprog(goal, above, limit, total, np.ones(len(secrets)), (0, None), method="highs").fun)


def most_of_counts(right: int, guesses: int, canaries: int, claim: ClaimedCurve, values: int) -> float:
    """The same maximum from the law of the number of right guesses alone: mechanisms that treat all canaries and values alike."""
    k, size = np.arange(guesses), guesses + 1
    up, down = (k + 1.0) / canaries, (guesses - k) / (canaries * (values - 1.0))
    rows, columns, entries, limit = [], [], [], []
    extra = size
    for epsilon, delta in zip(claim.epsilons, claim.deltas, strict=True):
        both = []
        for mine, other, shift in ((up, down, 1), (down, up, 0)):
            rows += [len(limit) + k] * 3
            columns += [k + shift, k + 1 - shift, extra + k]
            entries += [mine, -exp(epsilon) * other, -np.ones(guesses)]
            limit += [0.0] * guesses
            both.append(extra + k)
            extra += guesses
        rows.append(np.full(2 * guesses, len(limit)))
        columns.append(np.concatenate(both))
        entries.append(np.ones(2 * guesses))
        limit.append(delta)
    joined = [np.concatenate(part) for part in (entries, rows, columns)]
    above = sparse.csr_matrix((joined[0], (joined[1], joined[2])), shape=(len(limit), extra))
    goal, total = np.zeros(extra), np.zeros((1, extra))
    goal[right:size], total[0, :size] = -1.0, 1.0
    return -float(linprog(goal, above, limit, sparse.csr_matrix(total), [1.0], (0, None), method="highs").fun)


@pytest.mark.parametrize("mu", [0.4, 1.5])
@pytest.mark.parametrize(
    ("guesses", "canaries", "values"), [(1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 3, 2), (3, 3, 2), (2, 2, 3), (1, 2, 4)]
)
def test_never_below_the_maximum_over_all_mechanisms(guesses: int, canaries: int, values: int, mu: float) -> None:
    claim = few_lines(mu, 5)
    for right in range(guesses + 1):
        exact = most(right, guesses, canaries, claim, values)
        assert exact == pytest.approx(most_of_counts(right, guesses, canaries, claim, values), abs=1e-7)
        assert curve_p_value(right, guesses, canaries, claim, values) >= exact - 1e-7


@pytest.mark.parametrize("values", [2, 3, 10])
@pytest.mark.parametrize(("guesses", "canaries", "mu"), [(6, 6, 0.3), (40, 100, 1.0), (40, 40, 0.33), (40, 400, 0.5)])
def test_near_the_maximum_where_audits_are_decided(guesses: int, canaries: int, mu: float, values: int) -> None:
    claim, compared = few_lines(mu, 40), 0
    for right in range(guesses, guesses // values, -3):
        exact, here = (
            most_of_counts(right, guesses, canaries, claim, values),
            curve_p_value(right, guesses, canaries, claim, values),
        )
        assert here >= exact * (1.0 - 1e-5) - 3e-6  # what the solver of the program allows itself
        if 1e-4 < exact < 0.05:
            assert here <= 1.5 * exact
            compared += 1
    assert compared > 0 or guesses == 6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.data(), st.floats(0.05, 4.0), st.floats(0.0, 1.0), st.integers(2, 12))
def test_monotone(guesses: int, data: st.DataObject, mu: float, more: float, values: int) -> None:
    right, canaries = data.draw(st.integers(0, guesses)), guesses + data.draw(st.integers(0, 2000))
    here = curve_p_value(right, guesses, canaries, ClaimedCurve.gaussian(mu), values)
    assert 0.0 < here <= 1.0
    rounded = here * (1.0 - 1e-3)  # lines at other slopes
    assert rounded <= curve_p_value(right, guesses, canaries, ClaimedCurve.gaussian(mu + more), values)
    assert rounded <= curve_p_value(right, guesses, canaries + 10, ClaimedCurve.gaussian(mu), values)
    assert rounded <= curve_p_value(max(right - 1, 0), guesses, canaries, ClaimedCurve.gaussian(mu), values)
    if values > 2:
        assert curve_p_value(right, guesses, canaries, ClaimedCurve.gaussian(mu), values) <= (
            curve_p_value(right, guesses, canaries, ClaimedCurve.gaussian(mu), values - 1) * (1.0 + 1e-3)
        )


def test_extremes() -> None:
    gaussian, none = ClaimedCurve.gaussian(1.0), ClaimedCurve.gaussian(0.0)
    assert curve_p_value(0, 0, 5, gaussian) == 1.0, "no guess"
    assert curve_p_value(0, 5, 5, gaussian) == 1.0
    assert curve_p_value(1, 1, 1, none) == pytest.approx(0.5, rel=1e-4)
    assert curve_p_value(1, 1, 1, none, values=10) == pytest.approx(0.1, rel=1e-4)
    assert curve_p_value(1, 1, 1, gaussian) == pytest.approx(ndtr(0.5), rel=1e-4), "one canary: the success of the best attack"
    assert curve_p_value(1000, 1000, 1000, none) < 2e-30
    assert curve_p_value(1000, 1000, 1000, ClaimedCurve.of_lines([5.0], [1.0])) == 1.0, "δ = 1 allows everything"
    assert curve_p_value(600_000, 1_000_000, 1_000_000, none) < 1e-20
    assert curve_p_value(200_000, 200_000, 1_000_000, gaussian) < 1e-3
    assert gaussian_at_least(1000, 1000, 1000, 0.95) > 2.0
    assert gaussian_at_least(500, 1000, 1000, 0.95) == 0.0


def test_pure_dp_is_nearly_the_binomial_tail() -> None:
    for right in (80, 85, 90, 99):
        exact = float(binom.sf(right - 1, 100, 1.0 / (1.0 + exp(-1.0))))
        assert exact <= curve_p_value(right, 100, 100, ClaimedCurve.of_lines([1.0], [0.0])) <= 1.5 * exact


def published(right: int, guesses: int, canaries: int, mu: float, level: float) -> bool:
    """Whether a Gaussian is refuted: the recursion as it was published, with the curve itself instead of lines below it."""
    r, h = level * right / canaries, level * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        grown = max(h, float(ndtr(ndtri(r) - mu)))
        if grown == h:
            break
        r, h = min(1.0, r + i / (guesses - i) * (grown - h)), grown
    return r + h > guesses / canaries


@pytest.mark.parametrize(
    ("right", "guesses", "canaries"), [(379, 406, 20_000), (934, 938, 20_000), (160, 200, 1000), (55, 60, 60)]
)
def test_the_published_recursion(right: int, guesses: int, canaries: int) -> None:
    mu = gaussian_at_least(right, guesses, canaries, 0.95)
    assert published(right, guesses, canaries, mu * (1.0 - 1e-6), 0.05)
    assert not published(right, guesses, canaries, mu * (1.0 + 1e-3), 0.05)


def epsilon_of(mu: float, delta: float) -> float:
    return float(brentq(lambda e: ndtr(0.5 * mu - e / mu) - exp(e) * ndtr(-0.5 * mu - e / mu) - delta, 0.0, 100.0))


@pytest.mark.parametrize(
    ("shift", "thresholds", "inside", "outside", "known", "by_epsilon_delta"),
    [(1, 386, 379, 27, 2.164749, 1.13346), (2, 374, 934, 4, 4.7218075, 2.311945), (4, 140, 5436, 0, 9.133752, 4.395568)],
)
def test_published_values(shift: int, thresholds: int, inside: int, outside: int, known: float, by_epsilon_delta: float) -> None:
    """10,000 scores in and 10,000 out at normal quantiles, δ = 1e-6: values in the tests of jax_privacy.

    These share the level among all thresholds of the convex hull, guess "in" only, and take the best; its counts are the ones
    here. A number of guesses that is chosen in advance does better, with no share to give away.
    """
    same = gaussian_at_least(inside, inside + outside, 20_000, 1.0 - 0.05 / thresholds)
    assert epsilon_of(same, 1e-6) == pytest.approx(known, rel=1e-4)
    quantiles = ndtri((np.arange(10_000) + 0.5) / 10_000)
    scores, truth = np.concatenate([quantiles, quantiles + shift]), np.arange(20_000) >= 10_000
    ours = judge_run(scores, truth, None, delta=1e-6)
    assert ours.guesses == 4000
    assert epsilon_of(ours.gdp_mu, 1e-6) > 1.3 * known
    assert ours.gdp_mu < shift
    assert ours.epsilon > 1.5 * by_epsilon_delta


def p_values_of(
    run: bs.DPSGD, canaries: int, audits: int, seed: int, actual: bs.DPSGD | None = None, values: int | None = None
) -> Any:
    """The p-values of many audits in one run of the mechanism."""
    threat = ADD_REMOVE if values is None else bs.AttributeInference(2.0**0.5)
    claim, choices = ClaimedCurve.of_run(run, threat), values or 2
    guesses = planned_guesses(claim, canaries, choices)
    believed, real = (attacks(one, threat)[0].steps for one in (run, actual or run))
    pair, rights = strongest(attacks(run, threat), 0.5)[1], []
    for stream in np.random.SeedSequence(seed).spawn(audits):
        if values is None:
            truth, scores, _ = play(believed, real, pair, 0.5, canaries, stream)
        else:
            truth, scores = play_values(believed, real, values, canaries, stream)
        rights.append(right_guesses(scores, truth, guesses))
    known = {right: curve_p_value(right, guesses, canaries, claim, choices) for right in set(rights)}
    return np.array([known[right] for right in rights])


def test_a_claim_is_above_its_curve() -> None:
    run = bs.DPSGD(1.0, 0.05, 100)
    claim, risk = ClaimedCurve.of_run(run, ADD_REMOVE), bs.analyze(run, ADD_REMOVE)
    for epsilon, delta in list(zip(claim.epsilons, claim.deltas, strict=True))[::40]:
        assert 0.5 * risk.delta(epsilon).lower <= delta <= risk.delta(epsilon).upper
    line = ClaimedCurve.of_run(bs.DPSGD(2.0, 1.0, 1), ADD_REMOVE)
    for fpr in (1e-4, 0.01, 0.3):
        assert line.tpr(fpr) == pytest.approx(ndtr(ndtri(fpr) + 0.5), rel=2e-3)
        assert line.tpr(fpr) >= ndtr(ndtri(fpr) + 0.5)
    substitution = bs.analyze(run)
    assert substitution.mean_delta([0.5])[0] == substitution.delta(0.5).upper


@pytest.mark.parametrize(("run", "canaries"), [(bs.DPSGD(1.0, 1.0, 1), 1000), (bs.DPSGD(0.7, 0.2, 5), 300)])
def test_coverage_over_500_audits(run: bs.DPSGD, canaries: int) -> None:
    p_values = p_values_of(run, canaries, 500, seed=1)
    for level in (0.01, 0.05, 0.2):
        assert binom.sf(np.count_nonzero(p_values <= level) - 1, 500, level) > 1e-3
    assert np.mean(p_values < audit.ALARM) == 0.0


@pytest.mark.parametrize("values", [3, 5])
def test_coverage_over_500_audits_of_values(values: int) -> None:
    """Attributes: canaries of several values, at sqrt(2) clipping norms from each other."""
    p_values = p_values_of(bs.DPSGD(2.0, 0.5, 4), 200, 500, 1, values=values)
    for level in (0.01, 0.05, 0.2):
        assert binom.sf(np.count_nonzero(p_values <= level) - 1, 500, level) > 1e-3
    assert np.mean(p_values < audit.ALARM) == 0.0


def test_coverage_of_the_worst_mechanism() -> None:
    """A mechanism that does all it may: with probability δ it gives out every value, and otherwise nothing. It is (0, δ)-DP, and
    right for all canaries far more often than independent ones would be. 500 audits of it are simulated, for each δ."""
    generator = np.random.default_rng(4)
    for delta, values in ((0.02, 2), (0.2, 2), (0.2, 4)):
        claim = ClaimedCurve.of_lines([0.0], [delta])
        p_values = []
        for _ in range(500):
            truth = generator.integers(values, size=40)
            scores = generator.random((40, values))
            if generator.random() < delta:
                scores[np.arange(40), truth] += 1.0
            told = (scores[:, 1] - scores[:, 0], truth == 1) if values == 2 else (scores, truth)
            p_values.append(curve_p_value(right_guesses(*told, 20), 20, 40, claim, values))
        for level in (0.001, 0.01, 0.05, 0.1, 0.2, 0.3):
            assert binom.sf(np.count_nonzero(np.array(p_values) <= level) - 1, 500, level) > 1e-3
        assert min(p_values) >= delta


def test_a_line_that_cannot_be_computed_allows_anything() -> None:
    """Numbers that are not finite are none of the curve, and give no warning."""
    claim = ClaimedCurve.of_run(bs.DPSGD(0.8973545375015536, 1 / 14, 14), ADD_REMOVE)
    assert np.isfinite(claim.deltas).all()


def test_the_p_value_is_above_the_worst_of_a_linear_program() -> None:
    claim = few_lines(1.0, 20)
    limit = curve_p_value(37, 40, 100, claim)
    assert most_of_counts(37, 40, 100, claim, 2) <= limit


def test_power() -> None:
    """What the docs say: noise too small by 3 with 1,000 canaries, by 2.5 with 20,000; p-value below 0.001."""
    for noise in (1.0, 2.0, 3.0):
        run = bs.DPSGD(noise, 1.0, 1)
        assert np.mean(p_values_of(run, 1000, 100, 1, bs.DPSGD(noise / 3.0, 1.0, 1)) < audit.ALARM) >= 0.6
        assert np.mean(p_values_of(run, 20_000, 40, 1, bs.DPSGD(noise / 2.5, 1.0, 1)) < audit.ALARM) >= 0.95


@pytest.mark.parametrize("values", [2, 5])
def test_values(values: int) -> None:
    """Attributes in one run: the value of each canary is guessed."""
    run, threat = bs.DPSGD(2.0, 1.0, 2), bs.AttributeInference(1.0)
    honest = audit.one_run_mechanism(run, threat, 500, values=values, seed=1)
    assert not honest.violated
    assert honest.values == values
    assert honest.right > honest.guesses / values
    faulty = audit.one_run_mechanism(run, threat, 500, values=values, seed=1, actual=bs.DPSGD(0.4, 1.0, 2))
    assert faulty.violated
    assert (" (5 values each)" in faulty.sentence) == (values == 5)


@pytest.mark.parametrize(("distance", "values"), [(1.0, 2), (2.0, 2), (1.0, 7), (1.9, 5)])
def test_corners(distance: float, values: int) -> None:
    places = corners(distance, values)
    assert np.linalg.norm(places, axis=1) == pytest.approx(1.0)
    apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)]
    assert apart == pytest.approx([min(distance, (2.0 * values / (values - 1.0)) ** 0.5)] * len(apart))


def test_guesses_are_planned_before_the_scores() -> None:
    for noise in (0.3, 1.0, 5.0):
        claim = ClaimedCurve.gaussian(1.0 / noise)
        for canaries in (20, 99, 1000, 10**6):
            guesses = planned_guesses(claim, canaries)
            assert 0 < guesses <= canaries
            assert guesses % 2 == 0
            assert any(abs(guesses - share * canaries) <= 2 for share in SHARES) or guesses == 20
    assert planned_guesses(None, 1000) == 200
    assert planned_guesses(ClaimedCurve.of_lines([0.0], [1.0]), 1000) == 200
    assert 0 < planned_guesses(ClaimedCurve.gaussian(1.0), 1000, values=8) <= 1000


def test_ties_and_order_tell_nothing() -> None:
    coins = np.arange(1000) < 500
    for flipped in (coins, ~coins):
        assert judge_run(np.zeros(1000), flipped, ClaimedCurve.gaussian(0.0)).p_value > 0.01
        assert 60 < right_guesses(np.zeros((1000, 2)), flipped, 200) < 140
    scores = np.repeat([0.0, 1.0], 500)
    assert right_guesses(scores, ~coins, 1000) == 1000
    assert right_guesses(-scores, ~coins, 1000) == 0
    table = np.eye(4)[np.arange(1000) % 4]
    assert right_guesses(table, np.arange(1000) % 4, 300) == 300


def gaussian(generator: Any, canaries: int, noise: float) -> tuple[Any, Any]:
    """Each canary adds 1 in a direction of its own, and the attacker sees the sum with noise in every direction."""
    coins = generator.random(canaries) < 0.5
    return coins + generator.normal(scale=noise, size=canaries), coins


def test_what_a_verdict_says() -> None:
    claim, generator = bs.DPSGD(3.0, 1.0, 1), np.random.default_rng(1)
    honest = judge_run(*gaussian(generator, 1000, 3.0), claim)
    assert honest.sentence.startswith("No violation: of 1,000 canaries the attacker guessed ")
    scores, coins = gaussian(generator, 1000, 0.5)
    faulty = judge_run(scores, coins, claim)
    assert faulty.violated
    assert faulty.sentence.startswith("Bound violated: of 1,000 canaries the attacker guessed ")
    told = json.loads(json.dumps(faulty.as_dict(), allow_nan=False))
    assert told["sentence"] == faulty.sentence
    assert faulty == judge_run(scores, coins.astype(int), claim)
    unclaimed = judge_run(scores, coins, None)
    assert unclaimed.p_value == 1.0
    assert "claimed is no finite ε" in unclaimed.sentence
    assert json.loads(json.dumps(unclaimed.as_dict(), allow_nan=False))["claimed"] is None


ZEROS, COINS = np.zeros(100), np.arange(100) % 2 == 0
CLAIM = ClaimedCurve.gaussian(1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: curve_p_value(3, 2, 5, CLAIM), r"right must be at most the number of guesses, 2, got 3"),
        (lambda: curve_p_value(1, 2, 5, CLAIM, 1), r"values must be a whole number"),
        (lambda: ClaimedCurve.gaussian(-1.0), r"mu must be a finite number of at least 0, got -1\.0"),
        (lambda: ClaimedCurve.of_lines([1.0, 2.0], [0.1]), r"deltas must have one entry for each of epsilons"),
        (lambda: ClaimedCurve.of_lines([inf], [0.1]), r"epsilons must be finite numbers of at least 0, got"),
        (
            lambda: judge_run(ZEROS[:19], COINS[:19], CLAIM),
            r"scores must be a list for at least 20 canaries, .* got shape \(19,\)",
        ),
        (lambda: judge_run(ZEROS, COINS[:99], CLAIM), r"truth must have one entry for each of the 100 canaries, got shape"),
        (lambda: judge_run(ZEROS + nan, COINS, CLAIM), r"scores must be finite numbers"),
        (lambda: judge_run(ZEROS, COINS * 0.5, CLAIM), r"truth must be a whole number below 2, or true or false"),
        (lambda: judge_run(ZEROS, COINS * 2, CLAIM), r"truth must be a whole number below 2, or true or false"),
        (lambda: judge_run(ZEROS, np.ones(100, bool), CLAIM), r"truth must be drawn with equal probabilities .* 0 of 100"),
        (lambda: judge_run(ZEROS, COINS, CLAIM, guesses=101), r"guesses must be"),
        (lambda: judge_run(ZEROS, COINS, 1.0), r"claim must be a DPSGD or a ClaimedCurve, got 1\.0"),  # type: ignore[arg-type]
        (lambda: judge_run(ZEROS, COINS, bs.DPSGD([1.0, 2.0], 0.1, 5)), r"must be .*a single run, got a sweep"),
        (lambda: audit.one_run_mechanism(bs.DPSGD([1.0, 2.0], 0.1, 5)), r"run must be one DPSGD run"),
        (lambda: audit.one_run_mechanism(bs.DPSGD(1.0, 0.1, 5), canaries=3), r"canaries must be"),
        (lambda: bs.analyze(bs.DPSGD([1.0, 2.0], 0.1, 5)).mean_delta([1.0]), r"mean_delta needs a single run, got a sweep"),
    ],
)
def test_bad_input(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
