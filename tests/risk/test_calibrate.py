"""Calibration inverts the analysis, on the safe side, or says why it cannot."""

from __future__ import annotations

import warnings
from math import comb, erf, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar.analyze import reliable

TARGETS = [
    bs.Target(bayes_security=0.9),
    bs.Target(advantage=0.05),
    bs.Target(success=0.52),
    bs.Target(success=0.92, prior=0.1),
    bs.Target(tpr=0.03, fpr=0.01),
    bs.Target(epsilon=1.5, delta=1e-5),
    bs.Target(gdp_mu=0.3),
    bs.Target(reconstruction=0.03, prior=1 / 74),
]


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_noise_meets_every_metric_and_less_does_not(target: bs.Target) -> None:
    run = bs.calibrate(target, sample_rate=0.01, steps=1000)
    assert target.met(bs.analyze(run))
    assert (run.sample_rate, run.steps) == (0.01, 1000)
    assert not target.met(bs.analyze(bs.DPSGD(run.noise_multiplier * (1 - 3e-6), 0.01, 1000)))


@settings(max_examples=25, deadline=None)
@given(st.floats(0.02, 0.99), st.floats(-4.0, -0.5), st.integers(1, 20000), st.sampled_from(["substitution", "add-remove"]))
def test_noise_for_any_security(beta: float, log_rate: float, steps: int, relation: str) -> None:
    target, threat, p = bs.Target(bayes_security=beta), bs.Membership(relation), 10**log_rate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.NoNoiseNeeded)
        run = bs.calibrate(target, sample_rate=p, steps=steps, threat=threat)
    assert target.met(bs.analyze(run, threat))
    if run.noise_multiplier > 0.08:
        less = bs.DPSGD(run.noise_multiplier * (1 - 1e-5), p, steps)
        assert bs.analyze(less, threat).bayes_security.lower < beta + 1e-8


def test_rate_steps_epochs_and_batch() -> None:
    target = bs.Target(bayes_security=0.95)

    def met(run: bs.DPSGD) -> bool:
        return target.met(bs.analyze(run))

    run = bs.calibrate(target, noise_multiplier=1.5, steps=3000)
    assert met(run)
    assert not met(bs.DPSGD(1.5, run.sample_rate * (1 + 1e-5), 3000))
    run = bs.calibrate(target, noise_multiplier=1.5, sample_rate=0.002)
    assert met(run)
    assert not met(bs.DPSGD(1.5, 0.002, run.steps + 1))
    run = bs.calibrate(target, noise_multiplier=1.5, batch_size=100, dataset_size=50_000)
    assert met(run)
    assert run.steps % 500 == 0
    assert not met(bs.DPSGD(1.5, 0.002, run.steps + 500))
    run = bs.calibrate(target, noise_multiplier=4.0, dataset_size=50_000, epochs=10)
    batch = round(run.sample_rate * 50_000)
    assert met(run)
    assert run == bs.DPSGD.from_epochs(4.0, batch, 50_000, 10)
    assert not met(bs.DPSGD.from_epochs(4.0, batch + 1, 50_000, 10))
    run = bs.calibrate(target, batch_size=100, dataset_size=50_000, epochs=10)
    assert met(run)
    run = bs.calibrate(target, noise_multiplier=4.0, batch_size=100, epochs=10)  # the fewest records, in whole batches
    batches = round(1.0 / run.sample_rate)
    assert met(run)
    assert run == bs.DPSGD.from_epochs(4.0, 100, 100 * batches, 10)
    assert not met(bs.DPSGD.from_epochs(4.0, 100, 100 * (batches - 1), 10))


@pytest.mark.parametrize("method", ["certified", "affinity"])
def test_other_methods_are_on_the_safe_side(method: str) -> None:
    target = bs.Target(bayes_security=0.95)
    run = bs.calibrate(target, sample_rate=0.01, steps=500, method=method)
    assert target.met(bs.analyze(run, method=method))
    assert bs.analyze(run).bayes_security.estimate >= 0.95
    assert run.noise_multiplier >= bs.calibrate(target, sample_rate=0.01, steps=500).noise_multiplier


def test_attribute_inference() -> None:
    target, threat = bs.Target(bayes_security=0.99), bs.AttributeInference(0.5)
    run = bs.calibrate(target, sample_rate=0.01, steps=2000, threat=threat)
    assert target.met(bs.analyze(run, threat))
    assert not target.met(bs.analyze(bs.DPSGD(run.noise_multiplier * 0.999, 0.01, 2000), threat))


