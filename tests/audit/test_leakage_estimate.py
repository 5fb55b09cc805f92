"""Nearest neighbours: near the known Bayes errors with many games, and never more than they can prove."""

from __future__ import annotations

import json
from math import nan
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from betastar.audit.verdict import intervals
from betastar.audit.verdict.leakage import Leakage, _vote, leakage


def gaussians(generator: Any, games: int, features: int, shift: float, worlds: int = 2) -> tuple[Any, Any]:
    """World w moves the first feature by w·shift."""
    drawn = generator.integers(0, worlds, games)
    outputs = generator.normal(size=(games, features))
    outputs[:, 0] += shift * drawn
    return drawn, outputs


def exact(shift: float, worlds: int = 2) -> float:
    """β* of these Gaussians: the outer two worlds err on one side, the others on two; over the error without outputs."""
    error = 2.0 * (worlds - 1) / worlds * float(ndtr(-0.5 * shift))
    return error / (1.0 - 1.0 / worlds)


@pytest.mark.parametrize(
    ("features", "worlds", "shift", "slack"), [(1, 2, 2.0, 0.02), (1, 2, 0.5, 0.06), (5, 2, 2.0, 0.06), (2, 4, 2.0, 0.06)]
)
def test_estimates_are_near_the_truth(features: int, worlds: int, shift: float, slack: float) -> None:
    """From above, but for the luck of the games."""
    estimate = leakage(*gaussians(np.random.default_rng(0), 10_000, features, shift, worlds), confidence=0.999)
    truth = exact(shift, worlds)
    assert estimate.bayes_security.lower - slack <= truth <= estimate.bayes_security.upper
    assert (estimate.worlds, estimate.games, estimate.examined, estimate.features) == (worlds, 10_000, 5000, features)


def test_estimates_converge() -> None:
    """Averaged over six sets of games, the excess over the truth falls with the games that teach."""
    generator = np.random.default_rng(1)
    runs = [leakage(*gaussians(generator, 4000, 5, 2.0)).convergence for _ in range(6)]
    assert [number for number, _ in runs[0]] == [31, 62, 125, 250, 500, 1000, 2000]
    excess = np.mean([[estimate for _, estimate in run] for run in runs], axis=0) - exact(2.0)
    assert excess[0] > excess[3] > excess[6] > 0.0
    assert excess[6] < 0.05


def test_many_features_are_slow_and_it_says_so() -> None:
    estimated = leakage(*gaussians(np.random.default_rng(2), 4000, 30, 2.0))
    assert not estimated.converged
    assert estimated.sentence.endswith("; more games may change the estimate.")
    assert estimated.bayes_security.lower > exact(2.0)
    assert "look safer than they are" in estimated.caveat


def test_worlds_that_are_alike_and_worlds_apart() -> None:
    generator = np.random.default_rng(3)
    alike = leakage(*gaussians(generator, 4000, 3, 0.0))
    assert alike.bayes_security.upper == 1.0
    assert alike.bayes_security.estimate > 0.95
    assert "no leakage was found, which does not prove that there is none" in alike.sentence
    apart = leakage(*gaussians(generator, 2000, 3, 50.0, worlds=3))
    assert apart.bayes_security.estimate == apart.bayes_security.lower == 0.0
    assert apart.bayes_security.upper < 0.01
    assert apart.converged
    assert "is wrong in 0 of 1,000 games" in apart.sentence


def test_noise_is_not_taken_for_leakage() -> None:
    """Of 200 sets of games without leakage, no more than 2.5 % have an interval below 1."""
    generator = np.random.default_rng(4)
    estimates = [leakage(*gaussians(generator, 300, 4, 0.0), width=0.4, seed=i) for i in range(200)]
    assert binom.sf(sum(one.bayes_security.upper < 1.0 for one in estimates) - 1, 200, 0.025) > 1e-3


def test_intervals_hold_for_the_attacker() -> None:
    """A bit that is flipped with probability 0.2: every attacker who learned anything believes it, and has β = 0.4."""
    generator = np.random.default_rng(5)
    missed = low = 0
    for i in range(200):
        drawn = generator.integers(0, 2, 400)
        outputs = (drawn ^ (generator.random(400) < 0.2))[:, None].astype(float)
        estimate = leakage(drawn, outputs, confidence=0.9, width=0.4, seed=i)
        if estimate.neighbours > 1:
            missed += 0.4 not in estimate.bayes_security
        low += estimate.bayes_security.upper < 0.4
    assert binom.sf(missed - 1, 200, 0.1) > 1e-3
    assert binom.sf(low - 1, 200, 0.05) > 1e-3


def test_bounds_from_few_games_are_not_below_the_truth() -> None:
    generator = np.random.default_rng(6)
    low = sum(leakage(*gaussians(generator, 400, 2, 1.0), width=0.4).bayes_security.upper < exact(1.0) for _ in range(100))
    assert binom.sf(low - 1, 100, 0.025) > 1e-3


@pytest.mark.parametrize("features", [2, 20])
def test_scales_do_not_matter(features: int) -> None:
    drawn, outputs = gaussians(np.random.default_rng(7), 1000, features, 1.5)
    estimate = leakage(drawn, outputs)
    scales = 2.0 ** np.arange(-features, features, 2)
    assert leakage(drawn, outputs * scales) == estimate
    moved = leakage(drawn, 3.7 * outputs - 11.0)
    assert moved.bayes_security.estimate == pytest.approx(estimate.bayes_security.estimate, abs=0.01)
    useless = np.column_stack([outputs, np.full(1000, 0.1), np.zeros(1000)])
    assert leakage(drawn, useless).bayes_security == estimate.bayes_security
    assert leakage(drawn, np.full((1000, 2), 0.1)).bayes_security.upper == 1.0


