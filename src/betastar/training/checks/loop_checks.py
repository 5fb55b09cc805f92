"""Checks of the training loop: its precision, its batches, and the gradients that its steps use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from betastar.training.gradients.factors import Gradients, Sketches, clip
from betastar.training.gradients.side_effects import GradientError
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records
from betastar.training.source import Source

# ---- Precision


def require_precision(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse less than single precision, whose rounding is larger than the gap between two values of a secret."""
    strange = [p.dtype for p in parameters if p.dtype not in (torch.float32, torch.float64)]
    if strange:
        raise ValueError(f"module must have weights in float32 or float64, got {strange[0]}: a gap would drown in rounding.")
    if torch.is_autocast_enabled(parameters[0].device.type):
        raise ValueError(
            "the loop runs the model under torch.autocast, whose rounding moves gradients further apart than the values of a "
            "secret do: train in float32 (leave torch.autocast out)."
        )
    if torch.get_float32_matmul_precision() != "highest":
        raise ValueError(
            f"torch.get_float32_matmul_precision() must be 'highest', got {torch.get_float32_matmul_precision()!r}, which "
            "rounds products of matrices: call torch.set_float32_matmul_precision('highest')."
        )


# ---- Batches: they can be repeated, and their records are those of the data set.


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


# ---- Gradients of a step, compared with those that the monitor computes: entries of each record, and the clipped sum.

#: The number of entries of each record's gradient that are compared.
ENTRIES = 256
#: Single precision in another order may change a norm by the first, and a sum by the second times the norms of its terms.
NORM, SUM = 1e-3, 1e-4


class GradientCheck:
    """Checks the gradients of one step at a time."""

    def __init__(self, adapter: OpacusAdapter) -> None:
        self._adapter, self._sketches = adapter, Sketches()
        self.forget()

    def forget(self) -> None:
        """Forget the gradients of the coming step."""
        self._sums: dict[Tensor, Tensor] = {}  # sketches of the clipped sum
        self._scale = 0.0
        self._complete = True

    def skip(self) -> None:
        """Check neither a batch of the coming step nor the sum that it takes part in."""
        self._complete = False

    def part(self, own: Gradients, first: int, rows: int, number: int = 0, batches: int = 1) -> None:
        """Refuse a loss that is not the criterion's, by the gradient of each record, before the optimizer clips.

        Parameters
        ----------
        own : Gradients
            The own gradients of some records of a batch as the criterion gives them, before clipping.
        first, rows : int
            The place of the first of these records in the batch, and the number of records in the batch.
        number, batches : int
            The number of this batch, and of all batches since the last step.

        Raises
        ------
        GradientError
            If the gradients that Opacus has are others.
        """
        if not own.norms.isfinite().all():
            self._complete = False
            return  # the measurement of the batch reports it
        pairs = self._compared(own, rows, number, batches)
        if any(len(given) != rows for given, _ in pairs):
            raise GradientError(f"the gradients belong to {len(pairs[0][0])} records, but the monitor saw a batch of {rows}.")
        for all_given, wanted in pairs:
            given = all_given[first : first + len(wanted)]
            apart = (given.to(wanted) - wanted).norm(dim=1)
            other = apart > NORM * wanted.norm(dim=1) + 1e-6
            if other.any():
                first = int(other.nonzero()[0])
                raise GradientError(
                    f"the gradient of a record has norm {float(given[first].norm()):.4g}, but the criterion gives "
                    f"{float(wanted[first].norm()):.4g}, {float(apart[first]):.4g} away: the loss that is back-propagated is not "
                    "the criterion's (scaled? a second term?). Put all into one function of (output, target), pass that as "
                    "criterion, and call monitor.criterion in the loop."
                )
        clipped = clip(own, self._adapter)
        norm = self._adapter.max_grad_norm()
        self._scale += float(clipped.norms.sqrt().sum()) * norm
        for parameter, sketch in self._sketches.of_sum(clipped).items():
            self._sums[parameter] = self._sums.get(parameter, 0.0) + norm * sketch

    def _compared(self, own: Gradients, rows: int, number: int, batches: int) -> list[tuple[Tensor, Tensor]]:
        """Pairs of what Opacus has, with one row for each record of the batch, and what it should have for some of them.

        The gradients of the smallest parameters are compared, which every loss changes. With ghost clipping Opacus keeps only the
        norm of the whole gradient, and that is compared.
        """
        norms = self._adapter.ghost_norms()
        if norms is not None and batches == 1:
            return [(norms[:, None], own.norms.sqrt())]
        samples = self._adapter.gradients(number, batches)
        if samples is None:
            raise GradientError(
                f"Opacus has no gradients of the {rows} records that the model was run on: call loss.backward() before "
                "optimizer.step(), once for each forward pass."
            )
        pairs: list[tuple[Tensor, Tensor]] = []
        entries = 0
        for parameter, sample in sorted(zip(self._adapter.parameters, samples, strict=True), key=lambda one: one[0].numel()):
            entries += parameter.numel()
            if pairs and entries > ENTRIES:
                break
            (factor,) = (factor for factor in own.factors if any(p is parameter for p in factor.parameters))
            pairs.append((sample.flatten(1), factor.written(parameter)[:, 0]))
        return pairs

    def summed(self) -> None:
        """Refuse a step whose sum of clipped gradients, which noise was added to, is another one than computed here."""
        squares = 0.0
        for p in self._adapter.parameters if self._complete else ():
            given = self._adapter.clipped_sum(p)
            sketch = self._sketches.of(p, torch.zeros_like(p) if given is None else given)
            squares += float((sketch - self._sums.get(p, 0.0)).square().sum())
        if squares**0.5 > SUM * self._scale + 1e-6:
            raise GradientError(
                f"the sum that the optimizer has added noise to is about {squares**0.5:.2g} away from the sum of the records' "
                f"clipped gradients, whose norms add up to {self._scale:.4g}: gradients were changed after the backward pass, or "
                "clipping was. Leave both to Opacus."
            )
