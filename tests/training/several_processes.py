"""A monitored training on given global batches, by one process or by several (torchrun); rank 0 prints what it found."""

from __future__ import annotations

import argparse
import json
import os
import warnings

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn

from betastar.training import AttributeMonitor, Budget, BudgetExhausted
from tests.training.private import build, private

STEPS = 6


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--scope", default="batch")
    options.add_argument("--budget", type=float)
    options.add_argument("--plain-ddp", action="store_true")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    module, data, secret = build("tanh")
    if world > 1:
        distributed.init_process_group("gloo")
        module = (
            nn.parallel.DistributedDataParallel(module)
            if given.plain_ddp
            else DifferentiallyPrivateDistributedDataParallel(module)
        )
    model, optimizer, loader = private(module, data, noise=4.0)
    criterion = nn.CrossEntropyLoss()
    budget = Budget(given.budget, per_record=True) if given.budget else None
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, scope=given.scope, ledger=True, budget=budget)
    generator = torch.Generator().manual_seed(5)
    stopped = False
    for _ in range(STEPS):
        batch = (torch.rand(len(data), generator=generator) < loader.sample_rate).nonzero().flatten()[rank::world]
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
    found = {
        "distances": monitor.distances.tolist(),
        "leakage": monitor.ledger.leakage.tolist(),
        "rate": monitor.run.sample_rate,
        "stopped": stopped,
        "world": world,
    }
    if world > 1:
        distributed.barrier()
        distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
