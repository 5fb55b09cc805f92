"""What the pages of studies have in common: writing them, tables, means over seeds, and bars of groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from betastar import plots
from betastar.rounding import down, nearest_percent, percent, up
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The formats of a figure.
FORMATS = ("png", "svg")
#: What each attacker of an audit of training sees.
WHO = {"updates": "sees every update", "weights": "has the final weights", "outputs": "asks the final model"}
#: One training of a study: an entry of results.json.
Run = Json
#: The colour of what is no method of privacy.
PALE = "#c9c4b8"


def write_page(
    folder: str | Path, template: Path, figures: Callable[[Json], Mapping[str, Axes]], words: Callable[[Json], Json]
) -> Path:
    """Write README.md and its figures beside results.json."""
    import jinja2

    path = Path(folder)
    results = json.loads((path / "results.json").read_text())
    for name, ax in figures(results).items():
        plots.save(ax, path / name, *FORMATS)
    made = jinja2.Template(template.read_text(encoding="utf-8"), trim_blocks=True)
    file = path / "README.md"
    file.write_text(made.render(words(results)) + "\n", encoding="utf-8")
    return file


def select(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    """The runs that have these entries."""
    return [run for run in runs if all(run.get(name) == value for name, value in wanted.items())]


def accuracies(runs: Iterable[Run]) -> list[float]:
    """The accuracy of each seed, in percent."""
    return [100.0 * run["accuracy"] for run in runs]


def accuracy(runs: Sequence[Run]) -> float:
    """The mean accuracy, in percent."""
    return mean(accuracies(runs))


def spread(runs: Sequence[Run]) -> str:
    """The mean accuracy, and the smallest to the largest."""
    values = accuracies(runs)
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


def audit_rows(audits: Json, titles: Mapping[str, str]) -> list[list[str]]:
    """A row for each audit of training: what is attacked, games, the share of right guesses of each attacker, what is allowed.

    titles: what is attacked, by the name of the audit.
    """
    rows = []
    for name, title in titles.items():
        each = audits[name]["audits"]
        first = next(iter(each.values()))
        shares = [_share(each[place]["success"]) if place in each else "" for place in WHO]
        rows.append([title, str(first["games"]), *shares, percent(0.5 + 0.5 * first["bound"]["upper"], 1)])
    return rows


def _share(success: Json) -> str:
    """A share of right guesses, with its interval."""
    low, high = down(100.0 * success["lower"], 1), up(100.0 * success["upper"], 1)
    return f"{nearest_percent(success['estimate'], 1)} ({low} to {high})"


def group_accuracy(runs: Sequence[Run], column: str, name: str) -> float:
    """The accuracy of a group of test records, in percent, over all runs together."""
    pairs = [run["groups"][column][name] for run in runs if name in run["groups"][column]]
    return 100.0 * sum(right for _, right in pairs) / max(1, sum(size for size, _ in pairs))


def group_sizes(runs: Sequence[Run], column: str) -> dict[str, int]:
    """The number of test records of each group, over all runs together."""
    sizes: dict[str, int] = {}
    for run in runs:
        for name, (size, _) in run["groups"][column].items():
            sizes[name] = sizes.get(name, 0) + size
    return sizes


def group_bars(
    ax: Axes, column: str, names: Sequence[str], kinds: Mapping[str, tuple[Sequence[Run], str, str]], shown: Sequence[str]
) -> None:
    """A bar for each kind in each group: the mean of the seeds, and a line that reaches over all of them.

    kinds: runs, colour and hatch of each label.
    """
    width = 0.81 / len(kinds)
    for k, (label, (some, colour, hatch)) in enumerate(kinds.items()):
        heights = [group_accuracy(some, column, name) for name in names]
        each = [[group_accuracy([run], column, name) for run in some if name in run["groups"][column]] for name in names]
        below = [max(0.0, top - min(seeds, default=top)) for top, seeds in zip(heights, each, strict=True)]
        above = [max(0.0, max(seeds, default=top) - top) for top, seeds in zip(heights, each, strict=True)]
        places = [i + width * (k - (len(kinds) - 1) / 2) for i in range(len(names))]
        ax.bar(places, heights, width / 1.08, color=colour, label=label, hatch=hatch, edgecolor="white", linewidth=0)
        ax.errorbar(places, heights, [below, above], fmt="none", ecolor="#202020", elinewidth=0.8, capsize=1.5)
    ax.set_xticks(range(len(names)), list(shown), fontsize=7)
    ax.set_ylabel("accuracy (%)")
