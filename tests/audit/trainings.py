"""Small private trainings, and such as are broken in one place: what an audit must tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import betastar as bs
from betastar import audit

RECORDS, BATCH, NORM = 50, 10, 1.0


def table(records: int = RECORDS, columns: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, columns, generator=generator)
    return TensorDataset(x, torch.randint(2, (records,), generator=generator))


class Listed(Dataset[tuple[Tensor, Tensor]]):
    """The same records in a data set of another kind."""

    def __init__(self, data: TensorDataset) -> None:
        self.records = [data[i] for i in range(len(data))]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.records[index]


def factory() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def claim(noise: float, epochs: int = 2, records: int = RECORDS) -> bs.DPSGD:
    batches = -(-records // BATCH)
    return bs.DPSGD(noise, 1.0 / batches, epochs * batches)


def make(
    noise: float,
    epochs: int = 2,
    *,
    clip: float = NORM,
    scale: float = 1.0,
    poisson: bool = True,
    same_noise: bool = False,
    always: int | None = None,
    lr: float = 0.1,
    **options: Any,
) -> Callable[[nn.Module, Any], None]:
    """A training that claims `noise` and clipping to NORM. clip: what is really clipped to, the noise being that of the claim;
    scale: of the noise; poisson: or else shuffled batches; same_noise: at every step; always: the seed of every training."""

    def train(model: nn.Module, data: Any) -> None:
        if always is not None:
            torch.manual_seed(always)
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, (1,))))
        start = generator.get_state()
        criterion: Any = nn.CrossEntropyLoss()
        parts = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=lr),
            data_loader=DataLoader(data, batch_size=BATCH, shuffle=not poisson),
            criterion=criterion,
            noise_multiplier=scale * noise * NORM / clip,
            max_grad_norm=clip,
            poisson_sampling=poisson,
            noise_generator=generator,
            **options,
        )
        private, optimizer, loader = parts[0], parts[1], parts[-1]
        criterion = parts[2] if len(parts) == 4 else criterion
        for _ in range(epochs):
            for x, y in loader:
                if same_noise:
                    generator.set_state(start)
                optimizer.zero_grad()
                criterion(private(x), y).backward()
                optimizer.step()

    return train


QUICK: dict[str, Any] = {"max_grad_norm": NORM, "games": 40, "seed": 1, "width": 1.0}


def play(**options: Any) -> audit.Games:
    return audit.games(**{"factory": factory, "train": make(1.0, 1), "data": table(), "run": claim(1.0, 1), **QUICK, **options})


def one_run(scale: float = 1.0, **options: Any) -> audit.OneRun:
    train = make(0.6, 5, scale=scale)
    told: dict[str, Any] = {"max_grad_norm": NORM, "canaries": 200, "seed": 1, **options}
    return audit.one_run(factory, train, table(), lambda records: claim(0.6, 5, records), **told)
