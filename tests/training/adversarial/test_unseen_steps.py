"""Steps that the monitor, the accountant or both do not see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer

from tests.training.private import account

from .attacked_training import Attacks, Training

ATTACKS = Attacks()


def unseen_steps_behind(hook: Callable[[Any], Any]) -> Training:
    """Steps before the monitor is attached, and a hook that hides the accountant which counted them."""
    t = Training()
    t.optimizer.attach_step_hook(hook(t.optimizer.step_hook))
    t.fit(20, leaks=False)
    t.attach()
    t.fit(1)
    return t


class Hook:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, optimizer: Any) -> None:
        self.inner(optimizer)


@ATTACKS.refused_with("pass accountant=")
def steps_behind_a_lambda() -> Training:
    return unseen_steps_behind(lambda inner: lambda optimizer: inner(optimizer))


@ATTACKS.refused_with("pass accountant=")
def steps_behind_a_partial() -> Training:
    return unseen_steps_behind(lambda inner: partial(inner))


@ATTACKS.refused_with("pass accountant=")
def steps_behind_an_object() -> Training:
    return unseen_steps_behind(Hook)


@ATTACKS.refused_with("has seen 2 steps and the parameters 0, of which 0")
def steps_before_attaching() -> Training:
    t = Training()
    t.fit(2)
    t.attach()
    t.fit(1)
    return t


@ATTACKS.refused_with("has seen 0 steps and the parameters 1, of which 1")
def accountant_of_another_training() -> Training:
    t = Training()
    t.attach(accountant=RDPAccountant())
    t.fit(2)
    return t


@ATTACKS.refused_with("has seen 0 steps and the parameters 2, of which 2")
def accountant_that_is_set_back() -> Training:
    t = Training()
    t.attach()
    t.fit(2)
    account(t.optimizer).history.clear()
    t.fit(2)
    return t


@ATTACKS.refused_with("has seen 3 steps and the parameters 3, of which 2")
def steps_after_detaching() -> Training:
    t = Training()
    monitor = t.attach()
    t.fit(2)
    monitor.detach()
    t.fit(1)
    return t


@ATTACKS.refused_with("has seen 2 steps and the parameters 0, of which 0")
def another_monitor_for_the_rest() -> Training:
    t = Training()
    t.attach().detach()
    t.fit(2)
    t.attach()
    t.fit(1)
    return t


@ATTACKS.refused_with("of which 0")
def opacus_own_step_put_back() -> Training:
    t = Training()
    t.attach()
    t.optimizer.pre_step = MethodType(DPOptimizer.pre_step, t.optimizer)
    t.fit(2)
    return t


@ATTACKS.refused_with("the parameters 2, of which 1")
def second_optimizer() -> Training:
    t = Training()
    t.attach()
    other = torch.optim.SGD(t.module.head.parameters(), lr=1.0)
    t.fit(2, after=other.step)
    return t


@ATTACKS.refused_with("the parameters 2, of which 1")
def inner_optimizer_stepped_again() -> Training:
    t = Training()
    t.attach()
    t.fit(2, after=t.optimizer.original_optimizer.step)
    return t


@ATTACKS.refused_with("the weights were changed since the last step")
def descent_by_hand() -> Training:
    t = Training()
    t.attach()

    def descend() -> None:
        for p in t.module.parameters():
            p.data -= 0.1 * p.summed_grad

    t.fit(2, after=descend)
    return t


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
