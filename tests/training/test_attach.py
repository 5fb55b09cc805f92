"""What is refused when a monitor is attached, or at the step where it shows; training state stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from betastar.training import AttributeMonitor, GradientError, Secret

from .private import VALUES, fit, private, table
from .test_monitor import attach, weights

SECRET = Secret.column(1, VALUES, name="age")


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))


def refuse(message: str, parts: Any, criterion: Any = None, secret: Any = SECRET, kind: Any = ValueError, **options: Any) -> None:
    state = torch.get_rng_state()
    with pytest.raises(kind, match=message):
        AttributeMonitor(parts[0], parts[1], parts[-1], criterion or nn.CrossEntropyLoss(), secret, **options)
    assert torch.equal(state, torch.get_rng_state())


def test_arguments() -> None:
    parts = private(mlp(), table())
    refuse("secret must be a Secret, got 3", parts, secret=3, kind=TypeError)
    refuse("criterion must be callable", parts, criterion="mse", kind=TypeError)
    refuse("scope must be one of 'batch', 'dataset', got 'epoch'", parts, scope="epoch")
    refuse("diameter must be one of 'exact', 'centroid', got 'max'", parts, diameter="max")
    refuse("every must be a whole number of at least 1, got 0", parts, every=0)
    refuse("memory must be at least [0-9]* bytes, got 10", parts, memory=10)
    refuse(r"needs column 17, but the model's input has 6 columns", parts, secret=Secret.column(17, VALUES))
    refuse("never takes the value", parts, secret=Secret.column(1, [17.0, 18.0]))


def test_what_opacus_did_not_make() -> None:
    module, data = mlp(), table()
    model, optimizer, loader = private(module, data)
    refuse("model must be what make_private of Opacus returned", (module, optimizer, loader), kind=TypeError)
    refuse("optimizer must be what make_private", (model, optimizer.original_optimizer, loader), kind=TypeError)
    adaptive = private(
        mlp(), data, clipping="adaptive", target_unclipped_quantile=0.5, clipbound_learning_rate=0.2,
        max_clipbound=9.0, min_clipbound=0.1, unclipped_num_std=5.0,
    )  # fmt: skip
    refuse("optimizer clips adaptively", adaptive)


def test_sampling_that_is_not_poisson() -> None:
    data = table()
    shuffled = private(mlp(), data, poisson_sampling=False)
    refuse(r"Poisson\), got SequentialSampler\. .*private_loader", shuffled)
    weighted = DataLoader(data, batch_size=20, sampler=WeightedRandomSampler([1.0] * len(data), len(data)))
    model, optimizer, _ = private(mlp(), data)
    refuse(r"with the same probability, independently \(Poisson\), got WeightedRandomSampler", (model, optimizer, weighted))


def test_models() -> None:
    parts = private(mlp(), table())
    parts[0].eval()
    refuse(r"model is in eval mode: call model\.train\(\)", parts)
    parts = private(mlp(), table(), noise=0.0)
    refuse("noise_multiplier must be greater than 0, got 0", parts)
    module = mlp()
    loader = DataLoader(table(), batch_size=20)
    parts = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module[2].parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    refuse(r"0\.weight is trainable but not in the optimizer", parts)
    parts = private(nn.Sequential(nn.Linear(6, 9), nn.AlphaDropout(), nn.Linear(9, 2)), table())
    refuse(r"draws random numbers when it runs \(1\)", parts, kind=GradientError)


class Unused(nn.Module):
    """One layer is never called as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(self.body(x), self.head.weight)


class Pair(nn.Module):
    """A layer with its own parameter that returns two things."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Any) -> Any:
        return x * self.scale, x


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = Pair(), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.pair(x)[0])


def test_gradients_that_cannot_be_had_name_the_module() -> None:
    refuse(
        r"gradients of head\.weight cannot be computed: its module was not called", private(Unused(), table()), kind=GradientError
    )
    refuse(
        r"gradients of pair \(Pair\) cannot be computed: it must map a tensor to a tensor",
        private(Head(), table()),
        kind=GradientError,
    )


def test_criteria() -> None:
    parts = private(mlp(), table())
    other = r"another reduction than the optimizer assumes, '{}'"
    refuse(other.format("mean"), parts, nn.CrossEntropyLoss(reduction="sum"), kind=GradientError)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))
    refuse(r"a criterion that mixes records \(class weights", parts, weighted, kind=GradientError)
    refuse(r"criterion must give one loss, or one for each record, got shape \(\d+, 2\)", parts, lambda out, y: out)
    summed = private(mlp(), table(), loss_reduction="sum")
    refuse(other.format("sum"), summed, kind=GradientError)
    AttributeMonitor(*summed, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]), reduction="sum"), SECRET)


def test_a_prediction_that_was_changed_on_the_way() -> None:
    parts, criterion, _ = attach()
    before = weights(parts)
    model, optimizer, loader = parts
    x, y = next(iter(loader))
    criterion(torch.log_softmax(model(x), dim=1), y).backward()
    with pytest.raises(RuntimeError, match=r"saw no call of its criterion with what the model returned.*passed as criterion"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(parts), strict=True))


@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_gradients_that_are_not_numbers(scope: str) -> None:
    parts, criterion, monitor = attach(scope=scope)
    fit(parts, criterion, 2)
    with torch.no_grad():
        parts[1].params[0][0, 0] = torch.nan
    before = weights(parts)
    with pytest.raises(GradientError, match=r"not finite.* The weights were not changed"):
        fit(parts, criterion, 1)
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, weights(parts), strict=True))
    assert monitor.steps == 2


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        x, y = table()[index]
        x = x.clone()
        x[0] += torch.randn(())
        return x, y


def test_data_sets() -> None:
    refuse("data set that draws random numbers", private(mlp(), Noisy()), scope="dataset")
    AttributeMonitor(*private(mlp(), Noisy()), nn.CrossEntropyLoss(), SECRET)
    parts = private(mlp(), [{"x": x, "y": y} for x, y in table()])
    refuse(r"a batch must be \(inputs, target, \.\.\.\), got dict with the keys 'x', 'y'; pass split=", parts, kind=TypeError)


def test_indices_for_the_ledger() -> None:
    parts, criterion, monitor = attach(ledger=True)
    with pytest.raises(ValueError, match=r"indices must be between 0 and 119, got \[200\]"):
        monitor.records([200])
    monitor.records([1, 2])
    with pytest.raises(ValueError, match="indices must be one for each of the"):
        fit(parts, criterion, 1)
    *_, without = attach()
    with pytest.raises(ValueError, match="make it with ledger=True"):
        without.records([1])


def test_nothing_to_say_before_the_first_step() -> None:
    *_, monitor = attach()
    with pytest.raises(ValueError, match="no step was taken yet"):
        monitor.risk()
    assert "no step yet" in monitor.progress()
    assert monitor.steps == 0
