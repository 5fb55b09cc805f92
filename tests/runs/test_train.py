"""`betastar train`: a run is a folder, nothing is overwritten, seeds run in parallel, and the installed command does it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import betastar as bs
from betastar.report.facts import load
from betastar.report.report import summarise
from betastar.report.statement import verdicts
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train, train_seeds
from betastar.runs.reading import StudyError

from ..command import call
from ..trained_runs import TrainedRuns, people


@pytest.fixture
def config(runs: TrainedRuns) -> Config:
    return runs.people(400, noise_multiplier=1.5, seed=0)


def command(config: Config, *options: str) -> list[str]:
    fixed = ["train", config.study, "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "2", "--noise", "1.5"]
    return [*fixed, "--batch", "40", "--seed", "0", *options]


def test_a_run_is_a_folder(runs: TrainedRuns, trained: Callable[[Config], RunFolder]) -> None:
    folder = trained(runs.people(400, noise_multiplier=1.5, seed=0, epochs=3, batch_size=16, approximate=True))
    entries, steps = folder.epochs, folder.steps
    status = folder.status
    assert [entry["epoch"] for entry in entries] == [1, 2, 3]
    assert len(steps) == entries[-1]["steps"]
    run = bs.DPSGD(1.5, status.sample_rate, len(steps))
    distances = np.genfromtxt(folder / "distances.csv", delimiter=",", names=True)
    assert [entry["distance"] for entry in steps] == distances["exact"].tolist()
    assert (distances["exact"] <= distances["centroid"] + 1e-9).all()
    secret = bs.analyze(run, bs.AttributeInference(distances["exact"])).bayes_security
    assert entries[-1]["exact"]["lower"] == pytest.approx(secret.lower, rel=1e-9)
    assert entries[-1]["membership"]["estimate"] == pytest.approx(bs.analyze(run).bayes_security.estimate, rel=1e-9)
    with (folder / "ledger.csv").open() as file:
        ledger = list(csv.DictReader(file))
    assert 0 < len(ledger) <= 320
    assert all(0.0 < float(row["bayes_security"]) <= 1.0 for row in ledger)
    text = summarise(folder.path).read_text()
    assert "for the trainer's eyes only" in text
    assert "statement after the fact" in text
    for name in ("epochs", "accuracy", "exposure"):
        assert (folder / f"{name}.png").stat().st_size > 5000
        assert f"({name}.png)" in text


def test_nothing_is_overwritten(config: Config, trained: Callable[[Config], RunFolder], tmp_path: Path) -> None:
    folder = trained(config)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(StudyError, match="already holds a run"):
        train(config, folder.path)
    with pytest.raises(StudyError, match="holds another run: its seed is not 1"):
        train(replace(config, seed=1), folder.path, resume=True)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(StudyError, match="is not empty and holds no run"):
        train(config, tmp_path / "mine")
    with pytest.raises(StudyError, match="holds no run"):
        _ = RunFolder(tmp_path / "mine").config
    with pytest.raises(StudyError, match="name the column of the label and the sensitive one"):
        train(Config(study=config.study), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(StudyError, match=r"batch_size must be at most the 320 training records, got 999"):
        train(replace(config, batch_size=999), tmp_path / "big")


@pytest.mark.parametrize(("options", "threat"), [
    ({}, bs.Membership()),
    ({"person": "town", "sampling": "balls-in-bins"}, bs.Membership(records=3)),
])  # fmt: skip
def test_a_target_finds_the_noise(options: dict[str, Any], threat: bs.Membership, tmp_path: Path) -> None:
    frame = people(200).drop(columns="name").assign(town=np.arange(200) // 3)
    frame.to_csv(tmp_path / "people.csv", index=False)
    config = Config(
        str(tmp_path / "people.csv"), "rich", "age", target="success<=60%", batch_size=40, epochs=1, monitor=False, **options
    )
    folder = train(config, tmp_path / "run")
    facts = load(folder.path)
    risk = bs.analyze(facts.run, threat, "certified")
    assert 0.59 < float(risk.success().upper) <= 0.6
    assert [one.judged for one in verdicts(facts) if one.kind == "worst"] == ["Meets the target success<=0.6"] * (
        1 + len(options) // 2
    )
    assert folder.status.noise_multiplier == facts.run.noise_multiplier


def test_seeds_in_parallel(config: Config, trained: Callable[[Config], RunFolder], tmp_path: Path) -> None:
    folders = train_seeds(config, tmp_path / "two", [0, 1], jobs=2)
    assert [folder.config.seed for folder in folders] == [0, 1]
    losses = [folder.epochs[-1]["loss"] for folder in folders]
    assert losses[0] != losses[1]
    ours, theirs = (folder.steps for folder in (folders[0], trained(config)))
    np.testing.assert_allclose([e["distance"] for e in ours], [e["distance"] for e in theirs], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_seeds_on_a_dask_cluster(config: Config, tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        folders = train_seeds(replace(config, epochs=1), tmp_path / "dask", [0, 1], jobs=2)
    assert all(folder.status.finished for folder in folders)


def test_errors_of_the_command(config: Config, trained: Callable[[Config], RunFolder], tmp_path: Path) -> None:
    new = tmp_path / "new"
    for options, message in (
        (["-o", str(trained(config).path)], "already holds a run"),
        (["-o", str(new), "--value", "1:old"], "--value must be two numbers as in 17:90, got '1:old'"),
        (["-o", str(new), "--scope", "world"], "scope must be one of 'batch', 'dataset', got 'world'"),
        (["-o", str(new), "--scope", "dataset/often"], "at every k-th step as in dataset/20, got 'dataset/often'"),
        (["-o", str(new), "--target", "accuracy>=90%"], "--target must be one of"),
        (["-o", str(new), "--label", "shoe"], "has no column 'shoe'"),
        (
            ["-o", str(new), "--sampling", "bootstrap"],
            "sampling must be one of 'poisson', 'fixed-size', 'balls-in-bins'",
        ),
        (["-o", str(new), "--seed", "1", "--trials", "2"], "several seeds keep all: choose one"),
    ):
        bad = call(*command(config, *options))
        assert bad.returncode == 2, options
        assert message in bad.stderr
        assert "Traceback" not in bad.stderr
    missing = call("train", "gone.csv", "--label", "a", "--sensitive", "b", "-o", str(tmp_path / "y"))
    assert missing.returncode == 2
    assert missing.stderr.startswith("betastar: there is no file gone.csv: name a CSV or Parquet file, or 'adult'")
    assert not (tmp_path / "y").exists()
    assert call("--version").stdout.startswith("betastar 0.")
    help = call("train", "--help").stdout
    assert "runs/adult" in help
    assert "How batches are drawn" in help


def test_adult_from_the_package(tmp_path: Path) -> None:
    folder = train(Config(epochs=1, seed=0, every=20), tmp_path / "adult")
    last, status = folder.epochs[-1], folder.status
    assert (status.records, status.values, last["steps"]) == (26_048, 74, 102)
    assert last["accuracy"] > 0.6
    assert last["membership"]["paper"] == pytest.approx(0.9775, abs=5e-4)
    assert json.loads((folder / "config.json").read_text())["study"] == "adult"
    assert 0.985 < last["exact"]["paper"] < 0.992
