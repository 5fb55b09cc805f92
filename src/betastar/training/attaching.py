"""Prepares a training for measurement: checks of the arguments, of the data and of the model, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.training.budget import Budget
from betastar.training.checks.loop_checks import require_precision
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.factors import Gradients
from betastar.training.gradients.side_effects import GradientError, restored
from betastar.training.gradients.variant_gradients import VariantGradients, runs_forward_hooks_again, without_checkpointing
from betastar.training.opacus.adapter import OpacusAdapter, loss_of
from betastar.training.records import SPLIT, TARGET, Records
from betastar.training.secrets.secret import Secret
from betastar.training.secrets.tables import warn_of_restated
from betastar.training.source import Source

#: Records that are checked when a monitor is attached: of a table, and of a data set that is read one by one.
LOOK_AT, LOOK_AT_SLOWLY = 65536, 2048
#: Copies that are kept of all weights and buffers (those of the forward pass, those that the last step has left), and of all
#: trained weights (noise of three steps, sums of gradients and what they are compared with).
COPIES_OF_ALL, COPIES_OF_TRAINED = 2, 9
#: The bytes for passes over variants and what gap clipping writes out, by default and at the least.
PASSES, LEAST = 640 << 20, 1 << 19
#: The most that passes take by default so that all variants of one record are run together.
ONE_RECORD = 1 << 30
#: The largest block that raises what the C library keeps of freed memory.
LARGEST_KEPT = (32 << 20) - (64 << 10)
#: Records that the model is tried on, and records from all over the data set that they are chosen from.
TRIAL, SPREAD = 4, 64
DROPOUT = (
    "the model has dropout, whose masks exist for the records of a batch only, so that nothing follows for the other records: "
    "use scope='batch' without a budget, or gap clipping (make_attribute_private), or set the probability of dropout to 0."
)


def require_budget_scope(wanted: Budget | None, scope: str) -> None:
    """Refuse a budget with a scope that proves nothing."""
    if wanted is None:
        return
    if not isinstance(wanted, Budget):
        raise TypeError(f"budget must be a Budget, got {wanted!r}.")
    if scope != "dataset":
        raise ValueError(
            "budget needs scope='dataset': the largest gap over a sampled batch says nothing of records outside it, and stopping "
            "because of it reveals who was sampled, so that nothing would be proved."
        )


@dataclass(frozen=True)
class MeasuredTraining:
    """A training whose model, data and secret were checked.

    Attributes
    ----------
    adapter : OpacusAdapter
        The model, the optimizer and the loader.
    source : Source
        The records of the data set.
    secret : Secret
        The sensitive attribute.
    variants : VariantGradients
        Computes gradients of records with other values of the secret.
    distances : RecordDistances
        Computes the distances between them.
    memory : int
        The number of bytes that a pass over variants may take.
    """

    adapter: OpacusAdapter
    source: Source
    secret: Secret
    variants: VariantGradients
    distances: RecordDistances
    memory: int

    def own_gradients(self, batch: Records) -> Iterator[tuple[int, Gradients]]:
        """The own gradients of the records of a batch, not clipped, some at a time, with the place of the first of them.

        Parameters
        ----------
        batch : Records
            The records.

        Yields
        ------
        tuple
            The place of the first record, and the gradients.
        """
        size = self.distances.most
        for first in range(0, len(batch), size):
            yield first, self.variants.own(batch.take(slice(first, first + size)))


def prepare(
    adapter: OpacusAdapter,
    source: Source,
    criterion: Callable[..., Tensor],
    secret: Secret,
    diameter: str,
    memory: int | None,
    scope: str,
) -> MeasuredTraining:
    """Check a training, and run its model once, so that an error shows before the first step. The training is left as it was.

    Parameters
    ----------
    adapter : OpacusAdapter
        The model, the optimizer and the loader.
    source : Source
        The records of the data set.
    criterion : callable
        The loss, as `make_private` returned it.
    secret : Secret
        The sensitive attribute.
    diameter : str
        How the distance of a record is computed.
    memory : int, optional
        The number of bytes that measuring may take.
    scope : "batch" or "dataset"
        Which records are measured.

    Returns
    -------
    MeasuredTraining
        The training with what computes its distances.
    """
    require_precision(adapter.parameters)
    loss = loss_of(criterion)
    _require_reduction(loss, adapter.loss_reduction)
    room = _room_for_passes(adapter, memory)
    _keep_freed_memory()
    variants = VariantGradients(adapter, loss)
    distances = RecordDistances(variants, secret, diameter, room)
    with restored(adapter.module):
        if scope == "dataset":
            _require_fixed_records(source)
        records = _different(source)
        _require_call(adapter, records)
        _check_secret(source, secret)
        with variants.dropout_of(records) as numbered:
            if variants.drops_out and scope == "dataset":
                raise GradientError(DROPOUT)
            _require_modules_only(adapter, numbered, loss, variants)
            distances.try_out(numbered)
            if memory is None:
                room = distances.make_room(ONE_RECORD)
            _require_decomposable(adapter, numbered, loss, variants)
            variants.own(numbered)
    return MeasuredTraining(adapter, source, secret, variants, distances, room)


def _keep_freed_memory() -> None:
    """Let the C library keep up to 64 MiB of freed memory, which it does after a block of almost 32 MiB was freed.

    Otherwise, each pass gets its memory from the system again, page by page and filled with zeros.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def _room_for_passes(adapter: OpacusAdapter, memory: int | None) -> int:
    """The bytes that are left for passes over variants, besides copies of weights, sums and noise."""
    copies = COPIES_OF_ALL * sum(tensor.nbytes for tensor in adapter.tensors())
    copies += COPIES_OF_TRAINED * sum(p.nbytes for p in adapter.parameters)
    if memory is None:
        return PASSES
    room = validation.whole("memory", memory) - copies
    if room < LEAST:
        raise ValueError(
            f"memory must be at least {copies + LEAST} bytes, got {memory}: copies of weights, sums and noise, which the checks "
            f"of each step need, take {copies} of them."
        )
    return room


