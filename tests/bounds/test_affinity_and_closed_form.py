"""The closed forms: the proved one brackets, the paper's one approximates."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar import closed_forms


@settings(max_examples=60, deadline=None)
@given(st.floats(-5.0, 0.0), st.floats(-0.6, 1.3), st.integers(1, 10**6), st.sampled_from(["substitution", "add-remove"]))
def test_affinity_brackets_membership(log_rate: float, log_noise: float, steps: int, relation: str) -> None:
    run, threat = bs.DPSGD(10**log_noise, 10**log_rate, steps), bs.Membership(relation)
    exact, proved = bs.analyze(run, threat).bayes_security, bs.analyze(run, threat, "affinity").bayes_security
    assert proved.lower <= exact.upper
    assert exact.lower <= proved.upper
    assert proved.lower <= proved.estimate <= proved.upper


@settings(max_examples=20, deadline=None)
@given(st.floats(-4.0, 0.0), st.floats(-0.4, 1.0), st.integers(1, 10**4), st.floats(0.05, 1.95))
def test_affinity_brackets_attributes(log_rate: float, log_noise: float, steps: int, distance: float) -> None:
    run, threat = bs.DPSGD(10**log_noise, 10**log_rate, steps), bs.AttributeInference(distance)
    exact, proved = bs.analyze(run, threat).bayes_security, bs.analyze(run, threat, "affinity").bayes_security
    assert proved.lower <= exact.lower + 1e-9
    assert exact.estimate <= proved.upper + 1e-9


def test_affinity_estimate_is_exact_without_sampling() -> None:
    for sigma, steps in ((2.0, 10), (0.5, 1), (30.0, 400)):
        estimate = bs.analyze(bs.DPSGD(sigma, 1.0, steps), method="affinity").bayes_security.estimate
        assert estimate == pytest.approx(math.erfc(math.sqrt(steps / 2) / sigma), rel=1e-6)


def test_affinity_estimate_is_close_where_the_theory_says_so() -> None:
    """Within 3e-4 for noise ≥ 1, p ≤ .01 over 10 to 50 epochs, where the closed form errs by up to .03."""
    worst = 0.0
    for sigma in (1.0, 2.0, 5.0):
        for p in (1e-4, 1e-3, 1e-2):
            for epochs in (10, 50):
                run = bs.DPSGD(sigma, p, round(epochs / p))
                truth = bs.analyze(run).bayes_security.estimate
                worst = max(worst, abs(bs.analyze(run, method="affinity").bayes_security.estimate - truth))
    assert worst < 3e-4


def test_affinity_of_many_distances_is_a_sum() -> None:
    rng = np.random.default_rng(5)
    distances = rng.uniform(0.1, 1.9, 200)
    run = bs.DPSGD(1.0, 0.01, 200)
    many = bs.analyze(run, bs.AttributeInference(distances), "affinity").bayes_security
    exponent = 0.0
    for distance in distances:
        one = bs.analyze(bs.DPSGD(1.0, 0.01, 1), bs.AttributeInference(float(distance)), "affinity").bayes_security
        exponent += -math.log(one.upper)
    # The upper ends come from the larger of two families, summed per family; one by one it can only be larger.
    assert math.exp(-exponent) <= many.upper * (1 + 1e-6)
    assert many.upper <= math.exp(-exponent) * 1.001


@pytest.mark.parametrize(("p", "sigma", "steps"), [(0.001, 2.0, 1000), (0.01, 3.51, 2020), (1e-4, 5.0, 500000)])
def test_paper_formula(p: float, sigma: float, steps: int) -> None:
    """Theorem, corollary for membership (R = 2) and corollary for attributes, written out once more."""
    run = bs.DPSGD(sigma, p, steps)
    beta = bs.analyze(run, method="paper").bayes_security
    assert beta.estimate == pytest.approx(1 - math.erf(p * math.sqrt(steps) / (math.sqrt(2) * sigma)), abs=1e-12)
    attribute = bs.analyze(run, bs.AttributeInference(0.97), "paper").bayes_security
    norm = math.sqrt(steps * 0.97**2)
    assert attribute.estimate == pytest.approx(1 - math.erf(p * norm / (2 * math.sqrt(2) * sigma)), abs=1e-12)
    term = math.sqrt(steps * p * (1 - p)) / sigma
    assert beta.lower == pytest.approx(max(0.0, beta.estimate - term), abs=1e-12)


def test_paper_error_term_covers_the_truth() -> None:
    for sigma, p, steps in ((50.0, 0.01, 100), (20.0, 1e-3, 1000), (1.0, 1e-4, 30), (0.5, 1e-3, 2000)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.RegimeWarning)
            beta = bs.analyze(bs.DPSGD(sigma, p, steps), method="paper").bayes_security
        assert bs.analyze(bs.DPSGD(sigma, p, steps)).bayes_security.estimate in beta


def test_mixed_segments_in_the_closed_forms() -> None:
    one, two = bs.DPSGD(2.0, 0.01, 300), bs.DPSGD(3.0, 0.02, 100)
    both = bs.analyze(one + two, method="paper").bayes_security.estimate
    signal = 300 * (2 * 0.01 / 2.0) ** 2 + 100 * (2 * 0.02 / 3.0) ** 2
    assert both == pytest.approx(math.erfc(math.sqrt(signal) / (2 * math.sqrt(2))), rel=1e-12)
    proved = [bs.analyze(run, method="affinity").bayes_security.upper for run in (one, two, one + two)]
    assert proved[0] * proved[1] == pytest.approx(proved[2], rel=1e-7)


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05, 0.07, 0.1, 0.15, 0.19])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_little_noise_is_rounded_to_the_safe_side(noise: float, rate: float) -> None:
    """At p = 1 the exponent is R²/(8σ²) whatever the pair; what is lost in rounding counts as infinite."""
    far = np.linspace(0.0, 2.0, 41)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exponents = closed_forms.leakage(rate, noise, far)
        risk = bs.analyze(bs.DPSGD(noise, rate, 10), bs.AttributeInference(0.7), method="affinity")
    truth = far**2 / (8.0 * noise**2)
    assert (np.diff(exponents[np.isfinite(exponents)]) >= -1e-9).all()
    if rate == 1.0:
        assert (exponents >= truth).all()
        known = np.isfinite(exponents)
        assert known[(truth < 18.0) & (noise >= 0.07)].all()
        assert (exponents[known] <= (far[known] + 2.0 / 512) ** 2 / (8.0 * noise**2) * 1.0001).all()
        assert float(risk.bayes_security.lower) <= np.exp(-2.0 * 10 * 0.49 / (8.0 * noise**2))


def test_ends_are_in_order_where_hardly_anything_leaks() -> None:
    bound = bs.analyze(bs.DPSGD(2e5, 0.02, 10**6), bs.AttributeInference(1e-7), "affinity").bayes_security
    assert bound.lower <= bound.estimate <= bound.upper
