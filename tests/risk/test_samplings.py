"""Runs of every sampling: figures, both ends, what grows with what, and calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import betastar as bs

#: Noise, batches of an epoch: total variation of one epoch in bins, and shuffled (attained, proved).
EPOCHS = [
    (1.0, 10, 0.25807, 0.40362, 0.6827),
    (1.0, 100, 0.08564, 0.18788, 0.6827),
    (2.0, 20, 0.08940, 0.11082, 0.3829),
    (0.6, 50, 0.25305, 0.62332, 0.9044),
    (4.0, 100, 0.01995, 0.02124, 0.1974),
]


@pytest.mark.parametrize(("noise", "batches", "bins", "attained", "proved"), EPOCHS)
def test_an_epoch_in_bins_and_shuffled(noise: float, batches: int, bins: float, attained: float, proved: float) -> None:
    one = bs.analyze(bs.DPSGD(noise, 1 / batches, batches, "balls-in-bins")).advantage
    assert one.estimate == pytest.approx(bins, abs=6e-6)
    shuffled = bs.analyze(bs.DPSGD(noise, 1 / batches, batches, "shuffled")).advantage
    assert shuffled.lower == pytest.approx(attained, abs=6e-6)
    assert shuffled.upper == pytest.approx(proved, abs=6e-5)


def test_the_attack_on_shuffled_batches_by_simulation() -> None:
    """The others' gradients are all -1: one batch in 50 is 2 higher, at noise 0.6."""
    random, noise, batches, attained = np.random.default_rng(3), 0.6, 50, EPOCHS[3][3]
    gains = []
    for _ in range(20):
        seen = noise * random.standard_normal((10_000, batches))
        ratio = np.exp((2.0 * seen - 2.0) / noise**2).mean(axis=1)
        gains.append(np.maximum(1.0 - ratio, 0.0))
    every = np.concatenate(gains)
    assert abs(every.mean() - attained) < 5.0 * every.std() / np.sqrt(len(every))


RUNS: list[dict[str, Any]] = [
    {"sampling": "fixed-size"},
    {"sampling": "balls-in-bins"},
    {"sampling": "shuffled"},
    {"max_batch_size": 11, "dataset_size": 50},
]
THREATS = [bs.Membership(), bs.AttributeInference(0.7)]


@pytest.mark.parametrize("threat", THREATS, ids=["membership", "attribute"])
@pytest.mark.parametrize("drawn", RUNS, ids=["fixed-size", "bins", "shuffled", "cut"])
def test_less_noise_and_more_steps_are_riskier(drawn: dict[str, Any], threat: Any) -> None:
    def advantage(noise: float, steps: int) -> bs.Bound:
        return bs.analyze(bs.DPSGD(noise, 0.2, steps, **drawn), threat).advantage

    base, loud, long = advantage(1.5, 10), advantage(2.5, 10), advantage(1.5, 20)
    for one in (base, loud, long):
        assert 0.0 < one.lower <= one.estimate <= one.upper < 1.0
    assert loud.upper < base.upper < long.upper
    assert loud.lower < base.lower < long.lower


@pytest.mark.parametrize("drawn", [RUNS[0], *RUNS[2:]], ids=["fixed-size", "shuffled", "cut"])
def test_attributes_are_safer_than_membership(drawn: dict[str, Any]) -> None:
    run = bs.DPSGD(1.5, 0.2, 10, **drawn)
    far, near = (bs.analyze(run, bs.AttributeInference(distance)).advantage for distance in (1.2, 0.4))
    member = bs.analyze(run).advantage
    assert near.upper < far.upper <= member.upper + 1e-9
    assert near.lower < far.lower <= member.upper


def test_samplings_in_order() -> None:
    """For the same noise, rate and steps: Poisson's leaks least, shuffled batches may leak most."""
    poisson, bins, shuffled = (
        bs.analyze(bs.DPSGD(2.0, 0.1, 20, name)).advantage for name in ("poisson", "balls-in-bins", "shuffled")
    )
    assert poisson.upper < bins.lower < bins.upper < shuffled.lower
    fixed = bs.analyze(bs.DPSGD(2.0, 0.1, 20, "fixed-size")).advantage
    assert fixed.lower > poisson.upper
    seldom = bs.analyze(bs.DPSGD(2.0, 0.1, 20, max_batch_size=40, dataset_size=100)).advantage
    assert seldom.estimate == pytest.approx(poisson.estimate, abs=1e-9)


def test_runs_of_different_samplings_are_no_safer_than_their_parts() -> None:
    parts = [bs.DPSGD(3.0, 0.1, 20), *(bs.DPSGD(3.0, 0.1, 20, name) for name in ("fixed-size", "balls-in-bins", "shuffled"))]
    whole = bs.analyze(parts[0] + parts[1] + parts[2] + parts[3]).advantage
    each = [bs.analyze(part).advantage for part in parts]
    assert whole.upper >= max(one.upper for one in each)
    assert whole.lower >= max(one.lower for one in each[:3]) - 1e-9
    assert whole.upper <= sum(one.upper for one in each)


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
@pytest.mark.parametrize("sampling", ["fixed-size", "balls-in-bins", "shuffled"])
def test_several_records_of_a_person(sampling: str, relation: str) -> None:
    run = bs.DPSGD.from_epochs(4.0, 20, 200, 2, sampling=sampling)
    if (sampling, relation) == ("shuffled", "add-remove"):
        with pytest.raises(ValueError, match="must be analysed with relation 'substitution'"):
            bs.analyze(run, bs.Membership(relation, records=2))
        return
    risks = [bs.analyze(run, bs.Membership(relation, records=k)).advantage for k in (1, 2, 5)]
    assert risks[0].upper < risks[1].upper < risks[2].upper
    assert risks[0].lower <= risks[1].lower + 1e-9
    assert risks[1].lower <= risks[2].lower + 1e-9


