"""The command `betastar`."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

from betastar.cli import analysis, audit, results
from betastar.cli.options import LongCommand, command
from betastar.cli.train import train

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
GO_ON = {"train": "; the same command with --resume goes on."}
#: Commands that moved, and what does the same.
MOVED = {
    "one-run": "audit one-run is now betastar audit games --one-run.",
    "training": "audit training is now betastar audit games.",
    "one-run-mechanism": "audit one-run-mechanism is now betastar audit mechanism --one-run.",
    "compare": "compare is now part of sweep: betastar sweep --setting … or betastar sweep --method … --method …",
}
STUDIES = {"reproduce": "paper", "gaps": "gap_clipping", "tweets": "tweets", "voters": "voters", "raters": "raters"}
MOVED |= {old: f"{old} is now a study beside the package: in a clone, python -m studies.{new}." for old, new in STUDIES.items()}


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
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


for function in (analysis.analyze, analysis.calibrate, analysis.sweep, analysis.explore):
    command(app)(function)
command(app, cls=LongCommand)(train)
command(app)(results.predict)
command(app, cls=LongCommand)(results.report)
app.add_typer(audit.app, short_help="Play the attacker against code, a training or the mechanism.")


def _moved(context: typer.Context) -> None:
    """Say where a command went."""
    raise ValueError(MOVED[str(context.info_name)])


for name in MOVED:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    of_audit = name.startswith("one-run") or name == "training"
    (audit.app if of_audit else app).command(name, hidden=True, add_help_option=False, context_settings=anything)(_moved)


if __name__ == "__main__":
    main()
