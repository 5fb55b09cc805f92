"""What `make bench` wrote keeps the promises that it checks, and the checks see what breaks one."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def results() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((BENCHMARKS / "results.json").read_text())
    return read


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(request.param)


@pytest.mark.parametrize("benchmark", ["curves"], indirect=True)
def test_curves(benchmark: ModuleType, results: dict[str, Any]) -> None:
    assert list(benchmark.promises(results["curves"], results["single"])) == []
    slow = copy.deepcopy(results["curves"])
    slow[0]["largest_ratio_to_beta"] = 21.0
    slow[1]["smallest_ratio"] = 0.5
    said = list(benchmark.promises(slow, {"tpr": {"median_seconds": 0.02}}))
    assert len(said) == 3
    assert "21.0 times as long as β*" in said[0]
    assert "faster than betastar" in said[1]
    assert "tpr" in said[2]


@pytest.mark.parametrize("benchmark", ["attributes"], indirect=True)
def test_attributes(benchmark: ModuleType, results: dict[str, Any]) -> None:
    rows, random, memory = (results["attributes"][key] for key in ("rows", "random", "MiB"))
    assert len(random) == sum(benchmark.RANDOM.values())
    assert list(benchmark.promises(rows, random, memory)) == []
    loose = copy.deepcopy(random)
    loose[0]["ratio"], loose[-1]["seconds"] = 1.03, 9.0
    said = list(benchmark.promises(rows, loose, 2000.0))
    assert len(said) == 3
    assert "1.0300, more than 1.02" in said[0]
    assert "9.0 s" in said[1]
    assert "2000 MiB" in said[2]
