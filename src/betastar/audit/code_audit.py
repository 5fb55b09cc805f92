"""Replays of training code: the same training on two data sets that differ in one record, with the same random numbers.

`code_recording` has one training and what it releases, `code_comparison` two trainings step by step, `code_findings` the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.audit.attackers import Criterion
from betastar.audit.challenges import (
    Changed,
    Data,
    Split,
    as_seen,
    changed,
    marked_argument,
    read,
    require_records,
    same_record,
    with_mark,
    with_values,
    without,
)
from betastar.audit.code_comparison import (
    Comparison,
    Findings,
    NotFiniteError,
    Promised,
    StepNoise,
    ball_findings,
    differences,
    noise_findings,
    noise_of,
    sampling_findings,
    step_findings,
    total,
)
from betastar.audit.code_findings import PROMISES, CodeAudit, Finding, ReplayError
from betastar.audit.code_recording import EnoughError, LoaderWatch, RecordedStep, Recorder, Recording, Scaled, Watcher
from betastar.audit.parallel import seed_of
from betastar.dpsgd import DPSGD
from betastar.threats import AttributeInference, Membership, Threat, only_general
from betastar.training import Records, Secret, processes
from betastar.training.records import pair

#: Below this share of the promised distance, clipping had so little to do that a missing clip may not have shown.
HARDLY_TESTED = 0.25
#: The number of records that are changed, one in each replay, at most.
RECORDS = 3
#: The number of records that are changed one by one to see when they are drawn, where the loop does not say it.
PROBED = 16
WHAT_TO_FIX = (
    "Nothing is said about it before that is fixed: take all random numbers from torch, NumPy or random without seeds of their "
    "own (or from a torch.Generator that is seeded by torch.randint), use torch.use_deterministic_algorithms(True) on a GPU, and "
    "make model, optimizer and loader inside of train."
)


def code(
    train: Callable[..., Any],
    data: Data,
    run: DPSGD | Callable[[int], DPSGD] | None = None,
    threat: Threat | None = None,
    *,
    factory: Callable[[], nn.Module] | None = None,
    max_grad_norm: float | None = None,
    divisor: float | None = None,
    record: int | None = None,
    replacements: Sequence[Any] | None = None,
    secret: Secret | None = None,
    values: Sequence[Any] | None = None,
    steps: int = 20,
    seed: int | None = None,
    ignore: Sequence[str] = (),
    split: Callable[[Any], Records] = pair,
    criterion: Criterion | None = None,
    returns: str = "updates",
    limit: float = 600.0,
) -> CodeAudit:
    """Replay a training on data that differ in one record, with the same random numbers, and see that it keeps its promises.

    The training runs some times, for a few steps: twice on the data (it must do the same twice), with another seed (for the
    noise), and once for each change of a record. Each step of a replay starts from the weights of the first training. What it
    releases may differ by the promised distance, and nothing else may differ.

    Parameters
    ----------
    train : callable
        `train(data)` trains on the data set from the beginning to the end: it makes the model, the optimizer and the loader.
        It may be a generator that yields what it logs. With `factory` it is called as `train(factory(), data)`, as
        `betastar.audit.training` does. Without one, `train(data, seed)` gets the seed of its random numbers, too; it may return
        the list of its updates (or weights), one a step, if no optimizer of PyTorch applies them and it does not call `released`.
    data : Dataset
        The records, with a length.
    run : DPSGD or callable, optional
        What the training claims to be, or a function from a number of records to it. Without it, noise is compared with what the
        optimizer says of itself.
    threat : Threat, optional
        `Membership()`: another record is in its place, and the released sums may differ by 2 clipping norms.
        `Membership("add-remove")`: the record is left out, and they may differ by 1. `AttributeInference(distances)`: the record
        has another value of the secret. By default the first, or with a secret the third, at the gap of gap clipping or else 2.
    factory : callable, optional
        Makes a new, plain model.
    max_grad_norm : float, optional
        The clipping norm that is promised; by default the optimizer's own at each step.
    divisor : float, optional
        For a training without Opacus: the number by which it divides its noisy sums. Of returned weights, divided by the
        learning rate.
    record : int, optional
        The number of the record that differs; by default one that is drawn in some of the steps.
    replacements : sequence, optional
        Records to put in its place, one replay for each. By default another record of the data, and records with numbers that
        are a hundred times larger, or that push the gradient of a layer, so that it has to be clipped.
    secret : Secret, optional
        The attribute that has another value.
    values : sequence, optional
        The values of the secret that are put in; by default four of them at most.
    steps : int
        The number of steps after which a training is ended.
    seed : int, optional
        Drawn and reported by default.
    ignore : sequence of str
        Promises that are not wanted, such as "output" for a training whose printed loss nobody else sees.
    split : callable
        Turns a batch into `Records`, if batches are not (inputs, target, ...), as for the monitor.
    criterion : callable, optional
        The loss by which records are found that push the gradient of a layer; by default cross entropy for classes, and otherwise
        the squared error.
    returns : "updates" or "weights"
        What a list that `train` returns is.
    limit : float
        The number of seconds after which a training is ended.

    Returns
    -------
    CodeAudit
        The broken promises, each with its step and its parameter. `violated` says whether there are any, `notes` what was not
        compared.

    Raises
    ------
    ReplayError
        If the training cannot be replayed. The text says what to fix.
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> import betastar as bs
    >>> from betastar import audit
    >>> data = TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)
    >>> def train(data):  # somebody has added noise, and forgotten to clip
    ...     model = torch.nn.Linear(3, 2)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     for x, y in DataLoader(data, batch_size=10, shuffle=True):
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(model(x), y).backward()
    ...         for parameter in model.parameters():
    ...             parameter.grad += 0.1 * torch.randn_like(parameter)
    ...         optimizer.step()
    >>> claim = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.25, steps=4, sampling="shuffled")
    >>> result = audit.code(train, data, claim, max_grad_norm=1.0, divisor=10, seed=1)
    >>> [finding.promise for finding in result.findings]
    ['distance']
    """
    claim = _claim(run, data)
    promised = _promised(threat, secret, max_grad_norm, divisor)
    threat = _threat(threat, secret)
    for name in ignore:
        validation.choice("ignore", name, PROMISES)
    if record is not None and not 0 <= validation.whole("record", record, low=0) < len(data):
        raise validation.wrong("record", f"must be a record of the data, 0 to {len(data) - 1}, got {record}.")
    validation.choice("returns", returns, ("updates", "weights"))
    called = train if factory is None and needed(train) > 1 else (lambda some, _: train(some))
    if factory is not None:
        called = lambda some, _: train(factory(), some)  # noqa: E731
    start = processes.of_first(lambda: seed_of(seed))
    limit, number = float(validation.positive("limit", limit)), validation.whole("steps", steps)
    replays = _Replays(called, replaced(data, {}), promised, number, start, returns == "weights", limit)
    replays.record_twice()
    removed = isinstance(threat, Membership) and threat.relation == "add-remove"
    records = _chosen(replays.first, record) or replays.drawn_records(record, data)
    notes = [*replays.notes, *replays.check_claim(claim)]
    changes: list[str] = []
    for place, chosen in enumerate(records):
        push = replays.first.models[0] if replays.first.models and place == 0 else None
        made = neighbours(data, chosen, removed, replacements, secret, values, split, push, criterion)
        compared: list[Comparison] = []
        for neighbour in made:
            comparison, told = replays.compare(neighbour, chosen, removed)
            notes += [told] if told else []
            changes += [] if told else [neighbour.title]
            compared += [] if comparison is None or neighbour.base is not None else [comparison]
        for finding in [] if removed else ball_findings(promised, chosen, compared):
            replays.findings.add(finding)
    found = tuple(one for one in replays.findings.all() if one.promise not in ignore)
    if not found and replays.largest == 0.0:
        raise ReplayError(
            f"record {records[0]} changed nothing in {len(replays.first.steps)} steps, so that nothing was tested: choose a "
            "record that is drawn, or more steps."
        )
    if not found and replays.largest < HARDLY_TESTED and secret is None:
        notes.append(
            "Clipping was hardly compared: the record moved the released sums by little. Give replacements with larger gradients."
        )
    if isinstance(threat, Membership) and threat.records > 1:
        notes.append(f"One of the person's {threat.records} records was changed at a time: what each may change adds up.")
    if ignore:
        notes.append(f"Not looked at: {', '.join(ignore)}.")
    drawn = [step.drawn for step in replays.first.steps]
    number = sum(not batch.isdisjoint(records) for batch in drawn if batch is not None)
    return CodeAudit(
        findings=found,
        threat=threat.describe(),
        records=records,
        changes=tuple(dict.fromkeys(changes)),
        steps=len(drawn),
        drawn=None if None in drawn else number,
        largest=replays.largest,
        seed=replays.seed,
        notes=tuple(dict.fromkeys(notes)),
        run=claim,
    )


def needed(train: Callable[..., Any]) -> int:
    """The number of arguments that a function needs."""
    given = inspect.signature(train).parameters.values()
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in given)


@dataclass
class _Replays:
    """The replays of one training.

    train: the user's function, of data and a seed; data: the records; promised: what is promised of a step; steps: how many at
    most; weights: whether it returns weights; limit: how many seconds a training may take.
    """

    train: Callable[[Data, int], Any]
    data: Data
    promised: Promised
    steps: int
    seed: int
    weights: bool
    limit: float

    def __post_init__(self) -> None:
        self.findings, self.largest, self.private = Findings(), 0.0, False
        self.first, self.again, self.notes = Recording(), Recording(), [""][:0]
        self.probed: list[tuple[int, set[int]]] = []

    def record_twice(self) -> None:
        """Train twice on the data. Raises ReplayError unless both trainings do the same."""
        self.first, self.private = self._play(self.data)
        if self.first.late:
            self.steps = len(self.first.steps)
            self.notes.append(f"Steps after {self.steps} were not compared: train was ended after {self.limit:g} seconds.")
        if not self.first.steps:
            late = f" within {self.limit:g} seconds" if self.first.late else ""
            raise ReplayError(
                "train must update its model by an optimizer of PyTorch in this process, call betastar.audit.released, or return "
                f"its updates, got no step of one{late}."
            )
        if not self.private and self.promised.divisor is None:
            raise ReplayError(
                "train must make its optimizer private with Opacus, or run, max_grad_norm and divisor must be given: "
                f"got steps of {self.first.steps[0].optimizer} alone."
            )
        if any(step.settings is not None and step.settings.adaptive for step in self.first.steps):
            raise ReplayError(
                "train clips adaptively: the clipping norm follows a noisy count of the records, which a replay does not cover. "
                "Use clipping='flat' or 'per_layer'."
            )
        if self.first.listed:
            self.notes.append(
                "Steps after the first that a record changes were not compared: train returns its updates, which cannot be "
                "replayed from the same weights. Call betastar.audit.released in the loop."
            )
        elif not self.first.ended and not self.first.late:
            self.notes.append(f"Steps after {self.steps} were not compared, nor what train does at its end: give more steps.")
        same = Findings()
        comparison = self._comparison(self.first, None, "", ("in one training", "in the next"), same)
        self.again, _ = self._play(self.data, watcher=comparison)
        comparison.end(self.again, {})
        if wrong := [one for one in same.all() if one.promise != "output"]:
            raise ReplayError(
                f"train does not do the same twice, on the same data with the same seed. {_why(wrong[0])} {WHAT_TO_FIX}"
            )

    def check_claim(self, run: DPSGD | None) -> list[str]:
        """Compare clipping norm, noise and sampling with the claim; returns what cannot be said."""
        norm = self.promised.max_grad_norm
        for number, step in enumerate(self.first.steps, 1):
            if norm is not None and step.settings is not None and step.settings.max_grad_norm > (1.0 + 1e-5) * norm:
                told = f"At step {number} the optimizer clips to {step.settings.max_grad_norm:g}, and {norm:g} is promised."
                self.findings.add(Finding("clipping", told, number, None, step.settings.max_grad_norm, norm))
        other, _ = self._play(self.data, seed=self.seed + 1)
        found, notes = self._noise(run, other)
        sampling, untold = sampling_findings(self.first, run, self.probed)
        for finding in (*found, *sampling, *step_findings(self.first, self.promised)):
            self.findings.add(finding)
        taken = sum(step.settings is not None or not self.private for step in self.first.steps)
        if run is not None and taken > run.steps:
            more = "" if self.first.ended else " or more"
            told = f"The training takes {taken}{more} steps, and {int(run.steps)} are claimed."
            self.findings.add(Finding("steps", told, None, None, taken, float(run.steps)))
        return [*notes, *untold]

    def _noise(self, run: DPSGD | None, other: Recording) -> tuple[list[Finding], list[str]]:
        """What is wrong with the noise, and what of it cannot be compared."""
        if self.private or all(step.sums for step in self.first.steps):
            both = [noise_of(one, run, self.promised, None) for one in (self.first, other)]
            return noise_findings(*both), []
        if len(other.steps) == len(self.first.steps) and all(
            differences(a.gradients, b.gradients, 1.0, 1.0) and total(differences(a.gradients, b.gradients, 1.0, 1.0)) == 0.0
            for a, b in zip(self.first.steps, other.steps, strict=True)
        ):
            told = "Trainings with different seeds release the same: train sets a seed, which tells the noise to all who know it."
            return [Finding("noise", told, 1)], []
        untold = (
            "its random numbers are not drawn by PyTorch. Call betastar.audit.released(update, without_noise=...) in the loop."
        )
        for always in (False, True):
            if self.first.listed:
                break
            silent, double = (self._silent(self.first, factor, always) for factor in (0.0, 2.0))
            if silent is None or double is None:
                break
            # Before the first step, without a model, normal numbers may be weights: that step's noise is not compared.
            skipped = 1 if not always and not self.first.steps[0].uses else 0
            noise = noise_of(self.first, run, self.promised, silent)[skipped:]
            if not any(part.any() for step in noise for part in step.parts.values()):
                continue
            if not _linear(noise, noise_of(double, run, self.promised, self.first)[skipped:]):
                untold = (
                    "normal numbers are also drawn for something else. Call betastar.audit.released(update, without_noise=...)."
                )
                break
            again = self._silent(other, 0.0, always)
            untold = "Noise of the first step was not compared: no model was used before it."
            others = [] if again is None else noise_of(other, run, self.promised, again)[skipped:]
            return noise_findings(noise, others), [untold] * skipped
        if missing := self._without_noise():
            return [
                Finding(
                    "noise",
                    f"There is no noise at {missing}: on records of zeros it is not changed at all.",
                    1,
                    missing,
                    0.0,
                    1.0,
                )
            ], []
        return [], [f"Noise was not compared: {untold}"]

    def _silent(self, reference: Recording, factor: float, always: bool) -> Recording | None:
        """The steps of a training with its noise multiplied by a factor; None if it then fails."""
        seed = self.seed if reference is self.first else self.seed + 1
        scaled = Scaled(factor, reference, always)
        try:
            return self._play(self.data, seed, watcher=lambda i, _: _step_of(reference, i).gradients, scaled=scaled)[0]
        except (ReplayError, NotFiniteError):
            return None

    def _without_noise(self) -> str | None:
        """A parameter that has no noise: with records of zeros its updates are zero, to the last entry."""
        if not isinstance(self.data, TensorDataset) or not self.data.tensors[0].is_floating_point():
            return None
        zeros = TensorDataset(torch.zeros_like(self.data.tensors[0]), *self.data.tensors[1:])
        try:
            steps = self._play(zeros)[0].steps
        except ReplayError:
            return None
        names = {name: None for step in steps for name in step.gradients}
        return next(
            (name for name in names if all(not step.gradients[name].any() for step in steps if name in step.gradients)), None
        )

    def drawn_records(self, record: int | None, data: Data) -> tuple[int, ...]:
        """Records that are drawn, where the loop does not say which: they change an update if they are replaced.

        Some are replaced one by one; if none of them is drawn, one is found by halves of all records.
        """
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed)).tolist()

        def moved(some: Sequence[int], own: bool = False) -> set[int]:
            other = {one: extreme(data, one, own) for one in some}
            comparison = self._comparison(self.first, -1, "", ("", ""), Findings(), quiet=True)
            try:
                recording, _ = self._play(replaced(data, other), watcher=comparison)
                comparison.end(recording, {})
            except (ReplayError, NotFiniteError):
                return set()
            return comparison.moved

        if record is not None:
            return (record,)
        if not self.first.listed:
            self.probed = [(one, moved([one]) | moved([one], own=True)) for one in order[:PROBED]]
        best = sorted(
            (one for one in self.probed if one[1]), key=lambda one: (len(one[1]) == len(self.first.steps), -len(one[1]))
        )
        if best:
            return tuple(one for one, _ in best[:RECORDS])
        left = order
        while len(left) > 1:
            half = left[: len(left) // 2]
            left = half if moved(half) else left[len(left) // 2 :]
        return (left[0],)

    def compare(self, neighbour: Neighbour, record: int, removed: bool) -> tuple[Comparison | None, str]:
        """Replay on data with another record; returns the comparison, and why that was not possible, if it was not."""
        reference, findings = self.first, len(self.findings)
        try:
            if neighbour.base is not None:
                reference, _ = self._play(neighbour.base)
            watch = LoaderWatch(neighbour.data, reference.batches, record) if removed else LoaderWatch(neighbour.data)
            worlds = ("with the record", "without it") if removed else ("with one record", "with the other")
            comparison = self._comparison(reference, record, neighbour.title, worlds, self.findings)
            recording, _ = self._play(neighbour.data, watch=watch, watcher=comparison, fixed=removed)
            output = self.again.output if neighbour.base is None else reference.output
            comparison.end(recording, output)
        except NotFiniteError:
            if neighbour.made_up:
                return (
                    None,
                    f"With {neighbour.title} the training computes numbers that are not finite; this change was left out.",
                )
            raise ReplayError(f"train must compute finite gradients, got some that are not, with {neighbour.title}.") from None
        except ReplayError as problem:
            if neighbour.made_up and "raised" in str(problem):
                return None, f"With {neighbour.title} the training stops with an error; this change was left out."
            if len(self.findings) > findings:
                return None, ""
            raise
        self.largest = max(self.largest, comparison.largest)
        if not removed and recording.batches.fetched != reference.batches.fetched[: len(recording.batches.fetched)]:
            self.findings.add(Finding("sampling", "The batches that are drawn depend on what the record contains."))
        return comparison, ""

    def _comparison(
        self,
        reference: Recording,
        record: int | None,
        title: str,
        worlds: tuple[str, str],
        findings: Findings,
        quiet: bool = False,
    ) -> Comparison:
        return Comparison(reference, self.promised, record, title, worlds, findings, self.private, quiet)

    def _play(
        self,
        data: Data,
        seed: int | None = None,
        watch: LoaderWatch | None = None,
        watcher: Watcher | None = None,
        fixed: bool = False,
        scaled: Scaled | None = None,
    ) -> tuple[Recording, bool]:
        """Train on the data, and record it; whether the training has an optimizer of Opacus or is betastar's own."""
        recorder = Recorder(self.train, self.steps, self.limit, fixed, scaled, self.first.late)
        try:
            recorded = recorder.run(data, self.seed if seed is None else seed, watch or LoaderWatch(data), watcher)
        except (ReplayError, NotFiniteError):
            raise
        except Exception as problem:
            number = len(recorder.recording.steps)
            after = f" after step {number}" if number else ""
            raise ReplayError(
                "train must work again and again, with any record in the data, but raised "
                f"{type(problem).__name__}{after}: {problem}"
            ) from problem
        if recorded.listed and self.weights:
            recorded.steps = [
                replace(b, gradients={k: v.double() - a.gradients[k].double() for k, v in b.gradients.items()})
                for a, b in pairwise(recorded.steps)
            ]
        return recorded, recorder.any_private or any(step.settings is not None for step in recorded.steps)


