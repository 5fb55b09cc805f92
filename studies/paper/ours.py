"""Three figures of our own: low noise, batch against data set, exposure of records."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np

import betastar as bs
from betastar import plots
from betastar.runs import Config, RunFolder, Training
from studies.paper.sheet import Sheet
from studies.trainings import Json

#: The β* of single records are kept to a ten-thousandth, rounded down.
DIGITS = 10_000


def low_noise(sheet: Sheet) -> None:
    """Closed form, affinity and exact value side by side where the closed form is not meant for."""
    noises = np.linspace(0.3, 1.0, 8 if sheet.quick else 36)
    run = bs.DPSGD(noises, 1e-3, 20_000)
    exact = bs.analyze(run).bayes_security.estimate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.RegimeWarning)
        closed = bs.analyze(run, method="paper").bayes_security.estimate
    affinity = bs.analyze(run, method="affinity").bayes_security
    ax = plots.axes()
    ax.plot(noises, closed, ":", color=plots.OTHER, label="paper's closed form")
    ax.plot(noises, affinity.estimate, color=plots.ATTRIBUTE, label="affinity, estimate")
    ax.fill_between(
        noises, affinity.lower, affinity.upper, color=plots.ATTRIBUTE, alpha=0.15, linewidth=0, label="affinity, proved"
    )
    ax.plot(noises, exact, "--", color=plots.MEMBERSHIP, label="exact")
    ax.set(xlabel="noise σ (p = .001, 20 epochs)", ylabel="Bayes security β*")
    plots.legend(ax)
    sheet.save(ax, "low-noise")
    i = int(np.argmin(np.abs(noises - 0.5)))
    text = f"{closed[i]:.3f}, {affinity.estimate[i]:.3f}, {exact[i]:.3f}"
    sheet.add(f"β* at σ = {noises[i]:.2f}: closed form, affinity, exact", "", text, "the closed form is unsafe below σ = 1")


def _distances(epochs: int, every: int) -> Json:
    """The largest distance in each batch, and in the whole data set at some of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Config(epochs=epochs, seed=0, ledger=False, every=1), RunFolder(Path(folder)))
        everyone = training.training.watch(training.study.secret, scope="dataset", every=every)
        for _ in range(epochs):
            training.run_epoch()
        batch = training.monitors["exact"].distances
    steps = np.arange(0, len(batch), every)
    return {"batch": batch.tolist(), "steps": steps.tolist(), "everyone": everyone.distances[steps].tolist()}


def scopes(sheet: Sheet) -> None:
    """The largest gap in the batch, and in the whole data set, at the same steps."""
    measured = sheet.measured("scopes", lambda: _distances(1 if sheet.quick else 5, every=25))
    batch, steps, everyone = (np.array(measured[name]) for name in ("batch", "steps", "everyone"))
    ax = plots.axes()
    ax.plot(np.arange(len(batch)), batch, color=plots.MEMBERSHIP, lw=0.7, label="batch (an estimate)")
    ax.plot(steps, everyone, "o--", color=plots.ATTRIBUTE, ms=3, lw=1, label="data set")
    ax.set(xlabel="step", ylabel="largest distance R (clipping norms)")
    ax.margins(y=0.15)
    plots.legend(ax)
    sheet.save(ax, "scopes")
    text = f"{batch[steps].mean():.3f} against {everyone.mean():.3f}"
    sheet.add("Adult, mean distance: batch against data set", "", text, "the batch misses records with a larger gap")


def exposure(sheet: Sheet) -> None:
    """How much single records are exposed."""

    def measure() -> Json:
        exact = np.array([entry.bayes_security for entry in sheet.adult()[0].ledger])
        betas, counts = np.unique(np.floor(exact * DIGITS) / DIGITS, return_counts=True)
        return {"betas": betas.tolist(), "counts": counts.tolist()}

    measured = sheet.measured("exposure", measure)
    betas = np.repeat(measured["betas"], measured["counts"])
    sheet.save(plots.exposure(betas), "exposure")
    low, middle = float(betas.min()), float(np.median(betas))
    text = f"{low:.4f} and {middle:.4f}"
    sheet.add("Adult, β* of the most exposed and of the median record", "", text, sheet.note or "estimates, seed 0, 30 epochs")