def require_trainable_by_opacus(training: MeasuredTraining) -> None:
    """Refuse models for which Opacus itself cannot clip. Gap clipping can, because it does without the gradients of Opacus."""
    if runs_forward_hooks_again(training.adapter.module):
        raise GradientError(
            "the model has gradient checkpointing with use_reentrant=False, with which Opacus computes no gradients of records: "
            "call gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': True}). Gap clipping "
            "(make_attribute_private) takes both."
        )
    for name in sorted(training.variants.one_row):
        raise GradientError(
            f"{name} is called with one row for all records, as models do that number positions themselves, and Opacus then "
            "cannot clip: give the model its position ids, one row for each record "
            "(position_ids=torch.arange(length).repeat(records, 1), in the loop and in split=), or freeze the layer with "
            "requires_grad_(False). Gap clipping (make_attribute_private) needs neither."
        )


def _require_call(adapter: OpacusAdapter, records: Records) -> None:
    """Refuse records that the model cannot be called with, because it takes more or other arguments."""
    try:
        with adapter.silence(), without_checkpointing(adapter.module), torch.no_grad():
            adapter.module(*records.inputs, **records.named)
    except TypeError as problem:
        given = ", ".join(repr(key) for key in records.arguments() if key != TARGET)
        raise TypeError(f"the model cannot be called with argument {given} of a batch ({problem}); {SPLIT}.") from problem


def _require_reduction(criterion: Callable[..., Tensor], wanted: str) -> None:
    """Refuse a criterion that says it reduces losses in another way than Opacus assumes.

    A plain function says nothing; `_require_decomposable` computes its reduction.
    """
    name = getattr(criterion, "reduction", None)
    if isinstance(name, str) and name not in (wanted, "none"):
        raise ValueError(
            f"criterion has reduction {name!r}, but the optimizer assumes {wanted!r}: "
            f"make both alike (loss_reduction of make_private), or use reduction 'none'."
        )


def _require_fixed_records(source: Source) -> None:
    """Refuse a data set that gives another record when it is read again."""
    again = source.read(_spread(source))
    if any(not torch.equal(a, b) for a, b in zip(source.read(_spread(source)).tensors(), again.tensors(), strict=True)):
        raise ValueError(
            "loader has a data set that draws random numbers (augmentation); dataset scope needs the same records each time."
        )


