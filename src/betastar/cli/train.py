"""The command `betastar train`."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from betastar.cli.options import arguments, option

#: What training takes unless something else is given.
OWN = "the study's"


@dataclass(frozen=True)
class OutputOption:
    output: Path = option(help="Folder of the run; must be new unless --resume is given.")


@dataclass(frozen=True)
class TrainOptions:
    """What a run is asked for; `runs.config.Config` has the same, with what a study has of its own."""

    study: str = option("adult", "'adult', or the path of a CSV or Parquet table.", argument="study")
    label: str | None = None
    task: str | None = None
    label_range: str | None = None
    sensitive: str | None = option(None, default="age, for adult")
    value: tuple[str, ...] = option((), default="all in the table")
    between: str | None = None
    along: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    person: str | None = None
    max_records_per_person: int | None = option(None, min=1)
    public: str | None = None
    epochs: int | None = option(None, "Number of epochs.", OWN, min=1)
    batch_size: int | None = option(None, "Batch size.", OWN, min=1)
    noise_multiplier: float | None = option(None, default=OWN, min=0.01)
    max_grad_norm: float | None = option(None, default=OWN, min=1e-6)
    sampling: str = "poisson"
    max_batch_size: int | None = option(
        None, "With Poisson sampling: of a larger batch, so many records are kept at random.", min=1
    )
    learning_rate: float | None = option(None, default=OWN, min=0.0)
    hidden: tuple[int, ...] = option((), default=OWN, min=1)
    seed: int | None = option(
        None,
        "Seed of split, weights, sampling and noise. Whoever knows it can compute the noise.",
        "drawn at random, and deleted when the run is complete",
        min=0,
    )
    scope: str | None = None
    every: int = option(1, min=1)
    diameter: str = "exact"
    approximate: bool = False
    target_beta: float | None = None
    gap: float | None = None
    target_attribute_beta: float | None = None


@dataclass(frozen=True)
class SeveralOptions:
    """Several runs, which differ in their seed."""

    seeds: int | None = option(None, min=1)
    jobs: int = option(1, "Number of seeds at a time (with --seeds); -1 for all cores.")
    backend: str | None = None


@dataclass(frozen=True)
class OutcomeOptions:
    resume: bool = False
    json: bool = option(False, "Print status and last epoch as JSON.")


def train(place: OutputOption, options: TrainOptions, several: SeveralOptions, outcome: OutcomeOptions) -> None:
    """Train with DP-SGD, watch membership and attribute inference, and write the model, a model card and a summary.

    \b
    Examples:
      betastar train -o runs/adult
      betastar train people.csv --label income --sensitive age --between 17:90 -o runs/people
      betastar train houses.csv --label price --label-range 0:2000000 --sensitive rooms -o runs/houses
      betastar train adult --seeds 5 --jobs 2 -o runs/five
      betastar train adult --sensitive sex --with relationship --target-attribute-beta .995 -o runs/protected
    """
    from betastar.cli import printing, run_progress

    with printing.phase("starting"):
        from betastar.cli import run_ending
        from betastar.report import model_card
        from betastar.report.facts import load
        from betastar.report.report import summarise
        from betastar.runs.config import Config
        from betastar.runs.folder import RunFolder
        from betastar.runs.loop import seed_folders, train_seeds
        from betastar.runs.loop import train as run
        from betastar.runs.reading import StudyError

    if options.seed is not None and several.seeds is not None:
        raise StudyError("--seed is one run, --seeds are several: choose one.")
    if options.target_beta is not None and options.scope == "batch":
        raise StudyError("--target-beta needs all records (--scope dataset): a batch proves nothing.")
    plain = replace(options, between=None, label_range=None)
    between, label_range = _range("--between", options.between), _range("--label-range", options.label_range)
    config = replace(Config(**arguments(plain, Config)), between=between, label_range=label_range)
    resume = outcome.resume
    if several.seeds is None:
        with run_progress.one_run() as tell:
            run(config, place.output, resume, tell)
        folders = [place.output]
    else:
        seeds = range(several.seeds)
        folders = seed_folders(place.output, seeds)
        with _backend(several.backend), run_progress.several_runs(folders):
            train_seeds(config, place.output, seeds, several.jobs, resume)
    with printing.phase("drawing the figures of the summary, and writing the model card"):
        for folder in folders:
            summarise(folder)
            model_card.write(folder)
        told = [(folder, load(folder)) for folder in folders]
    if not outcome.json:
        run_ending.show(*told[0]) if several.seeds is None else run_ending.show_several(place.output, told)
        return
    answers = [
        {"folder": str(folder), **(one := RunFolder(folder)).status.to_json(), "proof": facts.proof, "last": one.epochs[-1]}
        for folder, facts in told
    ]
    print(json.dumps(answers[0] if several.seeds is None else {"runs": answers}))


def _range(name: str, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"{name} must be two numbers as in 17:90, got {text!r}.") from None
    return low, high


def _backend(name: str | None) -> AbstractContextManager[object]:
    """A context with the joblib backend of this name, or with the one that joblib uses anyway."""
    import joblib

    if name is None:
        return nullcontext()
    if name == "dask":
        from distributed import Client

        Client()  # type: ignore[no-untyped-call] # joblib finds the newest one; the environment says which cluster it joins
    backend: AbstractContextManager[object] = joblib.parallel_config(backend=name)
    return backend
