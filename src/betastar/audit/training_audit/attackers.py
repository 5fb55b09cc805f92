"""The attackers of real training: what each of them sees, and what they conclude from it.

The attacker on updates sees every update as the optimizer is about to apply it (a hook of PyTorch's own, so that the user's
loop stays as it is), and weighs the candidates by the likelihood of what they saw. In units of the clipping norm, a step shows
y = ξ·g + o + σ·z, ξ = 1 with probability p: g is the candidate's clipped gradient at the weights before the step, o the sum of
the others, taken for Gaussian with mean p·Σ g_j and covariance p(1-p)·Σ g_j g_jᵀ. With Σ the covariance of o + σ·z, a step
speaks for a candidate by log(1 - p + p·exp((y - E o)ᵀΣ⁻¹g - gᵀΣ⁻¹g/2)). For a canary, whose weight nobody else moves, o = 0.
Other samplings than Poisson's are weighed by `evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from betastar.arrays import Real
from betastar.audit.training_audit.canary import Canaries
from betastar.audit.training_audit.evidence import Evidence, rate_and_noise
from betastar.audit.training_audit.record_gradients import Gradients
from betastar.training import Records
from betastar.training.opacus.adapter import has_clipped_sum


class AuditError(ValueError):
    """What was given cannot be audited; the text says why, and what to do."""


class StepWatcher(Protocol):
    """An attacker who sees each step of a training. `trained` holds the ids of the weights that get noise."""

    trace: list[float]

    def step(self, trained: set[int]) -> None: ...


class StepObserver(Protocol):
    """Measures one step for each candidate: (y - E o)ᵀΣ⁻¹g and gᵀΣ⁻¹g. `trained` holds the ids of the weights that get noise.

    Where a candidate is several records of a person, both have a column for each of them.
    """

    def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[Real, Real]: ...


class UpdateAttacker:
    """The attacker who sees every update.

    Parameters
    ----------
    evidence : Evidence
        What is believed to be run, and the log-likelihood of each candidate so far.
    observer : StepObserver
        What the attacker measures at each step.

    Attributes
    ----------
    trace : list of float
        How much each step spoke for the first candidate, against the last.
    """

    def __init__(self, evidence: Evidence, observer: StepObserver) -> None:
        self.evidence, self._observer = evidence, observer
        self.trace: list[float] = []

    @property
    def logs(self) -> Real:
        """The log-likelihood of each world: of a person's records, what each says by itself is added up."""
        logs = self.evidence.logs
        return logs if logs.ndim == 1 else logs.sum(axis=1)

    def step(self, trained: set[int]) -> None:
        number = len(self.trace)
        towards, squares = self._observer.observe(*rate_and_noise(self.evidence.run, number), trained)
        self.evidence.add(number, towards, squares)
        self.trace.append(float(np.sum(towards[0] - towards[-1])))


@contextmanager
def watching(model: nn.Module, attacker: StepWatcher) -> Iterator[None]:
    """Let the attacker see each step while the user's code trains this model.

    Opacus keeps the clipped sum beside each weight, and has put noise on it before PyTorch's optimizer steps: a step without that
    sum is not the mechanism that is audited, or not yet.
    """
    own = {id(parameter) for parameter in model.parameters()}
    steppers: list[Optimizer] = []

    def hook(optimizer: Optimizer, *_: object) -> None:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        mine = [parameter for parameter in held if id(parameter) in own and parameter.requires_grad]
        if not mine:
            return
        if not all(map(has_clipped_sum, mine)):
            raise AuditError(
                f"train must make its optimizer private with Opacus, got a step of {type(optimizer).__name__} alone."
            )
        if optimizer not in steppers:
            steppers.append(optimizer)
        if len(steppers) > 1:
            names = " and ".join(type(one).__name__ for one in steppers)
            raise AuditError(f"train must have one optimizer for the whole model, got two: {names}.")
        try:
            with torch.no_grad():
                attacker.step({id(parameter) for parameter in mine})
        except AuditError:
            raise
        except Exception as problem:
            raise AuditError(f"the attacker could not follow this training, {type(problem).__name__}: {problem}") from problem

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class CanaryObserver:
    """Measures the canary's weight alone. `signs` says which way each candidate pushes it; it is 0 for one that is not there."""

    def __init__(self, model: Canaries, signs: tuple[float, ...], scale: float) -> None:
        self._weight, self._signs, self._scale = model.canary.weight, np.array(signs), scale

    def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[Real, Real]:
        seen = float(noisy_gradient(self._weight, trained)[0, 0]) * self._scale
        return seen * self._signs / noise**2, (self._signs / noise) ** 2


def noisy_gradient(weight: Tensor, trained: set[int]) -> Tensor:
    """The noisy gradient of the canaries' weights."""
    if id(weight) not in trained or weight.grad is None:
        raise AuditError("train must give its optimizer all of model.parameters(): a canary has a weight of its own among them.")
    return weight.grad.detach().cpu()


class RecordObserver:
    """Measures along the gradients of the candidates, at the weights before the step, on a copy of the model.

    Parameters
    ----------
    model : Module
        The model that is trained.
    gradients : Gradients
        The gradients of single records, on a copy of the model.
    candidates : Records
        The candidates that are records.
    there : list of bool
        Which worlds have records; the others have empty places.
    each : int
        The number of records of a candidate.
    scale : float
        From a gradient as the optimizer sees it to clipping norms.
    others : callable or None
        `others()` gives some of the other records. With None the attacker takes them to contribute nothing.
    number : int
        The number of the other records.

    Attributes
    ----------
    farthest : float
        The largest distance between candidates so far, in clipping norms.
    """

    def __init__(
        self,
        model: nn.Module,
        gradients: Gradients,
        candidates: Records,
        there: list[bool],
        each: int,
        scale: float,
        others: Callable[[], Records] | None,
        number: int,
    ) -> None:
        self._model, self.gradients, self._candidates, self._scale = model, gradients, candidates, scale
        self._there, self._each = torch.tensor(there).repeat_interleave(each), each
        self._others, self._number = others, number
        self.farthest = 0.0

    def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[Real, Real]:
        own = {name: p for name, p in self._model.named_parameters() if id(p) in trained}
        self.gradients.follow(self._model, list(own))
        seen = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().cpu() for p in own.values()])
        seen = seen.double() * self._scale
        clipped = self.gradients(self._candidates).double()
        towards = torch.zeros(len(self._there), clipped.shape[1], dtype=torch.float64)
        towards[self._there] = clipped
        self.farthest = max(self.farthest, float(torch.pdist(towards).max()))
        weighed = towards
        if self._others is not None:
            sample = self.gradients(self._others())
            seen = seen - rate * self._number * sample.double().mean(dim=0)
            # Two sources of variance: which of the others were sampled, and the sample that estimates their expected sum.
            missing = max(0.0, 1.0 / len(sample) - 1.0 / self._number)
            each = (rate * (1.0 - rate) * self._number + (rate * self._number) ** 2 * missing) / len(sample)
            if each > 0.0:
                core = (sample @ sample.T).double() + torch.eye(len(sample), dtype=torch.float64) * (noise * noise / each)
                inner = (sample @ towards.T.to(sample.dtype)).double()
                weighed = towards - (torch.linalg.solve(core, inner).T.to(sample.dtype) @ sample).double()  # Woodbury
        weighed = weighed / (noise * noise)
        shape = (-1, self._each) if self._each > 1 else (-1,)
        return (weighed @ seen).numpy().reshape(shape), (weighed * towards).sum(dim=1).numpy().reshape(shape)
