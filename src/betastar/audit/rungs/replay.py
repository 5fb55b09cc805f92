"""Replays of training code: the same training on two data sets that differ in one record, with the same random numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.audit.common import AuditError, EnoughError, NotFiniteError, Recording, seed_of
from betastar.audit.evidence.challenges import (
    Criterion,
    Data,
    Neighbour,
    changed,
    extreme,
    neighbours,
    other_values,
    require_records,
    without,
)
from betastar.audit.evidence.recorder import Recorder, Scaled
from betastar.audit.verdict.replay import (
    PROMISES,
    Compared,
    Comparison,
    Finding,
    Findings,
    Promised,
    Replay,
    ball_findings,
    length_findings,
    linear,
    mixing_findings,
    noise_findings,
    noise_of,
    same_update,
    sampling_findings,
    size_findings,
    step_findings,
)
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
#: The number of other records that are changed at once, at most.
OTHERS = 1000
WHAT_TO_FIX = (
    "Nothing is said about it before that is fixed: take all random numbers from torch, NumPy or random without seeds of their "
    "own (or from a torch.Generator that is seeded by torch.randint), use torch.use_deterministic_algorithms(True) on a GPU, and "
    "make model, optimizer and loader inside of train."
)
TWICE, WORLDS = ("in one training", "in the next"), ("with one record", "with the other")
OF_MANY = ("with some records", "with others")


def replay(
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
) -> Replay:
    """Replay a training on data that differ in one record, with the same random numbers, and see that it keeps its promises.

    The training runs some times, for a few steps: twice on the data (it must do the same twice), with another seed (for the
    noise), and once for each change of a record. Each step of a replay starts from the weights of the first training. What it
    releases may differ by the promised distance, and nothing else may differ.

    Parameters
    ----------
    train : callable
        `train(data)` trains on the data set from the beginning to the end: it makes the model, the optimizer and the loader.
        It may be a generator that yields what it logs. With `factory` it is called as `train(factory(), data)`, as
        `betastar.audit.games` does. Without one, `train(data, seed)` gets the seed of its random numbers, too; it may return
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
    Replay
        The broken promises, each with its step and its parameter. `violated` says whether there are any, `notes` what was not
        compared.

    Raises
    ------
    AuditError
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
    >>> result = audit.replay(train, data, claim, max_grad_norm=1.0, divisor=10, seed=1)
    >>> [finding.promise for finding in result.findings]
    ['distance']
    """
    require_records(data)
    claim = run(len(data)) if callable(run) else run
    if claim is not None and (not isinstance(claim, DPSGD) or claim.shape):
        raise validation.wrong("run", f"must be one DPSGD run, or a function from a number of records to one, got {run!r}.")
    threat = (Membership() if secret is None else AttributeInference(2.0)) if threat is None else threat
    if not isinstance(threat, Membership | AttributeInference):
        raise validation.wrong("threat", f"must be Membership or AttributeInference, got {threat!r}.")
    if isinstance(threat, Membership) and secret is not None:
        raise validation.wrong("secret", f"must be left out for {threat.describe()}, got {secret!r}.")
    only_general(threat, "a replay of code")
    for name in ignore:
        validation.choice("ignore", name, PROMISES)
    if record is not None and not 0 <= validation.whole("record", record, low=0) < len(data):
        raise validation.wrong("record", f"must be a record of the data, 0 to {len(data) - 1}, got {record}.")
    validation.choice("returns", returns, ("updates", "weights"))
    called = train if factory is None and _needed(train) > 1 else (lambda some, _: train(some))
    if factory is not None:
        called = lambda some, _: train(factory(), some)  # noqa: E731
    start, number = processes.of_first(lambda: seed_of(seed)), validation.whole("steps", steps)
    promised = _promised(threat, max_grad_norm, divisor)
    longest = float(validation.positive("limit", limit))
    replays = _Replays(called, changed(data, {}), promised, claim, number, start, returns == "weights", longest)
    replays.record_twice()
    records = _chosen(replays.first, record) or replays.drawn_records(record)
    replays.check_claim()
    told: list[str] = []
    for place, one in enumerate(records):
        push = replays.first.models[0] if replays.first.models and place == 0 else None
        if replacements is not None:
            made = [Neighbour(f"replacement {i}", changed(data, {one: new})) for i, new in enumerate(replacements, 1)]
        elif secret is not None:
            made = other_values(data, one, secret, values, split)
        else:
            made = list(neighbours(data, one, split, push, criterion))
        if not made:
            raise validation.wrong("replacements", f"must be at least one record, got {replacements!r}.")
        both = [replays.compare(one, neighbour) for neighbour in made]
        told += [neighbour.title for neighbour, compared in zip(made, both, strict=True) if compared is not None]
        replays.findings.add(*ball_findings(one, [compared for compared in both if compared is not None]))
    if isinstance(threat, Membership) and threat.relation == "add-remove":
        replays.leave_out(records[0])
        told.append("left out")
    if replacements is None and secret is None:
        replays.among_others(records)
    found, largest = tuple(one for one in replays.findings.all() if one.promise not in ignore), replays.largest
    if not found and largest == 0.0:
        raise AuditError(
            f"record {records[0]} changed nothing in {len(replays.first.steps)} steps, so that nothing was tested: choose a "
            "record that is drawn, or more steps."
        )
    notes = replays.notes
    if not found and largest < HARDLY_TESTED and secret is None:
        notes.append("Clipping was hardly compared: the record moved the released sums by little. Give larger replacements.")
    if isinstance(threat, Membership) and threat.records > 1:
        notes.append(f"One of the person's {threat.records} records was changed at a time: what each may change adds up.")
    if ignore:
        notes.append(f"Not looked at: {', '.join(ignore)}.")
    drawn = [step.drawn for step in replays.first.steps]
    times = None if None in drawn else sum(not batch.isdisjoint(records) for batch in drawn if batch is not None)
    unique = tuple(dict.fromkeys(told)), tuple(dict.fromkeys(notes))
    described = threat.describe()
    return Replay(found, described, records, unique[0], len(drawn), times, largest, start, unique[1], claim)


def _needed(train: Callable[..., Any]) -> int:
    """The number of arguments that a function needs."""
    given = inspect.signature(train).parameters.values()
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in given)


def _promised(threat: Membership | AttributeInference, norm: float | None, divisor: float | None) -> Promised:
    """What is promised of each step."""
    distances: tuple[float, ...] = (2.0,)  # without a record it is 1, which follows from each contribution's length
    if isinstance(threat, AttributeInference):
        several = np.atleast_1d(threat.distances)
        distances = tuple(several.tolist()) if threat.counts is None else (float(np.max(several)),)
    norm = None if norm is None else float(validation.positive("max_grad_norm", norm))
    return Promised(distances, norm, None if divisor is None else float(validation.positive("divisor", divisor)))


class _Replays:
    """The replays of one training.

    Parameters
    ----------
    train : callable
        The user's function, of data and a seed.
    data : Data
        The records.
    promised : Promised
        What is promised of a step.
    claim : DPSGD or None
        What is claimed of the run.
    steps : int
        The number of steps at most.
    seed : int
        The seed of all trainings but one.
    weights : bool
        Whether train returns weights.
    limit : float
        The number of seconds that a training may take.
    """

    def __init__(
        self,
        train: Callable[[Data, int], Any],
        data: Data,
        promised: Promised,
        claim: DPSGD | None,
        steps: int,
        seed: int,
        weights: bool,
        limit: float,
    ) -> None:
        self._train, self._data, self._promised, self._claim = train, data, promised, claim
        self._steps, self._seed, self._weights, self._limit = steps, seed, weights, limit
        self.findings, self.largest, self.notes = Findings(), 0.0, [""][:0]
        self.first, self._again = Recording(), Recording()
        self._probed: list[tuple[int, set[int]]] = []

    def record_twice(self) -> None:
        """Train twice on the data. Raises AuditError unless both trainings do the same."""
        first = self.first = self._play(self._data)
        if first.late:
            self._steps = len(first.steps)
            self.notes.append(f"Steps after {self._steps} were not compared: train was ended after {self._limit:g} seconds.")
        if not first.steps:
            late = f" within {self._limit:g} seconds" if first.late else ""
            raise AuditError(
                "train must update its model by an optimizer of PyTorch in this process, call betastar.audit.released, or return "
                f"its updates, got no step of one{late}."
            )
        if not first.private and self._promised.divisor is None:
            raise AuditError(
                "train must make its optimizer private with Opacus, or run, max_grad_norm and divisor must be given: "
                f"got steps of {first.steps[0].optimizer} alone."
            )
        if any(step.settings is not None and step.settings.adaptive for step in first.steps):
            raise AuditError(
                "train clips adaptively: the clipping norm follows a noisy count of the records, which a replay does not cover. "
                "Use clipping='flat' or 'per_layer'."
            )
        if first.listed:
            self.notes.append(
                "Steps after the first that a record changes were not compared: train returns its updates, which cannot be "
                "replayed from the same weights. Call betastar.audit.released in the loop."
            )
        elif not first.ended and not first.late:
            self.notes.append(f"Steps after {self._steps} were not compared, nor what train does at its end: give more steps.")
        same = Findings()
        self._again = self._play(self._data, reference=first)
        Comparison(self._promised, None, "", TWICE, same)(first, self._again, {})
        for wrong in same.all():
            why = wrong.sentence
            if wrong.promise == "not drawn":
                why = f"What step {wrong.step} releases is not the same, at {wrong.parameter}."
            elif wrong.promise == "weights" and wrong.step == 1:
                why = f"The model starts with other weights, at {wrong.parameter}."
            if wrong.promise != "output":
                raise AuditError(f"train does not do the same twice, on the same data with the same seed. {why} {WHAT_TO_FIX}")

    def check_claim(self) -> None:
        """Compare clipping norm, noise, sampling and the number of steps with the claim."""
        first, run = self.first, self._claim
        found, notes = self._noise(self._play(self._data, self._seed + 1))
        sampling, untold = sampling_findings(first, run, self._probed)
        self.findings.add(*found, *sampling, *step_findings(first, self._promised))
        self.notes += [*notes, *untold]
        taken = sum(step.settings is not None or not first.private for step in first.steps)
        if run is not None and taken > run.steps:
            told = f"The training takes {taken}{'' if first.ended else ' or more'} steps, and {int(run.steps)} are claimed."
            self.findings.add(Finding("steps", told, None, None, taken, float(run.steps)))

    def _noise(self, other: Recording) -> tuple[list[Finding], list[str]]:
        """What is wrong with the noise, and what of it cannot be compared. other: a training with another seed."""
        first, promised, run = self.first, self._promised, self._claim
        if first.private or all(step.sums for step in first.steps):
            return noise_findings(*(noise_of(one, run, promised, None) for one in (first, other))), []
        if len(other.steps) == len(first.steps) and all(map(same_update, first.steps, other.steps)):
            told = "Trainings with different seeds release the same: train sets a seed, which tells the noise to all who know it."
            return [Finding("noise", told, 1)], []
        call = "Call betastar.audit.released(update, without_noise=...)"
        untold = f"its random numbers are not drawn by PyTorch. {call} in the loop."
        for always in () if first.listed else (False, True):
            silent, double = (self._silent(first, factor, always) for factor in (0.0, 2.0))
            if silent is None or double is None:
                break
            # Before the first step, without a model, normal numbers may be weights: that step's noise is not compared.
            skipped = 1 if not always and not first.steps[0].uses else 0
            noise = noise_of(first, run, promised, silent)[skipped:]
            if not any(part.any() for step in noise for part in step.parts.values()):
                continue
            if not linear(noise, noise_of(double, run, promised, first)[skipped:]):
                untold = f"normal numbers are also drawn for something else. {call}."
                break
            again = self._silent(other, 0.0, always)
            others = [] if again is None else noise_of(other, run, promised, again)[skipped:]
            untold = "Noise of the first step was not compared: no model was used before it."
            return noise_findings(noise, others), [untold] * skipped
        if missing := self._without_noise():
            told = f"There is no noise at {missing}: on records of zeros it is not changed at all."
            return [Finding("noise", told, 1, missing, 0.0, 1.0)], []
        return [], [f"Noise was not compared: {untold}"]

    def _silent(self, reference: Recording, factor: float, always: bool) -> Recording | None:
        """The steps of a training with its noise multiplied by a factor; None if it then fails."""
        seed = self._seed if reference is self.first else self._seed + 1
        return self._tried(self._data, seed, reference=reference, scaled=Scaled(factor, reference, always))

    def _without_noise(self) -> str | None:
        """A parameter that has no noise: with records of zeros its updates are zero, to the last entry."""
        if not isinstance(self._data, TensorDataset) or not self._data.tensors[0].is_floating_point():
            return None
        zeros = self._tried(TensorDataset(torch.zeros_like(self._data.tensors[0]), *self._data.tensors[1:]))
        steps = [] if zeros is None else zeros.steps
        names = {name: None for step in steps for name in step.gradients}
        return next((one for one in names if not any(step.gradients[one].any() for step in steps if one in step.gradients)), None)

    def drawn_records(self, record: int | None) -> tuple[int, ...]:
        """Records that are drawn, where the loop does not say which: they change an update if they are replaced.

        Some are replaced one by one; if none of them is drawn, one is found by halves of all records.
        """
        data, first = self._data, self.first
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self._seed)).tolist()

        def moved(some: Sequence[int], own: bool = False) -> set[int]:
            recording = self._tried(changed(data, {one: extreme(data, one, own) for one in some}), reference=first)
            comparison = Comparison(replace(self._promised, distances=(float("inf"),)), -1, "", TWICE, Findings())
            try:
                return set() if recording is None else set(comparison(first, recording, {}).moved)
            except (AuditError, NotFiniteError):
                return set()

        if record is not None:
            return (record,)
        if not first.listed:
            self._probed = [(one, moved([one]) | moved([one], own=True)) for one in order[:PROBED]]
        often = [one for one in self._probed if one[1]]
        best = sorted(often, key=lambda one: (len(one[1]) == len(first.steps), -len(one[1])))
        if best:
            return tuple(one for one, _ in best[:RECORDS])
        left = order
        while len(left) > 1:
            half = left[: len(left) // 2]
            left = half if moved(half) else left[len(left) // 2 :]
        return (left[0],)

    def compare(self, record: int, neighbour: Neighbour) -> Compared | None:
        """Replay on data with another record; None if that was not possible."""
        findings, text = len(self.findings), f"With {neighbour.title} the training"
        try:
            recording = self._play(neighbour.data, reference=self.first)
            comparison = Comparison(self._promised, record, neighbour.title, WORLDS, self.findings)
            compared = comparison(self.first, recording, self._again.output)
        except NotFiniteError:
            if not neighbour.made_up:
                told = f"train must compute finite gradients, got some that are not, with {neighbour.title}."
                raise AuditError(told) from None
            self.notes.append(f"{text} computes numbers that are not finite; this change was left out.")
            return None
        except AuditError as problem:
            if neighbour.made_up and "raised" in str(problem):
                self.notes.append(f"{text} stops with an error; this change was left out.")
            elif len(self.findings) == findings:
                raise
            return None
        self.largest = max(self.largest, compared.largest)
        if recording.fetched != self.first.fetched[: len(recording.fetched)]:
            self.findings.add(Finding("sampling", "The batches that are drawn depend on what the record contains."))
        return compared

    def leave_out(self, record: int) -> None:
        """Train without a record: the divisor, other settings and the number of steps must not tell."""
        recording = self._play(without(self._data, record))
        Comparison(self._promised, record, "", ("with the record", "without it"), self.findings).settings(self.first, recording)

    def among_others(self, records: Sequence[int]) -> None:
        """Replay with all other records changed: each of these must contribute what it contributes among the others.

        The number of steps, the settings and the output then depend on the other records, if they are others: hence on one of
        them, since they can be changed one by one.
        """
        data, first = self._data, self.first
        if first.listed:
            return
        chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(self._seed)).tolist()[:OTHERS]
        around = {one: extreme(data, one) for one in chosen if one not in records}
        alike = [dict.fromkeys(range(len(data)), extreme(data, records[0], own)) for own in (False, True)]
        others, *equal = (self._tried(changed(data, some), reference=first) for some in (around, *alike) if len(some) <= OTHERS)
        for recording in (others, *equal):
            scratch = Findings()
            if recording is not None:
                self._many(recording, scratch)
            self.findings.add(*(one for one in scratch.all() if one.promise in ("steps", "settings", "output")))
        self.findings.add(*(finding for one in equal if one is not None for finding in length_findings(one, self._promised)))
        if len(known := [one for one in equal if one is not None]) == 2:
            self.findings.add(*size_findings(known[0], known[1], self._claim, len(data)))
        for one in records if others is not None else ():
            new = {one: extreme(data, one)}  # once: data may draw random numbers
            a, b = (self._tried(changed(data, {**some, **new}), reference=first) for some in ({}, around))
            comparison = Comparison(self._promised, one, "numbers that are larger, among others", OF_MANY, self.findings)
            if a is None or b is None or others is None:
                continue
            try:
                alone, among = comparison(first, a, {}), comparison(others, b, {})
            except (AuditError, NotFiniteError):  # other random numbers were drawn
                continue
            self.findings.add(*mixing_findings(one, alone, among))

    def _many(self, recording: Recording, scratch: Findings) -> None:
        try:
            Comparison(self._promised, None, "", OF_MANY, scratch)(self.first, recording, self._again.output)
        except (AuditError, NotFiniteError):
            return

    def _tried(self, data: Data, seed: int | None = None, **told: Any) -> Recording | None:
        """Train on the data; None if that fails."""
        try:
            return self._play(data, seed, **told)
        except (AuditError, NotFiniteError):
            return None

    def _play(
        self,
        data: Data,
        seed: int | None = None,
        reference: Recording | None = None,
        scaled: Scaled | None = None,
    ) -> Recording:
        """Train on the data, and record it. reference: an earlier training whose updates are applied."""

        def again(number: int, _: object) -> Any:
            if reference is None:
                return None
            if number >= len(reference.steps):
                raise EnoughError
            return reference.steps[number].gradients

        recorder = Recorder(self._train, self._steps, self._limit, scaled, self.first.late)
        try:
            recording = recorder.run(data, self._seed if seed is None else seed, again)
        except (AuditError, NotFiniteError):
            raise
        except Exception as problem:
            number = len(recorder.recording.steps)
            after = f"{type(problem).__name__}{f' after step {number}' if number else ''}: {problem}"
            raise AuditError(f"train must work again and again, with any record in the data, but raised {after}") from problem
        if recording.listed and self._weights:
            recording.steps = [
                replace(b, gradients={k: v.double() - a.gradients[k].double() for k, v in b.gradients.items()})
                for a, b in pairwise(recording.steps)
            ]
        return recording


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
        raise AuditError(f"no record was drawn in {len(batches)} steps, so that nothing can be tested: use more steps.")
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
