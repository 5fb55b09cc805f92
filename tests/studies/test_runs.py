"""The studies in a small form: what is done is not done again, pages are made of it, and monitors measure what gradients give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import betastar as bs
from betastar import audit
from betastar.report.facts import load as load_facts
from betastar.report.statement import notices
from betastar.runs import Config, RunFolder, Training, attacked, criterion_of, load, network, predict, train
from betastar.runs.loop import private
from betastar.training import Records
from studies.gap_clipping import study as gap_clipping
from studies.protection import study as protection
from studies.raters import page as raters_page
from studies.raters import study as raters
from studies.raters.data import raters as raters_data
from studies.tweets import page as tweets_page
from studies.tweets import study as tweets
from studies.tweets.data import Tweets
from studies.voters import page as voters_page
from studies.voters import study as voters
from studies.voters.data import SECRETS, table
from studies.voters.data import voters as voters_data
from studies.voters.informed_attacker import of_rest

from ..training.private import oracle

pytestmark = pytest.mark.slow

RATERS = Config(study="raters", sensitive="liked", max_records_per_person=3, batch_size=400, epochs=1, hidden=(8, 6), seed=0)
TWEETS = Config(study="tweets", sensitive="person", epochs=2, batch_size=40, seed=0)


def kept(study: Any, names: tuple[str, str], again: Any, folder: Path, results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command finds everything that was done."""
    for name in names:
        monkeypatch.setattr(study, name, None)
    assert again() == json.loads((folder / "results.json").read_text())
    assert json.loads(json.dumps(results)) == again()


def test_voters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voters, "QUICK", replace(voters.FULL, batch_size=160, epochs=1, hidden=(8,), every=2))
    monkeypatch.setattr(voters, "ATTACKED", replace(voters.ATTACKED, epochs=1, hidden=(4,)))
    for name, number in (("QUICK_SAMPLE", 1000), ("QUICK_GAMES", 17), ("RECORDS", 80)):
        monkeypatch.setattr(voters, name, number)
    told: list[str] = []
    results = voters.study(tmp_path, 1, 1, quick=True, tell=told.append)
    assert (told[0], told[-1]) == ("1 of 9: opinion-none-no-privacy, seed 0", "audit: label, 17 games")
    plain, batch, whole, gap, deleted, *_ = results["runs"]
    assert [run["kind"] for run in (batch, whole, gap, deleted)] == ["batch", "dataset", "gap", "delete"]
    assert plain["baseline"] == batch["baseline"] == deleted["baseline"]
    assert batch["accuracy"] == whole["accuracy"]  # a monitor changes nothing
    assert batch["membership"] <= whole["attribute"] <= batch["attribute"] + 1e-3
    run = bs.DPSGD(gap["noise_multiplier"], gap["sample_rate"], gap["steps"])
    assert gap["attribute"] == float(bs.Plan(run, 0.1).attribute().bayes_security.lower)
    for groups in whole["exposures"].values():
        assert sum(one[0] for one in groups.values()) == whole["records"]["train"]
        assert min(one[1] for one in groups.values()) >= whole["attribute"] - 1e-6
    for one in (batch, whole, gap):
        for known in ("frequencies", "rest"):
            assert 0.0 < one["informed"][known]["without"] <= one["informed"][known]["with"] <= 1.0
    assert "# Voters of 2016" in voters_page.write(tmp_path).read_text()
    kept(voters, ("_private", "_without"), lambda: voters.study(tmp_path, 1, 1, quick=True), tmp_path, results, monkeypatch)


def test_raters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raters, "ATTACKED", replace(raters.ATTACKED, epochs=1, hidden=(4,)))
    for name, number in (("QUICK_GAMES", 17), ("RECORDS", 80), ("MECHANISM_GAMES", 2000)):
        monkeypatch.setattr(raters, name, number)
    results = raters.study(tmp_path, 1, 1, quick=True)
    person = results["runs"][-1]
    assert (person["kind"], person["largest"]) == ("person", 3)
    assert person["person"] == pytest.approx(0.5, abs=1e-4)
    assert person["person"] < person["rating"]
    assert all(run["baseline"] == person["baseline"] for run in results["runs"])
    assert "# Film ratings" in raters_page.write(tmp_path).read_text()
    kept(raters, ("_private", "_without"), lambda: raters.study(tmp_path, 1, 1, quick=True), tmp_path, results, monkeypatch)


