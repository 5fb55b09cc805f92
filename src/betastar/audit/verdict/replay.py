"""What replays prove: recordings of trainings on other data against what is promised, and noise and sampling against the claim.

A replay gets the updates of the first training, so that each step starts from the same weights. What a step releases may differ
by the promised distance; given the same releases before, nothing else may differ at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from scipy.stats import beta, binom, chi2
from torch import Tensor

from betastar.audit.common import AuditError, NotFiniteError, RecordedStep, Recording, Verdict, rate_and_noise, same_states
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.rounding import significant

#: What a private training promises. Each finding is about one of these.
PROMISES = {
    "distance": "one record changes the released sum of gradients by at most the promised distance",
    "not drawn": "a record that is not in the batch changes nothing",
    "once": "each record enters a released sum at most once, clipped",
    "mixing": "the gradient of a record depends on this record alone, not on others of its batch",
    "clipping": "each gradient that depends on the records is clipped before an optimizer applies it",
    "noise": "each released sum has the promised noise, which is new at every step and in every training",
    "sampling": "batches are drawn as it is claimed, whatever the records contain",
    "normaliser": "the number by which the sum is divided does not depend on a record",
    "settings": "learning rate, noise and clipping norm do not depend on a record",
    "steps": "the number of steps does not depend on a record",
    "weights": "weights depend on a record through the released sums alone",
    "buffers": "buffers of the model, such as statistics of batch norm, do not depend on a record",
    "output": "what is printed, logged or returned does not depend on a record, except through the released sums",
}
#: A difference this much above the promised one, as a share of it, is still taken for rounding: norms are computed in single
#: precision, by other formulas in other modes of Opacus.
SLACK = 1e-3
#: Roundings that may add up in a released sum, in units in the last place of its norm and of the norms of its records' gradients.
ROUNDINGS = 32.0
#: Numbers that are kept of each replay, to compare what a record contributes with different contents.
KEPT = 1 << 23

# --- The result


@dataclass(frozen=True)
class Finding:
    """A promise that the training breaks.

    Attributes
    ----------
    promise : str
        Which one, a key of `PROMISES`.
    sentence : str
        What was found, for a person.
    step : int or None
        The first step at which it was found, counted from 1; None if it is not about a step.
    parameter : str or None
        The parameter or buffer that it is about; of a distance, the one with the largest share.
    measured, allowed : float or None
        The measured number, and the largest (of noise: the smallest) that is promised.

    Examples
    --------
    >>> from betastar.audit import Finding
    >>> Finding("steps", "The number of steps depends on the record.").means
    'the number of steps does not depend on a record'
    """

    derived: ClassVar[tuple[str, ...]] = ("means",)

    promise: str
    sentence: str
    step: int | None = None
    parameter: str | None = None
    measured: float | None = None
    allowed: float | None = None

    @property
    def means(self) -> str:
        """The promise in words."""
        return PROMISES[self.promise]


@dataclass(frozen=True, repr=False)
class Replay(Verdict):
    """What a replay of training code found.

    Attributes
    ----------
    findings : tuple of Finding
        The promises that are broken, at most one finding for each of them.
    threat : str
        The pair of data sets that were compared, by the threat that they belong to.
    records : tuple of int
        The numbers of the records of which one differs in each replay.
    changes : tuple of str
        What a record was changed to.
    steps : int
        The number of steps that were replayed.
    drawn : int or None
        The number of these steps whose batch had one of these records; None if that is not known.
    largest : float
        The largest difference that was measured, as a share of what is promised. A share far below 1 says that clipping had
        little to do, so that little was tested.
    seed : int
        The seed of the replays.
    notes : tuple of str
        What was not tested, and why.
    run : DPSGD or None
        What the training claims to be, if that was said.

    Examples
    --------
    >>> from betastar import audit
    >>> finding = audit.Finding("noise", "At step 3 the released sum has no noise.", step=3, parameter="0.weight")
    >>> threat = "membership inference (substitution)"
    >>> # As `betastar.audit.replay` returns it:
    >>> result = audit.Replay((finding,), threat, (7,), ("another record",), 20, 4, 0.9, 1)
    >>> print(result.sentence)
    Broken: 1 promise is not kept. At step 3 the released sum has no noise.
    >>> result.violated, result.findings[0].parameter
    (True, '0.weight')
    """

    findings: tuple[Finding, ...]
    threat: str
    records: tuple[int, ...]
    changes: tuple[str, ...]
    steps: int
    drawn: int | None
    largest: float
    seed: int
    notes: tuple[str, ...] = ()
    run: DPSGD | None = None

    @property
    def violated(self) -> bool:
        return bool(self.findings)

    @property
    def sentence(self) -> str:
        """The verdict for a person."""
        if not self.findings:
            return (
                f"No promise broken: in {self.steps} steps, replayed on data that differ in one record, the released "
                f"sums differed by at most {significant(self.largest, 2)} of what is promised, and nothing else differed."
            )
        what = "1 promise is" if len(self.findings) == 1 else f"{len(self.findings)} promises are"
        return f"Broken: {what} not kept. " + " ".join(finding.sentence for finding in self.findings)

    @property
    def played(self) -> str:
        """What was replayed, for a person."""
        where = "" if self.drawn is None else f" (in {self.drawn} of them the record is in the batch)"
        which = f"{'record' if len(self.records) == 1 else 'one of the records'} {', '.join(map(str, self.records))}"
        return f"Replayed: {self.threat}, {which} ({'; '.join(self.changes)}), {self.steps} steps{where}, seed {self.seed}."

    def _display(self, brief: bool) -> Display:
        told = [f"Broken: {', '.join(one.promise for one in self.findings)}.", *(one.sentence for one in self.findings)]
        lines = (*(told if self.findings else [self.sentence]), self.played, *self.notes)
        rows = tuple(
            (
                finding.promise,
                "" if finding.step is None else str(finding.step),
                finding.parameter or "",
                "" if finding.measured is None else significant(finding.measured, 3),
                "" if finding.allowed is None else significant(finding.allowed, 3, upwards=False),
            )
            for finding in self.findings
        )
        return Display(lines, ("promise", "step", "parameter", "measured", "promised") if rows else (), rows)

    def __repr__(self) -> str:
        verdict = ", ".join(finding.promise for finding in self.findings) or "no promise broken"
        return f"Replay({verdict}; {self.steps} steps)"


class Findings:
    """Findings, of which the first one of each promise is kept, with the number of steps that have one."""

    def __init__(self) -> None:
        self._first: dict[str, Finding] = {}
        self._steps: dict[str, set[int | None]] = {}

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            self._first.setdefault(finding.promise, finding)
            self._steps.setdefault(finding.promise, set()).add(finding.step)

    def __len__(self) -> int:
        return len(self._first)

    def all(self) -> tuple[Finding, ...]:
        """One finding for each promise, in the order in which they were found."""
        told = []
        for promise, finding in self._first.items():
            more = len(self._steps[promise] - {None}) - 1
            others = "" if more < 1 else f" ({more} more {'step' if more == 1 else 'steps'} alike.)"
            told.append(replace(finding, sentence=finding.sentence + others))
        return tuple(told)


# --- Two recordings, step by step


@dataclass(frozen=True)
class Promised:
    """What is promised of a step.

    Attributes
    ----------
    distances : tuple of float
        The promised distance in clipping norms: one number for each step, or one for all.
    max_grad_norm : float or None
        The promised clipping norm; by default the optimizer's own.
    divisor : float or None
        The number by which a training without Opacus divides its sums.
    """

    distances: tuple[float, ...] = (2.0,)
    max_grad_norm: float | None = None
    divisor: float | None = None

    def distance(self, number: int) -> float:
        """The promised distance at a step."""
        return self.distances[min(number, len(self.distances) - 1)]

    def norm(self, step: RecordedStep) -> float:
        """The promised clipping norm at a step."""
        if self.max_grad_norm is not None:
            return self.max_grad_norm
        if step.settings is None:
            raise AuditError("max_grad_norm must be given for a training without an optimizer of Opacus, which has one.")
        return step.settings.max_grad_norm

    def scale(self, step: RecordedStep) -> float | None:
        """The number by which the step has divided its sum; None if nobody says it."""
        return self.divisor if step.settings is None else step.settings.divisor


@dataclass
class Compared:
    """What a change of the data has changed.

    Attributes
    ----------
    steps : int
        The number of steps that were compared.
    largest : float
        The largest difference of two sums, as a share of the promised one.
    moved : dict
        For each step whose sum has changed the change, the promised clipping norm, and the rounding of the sum. The change is
        None where too many numbers were kept already.
    """

    steps: int = 0
    largest: float = 0.0
    moved: dict[int, tuple[Tensor | None, float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Compares trainings on changed data with an earlier one.

    Attributes
    ----------
    promised : Promised
        What is promised of a step.
    record : int or None
        The record that differs; None if none does, or all do.
    title : str
        How it differs, for people.
    worlds : tuple of str
        The words for the earlier training and for the later one.
    findings : Findings
        Where findings are added.
    """

    promised: Promised
    record: int | None
    title: str
    worlds: tuple[str, str]
    findings: Findings

    def __call__(self, reference: Recording, recording: Recording, ignored: Mapping[str, str]) -> Compared:
        """Compare two recordings. What differs from the output `ignored`, of a training on the same data, is left out."""
        made, one, other = Compared(), *self.worlds
        pairs = list(zip(reference.steps, recording.steps, strict=False))
        if recording.listed:  # it could not be given the updates of the first, and is comparable until they differ
            first = next((i for i, pair in enumerate(pairs) if not same_update(*pair)), None)
            if first is not None:
                self._released(first, *pairs[first], reference.private, made)
            pairs = []
        for number, (before, step) in enumerate(pairs):
            if step.optimizer != before.optimizer:
                self._say("steps", f"{before.optimizer} takes step {number + 1} {one}, {step.optimizer} {other}.")
                return made
            if not same_states(before.states, step.states):
                raise AuditError(
                    f"train must draw equally many random numbers {one} and {other}, and does not at step {number + 1}: nothing "
                    "can be said where random numbers differ. Give records of one length, or set dropout to 0 for this test."
                )
            self._settings(number, before, step)
            if self._contents(f"Before step {number + 1}", number, reference, before.contents, step.contents):
                return made
            self._released(number, before, step, reference.private, made)
            made.steps += 1
        if not self._steps(reference, recording):
            self._contents("After the last step", len(pairs), reference, reference.contents, recording.contents)
        for where in {} if recording.listed and made.moved else {**reference.output, **recording.output}:
            first_output, output = reference.output.get(where), recording.output.get(where)
            if output != first_output == ignored.get(where):
                told = f"{where[0].upper()}{where[1:]} is {_short(first_output)} {one}, and {_short(output)} {other}"
                self._say("output", f"{told}: it is not computed from the released sums alone, and has no noise.")
        return made

    def settings(self, reference: Recording, recording: Recording) -> None:
        """Compare the settings and the number of steps alone."""
        for number, pair in enumerate(zip(reference.steps, recording.steps, strict=False)):
            self._settings(number, *pair)
        self._steps(reference, recording)

    def _steps(self, reference: Recording, recording: Recording) -> bool:
        """Whether the number of steps differs."""
        (one, other), first, more = self.worlds, len(reference.steps), "" if recording.ended else " or more"
        if differ := (len(recording.steps), recording.ended) != (first, reference.ended):
            self._say("steps", f"The training takes {first} steps {one}, and {len(recording.steps)}{more} {other}.")
        return differ

    def _say(self, promise: str, sentence: str, number: int | None = None, parameter: str | None = None, *sizes: float) -> None:
        self.findings.add(Finding(promise, sentence, None if number is None else number + 1, parameter, *sizes))

    def _settings(self, number: int, before: RecordedStep, step: RecordedStep) -> None:
        """Compare the learning rate, the noise multiplier, the clipping norm and the divisor."""
        (one, other), numbers, later = self.worlds, dict(before.numbers), dict(step.numbers)
        if before.settings is not None and step.settings is not None:
            for name in ("noise_multiplier", "max_grad_norm"):
                numbers[name], later[name] = getattr(before.settings, name), getattr(step.settings, name)
            ours, theirs = before.settings.divisor, step.settings.divisor
            if ours != theirs:
                told = f"At step {number + 1} the sum is divided by {ours:g} {one}, and by {theirs:g} {other}: this number tells "
                told += "about the record. Set it to a constant (the batch size that Opacus expects), or test substitution if "
                self._say("normaliser", f"{told}the number of records is public.", number, None, theirs, ours)
        for name in sorted(numbers.keys() & later.keys()):
            if numbers[name] != later[name]:
                told = f"At step {number + 1} {name} is {numbers[name]:g} {one}, and {later[name]:g} {other}."
                self._say("settings", told, number, None, later[name], numbers[name])

    def _contents(
        self, when: str, number: int, reference: Recording, before: Mapping[str, str], contents: Mapping[str, str]
    ) -> bool:
        """Compare weights and buffers, which were updated alike; whether weights differ."""
        different = [name for name in before if contents.get(name) != before[name]]
        buffers = [name for name in different if name in reference.buffers]
        weights = [name for name in different if name not in buffers]
        if buffers:
            told = f"{when}, the buffer {buffers[0]} depends on the record: it has no noise, and is part of the model"
            self._say("buffers", f"{told} (statistics of batch norm?).", number, buffers[0])
        if weights:
            told = f"{when}, {weights[0]} differs although the same sums were released"
            self._say("weights", f"{told}: something else than the released sums changes the weights.", number, weights[0])
        return bool(weights)

    def _released(self, number: int, before: RecordedStep, step: RecordedStep, private: bool, made: Compared) -> None:
        """Compare what the two steps release."""
        scale, other_scale = self.promised.scale(before), self.promised.scale(step)
        vectors = changes(before.gradients, step.gradients, scale or 1.0, other_scale or 1.0)
        parts = {name: float(one.norm()) for name, one in vectors.items()}
        apart, size = (
            _total(parts.values()),
            (scale or 1.0) * _total(float(one.double().norm()) for one in before.gradients.values()),
        )
        if not apart < float("inf"):
            raise NotFiniteError
        unit, worst = (
            max(torch.finfo(one.dtype).eps for one in before.gradients.values()),
            max(parts, key=lambda name: parts[name]),
        )
        clipped = scale is not None and other_scale is not None and (before.settings is not None or not private)
        raw = (
            parts if not clipped else {} if before.settings is None else {k: v for k, v in parts.items() if k not in before.sums}
        )
        if loose := [name for name, part in raw.items() if part > ROUNDINGS * unit * size]:
            told = f"At step {number + 1} {before.optimizer} applies a gradient of {loose[0]} that depends on the record"
            self._say("clipping", f"{told}, and that no optimizer of Opacus has clipped.", number, loose[0])
        if not clipped:
            return
        norm, distance = self.promised.norm(before), self.promised.distance(number)
        rounding = ROUNDINGS * unit * (size + norm * (len(before.drawn) if before.drawn is not None else other_scale or 1.0))
        if self.record is None or (before.drawn is not None and self.record not in before.drawn):
            if apart > rounding:
                told = f"At step {number + 1} record {self.record} is not in the batch, and yet the released sum changes by "
                told += f"{significant(apart / norm, 3)} clipping norms, most of it at {worst}"
                self._say("not drawn", f"{told}: something is computed from all records.", number, worst, apart / norm, 0.0)
            return
        made.largest = max(made.largest, apart / (distance * norm) if distance else 0.0)
        if apart > rounding:
            kept = sum(0 if one is None else one.numel() for one, _, _ in made.moved.values()) < KEPT
            change = torch.cat([one.flatten().cpu() for one in vectors.values()]).float() if kept else None
            made.moved[number] = change, norm, rounding
        if apart > (1.0 + SLACK) * distance * norm + rounding:
            told = f"At step {number + 1} the released sum changes by {significant(apart / norm, 3)} clipping norms when "
            told += f"the record changes ({self.title}), where at most {distance:g} is promised; most of it is at {worst}"
            self._say("distance", f"{told}.", number, worst, apart / norm, distance)


