"""Figures of risks and runs. Each function draws into an Axes (a new one if none is given) and returns it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from betastar import files
from betastar.arrays import Real
from betastar.audit import Audit
from betastar.risk.analyze import RegimeWarning, analyze
from betastar.risk.risk import Risk
from betastar.rounding import nearest
from betastar.scenario.run import DPSGD
from betastar.scenario.samplings import IN_EPOCHS, all_plain, batches
from betastar.scenario.threats import AttributeInference, Candidates, Threat
from betastar.vocabulary import METRICS, RUN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from betastar.audit import Trials

#: Colours of the lines about each threat.
MEMBERSHIP, ATTRIBUTE, OTHER, PROVED = "#3b6ea8", "#c8553d", "#6a6f73", "#2f855a"
#: The label of an axis.
BAYES_SECURITY = METRICS["bayes_security"].title
#: False-positive rates of the two views of a trade-off curve.
EARLY = (5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.015, 0.03)  # where a curve is steepest
RATES = {False: np.union1d(np.linspace(0.0, 1.0, 51), EARLY), True: np.geomspace(1e-5, 1.0, 51)}

#: Attackers of real training, and how many points of a curve each shows.
WHO = {"updates": "sees every update", "weights": "has the final weights", "outputs": "asks the final model"}
SHOWN = 12


def axes(ax: Axes | None = None, size: tuple[float, float] = (5.2, 3.4)) -> Axes:
    """The given Axes, or a new figure's, drawn without a display."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def _legend_above(ax: Axes) -> None:
    """Put the legend above the axes, because the lines may be anywhere in them."""
    ax.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)


def tradeoff(risk: Risk, ax: Axes | None = None, log: bool = False, label: str = "", color: str = MEMBERSHIP) -> Axes:
    """Draw the trade-off curve of a risk.

    Parameters
    ----------
    risk : Risk
        The risk of one run.
    ax : Axes, optional
        Where to draw; a new figure by default.
    log : bool
        Whether the axes are logarithmic, which shows the rare false alarms.
    label : str
        The name of the line in the legend; the threat by default.
    color : str
        The colour of the line.

    Returns
    -------
    Axes
        The line is the share of right alarms (TPR) that no attack exceeds, for each share of false alarms (FPR). The band
        reaches down to an attack that exists.
    """
    if risk.shape:
        raise ValueError(f"risk must be of one run, got a sweep of shape {risk.shape}; draw its curves one by one.")
    ax, rates = axes(ax, (4.0, 3.4)), RATES[log]
    if not any(line.get_gid() == "guessing" for line in ax.lines):
        ax.plot(rates, rates, ":", color=OTHER, lw=1, label="guessing", gid="guessing")
    curve = risk.tradeoff(rates)
    ax.plot(rates, curve.upper, color=color, lw=1.4, label=label or risk.threat)
    ax.fill_between(rates, curve.lower, curve.upper, color=color, alpha=0.18, linewidth=0)
    if log:
        ax.set(xscale="log", yscale="log", xlim=(rates[0], 1.0), ylim=(rates[0], 1.0))
    else:
        ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100.0 * value:.6g} %")
    ax.set_xlabel("false alarms (FPR)")
    ax.set_ylabel("right alarms (TPR)")
    ax.legend(frameon=False, fontsize=8)
    return ax


