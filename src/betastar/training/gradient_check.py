"""Compares the gradients that a step uses with those that the monitor repeats: each record's norm, and the clipped sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from betastar.training.purity import GradientError
from betastar.training.records import Records
from betastar.training.tracer import Tracer
from betastar.training.wiring import Wiring

#: Single precision in another order may change a norm, and a sum relative to the norms of its terms, by as much.
NORM, SUM = 1e-2, 1e-3


class GradientCheck:
    def __init__(self, wiring: Wiring, tracer: Tracer) -> None:
        self._wiring, self._tracer = wiring, tracer
        self.forget()

    def forget(self) -> None:
        """Nothing is known of the coming step."""
        self._sums: dict[Tensor, Tensor] = {}
        self._scale = 0.0
        self._complete = True

    def skip(self) -> None:
        """The batch is not looked at, nor is the sum that it takes part in."""
        self._complete = False

    def batches(self, batches: Sequence[Records]) -> None:
        """Before the optimizer clips: that the loss which was back-propagated is the criterion's, for every record."""
        for number, batch in enumerate(batches):
            if not len(batch):
                continue
            norms = self._wiring.norms(number, len(batches))
            if norms is None:
                raise GradientError(
                    f"Opacus has no gradients of the {len(batch)} records that the model was run on: call loss.backward() before "
                    "optimizer.step(), once for each forward pass."
                )
            if len(norms) != len(batch):
                raise GradientError(f"the gradients belong to {len(norms)} records, but the monitor saw a batch of {len(batch)}.")
            self._batch(batch, norms)

    def _batch(self, batch: Records, norms: Tensor) -> None:
        own = self._tracer.own(batch)
        wanted, given = own.norms.sqrt()[:, 0], norms.to(own.norms)
        if not wanted.isfinite().all():
            self._complete = False
            return  # measuring the batch reports it
        other = ~torch.isclose(wanted, given, rtol=NORM, atol=1e-6)
        if other.any():
            first = int(other.nonzero()[0])
            raise GradientError(
                f"the gradient of a record has norm {float(given[first]):.4g}, but the criterion gives "
                f"{float(wanted[first]):.4g}: the loss that is back-propagated is not the criterion's (scaled? a second term?). "
                "Put all into one function of (output, target), pass that as criterion, and call monitor.criterion in the loop."
            )
        clipped = self._wiring.clip(own)
        norm = self._wiring.max_grad_norm()
        self._scale += float(clipped.norms.sqrt().sum()) * norm
        for parameter, found in clipped.totals(torch.ones_like(own.norms)).items():
            found = found * norm
            self._sums[parameter] = self._sums[parameter] + found if parameter in self._sums else found

    def summed(self) -> None:
        """After the optimizer has clipped and added up: that it is the sum of the clipped gradients which gets the noise."""
        squares = 0.0
        for p in self._wiring.parameters if self._complete else ():
            given, wanted = self._wiring.clipped_sum(p), self._sums.get(p)
            zeros = torch.zeros_like(p, dtype=torch.float64)
            squares += float(((zeros if given is None else given) - (zeros if wanted is None else wanted)).square().sum())
        if squares**0.5 > SUM * self._scale + 1e-6:
            raise GradientError(
                f"the sum that the optimizer has added noise to is {squares**0.5:.4g} away from the sum of the records' clipped "
                f"gradients, whose norms add up to {self._scale:.4g}: gradients were changed after the backward pass, or "
                "clipping was. Leave both to Opacus."
            )
