"""Figures of runs: β* over the epochs, privacy against accuracy or error, and the exposure of single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from betastar.arrays import Real
from betastar.figures.style import ATTRIBUTE, BAYES_SECURITY, MEMBERSHIP, OTHER, PROVED, axes, few_ticks, legend, plain
from betastar.quality import main_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Where an epoch has the β* of measured distances: the dashes of its line, and how the distances were measured, in words.
MEASURED: dict[str, tuple[Any, str]] = {
    "exact": ("--", "as measured"),
    "ball": ("-.", "distances from above, by a ball"),
    "centroid": (":", "distances from above, by the centroid"),
    "extremes": ((0, (5, 1)), "between two values only"),
}
#: Points of accuracy, and the ratio to the largest error, beyond which a line would leave most of the figure empty.
NEAR, NEAR_RATIO = 10.0, 1.5


def over_epochs(entries: Sequence[dict[str, Any]], ax: Axes | None = None, secret: str = "attribute") -> Axes:
    """Draw β* against membership and attribute inference after each epoch: measured, and proved in advance.

    Parameters
    ----------
    entries : sequence of dict
        The lines of epochs.jsonl.
    ax : Axes, optional
        Where to draw; a new figure by default.
    secret : str
        The name of the attribute that was measured.

    Returns
    -------
    Axes
        Each line is the β* to rely on. A band reaches from it up to the β* that an attack attains.

    Examples
    --------
    >>> from betastar.figures import plots
    >>> entries = [{"epoch": epoch, "accuracy": 0.8, "membership": {"lower": 1.0 - 0.01 * epoch}} for epoch in (1, 2, 3)]
    >>> ax = plots.over_epochs(entries)  # of a run: RunFolder("runs/people").epochs
    >>> ax.lines[0].get_ydata().tolist()
    [0.99, 0.98, 0.97]
    """
    from matplotlib.ticker import AutoLocator

    ax = axes(ax)
    epochs = [entry["epoch"] for entry in entries]
    last = entries[-1] if entries else {}
    marker = "o" if len(entries) == 1 else ""
    ax.plot(epochs, [e["membership"]["lower"] for e in entries], color=MEMBERSHIP, marker=marker, label="membership, any data")
    for i, name in enumerate(last.get("proved", {})):
        beta = [entry["proved"][name]["lower"] for entry in entries]
        dashes = ("-.", ":", "--", "-")[i % 4]
        ax.plot(epochs, beta, dashes, color=PROVED, marker=marker, label=f"{plain(name)}, proved in advance")
    for name, (dashes, words) in MEASURED.items():
        if name in last:
            low, high = ([entry[name][key] for entry in entries] for key in ("lower", "estimate"))
            ax.plot(epochs, low, ls=dashes, color=ATTRIBUTE, marker=marker, label=f"{plain(secret)}, {words}")
            ax.fill_between(epochs, low, high, color=ATTRIBUTE, alpha=0.15, linewidth=0)
    whole = AutoLocator()
    whole.set_params(integer=True)
    ax.xaxis.set_major_locator(whole)
    ax.set_xlabel("epoch")
    ax.set_ylabel(BAYES_SECURITY)
    legend(ax)
    return ax


def accuracy(
    entries: Sequence[dict[str, Any]], ax: Axes | None = None, secret: str = "attribute", title: str | None = None
) -> Axes:
    """Draw privacy against accuracy, or against the error of a regression: each epoch is a point, from the first to the last.

    Parameters
    ----------
    entries : sequence of dict
        The lines of epochs.jsonl.
    ax : Axes, optional
        Where to draw; a new figure by default.
    secret : str
        The name of the attribute that was measured.
    title : str, optional
        A line above the legend.

    Returns
    -------
    Axes
        Each point is the β* to rely on. A vertical line is the accuracy of whoever always guesses the most frequent label, or the
        error of whoever always predicts the mean, unless that is far from every point.

    Examples
    --------
    >>> from betastar.figures import plots
    >>> entries = [{"epoch": epoch, "accuracy": 0.5 + 0.125 * epoch, "membership": {"lower": 0.9}} for epoch in (1, 2, 3)]
    >>> plots.accuracy(entries).lines[0].get_xdata().tolist()
    [62.5, 75.0, 87.5]
    """
    ax = axes(ax)
    last = entries[-1] if entries else {}
    figure = main_figure(last)
    times = 100.0 if figure.share else 1.0
    reached = [times * entry[figure.name] for entry in entries]
    style: dict[str, Any] = {"marker": "o", "ms": 3, "lw": 1}
    ax.plot(reached, [entry["membership"]["lower"] for entry in entries], color=MEMBERSHIP, label="membership", **style)
    for name in last.get("proved", {}):
        beta = [entry["proved"][name]["lower"] for entry in entries]
        ax.plot(reached, beta, color=PROVED, ls="-.", label=f"{plain(name)}, proved in advance", **style)
    measured = next((name for name in MEASURED if name in last), None)
    if measured:
        beta = [entry[measured]["lower"] for entry in entries]
        ax.plot(reached, beta, color=ATTRIBUTE, ls="--", label=f"{plain(secret)}, {MEASURED[measured][1]}", **style)
    if figure.baseline in last:
        idle = times * last[figure.baseline]
        if idle > min(reached) - NEAR if figure.share else idle < NEAR_RATIO * max(reached):
            ax.axvline(idle, color=OTHER, ls=":", lw=1, label=figure.baseline_title)
    ax.set_xlabel(f"{figure.title} on test records ({'%' if figure.share else 'in units of the label'})")
    ax.set_ylabel(BAYES_SECURITY)
    legend(ax, title=title)
    return ax


def exposure(beta: Sequence[float] | Real, ax: Axes | None = None, any_record: float | None = None) -> Axes:
    """Draw how the records' own β* against attribute inference are distributed.

    Parameters
    ----------
    beta : sequence of float
        The β* of each record that was measured.
    ax : Axes, optional
        Where to draw; a new figure by default.
    any_record : float, optional
        The β* that holds for any record, which is marked.

    Returns
    -------
    Axes
        The figure's.

    Examples
    --------
    >>> from betastar.figures import plots
    >>> ax = plots.exposure([0.93, 0.95, 0.97], any_record=0.92)
    >>> int(sum(bar.get_height() for bar in ax.patches))
    3
    """
    ax = axes(ax)
    ax.hist(beta, bins=40, color=ATTRIBUTE, alpha=0.8, label="records that were measured")
    if any_record is not None:
        ax.axvline(any_record, color=OTHER, ls="--", lw=1.2, label="the figure for any record")
    ax.set_yscale("log")
    few_ticks(ax.yaxis, *ax.get_ylim())
    ax.set_xlabel("β* of a record against attribute inference (estimate)")
    ax.set_ylabel("number of records")
    legend(ax)
    return ax
