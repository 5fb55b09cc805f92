"""The recipes of docs/how-to/opacus.md for loggers, with the real packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "opacus.md"
#: What a monitor tells of two steps.
FIGURES = [
    {"step": step, "scope": "batch", "measured": True, "distance": 0.5 / step, "bayes_security_attribute": 1.0 - 0.1 * step}
    for step in (1, 2)
]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the lines about a package, gives both steps to the writers, and returns the names that the lines define."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")

    def followed(package: str) -> dict[str, Any]:
        (block,) = re.findall(r"```py\n(board = .*?)```", PAGE.read_text(), re.S)
        (lines,) = (part for part in block.split("\n\n") if package in part)
        (numbers,) = re.findall(r"^numbers = .*$", block, re.M)
        __import__({"tensorboard": "torch.utils.tensorboard"}.get(package, package))
        names: dict[str, Any] = {one: sys.modules[one] for one in ("torch", "wandb", "mlflow") if one in sys.modules}
        exec(f"{numbers}\n{lines}", names)
        for figures in FIGURES:
            for writer in names["writers"]:
                writer(figures)
        return names

    return followed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard(recipe: Callable[[str], dict[str, Any]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe("tensorboard")["board"].close()
    events = EventAccumulator("logs")
    events.Reload()
    assert [event.step for event in events.Scalars("privacy/distance")] == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(recipe: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    run = recipe("wandb")["run"]
    assert (run.summary["step"], run.summary["distance"]) == (2, 0.25)
    run.finish()
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert kept.stat().st_size > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(recipe: Callable[[str], dict[str, Any]]) -> None:
    mlflow = recipe("mlflow")["mlflow"]
    run = mlflow.active_run().info.run_id
    mlflow.end_run()
    assert [(one.step, one.value) for one in mlflow.MlflowClient().get_metric_history(run, "distance")] == [(1, 0.5), (2, 0.25)]
