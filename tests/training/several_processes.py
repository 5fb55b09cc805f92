"""Trainings that are measured on given global batches, or that clip gaps, by one process or by several (torchrun).

Rank 0 prints what came out. Each argument holds the options of one training.
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

from betastar import Target
from betastar.training import AttributeMonitor, Budget, MembershipMonitor, NotProved, Protection, private_loader
from tests.training.private import build, private, training

STEPS = 6


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--scope", default="batch")
    options.add_argument("--budget", type=float, help="a budget instead of a monitor")
    options.add_argument("--retire", type=float, help="a budget for membership instead of a monitor, with groups")
    options.add_argument("--plain-ddp", action="store_true")
    options.add_argument("--gap", type=float, help="clip gaps instead of a monitor")
    options.add_argument(
        "--apart", choices=["late", "data"], help="a training before processes know of each other; other records"
    )
    options.add_argument("--sampling", help="batches of a sampler, which the processes share, instead of given ones")
    warnings.simplefilter("ignore")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    every = [options.parse_args(words.split()) for words in sys.argv[1:]]
    early = training(*build("tanh")[:2]) if any(given.apart == "late" for given in every) else None
    if world > 1:
        distributed.init_process_group("gloo")
    results = [one(given, rank, world) if given.apart is None else refused(given.apart, early, rank) for given in every]
    if world > 1:
        distributed.barrier()
        distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(results))


def one(given: argparse.Namespace, rank: int, world: int) -> dict[str, Any]:
    module, data, secret = build("tanh")
    if given.retire is not None:
        return retiring_training(module, data, given.retire, world)
    if given.gap is not None or given.budget is not None:
        return private_training(module, data, secret, given, world)
    if world > 1:
        module = (
            nn.parallel.DistributedDataParallel(module)
            if given.plain_ddp
            else DifferentiallyPrivateDistributedDataParallel(module)
        )
    criterion = nn.CrossEntropyLoss()
    sampled = {} if given.sampling is None else {"poisson_sampling": False, "loader": sampled_loader(data, given.sampling)}
    model, optimizer, loader = private(module, data, noise=4.0, clip=2.0, **sampled)
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, scope=given.scope, ledger=True)
    members = MembershipMonitor(model, optimizer, loader, criterion, scope=given.scope)
    each = []
    for batch in drawn(loader) if given.sampling else batches(len(data), loader.sample_rate, rank, world):
        each.append(everybody(batch, world))
        if given.scope == "batch":
            monitor.records(batch)
            members.records(batch)
        x, y = data[batch]
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    assert monitor.ledger is not None
    return {
        "distances": monitor.distances.tolist(),
        "leakage": monitor.ledger.leakage.tolist(),
        "norms": members.ledger.norms.tolist(),
        "rate": monitor.run.sample_rate,
        "run": repr(monitor.run),
        "batches": each,
        "world": world,
    }


def refused(apart: str, early: Any, rank: int) -> str:
    """What a training says that was made too early, or whose processes have other records."""
    try:
        if apart == "late":
            early.step()
        else:
            module, data, _ = build("tanh")
            training(module, torch.utils.data.Subset(data, range(rank, 100 + rank)))
    except (ValueError, NotProved) as problem:
        return str(problem)
    return "nothing"


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


def private_training(module: Any, data: Any, secret: Any, given: Any, world: int) -> dict[str, Any]:
    budget = None if given.budget is None else Budget(given.budget, per_record=True)
    noise = 1e-3 if budget is None else 4.0
    sampling = given.sampling or "poisson"
    made = training(module, data, secret, noise_multiplier=noise, gap=given.gap, budget=budget, sampling=sampling, steps=60)
    ledger = made.watch_members(scope="batch" if budget is None else "dataset")
    for _ in range(STEPS if budget is None else 1):
        for _ in made.epoch():
            pass
    weights = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
    proof = made.guarantee.proof
    spent = 0.0 if proof is None else proof.spent
    return {"weights": weights, "run": repr(made.run), "spent": spent, "stopped": made.exhausted, "world": world} | {
        "norms": ledger.histogram.tolist()
    }


def retiring_training(module: Any, data: Any, beta: float, world: int) -> dict[str, Any]:
    few = torch.arange(len(data)) < 20
    groups = Protection(
        {"few": few.numpy(), "others": ~few.numpy()}, {"few": Target(bayes_security=0.99), "others": Target(bayes_security=0.95)}
    )
    options = {"noise_multiplier": None, "protection": groups, "budget": Budget(beta, per_record=True, every=2), "seed": 1}
    made = training(module, data, steps=30, **options).fit(progress=False)
    weights = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
    spending = made.state_dict()["budget"]
    return {
        "weights": weights,
        "run": repr(made.run),
        "spent": float(spending["spent"].sum()),
        "stopped": False,
        "world": world,
    } | {"retired": made.retired.tolist()}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of torch.distributed may abort an interpreter that shuts down; everything was done by now
