"""The command `betastar train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from betastar.cli.options import arguments, option
from betastar.rounding import down
from betastar.runs.reading import Json

#: What training takes unless something else is given.
OWN = "the study's"


@dataclass(frozen=True)
class OutputOption:
    output: Path = option(help="Folder of the run; must be new unless --resume is given.")


@dataclass(frozen=True)
class TrainOptions:
    """What a run is asked for; `runs.config.Config` has the same, with what a study has of its own."""

    study: str = option("adult", "'adult', 'purchase', or the path of a CSV or Parquet table.", argument="study")
    label: str | None = None
    sensitive: str | None = option(None, default="age, for adult")
    value: tuple[str, ...] = option((), default="all in the table")
    between: str | None = None
    along: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    person: str | None = None
    max_records_per_person: int | None = option(None, min=1)
    public: str | None = None
    data: str | None = None
    checksum: str | None = None
    synthetic_records: int | None = option(None, min=1000)
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
    """Train with DP-SGD, watch membership and attribute inference, and write a summary.

    \b
    Examples:
      betastar train -o runs/adult
      betastar train people.csv --label income --sensitive age --between 17:90 -o runs/people
      betastar train adult --seeds 5 --jobs 2 -o runs/five
      betastar train adult --sensitive sex --with relationship --target-attribute-beta .995 -o runs/protected
    """
    from betastar.datasets.study import StudyError
    from betastar.report.facts import load
    from betastar.report.report import summarise
    from betastar.runs.config import Config
    from betastar.runs.folder import RunFolder
    from betastar.runs.loop import train as run
    from betastar.runs.loop import train_seeds

    if options.seed is not None and several.seeds is not None:
        raise StudyError("--seed is one run, --seeds are several: choose one.")
    if options.target_beta is not None and options.scope == "batch":
        raise StudyError("--target-beta needs all records (--scope dataset): a batch proves nothing.")
    config = replace(Config(**arguments(replace(options, between=None), Config)), between=_range(options.between))
    if several.seeds is None:
        with _progress() as tell:
            run(config, place.output, outcome.resume, tell)
        folders = [place.output]
    else:
        with _backend(several.backend):
            runs = train_seeds(config, place.output, range(several.seeds), several.jobs, outcome.resume)
            folders = [folder.path for folder in runs]
    texts = [summarise(folder).read_text() for folder in folders]
    if not outcome.json:
        print("\n".join(texts))
        return
    answers = [
        {"folder": str(run.path), **run.status.to_json(), "proof": load(run.path).proof, "last": run.epochs[-1]}
        for run in map(RunFolder, folders)
    ]
    print(json.dumps(answers[0] if several.seeds is None else {"runs": answers}))


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"--between must be two numbers as in 17:90, got {text!r}.") from None
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


class _progress:  # noqa: N801
    """A bar with loss, accuracy and β*; on a terminal only."""

    def __enter__(self) -> Callable[[Json], None]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None)
        self._accuracy = float("nan")
        self._bar.start()
        return self._tell

    def _tell(self, news: Json) -> None:
        if news.get("finished"):
            self._accuracy = news["accuracy"]
            return
        beta = (
            f"β* {down(news['attribute'], 3)} (attribute) {down(news['membership'], 3)} (membership)"
            if "attribute" in news
            else ""
        )
        text = f"epoch {news['epoch']}  loss {news['loss']:.3f}  accuracy {100 * self._accuracy:.1f} %  {beta}"
        self._bar.update(self._task, description=text, advance=1)

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()
