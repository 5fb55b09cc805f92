"""The study of voters for people: a page with tables and figures, from results.json."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

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
from studies.trainings import Json
from studies.voters.data import NO_ANSWER, OPINION, SECRETS, VOTE
from studies.voters.study import JOINT_GAP, TOGETHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Path(__file__).with_name("page.md.j2")
TITLES = {VOTE: "vote", "born_again": "born again", "race": "race", "ideology": "ideology", TOGETHER: "all four"}
#: Colours and marks of the lines.
STYLES = {
    VOTE: ("#c8553d", "o-"),
    "born_again": ("#3b6ea8", "s-"),
    "race": ("#5b8c5a", "^-"),
    "ideology": ("#8e6c8a", "D-"),
    "label": ("#202020", "v--"),
}
#: How far apart the seeds of two lines are drawn, in points.
BESIDE = 4.0
#: Groups with a smaller share of the test records say nothing.
SMALLEST_GROUP = 0.01
#: Points of accuracy below which a loss is not told.
NOTICEABLE = 0.3
#: What was attacked, by its name in the results.
GAMES = {
    "canary": "membership of a canary, the worst case",
    "vote": "the vote of the most exposed respondent, as an input",
    "label": "the vote of the most exposed respondent, as the label",
}


def write(folder: str | Path) -> Path:
    """Write README.md and its figures beside results.json."""
    return write_page(folder, TEMPLATE, figures, words)


def figures(results: Json) -> dict[str, Axes]:
    """The figures of the page, by the names of their files."""
    runs: list[Run] = results["runs"]
    return {"gaps": _by_gap(runs), "exposure": _exposure(runs), "groups": _groups(runs)}


def words(results: Json) -> Json:
    """What the template of the page is filled with."""
    runs: list[Run] = results["runs"]
    plain, label = dp_sgd(runs, OPINION), dp_sgd(runs, VOTE)
    one = plain[0]
    exposed, lost = exposed_groups(runs), losers(runs)
    return {
        **one["records"],
        "seeds": results["seeds"],
        "epochs": round(one["steps"] * one["sample_rate"]),
        "steps": one["steps"],
        "noise": f"{one['noise_multiplier']:g}",
        "membership": down(min(run["membership"] for run in plain)),
        "risk": table(["secret", "values", "any data", "these records", "their batches", "largest distance"], _risk_rows(runs)),
        "gaps": table(["", "β\\* of the secret", *(TITLES[one] for one in _secrets(runs))], _gap_rows(runs)),
        "labels": table(["", "β\\* membership", "β\\* vote", "accuracy"], _label_rows(runs)),
        "informed": table(
            ["secret", "frequencies alone", "+ DP-SGD", "+ narrowest gap", "rest of the answers", "+ DP-SGD", "+ narrowest gap"],
            _informed_rows(runs),
        ),
        "audits": table(["what is attacked", "games", *WHO.values(), "the bound allows"], audit_rows(results["audits"], GAMES)),
        "exposed": "; ".join(
            f"{TITLES[secret]}: {most} ({down(low)}) and {least} ({down(high)})"
            for secret, (most, low, least, high) in exposed.items()
        ),
        "learned": f"{accuracy(select(runs, label=OPINION, kind='no-privacy')) - 100 * mean(r['baseline'] for r in plain):.1f}",
        "cost": f"{accuracy(select(runs, label=OPINION, kind='no-privacy')) - accuracy(plain):.1f}",
        "worst_attribute": down(min(run["attribute"] for run in select(runs, label=OPINION, kind="dataset"))),
        "label_attribute": down(min(run["attribute"] for run in label)),
        "narrow": f"{narrowest(runs):g}",
        "narrow_beta": down(min(run["attribute"] for run in select(runs, kind="gap", gap=narrowest(runs)))),
        "change": _largest(gap_changes(runs)),
        "deleted": _largest({secret: change for secret, change in deleted_changes(runs).items() if secret != TOGETHER}),
        "all_deleted": f"{deleted_changes(runs).get(TOGETHER, 0.0):+.1f}",
        "all_clipped": f"{joint_change(runs):+.1f}",
        "joint_gap": f"{JOINT_GAP:g}",
        "within": up(max(high - low for one in exposed for low, _, high in exposures(runs, one).values()), 3),
        "between": up(max(high - low for _, low, _, high in exposed.values()), 3),
        "label_cost": [f"{accuracy(label) - accuracy(some):.1f}" for some in _label_gaps(runs)],
        "label_betas": [down(min(run["attribute"] for run in some)) for some in _label_gaps(runs)],
        "label_gaps": [f"{some[0]['gap']:g}" for some in _label_gaps(runs)],
        "losses": ", ".join(
            f"{name} ({TITLES[secret]}, {gap:+.1f} and {gone:+.1f})"
            for secret, (name, gap, gone) in lost.items()
            if gap <= -NOTICEABLE
        ),
        "loser": (loser := min(lost.values(), key=lambda one: one[1]))[0],
        "loss": f"{-loser[1]:.1f}",
        "gain": up(informed_gain(runs, kind="dataset"), 1),
        "gain_of_gap": up(informed_gain(runs, kind="gap", gap=narrowest(runs)), 1),
        "quick": results["quick"],
    }


def dp_sgd(runs: list[Run], label: str) -> list[Run]:
    """Plain DP-SGD with this label: the same training for each secret, so those that watched the vote stand for all."""
    return select(runs, label=label, kind="batch", secret=VOTE)


def narrowest(runs: list[Run]) -> float:
    """The smallest gap."""
    return min(float(run["gap"]) for run in runs if run["kind"] == "gap")


def _secrets(runs: list[Run]) -> list[str]:
    """The secrets of the model of the opinion, those together last."""
    known = {run["secret"] for run in runs if run["label"] == OPINION}
    return [one for one in (*SECRETS, TOGETHER) if one in known]


def _label_gaps(runs: list[Run]) -> list[list[Run]]:
    """The runs that protect the vote as the label, from the widest gap to the narrowest."""
    mine = select(runs, label=VOTE, kind="gap")
    return [select(mine, gap=gap) for gap in sorted({run["gap"] for run in mine}, reverse=True)]


def _risk_rows(runs: list[Run]) -> list[list[str]]:
    rows = []
    for label, secrets in ((OPINION, _secrets(runs)), (VOTE, [VOTE])):
        for secret in secrets:
            batch = select(runs, label=label, secret=secret, kind="batch")
            whole = select(runs, label=label, secret=secret, kind="dataset")
            rows.append(
                [
                    TITLES[secret] if label == OPINION else "vote, as the label",
                    str(batch[0]["informed"]["values"]),
                    down(min(run["membership"] for run in batch)),
                    f"≈ {down(min(run['attribute'] for run in whole))}" if whole else "not measured",
                    f"≈ {down(min(run['attribute'] for run in batch))}",
                    up(max(run["largest_distance"] for run in (*batch, *whole)), 2),
                ]
            )
    return rows


def _gap_rows(runs: list[Run]) -> list[list[str]]:
    """A row for each way to train: the β* that is proved in advance, and the accuracy for each secret."""
    secrets, plain = _secrets(runs), dp_sgd(runs, OPINION)
    baseline = f"{100.0 * mean(run['baseline'] for run in plain):.1f}"
    without = select(runs, label=OPINION, kind="no-privacy")
    rows = [
        ["always the most frequent answer", "1", *[baseline] * len(secrets)],
        ["no privacy (Adam)", "nothing is proved", *[spread(without)] * len(secrets)],
        ["DP-SGD", down(min(run["membership"] for run in plain)), *[spread(plain)] * len(secrets)],
    ]
    for gap in sorted({run["gap"] for run in runs if run["kind"] == "gap"}, reverse=True):
        mine = select(runs, label=OPINION, kind="gap", gap=gap)
        cells = [spread(some) if (some := select(mine, secret=secret)) else "" for secret in secrets]
        rows.append([f"DP-SGD, gap {gap:g}", down(min(run["attribute"] for run in mine)), *cells])
    deleted = [spread(select(runs, label=OPINION, kind="delete", secret=secret)) for secret in secrets]
    return [*rows, ["DP-SGD, column deleted", "1", *deleted]]


def _label_rows(runs: list[Run]) -> list[list[str]]:
    plain = dp_sgd(runs, VOTE)
    baseline = f"{100.0 * mean(run['baseline'] for run in plain):.1f}"
    beta = down(min(run["membership"] for run in plain))
    rows = [
        ["always the most frequent vote", "1", "1", baseline],
        ["no privacy (Adam)", "nothing is proved", "nothing is proved", spread(select(runs, label=VOTE, kind="no-privacy"))],
        ["DP-SGD", beta, f"≈ {down(min(run['attribute'] for run in plain))}, measured", spread(plain)],
    ]
    for some in _label_gaps(runs):
        proved = f"{down(min(run['attribute'] for run in some))}, proved"
        rows.append([f"DP-SGD, gap {some[0]['gap']:g}", beta, proved, spread(some)])
    return rows


def _informed_rows(runs: list[Run]) -> list[list[str]]:
    """Shares of right guesses: with the frequencies or the rest of the record, alone, with DP-SGD and with the narrowest gap."""
    rows = []
    for label, secrets in ((OPINION, _secrets(runs)), (VOTE, [VOTE])):
        for secret in secrets:
            watched = select(runs, label=label, secret=secret, kind="dataset") or select(runs, secret=secret, kind="batch")
            gaps = select(runs, label=label, secret=secret, kind="gap")
            narrow = select(gaps, gap=min(run["gap"] for run in gaps))
            cells = [TITLES[secret] if label == OPINION else "vote, as the label"]
            for known in ("frequencies", "rest"):
                if known not in watched[0]["informed"]:
                    cells += [""] * 3
                    continue
                cells.append(nearest_percent(mean(run["informed"][known]["without"] for run in watched), 1))
                for word, some in (("≈ ", watched), ("≤ ", narrow)):
                    cells.append(word + percent(mean(run["informed"][known]["with"] for run in some), 1))
            rows.append(cells)
    return rows


def exposures(runs: list[Run], secret: str) -> dict[tuple[str, str], list[float]]:
    """For each column and group, the quartiles of β* of its respondents, as means over the seeds; small groups are left out."""
    watched = select(runs, label=OPINION, secret=secret, kind="dataset")
    known = [(column, name) for column in SECRETS for name in (watched[0]["exposures"][column] if watched else ())]
    large = [place for place in known if all(_large(run, *place) for run in watched)]
    return {place: [mean(_quantiles(run, *place)[q] for run in watched) for q in (1, 2, 3)] for place in large}


def exposed_groups(runs: list[Run]) -> dict[str, tuple[str, float, str, float]]:
    """For each secret, the group that is most exposed and the one that is least, each with its median β*."""
    told = {}
    for secret in SECRETS:
        if medians := {place: quartiles[1] for place, quartiles in exposures(runs, secret).items()}:
            most, least = min(medians, key=lambda one: medians[one]), max(medians, key=lambda one: medians[one])
            told[secret] = (_group(*most), medians[most], _group(*least), medians[least])
    return told


def _group(column: str, name: str) -> str:
    """A group, in words."""
    return f"{TITLES[column]} {name!r}"


def _quantiles(run: Run, column: str, name: str) -> list[float]:
    """The quantiles of β* in a group: 5, 25, 50 and 75 %."""
    quantiles: list[float] = run["exposures"][column][name][1:]
    return quantiles


def _large(run: Run, column: str, name: str) -> bool:
    """Whether a group is large enough to be shown."""
    every = run["exposures"][column]
    return name in every and every[name][0] >= SMALLEST_GROUP * sum(one[0] for one in every.values())


def gap_changes(runs: list[Run]) -> dict[str, float]:
    """For each secret, by how many points the narrowest gap changes accuracy."""
    plain = accuracy(dp_sgd(runs, OPINION))
    return {
        secret: accuracy(some) - plain
        for secret in SECRETS
        if (some := select(runs, label=OPINION, secret=secret, kind="gap", gap=narrowest(runs)))
    }


def deleted_changes(runs: list[Run]) -> dict[str, float]:
    """For each secret, by how many points deleting the column changes accuracy."""
    plain = accuracy(dp_sgd(runs, OPINION))
    return {secret: accuracy(select(runs, label=OPINION, secret=secret, kind="delete")) - plain for secret in _secrets(runs)}


def joint_change(runs: list[Run]) -> float:
    """By how many points a gap of all four secrets together changes accuracy; 0 if that was not tried."""
    some = select(runs, label=OPINION, secret=TOGETHER, kind="gap")
    return accuracy(some) - accuracy(dp_sgd(runs, OPINION)) if some else 0.0


def _largest(changes: dict[str, float]) -> str:
    """The largest change, with its sign and the name of its secret."""
    name = max(changes, key=lambda one: abs(changes[one]))
    return f"{changes[name]:+.1f} points ({TITLES[name]})"


def group_changes(runs: list[Run], secret: str, kind: str, **wanted: float) -> dict[str, float]:
    """For each group of a secret's values, by how many points this way to train changes its accuracy."""
    plain, some = dp_sgd(runs, OPINION), select(runs, label=OPINION, secret=secret, kind=kind, **wanted)
    return {name: group_accuracy(some, secret, name) - group_accuracy(plain, secret, name) for name in _shown(plain, secret)}


