"""One training with many canaries, each in or out by a fair coin: a lower bound on the leakage without training again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from betastar import validation
from betastar.arrays import Real
from betastar.audit.mechanism_audit.games import seed_of
from betastar.audit.one_run_audit.guesses import OneRun, one_run_verdict
from betastar.audit.training_audit import canary, one_game
from betastar.audit.training_audit.attackers import noisy_gradient, rate_and_noise
from betastar.audit.training_audit.canary import Canaries
from betastar.audit.training_audit.challenges import MODELS, changed, read
from betastar.audit.training_audit.games import UPDATES, WEIGHTS
from betastar.audit.training_audit.one_game import Factory, Train
from betastar.scenario.run import DPSGD
from betastar.scenario.step import log_mixture


@dataclass
class _CanaryAttacker:
    """Sees the weight of every canary at each step, and weighs "in" against "out" for each of them."""

    run: DPSGD
    model: Canaries
    scale: float
    scores: Real
    trace: list[float] = field(default_factory=list)

    def step(self, trained: set[int]) -> None:
        rate, noise = rate_and_noise(self.run, len(self.trace))
        seen = noisy_gradient(self.model.canary.weight, trained)[0].double().numpy() * self.scale
        self.scores = self.scores + log_mixture((seen - 0.5) / noise**2, rate)
        self.trace.append(float(seen.mean()))


def one_run(
    factory: Factory,
    train: Train,
    data: Any,
    run: DPSGD | Callable[[int], DPSGD],
    *,
    max_grad_norm: float,
    canaries: int = 500,
    attacker: str = UPDATES,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int | None = None,
    loss_reduction: str = "mean",
) -> OneRun:
    """Train once, on the data and about half of so many canaries, and guess which of them were in.

    Each canary has a weight of its own, which no other record moves. attacker: "updates" sees every update of these weights,
    "weights" their final values. The right guesses refute small ε at this δ for adding or removing a record, whatever the model
    and the data (Steinke, Nasr, Jagielski 2023). factory, train, run, max_grad_norm: as in `training`. Canaries make the
    data longer: run may be a function of the number of records.
    """
    number, seed = int(validation.whole("canaries", canaries, low=10)), seed_of(seed)
    validation.choice("attacker", attacker, (UPDATES, WEIGHTS))
    validation.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm = float(validation.positive("max_grad_norm", max_grad_norm))
    one_game.check(factory)
    start, noise, coins = one_game.streams(seed, 3)
    generator = torch.Generator().manual_seed(coins)
    some = torch.randperm(len(data), generator=generator)[:MODELS]
    models = read(data, some)
    marks = canary.marks(models.inputs[0], number, generator)
    included = torch.rand(number, generator=generator, dtype=torch.float64) < 0.5
    like = some[torch.randint(len(some), (number,), generator=generator)]
    added = [(marks[i], *data[int(like[i])][1:]) for i in included.nonzero().flatten().tolist()]
    whole = changed(data, {}, added)
    run = one_game.claimed(run, whole)
    rate = one_game.rate_of(run)
    batch = max(1, int(len(whole) * rate + 1e-9)) if loss_reduction == "mean" else 1
    with one_game.seeded(start):
        model = Canaries(factory(), marks, list(range(number)), [1.0] * number)
    attack = _CanaryAttacker(run, model, batch / norm, np.zeros(number))
    with one_game.seeded(noise):
        one_game.fit(train, model, whole, run, attack)
    one_game.check_hits(model.seen, rate * float(run.steps) * len(added))
    scores = attack.scores if attacker == UPDATES else -model.canary.weight.detach().cpu().double().numpy().ravel()
    return one_run_verdict(scores, included.numpy(), run, delta=delta, confidence=confidence, seed=seed)
