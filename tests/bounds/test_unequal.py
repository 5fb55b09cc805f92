"""Unequal norms and rates: golden values, the table of the theory, today's numbers, order, samplings and input."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar import audit, plots
from betastar.exact import FourierCurve
from betastar.steps import PoissonStep, UnequalStep
from betastar.threats import LEVELS, fewer, gauss

from .given_steps import ANY_RUN, GivenSteps

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "unequal.json").read_text())
ADULT = bs.DPSGD(3.51, 256 / 26048, 2040)
SHORT = bs.DPSGD(0.7, 0.1, 50)
RELATIONS = ("substitution", "add-remove")


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['step']}-{row['count']}")
def test_golden_values(row: dict) -> None:
    p, n, q, m, noise = row["step"]
    step = PoissonStep(p, noise / n, 1.0, row["count"]) if m == 0 else UnequalStep(p, noise, n, q, m, row["count"])
    exact, certified = (bs.analyze(ANY_RUN, GivenSteps((step,), False), method) for method in ("exact", "certified"))
    truth = float(row["beta"])
    assert exact.bayes_security.estimate == pytest.approx(truth, abs=1e-9)
    assert truth in exact.bayes_security
    assert truth in certified.bayes_security
    assert truth in bs.analyze(ANY_RUN, GivenSteps((step,), False), "affinity").bayes_security
    curve = exact._outcomes[0].worst[0]
    for tau, ahead, behind in row["sticks"]:
        for one, stick in ((curve, float(ahead)), (curve.reversed(), float(behind))):
            assert one.hockey_stick(tau).value == pytest.approx(stick, rel=1e-9, abs=1e-18)


@pytest.mark.parametrize(
    ("run", "relation", "betas"),
    [
        (ADULT, "add-remove", (0.948575, 0.974653, 0.987372, 0.994954)),
        (ADULT, "substitution", (0.899352, 0.924059, 0.936294, 0.943651)),
        (SHORT, "add-remove", (0.517326, 0.783956, 0.897301, 0.959574)),
        (SHORT, "substitution", (0.312988, 0.424155, 0.468464, 0.496410)),
    ],
)
def test_table_of_the_theory(run: bs.DPSGD, relation: str, betas: tuple[float, ...]) -> None:
    for norm, beta in zip((1.0, 0.5, 0.25, 0.1), betas, strict=True):
        assert bs.analyze(run, bs.Membership(relation, norms=norm)).bayes_security.estimate == pytest.approx(beta, abs=1e-6)


def test_no_directions_and_no_smaller_norms_do_more() -> None:
    """Two adaptive steps in the plane: at each, random gradients of norms up to n and m, by sums over a grid."""
    p, n, q, m, noise = 0.2, 0.5, 0.4, 1.0, 0.8
    generator = np.random.default_rng(3)
    axis = np.linspace(-6.0, 6.0, 81) * noise
    x, y = (one.ravel() for one in np.meshgrid(axis, axis))
    cell = (axis[1] - axis[0]) ** 2 / (2.0 * np.pi * noise**2)

    def world(rate: float, size: float, angle: float) -> np.ndarray:
        moved = (x - size * np.cos(angle)) ** 2 + (y - size * np.sin(angle)) ** 2
        return cell * ((1.0 - rate) * np.exp(-0.5 * (x**2 + y**2) / noise**2) + rate * np.exp(-0.5 * moved / noise**2))

    some = [(world(p, n, 0.0), world(q, m, np.pi))]
    for _ in range(24):
        sizes, angles = generator.uniform(size=2) ** 0.2, generator.uniform(0.0, 2.0 * np.pi, 2)
        some.append((world(p * sizes[0], n * sizes[1], angles[0]), world(q * sizes[1], m * sizes[0], angles[1])))
    for tau in (-1.0, 0.0, 0.7):
        curves = [np.maximum(first - np.exp(tau) * other, 0.0).sum() for first, other in some]
        assert max(curves) == pytest.approx(curves[0], abs=1e-9)
        exact = bs.analyze(ANY_RUN, GivenSteps((UnequalStep(p, noise, n, q, m, 1),), False))._outcomes[0].worst[0]
        assert curves[0] == pytest.approx(exact.hockey_stick(tau).value, abs=1e-3)
    two = bs.analyze(ANY_RUN, GivenSteps((UnequalStep(p, noise, n, q, m, 2),), False)).advantage.estimate
    ratios = np.geomspace(1e-4, 1e4, 161)
    rest = [max(np.maximum(r * one - other, 0.0).sum() for one, other in some) for r in ratios]
    first, other = some[0]
    assert other @ np.interp(first / other, ratios, rest) == pytest.approx(two, abs=2e-3)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_game_is_played(relation: str) -> None:
    """An attacker who knows that the norms are smaller reaches the figure, and not that of every record."""
    run, threat = bs.DPSGD(0.7, 0.1, 50), bs.Membership(relation, norms=np.repeat([0.25, 0.5], 25))
    result = audit.mechanism(run, threat, games=20_000, seed=1)
    assert not result.violated
    assert result.bound.estimate in result.advantage
    assert result.advantage.upper < bs.analyze(run, bs.Membership(relation)).advantage.lower


def test_risk_over_steps_has_the_norms_of_the_first_ones() -> None:
    norms = np.repeat([0.2, 1.0], 25)
    line = plots.over_steps(SHORT, bs.Membership("add-remove", norms=norms), points=3).lines[0]
    last = bs.analyze(SHORT, bs.Membership("add-remove", norms=norms)).bayes_security.estimate
    assert line.get_ydata()[-1] == pytest.approx(last)
    first = bs.analyze(bs.DPSGD(0.7, 0.1, 1), bs.Membership("add-remove", norms=0.2)).bayes_security.estimate
    assert line.get_ydata()[0] == pytest.approx(first)


def test_whose_rate_counts() -> None:
    """A person at a quarter of the rate: the record in their place may be drawn as often as anybody."""
    quarter = bs.DPSGD(3.51, 64 / 26048, 2040)
    assert bs.analyze(quarter).bayes_security.estimate == pytest.approx(0.97477, abs=5e-6)
    other = bs.analyze(quarter, bs.Membership(other_rate=256 / 26048)).bayes_security
    assert other.estimate == pytest.approx(0.93654, abs=5e-6)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("norms", [1.0, np.ones(2040)])
def test_norm_one_is_todays_figure_bit_for_bit(relation: str, norms: object) -> None:
    for method in ("exact", "certified", "affinity"):
        one = bs.analyze(ADULT, bs.Membership(relation, norms=norms), method)
        today = bs.analyze(ADULT, bs.Membership(relation), method)
        assert one.bayes_security == today.bayes_security
        assert one.epsilon(1e-5) == today.epsilon(1e-5)
        assert one.tpr(0.01) == today.tpr(0.01)
    rate = {} if relation == "add-remove" else {"other_rate": 256 / 26048}
    assert bs.Membership(relation, norms=norms, **rate).steps(ADULT) == bs.Membership(relation).steps(ADULT)


@settings(max_examples=12, deadline=None)
@given(
    rate=st.floats(-6.0, -0.1).map(lambda x: 10.0**x),
    noise=st.floats(-0.7, 1.0).map(lambda x: 10.0**x),
    steps=st.floats(0.0, 5.0).map(lambda x: int(10.0**x)),
    norm=st.floats(0.02, 0.9),
    ratio=st.floats(0.2, 1.2),
)
def test_order_bounds_and_both_directions(rate: float, noise: float, steps: int, norm: float, ratio: float) -> None:
    """It grows with norms and rates, lies between the bounds, and the affinity's bounds enclose it."""

    def beta(norm: float, rate: float, other: float, method: str = "exact") -> bs.Bound:
        step = UnequalStep(rate, noise, norm, other, 1.0, steps)
        return bs.analyze(ANY_RUN, GivenSteps((step,), False), method).bayes_security

    middle = beta(norm, rate, ratio * rate)
    for less in (
        beta(1.1 * norm, rate, ratio * rate),
        beta(norm, min(1.0, 1.2 * rate), ratio * rate),
        beta(norm, rate, 1.2 * ratio * rate),
    ):
        assert less.lower <= middle.upper
    proved = beta(norm, rate, ratio * rate, "affinity")
    assert proved.lower <= middle.upper
    assert middle.lower <= proved.upper
    run = bs.DPSGD(noise, rate, steps)
    alone, most = (bs.analyze(run, threat).bayes_security for threat in (bs.Membership("add-remove"), bs.Membership()))
    one = bs.analyze(run, bs.Membership(norms=norm))
    assert most.lower <= one.bayes_security.upper
    assert one.bayes_security.lower <= alone.upper  # the record in its place alone leaks as much
    if math.isfinite(one.epsilon(1e-6).upper):
        assert one.epsilon(1e-6).lower <= bs.analyze(run).epsilon(1e-6).upper
    assert one.tpr(0.01).lower <= bs.analyze(run).tpr(0.01).upper


