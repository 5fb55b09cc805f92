"""Figure 5: time for one answer, against the number of epochs."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence

import betastar as bs
from betastar import plots
from studies.paper.sheet import Sheet
from studies.paper.tightness import accountant
from studies.trainings import Json

RATE, NOISE = 1e-3, 1.0
#: The colour of each line.
LOOKS = {"affinity, a closed form": plots.OTHER, "exact": plots.MEMBERSHIP, "PLD accountant": plots.ATTRIBUTE}


def seconds(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure(epochs: Sequence[int]) -> Json:
    """Seconds for an answer after each number of epochs, by who answers."""
    curves: dict[str, list[float]] = {name: [] for name in LOOKS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in epochs:
            run = bs.DPSGD(NOISE, RATE, round(number / RATE))
            curves["affinity, a closed form"].append(seconds(lambda run=run: bs.analyze(run, method="affinity"), 5))  # type: ignore[misc]
            curves["exact"].append(seconds(lambda run=run: bs.analyze(run).bayes_security, 5))  # type: ignore[misc]
            curves["PLD accountant"].append(seconds(lambda run=run: accountant(RATE, NOISE, run.steps), 1))  # type: ignore[misc]
    return {"epochs": list(epochs), **curves}


def make(sheet: Sheet) -> None:
    measured = sheet.measured("fig5", lambda: measure((1, 20, 100) if sheet.quick else (1, 5, 10, 20, 40, 60, 80, 100)))
    ax = plots.axes()
    for name, colour in LOOKS.items():
        ax.semilogy(measured["epochs"], measured[name], plots.DASHES[colour], marker="o", ms=3, color=colour, label=name)
    ax.set(xlabel="epochs", ylabel="seconds")
    plots.legend(ax)
    sheet.save(ax, "fig5")
    ratio = measured["PLD accountant"][-1] / measured["exact"][-1]
    sheet.add(
        "time of the accountant / time of an exact answer, 100 epochs",
        "",
        f"{ratio:.0f}",
        "the paper compares its closed form only",
    )
