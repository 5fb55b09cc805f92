"""A replay finds each fault, and says which promise is broken, at which step and at which parameter."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import betastar as bs
from betastar import audit
from tests.audit import replayed
from tests.audit.replayed import by_hand, quiet, trained
from tests.audit.test_faults import FAULTS
from tests.audit.trainings import NORM, claim, factory, make, table

DATA = table(52)
REMOVED: dict[str, Any] = {"threat": bs.Membership("add-remove")}
CLAIM = bs.DPSGD(1.0, 1 / 6, 12)
#: What a replay says of the faults that games find.
PLAYED = {
    "no clipping": {"distance", "clipping"},
    "noise too small by the root of the batch size": {"noise"},
    "shuffled batches, not Poisson's": {"sampling"},
    "the same noise at each step": {"noise"},
    "the same randomness in each training": {"noise"},
}


def found(train: Any, data: Any = DATA, **told: Any) -> audit.Replay:
    return quiet(lambda: audit.replay(train, data, **{"seed": 3, **told}))


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_games_find(fault: str) -> None:
    broken, noise, epochs = FAULTS[fault]
    result = found(make(noise, epochs, **broken), table(), factory=factory, run=claim(noise, epochs), max_grad_norm=NORM)
    assert {finding.promise for finding in result.findings} == PLAYED[fault], str(result)


def private(model: nn.Module, data: Any, lr: float = 0.1, parameters: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    given = torch.optim.SGD(model.parameters() if parameters is None else parameters, lr=lr)
    return PrivacyEngine().make_private(
        module=model,
        optimizer=given,
        data_loader=DataLoader(data, batch_size=10),
        **{"noise_multiplier": 1.0, "max_grad_norm": NORM, **options},
    )


def second_optimizer(data: Any) -> None:
    model = factory()
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)  # type: ignore[index, union-attr]
    private_model, optimizer, loader = private(model, data)
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(private_model(x), y).backward()
        second.step()
        optimizer.step()


def unclipped_parameter(data: Any) -> None:
    """An optimizer whose clipping leaves out the last weights."""
    model, optimizer, loader = private(factory(), data)
    inner = optimizer.clip_and_accumulate

    def clip_and_accumulate() -> None:
        inner()
        weight = optimizer.params[2]
        weight.summed_grad = weight.grad_sample.sum(dim=0)

    optimizer.clip_and_accumulate = clip_and_accumulate
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def accumulation_without_clipping(data: Any) -> None:
    """Every second batch's gradient is added to the next one's by PyTorch, and the inner optimizer applies both."""
    model, optimizer, loader = private(factory(), data, poisson_sampling=False)
    for number, (x, y) in enumerate(loader):
        functional.cross_entropy(model(x), y).backward()
        if number % 2:
            optimizer.original_optimizer.step()
            optimizer.zero_grad()


def same_batch_twice(data: Any) -> None:
    """Two passes over a batch, as for two augmentations: each record is clipped twice, and counts twice."""
    model, optimizer, loader = private(factory(), data, poisson_sampling=False)
    for x, y in loader:
        optimizer.zero_grad()
        for _ in range(2):
            functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def partial_noise(data: Any) -> None:
    model, optimizer, loader = private(factory(), data)
    inner = optimizer.add_noise

    def add_noise() -> None:
        inner()
        bias = optimizer.params[3]
        bias.grad = bias.summed_grad.clone()

    optimizer.add_noise = add_noise
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def bias_of_labels(data: Any) -> None:
    """The last bias starts at the frequencies of the classes."""
    model = factory()
    with torch.no_grad():
        model[2].bias.copy_(functional.one_hot(data.tensors[1], 2).float().mean(dim=0))  # type: ignore[index, union-attr]
    trained(model=lambda: model)(data)


def stops_early(data: Any) -> None:
    """The training ends when a batch has large inputs."""
    model, optimizer, loader = private(factory(), data)
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if len(x) and x.abs().max() > 50.0:
            break


def weighted_sampler(data: Any) -> None:
    """Records with larger inputs are drawn more often."""
    model = factory()
    weights = data.tensors[0].square().sum(dim=1)
    _, optimizer, _ = private(model, data)
    for _ in range(5):
        batch = torch.multinomial(weights, 10)
        for x, y in DataLoader(data, batch_sampler=[batch.tolist()]):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()


class Mixing(nn.CrossEntropyLoss):
    """The same as a module, whose reduction ghost clipping sets."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output - output.mean(dim=0), target)


