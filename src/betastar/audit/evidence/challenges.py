"""Data sets that differ in one record, or in a person's records: the challenges of games, and the neighbours of replays."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from betastar import validation
from betastar.audit.common import AuditError
from betastar.threats import AttributeInference, Membership, Threat, only_general
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
    model: nn.Module | None = None,
    criterion: Criterion | None = None,
) -> Challenge:
    """The challenge that a threat poses: "canary", the number of a record or those of a person, or the record itself.

    "layers" is a record that pushes the gradients of all layers of the model.
    """
    require_records(data)
    generator = torch.Generator().manual_seed(seed)
    if secret is not None:
        return _values(data, threat, challenge, secret, values, generator, split)
    if not isinstance(threat, Membership):
        raise ValueError(f"secret must be given for {threat.describe()}: the attribute whose value the attacker wants.")
    only_general(threat, "a game on a training")
    if threat.records >= len(data):
        raise validation.wrong("data", f"must have more records than the person, {threat.records}, got {len(data)}.")
    if isinstance(challenge, str):
        if validation.choice("challenge", challenge, ("canary", LAYERS)) == "canary":
            return _canary(data, threat, generator, split)
        place = int(torch.randint(len(data), (1,), generator=generator))
        made = None if model is None else next(pushed(data[place], data[place], model, criterion, split, True), None)
        if made is None or threat.records > 1:
            raise AuditError("the gradients of this model's layers cannot be pushed for one record: choose another challenge.")
        title, one = made
        other = (_another(data, place),) if threat.relation == "substitution" else None
        return Challenge(data, (place,), ((one,), other), title, ("in", "out"), split)
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
    made = marks(marked_argument(read(data, some, split))[1], 2, generator)
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
    if not isinstance(threat, AttributeInference):
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


# --- Canaries: each moves a weight that no other record moves, by a whole clipping norm, which is the worst case

#: Length of a canary's gradient, as a multiple of its output's. Clipping shortens it to the clipping norm; training that does not
#: clip lets all of it through, and the attacker sees that.
CANARY_GRADIENT = 1e5


class _OutputWithGradient(torch.autograd.Function):
    """Returns the output unchanged. In the backward pass the canary layer gets a gradient as long as the output's, times
    CANARY_GRADIENT: what scales the loss (as ghost clipping does) scales it too, and it is never negative."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, canary: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        rows = gradients[0].flatten(1) if gradients[0].ndim > 1 else gradients[0][:, None]
        return gradients[0], CANARY_GRADIENT * rows.norm(dim=1, keepdim=True)


