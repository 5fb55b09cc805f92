"""Transformers: distances, gap clipping and training are those of single texts, one value at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from betastar.training import AttributeMonitor, Records

from . import private as small
from .language_models import MODELS, criterion, model, secret, texts
from .private import clipped, diameters, private, sum_of, training
from .test_distances import measuring

TOLERANCE = 1e-5  # absolute, in clipping norms
NUMBER = 5


def points(module: nn.Module, name: str, records: Records, clip: Any = 0.5) -> Tensor:
    """Clipped gradients of all variants in double precision, one text and one value at a time, (n, a, weights)."""
    copy = model(name).double()
    copy.load_state_dict(module.state_dict())
    return clipped(copy, records, secret(), clip, criterion(name))


def some(data: Any, number: int = NUMBER) -> Records:
    return Records((data[:number][0],), data[:number][1])


def close(measured: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(measured, wanted, rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("length", [3, 5, 24])
@pytest.mark.parametrize("name", MODELS)
def test_distances_are_those_of_single_texts(name: str, length: int) -> None:
    data, module = texts(name, length), model(name)
    records = some(data)
    wanted = points(module, name, records)
    parts = private(module, data)
    measured = {kind: measuring(parts, secret(), kind, criterion=criterion(name)) for kind in ("exact", "centroid")}
    each = {kind: measure.each(records) for kind, measure in measured.items()}
    close(each["exact"], diameters(wanted))
    close(each["centroid"], 2.0 * (wanted - wanted.mean(dim=1, keepdim=True)).norm(dim=2).amax(dim=1))
    assert (each["exact"] <= each["centroid"] + TOLERANCE).all()
    for kind, measure in measured.items():
        assert measure.largest(records) == pytest.approx(float(each[kind].max()), abs=TOLERANCE)
    assert diameters(wanted).max() > 0.05  # the test could fail


@pytest.mark.parametrize("name", MODELS)
def test_distances_with_clipping_layer_by_layer(name: str) -> None:
    data, module = texts(name, 4), model(name)
    limits = [0.02 + 0.01 * (i % 3) for i, p in enumerate(module.parameters()) if p.requires_grad]
    wanted = points(module, name, some(data), limits)
    parts = private(module, data, clip=limits, clipping="per_layer")
    close(measuring(parts, secret(), criterion=criterion(name)).each(some(data)), diameters(wanted))


@pytest.mark.parametrize(("name", "length"), [*((name, 3) for name in MODELS), ("encoder", 12), ("gpt2-tied", 12)])
def test_gap_clipping_keeps_the_gap_at_every_value(name: str, length: int) -> None:
    gap = 0.05
    data, module = texts(name, length), model(name)
    copy = model(name)
    made = training(module, data, secret(), criterion(name), batch_size=8, gap=gap)
    records = some(data, 3)
    wanted = points(copy, name, records)
    shares = secret().shares(records)
    for i in range(len(records)):
        used = [sum_of(made, secret().variants(records.take([i]), [k])) for k in range(secret().count)]
        mean = shares[i].double() @ wanted[i]
        away = wanted[i] - mean
        close(torch.stack(used), mean + away * (0.5 * gap / away.norm(dim=1)).clamp(max=1.0)[:, None])
        assert float(diameters(torch.stack(used)[None])) <= gap * (1.0 + 1e-9)
    assert float(diameters(wanted).max()) > gap


def test_ghost_clipping_does_not_take_shared_weights() -> None:
    """Opacus says so itself, in the training loop."""
    module, data = model("gpt2-tied"), texts("gpt2-tied", 5)
    wrapped, optimizer, loss, loader = private(module, data, grad_sample_mode="ghost", criterion=criterion("gpt2-tied"))
    AttributeMonitor(wrapped, optimizer, loader, loss, secret())
    with pytest.raises(NotImplementedError, match="Parameter tying is not supported with Ghost Clipping"):
        small.fit((wrapped, optimizer, loader), loss, steps=1)