def _check_secret(source: Source, secret: Secret) -> None:
    """Check that records hold values of the secret, and warn if other columns restate it."""
    table = type(source.dataset) is TensorDataset
    number = min(len(source), LOOK_AT if table else LOOK_AT_SLOWLY)
    records = source.read(range(number))
    secret.check(records, complete=number == len(source))
    if secret.quick_check:
        warn_of_restated(records, secret)


def _spread(source: Source) -> list[int]:
    """The numbers of records from all over the data set."""
    return torch.linspace(0, len(source) - 1, min(len(source), SPREAD)).long().tolist()


def _different(source: Source) -> Records:
    """A few records with targets that differ as far as possible, because records with the same target hide errors."""
    indices = _spread(source)
    records = source.read(indices)
    seen: dict[str, int] = {}
    if isinstance(records.target, Tensor) and records.target.ndim:
        for i, target in enumerate(records.target.flatten(1).tolist() if records.target.ndim > 1 else records.target.tolist()):
            seen.setdefault(str(target), i)
    chosen = [*seen.values(), *(i for i in range(len(indices)) if i not in seen.values())][:TRIAL]
    return records.take(chosen)


def _require_decomposable(
    adapter: OpacusAdapter, records: Records, criterion: Callable[..., Tensor], variants: VariantGradients
) -> None:
    """Refuse a loss that is not the mean (or sum) of the records' losses: its gradients would belong to no single record."""
    with torch.no_grad():
        loss = criterion(variants.output(records), records.target)
        single = [records.take(slice(i, i + 1)) for i in range(len(records))]
        try:
            alone = torch.cat([criterion(variants.output(one), one.target).reshape(-1) for one in single])
        except (RuntimeError, ValueError) as problem:
            raise ValueError(
                f"the model or the criterion cannot be run on one record alone ({problem}): a model that mixes records (batch "
                "norm: use group norm or layer norm) has no gradient of one record."
            ) from problem
        if loss.ndim == 0:
            alone = alone.sum() / (len(records) if adapter.loss_reduction == "mean" else 1)
    if not torch.allclose(alone, loss, rtol=1e-3, atol=1e-6, equal_nan=True):
        what = (
            f"{float(loss):.6g}, not {float(alone):.6g}"
            if loss.ndim == 0
            else "another loss for a record in a batch than for the record alone"
        )
        raise ValueError(
            f"criterion must be the {adapter.loss_reduction} of the records' own losses, but is {what}: class weights with "
            "reduction 'mean' (use 'sum' and loss_reduction='sum'), or a model that mixes records?"
        )


def _require_modules_only(
    adapter: OpacusAdapter, records: Records, criterion: Callable[..., Tensor], variants: VariantGradients
) -> None:
    """Refuse a model whose gradients, as Opacus computes them, are not those of PyTorch.

    Opacus leaves out what a weight does outside of its module's own forward pass. Embeddings with a padding_idx are not compared:
    Opacus ignores the padding_idx, and the gradients that are measured are those that Opacus uses.
    """
    own = variants.own(records)
    given = own.totals(torch.ones_like(own.norms))
    with torch.enable_grad():
        loss = variants.total_loss(criterion(variants.output(records), records.target), len(records))
        with adapter.silence():
            wanted = torch.autograd.grad(loss, adapter.parameters, allow_unused=True)
    padded = {id(m.weight) for m in adapter.module.modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None}
    for name, parameter, true in zip(adapter.parameter_names(), adapter.parameters, wanted, strict=True):
        expected = torch.zeros_like(parameter) if true is None else true
        apart = float((given[parameter].reshape(parameter.shape) - expected).norm())
        if id(parameter) not in padded and apart > 1e-2 * float(own.norms.sqrt().sum()) + 1e-6:
            raise GradientError(
                f"the gradient of {name} that Opacus computes is not PyTorch's: the model uses it outside of its module's "
                "forward pass (a functional call), which Opacus leaves out. Call the module instead."
            )
