"""The budget: a proof, fixed in advance, and a stop before the step that would break it."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from betastar import closed_forms
from betastar.drawn_steps import poisson
from betastar.training import AttributeMonitor, Budget, BudgetExhausted, Ledger, Secret
from betastar.training.budget import BudgetAccount
from betastar.training.history import History
from betastar.training.ledger import LeakageSum

from .private import VALUES, account, build, fit, private
from .test_monitor import attach, weights

NOISE = 8.0


def run_out(monitor: AttributeMonitor, parts: Any, criterion: Any) -> list[torch.Tensor]:
    """Train until the budget says no; the weights right before."""
    before = weights(parts)

    def watch(x: Any, y: Any) -> None:
        before[:] = weights(parts)

    with pytest.raises(BudgetExhausted, match="it was not taken"):
        fit(parts, criterion, 10_000, watch)
    return before


@pytest.mark.parametrize("per_record", [False, True])
@pytest.mark.parametrize("target", [0.9, 0.97])
def test_training_stops_before_the_step_that_would_break_it(per_record: bool, target: float) -> None:
    parts, criterion, monitor = attach(noise=NOISE, scope="dataset", budget=Budget(target, per_record))
    before = run_out(monitor, parts, criterion)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(parts), strict=True))
    assert monitor.exhausted
    assert not monitor.may_step()
    proof = monitor.proof
    assert proof.steps == len(monitor.history) > 1
    assert proof.spent <= proof.allowance
    assert 1.0 - sqrt(1.0 - exp(-2.0 * proof.allowance)) == pytest.approx(target, rel=1e-6)
    assert str(proof).startswith("Proved")
    assert f"{target:g}" in str(proof)
    rate = parts[2].sample_rate
    if not per_record:
        spent = sum(closed_forms.leakage(rate, NOISE, monitor.distances))
        assert proof.spent == pytest.approx(float(spent), rel=4e-3)
        assert proof.spent >= float(spent)  # charged outwards
        assert proof.spent + float(closed_forms.leakage(rate, NOISE, 2.0)) > proof.allowance
    assert monitor.risk("affinity").bayes_security.lower >= target - 1e-9


def test_per_record_goes_further() -> None:
    steps = []
    for per_record in (False, True):
        parts, criterion, monitor = attach(noise=NOISE, scope="dataset", budget=Budget(0.9, per_record))
        run_out(monitor, parts, criterion)
        steps.append(len(monitor.history))
    assert steps[1] >= steps[0]


def test_a_loop_can_ask_first() -> None:
    parts, criterion, monitor = attach(noise=NOISE, scope="dataset", budget=Budget(0.95))
    other, criterion_2, twin = attach(noise=NOISE, scope="dataset", budget=Budget(0.95))
    run_out(twin, other, criterion_2)
    model, optimizer, loader = parts
    steps = 0
    while monitor.may_step():
        x, y = next(iter(loader))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        steps += 1
    assert 1 < steps == monitor.proof.steps
    assert abs(steps - len(twin.history)) <= 2  # other batches, nearly the same gaps
    assert not monitor.exhausted


def test_history_ledger_and_budget_add_up_the_same_leakage() -> None:
    history, ledger, spending = History("dataset", "exact"), Ledger(3, "dataset"), BudgetAccount(Budget(0.5, per_record=True), 3)
    whole, drawn = LeakageSum(3), poisson(0.1)
    for step in range(1, 5):
        gaps = np.array([0.1, 0.2, 0.3]) * step
        before = spending.spent
        assert spending.affordable(0.3 * step, gaps, drawn, 1.0, 0.0)
        assert spending.spent == before  # asking spends nothing
        history.add(0.3 * step, drawn, 1.0)
        ledger.step(gaps, 0.1, 1.0)
        spending.pay(0.3 * step, gaps, drawn, 1.0, 0.0)
        whole.add(gaps, drawn, 1.0)
    np.testing.assert_array_equal(ledger.leakage, whole.sums)
    assert history.state_dict()["leaked"][0]["sums"] == pytest.approx(whole.largest, rel=1e-12)
    assert whole.largest < spending.spent < 1.01 * whole.largest  # rounding of single precision is charged besides
    whole.add(np.array([1.0]), drawn, 1.0, np.array([False, True, False]))
    assert (whole.sums > ledger.leakage).tolist() == [False, True, False]


def test_steps_that_are_not_measured_are_charged_in_full() -> None:
    parts, criterion, monitor = attach(noise=NOISE, scope="dataset", every=5, budget=Budget(0.9))
    fit(parts, criterion, 3)
    rate = parts[2].sample_rate
    full = float(closed_forms.leakage(rate, NOISE, 2.0))
    assert monitor.proof.spent == pytest.approx(
        2 * full + float(closed_forms.leakage(rate, NOISE, monitor.distances[0])), rel=4e-3
    )


def test_a_resumed_budget_goes_on() -> None:
    parts, criterion, monitor = attach(noise=NOISE, scope="dataset", budget=Budget(0.9, per_record=True))
    fit(parts, criterion, 3)
    again, criterion_2, other = attach(noise=NOISE, scope="dataset", budget=Budget(0.9, per_record=True))
    again[0].load_state_dict(parts[0].state_dict())
    other.load_state_dict(monitor.state_dict())
    account(again[1]).load_state_dict(account(parts[1]).state_dict())
    assert other.proof == monitor.proof
    fit(again, criterion_2, 1)
    assert other.proof.steps == 4
    *_, different = attach(noise=NOISE, scope="dataset", budget=Budget(0.8, per_record=True))
    with pytest.raises(ValueError, match="its budget is"):
        different.load_state_dict(monitor.state_dict())


def test_a_budget_needs_the_data_set() -> None:
    module, data, secret = build("tanh")
    parts = private(module, data)
    with pytest.raises(ValueError, match=r"budget needs scope='dataset': .* reveals who was sampled"):
        AttributeMonitor(*parts, torch.nn.CrossEntropyLoss(), secret, budget=Budget(0.9))
    with pytest.raises(TypeError, match=r"budget must be a Budget, got 0\.9"):
        AttributeMonitor(*parts, torch.nn.CrossEntropyLoss(), secret, scope="dataset", budget=0.9)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bayes_security must be strictly between 0 and 1, got 1\.0"):
        Budget(1.0)
    with pytest.raises(ValueError, match="nothing is proved without a budget"):
        _ = AttributeMonitor(*parts, torch.nn.CrossEntropyLoss(), Secret.column(1, VALUES)).proof


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
