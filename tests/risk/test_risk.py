"""Metrics: what they say with and without a curve, for priors, sweeps and privacy loss distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import betastar as bs
from betastar import risk as conversions

RUN = bs.DPSGD(1.0, 0.001, 50000)


def test_success_at_a_small_prior_is_read_off_the_curve() -> None:
    """The number of theory section 8: .9000001 at π = .1, where β* alone gives .919."""
    risk = bs.analyze(RUN)
    assert risk.success(0.1).estimate == pytest.approx(0.9000001, abs=5e-8)
    assert conversions.success_at_most(risk.advantage.estimate, 0.1) == pytest.approx(0.919, abs=5e-4)
    assert risk.success().estimate == pytest.approx(0.5 + risk.advantage.estimate / 2, abs=1e-9)


def test_priors_as_a_list() -> None:
    risk = bs.analyze(RUN)
    assert risk.success([0.9, 0.1]) == risk.success(0.1)
    among = risk.success([0.25] * 4)
    beta = risk.bayes_security
    assert 0.25 <= among.lower <= among.estimate <= among.upper
    assert among.upper <= 1.0 - beta.lower * 0.75
    assert among.upper <= risk.tpr(0.25).upper
    assert bs.analyze(RUN).success(0.0).estimate == 1.0


def test_reconstruction_is_the_rate_at_the_prior() -> None:
    risk = bs.analyze(RUN)
    assert risk.reconstruction(1 / 74) == risk.tpr(1 / 74)


@pytest.mark.parametrize("method", ["paper", "affinity"])
def test_without_a_curve_metrics_come_from_beta(method: str) -> None:
    risk = bs.analyze(bs.DPSGD(3.0, 0.01, 1000), method=method)
    assert risk.source == "Bayes security"
    assert bs.analyze(bs.DPSGD(3.0, 0.01, 1000)).source == "trade-off curve"
    adv = risk.advantage
    assert risk.tpr(0.1).estimate == pytest.approx(0.1 + adv.estimate)
    assert risk.tpr(0.1).upper == pytest.approx(min(1.0, 0.1 + adv.upper))
    assert risk.delta(1.0).upper == adv.upper
    assert risk.epsilon(1e-5).upper == math.inf
    assert risk.gdp_mu.upper == math.inf
    assert risk.success(0.3).upper == pytest.approx(1.0 - 0.3 * (1.0 - adv.upper))


def test_what_beta_alone_says_holds_for_the_exact_curve() -> None:
    exact, proved = bs.analyze(bs.DPSGD(1.5, 0.02, 400)), bs.analyze(bs.DPSGD(1.5, 0.02, 400), method="affinity")
    for fpr in (1e-6, 1e-3, 0.1, 0.5, 0.9):
        assert exact.tpr(fpr).estimate in proved.tpr(fpr)
    for prior in (0.05, 0.5, 0.7):
        assert exact.success(prior).estimate in proved.success(prior)
    for epsilon in (0.0, 0.3, 2.0):
        assert exact.delta(epsilon).estimate in proved.delta(epsilon)
    for delta in (1e-6, 0.05):
        assert exact.epsilon(delta).estimate in proved.epsilon(delta)
    assert exact.gdp_mu.estimate in proved.gdp_mu


def test_sweeps_have_the_shape_of_their_parameters() -> None:
    run = bs.DPSGD(np.array([1.0, 2.0]), np.array([[0.01], [0.02], [0.03]]), 500)
    risk = bs.analyze(run)
    assert run.shape == risk.bayes_security.estimate.shape == (3, 2)
    assert risk.tpr(0.01).upper.shape == (3, 2)
    assert risk.tradeoff([0.01, 0.1, 0.5, 0.9]).estimate.shape == (3, 2, 4)
    assert risk.gdp_mu.regret.shape == (3, 2)
    one = bs.analyze(bs.DPSGD(2.0, 0.03, 500))
    assert risk.bayes_security.estimate[2, 1] == one.bayes_security.estimate
    curve = risk.tradeoff([0.01, 0.1, 0.5, 0.9])
    assert curve.estimate[2, 1, 0] == pytest.approx(one.tpr(0.01).estimate, rel=1e-9)
    assert curve.lower[2, 1, 0] <= one.tpr(0.01).estimate <= curve.upper[2, 1, 0]
    assert one.tradeoff([0.1, 0.2]).estimate.shape == (2,)


@pytest.mark.parametrize("method", ["exact", "certified", "affinity"])
def test_arrays_of_a_sweep_are_their_numbers(method: str) -> None:
    """A sweep's shape comes first; each entry is what the number alone gives, up to the error of the integrals."""
    risk = bs.analyze(bs.DPSGD([1.0, 2.0], 0.01, 100), method=method)
    error = {"rtol": 1e-6, "atol": 1e-15} if method == "exact" else {"rtol": 0.0}
    for name, numbers in (("delta", [0.1, 2.0]), ("epsilon", [1e-2, 1e-6]), ("reconstruction", [0.1, 0.5]), ("tpr", [0.1, 0.01])):
        metric = getattr(risk, name)
        bound = metric(np.array(numbers))
        assert bound.upper.shape == (2, 2)
        for i, number in enumerate(numbers):
            alone = metric(number)
            np.testing.assert_allclose(bound.upper[..., i], alone.upper, **error)
            np.testing.assert_allclose(bound.lower[..., i], alone.lower, **error)
    if method != "exact":
        fit = risk.gaussian([1e-5, 1e-3])
        assert np.ravel(fit.smallest_fpr)[-2:].tolist() == [1e-5, 1e-3]
        np.testing.assert_array_equal(fit.upper[..., 1], risk.gaussian(1e-3).upper)


