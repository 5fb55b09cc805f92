"""The kinds of secrets: columns, the label, several at once, any function."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NoReturn

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from betastar.training.records import SPLIT, TARGET, Records, concatenated, flattened, interleaved
from betastar.training.secrets.secret import Secret, listed

# ---- Held values: which value of a secret each record holds, and what is refused about values and records.

#: A record holds a value if each of its columns agrees to this (relative, plus absolute).
CLOSE = 1e-4


def argument_of(records: Records, argument: int | str, name: str) -> Tensor:
    """The argument of the model that holds a secret. `name` is the name of the secret."""
    try:
        tensor = records.get(argument)
    except (IndexError, KeyError):
        given = ", ".join(repr(key) for key in records.arguments() if key != TARGET)
        raise ValueError(
            f"the secret {name!r} is in argument {argument!r}, which the model is not called with; it is called with {given}. "
            f"Say which argument holds the secret, as in Secret.column(…, argument=0). If the model gets more than that, {SPLIT}."
        ) from None
    if not isinstance(tensor, Tensor):
        raise ValueError(f"the secret {name!r} is in argument {argument!r}, which is no tensor but {type(tensor).__name__}.")
    return tensor


def other_arguments(records: Records, argument: int | str) -> str:
    """What helps whoever looks for a secret in the wrong argument of the model; empty if there is no other one."""
    others = [repr(key) for key in records.rows() if key not in (argument, TARGET)]
    if not others:
        return ""
    return f" It is looked for in argument {argument!r} of the model, which also gets {', '.join(others)}: argument= says which."


def numbers_held(held: Tensor, table: Tensor, name: str, labels: Sequence[object]) -> Tensor:
    """The number of the value that each row holds, up to rounding. `table` has one row for each value."""
    numbers = []
    for some in held.split(4096):
        apart = (some[:, None] - table[None]).abs()
        number = apart.amax(dim=2).argmin(dim=1)
        stranger = ~torch.isclose(some, table[number], rtol=CLOSE, atol=CLOSE).all(dim=1)
        if stranger.any():
            row = some[stranger][0].tolist()
            raise ValueError(
                f"the secret {name!r} never takes the value {row[0] if len(row) == 1 else row} that a record holds; "
                f"its values are {listed(labels)}. Give them as the model sees them, or use Secret.from_transformer."
            )
        numbers.append(number)
    return torch.cat(numbers) if numbers else torch.zeros(0, dtype=torch.long)


def values_held(held: Tensor, table: Tensor, name: str, labels: Sequence[object]) -> set[int]:
    """The numbers of the values that occur. A row that is none of the values is refused."""
    return set(numbers_held(held, table, name, labels).tolist())


def require_distinct(table: Tensor, labels: Sequence[object], name: str) -> None:
    """Refuse values that are fewer than two, that have not one label each, or of which two are the same."""
    if len(table) < 2:
        raise ValueError(f"values must be at least two for the secret {name!r}, got {len(table)}.")
    if len(labels) != len(table):
        raise ValueError(f"labels must be one for each of the {len(table)} values, got {len(labels)}.")
    seen: dict[tuple[float, ...], object] = {}
    for row, label in zip(table.tolist(), labels, strict=True):
        if tuple(row) in seen:
            raise ValueError(
                f"values must differ, but {seen[tuple(row)]!r} and {label!r} of {name!r} look the same to the model."
            )
        seen[tuple(row)] = label


def refuse_missing(held: Tensor, name: str) -> None:
    """Refuse records that hold NaN."""
    if missing := int(held.isnan().flatten(1).any(dim=1).sum()):
        raise ValueError(
            f"the secret {name!r} is missing (NaN) in {missing} of {len(held)} records. Fill it in, with a value of its own if "
            "need be, or leave these records out."
        )


def refuse_unseen(labels: Sequence[object], name: str) -> None:
    """Refuse values that no record holds. `labels` are theirs."""
    if labels:
        raise ValueError(
            f"no record holds the value {listed(labels)} of the secret {name!r}. "
            "Leave it out, or pass unseen=True if an attacker would still consider it."
        )


# ---- Kinds of secrets

#: Up to this many records are compared with the values one by one, which is faster than looking for different ones.
FEW = 1024
#: A check of a function looks at so many records, and at so many candidates of each.
LOOK_AT = 8


class Columns(Secret):
    """Columns of one argument of the model. `table` has one row for each value, and one column for each of `columns`."""

    def __init__(
        self, columns: Sequence[int], table: Tensor, labels: list[Any], name: str, argument: int | str, unseen: bool
    ) -> None:
        bad = [column for column in columns if isinstance(column, bool) or not isinstance(column, int) or column < 0]
        if bad or not columns or len(set(columns)) != len(columns):
            raise ValueError(f"columns must be different whole numbers of at least 0, got {list(columns)!r}.")
        require_distinct(table, labels, name)
        self.where, self.table, self.labels = list(columns), table, labels
        self.name, self.argument, self.unseen = name, argument, unseen

    def as_columns(self) -> Columns | None:
        return self

    def places(self) -> set[Hashable] | None:
        return {(self.argument, column) for column in self.where}

    def tables(self) -> tuple[Tensor | None, ...]:
        return (self.table,)

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        tensor = repeated.get(self.argument)
        rows = (
            self.table[list(values)].to(tensor).repeat(len(records), 1)
        )  # (n·a, k), the variants of a record one after the other
        middle = (1,) * (tensor.ndim - 2)
        tensor[..., self.where] = rows.reshape(len(rows), *middle, len(self.where)).expand(*tensor.shape[:-1], -1)
        return repeated

    def own(self, records: Records) -> Tensor:
        return numbers_held(self._held(records).double().cpu(), self.table.double(), self.name, self.labels)

    def _held(self, records: Records) -> Tensor:
        """The columns of each record, (n, k). They must be the same at all positions of a sequence."""
        tensor = argument_of(records, self.argument, self.name)
        if tensor.ndim < 2 or max(self.where) >= tensor.shape[-1]:
            width = tensor.shape[-1] if tensor.ndim > 1 else 0
            raise ValueError(
                f"the secret {self.name!r} needs column {max(self.where)}, but the model's input has {width} columns."
                f"{_no_table(tensor)}{other_arguments(records, self.argument)}"
            )
        held = tensor[..., self.where].flatten(1, -2) if tensor.ndim > 2 else tensor[:, None, self.where]
        if not (held == held[:, :1]).all():
            refuse_missing(held, self.name)
            raise ValueError(
                f"the secret {self.name!r} has different values at different positions of a record."
                f"{_no_table(tensor)}{other_arguments(records, self.argument)}"
            )
        return held[:, 0]

    def check(self, records: Records, complete: bool) -> None:
        held = self._held(records)
        distinct = (held.unique(dim=0) if len(held) > FEW else held).double().cpu()
        try:
            which = values_held(distinct, self.table.double(), self.name, self.labels)
        except ValueError as problem:
            raise ValueError(f"{problem}{other_arguments(records, self.argument)}") from None
        outside = sorted(set(range(self.count)) - set(which))
        if not outside or self.unseen or not complete:
            return
        if len(self.where) == 1:  # numbers within the range of the data do not have to occur
            low, high = float(distinct.min()), float(distinct.max())
            slack = CLOSE * (1.0 + max(abs(low), abs(high)))
            outside = [i for i in outside if not low - slack <= float(self.table[i, 0]) <= high + slack]
        refuse_unseen([self.labels[i] for i in outside], self.name)


class Entry(Columns):
    """One number of each record, at a place of its tensor: a pixel of an image."""

    def __init__(
        self, place: tuple[int, ...], table: Tensor, labels: list[Any], name: str, argument: int | str, unseen: bool
    ) -> None:
        if not place or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in place):
            raise ValueError(f"column must be a whole number of at least 0 or a tuple of them, got {place!r}.")
        super().__init__([0], table, labels, name, argument, unseen)
        self.place = place
        self._index: Any = (slice(None), *place)

    def as_columns(self) -> Columns | None:
        return None

    def places(self) -> set[Hashable] | None:
        return {(self.argument, self.place), (self.argument, self.place[-1])}  # a secret column holds it, too

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        tensor = repeated.get(self.argument)
        tensor[self._index] = self.table[list(values), 0].to(tensor).repeat(len(records))
        return repeated

    def _held(self, records: Records) -> Tensor:
        tensor = argument_of(records, self.argument, self.name)
        shape = tuple(tensor.shape[1:])
        if len(shape) != len(self.place) or any(one >= size for one, size in zip(self.place, shape, strict=True)):
            raise ValueError(
                f"the secret {self.name!r} is at {self.place}, but a record of the model's input is of shape {shape}."
                f"{other_arguments(records, self.argument)}"
            )
        return tensor[self._index][:, None]


class Label(Secret):
    """The target of the criterion. `table` holds the targets."""

    def __init__(self, table: Tensor, labels: list[Any], name: str, unseen: bool) -> None:
        if table.ndim != 1:
            raise ValueError(f"values must be a list of targets, got shape {tuple(table.shape)}.")
        require_distinct(table[:, None], labels, name)
        self.table, self.labels, self.name, self.unseen = table, labels, name, unseen

    def tables(self) -> tuple[Tensor | None, ...]:
        return (self.table,)

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        rows = self.table[list(values)].to(records.target).repeat(len(records))
        shape = repeated.target.shape
        return replace(repeated, target=rows.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape))

    def places(self) -> set[Hashable] | None:
        return {"target"}

    def own(self, records: Records) -> Tensor:
        return numbers_held(self._held(records).double().cpu(), self.table[:, None].double(), self.name, self.labels)

    def _held(self, records: Records) -> Tensor:
        if not isinstance(records.target, Tensor):
            raise ValueError(f"the secret {self.name!r} needs a target tensor, got {type(records.target).__name__}.")
        target = records.target.reshape(len(records.target), -1)
        if not (target == target[:, :1]).all():
            refuse_missing(target, self.name)
            raise ValueError(f"the secret {self.name!r} must be one number a record, but targets differ within a record.")
        return target[:, :1]

    def check(self, records: Records, complete: bool) -> None:
        which = values_held(
            self._held(records).unique(dim=0).double().cpu(), self.table[:, None].double(), self.name, self.labels
        )
        if complete and not self.unseen:
            refuse_unseen([label for i, label in enumerate(self.labels) if i not in which], self.name)


class Joint(Secret):
    """All combinations of the values of several secrets. The values of the last secret vary fastest."""

    def __init__(self, parts: Sequence[Secret]) -> None:
        self.parts = list(parts)
        _refuse_with_text(self.parts)
        self.quick_check = all(part.quick_check for part in parts)
        self._sizes = [part.count for part in parts]
        self.name = " and ".join(part.name for part in parts)
        self.labels = [tuple(combination) for combination in product(*(part.labels for part in parts))]
        self._merged = self._merge()

    def _merge(self) -> Columns | None:
        """The secrets as columns of one argument, if all of them are columns of the same argument."""
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
        return interleaved(made)

    def places(self) -> set[Hashable] | None:
        every = [part.places() for part in self.parts]
        return None if None in every else {place for places in every for place in places or ()}

    def tables(self) -> tuple[Tensor | None, ...]:
        return tuple(table for part in self.parts for table in (*part.tables(), part.prior))

    def own(self, records: Records) -> Tensor:
        number = torch.zeros(len(records), dtype=torch.long)
        for part in self.parts:
            number = number * part.count + part.own(records)
        return number

    def shares(self, records: Records) -> Tensor:
        shares = torch.ones(len(records), 1, dtype=torch.float64)
        for part in self.parts:  # parts may refuse records here, with a prior of the whole, too
            shares = (shares[:, :, None] * part.shares(records)[:, None, :]).flatten(1)
        return shares if self.prior is None else super().shares(records)

    def check(self, records: Records, complete: bool) -> None:
        for part in self.parts:
            part.check(records, complete)


def _refuse_with_text(parts: Sequence[Secret]) -> None:
    """Refuse a secret in a text together with one that may be in the same text: each would move or change the other."""
    from betastar.training.secrets.text_secret import TextSecret

    for one in parts:
        for other in parts:
            if not isinstance(one, TextSecret) or other is one:
                continue
            places = other.places()
            where = {place[0] if isinstance(place, tuple) else place for place in places or ()}
            if places is None or where & set(one.text.arguments()):
                raise ValueError(
                    f"secrets must not be in the same text, but {one.name!r} and {other.name!r} may be: describe both with "
                    "Secret.function."
                )


class Function(Secret):
    """The candidates that a function returns for each record."""

    quick_check = False

    def __init__(self, candidates: Callable[[Records], Records], labels: list[Any], name: str) -> None:
        self._candidates, self.labels, self.name = candidates, labels, name

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        made = []
        for i in range(len(records)):
            candidates = self._candidates(records.take(slice(i, i + 1)))
            if not isinstance(candidates, Records) or not 1 <= len(candidates) <= self.count:
                got = f"{len(candidates)} of them" if isinstance(candidates, Records) else type(candidates).__name__
                raise ValueError(f"candidates must return Records with 1 to {self.count} rows, got {got} for record {i}.")
            # A record with fewer candidates than others repeats its last one.
            made.append(candidates.take([min(number, len(candidates) - 1) for number in values]))
        return concatenated(made)

    def of(self, records: Records) -> Secret:
        return Offered(self, records)

    def own(self, records: Records) -> Tensor:
        return self.of(records).own(records)

    def with_prior(self, prior: ArrayLike | Tensor) -> NoReturn:
        raise ValueError(f"prior cannot be given for {self.name!r}: each record has candidates of its own.")

    def shares(self, records: Records) -> Tensor:
        return self.of(records).shares(records)

    def check(self, records: Records, complete: bool) -> None:
        """Refuse records that are not their own candidates, and candidates that have other candidates.

        The attacker's choice would otherwise depend on the secret.
        """
        for i in range(min(len(records), LOOK_AT)):
            one = records.take(slice(i, i + 1))
            offered = self.variants(one, range(self.count))
            if not _among(one, offered).all():
                raise ValueError(f"candidates must contain the record itself, which they do not for record {i}.")
            for k in range(min(self.count, LOOK_AT)):
                others = self.variants(offered.take(slice(k, k + 1)), range(self.count))
                if not (_among(others, offered).all() and _among(offered, others).all()):
                    raise ValueError(
                        f"candidates of a candidate must be the same records again, which they are not for candidate {k} of "
                        f"record {i}: which records the attacker considers must not depend on the secret."
                    )


class Offered(Function):
    """The candidates of some records, for which the function is called once a record. All questions are about these records."""

    def __init__(self, function: Function, records: Records) -> None:
        super().__init__(function._candidates, function.labels, function.name)
        self._every = Function.variants(self, records, range(self.count))
        self._rows = flattened(self._every).unflatten(0, (len(records), self.count))

    def of(self, records: Records) -> Secret:
        return self

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        return self._every.take((torch.arange(len(records))[:, None] * self.count + torch.tensor(list(values))).flatten())

    def own(self, records: Records) -> Tensor:
        held = zip(flattened(records).split(1), self._rows, strict=True)
        numbers = [numbers_held(one, rows, self.name, self.labels) for one, rows in held]
        return torch.cat(numbers) if numbers else torch.zeros(0, dtype=torch.long)

    def shares(self, records: Records) -> Tensor:
        """Count each different candidate once, however often and in whichever order the function returns it.

        Each candidate must have the same candidates, bit for bit: otherwise the mean would tell which of them the record is. That
        is looked at for one record, which nobody can foresee.
        """
        looked, shares = secrets.randbelow(max(1, len(records))), torch.zeros(len(records), self.count, dtype=torch.float64)
        for i, rows in enumerate(self._rows):
            different, which, times = rows.unique(dim=0, return_inverse=True, return_counts=True)
            for k in range(self.count) if i == looked else ():
                one = self._every.take([i * self.count + k])
                others = flattened(Function.variants(self, one, range(self.count)))
                if not torch.equal(others.unique(dim=0), different):
                    raise ValueError(
                        "candidates of a candidate must be the same records again, bit for bit, which they are not for "
                        f"candidate {k} of record {i} of a batch: compute all of them alike, whichever the record holds."
                    )
            shares[i] = 1.0 / (len(times) * times[which])
        return shares


def _no_table(tensor: Tensor) -> str:
    """What helps whoever asks for a column of records that are no rows of a table."""
    if tensor.ndim == 2:
        return ""
    if tensor.ndim < 2:
        return " Each record is a single number: give the model a table with one column, or use Secret.function."
    return (
        f" Each record is of shape {tuple(tensor.shape[1:])}, as an image or a sequence is, and not a row of a table: for one "
        "number of it, give its place, as in Secret.column((0, 4, 3), …); otherwise give the records that the attacker considers "
        "with Secret.function, such as the image with a face and without it."
    )


def _among(some: Records, others: Records) -> Tensor:
    """Whether each of some records is among the others."""
    return torch.isclose(flattened(some)[:, None], flattened(others)[None], rtol=CLOSE, atol=CLOSE).all(dim=2).any(dim=1)
