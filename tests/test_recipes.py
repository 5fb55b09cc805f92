"""The recipes of CONTRIBUTING.md, run as they stand there: a threat, a method, a metric and a secret, and what uses them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import TensorDataset

import betastar as bs
from betastar import audit
from betastar.risk.analyze import METHODS
from betastar.training import AttributeMonitor, Records, Secret
from betastar.vocabulary import METRICS

from .command import call
from .training.private import fit, private

RECIPES = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
RUN = bs.DPSGD(noise_multiplier=1.2, sample_rate=0.02, steps=60)


def made(what: str) -> dict[str, Any]:
    """The names that the block of a recipe makes."""
    recipe = RECIPES.split(f"### How to add a {what}\n")[1].split("\n### ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", recipe, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": f"recipe_{what}"}
    exec(compile(block, f"CONTRIBUTING.md, {what}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a recipe registers is gone after its test."""
    with patch.dict(METHODS), patch.dict(METRICS):
        yield
    if hasattr(bs.Risk, "gini"):
        del bs.Risk.gini


def test_a_threat() -> None:
    threat = made("threat")["SimilarRecords"](0.7)
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.RegimeWarning)
            risk = bs.analyze(RUN, threat, method=method)
            same = bs.analyze(RUN, bs.AttributeInference(0.7), method=method)
        assert str(risk.bayes_security) == str(same.bayes_security)
        assert risk.threat == "membership inference (records at most 0.7 apart)"
    found = bs.calibrate(bs.Target(bayes_security=0.95), sample_rate=0.02, steps=60, threat=threat)
    assert bs.analyze(found, threat).bayes_security.lower >= 0.95
    result = audit.mechanism(RUN, threat, games=2000, seed=1)
    assert not result.violated
    assert result.bound.estimate in result.advantage


def test_a_method() -> None:
    made("method")
    for threat in (bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference(0.5)):
        exact = bs.analyze(RUN, threat).bayes_security
        bound = bs.analyze(RUN, threat, method="sum-of-steps").bayes_security
        assert bound.lower <= exact.lower <= exact.upper <= bound.upper
    one_step = bs.analyze(bs.DPSGD(1.2, 0.02, 1), method="sum-of-steps").bayes_security
    assert bs.analyze(bs.DPSGD(1.2, 0.02, 1)).bayes_security.estimate == pytest.approx(one_step.lower)
    run = bs.calibrate(bs.Target(bayes_security=0.5), sample_rate=0.02, steps=60, method="sum-of-steps")
    assert bs.analyze(run, method="sum-of-steps").bayes_security.lower >= 0.5
    with pytest.raises(ValueError, match=r"method must be one of .*'sum-of-steps'"):
        bs.analyze(RUN, method="sum")


def test_a_metric() -> None:
    made("metric")
    risks = [bs.analyze(bs.DPSGD(noise, 0.02, 60)) for noise in (4.0, 2.0, 1.0)]
    areas = [risk.gini for risk in risks]  # type: ignore[attr-defined]
    assert areas[0].estimate < areas[1].estimate < areas[2].estimate
    for risk, area in zip(risks, areas, strict=True):
        assert area.lower <= area.estimate <= area.upper
        # Of a concave curve that is at most TV above the diagonal and somewhere reaches it: between TV and TV(2 - TV).
        assert area.upper >= risk.advantage.estimate
        assert area.lower <= risk.advantage.estimate * (2.0 - risk.advantage.estimate)
    run = bs.calibrate(bs.Target(gini=0.25), sample_rate=0.02, steps=60, method="affinity")
    less = bs.DPSGD(0.99 * run.noise_multiplier, 0.02, 60)
    reached = [bs.analyze(one, method="affinity").gini.upper for one in (run, less)]  # type: ignore[attr-defined]
    assert reached[0] <= 0.25 < reached[1]
    setting = "analyze --noise 1 --rate 0.02 --steps 60 --require"
    assert call(*setting.split(), "gini<=0.9").returncode == 0
    assert call(*setting.split(), "gini<=0.1").returncode == 1


def test_a_secret() -> None:
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