def _step_of(reference: Recording, number: int) -> RecordedStep:
    if number >= len(reference.steps):
        raise EnoughError
    return reference.steps[number]


def _linear(noise: Sequence[StepNoise], again: Sequence[StepNoise]) -> bool:
    """Whether twice the normal numbers add the same once more."""
    return all(
        float((part - other.parts[name]).norm()) <= 1e-3 * float(part.norm()) + 1e-5 * one.deviation * part.numel() ** 0.5
        for one, other in zip(noise, again, strict=False)
        for name, part in one.parts.items()
    )


def _why(finding: Finding) -> str:
    """What differs between two trainings that should be the same."""
    if finding.promise == "not drawn":
        return f"What step {finding.step} releases is not the same, at {finding.parameter}."
    if finding.promise == "weights" and finding.step == 1:
        return f"The model starts with other weights, at {finding.parameter}."
    return finding.sentence


def _chosen(first: Recording, record: int | None) -> tuple[int, ...]:
    """Records that differ, one in each replay: such that one of them is in most of the batches, and the first is not in all."""
    batches = [(number, step.drawn) for number, step in enumerate(first.steps) if step.drawn is not None]
    places: dict[int, set[int]] = {}
    for number, batch in batches:
        for one in sorted(batch):
            places.setdefault(one, set()).add(number)
    if record is not None:
        if not batches:
            return ()
        if record not in places:
            raise validation.wrong("record", f"must be drawn in one of the {len(batches)} steps, got {record}, which is not.")
        return (record,)
    if not batches:
        return ()
    if not places:
        raise ReplayError(f"no record was drawn in {len(batches)} steps, so that nothing can be tested: use more steps.")
    kinds = {number: str(first.steps[number].settings) for number, _ in batches}
    chosen: list[int] = []
    left = set(kinds)
    while left and len(chosen) < RECORDS:
        new_kinds = {one: len({kinds[number] for number in places[one] & left}) for one in places}
        everywhere = {one: not chosen and len(places[one]) == len(batches) for one in places}
        best = max(places, key=lambda one: (not everywhere[one], new_kinds[one], len(places[one] & left)))
        if not places[best] & left:
            break
        chosen.append(best)
        left = left - places[best]
    return tuple(chosen)


