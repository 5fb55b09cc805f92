"""Answers on a terminal or into a pipe: a sentence first, then the table, then what is assumed and how sure it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from betastar import files
from betastar.cli.answers import SHORT, Answer, rows
from betastar.dpsgd import NUMBERS
from betastar.rounding import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

#: Columns that a table takes at most, on a terminal and into a pipe.
WIDTH = 80
#: This many columns of numbers fit beside each other.
BESIDE = 4


@contextmanager
def progress(above: Callable[[], list[RenderableType]] = list) -> Iterator[Progress]:
    """A bar of what is done, on standard error, below lines of text; on a terminal only. It disappears when the context ends."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.text import Text

    class Done(ProgressColumn):
        def render(self, task: Task) -> Text:
            left = "" if task.time_remaining is None else f", {timedelta(seconds=round(task.time_remaining))} left"
            return Text("" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f}{left}")

    class Lines(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            yield from above()

    console = Console(stderr=True)
    words = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), words, BarColumn(bar_width=20), Done())
    with Lines(*columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=60) as bar:
        yield bar


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar whose value is called with the number that is done."""
    with progress() as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def phase(text: str) -> Iterator[None]:
    """A line that says what is done, while it is done; on a terminal only."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(Text(f"{text} …")):
        yield


def as_json(thing: object) -> None:
    print(json.dumps(thing, indent=2, ensure_ascii=False, allow_nan=False))


def one(answer: Answer, first: str | None = None) -> None:
    """Print one answer. `first` is a line before its sentence."""
    shown = console()
    if first:
        shown.print(first, style="bold")
    shown.print(answer["sentence"], style=None if first else "bold")
    shown.print()
    table(shown, ("", "rely on", "estimate", "without a model"), list(rows(answer)))
    shown.print()
    shown.print("Assumed:")
    for line in answer["assumptions"]:
        shown.print(f"  - {line}")
    shown.print(f"How sure: {answer['certainty']}")
    if answer.get("advice"):
        shown.print(f"What would help: {answer['advice']['sentence']}")
    for warning in answer["warnings"]:
        shown.print(f"Note: {warning}", style="yellow")


def side_by_side(answers: Sequence[Answer], names: Sequence[str]) -> None:
    """One column a setting, the numbers to rely on; more settings than fit beside each other are below each other."""
    shown = console()
    # The safest one first, if that was asked.
    best = max(
        range(len(answers)), key=lambda i: answers[i]["bayes_security"]["lower"] if "bayes_security" in answers[i] else 0.0
    )
    shown.print(f"{names[best]}: {answers[best]['sentence']}", style="bold")
    columns = [[relied for _, relied, *_ in rows(answer)] for answer in answers]
    for start in range(0, len(answers), BESIDE):
        shown.print()
        beside(shown, [title for title, *_ in rows(answers[0], short=True)], names, columns, start)
    shown.print()
    shown.print("Each number is the one to rely on: β* rounded down, what an attacker can do rounded up.")
    if shared := label(answers[0]["parameters"], shared_by(answers)):
        shown.print(f"All of them: {shared}.")
    for name, answer in zip(names, answers, strict=True):
        shown.print(f"{name}: {answer['certainty']}")
        for warning in answer["warnings"]:
            shown.print(f"{name}: {warning}", style="yellow")


def beside(shown: Console, titles: Sequence[str], names: Sequence[str], columns: Sequence[Sequence[str]], start: int = 0) -> None:
    """A table with these titles of rows, and as many named columns as fit, from the first one on."""
    chosen = slice(start, start + BESIDE)
    rows = zip(titles, *columns[chosen], strict=True)
    table(shown, ("", *names[chosen]), list(rows))


def shared_by(answers: Sequence[Answer]) -> set[str]:
    """The parameters that all answers have, with the same value; none for a single one."""
    first, *others = [answer["parameters"] for answer in answers]
    return {name for name in first if others and all(name in one and one[name] == first[name] for one in others)}


def label(parameters: Answer, chosen: set[str] | None = None) -> str:
    """A setting in a few words: all parameters that define it, or those of them that are chosen."""
    ordered = (
        *NUMBERS,
        "sampling",
        "times_per_epoch",
        "max_batch_size",
        "trials",
        "trials_law",
        "distance",
        "records_per_person",
    )
    names = [name for name in ordered if parameters.get(name) is not None]
    kept = [name for name in names if "batch_size" not in parameters or name not in ("sample_rate", "steps")]
    kept = [name for name in kept if chosen is None or name in chosen]
    return ", ".join(f"{SHORT.get(name, name.replace('_', '-'))} {_said(parameters[name])}" for name in kept)


def _said(value: object) -> str:
    return value if isinstance(value, str) else plain(value)


def check_file(option: str, path: Path, force: bool) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    files.check(path)
    if path.exists() and not force:
        raise ValueError(f"{option} {str(path)!r} is there already; choose another name, or write over it with --force.")
    if not path.parent.is_dir():
        raise ValueError(f"{option} must be in a folder that exists, got {str(path)!r}.")


def printable(text: str) -> str:
    """Text with names of other people's columns, without what a terminal would obey."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def complain(text: str) -> None:
    print(f"betastar: {text}", file=sys.stderr)


def table(shown: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table that fits 80 columns, or fewer on a smaller terminal. left: the number of columns of words, not numbers."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for i, title in enumerate(titles):
        grid.add_column(title, justify="left" if i < left else "right", overflow="fold", no_wrap=i == 0 and left == 1)
    for row in rows:
        grid.add_row(*row)
    shown.print(grid, width=min(WIDTH, shown.width))


def console() -> Console:
    """Colour on a terminal only; into a pipe, sentences in longer lines."""
    from rich.console import Console

    shown = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not shown.is_terminal:
        shown = Console(highlight=False, markup=False, emoji=False, width=140, no_color=True)
    return shown
