"""Figures of audits: what attackers measured, beside the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from betastar.analyze import analyze
from betastar.audit import Audit
from betastar.audit.results import WHO
from betastar.figures.risks import RATES, tradeoff
from betastar.figures.style import ATTRIBUTE, DASHES, MEMBERSHIP, OTHER, PROVED, axes, legend
from betastar.rounding import nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from betastar.audit import Trials
    from betastar.threats import Threat

#: How many points of a curve each attacker shows.
SHOWN = 12


def audit(result: Audit, ax: Axes | None = None, log: bool = False) -> Axes:
    """Draw the measured ROC of an audit beside the bound.

    Parameters
    ----------
    result : Audit
        What `betastar.audit.mechanism` found.
    ax : Axes, optional
        Where to draw; a new figure by default.
    log : bool
        Whether the axes are logarithmic, which shows the rare false alarms.

    Returns
    -------
    Axes
        The band holds for the whole curve. Between two points its upper end is what monotony leaves open, and its lower end is
        what an attacker reaches who chooses between the two tests by chance.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> from betastar.figures import plots
    >>> result = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), games=1000, seed=1)
    >>> plots.audit(result).get_legend().get_title().get_text()
    'membership inference (substitution): bound not violated'
    """
    ax = axes(ax, (4.6, 4.4))
    tradeoff(analyze(result.run, result.threat, "certified"), ax, log, label="bound", color=MEMBERSHIP)
    fpr_low, fpr_high = ([getattr(point.fpr, end) for point in result.roc] for end in ("lower", "upper"))
    tpr_low, tpr_high = ([getattr(point.tpr, end) for point in result.roc] for end in ("lower", "upper"))
    rates = np.union1d(RATES[log], [*fpr_low, *np.nextafter(fpr_low, 1.0), *fpr_high])  # both sides of each stair
    below = np.interp(rates, [0.0, *fpr_high, 1.0], [0.0, *tpr_low, 1.0])
    above = np.array([*tpr_high, 1.0])[np.searchsorted(fpr_low, rates)]
    ax.fill_between(rates, below, above, color=ATTRIBUTE, alpha=0.18, linewidth=0, label=f"{100 * result.confidence:g} % band")
    x, y = ([getattr(point, rate).estimate for point in result.roc] for rate in ("fpr", "tpr"))
    ax.plot(x, y, "o", ms=2.5, color=ATTRIBUTE, label=f"measured, {result.games:,} games")
    if log:
        least = min([*fpr_low, *tpr_low, 0.01]) / 2.0
        ax.set(xlim=(least, 1.0), ylim=(least, 1.0))
    legend(ax, title=_verdict(result, result.threat))
    return ax


def trials(result: Trials, ax: Axes | None = None, log: bool = False) -> Axes:
    """Draw the measured ROC of each attacker on real training beside the bound.

    Parameters
    ----------
    result : Trials
        What `betastar.audit.training` found.
    ax : Axes, optional
        Where to draw; a new figure by default.
    log : bool
        Whether the axes are logarithmic, which shows the rare false alarms.

    Returns
    -------
    Axes
        Bars are the intervals, which hold together.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> from betastar.audit import Trials
    >>> from betastar.figures import plots
    >>> result = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), games=1000, seed=1)
    >>> ax = plots.trials(Trials("a canary", {"updates": result}, leakage=None))
    >>> ax.get_legend_handles_labels()[1]
    ['guessing without the model', 'bound', 'sees every update']
    """
    ax = axes(ax, (4.6, 4.4))
    first = next(iter(result.audits.values()))
    tradeoff(analyze(first.run, first.threat, "certified"), ax, log, label="bound", color=MEMBERSHIP)
    for (place, one), color in zip(result.audits.items(), (ATTRIBUTE, PROVED, OTHER), strict=False):
        points = [one.roc[i] for i in np.unique(np.linspace(0, len(one.roc) - 1, SHOWN).round().astype(int))] if one.roc else []
        x, y = ([getattr(point, rate).estimate for point in points] for rate in ("fpr", "tpr"))
        low, high = ([getattr(point.tpr, end) for point in points] for end in ("lower", "upper"))
        bars = [np.subtract(y, low), np.subtract(high, y)]
        look: dict[str, Any] = {"ms": 2.5, "lw": 0.9, "elinewidth": 0.6, "alpha": 0.9, "color": color}
        ax.errorbar(x, y, bars, marker="o", ls=DASHES[color], label=WHO[place], **look)
    legend(ax, title=_verdict(result, first.threat))
    return ax


def _verdict(result: Audit | Trials, threat: Threat) -> str:
    verdict = f"bound violated (p = {nearest(result.p_value, 1)})" if result.violated else "bound not violated"
    return f"{threat.describe()}: {verdict}"
