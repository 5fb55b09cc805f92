"""The picture of the README and of the start page: three settings of one training, as an attacker sees them."""

from __future__ import annotations

from pathlib import Path

import betastar as bs
from betastar.figures import plots
from betastar.rounding import down, percent

PICTURE = Path(__file__).parents[1] / "assets" / "picture"
SETTINGS = {1.0: plots.ATTRIBUTE, 3.51: plots.MEMBERSHIP, 18.0: plots.PROVED}


def draw() -> object:
    """Left: the trade-off curves. Right: β* as training goes on. Certified, and rounded to the safe side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for noise, color in SETTINGS.items():
        run = bs.DPSGD.from_epochs(noise_multiplier=noise, batch_size=256, dataset_size=26048, epochs=20)
        risk = bs.analyze(run, method="certified")
        right_guesses = percent(risk.success().upper)
        plots.tradeoff(risk, left, label=f"noise {noise:g}: right at most {right_guesses}", color=color)
        epochs = range(1, 21)
        runs = [bs.DPSGD.from_epochs(noise, 256, 26048, epoch) for epoch in epochs]
        right.plot(epochs, [bs.analyze(one).bayes_security.lower for one in runs], color=color)
        beta = risk.bayes_security.lower
        right.annotate(f"β* ≥ {down(beta, 3)}", (20, beta), (20, beta - 0.015), ha="right", va="top", fontsize=8, color=color)
    left.set_title("What the best attacker achieves", fontsize=10, loc="left")
    right.set_title("Bayes security as training goes on", fontsize=10, loc="left")
    right.set(xlabel="epoch", ylabel="Bayes security β*", ylim=(0.5, 1.02), xticks=range(0, 21, 5))
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    return left


if __name__ == "__main__":
    plots.save(draw(), PICTURE)
