"""The study of tweets for people: a page with tables and figures, from results.json."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from betastar import plots
from betastar.rounding import down, up
from studies.pages import (
    PALE,
    Run,
    accuracy,
    group_accuracy,
    group_sizes,
    select,
    spread,
    table,
    write_page,
)
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Path(__file__).with_name("page.md.j2")
#: The names of groups, short enough for an axis.
SHORT = {"Twitter Web Client": "Web", "Twitter for Android": "Android", "Twitter for iPhone": "iPhone"}
#: Groups of fewer test records, over all seeds, say nothing.
FEWEST = 10


def write(folder: str | Path) -> Path:
    """Write README.md and its figures beside results.json."""
    return write_page(folder, TEMPLATE, lambda results: figures(results["runs"]), words)


def figures(runs: list[Run]) -> dict[str, Axes]:
    """The figures of the page, by the names of their files."""
    return {"risk": _risk(runs), "exposure": _exposure(runs), "groups": _groups(runs)}


def words(results: Json) -> Json:
    """What the template of the page is filled with."""
    runs: list[Run] = results["runs"]
    watched, narrow = select(runs, case="dp-sgd"), _narrowest(runs)
    one, losses = watched[0], changes(select(runs, case="plain"), watched)
    baseline = mean(100.0 * run["baseline"] for run in watched)
    looked_at = [len(betas) for run in watched for betas in run["exposures"].values()]
    return {
        **one["records"],
        "seeds": results["seeds"],
        "epochs": len(one["epochs"]),
        "steps": one["steps"],
        "noise": f"{one['noise_multiplier']:g}",
        "names": ", ".join(one["exposures"]),
        "concerned": f"{mean(100.0 * run['concerned'] / run['records']['train'] for run in watched):.0f} %",
        "results": table(["", "β\\* membership", "β\\* person", "accuracy"], _rows(runs)),
        "membership": down(min(run["membership"] for run in watched)),
        "measured": down(min(run["attribute"] for run in watched)),
        "narrow": f"{narrow[0]['gap']:g}",
        "proved": down(min(run["attribute"] for run in narrow)),
        "learned": f"{accuracy(select(runs, case='plain')) - baseline:.1f}",
        "kept": f"{accuracy(watched) - baseline:.1f}",
        "cost_of_gap": f"{accuracy(narrow) - accuracy(watched):+.1f}",
        "distance": up(max(run["largest_distance"] for run in watched), 1),
        "looked_at": sum(looked_at),
        "median": down(sorted(_betas(watched))[sum(looked_at) // 2]),
        "loser": min(losses, key=lambda name: losses[name]),
        "loss": f"{-min(losses.values()):.1f}",
        "most": up(max(map(abs, changes(watched, narrow).values())), 1),
    }


def _narrowest(runs: list[Run]) -> list[Run]:
    """The runs with the smallest gap."""
    return select(runs, gap=min(run["gap"] for run in runs if run["gap"] is not None))


def _betas(runs: list[Run]) -> list[float]:
    return [beta for run in runs for betas in run["exposures"].values() for beta in betas]


def _rows(runs: list[Run]) -> list[list[str]]:
    """A row for each case: β* against both threats, and the accuracy."""
    baseline = f"{mean(100.0 * run['baseline'] for run in runs):.1f}"
    rows = [["always the most frequent device", "1", "1", baseline]]
    for case in dict.fromkeys(run["case"] for run in runs):
        some = select(runs, case=case)
        if case == "plain":
            rows.append(["no privacy (Adam)", "nothing is proved", "nothing is proved", spread(some)])
            continue
        gap = some[0]["gap"]
        attribute = down(min(run["attribute"] for run in some))
        title = "DP-SGD, watched" if gap is None else f"DP-SGD, gap {gap:g}"
        known = f"≈ {attribute}, measured" if gap is None else f"{attribute}, proved"
        rows.append([title, down(min(run["membership"] for run in some)), known, spread(some)])
    return rows


def changes(some: list[Run], others: list[Run]) -> dict[str, float]:
    """For each device, by how many points the accuracy of the other runs is higher."""
    return {
        SHORT.get(name, name): group_accuracy(others, "device", name) - group_accuracy(some, "device", name)
        for name in some[0]["groups"]["device"]
    }


# ---------------------------------------------------------------------- figures


def _risk(runs: list[Run]) -> Axes:
    """β* after each epoch, of membership and of the person as measured; the proved ones after the last epoch."""
    ax = plots.axes()
    watched = select(runs, case="dp-sgd")
    epochs = list(range(1, len(watched[0]["epochs"]) + 1))
    for key, style, colour, label in (
        ("membership", "s-", plots.MEMBERSHIP, "membership"),
        ("attribute", "o--", plots.ATTRIBUTE, "person, measured"),
    ):
        plots.seeds(ax, epochs, [[run["epochs"][k - 1][key] for run in watched] for k in epochs], style, colour, label)
    for mark, gap in zip("^Dv", sorted({run["gap"] for run in runs if run["gap"] is not None}), strict=False):
        proved = min(run["attribute"] for run in select(runs, gap=gap))
        ax.plot(epochs[-1:], [proved], mark, color=plots.PROVED, ms=6, label=f"person, proved (gap {gap:g})")
    ax.set_xticks(epochs)
    ax.set_ylim(None, 1.02)
    ax.set_xlabel("epoch")
    ax.set_ylabel(plots.BAYES_SECURITY)
    plots.legend(ax, columns=2)
    return ax


def _exposure(runs: list[Run]) -> Axes:
    """β* of each tweet that was looked at, a row of points for each person."""
    ax = plots.axes()
    watched = select(runs, case="dp-sgd")
    names = list(dict.fromkeys(name for run in watched for name in run["exposures"]))
    for place, name in enumerate(reversed(names)):
        betas = [beta for run in watched for beta in run["exposures"].get(name, [])]
        ax.plot(betas, [place] * len(betas), "|", color=plots.ATTRIBUTE, ms=11, mew=1.1, alpha=0.7)
    ax.set_yticks(range(len(names)), list(reversed(names)))
    ax.set_xlabel(f"{plots.BAYES_SECURITY} of a tweet (more exposed to the left)")
    return ax


def _groups(runs: list[Run]) -> Axes:
    """Two panels, by device and by person, with three bars for each group."""
    panels = plots.panels(1, 2, (9.6, 3.2), 2)
    narrow = _narrowest(runs)
    kinds = {
        "no privacy": (select(runs, case="plain"), PALE, "////"),
        "DP-SGD": (select(runs, case="dp-sgd"), plots.OTHER, ""),
        f"DP-SGD, gap {narrow[0]['gap']:g}": (narrow, plots.PROVED, ""),
    }
    for ax, group in zip(panels, ("device", "person"), strict=True):
        sizes = group_sizes(narrow, group)
        names = [name for name in sizes if sizes[name] >= FEWEST]
        for k, (label, (some, colour, hatch)) in enumerate(kinds.items()):
            places = [i + 0.27 * (k - 1) for i in range(len(names))]
            heights = [group_accuracy(some, group, name) for name in names]
            ax.bar(places, heights, 0.25, color=colour, label=label, hatch=hatch, edgecolor="white", linewidth=0)
        ax.set_xticks(range(len(names)), [f"{SHORT.get(name, name)}\n{sizes[name]}" for name in names], fontsize=7)
        ax.set_ylim(0, 100)
        ax.set_ylabel("accuracy (%)")
        plots.legend(ax, columns=3, title=f"By {group}; below: the number of test tweets, all seeds together")
    return panels[0]
