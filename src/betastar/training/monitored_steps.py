"""Measures, checks, charges and records each step of an optimizer that a monitor watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from betastar.drawn_steps import DrawnBatch
from betastar.training import processes
from betastar.training.attaching import MeasuredTraining
from betastar.training.batch_capture import BatchCapture, CapturedBatch, Criterion, too_many
from betastar.training.budget import BudgetAccount, BudgetExhausted
from betastar.training.checks.loop_checks import GradientCheck, require_known
from betastar.training.checks.step_checks import StepChecks, same_contents
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.factors import Gradients
from betastar.training.history import History
from betastar.training.ledger import Ledger
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source

# ---- Distances of the coming step

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
        self.gaps: NDArray[Any] | None = None
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

    def _no_gaps(self) -> NDArray[Any]:
        return np.full(len(self._source), -1.0)


# ---- Steps


@dataclass(frozen=True)
class Accounts:
    """Where steps are recorded. A monitor without a ledger or a budget has None in their place."""

    history: History
    ledger: Ledger | None
    budget: BudgetAccount | None


class MonitoredSteps:
    """The steps of one optimizer.

    Parameters
    ----------
    training : MeasuredTraining
        What is measured.
    criterion : callable
        The loss that the training loop calls.
    accounts : Accounts
        Where steps are recorded.
    scope : "batch" or "dataset"
        Which records are measured.
    every, ledger_every : int
        Every how many steps the largest distance is measured, and the distance of each record.
    recorded : callable
        Called after each step that was taken and recorded.
    """

    def __init__(
        self,
        training: MeasuredTraining,
        criterion: Criterion,
        accounts: Accounts,
        scope: str,
        every: int,
        ledger_every: int,
        recorded: Callable[[], None],
    ) -> None:
        self._training, self._adapter, self._source = training, training.adapter, training.source
        self._history, self._ledger, self._account = accounts.history, accounts.ledger, accounts.budget
        self._scope, self._every, self._ledger_every, self._recorded = scope, every, ledger_every, recorded
        #: Which records of the data set the coming batch holds, if the training loop has said so.
        self.indices: Tensor | None = None
        self._measurement = StepMeasurement(self._adapter, self._source, training.secret, training.distances)
        self._gradients = GradientCheck(self._adapter)
        self.capture = BatchCapture(self._adapter, criterion, self._source, lambda: self._adapter.hooks_are_enabled)
        self.checks = StepChecks(self._adapter, self._source, self._account is not None, scope == "dataset")
        self._undo = self._adapter.around_step(self._step)

    def detach(self) -> None:
        """Stop listening to the training."""
        self.capture.detach()
        self._undo()

    def forget(self) -> None:
        """Forget what was measured for a coming step."""
        self._measurement.forget()
        self._gradients.forget()

    def require_all_seen(self) -> None:
        """Raise `NotProved` if something happened that a proof does not cover."""
        self.checks.require(len(self._history))

    def may_step(self) -> bool:
        """Whether the budget allows a step at the current weights."""
        with self.checks.voiding(Exception):
            self.require_all_seen()
            self._measure_dataset()
        return self._affordable()

    def _step(self, take: Callable[[], bool]) -> bool:
        """Measure and check one step. `take` lets Opacus clip and add noise, and returns whether a step is taken."""
        if not self.capture.attached:
            return take()
        with self.checks.voiding(Exception, except_for=BudgetExhausted):
            try:
                drawn, noise, norm = self._before()
                taken = take()
                if taken:
                    self._gradients.summed()
                    self.checks.added(drawn, noise * norm)
            except Exception:
                self._gradients.forget()
                raise
        if taken:
            self._record(drawn, noise)
        return taken

    def _before(self) -> tuple[DrawnBatch, float, float]:
        """Measure at the weights that the gradients belong to. Returns the sampling, the noise and the clipping norm."""
        batches, indices = self._take_batches(), self.indices
        self.indices = None
        self.require_all_seen()
        drawn, noise, norm = self._adapter.drawn(), self._adapter.noise_multiplier(), self._adapter.max_grad_norm()
        for number, batch in enumerate(batches):
            self.checks.batch(batch.records)
            if self._scope == "dataset":
                require_known(batch.records, self._source)
            if self._due() or self._account:
                with self._training.variants.dropout_of(batch.records, batch.draws) as records:
                    self._measure_batch(records, indices, number, len(batches))
            else:
                self._gradients.skip()
        if self._scope == "dataset":
            self._measure_dataset()
        if self._account and not self._affordable():
            raise self._account.refusal(len(self._history))
        return drawn, noise, norm

    def _measure_batch(self, batch: Records, indices: Tensor | None, number: int, batches: int) -> None:
        """Check the gradients of one of the batches since the last step and, in batch scope, measure it."""
        checked = False

        def check(own: Gradients, first: int) -> None:
            self._gradients.part(own, first, len(batch), number, batches)

        if self._scope == "batch":
            checked = self._measurement.batch(batch, indices if self._each_record() else None, check)
        if not checked:
            for first, own in self._training.own_gradients(batch):
                check(own, first)

    def _take_batches(self) -> list[CapturedBatch]:
        """The batches that the loop has run the model on since the last step."""
        batches = self.capture.take()
        if len(batches) > 1 and self._adapter.drawn().scheme.sample_rate < 1.0:
            if self._adapter.rows() != len(batches[-1].records):
                raise too_many(len(batches))
            batches = batches[-1:]
        return batches

    def _measure_dataset(self) -> None:
        self._measurement.dataset(self._due(), self._each_record(), check=not len(self._history))

    def _due(self) -> bool:
        """Whether the coming step is measured."""
        return len(self._history) % self._every == 0

    def _each_record(self) -> bool:
        """Whether the distance of each record is needed at the coming step, not only the largest one."""
        if self._account and self._account.budget.per_record:
            return True
        return self._ledger is not None and len(self._history) % max(1, self._ledger_every) == 0

    def _affordable(self) -> bool:
        """Whether the budget allows a step with the distances that were measured."""
        if self._account is None:
            return True
        drawn, noise, measured = self._adapter.drawn(), self._adapter.noise_multiplier(), self._measurement
        return self._account.affordable(measured.largest, measured.gaps, drawn, noise, self._largest_batch(drawn))

    def _largest_batch(self, drawn: DrawnBatch) -> float:
        return drawn.scheme.largest_batch(len(self._source))

    def _record(self, drawn: DrawnBatch, noise: float) -> None:
        """Record a step that the optimizer takes, with the sampling and the noise that it had before."""
        measured = self._measurement
        if self._scope == "batch" and self._due():
            measured.join_processes(self._each_record())
        if self._account:
            self._account.pay(measured.largest, measured.gaps, drawn, noise, self._largest_batch(drawn))
        self._history.add(measured.largest, drawn, noise)
        if self._ledger is not None:
            self._ledger.step(measured.gaps, drawn.scheme.sample_rate, noise, drawn, self._history.last_distance)
        self.forget()
        self._recorded()
