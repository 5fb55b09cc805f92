"""The command `betastar`."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

from betastar import plugins
from betastar.cli import analysis, audit_code, audit_mechanism, audit_training
from betastar.cli.options import command
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
GO_ON = {"train": "; the same command with --resume goes on."}
#: Commands of former versions, and what does the same in a clone.
MOVED = {
    "reproduce": "studies.paper",
    "gaps": "studies.gap_clipping",
    "tweets": "studies.tweets",
    "voters": "studies.voters",
    "raters": "studies.raters",
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


analysis.register(app)
audit_training.register(audit_mechanism.app)
audit_code.register(audit_mechanism.app)
for function in (train, report):
    command(app, pipeline=False)(function)
command(app)(predict)
app.add_typer(audit_mechanism.app)


def _moved(context: typer.Context) -> None:
    """Say where a study went."""
    name = str(context.info_name)
    raise ValueError(f"{name} is now a study beside the package: in a clone, python -m {MOVED[name]}.")


for name in MOVED:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, hidden=True, add_help_option=False, context_settings=anything)(_moved)


if __name__ == "__main__":
    main()
