"""Figures of risks: trade-off curves, β* over the steps, and sweeps over two parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from betastar.analyze import RegimeWarning, analyze
from betastar.dpsgd import DPSGD, IN_EPOCHS, all_plain
from betastar.dpsgd import batches_per_epoch as batches
from betastar.figures.style import ATTRIBUTE, BAYES_SECURITY, MEMBERSHIP, OTHER, axes, colorbar, few_ticks, legend
from betastar.risk import LEVELS, Risk
from betastar.threats import AttributeInference, Candidates, Threat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

#: False-positive rates of the two views of a trade-off curve.
EARLY = (5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.015, 0.03)  # where a curve is steepest
RATES = {False: np.union1d(np.linspace(0.0, 1.0, 51), EARLY), True: np.geomspace(1e-5, 1.0, 51)}


def tradeoff(
    risk: Risk, ax: Axes | None = None, log: bool = False, label: str = "", color: str = MEMBERSHIP, style: str = "-"
) -> Axes:
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
    color, style : str
        The colour and the dashes of the line.

    Returns
    -------
    Axes
        The line is the share of right alarms (TPR) that no attack exceeds, for each share of false alarms (FPR). The band
        reaches down to an attack that exists.

    Raises
    ------
    ValueError
        If the risk is of a sweep.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar.figures import plots
    >>> ax = plots.tradeoff(bs.analyze(bs.DPSGD(2.0, 0.01, 1000)), label="noise 2")
    >>> [line.get_label() for line in ax.lines]
    ['guessing without the model', 'noise 2']
    """
    if risk.shape:
        raise ValueError(f"risk must be of one run, got a sweep of shape {risk.shape}; draw its curves one by one.")
    ax, rates = axes(ax, (4.0, 3.4)), RATES[log]
    if not any(line.get_gid() == "guessing" for line in ax.lines):
        ax.plot(rates, rates, ":", color=OTHER, lw=1, label="guessing without the model", gid="guessing")
    curve = risk.tradeoff(rates)
    ax.plot(rates, curve.upper, style, color=color, lw=1.4, label=label or risk.threat)
    ax.fill_between(rates, curve.lower, curve.upper, color=color, alpha=0.18, linewidth=0)
    if log:
        ax.set(xscale="log", yscale="log", xlim=(rates[0], 1.0), ylim=(rates[0], 1.0))
    else:
        ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100.0 * value:.6g} %")
    ax.set_xlabel("false alarms (FPR)")
    ax.set_ylabel("right alarms (TPR)")
    legend(ax)
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

    Raises
    ------
    ValueError
        If the run is a sweep, or the distances of the threat are a histogram, which has no order.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar.figures import plots
    >>> ax = plots.over_steps(bs.DPSGD(2.0, 0.01, 1000), points=5)
    >>> ax.lines[0].get_xdata().tolist()
    [1, 251, 500, 750, 1000]
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
    legend(ax)
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
    xlabel: str = "sampling rate",
    ylabel: str = "noise multiplier",
    title: str = BAYES_SECURITY,
    levels: Sequence[float] = LEVELS,
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

    Raises
    ------
    ValueError
        If the values are not those of two parameters, or do not fit `x` and `y`.

    Examples
    --------
    >>> import betastar as bs
    >>> import numpy as np
    >>> from betastar.figures import plots
    >>> noises, rates = np.array([1.0, 2.0, 4.0]), np.array([0.001, 0.01])
    >>> ax = plots.heatmap(bs.analyze(bs.DPSGD(noises[:, None], rates, 1000)), x=rates, y=noises)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('sampling rate', 'noise multiplier')
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
    colorbar(mesh, ax, title)
    inside = [level for level in sorted(levels) if grid.min() < level < grid.max()]
    if inside and min(grid.shape) > 1:
        ax.clabel(ax.contour(*places, grid, levels=inside, colors="#202020", linewidths=1), fontsize=8)
    for place, scale, axis in zip(places, (ax.set_xscale, ax.set_yscale), (ax.xaxis, ax.yaxis), strict=True):
        if place.min() > 0 and place.max() >= 8 * place.min():
            scale("log")
            few_ticks(axis, float(place.min()), float(place.max()))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    return ax
