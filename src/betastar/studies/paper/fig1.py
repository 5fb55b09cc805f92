"""Figure 1: privacy against accuracy, membership and attribute inference, with ε for reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import betastar as bs
from betastar.figures import plots
from betastar.runs.folder import RunFolder
from betastar.studies.paper.sheet import Sheet, at, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DELTAS = {"Adult": 3.8e-6, "Purchase-100": 4e-7}


def make(sheet: Sheet) -> None:
    panels = plots.panels(1, 2, (9.6, 4.0))
    studies = (("Adult", sheet.adult(), "Adult"), ("Purchase-100", sheet.purchase(), "Purchase-100 (synthetic)"))
    for ax, (name, folders, title) in zip(panels, studies, strict=True):
        _panel(ax, folders, title, DELTAS[name])
    sheet.save(panels[0], "fig1")
    adult = at(studies[0][1], 30)
    right = [100 * entry["accuracy"] for entry in adult]
    text = f"{mean(right):.2f} % ({min(right):.1f} to {max(right):.1f})"
    why = sheet.note or "mean of 5 seeds on test records, still rising at epoch 30; the paper's is its best model"
    sheet.add("Adult, accuracy after 30 epochs", "83 %", text, why)
    real = at(studies[1][1], 30)
    text = f"{100 * mean([e['accuracy'] for e in real]):.1f} %"
    sheet.add(
        f"Purchase, accuracy after {len(studies[1][1][0].epochs)} epochs",
        "73 %",
        text,
        "synthetic stand-in: its accuracy says nothing of the real data",
    )


def _panel(ax: Axes, folders: list[RunFolder], title: str, delta: float) -> None:
    for which, folder in enumerate(folders):
        entries = folder.epochs
        accuracy = [100 * entry["accuracy"] for entry in entries]
        for name, colour, mark, text in (
            ("membership", plots.MEMBERSHIP, "o", "membership inference"),
            ("exact", plots.ATTRIBUTE, "s", "attribute inference"),
        ):
            ax.plot(
                accuracy,
                [e[name]["estimate"] for e in entries],
                mark,
                color=colour,
                ms=3,
                alpha=0.6,
                label=None if which else text,
            )
    entries = folders[0].epochs
    status = folders[0].status
    right = ax.twinx()
    runs = [bs.DPSGD(status.noise_multiplier, status.sample_rate, entry["steps"]) for entry in entries]
    epsilon = [bs.analyze(run, bs.Membership("add-remove")).epsilon(delta).upper for run in runs]
    right.plot([100 * e["accuracy"] for e in entries], epsilon, "--", color=plots.PROVED, lw=1)
    ax.plot([], [], "--", color=plots.PROVED, lw=1, label=f"ε at δ = {delta:g} (right axis)")
    right.set_ylabel("ε", color=plots.PROVED)
    right.grid(False)
    right.spines["top"].set_visible(False)
    right.tick_params(labelsize=8)
    ax.set(xlabel="accuracy on test records (%)", ylabel=plots.BAYES_SECURITY)
    plots.legend(ax, title=title)