def _claim(run: DPSGD | Callable[[int], DPSGD] | None, data: Data) -> DPSGD | None:
    require_records(data)
    claim = run(len(data)) if callable(run) else run
    if claim is not None and (not isinstance(claim, DPSGD) or claim.shape):
        raise validation.wrong("run", f"must be one DPSGD run, or a function from a number of records to one, got {run!r}.")
    return claim


def _threat(threat: Threat | None, secret: Secret | None) -> Threat:
    """The threat, if it is one that a replay can pose."""
    if threat is None:
        return Membership() if secret is None else AttributeInference(2.0)
    if not isinstance(threat, Membership | AttributeInference):
        raise validation.wrong("threat", f"must be Membership or AttributeInference, got {threat!r}.")
    if isinstance(threat, Membership) and secret is not None:
        raise validation.wrong("secret", f"must be left out for {threat.describe()}, got {secret!r}.")
    only_general(threat, "a replay of code")
    return threat


def _promised(threat: Threat | None, secret: Secret | None, norm: float | None, batch: float | None) -> Promised:
    """What is promised of each step."""
    distances: tuple[float, ...] = ()
    if isinstance(threat, Membership):
        distances = (2.0 if threat.symmetric else 1.0,)
    elif isinstance(threat, AttributeInference):
        distances = (
            tuple(np.atleast_1d(threat.distances).tolist()) if threat.counts is None else (float(np.max(threat.distances)),)
        )
    return Promised(
        distances,
        "" if secret is None else secret.name,
        None if norm is None else float(validation.positive("max_grad_norm", norm)),
        None if batch is None else float(validation.positive("divisor", batch)),
    )


