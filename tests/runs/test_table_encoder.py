"""The encoder of a study as JSON: it does what the fitted pipeline did, and names what it cannot encode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from betastar.runs import adult
from betastar.runs.encoder import Column, TableEncoder
from betastar.runs.reading import StudyError
from betastar.runs.study import split
from betastar.runs.tables import own

from ..trained_runs import people


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TableEncoder:
    path = tmp_path_factory.mktemp("people") / "people.csv"
    people().to_csv(path, index=False)
    kept = own(path, "rich", "age", drop=["name"]).encoder
    assert kept is not None
    return kept


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_it_does_what_the_study_did(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"people.{suffix}"
    people().to_csv(path, index=False) if suffix == "csv" else people().to_parquet(path)
    study = own(path, "rich", "age", drop=["name"], seed=3)
    assert study.encoder is not None
    again = TableEncoder.from_json(json.loads(study.encoder.to_json()))
    assert again == study.encoder
    frame = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
    train, test = split(len(frame), 3)
    assert torch.equal(again.tensor(frame)[train], study.train.tensors[0]), "bit for bit"
    assert torch.equal(again.tensor(frame)[test], study.test.tensors[0])
    assert again.width == study.columns
    assert again.classes == ("no", "yes")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_dates_bits_and_persons(tmp_path: Path, suffix: str) -> None:
    """Dates are days since 1970, and the column of persons may be there."""
    frame = people().assign(
        born=pd.date_range("1990-01-01", periods=300, freq="D"), bit=lambda f: f["age"] % 2, who=lambda f: f.index // 3
    )
    path = tmp_path / f"people.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    study = own(path, "rich", "age", drop=["name"], person="who")
    assert study.encoder is not None
    assert {column.name: column.kind for column in study.encoder.columns}["born"] == "date"
    again = TableEncoder.from_json(json.loads(study.encoder.to_json()))
    assert study.raw is not None
    given = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
    assert torch.equal(again.tensor(given.loc[study.raw.index]), study.test.tensors[0])
    with pytest.raises(
        StudyError, match=r"the column 'born' must hold dates such as 2024-01-31, as it did in training, got 'May'"
    ):
        again.encode(given.assign(born="May"))


def test_it_does_what_the_study_of_adult_did() -> None:
    study = adult.adult(seed=5, drop=["fnlwgt"])
    assert study.encoder is not None
    train, _ = split(len(adult.table()), 5)
    inputs = TableEncoder.from_json(json.loads(study.encoder.to_json())).tensor(adult.table())
    assert torch.equal(inputs[train], study.train.tensors[0])


def test_it_can_be_read(encoder: TableEncoder) -> None:
    """One line for each column, with its name."""
    lines = encoder.to_json().splitlines()
    assert sum(line.startswith('  {"name": ') for line in lines) == 4
    assert '{"name": "town", "kind": "category"' in encoder.to_json()
    assert '"categories": ["missing", "north", "south"]' in encoder.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.drop(columns=["age", "pay"]),
            r"the table has no column 'age', 'pay', which the model was trained with; it has 'town'",
        ),
        (
            lambda f: f.assign(shoe=1),
            r"not trained with the column 'shoe': leave it out \(--drop shoe\), if it is no misspelt name",
        ),
        (
            lambda f: f.assign(town="east"),
            r"the column 'town' is 'east' in a record .*300 records.* one of 'missing', 'north', 'south'",
        ),
        (
            lambda f: f.assign(age="old"),
            r"the column 'age' must hold numbers, as it did in training, got 'old' \(300 such records\)",
        ),
        (lambda f: f.assign(pay=np.inf), r"the column 'pay' is infinite in 300 records: put a number there"),
    ],
)
def test_what_cannot_be_encoded_is_named(encoder: TableEncoder, change: object, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        encoder.encode(change(people()))  # type: ignore[operator]


def test_missing_values(encoder: TableEncoder) -> None:
    """A missing number is the median of the table, a missing word the category that it was in training."""
    frame = people(3).assign(pay=np.nan, town=None)
    pay = next(column for column in encoder.columns if column.name == "pay")
    assert pay.missing == pytest.approx(people()["pay"].median())
    assert encoder.encode(frame).shape == (3, encoder.width)
    never = Column("age", "number", mean=(0.0,), scale=(1.0,))
    with pytest.raises(StudyError, match=r"the column 'age' is missing \(NaN\) in 1 records, which it never was in training"):
        never.encode(pd.Series([1.0, np.nan]))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "image"},
        {"mean": []},
        {"scale": [1.0, 2.0]},
        {"mean": ["0"]},
        {"name": 3},
        {"what": 1},
    ],
)
def test_another_object_is_refused(encoder: TableEncoder, change: dict[str, object]) -> None:
    values = json.loads(encoder.to_json())
    values["columns"][0] |= change
    with pytest.raises((ValueError, TypeError)):
        TableEncoder.from_json(values)
    with pytest.raises(ValueError, match="format must be 1, got 2"):
        TableEncoder.from_json(values | {"format": 2})
