"""What `betastar train` shows while it works, on a terminal only: what it does, how far it is, and how long it takes yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from betastar.quality import main_figure
from betastar.rounding import down
from betastar.runs.folder import RunFolder
from betastar.runs.reading import Json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

#: Seconds between two looks at the folders of several seeds.
LOOK = 1.0


@contextmanager
def one_run() -> Iterator[Callable[[Json], None]]:
    """A context whose value is called with what a training tells: the phase that begins, each step, and each epoch.

    The first lines say what is done; a bar with the steps of all epochs and the time left follows when the number of steps is
    known.
    """
    from rich.text import Text

    lines: list[str] = []
    quality = ""
    with _bar(lambda: [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in lines]) as bar:
        task = bar.add_task("starting", total=None)

        def tell(news: Json) -> None:
            nonlocal quality
            if "told" in news:
                for line in news["told"]:
                    bar.console.print(Text(line))
            elif "phase" in news:
                bar.update(task, description=news["phase"], unit=None, refresh=True)  # before it starts
            elif news.get("finished"):
                figure = main_figure(news)
                quality = f", {figure.title} {figure.shown(news[figure.name])} after epoch {news['epoch']}"
            else:
                lines[:] = _lines(news, quality)
                bar.update(task, description="training", total=news["steps"], completed=news["step"], unit="steps")

        yield tell


def _lines(news: Json, quality: str) -> list[str]:
    """The figures of a step, in lines that fit a terminal of 80 columns."""
    lines = [f"epoch {news['epoch']} of {news['epochs']}, loss {news['loss']:.3f}{quality}"]
    if "attribute" in news:
        beta = f"β* so far ≈ {down(news['membership'], 3)} (membership), {down(news['attribute'], 3)} ({news['secret']})"
        lines.append(beta)
    return lines


@contextmanager
def several_runs(folders: Sequence[Path]) -> Iterator[None]:
    """A bar of the runs that are complete, while processes train them."""
    ended = threading.Event()

    with _bar(list) as bar:
        task = bar.add_task("training", total=len(folders), unit="runs")

        def look() -> None:
            while not ended.wait(LOOK):
                bar.update(task, completed=sum(RunFolder(folder).complete for folder in folders))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


@contextmanager
def _bar(above: Callable[[], list[RenderableType]]) -> Iterator[Progress]:
    """A bar of what is done, on standard error, below lines of text. It disappears when the context ends."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.text import Text

    class Done(ProgressColumn):
        """How much is done, and an estimate of the time left."""

        def render(self, task: Task) -> Text:
            unit = task.fields.get("unit")
            if task.total is None or unit is None:
                return Text(f"{task.elapsed or 0.0:.0f} s")
            return Text(f"{task.completed:,.0f} of {task.total:,.0f} {unit}, {_left(task.time_remaining)}")

    class Lines(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield from super().get_renderables()
            yield from above()

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), Done())
    with Lines(*columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=60) as bar:
        yield bar


def _left(seconds: float | None) -> str:
    """An estimate of the time left, in words."""
    if seconds is None:
        return "time left unknown yet"
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min left"
