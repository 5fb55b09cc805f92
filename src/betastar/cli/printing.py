"""Answers on a terminal or into a pipe: a sentence first, then the table, then what is assumed and how sure it is."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from betastar.answers import wording
from betastar.answers.json_answers import Answer
from betastar.rounding import plain
from betastar.vocabulary import OF_THREATS, PARAMETERS, RUN, SAMPLED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def quiet_pipe() -> None:
    """A reader that goes away (`| head -1`) ends the command without a word, as it does for other commands."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of what is done, on standard error; on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def as_json(thing: object) -> None:
    print(json.dumps(thing, indent=2, ensure_ascii=False, allow_nan=False))


def one(answer: Answer, first: str | None = None) -> None:
    """Print one answer. `first` is a line before its sentence."""
    console = _console()
    if first:
        console.print(first, style="bold")
    console.print(answer["sentence"], style=None if first else "bold")
    console.print()
    grid = _grid("", "rely on", "estimate", "without a model")
    for row in wording.table(answer):
        grid.add_row(*row)
    console.print(grid)
    console.print()
    if "final_model" in answer:
        console.print(answer["final_model"]["sentence"])
        console.print()
    console.print("Assumed:")
    for line in answer["assumptions"]:
        console.print(f"  - {line}")
    console.print(f"How sure: {answer['certainty']}")
    if answer.get("advice"):
        console.print(f"What would help: {answer['advice']['sentence']}")
    for warning in answer["warnings"]:
        console.print(f"Note: {warning}", style="yellow")


def titled(sentence: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A sentence and a table."""
    console = _console()
    console.print(sentence, style="bold")
    console.print()
    grid = _grid(*titles)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)


def side_by_side(answers: Sequence[Answer], names: Sequence[str]) -> None:
    """One row a setting, the numbers to rely on."""
    console = _console()
    titles = [title for title, *_ in wording.table(answers[0], short=True)]
    grid = _grid("setting", *titles)
    for name, answer in zip(names, answers, strict=True):
        grid.add_row(name, *(relied for _, relied, *_ in wording.table(answer)))
    # The safest one first, if that was asked.
    best = max(
        range(len(answers)), key=lambda i: answers[i]["bayes_security"]["lower"] if "bayes_security" in answers[i] else 0.0
    )
    console.print(f"{names[best]}: {answers[best]['sentence']}", style="bold")
    console.print()
    console.print(grid)
    console.print()
    console.print("Each number is the one to rely on: β* rounded down, what an attacker can do rounded up.")
    for name, answer in zip(names, answers, strict=True):
        console.print(f"{name}: {answer['certainty']}")
        for warning in answer["warnings"]:
            console.print(f"{name}: {warning}", style="yellow")


def label(parameters: Answer) -> str:
    """A setting in a few words."""
    names = [name for name in (*RUN, *SAMPLED, *OF_THREATS) if parameters.get(name) is not None]
    kept = [name for name in names if "batch_size" not in parameters or name not in ("sample_rate", "steps")]
    return ", ".join(f"{PARAMETERS[name].brief.removeprefix('--')} {_said(parameters[name])}" for name in kept)


def _said(value: object) -> str:
    return value if isinstance(value, str) else plain(value)


def complain(text: str) -> None:
    print(f"betastar: {text}", file=sys.stderr)


def _grid(*titles: str) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for i, title in enumerate(titles):
        grid.add_column(title, justify="left" if i == 0 else "right", overflow="fold")
    return grid


def _console() -> Console:
    """Colour on a terminal only; into a pipe, lines as long as they are."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=140, no_color=True)
    return console
