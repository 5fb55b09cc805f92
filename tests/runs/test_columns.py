"""Columns of own tables: what is done to each is said, identifiers are refused, bits stay bits; and persons with many records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from betastar.runs.reading import StudyError
from betastar.runs.study import Study, split_persons
from betastar.runs.tables import features, own

NUMBER = 240


def visits(number: int = NUMBER) -> pd.DataFrame:
    """Visits of patients, who come one to eight times."""
    generator = np.random.default_rng(0)
    patient = np.repeat(np.arange(number), generator.integers(1, 9, number))[:number]
    return pd.DataFrame(
        {
            "patient": [f"p{one}" for one in patient],
            "day": pd.Series(pd.date_range("2021-03-01", periods=number)).dt.strftime("%Y-%m-%d"),
            "smoker": generator.integers(0, 2, number),
            "weight": generator.normal(70.0, 9.0, number),
            "sex": generator.choice(["f", "m"], number),
            "ill": generator.choice(["yes", "no"], number),
        }
    )


def study(tmp_path: Path, frame: pd.DataFrame, **options: object) -> Study:
    path = tmp_path / "visits.csv"
    frame.to_csv(path, index=False)
    return own(path, "ill", "sex", **options)  # type: ignore[arg-type]


def test_bits_and_words_stay_0_and_1(tmp_path: Path) -> None:
    made = study(tmp_path, visits(), person="patient")
    x = torch.cat([made.train.tensors[0], made.test.tensors[0]])
    columns = [set(column.unique().tolist()) for column in x.T]
    assert sum(values == {0.0, 1.0} for values in columns) == 3  # smoker, and the two values of sex
    assert made.columns == 2 + 1 + 2  # day and weight are numbers
    numbers = torch.stack([column for column in x.T if len(column.unique()) > 2])
    assert torch.allclose(numbers.mean(dim=1), torch.zeros(2), atol=0.05)
    assert torch.allclose(numbers.std(dim=1), torch.ones(2), atol=0.05)


def test_what_is_done_is_said(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[:4, "weight"] = np.nan
    frame["town"] = np.where(np.arange(NUMBER) < 7, None, "north")
    frame.loc[10, "town"] = "south"
    frame.loc[20:22, "ill"] = None
    told = study(tmp_path, frame, person="patient").told
    said = " ".join(told)
    assert "'day' holds dates: the model sees the number of days since 1970" in said
    assert "'weight' is missing in 5 of 237 records: the median" in said
    assert "'town' is missing in 7 of 237 records: 'missing' is a category" in said
    assert "3 of 240 records have no 'ill'" in said
    assert "'patient' says whose record it is, and is no feature" in said
    assert told[0] == "The column 'smoker' holds 0 and 1 and stays so: it is not scaled."
    assert len(told) == 6


def test_many_columns_of_bits_are_told_in_one_sentence() -> None:
    frame = pd.DataFrame({f"b{i}": [0, 1, None] * 10 for i in range(12)} | {"sex": ["f", "m", "m"] * 10})
    told = features(frame, ("sex",))
    named = ", ".join(f"'b{i}'" for i in range(8))
    assert told[0] == f"The columns {named}, … (12 of them) hold 0 and 1 and stay so: they are not scaled."
    assert len(told) == 13  # and that values are missing


@pytest.mark.parametrize("kind", ["string", "with a time", "timestamp", "with a zone"])
def test_dates_become_days(kind: str) -> None:
    moments = pd.Series(pd.date_range("1970-01-02", periods=30))
    if kind == "string":
        moments = moments.dt.strftime("%Y-%m-%d")
    elif kind == "with a time":
        moments = moments.dt.strftime("%Y-%m-%dT%H:%M:%S")
    elif kind == "with a zone":
        moments = moments.dt.tz_localize("UTC")
    frame = pd.DataFrame({"day": moments, "sex": ["f", "m"] * 15})
    assert len(features(frame, ("sex",))) == 1
    assert frame["day"].tolist() == list(range(1, 31))


def test_words_that_are_no_dates_stay_words() -> None:
    frame = pd.DataFrame({"day": ["2023-02-30", "2023-02-28"] * 10, "sex": ["f", "m"] * 10})
    assert features(frame, ("sex",)) == []
    assert frame["day"].nunique() == 2


def test_a_column_that_differs_in_each_record_is_refused(tmp_path: Path) -> None:
    frame = visits().drop(columns="patient").assign(number=np.random.default_rng(1).permutation(NUMBER) + 1000)
    with pytest.raises(StudyError, match=r"'number' is different in each of the 240 records.*--drop number.*1200.0"):
        study(tmp_path, frame)
    quantity = frame.assign(number=frame["number"] / 1.0)
    assert study(tmp_path, quantity).columns == study(tmp_path, frame, drop=["number"]).columns + 1


def test_nobody_has_records_in_both_parts_and_k_is_the_largest(tmp_path: Path) -> None:
    people = visits()["patient"]
    train, test, facts = split_persons(people, seed=3)
    assert sorted(train + test) == list(range(NUMBER))
    assert not set(people[train]) & set(people[test])
    assert facts.largest == people[train].value_counts().max() > 4
    assert facts.number == people[train].nunique()
    made = study(tmp_path, visits(), person="patient")
    assert made.people is not None
    assert len(made.train) + len(made.test) == NUMBER


def test_a_limit_keeps_some_records_of_each_person_at_random() -> None:
    people = visits()["patient"]
    whole, tested, _ = split_persons(people, seed=3)
    kept, same, facts = split_persons(people, seed=3, most=2)
    assert same == tested
    assert set(kept) <= set(whole)
    assert (people[kept].value_counts() == people[whole].value_counts().clip(upper=2)[people[kept].value_counts().index]).all()
    assert (facts.largest, facts.left_out) == (2, len(whole) - len(kept))
    assert "with at most 2 records each; " in facts.sentence
    assert split_persons(people, seed=3, most=2)[0] == kept
    first = [people[people == name].index[0] for name in people[whole].unique()]
    assert not set(first) <= set(kept)  # not simply the first ones


def test_columns_that_cannot_say_whose_record_it_is(tmp_path: Path) -> None:
    frame = visits()
    for options, message in (
        ({"person": "who"}, "no column 'who'"),
        ({"person": "sex"}, "person must be another column than 'sex'"),
        ({"person": "ill"}, "person must be another column than 'ill'"),
        ({"person": "smoker"}, "'smoker' names 2 persons; at least 5"),
        ({"max_records_per_person": 2, "drop": ["patient"]}, "give person as well"),
        ({"person": "patient", "max_records_per_person": 0}, "max_records_per_person must be"),
    ):
        with pytest.raises((StudyError, ValueError), match=message):
            study(tmp_path, frame, **options)  # type: ignore[arg-type]
    frame.loc[3, "patient"] = None
    with pytest.raises(StudyError, match="does not say whose record it is in 1 of 240 records"):
        study(tmp_path, frame, person="patient")