# --- The data sets that are compared: the data, and the same with one record changed or left out

#: A record whose numbers are this many times larger has a gradient that has to be clipped.
LARGER = 100.0
#: The number of other values of a secret that are replayed, at most.
VALUES = 4
LARGE_OWN = f"its numbers {LARGER:g} times larger, and its own target"
#: The number of layers whose gradients are pushed, and the steps of gradient ascent.
LAYERS, ASCENT = 4, 12


@dataclass(frozen=True)
class Neighbour:
    """A data set that differs from the data in one record.

    Attributes
    ----------
    title : str
        How it differs, for people.
    data : Data
        The data set.
    made_up : bool
        Whether the record was made up here, so that the training need not cope with it.
    base : Data or None
        What it is compared with, if not with the data.
    """

    title: str
    data: Data
    made_up: bool = False
    base: Data | None = None


class Replaced(Changed):
    """A data set with some records replaced. What is replaced is read all the same, so that it draws its random numbers."""

    def __getitem__(self, index: int) -> Any:
        own = self.data[index]
        return self.replaced.get(index, own)


def replaced(data: Data, records: dict[int, Any]) -> Data:
    """The data with some records replaced; the same kind of data set as was given, where it holds tensors."""
    return changed(data, records) if type(data) is TensorDataset else Replaced(data, records)


