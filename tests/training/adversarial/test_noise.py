"""Noise that is missing, too small or repeated."""

from __future__ import annotations

from typing import Any

import pytest

from .attacked_training import Attacks, Training

ATTACKS = Attacks()


@ATTACKS.refused_with("the noise on first.weight has standard deviation 0")
def no_noise() -> Training:
    t = Training()
    t.attach()

    def bare() -> None:
        for p in t.optimizer.params:
            p.grad = p.summed_grad.clone()

    t.optimizer.add_noise = bare
    t.fit()
    return t


@ATTACKS.refused_with("the noise on head.bias has standard deviation 0")
def noise_on_some_parameters() -> Training:
    t = Training()
    t.attach()
    inner = t.optimizer.add_noise

    def most() -> None:
        inner()
        t.module.head.bias.grad = t.module.head.bias.summed_grad.clone()

    t.optimizer.add_noise = most
    t.fit()
    return t


@ATTACKS.refused_with("but noise_multiplier times max_grad_norm is 0.5")
def half_the_noise() -> Training:
    t = Training()
    t.attach()
    inner = t.optimizer.add_noise

    def less() -> None:
        t.optimizer.noise_multiplier /= 2.0
        inner()
        t.optimizer.noise_multiplier *= 2.0

    t.optimizer.add_noise = less
    t.fit(leaks=False)
    return t


@ATTACKS.refused_with("has taken it away again")
def noise_removed_in_the_step_hook() -> Training:
    t = Training()
    inner = t.optimizer.step_hook

    def hook(optimizer: Any) -> None:
        inner(optimizer)
        for p in optimizer.params:
            p.grad = p.summed_grad / optimizer.expected_batch_size

    t.optimizer.attach_step_hook(hook)
    t.attach(accountant=t.engine.accountant)
    t.fit()
    return t


@ATTACKS.refused_with("the noise is that of an earlier step again")
def noise_that_repeats() -> Training:
    t = Training()
    t.attach()
    t.fit(before=lambda: t.optimizer.generator.manual_seed(7) and None)
    return t


@ATTACKS.refused_with("but noise_multiplier times max_grad_norm")
def adjusted_noise_of_ghost_clipping() -> Training:
    t = Training({"grad_sample_mode": "ghost"})
    t.attach()
    t.optimizer._adjusted_noise_multiplier = 0.1
    t.fit()
    return t


@ATTACKS.refused_with("greater than 0, got 0")
def noise_switched_off_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.optimizer.noise_multiplier = 0.0
    t.fit(leaks=False)
    return t


@ATTACKS.refused_with("releases a count of clipped gradients")
def adaptive_clipping() -> Training:
    adaptive = {"clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2}
    t = Training(adaptive | {"max_clipbound": 9.0, "min_clipbound": 0.1, "unclipped_num_std": 5.0})
    t.attach()
    return t


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
