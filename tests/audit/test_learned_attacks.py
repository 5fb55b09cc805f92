"""Attacks on the final model that learn from reference models: which one is chosen, what each reaches, and valid p-values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, kstest

import betastar as bs
from betastar.audit.evidence.attackers import ATTACKS, Seen, chosen, learn, likelihood_ratio, linear_discriminant, pairwise_ratios
from betastar.audit.verdict import intervals
from tests.audit.trainings import claim, make, play, table

FAIR = np.array([0.5, 0.5])
NO_POPULATION = 0


def features_only(features: Any) -> Seen:
    return Seen(features, np.zeros((len(features), NO_POPULATION)), 1)


def share_right(logs: Any, world: Any) -> float:
    return float(np.mean(np.argmax(logs, axis=1) == world))


def test_worlds_that_differ_in_their_spread() -> None:
    """N(0, 1) against N(0, 9): no line tells them apart; the likelihood ratio is the optimum, and is chosen."""
    random = np.random.default_rng(0)
    world = random.integers(2, size=4000)
    seen = features_only(random.normal(size=(4000, 1)) * np.where(world == 1, 3.0, 1.0)[:, None])
    lesson, asked, taught = seen.take(slice(0, 2000)), seen.take(slice(2000, None)), world[:2000]
    edge = np.sqrt(2.0 * np.log(3.0) / (1.0 - 1.0 / 9.0))  # where the densities are equal
    optimum = 0.5 * (1.0 - 2.0 * ndtr(-edge)) + ndtr(-edge / 3.0)
    assert share_right(likelihood_ratio(lesson, taught, asked), world[2000:]) == pytest.approx(optimum, abs=0.03)
    assert share_right(linear_discriminant(lesson, taught, asked), world[2000:]) < 0.55
    assert chosen(lesson, taught, FAIR) == "likelihood ratio (LiRA)"


def test_the_likelihood_ratio_is_that_of_the_gaussians() -> None:
    """Against the textbook's formula, with means and deviations of the lesson."""
    random = np.random.default_rng(1)
    world = np.arange(100) % 2
    lesson, asked = random.normal(world * 2.0, 1.0 + world)[:, None], random.normal(size=(5, 1))
    logs = likelihood_ratio(features_only(lesson), world, features_only(asked))
    log_density = [
        -0.5 * ((asked[:, 0] - own.mean()) / own.std()) ** 2 - np.log(own.std())
        for own in (lesson[world == 0], lesson[world == 1])
    ]
    np.testing.assert_allclose(logs[:, 0] - logs[:, 1], log_density[0] - log_density[1], rtol=1e-9)


def test_noise_that_all_records_share_is_taken_out_by_pairs() -> None:
    """The model's confidence in everybody varies from training to training; what is left of the candidate is its rank."""
    random = np.random.default_rng(2)
    world = random.integers(2, size=2000)
    common = random.normal(scale=5.0, size=(2000, 1))
    population = random.normal(size=(2000, 30))
    candidate = 2.0 * (world == 0)[:, None] + random.normal(size=(2000, 1))
    confidences = np.concatenate([candidate, population], axis=1) + common
    seen = Seen(confidences[:, :1], confidences, 1)
    lesson, asked = seen.take(slice(0, 1000)), seen.take(slice(1000, None))
    right = {name: share_right(attack(lesson, world[:1000], asked), world[1000:]) for name, attack in ATTACKS.items()}
    assert right["pairwise ratios (RMIA)"] > 0.78
    assert max(right["linear discriminant"], right["likelihood ratio (LiRA)"]) < 0.65
    assert chosen(lesson, world[:1000], FAIR) == "pairwise ratios (RMIA)"


def test_pairs_by_hand() -> None:
    """Two candidates and four records: the first beats three of them, the second none."""
    level = np.log([[0.5] * 6, [0.5] * 6, [0.5] * 6, [0.5] * 6])
    asked = np.log([[0.9, 0.1, 0.5, 0.6, 0.7, 0.95]])
    from betastar.audit.evidence.attackers import _beaten

    shares = 1.0 / (1.0 + np.exp(-_beaten(asked - level[0], 2)))
    np.testing.assert_allclose(shares, [[3.5 / 5.0, 0.5 / 5.0]])
    constant = pairwise_ratios(Seen(level, level, 2), np.array([0, 1, 0, 1]), Seen(asked, asked, 2))
    assert np.isfinite(constant).all()


