"""Gap clipping with each sampler, and trainings that are resumed within an epoch."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

import betastar as bs
from betastar.training import (
    AttributeMonitor,
    Budget,
)

from .private import fit
from .sampled import SAMPLINGS, claimed, gapped, made

pytestmark = pytest.mark.filterwarnings("ignore::betastar.training.ShufflingWarning")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_gap_clipping_promises_what_the_sampling_gives(sampling: str) -> None:
    parts, criterion = gapped(sampling)
    clipping = parts[1].gap_clipping
    promised = clipping.risk(method="exact", steps=8).bayes_security
    fit(parts, criterion, 8)
    assert clipping.run == claimed(sampling, 8)
    assert clipping.risk(method="exact").bayes_security == promised
    assert promised == bs.analyze(claimed(sampling, 8), bs.AttributeInference(clipping.distance())).bayes_security
    assert promised.lower > bs.analyze(claimed(sampling, 8)).bayes_security.lower


@pytest.mark.parametrize("sampling", ["fixed-size", "balls-in-bins"])
def test_a_target_sets_the_gap_for_the_sampling(sampling: str) -> None:
    parts, criterion = gapped(sampling, gap=None, bayes_security=0.97, epochs=2)
    clipping = parts[1].gap_clipping
    (gap,) = clipping.gaps.values()
    assert 0.0 < gap < 2.0
    fit(parts, criterion, 12)
    assert clipping.risk().bayes_security.lower >= 0.97


def state(parts: Any, watcher: Any, accountant: Any) -> dict[str, Any]:
    model, optimizer, batches = parts
    return {
        "model": {name: value.clone() for name, value in model._module.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "accountant": accountant.state_dict(),
        "watcher": watcher.state_dict(),
        "sampler": batches.batch_sampler.state_dict(),
        "noise": optimizer.generator.get_state(),
    }


def restore(parts: Any, watcher: Any, accountant: Any, saved: dict[str, Any]) -> None:
    model, optimizer, batches = parts
    model._module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    accountant.load_state_dict(saved["accountant"])
    watcher.load_state_dict(saved["watcher"])
    batches.batch_sampler.load_state_dict(saved["sampler"])
    optimizer.generator.set_state(saved["noise"])


def one_epoch(parts: Any, criterion: Any, steps: int = 6) -> None:
    model, optimizer, batches = parts
    for x, y in islice(batches, steps):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("clips", [False, True], ids=["monitor", "gap clipping"])
@pytest.mark.parametrize("sampling", [name for name in SAMPLINGS if name != "shuffled"])
def test_a_training_resumed_within_an_epoch_is_the_same(sampling: str, clips: bool) -> None:
    def make() -> tuple[Any, Any, Any, Any]:
        if clips:
            parts, criterion = gapped(sampling)
            return parts, criterion, parts[1].gap_clipping, parts[1].gap_clipping._adapter.accountant
        engine, parts, secret = made(sampling)
        criterion = nn.CrossEntropyLoss()
        monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", ledger=True, budget=Budget(0.01))
        return parts, criterion, monitor, engine.accountant

    parts, criterion, watcher, accountant = make()
    one_epoch(parts, criterion)
    iterator = iter(parts[2])
    model, optimizer, _ = parts

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        criterion(model(batch[0]), batch[1]).backward()
        optimizer.step()

    for batch in islice(iterator, 2):
        step(batch)
    saved = state(parts, watcher, accountant)
    for batch in iterator:
        step(batch)
    one_epoch(parts, criterion)

    again, criterion, watcher_2, accountant_2 = make()
    restore(again, watcher_2, accountant_2, saved)
    one_epoch(again, criterion)  # the rest of the epoch: four steps
    assert len(accountant_2) == 12
    one_epoch(again, criterion)
    for a, b in zip(parts[1].params, again[1].params, strict=True):
        assert torch.equal(a, b)
    assert watcher_2.run == watcher.run == accountant.run == accountant_2.run == claimed(sampling, 18)
    if not clips:
        assert (watcher.distances == watcher_2.distances).all()
        assert watcher.proof == watcher_2.proof
        assert (watcher.ledger.leakage == watcher_2.ledger.leakage).all()


def test_a_monitor_of_another_sampling_does_not_go_on() -> None:
    _, parts, secret = made("balls-in-bins")
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, 1)
    _, others, _ = made("fixed-size")
    other = AttributeMonitor(*others, criterion, secret)
    with pytest.raises(ValueError, match="belongs to another monitor: its sampling is"):
        other.load_state_dict(monitor.state_dict())
