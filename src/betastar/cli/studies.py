"""The commands that repeat a study: `reproduce`, `gaps`, `tweets`, `voters`, `raters`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from betastar.cli.options import option
from betastar.runs.reading import Json


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(results: Json, page: Path, as_json: bool) -> None:
    print(json.dumps(results) if as_json else page)


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

    path = make(
        list(options.what) or ["all"],
        options.output,
        options.quick,
        options.jobs,
        lambda name: _tell(f"{name} …"),
        options.redraw,
    )
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

    results = run(options.output, 1 if options.quick else options.seeds, options.jobs, options.quick, _tell)
    _show(results, write(options.output), options.json)


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

    results = study(options.output, 1 if options.quick else options.seeds, options.quick, _tell)
    _show(results, write(options.output), options.json)


@dataclass(frozen=True)
class VotersOptions:
    output: Path = option(Path("voters"), "Folder for runs, results and the page.")
    seeds: int = option(5, "How many seeds are run.", min=1)
    jobs: int = option(2, "Number of trainings at a time.")
    quick: bool = option(False, "Take a minute instead of half an hour: one seed and secret, fewer respondents, gaps and games.")
    json: bool = option(False, "Print the results as JSON.")


def voters(options: VotersOptions) -> None:
    """Study what a model of voters tells about vote, religion, race and ideology, with figures.

    It goes on where it stopped.

    \b
    Examples:
      betastar voters --quick -o voters
    """
    from betastar.report.voters_page import write
    from betastar.studies.voters import study

    results = study(options.output, 1 if options.quick else options.seeds, options.jobs, options.quick, _tell)
    _show(results, write(options.output), options.json)


@dataclass(frozen=True)
class RatersOptions:
    output: Path = option(Path("raters"), "Folder for runs, results and the page.")
    seeds: int = option(5, "How many seeds are run.", min=1)
    jobs: int = option(2, "Number of trainings at a time.")
    quick: bool = option(False, "Take a minute instead of a quarter of an hour: one seed and cap, fewer games.")
    json: bool = option(False, "Print the results as JSON.")


def raters(options: RatersOptions) -> None:
    """Study what a recommender tells about persons with many ratings, and what protecting them costs, with figures.

    It goes on where it stopped.

    \b
    Examples:
      betastar raters --quick -o raters
    """
    from betastar.report.raters_page import write
    from betastar.studies.raters import study

    results = study(options.output, 1 if options.quick else options.seeds, options.jobs, options.quick, _tell)
    _show(results, write(options.output), options.json)
