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


def test_hooks_come_back_in_their_order() -> None:
    module, data, _ = build("tanh")
    calls: list[str] = []
    module[0].register_forward_hook(lambda *_: calls.append("before"))
    parts = private(module, data)
    module[0].register_forward_hook(lambda *_: calls.append("after"))
    adapter = OpacusAdapter(*parts)
    before = [(dict(layer._forward_hooks), dict(layer._backward_hooks)) for layer in module]
    with adapter.silence():
        assert [len(layer._forward_hooks) for layer in module] == [2, 0, 0]
        assert not any(layer._backward_hooks for layer in module)
        with adapter.silence():  # one inside the other changes nothing more
            pass
        assert [len(layer._forward_hooks) for layer in module] == [2, 0, 0]
        kept = module[0].register_forward_hook(lambda *_: None)
    kept.remove()
    after = [(dict(layer._forward_hooks), dict(layer._backward_hooks)) for layer in module]
    assert [list(a.items()) for pair in after for a in pair] == [list(b.items()) for pair in before for b in pair]


def test_hooks_that_the_user_has_removed_stay_removed() -> None:
    module, data, _ = build("tanh")
    parts = private(module, data)
    adapter = OpacusAdapter(*parts)
    parts[0].remove_hooks()
    with adapter.silence():
        pass
    assert not any(layer._backward_hooks or layer._forward_hooks for layer in module)