def neighbours(
    data: Data,
    record: int,
    removed: bool,
    replacements: Sequence[Any] | None,
    secret: Secret | None,
    values: Sequence[Any] | None,
    split: Split,
    model: nn.Module | None,
    criterion: Criterion | None,
) -> list[Neighbour]:
    """The data sets that differ from the data in this record, as the threat wants it.

    Parameters
    ----------
    data : Data
        The records.
    record : int
        The number of the record.
    removed : bool
        Whether the record is left out, instead of another one in its place.
    replacements : sequence, optional
        The records to put in its place.
    secret : Secret, optional
        The attribute whose value is another one.
    values : sequence, optional
        Its other values; by default some of them.
    split : callable
        Turns a batch into `Records`.
    model : Module or None
        The model, whose layers' gradients are pushed.
    criterion : callable or None
        The loss by which they are pushed.

    Returns
    -------
    list of Neighbour
        At least one.
    """
    own = data[record]
    if removed:
        _require_fixed(data, record)
        rest, large = without(data, record), larger(own, None)
        made = [Neighbour("left out", rest)]
        if large is not None:
            title = f"its numbers {LARGER:g} times larger, and left out"
            made.append(Neighbour(title, rest, made_up=True, base=replaced(data, {record: large})))
        return made
    if replacements is not None:
        given = [Neighbour(f"replacement {number}", replaced(data, {record: one})) for number, one in enumerate(replacements, 1)]
        if not given:
            raise validation.wrong("replacements", f"must be at least one record, got {replacements!r}.")
        return given
    if secret is not None:
        return _other_values(data, record, secret, values, split)
    other = _another(data, record)
    made = [Neighbour("another record of the data", replaced(data, {record: other}))]
    candidates = [(f"its numbers {LARGER:g} times larger", larger(own, other)), (LARGE_OWN, larger(own, own))]
    candidates += [] if model is None else list(pushed(own, other, model, criterion, split))
    for title, one in candidates:
        if one is not None and not (title == LARGE_OWN and same_record(one, candidates[0][1])):
            made.append(Neighbour(title, replaced(data, {record: one}), made_up=True))
    return made


