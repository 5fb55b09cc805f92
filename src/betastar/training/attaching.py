"""What is checked before a monitor is attached, and at the first sight of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar.training.budget import Budget
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.side_effects import GradientError, restored
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records, Source
from betastar.training.secrets import restated_columns
from betastar.training.secrets.restated_columns import warn_of_restated
from betastar.training.secrets.secret import Secret

#: Records that are looked at when a monitor is attached: of a table, and of a data set that is read one by one.
LOOK_AT, LOOK_AT_SLOWLY = 65536, 2048
#: Records that the model is tried on.
TRIAL, SPREAD = 4, 64


def budget(wanted: Budget | None, scope: str, diameter: str) -> Budget | None:
    if wanted is None:
        return None
    if not isinstance(wanted, Budget):
        raise TypeError(f"budget must be a Budget, got {wanted!r}.")
    if scope != "dataset":
        raise ValueError(
            "budget needs scope='dataset': the largest gap over a sampled batch says nothing of records outside it, and stopping "
            "because of it reveals who was sampled, so that nothing would be proved."
        )
    if diameter == "extremes":
        raise ValueError(
            "budget needs an upper bound of the gap: diameter='extremes' is none; use 'exact', 'ball' or 'centroid'."
        )
    return wanted


def values(secret: Secret, diameter: str, extremes: Sequence[Any] | None) -> Sequence[int]:
    """Numbers of the values that are compared."""
    if (diameter == "extremes") != (extremes is not None):
        raise ValueError(f"extremes must be given with diameter='extremes' and only then, got {extremes!r} with {diameter!r}.")
    if extremes is None:
        return range(secret.count)
    if len(extremes) != 2 or extremes[0] == extremes[1]:
        raise ValueError(f"extremes must name two different values, got {extremes!r}.")
    return secret.only(*extremes)


def reduction(criterion: Any, wanted: str) -> None:
    """That the criterion's reduction is the one that Opacus assumes."""
    name = getattr(criterion, "reduction", None)
    if isinstance(name, str) and name not in (wanted, "none"):
        raise ValueError(
            f"criterion has reduction {name!r}, but the optimizer assumes {wanted!r}: "
            f"make both alike (loss_reduction of make_private), or use reduction 'none'."
        )


def dry_run(
    adapter: OpacusAdapter,
    source: Source,
    secret: Secret,
    criterion: Any,
    variants: VariantGradients,
    distances: RecordDistances,
    scope: str,
) -> None:
    """Look at the data and run the model once, so that what is wrong is said now. Leaves no trace."""
    with restored(adapter.module):
        records = _different(source)
        if scope == "dataset":
            again = source.read(_spread(source))
            if any(not torch.equal(a, b) for a, b in zip(source.read(_spread(source)).tensors(), again.tensors(), strict=True)):
                raise ValueError(
                    "loader has a data set that draws random numbers (augmentation); dataset scope needs records that stay."
                )
        table = type(source.dataset) is TensorDataset
        number = min(len(source), LOOK_AT if table else LOOK_AT_SLOWLY)
        records_looked_at = source.read(range(number))
        secret.check(records_looked_at, complete=number == len(source))
        if secret.quick_check:
            warn_of_restated(records_looked_at.take(slice(0, restated_columns.LOOK_AT)), secret)
        modules_only(adapter, records, criterion, variants)
        distances.try_out(records)
        decomposable(adapter, records, criterion)
        variants.own(records)


def _spread(source: Source) -> list[int]:
    """Records from all over the data set."""
    return torch.linspace(0, len(source) - 1, min(len(source), SPREAD)).long().tolist()


def _different(source: Source) -> Records:
    """A few records with targets as different as possible: one that is alike tells little."""
    indices = _spread(source)
    records = source.read(indices)
    seen: dict[Any, int] = {}
    if isinstance(records.target, Tensor) and records.target.ndim:
        for i, target in enumerate(records.target.flatten(1).tolist() if records.target.ndim > 1 else records.target.tolist()):
            seen.setdefault(str(target), i)
    chosen = [*seen.values(), *(i for i in range(len(indices)) if i not in seen.values())][:TRIAL]
    return records.take(chosen)


