"""Correct trainings of many kinds, and broken ones: what a replay must tell apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from betastar.training import Secret, private_loader
from tests.audit.trainings import BATCH, NORM, Listed, factory, table

Train = Callable[[Any], Any]


class Columns(nn.Module):
    """A model of two inputs, one of them token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 4), nn.Linear(10, 2)

    def forward(self, numbers: Tensor, tokens: Tensor) -> Tensor:
        return self.out(torch.cat([numbers, self.embedding(tokens).mean(dim=1)], dim=1))


class Text(nn.Module):
    """Token ids to two classes, by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(11, 4), DPLSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(tokens))[0][:, -1])


class RunningMean(nn.Module):
    """Keeps statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return x - self.mean.detach() * 0.0


def texts(records: int = 52) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(11, (records, 7), generator=generator)
    return TensorDataset(tokens, torch.randint(2, (records,), generator=generator))


def several_inputs(records: int = 52) -> TensorDataset:
    return TensorDataset(table(records).tensors[0], *texts(records).tensors)


def flags(records: int = 52) -> TensorDataset:
    x, y = table(records).tensors
    x[:, 1] = (x[:, 1] > 0).float()
    return TensorDataset(x, y)


FLAG = Secret.column(1, values=[0.0, 1.0], name="flag")


def trained(
    model: Callable[[], nn.Module] = factory,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    sampling: str | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    batch_size: int = BATCH,
    epochs: int = 2,
    noise: float = 1.0,
    norm: Any = NORM,
    physical: int | None = None,
    schedule: Callable[[Any], Any] | None = None,
    after_step: Callable[[Any, Any, Any], Any] | None = None,
    part: bool = False,
    workers: int = 0,
    lr: float = 0.1,
    **options: Any,
) -> Train:
    """An ordinary training with Opacus. after_step(model, optimizer, loss) gives what is logged at each step."""

    def train(data: Any) -> Any:
        module: Any = model()
        criterion: Any = loss or nn.CrossEntropyLoss()
        used = Subset(data, range(2, len(data))) if part else data
        loader: Any = DataLoader(used, batch_size=batch_size, num_workers=workers)
        more = dict(options)
        if sampling == "shuffled":
            loader, more["poisson_sampling"] = DataLoader(used, batch_size=batch_size, shuffle=True), False
        elif sampling is not None:
            size = 20 if sampling == "poisson" else None
            loader, more["poisson_sampling"] = private_loader(loader, sampling, max_batch_size=size), False
        parts = PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer(module.parameters(), lr=lr),
            data_loader=loader,
            criterion=criterion,
            noise_multiplier=noise,
            max_grad_norm=norm,
            **more,
        )
        private, private_optimizer, loader = parts[0], parts[1], parts[-1]
        criterion = parts[2] if len(parts) == 4 else criterion
        scheduler = schedule(private_optimizer) if schedule is not None else None
        logged = []

        def loop(batches: Any) -> None:
            for *inputs, target in batches:
                private_optimizer.zero_grad()
                value = criterion(private(*inputs), target)
                value.backward()
                private_optimizer.step()
                logged.append(after_step(private, private_optimizer, value) if after_step is not None else None)

        for _ in range(epochs):
            if physical is None:
                loop(loader)
            else:
                managed = BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=private_optimizer)
                with managed as batches:
                    loop(batches)
            if scheduler is not None:
                scheduler.step()
        return logged

    return train


def by_hand(noisy: Callable[[str], bool] = lambda name: True) -> Train:
    """DP-SGD without Opacus: two physical batches a step, whose clipped gradients are added up."""

    def train(data: Any) -> None:
        model = factory()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            batch = (torch.rand(len(data)) < BATCH / 50).nonzero().flatten().tolist()
            sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            for x, y in DataLoader(Subset(data, batch), batch_size=1) if batch else ():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y, reduction="sum").backward()
                size = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()  # type: ignore[union-attr]
                for name, p in model.named_parameters():
                    sums[name] += p.grad * min(1.0, float(NORM / size))
            for name, p in model.named_parameters():
                added = torch.randn_like(p) * NORM if noisy(name) else 0.0
                p.grad = (sums[name] + added) / BATCH
            optimizer.step()

    return train


def quiet(action: Callable[[], Any]) -> Any:
    """What an action returns; what Opacus and betastar warn of is not the subject here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


__all__ = ["ExponentialNoise", "Listed", "table"]
