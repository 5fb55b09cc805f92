"""The exact method: numbers of the theory, naive twins, limits and extremes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import betastar as bs
from betastar.analyze import reliable
from betastar.exact import FourierCurve
from betastar.steps import poisson
from betastar.steps.base import DENSITY, Family
from betastar.steps.poisson import PoissonFactor, PoissonStep, condense


def substitution(p: float, sigma: float, steps: int) -> FourierCurve:
    return FourierCurve([PoissonFactor(steps, "line", p, sigma, 2.0)], True)


def add_remove(p: float, sigma: float, steps: int) -> FourierCurve:
    return FourierCurve([PoissonFactor(steps, "line", p, sigma, 1.0)], False)


@pytest.mark.parametrize(
    ("p", "sigma", "distance", "steps", "line", "symmetric", "glued"),
    [(0.01, 3.51, 0.97, 2020, 0.05057, 0.05104, 0.0560487), (0.01, 1.0, 1.0, 1000, 0.16102, 0.17861, 0.2082557)],
)
def test_attribute_numbers_of_the_theory(
    p: float, sigma: float, distance: float, steps: int, line: float, symmetric: float, glued: float
) -> None:
    def advantage(family: Family, symmetric: bool) -> float:
        return 1.0 - FourierCurve([PoissonFactor(steps, family, p, sigma, distance)], symmetric).overlap().value

    assert advantage("line", False) == pytest.approx(line, abs=5e-6)
    assert advantage("symmetric", True) == pytest.approx(symmetric, abs=5e-6)
    assert advantage("glued", True) == pytest.approx(glued, abs=6e-8)
    beta = bs.analyze(bs.DPSGD(sigma, p, steps), bs.AttributeInference(distance)).bayes_security
    assert 1.0 - glued < beta.lower <= 1.0 - max(line, symmetric), "an attacker who adapts is between the two"
    assert 1.0 - beta.lower <= 1.03 * (1.0 - beta.upper)


@settings(max_examples=60, deadline=None)
@given(st.floats(-6.0, 0.0), st.floats(-0.6, 1.5), st.integers(1, 10**6), st.sampled_from(["substitution", "add-remove"]))
def test_range_and_error(log_rate: float, log_noise: float, steps: int, relation: str) -> None:
    risk = bs.analyze(bs.DPSGD(10**log_noise, 10**log_rate, steps), bs.Membership(relation))
    beta = risk.bayes_security
    assert 0.0 <= beta.lower <= beta.estimate <= beta.upper <= 1.0
    assert beta.estimate > 0.0
    assert beta.width <= 2e-8
    # Never riskier than sampling without noise, nor than the same run without sampling.
    assert beta.upper >= (1.0 - 10**log_rate) ** steps - 1e-9
    plain = bs.DPSGD(10**log_noise, 1.0, steps)
    assert beta.upper >= bs.analyze(plain, bs.Membership(relation)).bayes_security.lower - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.floats(-5.0, -0.5), st.floats(-0.4, 1.0), st.integers(1, 20000), st.floats(1.05, 2.0))
def test_monotone_in_every_parameter(log_rate: float, log_noise: float, steps: int, factor: float) -> None:
    p, sigma = 10**log_rate, 10**log_noise
    base = bs.analyze(bs.DPSGD(sigma, p, steps)).bayes_security
    assert bs.analyze(bs.DPSGD(sigma * factor, p, steps)).bayes_security.upper >= base.lower
    assert bs.analyze(bs.DPSGD(sigma, min(1.0, p * factor), steps)).bayes_security.lower <= base.upper
    assert bs.analyze(bs.DPSGD(sigma, p, math.ceil(steps * factor))).bayes_security.lower <= base.upper


@settings(max_examples=30, deadline=None)
@given(st.floats(-4.0, 0.0), st.floats(-0.5, 1.0), st.integers(2, 5000), st.floats(0.05, 1.95))
def test_attribute_curves_are_ordered(log_rate: float, log_noise: float, steps: int, distance: float) -> None:
    """Fixed pairs ≤ glued curve ≤ the glued curve of a larger distance, and membership at 2."""
    run = bs.DPSGD(10**log_noise, 10**log_rate, steps)
    beta = bs.analyze(run, bs.AttributeInference(distance)).bayes_security
    assert beta.lower <= beta.estimate <= beta.upper
    farther = bs.analyze(run, bs.AttributeInference(min(2.0, distance * 1.02))).bayes_security
    assert farther.lower <= beta.lower + 1e-8
    assert bs.analyze(run).bayes_security.lower <= beta.lower + 1e-8


def test_order_of_segments_does_not_matter() -> None:
    one, two = bs.DPSGD(1.0, 0.01, 300), bs.DPSGD(2.0, 0.05, 100)
    first, second = bs.analyze(one + two).bayes_security, bs.analyze(two + one).bayes_security
    assert first.estimate == pytest.approx(second.estimate, abs=1e-12)
    split = bs.DPSGD(1.0, 0.01, 100) + bs.DPSGD(1.0, 0.01, 200)
    assert bs.analyze(split).bayes_security.estimate == pytest.approx(bs.analyze(one).bayes_security.estimate, abs=1e-12)


@pytest.mark.parametrize("spread", [(0.6, 1.6), (0.02, 1.9), (0.9, 1.0)])
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.51])
def test_many_distances_cost_few_and_lose_nothing(spread: tuple[float, float], noise: float) -> None:
    """Interpolated weights against the steps composed one by one."""
    rng = np.random.default_rng(3)
    distances = rng.uniform(*spread, 120)
    steps = [PoissonStep(0.01, noise, float(r), 20) for r in distances]
    families: tuple[Family, ...] = ("glued", "line")
    for family in families:
        one_by_one = FourierCurve([PoissonFactor(20, family, 0.01, noise, float(r)) for r in distances], family == "glued")
        few = FourierCurve([PoissonFactor(n, family, p, s, r) for n, p, s, r in condense(steps)], family == "glued")
        assert len(few.factors) < 110
        assert few.overlap().value == pytest.approx(one_by_one.overlap().value, abs=1e-9)


def test_distances_as_number_array_and_histogram_agree() -> None:
    run = bs.DPSGD(2.0, 0.02, 6)
    by_number = bs.analyze(run, bs.AttributeInference(0.7)).bayes_security
    by_array = bs.analyze(run, bs.AttributeInference([0.7] * 6)).bayes_security
    by_histogram = bs.analyze(run, bs.AttributeInference({0.7: 6})).bayes_security
    assert by_number == by_array == by_histogram
    mixed = bs.analyze(run, bs.AttributeInference([0.7, 0.2, 0.7, 0.0, 0.2, 0.7])).bayes_security
    without_order = bs.analyze(run, bs.AttributeInference([0.0, 0.2, 0.7], counts=[1, 2, 3])).bayes_security
    assert without_order.lower <= mixed.lower <= mixed.upper <= without_order.upper, "no order is the worst of all orders"
    halves = bs.DPSGD(2.0, 0.02, 3) + bs.DPSGD(2.0, 0.02, 3)
    again = bs.analyze(halves, bs.AttributeInference([0.7, 0.2, 0.7, 0.0, 0.2, 0.7])).bayes_security
    assert mixed.lower == pytest.approx(again.lower, abs=1e-12)


def test_no_distance_no_risk() -> None:
    risk = bs.analyze(bs.DPSGD(1.0, 0.1, 100), bs.AttributeInference(0.0))
    assert risk.bayes_security.lower == risk.bayes_security.upper == 1.0
    assert risk.tpr(0.01).upper == 0.01
    assert risk.epsilon(1e-5).upper == 0.0


def test_candidates_are_as_far_apart_as_the_farthest_two() -> None:
    matrix = np.array([[0.0, 0.3, 0.9], [0.3, 0.0, 0.5], [0.9, 0.5, 0.0]])
    run = bs.DPSGD(1.5, 0.05, 200)
    risk = bs.analyze(run, bs.AttributeInference.among(matrix))
    assert risk.bayes_security == bs.analyze(run, bs.AttributeInference(0.9)).bayes_security
    per_step = np.stack([matrix * (t % 3) / 3 for t in range(200)])
    array = bs.AttributeInference([0.9 * (t % 3) / 3 for t in range(200)])
    assert bs.analyze(run, bs.AttributeInference.among(per_step)).bayes_security.lower == pytest.approx(
        bs.analyze(run, array).bayes_security.lower, abs=1e-12
    )


EXTREMES = [
    (sigma, p, steps) for sigma in (0.2, 0.5, 1.0, 10.0, 100.0) for p in (1e-8, 1e-4, 0.3, 1.0) for steps in (1, 30, 10**5, 10**9)
]


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_extremes_are_quiet_and_finite(relation: str) -> None:
    """Every floating-point event but underflow is an error here."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        for sigma, p, steps in EXTREMES:
            beta = bs.analyze(bs.DPSGD(sigma, p, steps), bs.Membership(relation)).bayes_security
            assert 0.0 <= beta.lower <= beta.estimate <= beta.upper <= 1.0, (sigma, p, steps)
            assert beta.estimate > 0.0, (sigma, p, steps)
            assert beta.width <= 2e-8, (sigma, p, steps)