def audit(result: Audit, ax: Axes | None = None, log: bool = False) -> Axes:
    """Draw the measured ROC of an audit beside the bound.

    The band holds for the whole curve. Between two points its upper end is what monotony leaves open, and its lower end is what
    an attacker reaches who chooses between the two tests by chance.
    """
    ax = axes(ax, (4.6, 4.0))
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
    verdict = f"bound violated (p = {nearest(result.p_value, 1)})" if result.violated else "bound not violated"
    ax.set_title(f"{result.threat.describe()}: {verdict}", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax


def trials(result: Trials, ax: Axes | None = None, log: bool = False) -> Axes:
    """Draw the measured ROC of each attacker on real training beside the bound. Bars are the intervals, which hold together."""
    ax = axes(ax, (4.6, 4.0))
    first = next(iter(result.audits.values()))
    tradeoff(analyze(first.run, first.threat, "certified"), ax, log, label="bound", color=MEMBERSHIP)
    for (place, one), color in zip(result.audits.items(), (ATTRIBUTE, PROVED, OTHER), strict=False):
        points = [one.roc[i] for i in np.unique(np.linspace(0, len(one.roc) - 1, SHOWN).round().astype(int))] if one.roc else []
        x, y = ([getattr(point, rate).estimate for point in points] for rate in ("fpr", "tpr"))
        low, high = ([getattr(point.tpr, end) for point in points] for end in ("lower", "upper"))
        bars = [np.subtract(y, low), np.subtract(high, y)]
        ax.errorbar(x, y, bars, fmt="o-", ms=2.5, lw=0.8, elinewidth=0.6, alpha=0.9, color=color, label=WHO[place])
    verdict = f"bound violated (p = {nearest(result.p_value, 1)})" if result.violated else "bound not violated"
    ax.set_title(f"{first.threat.describe()}: {verdict}", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax


def over_steps(run: DPSGD, threat: Threat | None = None, ax: Axes | None = None, method: str = "exact", points: int = 40) -> Axes:
    """Draw β* as training goes on: the band of a method, whose lower end is the line, and the paper's closed form.

    Parameters
    ----------
    run : DPSGD
        One run.
    threat : Threat, optional
        Who attacks; membership inference by substitution by default.
    ax : Axes, optional
        Where to draw; a new figure by default.
    method : str
        The method of `analyze`. Where distances differ from step to step, exact and certified take up to seconds a point.
    points : int
        The number of steps at which β* is computed, at most.

    Returns
    -------
    Axes
        The figure's.
    """
    if run.shape:
        raise ValueError(f"run must be one run, got a sweep of shape {run.shape}.")
    ax = axes(ax)
    color = ATTRIBUTE if isinstance(threat, AttributeInference) else MEMBERSHIP
    moments = np.unique(np.linspace(1, run.steps, min(points, run.steps)).round().astype(int))
    parts = [_first(run, int(moment)) for moment in moments]
    moments = np.array([int(part.steps) for part in parts])  # ends of epochs, where epochs count
    pairs = [(part, _until(threat, int(part.steps))) for part in parts]
    bounds = [analyze(part, against, method).bayes_security for part, against in pairs]
    paper: list[float] = []
    if all_plain(run):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)  # the figure shows the error of the closed form
            paper = [analyze(part, against, "paper").bayes_security.estimate for part, against in pairs]
    lower, upper = ([getattr(bound, end) for bound in bounds] for end in ("lower", "upper"))
    marker = "o" if len(moments) == 1 else ""
    ax.plot(moments, lower, marker=marker, color=color, label=f"β*, {method}")
    ax.fill_between(moments, lower, upper, color=color, alpha=0.18, linewidth=0)
    if paper:
        ax.plot(moments, paper, "--", marker=marker, color=OTHER, lw=1, label="paper's closed form")
    ax.set_xlabel("step")
    ax.set_ylabel(BAYES_SECURITY)
    ax.legend(frameon=False, fontsize=8)
    return ax


def _first(run: DPSGD, steps: int) -> DPSGD:
    """The run up to a step, or up to the end of its epoch where epochs count."""
    taken: list[DPSGD] = []
    for segment in run.segments:
        if steps <= 0:
            break
        number = min(steps, segment.steps)
        if segment.sampling in IN_EPOCHS:
            length = batches(segment.sample_rate, segment.sampling)
            number = length * -(-number // length)
        more = {"max_batch_size": segment.max_batch_size, "dataset_size": segment.dataset_size}
        taken.append(DPSGD(segment.noise_multiplier, segment.sample_rate, number, segment.sampling, **more))
        steps -= segment.steps
    return sum(taken[1:], start=taken[0])


def _until(threat: Threat | None, steps: int) -> Threat | None:
    """The threat up to a step."""
    if isinstance(threat, AttributeInference) and threat.counts is not None:
        raise ValueError("distances must be a number or one per step to draw steps in order, got a histogram.")
    if isinstance(threat, AttributeInference) and np.ndim(threat.distances):
        return AttributeInference(threat.distances[:steps])
    if isinstance(threat, Candidates) and threat.distances.ndim == 3:
        return Candidates(threat.distances[:steps])
    return threat


def heatmap(
    values: Risk | ArrayLike,
    ax: Axes | None = None,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    xlabel: str = RUN["sample_rate"].label,
    ylabel: str = RUN["noise_multiplier"].label,
    title: str = BAYES_SECURITY,
    levels: Sequence[float] = (0.9, 0.98),
    limits: tuple[float, float] | None = None,
    risky: bool = False,
) -> Axes:
    """Draw a sweep over two parameters. An axis whose values span a factor of eight or more is logarithmic.

    Parameters
    ----------
    values : Risk or array
        The lower end of the β* of a Risk, or an array: rows along y, columns along x.
    ax : Axes, optional
        Where to draw; a new figure by default.
    x, y : array, optional
        The values of the parameters along each axis.
    xlabel, ylabel, title : str
        The labels of the axes and of the colours.
    levels : sequence of float
        Values that lines mark.
    limits : (float, float), optional
        The values of the first and the last colour.
    risky : bool
        Whether larger values are worse, so that the colours are the other way round.

    Returns
    -------
    Axes
        The figure's.
    """
    grid = np.ma.masked_invalid(values.bayes_security.lower if isinstance(values, Risk) else values)
    if grid.ndim != 2:
        raise ValueError(f"values must be a sweep over two parameters, got shape {grid.shape}.")
    places = [np.arange(size) if given is None else np.ravel(given) for given, size in ((x, grid.shape[1]), (y, grid.shape[0]))]
    for name, place, size in zip("xy", places, grid.shape[::-1], strict=True):
        if len(place) != size:
            raise ValueError(f"{name} must have one entry for each of the {size} values along it, got {len(place)}.")
    ax = axes(ax)
    ax.grid(False)
    low, high = limits or (None, None)
    colours = "viridis_r" if risky else "viridis"
    mesh = ax.pcolormesh(*places, grid, shading="nearest", cmap=colours, vmin=low, vmax=high, rasterized=True)
    ax.figure.colorbar(mesh, ax=ax, label=title)
    inside = [level for level in sorted(levels) if grid.min() < level < grid.max()]
    if inside and min(grid.shape) > 1:
        ax.clabel(ax.contour(*places, grid, levels=inside, colors="#202020", linewidths=1), fontsize=8)
    for place, scale, axis in zip(places, (ax.set_xscale, ax.set_yscale), (ax.xaxis, ax.yaxis), strict=True):
        if place.min() > 0 and place.max() >= 8 * place.min():
            scale("log")
            _few_ticks(axis, place)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    return ax


def _few_ticks(axis: Axis, place: Real) -> None:
    """Plain numbers on a logarithmic axis; 1, 2 and 5 of each decade where there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,) if place.max() >= 300 * place.min() else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def over_epochs(entries: Sequence[dict[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw β* against membership and attribute inference after each epoch: measured, and proved in advance."""
    from matplotlib.ticker import AutoLocator

    ax = axes(ax)
    epochs = [entry["epoch"] for entry in entries]
    last = entries[-1] if entries else {}
    marker = "o" if len(entries) == 1 else ""
    ax.plot(epochs, [e["membership"]["lower"] for e in entries], color=MEMBERSHIP, marker=marker, label="membership, exact")
    for i, secret in enumerate(last.get("proved", {})):
        beta = [entry["proved"][secret]["lower"] for entry in entries]
        ax.plot(epochs, beta, ("-", "--", "-.", ":")[i % 4], color=PROVED, marker=marker, label=f"{plain(secret)}, proved")
    for name, style in (("exact", "-"), ("ball", "-."), ("centroid", "--")):
        if name in last:
            beta = [e[name]["estimate"] for e in entries]
            ax.plot(epochs, beta, style, color=ATTRIBUTE, marker=marker, label=f"attribute, {name} diameter")
            if name == "exact":
                low, high = ([e[name][key] for e in entries] for key in ("lower", "estimate"))
                ax.fill_between(epochs, low, high, color=ATTRIBUTE, alpha=0.15, linewidth=0, label="estimate to lower bound")
    whole = AutoLocator()
    whole.set_params(integer=True)
    ax.xaxis.set_major_locator(whole)
    ax.set_xlabel("epoch")
    ax.set_ylabel(BAYES_SECURITY)
    _legend_above(ax)
    return ax


def accuracy(entries: Sequence[dict[str, Any]], ax: Axes | None = None, title: str = "") -> Axes:
    """Draw privacy against accuracy: each epoch is a point, from the first to the last."""
    ax = axes(ax)
    accuracies = [100.0 * entry["accuracy"] for entry in entries]
    last = entries[-1] if entries else {}
    style: dict[str, Any] = {"marker": "o", "ms": 3, "lw": 1}
    ax.plot(accuracies, [entry["membership"]["lower"] for entry in entries], color=MEMBERSHIP, label="membership", **style)
    for secret in last.get("proved", {}):
        beta = [entry["proved"][secret]["lower"] for entry in entries]
        ax.plot(accuracies, beta, color=PROVED, label=f"{plain(secret)}, proved", **style)
    name = next((name for name in ("exact", "ball", "centroid") if name in last), None)
    if name:
        ax.plot(accuracies, [entry[name]["estimate"] for entry in entries], color=ATTRIBUTE, label="attribute", **style)
    ax.set_xlabel("accuracy on test records (%)")
    ax.set_ylabel(BAYES_SECURITY)
    _legend_above(ax)
    ax.set_title(title, fontsize=10)
    return ax


def exposure(beta: Sequence[float] | Real, ax: Axes | None = None) -> Axes:
    """Draw how the records' own β* against attribute inference are distributed."""
    ax = axes(ax)
    ax.hist(beta, bins=40, color=ATTRIBUTE, alpha=0.8)
    ax.set_yscale("log")
    ax.set_xlabel("β* of a record against attribute inference (estimate)")
    ax.set_ylabel("records")
    return ax


def save(ax: Axes, path: str | Path, *kinds: str) -> None:
    """Write the figure into files: as PNG, or in each of the formats that are named."""
    files.write_all({Path(f"{path}.{kind}"): image(ax, kind) for kind in kinds or ("png",)}, private=False)


def image(ax: Axes, kind: str = "png") -> bytes:
    """The content of the figure's file, which does not tell when it was made."""
    target = BytesIO()
    extra: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names may be in any script
        _figure(ax).savefig(target, format=kind, dpi=150, **extra)
    return target.getvalue()


def _figure(ax: Axes) -> Figure:
    """The whole figure that the axes are in."""
    from matplotlib.figure import Figure

    if not isinstance(ax.figure, Figure):
        raise TypeError(f"ax must be in a figure of its own, got axes in a {type(ax.figure).__name__}.")
    return ax.figure


def plain(text: str) -> str:
    """A name that a person chose, for a legend: not too long, not as mathematics, and not hidden."""
    short = text if len(text) <= 30 else f"{text[:29]}…"
    return short.lstrip("_").replace("$", r"\$") or "attribute"


def inline(ax: Axes, name: str) -> str:
    """The figure as an SVG element for a page: its colours follow the page's, its ids are its own, and it loads nothing."""
    import matplotlib

    target = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's fonts may have them
        _figure(ax).savefig(target, format="svg", transparent=True, metadata=nothing)
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns(:\w+)?="[^"]*"| version="1.1"', "", text).replace("xlink:href", "href")
    text = re.sub(r' id="([^"]*)"', rf' id="{name}-\1"', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    for color, variable in ((MEMBERSHIP, "membership"), (ATTRIBUTE, "attribute"), (PROVED, "proved"), (OTHER, "other")):
        text = text.replace(color, f"var(--{variable})")
    return text.replace("#000000", "currentColor").strip()
