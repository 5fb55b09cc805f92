"""Coverage over 500 audits of a correct training: intervals hold, and p-values are small, as often as they say.

The training is DP-SGD of a logistic regression, with a canary that has weights of its own: each record's gradient is clipped,
batches are Poisson's, noise is added, and the weights move. Thousands of trainings run side by side in NumPy, and are judged by
the code that judges the games of `betastar.audit.games`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

import betastar as bs
from betastar.audit import Audit
from betastar.audit.evidence.attackers import Evidence
from betastar.audit.rungs.games import audits_of
from betastar.audit.verdict.games import Claim

RUN = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.25, steps=6)
RECORDS, COLUMNS, LEARNING_RATE = 12, 3, 0.5
GAMES = 60


def trained(world: NDArray[Any], directions: NDArray[Any], random: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Train once for each world, at the same time. directions: where the canary of each world moves its weights, by 1 at most.

    Returns what is left of each game, by the names of the columns of games.
    """
    games, segment = len(world), RUN.segments[0]
    x = np.random.default_rng(0).normal(size=(RECORDS, COLUMNS))
    y = np.sign(x[:, 0])
    weights = np.zeros((games, COLUMNS + directions.shape[1]))
    evidence, trace = Evidence(RUN, np.zeros((games, len(directions)))), []
    for step in range(RUN.steps):
        margins = y * (weights[:, :COLUMNS] @ x.T)
        slopes = -y / (1.0 + np.exp(margins))  # (games, records)
        factors = slopes / np.maximum(1.0, np.abs(slopes) * np.linalg.norm(x, axis=1))  # clipped to norm 1
        total = (factors * (random.random(factors.shape) < segment.sample_rate)) @ x
        drawn = random.random((games, 1)) < segment.sample_rate
        released = np.concatenate([total, directions[world] * drawn], axis=1)
        released += segment.noise_multiplier * random.standard_normal(released.shape)
        towards = released[:, COLUMNS:] @ directions.T / segment.noise_multiplier**2
        squares = np.broadcast_to((directions**2).sum(axis=1) / segment.noise_multiplier**2, towards.shape)
        evidence.add(step, towards, squares)
        trace.append(towards[:, 0] - towards[:, -1])
        weights -= LEARNING_RATE * released / (RECORDS * segment.sample_rate)
    none = np.zeros((games, 0))
    seen = {"white": weights[:, COLUMNS:], "black": none, "confidences": none}
    return {"world": world, "evidence": evidence.logs, "trace": np.stack(trace, axis=1), **seen}


def audited(
    threat: Any, directions: NDArray[Any], priors: tuple[float, ...], audits: int, seed: int
) -> tuple[list[dict[str, Audit]], dict[str, float]]:
    """So many audits, and the share of right guesses over all of their games: what each interval should contain."""
    random = np.random.default_rng(seed)
    setting = Claim(RUN, threat, priors[0] if len(priors) == 2 else priors, 0.9, seed)
    games = trained(random.choice(len(priors), size=audits * GAMES, p=priors), directions, random)
    parts = [slice(i * GAMES, (i + 1) * GAMES) for i in range(audits)]
    results = [audits_of({name: column[part] for name, column in games.items()}, setting, priors) for part in parts]
    pooled = {name: sum(one[name].right for one in results) / sum(one[name].games for one in results) for name in results[0]}
    return results, pooled


def check(results: list[dict[str, Audit]], true: dict[str, float]) -> None:
    """No more intervals miss the truth, and no more p-values are small, than chance explains."""
    for name in results[0]:
        missed = sum(true[name] not in one[name].success for one in results)
        assert binom.sf(missed - 1, len(results), 0.1) > 1e-3, name
        p_values = np.array([one[name].p_value for one in results])
        for level in (0.001, 0.01, 0.05, 0.2):
            assert binom.sf(np.count_nonzero(p_values <= level) - 1, len(results), level) > 1e-3, (name, level)


SIGNS = np.array([[1.0], [-1.0]])
PRESENT = np.array([[1.0], [0.0]])
CORNERS = np.eye(4)


#: So many audits in every run of the tests, and so many in `make test-all`.
NUMBERS = [pytest.param(60, id="60"), pytest.param(500, id="500", marks=pytest.mark.slow)]


@pytest.mark.parametrize("audits", NUMBERS)
def test_membership(audits: int) -> None:
    """A canary of either sign is the worst case: the truth is the exact success, which intervals contain."""
    threat = bs.Membership()
    results, pooled = audited(threat, SIGNS, (0.5, 0.5), audits, 1)
    exact = float(bs.analyze(RUN, threat).success(0.5).estimate)
    assert pooled["updates"] == pytest.approx(exact, abs=4.0 * 0.5 / (audits * GAMES) ** 0.5)
    check(results, {**pooled, "updates": exact})
    assert set(results[0]) == {"updates", "weights"}
    # Intervals are no wider than they must be: some do miss, and some p-values are below one half.
    assert sum(exact not in one["updates"].success for one in results) >= 0.02 * audits
    assert np.mean([one["updates"].p_value < 0.5 for one in results]) > 0.1


@pytest.mark.parametrize("audits", NUMBERS)
def test_a_prior_that_is_not_even_and_one_direction(audits: int) -> None:
    check(*audited(bs.Membership("add-remove"), PRESENT, (0.3, 0.7), audits, 2))


@pytest.mark.parametrize("audits", NUMBERS)
@pytest.mark.parametrize("priors", [(0.25,) * 4, (0.55, 0.15, 0.15, 0.15)])
def test_several_values(priors: tuple[float, ...], audits: int) -> None:
    """Four values, whose gradients are sqrt(2) apart; at an even prior, and where one value is frequent."""
    check(*audited(bs.AttributeInference(2.0**0.5), CORNERS, priors, audits, 4))


def test_it_would_notice_noise_that_is_too_small() -> None:
    """The same check fails if the claim has twice the noise."""
    random = np.random.default_rng(6)
    claim = Claim(bs.DPSGD(2.0, 0.25, 6), bs.Membership(), 0.5, 0.9, 6)
    games = trained(random.integers(2, size=40 * GAMES), SIGNS, random)
    parts = [slice(i * GAMES, (i + 1) * GAMES) for i in range(40)]
    results = [audits_of({name: column[part] for name, column in games.items()}, claim, (0.5, 0.5)) for part in parts]
    with pytest.raises(AssertionError, match="updates"):
        check(results, {"updates": 0.5, "weights": 0.5})
