"""The command `betastar`."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from betastar.cli import analysis, audit_mechanism, audit_training
from betastar.cli.options import Command, option, was_given
from betastar.cli.report import report
from betastar.rounding import down

app = typer.Typer(
    name="betastar",
    help="How well does a model trained with DP-SGD resist a named attack?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


#: What training takes unless something else is given.
OWN = "the study's"
#: Exit code of a command that was ended by Ctrl-C, and how those that keep what they did go on.
INTERRUPTED = 130
#: Exit code of a command that failed, neither for its input (2) nor for a bound or requirement that does not hold (1).
FAILED = 3
GO_ON = {
    "train": "; the same command with --resume goes on.",
    "reproduce": "; the same command goes on where it stopped.",
    "gaps": "; the same command goes on where it stopped.",
}


def main() -> None:
    """Bad input is one sentence and exit code 2, not a traceback; a file that cannot be written is a sentence and 3; an
    interruption is a line and 130. Exit code 1 is left to what was computed: a bound or a requirement that does not hold."""
    warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook")
    try:
        try:
            app()
        except SystemExit as end:
            if end.code == 1 and isinstance(end.__context__, EOFError | OSError | typer.Abort):  # typer's, for these
                raise end.__context__ from None
            sys.stdout.flush()
            raise
    except (ValueError, TypeError) as problem:
        print(f"betastar: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        _interrupted()
        raise SystemExit(INTERRUPTED) from None
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's, for Ctrl-C
            _interrupted()
        raise
    except BrokenPipeError:
        raise SystemExit(141) from None
    except OSError as problem:
        if problem.filename is None:  # standard output, which Python would try to write once more
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        print(f"betastar: {problem.filename or 'standard output'}: {problem.strerror or problem}.", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(FAILED) from None


def _interrupted() -> None:
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    print(f"\nbetastar: interrupted{GO_ON.get(name, '.')}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        import betastar

        print(f"betastar {betastar.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, option("version", callback=_version, is_eager=True)] = False,
) -> None:
    pass


analysis.register(app)
audit_training.register()
app.add_typer(audit_mechanism.app)


@app.command(cls=Command)
def train(
    output: Annotated[Path, option("output", "Folder of the run; must be new unless --resume is given.")],
    study: Annotated[str, typer.Argument(help="'adult', 'purchase', or the path of a CSV or Parquet table.")] = "adult",
    label: Annotated[str | None, option("label")] = None,
    sensitive: Annotated[str | None, option("sensitive", default="age, for adult")] = None,
    value: Annotated[list[str] | None, option("value", default="all in the table")] = None,
    between: Annotated[str | None, option("between")] = None,
    along: Annotated[list[str] | None, option("with")] = None,
    drop: Annotated[list[str] | None, option("drop")] = None,
    public: Annotated[str | None, option("public")] = None,
    data: Annotated[str | None, option("data")] = None,
    checksum: Annotated[str | None, option("checksum")] = None,
    synthetic_records: Annotated[int | None, option("synthetic_records", min=1000)] = None,
    epochs: Annotated[int | None, option("epochs", "Number of epochs.", OWN, min=1)] = None,
    batch_size: Annotated[int | None, option("batch_size", "Batch size.", OWN, min=1)] = None,
    noise_multiplier: Annotated[float | None, option("noise_multiplier", default=OWN, min=0.01)] = None,
    max_grad_norm: Annotated[float | None, option("max_grad_norm", default=OWN, min=1e-6)] = None,
    learning_rate: Annotated[float | None, option("learning_rate", default=OWN, min=0.0)] = None,
    hidden: Annotated[list[int] | None, option("hidden", default=OWN, min=1)] = None,
    seed: Annotated[
        int | None,
        option(
            "seed",
            "Of split, weights, sampling and noise. Whoever knows it can compute the noise.",
            "drawn at random, and deleted when the run is complete",
            min=0,
        ),
    ] = None,
    seeds: Annotated[int | None, option("seeds", min=1)] = None,
    jobs: Annotated[int, option("jobs", "Seeds at a time (with --seeds); -1 for all cores.")] = 1,
    backend: Annotated[str | None, option("backend")] = None,
    scope: Annotated[str, option("scope")] = "batch",
    every: Annotated[int, option("every", min=1)] = 1,
    diameter: Annotated[str, option("diameter")] = "exact",
    approximate: Annotated[bool, option("approximate", flag=True)] = False,
    target_beta: Annotated[float | None, option("target_beta")] = None,
    gap: Annotated[float | None, option("gap")] = None,
    target_attribute_beta: Annotated[float | None, option("target_attribute_beta")] = None,
    resume: Annotated[bool, option("resume", flag=True)] = False,
    as_json: Annotated[bool, option("json", "Print status and last epoch as JSON.")] = False,
) -> None:
    """Train with DP-SGD, watch membership and attribute inference, and write a summary.

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

    if seed is not None and seeds is not None:
        raise StudyError("--seed is one run, --seeds are several: choose one.")
    if target_beta is not None and scope == "batch" and was_given("scope"):
        raise StudyError("--target-beta needs all records (--scope dataset): a batch proves nothing.")
    config = Config(
        study=study,
        target=label,
        sensitive=sensitive,
        values=tuple(value) if value else None,
        between=_range(between),
        along=tuple(along or ()),
        drop=tuple(drop or ()),
        public=public,
        data=data,
        checksum=checksum,
        records=synthetic_records,
        epochs=epochs,
        batch_size=batch_size,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        learning_rate=learning_rate,
        hidden=tuple(hidden) if hidden else None,
        seed=seed,
        scope=scope,
        every=every,
        diameter=diameter,
        approximate=approximate,
        target_beta=target_beta,
        gap=gap,
        target_attribute_beta=target_attribute_beta,
    )
    if seeds is None:
        with _progress() as tell:
            run(config, output, resume, tell)
        folders = [output]
    else:
        with _backend(backend):
            folders = [folder.path for folder in train_seeds(config, output, range(seeds), jobs, resume)]
    texts = [summarise(folder).read_text() for folder in folders]
    if not as_json:
        print("\n".join(texts))
        return
    found = [
        {"folder": str(run.path), **run.status.to_json(), "proof": load(run.path).proof, "last": run.epochs[-1]}
        for run in map(RunFolder, folders)
    ]
    print(json.dumps(found[0] if seeds is None else {"runs": found}))