def test_the_nearest_decides_a_tie() -> None:
    assert _vote(np.array([[2, 0, 0, 2, 1], [1, 0, 2, 2, 0], [0, 1, 2, 2, 2]]), 3).tolist() == [2, 0, 2]
    assert _vote(np.array([[2, 1, 0]]), 3).tolist() == [2]


def test_other_priors_and_the_same_seed() -> None:
    """World 1 in one of five games; without outputs the attacker errs in 20 %."""
    generator = np.random.default_rng(9)
    drawn = (generator.random(6000) < 0.2).astype(int)
    outputs = generator.normal(size=(6000, 1)) + 2.0 * drawn[:, None]
    estimate = leakage(drawn, outputs, prior=[0.8, 0.2], confidence=0.999, width=0.4)
    grid = np.linspace(-10.0, 12.0, 20_001)
    density = np.exp(-0.5 * grid**2), np.exp(-0.5 * (grid - 2.0) ** 2)
    bayes = float(np.minimum(0.8 * density[0], 0.2 * density[1]).sum() * (grid[1] - grid[0]) / np.sqrt(2.0 * np.pi))
    assert estimate.bayes_security.lower - 0.03 <= bayes / 0.2 <= estimate.bayes_security.upper
    assert estimate == leakage(drawn.tolist(), outputs, prior=(0.8, 0.2), confidence=0.999, width=0.4)
    assert estimate != leakage(drawn, outputs, prior=[0.8, 0.2], confidence=0.999, width=0.4, seed=1)
    with pytest.raises(
        ValueError, match=r"prior must be the probabilities with which the worlds were drawn, got 0\.5 for world 0"
    ):
        leakage(drawn, outputs)


def test_what_it_tells() -> None:
    estimate = leakage(*gaussians(np.random.default_rng(10), 2000, 1, 2.0))
    assert isinstance(estimate, Leakage)
    told = json.loads(json.dumps(estimate.as_dict()))
    assert told["bayes_security"]["upper"] == estimate.bayes_security.upper
    assert told["convergence"][-1] == [1000, estimate.bayes_security.estimate]
    assert told["converged"] is estimate.converged
    assert told["caveat"] == estimate.caveat
    shown = np.ceil(1e3 * estimate.bayes_security.upper) / 1e3
    assert f"that of the outputs is at most {shown:.3f}, and may be less" in estimate.sentence


WORLDS, OUTPUTS = np.arange(2000) % 2, np.arange(4000.0).reshape(2000, 2)
NEEDED = 2 * intervals.games_needed(0.1, 0.99)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: leakage(WORLDS * 0, OUTPUTS), r"worlds must be of at least two kinds, got \[0\] only"),
        (lambda: leakage(WORLDS[:-1], OUTPUTS), r"outputs must have a row for each of the 1999 games, got shape \(2000, 2\)"),
        (lambda: leakage(WORLDS, OUTPUTS[:, 0]), r"outputs must have a row for each of the 2000 games, got shape \(2000,\)"),
        (lambda: leakage(WORLDS, OUTPUTS + nan), r"outputs must be finite numbers"),
        (
            lambda: leakage(WORLDS[:, None], OUTPUTS),
            r"worlds must be a list with one number for each game, got shape \(2000, 1\)",
        ),
        (lambda: leakage(WORLDS - 1, OUTPUTS), r"worlds must be a whole number of at least 0"),
        (lambda: leakage(WORLDS * 0.5, OUTPUTS), r"worlds must be a whole number of at least 0"),
        (lambda: leakage(WORLDS * 5000, OUTPUTS), r"worlds must be numbered 0, 1, … without gaps, got 5000 among 2000 games"),
        (lambda: leakage(WORLDS, OUTPUTS, prior=0.5), r"prior must be a list of probabilities that add up to 1, got 0\.5"),
        (lambda: leakage(WORLDS, OUTPUTS, prior=[0.5, 0.4]), r"prior must be a list of probabilities that add up to 1"),
        (lambda: leakage(2 * WORLDS, OUTPUTS, prior=[0.5, 0.5]), r"worlds must be below 2, the number of priors, got 2"),
        (lambda: leakage(WORLDS, OUTPUTS, confidence=1.0), r"confidence must be strictly between 0 and 1, got 1\.0"),
        (lambda: leakage(WORLDS, OUTPUTS, width=0.0), r"width must be a finite number greater than 0, got 0\.0"),
        (lambda: leakage(WORLDS, OUTPUTS, seed=-1), r"seed must be a whole number of at least 0, got -1"),
        (
            lambda: leakage(WORLDS, OUTPUTS, width=0.1, confidence=0.99),
            rf"worlds must be of at least {NEEDED} games for an interval of the Bayes security no wider than 0\.1 .* got 2000",
        ),
    ],
)
def test_bad_input(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_the_games_it_asks_for_are_enough() -> None:
    for width, confidence in ((0.3, 0.95), (0.2, 0.9)):
        games = 2 * intervals.games_needed(width, confidence)
        drawn, outputs = gaussians(np.random.default_rng(11), games, 1, 1.0)
        assert leakage(drawn, outputs, width=width, confidence=confidence).bayes_security.width <= width
        with pytest.raises(ValueError, match=f"at least {games} games"):
            leakage(drawn[:-1], outputs[:-1], width=width, confidence=confidence)