@pytest.mark.slow
def test_attribute_extremes_are_quiet_and_finite() -> None:
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        for (sigma, p, steps), distance in zip(EXTREMES, itertools.cycle((1e-3, 0.5, 1.5)), strict=False):
            beta = bs.analyze(bs.DPSGD(sigma, p, steps), bs.AttributeInference(distance)).bayes_security
            assert 0.0 <= beta.lower <= beta.estimate <= beta.upper <= 1.0, (sigma, p, steps, distance)


def test_hopeless_runs_keep_their_digits() -> None:
    """β* of 10⁻⁴⁵ and of 10⁻²⁸⁰, against the closed form at p = 1."""
    for sigma, steps in ((1.0, 200), (1.0, 1270), (0.2, 25)):
        truth = math.erfc(math.sqrt(steps / 2) / sigma)
        assert bs.analyze(bs.DPSGD(sigma, 1.0, steps)).bayes_security.estimate == pytest.approx(truth, rel=1e-8)
    beyond = bs.analyze(bs.DPSGD(0.2, 1.0, 10**9)).bayes_security
    assert beyond.lower == 0.0 < beyond.estimate <= beyond.upper < 1e-300


@pytest.mark.parametrize("sigma", [0.06, 0.01, 1e-3])
def test_less_noise_than_is_integrated(sigma: float) -> None:
    """Below LEAST_NOISE the ceiling and the risk at LEAST_NOISE enclose the truth."""
    for relation in ("substitution", "add-remove"):
        beta = bs.analyze(bs.DPSGD(sigma, 0.01, 100), bs.Membership(relation)).bayes_security
        assert beta.lower <= 0.99**100 * (1 + 1e-12)
        assert beta.width < 1e-8
        proved = bs.analyze(bs.DPSGD(sigma, 0.01, 100), bs.Membership(relation), "certified").bayes_security
        assert proved.lower <= beta.estimate <= proved.upper
        assert proved.width <= 1e-4
    beta = bs.analyze(bs.DPSGD(sigma, 0.01, 100), bs.AttributeInference(0.5)).bayes_security
    assert 0.99**100 * (1 - 1e-9) <= beta.lower <= beta.upper <= 1.0


