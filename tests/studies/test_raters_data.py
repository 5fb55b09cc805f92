"""The study of raters: the table, what comes from public users, caps, and the encoder."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pytest
import torch

from betastar.runs import StudyError, split
from studies.raters import data as raters
from studies.raters.data import Raters
from studies.trainings import packaged

pytestmark = pytest.mark.slow

TABLE = raters.table()


@pytest.fixture(scope="module")
def study() -> Raters:
    return raters.raters(0)


def test_the_package_has_the_table() -> None:
    raw = packaged("dslabs", "movielens", "ratings")
    assert list(raw.columns) == ["rownames", "movieId", "title", "year", "genres", "userId", "rating", "timestamp"]
    assert len(raw) == 100_004


def test_the_table() -> None:
    assert list(TABLE.columns) == ["userId", "movieId", "rating", "genres", "liked"]
    assert len(TABLE) == 100_004
    assert TABLE["userId"].nunique() == 671
    assert TABLE["movieId"].nunique() == 9_066
    assert int((TABLE["liked"] == "4 stars or more").sum()) == 28_750 + 7_723 + 15_095
    known = {genre for genres in TABLE["genres"].unique() for genre in genres.split("|")}
    assert known - {"(no genres listed)"} == set(raters.KINDS)


def test_users_with_many_ratings_like_fewer_films() -> None:
    """The page says so."""
    many = TABLE["userId"].map(TABLE["userId"].value_counts()) > 400
    liked = TABLE["liked"] == "4 stars or more"
    assert liked[many].mean() < 0.45 < 0.55 < liked[~many].mean()


def test_parts(study: Raters) -> None:
    """Four fifths of the users are private, and their ratings are in one part each."""
    public = set(study.public_table["userId"])
    assert len(public) == 135
    assert not public & set(study.owners)
    assert not public & set(study.raw["userId"])
    assert len(study.train) + len(study.test) + len(study.public_table) == 100_004
    assert len(study.owners) == len(study.train)
    assert study.people.number == len(set(study.owners)) == 536
    assert study.people.largest == max(Counter(study.owners).values())
    assert study.train.tensors[0][:, 0].long().tolist() == [study.rating_encoder.users.index(one) for one in study.owners]


def test_a_cap(study: Raters) -> None:
    capped = raters.raters(0, max_records_per_person=5)
    assert max(Counter(capped.owners).values()) == capped.people.largest == 5
    assert capped.people.left_out == len(study.train) - len(capped.train)
    torch.testing.assert_close(capped.test.tensors[0], study.test.tensors[0])
    assert "ratings were left out at random" in capped.told[1]


def test_films_come_from_public_users(study: Raters, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the private users had rated other films, the encoder would be the same."""
    users = sorted(TABLE["userId"].unique())
    private = {users[i] for i in split(len(users), 0, share=raters.PUBLIC)[0]}
    frame = TABLE.copy()
    frame.loc[frame["userId"].isin(private), "movieId"] = 1
    monkeypatch.setattr(raters, "table", lambda: frame)
    assert raters.raters(0).rating_encoder == study.rating_encoder


def test_the_encoder(study: Raters) -> None:
    encoder = study.rating_encoder
    film = encoder.films[6]
    rows = pd.DataFrame({"userId": [3, 1], "movieId": [film, -5], "genres": ["Comedy|Sci-Fi", "(no genres listed)"]})
    made = encoder.tensor(rows)
    assert made[:, :2].tolist() == [[2.0, 7.0], [0.0, 0.0]]
    assert [raters.KINDS[i] for i in made[0, 2:].nonzero().flatten().tolist()] == ["Comedy", "Sci-Fi"]
    assert float(made[1].sum()) == 0.0
    for table, message in (
        (rows.drop(columns="genres"), "no column 'genres'"),
        (rows.assign(userId=[3, 9999]), "not trained with the user 9999"),
        (rows.assign(movieId=[1.0, None]), "'movieId' is missing"),
    ):
        with pytest.raises(StudyError, match=message):
            encoder.tensor(table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sensitive": "age"}, "sensitive must be 'liked' for raters, got 'age'"),
        ({"max_records_per_person": 0}, "max_records_per_person must be"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        raters.raters(**options)
