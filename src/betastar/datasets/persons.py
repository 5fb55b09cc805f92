"""Whose records they are: persons with several records, in a table with a column that identifies persons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from betastar import validation
from betastar.arrays import Whole
from betastar.datasets.errors import StudyError
from betastar.datasets.seeds import derive

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Persons that a table must have, so that some are left to test on.
FEWEST = 5


@dataclass(frozen=True)
class Persons:
    """The persons of the training part.

    Attributes
    ----------
    column : str
        The column that identifies them.
    number : int
        How many there are.
    largest : int
        The number of records of the person who has most.
    left_out : int
        Records that were left out, because of a limit of the records of a person.
    """

    column: str
    number: int
    largest: int
    left_out: int = 0

    @property
    def sentence(self) -> str:
        """What was done, for people."""
        capped = f"; {self.left_out} more records were left out at random" if self.left_out else ""
        return (
            f"The column {self.column!r} says whose record it is, and is no feature: {self.number} persons to train on, with at "
            f"most {self.largest} record{'s' if self.largest > 1 else ''} each{capped}."
        )


def owners(frame: DataFrame, person: str, needed: Sequence[str]) -> Series:
    """The column of persons; raises StudyError if it cannot be one."""
    if person in needed:
        raise StudyError(f"person must be another column than {person!r}, which is predicted or sensitive.")
    column = frame[person]
    if missing := int(column.isna().sum()):
        raise StudyError(
            f"the column {person!r} does not say whose record it is in {missing} of {len(frame)} records: fill it in, or leave "
            "these records out of the table."
        )
    if (number := int(column.nunique())) < FEWEST:
        raise StudyError(f"the column {person!r} names {number} persons; at least {FEWEST} are needed to train and to test.")
    return column


def split(people: Series, seed: int, most: int | None = None, share: float = 0.2) -> tuple[list[int], list[int], Persons]:
    """The records of the training part and of the test part, such that nobody has records in both.

    most: of more training records of a person, so many are kept at random.
    """
    import pandas as pd
    from sklearn.model_selection import train_test_split

    codes, names = pd.factorize(people)
    trained, tested = train_test_split(range(len(names)), test_size=share, random_state=derive(seed, "split"))
    train, test = np.flatnonzero(np.isin(codes, trained)), np.flatnonzero(np.isin(codes, tested))
    kept = limited(codes, train, seed, most)
    largest = int(np.bincount(codes[kept]).max())
    facts = Persons(str(people.name), len(trained), largest, len(train) - len(kept))
    return kept.tolist(), test.tolist(), facts


def limited(codes: Whole, train: Whole, seed: int, most: int | None) -> Whole:
    """Of the training records, at most so many of each person, chosen at random. `codes` has the person of every record."""
    import pandas as pd

    if most is None:
        return train
    limit = int(validation.whole("max_records_per_person", most))
    mixed = np.random.default_rng(derive(seed, "records of a person")).permutation(train)
    return np.sort(mixed[pd.Series(codes[mixed]).groupby(codes[mixed]).cumcount().to_numpy() < limit])