def losers(runs: list[Run]) -> dict[str, tuple[str, float, float]]:
    """For each secret, the group that loses most with the narrowest gap: its name, that loss, and that of deleting the column."""
    told = {}
    for secret in gap_changes(runs):
        gap, gone = group_changes(runs, secret, "gap", gap=narrowest(runs)), group_changes(runs, secret, "delete")
        name = min(gap, key=gap.__getitem__)
        told[secret] = (name, gap[name], gone[name])
    return told


def informed_gain(runs: list[Run], **wanted: object) -> float:
    """By how many points these runs help an attacker most who knows the rest of a record."""
    some = [run for run in select(runs, **wanted) if "rest" in run["informed"]]
    return 100.0 * max(run["informed"]["rest"]["with"] - run["informed"]["rest"]["without"] for run in some)


def _shown(runs: list[Run], column: str) -> list[str]:
    """The groups that are large enough, the largest first."""
    sizes = group_sizes(runs, column)
    return sorted((one for one in sizes if sizes[one] >= SMALLEST_GROUP * sum(sizes.values())), key=lambda one: -sizes[one])


# ---------------------------------------------------------------------- figures


def _by_gap(runs: list[Run]) -> Axes:
    """Accuracy against 1 - β*, on a logarithmic axis: for secrets that are inputs, and for the vote as the label."""
    panels = plots.panels(1, 2, (9.6, 3.6), 2)
    for ax, label in zip(panels, (OPINION, VOTE), strict=True):
        plain = dp_sgd(runs, label)
        secrets = [one for one in SECRETS if select(runs, label=label, secret=one, kind="gap")]
        for k, secret in enumerate(secrets):
            mine = select(runs, label=label, secret=secret, kind="gap")
            gaps = sorted({run["gap"] for run in mine}, reverse=True)
            places = [plain, *(select(mine, gap=gap) for gap in gaps)]
            betas = [min(run["membership"] for run in plain), *(min(run["attribute"] for run in some) for some in places[1:])]
            colour, style = STYLES[secret if label == OPINION else "label"]
            title = TITLES[secret] if label == OPINION else "the vote is the label"
            aside = BESIDE * (k - (len(secrets) - 1) / 2)
            plots.seeds(ax, [1.0 - beta for beta in betas], [accuracies(some) for some in places], style, colour, title, aside)
            if label == OPINION:
                ax.axhline(accuracy(select(runs, label=label, secret=secret, kind="delete")), color=colour, lw=0.9, ls=":")
        ax.axhline(accuracy(select(runs, label=label, kind="no-privacy")), color=plots.OTHER, lw=1.1, ls="--")
        ax.axhline(100.0 * mean(run["baseline"] for run in plain), color=PALE, lw=1.1)
        ax.set_xscale("log")
        ax.invert_xaxis()
        ax.set_xlabel("1 − β* against attribute inference, proved (better to the right)")
        ax.set_ylabel("accuracy (%)")
        plots.legend(ax, columns=4, title=f"Predicting {'an opinion' if label == OPINION else 'the vote'}")
    return panels[0]


