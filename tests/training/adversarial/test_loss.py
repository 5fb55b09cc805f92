"""Losses and gradients that are not those of the criterion."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .attacked_training import NONE, Attacks, Training

ATTACKS = Attacks()


@ATTACKS.refused_with("not the criterion's")
def loss_scaled_from_the_second_step_on() -> Training:
    t = Training()
    t.attach()
    scale = iter([1.0, 100.0, 100.0, 100.0])
    t.fit(4, loss=lambda output, y: next(scale) * t.criterion(output, y))
    return t


@ATTACKS.refused_with("not the criterion's")
def loss_with_a_second_term() -> Training:
    t = Training()
    t.attach()
    t.fit(loss=lambda output, y: t.criterion(output, y) + output.square().mean())
    return t


@ATTACKS.refused_with("not the criterion's")
def loss_that_weighs_one_record() -> Training:
    t = Training()
    t.attach()

    def loss(output: Any, y: Any) -> Any:
        value = t.criterion(output, y)
        rows = NONE(output, y)
        return value + 99.0 * rows[:1].sum() / len(rows)

    t.fit(loss=loss, leaks=False)
    return t


@ATTACKS.refused_with("not the criterion's")
def gradients_scaled_after_the_backward_pass() -> Training:
    t = Training()
    t.attach()

    def scale() -> None:
        for p in t.module.parameters():
            p.grad_sample = 0.01 * p.grad_sample

    t.fit(between=scale)
    return t


@ATTACKS.refused_with("not the criterion's")
def gradients_turned_after_the_backward_pass() -> Training:
    """Every norm is as it was."""
    t = Training()
    t.attach()

    def turn() -> None:
        weight = t.module.first.weight
        weight.grad_sample = weight.grad_sample.flip(-1).contiguous()

    t.fit(between=turn)
    return t


@ATTACKS.refused_with("away from the sum of the records' clipped gradients")
def no_clipping() -> Training:
    t = Training({"max_grad_norm": 0.01})
    t.attach()

    def add_up() -> None:
        for p in t.optimizer.params:
            p.summed_grad = p.grad_sample.sum(dim=0)

    t.optimizer.clip_and_accumulate = add_up
    t.fit()
    return t


@ATTACKS.refused_with("call loss.backward\\(\\) before")
def no_backward_pass() -> Training:
    t = Training()
    t.attach()
    x, y = next(iter(t.loader))
    t.criterion(t.model(x), y)
    t.optimizer.step()
    return t


@ATTACKS.refused_with("saw no forward pass|No activations detected")
def forward_pass_in_eval_mode() -> Training:
    t = Training()
    t.attach()
    t.model.eval()
    t.fit()
    return t


@ATTACKS.refused_with("saw 2 forward passes")
def two_forward_passes() -> Training:
    t = Training()
    t.attach()
    x, y = next(iter(t.loader))
    with torch.enable_grad():
        t.criterion(t.model(x), y)
        t.criterion(t.model(x), y).backward()
    t.optimizer.step()
    return t


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
