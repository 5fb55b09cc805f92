"""Measures, checks, charges and records each step of an optimizer that a monitor watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from betastar.drawn_steps import DrawnBatch
from betastar.training.attaching import MeasuredTraining
from betastar.training.batch_capture import BatchCapture, CapturedBatch, Criterion, too_many
from betastar.training.budget import BudgetAccount, BudgetExhausted
from betastar.training.checks.batches import require_known
from betastar.training.checks.gradients import GradientCheck
from betastar.training.checks.step_checks import StepChecks
from betastar.training.gradients.factors import Gradients
from betastar.training.history import History
from betastar.training.ledger import Ledger
from betastar.training.measurement import StepMeasurement
from betastar.training.records import Records


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
