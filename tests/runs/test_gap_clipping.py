"""Runs with gap clipping, and columns that restate a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import betastar as bs
from betastar.runs.adult import adult, table
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train
from betastar.runs.reading import StudyError
from betastar.runs.tables import own
from betastar.training import Records
from betastar.training.secrets.tables import restated

from ..command import call
from ..trained_runs import TrainedRuns, people


def test_columns_that_restate_a_secret_are_found_in_adult() -> None:
    frame = table().drop(columns="income")
    restated_by = {name: restated(frame, name) for name in frame.columns}
    assert [str(one) for one in restated_by["education"]] == ["education_num (100 % of the records)"]
    assert [str(one) for one in restated_by["education_num"]] == ["education (100 % of the records)"]
    assert [str(one) for one in restated_by["sex"]] == ["relationship = Husband, Wife (45 % of the records)"]
    assert [str(one) for one in restated_by["marital_status"]] == ["relationship = Husband, Wife (45 % of the records)"]
    assert restated_by["age"] == restated_by["race"] == []
    assert restated(frame, "sex", along=["relationship"]) == []


def test_numbers_that_stand_for_another() -> None:
    frame = people(500)
    frame["born"] = 2020 - frame["age"]
    frame["decade"] = frame["age"] // 10
    frame["noise"] = range(500)
    assert [one.column for one in restated(frame, "age")] == ["born"]  # a decade leaves ten years
    assert [one.column for one in restated(frame, "decade")] == ["age", "born"]


def test_secrets_of_adult() -> None:
    alone, together = adult(sensitive="sex"), adult(sensitive="sex", along=["relationship"])
    assert alone.secret.labels == ["Female", "Male"]
    assert alone.restated == ("relationship = Husband, Wife (45 % of the records)",)
    assert together.restated == ()
    assert ("Male", "Husband") in together.secret.labels
    assert together.secret.name == "sex with relationship"
    records = Records((together.train.tensors[0][:500],), together.train.tensors[1][:500])
    variants = together.secret.variants(records, range(together.secret.count))
    kept = variants.take(torch.arange(500) * together.secret.count + together.secret.own(records))
    torch.testing.assert_close(kept.inputs[0], records.inputs[0])
    without = adult(drop=["sex"])
    assert without.columns == 106
    assert list(without.raw.columns) == [name for name in table().columns if name != "income"]
    with pytest.raises(StudyError, match="no column 'shoe'"):
        adult(sensitive="shoe")
    with pytest.raises(StudyError, match="no column 'age'"):
        adult(drop=["age"])


def test_own_columns_change_together(tmp_path: Path) -> None:
    frame = people(400)
    frame["century"] = frame["age"].map(lambda age: "old" if age > 40 else "young")
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    study = own(path, "rich", "century", drop=["name"])
    assert any(one.startswith("age") for one in study.restated)
    both = own(path, "rich", "century", drop=["name"], along=["age"])
    assert both.restated == ()
    assert both.secret.count == 40
    with pytest.raises(StudyError, match="those that occur"):
        own(path, "rich", "century", drop=["name"], along=["age"], values=["old", "young"])


def test_public_records_tell_how_frequent_values_are() -> None:
    race = adult(sensitive="race").secret
    assert race.prior is not None
    assert float(race.prior[race.labels.index("White")]) == pytest.approx(0.856, abs=1e-3)


@pytest.fixture
def config(runs: TrainedRuns) -> Config:
    return runs.people(400, noise_multiplier=1.5, seed=0)


def test_a_run_proved_in_advance(config: Config, trained: Callable[[Config], RunFolder]) -> None:
    folder = trained(replace(config, attribute_target="bayes_security>=0.98"))
    status, last = folder.status, folder.epochs[-1]
    (gap,) = (status.gaps or {}).values()
    run = bs.DPSGD(1.5, status.sample_rate, last["steps"])
    assert bs.analyze(run, bs.AttributeInference(gap * (1 + 1e-6)), "certified").bayes_security.lower >= 0.98
    assert last["proved"]["age"]["lower"] == pytest.approx(0.98, abs=5e-4)  # after each epoch on a coarser grid
    assert str(status.proof).startswith("Proved: an attacker who sees all")
    assert "metrics.jsonl" not in [file.name for file in folder.path.iterdir()]  # nothing is measured


def test_what_is_refused(config: Config, tmp_path: Path) -> None:
    for options, message in (
        ({"gap": 2.5}, r"gap must be between 0 and 2 .*got 2\.5"),
        ({"attribute_target": "bayes_security>=1.5"}, "attribute_target .* must be strictly between 0 and 1"),
        ({"gap": 0.1, "attribute_target": "success<=52%"}, "gap and attribute_target are two ways to the same end"),
        ({"target": "success<=52%"}, "target and noise_multiplier are two ways to the same end"),
    ):
        with pytest.raises(ValueError, match=message):
            train(replace(config, **options), tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_the_command(config: Config, tmp_path: Path) -> None:
    words = ["train", config.study, "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "1", "--batch", "40"]
    words += ["--attribute-target", "bayes_security>=0.99", "-o", str(tmp_path / "run")]
    assert re.search(r"age: β\* ≥ [\d.]+, proved\.", call(*words).stdout)
    answer = json.loads(call(*words, "--resume", "--json").stdout)
    assert list(answer["gaps"]) == ["age"]
    assert answer["last"]["epoch"] == 1
