"""The certified interval: it brackets, it converges, and its curves bracket every metric."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar.certified import enclosure, grid
from betastar.certified.grid import on_grid
from betastar.steps.poisson import PoissonStep, head, loss, one_step_advantage, tail, threshold


@settings(max_examples=40, deadline=None)
@given(st.floats(-4.0, 0.0), st.floats(-0.3, 1.3), st.integers(1, 3000), st.sampled_from(["substitution", "add-remove"]))
def test_brackets_the_exact_value(log_rate: float, log_noise: float, steps: int, relation: str) -> None:
    run, threat = bs.DPSGD(10**log_noise, 10**log_rate, steps), bs.Membership(relation)
    exact, proved = bs.analyze(run, threat).bayes_security, bs.analyze(run, threat, "certified").bayes_security
    assert proved.lower <= exact.upper
    assert exact.lower <= proved.upper
    assert proved.lower <= proved.estimate <= proved.upper
    assert proved.width <= 1e-4


@settings(max_examples=4, deadline=None)
@given(st.floats(-3.0, 0.0), st.floats(-0.1, 1.0), st.integers(1, 1000), st.floats(0.1, 1.9))
def test_brackets_attribute_inference(log_rate: float, log_noise: float, steps: int, distance: float) -> None:
    run, threat = bs.DPSGD(10**log_noise, 10**log_rate, steps), bs.AttributeInference(distance)
    exact, proved = bs.analyze(run, threat).bayes_security, bs.analyze(run, threat, "certified").bayes_security
    assert exact.lower - 1e-4 - 1e-9 <= proved.lower, "no worse than the coarser grid, to the tolerance"
    assert proved.lower <= exact.upper + 1e-9, "what is attained is above"
    assert exact.lower - 1e-9 <= proved.upper
    assert 1.0 - proved.lower <= 1.02 * (1.0 - proved.upper) + 1e-9


@pytest.mark.parametrize("method", ["exact", "certified"])
@pytest.mark.parametrize(
    ("rate", "noise", "steps", "distance"), [(0.01, 1.0, 1000, 0.3), (0.01, 0.5, 200, 0.8), (0.3, 2.0, 9, 1.5)]
)
def test_a_bound_within_milliseconds_is_on_the_safe_side(
    rate: float, noise: float, steps: int, distance: float, method: str
) -> None:
    """What the page shows while a slider moves, and what it is refined to."""
    run, threat = bs.DPSGD(noise, rate, steps), bs.AttributeInference(distance)
    quick, fine = (bs.analyze(run, threat, method, 1e-2, effort) for effort in ("quick", "normal"))
    assert quick.bayes_security.lower <= fine.bayes_security.lower + 1e-9
    assert 1.0 - quick.bayes_security.lower <= 1.5 * (1.0 - fine.bayes_security.lower)
    assert quick.bayes_security.upper >= fine.bayes_security.lower
    assert quick.tpr(0.01).upper >= fine.tpr(0.01).upper - 1e-9
    assert quick.success(0.3).upper >= fine.success(0.3).upper - 1e-9


@pytest.mark.slow
def test_brackets_many_distances_and_segments() -> None:
    rng = np.random.default_rng(2)
    run = bs.DPSGD(2.0, 0.02, 150) + bs.DPSGD(1.0, 0.01, 50)
    threat = bs.AttributeInference(rng.uniform(0.3, 1.2, 200))
    exact, proved = bs.analyze(run, threat).bayes_security, bs.analyze(run, threat, "certified").bayes_security
    assert exact.lower - 3e-3 <= proved.lower <= exact.estimate + 1e-9
    assert exact.estimate - 1e-9 <= proved.upper <= exact.estimate + 3e-3


def test_width_follows_the_tolerance() -> None:
    run = bs.DPSGD(1.0, 0.02, 300)
    truth = bs.analyze(run).bayes_security.estimate
    for tolerance in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        beta = bs.analyze(run, method="certified", tolerance=tolerance).bayes_security
        assert beta.width <= tolerance
        assert truth in beta


def test_converges_with_the_square_of_the_grid() -> None:
    steps = [PoissonStep(0.05, 1.0, 2.0, 100)]
    widths = []
    for size in (0.02, 0.01, 0.005, 0.0025):
        above, under = (
            grid.compose([on_grid(step, grid.Nodes(size), True, above, 1e-13) for step in steps], size, 1e-13, 1e-9)
            for above in (True, False)
        )
        assert above is not None
        assert under is not None
        widths.append(above.hockey_stick(0.0).value - under.hockey_stick(0.0).value)
    orders = np.log2(np.array(widths[:-1]) / np.array(widths[1:]))
    assert np.all((orders > 1.8) & (orders < 2.2)), orders


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_every_metric_is_bracketed(relation: str) -> None:
    run, threat = bs.DPSGD(1.2, 0.02, 400), bs.Membership(relation)
    exact, proved = bs.analyze(run, threat), bs.analyze(run, threat, "certified")
    assert proved.source == exact.source == "trade-off curve"
    for fpr in (1e-8, 1e-6, 1e-3, 0.1, 0.5, 0.9):
        assert proved.tpr(fpr).lower <= exact.tpr(fpr).upper
        assert exact.tpr(fpr).lower <= proved.tpr(fpr).upper
        assert proved.tpr(fpr).lower >= fpr
    for prior in (0.01, 0.3, 0.5, 0.8):
        assert proved.success(prior).lower <= exact.success(prior).upper
        assert exact.success(prior).lower <= proved.success(prior).upper
    for epsilon in (0.0, 0.5, 2.0):
        assert exact.delta(epsilon).estimate in proved.delta(epsilon)
    for delta in (1e-6, 1e-3):
        assert exact.epsilon(delta).estimate in proved.epsilon(delta)
    assert proved.gdp_mu.lower <= exact.gdp_mu.estimate <= proved.gdp_mu.upper


def test_rounding_is_counted_when_a_billion_steps_magnify_it() -> None:
    beta = bs.analyze(bs.DPSGD(100.0, 1e-4, 10**9), method="certified").bayes_security
    assert beta.width <= 1e-4
    assert bs.analyze(bs.DPSGD(100.0, 1e-4, 10**9)).bayes_security.estimate in beta


@pytest.mark.parametrize(("p", "sigma", "distance"), [(0.1, 1.0, 2.0), (0.01, 0.4, 1.0), (0.5, 3.0, 0.3), (1e-7, 1.0, 1.5)])
def test_tails_of_one_step(p: float, sigma: float, distance: float) -> None:
    """gain and mass against direct sums of the densities, and threshold against loss."""
    start = 1.0 - distance / 2
    x = np.linspace(start, 1 + 5 * sigma, 9)
    losses = loss(x, p, sigma, distance)
    assert losses[0] == pytest.approx(0.0, abs=1e-12)
    assert threshold(losses[1:], p, sigma, distance, start, 1 + 9 * sigma) == pytest.approx(x[1:], rel=1e-6)
    points = np.linspace(min(1 - distance, 0) - 12 * sigma, 1 + 12 * sigma, 400_001)
    width = points[1] - points[0]

    def density(mean: float) -> np.ndarray:
        return ((1 - p) * np.exp(-0.5 * (points / sigma) ** 2) + p * np.exp(-0.5 * ((points - mean) / sigma) ** 2)) / (
            sigma * np.sqrt(2 * np.pi)
        )

    first, second = density(1.0), density(1.0 - distance)
    gain, mass = tail(x, p, sigma, distance)
    for i, point in enumerate(x):
        inside = points > point
        assert gain[i] == pytest.approx(((first - second) * inside).sum() * width, rel=2e-3, abs=1e-12)
        assert mass[i] == pytest.approx((second * inside).sum() * width, rel=2e-3, abs=1e-12)
    back_gain, back_mass = head(np.array([start]), p, sigma, distance)
    assert back_gain[0] == pytest.approx(gain[0])
    assert back_mass[0] == pytest.approx((first * (points < start)).sum() * width, rel=2e-3)
    assert gain[0] == pytest.approx(one_step_advantage(p, sigma, distance))


@pytest.mark.parametrize(
    ("sigma", "p", "steps"),
    [
        (0.493, 0.1977, 1),
        (0.267, 0.00417, 5),
        (0.35, 0.3, 2),
        (0.25, 0.001, 500),
        (0.3, 0.05, 20),
        (0.4, 0.63, 4),
        (0.358, 0.0127, 8),
    ],
)
@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_low_noise_and_few_hits(sigma: float, p: float, steps: int, relation: str) -> None:
    """Where most runs never sample the record, its loss piles up at one place: two methods that share nothing agree."""
    run, threat = bs.DPSGD(sigma, p, steps), bs.Membership(relation)
    exact, proved = bs.analyze(run, threat), bs.analyze(run, threat, "certified")
    for fpr in (1e-6, 1e-3, 0.1):
        integrated, bracket = exact.tpr(fpr), proved.tpr(fpr)
        assert bracket.lower <= integrated.upper
        assert integrated.lower <= bracket.upper
        assert integrated.width <= 1e-6 * integrated.estimate
    for epsilon in (0.0, 0.05, 1.0):
        integrated, bracket = exact.delta(epsilon), proved.delta(epsilon)
        assert bracket.lower <= integrated.upper
        assert integrated.lower <= bracket.upper
        assert integrated.width <= 1e-6 * integrated.estimate + 1e-12
    assert proved.bayes_security.width <= 1e-4


@pytest.mark.parametrize("noise", [20.02106852160241, 15.0, 40.0])
def test_a_lowest_loss_that_hardly_ever_occurs(noise: float) -> None:
    """Adding or removing a record with much noise: no probability is left within a cell of the lowest loss ln(1 - p)."""
    run = bs.DPSGD(noise, 0.00019727919115531626, 36294)
    sure, exact = (bs.analyze(run, bs.Membership("add-remove"), method).bayes_security for method in ("certified", "exact"))
    assert sure.lower <= exact.lower
    assert exact.upper <= sure.upper
    assert sure.upper - sure.lower < 1e-4


@pytest.mark.parametrize("threat", [bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference(0.5)], ids=str)
def test_rates_that_vanish(threat: bs.Membership | bs.AttributeInference) -> None:
    """Never too good: β* < 1 as something leaks, and at least the probability that the record is never sampled."""
    steps, before = 1000, 0.0
    for rate in (5e-324, 1e-300, 1e-160, 1e-41, 1e-39, 1e-16, 1e-9):
        risk = bs.analyze(bs.DPSGD(1.0, rate, steps), threat, "certified")
        beta, exact = risk.bayes_security, bs.analyze(bs.DPSGD(1.0, rate, steps), threat).bayes_security
        assert before <= 1.0 - beta.lower, "a larger rate leaks more"
        before = 1.0 - beta.lower
        assert 0.0 < before <= max(steps * rate * 1.1, 2e-16)
        assert beta.lower <= beta.estimate <= beta.upper <= 1.0
        assert beta.lower <= exact.upper
        assert beta.upper >= exact.lower
        assert 1e-3 <= risk.tpr(1e-3).upper <= 1e-3 + 1e-7


def test_what_else_vanishes() -> None:
    tiny, plain = bs.DPSGD(1.0, 1e-300, 1000), bs.DPSGD(1.0, 0.01, 100)
    alone, both = (bs.analyze(run, method="certified").bayes_security for run in (plain, plain + tiny))
    assert alone.lower - 1e-9 <= both.lower <= alone.lower
    assert both.upper == alone.upper
    for noise, rate, distance in ((0.01, 1e-300, 2.0), (1.0, 0.1, 1e-200), (1e200, 0.1, 2.0), (1e200, 1e-300, 1e-200)):
        beta = bs.analyze(bs.DPSGD(noise, rate, 100), bs.AttributeInference(distance), "certified").bayes_security
        assert 1.0 - 1e-11 < beta.lower < 1.0 == beta.upper


def test_a_histogram_is_as_tight_as_the_glued_curve() -> None:
    """Its order is not known, so that the programme takes the largest distance at every step, and the glued curve is better."""
    run, threat = bs.DPSGD(1.0, 0.05, 200), bs.AttributeInference({1.0: 20, 0.1: 180})
    glued = enclosure.certify(threat.steps(run), True, 1e-4)
    proved = bs.analyze(run, threat, "certified").bayes_security
    assert proved.lower >= glued.lower
    assert proved.upper == glued.upper, "the programme's attack is one on another run"


@pytest.mark.parametrize(("noise", "rate", "steps", "distance"), [(0.5, 0.999999, 3, 1.0), (1.0, 0.01, 1000, 1.9999)])
def test_no_wider_than_the_glued_curve(noise: float, rate: float, steps: int, distance: float) -> None:
    """Near distance 2 and rate 1 the glued curve is attained, almost, and can be had on any grid."""
    run, threat = bs.DPSGD(noise, rate, steps), bs.AttributeInference(distance)
    glued = enclosure.certify(threat.steps(run), True, 1e-4)
    proved = bs.analyze(run, threat, "certified").bayes_security
    assert proved.lower >= glued.lower


def test_steps_of_many_kinds() -> None:
    """Enclosed, whether the programme takes its time, has less of it, or would have none."""
    threat = bs.AttributeInference(0.5)
    for kinds in (2, 6, 30):
        run = bs.DPSGD(1.0, 0.02, 60 // kinds)
        for i in range(1, kinds):
            run += bs.DPSGD(1.0 + i / kinds, 0.02, 60 // kinds)
        proved, exact = (bs.analyze(run, threat, method).bayes_security for method in ("certified", "exact"))
        assert proved.lower <= exact.upper
        assert exact.lower <= proved.upper
        assert proved.lower >= exact.lower - 1e-4, "the glued curve is one of the bounds of exact"
