"""A study as an audit plays it: the training of a game is the training of `betastar train`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from betastar.runs.audited import attacked
from betastar.runs.folder import RunFolder
from betastar.runs.loop import Training, network

from ..trained_runs import TrainedRuns


@pytest.mark.parametrize("monitor", [True, False])
def test_a_game_trains_as_a_run_does(runs: TrainedRuns, tmp_path: Path, monitor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same seed both end with the same weights, bit for bit."""
    config = runs.people(epochs=3, seed=7, monitor=monitor)
    training = Training(config, RunFolder(tmp_path / "run"))
    for _ in range(3):
        training.run_epoch()
    game = attacked(config)
    torch.manual_seed(7)
    module = network(game.study)
    monkeypatch.setattr(torch, "randint", lambda *_: torch.tensor(7))
    game.train(module, game.data)
    trained = training.module.state_dict()
    assert all(torch.equal(trained[name], weights) for name, weights in module.state_dict().items())
