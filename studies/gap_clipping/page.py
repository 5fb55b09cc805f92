"""The study of gap clipping for people: a page with tables and figures, from results.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from betastar import plots
from betastar.rounding import down
from studies.pages import (
    PALE,
    Run,
    accuracies,
    accuracy,
    group_accuracy,
    group_bars,
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
COLOURS = {"age": "#c8553d", "sex": "#3b6ea8", "race": "#5b8c5a", "marital_status": "#8e6c8a", "item": "#c8553d"}
#: Marks of the lines, for print without colours.
MARKS = {"age": "o-", "sex": "s-", "race": "^-", "marital_status": "D-", "item": "o-"}
#: How far apart the seeds of two lines are drawn, in points.
BESIDE = 4.0
TITLES = {"age": "age", "sex": "sex", "race": "race", "marital_status": "marital status", "item": "first item"}
#: Share of the records below which a group's accuracy says nothing.
SMALLEST_GROUP = 0.005
#: A β* that exceeds its target by more than this is mentioned.
NOTICEABLE = 0.0005


def write(folder: str | Path) -> Path:
    """Write README.md and its figures beside results.json."""
    return write_page(folder, TEMPLATE, lambda results: figures(results["runs"]), _words)


def figures(runs: list[Run]) -> dict[str, Axes]:
    """The figures of the page, by the names of their files."""
    return {"gap": _by_gap(runs), "noise": _by_noise(runs), "groups": _groups(runs)}


def _words(results: Json) -> Json:
    runs: list[Run] = results["runs"]
    noise = _of(runs, "adult", "noise_multiplier")[0]
    one = select(runs, study="adult")[0]
    words: Json = {
        "seeds": results["seeds"],
        "epochs": round(one["steps"] * one["sample_rate"]),
        "noise": f"{noise:g}",
        "target": f"{results['target']:g}",
        "proved": _proved_beyond(runs, results["target"]),
        "membership": down(min(run["membership"] for run in _baseline(runs, "adult", noise))),
        "deleted": _deleting(runs),
        "losses": _losses(runs),
    }
    for study in ("adult", "purchase"):
        if select(runs, study=study):
            words[f"{study}_gaps"] = table(["gap", "proved β\\*", *_titles(runs, study, "gap")], _gap_rows(runs, study))
            head = ["noise", "β\\* membership", "gap", "plain DP-SGD", *_titles(runs, study, "target")]
            words[f"{study}_noises"] = table(head, _noise_rows(runs, study))
    return words | {"purchase_seeds": len({run["seed"] for run in select(runs, study="purchase")})}


def _proved_beyond(runs: list[Run], target: float) -> str:
    """The least β* that is proved of the runs with a target, if their gaps are narrower than it needs; otherwise nothing."""
    least = min((run["attribute"] for run in runs if run["kind"] == "target"), default=target)
    return down(least) if least > target + NOTICEABLE else ""


def _of(runs: list[Run], study: str, key: str, **wanted: Any) -> list[Any]:
    """The different values of an entry, in the order of the runs."""
    return list(dict.fromkeys(run[key] for run in select(runs, study=study, **wanted)))


def _baseline(runs: list[Run], study: str, noise: float) -> list[Run]:
    return select(runs, study=study, kind="plain", noise_multiplier=noise)


def _gap_rows(runs: list[Run], study: str) -> list[list[str]]:
    """A row for each gap: the proved β*, then the accuracy for each secret."""
    noise = _of(runs, study, "noise_multiplier")[0]
    secrets = _of(runs, study, "secret", kind="gap")
    plain = _baseline(runs, study, noise)
    rows = [["2 (plain DP-SGD)", down(min(run["attribute"] for run in plain)), *[spread(plain)] * len(secrets)]]
    for gap in _of(runs, study, "gap", kind="gap"):
        some = [select(runs, study=study, secret=secret, kind="gap", gap=gap) for secret in secrets]
        rows.append([f"{gap:g}", down(min(run["attribute"] for run in some[0])), *(spread(one) for one in some)])
    deleted = [select(runs, study=study, secret=secret, kind="delete", noise_multiplier=noise) for secret in secrets]
    return [*rows, ["column deleted", "1", *(spread(one) for one in deleted)]]


def _noise_rows(runs: list[Run], study: str) -> list[list[str]]:
    """A row for each noise: membership, gap, and the accuracy of plain DP-SGD and for each secret."""
    secrets = _of(runs, study, "secret", kind="target")
    rows = []
    for noise in _of(runs, study, "noise_multiplier", kind="target"):
        plain = _baseline(runs, study, noise)
        some = [select(runs, study=study, secret=secret, kind="target", noise_multiplier=noise) for secret in secrets]
        beta = down(min(run["membership"] for run in plain))
        rows.append([f"{noise:g}", beta, f"{some[0][0]['gap']:.4f}", spread(plain), *(spread(one) for one in some)])
    return rows


def _titles(runs: list[Run], study: str, kind: str) -> list[str]:
    return [TITLES[secret] for secret in _of(runs, study, "secret", kind=kind)]


def _deleting(runs: list[Run]) -> str:
    """What keeping and what deleting a column costs, in points of accuracy."""
    noises = _of(runs, "adult", "noise_multiplier", kind="target")
    rows = []
    for secret in _of(runs, "adult", "secret", kind="delete"):
        cells = [TITLES[secret]]
        for noise in (noises[0], noises[-1]):
            plain = accuracy(_baseline(runs, "adult", noise))
            kept = accuracy(select(runs, study="adult", secret=secret, kind="target", noise_multiplier=noise))
            gone = accuracy(select(runs, study="adult", secret=secret, kind="delete", noise_multiplier=noise))
            cells += [f"{kept - plain:+.1f}", f"{gone - plain:+.1f}"]
        rows.append(cells)
    head = ["secret", *(f"{what}, noise {noise:g}" for noise in (noises[0], noises[-1]) for what in ("gap", "deleted"))]
    return table(head, rows)


# ---------------------------------------------------------------------- figures


def _by_gap(runs: list[Run]) -> Axes:
    """Accuracy against 1 - β*, on a logarithmic axis: each place to the right is a narrower gap, each small point a seed."""
    ax = plots.axes(size=(5.6, 4.0))
    noise = _of(runs, "adult", "noise_multiplier")[0]
    plain = _baseline(runs, "adult", noise)
    for k, secret in enumerate(_of(runs, "adult", "secret", kind="gap")):
        gaps = _of(runs, "adult", "gap", kind="gap")
        places = [plain, *(select(runs, study="adult", secret=secret, kind="gap", gap=gap) for gap in gaps)]
        leaks = [1.0 - min(run["attribute"] for run in some) for some in places]
        plots.seeds(
            ax, leaks, [accuracies(some) for some in places], MARKS[secret], COLOURS[secret], TITLES[secret], BESIDE * (k - 1.5)
        )
        gone = accuracy(select(runs, study="adult", secret=secret, kind="delete", noise_multiplier=noise))
        ax.axhline(gone, color=COLOURS[secret], lw=0.9, ls=":")
    ax.set_xscale("log")
    ax.invert_xaxis()
    ax.set_xlabel("1 − β* against attribute inference, proved (better to the right)")
    ax.set_ylabel("accuracy (%)")
    plots.legend(ax, columns=4, title="Lines: mean of the seeds, which are the small points. Dotted: column deleted.")
    return ax


def _by_noise(runs: list[Run]) -> Axes:
    """Accuracy against noise, for plain DP-SGD and for each secret at the same β*."""
    ax = plots.axes(size=(5.6, 4.0))
    noises = _of(runs, "adult", "noise_multiplier", kind="target")

    def line(pick: Callable[[float], list[Run]], style: str, colour: str, label: str, aside: float) -> None:
        plots.seeds(ax, noises, [accuracies(pick(noise)) for noise in noises], style, colour, label, aside)

    line(lambda noise: _baseline(runs, "adult", noise), "s--", plots.OTHER, "plain DP-SGD (no promise)", -2.0 * BESIDE)
    for k, secret in enumerate(_of(runs, "adult", "secret", kind="target")):
        line(
            lambda noise, secret=secret: select(runs, study="adult", secret=secret, kind="target", noise_multiplier=noise),  # type: ignore[misc]
            MARKS[secret],
            COLOURS[secret],
            f"{TITLES[secret]}, β* ≥ .99",
            BESIDE * (k - 1.0),
        )
    ax.set_xscale("log")
    ax.set_xticks(noises, [f"{noise:g}" for noise in noises])
    ax.minorticks_off()
    ax.set_xlabel("noise multiplier")
    ax.set_ylabel("accuracy (%)")
    plots.legend(ax, columns=2, title="Lines: mean of the seeds, which are the small points.")
    return ax


def _groups(runs: list[Run]) -> Axes:
    """A panel for each secret, with three bars for each group: the mean of the seeds, and a line that reaches over all."""
    secrets = _of(runs, "adult", "secret", kind="gap")
    noise = _of(runs, "adult", "noise_multiplier")[0]
    narrow = min(_of(runs, "adult", "gap", kind="gap"))
    height = -(-len(secrets) // 2)
    panels = plots.panels(height, min(2, len(secrets)), (9.6, 3.0 * height), len(secrets))
    for ax, secret in zip(panels, secrets, strict=True):
        kinds = {
            "plain DP-SGD": (_baseline(runs, "adult", noise), plots.OTHER, ""),
            f"gap {narrow:g}": (select(runs, study="adult", secret=secret, kind="gap", gap=narrow), COLOURS[secret], ""),
            "column deleted": (select(runs, study="adult", secret=secret, kind="delete", noise_multiplier=noise), PALE, "////"),
        }
        sizes = _sizes(kinds["plain DP-SGD"][0], secret)
        names = sorted(sizes, key=str if secret == "age" else lambda name, sizes=sizes: -sizes[name])
        shown = [f"{_short(name)}\n{100 * sizes[name] / sum(sizes.values()):.0f} %" for name in names]
        group_bars(ax, secret, names, kinds, shown)
        ax.set_ylim(50, 100)
        plots.legend(ax, columns=3, title=TITLES[secret])
    return panels[0]


def _losses(runs: list[Run]) -> str:
    """For each secret, the group that loses most with the narrowest gap."""
    plain = _baseline(runs, "adult", _of(runs, "adult", "noise_multiplier")[0])
    narrow = min(_of(runs, "adult", "gap", kind="gap"))
    groups = []
    for secret in _of(runs, "adult", "secret", kind="gap"):
        some = select(runs, study="adult", secret=secret, kind="gap", gap=narrow)
        change = {
            name: group_accuracy(some, secret, name) - group_accuracy(plain, secret, name) for name in _sizes(plain, secret)
        }
        name = min(change, key=lambda name: change[name])
        groups.append(f"{_short(name).replace(chr(10), '-')} ({TITLES[secret]}, {change[name]:+.1f})")
    return ", ".join(groups)


def _sizes(runs: list[Run], secret: str) -> dict[str, int]:
    """The number of test records of each group that is not too small."""
    sizes = group_sizes(runs, secret)
    return {name: size for name, size in sizes.items() if size >= SMALLEST_GROUP * sum(sizes.values())}


def _short(name: str) -> str:
    """Adult's categories, short enough for an axis."""
    if name.startswith("["):
        low, high = (int(float(part)) for part in name.strip("[)").split(","))
        return f"{max(low, 17)} to {high - 1}" if high < 100 else f"{low} and more"
    words = name.split("-")
    return "\n".join([words[0], "-".join(words[1:])]) if len(name) > 10 and len(words) > 1 else name
