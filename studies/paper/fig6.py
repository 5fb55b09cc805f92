"""Figure 6: the advantage that (ε, δ) implies, for ever smaller ε, against the advantage itself."""

from __future__ import annotations

import numpy as np

import betastar as bs
from betastar import plots
from studies.paper.sheet import Sheet

RATE = 10 / 100_000


def make(sheet: Sheet) -> None:
    noises = np.geomspace(0.3, 3.0, 8 if sheet.quick else 25)
    ax = plots.axes()
    for epsilon, shade in ((1.0, 0.75), (0.1, 0.6), (0.01, 0.45), (0.001, 0.3), (0.0, 0.0)):
        implied = []
        for noise in noises:
            delta = float(bs.analyze(bs.DPSGD(float(noise), RATE, 1)).delta(epsilon).upper)
            implied.append(bs.advantage_from_epsilon(epsilon, min(delta, 1.0 - 1e-12)) if epsilon else delta)
        ax.semilogy(noises, implied, color=str(shade), lw=1.2, label=f"from (ε, δ), ε = {epsilon:g}")
    exact = bs.analyze(bs.DPSGD(noises, RATE, 1)).advantage.upper
    ax.semilogy(noises, exact, "--", color=plots.ATTRIBUTE, label="advantage 1 − β*")
    ax.set(xlabel="noise σ", ylabel="bound on the advantage")
    plots.legend(ax)
    sheet.save(ax, "fig6")
    one = bs.analyze(bs.DPSGD(1.0, RATE, 1))
    loose = bs.advantage_from_epsilon(0.1, float(one.delta(0.1).upper))
    text = f"{loose:.2e} against {one.advantage.upper:.2e}"
    sheet.add("advantage from ε = .1 against the true one, σ = 1", "looser", text, "tight at ε = 0 only, as in the paper")
