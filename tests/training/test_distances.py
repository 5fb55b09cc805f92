"""Distances against the oracle: every kind of layer, every mode of Opacus, every way to measure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from betastar.training import Records, Secret
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.opacus.adapter import OpacusAdapter, loss_of

from .private import MODELS, build, clipped, clone, diameters, oracle, private, table

CRITERION = nn.CrossEntropyLoss()


def measuring(
    parts: Any, secret: Secret, kind: str = "exact", memory: int = 1 << 27, criterion: Any = CRITERION
) -> RecordDistances:
    model, optimizer, loader = parts[0], parts[1], parts[-1]
    adapter = OpacusAdapter(model, optimizer, loader)

    def total_loss(output: Any, target: Any, rows: int) -> torch.Tensor:
        loss = loss_of(criterion)(output, target)
        return loss.sum() if loss.ndim else loss * rows if adapter.loss_reduction == "mean" else loss

    made = RecordDistances(VariantGradients(adapter, total_loss), secret, kind, memory)
    made.try_out(Records(tuple(loader.dataset[:4][:1]), loader.dataset[:4][1]))
    return made


def some(data: Any, number: int = 10) -> Records:
    return Records((data[:number][0],), data[:number][1])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bias", [True, False])
def test_distances_equal_the_oracle(name: str, bias: bool) -> None:
    module, data, secret = build(name, bias, 10)
    points = clipped(clone(module, name, bias, 10), some(data), secret)
    parts = private(module, data)
    radius = (points - points.mean(dim=1, keepdim=True)).norm(dim=2).amax(dim=1)
    for kind, wanted in (("exact", diameters(points)), ("centroid", 2.0 * radius)):
        measure = measuring(parts, secret, kind)
        torch.testing.assert_close(measure.each(some(data)), wanted.clamp(max=2.0), rtol=0.0, atol=1e-5)
        assert measure.largest(some(data)) == pytest.approx(float(wanted.clamp(max=2.0).max()), abs=1e-5)
        assert wanted.max() > 0.05  # the test could fail


@pytest.mark.parametrize("clip", [1e-3, 0.05, 100.0])
def test_clipping_follows_the_optimizer(clip: float) -> None:
    module, data, secret = build("tanh")
    wanted = oracle(clone(module, "tanh"), some(data), secret, clip)
    model, optimizer, loader = private(module, data, clip=1.0)
    measure = measuring((model, optimizer, loader), secret)
    optimizer.max_grad_norm = clip
    torch.testing.assert_close(measure.each(some(data)), wanted, rtol=1e-4, atol=1e-7)


def test_clipping_layer_by_layer() -> None:
    module, data, secret = build("tanh")
    limits = [0.02, 0.5, 0.01, 1.0]
    wanted = oracle(clone(module, "tanh"), some(data), secret, limits)
    parts = private(module, data, clip=limits, clipping="per_layer")
    torch.testing.assert_close(measuring(parts, secret).each(some(data)), wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", ["exact", "centroid"])
@pytest.mark.parametrize("name", ["tanh", "conv"])
def test_blocks_of_values_change_nothing(kind: str, name: str) -> None:
    """With little memory a record's values are looked at in blocks."""
    module, data, secret = build(name)
    parts = private(module, data)
    whole, blocked = measuring(parts, secret, kind), measuring(parts, secret, kind)
    blocked._memory = 3 * blocked._per_variant
    assert len(blocked._sizes) == 3
    torch.testing.assert_close(blocked.each(some(data)), whole.each(some(data)), rtol=1e-5, atol=1e-7)
    assert blocked.largest(some(data)) == pytest.approx(whole.largest(some(data)), rel=1e-5)


def test_small_distances_keep_their_digits() -> None:
    """Two values that hardly differ: single precision loses such a difference of numbers near 1."""
    module, data, _ = build("tanh")
    module, data = module.double(), torch.utils.data.TensorDataset(data[:][0].double(), data[:][1])
    secret = Secret.column(1, [0.0, 1e-5], unseen=True)
    wanted = oracle(clone(module, "tanh").double(), some(data), secret)
    measured = measuring(private(module, data), secret).each(some(data))
    assert 1e-7 < wanted.min() < 1e-4
    torch.testing.assert_close(measured, wanted, rtol=1e-4, atol=1e-12)


def test_pruning_finds_the_largest_of_many() -> None:
    module, _data, secret = build("relu3")
    measure = measuring(private(module, table(3000)), secret)
    records = some(table(3000), 3000)
    assert measure.largest(records) == pytest.approx(float(measure.each(records).max()), rel=1e-6)
    assert measure.largest(records, floor=1.9) == 1.9
