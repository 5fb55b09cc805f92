"""What is checked before a monitor is attached, and at the first sight of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from betastar.training.budget import Budget
from betastar.training.records import Records, Source
from betastar.training.ruler import Ruler
from betastar.training.secret import Secret
from betastar.training.wiring import Wiring

#: Records that are looked at when a monitor is attached: of a table, and of a data set that is read one by one.
LOOK_AT, LOOK_AT_SLOWLY = 65536, 2048
#: Records that the model is tried on.
TRIAL = 4


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


def dry_run(wiring: Wiring, source: Source, secret: Secret, criterion: Any, ruler: Ruler, scope: str) -> None:
    """Look at the data and run the model once, so that what is wrong is said now. Draws no random number."""
    before = torch.get_rng_state()
    records = source.read(range(min(TRIAL, len(source))))
    _look_at(source, secret)
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        if scope == "dataset":
            raise ValueError(
                "loader has a data set that draws random numbers (augmentation): dataset scope needs records that stay the same."
            )
    ruler.try_out(records)
    decomposable(wiring, records, criterion)


def _look_at(source: Source, secret: Secret) -> None:
    table = type(source.dataset) is TensorDataset
    number = min(len(source), LOOK_AT if table else LOOK_AT_SLOWLY)
    secret.check(source.read(range(number)), complete=number == len(source))


def decomposable(wiring: Wiring, records: Records, criterion: Any) -> None:
    """That the loss of a batch is the mean (or sum) of the records' losses: else a gradient belongs to no record."""
    with wiring.silence(), torch.no_grad():
        loss = criterion(wiring.module(*records.inputs, **records.named), records.target)
        if not isinstance(loss, Tensor) or loss.ndim:
            return  # one loss a record; the tracer checks its shape
        single = []
        for i in range(len(records)):
            one = records.take(slice(i, i + 1))
            single.append(criterion(wiring.module(*one.inputs, **one.named), one.target))
        total = torch.stack(single).sum() / (len(records) if wiring.loss_reduction == "mean" else 1)
    if not torch.isclose(total, loss, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            f"criterion must be the {wiring.loss_reduction} of the records' own losses, not {float(loss):.6g} for {len(records)} "
            f"records whose {wiring.loss_reduction} is {float(total):.6g} (class weights?): "
            "use reduction 'sum' with loss_reduction='sum'."
        )


def prediction(given: Any, output: Any) -> None:
    """That the criterion was given what the model returned."""
    if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and torch.equal(given, output):
        return
    if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and given.isnan().any():
        return  # not a number is not equal to itself; the tracer reports it
    if not isinstance(given, Tensor) and given is output:
        return
    shapes = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (given, output)]
    raise ValueError(
        f"criterion got something else ({shapes[0]}) than the model returned ({shapes[1]}), which the monitor cannot repeat: "
        "put the step in between into the criterion, pass that function as criterion, and call monitor.criterion(model(x), y)."
    )
