"""The attacker's game on the best of several models: the theorem's score meets the figure from below."""

from __future__ import annotations

import json

import numpy as np
import pytest

import betastar as bs
from betastar import audit

from ..command import call

RUN = bs.DPSGD(2.0, 0.05, 60)


@pytest.mark.parametrize("trials", [bs.Trials.fixed(8), bs.Trials.poisson(8), bs.Trials.geometric(8)], ids=str)
def test_the_worst_score_attains_the_figure(trials: bs.Trials) -> None:
    result = audit.mechanism(bs.best_of(RUN, trials), games=20_000, seed=1)
    assert not result.violated
    assert result.bound.estimate in result.advantage
    assert result.advantage.lower > bs.analyze(RUN).advantage.upper, "more than one run gives away"


@pytest.mark.parametrize("threat", [bs.Membership("add-remove"), bs.AttributeInference(1.0), bs.Membership(records=3)], ids=repr)
def test_other_threats_stay_below(threat: bs.Membership | bs.AttributeInference) -> None:
    result = audit.mechanism(bs.best_of(RUN, 5), threat, games=10_000, seed=2)
    assert not result.violated
    assert result.advantage.lower <= result.bound.upper
    assert result.advantage.upper > 0.9 * result.bound.lower


def test_too_little_noise_is_found() -> None:
    assert audit.mechanism(bs.best_of(RUN, 8), games=4000, seed=1, actual=bs.DPSGD(1.0, 0.05, 60)).violated


def test_one_search_only() -> None:
    for release in (bs.best_of(RUN, 3) + RUN, bs.best_of([RUN, bs.DPSGD(3.0, 0.05, 60)], 3)):
        with pytest.raises(ValueError, match="run must be one search with one run"):
            audit.mechanism(release, games=1000)


def test_the_command() -> None:
    run = ["--noise", "2", "--rate", ".05", "--steps", "60", "--trials", "8"]
    told = call("audit", "mechanism", *run, "--games", "4000", "--seed", "3", "--json")
    assert told.returncode == 0, told.stderr
    bound = json.loads(told.stdout)["bound"]
    assert bound["upper"] == pytest.approx(bs.analyze(bs.best_of(RUN, 8)).advantage.upper, abs=1e-12)
    refused = call("audit", "mechanism", "--one-run", *run)
    assert refused.returncode != 0
    assert "--trials" in refused.stderr


def test_scores_of_life_stay_below() -> None:
    """A model of one weight, trained by noisy sums; the best of five by how near it comes to a target, whatever the target is."""
    rng, games, trials = np.random.default_rng(5), 40_000, 5
    noise, steps = 3.0, 4
    world = np.where(rng.random(games) < 0.5, 1.0, -1.0)
    weights = world[:, None] * steps + noise * np.sqrt(steps) * rng.standard_normal((games, trials))
    most = bs.analyze(bs.best_of(bs.DPSGD(noise, 1.0, steps), trials)).advantage
    for target in (-20.0, 0.0, 5.0, 20.0):
        scores = -np.abs(weights - target)
        winner = np.take_along_axis(weights, scores.argmax(axis=1)[:, None], axis=1)[:, 0]
        # The best threshold on either side, found on half of the games and used on the others.
        half = games // 2
        cuts = np.quantile(winner[:half], np.linspace(0.01, 0.99, 99))
        right = [np.mean((winner[:half] > cut) == (world[:half] > 0)) for cut in cuts]
        cut = cuts[int(np.argmax(np.abs(np.array(right) - 0.5)))]
        success = np.mean((winner[half:] > cut) == (world[half:] > 0))
        assert abs(2 * success - 1) < most.upper + 4.0 / half**0.5
