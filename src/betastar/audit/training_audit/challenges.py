"""The challenge of a game on real training: one record of the data, which differs between the worlds of the game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from betastar import validation
from betastar.audit.training_audit import canary
from betastar.scenario.threats import AttributeInference, Candidates, Membership, Threat
from betastar.training import Records, Secret
from betastar.training.records import pair

#: Records that canaries are modelled on.
MODELS = 1000


class Data(Protocol):
    """Records with a length, by their numbers: a data set of PyTorch, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Any: ...


class Changed(Dataset[Any]):
    """A data set with some records replaced, and others added at its end."""

    def __init__(self, data: Data, replaced: dict[int, Any], added: Sequence[Any] = ()) -> None:
        self.data, self.replaced, self.added = data, replaced, list(added)

    def __len__(self) -> int:
        return len(self.data) + len(self.added)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self.data):
            return self.added[index - len(self.data)]
        return self.replaced[index] if index in self.replaced else self.data[index]


class Without(Dataset[Any]):
    """A data set without one of its records."""

    def __init__(self, data: Data, left_out: int) -> None:
        self.data, self.left_out = data, left_out

    def __len__(self) -> int:
        return len(self.data) - 1

    def __getitem__(self, index: int) -> Any:
        return self.data[index + (index >= self.left_out)]


def changed(data: Data, replaced: dict[int, Any], added: Sequence[Any] = ()) -> Data:
    """The same kind of data set as was given, where it holds tensors."""
    if type(data) is not TensorDataset:
        return Changed(data, replaced, added)
    columns = [column.clone() for column in data.tensors]
    for index, record in replaced.items():
        for column, value in zip(columns, record, strict=True):
            column[index] = value
    if added:
        columns = [torch.cat([column, torch.stack([record[i] for record in added])]) for i, column in enumerate(columns)]
    return TensorDataset(*columns)


def without(data: Data, left_out: int) -> Data:
    """The data without one record; the same kind of data set as was given, where it holds tensors."""
    if type(data) is not TensorDataset:
        return Without(data, left_out)
    kept = torch.arange(len(data)) != left_out
    return TensorDataset(*(column[kept] for column in data.tensors))


@dataclass(frozen=True)
class Challenge:
    """One data set for each world. The first is the positive world of a membership game: the record was used.

    Attributes
    ----------
    data : Data
        The records before the challenge is put among them.
    record : int
        The place of the challenged record in the data.
    candidates : tuple
        This record in each world; None where it is not there.
    title : str
        What the challenge is, for people.
    labels : tuple
        The name of each world.
    marks : Tensor or None
        The inputs by which canaries are recognised.
    signs : tuple of float
        The direction in which each canary moves its weight.
    """

    data: Data
    record: int
    candidates: tuple[Any | None, ...]
    title: str
    labels: tuple[Any, ...]
    marks: Tensor | None = None
    signs: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def marked(self) -> list[int]:
        """The worlds with a canary in the data."""
        return [i for i, sign in enumerate(self.signs) if sign]

    def dataset(self, world: int) -> Data:
        """The data of a world."""
        chosen = self.candidates[world]
        return without(self.data, self.record) if chosen is None else changed(self.data, {self.record: chosen})

    def records(self) -> Records:
        """The candidates that are there, as a model sees them."""
        return pair(default_collate([one for one in self.candidates if one is not None]))

    def others(self, number: int, generator: torch.Generator) -> Records:
        """Some of the other records, or all of them if there are no more."""
        chosen = torch.randperm(len(self.data) - 1, generator=generator)[:number]
        return read(self.data, chosen + (chosen >= self.record))


def read(data: Data, indices: Tensor) -> Records:
    """Some of the records, as a model sees them."""
    return pair(data[indices] if type(data) is TensorDataset else default_collate([data[int(i)] for i in indices]))


def challenge_of(
    data: Data, threat: Threat, challenge: Any, secret: Secret | None, values: Sequence[Any] | None, seed: int
) -> Challenge:
    """The challenge that a threat poses: "canary", the number of a record, or the record itself."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or len(data) < 2:
        raise ValueError(f"data must be a data set of at least 2 records with a length, got {data!r}.")
    generator = torch.Generator().manual_seed(seed)
    if secret is not None:
        return _values(data, threat, challenge, secret, values, generator)
    if not isinstance(threat, Membership):
        raise ValueError(f"secret must be given for {threat.describe()}: the attribute whose value the attacker wants.")
    stays = threat.relation == "substitution"
    if isinstance(challenge, str):
        validation.choice("challenge", challenge, ("canary",))
        record = int(torch.randint(len(data), (1,), generator=generator))
        some = torch.randperm(len(data), generator=generator)[:MODELS]
        made = canary.marks(read(data, some).inputs[0], 2, generator)
        one, other = ((mark, *data[record][1:]) for mark in made)
        # By add-remove the data stay as they are in the other world: of a canary's weight it is as if nothing were there.
        candidates, signs = ((one, other), (1.0, -1.0)) if stays else ((one, data[record]), (1.0, 0.0))
        return Challenge(data, record, candidates, "a canary", ("in", "out"), made, signs)
    record = position(data, challenge)
    drawn = int(torch.randint(len(data) - 1, (1,), generator=generator))
    candidates = (data[record], data[drawn + (drawn >= record)] if stays else None)
    return Challenge(data, record, candidates, f"record {record} of the data", ("in", "out"))


def _values(
    data: Data, threat: Threat, challenge: Any, secret: Secret, values: Sequence[Any] | None, generator: torch.Generator
) -> Challenge:
    if not isinstance(threat, AttributeInference | Candidates):
        raise ValueError(f"secret must be left out for {threat.describe()}, got {secret!r}.")
    if isinstance(challenge, str):
        validation.choice("challenge", challenge, ("random",))
        record = int(torch.randint(len(data), (1,), generator=generator))
    else:
        record = position(data, challenge)
    numbers = list(range(secret.count)) if values is None else secret.only(*values)
    if len(set(numbers)) < 2:
        raise validation.wrong("values", f"must be at least two different ones, got {values!r}.")
    whole = data[record]
    made = secret.variants(read(data, torch.tensor([record])), numbers)
    candidates = tuple((made.inputs[0][i], made.target[i], *whole[2:]) for i in range(len(numbers)))
    title = f"{secret.name} of record {record} of the data"
    return Challenge(data, record, candidates, title, tuple(secret.labels[i] for i in numbers))


def position(data: Data, challenge: object) -> int:
    """Where a record is in the data."""
    size = len(data)
    if isinstance(challenge, int) and not isinstance(challenge, bool):
        if not 0 <= challenge < size:
            raise validation.wrong("challenge", f"must be a record of the data, 0 to {size - 1}, got {challenge}.")
        return challenge
    if not isinstance(challenge, tuple | list) or not all(isinstance(part, Tensor | int | float) for part in challenge):
        raise validation.wrong("challenge", f'must be "canary", the number of a record, or the record itself, got {challenge!r}.')
    for i in range(size):
        if _same(data[i], challenge):
            return i
    raise validation.wrong("challenge", f"must be a record of the data, got one that none of the {size} records equals.")


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    pairs = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=False)]
    return len(one) == len(other) and all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)
