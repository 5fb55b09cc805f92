"""Runs: they are folders, they can be killed at any moment, and nothing is overwritten. The installed command does it."""

from __future__ import annotations

import csv
import json
import multiprocessing
import subprocess
import time
from pathlib import Path

import joblib
import numpy as np
import pytest

import betastar as bs
from betastar.report.report import summarise
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train, train_seeds
from betastar.runs.reading import StudyError

from ..command import COMMAND, call
from .test_data import people


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    people(400).to_csv(path, index=False)
    return path


def config(table: Path, **options: object) -> Config:
    base = {"study": str(table), "target": "rich", "sensitive": "age", "drop": ("name",), "epochs": 3, "noise_multiplier": 1.5}
    base |= {"seed": 0}
    return Config(**{**base, **options})  # type: ignore[arg-type]


def command(table: Path, *options: str) -> list[str]:
    fixed = ["train", str(table), "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "3", "--noise", "1.5"]
    fixed += ["--seed", "0"]
    return [*fixed, *options]


def test_a_run_is_a_folder(table: Path, tmp_path: Path) -> None:
    folder = train(config(table, approximate=True), tmp_path / "run")
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


def test_killed_at_any_moment_a_run_ends_the_same(table: Path, tmp_path: Path) -> None:
    """SIGKILL while it starts, within an epoch, and between epochs; then --resume.

    A server that has imported everything forks the processes that are killed: they start at once.
    """
    whole = train(config(table), tmp_path / "whole")
    files = ("metrics.jsonl", "epochs.jsonl", "distances.csv", "ledger.csv", "status.json")
    wanted = {name: (whole / name).read_text() for name in files}
    run = tmp_path / "killed"
    length = len(wanted["metrics.jsonl"].splitlines())
    kills = 0
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["betastar.runs.loop"])
    for after in (1, length // 3, length // 2 + 3, length - 2):
        process = server.Process(target=train, args=(config(table), run, True))
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
    assert kills >= 3
    done = call(*command(table, "-o", str(run), "--resume"))
    assert done.returncode == 0, done.stderr
    for name, text in wanted.items():
        assert (run / name).read_text() == text, name


def test_nothing_is_overwritten(table: Path, tmp_path: Path) -> None:
    folder = train(config(table), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(StudyError, match="already holds a run"):
        train(config(table), tmp_path / "run")
    with pytest.raises(StudyError, match="holds another run: its seed is not 1"):
        train(config(table, seed=1), tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(StudyError, match="is not empty and holds no run"):
        train(config(table), tmp_path / "mine")
    with pytest.raises(StudyError, match="holds no run"):
        _ = RunFolder(tmp_path / "mine").config
    with pytest.raises(StudyError, match="target and which is sensitive"):
        train(Config(study=str(table)), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(StudyError, match=r"batch_size must be at most the 320 training records, got 999"):
        train(config(table, batch_size=999), tmp_path / "big")


def test_a_budget_stops_the_run(table: Path, tmp_path: Path) -> None:
    folder = train(config(table, epochs=50, target_beta=0.97), tmp_path / "run")
    status = folder.status
    assert status.epochs < 50
    assert "would break the budget" in str(status.stopped)
    assert str(status.proof).startswith("Proved: ")
    assert folder.epochs[-1]["exact"]["scope"] == "dataset"
    text = summarise(folder.path).read_text()
    assert "**Proved: " in text
    again = train(config(table, epochs=50, target_beta=0.97), tmp_path / "run", resume=True)
    assert again.status == status


def test_seeds_in_parallel(table: Path, tmp_path: Path) -> None:
    folders = train_seeds(config(table), tmp_path / "two", [0, 1], jobs=2)
    assert [folder.config.seed for folder in folders] == [0, 1]
    accuracies = [folder.epochs[-1]["loss"] for folder in folders]
    assert accuracies[0] != accuracies[1]
    alone = train(config(table, seed=1), tmp_path / "alone")
    ours, theirs = (folder.steps for folder in (folders[1], alone))
    np.testing.assert_allclose([e["distance"] for e in ours], [e["distance"] for e in theirs], rtol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_seeds_on_a_dask_cluster(table: Path, tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        folders = train_seeds(config(table, epochs=1), tmp_path / "dask", [0, 1], jobs=2)
    assert all(folder.status.finished for folder in folders)


def test_the_command_and_its_errors(table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = subprocess.run([COMMAND, *command(table, "-o", str(run))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Weak: An attacker who sees every update")
    assert "\x1b" not in done.stdout + done.stderr
    for options, message in (
        (["-o", str(run)], "already holds a run"),
        (["-o", str(tmp_path / "x"), "--between", "old"], "--between must be two numbers as in 17:90, got 'old'"),
        (["-o", str(tmp_path / "x"), "--scope", "world"], "scope must be one of 'batch', 'dataset', got 'world'"),
        (["-o", str(tmp_path / "x"), "--scope", "batch", "--target-beta", ".9"], "--target-beta needs all records"),
        (["-o", str(tmp_path / "x"), "--label", "shoe"], "has no column 'shoe'"),
    ):
        bad = call(*command(table, *options))
        assert bad.returncode == 2, options
        assert message in bad.stderr
        assert "Traceback" not in bad.stderr
    missing = call("train", "gone.csv", "--label", "a", "--sensitive", "b", "-o", str(tmp_path / "y"))
    assert (missing.returncode, missing.stderr) == (2, "betastar: no file gone.csv.\n")
    assert not (tmp_path / "y").exists()
    assert call("--version").stdout.startswith("betastar 0.")
    assert "runs/adult" in call("train", "--help").stdout


def test_adult_from_the_package(tmp_path: Path) -> None:
    folder = train(Config(epochs=1, seed=0), tmp_path / "adult")
    last, status = folder.epochs[-1], folder.status
    assert (status.records, status.values, last["steps"]) == (26_048, 74, 102)
    assert last["accuracy"] > 0.6
    assert last["membership"]["paper"] == pytest.approx(0.9775, abs=5e-4)
    assert json.loads((folder / "config.json").read_text())["study"] == "adult"
    assert 0.985 < last["exact"]["paper"] < 0.992
