"""Secret: which candidate records does an attacker hesitate between, who knows everything else about the record?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from betastar.training.records import Records

#: A record holds a value if each of its columns agrees to this (relative, plus absolute).
CLOSE = 1e-4


class Secret(ABC):
    """A sensitive attribute and the values that it may take.

    Make one with `Secret.column`, `columns`, `one_hot`, `label`, `joint`, `function` or `from_transformer`.
    """

    #: What people call it, and its values.
    name: str
    labels: list[Any]

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

    def as_columns(self) -> Columns | None:
        """The secret as columns of one argument, where it is nothing else: models may then be run faster."""
        return None

    def only(self, *labels: Any) -> list[int]:
        """Numbers of the values with these labels."""
        missing = [label for label in labels if label not in self.labels]
        if missing:
            raise ValueError(f"the secret {self.name!r} has no value {missing[0]!r}; it has {_listed(self.labels)}.")
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
        return Label(table, table.tolist() if labels is None else list(labels), name, unseen)

    @staticmethod
    def joint(*secrets: Secret) -> Secret:
        """Several secrets at once: every combination of their values."""
        if len(secrets) < 2:
            raise ValueError(f"secrets must be at least two, got {len(secrets)}.")
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
        from betastar.training.encoders import encode

        columns, table, shown = encode(transformer, column, values, records)
        return Columns(columns, torch.from_numpy(table), shown, name or str(column), argument, unseen)


class Columns(Secret):
    def __init__(
        self, columns: Sequence[int], table: Tensor, labels: list[Any], name: str, argument: int | str, unseen: bool
    ) -> None:
        bad = [column for column in columns if isinstance(column, bool) or not isinstance(column, int) or column < 0]
        if bad or not columns or len(set(columns)) != len(columns):
            raise ValueError(f"columns must be different whole numbers of at least 0, got {list(columns)!r}.")
        _distinct(table, labels, name)
        self.where, self.table, self.labels = list(columns), table, labels
        self.name, self.argument, self.unseen = name, argument, unseen

    def as_columns(self) -> Columns | None:
        return self

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        tensor = repeated.get(self.argument)
        rows = self.table[list(values)].to(tensor).repeat(len(records), 1)  # (n·a, k), the values of a record in a row
        middle = (1,) * (tensor.ndim - 2)
        tensor[..., self.where] = rows.reshape(len(rows), *middle, len(self.where)).expand(*tensor.shape[:-1], -1)
        return repeated

    def check(self, records: Records, complete: bool) -> None:
        tensor = _argument(records, self.argument, self.name)
        if tensor.ndim < 2 or max(self.where) >= tensor.shape[-1]:
            width = tensor.shape[-1] if tensor.ndim > 1 else 0
            raise ValueError(
                f"the secret {self.name!r} needs column {max(self.where)}, but the model's input has {width} columns."
            )
        held = tensor[..., self.where].reshape(-1, len(self.where))
        distinct = held.unique(dim=0).double().cpu()
        which = _match(distinct, self.table.double(), self.name, self.labels)
        outside = sorted(set(range(self.count)) - set(which))
        if not outside or self.unseen or not complete:
            return
        if len(self.where) == 1:  # numbers within the range of the data need not all occur
            low, high = float(distinct.min()), float(distinct.max())
            slack = CLOSE * (1.0 + max(abs(low), abs(high)))
            outside = [i for i in outside if not low - slack <= float(self.table[i, 0]) <= high + slack]
        _refuse_unseen([self.labels[i] for i in outside], self.name)


class Label(Secret):
    def __init__(self, table: Tensor, labels: list[Any], name: str, unseen: bool) -> None:
        if table.ndim != 1:
            raise ValueError(f"values must be a list of targets, got shape {tuple(table.shape)}.")
        _distinct(table[:, None], labels, name)
        self.table, self.labels, self.name, self.unseen = table, labels, name, unseen

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        rows = self.table[list(values)].to(records.target).repeat(len(records))
        shape = repeated.target.shape
        return Records(repeated.inputs, rows.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape), repeated.named)

    def check(self, records: Records, complete: bool) -> None:
        if not isinstance(records.target, Tensor):
            raise ValueError(f"the secret {self.name!r} needs a target tensor, got {type(records.target).__name__}.")
        which = _match(
            records.target.reshape(-1, 1).unique(dim=0).double().cpu(), self.table[:, None].double(), self.name, self.labels
        )
        if complete and not self.unseen:
            _refuse_unseen([label for i, label in enumerate(self.labels) if i not in which], self.name)


class Joint(Secret):
    def __init__(self, parts: Sequence[Secret]) -> None:
        self.parts = list(parts)
        self._sizes = [part.count for part in parts]
        self.name = " and ".join(part.name for part in parts)
        self.labels = [tuple(combination) for combination in product(*(part.labels for part in parts))]
        self._merged = self._merge()

    def _merge(self) -> Columns | None:
        parts = [part.as_columns() for part in self.parts]
        columns = [column for part in parts if part for column in part.where]
        if not all(parts) or len({part.argument for part in parts if part}) > 1 or len(set(columns)) < len(columns):
            return None
        table = torch.stack([torch.cat(rows) for rows in product(*(part.table for part in parts if part))])
        first = parts[0]
        assert first is not None
        return Columns(columns, table, self.labels, self.name, first.argument, unseen=True)

    def as_columns(self) -> Columns | None:
        return self._merged

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        if self._merged:
            return self._merged.variants(records, values)
        made = []
        for number in values:
            one = records
            for k, part in enumerate(self.parts):
                digit = number // prod(self._sizes[k + 1 :]) % self._sizes[k]
                one = part.variants(one, [digit])
            made.append(one)
        return _interleave(made)

    def check(self, records: Records, complete: bool) -> None:
        for part in self.parts:
            part.check(records, complete)


class Function(Secret):
    def __init__(self, candidates: Callable[[Records], Records], labels: list[Any], name: str) -> None:
        self._candidates, self.labels, self.name = candidates, labels, name

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        made = []
        for i in range(len(records)):
            found = self._candidates(records.take(slice(i, i + 1)))
            if not isinstance(found, Records) or not 1 <= len(found) <= self.count:
                got = f"{len(found)} of them" if isinstance(found, Records) else type(found).__name__
                raise ValueError(f"candidates must return Records with 1 to {self.count} rows, got {got} for record {i}.")
            made.append(found.take([min(number, len(found) - 1) for number in values]))  # fewer: the last one again
        return _join(made)

    def check(self, records: Records, complete: bool) -> None:
        for i in range(min(len(records), 8)):
            one = records.take(slice(i, i + 1))
            offered = self.variants(one, range(self.count))
            same = torch.ones(self.count, dtype=torch.bool)
            for mine, theirs in zip(_tensors(one), _tensors(offered), strict=True):
                close = torch.isclose(theirs.double(), mine.double(), rtol=CLOSE, atol=CLOSE)
                same &= close.reshape(self.count, -1).all(dim=1).cpu()
            if not same.any():
                raise ValueError(f"candidates must contain the record itself, which they do not for record {i}.")


def _table(name: str, values: Any) -> Tensor:
    try:
        table = torch.as_tensor(list(values) if isinstance(values, range) else values, dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers as the model sees them, got {values!r}; see Secret.from_transformer.") from None
    if not table.isfinite().all():
        raise ValueError(f"{name} must be finite, got {values!r}.")
    return table


def _distinct(table: Tensor, labels: list[Any], name: str) -> None:
    if len(table) < 2:
        raise ValueError(f"values must be at least two for the secret {name!r}, got {len(table)}.")
    if len(labels) != len(table):
        raise ValueError(f"labels must be one for each of the {len(table)} values, got {len(labels)}.")
    seen: dict[tuple[float, ...], Any] = {}
    for row, label in zip(table.tolist(), labels, strict=True):
        if tuple(row) in seen:
            raise ValueError(
                f"values must differ, but {seen[tuple(row)]!r} and {label!r} of {name!r} look the same to the model."
            )
        seen[tuple(row)] = label


def _argument(records: Records, argument: int | str, name: str) -> Tensor:
    try:
        tensor = records.get(argument)
    except (IndexError, KeyError):
        raise ValueError(f"the secret {name!r} is in argument {argument!r}, which the model is not called with.") from None
    if not isinstance(tensor, Tensor):
        raise ValueError(f"the secret {name!r} is in argument {argument!r}, which is no tensor but {type(tensor).__name__}.")
    return tensor


def _match(held: Tensor, table: Tensor, name: str, labels: list[Any]) -> set[int]:
    """Numbers of the values that occur; each row that occurs must be one of them."""
    found: set[int] = set()
    for some in held.split(4096):
        close = torch.isclose(some[:, None], table[None], rtol=CLOSE, atol=CLOSE).all(dim=2)
        stranger = ~close.any(dim=1)
        if stranger.any():
            row = some[stranger][0].tolist()
            raise ValueError(
                f"the secret {name!r} never takes the value {row[0] if len(row) == 1 else row} that a record holds; "
                f"its values are {_listed(labels)}. Give them as the model sees them, or use Secret.from_transformer."
            )
        found.update(close.any(dim=0).nonzero().flatten().tolist())
    return found


def _refuse_unseen(labels: list[Any], name: str) -> None:
    if labels:
        raise ValueError(
            f"no record holds the value {_listed(labels)} of the secret {name!r}. "
            "Leave it out, or pass unseen=True if an attacker would still consider it."
        )


def _listed(labels: Sequence[Any]) -> str:
    shown = [repr(label) for label in labels]
    return ", ".join(shown) if len(shown) <= 6 else ", ".join([*shown[:3], "…", *shown[-2:]])


def _tensors(records: Records) -> list[Tensor]:
    return [
        value for value in (*records.inputs, *records.named.values(), records.target) if isinstance(value, Tensor) and value.ndim
    ]


def _join(parts: Sequence[Records]) -> Records:
    """Records one after the other."""

    def cat(values: list[Any]) -> Any:
        return torch.cat(values) if isinstance(values[0], Tensor) and values[0].ndim else values[0]

    first = parts[0]
    inputs = tuple(cat([part.inputs[i] for part in parts]) for i in range(len(first.inputs)))
    return Records(
        inputs, cat([part.target for part in parts]), {key: cat([part.named[key] for part in parts]) for key in first.named}
    )


def _interleave(parts: Sequence[Records]) -> Records:
    """The first row of each part, then the second of each, and so on."""
    rows, size = len(parts[0]), len(parts)
    order = torch.arange(rows * size).reshape(size, rows).T.flatten()
    return _join(parts).take(order)
