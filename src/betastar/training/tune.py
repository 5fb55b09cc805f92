"""Tuning with a guarantee: several private trainings with settings drawn at random, of which only the best one is kept.

What the proof of `betastar.best_of` assumes is done here: the number of trials and all settings are drawn before the first one,
each trial has noise of its own, losing models and scores are neither shown nor kept, and a search that was interrupted goes on
with what was drawn.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, log
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

from betastar import files, validation
from betastar.analyze import analyze
from betastar.calibrate import enforced
from betastar.dpsgd import DPSGD, Segment
from betastar.risk import METRICS, Risk
from betastar.threats import AttributeInference, Membership
from betastar.training.private_training import METHOD, PrivateTraining
from betastar.tuning import BestOf, Trials, best_of
from betastar.validation import WrongTypeError, WrongValueError

#: The files of a search: what was drawn and the best so far; the weights of the best so far.
SEARCH, WINNER, LOCK = "search.json", "winner.pt", ".lock"
FORMAT = 1
#: A range of numbers as text: "0:1", or "1e-4:1e-2log" for even ratios.
RANGE = re.compile(r"\s*([^:,]+):([^:,]+?)\s*(log)?\s*")

#: What a setting is drawn from.
Draw = Callable[[np.random.Generator], Any]


def space_of(space: Any) -> dict[str, Draw]:
    """How each setting is drawn: from a list, all equally likely; from a range; or by a function of a generator."""
    if not isinstance(space, Mapping) or not space:
        text = "a mapping from the name of each setting to what it is drawn from, with at least one setting"
        raise WrongValueError("space", validation.MUST, {"allowed": text, "value": repr(space)})
    return {str(name): _draw_of(str(name), given) for name, given in space.items()}


def _draw_of(name: str, given: Any) -> Draw:
    if callable(given):
        return given
    if isinstance(given, str) and (match := RANGE.fullmatch(given)):
        try:
            low, high = float(match[1]), float(match[2])
        except ValueError:
            low, high = 1.0, 0.0
        if not (isfinite(low) and isfinite(high) and low < high and (low > 0.0 or not match[3])):
            allowed = "a range as 0:1, or 1e-4:1e-2log with positive ends"
            raise WrongValueError("space", "{argument} of {name} must be {allowed}, got {value}.", _said(name, allowed, given))
        if match[3]:
            return lambda generator: float(np.exp(generator.uniform(log(low), log(high))))
        return lambda generator: float(generator.uniform(low, high))
    values = [_number(part.strip()) for part in given.split(",") if part.strip()] if isinstance(given, str) else given
    if not isinstance(values, Sequence | np.ndarray) or not len(values):
        allowed = "a list of at least one value, a range as 1e-4:1e-2log, or a function of a generator"
        raise WrongValueError("space", "{argument} of {name} must be {allowed}, got {value}.", _said(name, allowed, given))
    return lambda generator: values[int(generator.integers(len(values)))]


def _said(name: str, allowed: str, given: Any) -> dict[str, str]:
    return {"name": name, "allowed": allowed, "value": repr(given)}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Tuned:
    """The winner of a search, and what is proved of its release.

    Attributes
    ----------
    settings : dict
        The settings of the winner.
    score : float
        Its score.
    weights : dict
        The state dict of its model.
    run : BestOf or DPSGD
        What was done; if the settings were chosen by the scores of other models, all models one after another.
    membership : Risk
        Membership inference against the winner.
    attributes : dict
        Attribute inference by the name of each secret that a gap protects.
    records : int
        The number of records of a person.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar.training import Tuned
    >>> run = bs.best_of(bs.DPSGD(noise_multiplier=4.0, sample_rate=0.01, steps=500), 20)
    >>> print(Tuned({"lr": 0.1}, 0.8, {}, run, bs.analyze(run, method="certified")))
    Proved: best of 20: an attacker who asks whether a record was trained on is right at most 56.04 % of the time, β* ≥ 0.8793.
    """

    settings: dict[str, Any]
    score: float
    weights: dict[str, Any]
    run: BestOf | DPSGD
    membership: Risk
    attributes: dict[str, Risk] = field(default_factory=dict)
    records: int = 1

    def __str__(self) -> str:
        whom = "a record was" if self.records == 1 else f"the {self.records} records of a person were"
        done = f"best of {self.run.parts[0].trials}" if isinstance(self.run, BestOf) else "all models together"
        lines = [f"Proved: {done}: an attacker who asks whether {whom} trained on is {_right(self.membership)}."]
        for name, risk in self.attributes.items():
            lines.append(f"Proved: {done}: an attacker who guesses {name} is {_right(risk)}.")
        return "\n".join(lines)


def _right(risk: Risk) -> str:
    share = METRICS["success"].rounded(float(risk.success().upper), 0.5)
    return f"right at most {share} of the time, β* ≥ {METRICS['bayes_security'].rounded(float(risk.bayes_security.lower))}"


def tune(
    make_training: Callable[[Any], PrivateTraining],
    space: Any,
    trials: Any = 20,
    *,
    score: Callable[[PrivateTraining], float],
    folder: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: bool = True,
) -> Tuned:
    """Train several models privately, with settings drawn at random, and keep the best one.

    The number of trials and the settings of all of them are drawn before the first one, with replacement, from entropy of the
    operating system. What is proved is about the records that are trained on; records that the score looks at must be others, and
    nothing is proved of these. Losing models and their scores are not shown, not returned and not kept; do not log them in
    `make_training` or `score`. A trial must not use what another one has learned.

    Parameters
    ----------
    make_training : callable
        Makes a new model and its `PrivateTraining` from a dictionary of settings, with a plan (`epochs` or `steps`), without
        `seed` and without `budget`. All trainings have the same noise, sampling and number of steps. With an Optuna study it gets
        a trial, which it asks for the settings (`trial.suggest_float`); it must not look at the trial's number.
    space : mapping or optuna.Study
        What each setting is drawn from: a list of values, which are equally likely; a range such as "0:1", or "1e-4:1e-2log" for
        even ratios; or a function of a NumPy generator, always the same. Or a new Optuna study: with `RandomSampler` and
        `NopPruner` its settings are drawn at random, and it is not told the scores. Any other sampler or pruner looks at the
        scores of several models, and the guarantee is that of releasing all of them.
    trials : int, Trials or probabilities
        The number of models, as for `betastar.best_of`.
    score : callable
        How good a finished training is, a finite number; the largest wins. It looks at the model and at held-out people or public
        records only.
    folder : path, optional
        Where the search is kept, so that the same call resumes it. It holds the best model so far, and in the end the winner.
    jobs : int
        The number of trials at a time, through joblib; its `parallel_config` chooses the backend.
    progress : bool
        Whether the number of finished trials is shown in a terminal.

    Returns
    -------
    Tuned
        The winner, and what is proved of its release.

    Raises
    ------
    TypeError, ValueError
        If an argument is not allowed, a training is not one that the proof covers, a score is not finite, or the number of models
        was drawn as 0, so that there is nothing to release.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import PrivateTraining, tune
    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(60, 3), torch.arange(60) % 2)
    >>> others = torch.randn(20, 3), torch.arange(20) % 2
    >>> def make(settings):
    ...     model = torch.nn.Linear(3, 2)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    ...     loss = torch.nn.CrossEntropyLoss()
    ...     return PrivateTraining(model, optimizer, data, loss, batch_size=10, epochs=1, noise_multiplier=8.0)
    >>> def accuracy(training):
    ...     return float((training.model(others[0]).argmax(1) == others[1]).float().mean())
    >>> winner = tune(make, {"lr": "0.01:1log"}, trials=3, score=accuracy)
    >>> winner.run.parts[0].trials
    Trials(law='fixed', mean=3.0, probabilities=())
    """
    law = Trials.of(trials)
    if (optuna := sys.modules.get("optuna")) is not None and isinstance(space, optuna.Study):
        return _with_optuna(optuna, make_training, space, law, score, folder, jobs)
    draws = space_of(space)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs == 0:
        raise WrongValueError(
            "jobs", validation.MUST, {"allowed": "a number of at least 1, or -1 for all cores", "value": repr(jobs)}
        )
    described = {"trials": repr(law), "space": {name: _described(space[name]) for name in space}}
    with _kept(None if folder is None else Path(folder), described, law, draws) as search:
        seen: WeakSet[nn.Module] = WeakSet()
        for finished in _finished(make_training, score, search, seen, jobs, progress):
            search.add(finished)
        return search.result(law)


@dataclass(frozen=True)
class _Trial:
    """What is known of a trial when it is finished."""

    score: float
    weights: dict[str, Any]
    run: DPSGD
    records: int
    gaps: dict[str, float]

    @property
    def mechanism(self) -> tuple[Any, ...]:
        """What the proof is about, the same for all trials."""
        return repr(self.run), self.records, tuple(self.gaps.items())


def _trial(
    make_training: Callable[[Any], PrivateTraining],
    settings: Any,
    score: Callable[[PrivateTraining], float],
    seen: WeakSet[nn.Module] | None,
) -> _Trial:
    """Train and score a model. settings: a dictionary, or a trial of Optuna."""
    training = make_training(dict(settings) if isinstance(settings, dict) else settings)
    _check(training, seen)
    training.fit(progress=False)
    guarantee = training.guarantee
    value = score(training)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not isfinite(value):
        text = "{argument} must be a finite number for every model, a low one for a model that diverged, got {value}."
        raise WrongValueError("score", text, {"value": repr(value)})
    weights = {name: one.detach().cpu().clone() for name, one in training.model.state_dict().items()}
    return _Trial(float(value), weights, guarantee.run, training.records, dict(training.gaps))


def _with_optuna(
    optuna: Any,
    make_training: Callable[[Any], PrivateTraining],
    study: Any,
    law: Trials,
    score: Callable[[PrivateTraining], float],
    folder: str | os.PathLike[str] | None,
    jobs: int,
) -> Tuned:
    """The same with the settings of a study: the best of several if these are drawn at random, otherwise all together."""
    if folder is not None or jobs != 1:
        which, value = ("folder", folder) if folder is not None else ("jobs", jobs)
        text = "{argument} must be left out with an Optuna study, got {value}."
        raise WrongValueError(which, text, {"value": repr(value)})
    if study.trials or len(study.directions) != 1 or study.direction != optuna.study.StudyDirection.MAXIMIZE:
        text = "{argument} must be a new study with direction='maximize', got one with {number} trials and {directions}."
        directions = ", ".join(one.name.lower() for one in study.directions)
        raise WrongValueError("space", text, {"number": str(len(study.trials)), "directions": directions})
    at_random = type(study.sampler) is optuna.samplers.RandomSampler and type(study.pruner) is optuna.pruners.NopPruner
    if not at_random and law.law != "fixed":
        who = f"{type(study.sampler).__name__} and {type(study.pruner).__name__}"
        text = "{argument} must be a number with {who}, which look at the scores, got {value}."
        raise WrongValueError("trials", text, {"who": who, "value": str(law)})
    number = law.draw(np.random.default_rng())
    search, seen = _Search(None, {}, Trials.fixed(max(number, 1)), {}), WeakSet[nn.Module]()
    for _ in range(number):
        trial = study.ask()
        try:
            finished = _trial(make_training, trial, score, seen)
        except optuna.TrialPruned:
            if at_random:  # "stop when it is not good enough" depends on the records
                text = "{argument} must not prune a trial of a random search: the best of several has to be one of all of them."
                raise WrongValueError("make_training", text) from None
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        search.settings[search.done] = dict(trial.params)
        search.add(finished)
        if not at_random:
            study.tell(trial, finished.score)
    return search.result(law, together=not at_random)


def _check(training: Any, seen: WeakSet[nn.Module] | None) -> None:
    """Refuse a training that the proof does not cover."""

    def refuse(text: str) -> None:
        raise WrongValueError("make_training", "{argument} " + text)

    if not isinstance(training, PrivateTraining):
        raise WrongTypeError("make_training", "{argument} must return a PrivateTraining, got {value}.", {"value": repr(training)})
    if training.state_dict()["made"]["seed"] is not None:
        refuse("must leave out seed: trials with the same seed have the same noise, and differences of them have none.")
    if training.steps or (seen is not None and training.model in seen):
        refuse("must make a new model and a new PrivateTraining at each call: a trial must not start from another one.")
    if training.planned_steps is None:
        refuse("must give epochs or steps: the number of updates must not depend on how well a trial goes.")
    if training.planned_guarantee().membership is None:
        refuse("must leave out budget: the number of updates then depends on the records. Use gap instead.")
    if seen is not None:
        seen.add(training.model)


def _finished(
    make_training: Callable[[dict[str, Any]], PrivateTraining],
    score: Callable[[PrivateTraining], float],
    search: _Search,
    seen: WeakSet[nn.Module],
    jobs: int,
    progress: bool,
) -> Iterator[_Trial]:
    """Each trial that is left, as many at a time as there are jobs."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not progress or not console.is_terminal) as bar:
        task = bar.add_task("trials", total=len(search.settings), completed=search.done)
        if jobs == 1:
            for settings in search.settings[search.done :]:
                yield _trial(make_training, settings, score, seen)
                bar.advance(task)
            return
        import joblib

        together = joblib.effective_n_jobs(jobs)
        while search.done < len(search.settings):
            some = search.settings[search.done : search.done + together]
            for one in joblib.Parallel(n_jobs=jobs)(joblib.delayed(_trial)(make_training, each, score, None) for each in some):
                yield one
                bar.advance(task)