@pytest.mark.parametrize(("relation", "apart"), [("substitution", 2.0), ("add-remove", 1.0)])
def test_whoever_adds_up_the_batches_of_an_epoch_finds_a_person(relation: str, apart: float) -> None:
    """Two epochs of ten batches: the sum is a Gaussian mechanism. A simulation of the batches themselves agrees."""
    noise, records, epochs, length = 4.0, 6, 2, 10
    bound = bs.analyze(bs.DPSGD(noise, 1 / length, epochs * length, "balls-in-bins"), bs.Membership(relation, records=records))
    signal = apart * records * epochs**0.5 / (noise * length**0.5)  # distance of the two worlds, in deviations
    assert bound.advantage.lower == pytest.approx(2.0 * norm.cdf(0.5 * signal) - 1.0, abs=1e-6)
    random, games = np.random.default_rng(0), 200_000
    held = [random.multinomial(records, [1 / length] * length, (games, epochs)) for _ in range(2)]
    noises = [noise * random.normal(size=(games, epochs, length)) for _ in range(2)]
    batches, others = noises[0] + held[0], noises[1] - (apart - 1.0) * held[1]
    middle = epochs * records * (1.0 - 0.5 * apart)
    played = np.mean(batches.sum(axis=(1, 2)) > middle) - np.mean(others.sum(axis=(1, 2)) > middle)
    assert played == pytest.approx(float(bound.advantage.lower), abs=5e-3)
    assert played <= bound.advantage.upper


def test_groups_in_batches_of_a_fixed_size_by_simulation() -> None:
    """Three of 12 records, batches of 4, the others at -1 and the person at +1: P is drawn as it is."""
    random, noise, count = np.random.default_rng(2), 2.0, 200_000
    claimed = bs.analyze(
        bs.DPSGD(noise, 4 / 12, 1, "fixed-size", dataset_size=12), bs.Membership("add-remove", records=3)
    ).advantage
    order = random.permuted(np.broadcast_to(np.arange(12), (count, 12)), axis=1)
    number = np.sum(order[:, :4] < 3, axis=1)
    law = np.bincount(number, minlength=4) / count
    seen = noise * random.standard_normal(count)
    ratio = np.exp((2.0 * np.arange(4) * seen[:, None] - 2.0 * np.arange(4) ** 2) / noise**2) @ law
    gains = np.maximum(1.0 - ratio, 0.0)
    assert abs(gains.mean() - claimed.estimate) < 5.0 * gains.std() / np.sqrt(count) + 2e-3


@pytest.mark.parametrize("drawn", ["fixed-size", "balls-in-bins", "shuffled"])
def test_calibrated_noise_meets_the_target(drawn: str) -> None:
    target = bs.Target(bayes_security=0.9)
    run = bs.calibrate(target, batch_size=20, dataset_size=200, epochs=2, sampling=drawn)
    assert run.sampling == drawn
    assert bs.analyze(run).bayes_security.lower >= 0.9
    louder = bs.DPSGD(0.97 * run.noise_multiplier, run.sample_rate, run.steps, drawn)
    assert bs.analyze(louder).bayes_security.lower < 0.9


def test_calibrated_steps_are_whole_epochs() -> None:
    run = bs.calibrate(bs.Target(bayes_security=0.8), noise_multiplier=3.0, sample_rate=0.1, sampling="balls-in-bins")
    assert run.steps % 10 == 0
    assert bs.analyze(bs.DPSGD(3.0, 0.1, run.steps + 10, "balls-in-bins")).bayes_security.lower < 0.8
    cut = bs.calibrate(bs.Target(bayes_security=0.8), noise_multiplier=3.0, sample_rate=0.1, dataset_size=50, max_batch_size=7)
    assert bs.analyze(cut).bayes_security.lower >= 0.8
    rate = bs.calibrate(bs.Target(bayes_security=0.8), noise_multiplier=1.0, steps=100, dataset_size=50, max_batch_size=7)
    assert bs.analyze(rate).bayes_security.lower >= 0.8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 20, "sampling": "shuffled"}, "sample_rate cannot be chosen with sampling 'shuffled': what is proved does not"),
        ({"dataset_size": 100, "epochs": 2, "sampling": "shuffled"}, "batch_size cannot be chosen .* Leave out noise_multiplier"),
        ({"steps": 20, "sampling": "balls-in-bins"}, "sample_rate cannot be chosen .* Leave out batch_size"),
        ({"steps": 20, "dataset_size": 100, "sampling": "fixed-size"}, "sample_rate cannot be chosen .* Leave out batch_size"),
    ],
)
def test_what_a_sampling_does_not_leave_open(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bs.calibrate(bs.Target(bayes_security=0.8), noise_multiplier=1.0, **given)


def test_both_ends_of_shuffled_batches_are_proved() -> None:
    certified, exact = (bs.analyze(bs.DPSGD(2.0, 0.1, 10, "shuffled"), method=m).advantage for m in ("certified", "exact"))
    assert exact.lower - 1e-4 <= certified.lower <= exact.lower
    assert certified.upper == pytest.approx(0.38292, abs=1e-4)
