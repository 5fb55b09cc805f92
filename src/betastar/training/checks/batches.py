"""Checks that a batch of the training loop can be repeated, and that its records are those of the data set."""

from __future__ import annotations

import torch
from torch import Tensor

from betastar.training.records import Records
from betastar.training.source import Source


def require_arguments(batch: Records, source: Source) -> None:
    """Refuse a loop that calls the model with other arguments than `split` gives: it is not known which belong to records."""
    given = {key for key, value in batch.arguments().items() if isinstance(value, Tensor)}
    wanted = {key for key, value in source.example.items() if isinstance(value, Tensor)}
    if given != wanted:
        raise ValueError(
            f"the loop calls the model and the criterion with the tensors {sorted(map(str, given))}, but split gives "
            f"{sorted(map(str, wanted))} (positions, names, target): let split give what the loop passes, in the same way."
        )


def require_model_output(given: object, output: object) -> None:
    """Refuse a loop that gives the criterion something else than the model returned."""
    if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and torch.equal(given, output):
        return
    if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and given.isnan().any():
        return  # NaN does not equal itself; VariantGradients reports it
    if not isinstance(given, Tensor) and given is output:
        return
    shapes = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (given, output)]
    raise ValueError(
        f"criterion got something else ({shapes[0]}) than the model returned ({shapes[1]}), which the monitor cannot repeat: "
        "put the step in between into the criterion, pass that function as criterion, and call monitor.criterion(model(x), y)."
    )


def require_known(batch: Records, source: Source) -> None:
    """Refuse a batch with a record that is not in the data set as it is."""
    if len(batch) and not torch.isin(batch.fingerprints(), source.fingerprints).all():
        raise ValueError(
            "the batch holds a record that the data set does not: the loop changes records before the model sees them. "
            "Do that in the data set, so that dataset scope measures the same."
        )
