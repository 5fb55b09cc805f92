"""A replay accuses no correct training, and says how close to the promise it came."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import betastar as bs
from betastar import audit
from tests.audit import replayed
from tests.audit.replayed import FLAG, by_hand, flags, quiet, several_inputs, texts, trained
from tests.audit.trainings import Listed, factory, make, table

DATA = table(52)
REMOVED: dict[str, Any] = {"threat": bs.Membership("add-remove")}
SECRET: dict[str, Any] = {"secret": FLAG}
POISSON = bs.DPSGD(1.0, 1 / 6, 12)


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 2))


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.01)


def step_schedule(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer.original_optimizer, step_size=1, gamma=0.3)


def falling_noise(optimizer: Any) -> Any:
    return replayed.ExponentialNoise(optimizer, gamma=0.9)


def falling_norm(optimizer: Any) -> Any:
    from opacus.schedulers import ExponentialGradClip

    return ExponentialGradClip(optimizer, gamma=0.8)


#: A training, its data, and what else `betastar.audit.replay` is told.
CORRECT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plain": (trained(), DATA, {"run": POISSON, "max_grad_norm": 1.0}),
    "plain, without a record": (trained(), DATA, {"run": POISSON, "max_grad_norm": 1.0, **REMOVED}),
    "a noise generator of its own": (make(1.0), DATA, {"factory": factory}),
    "Adam": (trained(optimizer=torch.optim.Adam), DATA, {}),
    "Adam, without a record": (trained(optimizer=torch.optim.Adam), DATA, REMOVED),
    "momentum and weight decay": (trained(optimizer=momentum), DATA, {}),
    "ghost clipping": (trained(grad_sample_mode="ghost"), DATA, {}),
    "ghost clipping, without a record": (trained(grad_sample_mode="ghost"), DATA, REMOVED),
    "functorch": (trained(grad_sample_mode="functorch"), DATA, {}),
    "clipping by layer": (trained(clipping="per_layer", norm=[0.5, 0.5, 0.5, 0.5]), DATA, {}),
    "losses that are added up": (trained(loss=nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum", lr=0.01), DATA, {}),
    "LSTM": (trained(model=replayed.Text), texts(), {}),
    "LSTM, without a record": (trained(model=replayed.Text), texts(), REMOVED),
    "several inputs and an embedding": (trained(model=replayed.Columns), several_inputs(), {}),
    "dropout": (trained(model=dropout), DATA, {}),
    "a schedule of the learning rate": (trained(schedule=step_schedule), DATA, {}),
    "a schedule of the noise": (trained(schedule=falling_noise), DATA, {}),
    "a schedule of the clipping norm": (trained(schedule=falling_norm), DATA, {}),
    "physical batches": (trained(physical=3), DATA, {}),
    "fixed size": (trained(sampling="fixed-size"), DATA, {}),
    "balls in bins": (trained(sampling="balls-in-bins"), DATA, {"run": bs.DPSGD(1.0, 1 / 6, 12, "balls-in-bins")}),
    "balls in bins, without a record": (trained(sampling="balls-in-bins"), DATA, REMOVED),
    "Poisson batches that are cut off": (trained(sampling="poisson"), DATA, {}),
    "shuffled": (trained(sampling="shuffled"), DATA, {"run": bs.DPSGD(1.0, 1 / 6, 12, "shuffled")}),
    "a list of records": (trained(), Listed(DATA), {}),
    "a part of the data": (trained(part=True), DATA, {}),
    "without Opacus": (
        by_hand(),
        table(50),
        {"run": bs.DPSGD(1.0, 0.2, 6), "max_grad_norm": 1.0, "divisor": 10},
    ),
    "a secret": (trained(), flags(), SECRET),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_training_is_not_accused(name: str) -> None:
    train, data, told = CORRECT[name]
    result = quiet(lambda: audit.replay(train, data, seed=3, **told))
    assert not result.violated, str(result)
    assert 0.0 < result.largest <= 1.001
    assert result.sentence.startswith("No promise broken")


def test_clipping_is_tested_to_its_limit() -> None:
    """Without a record, too, others are put in its place: nearly as far apart as two opposite gradients of the whole norm."""
    result = quiet(lambda: audit.replay(trained(), DATA, bs.DPSGD(1.0, 1 / 6, 12), seed=3, **REMOVED))
    assert 0.85 < result.largest <= 1.001
    assert result.notes == ()


def test_a_person_with_several_records_is_replayed_record_by_record() -> None:
    threat = bs.Membership("add-remove", records=3)
    result = quiet(lambda: audit.replay(trained(), DATA, POISSON, threat, seed=3, max_grad_norm=1.0))
    assert not result.violated
    assert result.notes == ("One of the person's 3 records was changed at a time: what each may change adds up.",)


def test_seeds_do_not_matter() -> None:
    for seed in range(10):
        result = quiet(lambda seed=seed: audit.replay(trained(), DATA, POISSON, seed=seed, max_grad_norm=1.0))
        assert not result.violated, str(result)
        assert result.seed == seed


def test_randomness_goes_on_as_before() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    quiet(lambda: audit.replay(trained(), DATA, seed=3))
    assert torch.equal(torch.rand(3), wanted)