def test_tweets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tweets, "QUICK", replace(tweets.FULL, batch_size=80, epochs=1, every=1))
    monkeypatch.setattr(tweets, "QUICK_SAMPLE", 400)
    results = tweets.study(tmp_path, quick=True)
    plain, watched, gap = results["runs"]
    assert plain["baseline"] == watched["baseline"] == gap["baseline"]
    assert gap["attribute"] > 0.95
    assert watched["membership"] == gap["membership"] <= watched["attribute"]
    assert watched["concerned"] == RunFolder(tmp_path / "runs" / "dp-sgd" / "seed-0").status.concerned
    assert sum(map(len, watched["exposures"].values())) <= watched["concerned"]
    assert "DP-SGD, gap 0.1" in tweets_page.write(tmp_path).read_text()
    kept(tweets, ("_private", "_without_privacy"), lambda: tweets.study(tmp_path, quick=True), tmp_path, results, monkeypatch)


def test_groups_of_a_run_with_a_gap(tmp_path: Path) -> None:
    """One run of the study, cut short: accuracy of groups adds up to accuracy of all."""
    short = gap_clipping.Case("adult", "sex", "gap", Config(sensitive="sex", gap=0.1, epochs=1, noise_multiplier=3.51))
    result = gap_clipping._one(short, 0, tmp_path / "one", torch.get_num_threads())
    assert result["gap"] == 0.1
    for name in gap_clipping.SECRETS:
        sizes, right = zip(*result["groups"][name].values(), strict=True)
        assert sum(sizes) == 6513
        assert sum(right) / 6513 == pytest.approx(result["accuracy"])


def test_cases() -> None:
    """Each secret, scope, gap and column; folders of their own; every cap has the same steps, so that figures are the runs'."""
    for study in (voters, gap_clipping):
        every = study.cases()
        assert len({case.folder for case in every}) == len(every)
    for secret in SECRETS:
        kinds = [case.kind for case in voters.cases() if (case.label, case.secret) == ("opinion", secret)]
        assert kinds == ["batch", "dataset", "gap", "gap", "gap", "delete"]
    adult = [case for case in gap_clipping.cases() if case.study == "adult"]
    assert {case.config.gap for case in adult if case.kind == "gap"} == set(gap_clipping.GAPS)
    for case in (raters.Case("rating", 3), raters.Case("bins", 10), raters.Case("person", 10, 0.9)):
        config, study = case.load(0)
        assert -(-len(study.train) // study.recipe.batch_size) == raters.BATCHES
        assert study.recipe.epochs == raters.EPOCHS
    assert config.noise_multiplier == raters.noise_of(0.9, 10, "poisson")
    claimed = bs.analyze(raters.claimed(config.noise_multiplier), bs.Membership(records=10)).bayes_security
    assert 0.9 <= float(claimed.lower) < 0.9 + 1e-6


def test_an_informed_attacker() -> None:
    """Without a training nothing is gained; with a sure one, everything. The rest of the answers tells more than frequencies."""
    study = voters_data(0, sample=4000)
    runs = (bs.DPSGD(noise, 0.5, 50) for noise in (1e4, 0.2))
    nothing, everything = (bs.analyze(run, bs.AttributeInference(2.0), method="certified") for run in runs)
    told = of_rest(study, "vote", nothing)
    assert told["without"] <= told["with"] <= told["without"] + 0.01  # probabilities are rounded up
    assert of_rest(study, "vote", everything)["with"] > 0.999
    assert study.secret.prior is not None
    assert told["hits"] > float(study.secret.prior.max()) + 0.1


def test_a_run_on_raters(tmp_path: Path) -> None:
    study = RATERS.applied_to(raters_data(RATERS.data_seed(), max_records_per_person=3))
    made = train(RATERS, tmp_path / "run", study=study)
    assert (made.status.person, made.status.records_per_person, made.status.secret) == ("userId", 3, "liked")
    measured_as_written(study, RATERS, torch.arange(6))


def test_a_run_on_voters(tmp_path: Path) -> None:
    """Its encoder is declared, and its model can be used as that of a table."""
    config = Config(study="voters", batch_size=160, epochs=1, hidden=(8,), sensitive="race", along=("vote",), seed=0)
    folder: RunFolder = train(config, tmp_path / "run", study=voters.load(config, 1000))
    assert (folder.status.secret, folder.status.values) == ("race with vote", 24)
    assert "declared and tell nothing" in load(folder.path).encoder.fitted_words
    table().head(200).to_csv(tmp_path / "voters.csv", index=False)
    told = predict(folder.path, tmp_path / "voters.csv")
    assert (told.label, len(told.predictions)) == ("opinion", 200)


def measured_as_written(study: Any, config: Config, rows: torch.Tensor) -> torch.Tensor:
    """Distances are those of gradients that are written out, record by record."""
    torch.manual_seed(0)
    module, (x, y) = network(study), (column[rows] for column in study.train.tensors)
    wanted = oracle(module, Records((x,), y), study.secret, clip=study.recipe.max_grad_norm)
    training = private(module, TensorDataset(x, y), replace(study.recipe, batch_size=len(rows)), config)
    monitor = training.watch(study.secret, scope="dataset", ledger=True)
    training.step()
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)
    return wanted