def _described(given: Any) -> Any:
    """What a setting is drawn from, to compare it with that of an earlier call."""
    return getattr(given, "__qualname__", "a function") if callable(given) else repr(given)


class _Search:
    """The settings of all trials, how many are done, and the best one so far; with a folder, kept there after each trial."""

    def __init__(self, folder: Path | None, described: dict[str, Any], law: Trials, draws: Mapping[str, Draw]) -> None:
        self.folder, self.described = folder, described
        self.done = 0
        self.best: _Trial | None = None
        self.winner: int | None = None
        if folder is not None and (folder / SEARCH).exists():
            self._load(folder)
            return
        generator = np.random.default_rng()  # entropy of the operating system
        number = law.draw(generator)
        self.settings = [{name: draw(generator) for name, draw in draws.items()} for _ in range(number)]
        self._save()

    def add(self, trial: _Trial) -> None:
        """Keep a trial if it is the best one so far."""
        if self.best is not None and trial.mechanism != self.best.mechanism:
            text = (
                "{argument} must make trainings with the same noise, sampling, steps, records and gaps whatever the settings. If "
                "the space is to vary these, draw one of several runs for each trial and analyse bs.best_of([...], weights=...)."
            )
            raise WrongValueError("make_training", text)
        if self.best is None or trial.score > self.best.score:
            self.best, self.winner = trial, self.done
        self.done += 1
        self._save()

    def result(self, law: Trials, together: bool = False) -> Tuned:
        """The winner; nothing of the others is left. together: all models are charged."""
        if self.best is None:
            raise ValueError(
                "trials was drawn as 0, or every trial was pruned: no model was trained, and nothing can be released."
            )
        assert self.winner is not None
        best, settings = self.best, self.settings[self.winner]
        run = _repeated(best.run, int(law.mean)) if together else best_of(best.run, law)
        membership = analyze(run, Membership(records=best.records), METHOD)
        attributes = {name: analyze(run, AttributeInference(enforced(gap)), METHOD) for name, gap in best.gaps.items()}
        tuned = Tuned(settings, best.score, best.weights, run, membership, attributes, best.records)
        if self.folder is not None:
            told = {**self.described, "settings": settings, "score": best.score, "guarantee": str(tuned), "complete": True}
            # Which of the trials won tells about their number.
            winner = {"settings": settings, "score": best.score, "weights": best.weights}
            text = json.dumps({"format": FORMAT, **told}, indent=1) + "\n"
            files.write_all({self.folder / WINNER: _packed(winner), self.folder / SEARCH: text})
        return tuned

    def _save(self) -> None:
        if self.folder is None:
            return
        state = {"format": FORMAT, **self.described, "drawn": self.settings, "done": self.done, "winner": self.winner}
        try:
            text = json.dumps(state, indent=1) + "\n"
        except TypeError:
            raise WrongValueError(
                "space", "{argument} must have numbers, words and lists only, to be kept in {folder}."
            ) from None
        contents: dict[Path, str | bytes] = {self.folder / SEARCH: text}
        if self.best is not None and self.winner == self.done - 1:
            segments = [asdict(segment) for segment in self.best.run.segments]
            contents = {self.folder / WINNER: _packed({"trial": self.winner, **vars(self.best), "run": segments}), **contents}
        files.write_all(contents)

    def _load(self, folder: Path) -> None:
        state = json.loads((folder / SEARCH).read_text())
        if state.get("complete"):
            raise WrongValueError("folder", "{argument} holds a search that is complete: trials cannot be added to it later.")
        for name, mine in self.described.items():
            if state[name] != mine:
                text = "{argument} holds another search: its {name} is {theirs}, not {mine}."
                raise WrongValueError("folder", text, {"name": name, "theirs": str(state[name]), "mine": str(mine)})
        self.settings, self.done, self.winner = state["drawn"], state["done"], state["winner"]
        if (folder / WINNER).exists():
            kept = torch.load(folder / WINNER, weights_only=True)
            self.winner = kept.pop("trial")
            self.done = max(self.done, self.winner + 1)  # if it was killed between the two files, this trial counts
            run = DPSGD._of(tuple(Segment(**segment) for segment in kept.pop("run")))
            self.best = _Trial(**kept, run=run)


def _repeated(run: DPSGD, times: int) -> DPSGD:
    """A run several times, one after another."""
    return DPSGD._of(tuple(replace(segment, steps=times * segment.steps) for segment in run.segments))


def _packed(content: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    torch.save(content, written)
    return written.getvalue()


@contextmanager
def _kept(folder: Path | None, described: dict[str, Any], law: Trials, draws: Mapping[str, Draw]) -> Iterator[_Search]:
    """The search, while no other process works at it."""
    if folder is None:
        yield _Search(None, described, law, draws)
        return
    if folder.exists() and not (folder / SEARCH).exists() and any(one.name != LOCK for one in folder.iterdir()):
        raise WrongValueError("folder", "{argument} must be new or empty, or hold a search, got {value}.", {"value": str(folder)})
    files.make_private(folder)
    try:
        with files.locked(folder / LOCK):
            yield _Search(folder, described, law, draws)
    except BlockingIOError:
        raise WrongValueError("folder", "another process works at the search in {value}.", {"value": str(folder)}) from None