@app.command(cls=Command)
def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(help="all, fig1 … fig10, table, numbers, low-noise, scopes, exposure.")
    ] = None,
    output: Annotated[Path, option("output", "Folder for figures, comparison and runs.")] = Path("reproduction"),
    quick: Annotated[bool, option("quick", flag=True)] = False,
    jobs: Annotated[int, option("jobs", "Seeds trained at a time.")] = 2,
    as_json: Annotated[bool, option("json", "Print the comparison as JSON.")] = False,
) -> None:
    """Make the paper's figures, table and numbers, and compare them with what betastar computes.

    betastar reproduce fig7 numbers

    betastar reproduce all --quick -o reproduction
    """
    from betastar.studies.paper.reproduce import reproduce as make

    path = make(what or ["all"], output, quick, jobs, lambda name: print(f"{name} …", file=sys.stderr, flush=True))
    print((path.with_suffix(".json") if as_json else path).read_text())


@app.command(cls=Command)
def gaps(
    output: Annotated[Path, option("output", "Folder for runs, results and the page.")] = Path("gaps"),
    seeds: Annotated[int, option("seeds", "How many seeds are run.", min=1)] = 5,
    jobs: Annotated[int, option("jobs", "Trainings at a time.")] = 2,
    quick: Annotated[bool, option("quick", flag=True)] = False,
    as_json: Annotated[bool, option("json", "Print the results as JSON.")] = False,
) -> None:
    """Study what gap clipping costs: accuracy against proved attribute privacy, with figures. Goes on where it stopped.

    betastar gaps --quick -o gaps
    """
    from betastar.report.gap_clipping_page import write
    from betastar.studies.gap_clipping import run

    results = run(output, 1 if quick else seeds, jobs, quick, lambda line: print(line, file=sys.stderr, flush=True))
    page = write(output)
    print(json.dumps(results) if as_json else page)


app.command(cls=Command)(report)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"--between must be two numbers as in 17:90, got {text!r}.") from None
    return low, high


def _backend(name: str | None) -> Any:
    """joblib's, as it is or another one."""
    import contextlib

    import joblib

    if name is None:
        return contextlib.nullcontext()
    if name == "dask":
        from distributed import Client

        Client()  # type: ignore[no-untyped-call] # joblib finds the newest one; the environment says which cluster it joins
    return joblib.parallel_config(backend=name)


class _progress:  # noqa: N801
    """A bar with loss, accuracy and β*; on a terminal only."""

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None)
        self._accuracy = float("nan")
        self._bar.start()
        return self._tell

    def _tell(self, news: dict[str, Any]) -> None:
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


if __name__ == "__main__":
    main()