class Canaries(nn.Module):
    """A model with one more layer, whose i-th weight gets a gradient from the i-th canary and from no other record.

    The output is the model's own. `marks` are the inputs by which canaries are known; the k-th moves weight `places[k]`, up or
    down by `signs[k]`. The attributes of the model can be read from this one as well.
    """

    def __init__(self, model: nn.Module, marks: Tensor, places: Sequence[int], signs: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        first = next(model.parameters())
        self.canary = nn.Linear(max(places) + 1, 1, bias=False, device=first.device, dtype=first.dtype)
        nn.init.zeros_(self.canary.weight)
        self._known = dict(zip(_keys(marks), zip(places, signs, strict=True), strict=True))
        self._shape = marks.shape[1:]
        #: How many times canaries were seen by the model.
        self.seen = 0

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        output = self.model(*inputs, **named)
        if not isinstance(output, Tensor):
            kind = type(output).__name__
            raise TypeError(f"canaries need a model that returns a tensor, got {kind}; choose a record of the data as challenge.")
        rows = torch.zeros(len(output), self.canary.in_features, device=output.device, dtype=self.canary.weight.dtype)
        for value in (*inputs, *named.values()):
            if isinstance(value, Tensor) and value.shape[1:] == self._shape:
                for i, key in enumerate(_keys(value)):
                    if key in self._known:
                        place, sign = self._known[key]
                        rows[i, place] = sign
                        self.seen += 1
        return _OutputWithGradient.apply(output, self.canary(rows))  # type: ignore[no-untyped-call]

    def __getitem__(self, index: Any) -> Any:
        return self.model[index]  # type: ignore[index]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def _keys(records: Tensor) -> list[bytes]:
    return [row.tobytes() for row in records.detach().cpu().double().flatten(1).numpy()]


def marks(inputs: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Make `number` inputs that are like those given, and equal to none of them or each other.

    Numbers are moved by a thousandth of their deviation; whole numbers (tokens, pixels) are taken from other records, place by
    place.
    """
    chosen = inputs[torch.randint(len(inputs), (number,), generator=generator)]
    if inputs.is_floating_point():
        scale = 1e-3 * float(inputs.double().std()) or 1e-3
        made = chosen + scale * torch.randn(chosen.shape, generator=generator, dtype=chosen.dtype)
    else:
        flat = inputs.flatten(1)
        who = torch.randint(len(inputs), (number, flat.shape[1]), generator=generator)
        made = flat.gather(0, who).reshape(chosen.shape)
    if len({*_keys(made)} - {*_keys(inputs)}) < number:
        raise ValueError(
            f"data must have records that {number} canaries can be told from: too few different inputs of kind {inputs.dtype}."
        )
    return made


# --- Data sets with some records replaced, added or left out, and records with other arguments of the model

#: Turns a batch into what the model and the criterion get; and the loss of outputs and targets.
Split: TypeAlias = Callable[[Any], Records]
Criterion: TypeAlias = Callable[[Any, Any], Tensor]


class Data(Protocol):
    """Records with a length, by their numbers: a data set of PyTorch, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Any: ...


class Changed(Dataset[Any]):
    """A data set with some records replaced, and others added at its end.

    What is replaced is read all the same, so that it draws its random numbers.
    """

    def __init__(self, data: Data, replaced: dict[int, Any], added: Sequence[Any] = ()) -> None:
        self.data, self.replaced, self.added = data, replaced, list(added)

    def __len__(self) -> int:
        return len(self.data) + len(self.added)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self.data):
            return self.added[index - len(self.data)]
        own = self.data[index]
        return self.replaced.get(index, own)


def changed(data: Data, replaced: dict[int, Any], added: Sequence[Any] = ()) -> Data:
    """The same kind of data set as was given, where it holds tensors."""
    if type(data) is not TensorDataset:
        return Changed(data, replaced, added)
    columns = [torch.cat([column, *(torch.as_tensor(one[i])[None] for one in added)]) for i, column in enumerate(data.tensors)]
    for index, record in replaced.items():
        for column, value in zip(columns, record, strict=True):
            column[index] = value
    return TensorDataset(*columns)


def without(data: Data, *left_out: int) -> Data:
    """The data without some records; the same kind of data set as was given, where it holds tensors."""
    kept = sorted(set(range(len(data))) - set(left_out))
    if type(data) is not TensorDataset:
        return Subset(data, kept)  # type: ignore[arg-type]
    return TensorDataset(*(column[kept] for column in data.tensors))


def read(data: Data, indices: Tensor, split: Split = pair) -> Records:
    """Some of the records, as a model sees them."""
    return split(data[indices] if type(data) is TensorDataset else default_collate([data[int(i)] for i in indices]))


def as_seen(records: Sequence[Any], split: Split) -> Records:
    """These records as a model sees them."""
    return split(default_collate(list(records)))


def with_arguments(record: Any, split: Split, arguments: Mapping[int | str, Tensor]) -> Any:
    """The record with other arguments of the model, or another target, in the form in which the data set has it.

    Parameters
    ----------
    record : object
        A record of the data set: tuples, lists and mappings of tensors and numbers.
    split : callable
        Turns a batch into `Records`.
    arguments : mapping
        The new arguments, without a dimension for records, by their position or name in `Records`.

    Raises
    ------
    ValueError
        If an argument is not a part of the batch, but computed from it.
    """
    batch = default_collate([record])
    given = split(batch).arguments()
    new = {id(given[key]): value for key, value in arguments.items()}
    found: set[int] = set()

    def rebuilt(own: Any, part: Any) -> Any:
        if id(part) in new:
            found.add(id(part))
            value = new[id(part)]
            return value.item() if isinstance(own, int | float) else value.numpy() if isinstance(own, np.ndarray) else value
        if isinstance(own, Mapping):
            return {key: rebuilt(own[key], part[key]) for key in own}
        if isinstance(own, tuple) and hasattr(own, "_fields"):
            return type(own)(*(rebuilt(a, b) for a, b in zip(own, part, strict=True)))
        if isinstance(own, list | tuple):
            return type(own)(rebuilt(a, b) for a, b in zip(own, part, strict=True))
        return own

    made = rebuilt(record, batch)
    if missing := [key for key in arguments if id(given[key]) not in found]:
        raise ValueError(
            f"split must take the arguments of the model out of a batch as they are, got {missing[0]!r}, which it computes: let "
            "the model or the data set compute it."
        )
    return made


# --- Randomness that follows from a seed, and what tensors and other values contain, as texts that can be compared


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which randomness follows from a seed; afterwards the caller's randomness goes on as before."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def digest(tensor: Tensor) -> str:
    """A text that is another one for other contents."""
    plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor.cpu()
    return hashlib.blake2b(plain.numpy().tobytes(), digest_size=16).hexdigest()


def leaves(where: str, value: object) -> Iterator[tuple[str, str]]:
    """The numbers, texts and arrays inside a value, with where each is. Other objects are left out."""
    if isinstance(value, bool | int | float | complex | str | np.generic):
        yield where, repr(value)
    elif isinstance(value, Tensor):
        yield where, repr(value.item()) if value.numel() == 1 else digest(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield where, repr(value.item()) if value.size == 1 else hashlib.blake2b(value.tobytes()).hexdigest()
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(f"{where}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from leaves(f"{where}[{number}]", part)


# --- The data sets that are compared: the data, and the same with one record changed or left out

#: A record whose numbers are this many times larger has a gradient that has to be clipped.
LARGER = 100.0
#: The number of other values of a secret that are replayed, at most.
VALUES = 4
#: The challenge whose gradients of all layers are pushed, the number of layers of a replay, and the steps of gradient ascent.
LAYERS, MOST_LAYERS, ASCENT = "layers", 4, 12


@dataclass(frozen=True)
class Neighbour:
    """A data set that differs from the data in one record.

    Attributes
    ----------
    title : str
        How it differs, for people.
    data : Data
        The data set.
    made_up : bool
        Whether the record was made up here, so that the training need not cope with it.
    """

    title: str
    data: Data
    made_up: bool = False


def neighbours(
    data: Data, record: int, split: Split, model: nn.Module | None = None, criterion: Criterion | None = None
) -> Iterator[Neighbour]:
    """The data with another record in the place of this one: another of the data, with larger numbers, or one that pushes a
    layer of the model by this criterion."""
    own, other = data[record], _another(data, record)
    yield Neighbour("another record of the data", changed(data, {record: other}))
    large, alike = larger(own, other), larger(own, own)
    made = [(f"its numbers {LARGER:g} times larger", large)]
    made += [] if same_record(alike, large) else [(f"its numbers {LARGER:g} times larger, and its own target", alike)]
    made += [] if model is None else list(pushed(own, other, model, criterion, split))
    for title, one in made:
        if one is not None:
            yield Neighbour(title, changed(data, {record: one}), True)


def pushed(
    own: Any, other: Any, model: nn.Module, criterion: Criterion | None, split: Split, together: bool = False
) -> Iterator[tuple[str, Any]]:
    """Records that push the gradient of one layer, or of all together, as far as gradient ascent on the input does.

    Clipping that leaves out a layer shows at such a record, even where activations are bounded. None where that is not possible.
    """
    try:
        copy = deepcopy(getattr(model, "_module", model)).cpu().eval()
        for module in copy.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks):
                hooks.clear()
        seen = [as_seen([one], split) for one in (own, other)]
        key, start = marked_argument(seen[0])
        if not start.is_floating_point():
            return
        names = [name for name, p in copy.named_parameters() if p.requires_grad and p.ndim > 1]
        for layers in [names] if together else [[name] for name in names[-MOST_LAYERS:]]:
            layer_weights, best, longest = [copy.get_parameter(name) for name in layers], None, 0.0
            for records in seen:
                x = (10.0 * start).clone().requires_grad_()
                rate = float(start.abs().max()) or 1.0
                for _ in range(ASCENT):
                    with torch.enable_grad():
                        now = records.changed(partial(_put, key, x))
                        loss = _loss(criterion, copy(*now.inputs, **now.named), now.target)
                        sizes = [one.norm() for one in torch.autograd.grad(loss, layer_weights, create_graph=True)]
                        (step,) = torch.autograd.grad(sum((size + 1e-12).log() for size in sizes), x)
                    if (length := min(float(size.detach()) for size in sizes)) > longest:
                        best, longest = (x.detach()[0].clone(), records is seen[1]), length
                    x = (x + rate * step / step.norm().clamp(min=1e-12)).detach().requires_grad_()
            if best is not None:
                record = with_mark(_targeted(own, other) if best[1] else own, split, best[0])
                yield f"inputs that push the gradient of {' and '.join(layers)}", record
    except Exception:  # a model that cannot be differentiated twice, or records of another form: other changes remain
        return


def _loss(criterion: Criterion | None, output: Tensor, target: Any) -> Tensor:
    if criterion is not None:
        return criterion(output, target)
    if target.is_floating_point():
        return nn.functional.mse_loss(output.squeeze(-1), target)
    return nn.functional.cross_entropy(output, target)


def _put(key: int | str, new: Tensor, name: int | str, value: Tensor) -> Tensor:
    return new if name == key else value


def _targeted(own: Any, other: Any) -> Any:
    """The record with the target of another."""
    return type(own)([*own[:-1], other[-1]]) if isinstance(own, tuple | list) else own


def extreme(data: Data, record: int, own: bool = False) -> Any:
    """A record that differs much from a record of the data, with another target or its own."""
    other = _another(data, record)
    large = larger(data[record], data[record] if own else other)
    return other if large is None else large


def other_values(data: Data, record: int, secret: Secret, values: Sequence[Any] | None, split: Split) -> list[Neighbour]:
    """The data with other values of the secret at the record."""
    try:
        mine = int(secret.own(read(data, torch.tensor([record]), split))[0])
    except TypeError as problem:
        raise AuditError(
            f"secret needs records that split can take apart, or replacements= with other values: {problem}"
        ) from None
    numbers = [number for number in (range(secret.count) if values is None else secret.only(*values)) if number != mine]
    if not numbers:
        raise validation.wrong("values", f"must have another value than record {record} has, got {values!r}.")
    if len(numbers) > VALUES:  # from all over the list
        numbers = [numbers[i] for i in torch.linspace(0, len(numbers) - 1, VALUES).long().tolist()]
    return [
        Neighbour(f"{secret.name} {secret.labels[number]}", changed(data, {record: one}))
        for number, one in zip(numbers, with_values(data, record, secret, numbers, split), strict=True)
    ]


def _another(data: Data, record: int) -> Any:
    """Another record of the data, if possible with another target."""
    places = [(record + step) % len(data) for step in range(1, min(len(data), 50))]
    own = _target(data[record])
    different = (place for place in places if not same_record(_target(data[place]), own))
    return data[next(different, places[0])]


def _target(record: Any) -> Any:
    return record[-1] if isinstance(record, tuple | list) and record else None


def larger(record: Any, other: Any) -> Any | None:
    """The record with its numbers larger, and with another one's target if that is a class; None if it has no such numbers."""
    if isinstance(record, tuple | list):
        parts = [_times(part) for part in record]
        target = _target(other)
        if parts[-1] is record[-1] and target is not None:
            parts[-1] = target
        different = any(part is not own for part, own in zip(parts[:-1] or parts, record, strict=False))
        return type(record)(parts) if different else None
    if isinstance(record, dict):
        made = {name: _times(part) for name, part in record.items()}
        return made if any(made[name] is not record[name] for name in record) else None
    return None


def _times(part: Any) -> Any:
    floating = isinstance(part, Tensor) and part.is_floating_point() and part.ndim > 0
    return part * LARGER if floating else part
