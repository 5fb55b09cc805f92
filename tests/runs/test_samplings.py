"""Runs with each sampling: the folder says it, the report computes with it, and a run that was interrupted ends the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar.report.facts import load
from betastar.report.recomputed import ReportError
from betastar.report.report import summarise
from betastar.report.statement import metrics, statement
from betastar.runs import audited
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import Training, opened, train
from betastar.runs.reading import StudyError

from ..command import call
from .test_data import people

#: 320 training records, 20 batches an epoch.
SAMPLINGS: dict[str, dict[str, Any]] = {
    "fixed-size": {"sampling": "fixed-size"},
    "balls-in-bins": {"sampling": "balls-in-bins"},
    "shuffled": {"sampling": "shuffled"},
    "truncated": {"max_batch_size": 20},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "people.csv"
    people(400).to_csv(path, index=False)
    return path


def config(table: Path, **options: Any) -> Config:
    base = {"study": str(table), "target": "rich", "sensitive": "age", "drop": ("name",), "epochs": 2, "noise_multiplier": 4.0}
    return Config(**{**base, "batch_size": 16, "seed": 0, **options})


def claimed(name: str, epochs: int = 2) -> bs.DPSGD:
    return bs.DPSGD(4.0, 1 / 20, 20 * epochs, **{"dataset_size": 320, **SAMPLINGS[name]})


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_run_says_how_it_was_sampled(name: str, table: Path, tmp_path: Path) -> None:
    folder = train(config(table, **SAMPLINGS[name]), tmp_path / "run")
    run, status = claimed(name), folder.status
    assert (status.sampling, status.max_batch_size) == (
        SAMPLINGS[name].get("sampling", "poisson"),
        SAMPLINGS[name].get("max_batch_size"),
    )
    assert status.sample_rate == 1 / 20
    facts = load(folder.path)
    assert facts.run == run
    risk = bs.analyze(run).bayes_security
    assert folder.epochs[-1]["membership"]["lower"] == pytest.approx(float(risk.lower), abs=1e-12)
    distances = [line["distance"] for line in folder.steps]
    attribute = bs.analyze(run, bs.AttributeInference(distances)).bayes_security
    assert folder.epochs[-1]["exact"]["lower"] == pytest.approx(float(attribute.lower), abs=1e-12)
    assert "paper" not in folder.epochs[-1]["membership"]
    text = summarise(folder.path).read_text()
    assert "closed form" not in text
    words = {
        "fixed-size": "Fixed size: ",
        "balls-in-bins": "Balls in bins: ",
        "shuffled": "Shuffled: ",
        "truncated": "more than 20",
    }
    said = dict(statement(facts))
    assert words[name] in said["Sampling"]
    assert ("nothing is proved here" in said["Adjacency"]) == (name == "shuffled")
    heads, rows = metrics(facts)
    assert heads[:2] == ["membership, substitution", "age, measured" if name == "shuffled" else "membership, add or remove"]
    table_of = dict(rows)
    assert ("β*, exact, the estimate" in table_of) == (name != "shuffled")
    assert (table_of["β*, certified"][0] == "none") == (name == "balls-in-bins")
    assert ("balls in bins have no certificate" in said["Accountant"]) == (name == "balls-in-bins")
    command = facts.command.split()
    assert ("--sampling" in command) == (name != "truncated")
    assert ("--max-batch" in command) == (name == "truncated")


@pytest.mark.parametrize("name", ["fixed-size", "balls-in-bins", "shuffled"])
def test_runs_without_a_monitor_and_with_gap_clipping(name: str, table: Path, tmp_path: Path) -> None:
    folder = train(config(table, monitor=False, **SAMPLINGS[name]), tmp_path / "bare")
    assert load(folder.path).run == claimed(name)
    folder = train(config(table, gap=0.05, **SAMPLINGS[name]), tmp_path / "gapped")
    facts = load(folder.path)
    assert facts.run == claimed(name)
    (one,) = facts.attributes
    assert one.kind == "proved"
    assert one.integrated > facts.membership.integrated


class Stop(Exception):  # noqa: N818
    """The process is killed."""


@pytest.mark.parametrize("name", SAMPLINGS)
def test_an_interrupted_run_ends_the_same(name: str, table: Path, tmp_path: Path) -> None:
    files = ("metrics.jsonl", "epochs.jsonl", "distances.csv", "ledger.csv", "status.json")
    whole = train(config(table, epochs=3, **SAMPLINGS[name]), tmp_path / "whole")
    asked, taken = config(table, epochs=3, **SAMPLINGS[name]), 0

    def stop(news: Any) -> None:
        nonlocal taken
        taken += "finished" not in news
        if taken in (7, 33):  # within the first epoch, and within the second after a restart
            taken += 1
            raise Stop

    for _ in range(2):
        with pytest.raises(Stop):
            train(asked, tmp_path / "cut", resume=True, tell=stop)
    again = train(asked, tmp_path / "cut", resume=True)
    for file in files:
        assert (again / file).read_text() == (whole / file).read_text(), file
    weights, others = again.weights, whole.weights
    assert weights.keys() == others.keys()
    assert all((weights[name] == others[name]).all() for name in weights)


@pytest.mark.parametrize("name", ["fixed-size", "balls-in-bins"])
def test_a_budget_is_proved_again_from_the_steps(name: str, table: Path, tmp_path: Path) -> None:
    asked = config(table, epochs=30, target_beta=0.9 if name == "fixed-size" else 0.4, **SAMPLINGS[name])
    folder = train(asked, tmp_path / "run")
    assert folder.status.stopped
    facts = load(folder.path)
    assert facts.budget is not None
    assert facts.budget.startswith("Proved: ")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    forged = [json.loads(line) for line in lines]
    for line in forged:
        line["distance"] = 2.0
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in forged))
    with pytest.raises(ReportError, match="is proved"):
        load(folder.path)


def changed(folder: RunFolder, name: str, **entries: Any) -> None:
    values = json.loads((folder / name).read_text()) | entries
    (folder / name).write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.fixture(scope="module")
def bare(table: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(config(table, monitor=False, sampling="fixed-size"), tmp_path_factory.mktemp("runs") / "bare")


@pytest.mark.parametrize(
    ("file", "entries"),
    [("status.json", {"sampling": "poisson"}), ("config.json", {"sampling": "poisson"}), ("status.json", {"sample_rate": 0.01})],
)
def test_a_forged_sampling_is_refused(file: str, entries: dict[str, Any], bare: RunFolder) -> None:
    before = (bare / file).read_text()
    try:
        changed(bare, file, **entries)
        with pytest.raises((ReportError, StudyError)):
            load(bare.path)
    finally:
        (bare / file).write_text(before)
    load(bare.path)


def test_folders_from_before_there_were_samplings(table: Path, tmp_path: Path) -> None:
    folder = train(config(table, epochs=1), tmp_path / "run")
    for name, gone in (("config.json", ("sampling", "max_batch_size")), ("status.json", ("sampling", "max_batch_size"))):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({key: value for key, value in values.items() if key not in gone}))
    assert folder.config.sampling == folder.status.sampling == "poisson"
    assert load(folder.path).run == bs.DPSGD(4.0, 1 / 20, 20)
    train(config(table, epochs=1), folder.path, resume=True)
    with pytest.raises(StudyError, match="its sampling is 'poisson', not 'shuffled'"):
        train(config(table, epochs=1, sampling="shuffled"), folder.path, resume=True)


def test_an_audit_of_a_run_draws_batches_as_the_run_did(bare: RunFolder) -> None:
    assert audited.of_run(bare.path).sampling == "fixed-size"


def test_the_command(table: Path, tmp_path: Path) -> None:
    fixed = ["train", str(table), "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "1", "--noise", "4"]
    done = call(*fixed, "--batch", "16", "--sampling", "fixed-size", "-o", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sampling"] == "fixed-size"
    for options, message in (
        (
            ["--sampling", "bootstrap"],
            "sampling must be one of 'poisson', 'fixed-size', 'balls-in-bins', 'shuffled', got 'bootstrap'",
        ),
        (["--sampling", "shuffled", "--max-batch-size", "20"], "max_batch_size belongs to sampling 'poisson'"),
        (["--batch", "16", "--max-batch-size", "15"], "must be at least the mean batch size, 320 / 20 = 16, got 15"),
    ):
        bad = call(*fixed, *options, "-o", str(tmp_path / "x"))
        assert bad.returncode == 2, bad.stdout
        assert message in bad.stderr
        assert "Traceback" not in bad.stderr
    assert "How batches are drawn" in call("train", "--help").stdout


def test_a_training_of_a_folder_has_the_sampler(table: Path, tmp_path: Path) -> None:
    def sampler(**options: Any) -> Iterator[str]:
        with opened(config(table, **options), RunFolder(tmp_path / str(len(list(tmp_path.iterdir()))))) as training:
            assert isinstance(training, Training)
            yield repr(training.loader.batch_sampler)

    assert [*sampler(sampling="balls-in-bins")] == ["BallsInBinsSampler(dataset_size=320, steps=20)"]
    assert [*sampler(sampling="fixed-size")] == ["FixedSizeSampler(dataset_size=320, steps=20, batch_size=16)"]
    assert [*sampler(max_batch_size=19)] == ["TruncatedPoissonSampler(dataset_size=320, steps=20, max_batch_size=19)"]
