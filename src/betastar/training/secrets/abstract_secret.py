"""AbstractSecret: what monitors, budgets, gap clipping and audits ask of a secret."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from copy import copy
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from betastar.training.records import Records

if TYPE_CHECKING:
    from betastar.training.secrets.secret_types import Columns


class AbstractSecret(ABC):
    """A sensitive attribute and the values that it may take, in the order of their numbers."""

    #: Whether `check` is cheap enough for every batch.
    quick_check = True
    #: What people call the secret.
    name: str
    #: What people call its values.
    labels: list[Any]
    #: How frequent the values are, if that is publicly known.
    prior: Tensor | None = None
    #: Whether people have already been told which other columns restate the secret.
    restated_reported = False

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.labels)

    @abstractmethod
    def variants(self, records: Records, values: Sequence[int]) -> Records:
        """Give each record the values of the secret in turn.

        Parameters
        ----------
        records : Records
            The records.
        values : sequence of int
            The numbers of the values.

        Returns
        -------
        Records
            Each record once for each value. The variants of a record stand one after the other.
        """

    @abstractmethod
    def check(self, records: Records, complete: bool) -> None:
        """Refuse records that hold none of the values, and values that no record holds.

        Parameters
        ----------
        records : Records
            The records.
        complete : bool
            Whether these are all records, so that each value has to occur among them.

        Raises
        ------
        ValueError
            If a record holds another value, or if a value does not occur.
        """

    @abstractmethod
    def own(self, records: Records) -> Tensor:
        """Find the value that each record holds.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor
            The number of each record's value, of shape (n,).
        """

    def concerned(self, records: Records) -> Tensor:
        """Say which records the secret is about: what is measured or proved is about these.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor
            True or False for each record, of shape (n,); by default always true.
        """
        return torch.ones(len(records), dtype=torch.bool)

    def shares(self, records: Records) -> Tensor:
        """Give the weight of each value in the mean over the values, which is the same whichever value the record holds.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor
            Weights that add up to 1 for each record, of shape (n, count).
        """
        one = torch.full((self.count,), 1.0 / self.count, dtype=torch.float64) if self.prior is None else self.prior
        return one.expand(len(records), -1)

    def with_prior(self, prior: ArrayLike | Tensor) -> Self:
        """Make a copy that knows how frequent the values are. Gap clipping then takes the mean over them accordingly.

        The frequencies must be public (a census, other people's records), not those of the training records.

        Parameters
        ----------
        prior : sequence of float
            One number for each value. The numbers add up to 1.

        Returns
        -------
        Secret
            The copy.

        Raises
        ------
        ValueError
            If there are more or fewer numbers than values, or if they do not add up to 1.
        """
        numbers = torch.as_tensor(prior, dtype=torch.float64)
        if numbers.shape != (self.count,) or not bool((numbers >= 0.0).all()) or abs(float(numbers.sum()) - 1.0) > 1e-6:
            raise ValueError(
                f"prior must be {self.count} numbers of at least 0 that add up to 1, one for each value of {self.name!r}, "
                f"got {len(numbers) if numbers.ndim else 1} that add up to {float(numbers.sum()):g}."
            )
        weighted = copy(self)
        weighted.prior = numbers / numbers.sum()
        return weighted

    def tables(self) -> tuple[Tensor | None, ...]:
        """The values as the model sees them, which tell this secret from another one with the same labels.

        Returns
        -------
        tuple of Tensor
            One table for each part of the secret; None for a part without a table.
        """
        return (None,)

    def digest(self) -> str:
        """Compute a number that differs for a secret with other values, another place in a record, another name or prior.

        Returns
        -------
        str
            In hexadecimal digits.
        """
        parts = (type(self).__name__, self.name, self.labels, sorted(map(repr, self.places() or ())))
        tables = tuple(None if table is None else table.tolist() for table in (*self.tables(), self.prior))
        return sha256(repr((parts, tables)).encode()).hexdigest()

    def as_columns(self) -> Columns | None:
        """Give the secret as columns of one argument of the model, with which gradients are computed faster.

        Returns
        -------
        Columns or None
            None if the secret is something else.
        """
        return None

    def places(self) -> set[Hashable] | None:
        """Say where in a record the secret is.

        Returns
        -------
        set or None
            (argument, column) for each column, and "target" for the target. None if the secret may be anywhere.
        """
        return None

    def first_position(self, records: Records) -> Tensor | None:
        """Say from which position of a text on variants of a record may differ. A causal model computes what is before it once.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor or None
            A position for each record, of shape (n,): before it, no token of a variant differs from that of another variant. It
            is the number of positions if all variants are the same. None if the secret does not know. Labels may differ from one
            position earlier on, where the first token that differs is predicted.
        """
        return None

    def only(self, *labels: object) -> list[int]:
        """Find the numbers of values.

        Parameters
        ----------
        *labels : object
            The labels of the values.

        Returns
        -------
        list of int
            The number of each value.

        Raises
        ------
        ValueError
            If there is no value with such a label.
        """
        missing = [label for label in labels if label not in self.labels]
        if missing:
            raise ValueError(f"the secret {self.name!r} has no value {missing[0]!r}; it has {listed(self.labels)}.")
        return [self.labels.index(label) for label in labels]

    def __repr__(self) -> str:
        return f"Secret({self.name!r}, {self.count} values)"


def listed(labels: Sequence[object]) -> str:
    """Labels in one line; of many, the first and the last ones."""
    shown = [repr(label) for label in labels]
    return ", ".join(shown) if len(shown) <= 6 else ", ".join([*shown[:3], "…", *shown[-2:]])
