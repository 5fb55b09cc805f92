"""dp_accounting: agreement where it is accurate, cases where it is not, and interoperation."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld_module

import betastar as bs

RELATIONS = {
    "substitution": dp.NeighboringRelation.REPLACE_ONE,
    "add-remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
}


def accountant(relation: str, p: float, sigma: float, steps: int, grid: float = 1e-4) -> PLDAccountant:
    pld_accountant = PLDAccountant(neighboring_relation=RELATIONS[relation], value_discretization_interval=grid)
    pld_accountant.compose(dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(sigma)), steps)
    return pld_accountant


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("p", "sigma", "steps"), [(0.01, 1.0, 1000), (0.05, 2.0, 300), (0.1, 1.0, 100), (1.0, 5.0, 10), (0.02, 0.8, 50)]
)
def test_deltas_agree_and_theirs_are_above(relation: str, p: float, sigma: float, steps: int) -> None:
    theirs, ours = accountant(relation, p, sigma, steps), bs.analyze(bs.DPSGD(sigma, p, steps), bs.Membership(relation))
    for epsilon in (0.0, 0.5, 1.0, 3.0):
        above, exact = theirs.get_delta(epsilon), ours.delta(epsilon)
        assert exact.lower <= above * (1 + 1e-6) + 1e-12, "connect the dots is an upper bound"
        assert above <= exact.upper * (1 + 5e-3) + 5e-4, "and a close one on a grid of 1e-4"


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilons_agree(relation: str) -> None:
    theirs = accountant(relation, 0.01, 1.0, 1000)
    ours = bs.analyze(bs.DPSGD(1.0, 0.01, 1000), bs.Membership(relation))
    for delta in (1e-3, 1e-5, 1e-7):
        assert ours.epsilon(delta).estimate == pytest.approx(theirs.get_epsilon(delta), rel=2e-3)
        assert ours.epsilon(delta).lower <= theirs.get_epsilon(delta)


def test_default_grid_is_off_by_forty_percent_where_rates_are_small() -> None:
    """p = 1e-4, noise 5, 500,000 steps: theirs says .01599 and comes down to ours on a finer grid."""
    run = bs.DPSGD(5.0, 1e-4, 500_000)
    exact, proved = bs.analyze(run).advantage, bs.analyze(run, method="certified").advantage
    assert accountant("substitution", 1e-4, 5.0, 500_000).get_delta(0.0) == pytest.approx(0.01599, abs=1e-5)
    assert exact.estimate == pytest.approx(0.0112849, abs=1e-7)
    assert exact.estimate in proved
    finer = accountant("substitution", 1e-4, 5.0, 500_000, grid=1e-5).get_delta(0.0)
    assert exact.upper <= finer <= exact.estimate * 1.02


def test_low_noise_and_small_rate() -> None:
    """p = 1e-4, noise .5: the PLD values of the paper fail here."""
    ours = bs.analyze(bs.DPSGD(0.5, 1e-4, 10_000)).advantage
    assert ours.upper <= accountant("substitution", 1e-4, 0.5, 10_000).get_delta(0.0) <= ours.estimate * 1.01


def event(p: float, sigma: float, steps: int) -> Any:
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(sigma)), steps)


def test_runs_from_events() -> None:
    assert bs.DPSGD.from_dp_event(event(0.01, 2.0, 500)) == bs.DPSGD(2.0, 0.01, 500)
    both = dp.ComposedDpEvent([event(0.01, 2.0, 500), dp.GaussianDpEvent(7.0), dp.NoOpDpEvent()])
    assert bs.DPSGD.from_dp_event(both) == bs.DPSGD(2.0, 0.01, 500) + bs.DPSGD(7.0, 1.0, 1)
    twice = dp.SelfComposedDpEvent(both, 2)
    assert bs.DPSGD.from_dp_event(twice).steps == 2 * 501
    assert bs.DPSGD.from_dp_event(
        dp.PoissonSampledDpEvent(0.5, dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.0)))
    ) == bs.DPSGD(1.0, 0.25, 1)
    theirs = PLDAccountant(neighboring_relation=RELATIONS["substitution"])
    theirs.compose(both)
    assert bs.analyze(bs.DPSGD.from_dp_event(both)).advantage.estimate == pytest.approx(theirs.get_delta(0.0), abs=2e-3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dp.LaplaceDpEvent(1.0), "LaplaceDpEvent"),
        (dp.NoOpDpEvent(), "must contain a Gaussian mechanism"),
        (dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 3)), "one sample for several"),
        (dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.0)), "noise_multiplier"),
    ],
)
def test_other_events_are_refused(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bs.DPSGD.from_dp_event(bad)


@pytest.mark.parametrize("relation", RELATIONS)
def test_risk_from_a_privacy_loss_distribution(relation: str) -> None:
    p, sigma, steps = 0.05, 1.5, 200
    theirs = accountant(relation, p, sigma, steps)
    pld = theirs._pld
    risk, exact = bs.Risk.from_pld(pld), bs.analyze(bs.DPSGD(sigma, p, steps), bs.Membership(relation))
    assert risk.advantage.estimate == pytest.approx(theirs.get_delta(0.0), abs=1e-9)
    assert risk.bayes_security.upper == 1.0, "a pessimistic distribution bounds one side only"
    for epsilon in (0.3, 1.0, 4.0):
        assert risk.delta(epsilon).estimate == pytest.approx(theirs.get_delta(epsilon), rel=1e-6, abs=1e-12)
    assert risk.epsilon(1e-5).estimate == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    for fpr in (1e-4, 0.01, 0.3, 0.8):
        assert exact.tpr(fpr).lower <= risk.tpr(fpr).upper
        assert risk.tpr(fpr).estimate == pytest.approx(exact.tpr(fpr).estimate, rel=0.02)
    assert risk.success(0.2).upper >= exact.success(0.2).lower
    assert risk.gdp_mu.upper == pytest.approx(exact.gdp_mu.upper, rel=0.02)


def test_risk_from_other_mechanisms() -> None:
    """Anything that dp_accounting has a distribution for: randomized response has a closed form."""
    noise, buckets = 0.4, 2
    risk = bs.Risk.from_pld(pld_module.from_randomized_response(noise, buckets))
    assert risk.advantage.estimate == pytest.approx(1 - noise, abs=1e-3)
    assert risk.epsilon(1e-9).estimate == pytest.approx(math.log((1 - noise / 2) / (noise / 2)), abs=1e-3)
    optimistic = pld_module.from_randomized_response(noise, buckets, pessimistic_estimate=False)
    with pytest.raises(ValueError, match="pessimistic_estimate=True"):
        bs.Risk.from_pld(optimistic)
    with pytest.raises(TypeError, match="pld must be a dp_accounting"):
        bs.Risk.from_pld(np.ones(3))


@pytest.mark.parametrize(
    ("records", "rate", "noise", "steps"),
    [
        (8, 256 / 26048, 3.51, 2040),
        pytest.param(2, 0.02, 1.0, 200, marks=pytest.mark.slow),
        pytest.param(5, 0.1, 2.0, 20, marks=pytest.mark.slow),
    ],
)
def test_groups_are_their_mixtures_of_gaussians(records: int, rate: float, noise: float, steps: int) -> None:
    weights = [math.comb(records, j) * rate**j * (1.0 - rate) ** (records - j) for j in range(records + 1)]
    theirs = pld_module.from_mixture_gaussian_mechanism(noise, list(range(records + 1)), weights).self_compose(steps)
    ours = bs.analyze(bs.DPSGD(noise, rate, steps), bs.Membership("add-remove", records=records))
    for delta in (1e-3, 1e-5, 1e-7):
        assert ours.epsilon(delta).estimate == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=2e-3)
        assert ours.epsilon(delta).lower <= theirs.get_epsilon_for_delta(delta)
    assert ours.advantage.lower <= theirs.get_delta_for_epsilon(0.0) <= ours.advantage.upper * 1.01


@pytest.mark.parametrize(("rate", "norm", "other"), [(0.05, 0.3, 0.05), (0.02, 1.0, 0.08)])
def test_unequal_norms_and_rates_are_a_pair_of_masses(rate: float, norm: float, other: float) -> None:
    """Both directions: outcomes on a fine grid, from which they make a distribution of losses."""
    cells = np.arange(-8.0, 8.0 + norm, 0.005)

    def masses(weight: float, mean: float) -> dict[int, float]:
        mass = (1.0 - weight) * np.exp(-0.5 * cells**2) + weight * np.exp(-0.5 * (cells - mean) ** 2)
        return dict(enumerate(np.log(mass / mass.sum()).tolist()))

    worlds = masses(rate, norm), masses(other, -1.0)
    theirs = [
        pld_module.from_two_probability_mass_functions(*pair, value_discretization_interval=2e-5).self_compose(40)
        for pair in (worlds, worlds[::-1])
    ]
    ours = bs.analyze(bs.DPSGD(1.0, rate, 40), bs.Membership(norms=norm, other_rate=other))
    for epsilon in (0.0, 0.3, 1.0):
        above = max(one.get_delta_for_epsilon(epsilon) for one in theirs)
        assert ours.delta(epsilon).lower * (1 - 1e-5) <= above <= ours.delta(epsilon).upper * 1.01


@pytest.mark.parametrize("law", ["poisson", "geometric"])
@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(3.51, 256 / 26048, 2040), (0.6, 0.01, 300), (3.0, 1.0, 1), (2.0, 0.1, 200)]
)
def test_best_of_is_below_their_bound(law: str, noise: float, rate: float, steps: int) -> None:
    """ε of the best of a random number of models, against RepeatAndSelect by Rényi divergences."""
    event: Any = dp.GaussianDpEvent(noise)
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, event) if rate < 1.0 else event, steps)
    for mean in (2.0, 20.0, 300.0):
        theirs = dp.rdp.RdpAccountant(neighboring_relation=RELATIONS["add-remove"])
        theirs.compose(dp.dp_event.RepeatAndSelectDpEvent(event, mean, math.inf if law == "poisson" else 1.0))
        best = bs.best_of(bs.DPSGD(noise, rate, steps), getattr(bs.Trials, law)(mean))
        ours = bs.analyze(best, bs.Membership("add-remove"))
        for delta in (1e-3, 1e-5, 1e-8):
            assert ours.epsilon(delta).upper < theirs.get_epsilon(delta)
