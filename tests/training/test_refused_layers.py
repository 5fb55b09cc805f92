"""Layers whose gradients cannot be measured are refused by name, with the way out, and nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar.training import AttributeMonitor, GradientError, Secret

from .private import VALUES, private, table, tokens, training


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(11, 4, mode="mean"), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids.flatten(), torch.arange(len(ids)) * ids.shape[1]))


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(6, 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x, x.tanh())


class Weighted(nn.Module):
    """A layer with a parameter of its own that takes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.weight * x + y


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.head = Weighted(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mixed(x, x.tanh()))


class Centred(nn.Module):
    """Mixes records: each is moved by the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(hidden - hidden.mean(dim=0))


NUMBER, WORD = Secret.column(1, VALUES, name="secret"), Secret.column(2, range(11), name="word")
REFUSED: list[tuple[Any, TensorDataset, Secret, type[Exception], str]] = [
    (Bag, tokens(), WORD, GradientError, r"gradients of bag \(EmbeddingBag\).*use nn\.Embedding and take the mean or sum"),
    (Products, table(), NUMBER, GradientError, r"gradients of both \(Bilinear\).*use nn\.Linear on an outer product"),
    (Two, table(), NUMBER, GradientError, r"gradients of mixed \(Weighted\).*takes 2 .*give each of its tensors to a layer of"),
    (Centred, table(), NUMBER, GradientError, r"a model or a criterion that mixes records|depends on the other records"),
]


@pytest.mark.parametrize(("make", "data", "secret", "kind", "message"), REFUSED)
def test_refused_by_the_monitor(make: Any, data: Any, secret: Secret, kind: Any, message: str) -> None:
    module = make()
    parts = private(module, data)
    before, state = {key: value.clone() for key, value in module.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(kind, match=message):
        AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:gradients are computed by:UserWarning")
@pytest.mark.parametrize(("make", "data", "secret", "kind", "message"), REFUSED)
def test_refused_by_gap_clipping(make: Any, data: Any, secret: Secret, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        training(make(), data, secret, gap=0.1).step()


@pytest.mark.parametrize("layer", ["bag", "both", "mixed"])
def test_frozen_layers_may_take_what_they_like(layer: str) -> None:
    """Freezing is the way out that the error names."""
    (make, data, secret, _, _) = next(one for one in REFUSED if hasattr(one[0](), layer))
    module = make()
    getattr(module, layer).requires_grad_(False)
    if layer == "both":
        module = nn.Sequential(module, nn.Linear(2, 2))
    AttributeMonitor(*private(module, data), nn.CrossEntropyLoss(), secret)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False)])
def test_batch_norm_is_refused_by_opacus(norm: nn.Module) -> None:
    with pytest.raises(Exception, match="BatchNorm"):
        private(nn.Sequential(norm, nn.Linear(6, 2)), table())


def test_frozen_batch_norm_is_refused() -> None:
    """Opacus takes one without trainable weights, which mixes records all the same."""
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False, track_running_stats=False), nn.Linear(8, 2))
    parts = private(module, table())
    with pytest.raises(ValueError, match=r"a model that mixes records .*batch norm"):
        AttributeMonitor(*parts, nn.CrossEntropyLoss(), NUMBER)
