"""Checks at every step what a proof rests on: no step is missed, and weights, sampling and noise are as promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from betastar.drawn_steps import DrawnBatch
from betastar.training import processes
from betastar.training.checks.noise import NoiseCheck, NoiseError
from betastar.training.checks.sampling import SamplingCheck
from betastar.training.checks.sampling_error import SamplingError
from betastar.training.checks.step_counter import StepCounter, digest
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records
from betastar.training.source import Source


class NotProved(ValueError):  # noqa: N818
    """Something happened that a proof does not cover, so that nothing is proved."""


class StepChecks:
    """Checks the steps of one training.

    Parameters
    ----------
    adapter : OpacusAdapter
        The training.
    source : Source
        Its data set.
    proves : bool
        Whether a proof rests on the steps. Each step must then be seen, and an error leaves nothing proved.
    follow_records : bool
        Whether the records of a batch are those of the data set, unchanged, so that it can be counted how often each is sampled.
    """

    def __init__(self, adapter: OpacusAdapter, source: Source, proves: bool, follow_records: bool) -> None:
        self._adapter, self._source, self._proves, self._follow = adapter, source, proves, follow_records
        if proves:
            adapter.steps_accounted()
        #: Why nothing is proved any more.
        self.void = ""
        self._counter = StepCounter(adapter.module)
        self._sampling, self._noise = SamplingCheck(len(source)), NoiseCheck()
        self._resumed = ""  # digest of the weights that a loaded state belongs to
        self._rows, self._prints = 0, []

    _rows: int  # the number of records of the coming step
    _prints: list[Tensor]  # their fingerprints

    @contextmanager
    def voiding(self, *kinds: type[Exception], except_for: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """After an error of these kinds inside, nothing is proved any more. After any error the batch is forgotten."""
        try:
            yield
        except Exception as problem:
            self._rows, self._prints = 0, []
            if isinstance(problem, kinds) and not isinstance(problem, except_for):
                self.void = self.void or f"{type(problem).__name__}: {problem}"
            raise

    def require(self, steps: int) -> None:
        """Refuse to go on, and to claim anything, unless exactly `steps` steps were taken and nothing else was done."""
        if self._resumed:
            if self._resumed != digest(self._adapter.tensors()):
                raise NotProved("the loaded state belongs to other weights: load the model's state that was saved with it.")
            self._resumed = ""
            self._counter.accept_weights()
        if not self._proves:
            return
        accounted, taken = self._adapter.steps_accounted(), self._counter.steps
        if not steps == accounted == taken:
            self.void = self.void or (
                f"the accountant has seen {accounted} steps and the parameters {taken}, of which {steps} are covered. Attach "
                "before the first step, load this state and the accountant's when you resume, do not detach in between, and "
                "train the parameters with this optimizer only."
            )
        elif not self._counter.weights_unchanged():
            self.void = self.void or (
                "the weights were changed since the last step, and not by this optimizer. If that was done by looking at weights "
                "of earlier steps alone (averaging, going back, projecting), call accept_weights() after it."
            )
        if self.void:
            raise NotProved(f"nothing is proved: {self.void}")

    def accept_weights(self) -> None:
        """Take the weights as they are now for those that the last step has left."""
        self._counter.accept_weights()

    def batch(self, records: Records) -> None:
        """Count the records of a batch of the coming step."""
        self._rows += len(records)
        if self._follow:
            self._prints.append(records.fingerprints())

    def added(self, drawn: DrawnBatch, deviation: float) -> None:
        """Check a step that has added noise of this standard deviation to a sum over a batch that was drawn so."""
        rows, prints = processes.total(self._rows), processes.gathered(self._prints)
        self._rows, self._prints = 0, []
        noise = self._adapter.added_noise()
        if noise is not None:
            self._noise.step(noise, deviation, self._adapter.parameter_names())
        if drawn.scheme.sample_rate < 1.0:
            self._sampling.step(rows, drawn)
        if self._follow:
            self._sampling.sampled(prints, drawn, lambda: self._source.fingerprints)

    def state_dict(self) -> dict[str, Any]:
        """What was checked, to be saved."""
        return {"void": self.void, "weights": digest(self._adapter.tensors()), "sampling": self._sampling.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], steps: int) -> None:
        """Go on from what was saved after so many steps."""
        self.void, self._resumed, self._counter.steps = state["void"], state["weights"], steps
        self._sampling.load_state_dict(state["sampling"])


#: Errors after which a step may have been taken with other sampling or noise than promised.
BROKEN_PROMISES = SamplingError, NoiseError, NotProved
