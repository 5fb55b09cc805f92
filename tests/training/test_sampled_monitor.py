"""Monitors of trainings with each sampler: what they analyse, ledgers, physical batches, loaders that are refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import betastar as bs
from betastar.training import AttributeMonitor, ShufflingWarning, private_loader

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
    quick = monitor.quick()
    assert quick["membership"] <= quick["attribute"]
    assert abs(quick["membership"] - monitor.membership().bayes_security.lower) < 0.06  # safe, and an estimate
    entry = monitor.entry()
    assert entry["sampling"] == sampling
    assert entry.get("epoch") == (2 if sampling in ("balls-in-bins", "shuffled") else None)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_monitored_weights_are_the_same(sampling: str) -> None:
    _, plain, _ = made(sampling)
    fit(plain, nn.CrossEntropyLoss(), 8)
    _, watched, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    AttributeMonitor(*watched, criterion, secret, scope="dataset")
    fit(watched, criterion, 8)
    for a, b in zip(plain[1].params, watched[1].params, strict=True):
        assert torch.equal(a, b)


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
    whole = AttributeMonitor(model, optimizer, batches, criterion, secret, scope="dataset")
    fit((model, optimizer, batches), criterion, 12)
    other, (model_2, optimizer_2, batches_2), secret = made(sampling)
    with BatchMemoryManager(data_loader=batches_2, max_physical_batch_size=7, optimizer=optimizer_2) as physical:
        split = AttributeMonitor(model_2, optimizer_2, physical, criterion, secret, scope="dataset")
        seen = fit((model_2, optimizer_2, physical), criterion, 12)
    assert max(len(x) for x, _ in seen) <= 7
    assert split.run == whole.run == other.accountant.run == engine.accountant.run
    np.testing.assert_allclose(split.distances, whole.distances, rtol=1e-3)
    assert split.steps == 12


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
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset")
    fit(parts, criterion, 2 * len(shuffled))
    batches = 2 if drop_last else 3
    assert monitor.run == bs.DPSGD(NOISE, 1 / batches, 2 * batches, "shuffled", dataset_size=120)


def test_loaders_that_are_not_recognised_are_refused() -> None:
    _, data, _ = build("tanh")

    class Own(BatchSampler):
        """A subclass may draw as it likes."""

    for other in (
        DataLoader(data, batch_size=BATCH),
        DataLoader(data, batch_sampler=Own(RandomSampler(data), BATCH, False)),
        DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data, num_samples=60)),
    ):
        with pytest.raises(ValueError, match="loader must sample each record with the same probability"):
            made("shuffled", loader=other)
    foreign = private_loader(DataLoader(TensorDataset(*(column[:60] for column in data.tensors)), batch_size=BATCH))
    mixed = DataLoader(data, batch_sampler=foreign.batch_sampler)
    with pytest.raises(ValueError, match="a sampler for 60 records, but its data set has 120"):
        made("shuffled", loader=mixed)


def test_a_fixed_size_that_does_not_divide_the_data_set() -> None:
    _, data, _ = build("tanh")
    drawn = private_loader(DataLoader(data, batch_size=35), "fixed-size", generator=torch.Generator().manual_seed(1))
    assert [len(y) for _, y in drawn] == [30] * 4  # what Opacus divides by: 120 // 4
    few = private_loader(DataLoader(TensorDataset(*(part[:118] for part in data.tensors)), batch_size=35), "fixed-size")
    _, parts, secret = made("fixed-size", loader=few)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, 5)
    assert parts[1].expected_batch_size == 29
    assert monitor.run == bs.DPSGD(NOISE, 29 / 118, 5, "fixed-size", dataset_size=118)


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
