"""Figure 2: error of replacing the mixture by a Gaussian, for one step, and the paper's bound of it."""

from __future__ import annotations

from math import sqrt

import numpy as np
from scipy.integrate import trapezoid
from scipy.stats import norm

from betastar import plots
from studies.paper.sheet import Sheet


def error(rate: float, noise: float) -> float:
    """TV between (1-p)·N(0, σ²) + p·N(1, σ²) and N(p, σ²): half the integral of |difference|."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 20001)
    difference = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise) - norm.pdf(x, rate, noise)
    return float(0.5 * trapezoid(np.abs(difference), x))


def make(sheet: Sheet) -> None:
    ratios = np.geomspace(1e-3, 1.0, 13 if sheet.quick else 37)
    ax = plots.axes()
    for noise, colour in ((0.5, plots.ATTRIBUTE), (1.0, plots.MEMBERSHIP), (2.0, plots.PROVED)):
        rates = ratios[ratios * noise <= 0.5] * noise
        ax.loglog(rates / noise, [error(p, noise) for p in rates], color=colour, label=f"σ = {noise:g}")
        ax.loglog(rates / noise, [sqrt(p * (1 - p)) / (2 * noise) or np.nan for p in rates], ":", color=colour, lw=1)
    ax.set(xlabel="sampling rate / noise, p/σ", ylabel="total variation (dotted: its bound)", ylim=(5e-5, 1))
    plots.legend(ax, columns=3)
    sheet.save(ax, "fig2")
    total_variation = error(0.001, 1.0)
    bound = sqrt(0.001 * 0.999) / 2
    sheet.add(
        "error of one step, p = .001, σ = 1", "negligible", f"{total_variation:.1e}", f"the bound √(p(1-p))/(2σ) is {bound:.1e}"
    )
