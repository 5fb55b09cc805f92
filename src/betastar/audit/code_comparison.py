"""Two trainings, step by step, and the noise and the sampling of a training against what is claimed.

The second training gets the updates of the first, so that each step starts from the same weights. What a step releases may
differ by the promised distance; given the same releases before, nothing else may differ at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from scipy.stats import beta, binom, chi2
from torch import Tensor

from betastar.audit.attackers import rate_and_noise
from betastar.audit.code_findings import Finding, ReplayError
from betastar.audit.code_recording import EnoughError, RecordedStep, Recording, same_states
from betastar.dpsgd import DPSGD
from betastar.rounding import significant

#: A difference this much above the promised one, as a share of it, is still taken for rounding: norms are computed in single
#: precision, by other formulas in other modes of Opacus.
SLACK = 1e-3
#: Roundings that may add up in a released sum, in units in the last place of its norm and of the norms of its records' gradients.
ROUNDINGS = 32.0
#: Rounding of a record's gradient, as a share of the largest in the batch.
MIXED = 1e-6
#: Numbers that are kept of each replay, to compare what a record contributes with different contents.
KEPT = 1 << 23


class NotFiniteError(ArithmeticError):
    """A training computed numbers that are not finite."""


@dataclass(frozen=True)
class Promised:
    """What is promised of a step.

    Attributes
    ----------
    distances : tuple of float
        The promised distance in clipping norms: one number for each step, or one for all. It is empty if the gap of the optimizer
        is promised, or else the distance 2.
    secret : str
        The name of the secret, whose gap the optimizer has.
    max_grad_norm : float or None
        The promised clipping norm; by default the optimizer's own.
    divisor : float or None
        The number by which a training without Opacus divides its sums.
    """

    distances: tuple[float, ...] = ()
    secret: str = ""
    max_grad_norm: float | None = None
    divisor: float | None = None

    def distance(self, number: int, step: RecordedStep) -> float:
        """The promised distance at a step."""
        if self.distances:
            return self.distances[min(number, len(self.distances) - 1)]
        return 2.0

    def norm(self, step: RecordedStep) -> float:
        """The promised clipping norm at a step."""
        if self.max_grad_norm is not None:
            return self.max_grad_norm
        if step.settings is None:
            raise ReplayError("max_grad_norm must be given for a training without an optimizer of Opacus, which has one.")
        return step.settings.max_grad_norm

    def scale(self, step: RecordedStep) -> float | None:
        """The number by which the step has divided its sum; None if nobody says it."""
        return self.divisor if step.settings is None else step.settings.divisor

    @property
    def radius(self) -> float:
        """The radius of a ball with all contributions of one record, in clipping norms; infinite if distances are promised."""
        return 1.0 if (self.distances == () and not self.secret) or self.distances == (2.0,) else float("inf")


class Findings:
    """Findings, of which the first one of each promise is kept, with the number of steps that have one."""

    def __init__(self) -> None:
        self._first: dict[str, Finding] = {}
        self._steps: dict[str, set[int]] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self._first.setdefault(finding.promise, finding)
        if finding.step is not None:
            self._steps.setdefault(finding.promise, set()).add(finding.step)

    def __len__(self) -> int:
        return len(self._first)

    def all(self) -> tuple[Finding, ...]:
        """One finding for each promise, in the order in which they were found."""
        told = []
        for promise, finding in self._first.items():
            more = len(self._steps.get(promise, {0})) - 1
            others = "" if more < 1 else f" ({more} more {'step' if more == 1 else 'steps'} alike.)"
            told.append(replace(finding, sentence=finding.sentence + others))
        return tuple(told)


class Comparison:
    """Compares a training with an earlier one, step by step.

    Parameters
    ----------
    reference : Recording
        The earlier training.
    promised : Promised
        What is promised of a step.
    record : int or None
        The record that differs; None if the data are the same.
    title : str
        How it differs, for people.
    worlds : tuple of str
        The words for the earlier training and for the later one.
    findings : Findings
        Where findings are added.
    private : bool
        Whether the training has an optimizer of Opacus.
    quiet : bool
        See which steps change, and nothing else.

    Attributes
    ----------
    largest : float
        The largest difference so far, as a share of the promised one.
    moved : set of int
        The steps that the record has changed.
    vectors : dict
        For each of these steps the change of the sum, the promised clipping norm, and the rounding of the sum.
    """

    def __init__(
        self,
        reference: Recording,
        promised: Promised,
        record: int | None,
        title: str,
        worlds: tuple[str, str],
        findings: Findings,
        private: bool,
        quiet: bool = False,
    ) -> None:
        self._reference, self._promised, self._record, self._title = reference, promised, record, title
        self._one, self._other = worlds
        self._findings, self._private, self._quiet = findings, private, quiet
        self.largest = 0.0
        self.moved: set[int] = set()
        self.vectors: dict[int, tuple[Tensor, float, float]] = {}

    def __call__(self, number: int, step: RecordedStep) -> Mapping[str, Tensor]:
        """Compare a step, and return the gradients of the earlier training, which are applied in its place."""
        if number >= len(self._reference.steps):
            raise EnoughError  # `end` says that there are more steps than before
        before = self._reference.steps[number]
        if step.optimizer != before.optimizer:
            self._say("steps", f"{before.optimizer} takes step {number + 1} {self._one}, {step.optimizer} {self._other}.")
            raise EnoughError
        if self._quiet:
            apart = self._apart(before, step)
            self.moved |= {number} if apart > ROUNDINGS * 1e-6 * total(differences(before.gradients, {}, 1.0, 1.0)) else set()
            return before.gradients
        if not same_states(before.states, step.states):
            raise ReplayError(
                f"train must draw equally many random numbers {self._one} and {self._other}, and does not at step {number + 1}: "
                "nothing can be said where random numbers differ. Give records of one length, or set dropout to 0 for this test."
            )
        self._settings(number, before, step)
        self._contents(number, before.contents, step.contents)
        self._released(number, before, step)
        self._rows(number, before, step)
        return before.gradients

    @staticmethod
    def _apart(before: RecordedStep, step: RecordedStep) -> float:
        return total(differences(before.gradients, step.gradients, 1.0, 1.0))

    def end(self, recording: Recording, ignored: Mapping[str, str]) -> None:
        """Compare what can be seen at the end.

        Parameters
        ----------
        recording : Recording
            The later training.
        ignored : mapping
            Output of a further training on the same data: what differs there is not compared.
        """
        before, steps = self._reference, len(recording.steps)
        if recording.listed:  # it could not be given the updates of the first, and is comparable until they differ
            pairs = list(zip(before.steps, recording.steps, strict=False))
            number = next((i for i, pair in enumerate(pairs) if self._apart(*pair) > 0.0), None)
            if number is not None:
                self.moved.add(number)
                if not self._quiet:
                    self._released(number, *pairs[number])
        if self._quiet:
            return
        if (steps, recording.ended) != (len(before.steps), before.ended):
            more = "" if recording.ended else " or more"
            self._say("steps", f"The training takes {len(before.steps)} steps {self._one}, and {steps}{more} {self._other}.")
        else:
            self._contents(steps, before.contents, recording.contents)
        for where in {} if recording.listed and self.moved else {**before.output, **recording.output}:
            one, other = before.output.get(where), recording.output.get(where)
            if one != other and before.output.get(where) == ignored.get(where):
                told = f"{where[0].upper()}{where[1:]} is {_short(one)} {self._one}, and {_short(other)} {self._other}"
                self._say("output", f"{told}: it is not computed from the released sums alone, and has no noise.")

    def _say(
        self,
        promise: str,
        sentence: str,
        number: int | None = None,
        parameter: str | None = None,
        measured: float | None = None,
        allowed: float | None = None,
    ) -> None:
        self._findings.add(Finding(promise, sentence, None if number is None else number + 1, parameter, measured, allowed))

    def _settings(self, number: int, before: RecordedStep, step: RecordedStep) -> None:
        """Compare the learning rate, the noise multiplier, the clipping norm and the divisor."""
        one, other = dict(before.numbers), dict(step.numbers)
        if before.settings is not None and step.settings is not None:
            for name in ("noise_multiplier", "max_grad_norm"):
                one[name], other[name] = getattr(before.settings, name), getattr(step.settings, name)
            if before.settings.divisor != step.settings.divisor:
                told = f"by {before.settings.divisor:g} {self._one}, and by {step.settings.divisor:g} {self._other}"
                self._say(
                    "normaliser",
                    f"At step {number + 1} the sum is divided {told}: this number tells about the record. Set it to a constant "
                    "(the batch size that Opacus expects), or test substitution if the number of records is public.",
                    number,
                    measured=step.settings.divisor,
                    allowed=before.settings.divisor,
                )
        for name in sorted(one.keys() & other.keys()):
            if one[name] != other[name]:
                told = f"{name} is {one[name]:g} {self._one}, and {other[name]:g} {self._other}"
                self._say("settings", f"At step {number + 1} {told}.", number, measured=other[name], allowed=one[name])

    def _contents(self, number: int, before: Mapping[str, str], contents: Mapping[str, str]) -> None:
        """Compare weights and buffers, which were updated alike."""
        different = [name for name in before if contents.get(name) != before[name]]
        buffers = [name for name in different if name in self._reference.buffers]
        weights = [name for name in different if name not in buffers]
        when = f"Before step {number + 1}" if number < len(self._reference.steps) else "After the last step"
        if buffers:
            told = f"{when}, the buffer {buffers[0]} depends on the record: it has no noise, and is part of the model"
            self._say("buffers", f"{told} (statistics of batch norm?).", number, buffers[0])
        if weights:
            told = f"{when}, {weights[0]} differs although the same sums were released"
            self._say("weights", f"{told}: something else than the released sums changes the weights.", number, weights[0])
            raise EnoughError

    def _released(self, number: int, before: RecordedStep, step: RecordedStep) -> None:
        """Compare what the two steps release."""
        scale, other_scale = self._promised.scale(before), self._promised.scale(step)
        private = scale is not None and other_scale is not None
        parts = differences(before.gradients, step.gradients, scale or 1.0, other_scale or 1.0)
        apart, size = (
            total(parts),
            (scale or 1.0) * total({name: float(g.double().norm()) for name, g in before.gradients.items()}),
        )
        if not apart < float("inf"):
            raise NotFiniteError
        unit = max(torch.finfo(one.dtype).eps for one in before.gradients.values())
        if not private or (before.settings is None and self._private):
            self._unclipped(number, before, parts, ROUNDINGS * unit * size)
            return
        norm, distance = self._promised.norm(before), self._promised.distance(number, before)
        if step.settings is not None:
            self._unclipped(number, before, {k: v for k, v in parts.items() if k not in before.sums}, ROUNDINGS * unit * size)
        records = len(before.drawn) if before.drawn is not None else other_scale or 1.0
        rounding = ROUNDINGS * unit * (size + records * norm)
        drawn = self._record is not None and (before.drawn is None or self._record in before.drawn)
        worst = max(parts, key=lambda name: parts[name])
        if not drawn:
            if apart > rounding:
                told = f"At step {number + 1} record {self._record} is not in the batch, and yet the released sum changes by "
                told += f"{significant(apart / norm, 3)} clipping norms, most of it at {worst}"
                self._say("not drawn", f"{told}: something is computed from all records.", number, worst, apart / norm, 0.0)
            return
        self.largest = max(self.largest, apart / (distance * norm) if distance else 0.0)
        if apart > rounding:
            self.moved.add(number)
            if sum(one.numel() for one, _, _ in self.vectors.values()) < KEPT:
                self.vectors[number] = vector(before.gradients, step.gradients, scale or 1.0, other_scale or 1.0), norm, rounding
        if apart > (1.0 + SLACK) * distance * norm + rounding:
            told = f"At step {number + 1} the released sum changes by {significant(apart / norm, 3)} clipping norms when "
            told += f"the record changes ({self._title}), where at most {distance:g} is promised; most of it is at {worst}"
            self._say("distance", f"{told}.", number, worst, apart / norm, distance)

    def _rows(self, number: int, before: RecordedStep, step: RecordedStep) -> None:
        """Compare the gradients of the other records of the batch, which the changed record must not change."""
        if before.rows is None or step.rows is None:
            return
        if (len(before.rows), len(step.rows)) != (len(before.last), len(step.last)):
            lost, more = (_unmatched(a, b) for a, b in ((before.rows, step.rows), (step.rows, before.rows)))
            if max(lost, more) > 1 and before.batches == 1 and len(before.rows) < len(before.last):
                told = f"At step {number + 1} the gradients of {max(lost, more) - 1} other records change, or come and go, when"
                why = f"record {self._record} does ({self._title}): which records count depends on others."
                self._say("mixing", f"{told} {why}", number)
            return
        ours = [place for place, record in enumerate(before.last) if record != self._record]
        theirs = [place for place, record in enumerate(step.last) if record != self._record]
        if [before.last[place] for place in ours] != [step.last[place] for place in theirs] or not ours:
            return
        one, other = before.rows[ours], step.rows[theirs]
        # Entries of a gradient are rounded relatively to the largest of the batch, whose products are computed together.
        changed = (one - other).abs().amax(dim=1) > SLACK * one.abs().amax(dim=1) + MIXED * float(before.rows.abs().max())
        if bool(changed.any()):
            record = before.last[ours[int(changed.nonzero()[0])]]
            told = f"At step {number + 1} the gradient of record {record} changes when record {self._record} does"
            self._say("mixing", f"{told} ({self._title}): the model or the loss mixes the records of a batch.", number)

    def _unclipped(self, number: int, step: RecordedStep, parts: Mapping[str, float], rounding: float) -> None:
        """Refuse gradients that nobody has clipped and that depend on the record."""
        moved = [name for name, part in parts.items() if part > rounding]
        if moved:
            told = f"At step {number + 1} {step.optimizer} applies a gradient of {moved[0]} that depends on the record"
            self._say("clipping", f"{told}, and that no optimizer of Opacus has clipped.", number, moved[0])


def _unmatched(rows: Tensor, others: Tensor) -> int:
    """How many rows are not among the others."""
    if not len(rows) or not len(others) or rows.shape[1] != others.shape[1]:
        return len(rows)
    apart = (rows[:, None] - others[None]).abs().amax(dim=2).amin(dim=1)
    return int((apart > SLACK * rows.abs().amax(dim=1) + MIXED * float(rows.abs().max())).sum())


def vector(one: Mapping[str, Tensor], other: Mapping[str, Tensor], scale: float, other_scale: float) -> Tensor:
    """The difference of two sums, written out."""
    names = {**one, **other}
    parts = [
        other[n].double() * other_scale - one[n].double() * scale if n in one and n in other else torch.zeros(0) for n in names
    ]
    return torch.cat([part.flatten().cpu() for part in parts]).float()


def least_radius(vectors: Sequence[Tensor]) -> float:
    """A lower bound on the radius of a ball that holds 0 and all these vectors.

    Whatever weights λ ≥ 0 add up to 1, the radius is at least √(Σ λ_i·|v_i|² - |Σ λ_i·v_i|²), the deviation of the vectors under
    λ from their mean. Steps of Frank and Wolfe increase it.
    """
    rows = torch.stack([torch.zeros_like(vectors[0]), *vectors]).double()
    gram = (rows @ rows.T).numpy()
    squares, weights, best = np.diag(gram), np.full(len(gram), 1.0 / len(gram)), 0.0
    for number in range(300):
        inner = gram @ weights
        best = max(best, float(squares @ weights - weights @ inner))
        weights *= 1.0 - 2.0 / (number + 3.0)
        weights[int(np.argmax(squares - 2.0 * inner))] += 2.0 / (number + 3.0)
    return best**0.5


def ball_findings(promised: Promised, record: int, compared: Sequence[Comparison]) -> list[Finding]:
    """Whether what one record contributed, as it was and as it was changed, fits in a ball with the clipping norm as radius.

    That is promised: each contribution is at most a clipping norm from 0. Where 0 lies is not known, and need not be.
    """
    found = []
    for number in sorted(set().union(*(one.vectors for one in compared))):
        kept = [one.vectors[number] for one in compared if number in one.vectors]
        norm, rounding = kept[0][1], max(one[2] for one in kept)
        radius = least_radius([one[0] for one in kept if len(one[0]) == len(kept[0][0])]) if len(kept) > 1 else 0.0
        if radius > (1.0 + SLACK) * promised.radius * norm + rounding:
            size = significant(radius / norm, 3, upwards=False)
            told = f"At step {number + 1} record {record} contributes at least {size} clipping norms"
            why = "does it enter twice, by two losses, or through a layer that is not clipped?"
            found.append(
                Finding(
                    "distance", f"{told}, with other contents, where 1 is promised: {why}", number + 1, None, radius / norm, 1.0
                )
            )
    return found


def differences(one: Mapping[str, Tensor], other: Mapping[str, Tensor], scale: float, other_scale: float) -> dict[str, float]:
    """The distance between two sums at each parameter; a parameter that one of them lacks is zero there."""
    apart = {}
    for name in {**one, **other}:
        first = one[name].double() * scale if name in one else 0.0
        second = other[name].double() * other_scale if name in other else 0.0
        apart[name] = float(torch.as_tensor(second - first).norm())
    return apart


def total(parts: Mapping[str, float]) -> float:
    """The norm of a vector from the norms of its parts."""
    return float(torch.tensor(list(parts.values()), dtype=torch.float64).norm())


def _short(text: str | None) -> str:
    return "missing" if text is None else text if len(text) < 60 else text[:57] + "…"


# --- The noise and the sampling of a recorded training
#
# Noise z of that many entries, each with the deviation s, has |z|²/s² distributed as χ². Noise is called too small if so small a
# sum has probability below `LEVEL`, over all tests together, and if it is too small by more than `SMALLER`.

#: A correct training is accused because of its noise at most once in this number of tests of training code, 1 / LEVEL.
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


def noise_of(recording: Recording, run: DPSGD | None, promised: Promised, silent: Recording | None) -> list[StepNoise]:
    """The noise of each step: what was added to its clipped sums.

    Parameters
    ----------
    recording : Recording
        The training.
    run : DPSGD or None
        What is claimed; None for the noise multiplier of the optimizer.
    promised : Promised
        What is promised of a step.
    silent : Recording or None
        The same steps without noise, where nobody says what the clipped sums are.
    """
    found, taken = [], 0
    for number, step in enumerate(recording.steps):
        scale = promised.scale(step) or 1.0
        without = {k: v.double() * (scale if step.settings is None else 1.0) for k, v in step.sums.items()}
        if not without and silent is not None and number < len(silent.steps):
            without = {k: v.double() * scale for k, v in silent.steps[number].gradients.items()}
        parts = {k: v.double() * scale - without[k] for k, v in step.gradients.items() if k in without}
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
                "noise", f"{told}: train sets a seed itself, and anyone who knows it can subtract the noise.", one.number + 1
            )
    return None


def step_findings(recording: Recording, promised: Promised) -> list[Finding]:
    """What is wrong with single steps of a training: records that enter twice, empty batches that release more than noise, and
    divisors that follow the batch."""
    found = []
    followed: list[tuple[float, int]] = []
    for number, step in enumerate(recording.steps, 1):
        rows, last = step.rows, step.last
        if step.drawn is not None and step.settings is not None:
            followed.append((step.settings.divisor, len(step.drawn)))
        if step.batches == 1 and rows is not None and step.drawn:
            if len(rows) > len(last):
                told = f"At step {number} the gradients of {len(rows)} records are added up, and the batch has {len(last)}"
                found.append(Finding("once", f"{told}: some enter twice.", number, None, len(rows), len(last)))
            elif len(set(last)) < len(last) and len(rows) == len(last):
                twice = next(one for one in last if last.count(one) > 1)
                told = f"At step {number} record {twice} is {last.count(twice)} times in the batch, clipped each time by itself"
                found.append(Finding("once", f"{told}.", number, None, last.count(twice), 1.0))
        if step.drawn == frozenset() and any(float(one.norm()) > SLACK * promised.norm(step) for one in step.sums.values()):
            told = (
                f"At step {number} no record was drawn, and yet the sum is not noise alone (rand_on_empty?): with a single record"
            )
            found.append(Finding("sampling", f"{told} in the batch, it changes by more than a clipping norm.", number))
    if len({divisor for divisor, _ in followed}) > 1 and all(divisor == max(1, drawn) for divisor, drawn in followed):
        told = f"the sum is divided by the number of drawn records, {followed[0][0]:g} at step 1, which tells about each of them"
        found.append(Finding("normaliser", f"At each step {told}. Divide by the expected batch size.", 1))
    return found


def sampling_findings(
    recording: Recording, run: DPSGD | None, probed: Sequence[tuple[int, set[int]]]
) -> tuple[list[Finding], list[str]]:
    """Whether batches are drawn as it is claimed, and what cannot be said about that.

    Parameters
    ----------
    recording : Recording
        The training.
    run : DPSGD or None
        What is claimed.
    probed : sequence of (int, set of int)
        Records, each with the steps that it changes, where the batches are not known.
    """
    if run is None:
        return [], ["Sampling was not compared: give run, what the training claims to be."]
    known = [scheme for scheme in recording.batches.schemes if scheme is not None]
    claimed, rate = run.segments[0], float(run.segments[0].sample_rate)
    if known:
        scheme = known[0]
        if scheme.sampling != claimed.sampling:
            return [Finding("sampling", f"The loader's batches are {scheme.sampling}, and {claimed.sampling} is claimed.")], []
        if scheme.times_per_epoch != claimed.times_per_epoch:
            told = f"Each record is in {scheme.times_per_epoch} batches of an epoch, and {claimed.times_per_epoch} are claimed."
            return [Finding("sampling", told, None, None, scheme.times_per_epoch, claimed.times_per_epoch)], []
        if scheme.sample_rate > (1.0 + 1e-3) * rate:
            told = f"The loader draws each record with probability {scheme.sample_rate:.4g}, and {rate:.4g} is claimed."
            return [Finding("sampling", told, None, None, scheme.sample_rate, rate)], []
        return [], []
    steps = [step.drawn for step in recording.steps]
    if not probed and not recording.batches.records:
        return [], ["Sampling was not compared: it is not known which records are in a batch."]
    drawn = (
        dict(probed)
        if probed
        else {one: {i for i, batch in enumerate(steps) if batch and one in batch} for one in range(recording.batches.records)}
    )
    how = f"Of {len(drawn)} records{' that were changed one by one' if probed else ''}"
    if claimed.sampling != "poisson":
        return [], [f"Sampling was not compared with {claimed.sampling}: the loop draws its batches by itself."]
    hits, chances = sum(map(len, drawn.values())), len(drawn) * len(steps)
    if binom.sf(hits - 1, chances, min(rate, 1.0)) < LEVEL:
        told = f"{how}, each is in {significant(hits / len(drawn), 3)} of {len(steps)} batches on average"
        text = (
            f"{told}, where {significant(rate * len(steps), 3)} are claimed: the batches are not drawn at the rate of the claim."
        )
        return [Finding("sampling", text, None, None, hits / chances, rate)], []
    length = round(1.0 / rate)
    rounds = [range(start, start + length) for start in range(0, len(steps) - length + 1, length)]
    once = all(len(where.intersection(one)) == 1 for where in drawn.values() for one in rounds)
    chance = (length * rate * (1.0 - rate) ** (length - 1)) ** (len(rounds) * len(drawn))
    if length > 1 and rounds and once and chance < LEVEL:
        told = f"{how}, each is in exactly one batch of each round of {length}: batches are shuffled or in bins"
        return [Finding("sampling", f"{told}, and poisson is claimed.")], []
    sizes = {sum(i in where for where in drawn.values()) for i in range(len(steps))}
    size = sizes.pop()
    if not probed and not sizes and binom.pmf(size, len(drawn), rate) ** (len(steps) - 1) < LEVEL:
        return [Finding("sampling", f"Every batch has {size} records: the batches are not poisson, which is claimed.")], []
    if probed and rate < 1.0 and chances < np.log(LEVEL) / np.log(rate):
        return [], [f"Sampling was hardly compared: {chances} draws were seen, too few for this rate. Use more steps."]
    told = (
        f"Sampling was compared for {len(drawn)} records: none is drawn too often, and they are not in one batch of each round."
    )
    return [], [f"{told} Whether the draws of different records are independent was not compared."] * bool(probed)