def test_the_ceiling_is_answered_at_once() -> None:
    """Advantage .9 at p = .002, 100 steps: sampling alone keeps it below .182 (a peer searches for minutes)."""
    for target in (
        bs.Target(advantage=0.9),
        bs.Target(tpr=0.5, fpr=0.01),
        bs.Target(success=0.95),
        bs.Target(epsilon=1.0, delta=0.2),
    ):
        with pytest.warns(bs.NoNoiseNeeded, match=r"needs no noise.*probability 0.181"):
            run = bs.calibrate(target, sample_rate=0.002, steps=100)
        assert target.met(reliable(run, bs.Membership(), "exact", 1e-4))
    tight = bs.calibrate(bs.Target(advantage=0.18), sample_rate=0.002, steps=100)
    assert tight.noise_multiplier > 0.1


def test_unreachable_targets_name_what_can_be_reached() -> None:
    with pytest.raises(ValueError, match=r"cannot be reached by choosing steps: bayes_security is at most 0.931731, at steps=1"):
        bs.calibrate(bs.Target(bayes_security=0.99), noise_multiplier=1.0, sample_rate=0.1)
    with pytest.raises(ValueError, match=r"cannot be reached by choosing batch_size: advantage is at least"):
        bs.calibrate(bs.Target(advantage=1e-4), noise_multiplier=0.5, dataset_size=100, epochs=3)
    with pytest.raises(ValueError, match=r"does not limit steps"):
        bs.calibrate(bs.Target(bayes_security=0.5), noise_multiplier=1.0, sample_rate=0.1, threat=bs.AttributeInference(0.0))
    whole = bs.calibrate(bs.Target(bayes_security=0.5), noise_multiplier=1e5, steps=1)
    assert whole.sample_rate == 1.0


def test_numbers_of_the_paper() -> None:
    """p ≈ .00035σ at β* = .98 and 5,000 steps; noise 3.51 (Adult) and 1.8 (Purchase) for β* = .9 after 20 epochs."""
    target = bs.Target(bayes_security=0.98)
    for sigma in (1.0, 2.0, 5.0):
        beta = bs.analyze(bs.DPSGD(sigma, 0.00035 * sigma, 5000), method="affinity").bayes_security.estimate
        assert beta == pytest.approx(0.98, abs=2e-3)
    rate = bs.calibrate(target, noise_multiplier=5.0, steps=5000).sample_rate
    assert rate / 5.0 == pytest.approx(0.00035, abs=5e-6)
    adult = bs.analyze(bs.DPSGD(3.51, 256 / 26048, 2020), method="paper").bayes_security.estimate
    assert adult == pytest.approx(0.9, abs=5e-4)
    purchase = bs.analyze(bs.DPSGD.from_epochs(1.8, 512, 197_324, 20), method="paper").bayes_security.estimate
    assert purchase == pytest.approx(0.9, abs=1e-3)


def test_true_positive_rates_of_the_paper() -> None:
    """Figure: p = 1e-4, 50 epochs, noise 2. β* allows .128 at FPR .1 and .038 at .01; the curve .113 and .012."""
    run = bs.DPSGD(2.0, 1e-4, 500_000)
    closed, exact = bs.analyze(run, method="paper"), bs.analyze(run)
    assert closed.tpr(0.1).estimate == pytest.approx(0.128, abs=6e-4)
    assert closed.tpr(0.01).estimate == pytest.approx(0.038, abs=6e-4)
    assert exact.tpr(0.1).estimate == pytest.approx(0.113, abs=6e-4)
    assert exact.tpr(0.01).estimate == pytest.approx(0.012, abs=6e-4)


@pytest.mark.parametrize("method", ["exact", "certified"])
@pytest.mark.parametrize(("beta", "distance"), [(0.9, 0.01), (0.5, 0.01), (0.8, 1e-5)])
def test_small_distances_are_protected_by_little_noise(beta: float, distance: float, method: str) -> None:
    """Who sees the coins has the advantage Σ Bin(5, .2)(j)·erf(R√j/(2√2σ)): hardly less noise does not reach the target."""
    run = bs.calibrate(
        bs.Target(bayes_security=beta), sample_rate=0.2, steps=5, threat=bs.AttributeInference(distance), method=method
    )

    def seen(noise: float) -> float:
        sampled = [comb(5, j) * 0.2**j * 0.8 ** (5 - j) for j in range(6)]
        return 1.0 - sum(one * erf(distance * sqrt(j) / (2.0 * sqrt(2.0) * noise)) for j, one in enumerate(sampled))

    assert run.noise_multiplier < 0.07
    assert seen(0.999 * float(run.noise_multiplier)) < beta <= seen(float(run.noise_multiplier)) < beta + 1e-4
