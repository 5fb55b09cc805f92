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
from itertools import chain, islice, repeat
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn
from torch.utils.data import DataLoader

from betastar.training import AttributeMonitor, Budget, BudgetExhausted, make_attribute_private, private_loader
from tests.training.private import build, private

STEPS = 6


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--scope", default="batch")
    options.add_argument("--budget", type=float)
    options.add_argument("--plain-ddp", action="store_true")
    options.add_argument("--gap", type=float, help="clip gaps instead of monitoring")
    options.add_argument("--sampling", help="batches of a sampler, which the processes share, instead of given ones")
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
        return clip_gaps(module, data, secret, criterion, given, rank, world)
    sampled = {} if given.sampling is None else {"poisson_sampling": False, "loader": sampled_loader(data, given.sampling)}
    model, optimizer, loader = private(module, data, noise=4.0, **sampled)
    budget = Budget(given.budget, per_record=True) if given.budget else None
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, scope=given.scope, ledger=True, budget=budget)
    stopped = False
    each = []
    for batch in drawn(loader) if given.sampling else batches(len(data), loader.sample_rate, rank, world):
        each.append(everybody(batch, world))
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
        "run": repr(monitor.run),
        "batches": each,
        "stopped": stopped,
        "world": world,
    }


def sampled_loader(data: Any, sampling: str) -> DataLoader[Any]:
    """A loader of this sampling. Each process has a seed of its own; what the first one draws counts."""
    more = {"max_batch_size": 22} if sampling == "poisson" else {}
    generator = torch.Generator().manual_seed(11 + int(os.environ.get("RANK", "0")))
    return private_loader(DataLoader(data, batch_size=20), sampling, generator=generator, **more)


def drawn(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
    """This process's part of the batches of one epoch."""
    for batch in islice(chain.from_iterable(repeat(loader.batch_sampler)), STEPS + 3):
        yield torch.tensor(batch, dtype=torch.int64)


def everybody(batch: torch.Tensor, world: int) -> list[int]:
    """The records that all processes together have."""
    if world == 1:
        return sorted(batch.tolist())
    parts: list[Any] = [None] * world
    distributed.all_gather_object(parts, batch.tolist())
    return sorted(record for part in parts for record in part)


def batches(records: int, rate: float, rank: int, world: int) -> Iterator[torch.Tensor]:
    """This process's part of global batches that everybody knows."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        yield (torch.rand(records, generator=generator) < rate).nonzero().flatten()[rank::world]


def clip_gaps(module: Any, data: Any, secret: Any, criterion: Any, given: Any, rank: int, world: int) -> dict[str, Any]:
    model, optimizer, loader = make_attribute_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=sampled_loader(data, given.sampling) if given.sampling else DataLoader(data, batch_size=20),
        criterion=criterion,
        secret=secret,
        noise_multiplier=1e-3,
        max_grad_norm=0.5,
        gap=given.gap,
        noise_generator=torch.Generator().manual_seed(7),
    )
    for batch in drawn(loader) if given.sampling else batches(len(data), loader.sample_rate, rank, world):
        x, y = data[batch]
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in optimizer.params]).tolist()
    clipping = optimizer.gap_clipping
    return {"weights": weights, "distance": clipping.distance(), "run": repr(clipping.run), "world": world}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of torch.distributed may abort an interpreter that shuts down; everything was done by now
