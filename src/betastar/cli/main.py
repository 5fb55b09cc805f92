"""The command `betastar`."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from betastar import plugins
from betastar.cli import analysis, audit_code, audit_mechanism, audit_training
from betastar.cli.options import command, option
from betastar.cli.predict import predict
from betastar.cli.report import report
from betastar.cli.train import train
from betastar.vocabulary import PARAMETERS

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
    "tweets": "; the same command goes on where it stopped.",
}


def main() -> None:
    """Bad input is one sentence and exit code 2, not a traceback; a file that cannot be written is a sentence and 3; an
    interruption is a line and 130. Exit code 1 is left to what was computed: a bound or a requirement that does not hold."""
    warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook")
    try:
        try:
            plugins.load()
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
    version: Annotated[
        bool, typer.Option("--version", help=PARAMETERS["version"].help, callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@dataclass(frozen=True)
class ReproduceOptions:
    what: tuple[str, ...] = option(
        (), "What is made: all, fig1 … fig10, table, numbers, low-noise, scopes or exposure.", "all", argument="what"
    )
    output: Path = option(Path("reproduction"), "Folder for figures, comparison and runs.")
    quick: bool = False
    redraw: bool = False
    jobs: int = option(2, "Number of seeds that are trained at a time.")
    json: bool = option(False, "Print the comparison as JSON.")


def reproduce(options: ReproduceOptions) -> None:
    """Make the paper's figures, table and numbers, and compare them with what betastar computes.

    \b
    Examples:
      betastar reproduce fig7 numbers
      betastar reproduce all --quick -o reproduction
    """
    from betastar.studies.paper.reproduce import reproduce as make

    def tell(name: str) -> None:
        print(f"{name} …", file=sys.stderr, flush=True)

    path = make(list(options.what) or ["all"], options.output, options.quick, options.jobs, tell, options.redraw)
    print((path.with_suffix(".json") if options.json else path).read_text())


@dataclass(frozen=True)
class GapsOptions:
    output: Path = option(Path("gaps"), "Folder for runs, results and the page.")
    seeds: int = option(5, "How many seeds are run.", min=1)
    jobs: int = option(2, "Number of trainings at a time.")
    quick: bool = False
    json: bool = option(False, "Print the results as JSON.")


def gaps(options: GapsOptions) -> None:
    """Study what gap clipping costs: accuracy against proved attribute privacy, with figures. Goes on where it stopped.

    \b
    Examples:
      betastar gaps --quick -o gaps
    """
    from betastar.report.gap_clipping_page import write
    from betastar.studies.gap_clipping import run

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    results = run(options.output, 1 if options.quick else options.seeds, options.jobs, options.quick, tell)
    page = write(options.output)
    print(json.dumps(results) if options.json else page)


@dataclass(frozen=True)
class TweetsOptions:
    output: Path = option(Path("tweets"), "Folder for runs, results and the page.")
    seeds: int = option(3, "How many seeds are run.", min=1)
    quick: bool = option(False, "Take two minutes instead of half an hour: one seed, fewer tweets and epochs.")
    json: bool = option(False, "Print the results as JSON.")


def tweets(options: TweetsOptions) -> None:
    """Study a transformer that is fine-tuned on tweets with LoRA: accuracy, membership and attribute risk, with figures.

    It goes on where it stopped.

    \b
    Examples:
      betastar tweets --quick -o tweets
    """
    from betastar.report.tweets_page import write
    from betastar.studies.tweets import study

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    results = study(options.output, 1 if options.quick else options.seeds, options.quick, tell)
    page = write(options.output)
    print(json.dumps(results) if options.json else page)


analysis.register(app)
audit_training.register(audit_mechanism.app)
audit_code.register(audit_mechanism.app)
for function in (train, reproduce, gaps, tweets, report):
    command(app, pipeline=False)(function)
command(app)(predict)
app.add_typer(audit_mechanism.app)


if __name__ == "__main__":
    main()
