"""Weights that are changed outside of steps, and arithmetic in low precision."""

from __future__ import annotations

import pytest
import torch

from .attacked_training import Attacks, Training

ATTACKS = Attacks()


@ATTACKS.refused_with("the weights were changed since the last step")
def weights_written_after_asking() -> Training:
    t = Training()
    monitor = t.attach()

    def change() -> None:
        assert monitor.may_step()
        t.module.first.weight.data.mul_(30.0)

    t.fit(before=change)
    return t


@ATTACKS.refused_with("changed between the forward pass and optimizer.step")
def weights_written_before_the_step() -> Training:
    t = Training()
    t.attach()
    t.fit(between=lambda: t.module.first.weight.data.mul_(0.01))
    return t


@ATTACKS.refused_with("changed between the forward pass and optimizer.step")
def buffer_written_before_the_step() -> Training:
    t = Training()
    t.attach()
    t.fit(between=lambda: t.module.scale.data.mul_(0.01))
    return t


@ATTACKS.refused_with("torch.autocast")
def forward_pass_in_bfloat16() -> Training:
    t = Training()
    t.attach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        t.fit(1, leaks=False)
    return t


@ATTACKS.refused_with("float32 or float64, got torch.bfloat16")
def weights_in_bfloat16() -> Training:
    t = Training()
    t.module.bfloat16()
    t.attach()
    return t


@ATTACKS.refused_with("must be 'highest', got 'medium'")
def matrix_products_in_low_precision() -> Training:
    t = Training()
    t.attach()
    torch.set_float32_matmul_precision("medium")
    try:
        t.fit(1)
    finally:
        torch.set_float32_matmul_precision("highest")
    return t


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
