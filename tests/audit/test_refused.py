"""What cannot be audited is refused, in words that say what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs
from betastar.audit.evidence.attackers import CanaryAttacker, Evidence, watching
from betastar.audit.evidence.challenges import Canaries
from betastar.training import Secret
from tests.audit.trainings import BATCH, NORM, claim, factory, make, one_run, play

_shared = factory()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"games": 30, "width": 0.25}, r"games must be at least \d{3} for an interval of the advantage no wider than 0.25"),
        ({"challenge": 50}, "challenge must be a record of the data, 0 to 49, got 50"),
        (
            {"challenge": (torch.zeros(6), torch.tensor(0))},
            "challenge must be a record of the data, got one that none of the 50",
        ),
        ({"challenge": "worst"}, "challenge must be one of 'canary', 'layers', got 'worst'"),
        ({"challenge": 4.5}, 'challenge must be "canary", the number of a record, or the record itself, got 4.5'),
        ({"factory": lambda: _shared}, "factory must make a new model each time, got the same weights twice"),
        ({"factory": lambda: 3}, "factory must make a model .* got int"),
        ({"factory": 3}, "factory must be a function that makes a new model, got 3"),
        ({"train": lambda model, data: None}, "train must update the model .* got no step"),
        ({"train": make(1.0, 2)}, "run must have as many steps as train makes on 50 records, 10, got 5"),
        ({"train": lambda model, data: 1 / 0}, "train must work again and again .* ZeroDivisionError"),
        ({"threat": bs.AttributeInference(1.0)}, "secret must be given for attribute inference"),
        ({"threat": bs.Membership(norms=0.5)}, "threat must be without norms and other_rate for a game on a training"),
        ({"secret": Secret.label(2), "threat": bs.Membership()}, "secret must be left out for membership"),
        ({"secret": Secret.label(2), "challenge": 1, "values": [1]}, "values must be at least two different ones"),
        ({"secret": Secret.label(2), "challenge": 1, "prior": [0.5, 0.2, 0.3]}, "prior must be 2 numbers that add up to 1"),
        ({"prior": 1.0}, "prior must be"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be"),
        ({"references": -1}, "references must be"),
        ({"run": bs.DPSGD([1.0, 2.0], 0.1, 10)}, "run must be one DPSGD run"),
        ({"data": []}, "data must be a data set of at least 2 records"),
        ({"jobs": 0}, "jobs must be"),
        ({"loss_reduction": "max"}, "loss_reduction must be"),
    ],
)
def test_what_cannot_be_audited_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play(**wrong)


def test_a_wrapped_model_is_refused() -> None:
    from opacus import GradSampleModule

    with pytest.raises(ValueError, match="factory must make a plain model"):
        play(factory=lambda: GradSampleModule(factory()))


def test_a_canary_that_the_model_never_sees_is_missed() -> None:
    plain = make(1.0, 1)

    def train(model: nn.Module, data: TensorDataset) -> None:
        plain(model, TensorDataset(data.tensors[0] * 2.0, data.tensors[1]))

    with pytest.raises(ValueError, match=r"about .* times by now, and saw 0: if train changes the inputs"):
        play(train=train, games=60)
    calls = iter(range(1000))

    def now_and_then(model: nn.Module, data: TensorDataset) -> None:
        (plain if next(calls) % 5 == 0 else train)(model, data)

    with pytest.raises(ValueError, match="if train changes the inputs"):
        play(train=now_and_then, games=120)


def test_models_without_a_tensor_take_records_only() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    with pytest.raises(ValueError, match="canaries need a model that returns a tensor, got tuple"):
        play(factory=Pair)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"canaries": 5}, "canaries must be"),
        ({"attacker": "outputs"}, "attacker must be one of"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be"),
    ],
)
def test_one_run_refuses(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_run(**wrong)


def step_through(model: nn.Module, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_some_weights_only() -> None:
    """An optimizer without the canary's weight would show its gradient without clipping and noise; records are followed as is."""

    def head(model: Any, data: Any) -> None:
        engine, loader = PrivacyEngine(), DataLoader(data, batch_size=BATCH)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        options = {"noise_multiplier": 1.0, "max_grad_norm": NORM}
        step_through(*engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **options))

    def frozen() -> nn.Module:
        model: Any = factory()
        model[0].requires_grad_(False)
        return model

    with pytest.raises(ValueError, match=r"train must give its optimizer all of model\.parameters"):
        play(train=head, factory=frozen)
    result = play(train=head, factory=frozen, challenge=4)
    assert not result.violated


def test_noise_that_comes_later_is_not_audited() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)

    def train(model: nn.Module, data: Any) -> None:
        step_through(model, Own(model.parameters(), lr=0.1), DataLoader(data, batch_size=BATCH))

    with pytest.raises(ValueError, match="or divisor must be given, got a step of Own alone"):
        play(train=train)


def test_two_optimizers_are_refused() -> None:
    """Each step would be counted twice."""
    model = factory()
    for parameter in model.parameters():
        parameter.grad = parameter.summed_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]
    first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())
    canaries, evidence = Canaries(model, torch.randn(1, 6), [0], [1.0]), Evidence(claim(1.0, 1), np.zeros(2))
    attacker = CanaryAttacker(evidence, canaries, np.array([1.0, -1.0]), 1.0)
    attacker.observe = lambda *_: (np.zeros(2), np.zeros(2))  # type: ignore[method-assign]
    with watching(model, attacker):
        first.step()
        with pytest.raises(ValueError, match="train must have one optimizer for the whole model, got two: SGD and Adam"):
            second.step()


def test_a_record_that_changes_the_expected_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="data must have a number of records at which Opacus expects the same batch size"):
        play(threat=bs.Membership("add-remove"), challenge=4)


def test_what_diverges_is_refused() -> None:
    def train(model: nn.Module, data: Any) -> None:
        make(1.0, 1, lr=float("inf"))(model, data)

    with pytest.raises(ValueError, match=r"it diverged|could not follow"):
        play(train=train, challenge=4)
