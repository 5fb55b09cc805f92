"""Watching a training loop shows no warning more often than the loop itself does, and leaves its hooks as they were."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import nn

from betastar.training import AttributeMonitor
from betastar.training.opacus.adapter import OpacusAdapter

from .private import build, fit, private

HOOK = "Full backward hook is firing"


def shown(action: Any, scope: str | None) -> list[str]:
    """The warnings of eight steps. scope: of the monitor; None without a monitor."""
    module, data, secret = build("tanh")
    parts, criterion = private(module, data), nn.CrossEntropyLoss()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        if scope is not None:
            AttributeMonitor(*parts, criterion, secret, scope=scope)
        fit(parts, criterion, 8)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("action", ["default", "always"])
@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_a_monitor_adds_no_warning(action: Any, scope: str) -> None:
    alone = shown(action, None)
    assert [message[: len(HOOK)] for message in alone] == [HOOK] * (1 if action == "default" else 8)
    assert shown(action, scope) == alone


def test_backward_hooks_are_off_inside_and_come_back() -> None:
    module, data, _ = build("tanh")
    parts = private(module, data)
    adapter = OpacusAdapter(*parts)
    before = [dict(layer._backward_hooks) for layer in module]
    assert any(before)
    with adapter.silence(), adapter.silence():  # one inside the other changes nothing more
        assert not any(layer._backward_hooks for layer in module)
    assert [list(layer._backward_hooks.items()) for layer in module] == [list(hooks.items()) for hooks in before]
