"""The challenge of a game on real training: one record of the data, or a person's records, which differ between its worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from betastar import validation
from betastar.audit.record_contents import leaves
from betastar.audit.training_audit import canary
from betastar.audit.training_audit.changed_data import Data, Split, as_seen, changed, read, with_arguments, without
from betastar.threats import AttributeInference, Candidates, Membership, Threat
from betastar.training import Records, Secret
from betastar.training.records import TARGET, pair

#: Records that canaries are modelled on.
MODELS = 1000


@dataclass(frozen=True)
class Challenge:
    """One data set for each world. The first is the positive world of a membership game: the record was used.

    Attributes
    ----------
    data : Data
        The records before the challenge is put among them.
    places : tuple of int
        The places of the challenged records in the data: one, or those of a person.
    candidates : tuple
        These records in each world, a tuple; None where they are not there.
    title : str
        What the challenge is, for people.
    labels : tuple
        The name of each world.
    split : callable
        Turns a batch into `Records`.
    marks : Tensor or None
        The inputs by which canaries are recognised.
    signs : tuple of float
        The direction in which each canary moves its weight.
    """

    data: Data
    places: tuple[int, ...]
    candidates: tuple[tuple[Any, ...] | None, ...]
    title: str
    labels: tuple[Any, ...]
    split: Split = pair
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
        if chosen is None:
            return without(self.data, *self.places)
        return changed(self.data, dict(zip(self.places, chosen, strict=True)))

    def records(self) -> Records:
        """The candidates that are there, world by world, as a model sees them."""
        return as_seen([record for chosen in self.candidates for record in chosen or ()], self.split)

    def others(self, number: int, generator: torch.Generator) -> Records:
        """Some of the other records, or all of them if there are no more."""
        chosen = torch.randperm(len(self.data) - len(self.places), generator=generator)[:number]
        for place in sorted(self.places):
            chosen = chosen + (chosen >= place)
        return read(self.data, chosen, self.split)


def challenge_of(
    data: Data,
    threat: Threat,
    challenge: Any,
    secret: Secret | None,
    values: Sequence[Any] | None,
    seed: int,
    split: Split = pair,
) -> Challenge:
    """The challenge that a threat poses: "canary", the number of a record or those of a person, or the record itself."""
    require_records(data)
    generator = torch.Generator().manual_seed(seed)
    if secret is not None:
        return _values(data, threat, challenge, secret, values, generator, split)
    if not isinstance(threat, Membership):
        raise ValueError(f"secret must be given for {threat.describe()}: the attribute whose value the attacker wants.")
    if threat.records >= len(data):
        raise validation.wrong("data", f"must have more records than the person, {threat.records}, got {len(data)}.")
    if isinstance(challenge, str):
        validation.choice("challenge", challenge, ("canary",))
        return _canary(data, threat, generator, split)
    stays, places = threat.relation == "substitution", _places(data, challenge, threat.records)
    drawn: list[int] = []
    for _ in places if stays else ():
        free = sorted(set(range(len(data))) - {*places, *drawn})
        drawn.append(free[int(torch.randint(len(free), (1,), generator=generator))])
    candidates = (tuple(data[place] for place in places), tuple(data[one] for one in drawn) if stays else None)
    return Challenge(data, places, candidates, f"{_named(places)} of the data", ("in", "out"), split)


def _canary(data: Data, threat: Membership, generator: torch.Generator, split: Split) -> Challenge:
    """A canary, in as many copies as a person has records: all of them move the same weight."""
    record = int(torch.randint(len(data), (1,), generator=generator))
    places = tuple((record + i) % len(data) for i in range(threat.records))
    some = torch.randperm(len(data), generator=generator)[:MODELS]
    made = canary.marks(marked_argument(read(data, some, split))[1], 2, generator)
    one, other = (tuple(with_mark(data[place], split, mark) for place in places) for mark in made)
    own = tuple(data[place] for place in places)
    # By add-remove the data stay as they are in the other world: of a canary's weight it is as if nothing were there.
    candidates, signs = ((one, other), (1.0, -1.0)) if threat.relation == "substitution" else ((one, own), (1.0, 0.0))
    title = "a canary" if threat.records == 1 else f"a canary in {threat.records} copies"
    return Challenge(data, places, candidates, title, ("in", "out"), split, made, signs)


def marked_argument(records: Records) -> tuple[int | str, Tensor]:
    """The argument of the model by which canaries are recognised: the first one with a row of numbers for each record."""
    for key, value in records.rows().items():
        if key != TARGET:
            return key, value
    raise ValueError("data must have records with an input for the model that is a tensor, got none.")


def with_mark(record: Any, split: Split, mark: Tensor) -> Any:
    """The record with the input of a canary."""
    return with_arguments(record, split, {marked_argument(as_seen([record], split))[0]: mark})


def _values(
    data: Data,
    threat: Threat,
    challenge: Any,
    secret: Secret,
    values: Sequence[Any] | None,
    generator: torch.Generator,
    split: Split,
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
    candidates = tuple((one,) for one in with_values(data, record, secret, numbers, split))
    title = f"{secret.name} of record {record} of the data"
    return Challenge(data, (record,), candidates, title, tuple(secret.labels[i] for i in numbers), split)


def with_values(data: Data, record: int, secret: Secret, numbers: Sequence[int], split: Split) -> list[Any]:
    """A record of the data with each of these values of the secret, in the form in which the data set has it."""
    rows = secret.variants(read(data, torch.tensor([record]), split), numbers).rows()
    own = data[record]
    return [with_arguments(own, split, {key: value[i] for key, value in rows.items()}) for i in range(len(numbers))]


def require_records(data: Data) -> None:
    """Refuse what is no data set of at least two records."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or len(data) < 2:
        raise validation.wrong("data", f"must be a data set of at least 2 records with a length, got {data!r}.")


def _places(data: Data, challenge: object, records: int) -> tuple[int, ...]:
    """The places of the challenged records: one, or those of a person."""
    if records == 1:
        return (position(data, challenge),)
    if not isinstance(challenge, Sequence) or len({*challenge}) != records or len(challenge) != records:
        raise validation.wrong(
            "challenge", f'must be "canary" or the numbers of the {records} records of the person, got {challenge!r}.'
        )
    return tuple(position(data, one) for one in challenge)


def _named(places: tuple[int, ...]) -> str:
    return f"record {places[0]}" if len(places) == 1 else f"records {', '.join(map(str, places))}"


def position(data: Data, challenge: object) -> int:
    """Where a record is in the data."""
    size = len(data)
    if isinstance(challenge, int) and not isinstance(challenge, bool):
        if not 0 <= challenge < size:
            raise validation.wrong("challenge", f"must be a record of the data, 0 to {size - 1}, got {challenge}.")
        return challenge
    parts = list(challenge.values()) if isinstance(challenge, Mapping) else challenge
    if not isinstance(parts, tuple | list) or not all(isinstance(part, Tensor | int | float) for part in parts):
        raise validation.wrong("challenge", f'must be "canary", the number of a record, or the record itself, got {challenge!r}.')
    for i in range(size):
        if same_record(data[i], challenge):
            return i
    raise validation.wrong("challenge", f"must be a record of the data, got one that none of the {size} records equals.")


def same_record(one: Any, other: Any) -> bool:
    """Whether two records contain the same."""
    return dict(leaves("", one)) == dict(leaves("", other))
