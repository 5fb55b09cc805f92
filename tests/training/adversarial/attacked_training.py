"""Attacks that train otherwise than promised: each is refused for good, or charged with at least what it really leaks.

The truth is computed by brute force (`oracle`: one record and one value at a time), with the weights, the loss, the clipping, the
rate and the noise that a step really had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from betastar import closed_forms
from betastar.training import AttributeMonitor, Budget, Records, Secret
from tests.training.private import VALUES, oracle, table

SECRET = Secret.column(1, VALUES, name="value")
RECORDS, BATCH, NOISE, CLIP = 40, 8, 1.0, 0.5
NONE = nn.CrossEntropyLoss(reduction="none")


class Scaled(nn.Module):
    """A small network whose output is multiplied with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 9), nn.Linear(9, 2)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, x: Any, shift: Any = 0.0) -> Any:
        return self.head(torch.tanh(self.first(x)) + shift) * self.scale


@dataclass
class Training:
    """A private training under a budget that is never exhausted, and what it really leaks."""

    options: dict[str, Any] = field(default_factory=dict)
    monitored: dict[str, Any] = field(default_factory=dict)
    truth: float = 0.0
    monitor: AttributeMonitor | None = None

    def __post_init__(self) -> None:
        MADE.append(self)
        torch.manual_seed(0)
        self.module, self.data = Scaled(), table(RECORDS)
        self.criterion: Any = nn.CrossEntropyLoss()
        options = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "noise_generator": torch.Generator().manual_seed(3)}
        options = options | {"criterion": self.criterion} | self.options
        self.engine = PrivacyEngine(accountant="rdp")
        made = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=options.pop("lr", 0.5)),
            data_loader=DataLoader(self.data, batch_size=BATCH, generator=torch.Generator().manual_seed(4)),
            **options,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else self.criterion

    def attach(self, **options: Any) -> AttributeMonitor:
        chosen = {"scope": "dataset", "budget": Budget(1e-9), "loader": self.loader} | self.monitored | options
        loader, secret = chosen.pop("loader"), chosen.pop("secret", SECRET)
        self.monitor = AttributeMonitor(self.model, self.optimizer, loader, self.criterion, secret, **chosen)
        return self.monitor

    def batches(self) -> Iterator[Any]:
        return chain.from_iterable(repeat(self.loader))

    def leak(self, rate: float, noise: float, loss: Any = None, **inputs: Any) -> None:
        """One step, with the gaps that all records have at these weights, by brute force."""
        twin = Scaled()
        twin.load_state_dict(self.module.state_dict())
        records = Records((self.data.tensors[0],), self.data.tensors[1], inputs, frozenset(inputs))
        gap = float(oracle(twin, records, SECRET, self.optimizer.max_grad_norm, loss).max())
        self.truth += float(closed_forms.leakage(rate, noise, gap))

    def fit(
        self,
        steps: int = 3,
        *,
        batches: Any = None,
        loss: Callable[..., Any] | None = None,
        before: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        true_loss: Any = None,
        leaks: bool = True,
        **inputs: Any,
    ) -> None:
        """The usual loop with something done before the forward pass, between backward pass and step, and after the step."""
        loss = loss or (lambda output, y: self.criterion(output, y))
        for x, y in islice(batches if batches is not None else self.batches(), steps):
            self.optimizer.zero_grad()
            before()
            loss(self.model(x, **inputs), y).backward()
            if leaks:
                self.leak(self.loader.batch_sampler.sample_rate, self.optimizer.noise_multiplier, true_loss, **inputs)
            between()
            self.optimizer.step()
            after()


#: The trainings that an attack has made, the last one at the end.
MADE: list[Training] = []
Attack = Callable[[], Training]


class Attacks:
    """Attacks of one subject, by name, each with what the refusal says; empty if the training is charged instead."""

    def __init__(self) -> None:
        self.refused: dict[str, tuple[Attack, str]] = {}
        self.charged: dict[str, Attack] = {}

    def refused_with(self, message: str) -> Callable[[Attack], Attack]:
        """Add an attack that is refused with this message, a regular expression."""

        def add(attack: Attack) -> Attack:
            self.refused[attack.__name__] = attack, message
            return attack

        return add

    def is_charged(self, attack: Attack) -> Attack:
        """Add an attack that is not refused, but charged with at least what it leaks."""
        self.charged[attack.__name__] = attack
        return attack

    def require_refusal(self, name: str) -> None:
        """The attack is refused with its message, and nothing is proved after it."""
        attack, message = self.refused[name]
        MADE.clear()
        with pytest.raises((ValueError, RuntimeError), match=message):
            claim(attack())
        monitor = MADE[-1].monitor
        if monitor is None:
            return
        try:
            steps = monitor.proof.steps
        except ValueError as problem:
            assert re.search("nothing is proved|belongs to other weights", str(problem))  # noqa: PT017
        else:
            assert steps == 0  # an attack that was refused in the forward pass has led to no step


def claim(t: Training) -> tuple[float, float]:
    """What the proof says was spent, and what really leaked."""
    assert t.monitor is not None
    return t.monitor.proof.spent, t.truth
