"""StepMeasurement: the distances of the coming step, over the records of the batch or over all records of the data set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from betastar.arrays import Real
from betastar.training import processes
from betastar.training.checks.step_counter import same_contents
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.factors import Gradients
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source

#: Takes the own gradients of some records of a batch, and the place of the first of them.
OwnGradients = Callable[[Gradients, int], None]


class StepMeasurement:
    """Measures the coming step.

    Attributes
    ----------
    largest : float or None
        The largest distance; None if nothing was measured.
    gaps : array or None
        The distance of each record, negative if it was not measured; None if no single record was measured.
    """

    def __init__(self, adapter: OpacusAdapter, source: Source, secret: Secret, distances: RecordDistances) -> None:
        self._adapter, self._source, self._secret, self._distances = adapter, source, secret, distances
        self.forget()

    def forget(self) -> None:
        """Forget what was measured."""
        self.largest: float | None = None
        self.gaps: Real | None = None
        self._measured_at: tuple[tuple[object, ...], list[Tensor]] | None = None  # settings, and weights with buffers

    def batch(self, batch: Records, indices: Tensor | None, own: OwnGradients) -> bool:
        """Measure a batch.

        Parameters
        ----------
        batch : Records
            The records.
        indices : Tensor, optional
            The numbers of the records in the data set, if the distance of each is wanted.
        own : callable
            It is given the records' own gradients, some records at a time, and the place of the first of them in the batch.

        Returns
        -------
        bool
            Whether the own gradients were among those that were computed. If not, `own` was not called.
        """
        if self._secret.quick_check and len(batch):
            self._secret.check(batch, complete=False)
        done = 0

        def pass_on(records: Records, gradients: Gradients) -> None:
            nonlocal done
            own(gradients.whole(self._secret.own(records).to(gradients.norms.device)), done)
            done += len(records)

        seen = None
        if self._secret.quick_check and self._distances.holds_own() and not self._distances.own_is_cheaper(batch):
            seen = pass_on
        largest = self.largest or 0.0
        if indices is None:
            self.largest = self._distances.largest(batch, largest, seen)
        else:
            if len(indices) != len(batch):
                raise ValueError(f"indices must be one for each of the {len(batch)} records of the batch, got {len(indices)}.")
            each = self._distances.each(batch, seen).cpu().numpy()
            if self.gaps is None:
                self.gaps = self._no_gaps()
            self.gaps[indices.numpy()] = each
            self.largest = max(largest, float(each.max(initial=0.0)))
        return seen is not None

    def join_processes(self, each: bool) -> None:
        """Take the largest distances over the batches of all processes. With `each`, the distances of single records as well."""
        self.largest = processes.maximum(self.largest or 0.0)
        if each and processes.together():
            self.gaps = processes.maxima(self._no_gaps() if self.gaps is None else self.gaps)

    def dataset(self, due: bool, each: bool, check: bool) -> None:
        """Measure all records, unless that was done at these weights. Each process measures its share of them.

        Parameters
        ----------
        due : bool
            False measures nothing at these weights.
        each : bool
            Whether the distance of each record is kept.
        check : bool
            Whether records are refused that hold none of the secret's values.
        """
        settings, tensors = self._adapter.settings(), self._adapter.tensors()
        if self._measured_at is not None and self._measured_at[0] == settings and same_contents(self._measured_at[1], tensors):
            return
        contents = self._adapter.contents()
        if due:
            largest, gaps = 0.0, self._no_gaps()
            for indices, records in self._source.portions(processes.share(len(self._source))):
                if check and self._secret.quick_check:
                    self._secret.check(records, complete=False)
                if each:
                    gaps[indices.numpy()] = self._distances.each(records).cpu().numpy()
                    largest = max(largest, float(gaps.max()))
                else:
                    largest = self._distances.largest(records, largest)
            self.largest = processes.maximum(largest)
            self.gaps = processes.maxima(gaps) if each else None
        self._measured_at = settings, contents

    def _no_gaps(self) -> Real:
        return np.full(len(self._source), -1.0)
