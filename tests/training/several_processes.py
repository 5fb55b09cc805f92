"""Monitored trainings on given global batches, by one process or by several (torchrun); rank 0 prints what it measured.

Each argument holds the options of one training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn
from torch.utils.data import DataLoader

from betastar.training import AttributeMonitor, Budget, BudgetExhausted, make_attribute_private
from tests.training.private import build, private

STEPS = 6


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--scope", default="batch")
    options.add_argument("--budget", type=float)
    options.add_argument("--plain-ddp", action="store_true")
    options.add_argument("--gap", type=float, help="clip gaps instead of monitoring")
    warnings.simplefilter("ignore")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        distributed.init_process_group("gloo")
    results = [one(options.parse_args(words.split()), rank, world) for words in sys.argv[1:]]
    if world > 1:
        distributed.barrier()
        distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(results))


def one(given: argparse.Namespace, rank: int, world: int) -> dict[str, Any]:
    module, data, secret = build("tanh")
    if world > 1:
        module = (
            nn.parallel.DistributedDataParallel(module)
            if given.plain_ddp
            else DifferentiallyPrivateDistributedDataParallel(module)
        )
    criterion = nn.CrossEntropyLoss()
    if given.gap is not None:
        return clip_gaps(module, data, secret, criterion, given.gap, rank, world)
    model, optimizer, loader = private(module, data, noise=4.0)
    budget = Budget(given.budget, per_record=True) if given.budget else None
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, scope=given.scope, ledger=True, budget=budget)
    stopped = False
    for batch in batches(len(data), loader.sample_rate, rank, world):
        if given.scope == "batch":
            monitor.records(batch)
        x, y = data[batch]
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        try:
            optimizer.step()
        except BudgetExhausted:
            stopped = True
            break
    assert monitor.ledger is not None
    return {
        "distances": monitor.distances.tolist(),
        "leakage": monitor.ledger.leakage.tolist(),
        "rate": monitor.run.sample_rate,
        "stopped": stopped,
        "world": world,
    }


def batches(records: int, rate: float, rank: int, world: int) -> Iterator[torch.Tensor]:
    """This process's part of global batches that everybody knows."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        yield (torch.rand(records, generator=generator) < rate).nonzero().flatten()[rank::world]


def clip_gaps(module: Any, data: Any, secret: Any, criterion: Any, gap: float, rank: int, world: int) -> dict[str, Any]:
    model, optimizer, loader = make_attribute_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=20),
        criterion=criterion,
        secret=secret,
        noise_multiplier=1e-3,
        max_grad_norm=0.5,
        gap=gap,
        noise_generator=torch.Generator().manual_seed(7),
    )
    for batch in batches(len(data), loader.sample_rate, rank, world):
        x, y = data[batch]
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in optimizer.params]).tolist()
    return {"weights": weights, "distance": optimizer.gap_clipping.distance(), "world": world}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of torch.distributed may abort an interpreter that shuts down; everything was done by now
