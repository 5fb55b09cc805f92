"""Figure 1: privacy against accuracy, membership and attribute inference, with ε for reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import betastar as bs
from betastar import plots
from studies.paper.sheet import Sheet, at, mean
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The δ of each ε.
ADULT, PURCHASE = 3.8e-6, 4e-7
#: The threats: the key in an epoch, the colour and the marker of a point, and words.
THREATS = (
    ("membership", plots.MEMBERSHIP, "o", "membership inference"),
    ("exact", plots.ATTRIBUTE, "s", "attribute inference"),
)


def make(sheet: Sheet) -> None:
    adult, purchase = sheet.training("adult", sheet.adult), sheet.training("purchase", sheet.purchase)
    left, right = plots.panels(1, 2, (9.6, 4.0))
    _panel(left, adult, "Adult", ADULT, against_accuracy=True)
    # The synthetic records are separated in the first epoch: against accuracy, all points would be above each other.
    _panel(right, purchase, "Purchase-100 (synthetic), over the epochs", PURCHASE, against_accuracy=False)
    sheet.save(left, "fig1")
    accuracies = [100 * entry["accuracy"] for entry in at(adult, 30)]
    text = f"{mean(accuracies):.2f} % ({min(accuracies):.1f} to {max(accuracies):.1f})"
    why = sheet.note or "mean of 5 seeds on test records, still rising at epoch 30; the paper's is its best model"
    sheet.add("Adult, accuracy after 30 epochs", "83 %", text, why)
    last = at(purchase, 30)
    sheet.add(
        f"Purchase, accuracy after {last[0]['epoch']} epochs",
        "73 %",
        f"{100 * mean([entry['accuracy'] for entry in last]):.1f} %",
        "synthetic stand-in: its accuracy says nothing of the real data",
    )


def _panel(ax: Axes, training: Json, title: str, delta: float, against_accuracy: bool) -> None:
    def places(entries: list[Json]) -> list[float]:
        return [100 * entry["accuracy"] if against_accuracy else entry["epoch"] for entry in entries]

    for name, colour, mark, text in THREATS:
        for seed, entries in enumerate(training["seeds"]):
            beta = [entry[name]["lower"] for entry in entries]
            label = None if seed else text
            ax.plot(places(entries), beta, mark, color=colour, ms=3, mew=0, alpha=0.6, label=label)
    first = training["seeds"][0]
    right = ax.twinx()
    runs = [bs.DPSGD(training["noise_multiplier"], training["sample_rate"], entry["steps"]) for entry in first]
    epsilon = [bs.analyze(run, bs.Membership("add-remove")).epsilon(delta).upper for run in runs]
    right.plot(places(first), epsilon, "--", color=plots.PROVED, lw=1)
    ax.plot([], [], "--", color=plots.PROVED, lw=1, label=f"ε at δ = {delta:g} (right axis)")
    right.set_ylabel("ε", color=plots.PROVED, size=plots.LABEL)
    right.spines["top"].set_visible(False)
    right.tick_params(labelsize=plots.TICK)
    ax.set(xlabel="accuracy on test records (%)" if against_accuracy else "epoch", ylabel=plots.BAYES_SECURITY)
    plots.legend(ax, title=title)
