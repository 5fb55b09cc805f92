"""Runs on voters and raters: what is kept of them, and that their models can be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from betastar.datasets.raters import table
from betastar.runs.rating_model import RatingModel

from betastar.report import model_card
from betastar.report.facts import load
from betastar.runs import trained_model
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train
from betastar.runs.prediction import predict
from betastar.runs.private_training import PrivateTraining, network
from betastar.training import Records

from ..training.private import oracle

RATERS = Config(study="raters", max_records_per_person=3, batch_size=400, epochs=1, hidden=(8, 6), seed=0)


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(RATERS, tmp_path_factory.mktemp("raters") / "run")


def test_a_run_on_raters(rated: RunFolder) -> None:
    """The report is about a person with three ratings, and the card about the embeddings."""
    status = rated.status
    assert (status.person, status.records_per_person) == ("userId", 3)
    assert status.secret == "liked"
    facts = load(rated.path)
    card = model_card.render(facts, rated)
    assert "embeddings of 671 users, 500 films and 19 genres (4 features each) and hidden layers of 8, 6" in card


def test_the_model_of_raters_predicts(rated: RunFolder) -> None:
    encoder, model = trained_model.load(rated.path)
    assert isinstance(model, RatingModel)
    study = RATERS.load()
    assert study.raw is not None
    some = study.raw.head(50)
    again = trained_model.outputs(model, encoder.tensor(some))
    torch.testing.assert_close(again, trained_model.outputs(model, study.test.tensors[0][:50]))
    told = predict(rated.path, "raters")
    assert len(told.predictions) == len(table())
    assert told.test_quality["accuracy"] == pytest.approx(rated.epochs[-1]["accuracy"])


def test_the_monitor_measures_what_single_ratings_give() -> None:
    """Embeddings, their product and the hidden layer: distances are those of gradients that are written out."""
    study = RATERS.load()
    torch.manual_seed(0)
    module = network(study)
    x, y = (column[:6] for column in study.train.tensors)
    wanted = oracle(module, Records((x,), y), study.secret, clip=study.recipe.max_grad_norm)
    training = PrivateTraining(module, torch.utils.data.TensorDataset(x, y), study.secret, study.recipe)
    monitor = training.watch(scope="dataset", ledger=True)
    next(training.one_epoch())
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)


def test_a_run_on_voters(tmp_path: Path) -> None:
    config = Config(study="voters", sample=1000, batch_size=160, epochs=1, hidden=(8,), sensitive="race", along=("vote",), seed=0)
    folder = train(config, tmp_path / "run")
    assert folder.status.secret == "race with vote"
    assert folder.status.values == 24
    assert json.loads((folder / "encoder.json").read_text())["declared"]
    told = predict(folder.path, "voters")
    assert told.label == "opinion"
    assert len(told.predictions) == 64_600
    assert "declared and tell nothing" in model_card.render(load(folder.path), folder)