def changes(one: Mapping[str, Tensor], other: Mapping[str, Tensor], scale: float, other_scale: float) -> dict[str, Tensor]:
    """The difference of two sums at each parameter; a parameter that one of them lacks is zero there."""
    apart = {}
    for name in {**one, **other}:
        some = one[name] if name in one else other[name]
        first = one[name].double() * scale if name in one else torch.zeros_like(some, dtype=torch.float64)
        apart[name] = other[name].double() * other_scale - first if name in other else -first
    return apart


def same_update(one: RecordedStep, other: RecordedStep) -> bool:
    """Whether two steps apply the same."""
    return all(not part.any() for part in changes(one.gradients, other.gradients, 1.0, 1.0).values())


def _total(norms: object) -> float:
    """The norm of a vector from the norms of its parts."""
    return float(torch.tensor(list(norms), dtype=torch.float64).norm())  # type: ignore[call-overload]


def _short(text: str | None) -> str:
    return "missing" if text is None else text if len(text) < 60 else text[:57] + "…"


# --- What one record contributes, with other contents and among other records


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


def ball_findings(record: int, compared: Sequence[Compared]) -> list[Finding]:
    """Whether what one record contributed, as it was and as it was changed, fits in a ball with the clipping norm as radius.

    That is promised: each contribution is at most a clipping norm from 0. Where 0 lies is not known, and need not be.
    """
    found = []
    for number in sorted(set().union(*(one.moved for one in compared))):
        kept = [one.moved[number] for one in compared if number in one.moved]
        vectors, norm, rounding = [one[0] for one in kept if one[0] is not None], kept[0][1], max(one[2] for one in kept)
        radius = least_radius([one for one in vectors if len(one) == len(vectors[0])]) if len(vectors) > 1 else 0.0
        if radius > (1.0 + SLACK) * norm + rounding:
            size = significant(radius / norm, 3, upwards=False)
            told = (
                f"At step {number + 1} record {record} contributes at least {size} clipping norms, with other contents, where 1"
            )
            why = "is promised: does it enter twice, by two losses, or through a layer that is not clipped?"
            found.append(Finding("distance", f"{told} {why}", number + 1, None, radius / norm, 1.0))
    return found


