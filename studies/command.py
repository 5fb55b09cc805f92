"""The command line of a study: its options, errors in one sentence (exit code 2), and Ctrl-C in one line (130)."""

from __future__ import annotations

import json
import sys
import warnings
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from studies.trainings import Json


def main(
    name: str, about: str, run: Callable[..., Json], write: Callable[[Path], Path], seeds: int, quick: str, jobs: bool = True
) -> None:
    """Run a study and write its page, as the command line asks.

    Parameters
    ----------
    name, about : str
        The study's package, and what the study is about, in a sentence.
    run : callable
        Gets the folder, the number of seeds (and of trainings at a time, if `jobs`), whether the run is a quick one, and a
        function for lines of progress. Returns the results.
    write : callable
        Writes the page beside the results.
    seeds : int
        The number of seeds by default.
    quick : str
        How long the study takes, and what --quick leaves out.
    jobs : bool
        Whether several trainings can run at a time.
    """
    options = parser(name, f"{about} The same command goes on where it stopped.", quick)
    options.add_argument("--seeds", type=positive, default=seeds, help="how many seeds are run (default: %(default)s)")
    if jobs:
        options.add_argument("--jobs", type=int, default=2, help="number of trainings at a time (default: %(default)s)")
    given = options.parse_args()
    with ended(name):
        at_a_time = (given.jobs,) if jobs else ()
        results = run(given.output, 1 if given.quick else given.seeds, *at_a_time, given.quick, tell)
        page = write(given.output)
        print(json.dumps(results) if given.json else page)


def parser(name: str, about: str, quick: str) -> ArgumentParser:
    """The options that all studies have."""
    options = ArgumentParser(f"python -m studies.{name}", description=about)
    folder = Path("build") / name
    options.add_argument("-o", "--output", type=Path, default=folder, help="folder for everything (default: %(default)s)")
    options.add_argument("--quick", action="store_true", help=quick)
    options.add_argument("--json", action="store_true", help="print the results as JSON")
    return options


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def tell(line: str) -> None:
    """Show a line of progress."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def ended(name: str) -> Iterator[None]:
    """End as commands of betastar do: bad input is one sentence, an interruption one line."""
    warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook")
    try:
        yield
    except ValueError as problem:
        tell(f"studies.{name}: {problem}")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        tell(f"\nstudies.{name}: interrupted; the same command goes on where it stopped.")
        raise SystemExit(130) from None