def test_few_or_no_reference_models() -> None:
    """Too few games of a world to choose among attacks, or none at all: the first attack, and a guess by the prior."""
    random = np.random.default_rng(3)
    seen = features_only(random.normal(size=(12, 2)))
    logs, name = learn(seen, np.array([0, 1] * 2 + [1, 0] * 4), FAIR)
    assert (logs.shape, name) == ((6, 2), "linear discriminant")
    logs, name = learn(seen, np.zeros(12, dtype=int), FAIR)
    assert (logs[:, 0] == 0.0).all()
    assert (logs[:, 1] < -100.0).all()


@pytest.mark.parametrize(("worlds", "audits"), [(2, 100), (4, 60), pytest.param(2, 3000, marks=pytest.mark.slow)])
def test_no_signal_gives_right_guesses_as_by_chance(worlds: int, audits: int) -> None:
    """Audits whose models tell nothing: choosing and learning does not bias the count, whose law is exactly binomial, so
    that p-values at a bound of pure guessing are uniform up to their jumps, and never too small."""
    random = np.random.default_rng(worlds)
    games, prior = 60, np.full(worlds, 1.0 / worlds)
    p_values, spread_out = [], []
    for _ in range(audits):
        world = random.integers(worlds, size=games)
        confidences = random.normal(size=(games, worlds + 8))
        logs, _ = learn(Seen(random.normal(size=(games, 3)), confidences, worlds), world, prior)
        right = int(np.count_nonzero(np.argmax(logs, axis=1) == world[1::2]))
        p_values.append(intervals.p_value(right, games // 2, 1.0 / worlds))
        above = intervals.p_value(right + 1, games // 2, 1.0 / worlds)
        spread_out.append(above + random.random() * (p_values[-1] - above))
    assert kstest(spread_out, "uniform").pvalue > 1e-3
    for level in (0.001, 0.01, 0.05, 0.2):
        assert binom.sf(np.count_nonzero(np.array(p_values) <= level) - 1, audits, level) > 1e-4


@pytest.mark.slow
def test_on_real_training_the_likelihood_ratio_beats_a_line() -> None:
    """A canary in or out, in batches of 1/5 over 20 steps with little noise: its weight is spread widely if it is in, and hardly
    if it is out. The likelihood ratio puts the threshold where the densities meet; a line puts it halfway between the means."""
    from betastar.audit.rungs import games  # they are played once, and judged in both ways

    kept: list[Any] = []
    own = games.played

    def remembered(*told: Any) -> Any:
        kept.append(own(*told))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(games, "played", remembered)
        result = play(threat=bs.Membership("add-remove"), train=make(0.1, 4), run=claim(0.1, 4), games=120)
    weight, world = kept[0]["white"], kept[0]["world"].astype(int)
    lesson, asked = features_only(weight[::2]), features_only(weight[1::2])
    lira, line = (share_right(one(lesson, world[::2], asked), world[1::2]) for one in (likelihood_ratio, linear_discriminant))
    assert lira >= line + 0.02
    weights = result["weights"]
    assert weights.attack == "likelihood ratio (LiRA)"
    assert weights.success.estimate == pytest.approx(lira)
    assert weights.heuristic == pytest.approx(
        bs.heuristics.final_model(claim(0.1, 4), bs.Membership("add-remove")).advantage.estimate
    )
    assert weights.heuristic in weights.advantage  # plain SGD of a weight that nobody else moves: its loss is linear
    assert f"the worst record would allow {weights.heuristic:.3f}" in result.comparison
    assert result.comparison.endswith("which nobody exceeded here.")
    assert result["updates"].heuristic is None


def test_outputs_are_compared_with_the_population() -> None:
    """The data have 48 records: all 47 others are the population. Attribute inference has no heuristic."""
    data = table(48)
    result = play(threat=bs.Membership(), challenge=4, data=data, train=make(0.5, 1), run=claim(0.5, 1))
    assert {result[place].attack for place in ("weights", "outputs")} <= set(ATTACKS)
    assert result["outputs"].heuristic is not None
    told = result.as_dict()
    assert told["comparison"] == result.comparison
    assert told["audits"]["outputs"]["attack"] == result["outputs"].attack
