"""The fault hunt: an audit calls broken trainings broken, and correct ones not."""

from __future__ import annotations

from typing import Any

import pytest

from betastar import audit
from betastar.audit import ALARM
from tests.audit.trainings import NORM, claim, factory, make, table

#: What is broken, with the noise and the epochs that it is claimed with.
FAULTS: dict[str, tuple[dict[str, Any], float, int]] = {
    "no clipping": ({"clip": 1e6}, 1.5, 2),
    "noise too small by the root of the batch size": ({"scale": 10**-0.5}, 1.2, 2),
    "shuffled batches, not Poisson's": ({"poisson": False}, 0.3, 1),
    "the same noise at each step": ({"same_noise": True}, 2.0, 2),
    "the same randomness in each training": ({"always": 7}, 2.0, 2),
}


def hunt(noise: float, epochs: int, games: int, seed: int, **fault: Any) -> audit.Games:
    train = make(noise, epochs, **fault)
    return audit.games(factory, train, table(), claim(noise, epochs), max_grad_norm=NORM, games=games, seed=seed, width=0.6)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_training_is_caught(fault: str) -> None:
    broken, noise, epochs = FAULTS[fault]
    result = hunt(noise, epochs, 120, 1, **broken)
    assert result.p_value < ALARM, result.sentence
    assert result.sentence.startswith("Bound violated")
    assert "e-" in result.sentence


@pytest.mark.parametrize(("noise", "epochs"), sorted({(noise, epochs) for _, noise, epochs in FAULTS.values()}))
def test_a_correct_training_is_not(noise: float, epochs: int) -> None:
    result = hunt(noise, epochs, 70, 2)
    assert not result.violated, result.sentence
    assert result.sentence.startswith("No violation")


@pytest.mark.slow
def test_twenty_correct_trainings_raise_no_alarm() -> None:
    for seed in range(20):
        noise, epochs = sorted({(noise, epochs) for _, noise, epochs in FAULTS.values()})[seed % 4]
        result = hunt(noise, epochs, 200, 100 + seed)
        assert not result.violated, (seed, result.sentence)


def test_the_attacker_reaches_what_is_possible() -> None:
    """A canary is the worst case: success is that of the exact curve, up to sampling error."""
    run = claim(0.8, 2)
    result = audit.games(factory, make(0.8, 2), table(), run, max_grad_norm=NORM, games=200, seed=3, confidence=0.999, width=0.6)
    assert result["updates"].allowed.estimate in result["updates"].success
    assert result["updates"].success.lower > 0.55