def decomposable(adapter: OpacusAdapter, records: Records, criterion: Any) -> None:
    """That the loss of a batch is the mean (or sum) of the records' losses: else a gradient belongs to no record."""
    with adapter.silence(), torch.no_grad():
        loss = criterion(adapter.module(*records.inputs, **records.named), records.target)
        single = []
        for i in range(len(records)):
            one = records.take(slice(i, i + 1))
            single.append(criterion(adapter.module(*one.inputs, **one.named), one.target).reshape(-1))
        alone = torch.cat(single)
        if loss.ndim == 0:
            alone = alone.sum() / (len(records) if adapter.loss_reduction == "mean" else 1)
    if not torch.allclose(alone, loss, rtol=1e-3, atol=1e-6, equal_nan=True):
        what = (
            f"{float(loss):.6g}, not {float(alone):.6g}" if loss.ndim == 0 else "another one for a record among others than alone"
        )
        raise ValueError(
            f"criterion must be the {adapter.loss_reduction} of the records' own losses, but is {what}: class weights with "
            "reduction 'mean' (use 'sum' and loss_reduction='sum'), or a model that mixes records?"
        )


def modules_only(adapter: OpacusAdapter, records: Records, criterion: Any, variants: VariantGradients) -> None:
    """That Opacus's gradients are PyTorch's: it leaves out what a weight does outside of its module's own forward pass.

    Embeddings are left alone: Opacus ignores their padding_idx, and what is measured is what Opacus uses.
    """
    own = variants.own(records)
    given = own.totals(torch.ones_like(own.norms))
    with adapter.silence(), torch.enable_grad():
        loss = variants.total_loss(criterion(adapter.module(*records.inputs, **records.named), records.target), len(records))
        wanted = torch.autograd.grad(loss, adapter.parameters, allow_unused=True)
    padded = {id(m.weight) for m in adapter.module.modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None}
    for name, parameter, true in zip(adapter.parameter_names(), adapter.parameters, wanted, strict=True):
        expected = torch.zeros_like(parameter) if true is None else true
        apart = float((given[parameter].reshape(parameter.shape) - expected).norm())
        if id(parameter) not in padded and apart > 1e-2 * float(own.norms.sqrt().sum()) + 1e-6:
            raise GradientError(
                f"the gradient of {name} that Opacus computes is not PyTorch's: the model uses it outside of its module's "
                "forward pass (a functional call, a weight that two modules share), which Opacus leaves out. Call the module "
                "instead."
            )


def arguments(batch: Records, source: Source) -> None:
    """That the loop calls the model with the arguments that `split` gives: of these it is known which belong to records."""
    given = {key for key, value in batch.arguments().items() if isinstance(value, Tensor)}
    wanted = {key for key, value in source.example.items() if isinstance(value, Tensor)}
    if given != wanted:
        raise ValueError(
            f"the loop calls the model and the criterion with the tensors {sorted(map(str, given))}, but split gives "
            f"{sorted(map(str, wanted))} (positions, names, target): let split give what the loop passes, in the same way."
        )


def prediction(given: Any, output: Any) -> None:
    """That the criterion was given what the model returned."""
    if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and torch.equal(given, output):
        return
    if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and given.isnan().any():
        return  # not a number is not equal to itself; VariantGradients reports it
    if not isinstance(given, Tensor) and given is output:
        return
    shapes = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (given, output)]
    raise ValueError(
        f"criterion got something else ({shapes[0]}) than the model returned ({shapes[1]}), which the monitor cannot repeat: "
        "put the step in between into the criterion, pass that function as criterion, and call monitor.criterion(model(x), y)."
    )


def known(batch: Records, source: Source) -> None:
    """That every record of a batch is one of the data set, unchanged."""
    if len(batch) and not torch.isin(batch.fingerprints(), source.fingerprints).all():
        raise ValueError(
            "the batch holds a record that the data set does not: the loop changes records before the model sees them. "
            "Do that in the data set, so that dataset scope measures the same."
        )
