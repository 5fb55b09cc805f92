"""riskcal, prv_accountant and fourier-accountant: agreement, and the cases where they fail."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import betastar as bs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fourier_accountant
    import prv_accountant
    from riskcal.calibration.dpsgd import find_noise_multiplier_for_advantage, get_advantage_for_dpsgd, get_beta_for_dpsgd

SETTINGS = [(0.01, 1.0, 1000), (0.05, 2.0, 300), (0.1, 1.0, 100)]


@pytest.mark.parametrize(("p", "sigma", "steps"), SETTINGS)
def test_riskcal_agrees(p: float, sigma: float, steps: int) -> None:
    risk = bs.analyze(bs.DPSGD(sigma, p, steps), bs.Membership("add-remove"))
    assert get_advantage_for_dpsgd(sigma, p, steps) == pytest.approx(risk.advantage.estimate, abs=2e-4)
    assert get_advantage_for_dpsgd(sigma, p, steps) >= risk.advantage.lower
    for fpr in (0.01, 0.1, 0.5):
        # Theirs is the worse of the two directions, ours the one in which the record was in.
        outcome = risk._outcomes[0]
        worse = max(curve.true_positives(fpr).value for curve in (outcome.worst[0], outcome.worst[0].reversed()))
        assert 1.0 - get_beta_for_dpsgd(sigma, p, steps, alpha=fpr) == pytest.approx(worse, abs=1e-3)


def test_riskcal_calibration_agrees() -> None:
    run = bs.calibrate(bs.Target(advantage=0.1), sample_rate=0.05, steps=1000, threat=bs.Membership("add-remove"))
    theirs = find_noise_multiplier_for_advantage(0.1, 0.05, 1000)
    assert theirs == pytest.approx(run.noise_multiplier, rel=0.02)


def prv_delta(p: float, sigma: float, steps: int, epsilon: float, error: float = 1e-8) -> tuple[float, float, float]:
    prv = prv_accountant.PoissonSubsampledGaussianMechanism(sampling_probability=p, noise_multiplier=sigma)
    accountant = prv_accountant.PRVAccountant(prvs=[prv], max_self_compositions=[steps], eps_error=0.01, delta_error=error)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low, estimate, high = accountant.compute_delta(epsilon, [steps])
    return low, estimate, high


@pytest.mark.parametrize(("p", "sigma", "steps"), SETTINGS)
@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_prv_accountant_brackets_us(p: float, sigma: float, steps: int, epsilon: float) -> None:
    """Its pair is the record's removal: our forward direction."""
    curve = bs.analyze(bs.DPSGD(sigma, p, steps), bs.Membership("add-remove"))._outcomes[0].worst[0]
    low, estimate, high = prv_delta(p, sigma, steps, epsilon)
    value = curve.hockey_stick(epsilon).value
    assert low <= value <= high
    assert value == pytest.approx(estimate, rel=0.05)


def test_where_prv_accountant_raises() -> None:
    """Noise 1, p = .2, 500 steps, δ to 1e-10."""
    with pytest.raises(RuntimeError, match="Discrete mean differs"):
        prv_delta(0.2, 1.0, 500, 1.0, error=1e-10)
    risk = bs.analyze(bs.DPSGD(1.0, 0.2, 500), bs.Membership("add-remove"))
    proved = bs.analyze(bs.DPSGD(1.0, 0.2, 500), bs.Membership("add-remove"), "certified")
    assert risk.delta(1.0).estimate in proved.delta(1.0)
    assert risk.bayes_security.estimate in proved.bayes_security


@pytest.mark.parametrize(("p", "sigma", "steps"), SETTINGS)
def test_fourier_accountant_agrees(p: float, sigma: float, steps: int) -> None:
    run = bs.DPSGD(sigma, p, steps)
    curves = {
        "substitution": (fourier_accountant.get_delta_S, bs.analyze(run)._outcomes[0].worst[0]),
        "add-remove": (fourier_accountant.get_delta_R, bs.analyze(run, bs.Membership("add-remove"))._outcomes[0].worst[0]),
    }
    for delta, curve in curves.values():
        with np.errstate(all="ignore"):
            theirs = float(delta(target_eps=0.7, sigma=sigma, q=p, ncomp=steps))
        assert curve.hockey_stick(0.7).value == pytest.approx(theirs, rel=2e-3)


def test_where_fourier_accountant_fails() -> None:
    """p = 1e-4, noise .5: its answer is no probability or far off; ours is inside the certificate."""
    run = bs.DPSGD(0.5, 1e-4, 10_000)
    exact, proved = bs.analyze(run).advantage, bs.analyze(run, method="certified").advantage
    assert exact.estimate in proved
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = float(fourier_accountant.get_delta_S(target_eps=1e-9, sigma=0.5, q=1e-4, ncomp=10_000))
        except (ValueError, ArithmeticError):
            theirs = float("nan")
    assert not abs(theirs - exact.estimate) < 1e-4
