"""Figure 3: which noise and sampling rate give which Bayes security, T = 5,000."""

from __future__ import annotations

import numpy as np
from scipy.special import erfinv

import betastar as bs
from betastar import plots
from studies.paper.sheet import Sheet

STEPS = 5000


def make(sheet: Sheet) -> None:
    number = 15 if sheet.quick else 60
    noise, rate = np.linspace(0.5, 5.0, number), np.geomspace(1e-4, 1e-2, number)
    beta = bs.analyze(bs.DPSGD(noise[None, :], rate[:, None], STEPS)).bayes_security.lower
    ax = plots.axes()
    image = ax.contourf(noise, rate, beta, levels=np.linspace(0, 1, 21), cmap="viridis")
    lines = ax.contour(noise, rate, beta, levels=[0.9, 0.95, 0.98], colors="white", linewidths=1)
    ax.clabel(lines, fmt="%.2f", fontsize=7)
    plots.colorbar(image, ax, "Bayes security β* (exact)")
    ax.set(xlabel="noise σ", ylabel="sampling rate p", yscale="log")
    sheet.save(ax, "fig3")
    slope = float(erfinv(0.02)) * 2**0.5 / STEPS**0.5
    exact = {
        s: bs.calibrate(bs.Target(bayes_security=0.98), noise_multiplier=s, steps=STEPS).sample_rate / s for s in (0.5, 1.0, 2.0)
    }
    text = ", ".join(f"{value:.6f} at σ = {s:g}" for s, value in exact.items())
    sheet.add(
        "p/σ for β* = .98, T = 5,000", "0.00035", text, f"closed form {slope:.6f}; it allows too much sampling for low noise"
    )