def test_rates_near_the_ends() -> None:
    risk = bs.analyze(bs.DPSGD(1.0, 0.01, 1000))
    assert risk.tpr(0.0).upper == 0.0
    assert risk.tpr(1.0).lower == 1.0
    assert 1e-8 <= risk.tpr(1e-8).lower <= risk.tpr(1e-8).upper < 1e-6


def test_add_remove_has_a_direction() -> None:
    """δ takes the worse direction, TPR the one in which the record was in."""
    risk = bs.analyze(bs.DPSGD(0.8, 0.05, 100), bs.Membership("add-remove"))
    outcome = risk._outcomes[0]
    (curve,) = outcome.worst
    forward, backward = curve.hockey_stick(2.0).value, curve.reversed().hockey_stick(2.0).value
    assert forward > 3 * backward
    assert risk.delta(2.0).estimate == forward
    assert risk.tpr(1e-3).estimate == curve.true_positives(1e-3).value
    assert curve.reversed().true_positives(1e-3).value < risk.tpr(1e-3).estimate
    assert curve.reversed().reversed().hockey_stick(2.0).value == pytest.approx(forward, rel=1e-9)


def test_attribute_rates_take_both_orientations() -> None:
    risk = bs.analyze(bs.DPSGD(0.9, 0.05, 60), bs.AttributeInference(0.4))
    outcome = risk._outcomes[0]
    pairs = [turn.true_positives(1e-3).value for curve in outcome.attacks for turn in (curve, curve.reversed())]
    assert risk.tpr(1e-3).estimate == max(pairs)
    assert risk.tpr(1e-3).upper >= max(pairs)


def test_gaussian_fit_covers_the_curve() -> None:
    from scipy.stats import norm

    risk = bs.analyze(bs.DPSGD(0.7, 0.02, 300))
    fit = risk.gaussian(smallest_fpr=1e-4)
    assert fit.smallest_fpr == 1e-4
    assert fit.regret > 1e-3, "low noise is not Gaussian"
    for fpr in np.geomspace(1e-4, 0.999, 25):
        rate = risk.tpr(float(fpr)).estimate
        if 1.0 - rate >= 1e-4:
            assert rate <= norm.cdf(norm.ppf(fpr) + fit.upper) + 1e-7
    assert risk.gaussian(smallest_fpr=1e-8).upper > fit.upper


@given(st.floats(0.0, 20.0), st.floats(0.0, 0.5))
def test_from_epsilon_and_back(epsilon: float, delta: float) -> None:
    advantage = bs.advantage_from_epsilon(epsilon, delta)
    assert 0.0 <= advantage <= 1.0
    grow = math.exp(epsilon)
    assert advantage == pytest.approx(min(1.0, (grow - 1 + 2 * delta) / (grow + 1)), abs=1e-12)
    if 1e-6 < advantage < 1 - 1e-9:
        assert bs.epsilon_from_bayes_security(1.0 - advantage, delta) == pytest.approx(epsilon, rel=1e-4, abs=1e-6)


def test_epsilon_from_beta_is_a_lower_bound() -> None:
    risk = bs.analyze(RUN)
    for delta in (0.0, 1e-6, 0.01):
        least = bs.epsilon_from_bayes_security(risk.bayes_security.upper, delta)
        if delta > 0.0:
            assert least <= risk.epsilon(delta).estimate
    assert bs.epsilon_from_bayes_security(0.0) == math.inf
    assert bs.epsilon_from_bayes_security(0.9, 0.5) == 0.0


def test_bounds_speak() -> None:
    bound = bs.Bound(0.1, 0.2, 0.4)
    assert str(bs.Bound(0.12345678, 0.5, 0.98765432)) == "0.5 [0.123456, 0.987655]", "the ends are rounded outwards"
    assert str(bs.Bound(0.0, 0.25, math.inf)) == "0.25 [0, not known]"
    assert 0.3 in bound
    assert 0.5 not in bound
    assert bound.width == pytest.approx(0.3)
    assert bound.complement() == bs.Bound(0.6, 0.8, 0.9)
    assert "membership inference (substitution), exact" in repr(bs.analyze(bs.DPSGD(2.0, 0.01, 10)))


def test_a_run_speaks_and_is_frozen() -> None:
    run = bs.DPSGD(2.0, 0.01, 10) + bs.DPSGD(1.0, 0.01, 5)
    assert eval(repr(run), {"DPSGD": bs.DPSGD}) == run
    assert hash(run) == hash(eval(repr(run), {"DPSGD": bs.DPSGD}))
    assert run.steps == 15
    with pytest.raises(ValueError, match="changes during this run"):
        _ = run.noise_multiplier
    with pytest.raises(AttributeError, match="frozen"):
        run.segments = ()  # type: ignore[misc]
    single = bs.DPSGD(2.0, 0.01, 10)
    assert (single.noise_multiplier, single.sample_rate, single.steps) == (2.0, 0.01, 10)


def test_epochs_become_steps_as_in_a_loader() -> None:
    run = bs.DPSGD.from_epochs(noise_multiplier=3.51, batch_size=256, dataset_size=26048, epochs=20)
    assert run == bs.DPSGD(noise_multiplier=3.51, sample_rate=256 / 26048, steps=2040)
    assert bs.DPSGD.from_epochs(1.0, 10, 100, 0.25).steps == 3
    sweep = bs.DPSGD.from_epochs(1.0, np.array([10, 20]), 100, 3)
    assert sweep.steps.tolist() == [30, 15]
