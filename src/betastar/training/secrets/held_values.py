"""Which value of a secret each record holds, and what is refused about values and records."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from betastar.training.records import SPLIT, TARGET, Records
from betastar.training.secrets.abstract_secret import listed

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
