"""The budget: a proof, fixed in advance, and a stop before the step that would break it."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from betastar import closed_forms
from betastar.closed_forms import step_leakage as charge
from betastar.dpsgd import Segment
from betastar.drawn_steps import poisson
from betastar.training import Budget, BudgetExhausted, Ledger, PrivateTraining, Secret
from betastar.training.budget import BudgetAccount
from betastar.training.ledger import LeakageSum

from .private import VALUES, build, training

NOISE = 8.0


def under(target: float, per_record: bool = False, **options: Any) -> PrivateTraining:
    module, data, secret = build("tanh")
    return training(module, data, secret, **{"noise_multiplier": NOISE, "budget": Budget(target, per_record)} | options)


def run_out(made: PrivateTraining) -> list[torch.Tensor]:
    """Train until the budget says no; the weights right before."""
    for _ in range(10_000):
        before = [p.detach().clone() for p in made.model.parameters()]
        try:
            made.step()
        except BudgetExhausted:
            return before
    raise AssertionError("the budget never ended")


@pytest.mark.parametrize("target", [0.9, 0.97])
def test_training_stops_before_the_step_that_would_break_it(target: float) -> None:
    steps = {}
    for per_record in (False, True):
        made = under(target, per_record)
        measured = made.watch(made.secrets[0], scope="dataset")
        before = run_out(made)
        assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
        assert made.exhausted
        assert made.guarantee.membership is None
        proof = made.guarantee.proof
        assert proof is not None
        assert proof.steps == made.steps > 1
        assert proof.spent <= proof.allowance
        assert 1.0 - sqrt(1.0 - exp(-2.0 * proof.allowance)) == pytest.approx(target, rel=1e-6)
        assert str(proof).startswith("Proved")
        assert f"{target:g}" in str(proof)
        spent = float(sum(closed_forms.leakage(1 / 6, NOISE, measured.distances)))
        if not per_record:
            assert spent <= proof.spent <= 1.004 * spent  # charged outwards
            assert proof.spent + float(closed_forms.leakage(1 / 6, NOISE, 2.0)) > proof.allowance
        assert measured.risk("affinity").bayes_security.lower >= target - 1e-9
        steps[per_record] = made.steps
    assert steps[True] >= steps[False]


@pytest.mark.parametrize(("sampling", "cut"), [("poisson", 24), ("fixed-size", None), ("balls-in-bins", None)])
def test_a_budget_charges_what_is_proved_for_the_sampling(sampling: str, cut: int | None) -> None:
    made = under(0.01, noise_multiplier=2.0, sampling=sampling, max_batch_size=cut)
    measured = made.watch(made.secrets[0], scope="dataset")
    for _ in range(9):
        made.step()
    far = measured.distances
    if sampling == "balls-in-bins":  # once an epoch, at rate 1: R²/(8σ²)
        wanted = sum(float(part.max()) ** 2 / (8.0 * 2.0**2) for part in (far[:6], far[6:]))
    else:
        wanted = float(charge(Segment(2.0, 1 / 6, 1, sampling, cut, 120), far).sum())
    proof = made.guarantee.proof
    assert proof is not None
    assert wanted <= proof.spent <= 1.004 * wanted


def test_a_plan_that_keeps_to_the_budget_anyway_is_not_measured() -> None:
    made = under(0.9, steps=3)
    assert made.worst_case_steps >= 3
    made.fit(progress=False)
    assert made.guarantee.proof is None
    assert made.guarantee.attribute is not None
    assert made.guarantee.attribute.bayes_security.lower >= 0.9


def test_ledger_and_budget_add_up_the_same_leakage() -> None:
    ledger, spending = Ledger(3, "dataset"), BudgetAccount(Budget(0.5, per_record=True), 3)
    whole, drawn = LeakageSum(3), poisson(0.1)
    for step in range(1, 5):
        gaps = np.array([0.1, 0.2, 0.3]) * step
        before = spending.spent
        assert spending.affordable(0.3 * step, gaps, drawn, 1.0, 0.0)
        assert spending.spent == before  # asking spends nothing
        ledger.step(gaps, 0.1, 1.0)
        spending.pay(0.3 * step, gaps, drawn, 1.0, 0.0)
        whole.add(gaps, drawn, 1.0)
    np.testing.assert_array_equal(ledger.leakage, whole.sums)
    assert whole.largest < spending.spent < 1.01 * whole.largest  # rounding of single precision is charged besides
    whole.add(np.array([1.0]), drawn, 1.0, np.array([False, True, False]))
    assert (whole.sums > ledger.leakage).tolist() == [False, True, False]


def test_a_resumed_budget_goes_on() -> None:
    made, other = under(0.9, per_record=True), under(0.9, per_record=True)
    for _ in range(3):
        made.step()
    other.load_state_dict(made.state_dict())
    assert other.guarantee.proof == made.guarantee.proof
    other.step()
    assert other.guarantee.proof is not None
    assert other.guarantee.proof.steps == 4
    with pytest.raises(ValueError, match="its budget is"):
        under(0.8, per_record=True).load_state_dict(made.state_dict())


def test_a_record_behind_those_that_are_looked_at_first() -> None:
    class Slow(Dataset[Any]):
        """One value that the secret does not take."""

        def __len__(self) -> int:
            return 2600

        def __getitem__(self, index: int) -> Any:
            x = torch.zeros(6)
            x[1] = 99.0 if index == 2500 else VALUES[index % len(VALUES)]
            return x, index % 2

    made = training(build("tanh")[0], Slow(), Secret.column(1, VALUES), budget=Budget(0.5))
    with pytest.raises(ValueError, match=r"never takes the value 99\.0"):
        made.step()


def test_arguments() -> None:
    module, data, secret = build("tanh")
    with pytest.raises(TypeError, match=r"budget must be a Budget, got 0\.9"):
        training(module, data, secret, budget=0.9)
    with pytest.raises(TypeError, match="budget is for one secret, got 2"):
        training(module, data, [secret, Secret.label(2)], budget=Budget(0.9))
    with pytest.raises(ValueError, match=r"bayes_security must be strictly between 0 and 1, got 1\.0"):
        Budget(1.0)


def test_charges_of_samplings() -> None:
    far = np.array([0.0, 0.3, 1.0, 2.0])
    poisson = closed_forms.leakage(0.1, 1.0, far)
    np.testing.assert_array_equal(charge(Segment(1.0, 0.1, 1), far), poisson)
    np.testing.assert_allclose(charge(Segment(1.0, 0.1, 1, "balls-in-bins"), far), far**2 / 8.0, rtol=3e-6)
    fixed = charge(Segment(1.0, 0.1, 1, "fixed-size"), far)
    np.testing.assert_array_equal(fixed, closed_forms.leakage(0.1, 0.5, far / 2))
    never = charge(Segment(1.0, 0.1, 1, "poisson", 100, 100), far)
    often = charge(Segment(1.0, 0.1, 1, "poisson", 10, 100), far)
    np.testing.assert_allclose(never, poisson, rtol=1e-8)
    assert (poisson[1:] < often[1:]).all()
    assert (often[1:] < fixed[1:]).all()
    # The coin by brute force: affinities of the two kinds of steps, averaged.
    from scipy import stats

    full = stats.binom(99, 0.1).sf(9)
    rate = 10 * stats.binom(100, 0.1).sf(10) / (100 * full)
    one, other = closed_forms.leakage(0.1, 1.0, 1.0), closed_forms.leakage(rate, 0.5, 0.5)
    assert often[2] == pytest.approx(-np.log((1 - full) * np.exp(-one) + full * np.exp(-other)), rel=1e-6)


@pytest.mark.parametrize(("rate", "noise"), [(1e-8, 0.2), (1e-4, 0.5), (0.01, 1.0), (0.0098, 3.51), (0.3, 0.35), (1.0, 5.0)])
def test_leakage_of_many_distances_is_the_affinity_rounded_up(rate: float, noise: float) -> None:
    from betastar.steps.poisson import exponent

    distances = np.concatenate([np.geomspace(1e-5, 0.1, 15), np.linspace(0.1, 2.0, 40)])
    direct = np.array([exponent("glued", rate, noise, float(r)) for r in distances])
    exponents = closed_forms.leakage(rate, noise, distances)
    assert (exponents >= direct).all()
    np.testing.assert_allclose(exponents, direct, rtol=3e-6)
    assert closed_forms.leakage(rate, noise, 0.0) == 0.0


@pytest.mark.parametrize("target", [1e-6, 0.3, 0.9, 0.999, 1 - 1e-9])
def test_allowance_inverts_the_proved_bound(target: float) -> None:
    assert closed_forms.proved(closed_forms.allowance(target)) == pytest.approx(target, rel=1e-6)
    assert closed_forms.proved(closed_forms.allowance(target)) >= target * (1 - 1e-15)
    assert closed_forms.allowance(0.0) == np.inf
