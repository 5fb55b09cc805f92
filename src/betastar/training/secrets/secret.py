"""Secret: which candidate records does an attacker hesitate between, who knows everything else about the record?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from betastar.training.records import Records

if TYPE_CHECKING:
    from betastar.training.secrets.secret_types import Columns


class Secret(ABC):
    """A sensitive attribute and the values that it may take.

    Make one with `Secret.column`, `columns`, `one_hot`, `label`, `joint`, `function` or `from_transformer`.
    """

    #: `check` is cheap enough for every batch.
    quick_check = True
    #: What people call it, and its values.
    name: str
    labels: list[Any]
    #: How frequent the values are, where that is publicly known.
    prior: Tensor | None = None
    #: Whoever made the secret has already told people which other columns restate it.
    restated_reported = False

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.labels)

    @abstractmethod
    def variants(self, records: Records, values: Sequence[int]) -> Records:
        """Each record once for each of these values (by number), the values of a record in a row."""

    @abstractmethod
    def check(self, records: Records, complete: bool) -> None:
        """That each record holds one of the values and, where all records are there, that the values occur."""

    @abstractmethod
    def own(self, records: Records) -> Tensor:
        """Number of the value that each record holds, (n,)."""

    def shares(self, records: Records) -> Tensor:
        """Weight of each value in the mean over the values, (n, count): the same whichever of them the record holds."""
        one = torch.full((self.count,), 1.0 / self.count, dtype=torch.float64) if self.prior is None else self.prior
        return one.expand(len(records), -1)

    def with_prior(self, prior: Any) -> Secret:
        """A copy that knows how frequent the values are, one number each: gap clipping then takes the mean over them accordingly.

        The frequencies must be public (a census, other people's records), not those of the training records.
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

    def digest(self) -> str:
        """A number that differs for another secret: other values, other places in a record, another name or prior."""
        table = getattr(self, "table", None)
        parts = (type(self).__name__, self.name, self.labels, sorted(map(repr, self.places() or ())))
        tables = tuple(None if t is None else t.tolist() for t in (table, self.prior))
        return sha256(repr((parts, tables)).encode()).hexdigest()

    def as_columns(self) -> Columns | None:
        """The secret as columns of one argument, where it is nothing else: models may then be run faster."""
        return None

    def places(self) -> set[Any] | None:
        """Where in a record it is: columns of an argument, the target. None: anywhere."""
        return None

    def only(self, *labels: Any) -> list[int]:
        """Numbers of the values with these labels."""
        missing = [label for label in labels if label not in self.labels]
        if missing:
            raise ValueError(f"the secret {self.name!r} has no value {missing[0]!r}; it has {listed(self.labels)}.")
        return [self.labels.index(label) for label in labels]

    def __repr__(self) -> str:
        return f"Secret({self.name!r}, {self.count} values)"

    @staticmethod
    def column(
        column: int,
        values: Any,
        *,
        labels: Sequence[Any] | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """One column of the model's input (its last dimension), with the values as the model sees them (scaled).

        labels: what people call the values, if not by themselves. argument: position or name of the model's argument.
        unseen: allow values beyond those that occur in the data.
        """
        table = _table("values", values)
        if table.ndim != 1:
            raise ValueError(
                f"values must be a list of numbers for one column, got shape {tuple(table.shape)}; see Secret.columns."
            )
        shown = [float(value) for value in table] if labels is None else list(labels)
        from betastar.training.secrets.secret_types import Columns

        return Columns([column], table[:, None], shown, name or f"column {column}", argument, unseen)

    @staticmethod
    def columns(
        columns: Sequence[int],
        values: Any,
        *,
        labels: Sequence[Any] | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """Several columns that change together: one row of `values` for each value of the secret."""
        table = _table("values", values)
        if table.ndim != 2 or table.shape[1] != len(columns):
            shape = tuple(table.shape)
            raise ValueError(f"values must have one row a value and {len(columns)} columns, got shape {shape}.")
        shown = [tuple(row.tolist()) for row in table] if labels is None else list(labels)
        from betastar.training.secrets.secret_types import Columns

        return Columns(columns, table, shown, name or f"columns {list(columns)}", argument, unseen)

    @staticmethod
    def one_hot(
        columns: Sequence[int],
        *,
        on: Any = 1.0,
        off: Any = 0.0,
        labels: Sequence[Any] | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """A one-hot group. on, off: how the model sees 1 and 0, one number or one a column (after scaling)."""
        size = len(columns)
        ones = torch.as_tensor(on, dtype=torch.float64).expand(size)
        zeros = torch.as_tensor(off, dtype=torch.float64).expand(size)
        table = torch.where(torch.eye(size, dtype=torch.bool), ones, zeros)
        return Secret.columns(
            columns,
            table,
            labels=labels or list(columns),
            name=name or f"one of columns {list(columns)}",
            argument=argument,
            unseen=unseen,
        )

    @staticmethod
    def label(values: Any, *, labels: Sequence[Any] | None = None, name: str = "label", unseen: bool = False) -> Secret:
        """What the model is trained to predict. values: a number of classes, or the list of targets."""
        table = torch.arange(values) if isinstance(values, int) and not isinstance(values, bool) else torch.as_tensor(values)
        from betastar.training.secrets.secret_types import Label

        return Label(table, table.tolist() if labels is None else list(labels), name, unseen)

    @staticmethod
    def joint(*secrets: Secret) -> Secret:
        """Several secrets at once: every combination of their values."""
        if len(secrets) < 2:
            raise ValueError(f"secrets must be at least two, got {len(secrets)}.")
        from betastar.training.secrets.secret_types import Joint

        return Joint(secrets)

    @staticmethod
    def function(
        candidates: Callable[[Records], Records], count: int, *, labels: Sequence[Any] | None = None, name: str = "candidates"
    ) -> Secret:
        """Any function from one record (a `Records` of one row) to its candidate records (one row each, at most `count`)."""
        if not callable(candidates):
            raise TypeError(f"candidates must be a function from a record to its candidates, got {candidates!r}.")
        if isinstance(count, bool) or not isinstance(count, int) or count < 2:
            raise ValueError(f"count must be a whole number of at least 2, got {count!r}.")
        from betastar.training.secrets.secret_types import Function

        return Function(candidates, list(range(count)) if labels is None else list(labels), name)

    @staticmethod
    def from_transformer(
        transformer: Any,
        column: str | Sequence[str],
        values: Any,
        *,
        records: Any = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """From a fitted scikit-learn transformer (a ColumnTransformer, a Pipeline) and a raw column with its raw values.

        column: its name in the raw table, or several names with `values` a list of tuples: columns that change together.
        records: some raw records (a DataFrame), if the transformer needs real ones.
        """
        from betastar.training.secrets.encoding import encode

        columns, table, shown = encode(transformer, column, values, records)
        from betastar.training.secrets.secret_types import Columns

        return Columns(columns, torch.from_numpy(table), shown, name or str(column), argument, unseen)


def _table(name: str, values: Any) -> Tensor:
    try:
        table = torch.as_tensor(list(values) if isinstance(values, range) else values, dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers as the model sees them, got {values!r}; see Secret.from_transformer.") from None
    if not table.isfinite().all():
        raise ValueError(f"{name} must be finite, got {values!r}.")
    return table


def listed(labels: Sequence[Any]) -> str:
    shown = [repr(label) for label in labels]
    return ", ".join(shown) if len(shown) <= 6 else ", ".join([*shown[:3], "…", *shown[-2:]])
