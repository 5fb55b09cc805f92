"""Small trainings with each sampler: 120 records, six batches an epoch."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

import betastar as bs
from betastar.training import private_loader

from .private import build

#: 120 records, six batches an epoch.
BATCH, NOISE, CLIP = 20, 2.0, 0.5

SAMPLINGS: dict[str, dict[str, Any]] = {
    "balls-in-bins": {},
    "fixed-size": {},
    "poisson": {"max_batch_size": 24},
    "shuffled": {},
}


def loader(data: Any, sampling: str, seed: int = 4) -> DataLoader[Any]:
    made = DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))
    if sampling == "shuffled":
        return made
    return private_loader(made, sampling, generator=torch.Generator().manual_seed(seed + 1), **SAMPLINGS[sampling])


def made(sampling: str, name: str = "tanh", **options: Any) -> tuple[PrivacyEngine, tuple[Any, Any, Any], Any]:
    """(engine, (model, optimizer, loader), secret) of plain Opacus with the accountant of betastar."""
    module, data, secret = build(name)
    engine = PrivacyEngine(accountant="betastar")
    parts = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=options.pop("loader", None) or loader(data, sampling),
        **{"noise_multiplier": NOISE, "max_grad_norm": CLIP, "poisson_sampling": False}
        | {"noise_generator": torch.Generator().manual_seed(3)}
        | options,
    )
    return engine, parts, secret


def claimed(sampling: str, steps: int, noise: float = NOISE) -> bs.DPSGD:
    """What so many steps are; unfinished epochs count as whole ones."""
    whole = 6 * -(-steps // 6) if sampling in ("balls-in-bins", "shuffled") else steps
    return bs.DPSGD(noise, 1 / 6, whole, sampling, dataset_size=120, **SAMPLINGS[sampling])