def length_findings(alike: Recording, promised: Promised) -> list[Finding]:
    """Whether each of the records of a batch contributes at most a clipping norm. All records are alike, so that the sum of those
    that were drawn is their number times what one contributes, if the sum without noise is known."""
    for number, step in enumerate(alike.steps, 1):
        each = _total(float(one.norm()) for one in step.sums.values()) / max(1, len(step.drawn or ()))
        if step.drawn and step.settings is not None and each > (1.0 + SLACK) * promised.norm(step):
            size = significant(each / promised.norm(step), 3)
            told = f"At step {number} each of {len(step.drawn)} records that are alike contributes {size} clipping norms"
            return [Finding("distance", f"{told}, where 1 is promised.", number, None, each / promised.norm(step), 1.0)]
    return []


def mixing_findings(record: int, alone: Compared, among: Compared) -> list[Finding]:
    """Whether a record contributes the same when the records around it are others. Sums of what each contributes are additive."""
    for number in range(min(alone.steps, among.steps)):
        (one, norm, rounding), (other, _, more) = (each.moved.get(number, (None, 0.0, 0.0)) for each in (alone, among))
        known = [part for part in (one, other) if part is not None]
        if not known or len(known) < (number in alone.moved) + (number in among.moved):
            continue
        unit = max(norm, among.moved[number][1] if number in among.moved else 0.0)
        apart = float((known[0] - known[1]).norm()) if len(known) == 2 else float(known[0].norm())
        if apart > 10.0 * SLACK * unit + rounding + more:
            told = (
                f"At step {number + 1} record {record} contributes otherwise ({significant(apart / unit, 2)} clipping norms) when"
            )
            why = "other records of the data are others: the loop, the model or the loss mixes the records of a batch."
            return [Finding("mixing", f"{told} {why}", number + 1, None, apart / unit, 0.0)]
    return []


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
    found: list[StepNoise] = []
    for number, step in enumerate(recording.steps):
        scale = promised.scale(step) or 1.0
        without = {k: v.double() * (scale if step.settings is None else 1.0) for k, v in step.sums.items()}
        if not without and silent is not None and number < len(silent.steps):
            without = {k: v.double() * scale for k, v in silent.steps[number].gradients.items()}
        if parts := {k: v.double() * scale - without[k] for k, v in step.gradients.items() if k in without}:
            if run is None and step.settings is None:
                text = "run must be given for a training without an optimizer of Opacus: it says which noise is promised."
                raise AuditError(text)
            claimed = step.settings.noise_multiplier if run is None and step.settings else rate_and_noise(run, len(found))[1]  # type: ignore[arg-type]
            found.append(StepNoise(number, claimed * promised.norm(step), parts))
    return found


