"""Loops that do more than a monitor expects: nothing that is legitimate is refused, and figures stay what they are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from betastar.training import AttributeMonitor, GradientError, Records, Secret

from .private import VALUES, build, clone, fit, oracle, private, table
from .test_monitor import attach, weights

SECRET = Secret.column(1, VALUES, name="secret")


def plain(steps: int = 4) -> tuple[np.ndarray[Any, Any], list[Tensor]]:
    """Distances and weights of a loop that does nothing else."""
    parts, criterion, monitor = attach()
    fit(parts, criterion, steps)
    return monitor.distances, weights(parts)


def same(parts: Any, monitor: AttributeMonitor) -> None:
    """The loop has made the same steps as one that does nothing else, and was measured alike."""
    distances, wanted = plain(monitor.steps)
    np.testing.assert_allclose(monitor.distances, distances, rtol=1e-6)
    torch.testing.assert_close(weights(parts), wanted, rtol=1e-6, atol=1e-7)
    assert "criterion" not in monitor.label


def test_copies_of_the_model_and_of_optimizers() -> None:
    parts, criterion, monitor = attach()
    model = copy.deepcopy(parts[0]).to_standard_module()
    inner = copy.deepcopy(parts[1].original_optimizer)
    other = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = parts[2].dataset[:9]

    def others(*_: Any) -> None:
        other.zero_grad()
        criterion(model(x), y).backward()
        other.step()
        inner.step()

    before = [p.detach().clone() for p in model.parameters()]
    others()
    fit(parts, criterion, 4, others)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    same(parts, monitor)


def test_averages_of_the_weights_between_steps() -> None:
    parts, criterion, monitor = attach()
    average = torch.optim.swa_utils.AveragedModel(parts[0]._module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    fit(parts, criterion, 4, lambda *_: average.update_parameters(parts[0]._module))
    x, _ = parts[2].dataset[:9]
    average.eval()
    assert average(x).isfinite().all()
    same(parts, monitor)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_terms_of_the_loss_that_depend_on_no_record(mode: str) -> None:
    """They reach the weights' plain gradients, which Opacus replaces by noisy ones."""
    parts, criterion, monitor = attach(grad_sample_mode=mode)

    def penalized(output: Tensor, target: Tensor) -> Tensor:
        return criterion(output, target) + 0.1 * sum(p.square().sum() for p in parts[1].params) + 3.0

    fit(parts, penalized, 4)
    same(parts, monitor)


def test_evaluation_in_the_middle() -> None:
    parts, criterion, monitor = attach()

    def evaluate(x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            criterion(parts[0](x[:5]), y[:5])
        parts[0].eval()
        criterion(parts[0](x[:5]).detach(), y[:5])
        parts[0].train()

    model, optimizer, loader = parts
    evaluate(*loader.dataset[:9])
    taken = 0
    while taken < 4:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            with torch.no_grad():
                criterion(model(x[:3]), y[:3])
            loss.backward()
            optimizer.step()
            taken += 1
            if taken == 4:
                break
    same(parts, monitor)


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
    module, twin = Heads(), Heads()
    twin.load_state_dict(module.state_dict())
    model, optimizer, loader = private(module, table())
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(model, optimizer, loader, criterion, SECRET)
    assert "criterion" not in monitor.label
    x, y = next(iter(loader))
    main, other = model(x)
    (criterion(main, y) + criterion(other["auxiliary"], y)).backward()
    optimizer.step()

    class Sum(nn.Module):
        def forward(self, output: Any, target: Tensor) -> Tensor:
            return criterion(output[0], target) + criterion(output[1]["auxiliary"], target)

    wanted = float(oracle(twin, Records((x,), y), SECRET, criterion=Sum()).max())
    assert monitor.distances[0] == pytest.approx(wanted, rel=1e-4)
    assert "calls the criterion 2 times a pass: distances are those of the plain sum" in monitor.label
    optimizer.zero_grad()
    main, other = model(x)
    (criterion(main, y) + criterion(other["auxiliary"], 1 - y)).backward()
    optimizer.step()
    assert "with other tensors or targets, too: distances are without these calls" in monitor.label


def test_a_criterion_that_a_second_monitor_takes() -> None:
    """The first one, whose last pass was never followed by a step, does not listen to the second training."""
    stale, criterion, first = attach()
    fit(stale, criterion, 2)
    criterion(stale[0](torch.ones(3, 6)), torch.tensor([0, 1, 0]))
    module, data, secret = build("tanh")
    parts = private(module, data)
    second = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, 4)
    same(parts, second)
    assert first.steps == 2
    assert "criterion" not in first.label


def test_a_layer_that_is_unfrozen_in_the_middle() -> None:
    module, data, secret = build("tanh")
    parts, criterion = private(module, data), nn.CrossEntropyLoss()
    module[0].requires_grad_(False)
    monitor = AttributeMonitor(*parts, criterion, secret)
    wanted: list[float] = []

    def watch(x: Tensor, y: Tensor) -> None:
        twin = clone(module, "tanh")
        twin[0].requires_grad_(module[0].weight.requires_grad)
        wanted.append(float(oracle(twin, Records((x,), y), secret).max()))

    fit(parts, criterion, 2, watch)
    assert "unfrozen" not in monitor.label
    module[0].requires_grad_(True)
    fit(parts, criterion, 2, watch)
    np.testing.assert_allclose(monitor.distances, wanted, rtol=1e-4)
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


def test_figures_after_a_state_was_loaded() -> None:
    parts, criterion, monitor = attach()
    with BatchMemoryManager(data_loader=parts[2], max_physical_batch_size=6, optimizer=parts[1]) as loader:
        fit((parts[0], parts[1], loader), criterion, 4)
    same(parts, monitor)
    _, _, other = attach()
    other.load_state_dict(monitor.state_dict())
    assert other.metrics() == monitor.metrics()
    assert other.entries() == monitor.entries()
    assert other.progress() == monitor.progress()


@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_a_monitor_claims_no_proof(scope: str) -> None:
    parts, criterion, monitor = attach(scope=scope, ledger=True)
    fit(parts, criterion, 2)
    texts = [str(monitor), repr(monitor), monitor.label, monitor.progress(), str(monitor.entries()), str(monitor.metrics())]
    assert not any("proved" in text.lower() for text in texts)
