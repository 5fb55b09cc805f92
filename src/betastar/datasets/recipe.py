"""The parameters of a private training. The module imports nothing, so that whoever reads a run folder needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Parameters of a private training."""

    batch_size: int
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    epochs: int = 30
    hidden: tuple[int, ...] = (128,)
