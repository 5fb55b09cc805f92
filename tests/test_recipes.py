"""The recipes of CONTRIBUTING.md work as they stand there."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import betastar as bs
from betastar import audit, risk
from betastar.analyze import METHODS
from betastar.steps import PoissonStep, Step
from betastar.steps.base import Directions, Family, StepFactor
from betastar.training import AttributeMonitor, Records, Secret

from .command import call
from .training.private import fit, private

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()
RUN = bs.DPSGD(noise_multiplier=1.2, sample_rate=0.02, steps=60)


def recipe(what: str) -> str:
    return RECIPES.split(f"### How to add a {what}\n")[1].split("\n### ")[0]


def block(what: str) -> str:
    """The Python of a recipe."""
    (python,) = re.findall(r"```python\n(.*?)```", recipe(what), flags=re.DOTALL)
    return str(python)


def made(what: str) -> dict[str, Any]:
    """The names that the block of a recipe makes."""
    names: dict[str, Any] = {"__name__": f"recipe_{what}"}
    exec(compile(block(what), f"CONTRIBUTING.md, {what}", "exec"), names)
    return names


def test_a_threat_in_python() -> None:
    threat = made("threat")["SimilarRecords"](0.7)
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.RegimeWarning)
            risk = bs.analyze(RUN, threat, method=method)
            same = bs.analyze(RUN, bs.AttributeInference(0.7), method=method)
        assert str(risk.bayes_security) == str(same.bayes_security)
        assert risk.threat == "membership inference (records at most 0.7 apart)"
    safer = bs.calibrate(bs.Target(bayes_security=0.95), sample_rate=0.02, steps=60, threat=threat)
    assert bs.analyze(safer, threat).bayes_security.lower >= 0.95
    result = audit.mechanism(RUN, threat, games=2000, seed=1)
    assert not result.violated
    assert result.bound.estimate in result.advantage


@dataclass(frozen=True)
class Release(Step):
    """A statistic of the records with Gaussian noise, released `count` times: Poisson sampling at rate 1, as its own kind."""

    noise: float
    distance: float
    count: int

    def factor(self, family: Family) -> StepFactor:
        return self._sampled().factor("line")

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        return self._sampled().directions(symmetric, above, slack)

    def advantage(self) -> float:
        return self._sampled().advantage()

    def gap(self) -> float:
        return self._sampled().gap()

    def log_never_sampled(self) -> float:
        return self._sampled().log_never_sampled()

    def clamped(self, least_distance: float = 0.0) -> Release:
        return replace(self, noise=min(self.noise, 1e40))

    def with_min_noise(self, noise: float) -> Release:
        return replace(self, noise=max(self.noise, noise))

    @property
    def least_noise(self) -> float:
        return self.noise

    def attained_step(self, symmetric: bool) -> Release:
        return self

    def _sampled(self) -> PoissonStep:
        return PoissonStep(1.0, self.noise, self.distance, self.count)


class Releases:
    """A run, and ten releases before it."""

    def __init__(self, release: Callable[..., Step]) -> None:
        self.release = release

    def steps(self, run: bs.DPSGD) -> tuple[Step, ...]:
        return (self.release(20.0, 2.0, 10), *bs.Membership().steps(run))

    def describe(self) -> str:
        return "membership inference (with releases)"


def test_a_step() -> None:
    """A class with the methods that the recipe lists answers by all methods, composed with steps of another kind."""
    for name in (*Step.__abstractmethods__, *StepFactor.__abstractmethods__):
        assert f"`{name}`" in recipe("step"), name
    for method in ("exact", "certified", "affinity"):
        own, known = (bs.analyze(RUN, Releases(kind), method=method) for kind in (Release, partial(PoissonStep, 1.0)))
        assert str(own.bayes_security) == str(known.bayes_security)
        assert own.bayes_security.upper < bs.analyze(RUN, method=method).bayes_security.upper


def test_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the table and a property of Risk are enough for targets, calibration and the command."""
    assert "METRICS" in recipe("metric")
    area = property(lambda one: one._each(lambda outcome: outcome.tpr(0.1)))
    monkeypatch.setattr(risk.Risk, "tpr_at_a_tenth", area, raising=False)
    monkeypatch.setitem(
        risk.METRICS, "tpr_at_a_tenth", risk.Metric("tpr_at_a_tenth", "TPR at FPR 0.1", "TPR", "tpr_at_a_tenth<=0.2")
    )
    run = bs.calibrate(bs.Target.parse("tpr_at_a_tenth<=0.2"), sample_rate=0.02, steps=60)
    assert run.noise_multiplier == pytest.approx(
        bs.calibrate(bs.Target(tpr=0.2, fpr=0.1), sample_rate=0.02, steps=60).noise_multiplier, rel=1e-6
    )
    setting = ["analyze", "--noise", "1.2", "--rate", "0.02", "--steps", "60", "--require"]
    assert call(*setting, "tpr_at_a_tenth<=0.9").returncode == 0
    assert call(*setting, "tpr_at_a_tenth<=0.01").returncode == 1


def test_a_secret_in_python() -> None:
    """It measures what the same candidates measure as a function, on the same training."""

    def both(record: Records) -> Records:
        rows = record.inputs[0].repeat(2, 1)
        rows[:, 1] = rows[:, 1].abs() * torch.tensor([-1.0, 1.0])
        return Records((rows,), record.target.repeat(2))

    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    measured, criterion = [], torch.nn.CrossEntropyLoss()
    for secret in (made("secret")["Sign"](1), Secret.function(both, 2)):
        torch.manual_seed(5)
        parts = private(torch.nn.Linear(4, 2), data)
        monitor = AttributeMonitor(*parts, criterion, secret)
        fit(parts, criterion, steps=4)
        measured.append(monitor.risk().bayes_security.estimate)
    assert 0.0 < measured[0] < 1.0
    assert measured[0] == pytest.approx(measured[1], abs=1e-9)
