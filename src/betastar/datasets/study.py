"""A study: records to train on, records to test on, a secret, and the parameters that go with them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar.datasets.errors import StudyError as StudyError
from betastar.datasets.label_scale import LabelScale
from betastar.datasets.persons import Persons as Persons
from betastar.datasets.recipe import Recipe as Recipe
from betastar.datasets.seeds import derive
from betastar.datasets.table_encoder import TableEncoder
from betastar.training import Secret

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pandas import DataFrame


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