def noise_findings(noise: Sequence[StepNoise], other: Sequence[StepNoise]) -> list[Finding]:
    """What is wrong with the noise. `other` is that of a training with another seed; it is empty if both are compared already."""
    made = [_too_small(noise), _repeated(noise), _same_in_each_training(noise, other)]
    return [finding for finding in made if finding is not None][:1]


def _too_small(noise: Sequence[StepNoise]) -> Finding | None:
    """Noise that is smaller than promised: none at a parameter, little at a step, or little at a parameter over all steps."""
    names = {name: None for step in noise for name in step.parts}
    by_step = [(step, None, [(step, part) for part in step.parts.values()]) for step in noise]
    by_name = [(None, name, [(step, step.parts[name]) for step in noise if name in step.parts]) for name in names]
    found: list[tuple[int, Finding]] = []
    for at, name, group in [*by_step, *by_name]:
        squares = sum(float(part.square().sum()) / step.deviation**2 for step, part in group if step.deviation > 0.0)
        entries = sum(part.numel() for step, part in group if step.deviation > 0.0)
        ratio = (squares / entries) ** 0.5 if entries else 1.0
        if ratio >= 1.0 - SMALLER or chi2.cdf(squares, entries) >= LEVEL / (len(by_name) + len(by_step)):
            continue
        first = next((step.number for step, part in group if not part.any()), group[0][0].number) if at is None else at.number
        where = f"at {name}" if at is None else f"at step {at.number + 1}"
        size = "There is no noise" if ratio < 1e-3 else f"The noise is {significant(ratio, 3)} of what is promised"
        rank = 0 if at is None and ratio < 1e-3 else 1 if at is not None else 2
        found.append((rank, Finding("noise", f"{size} {where}.", first + 1, name, ratio, 1.0)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _repeated(noise: Sequence[StepNoise]) -> Finding | None:
    """Noise of two steps that is not independent."""
    pairs = list(combinations([(step.number + 1, step.vector()) for step in noise], 2))
    for (one, first), (other, second) in pairs:
        if len(first) != len(second) or len(first) < 2 or not first.any() or not second.any():
            continue
        alike = float(torch.nn.functional.cosine_similarity(first, second, dim=0))
        # The square of the cosine of independent directions in D dimensions is distributed as Beta(1/2, (D-1)/2).
        if beta.sf(min(alike**2, 1.0), 0.5, 0.5 * (len(first) - 1)) < LEVEL / len(pairs):
            how = f"is that of step {one} again" if alike > 0.99 else f"depends on that of step {one} (correlation {alike:.2f})"
            told = f"The noise of step {other} {how}: the difference of the two updates has less noise than promised."
            return Finding("noise", told, other)
    return None


def _same_in_each_training(noise: Sequence[StepNoise], other: Sequence[StepNoise]) -> Finding | None:
    for one, again in zip(noise, other, strict=False):
        first, second, step = one.vector(), again.vector(), one.number + 1
        if len(first) == len(second) and first.any() and float((first - second).norm()) < 1e-3 * float(first.norm()):
            told = f"The noise of step {step} is the same in trainings with different seeds: train sets a seed itself, and"
            return Finding("noise", f"{told} anyone who knows it can subtract the noise.", step)
    return None


def linear(noise: Sequence[StepNoise], again: Sequence[StepNoise]) -> bool:
    """Whether twice the normal numbers add the same once more."""
    return all(
        float((part - other.parts[name]).norm()) <= 1e-3 * float(part.norm()) + 1e-5 * one.deviation * part.numel() ** 0.5
        for one, other in zip(noise, again, strict=False)
        for name, part in one.parts.items()
    )


def step_findings(recording: Recording, promised: Promised) -> list[Finding]:
    """What is wrong with single steps of a training: a clip above the promised one, records that enter twice, empty batches that
    release more than noise, and divisors that follow the batch."""
    found = []
    followed: list[tuple[float, int]] = []
    for number, step in enumerate(recording.steps, 1):
        rows, last, norm = step.rows, step.last, promised.max_grad_norm
        if norm is not None and step.settings is not None and step.settings.max_grad_norm > (1.0 + 1e-5) * norm:
            told = f"At step {number} the optimizer clips to {step.settings.max_grad_norm:g}, and {norm:g} is promised."
            found.append(Finding("clipping", told, number, None, step.settings.max_grad_norm, norm))
        if step.drawn is not None and step.settings is not None:
            followed.append((step.settings.divisor, len(step.drawn)))
        twice = next((one for one in last if last.count(one) > 1), None)
        if step.batches == 1 and rows is not None and step.drawn and rows > len(last):
            told = f"At step {number} the gradients of {rows} records are added up, and the batch has {len(last)}"
            found.append(Finding("once", f"{told}: some enter twice.", number, None, rows, len(last)))
        elif step.batches == 1 and step.drawn and twice is not None and rows == len(last):
            told = f"At step {number} record {twice} is {last.count(twice)} times in the batch, clipped each time by itself."
            found.append(Finding("once", told, number, None, last.count(twice), 1.0))
        if step.drawn == frozenset() and any(float(one.norm()) > SLACK * promised.norm(step) for one in step.sums.values()):
            told = (
                f"At step {number} no record was drawn, and yet the sum is not noise alone (rand_on_empty?): with a single record"
            )
            found.append(Finding("sampling", f"{told} in the batch, it changes by more than a clipping norm.", number))
    if len({divisor for divisor, _ in followed}) > 1 and all(divisor == max(1, drawn) for divisor, drawn in followed):
        told = f"the sum is divided by the number of drawn records, {followed[0][0]:g} at step 1, which tells about each of them"
        found.append(Finding("normaliser", f"At each step {told}. Divide by the expected batch size.", 1))
    return found


def size_findings(one: Recording, other: Recording, run: DPSGD | None, records: int) -> list[Finding]:
    """Whether the number of records in a batch varies, where Poisson sampling is claimed.

    In both trainings all records are alike, each with a gradient that is clipped, of opposite directions: at every step the
    difference of the two sums is twice the number of records over the divisor.
    """
    if run is None or run.segments[0].sampling != "poisson" or len(run.segments) > 1 or any(one.schemes):
        return []
    vectors = [changes(a.gradients, b.gradients, 1.0, 1.0) for a, b in zip(one.steps, other.steps, strict=False)]
    sizes = np.array([_total(float(part.norm()) for part in vector.values()) for vector in vectors])
    sizes, rate = sizes[sizes > SLACK * sizes.max(initial=0.0)], float(run.segments[0].sample_rate)
    most = float(binom.pmf(np.floor((records + 1) * rate), records, rate))
    if len(sizes) < 2 or np.ptp(sizes) > SLACK * sizes.max() or most ** (len(sizes) - 1) >= LEVEL:
        return []
    told = f"In each of {len(sizes)} steps the sum of what all records contribute has the same length, where batches of different"
    why = "sizes are claimed: the divisor follows the batch, which tells about each of its records, or the batches have one size."
    return [Finding("normaliser", f"{told} {why}")]


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
    claimed, rate, steps = run.segments[0], float(run.segments[0].sample_rate), [step.drawn for step in recording.steps]
    if scheme := next((one for one in recording.schemes if one is not None), None):
        if scheme.sampling != claimed.sampling:
            return [Finding("sampling", f"The loader's batches are {scheme.sampling}, and {claimed.sampling} is claimed.")], []
        if scheme.times_per_epoch != claimed.times_per_epoch:
            told = f"Each record is in {scheme.times_per_epoch} batches of an epoch, and {claimed.times_per_epoch} are claimed."
            return [Finding("sampling", told, None, None, scheme.times_per_epoch, claimed.times_per_epoch)], []
        if scheme.sample_rate > (1.0 + 1e-3) * rate:
            told = f"The loader draws each record with probability {scheme.sample_rate:.4g}, and {rate:.4g} is claimed."
            return [Finding("sampling", told, None, None, scheme.sample_rate, rate)], []
        return [], []
    if not probed and not recording.records:
        return [], ["Sampling was not compared: it is not known which records are in a batch."]
    every = {one: {i for i, batch in enumerate(steps) if batch and one in batch} for one in range(recording.records)}
    drawn = dict(probed) if probed else every
    how = f"Of {len(drawn)} records{' that were changed one by one' if probed else ''}"
    if claimed.sampling != "poisson":
        return [], [f"Sampling was not compared with {claimed.sampling}: the loop draws its batches by itself."]
    hits, chances = sum(map(len, drawn.values())), len(drawn) * len(steps)
    if binom.sf(hits - 1, chances, min(rate, 1.0)) < LEVEL:
        told = f"{how}, each is in {significant(hits / len(drawn), 3)} of {len(steps)} batches on average, where "
        told += f"{significant(rate * len(steps), 3)} are claimed: the batches are not drawn at the rate of the claim."
        return [Finding("sampling", told, None, None, hits / chances, rate)], []
    length = round(1.0 / rate)
    rounds = [range(start, start + length) for start in range(0, len(steps) - length + 1, length)]
    once = all(len(where.intersection(one)) == 1 for where in drawn.values() for one in rounds)
    chance = (length * rate * (1.0 - rate) ** (length - 1)) ** (len(rounds) * len(drawn))
    if length > 1 and rounds and once and chance < LEVEL:
        told = f"{how}, each is in exactly one batch of each round of {length}: batches are shuffled or in bins"
        return [Finding("sampling", f"{told}, and poisson is claimed.")], []
    size, *others = {sum(i in where for where in drawn.values()) for i in range(len(steps))}
    if not probed and not others and binom.pmf(size, len(drawn), rate) ** (len(steps) - 1) < LEVEL:
        return [Finding("sampling", f"Every batch has {size} records: the batches are not poisson, which is claimed.")], []
    if probed and rate < 1.0 and chances < np.log(LEVEL) / np.log(rate):
        return [], [f"Sampling was hardly compared: {chances} draws were seen, too few for this rate. Use more steps."]
    told = (
        f"Sampling was compared for {len(drawn)} records: none is drawn too often, and they are not in one batch of each round."
    )
    return [], [f"{told} Whether the draws of different records are independent was not compared."] * bool(probed)
