"""Small private trainings, and the oracle: distances by per-sample gradients, one record and one value at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from betastar.training import PrivateTraining, Records, Secret
from betastar.training.gap_clipping import GapClippedSum
from betastar.training.gradients.factors import Gradients

VALUES = [-1.5, -0.5, 0.0, 0.25, 1.0, 2.0, 3.5]


def table(records: int = 120, columns: int = 6, classes: int = 2, seed: int = 0) -> TensorDataset:
    """Numbers, with VALUES in column 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, columns, generator=generator)
    x[:, 1] = torch.tensor(VALUES)[torch.randint(len(VALUES), (records,), generator=generator)]
    x[: len(VALUES), 1] = torch.tensor(VALUES)
    return TensorDataset(x, torch.randint(classes, (records,), generator=generator))


def tokens(records: int = 80, length: int = 5, vocabulary: int = 11, classes: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(vocabulary, (records, length), generator=generator)
    x[:vocabulary, 2] = torch.arange(vocabulary)
    return TensorDataset(x, torch.randint(classes, (records,), generator=generator))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class Images(nn.Module):
    """A table of 36 columns as 6 × 6 pictures."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 1, 6, 6)


class Sequences(nn.Module):
    """An LSTM over 6 positions of 1 number; the last state is classified."""

    def __init__(self, bias: bool, classes: int) -> None:
        super().__init__()
        self.lstm = DPLSTM(1, 5, batch_first=True, bias=bias)
        self.head = nn.Linear(5, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[..., None])[0][:, -1])


class Twice(nn.Module):
    """A layer that is used twice, and a table that is read twice."""

    def __init__(self, bias: bool, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=bias)
        self.head = nn.Linear(6, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(torch.tanh(self.first(x)) + x)) * (x > 0))


Make = Callable[[bool, int], nn.Module]
MODELS: dict[str, tuple[Make, Callable[[int], TensorDataset], int, Sequence[float]]] = {
    "tanh": (
        lambda b, c: nn.Sequential(nn.Linear(6, 9, b), nn.Tanh(), nn.Linear(9, c, b)),
        lambda c: table(classes=c),
        1,
        VALUES,
    ),
    "relu3": (
        lambda b, c: nn.Sequential(nn.Linear(6, 9, b), nn.ReLU(), nn.Linear(9, 7, b), nn.ReLU(), nn.Linear(7, c, b)),
        lambda c: table(classes=c),
        1,
        VALUES,
    ),
    "conv": (
        lambda b, c: nn.Sequential(Images(), nn.Conv2d(1, 3, 3, bias=b), nn.ReLU(), nn.Flatten(), nn.Linear(48, c, b)),
        lambda c: table(60, 36, c),
        1,
        VALUES,
    ),
    "embedding": (
        lambda b, c: nn.Sequential(nn.Embedding(11, 4), Mean(), nn.Linear(4, c, b)),
        lambda c: tokens(classes=c),
        2,
        range(11),
    ),
    "layernorm": (
        lambda b, c: nn.Sequential(nn.Linear(6, 8, b), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, c, b)),
        lambda c: table(classes=c),
        1,
        VALUES,
    ),
    "lstm": (Sequences, lambda c: table(classes=c), 1, VALUES),
    "twice": (Twice, lambda c: table(classes=c), 1, VALUES),
}


def private(
    module: nn.Module,
    data: Any,
    *,
    batch: int = 20,
    noise: float = 1.0,
    clip: Any = 0.5,
    lr: float = 0.1,
    seed: int = 3,
    **options: Any,
) -> tuple[Any, ...]:
    """(model, optimizer, [criterion,] loader) of make_private, with a noise generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    loader = options.pop("loader", None)
    loader = loader or DataLoader(data, batch_size=batch, generator=torch.Generator().manual_seed(seed + 1))
    optimizer = options.pop("optimizer", torch.optim.SGD)(module.parameters(), lr=lr)
    engine = PrivacyEngine(accountant=options.pop("accountant", "prv"))
    options = {"noise_multiplier": noise, "max_grad_norm": clip, "noise_generator": generator} | options
    return engine.make_private(module=module, optimizer=optimizer, data_loader=loader, **options)


def training(module: nn.Module, data: Any, secret: Any = None, criterion: Any = None, **options: Any) -> PrivateTraining:
    """A PrivateTraining with a seed."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = options.pop("optimizer", torch.optim.SGD)(trained, lr=options.pop("lr", 0.1))
    made = {"batch_size": 20, "noise_multiplier": 1.0, "max_grad_norm": 0.5, "seed": 3} | options
    return PrivateTraining(module, optimizer, data, criterion or nn.CrossEntropyLoss(), secret=secret, **made)


def clipped_sum(made: PrivateTraining) -> GapClippedSum:
    """What computes the sums of a training that clips gaps."""
    assert made._clipped is not None
    return made._clipped


def sum_of(made: PrivateTraining, records: Records) -> Tensor:
    """The sum of the gap-clipped gradients of some records, in clipping norms."""
    total = clipped_sum(made).total(records)
    trained = [p for p in made.model.parameters() if p.requires_grad]
    return torch.cat([total[p].flatten() for p in trained]) / made.max_grad_norm


def fit(parts: Any, criterion: Any, steps: int = 8, watch: Any = None) -> list[Any]:
    """The loop that everybody writes; the batches that it saw. watch: called before each step."""
    model, optimizer, loader = parts
    seen: list[Any] = []
    taken = 0
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            if watch:
                watch(x, y)
            optimizer.step()
            seen.append((x, y))
            taken += not optimizer._is_last_step_skipped  # of a logical batch in several physical ones
            if taken == steps:
                return seen


def build(name: str, bias: bool = True, classes: int = 2, seed: int = 0) -> tuple[nn.Module, TensorDataset, Secret]:
    make, data, column, values = MODELS[name]
    torch.manual_seed(seed)
    return make(bias, classes), data(classes), Secret.column(column, list(values), name="secret")


def clipped(module: nn.Module, records: Records, secret: Secret, clip: Any = 0.5, criterion: Any = None) -> Tensor:
    """Clipped gradients of all variants, (n, a, number of weights): one record and one value at a time, in float64."""
    criterion = criterion or nn.CrossEntropyLoss()
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = []
    for i in range(len(records)):
        rows = []
        for k in range(secret.count):
            one = secret.variants(records.take(slice(i, i + 1)), [k])
            loss = criterion(module(*one.inputs, **one.named), one.target).sum()
            gradient = [g.double().flatten() for g in torch.autograd.grad(loss, parameters)]
            if isinstance(clip, list):
                total = sum(c * c for c in clip) ** 0.5
                gradient = [g * min(1.0, c / (float(g.norm()) + 1e-6)) / total for g, c in zip(gradient, clip, strict=True)]
                rows.append(torch.cat(gradient))
            else:
                flat = torch.cat(gradient)
                rows.append(flat * min(1.0, clip / (float(flat.norm()) + 1e-6)) / clip)
        gradients.append(torch.stack(rows))
    return torch.stack(gradients)


def diameters(points: Tensor) -> Tensor:
    """Largest distance between two rows, (n, a, d) -> (n,)."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").flatten(1).amax(dim=1)


def oracle(module: nn.Module, records: Records, secret: Secret, clip: Any = 0.5, criterion: Any = None) -> Tensor:
    """Diameter of each record: loop over records and values, clip the whole gradient, compare all pairs in float64."""
    return diameters(clipped(module, records, secret, clip, criterion))


def clone(module: nn.Module, name: str, bias: bool = True, classes: int = 2) -> nn.Module:
    """The same weights without any hook."""
    copy, _, _ = build(name, bias, classes)
    copy.load_state_dict(module.state_dict())
    return copy


def weighed(total: GapClippedSum, records: Records) -> tuple[Gradients, Tensor, Tensor]:
    """The clipped gradients of the records' variants, the value that each holds, and weights in ĝ for each value, (n, a, a)."""
    gradients = total.variants.gradients(records, total.secret, range(total.secret.count))
    own = total.secret.own(records).to(gradients.norms.device)
    shares = [secret.shares(records).to(own.device) for secret in total._secrets]
    each = [total.weights(gradients, torch.full_like(own, k), shares) for k in range(total.secret.count)]
    return gradients, own, torch.stack(each, dim=1)
