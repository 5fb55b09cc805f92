"""A training that takes over the state of another one."""

from __future__ import annotations

from typing import Any

import pytest

from betastar.training import Secret
from tests.training.private import VALUES, account

from .attacked_training import SECRET, Attacks, Training

ATTACKS = Attacks()


def resumed(*, other_weights: bool = False, secret: Any = SECRET, **options: Any) -> Training:
    """A training that takes over the state of one with much noise."""
    first = Training({"noise_multiplier": 50.0, **options})
    first.attach(secret=secret)
    first.fit(3)
    t = Training({"noise_multiplier": 50.0} if options or other_weights or secret is not SECRET else {"noise_multiplier": 0.5})
    monitor = t.attach()
    t.model.load_state_dict(first.model.state_dict())
    if other_weights:
        t.module.head.bias.data += 1.0
    assert first.monitor is not None
    account(t.optimizer).load_state_dict(account(first.optimizer).state_dict())
    monitor.load_state_dict(first.monitor.state_dict())
    _ = monitor.proof
    return t


@ATTACKS.refused_with("its noise_multiplier is 50.0, this one's 0.5")
def state_of_a_run_with_more_noise() -> Training:
    return resumed()


@ATTACKS.refused_with("its max_grad_norm is")
def state_of_a_run_with_another_clipping_norm() -> Training:
    return resumed(max_grad_norm=0.1)


@ATTACKS.refused_with("its values is")
def state_of_a_run_with_another_secret() -> Training:
    return resumed(secret=Secret.column(1, [*VALUES[:-1], 3.5], labels=list("abcdefg"), name="value"))


@ATTACKS.refused_with("belongs to other weights")
def state_of_a_run_with_other_weights() -> Training:
    return resumed(other_weights=True)


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
