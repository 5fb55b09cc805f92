"""The accountant that Opacus can use by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.accountants.utils import get_noise_multiplier
from torch import nn
from torch.utils.data import DataLoader

import betastar as bs
from betastar.training import BetastarAccountant

from .private import build, fit


def engine() -> tuple[PrivacyEngine, Any]:
    module, data, _ = build("tanh")
    made = PrivacyEngine(accountant="betastar")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=20)
    return made, made.make_private(
        module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0
    )


def test_epsilon_of_a_training_run() -> None:
    made, parts = engine()
    assert isinstance(made.accountant, BetastarAccountant)
    assert made.get_epsilon(1e-5) == 0.0
    with pytest.raises(ValueError, match="no step was taken yet"):
        made.accountant.bayes_security()
    fit(parts, nn.CrossEntropyLoss(), 30)
    run = bs.DPSGD(1.1, parts[2].sample_rate, 30)
    assert made.accountant.run == run
    assert len(made.accountant) == 30
    add_remove = bs.analyze(run, bs.Membership("add-remove"))
    assert made.get_epsilon(1e-5) == add_remove.epsilon(1e-5).upper
    other = PRVAccountant()
    other.history = list(made.accountant.history)
    assert made.get_epsilon(1e-5) <= other.get_epsilon(1e-5) <= made.get_epsilon(1e-5) + 0.02  # its tolerance is .01
    assert made.accountant.bayes_security() == bs.analyze(run).bayes_security
    assert made.accountant.advantage("add-remove") == add_remove.advantage
    assert made.accountant.tpr(0.01) == bs.analyze(run).tpr(0.01)


def test_checkpoints_of_opacus(tmp_path: Path) -> None:
    made, parts = engine()
    fit(parts, nn.CrossEntropyLoss(), 4)
    made.save_checkpoint(path=tmp_path / "run.pt", module=parts[0], optimizer=parts[1])
    again, loaded = engine()
    again.load_checkpoint(path=tmp_path / "run.pt", module=loaded[0], optimizer=loaded[1])
    assert again.accountant.history == made.accountant.history
    assert again.get_epsilon(1e-5) == made.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="cannot be loaded"):
        PRVAccountant().load_state_dict(made.accountant.state_dict())


def test_noise_for_a_target() -> None:
    noise = get_noise_multiplier(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.01, steps=500, accountant="betastar")
    wanted = bs.calibrate(bs.Target(epsilon=2.0, delta=1e-5), threat=bs.Membership("add-remove"), sample_rate=0.01, steps=500)
    assert noise == pytest.approx(wanted.noise_multiplier, abs=0.02)


def test_schedules_and_no_noise() -> None:
    accountant = BetastarAccountant()
    for noise in (1.0, 1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=0.1)
    assert accountant.history == [(1.0, 0.1, 2), (2.0, 0.1, 1), (1.0, 0.1, 1)]
    assert len(accountant) == 4
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accountant.get_epsilon(1e-5) == float("inf")
