"""Checks at every step what a proof rests on: no step is missed, and weights, sampling and noise are as promised."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import erfc, sqrt
from typing import Any

import torch
from scipy.special import gammainc
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from betastar.drawn_steps import DrawnBatch
from betastar.training import processes
from betastar.training.checks.sampling import ERROR, SamplingCheck, SamplingError
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records
from betastar.training.source import Source

# ---- Noise: what a step has added to the clipped sum, compared with what it is charged with.
#
# The noise should be Z with independent entries of standard deviation σC. Then |Z|²/(σC)² follows a χ² law with as many degrees
# of freedom as Z has entries, and given the noise Y of an earlier step ⟨Z, Y⟩/(σC|Y|) is a standard normal number. The check
# looks at each tensor and at all steps together. More noise than charged is allowed. A training with the right noise is refused
# with a probability of at most ERROR over the whole run.


class NoiseError(RuntimeError):
    """The noise of a step is not the noise that the step is charged with."""


class NoiseCheck:
    """Checks the noise of one step after the other."""

    def __init__(self) -> None:
        self.steps = 0
        self._squares, self._entries = 0.0, 0
        self._first: list[Tensor] = []
        self._last: list[Tensor] = []

    def step(self, noise: Sequence[Tensor], deviation: float, names: Sequence[str]) -> None:
        """Check one step.

        Parameters
        ----------
        noise : sequence of Tensor
            What was added to the clipped sum of each parameter.
        deviation : float
            σC.
        names : sequence of str
            The names of the parameters.

        Raises
        ------
        NoiseError
            If this is too little noise, or the noise of an earlier step.
        """
        self.steps += 1
        parts = [tensor.detach().flatten() for tensor in noise]
        squares = [float(part.double().square().sum()) / deviation**2 for part in parts]
        self._squares += sum(squares)
        self._entries += sum(len(part) for part in parts)
        likely = ERROR / (self.steps * (self.steps + 1) * (len(parts) + 3))
        checked = [(s, len(part), name) for s, part, name in zip(squares, parts, names, strict=True)]
        for square, entries, name in (*checked, (self._squares, self._entries, "all steps so far")):
            if entries and gammainc(0.5 * entries, 0.5 * square) < likely:
                raise NoiseError(
                    f"the noise on {name} has standard deviation {deviation * sqrt(square / entries):.4g}, but noise_multiplier "
                    f"times max_grad_norm is {deviation:.4g}: something has changed how Opacus adds noise, or has taken it away "
                    "again."
                )
        for earlier in (self._first, self._last):
            norm = sqrt(sum(float(part.double().square().sum()) for part in earlier))
            if norm == 0.0:
                continue
            product = sum(float(a.double() @ b.double()) for a, b in zip(parts, earlier, strict=True))
            if erfc(abs(product) / (deviation * norm) / sqrt(2.0)) < likely:
                raise NoiseError(
                    "the noise is that of an earlier step again: its generator was set back, so that differences of steps show "
                    "the gradients. Do not set the state of the noise generator during training."
                )
        self._last = parts
        self._first = self._first or parts


# ---- Steps: counts those of any optimizer on the parameters, and keeps the weights that a step has left.


def same_contents(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit, so that NaN equals itself."""
    return len(some) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and (torch.equal(a, b) or _bits_equal(a, b))
        for a, b in zip(some, others, strict=True)
    )


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def digest(tensors: list[Tensor]) -> str:
    """A number that differs for tensors with other contents."""
    sha = sha256()
    for tensor in tensors:
        sha.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


class StepCounter:
    """Counts the steps of all optimizers of PyTorch that hold a parameter of a module.

    Parameters
    ----------
    module : Module
        The model.
    steps : int
        The number of steps that were taken before.
    """

    def __init__(self, module: nn.Module, steps: int = 0) -> None:
        self.steps = steps
        self._trained = module
        self._parameters = {id(p) for p in module.parameters()}
        self._left: list[Tensor] = []
        self.accept_weights()
        here = weakref.ref(self)

        def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
            counter = here()
            if counter is not None:
                counter._stepped(optimizer)

        handle = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, handle.remove)

    def _stepped(self, optimizer: Optimizer) -> None:
        if any(id(p) in self._parameters for group in optimizer.param_groups for p in group["params"]):
            self.steps += 1
            self.accept_weights()

    def accept_weights(self) -> None:
        """Take the weights as they are now for those that the last step has left."""
        self._left = [p.detach().clone() for p in self._trained.parameters()]

    def weights_unchanged(self) -> bool:
        """Whether the weights are those that the last step has left."""
        return same_contents(self._left, [p.detach() for p in self._trained.parameters()])


# ---- All checks of a step


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
