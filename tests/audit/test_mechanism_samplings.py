"""Games on the mechanism under every sampling, and with several records of a person: no attacker beats the bound."""

from __future__ import annotations

import numpy as np
import pytest

import betastar as bs
from betastar.audit import mechanism
from betastar.threats import Threat

ADD_REMOVE = bs.Membership("add-remove")


def fixed_size(records: int = 60) -> bs.DPSGD:
    return bs.DPSGD.from_epochs(1.0, 6, records, 2, sampling="fixed-size")


#: A run, a threat, and whether the attack that is played is the exact worst case.
SETTINGS: list[tuple[bs.DPSGD, Threat, bool]] = [
    (bs.DPSGD(0.8, 0.1, 30, "balls-in-bins"), bs.Membership(), True),
    (bs.DPSGD(0.8, 0.05, 20, "balls-in-bins"), ADD_REMOVE, True),
    (bs.DPSGD(1.0, 0.1, 20, "balls-in-bins"), bs.AttributeInference(0.8), False),
    (bs.DPSGD(1.0, 0.1, 20, "shuffled"), bs.Membership(), False),
    (bs.DPSGD(1.0, 0.1, 20, "shuffled"), bs.AttributeInference(0.8), False),
    (fixed_size(), bs.Membership(), False),
    (fixed_size(), ADD_REMOVE, True),
    (fixed_size(), bs.AttributeInference(0.8), False),
    (fixed_size(), bs.Membership(records=3), False),
    (fixed_size(), bs.Membership("add-remove", records=3), True),
    (bs.DPSGD(1.0, 0.1, 20, max_batch_size=12, dataset_size=100), bs.Membership(), False),
    (bs.DPSGD(1.0, 0.1, 20, max_batch_size=12, dataset_size=100), ADD_REMOVE, False),
    (bs.DPSGD(1.5, 0.05, 40), bs.Membership(records=4), True),
    (bs.DPSGD(1.5, 0.05, 40), bs.Membership("add-remove", records=4), True),
    (bs.DPSGD(1.0, 0.1, 10) + bs.DPSGD(1.0, 0.1, 10, "balls-in-bins"), bs.Membership(), True),
]


@pytest.mark.parametrize(("run", "threat", "exact"), SETTINGS, ids=lambda value: str(value)[-60:])
def test_a_game_meets_the_exact_value_and_never_beats_a_bound(run: bs.DPSGD, threat: Threat, exact: bool) -> None:
    audit = mechanism(run, threat, games=40_000, seed=0, confidence=0.999)
    risk = bs.analyze(run, threat)
    assert not audit.violated
    assert audit.advantage.lower <= risk.advantage.upper
    if exact:
        assert risk.advantage.estimate in audit.advantage
    else:
        assert risk.advantage.lower in audit.advantage or audit.advantage.lower <= risk.advantage.lower


@pytest.mark.parametrize(("run", "threat", "exact"), SETTINGS[:2] + SETTINGS[12:14], ids=lambda value: str(value)[-60:])
def test_too_little_noise_is_found(run: bs.DPSGD, threat: Threat, exact: bool) -> None:
    first = run.segments[0]
    actual = bs.DPSGD(0.5 * first.noise_multiplier, first.sample_rate, first.steps, first.sampling)
    assert mechanism(run, threat, games=10_000, seed=0, actual=actual).violated


def test_another_sampling_cannot_be_played() -> None:
    run, other = bs.DPSGD(1.0, 0.1, 20, "balls-in-bins"), bs.DPSGD(1.0, 0.1, 20)
    with pytest.raises(ValueError, match="of the same sampling"):
        mechanism(run, games=2000, actual=other)


def test_the_law_of_cut_off_batches_is_that_of_the_sampler() -> None:
    """The rate with which the game draws the record is what drawing batches and cutting them off gives."""
    generator, size, rate, most, steps = np.random.default_rng(0), 40, 0.1, 5, 40_000
    drawn = generator.random((steps, size)) < rate
    order = np.where(drawn, generator.random((steps, size)), 2.0).argsort(axis=1)[:, :most]
    kept = (order == 0).any(axis=1) & drawn[:, 0]
    run = bs.DPSGD(1.0, rate, 10, max_batch_size=most, dataset_size=size)
    attained = bs.Membership().reduction(run).attacks
    assert attained is not None
    played = attained[0].steps[0].rate  # type: ignore[union-attr]
    assert abs(kept.mean() - played) <= 4.0 * np.sqrt(played / steps)
