"""The study of raters for people: a page with tables and figures, from results.json."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from betastar import plots
from betastar.rounding import down, nearest_percent, percent, up
from studies.pages import (
    PALE,
    WHO,
    Run,
    accuracies,
    accuracy,
    audit_rows,
    group_accuracy,
    group_bars,
    group_sizes,
    select,
    spread,
    table,
    write_page,
)
from studies.raters.study import ACTIVITY, SAMPLINGS
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Path(__file__).with_name("page.md.j2")
POISSON, BINS = SAMPLINGS
#: β* below this is said to be nothing.
NOTHING = 1e-4
#: Numbers of ratings that the tables show.
SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 1000)
#: What was attacked in trainings, by its name in the results.
GAMES = {
    "canary": "membership of a canary, the worst case",
    "label": "whether the most exposed rating says that the film was liked",
}


def write(folder: str | Path) -> Path:
    """Write README.md and its figures beside results.json."""
    return write_page(folder, TEMPLATE, figures, words)


def figures(results: Json) -> dict[str, Axes]:
    """The figures of the page, by the names of their files."""
    return {"risk": _risk(results), "accuracy": _accuracy(results["runs"]), "groups": _groups(results["runs"])}


def words(results: Json) -> Json:
    """What the template of the page is filled with."""
    runs: list[Run] = results["runs"]
    counts = np.array(results["people"]["ratings"])
    one = select(runs, kind="rating")[0]
    wide, bins = _widest(runs, "rating"), select(runs, kind="bins")
    same = select(runs, kind="rating", cap=bins[0]["cap"]) if bins else []
    best, three = best_person(runs), _risk_of(results, 3)
    return {
        "seeds": results["seeds"],
        "quick": results["quick"],
        "train": results["people"]["train"],
        "test": results["people"]["test"],
        "users": len(counts),
        "least": int(counts[0]),
        "median": int(np.median(counts)),
        "most": int(counts[-1]),
        "noise": f"{one['noise_multiplier']:g}",
        "steps": one["steps"],
        "rate": f"{one['sample_rate']:g}",
        "risks": table(
            ["ratings of a person", "users with as many or more", "β\\*, Poisson", "β\\*, balls in bins"], _risk_rows(results)
        ),
        "noises": table(
            [
                "ratings of a person",
                *(f"{name}, β\\* ≥ {target:g}" for target in _targets(results) for name in ("Poisson", "balls in bins")),
            ],
            _noise_rows(results),
        ),
        "caps": table(
            ["ratings of a person", "ratings in all", "no privacy", "DP-SGD, noise 1", "β\\* rating", "β\\* person"],
            _cap_rows(runs),
        ),
        "persons": table(["ratings of a person", "β\\* person", "noise", "β\\* rating", "accuracy"], _person_rows(runs)),
        "mechanism": table(["sampling", "ratings of a person", "right guesses", "the bound allows"], _mechanism_rows(results)),
        "trainings": table(
            ["what is attacked", "games", *WHO.values(), "the bound allows"], audit_rows(results["audits"]["training"], GAMES)
        ),
        "rating_beta": down(min(run["rating"] for run in wide)),
        "baseline": f"{100 * mean(run['baseline'] for run in runs):.1f}",
        "accuracy": f"{accuracy(wide):.1f}",
        "without": f"{accuracy(_widest(runs, 'no-privacy')):.1f}",
        "ten": _small(_risk_of(results, 10)[POISSON][0]),
        "slope": f"{slope(results):.2g}",
        "best_cap": str(best[0]["cap"]),
        "best_accuracy": f"{accuracy(best):.1f}",
        "best_gain": f"{accuracy(best) - 100 * mean(run['baseline'] for run in best):.1f}",
        "best_target": f"{best[0]['target']:g}",
        "bins_difference": f"{abs(accuracy(bins) - accuracy(same)):.1f}" if bins else "",
        "three": [_small(three[POISSON][0]), down(three[BINS][0]), up(three[BINS][1])],
        "bins_noise": up(100.0 * (max(one[BINS] / one[POISSON] for one in results["noise"]) - 1.0), 1),
        "losses": losses(runs),
    }


def _small(beta: float) -> str:
    """β*, rounded down; tiny ones are said to be below a number."""
    return f"below {NOTHING:g}" if beta < NOTHING else down(beta)


def _risk_of(results: Json, ratings: int) -> Json:
    """The entry of a person with this many ratings."""
    entry: Json = next(one for one in results["risk"] if one["ratings"] == ratings)
    return entry


def _targets(results: Json) -> list[float]:
    """The targets, in their order."""
    return list(dict.fromkeys(one["target"] for one in results["noise"]))


def _widest(runs: list[Run], kind: str) -> list[Run]:
    """The runs of a kind with the most ratings: no cap, or the largest one."""
    caps = {run["cap"] for run in select(runs, kind=kind)}
    return select(runs, kind=kind, cap=None if None in caps else max(caps))


def slope(results: Json) -> float:
    """The noise that each further rating of a person asks for, with Poisson sampling and the first target."""
    some = [one for one in results["noise"] if one["target"] == _targets(results)[0] and one["ratings"] >= 10]
    return float(mean(one[POISSON] / one["ratings"] for one in some))


def best_person(runs: list[Run]) -> list[Run]:
    """The runs that protect a person and have the highest mean accuracy."""
    every = {(run["cap"], run["target"]) for run in select(runs, kind="person")}
    return max((select(runs, kind="person", cap=cap, target=target) for cap, target in every), key=accuracy)


def _risk_rows(results: Json) -> list[list[str]]:
    counts = np.array(results["people"]["ratings"])
    rows = []
    for ratings in SHOWN:
        one = _risk_of(results, ratings)
        low, high = one[BINS]
        bins = down(low) if ratings == 1 else _small(high) if high < NOTHING else f"proved: {_small(low)}; at most {up(high)}"
        rows.append([f"{ratings:,}", nearest_percent(float(np.mean(counts >= ratings)), 0), _small(one[POISSON][0]), bins])
    return rows


def _noise_rows(results: Json) -> list[list[str]]:
    rows = []
    for ratings in SHOWN:
        mine = [
            next(one for one in results["noise"] if (one["ratings"], one["target"]) == (ratings, t)) for t in _targets(results)
        ]
        rows.append([f"{ratings:,}", *(up(one[name], 1) for one in mine for name in SAMPLINGS)])
    return rows


def _cap_rows(runs: list[Run]) -> list[list[str]]:
    rows = []
    for cap in dict.fromkeys(run["cap"] for run in select(runs, kind="rating")):
        mine = select(runs, kind="rating", cap=cap)
        largest = max(run["largest"] for run in mine)
        name = f"all (at most {largest:,})" if cap is None else f"at most {cap}"
        size = f"{mean(run['records'] for run in mine):,.0f}"
        betas = [down(min(run["rating"] for run in mine)), _small(min(run["person"] for run in mine))]
        rows.append([name, size, spread(select(runs, kind="no-privacy", cap=cap)), spread(mine), *betas])
    return rows


def _person_rows(runs: list[Run]) -> list[list[str]]:
    rows = []
    for target in dict.fromkeys(run["target"] for run in select(runs, kind="person")):
        for cap in dict.fromkeys(run["cap"] for run in select(runs, kind="person", target=target)):
            mine = select(runs, kind="person", target=target, cap=cap)
            betas = [down(min(run[name] for run in mine)) for name in ("person", "rating")]
            rows.append([f"at most {cap}", betas[0], up(mine[0]["noise_multiplier"], 1), betas[1], spread(mine)])
    return rows


def _mechanism_rows(results: Json) -> list[list[str]]:
    titles = {POISSON: "Poisson", BINS: "balls in bins"}
    return [
        [
            titles[one["sampling"]],
            str(one["ratings"]),
            f"{nearest_percent(one['success']['estimate'], 1)}",
            percent(0.5 + 0.5 * one["bound"]["upper"], 1),
        ]
        for one in results["audits"]["mechanism"]
    ]


def losses(runs: list[Run]) -> str:
    """By how many points DP-SGD and protecting a person change the accuracy of users with few and with many ratings."""
    plain, wide, best = _widest(runs, "no-privacy"), _widest(runs, "rating"), best_person(runs)
    told = []
    for name in _names(runs):
        before = group_accuracy(plain, "activity", name)
        changes = [group_accuracy(some, "activity", name) - before for some in (wide, best)]
        told.append(f"{_title(name)}: {changes[0]:+.1f} and {changes[1]:+.1f}")
    return "; ".join(told)


def _names(runs: list[Run]) -> list[str]:
    """The groups of activity, the least active first."""
    return sorted(group_sizes(runs, "activity"), key=int)


def _title(name: str) -> str:
    """A group of activity, in words."""
    low = int(name)
    high = next(one for one in ACTIVITY if one > low)
    return f"more than {low}" if high == ACTIVITY[-1] else f"{low + 1} to {high}" if low else f"up to {high}"


# ---------------------------------------------------------------------- figures


def _risk(results: Json) -> Axes:
    """β* over the number of ratings with the share of users beside it, and the noise that a person needs."""
    left, right = plots.panels(1, 2, (9.6, 3.4), 2)
    ratings = [one["ratings"] for one in results["risk"]]
    left.plot(ratings, [one[POISSON][0] for one in results["risk"]], "s-", color=plots.MEMBERSHIP, ms=4, lw=1.2, label="Poisson")
    low, high = ([one[BINS][end] for one in results["risk"]] for end in (0, 1))
    left.fill_between(ratings, low, high, color=plots.ATTRIBUTE, alpha=0.25, lw=0, label="balls in bins: between")
    counts = np.array(results["people"]["ratings"])
    places = np.unique(counts)
    left.plot(places, [np.mean(counts >= one) for one in places], ":", color=plots.OTHER, lw=1.4, label="users with as many")
    left.set_xscale("log")
    left.set_ylim(-0.02, 1.02)
    left.set_xlabel("ratings of a person")
    left.set_ylabel(f"{plots.BAYES_SECURITY} of the person; share")
    plots.legend(left, columns=3)
    for target, style in zip(_targets(results), ("-", "--"), strict=True):
        mine = [one for one in results["noise"] if one["target"] == target]
        for name, colour, title in ((POISSON, plots.MEMBERSHIP, "Poisson"), (BINS, plots.ATTRIBUTE, "balls in bins")):
            levels = [one[name] for one in mine]
            right.plot(ratings, levels, style, color=colour, lw=1.3, label=f"{title}, β* ≥ {target:g}")
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("ratings of a person")
    right.set_ylabel("noise multiplier that is needed")
    plots.legend(right, columns=2)
    return left


def _accuracy(runs: list[Run]) -> Axes:
    """Accuracy over the cap, for each kind of training."""
    ax = plots.axes(size=(5.8, 3.8))
    largest = max(run["largest"] for run in runs if "largest" in run)
    lines = {
        ("no-privacy", None): ("no privacy", "^--", plots.OTHER),
        ("rating", None): ("DP-SGD, a rating is protected", "s-", plots.MEMBERSHIP),
        ("person", 0.5): ("a person has β* ≥ 0.5", "o-", plots.ATTRIBUTE),
        ("person", 0.9): ("a person has β* ≥ 0.9", "D-", plots.PROVED),
    }
    for k, ((kind, target), (title, style, colour)) in enumerate(lines.items()):
        mine = select(runs, kind=kind, target=target)
        caps = sorted({run["cap"] or largest for run in mine})
        if caps:
            values = [accuracies([run for run in mine if (run["cap"] or largest) == cap]) for cap in caps]
            plots.seeds(ax, [float(cap) for cap in caps], values, style, colour, title, 3.0 * (k - 1.5))
    ax.axhline(100.0 * mean(run["baseline"] for run in runs), color=PALE, lw=1.2)
    ax.set_xscale("log")
    every = sorted({run["cap"] or largest for run in runs})
    ax.set_xticks(every, [f"{cap:,}" for cap in every])
    ax.minorticks_off()
    ax.set_xlabel("ratings of a person, at most")
    ax.set_ylabel("accuracy (%)")
    plots.legend(ax, columns=2, title="Small points: the seeds. Pale: always the more frequent answer.")
    return ax


def _groups(runs: list[Run]) -> Axes:
    """Bars for users with few and with many ratings."""
    ax = plots.axes(size=(6.4, 3.4))
    best = best_person(runs)
    kinds = {
        "no privacy": (_widest(runs, "no-privacy"), PALE, "////"),
        "DP-SGD, all ratings": (_widest(runs, "rating"), plots.MEMBERSHIP, ""),
        f"a person has β* ≥ {best[0]['target']:g}": (best, plots.ATTRIBUTE, ""),
    }
    names, sizes = _names(runs), group_sizes(kinds["no privacy"][0], "activity")
    total = sum(sizes.values())
    group_bars(ax, "activity", names, kinds, [f"{_title(one)} ratings\n{100 * sizes[one] / total:.0f} %" for one in names])
    ax.set_ylim(40, 80)
    plots.legend(ax, columns=3)
    return ax
