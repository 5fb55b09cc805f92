"""No subject loses its attacks unnoticed."""

from __future__ import annotations

from . import test_charged, test_loss, test_noise, test_sampling, test_state, test_unseen_steps, test_weights

MODULES = (test_charged, test_loss, test_noise, test_sampling, test_state, test_unseen_steps, test_weights)


def test_there_are_many_attacks() -> None:
    assert sum(len(module.ATTACKS.refused) + len(module.ATTACKS.charged) for module in MODULES) >= 67
