"""Sketches stand for sums of gradients: of the same sums they are the same, and differences show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from betastar.training import AttributeMonitor, GradientError, make_attribute_private
from betastar.training.gradients.factors import Sketches
from betastar.training.gradients.tiled_factor import TiledFactor, inner_products

from .language_models import MODELS, criterion, model, secret, texts
from .private import private
from .test_distances import measuring
from .test_transformers import some


@pytest.mark.parametrize("name", MODELS)
def test_of_sums_that_are_written_out(name: str) -> None:
    data, module = texts(name, 7), model(name)
    gradients = measuring(private(module, data), secret(), criterion=criterion(name))._gradients(some(data), 0)
    sketches = Sketches()
    from_factors = sketches.of_sum(gradients)
    totals = gradients.totals(torch.ones_like(gradients.norms))
    assert any(isinstance(factor, TiledFactor) for factor in gradients.factors)
    assert from_factors.keys() == totals.keys()
    for parameter, total in totals.items():
        torch.testing.assert_close(
            sketches.of(parameter, total), from_factors[parameter], rtol=1e-4, atol=1e-6, check_dtype=False
        )


@pytest.mark.parametrize("rank", [1, 3, 40])
def test_the_squares_of_a_sketch_estimate_those_of_the_matrix(rank: int) -> None:
    """A single direction is the hardest to see; the mean over many matrices is right for all ranks."""
    generator = torch.Generator().manual_seed(rank)
    weight = nn.Parameter(torch.zeros(50, 40))
    sketches = Sketches()
    sketches._drawn(weight)
    estimates = []
    for _ in range(400):
        left, right = (torch.randn(size, rank, generator=generator) for size in weight.shape)
        matrix = left @ right.T
        estimates.append(float(sketches.of(weight, matrix / matrix.norm()).square().sum()))
    assert min(estimates) > 0.1
    assert sum(estimates) / len(estimates) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("records", "entries"), [(1, 65536), (1, 5000), (1, 7), (3, 4096)])
def test_inner_products_in_pieces(records: int, entries: int) -> None:
    tile = torch.randn(records, 10, entries, generator=torch.Generator().manual_seed(0))
    wanted = tile.double() @ tile.double().transpose(1, 2)
    torch.testing.assert_close(inner_products(tile).double(), wanted, rtol=1e-5, atol=1e-5 * entries**0.5)


def test_differences_need_the_products_of_every_weight() -> None:
    data, module = texts("encoder", 7), model("encoder")
    gradients = measuring(private(module, data), secret(), criterion=criterion("encoder"))._gradients(some(data), 0)
    assert gradients.differences().isfinite().all()
    with pytest.raises(AssertionError):
        gradients.variants([0, 1]).differences()  # not those of the other weights alone, which would be too small


def largest_weight(module: nn.Module) -> Any:
    """The largest one that serves several positions."""
    return max((p for p in module.parameters() if p.requires_grad and p.ndim == 2), key=Tensor.numel)


@pytest.mark.parametrize("name", ["encoder", "gpt2", "lora"])
def test_the_monitor_notices_a_sum_that_was_changed(name: str) -> None:
    data, module = texts(name, 7), model(name)
    wrapped, optimizer, loader = private(module, data)
    loss = criterion(name)
    AttributeMonitor(wrapped, optimizer, loader, loss, secret())
    x, y = next(iter(loader))
    loss(wrapped(x), y).backward()
    largest_weight(module).grad_sample[0] *= 1.1
    with pytest.raises(GradientError, match="away from the sum of the records' clipped gradients"):
        optimizer.step()


@pytest.mark.parametrize("name", ["encoder", "gpt2", "lora"])
def test_gap_clipping_notices_a_gradient_that_was_changed(name: str) -> None:
    data, module, loss = texts(name, 7), model(name), criterion(name)
    wrapped, optimizer, loader = make_attribute_private(
        module=module, optimizer=torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=8), criterion=loss, secret=secret(),
        noise_multiplier=1.0, max_grad_norm=0.5, gap=0.1,
    )  # fmt: skip
    x, y = next(iter(loader))
    loss(wrapped(x), y).backward()
    largest_weight(module).grad.mul_(1.5)
    with pytest.raises(GradientError, match="not the criterion's"):
        optimizer.step()
