"""A study: records to train on, records to test on, a secret, whose records they are, and how to train on them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.runs.config import Recipe
from betastar.runs.encoder import LabelScale, TableEncoder
from betastar.runs.reading import StudyError
from betastar.runs.seeds import derive
from betastar.training import Secret

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pandas import DataFrame, Series


# Persons with several records

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


def person_column(frame: DataFrame, person: str, needed: Sequence[str]) -> Series:
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


def split_persons(people: Series, seed: int, most: int | None = None, share: float = 0.2) -> tuple[list[int], list[int], Persons]:
    """The records of the training part and of the test part, such that nobody has records in both.

    most: a person with more training records keeps this many, at random.
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


def limited(codes: NDArray[Any], train: NDArray[Any], seed: int, most: int | None) -> NDArray[Any]:
    """Of the training records, at most this many of each person, chosen at random. `codes` has the person of every record."""
    import pandas as pd

    if most is None:
        return train
    limit = int(validation.whole("max_records_per_person", most))
    mixed = np.random.default_rng(derive(seed, "records of a person")).permutation(train)
    return np.sort(mixed[pd.Series(codes[mixed]).groupby(codes[mixed]).cumcount().to_numpy() < limit])


# The study


@dataclass(frozen=True)
class Study:
    """Records, a secret, and how to train.

    Attributes
    ----------
    name : str
        The name of the data set.
    train, test : TensorDataset
        The records to train on and to test on, as a model sees them.
    secret : Secret
        The sensitive attribute.
    classes : sequence
        The labels of the classes; empty if the label is a number (`encoder.label_scale`).
    recipe : Recipe
        The parameters of training.
    raw : DataFrame or None
        The test records before they were encoded, where they are a table.
    restated : tuple of str
        What else in a record gives the secret away, in words.
    told : tuple of str
        What was done to the columns of a table, in sentences.
    people : Persons or None
        The persons of the training part, where a column says whose record it is.
    encoder : TableEncoder or None
        What makes records of a table of its kind into inputs of the model; None if no model of the study is kept for use.
    model : callable or None
        Makes the model of a recipe, with new weights. None: linear layers with tanh between them.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    secret: Secret
    classes: Sequence[object]
    recipe: Recipe
    raw: DataFrame | None = None
    restated: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    people: Persons | None = None
    encoder: TableEncoder | None = None
    model: Callable[[Recipe], nn.Module] | None = None

    def fingerprint(self) -> str:
        """A hash of the records as they are trained and tested on, and of the secret."""
        secret = self.secret
        total = hashlib.sha256(repr((self.classes, secret.name, list(map(str, secret.labels)))).encode())
        for tensor in (*self.train.tensors, *self.test.tensors, *(() if secret.prior is None else (secret.prior,))):
            total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            total.update(tensor.contiguous().numpy().tobytes())
        return total.hexdigest()

    @property
    def label_scale(self) -> LabelScale | None:
        """How a label that is a number becomes a target; None if there are classes."""
        return None if self.encoder is None else self.encoder.label_scale

    @property
    def columns(self) -> int:
        return int(self.train.tensors[0].shape[1])


def tensors(x: ArrayLike | Tensor, y: ArrayLike | Tensor, kind: torch.dtype = torch.float32) -> TensorDataset:
    """Records as a model sees them, and the numbers of their classes, or targets that are numbers.

    `kind` is torch.long for texts, whose tokens are whole numbers.
    """
    table: Tensor = torch.as_tensor(x, dtype=kind)
    targets = torch.as_tensor(y)
    return TensorDataset(table, targets if targets.is_floating_point() else targets.long())


def split(number: int, seed: int, share: float = 0.2) -> tuple[list[int], list[int]]:
    """The indices of the training part and of the test part."""
    from sklearn.model_selection import train_test_split

    return train_test_split(range(number), test_size=share, random_state=derive(seed, "split"))