def pushed(own: Any, other: Any, model: nn.Module, criterion: Criterion | None, split: Split) -> Iterator[tuple[str, Any]]:
    """Records that push the gradient of one layer as far as gradient ascent on the input does; none where that is not possible.

    Clipping that leaves out a layer shows at such a record, even where activations are bounded.
    """
    try:
        copy = deepcopy(getattr(model, "_module", model)).cpu().eval()
        for module in copy.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks):
                hooks.clear()
        seen = [as_seen([one], split) for one in (own, other)]
        key, start = marked_argument(seen[0])
        if not start.is_floating_point():
            return
        names = [name for name, p in copy.named_parameters() if p.requires_grad and p.ndim > 1]
        for name in names[-LAYERS:]:
            weight, best, longest = copy.get_parameter(name), None, 0.0
            for records in seen:
                x = (10.0 * start).clone().requires_grad_()
                rate = float(start.abs().max()) or 1.0
                for _ in range(ASCENT):
                    with torch.enable_grad():
                        now = records.changed(partial(_put, key, x))
                        loss = _loss(criterion, copy(*now.inputs, **now.named), now.target)
                        size = torch.autograd.grad(loss, weight, create_graph=True)[0].norm()
                        (step,) = torch.autograd.grad((size + 1e-12).log(), x)
                    if (length := float(size.detach())) > longest:
                        best, longest = (x.detach()[0].clone(), records is seen[1]), length
                    x = (x + rate * step / step.norm().clamp(min=1e-12)).detach().requires_grad_()
            if best is not None:
                yield (
                    f"inputs that push the gradient of {name}",
                    with_mark(_targeted(own, other) if best[1] else own, split, best[0]),
                )
    except Exception:  # a model that cannot be differentiated twice, or records of another form: other changes remain
        return


