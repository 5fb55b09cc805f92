"""Runs with each sampling: the folder says it, and the report computes with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import betastar as bs
from betastar.report.facts import load
from betastar.report.recomputed import ReportError
from betastar.report.report import render
from betastar.report.statement import metrics, statement, verdicts
from betastar.runs import audited
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train
from betastar.runs.reading import StudyError

from ..trained_runs import TrainedRuns

#: 320 training records, 5 batches an epoch.
SAMPLINGS: dict[str, dict[str, Any]] = {
    "fixed-size": {"sampling": "fixed-size"},
    "balls-in-bins": {"sampling": "balls-in-bins"},
    "twice": {"sampling": "balls-in-bins", "times_per_epoch": 2},
    "truncated": {"max_batch_size": 70},
}


@pytest.fixture
def config(runs: TrainedRuns) -> Config:
    return runs.people(400, batch_size=64, seed=0)


def claimed(name: str, epochs: int = 2) -> bs.DPSGD:
    times = SAMPLINGS[name].get("times_per_epoch", 1)
    return bs.DPSGD(4.0, 1 / 5, 5 * times * epochs, **{"dataset_size": 320, **SAMPLINGS[name]})


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_run_says_how_it_was_sampled(name: str, config: Config, trained: Callable[[Config], RunFolder]) -> None:
    folder = trained(replace(config, **SAMPLINGS[name]))
    run, status = claimed(name), folder.status
    assert (status.sampling, status.max_batch_size) == (
        SAMPLINGS[name].get("sampling", "poisson"),
        SAMPLINGS[name].get("max_batch_size"),
    )
    assert status.sample_rate == 1 / 5
    facts = load(folder.path)
    assert facts.run == run
    risk = bs.analyze(run).bayes_security
    assert folder.epochs[-1]["membership"]["lower"] == pytest.approx(float(risk.lower), abs=1e-12)
    distances = [line["distance"] for line in folder.steps]
    attribute = bs.analyze(run, bs.AttributeInference(distances)).bayes_security
    assert folder.epochs[-1]["exact"]["lower"] == pytest.approx(float(attribute.lower), abs=1e-12)
    assert "paper" not in folder.epochs[-1]["membership"]
    assert "closed form" not in render(facts, [], "md", brief=True)
    words = {
        "fixed-size": "Fixed size: ",
        "balls-in-bins": "Balls in bins: in each epoch, each record is in one of 5 batches",
        "twice": "Balls in bins: in each epoch, each record is in exactly 2 of 10 batches",
        "truncated": "more than 70",
    }
    said = dict(statement(facts))
    assert words[name] in said["Sampling"]
    heads, rows = metrics(facts)
    assert heads[:2] == ["membership, substitution", "membership, add or remove"]
    table_of = dict(rows)
    assert "β*, exact, the estimate" in table_of
    first = verdicts(facts)[0]
    assert first.word == "proved"
    assert table_of["Bayes security β*, the number to rely on"][0] == first.beta
    said = facts.command
    assert said.startswith("betastar train ") == (name in ("fixed-size", "balls-in-bins"))
    assert (f"--sampling {name}" in said) == (name in ("fixed-size", "balls-in-bins"))
    assert ("max_batch_size=70" in said) == (name == "truncated")
    assert ("times_per_epoch=2" in said) == (name == "twice")


@pytest.mark.parametrize("name", ["twice"])
def test_runs_without_a_monitor_and_with_gap_clipping(name: str, config: Config, trained: Callable[[Config], RunFolder]) -> None:
    folder = trained(replace(config, monitor=False, **SAMPLINGS[name]))
    assert load(folder.path).run == claimed(name)
    folder = trained(replace(config, gap=0.05, **SAMPLINGS[name]))
    facts = load(folder.path)
    assert facts.run == claimed(name)
    (one,) = facts.attributes
    assert one.kind == "proved"
    assert one.integrated > facts.membership.integrated


def changed(folder: RunFolder, name: str, **entries: Any) -> None:
    values = json.loads((folder / name).read_text()) | entries
    (folder / name).write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.fixture
def bare(config: Config, trained: Callable[[Config], RunFolder]) -> RunFolder:
    return trained(replace(config, monitor=False, sampling="fixed-size"))


@pytest.mark.parametrize(
    ("file", "entries"),
    [("status.json", {"sampling": "poisson"}), ("config.json", {"sampling": "poisson"}), ("status.json", {"sample_rate": 0.01})],
)
def test_a_forged_sampling_is_refused(file: str, entries: dict[str, Any], bare: RunFolder) -> None:
    load(bare.path)
    changed(bare, file, **entries)
    with pytest.raises((ReportError, StudyError)):
        load(bare.path)


def test_a_forged_number_of_times_is_refused(config: Config, trained: Callable[[Config], RunFolder]) -> None:
    folder = trained(replace(config, monitor=False, **SAMPLINGS["twice"]))
    for file in ("status.json", "config.json"):
        kept = (folder / file).read_text()
        changed(folder, file, times_per_epoch=1)
        with pytest.raises((ReportError, StudyError)):
            load(folder.path)
        (folder / file).write_text(kept)
    with pytest.raises(StudyError, match="times_per_epoch belongs to sampling 'balls-in-bins', and to it only; got sampling 'p"):
        train(replace(config, times_per_epoch=2), folder.path.parent / "other")


def test_another_sampling_is_another_run(config: Config, trained: Callable[[Config], RunFolder]) -> None:
    folder = trained(config)
    with pytest.raises(StudyError, match="its sampling is 'poisson', not 'fixed-size'"):
        train(replace(config, sampling="fixed-size"), folder.path, resume=True)
    with pytest.raises(StudyError, match="'shuffled' is not for training"):
        train(replace(config, sampling="shuffled"), folder.path.parent / "other")


def test_an_audit_of_a_run_draws_batches_as_the_run_did(bare: RunFolder) -> None:
    assert audited.of_run(bare.path).sampling == "fixed-size"
