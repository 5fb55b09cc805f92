"""Dropout: all values of a record have the masks that the loop's own forward pass has drawn for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from betastar.training import AttributeMonitor, Budget, GradientError, Records

from . import language_models as texts
from .private import VALUES, Secret, clipped_sum, diameters, fit, private, table, training

RATE = 0.4


class Wide(nn.Module):
    """Dropout of three kinds, one of them in place, on a layout that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 2)
        self.whole, self.channels, self.inside = nn.Dropout(RATE), nn.Dropout1d(RATE), nn.Dropout(RATE, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x)).reshape(len(x), 3, 4).transpose(1, 2)
        hidden = self.channels(self.whole(hidden)).transpose(1, 2).reshape(len(x), 12)
        return self.last(self.inside(hidden + 0.1) + nn.functional.dropout(hidden, RATE))


def wide(**_: Any) -> nn.Module:
    torch.manual_seed(0)
    return Wide()


Case = tuple[Any, Any, Any, Secret]
TRANSFORMERS = [*texts.MODELS, "bert-eager", "gpt2-eager"]


def case(name: str) -> Case:
    """A model with dropout, its data, criterion and secret."""
    if name == "table":
        return wide(), table(), nn.CrossEntropyLoss(), Secret.column(1, VALUES, name="secret")
    plain, eager = name.removesuffix("-eager"), {"attn_implementation": "eager"} if name.endswith("-eager") else {}
    made = texts.model(plain, dropout=RATE, **eager)
    return made, texts.texts(plain, 5), texts.criterion(plain), texts.secret()


def variants_in_turn(module: nn.Module, batch: Records, secret: Secret, state: Tensor, criterion: Any, clip: float) -> Tensor:
    """Clipped gradients, (n, a, weights), by running the whole batch as the loop does, with one value in one record changed.

    Each run draws the masks of the whole batch anew from the state that the loop's generator had.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    losses = type(criterion)(reduction="none")
    kept = torch.get_rng_state()
    rows = []
    for i in range(len(batch)):
        for k in range(secret.count):
            changed = batch.inputs[0].clone()
            changed[i] = secret.variants(batch.take([i]), [k]).inputs[0][0]
            torch.set_rng_state(state)
            loss = losses(module(changed), batch.target)[i]
            flat = torch.cat([g.double().flatten() for g in torch.autograd.grad(loss, parameters)])
            rows.append(flat * min(1.0, clip / (float(flat.norm()) + 1e-6)) / clip)
    torch.set_rng_state(kept)
    return torch.stack(rows).reshape(len(batch), secret.count, -1)


@pytest.mark.parametrize(
    ("name", "memory"), [*((name, 1 << 20) for name in ("table", *TRANSFORMERS)), ("table", 1 << 27), ("gpt2", 1 << 27)]
)
def test_masks_are_those_of_the_loop(name: str, memory: int) -> None:
    module, data, criterion, secret = case(name)
    copy, *_ = case(name)
    model, optimizer, loader = private(module, data, batch=8)
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, memory=memory, ledger=True)
    distances = monitor._distances
    distances._memory = min(distances._memory, 3 * secret.count * distances._per_variant)  # three records at a time
    wanted = []
    for x, y in [batch for batch in loader if len(batch[0])][:2]:
        optimizer.zero_grad()
        state = torch.get_rng_state()
        criterion(model(x), y).backward()
        copy.load_state_dict(module.state_dict())
        points = variants_in_turn(copy, Records((x,), y), secret, state, criterion, 0.5)
        wanted.append(float(diameters(points).max()))
        monitor.records(range(len(x)))
        optimizer.step()
    np.testing.assert_allclose(monitor.distances, wanted, rtol=0.0, atol=1e-5)
    assert min(wanted) > 0.02


@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")  # of Opacus with functorch
@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch"])
@pytest.mark.parametrize("name", ["table", "encoder", "gpt2", "lora"])
def test_the_loop_draws_the_same_random_numbers(name: str, mode: str) -> None:
    ends = []
    for watched in (False, True):
        module, data, criterion, secret = case(name)
        parts = private(module, data, batch=8, grad_sample_mode=mode, criterion=criterion)
        kept, loss = (parts[0], parts[1], parts[-1]), parts[2] if mode == "ghost" else criterion
        torch.manual_seed(11)
        if watched:
            monitor = AttributeMonitor(*kept, loss, secret)
        fit(kept, loss, steps=3)
        ends.append((module.state_dict(), torch.get_rng_state()))
    assert torch.equal(ends[0][1], ends[1][1])
    assert all(torch.equal(ends[0][0][key], ends[1][0][key]) for key in ends[0][0])
    assert monitor.distances.min() > 0.0


@pytest.mark.parametrize("name", ["table", *texts.MODELS])
def test_gap_clipping_has_one_mask_for_all_values(name: str) -> None:
    gap = 0.02
    module, data, criterion, secret = case(name)
    copy, *_ = case(name)
    made = training(module, data, secret, criterion, gap=gap, batch_size=8)
    trained, total = [p for p in module.parameters() if p.requires_grad], clipped_sum(made)
    sums: list[Tensor] = []
    computed = total.total

    def spy(*given: Any) -> Any:
        found = computed(*given)
        sums.append(torch.cat([found[p].flatten() for p in trained]) / 0.5)
        return found

    total.total = spy  # type: ignore[method-assign]
    x, y = data[made._draws.indices(0)]
    copy.load_state_dict(module.state_dict())
    batch = Records((x,), y)
    with made._own_masks(0):
        state = torch.get_rng_state()
    points = variants_in_turn(copy, batch, secret, state, criterion, 0.5)
    made.step()
    mean = torch.einsum("na,nad->nd", secret.shares(batch), points)
    away = points[torch.arange(len(x)), secret.own(batch)] - mean
    wanted = (mean + away * (0.5 * gap / away.norm(dim=1)).clamp(max=1.0)[:, None]).sum(dim=0)
    torch.testing.assert_close(sums[0], wanted, rtol=0.0, atol=2e-5)
    assert float(diameters(points).max()) > gap
    assert len(x) > 2


def test_all_records_need_masks() -> None:
    module, data, criterion, secret = case("table")
    state = torch.get_rng_state()
    message = "has dropout, whose masks exist for the records of a batch only"
    with pytest.raises(GradientError, match=message):
        training(module, data, secret, budget=Budget(0.9))
    parts = private(module, data)
    with pytest.raises(GradientError, match=message):
        AttributeMonitor(*parts, criterion, secret, scope="dataset")
    assert torch.equal(state, torch.get_rng_state())


class Other(nn.Module):
    """Drops out across records, or once more for some values of a record."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Linear(6, 8), nn.Linear(8, 2), how

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.how == "turned":
            hidden = nn.functional.dropout(hidden.T, 0.3).T
        elif self.how == "depends" and bool((x[:, 1] == VALUES[0]).all()):
            hidden = nn.functional.dropout(hidden, 0.3)
        return self.last(nn.functional.dropout(hidden, 0.3))