def _loss(criterion: Criterion | None, output: Tensor, target: Any) -> Tensor:
    if criterion is not None:
        return criterion(output, target)
    if target.is_floating_point():
        return nn.functional.mse_loss(output.squeeze(-1), target)
    return nn.functional.cross_entropy(output, target)


def _put(key: int | str, new: Tensor, name: int | str, value: Tensor) -> Tensor:
    return new if name == key else value


def _targeted(own: Any, other: Any) -> Any:
    """The record with the target of another."""
    return type(own)([*own[:-1], other[-1]]) if isinstance(own, tuple | list) else own


def extreme(data: Data, record: int, own: bool = False) -> Any:
    """A record that differs much from a record of the data, with another target or its own."""
    other = _another(data, record)
    large = larger(data[record], data[record] if own else other)
    return other if large is None else large


def _other_values(data: Data, record: int, secret: Secret, values: Sequence[Any] | None, split: Split) -> list[Neighbour]:
    """The data with other values of the secret at the record."""
    try:
        mine = int(secret.own(read(data, torch.tensor([record]), split))[0])
    except TypeError as problem:
        raise ReplayError(
            f"secret needs records that split can take apart, or replacements= with other values: {problem}"
        ) from None
    numbers = [number for number in (range(secret.count) if values is None else secret.only(*values)) if number != mine]
    if not numbers:
        raise validation.wrong("values", f"must have another value than record {record} has, got {values!r}.")
    if len(numbers) > VALUES:  # from all over the list
        numbers = [numbers[i] for i in torch.linspace(0, len(numbers) - 1, VALUES).long().tolist()]
    return [
        Neighbour(f"{secret.name} {secret.labels[number]}", replaced(data, {record: one}))
        for number, one in zip(numbers, with_values(data, record, secret, numbers, split), strict=True)
    ]


