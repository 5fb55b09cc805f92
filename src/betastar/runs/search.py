"""`betastar train --trials`: several runs with settings drawn at random, of which only the best one is kept.

The split of the records is one for all of them, so that the test records, by which the winner is chosen, are trained on by none.
Each run has noise of its own from the operating system. What was drawn is written before the first run; a search that was
interrupted goes on with it. Losing runs are deleted, and nothing of them is shown.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

from betastar import files
from betastar.quality import main_figure
from betastar.runs.config import Config
from betastar.runs.folder import STATUS, RunFolder
from betastar.runs.loop import quietly, train
from betastar.runs.reading import Inside, Json, StudyError, object_of
from betastar.runs.study import Study
from betastar.training.tune import space_of

#: What was drawn, and how far the search is; the folders of runs. Both are deleted in the end.
SEARCH, TRIALS = "search.json", "trials"
#: The parameters that may differ between runs, by the words of the command line. Others change what each run gives away.
SEARCHED = {"lr": "learning_rate", "learning-rate": "learning_rate", "hidden": "hidden", "clip": "max_grad_norm"}
SEARCHED |= {"max-grad-norm": "max_grad_norm"}


def spaces(texts: tuple[str, ...]) -> dict[str, str]:
    """What each parameter is drawn from, as in "lr=1e-4:1e-2log" and "hidden=32,64x32"."""
    found: dict[str, str] = {}
    for text in texts:
        word, equals, given = (part.strip() for part in text.partition("="))
        if not equals or word not in SEARCHED:
            allowed = ", ".join(SEARCHED)
            raise StudyError(
                f"--search must be as in lr=1e-4:1e-2log or hidden=32,64, with one of {allowed}, got {text!r}. Noise, batch size "
                "and epochs change what a run reveals: they are the same for all."
            )
        if SEARCHED[word] in found:
            raise StudyError(f"--search has {word} twice: give it once.")
        found[SEARCHED[word]] = given
    try:
        space_of(found or {"learning_rate": [0.1]})
    except ValueError as problem:
        raise StudyError(f"--search: {problem}") from None
    return found


def _drawn(config: Config) -> list[Json]:
    """The parameters of each run, drawn from the entropy of the operating system."""
    law, generator = config.law, np.random.default_rng()
    assert law is not None
    space = spaces(config.search)
    draws = space_of(space) if space else {}
    return [{name: _checked(name, draw(generator)) for name, draw in draws.items()} for _ in range(law.draw(generator))]


def _checked(name: str, value: Any) -> Any:
    """A parameter that was drawn, of its type."""
    try:
        if name != "hidden":
            number = float(value)
            if number > 0.0:
                return number
        else:
            widths = [int(width) for width in str(value).split("x")]
            if min(widths) > 0:
                return widths
    except ValueError:
        pass
    allowed = "widths of layers such as 64 or 64x32" if name == "hidden" else "numbers greater than 0"
    raise StudyError(f"--search must have {allowed} for {name}, got {value!r}.")


def search(
    config: Config,
    path: str | Path,
    resume: bool = False,
    jobs: int = 1,
    tell: Callable[[Json], None] | None = None,
    study: Study | None = None,
) -> RunFolder:
    """Train as many models as `config.trials` says, and keep the best one in the folder.

    Parameters
    ----------
    config : Config
        What is asked for, with `trials` and `search`.
    path : path
        The folder of the winner, which must be new or empty unless `resume` is given.
    resume : bool
        Whether to go on with the search that is there.
    jobs : int
        The number of runs at a time, through joblib.
    tell : callable, optional
        Called with the phase that begins: which trial it is, and nothing of how it goes.
    study : Study, optional
        A study of one's own, as for `train`.

    Returns
    -------
    RunFolder
        The folder of the winner.
    """
    if config.seed is not None:
        raise StudyError("--trials must have no --seed: models with the same seed have the same noise.")
    config = replace(config, monitor=False, ledger=False)  # what is measured of a loser is nobody's to see
    folder = RunFolder(path)
    if folder.complete:
        folder.check(resume)
        kept = folder.config
        folder.compare(replace(config, **{name: getattr(kept, name) for name in spaces(config.search)}))
        return folder
    if not (folder / SEARCH).exists():
        folder.check(resume)
    elif not resume:
        raise StudyError(f"{folder.path} already holds a search: choose another folder, or --resume to go on with it.")
    with folder.locked():
        state = _begun(config, folder)
        seeded = replace(config, seed=int(state["seed"]))
        study = seeded.load() if study is None else seeded.applied_to(study)
        together = 1 if jobs == 1 else joblib.effective_n_jobs(jobs)
        while state["done"] < len(state["drawn"]):
            first = state["done"]
            some = range(first, min(first + together, len(state["drawn"])))
            if tell:
                tell({"phase": f"training model {first + 1} of {len(state['drawn'])}"})
            threads = max(1, torch.get_num_threads() // together)
            todo = [(config, folder / TRIALS, i, state["drawn"][i], int(state["seed"]), study, threads) for i in some]
            if together == 1:
                scores = [_trial(*one) for one in todo]
            else:
                scores = joblib.Parallel(n_jobs=jobs)(joblib.delayed(_trial)(*one) for one in todo)
            for i, score in zip(some, scores, strict=True):
                better = state["winner"] is None or score > state["score"]
                loser = state["winner"] if better else i
                if better:
                    state |= {"winner": i, "score": score}
                state["done"] = i + 1
                _write(folder, state)
                if loser is not None:
                    shutil.rmtree(folder / TRIALS / str(loser), ignore_errors=True)
        _keep(folder, folder / TRIALS / str(state["winner"]))
    return folder


def _begun(config: Config, folder: RunFolder) -> Json:
    """What was drawn: before now, or at this moment."""
    file, asked = folder / SEARCH, config.to_json()
    if not file.exists():
        drawn = _drawn(config)
        state: Json = {"asked": asked, "seed": config.chosen_seed(), "drawn": drawn, "done": 0, "winner": None, "score": None}
        _write(folder, state)
        return state
    state = object_of(file)
    with Inside(file):
        for name, value in state["asked"].items():
            if asked[name] != value:
                raise StudyError(f"{folder.path} holds another search: its {name} is {value!r}, not {asked[name]!r}.")
        _ = state["seed"], state["drawn"], state["done"], state["winner"]
    return state


def _write(folder: RunFolder, state: Json) -> None:
    folder.write(SEARCH, json.dumps(state, indent=1) + "\n")


def _trial(config: Config, trials: Path, number: int, drawn: Json, seed: int, study: Study, threads: int) -> float:
    """Train a model in a folder of its own, or go on with it, and say how good it is on the test records."""
    chosen: dict[str, Any] = {name: tuple(value) if name == "hidden" else value for name, value in drawn.items()}
    one, folder = replace(config, **chosen), RunFolder(trials / str(number))
    files.make_private(trials)
    if not folder.begun:
        files.make_private(folder.path)
        folder.begin(one, seed)  # the seed of the split and of the first weights; noise comes from the operating system
    with quietly(threads):
        train(one, folder.path, resume=True, study=one.applied_to(study))
    last = folder.epochs[-1]
    figure = main_figure(last)
    value = float(last[figure.name])
    if not np.isfinite(value):
        return -float("inf")
    return value if figure.share else -value


def _keep(folder: RunFolder, winner: Path) -> None:
    """Move the winner's files to the folder, that which makes a run complete last, and delete everything else."""
    names = (
        sorted((one.name for one in winner.iterdir() if one.is_file()), key=lambda name: name == STATUS)
        if winner.exists()
        else []
    )
    for name in names:
        (winner / name).replace(folder / name)
    shutil.rmtree(folder / TRIALS, ignore_errors=True)
    (folder / SEARCH).unlink(missing_ok=True)
