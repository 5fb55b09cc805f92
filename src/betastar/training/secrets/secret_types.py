"""The kinds of secrets: columns, the label, several at once, any function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from betastar.training.records import Records
from betastar.training.secrets.secret import Secret, listed

#: A record holds a value if each of its columns agrees to this (relative, plus absolute).
CLOSE = 1e-4
#: Up to this many records are compared with the values one by one, which is faster than looking for different ones.
FEW = 1024


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

    def places(self) -> set[Any] | None:
        return {(self.argument, column) for column in self.where}

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        tensor = repeated.get(self.argument)
        rows = self.table[list(values)].to(tensor).repeat(len(records), 1)  # (n·a, k), the values of a record in a row
        middle = (1,) * (tensor.ndim - 2)
        tensor[..., self.where] = rows.reshape(len(rows), *middle, len(self.where)).expand(*tensor.shape[:-1], -1)
        return repeated

    def own(self, records: Records) -> Tensor:
        return _nearest(self._held(records).double().cpu(), self.table.double(), self.name, self.labels)

    def _held(self, records: Records) -> Tensor:
        """What each record holds, (n, k)."""
        tensor = _argument(records, self.argument, self.name)
        if tensor.ndim < 2 or max(self.where) >= tensor.shape[-1]:
            width = tensor.shape[-1] if tensor.ndim > 1 else 0
            raise ValueError(
                f"the secret {self.name!r} needs column {max(self.where)}, but the model's input has {width} columns."
            )
        held = tensor[..., self.where].flatten(1, -2) if tensor.ndim > 2 else tensor[:, None, self.where]
        if not (held == held[:, :1]).all():
            _refuse_missing(held, self.name)
            raise ValueError(
                f"the secret {self.name!r} has different values at different positions of a record; use Secret.function."
            )
        return held[:, 0]

    def check(self, records: Records, complete: bool) -> None:
        held = self._held(records)
        distinct = (held.unique(dim=0) if len(held) > FEW else held).double().cpu()
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
        return replace(repeated, target=rows.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape))

    def places(self) -> set[Any] | None:
        return {"target"}

    def own(self, records: Records) -> Tensor:
        return _nearest(self._held(records).double().cpu(), self.table[:, None].double(), self.name, self.labels)

    def _held(self, records: Records) -> Tensor:
        if not isinstance(records.target, Tensor):
            raise ValueError(f"the secret {self.name!r} needs a target tensor, got {type(records.target).__name__}.")
        target = records.target.reshape(len(records.target), -1)
        if not (target == target[:, :1]).all():
            _refuse_missing(target, self.name)
            raise ValueError(f"the secret {self.name!r} must be one number a record, but targets differ within a record.")
        return target[:, :1]

    def check(self, records: Records, complete: bool) -> None:
        which = _match(self._held(records).unique(dim=0).double().cpu(), self.table[:, None].double(), self.name, self.labels)
        if complete and not self.unseen:
            _refuse_unseen([label for i, label in enumerate(self.labels) if i not in which], self.name)


class Joint(Secret):
    def __init__(self, parts: Sequence[Secret]) -> None:
        self.parts = list(parts)
        self.quick_check = all(part.quick_check for part in parts)
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

    def places(self) -> set[Any] | None:
        every = [part.places() for part in self.parts]
        return None if None in every else set().union(*(places for places in every if places))

    def own(self, records: Records) -> Tensor:
        number = torch.zeros(len(records), dtype=torch.long)
        for part in self.parts:
            number = number * part.count + part.own(records)
        return number

    def shares(self, records: Records) -> Tensor:
        if self.prior is not None:
            return super().shares(records)
        shares = torch.ones(len(records), 1, dtype=torch.float64)
        for part in self.parts:
            shares = (shares[:, :, None] * part.shares(records)[:, None, :]).flatten(1)
        return shares

    def check(self, records: Records, complete: bool) -> None:
        for part in self.parts:
            part.check(records, complete)


class Function(Secret):
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
            made.append(
                candidates.take([min(number, len(candidates) - 1) for number in values])
            )  # a record with fewer candidates repeats its last one
        return _join(made)

    def own(self, records: Records) -> Tensor:
        numbers = []
        for i in range(len(records)):
            one = records.take(slice(i, i + 1))
            numbers.append(_nearest(_flat(one), _flat(self.variants(one, range(self.count))), self.name, self.labels))
        return torch.cat(numbers) if numbers else torch.zeros(0, dtype=torch.long)

    def with_prior(self, prior: Any) -> Secret:
        raise ValueError(f"prior cannot be given for {self.name!r}: each record has candidates of its own.")

    def shares(self, records: Records) -> Tensor:
        """Each different candidate counts once, however often and in which order the function returns it.

        Each candidate must have the same ones, bit for bit: else the mean would tell which of them the record is.
        """
        shares = torch.zeros(len(records), self.count, dtype=torch.float64)
        for i in range(len(records)):
            offered = self.variants(records.take(slice(i, i + 1)), range(self.count))
            rows = _flat(offered)
            different, which, times = rows.unique(dim=0, return_inverse=True, return_counts=True)
            for k in range(len(offered)):
                others = _flat(self.variants(offered.take(slice(k, k + 1)), range(self.count)))
                if not torch.equal(others.unique(dim=0), different):
                    raise ValueError(
                        "candidates of a candidate must be the same records again, bit for bit, which they are not for "
                        f"candidate {k} of record {i} of a batch: compute all of them alike, whichever the record holds."
                    )
            shares[i] = 1.0 / (len(times) * times[which])
        return shares

    def check(self, records: Records, complete: bool) -> None:
        """A record is its own candidate, and its candidates have the same ones: the attacker's choice is one in each world."""
        for i in range(min(len(records), 8)):
            one = records.take(slice(i, i + 1))
            offered = self.variants(one, range(self.count))
            if not _among(one, offered).all():
                raise ValueError(f"candidates must contain the record itself, which they do not for record {i}.")
            for k in range(min(self.count, 8)):
                others = self.variants(offered.take(slice(k, k + 1)), range(self.count))
                if not (_among(others, offered).all() and _among(offered, others).all()):
                    raise ValueError(
                        f"candidates of a candidate must be the same records again, which they are not for candidate {k} of "
                        f"record {i}: what the attacker hesitates between must not depend on the secret."
                    )


