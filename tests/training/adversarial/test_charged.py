"""Trainings in which nothing is wrong, or what differs is measured: the proof charges at least what they leak."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

from betastar.training import Records

from .attacked_training import NOISE, Attacks, Training, claim

ATTACKS = Attacks()


@ATTACKS.is_charged
def as_promised() -> Training:
    t = Training()
    t.attach()
    t.fit(4)
    return t


@ATTACKS.is_charged
def rate_raised_for_good() -> Training:
    t = Training()
    t.attach()
    t.loader.batch_sampler.sample_rate = 0.6
    t.fit()
    return t


@ATTACKS.is_charged
def noise_lowered_in_the_loop() -> Training:
    t = Training()
    t.attach()

    def lower() -> None:
        t.optimizer.noise_multiplier *= 0.7

    t.fit(before=lower)
    return t


@ATTACKS.is_charged
def noise_scheduled_in_the_step_hook() -> Training:
    t = Training()
    inner = t.optimizer.step_hook

    def hook(optimizer: Any) -> None:
        inner(optimizer)
        optimizer.noise_multiplier *= 2.0

    t.optimizer.attach_step_hook(hook)
    t.attach(accountant=t.engine.accountant)
    t.fit()
    return t


@ATTACKS.is_charged
def clipping_norm_raised() -> Training:
    t = Training()
    t.attach()
    t.fit(1)
    t.optimizer.max_grad_norm = 5.0
    t.fit(2)
    return t


@ATTACKS.is_charged
def buffer_changed_after_asking() -> Training:
    t = Training()
    monitor = t.attach()

    def change() -> None:
        assert monitor.may_step()
        t.module.scale.data.mul_(1.7)

    t.fit(before=change)
    return t


@ATTACKS.is_charged
def weight_penalty_that_opacus_does_not_use() -> Training:
    t = Training()
    t.attach()
    t.fit(loss=lambda output, y: t.criterion(output, y) + 50.0 * t.module.head.weight.square().sum())
    return t


def unclipped_and_scaled(scale: float) -> Training:
    """No gradient is clipped, so that a scaled loss moves the values of the secret apart."""
    t = Training({"max_grad_norm": 20.0})
    t.attach()

    def scaled(output: Any, y: Any) -> Any:
        return scale * nn.functional.cross_entropy(output, y)

    t.fit(loss=lambda output, y: scale * t.criterion(output, y), true_loss=scaled)
    return t


@ATTACKS.is_charged
def loss_scaled_by_less_than_is_noticed() -> Training:
    return unclipped_and_scaled(1.00009)


@ATTACKS.refused_with("not the criterion's")
def loss_scaled_by_a_little() -> Training:
    return unclipped_and_scaled(1.005)


@ATTACKS.is_charged
def steps_that_are_not_measured() -> Training:
    t = Training()
    t.attach(every=3)
    t.fit(4)
    return t


@ATTACKS.is_charged
def physical_batches() -> Training:
    t = Training()
    t.attach()
    with BatchMemoryManager(data_loader=t.loader, max_physical_batch_size=3, optimizer=t.optimizer) as loader:
        steps = 0
        for x, y in loader:
            t.optimizer.zero_grad()
            t.criterion(t.model(x), y).backward()
            weights = {k: v.clone() for k, v in t.module.state_dict().items()}
            t.optimizer.step()
            if not t.optimizer._is_last_step_skipped:
                after = {k: v.clone() for k, v in t.module.state_dict().items()}
                t.module.load_state_dict(weights)
                t.leak(1 / len(t.loader), NOISE)
                t.module.load_state_dict(after)
                steps += 1
            if steps == 3:
                return t
    raise AssertionError


@ATTACKS.is_charged
def shared_vector_as_long_as_the_batch() -> Training:
    """Nine numbers for all records together, in a batch of nine: they belong to no record."""
    t = Training(monitored={"split": lambda batch: Records((batch[0],), batch[1], {"shift": SHIFT})})
    t.attach()
    nine = ((x, y) for x, y in t.batches() if len(x) == 9)
    t.fit(batches=nine, shift=SHIFT)
    return t


SHIFT = torch.linspace(-1.0, 1.0, 9)


@ATTACKS.is_charged
def weights_projected_and_declared() -> Training:
    t = Training()
    monitor = t.attach()

    def project() -> None:
        with torch.no_grad():
            t.module.first.weight.mul_(0.9)
        monitor.accept_weights()

    t.fit(after=project)
    return t


@ATTACKS.is_charged
def ghost_clipping() -> Training:
    t = Training({"grad_sample_mode": "ghost"})
    t.attach()
    t.fit()
    return t


@pytest.mark.parametrize("name", ATTACKS.charged)
def test_charged_at_least_the_truth(name: str) -> None:
    spent, truth = claim(ATTACKS.charged[name]())
    assert truth > 0.0
    assert spent >= truth * (1.0 - 1e-9)
    if name == "as_promised":
        assert spent <= truth * (1.0 + 1e-2)  # the truth is not negligible, and honest training is not overcharged


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