def ghost_schedule(optimizer: Any) -> Any:
    """The clipping norm of the optimizer, which scales the noise, is halved; ghost clipping goes on as before."""

    class Halved:
        def step(self) -> None:
            optimizer.max_grad_norm /= 4.0

    return Halved()


def printed_loss(_: Any, __: Any, loss: Tensor) -> None:
    print(f"loss {float(loss):.4f}")


def logged_loss(_: Any, __: Any, loss: Tensor) -> None:
    logging.getLogger("training").warning("loss %.4f", float(loss))


def returned_loss(_: Any, __: Any, loss: Tensor) -> float:
    return float(loss)


def falling_noise(optimizer: Any) -> Any:
    return replayed.ExponentialNoise(optimizer, gamma=0.5)


def with_running_mean() -> nn.Module:
    return nn.Sequential(replayed.RunningMean(), *factory())


HAND: dict[str, Any] = {"run": bs.DPSGD(1.0, 0.2, 6), "max_grad_norm": 1.0, "divisor": 10, "data": table(50)}
#: A training, what else is told, the promise that is broken, and the step and the parameter of the finding.
BROKEN: dict[str, tuple[Any, dict[str, Any], str, int | None, str | None]] = {
    "the normaliser int(N·rate) of Opacus": (trained(), {"data": table(50), **REMOVED}, "normaliser", 1, None),
    "the number of steps follows from the data": (trained(), {"data": table(51), **REMOVED}, "steps", None, None),
    "statistics of batches": (trained(model=with_running_mean), {}, "buffers", None, "0.mean"),
    "a loss that mixes records, ghost": (trained(loss=Mixing(), grad_sample_mode="ghost"), REMOVED, "mixing", None, None),
    "accumulation without clipping": (accumulation_without_clipping, {}, "clipping", None, "0.weight"),
    "the same batch twice": (same_batch_twice, REMOVED, "distance", None, None),
    "a second optimizer": (second_optimizer, {}, "clipping", None, "2.weight"),
    "an unclipped parameter": (unclipped_parameter, REMOVED, "distance", None, "2.weight"),
    "noise on some parameters only": (partial_noise, {}, "noise", 1, "2.bias"),
    "a schedule of the noise that is not claimed": (trained(schedule=falling_noise), {"run": CLAIM}, "noise", 7, None),
    "a schedule that scales noise and not clipping": (
        trained(schedule=ghost_schedule, grad_sample_mode="ghost", epochs=3),
        REMOVED,
        "distance",
        None,
        None,
    ),
    "weights that start from the labels": (bias_of_labels, {}, "weights", 1, "2.bias"),
    "a number of steps that follows the inputs": (stops_early, {}, "steps", None, None),
    "batches that follow the inputs": (weighted_sampler, {}, "sampling", None, None),
    "more bins an epoch than claimed": (
        trained(sampling="balls-in-bins", epochs=1),
        {"run": bs.DPSGD(1.0, 0.2, 10, "balls-in-bins", times_per_epoch=2)},
        "sampling",
        None,
        None,
    ),
    "a logged loss": (trained(after_step=logged_loss), {}, "output", None, None),
    "a returned loss": (trained(after_step=returned_loss), {}, "output", None, None),
    "a gap that is not kept": (
        trained(),
        {"data": replayed.flags(), "secret": replayed.FLAG, "threat": bs.AttributeInference(0.05)},
        "distance",
        None,
        None,
    ),
    "without Opacus, some noise": (by_hand(noisy=lambda name: name != "0.bias"), HAND, "noise", 1, "0.bias"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_found(name: str) -> None:
    train, told, promise, step, parameter = BROKEN[name]
    result = found(train, **told)
    findings = {finding.promise: finding for finding in result.findings}
    assert result.violated
    assert promise in findings, str(result)
    if step is not None:
        assert findings[promise].step == step, str(result)
    if parameter is not None:
        assert findings[promise].parameter == parameter, str(result)
    assert findings[promise].sentence in result.sentence
    assert promise in str(result)


def test_a_promise_that_is_not_wanted_is_left_out() -> None:
    result = found(trained(after_step=printed_loss), ignore=["output"])
    assert not result.violated
    assert "Not looked at: output." in result.notes


def test_what_is_the_same_in_each_training_is_no_finding() -> None:
    """Times that are printed differ between trainings on the same data, and say nothing."""
    import time

    result = found(trained(after_step=lambda *_: print(time.perf_counter_ns())))
    assert not result.violated, str(result)


def test_json_has_what_is_printed() -> None:
    told = found(second_optimizer).as_dict()
    assert told["violated"] is True
    assert {"promise", "sentence", "step", "parameter", "measured", "allowed", "means"} == set(told["findings"][0])