def _another(data: Data, record: int) -> Any:
    """Another record of the data, if possible with another target."""
    places = [(record + step) % len(data) for step in range(1, min(len(data), 50))]
    own = _target(data[record])
    different = (place for place in places if not same_record(_target(data[place]), own))
    return data[next(different, places[0])]


def _target(record: Any) -> Any:
    return record[-1] if isinstance(record, tuple | list) and record else None


def larger(record: Any, other: Any) -> Any | None:
    """The record with its numbers larger, and with another one's target if that is a class; None if it has no such numbers."""
    if isinstance(record, tuple | list):
        parts = [_times(part) for part in record]
        target = _target(other)
        if parts[-1] is record[-1] and target is not None:
            parts[-1] = target
        different = any(part is not own for part, own in zip(parts[:-1] or parts, record, strict=False))
        return type(record)(parts) if different else None
    if isinstance(record, dict):
        made = {name: _times(part) for name, part in record.items()}
        return made if any(made[name] is not record[name] for name in record) else None
    return None


def _times(part: Any) -> Any:
    floating = isinstance(part, Tensor) and part.is_floating_point() and part.ndim > 0
    return part * LARGER if floating else part


def _require_fixed(data: Data, record: int) -> None:
    """Refuse data that give another record when they are read again."""
    for place in {0, record, len(data) - 1}:
        if not same_record(data[place], data[place]):
            raise ReplayError(
                "data that draw random numbers (augmentation) cannot be replayed without a record, because the other records "
                "then get other random numbers: test substitution, or leave out the augmentation."
            )