def _exposure(runs: list[Run]) -> Axes:
    """A panel for each secret: the median and the middle half of β* in each group, by all four columns."""
    secrets = [one for one in SECRETS if exposures(runs, one)]
    height = -(-len(secrets) // 2)
    panels = plots.panels(height, min(2, len(secrets)), (9.6, 4.2 * height), len(secrets))
    for ax, secret in zip(panels, secrets, strict=True):
        watched = select(runs, label=OPINION, secret=secret, kind="dataset")
        every = exposures(runs, secret)
        places = list(reversed(every))
        for row, (column, name) in enumerate(places):
            low, median, high = every[column, name]
            colour = STYLES[column][0]
            ax.plot([low, high], [row, row], "-", color=colour, lw=4, alpha=0.3, solid_capstyle="butt")
            ax.plot([_quantiles(run, column, name)[2] for run in watched], [row] * len(watched), "|", color=colour, ms=7, mew=1.0)
            ax.plot([median], [row], "o", color=colour, ms=4)
        ax.set_yticks(range(len(places)), [name for _, name in places], fontsize=7)
        for tick, (column, _) in zip(ax.get_yticklabels(), places, strict=True):
            tick.set_color(STYLES[column][0])
        ax.set_ylim(-0.6, len(places) - 0.4)
        ax.set_xlabel(f"β* of the {TITLES[secret]} (more exposed to the left)")
    return panels[0]


def _groups(runs: list[Run]) -> Axes:
    """A panel for each secret, with bars for each group of its values."""
    secrets = list(gap_changes(runs))
    height = -(-len(secrets) // 2)
    panels = plots.panels(height, min(2, len(secrets)), (9.6, 3.0 * height), len(secrets))
    narrow, plain = narrowest(runs), dp_sgd(runs, OPINION)
    for ax, secret in zip(panels, secrets, strict=True):
        mine = select(runs, label=OPINION, secret=secret)
        kinds = {
            "no privacy": (select(runs, label=OPINION, kind="no-privacy"), PALE, "////"),
            "DP-SGD": (plain, plots.OTHER, ""),
            f"gap {narrow:g}": (select(mine, kind="gap", gap=narrow), STYLES[secret][0], ""),
            "deleted": (select(mine, kind="delete"), "#e3ded2", "...."),
        }
        names, sizes = _shown(plain, secret), group_sizes(plain, secret)
        shown = [f"{_short(one)}\n{100 * sizes[one] / sum(sizes.values()):.0f} %" for one in names]
        group_bars(ax, secret, names, kinds, shown)
        ax.set_ylim(50, 100)
        plots.legend(ax, columns=4, title=TITLES[secret])
    return panels[0]


def _short(name: str) -> str:
    """An answer, short enough for an axis."""
    return "none" if name == NO_ANSWER else name.replace("another candidate", "another").replace(" ", "\n", 1)
