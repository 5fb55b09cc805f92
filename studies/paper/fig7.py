"""Figure 7: TPR at a given FPR, from Bayes security and from the exact trade-off curve."""

from __future__ import annotations

import numpy as np

import betastar as bs
from betastar import plots
from studies.paper.sheet import Sheet

RUN = bs.DPSGD(2.0, 1e-4, 500_000)


def make(sheet: Sheet) -> None:
    risk = bs.analyze(RUN)
    fpr = np.concatenate([[1e-6, 1e-5, 1e-4, 1e-3], np.linspace(0.01, 1.0, 12 if sheet.quick else 60)])
    exact = risk.tradeoff(fpr).upper
    bound = np.minimum(1.0, fpr + risk.advantage.upper)
    ax = plots.axes()
    ax.fill_between(fpr, fpr, bound, color="#e8a33d", alpha=0.25, linewidth=0, label="what β* alone allows")
    ax.plot(fpr, bound, color="#b97a12", lw=1, label="FPR + 1 − β*")
    ax.plot(fpr, exact, color=plots.MEMBERSHIP, lw=1.4, label="what the exact curve allows")
    ax.set(xlabel="false-positive rate", ylabel="true-positive rate (upper bound)")
    plots.legend(ax)
    small = ax.inset_axes((0.12, 0.58, 0.36, 0.38))
    low = fpr <= 0.2
    small.loglog(fpr[low], bound[low], color="#b97a12", lw=1)
    small.loglog(fpr[low], exact[low], color=plots.MEMBERSHIP, lw=1.4)
    small.tick_params(labelsize=6)
    sheet.save(ax, "fig7")
    for at, by_beta, by_curve in ((0.1, "0.128", "0.113"), (0.01, "0.038", "0.012")):
        ours = f"{at + float(risk.advantage.upper):.4f} and {float(risk.tpr(at).upper):.4f}"
        sheet.add(f"TPR at FPR {at:g}, by β* and by the curve", f"{by_beta} and {by_curve}", ours)
