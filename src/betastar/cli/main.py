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
from betastar.cli.report import report
from betastar.rounding import down

app = typer.Typer(
    name="betastar",
    help="How well does a model trained with DP-SGD resist a named attack?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


analysis.register(app)
audit_training.register()
app.add_typer(audit_mechanism.app)


@app.command()
def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; must be new unless --resume is given.")],
    study: Annotated[str, typer.Argument(help="'adult', 'purchase', or the path of a CSV or Parquet table.")] = "adult",
    target: Annotated[str | None, typer.Option(help="Own table: the column to predict.")] = None,
    sensitive: Annotated[str | None, typer.Option(help="The sensitive column; for adult, age unless given.")] = None,
    value: Annotated[list[str] | None, typer.Option(help="Own table: a value of the sensitive column (repeat it).")] = None,
    between: Annotated[str | None, typer.Option(help="Own table: range of the sensitive numbers, as 17:90.")] = None,
    along: Annotated[
        list[str] | None, typer.Option("--with", help="A column that restates the sensitive one and changes with it (repeat it).")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out (repeat it).")] = None,
    public: Annotated[
        str | None, typer.Option(help="Own table, --gap: public records that tell how frequent the sensitive values are.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Purchase: path or URL of the archive; without it a synthetic stand-in.")
    ] = None,
    checksum: Annotated[str | None, typer.Option(help="Purchase: SHA-256 that the archive must have.")] = None,
    records: Annotated[int | None, typer.Option(min=1000, help="Purchase: size of the stand-in.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    noise: Annotated[float | None, typer.Option(min=0.01, help="Noise multiplier.")] = None,
    clip: Annotated[float | None, typer.Option(min=1e-6, help="Clipping norm.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", "--lr", min=0.0)] = None,
    hidden: Annotated[list[int] | None, typer.Option(min=1, help="Width of a hidden layer (repeat it for more).")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of split, weights, sampling and noise. Whoever knows it can compute the noise, so it is drawn at random, and "
            "deleted when the run is complete, unless it is given.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Run seeds 0, 1, … in folders of their own.")] = None,
    jobs: Annotated[int, typer.Option(help="Seeds at a time (with --seeds); -1 for all cores.")] = 1,
    backend: Annotated[str | None, typer.Option(help="joblib backend for --seeds: loky, threading, dask or ray.")] = None,
    scope: Annotated[str, typer.Option(help="batch (an estimate) or dataset (all records, slow).")] = "batch",
    every: Annotated[int, typer.Option(min=1, help="Measure at every k-th step.")] = 1,
    diameter: Annotated[str, typer.Option(help="exact, ball or centroid.")] = "exact",
    approximate: Annotated[bool, typer.Option(help="Measure the paper's approximation as well.")] = False,
    target_beta: Annotated[
        float | None, typer.Option(help="Stop before β* against attribute inference falls below this; measures all records.")
    ] = None,
    gap: Annotated[
        float | None, typer.Option(help="Keep the sensitive values this close at every step (0 to 2): proved in advance.")
    ] = None,
    target_attribute_beta: Annotated[
        float | None, typer.Option(help="The same, with the gap that gives this β* against attribute inference.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print status and last epoch as JSON.")] = False,
) -> None:
    """Train with DP-SGD, watch membership and attribute inference, and write a summary.

    betastar train -o runs/adult

    betastar train people.csv --target income --sensitive age --between 17:90 -o runs/people

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
    if target_beta is not None and scope == "batch" and "--scope" in sys.argv:
        raise StudyError("--target-beta needs all records (--scope dataset): a batch proves nothing.")
    config = Config(
        study=study,
        target=target,
        sensitive=sensitive,
        values=tuple(value) if value else None,
        between=_range(between),
        along=tuple(along or ()),
        drop=tuple(drop or ()),
        public=public,
        data=data,
        checksum=checksum,
        records=records,
        epochs=epochs,
        batch_size=batch_size,
        noise_multiplier=noise,
        max_grad_norm=clip,
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
        {"folder": str(run.path), **run.status, "proof": load(run.path).proof, "last": run.epochs[-1]}
        for run in map(RunFolder, folders)
    ]
    print(json.dumps(found[0] if seeds is None else {"runs": found}))


@app.command()
def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(help="all, fig1 … fig10, table, numbers, low-noise, scopes, exposure.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures, comparison and runs.")] = Path(
        "reproduction"
    ),
    quick: Annotated[bool, typer.Option(help="Minutes instead of an hour: one seed, few epochs, coarse grids.")] = False,
    jobs: Annotated[int, typer.Option(help="Seeds trained at a time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Make the paper's figures, table and numbers, and compare them with what betastar computes.

    betastar reproduce fig7 numbers

    betastar reproduce all --quick -o reproduction
    """
    from betastar.studies.paper.reproduce import reproduce as make

    path = make(what or ["all"], output, quick, jobs, lambda name: print(f"{name} …", file=sys.stderr, flush=True))
    print((path.with_suffix(".json") if as_json else path).read_text())


@app.command()
def gaps(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs, results and the page.")] = Path("gaps"),
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
    quick: Annotated[bool, typer.Option(help="Two minutes instead of an hour: one seed, few epochs, few settings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Study what gap clipping costs: accuracy against proved attribute privacy, with figures. Goes on where it stopped.

    betastar gaps --quick -o gaps
    """
    from betastar.report.gap_clipping_page import write
    from betastar.studies.gap_clipping import run

    results = run(output, 1 if quick else seeds, jobs, quick, lambda line: print(line, file=sys.stderr, flush=True))
    page = write(output)
    print(json.dumps(results) if as_json else page)


app.command()(report)


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
