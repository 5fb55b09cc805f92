"""Loops that do more than a monitor expects: nothing that is legitimate is refused, and figures stay what they are."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from betastar.training import AttributeMonitor, GradientError, Records, Secret, private_loader

from .private import VALUES, build, clone, fit, oracle, private, table
from .test_monitor import attach, weights

SECRET = Secret.column(1, VALUES, name="secret")


def same(parts: Any, monitor: AttributeMonitor) -> None:
    """The loop has made the same steps as one that does nothing else, and was measured alike."""
    plain, criterion, other = attach()
    fit(plain, criterion, monitor.steps)
    np.testing.assert_allclose(monitor.distances, other.distances, rtol=1e-6)
    torch.testing.assert_close(weights(parts), weights(plain), rtol=1e-6, atol=1e-7)
    assert "criterion" not in monitor.label


def largest(module: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Any:
    """The largest distance of a batch, by the oracle."""
    return pytest.approx(float(oracle(module, Records((x,), y), SECRET, **options).max()), rel=1e-4)


def other_optimizers(parts: Any, criterion: Any) -> Callable[..., None]:
    """Copies of the model and of the inner optimizer go on by themselves."""
    model, inner = copy.deepcopy(parts[0]).to_standard_module(), copy.deepcopy(parts[1].original_optimizer)
    other = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = parts[2].dataset[:9]
    before = [p.detach().clone() for p in model.parameters()]

    def go_on(*_: Any) -> None:
        other.zero_grad()
        criterion(model(x), y).backward()
        other.step()
        inner.step()
        assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    return go_on


def average(parts: Any, criterion: Any) -> Callable[..., None]:
    """An average of the weights."""
    model = parts[0]._module
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def update(*_: Any) -> None:
        averaged.update_parameters(model)
        assert averaged.eval()(parts[2].dataset[:9][0]).isfinite().all()

    return update


def evaluation(parts: Any, criterion: Any) -> Callable[..., None]:
    """Evaluations, in both modes, with the same criterion."""

    def evaluate(x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            criterion(parts[0](x[:5]), y[:5])
        parts[0].eval()
        criterion(parts[0](x[:5]).detach(), y[:5])
        parts[0].train()

    return evaluate


def criterion_of_another_monitor(parts: Any, criterion: Any) -> Callable[..., None]:
    """Another training with the same criterion, whose last pass is never followed by a step."""
    module, data, secret = build("tanh")
    stale = private(module, data)
    AttributeMonitor(*stale, criterion, secret)
    return lambda *_: criterion(stale[0](torch.ones(3, 6)), torch.tensor([0, 1, 0]))


@pytest.mark.parametrize("beside", [other_optimizers, average, evaluation, criterion_of_another_monitor])
def test_what_happens_beside_the_loop(beside: Callable[..., Callable[..., None]]) -> None:
    parts, criterion, monitor = attach()
    fit(parts, criterion, 4, beside(parts, criterion))
    same(parts, monitor)


def test_an_evaluation_between_the_model_and_its_loss() -> None:
    parts, criterion, monitor = attach()
    for x, y in islice(parts[2], 4):
        parts[1].zero_grad()
        output = parts[0](x)
        with torch.no_grad():
            parts[0](x[:3])
        criterion(output, y).backward()
        parts[1].step()
    same(parts, monitor)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_terms_of_the_loss_that_depend_on_no_record(mode: str) -> None:
    """They reach the weights' plain gradients, which Opacus replaces by noisy ones."""
    parts, criterion, monitor = attach(grad_sample_mode=mode)

    def penalized(output: Tensor, target: Tensor) -> Tensor:
        return criterion(output, target) + 0.1 * sum(p.square().sum() for p in parts[1].params) + 3.0

    fit(parts, penalized, 4)
    same(parts, monitor)


def test_a_forward_pass_that_was_not_used_is_forgotten() -> None:
    parts, criterion, monitor = attach()
    x, y = next(iter(parts[2]))
    criterion(parts[0](x), y)
    for module in parts[0]._module.modules():
        vars(module).pop("activations", None)  # Opacus keeps those of the first pass
    for p in parts[1].params:
        p._forward_counter = 0
    fit(parts, criterion, 1)
    assert monitor.steps == 1


class Heads(nn.Module):
    """A network with an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(6, 9), nn.Linear(9, 2), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden), {"auxiliary": self.auxiliary(hidden)}


def test_several_heads() -> None:
    torch.manual_seed(0)
    module = Heads()
    twin = copy.deepcopy(module)
    model, optimizer, loader = private(module, table())
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(model, optimizer, loader, criterion, SECRET)
    assert "criterion" not in monitor.label
    x, y = next(iter(loader))

    def step(second: Tensor) -> None:
        optimizer.zero_grad()
        main, other = model(x)
        (criterion(main, y) + criterion(other["auxiliary"], second)).backward()
        optimizer.step()

    class Sum(nn.Module):
        def forward(self, output: Any, target: Tensor) -> Tensor:
            return criterion(output[0], target) + criterion(output[1]["auxiliary"], target)

    step(y)
    assert monitor.distances[0] == largest(twin, x, y, criterion=Sum())
    assert "calls the criterion 2 times a pass: distances are those of the plain sum" in monitor.label
    step(1 - y)
    assert "with other tensors or targets, too: distances are without these calls" in monitor.label


class Gate(nn.Module):
    """Reads its table in a second way that only shows for some records."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 9), nn.Linear(9, 2)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.body(x)) * (1 + 5 * (x[:, 5:6] > 0)))


