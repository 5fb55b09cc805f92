"""Runs on tweets: LoRA with DP-SGD, its monitor and its gap, a run that goes on, and the model of a complete run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from betastar.studies.audited import attacked

from betastar.datasets.study import Study
from betastar.report import model_card
from betastar.report.facts import load
from betastar.report.statement import notices
from betastar.runs import prediction, trained_model
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import Training, train
from betastar.runs.prediction import predict
from betastar.runs.private_training import PrivateTraining, network
from betastar.training import Records

from ..training.private import oracle

CONFIG = Config(study="tweets", sample=400, epochs=2, batch_size=40, seed=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(CONFIG, tmp_path_factory.mktemp("tweets") / "run")


@pytest.fixture(scope="module")
def study() -> Study:
    return CONFIG.load()


def test_a_run_on_tweets(whole: RunFolder, study: Study) -> None:
    status = whole.status
    held = study.secret.concerned(Records((study.train.tensors[0],), study.train.tensors[1]))
    assert status.concerned == int(held.sum()) > 0
    assert sum((status.shares or {}).values()) == pytest.approx(1.0)
    assert list(status.shares or {}) == study.secret.labels
    assert {entry.record for entry in whole.ledger} <= set(range(160))
    exposed = [entry.record for entry in whole.ledger if entry.leakage > 1e-9]
    assert exposed
    assert held[exposed].all()  # a tweet that names nobody has no secret
    last = whole.epochs[-1]
    assert last["exact"]["lower"] > last["membership"]["lower"]


def test_the_report_says_which_records_it_is_about(whole: RunFolder) -> None:
    facts = load(whole.path)
    assert any(f"about the {whole.status.concerned} training records that hold exactly one" in text for text in notices(facts))
    card = model_card.render(facts, whole)
    assert "A transformer (2 layers of 64 features" in card
    assert "fine-tuned with LoRA of rank 4, predicts source" in card
    assert f"{whole.status.concerned} training records" not in card  # it depends on the data


def test_the_model_of_a_run_predicts(whole: RunFolder, study: Study, tmp_path: Path) -> None:
    encoder, model = trained_model.load(whole.path)
    assert not model.training
    assert study.raw is not None
    study.raw.to_csv(tmp_path / "test.csv", index=False)
    told = predict(whole.path, tmp_path / "test.csv")
    assert told.label == "source"
    assert told.quality["accuracy"] == pytest.approx(whole.epochs[-1]["accuracy"])
    assert set(told.predictions["prediction"]) <= set(encoder.classes)
    held_out = prediction._held_out(whole, "tweets")
    assert held_out is not None
    assert held_out.tolist() == study.raw.index.tolist()
    assert prediction._held_out(whole, "adult") is None


def test_a_stopped_run_goes_on(whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Training.save

    def stop(self: Training) -> None:
        save(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "part")
    monkeypatch.undo()
    told: list[str] = []
    part = train(CONFIG, tmp_path / "part", resume=True, tell=lambda news: told.append(str(news.get("phase"))))
    assert not any("pre-training" in phase for phase in told)  # the checkpoint has all weights
    for name in ("epochs.jsonl", "metrics.jsonl", "ledger.csv", "status.json"):
        assert (part / name).read_text() == (whole / name).read_text()


def test_only_adapters_and_the_last_layer_are_trained(study: Study) -> None:
    told: list[str] = []
    torch.manual_seed(0)
    module = network(study, lambda news: told.append(news["phase"]))
    assert told[0] == "pre-training on 200 public texts: 0%"
    before = {name: weights.clone() for name, weights in module.state_dict().items()}
    training = PrivateTraining(module, study.train, study.secret, study.recipe, gap=0.05)
    for _ in training.one_epoch():
        pass
    changed = {name for name, weights in module.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed == {name for name, weights in module.named_parameters() if weights.requires_grad}
    assert all("lora_" in name or name.startswith("head.") for name in changed)
    assert training.clipping is not None
    assert training.clipping.gaps == {"person": 0.05}


def test_the_monitor_measures_what_single_tweets_give(study: Study) -> None:
    torch.manual_seed(0)
    module = network(study, pretrain=False)
    x, y = study.train.tensors
    held = study.secret.concerned(Records((x,), y))
    rows = torch.cat([held.nonzero().flatten()[:4], (~held).nonzero().flatten()[:4]])
    data = torch.utils.data.TensorDataset(x[rows], y[rows])
    wanted = oracle(module, Records((x[rows],), y[rows]), study.secret, clip=study.recipe.max_grad_norm)
    training = PrivateTraining(module, data, study.secret, study.recipe)
    monitor = training.watch(scope="dataset", ledger=True)
    next(training.one_epoch())
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)
    assert float(wanted[:4].min()) > 0.0
    assert wanted[4:].tolist() == [0.0] * 4


def test_games_of_an_audit_start_with_the_same_weights() -> None:
    one = attacked(CONFIG, sample=100)
    first, second = one.factory(), one.factory()
    assert first is not second
    for name, weights in first.state_dict().items():
        torch.testing.assert_close(weights, second.state_dict()[name])