def test_dropout_across_records_is_refused() -> None:
    parts = private(Other("turned"), table())
    state = torch.get_rng_state()
    with pytest.raises(GradientError, match="its first dimension must count the records"):
        AttributeMonitor(*parts, nn.CrossEntropyLoss(), Secret.column(1, VALUES))
    assert torch.equal(state, torch.get_rng_state())


def test_another_number_of_calls_is_refused() -> None:
    module, data = Other("depends"), table()
    data.tensors[0][:, 1] = VALUES[0]  # all variants are given one more mask than their records
    parts = private(module, data)
    with pytest.raises(GradientError, match="which layers run must not depend on the secret"):
        AttributeMonitor(*parts, nn.CrossEntropyLoss(), Secret.column(1, VALUES, unseen=True))


def test_a_seed_that_is_set_in_between_is_found() -> None:
    """Whoever sets a seed after the forward pass changes nothing; dropout of the loop is repeated from the state before it."""
    module, data, criterion, secret = case("table")
    parts = private(module, data)
    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, steps=2, watch=lambda *_: torch.manual_seed(5))
    assert len(monitor.distances) == 2


def test_a_step_without_measurement_costs_no_pass() -> None:
    module, data, criterion, secret = case("table")
    parts = private(module, data)
    monitor = AttributeMonitor(*parts, criterion, secret, every=3)
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    fit(parts, criterion, steps=3)
    measured = len(calls) - 3
    calls.clear()
    fit(parts, criterion, steps=1)
    assert measured > 0
    assert len(calls) == 1 + measured
    assert len(monitor.distances) == 4
