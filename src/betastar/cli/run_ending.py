"""What `betastar train` prints when a run is complete: the verdict, one table, where the files are, and the next command."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from betastar.answers import wording
from betastar.cli import printing
from betastar.quality import main_figure, quality_sentence
from betastar.report import model_card
from betastar.report.facts import Against, Facts
from betastar.report.statement import notices, verdicts
from betastar.runs.folder import ENCODER, MODEL

#: Where the trade-off curve of membership is read off, and δ of its ε.
FPR, DELTA = 0.01, 1e-5
#: The files of a run that people look for, and what is in them.
FILES = (
    (f"{MODEL}, {ENCODER}", "the model, and how a table becomes its input"),
    (model_card.CARD, "for whoever gets the model"),
    ("summary.md", "this summary in full, with figures; for you"),
)


def show(folder: Path, facts: Facts) -> None:
    """Print the end of a run."""
    console = printing.console()
    _verdict(facts)
    printing.table(console, ("", "", "rely on", "estimate", "without a model"), _rows(facts), left=2)
    for line in _remarks(facts):
        console.print(line)
    console.print(f"\nIn {folder}:", soft_wrap=True)
    width = max(len(name) for name, _ in FILES)
    for name, what in FILES:
        console.print(f"  {name:{width}}  {what}", soft_wrap=True)
    again = " --force" if (folder / "report.html").exists() else ""
    _next(
        (f"report {shlex.quote(str(folder))}{again}", "for whoever decides"),
        (f"predict {shlex.quote(str(folder))} TABLE.csv", "use the model"),
    )


def show_several(folder: Path, runs: Sequence[tuple[Path, Facts]]) -> None:
    """Print the end of several runs that differ in their seed: they have one figure of membership."""
    console = printing.console()
    _verdict(runs[0][1])
    names = [_printable(one.name) for one in runs[0][1].attributes]
    figure = main_figure(runs[0][1].entries[-1])
    heads = ("run", f"{figure.title} on test records", *(f"β* of {name}" for name in names))
    rows = [
        (path.name, figure.shown(facts.entries[-1][figure.name]), *(_relied(one)[0] for one in facts.attributes))
        for path, facts in runs
    ]
    printing.table(console, heads, rows)
    console.print(f"\nEach run is a folder in {folder}.", soft_wrap=True)
    _next((f"report {shlex.quote(str(runs[0][0]))}", "one of them, for whoever decides"))


def _verdict(facts: Facts) -> None:
    console = printing.console()
    first = verdicts(facts)[0]
    console.print(f"{first.band.capitalize()}: {first.sentence}", style="bold")
    if facts.proof:
        console.print(_printable(facts.proof), style="bold")
    console.print()


def _rows(facts: Facts) -> list[tuple[str, ...]]:
    """Each metric of each threat, as `analyze` prints it; the numbers are those of the report."""
    member = facts.membership
    curve: dict[str, Any] = {
        "tpr": {"fpr": FPR, **_ends(member.certified.tpr(FPR))},
        "epsilon": {"delta": DELTA, **_ends(member.certified.epsilon(DELTA))},
    }
    rows: list[tuple[str, ...]] = [
        ("membership" if i == 0 else "", *row) for i, row in enumerate(wording.table(_answer(member) | curve, short=True))
    ]
    if facts.person is not None:
        of_person = wording.table(_answer(facts.person), short=True)
        rows += [(f"a person, {facts.records_per_person} records" if i == 0 else "", *row) for i, row in enumerate(of_person)]
    for one in facts.attributes:
        about = "≈ " if one.kind == "batch" else ""
        known = "proved" if one.kind == "proved" else "measured"
        for i, (title, relied, *others) in enumerate(wording.table(_answer(one), short=True)):
            rows.append((_printable(f"{one.name}, {known}") if i == 0 else "", title, about + relied, *others))
    return rows


def _answer(one: Against) -> dict[str, Any]:
    """β* and the share of right guesses against a threat, as an answer has them."""
    beta = {"lower": one.lower, "estimate": one.estimate}
    return {"bayes_security": beta, "success": {"prior": 0.5, "upper": 1 - one.lower / 2, "estimate": 1 - one.estimate / 2}}


def _relied(one: Against) -> tuple[str, ...]:
    _, relied, *others = wording.table(_answer(one))[0]
    return ("≈ " if one.kind == "batch" else "") + relied, *others


def _ends(bound: Any) -> dict[str, float]:
    return {"upper": float(bound.upper), "estimate": float(bound.estimate)}


def _remarks(facts: Facts) -> list[str]:
    """What belongs beside the numbers, in few words; the summary has all of them."""
    lines = []
    batch = any(one.kind == "batch" for one in facts.attributes)
    if batch:
        lines.append("≈ is an estimate from the sampled records, for the trainer's eyes only.")
    if facts.entries:
        last = facts.entries[-1]
        figures: dict[str, float] = {name: last[name] for name in ("accuracy", "rmse", "baseline_rmse") if name in last}
        lines.append(f"{quality_sentence(figures, 'the test records')}.")
    told = notices(replace(facts, attributes=(), exposures={})) if batch else notices(facts)
    beginnings = [text.split(". ")[0].split(": ")[0].rstrip(".") for text in told]
    if beginnings:
        lines.append(_printable(f"Read in summary.md: {'; '.join(one[0].lower() + one[1:] for one in beginnings)}."))
    return lines


def _printable(text: str) -> str:
    """Text with names of other people's columns, without what a terminal would obey."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def _next(*commands: tuple[str, str]) -> None:
    """The commands that one may want next, each on a line of its own so that it can be copied."""
    console, name = printing.console(), _command()
    console.print("Next:")
    written = [(f"  {name} {command}", what) for command, what in commands]
    width = max(len(line) for line, _ in written)
    for line, what in written:
        explained = f"{line:{width}}  # {what}"
        console.print(explained if len(explained) <= printing.WIDTH else line, soft_wrap=True)


def _command() -> str:
    """The command as it can be typed here: by its path if it is not the one that a shell would find."""
    used, known = Path(sys.argv[0]), shutil.which("betastar")
    if used.name != "betastar" or not used.is_file() or (known is not None and Path(known).samefile(used)):
        return "betastar"
    return shlex.quote(min(str(used), os.path.relpath(used), key=len))
