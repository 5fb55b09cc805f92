"""Runs on tweets: LoRA with DP-SGD, its monitor and its gap, a run that goes on, and texts that are attacked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from betastar import audit
from betastar.report.facts import load as load_facts
from betastar.report.statement import notices
from betastar.runs import Config, RunFolder, Training, attacked, criterion_of, network, train
from betastar.runs.loop import private
from betastar.training import Records
from studies.tweets.data import Tweets
from studies.tweets.study import load

from ..training.private import oracle

pytestmark = pytest.mark.slow

CONFIG = Config(study="tweets", sensitive="person", epochs=2, batch_size=40, seed=0)


@pytest.fixture(scope="module")
def study() -> Tweets:
    return load(CONFIG, 400)


@pytest.fixture(scope="module")
def whole(study: Tweets, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(CONFIG, tmp_path_factory.mktemp("tweets") / "run", study=study)


def test_a_run_on_tweets(whole: RunFolder, study: Tweets) -> None:
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
    facts = load_facts(whole.path)
    assert any(f"about the {whole.status.concerned} training records that hold exactly one" in one.text for one in notices(facts))


def test_a_stopped_run_goes_on(study: Tweets, whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Training.save

    def stop(self: Training) -> None:
        save(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "part", study=study)
    monkeypatch.undo()
    part = train(CONFIG, tmp_path / "part", resume=True, study=study)
    for name in ("epochs.jsonl", "metrics.jsonl", "ledger.csv", "status.json"):
        assert (part / name).read_text() == (whole / name).read_text()


def test_only_adapters_and_the_last_layer_are_trained(study: Tweets) -> None:
    torch.manual_seed(0)
    module = network(study)
    before = {name: weights.clone() for name, weights in module.state_dict().items()}
    training = private(module, study.train, study.recipe, CONFIG, secret=study.secret, gap=0.05)
    for _ in training.epoch():
        pass
    changed = {name for name, weights in module.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed == {name for name, weights in module.named_parameters() if weights.requires_grad}
    assert all("lora_" in name or name.startswith("head.") for name in changed)
    assert training.gaps == {"person": 0.05}


def test_the_monitor_measures_what_single_tweets_give(study: Tweets) -> None:
    torch.manual_seed(0)
    module = network(study)
    x, y = study.train.tensors
    held = study.secret.concerned(Records((x,), y))
    rows = torch.cat([held.nonzero().flatten()[:4], (~held).nonzero().flatten()[:4]])
    data = torch.utils.data.TensorDataset(x[rows], y[rows])
    wanted = oracle(module, Records((x[rows],), y[rows]), study.secret, clip=study.recipe.max_grad_norm)
    training = private(module, data, replace(study.recipe, batch_size=8), CONFIG)
    monitor = training.watch(study.secret, scope="dataset", ledger=True)
    training.step()
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)
    assert float(wanted[:4].min()) > 0.0
    assert wanted[4:].tolist() == [0.0] * 4


def test_games_of_an_audit_start_with_the_same_weights(study: Tweets) -> None:
    one = attacked(CONFIG, sample=100, study=study)
    first, second = one.factory(), one.factory()
    assert first is not second
    for name, weights in first.state_dict().items():
        torch.testing.assert_close(weights, second.state_dict()[name])


def test_texts_as_challenges(study: Tweets) -> None:
    """A whole record, a canary among texts, and the person that a tweet names."""
    config = replace(CONFIG, batch_size=20, epochs=1, noise_multiplier=0.5)
    one = attacked(config, sample=60, study=config.applied_to(study))
    for challenge, secret in ((3, None), ("canary", None), (one.most_exposed(), study.secret)):
        trials = audit.training(
            one.factory,
            one.train,
            one.data,
            one.run(),
            max_grad_norm=one.max_grad_norm,
            challenge=challenge,
            secret=secret,
            criterion=criterion_of(one.data),
            games=24,
            seed=1,
            width=1.0,
            references=20,
        )
        assert not trials.violated
