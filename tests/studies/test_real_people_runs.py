"""Runs on voters and raters: what is kept of them, and that their monitors measure what gradients give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from betastar.runs import Config, RunFolder, load, network, predict, train
from betastar.runs.loop import private
from betastar.training import Records
from studies.raters.data import Raters, raters
from studies.voters import study as voters
from studies.voters.data import table

from ..training.private import oracle

pytestmark = pytest.mark.slow
RATERS = Config(study="raters", sensitive="liked", max_records_per_person=3, batch_size=400, epochs=1, hidden=(8, 6), seed=0)


@pytest.fixture(scope="module")
def study() -> Raters:
    return RATERS.applied_to(raters(RATERS.data_seed(), max_records_per_person=3))


def test_a_run_on_raters(study: Raters, tmp_path: Path) -> None:
    rated = train(RATERS, tmp_path / "run", study=study)
    assert (rated.status.person, rated.status.records_per_person) == ("userId", 3)
    assert rated.status.secret == "liked"
    shapes = {tuple(one.shape) for name, one in rated.weights.items() if "head" in name and "weight" in name}
    assert shapes == {(8, 12), (6, 8), (2, 6)}


def test_the_monitor_measures_what_single_ratings_give(study: Raters) -> None:
    """Embeddings, their product and the hidden layer: distances are those of gradients that are written out."""
    torch.manual_seed(0)
    module = network(study)
    x, y = (column[:6] for column in study.train.tensors)
    wanted = oracle(module, Records((x,), y), study.secret, clip=study.recipe.max_grad_norm)
    training = private(module, torch.utils.data.TensorDataset(x, y), replace(study.recipe, batch_size=6), RATERS)
    monitor = training.watch(study.secret, scope="dataset", ledger=True)
    training.step()
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)


def test_a_run_on_voters(tmp_path: Path) -> None:
    """Its encoder is declared, and its model can be used as that of a table."""
    config = Config(study="voters", batch_size=160, epochs=1, hidden=(8,), sensitive="race", along=("vote",), seed=0)
    folder: RunFolder = train(config, tmp_path / "run", study=voters.load(config, 1000))
    assert folder.status.secret == "race with vote"
    assert folder.status.values == 24
    assert json.loads((folder / "encoder.json").read_text())["declared"]
    assert "declared and tell nothing" in load(folder.path).encoder.fitted_words
    table().head(200).to_csv(tmp_path / "voters.csv", index=False)
    told = predict(folder.path, tmp_path / "voters.csv")
    assert told.label == "opinion"
    assert len(told.predictions) == 200