def test_epsilon_and_rates_take_the_worse_direction() -> None:
    step = UnequalStep(0.05, 0.8, 0.3, 0.05, 1.0, 40)
    worlds = [FourierCurve([step.factor("line")], False)]
    worlds.append(worlds[0].reversed())
    risk = bs.analyze(bs.DPSGD(0.8, 0.05, 40), bs.Membership(norms=0.3))
    epsilons = [curve.epsilons(np.array([1e-5]))[1][0] for curve in worlds]
    rates = [curve.true_positives(0.01).value for curve in worlds]
    assert max(epsilons) > 1.2 * min(epsilons)
    assert risk.epsilon(1e-5).estimate == pytest.approx(max(epsilons), rel=1e-6)
    assert risk.tpr(0.01).estimate == pytest.approx(max(rates), rel=1e-6)
    assert risk.delta(1.0).estimate == pytest.approx(max(curve.hockey_stick(1.0).value for curve in worlds), rel=1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
def test_many_norms_cost_few_and_are_enclosed(relation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = np.random.default_rng(0).beta(2.0, 4.0, 250)
    run, threat = bs.DPSGD(1.5, 0.02, 250), bs.Membership(relation, norms=norms)
    risk = bs.analyze(run, threat)
    assert len(threat.steps(run)) <= LEVELS
    rounded = bs.analyze(run, threat, "affinity").bayes_security
    monkeypatch.setattr("betastar.threats.LEVELS", len(norms))
    each = bs.analyze(run, threat)
    assert len(threat.steps(run)) == len(norms)
    assert risk.bayes_security.width < 1e-8, "Gauss's rule"
    assert each.bayes_security.estimate in risk.bayes_security
    assert risk.tpr(0.01).estimate == pytest.approx(each.tpr(0.01).estimate, rel=1e-8)
    assert risk.epsilon(1e-5).estimate == pytest.approx(each.epsilon(1e-5).estimate, rel=1e-8)
    proved = bs.analyze(run, threat, "affinity").bayes_security
    assert rounded.lower < proved.lower < proved.upper < rounded.upper


def test_a_rule_for_many_norms_has_their_moments() -> None:
    norms = np.random.default_rng(2).beta(1.0, 2.0, 3000)
    nodes, counts = gauss(*np.unique(norms, return_counts=True), 12)
    assert len(nodes) == 12
    assert counts.min() > 0.0
    for degree in range(24):
        assert counts @ nodes**degree == pytest.approx((norms**degree).sum(), rel=1e-11)
    few, many = gauss(np.array([0.2, 0.7]), np.array([3, 5]), 9)
    np.testing.assert_allclose(few, [0.2, 0.7])
    np.testing.assert_allclose(many, [3.0, 5.0])


def test_rounded_norms_enclose_each_of_them() -> None:
    norms = np.random.default_rng(1).uniform(size=5000)
    norms[:30] = 0.0
    (above, counts), (below, same) = fewer(norms, up=True), fewer(norms, up=False)
    assert len(above) <= LEVELS
    assert np.array_equal(counts, same)
    assert counts.sum() == len(norms)
    ordered = np.sort(norms)
    assert np.all(np.repeat(below, counts) <= ordered)
    assert np.all(ordered <= np.repeat(above, counts))


@pytest.mark.parametrize(
    ("relation", "given"),
    [
        (relation, given)
        for relation in RELATIONS
        for given in (
            {"sampling": "fixed-size"},
            {"sampling": "balls-in-bins"},
            {"sampling": "shuffled"},
            {"dataset_size": 1000, "max_batch_size": 25},
        )
        if (relation, given.get("sampling")) != ("add-remove", "shuffled")  # refused for every record
    ],
    ids=str,
)
def test_other_samplings(relation: str, given: dict) -> None:
    """Smaller norms leak no more, norm 1 is today's figure, and an interval holds for norms that change."""
    run = bs.DPSGD(1.2, 0.02, 50, **given)
    changing = np.repeat([0.2, 0.3], 25)
    betas = [
        bs.analyze(run, bs.Membership(relation, norms=norms), effort="normal").bayes_security
        for norms in (1.0, 0.3, changing, 0.2)
    ]
    assert betas[0] == bs.analyze(run, bs.Membership(relation), effort="normal").bayes_security
    for more, less in itertools.pairwise(betas):
        assert more.lower <= less.lower + 1e-12
        assert more.upper <= less.upper + 1e-12
    assert betas[1].lower < 1.0


def test_fixed_sizes_by_simulation() -> None:
    """One step, all others opposite to a record with norm .5: what is seen is 1.5 away from what is seen without it."""
    beta = bs.analyze(bs.DPSGD(1.0, 0.1, 1, "fixed-size"), bs.Membership("add-remove", norms=0.5)).bayes_security
    assert beta.estimate == pytest.approx(1.0 - 0.1 * math.erf(1.5 / (2.0 * math.sqrt(2.0))), abs=1e-12)


def test_several_records_and_sums_of_runs() -> None:
    run = bs.DPSGD(2.0, 0.01, 100)
    scaled = bs.analyze(bs.DPSGD(4.0, 0.01, 100), bs.Membership("add-remove", records=5)).bayes_security
    assert bs.analyze(run, bs.Membership("add-remove", records=5, norms=0.5)).bayes_security == scaled
    norms = np.repeat([0.5, 0.25], [100, 60])
    both = bs.analyze(run + bs.DPSGD(1.0, 0.02, 60), bs.Membership(norms=norms)).bayes_security
    steps = (UnequalStep(0.01, 2.0, 0.5, 0.01, 1.0, 100), UnequalStep(0.02, 1.0, 0.25, 0.02, 1.0, 60))
    assert both == bs.analyze(ANY_RUN, GivenSteps(steps, False)).bayes_security
    mixed = run + bs.DPSGD(1.0, 0.02, 50, "fixed-size")
    assert (
        bs.analyze(mixed, effort="quick").bayes_security.lower
        < bs.analyze(mixed, bs.Membership(norms=0.2), effort="quick").bayes_security.lower
    )


@pytest.mark.parametrize("noise", [1e-3, 0.05, 0.2, 1e9])
@pytest.mark.parametrize(("rate", "other", "steps"), [(1e-8, 1e-6, 10**9), (1.0, 0.3, 1), (0.01, 1.0, 3), (1e-3, 1e-3, 10**4)])
def test_extremes(noise: float, rate: float, other: float, steps: int) -> None:
    for norm in (0.0, 1e-6, 0.3):
        for method in ("exact", "certified", "affinity"):
            if method == "certified" and (norm < 0.3 or noise < 0.2):
                continue
            beta = bs.analyze(bs.DPSGD(noise, rate, steps), bs.Membership(norms=norm, other_rate=other), method).bayes_security
            assert 0.0 <= beta.lower <= beta.estimate <= beta.upper <= 1.0
    nothing = bs.analyze(bs.DPSGD(noise, rate, steps), bs.Membership("add-remove", norms=0.0)).bayes_security
    assert nothing == bs.Bound(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"norms": 1.2}, r"norms must be between 0 and 1 \(units of the clipping norm\), got 1.2"),
        ({"norms": [0.5, -0.1]}, r"norms must be between 0 and 1 .* got \[0.5, -0.1\]"),
        ({"norms": float("nan")}, "norms must be between 0 and 1"),
        ({"norms": [[0.5]]}, "norms must be a number or a list"),
        ({"norms": [0.5, 0.5]}, "norms must be a number or have one entry for each of the 50 steps, got 2"),
        ({"other_rate": 0.0}, "other_rate must be greater than 0 and at most 1, got 0.0"),
        ({"other_rate": 1.5}, "other_rate must be greater than 0 and at most 1, got 1.5"),
        ({"relation": "add-remove", "other_rate": 0.1}, "other_rate must be left out with relation 'add-remove'"),
        ({"records": 3, "norms": 0.5}, "records must be 1 with norms below 1"),
    ],
)
def test_bad_input(given: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        bs.analyze(SHORT, bs.Membership(**given))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="other_rate must be left out unless sampling is 'poisson'"):
        bs.analyze(bs.DPSGD(1.0, 0.1, 10, "fixed-size"), bs.Membership(other_rate=0.2))
    with pytest.raises(ValueError, match="method 'paper' is for one record of norm 1"):
        bs.analyze(SHORT, bs.Membership(norms=0.5), "paper")
    with pytest.raises(ValueError, match="threat must be without norms and other_rate for an attacker who sees the final model"):
        bs.heuristics.final_model(SHORT, bs.Membership(norms=0.5))
    assert repr(bs.Membership(norms=0.5)) == "Membership(relation='substitution', norms=0.5)"
    assert bs.Membership(norms=0.5, other_rate=0.2).describe().endswith("of a record with norm 0.5, others at rate 0.2")
