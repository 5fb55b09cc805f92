"""A run that was interrupted goes on with --resume, and ends the same as one that was not."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train
from betastar.runs.reading import StudyError

from ..trained_runs import TrainedRuns

FILES = ("metrics.jsonl", "epochs.jsonl", "distances.csv", "ledger.csv", "status.json", "model.safetensors")
#: 320 training records in 8 batches an epoch.
KINDS: dict[str, dict[str, Any]] = {
    "poisson": {"approximate": True},
    "fixed-size": {"sampling": "fixed-size"},
    "balls-in-bins": {"sampling": "balls-in-bins"},
    "truncated": {"max_batch_size": 45},
    "unwatched": {"monitor": False},
    "gap": {"attribute_target": "bayes_security>=0.98"},
}


class Stop(Exception):  # noqa: N818
    """The process is killed."""


def same(one: RunFolder, other: RunFolder) -> None:
    for name in FILES:
        assert (one / name).exists() == (other / name).exists(), name
        if (one / name).exists():
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


#: Others take the same way.
SLOW = ("fixed-size", "truncated", "regression")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in (*KINDS, "regression")]
)
def test_an_interrupted_run_ends_the_same(
    kind: str, runs: TrainedRuns, trained: Callable[[Config], RunFolder], tmp_path: Path
) -> None:
    label_range = (0.0, 1e6)
    config = runs.houses(label_range=label_range) if kind == "regression" else runs.people(400, epochs=3, seed=0, **KINDS[kind])
    taken = 0

    def stop(news: Any) -> None:
        nonlocal taken
        taken += "step" in news and "finished" not in news
        if taken in (3, 16):  # within the first epoch, and within the second after a restart
            taken += 1
            raise Stop

    for _ in range(2):
        with pytest.raises(Stop):
            train(config, tmp_path / "cut", resume=True, tell=stop)
    assert RunFolder(tmp_path / "cut").epochs, "the second time an epoch was finished"
    with pytest.raises(StudyError, match=r"holds another run: its batch_size is 40, not 39\.$"):
        train(replace(config, batch_size=39), tmp_path / "cut", resume=True)
    same(train(config, tmp_path / "cut", resume=True), trained(config))


def test_killed_at_any_moment_a_run_ends_the_same(
    runs: TrainedRuns, trained: Callable[[Config], RunFolder], tmp_path: Path
) -> None:
    """SIGKILL while it starts, within an epoch, and between epochs; then --resume.

    A server that has imported everything forks the processes that are killed: they start at once.
    """
    config = runs.people(400, epochs=3, batch_size=16, seed=0)
    whole, run = trained(config), tmp_path / "killed"
    kills, length = 0, len(whole.steps)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["betastar.runs.loop"])
    for after in (1, length // 2 + 3, length - 2):
        process = server.Process(target=train, args=(config, run, True))
        process.start()
        deadline = time.monotonic() + 120
        while process.is_alive() and time.monotonic() < deadline:
            lines = (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0
            if lines >= after:
                process.kill()
                kills += 1
                break
            time.sleep(0.005)
        process.join(60)
    assert kills >= 2
    same(train(config, run, resume=True), whole)
