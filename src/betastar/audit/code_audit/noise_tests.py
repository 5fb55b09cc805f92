"""The noise and the sampling of a recorded training, against what is claimed.

Noise z of so many entries, each with the deviation s, has |z|²/s² distributed as χ². Noise is called too small if so small a sum
has probability below `LEVEL`, over all tests together, and if it is too small by more than `SMALLER`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from scipy.stats import beta, chi2
from torch import Tensor

from betastar.audit.code_audit.comparison import Promised
from betastar.audit.code_audit.findings import Finding, ReplayError
from betastar.audit.code_audit.recording import RecordedStep, Recording
from betastar.audit.training_audit.evidence import rate_and_noise
from betastar.dpsgd import DPSGD
from betastar.rounding import significant

#: A correct training is accused because of its noise at most once in so many tests of training code, 1 / LEVEL.
LEVEL = 1e-6
#: Noise that is smaller by less than this share is not reported, however surely it is.
SMALLER = 0.01
#: Entries of each step's noise by which steps are compared.
COMPARED = 1 << 16


@dataclass(frozen=True)
class StepNoise:
    """The noise of a step.

    Attributes
    ----------
    number : int
        The number of the step among all steps.
    deviation : float
        The deviation that is promised.
    parts : dict
        The noise that was added to the sum, by the names of the parameters.
    """

    number: int
    deviation: float
    parts: Mapping[str, Tensor]

    def vector(self) -> Tensor:
        """Some entries, from the beginning."""
        return torch.cat([part.flatten().cpu() for part in self.parts.values()])[:COMPARED]


def noise_of(recording: Recording, run: DPSGD | None, promised: Promised, other: Recording | None) -> list[StepNoise]:
    """The noise of each step: what a private optimizer has added to its sums.

    Parameters
    ----------
    recording : Recording
        The training.
    run : DPSGD or None
        What is claimed; None for the noise multiplier of the optimizer.
    promised : Promised
        What is promised of a step.
    other : Recording or None
        For a training without Opacus, the same steps with other noise, from which the noise is computed: the difference of two
        independent noises, divided by √2.
    """
    found, taken = [], 0
    for number, step in enumerate(recording.steps):
        parts = _added(step) if other is None else _between(step, other.steps[number], promised.scale(step) or 1.0)
        if parts:
            found.append(StepNoise(number, _claimed(run, taken, step) * promised.norm(step), parts))
            taken += 1
    return found


def _claimed(run: DPSGD | None, number: int, step: RecordedStep) -> float:
    if run is not None:
        return rate_and_noise(run, number)[1]
    if step.settings is None:
        raise ReplayError("run must be given for a training without an optimizer of Opacus: it says which noise is promised.")
    return step.settings.noise_multiplier


def _added(step: RecordedStep) -> dict[str, Tensor]:
    if step.settings is None:
        return {}
    return {name: step.gradients[name].double() * step.settings.divisor - total for name, total in step.sums.items()}


def _between(step: RecordedStep, other: RecordedStep, scale: float) -> dict[str, Tensor]:
    return {
        name: (gradient.double() - other.gradients[name].double()) * scale / 2.0**0.5
        for name, gradient in step.gradients.items()
        if name in other.gradients
    }


def noise_findings(noise: Sequence[StepNoise], other: Sequence[StepNoise]) -> list[Finding]:
    """What is wrong with the noise. `other` is that of a training with another seed; it is empty if both are compared already."""
    made = [_too_small(noise), _repeated(noise), _same_in_each_training(noise, other)]
    return [finding for finding in made if finding is not None][:1]


def _too_small(noise: Sequence[StepNoise]) -> Finding | None:
    """Noise that is smaller than promised: none at a parameter, little at a step, or little at a parameter over all steps."""
    by_step = [(step, None, [(step, part) for part in step.parts.values()]) for step in noise]
    names = {name: None for step in noise for name in step.parts}
    by_name = [(None, name, [(step, step.parts[name]) for step in noise if name in step.parts]) for name in names]
    found: list[tuple[int, Finding]] = []
    for at, name, group in [*by_step, *by_name]:
        squares = sum(float(part.square().sum()) / step.deviation**2 for step, part in group if step.deviation > 0.0)
        entries = sum(part.numel() for step, part in group if step.deviation > 0.0)
        ratio = (squares / entries) ** 0.5 if entries else 1.0
        if ratio >= 1.0 - SMALLER or chi2.cdf(squares, entries) >= LEVEL / (len(by_name) + len(by_step)):
            continue
        first = next((i for step, part in group for i in [step.number] if float(part.norm()) == 0.0), group[0][0].number)
        where = f"at {name}" if at is None else f"at step {at.number + 1}"
        size = "There is no noise" if ratio < 1e-3 else f"The noise is {significant(ratio, 3)} of what is promised"
        rank = 0 if at is None and ratio < 1e-3 else 1 if at is not None else 2
        found.append((rank, Finding("noise", f"{size} {where}.", (first if at is None else at.number) + 1, name, ratio, 1.0)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _repeated(noise: Sequence[StepNoise]) -> Finding | None:
    """Noise of two steps that is not independent."""
    vectors = [(step.number, step.vector()) for step in noise]
    pairs = list(combinations(vectors, 2))
    for (one, first), (other, second) in pairs:
        if len(first) != len(second) or len(first) < 2 or not first.any() or not second.any():
            continue
        alike = float(torch.nn.functional.cosine_similarity(first, second, dim=0))
        # The square of the cosine of independent directions in D dimensions is distributed as Beta(1/2, (D-1)/2).
        if beta.sf(min(alike**2, 1.0), 0.5, 0.5 * (len(first) - 1)) < LEVEL / len(pairs):
            told = (
                f"The noise of step {other + 1} is that of step {one + 1} again"
                if alike > 0.99
                else (f"The noise of step {other + 1} depends on that of step {one + 1} (correlation {alike:.2f})")
            )
            return Finding("noise", f"{told}: the difference of the two updates has less noise than promised.", other + 1)
    return None


def _same_in_each_training(noise: Sequence[StepNoise], other: Sequence[StepNoise]) -> Finding | None:
    for one, again in zip(noise, other, strict=False):
        first, second = one.vector(), again.vector()
        if len(first) == len(second) and first.any() and float((first - second).norm()) < 1e-3 * float(first.norm()):
            told = f"The noise of step {one.number + 1} is the same in trainings with different seeds"
            return Finding(
                "noise", f"{told}: train sets a seed itself, and whoever knows it can subtract the noise.", one.number + 1
            )
    return None


def sampling_findings(recording: Recording, run: DPSGD | None) -> tuple[list[Finding], list[str]]:
    """Whether the loader draws as it is claimed, and what cannot be said about that."""
    if run is None:
        return [], ["No run was given, so that sampling and noise were compared with what the training itself says."]
    known = [scheme for scheme in recording.batches.schemes if scheme is not None]
    if not known:
        return [], ["How the loader draws its batches is not known, so that the sampling was not compared with the claim."]
    scheme, claimed = known[0], run.segments[0]
    if scheme.sampling != claimed.sampling:
        told = f"The loader's batches are {scheme.sampling}, and {claimed.sampling} is claimed."
        return [Finding("sampling", told)], []
    if scheme.sample_rate > (1.0 + 1e-3) * float(claimed.sample_rate):
        told = (
            f"The loader draws each record with probability {scheme.sample_rate:.4g}, and {claimed.sample_rate:.4g} is claimed."
        )
        return [Finding("sampling", told, None, None, scheme.sample_rate, float(claimed.sample_rate))], []
    return [], []