class Codes(nn.Module):
    """Reads one column as a category."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(9, 2)

    def forward(self, x: Any) -> Any:
        return self.head(torch.cat([self.embedding(x[:, 0].clamp(0, 3).long()), x], dim=1))


@pytest.mark.parametrize("make", [Gate, Codes])
def test_models_that_read_the_table_in_other_ways(make: Any) -> None:
    torch.manual_seed(0)
    data = table()
    order = data.tensors[0][:, 5].argsort()
    data = TensorDataset(data.tensors[0][order], data.tensors[1][order])
    module = make()
    wanted = largest(copy.deepcopy(module), *data[:])
    parts, criterion = private(module, data), nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, SECRET, scope="dataset")
    fit(parts, criterion, 1)
    assert monitor.distances[0] == wanted


def test_a_batch_that_is_overwritten_after_its_pass() -> None:
    parts, criterion, monitor = attach()
    x, y = next(iter(parts[2]))
    wanted = largest(clone(parts[0]._module, "tanh"), x.clone(), y)
    criterion(parts[0](x), y).backward()
    x.mul_(100.0)
    parts[1].step()
    assert monitor.distances[0] == wanted


def test_several_batches_in_one_step() -> None:
    module, data, _ = build("tanh")
    loader = private_loader(DataLoader(data, batch_size=20), "fixed-size")
    parts, criterion = private(module, data, poisson_sampling=False, loader=loader), nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, SECRET)
    model, optimizer, loader = parts
    x, y = (torch.cat(both) for both in zip(*list(loader)[:2], strict=True))
    wanted = largest(clone(model._module, "tanh"), x, y)
    for some in range(0, 40, 20):
        criterion(model(x[some : some + 20]), y[some : some + 20]).backward()
    optimizer.step()
    assert monitor.distances[0] == wanted


def test_an_error_in_the_middle_leaves_nothing_known() -> None:
    parts, criterion, monitor = attach(scope="dataset")
    data = parts[2].dataset
    kept = data.tensors[0][50, 0].item()
    data.tensors[0][50, 0] = torch.nan
    with pytest.raises(GradientError):
        fit(parts, criterion, 1)
    data.tensors[0][50, 0] = kept
    fit(parts, criterion, 2)
    other, criterion, clean = attach(scope="dataset")
    fit(other, criterion, 1)
    assert monitor.distances[0] == pytest.approx(clean.distances[0], rel=1e-6)


def test_a_layer_that_is_unfrozen_in_the_middle() -> None:
    module, data, secret = build("tanh")
    parts, criterion = private(module, data), nn.CrossEntropyLoss()
    module[0].requires_grad_(False)
    monitor = AttributeMonitor(*parts, criterion, secret)
    wanted: list[Any] = []

    def watch(x: Tensor, y: Tensor) -> None:
        twin = clone(module, "tanh")
        twin[0].requires_grad_(module[0].weight.requires_grad)
        wanted.append(largest(twin, x, y))

    fit(parts, criterion, 2, watch)
    assert "unfrozen" not in monitor.label
    module[0].requires_grad_(True)
    fit(parts, criterion, 2, watch)
    assert monitor.distances.tolist() == wanted
    assert "layers were frozen or unfrozen since the monitor was made: distances follow from then on" in monitor.label


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.head, self.reentrant = nn.Linear(6, 9), nn.Linear(9, 2), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda z: torch.tanh(self.first(z)), x, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize(("reentrant", "why"), [(False, "the backward pass calls it again"), (True, "it is called without them")])
def test_checkpointing_of_plain_modules_is_refused(reentrant: bool, why: str) -> None:
    message = rf"gradients of first \(Linear\) cannot be computed: {why}\. Switch off gradient checkpointing"
    with pytest.raises(GradientError, match=message):
        AttributeMonitor(*private(Checkpointed(reentrant), table()), nn.CrossEntropyLoss(), SECRET)


@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_figures_of_a_loaded_state_claim_no_proof(scope: str) -> None:
    parts, criterion, monitor = attach(scope=scope, ledger=True)
    with BatchMemoryManager(data_loader=parts[2], max_physical_batch_size=6, optimizer=parts[1]) as loader:
        fit((parts[0], parts[1], loader), criterion, 4)
    if scope == "batch":
        same(parts, monitor)
    _, _, other = attach(scope=scope, ledger=True)
    other.load_state_dict(monitor.state_dict())
    assert other.metrics() == monitor.metrics()
    assert other.entries() == monitor.entries()
    assert other.progress() == monitor.progress()
    texts = [str(other), repr(other), other.label, other.progress(), str(other.entries()), str(other.metrics())]
    assert not any("proved" in text.lower() for text in texts)


HOOK = "Full backward hook is firing"


@pytest.mark.parametrize("action", ["default", "always"])
@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_a_monitor_adds_no_warning(action: Any, scope: str) -> None:
    shown = []
    for watched in (False, True):
        module, data, secret = build("tanh")
        parts, criterion = private(module, data), nn.CrossEntropyLoss()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            if watched:
                AttributeMonitor(*parts, criterion, secret, scope=scope)
            fit(parts, criterion, 8)
        shown.append([str(one.message) for one in caught])
    assert [message[: len(HOOK)] for message in shown[0]] == [HOOK] * (1 if action == "default" else 8)
    assert shown[1] == shown[0]