# ---------------------------------------------------------------------- runs on tweets, with LoRA


@pytest.fixture(scope="module")
def written() -> Tweets:
    return tweets.load(TWEETS, 400)


@pytest.fixture(scope="module")
def whole(written: Tweets, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(TWEETS, tmp_path_factory.mktemp("tweets") / "run", study=written)


def test_a_run_on_tweets(whole: RunFolder, written: Tweets) -> None:
    status = whole.status
    held = written.secret.concerned(Records((written.train.tensors[0],), written.train.tensors[1]))
    assert status.concerned == int(held.sum()) > 0
    assert sum((status.shares or {}).values()) == pytest.approx(1.0)
    assert {entry.record for entry in whole.ledger} <= set(range(160))
    exposed = [entry.record for entry in whole.ledger if entry.leakage > 1e-9]
    assert exposed
    assert held[exposed].all()  # a tweet that names nobody has no secret
    last = whole.epochs[-1]
    assert last["exact"]["lower"] > last["membership"]["lower"]
    shown = [one.text for one in notices(load_facts(whole.path))]
    assert any(f"about the {status.concerned} training records that hold exactly one" in text for text in shown)
    rows = torch.cat([held.nonzero().flatten()[:4], (~held).nonzero().flatten()[:4]])
    wanted = measured_as_written(written, TWEETS, rows)
    assert float(wanted[:4].min()) > 0.0
    assert wanted[4:].tolist() == [0.0] * 4


def test_a_stopped_run_goes_on(written: Tweets, whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Training.save

    def stop(self: Training) -> None:
        save(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train(TWEETS, tmp_path / "part", study=written)
    monkeypatch.undo()
    part = train(TWEETS, tmp_path / "part", resume=True, study=written)
    for name in ("epochs.jsonl", "metrics.jsonl", "ledger.csv", "status.json"):
        assert (part / name).read_text() == (whole / name).read_text()


def test_only_adapters_and_the_last_layer_are_trained(written: Tweets) -> None:
    torch.manual_seed(0)
    module = network(written)
    before = {name: weights.clone() for name, weights in module.state_dict().items()}
    training = private(module, written.train, written.recipe, TWEETS, secret=written.secret, gap=0.05)
    for _ in training.epoch():
        pass
    changed = {name for name, weights in module.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed == {name for name, weights in module.named_parameters() if weights.requires_grad}
    assert all("lora_" in name or name.startswith("head.") for name in changed)
    assert training.gaps == {"person": 0.05}


def test_texts_as_challenges(written: Tweets) -> None:
    """A whole record, a canary among texts, and the person that a tweet names; all games start with the same weights."""
    config = replace(TWEETS, batch_size=20, epochs=1, noise_multiplier=0.5)
    one = attacked(config, sample=60, study=config.applied_to(written))
    first, second = (one.factory().state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for challenge, secret in ((3, None), ("canary", None), (one.most_exposed(), written.secret)):
        trials = audit.games(
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


def test_protection_is_trained(tmp_path: Path) -> None:
    """One epoch of each kind: what is promised is what is trained, and a budget leaves records out."""
    sexes = protection._one(protection.Case("sex", by="clipping", epochs=1), 0, tmp_path / "sexes", 1)
    assert list(sexes["norms"]) == ["women", "men"]
    assert sexes["norms"]["men"] == 1.0
    budget = protection._one(protection.Case("budget", 0.9, noise=0.75, epochs=1), 0, tmp_path / "budget", 1)
    assert budget["retired"] > 0.0