def _among(some: Records, others: Records) -> Tensor:
    """Whether each record of the one is among the others."""

    return torch.isclose(_flat(some)[:, None], _flat(others)[None], rtol=CLOSE, atol=CLOSE).all(dim=2).any(dim=1)


def _flat(records: Records) -> Tensor:
    """All that belongs to a record in one row."""
    return torch.cat([value.double().cpu().reshape(len(value), -1) for value in records.rows().values()], dim=1)


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


def _nearest(held: Tensor, table: Tensor, name: str, labels: list[Any]) -> Tensor:
    """Number of the value that each row is, up to rounding."""
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


def _match(held: Tensor, table: Tensor, name: str, labels: list[Any]) -> set[int]:
    """Numbers of the values that occur; each row that occurs must be one of them."""
    return set(_nearest(held, table, name, labels).tolist())


def _refuse_missing(held: Tensor, name: str) -> None:
    if missing := int(held.isnan().flatten(1).any(dim=1).sum()):
        raise ValueError(
            f"the secret {name!r} is missing (NaN) in {missing} of {len(held)} records. Fill it in, with a value of its own if "
            "need be, or leave these records out."
        )


def _refuse_unseen(labels: list[Any], name: str) -> None:
    if labels:
        raise ValueError(
            f"no record holds the value {listed(labels)} of the secret {name!r}. "
            "Leave it out, or pass unseen=True if an attacker would still consider it."
        )


def _join(parts: Sequence[Records]) -> Records:
    """Records one after the other."""
    mine = [part.rows() for part in parts]
    return parts[0].changed(lambda key, value: torch.cat([rows[key] for rows in mine]) if key in mine[0] else value)


def _interleave(parts: Sequence[Records]) -> Records:
    """The first row of each part, then the second of each, and so on."""
    rows, size = len(parts[0]), len(parts)
    order = torch.arange(rows * size).reshape(size, rows).T.flatten()
    return _join(parts).take(order)
