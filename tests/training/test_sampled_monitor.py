"""Monitors of trainings with each sampler: what they analyse, budgets, ledgers, physical batches, loaders that are refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

import betastar as bs
from betastar import closed_forms
from betastar.closed_forms import step_leakage as charge
from betastar.dpsgd import Segment
from betastar.training import AttributeMonitor, Budget, ShufflingWarning, private_loader

from .private import build, fit
from .sampled import BATCH, NOISE, SAMPLINGS, claimed, made

pytestmark = pytest.mark.filterwarnings("ignore::betastar.training.ShufflingWarning")


@pytest.mark.parametrize("scope", ["batch", "dataset"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_monitor_analyses_what_the_loader_does(sampling: str, scope: str) -> None:
    engine, parts, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope=scope)
    fit(parts, criterion, 12)
    run = claimed(sampling, 12)
    assert monitor.run == engine.accountant.run == run
    assert monitor.membership().bayes_security == bs.analyze(run).bayes_security
    attribute = monitor.risk().bayes_security
    assert attribute == bs.analyze(run, bs.AttributeInference(monitor.distances)).bayes_security
    assert attribute.lower >= monitor.membership().bayes_security.lower - 1e-9
    quick = monitor.history.quick()
    assert quick["membership"] <= quick["attribute"]
    assert abs(quick["membership"] - monitor.membership().bayes_security.lower) < 0.06  # safe, and an estimate
    entry = monitor.history.entry()
    assert entry["sampling"] == sampling
    assert entry.get("epoch") == (2 if sampling in ("balls-in-bins", "shuffled") else None)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_monitored_weights_are_the_same(sampling: str) -> None:
    _, plain, _ = made(sampling)
    fit(plain, nn.CrossEntropyLoss(), 8)
    _, watched, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    AttributeMonitor(*watched, criterion, secret, scope="dataset", budget=Budget(0.01))
    fit(watched, criterion, 8)
    for a, b in zip(plain[1].params, watched[1].params, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_budget_charges_what_is_proved_for_the_sampling(sampling: str) -> None:
    _, parts, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", ledger=True, budget=Budget(0.2))
    fit(parts, criterion, 9)
    far = monitor.distances
    if sampling in ("balls-in-bins", "shuffled"):  # once an epoch, at rate 1: R²/(8σ²)
        wanted = sum(float(part.max()) ** 2 / (8.0 * NOISE**2) for part in (far[:6], far[6:]))
    else:
        step = Segment(NOISE, 1 / 6, 1, sampling, SAMPLINGS[sampling].get("max_batch_size"), 120)
        wanted = float(charge(step, far).sum())
    assert monitor.proof.spent == pytest.approx(wanted, rel=4e-3)
    assert monitor.proof.spent >= wanted
    assert monitor.ledger is not None
    assert monitor.ledger.leakage.max() <= wanted * (1.0 + 3e-6)
    # A proof by affinities is below what the method affinity says of the same distances at best.
    assert float(closed_forms.proved(monitor.proof.spent)) <= float(monitor.risk().bayes_security.upper)


def test_a_budget_stops_within_an_epoch_before_it_is_broken() -> None:
    _, parts, secret = made("balls-in-bins")
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", budget=Budget(0.6))
    with pytest.raises(RuntimeError, match="would break the budget"):
        fit(parts, criterion, 60)
    assert monitor.proof.spent <= Budget(0.6).allowance
    assert monitor.run.steps % 6 == 0


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


def test_a_ledger_in_batch_scope_charges_each_record_once_an_epoch() -> None:
    _, (model, optimizer, batches), secret = made("balls-in-bins")
    criterion, data = nn.CrossEntropyLoss(), batches.dataset
    monitor = AttributeMonitor(model, optimizer, batches, criterion, secret, ledger=True)
    gaps = np.zeros((2, len(data)))
    for epoch in range(2):
        for indices in batches.batch_sampler:
            monitor.records(indices)
            x, y = data[indices]
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            measured = []
            original = monitor.ledger.step  # type: ignore[union-attr]
            monitor.ledger.step = lambda *given, keep=measured, go=original: (keep.append(given[0]), go(*given))  # type: ignore
            optimizer.step()
            monitor.ledger.step = original  # type: ignore[union-attr]
            gaps[epoch, indices] = measured[0][indices]
    assert monitor.ledger is not None
    assert (monitor.ledger.counts == 2).all()
    np.testing.assert_allclose(monitor.ledger.leakage, (gaps**2).sum(axis=0) / (8.0 * NOISE**2), rtol=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_physical_batches_make_the_same_steps(sampling: str) -> None:
    engine, (model, optimizer, batches), secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    whole = AttributeMonitor(model, optimizer, batches, criterion, secret, scope="dataset", budget=Budget(0.01))
    fit((model, optimizer, batches), criterion, 12)
    other, (model_2, optimizer_2, batches_2), secret = made(sampling)
    with BatchMemoryManager(data_loader=batches_2, max_physical_batch_size=7, optimizer=optimizer_2) as physical:
        split = AttributeMonitor(model_2, optimizer_2, physical, criterion, secret, scope="dataset", budget=Budget(0.01))
        seen = fit((model_2, optimizer_2, physical), criterion, 12)
    assert max(len(x) for x, _ in seen) <= 7
    assert split.run == whole.run == other.accountant.run == engine.accountant.run
    np.testing.assert_allclose(split.distances, whole.distances, rtol=1e-3)
    assert split.proof.steps == 12


def test_shuffling_is_warned_of_once() -> None:
    _, parts, secret = made("shuffled")
    criterion = nn.CrossEntropyLoss()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShufflingWarning)
        with pytest.raises(ShufflingWarning, match=r"private_loader\(loader, \"balls-in-bins\"\)"):
            AttributeMonitor(*parts, criterion, secret)
        AttributeMonitor(*parts, criterion, secret)  # a second monitor of the same loader
        _, bins, _ = made("balls-in-bins")
        AttributeMonitor(*bins, criterion, secret)


@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_unequal_size_are_still_shuffled(drop_last: bool) -> None:
    _, data, _ = build("tanh")
    shuffled = DataLoader(data, batch_size=50, shuffle=True, drop_last=drop_last)
    _, parts, secret = made("shuffled", loader=shuffled)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", budget=Budget(0.01))
    fit(parts, criterion, 2 * len(shuffled))
    batches = 2 if drop_last else 3
    assert monitor.run == bs.DPSGD(NOISE, 1 / batches, 2 * batches, "shuffled", dataset_size=120)
    assert monitor.proof.steps == 2 * batches


def test_loaders_that_are_not_recognised_are_refused_as_before() -> None:
    _, data, _ = build("tanh")

    class Own(BatchSampler):
        """A subclass may draw as it likes."""

    for other in (
        DataLoader(data, batch_size=BATCH),
        DataLoader(data, batch_sampler=Own(RandomSampler(data), BATCH, False)),
        DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data, num_samples=60)),
    ):
        _, parts, secret = made("shuffled", loader=other)
        with pytest.raises(ValueError, match="loader must sample each record with the same probability"):
            AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)
        if isinstance(other.batch_sampler.sampler, SequentialSampler):  # type: ignore[union-attr]
            AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret, amplification=False)
    foreign = private_loader(DataLoader(TensorDataset(*(column[:60] for column in data.tensors)), batch_size=BATCH))
    mixed = DataLoader(data, batch_sampler=foreign.batch_sampler)
    _, parts, secret = made("shuffled", loader=mixed)
    with pytest.raises(ValueError, match="a sampler for 60 records, but its data set has 120"):
        AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)


def test_a_fixed_size_that_does_not_divide_the_data_set() -> None:
    from betastar.training import FixedSizeSampler

    _, data, _ = build("tanh")
    drawn = DataLoader(data, batch_sampler=FixedSizeSampler(120, 35, generator=torch.Generator().manual_seed(1)))
    _, parts, secret = made("fixed-size", loader=drawn)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, 5)
    assert parts[1].expected_batch_size == 30  # a fixed number, but Opacus's: 120 // 4
    assert monitor.run == bs.DPSGD(NOISE, 35 / 120, 5, "fixed-size", dataset_size=120)


def test_noise_that_changes_within_an_epoch_counts_with_its_least() -> None:
    engine, parts, secret = made("balls-in-bins")
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    scheduler = ExponentialNoise(parts[1], gamma=0.9)
    fit(parts, criterion, 3)
    scheduler.step()
    # The loop goes on with a new epoch, after which the noise changes within one.
    model, optimizer, batches = parts
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if number == 2:
            scheduler.step()
    least = NOISE * 0.9**2
    assert monitor.run == claimed("balls-in-bins", 6) + claimed("balls-in-bins", 6, least)
    assert bs.analyze(engine.accountant.run).bayes_security.upper <= monitor.membership().bayes_security.upper
