"""Checks of a model, its records and a secret before the first step, and what measures distances between values of the secret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.record_gradients import TrainedModel
from betastar.training.gradients.side_effects import GradientError, restored
from betastar.training.gradients.variant_gradients import TotalLoss, VariantGradients, without_checkpointing
from betastar.training.records import SPLIT, TARGET, Records
from betastar.training.secrets.secret import Secret
from betastar.training.secrets.tables import warn_of_restated
from betastar.training.source import Source

#: Records that are looked at before the first step: of a table, and of a data set that is read one by one.
LOOK_AT, LOOK_AT_SLOWLY = 65536, 2048
#: The bytes for passes over records or variants, by default and at the least.
PASSES, LEAST = 640 << 20, 1 << 19
#: The most that passes take by default so that all variants of one record are run together.
ONE_RECORD = 1 << 30
#: The largest block that raises what the C library keeps of freed memory.
LARGEST_KEPT = (32 << 20) - (64 << 10)
#: Records that the model is tried on, and records from all over the data set that they are chosen from.
TRIAL, SPREAD = 4, 64
DROPOUT = (
    "the model has dropout, whose masks exist for the records of a batch only, so that nothing follows for the other records: "
    "measure the batch (scope='batch'), clip gaps (gap=), or set the probability of dropout to 0."
)


def room_for_passes(memory: int | None, copies: int) -> int:
    """The bytes that are left for passes, besides copies of weights."""
    if memory is None:
        return PASSES
    room = validation.whole("memory", memory) - copies
    if room < LEAST:
        raise validation.wrong(
            "memory", f"must be at least {copies + LEAST} bytes, got {memory}: sums, noise and gradients take {copies} of them."
        )
    return room


def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MiB of freed memory, which it does after a block of almost 32 MiB was freed.

    Otherwise, each pass gets its memory from the system again, page by page and filled with zeros.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def require_precision(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse less than single precision, whose rounding is larger than the gap between two values of a secret."""
    strange = [p.dtype for p in parameters if p.dtype not in (torch.float32, torch.float64)]
    if strange:
        raise ValueError(f"module must have weights in float32 or float64, got {strange[0]}: a gap would drown in rounding.")
    if torch.is_autocast_enabled(parameters[0].device.type):
        raise ValueError(
            "the model runs under torch.autocast, whose rounding moves gradients further apart than the values of a secret do: "
            "train in float32 (leave torch.autocast out)."
        )
    if torch.get_float32_matmul_precision() != "highest":
        raise ValueError(
            f"torch.get_float32_matmul_precision() must be 'highest', got {torch.get_float32_matmul_precision()!r}, which "
            "rounds products of matrices: call torch.set_float32_matmul_precision('highest')."
        )


def spread(source: Source) -> list[int]:
    """The numbers of records from all over the data set."""
    return torch.linspace(0, len(source) - 1, min(len(source), SPREAD)).long().tolist()


def different(source: Source) -> Records:
    """A few records with targets that differ as far as possible, because records with the same target hide errors."""
    indices = spread(source)
    records = source.read(indices)
    seen: dict[str, int] = {}
    if isinstance(records.target, Tensor) and records.target.ndim:
        for i, target in enumerate(records.target.flatten(1).tolist() if records.target.ndim > 1 else records.target.tolist()):
            seen.setdefault(str(target), i)
    chosen = [*seen.values(), *(i for i in range(len(indices)) if i not in seen.values())][:TRIAL]
    return records.take(chosen)


def looked_at(source: Source) -> int:
    """The number of records that are looked at before the first step."""
    return min(len(source), LOOK_AT if type(source.dataset) is TensorDataset else LOOK_AT_SLOWLY)


def require_call(model: TrainedModel, records: Records) -> None:
    """Refuse records that the model cannot be called with, because it takes more or other arguments."""
    try:
        with model.silence(), without_checkpointing(model.module), torch.no_grad():
            model.module(*records.inputs, **records.named)
    except TypeError as problem:
        given = ", ".join(repr(key) for key in records.arguments() if key != TARGET)
        raise TypeError(f"the model cannot be called with argument {given} of a batch ({problem}); {SPLIT}.") from problem


def check_secret(source: Source, secret: Secret) -> None:
    """Check that records hold values of the secret, and warn if other columns restate it."""
    number = looked_at(source)
    records = source.read(range(number))
    secret.check(records, complete=number == len(source))
    if secret.quick_check:
        warn_of_restated(records, secret)


@dataclass(frozen=True)
class Variants:
    """What computes gradients of records with other values of a secret.

    Attributes
    ----------
    gradients : VariantGradients
        Computes the gradients.
    distances : RecordDistances
        Computes the distances between them.
    memory : int
        The number of bytes that a pass over variants may take.
    """

    gradients: VariantGradients
    distances: RecordDistances
    memory: int


def variants_of(
    model: TrainedModel,
    source: Source,
    total_loss: TotalLoss,
    secret: Secret,
    diameter: str,
    scope: str,
    memory: int | None,
    check: Callable[[Records, VariantGradients], None] | None = None,
) -> Variants:
    """Check a secret, and run the model on variants once, so that an error shows before the first step.

    Parameters
    ----------
    model : TrainedModel
        The model, which is left as it was.
    source : Source
        The records of the data set.
    total_loss : callable
        The sum of the records' losses, from the output, the target and the number of records.
    secret : Secret
        The sensitive attribute.
    diameter : str
        How the distance of a record is computed.
    scope : "batch" or "dataset"
        Which records are measured.
    memory : int, optional
        The number of bytes that a pass may take.
    check : callable, optional
        Is given the records that the model was tried on.

    Returns
    -------
    Variants
        What computes gradients and distances.
    """
    room = PASSES if memory is None else memory
    gradients = VariantGradients(model, total_loss)
    distances = RecordDistances(gradients, secret, diameter, room)
    with restored(model.module):
        records = different(source)
        require_call(model, records)
        check_secret(source, secret)
        with gradients.dropout_of(records) as numbered:
            if gradients.drops_out and scope == "dataset":
                raise GradientError(DROPOUT)
            distances.try_out(numbered)
            if memory is None:
                room = distances.make_room(ONE_RECORD)
            if check is not None:
                check(numbered, gradients)
    return Variants(gradients, distances, room)
