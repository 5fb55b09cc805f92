"""Replays of a training in several processes (torchrun): each process replays it, and the first one prints what it found."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn
from torch.utils.data import DataLoader

import betastar as bs
from betastar import audit
from tests.audit.trainings import factory, table


def train(data: Any, noise: float = 1.0) -> None:
    model: Any = DifferentiallyPrivateDistributedDataParallel(factory())
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=20),
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def main() -> None:
    distributed.init_process_group("gloo")
    claim = bs.DPSGD(1.0, 0.5, 8)
    for name, noise in (("fine", 1.0), ("little noise", 0.3)):
        result = audit.replay(lambda data, noise=noise: train(data, noise), table(40), claim, max_grad_norm=1.0, seed=1)
        if distributed.get_rank() == 0:
            print(f"{name}: {', '.join(finding.promise for finding in result.findings) or 'no promise broken'}", flush=True)
            print(result, flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
