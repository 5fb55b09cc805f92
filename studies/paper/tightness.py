"""Figures 4 and 10: closed form against the exact value, over noise and epochs, for several sampling rates."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import betastar as bs
from betastar import plots
from studies.paper.sheet import Sheet
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

NOISES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0)
EPOCHS = (1, 10, 20, 30, 40, 50, 60, 80, 100)
RATES = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
#: The accountant of the paper fails where it is off by more than this.
FAILS = 0.005


def errors(rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """|closed form - exact| and the exact advantage, noise by epochs."""
    steps = [round(epochs / rate) for epochs in EPOCHS]
    run = bs.DPSGD(np.array(NOISES)[:, None], rate, np.array(steps)[None, :])
    exact = bs.analyze(run).bayes_security.estimate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.RegimeWarning)
        closed = bs.analyze(run, method="paper").bayes_security.estimate
    return np.abs(closed - exact), 1.0 - exact


def accountant(rate: float, noise: float, steps: int) -> float:
    """Advantage as a privacy loss distribution has it at its usual grid: δ at ε = 0, substitution."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    pld = from_gaussian_mechanism(
        noise, sampling_prob=rate, neighboring_relation=NeighboringRelation.REPLACE_ONE, use_connect_dots=True
    )
    return float(pld.self_compose(steps).get_delta_for_epsilon(0.0))


def computed(rate: float, quick: bool) -> Json:
    """The accountant's advantage in the cells of a heat map: [place of the noise, place of the epochs, advantage]."""
    cells = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(0, len(NOISES), 3 if quick else 1):
            for j in range(0, len(EPOCHS), 4 if quick else 1):
                cells.append([i, j, accountant(rate, NOISES[i], round(EPOCHS[j] / rate))])
    return {"cells": cells}


def panel(sheet: Sheet, ax: Axes, rate: float) -> tuple[AxesImage, list[str]]:
    """One heat map; cells where the accountant fails get a cross."""
    error, advantage = errors(rate)
    ax.grid(False)
    image = ax.imshow(error, origin="lower", aspect="auto", cmap="Reds", vmin=0, vmax=0.4)
    for i, j in np.ndindex(*error.shape):
        if error[i, j] >= 0.005:
            colour = "white" if error[i, j] > 0.2 else "black"
            ax.text(j, i, f"{error[i, j]:.2f}", ha="center", va="center", fontsize=6, color=colour)
    failed = []
    for i, j, found in sheet.measured(f"accountant-{rate:g}", lambda: computed(rate, sheet.quick))["cells"]:
        if abs(found - advantage[i, j]) > FAILS:
            failed.append(f"σ = {NOISES[i]:g}, {EPOCHS[j]} epochs ({found:.3f}, exact {advantage[i, j]:.3f})")
            ax.plot(j, i, "x", color="black", ms=7, mew=0.8)
    ax.set_xticks(range(len(EPOCHS)), [str(number) for number in EPOCHS])
    ax.set_yticks(range(len(NOISES)), [f"{noise:g}" for noise in NOISES])
    ax.set(xlabel="epochs", ylabel="noise σ")
    ax.set_title(f"sampling rate {rate:g}", fontsize=plots.LEGEND, loc="left")
    return image, failed


def fig4(sheet: Sheet) -> None:
    ax = plots.axes()
    image, failed = panel(sheet, ax, 1e-3)
    plots.colorbar(image, ax, "|closed form − exact|")
    sheet.save(ax, "fig4")
    error, _ = errors(1e-3)
    at = {s: error[NOISES.index(s)].max() for s in (0.5, 1.0)}
    sheet.add(
        "largest error of the closed form, p = .001, σ = 1",
        ".02",
        f"{at[1.0]:.4f}",
        "truth is the exact value, not an accountant",
    )
    sheet.add(
        "largest error of the closed form, p = .001, σ = .5",
        ".37",
        f"{at[0.5]:.4f}",
        "truth is the exact value, not an accountant",
    )
    sheet.add("cells of figure 4 where the accountant is off by more than .005", "", str(len(failed)), "; ".join(failed[:3]))


def fig10(sheet: Sheet) -> None:
    panels = plots.panels(2, 3, (9.6, 6.4), number=len(RATES))
    for ax, rate in zip(panels, RATES, strict=True):
        image, failed = panel(sheet, ax, rate)
        if rate != 1e-3:
            worst = "; ".join(failed[:2]) + (f"; {len(failed) - 2} more" if len(failed) > 2 else "")
            sheet.add(f"cells of figure 10 where the accountant fails, p = {rate:g}", "", str(len(failed)), worst)
    plots.colorbar(image, panels, "|closed form − exact|")
    sheet.save(panels[0], "fig10")