@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 10), (5.0, 1), (0.5, 1), (100.0, 7), (20.0, 1000)])
def test_without_sampling_the_curve_is_gaussian(sigma: float, steps: int) -> None:
    mu = 2.0 / sigma * math.sqrt(steps)
    risk = bs.analyze(bs.DPSGD(sigma, 1.0, steps))
    for fpr in (1e-8, 1e-6, 1e-3, 0.1, 0.5, 0.99):
        assert risk.tpr(fpr).estimate == pytest.approx(norm.cdf(norm.ppf(fpr) + mu), rel=1e-9)
    for epsilon in (0.1, 1.0, 3.0):
        truth = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        if truth > 1e-300:
            assert risk.delta(epsilon).estimate == pytest.approx(truth, rel=1e-6)
    assert risk.gdp_mu.estimate == pytest.approx(mu, rel=1e-6)
    assert risk.gdp_mu.regret <= 1e-5  # the upper end of μ is proved, to 1e-5 of itself


def test_low_false_positive_rates_against_importance_sampling() -> None:
    """Noise 1, p = .01, 1000 steps, add/remove at FPR 1e-6, where two peers say 8e-14: sample from a tilted run instead.

    Under the tilt the record is sampled with rate q > p when it is in; the weight of a path is the product of its ratios.
    """
    p, sigma, steps, games = 0.01, 1.0, 1000, 40_000
    curve = add_remove(p, sigma, steps)
    truth, _ = curve.true_positives(1e-6)
    assert truth == pytest.approx(9.4e-6, rel=0.02)
    tau = 1.55
    rng = np.random.default_rng(11)
    q, shift = 0.02, 1.6  # proposal: a mixture with more and larger hits
    tails = []
    for _ in range(10):
        hit = rng.random((games // 10, steps)) < q
        x = rng.normal(size=hit.shape) + shift * hit
        base = -0.5 * x * x
        proposal = np.log((1 - q) * np.exp(base) + q * np.exp(-0.5 * (x - shift) ** 2))
        out = base
        loss = np.log1p(p * np.expm1(x - 0.5)).sum(axis=1)
        weight = np.exp((out - proposal).sum(axis=1))
        tails.append(np.stack([weight * (loss > tau), weight * np.exp(loss) * (loss > tau)]))
    samples = np.concatenate(tails, axis=1)
    means, errors = samples.mean(axis=1), samples.std(axis=1) / math.sqrt(samples.shape[1])
    step = 1e-4  # Q(L > τ) = -e^{-τ} dH/dτ
    slope = (curve.hockey_stick(tau + step).value - curve.hockey_stick(tau - step).value) / (2 * step)
    fpr = -math.exp(-tau) * slope
    tpr = curve.hockey_stick(tau).value + math.exp(tau) * fpr
    assert errors[0] < 0.05 * means[0], "the proposal must see the tail"
    assert abs(means[0] - fpr) < 4 * errors[0]
    assert abs(means[1] - tpr) < 4 * errors[1]
    assert curve.true_positives(fpr).value == pytest.approx(tpr, rel=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.floats(-4.0, -0.5), st.floats(-0.3, 0.8), st.integers(1, 5000), st.sampled_from(["substitution", "add-remove"]))
def test_curve_is_a_curve(log_rate: float, log_noise: float, steps: int, relation: str) -> None:
    """Increasing, concave, above the diagonal, advantage its largest distance from it; δ and ε invert each other."""
    risk = bs.analyze(bs.DPSGD(10**log_noise, 10**log_rate, steps), bs.Membership(relation))
    rates = np.array([1e-8, 1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    curve = risk.tradeoff(rates)
    assert np.all(curve.lower >= rates)
    assert np.all(curve.lower <= curve.upper)
    assert np.all(np.diff(curve.estimate) >= -1e-12)
    slopes = np.diff(curve.estimate) / np.diff(rates)
    assert np.all(np.diff(slopes) <= 1e-6 * slopes[:-1] + 1e-9)
    assert np.all(curve.lower - rates <= risk.advantage.upper + 1e-9)
    assert risk.delta(0.0).estimate == pytest.approx(risk.advantage.estimate, abs=1e-9)
    delta = 0.3 * risk.advantage.estimate
    if delta > 1e-12:
        epsilon = risk.epsilon(delta).estimate
        assert risk.delta(epsilon).estimate == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("run", [(1.0, 0.001, 20000), (0.5, 0.1, 10), (0.2, 1e-4, 30), (5.0, 1.0, 3), (0.6, 0.3, 1)])
@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_arrays_are_their_numbers(run: tuple[float, float, int], relation: str) -> None:
    """What is asked with an array is what is asked with each of its numbers, to the errors that are reported."""
    risk = bs.analyze(bs.DPSGD(*run), bs.Membership(relation))
    asked = (
        (risk.tpr, np.array([[1e-6, 1e-4, 0.01], [0.1, 0.5, 0.97]])),
        (risk.delta, np.array([0.0, 0.01, 0.3, 2.0, 8.0])),
        (risk.epsilon, np.array([1e-12, 1e-6, 1e-3, 0.05])),
    )
    for metric, numbers in asked:
        together = metric(numbers)
        assert together.lower.shape == numbers.shape
        for place in np.ndindex(numbers.shape):
            one = metric(float(numbers[place]))
            assert one.lower <= together.upper[place]
            assert together.lower[place] <= one.upper
            assert one.estimate == pytest.approx(together.estimate[place], rel=2e-6, abs=1e-14)


def test_tails_with_many_steps_and_a_large_rate() -> None:
    """Rate .3, noise 2.2: the nodes for tails were too few where records are sampled often, and ε was off by 1e-5 of itself."""
    run, threat = bs.DPSGD(2.2644189035959768, 0.32766983806749816, 212), bs.Membership("add-remove")
    exact, proved = bs.analyze(run, threat), bs.analyze(run, threat, "certified", 1e-6)
    for metric, number in ((bs.Risk.tpr, 1e-3), (bs.Risk.tpr, 0.5), (bs.Risk.delta, 5.0), (bs.Risk.epsilon, 1e-5)):
        assert metric(proved, number).lower <= metric(exact, number).estimate <= metric(proved, number).upper
    for wide in (False, True):
        for rate in (0.05, 0.2, 0.4):
            many = PoissonFactor(200, "line", rate, 2.0, 1.0).transform(wide)
            dense = poisson.line(rate, 2.0, 1.0, wide, 0.5 * DENSITY)
            z = np.array([0.5 + 0.3j, 1.5 + 0.01j, 2.5 + 1j])
            assert np.all(np.abs(many.excess(z) - dense.excess(z)) <= 2e-9 * np.abs(dense.excess(z)))


def test_losses_of_adding_a_record_have_an_end() -> None:
    """log P/Q ≥ T·log(1-p): below that the attacker learns nothing from rejecting."""
    curve = add_remove(0.1, 0.3, 20)
    end = 20 * math.log(0.9)
    for tau in (end - 1e-9, end - 3.0):
        assert curve.hockey_stick(tau).value == pytest.approx(1.0 - math.exp(tau), rel=1e-14)
        assert curve.reversed().hockey_stick(-tau).value == 0.0
    assert 0.0 < curve.reversed().hockey_stick(-end - 0.01).value < 1e-2


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_vanishing_rates_keep_their_digits(relation: str) -> None:
    """One step in 1e8 takes part: δ is the sum of the steps' own, to second order."""
    for noise, steps in ((0.4, 30), (1.0, 1000)):
        one = bs.analyze(bs.DPSGD(noise, 1e-8, 1), bs.Membership(relation)).delta(1e-6).estimate
        many = bs.analyze(bs.DPSGD(noise, 1e-8, steps), bs.Membership(relation)).delta(1e-6)
        if one > 1e-12:
            assert many.estimate == pytest.approx(steps * one, rel=0.05)
        assert many.upper - many.lower <= 1e-6 * many.estimate + 1e-16


@pytest.mark.parametrize("method", ["exact", "certified", "affinity"])
@pytest.mark.parametrize("run", [(0.07, 1.0, 10), (0.05, 1.0, 3), (0.03, 1.0, 1), (0.1, 1.0, 100), (0.2, 1.0, 5)])
def test_next_to_no_noise(run: tuple[float, float, int], method: str) -> None:
    """Without sampling β* = erfc(R√T/(2√2σ)), which may be less than any number."""
    noise, rate, steps = run
    for threat, far in ((bs.Membership(), 2.0), (bs.Membership("add-remove"), 1.0), (bs.AttributeInference(0.7), 0.7)):
        beta = bs.analyze(bs.DPSGD(noise, rate, steps), threat, method).bayes_security
        truth = math.erfc(far * math.sqrt(steps / 8.0) / noise)
        assert 0.0 <= beta.lower <= truth * (1.0 + 1e-9) + 1e-300
        assert beta.upper >= truth


def test_tails_beyond_the_reach_of_the_nodes_are_not_trusted() -> None:
    """Few steps: the saddle point lies where the nodes no longer resolve the transform, which gave values off by .7 %."""
    run, threat = bs.DPSGD(0.8542502282965752, 0.0012419443036337052, 3), bs.Membership("add-remove")
    proved, exact = bs.analyze(run, threat, method="certified", tolerance=1e-7), bs.analyze(run, threat)
    for epsilon in (0.05, 0.15, 0.19, 0.3, 0.5):
        bound, value = proved.delta(epsilon), exact.delta(epsilon)
        assert value.lower <= bound.upper, epsilon
        assert value.upper >= bound.lower, epsilon
    assert exact.tpr(1e-6).lower <= proved.tpr(1e-6).upper


def test_the_best_threshold_is_found_from_far_away() -> None:
    """Little noise, hardly any sampling: the first guess of the threshold is 400,000 deviations off, and was kept (TPR .0288)."""
    run = bs.DPSGD(0.07699433468223843, 9.188842094541754e-09, 1926)
    rate = reliable(run, bs.Membership("add-remove"), "exact", 1e-4).tpr(1e-6)
    assert 1e-6 < rate.upper <= 1e-6 + 1926 * 9.188842094541754e-09 + 1e-8


@pytest.mark.parametrize(
    ("noise", "distances"),
    [
        (0.8, (0.05669027, 0.08133745, 0.04138605, 0.04175275, 0.0741545, 0.08064807, 0.02294928, 0.06198348)),
        (0.5, (0.05670, 0.08121, 0.04140, 0.04170, 0.0742, 0.0807, 0.02292, 0.0620)),
    ],
)
def test_paths_on_which_the_transform_grows_are_not_trusted(noise: float, distances: tuple[float, ...]) -> None:
    run = bs.DPSGD(noise_multiplier=noise, sample_rate=0.25, steps=len(distances))
    threat = bs.AttributeInference(distances)
    exact, proved = (bs.analyze(run, threat, method=method).bayes_security for method in ("exact", "certified"))
    assert 0.9 < exact.lower <= proved.upper
    assert proved.lower <= exact.upper
    assert exact.width < 0.02
    pair = FourierCurve([PoissonFactor(1.0, "line", 0.25, noise, distance) for distance in sorted(distances)], False)
    assert abs(pair.overlap().value - proved.estimate) < 0.02


@pytest.mark.parametrize("method", ["affinity", "exact", "certified"])
def test_tiny_distances(method: str) -> None:
    for distance in (5e-324, 1e-300, 1e-160):
        beta = bs.analyze(bs.DPSGD(0.5, 0.5, 1000), bs.AttributeInference(distance), method=method).bayes_security
        assert 1.0 - 1e-9 < beta.lower <= beta.upper == 1.0


def test_rates_where_three_scales_meet() -> None:
    """Nearly nothing, little and everything is told in one run: Q(L > 0) is one half, not what is left beside a narrow plateau.

    What is asked in one pass agrees with a law on a grid.
    """
    run = bs.DPSGD(0.08, 1.5e-10, 365_000) + bs.DPSGD(950.0, 0.0185, 92) + bs.DPSGD(0.28, 1.95e-8, 850_000)
    rates = np.array([0.1, 1e-2, 1e-4, 1e-6, 1e-8])
    on_a_grid = np.array([0.10104155, 0.01042726, 2.0196e-04, 6.0562e-05, 5.5166e-05])
    assert bs.analyze(run).tpr(rates).estimate == pytest.approx(on_a_grid, rel=1e-4)
