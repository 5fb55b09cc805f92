"""The picture of the README and of the start page: three settings of one training, as an attacker sees them."""

from __future__ import annotations

from pathlib import Path

import betastar as bs
from betastar import plots
from betastar.rounding import down, percent

PICTURE = Path(__file__).parents[1] / "assets" / "picture"
SETTINGS = {1.0: plots.ATTRIBUTE, 3.51: plots.MEMBERSHIP, 18.0: plots.PROVED}


def draw() -> object:
    """Left: the trade-off curves. Right: β* as training goes on. Certified, and rounded to the safe side."""
    left, right = plots.panels(1, 2, (9.0, 3.9))
    for noise, color in SETTINGS.items():
        run = bs.DPSGD.from_epochs(noise_multiplier=noise, batch_size=256, dataset_size=26048, epochs=20)
        risk = bs.analyze(run, method="certified")
        right_guesses = percent(risk.success().upper)
        label = f"noise {noise:g}: right at most {right_guesses}"
        plots.tradeoff(risk, left, label=label, color=color, style=plots.DASHES[color])
        epochs = range(1, 21)
        runs = [bs.DPSGD.from_epochs(noise, 256, 26048, epoch) for epoch in epochs]
        right.plot(epochs, [bs.analyze(one).bayes_security.lower for one in runs], plots.DASHES[color], color=color)
        beta = risk.bayes_security.lower
        right.annotate(f"β* ≥ {down(beta, 3)}", (20, beta), (20, beta - 0.015), ha="right", va="top", fontsize=8, color=color)
    plots.legend(left, columns=1, title="What the best attacker achieves")
    right.set_title("Bayes security as training goes on", fontsize=8, loc="left")
    right.set(xlabel="epoch", ylabel=plots.BAYES_SECURITY, ylim=(0.5, 1.02), xticks=range(0, 21, 5))
    return left


if __name__ == "__main__":
    plots.save(draw(), PICTURE)
