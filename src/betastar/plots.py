"""All figures. Each function draws into an Axes (a new one if none is given) and returns it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO, StringIO
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from betastar import files, validation
from betastar.analyze import RegimeWarning, analyze
from betastar.audit import Audit
from betastar.audit.verdict.games import WHO
from betastar.dpsgd import DPSGD, IN_EPOCHS, all_plain, length_of
from betastar.quality import main_figure
from betastar.risk import LEVELS, METRICS, Risk
from betastar.rounding import nearest
from betastar.threats import AttributeInference, Membership, Threat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from betastar.audit import Games
    from betastar.threats import Threat

#: Colours of the lines about each threat, which people with any colour vision tell apart beside each other.
MEMBERSHIP, ATTRIBUTE, OTHER, PROVED = "#3b6ea8", "#c8553d", "#6a6f73", "#2f855a"
#: The dashes of a line of each colour, for print without colours.
DASHES = {MEMBERSHIP: "-", ATTRIBUTE: "--", PROVED: "-.", OTHER: ":"}
#: The label of an axis.
BAYES_SECURITY = METRICS["bayes_security"].title
#: Sizes of text, in points.
LABEL, TICK, LEGEND, TITLE = 9, 8, 8, 10
#: The formats of a figure that goes into a paper: one for pages, two that can be enlarged.
FORMATS = ("png", "svg", "pdf")
#: Widths in a legend, in inches: of a character, on average, and of a line with the space around it.
CHARACTER, SAMPLE = 0.062, 0.5


def axes(ax: Axes | None = None, size: tuple[float, float] = (5.2, 3.4)) -> Axes:
    """The given Axes, or a new figure's, drawn without a display."""
    return panels(1, 1, size)[0] if ax is None else ax


def panels(rows: int, columns: int, size: tuple[float, float], number: int | None = None) -> list[Axes]:
    """The Axes of a new figure with several panels, in reading order.

    Parameters
    ----------
    rows, columns : int
        How the panels are laid out.
    size : (float, float)
        Width and height of the whole figure, in inches.
    number : int, optional
        How many panels there are, if not all places are taken; the other places stay blank.

    Returns
    -------
    list of Axes
        One for each panel.

    Examples
    --------
    >>> from betastar import plots
    >>> len(plots.panels(2, 3, (9.0, 6.0), number=5))
    5
    """
    from matplotlib.figure import Figure

    every = Figure(figsize=size, layout="constrained").subplots(rows, columns, squeeze=False).ravel().tolist()
    for ax in every:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=TICK)
        ax.xaxis.label.set_size(LABEL)
        ax.yaxis.label.set_size(LABEL)
        ax.title.set_size(TITLE)
        ax._repr_png_ = partial(image, ax)  # a notebook shows the figure
    for ax in every[len(every) if number is None else number :]:
        ax.set_axis_off()
    return every[:number]


def legend(ax: Axes, columns: int | None = None, title: str | None = None) -> None:
    """Put the legend above the axes, where no line can be under it.

    Parameters
    ----------
    ax : Axes
        Its labels are those of its lines.
    columns : int, optional
        The number of columns; two by default, or one if the labels are too long for that.
    title : str, optional
        A line above the labels.

    Examples
    --------
    >>> from betastar import plots
    >>> ax = plots.axes()
    >>> lines = ax.plot([1, 2, 3], [0.99, 0.98, 0.97], label="membership")
    >>> plots.legend(ax, title="β* over the epochs")
    """
    labels = ax.get_legend_handles_labels()[1]
    if columns is None:
        wide = 2.0 * (CHARACTER * max(map(len, labels), default=0) + SAMPLE)
        columns = 2 if wide <= 0.85 * _figure(ax).get_figwidth() * ax.get_position().width / 0.775 else 1
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2, "alignment": "left"}
    ax.legend(frameon=False, fontsize=LEGEND, ncols=columns, title=title, title_fontsize=LEGEND, **place)


def colorbar(image: ScalarMappable, every: Axes | list[Axes], label: str) -> None:
    """Put the scale of the colours beside one panel or several.

    Parameters
    ----------
    image : ScalarMappable
        What has the colours, as `Axes.imshow` returns it.
    every : Axes or list of Axes
        The panels.
    label : str
        What the colours mean.

    Examples
    --------
    >>> from betastar import plots
    >>> ax = plots.axes()
    >>> plots.colorbar(ax.imshow([[0.9, 0.95]]), ax, "Bayes security β*")
    """
    first = every[0] if isinstance(every, list) else every
    bar = _figure(first).colorbar(image, ax=every)
    bar.set_label(label, size=LABEL)
    bar.ax.tick_params(labelsize=TICK)


def few_ticks(axis: Axis, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis; 1, 2 and 5 of each decade where there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,) if high >= 300 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def seeds(
    ax: Axes, x: Sequence[float], values: Sequence[ArrayLike], style: str, color: str, label: str, aside: float = 0.0
) -> None:
    """Draw a line through the means of several seeds, and each seed as a point.

    Parameters
    ----------
    ax : Axes
        Where to draw.
    x : sequence of float
        The places of the means.
    values : sequence of array
        For each place, a value for each seed.
    style, color, label : str
        The line's, as for `Axes.plot`.
    aside : float
        How far the points are beside their places, in points, so that those of several lines can be told apart.

    Examples
    --------
    >>> from betastar import plots
    >>> ax = plots.axes()
    >>> plots.seeds(ax, [1.0, 2.0], [[0.81, 0.83], [0.80, 0.82]], "-", plots.MEMBERSHIP, "accuracy")
    >>> ax.lines[-1].get_xdata().tolist()
    [1.0, 2.0]
    """
    import numpy as np
    from matplotlib.transforms import ScaledTranslation

    moved = ax.transData + ScaledTranslation(aside / 72.0, 0.0, _figure(ax).dpi_scale_trans)
    arrays = [np.ravel(np.asarray(each, dtype=float)) for each in values]
    for place, some in zip(x, arrays, strict=True):
        ax.plot(np.full(len(some), place), some, "o", color=color, ms=2.6, alpha=0.6, mew=0, transform=moved)
        ax.update_datalim([(place, float(value)) for value in some])  # a line that is moved does not count by itself
    ax.plot(x, [float(some.mean()) for some in arrays], style, color=color, ms=4, lw=1.2, label=label)
    ax.autoscale_view()


def save(ax: Axes, path: str | Path, *kinds: str) -> None:
    """Write the figure into files.

    Parameters
    ----------
    ax : Axes
        Any panel of the figure.
    path : path
        The name of the files, without its ending.
    *kinds : str
        Formats: png (the default), svg, pdf.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from betastar import plots
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plots.save(plots.exposure([0.9, 0.95]), f"{folder}/exposure", *plots.FORMATS)
    ...     print(sorted(path.name for path in Path(folder).iterdir()))
    ['exposure.pdf', 'exposure.png', 'exposure.svg']
    """
    files.write_all({Path(f"{path}.{kind}"): image(ax, kind) for kind in kinds or ("png",)}, private=False)


def image(ax: Axes, kind: str = "png") -> bytes:
    """The content of the figure's file, which does not tell when it was made.

    Parameters
    ----------
    ax : Axes
        Any panel of the figure.
    kind : str
        The format: png, svg or pdf.

    Returns
    -------
    bytes
        The same each time.

    Examples
    --------
    >>> from betastar import plots
    >>> plots.image(plots.exposure([0.9, 0.95]))[1:4]
    b'PNG'
    """
    import matplotlib

    target = BytesIO()
    extra: dict[str, Any] = {"svg": {"metadata": {"Date": None}}, "pdf": {"metadata": {"CreationDate": None}}}.get(kind, {})
    written: Any = {"svg.hashsalt": "betastar", "pdf.fonttype": 42}  # the same file each time; fonts that publishers accept
    with matplotlib.rc_context(written), warnings.catch_warnings():
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


# Figures of risks: trade-off curves, β* over the steps, and sweeps over two parameters.


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
    >>> from betastar import plots
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
    >>> from betastar import plots
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
            length = length_of(segment)
            number = length * -(-number // length)
        taken.append(DPSGD._of((replace(segment, steps=number),)))
        steps -= segment.steps
    return sum(taken[1:], start=taken[0])


def _until(threat: Threat | None, steps: int) -> Threat | None:
    """The threat up to a step."""
    if isinstance(threat, AttributeInference) and threat.counts is not None:
        raise ValueError("distances must be a number or one per step to draw steps in order, got a histogram.")
    if isinstance(threat, AttributeInference) and np.ndim(threat.distances):
        return AttributeInference(threat.distances[:steps])
    if isinstance(threat, Membership) and np.ndim(threat.norms):
        return Membership(threat.relation, threat.records, threat.norms[:steps], threat.other_rate)
    return threat


def sweep(risk: Risk, ax: Axes | None = None) -> Axes:
    """Draw the β* of a sweep.

    Parameters
    ----------
    risk : Risk
        The risk of a sweep over one parameter, or over two: noise along the first axis, say, and the rate along the second.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes
        The figure's. Over one parameter, the line is the number to rely on, the lower end of β*, and the band reaches to the
        upper end; over two, it is a heat map of the lower end. A heuristic and the paper's closed form have no such end: what is
        drawn is the estimate.

    Raises
    ------
    ValueError
        If the risk is of one run, or the sweep has more than two axes.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import plots
    >>> ax = plots.sweep(bs.analyze(bs.DPSGD([1.0, 2.0, 4.0], 0.01, 1000)))
    >>> ax.get_xlabel()
    'noise multiplier'
    """
    if len(risk.shape) not in (1, 2):
        raise ValueError(f"risk must be of a sweep over one or two parameters, got one of shape {risk.shape}.")
    (xlabel, x), *others = [_swept(risk, axis) for axis in reversed(range(len(risk.shape)))]
    beta = risk.bayes_security
    bounded = risk.heuristic is None and risk.method != "paper"
    relied = beta.lower if bounded else beta.estimate
    title = BAYES_SECURITY if bounded else f"{BAYES_SECURITY} (estimate)"
    if others:
        ((ylabel, y),) = others
        return heatmap(relied, ax, x, y, xlabel, ylabel, title)
    ax = axes(ax)
    color = ATTRIBUTE if "attribute" in risk.threat else MEMBERSHIP
    ax.plot(x, relied, "o-", ms=3, color=color, label=f"β*, {risk.method}")
    if bounded:
        ax.fill_between(x, relied, beta.upper, color=color, alpha=0.18, linewidth=0)
    if np.min(x) > 0.0 and np.max(x) >= 8.0 * np.min(x):
        ax.set_xscale("log")
        few_ticks(ax.xaxis, float(np.min(x)), float(np.max(x)))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(title)
    legend(ax)
    return ax


def _swept(risk: Risk, axis: int) -> tuple[str, NDArray[Any]]:
    """The name and the values of the parameter that changes along an axis of a sweep, and along no other one."""
    length = risk.shape[axis]
    for name, values in risk.parameters.items():
        along = np.moveaxis(values, axis, 0).reshape(length, -1)
        if np.ptp(along[:, 0]) and not np.ptp(along, axis=1).any():
            return name.replace("_", " ").replace("sample rate", "sampling rate"), along[:, 0]
    return f"run along axis {axis}", np.arange(length)


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
    >>> from betastar import plots
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


# Figures of runs: β* over the epochs, privacy against accuracy or error, and the exposure of single records.


#: Where an epoch has the β* of measured distances: the dashes of its line, and how the distances were measured, in words.
MEASURED: dict[str, tuple[Any, str]] = {
    "exact": ("--", "as measured"),
    "centroid": (":", "distances from above, by the centroid"),
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
    >>> from betastar import plots
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
        Each point is the β* to rely on. A vertical line is the accuracy of always guessing the most frequent label, or the
        error of always predicting the mean, unless that is far from every point.

    Examples
    --------
    >>> from betastar import plots
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


def exposure(
    beta: Sequence[float] | NDArray[Any], ax: Axes | None = None, any_record: float | None = None, threat: str = "attribute"
) -> Axes:
    """Draw how the records' own β* against attribute or membership inference are distributed.

    Parameters
    ----------
    beta : sequence of float
        The β* of each record that was measured.
    ax : Axes, optional
        Where to draw; a new figure by default.
    any_record : float, optional
        The β* that holds for any record, which is marked.
    threat : "attribute" or "membership"
        What the β* are about.

    Returns
    -------
    Axes
        The figure's.

    Examples
    --------
    >>> from betastar import plots
    >>> ax = plots.exposure([0.93, 0.95, 0.97], any_record=0.92)
    >>> int(sum(bar.get_height() for bar in ax.patches))
    3
    """
    ax = axes(ax)
    color = MEMBERSHIP if validation.choice("threat", threat, ("attribute", "membership")) == "membership" else ATTRIBUTE
    ax.hist(beta, bins=40, color=color, alpha=0.8, label="records that were measured")
    if any_record is not None:
        ax.axvline(any_record, color=OTHER, ls="--", lw=1.2, label="the figure for any record")
    ax.set_yscale("log")
    few_ticks(ax.yaxis, *ax.get_ylim())
    ax.set_xlabel(f"β* of a record against {threat} inference (estimate)")
    ax.set_ylabel("number of records")
    legend(ax)
    return ax


# Of a hundred guesses, how many are right: a picture for people who do not read curves.


#: Guesses in a row and in a column.
SIDE = 10
#: The side of a square, where 1 is the distance between two.
SQUARE = 0.8


def guesses(shares: Mapping[str, float], ax: Axes | None = None, without: float = 0.5) -> Axes:
    """Draw a hundred guesses of an attacker: right without the model, right because of the model, and wrong.

    Parameters
    ----------
    shares : mapping of str to float
        For each threat, the share of right guesses with the model. Each threat has a panel.
    ax : Axes, optional
        Where to draw a single threat; a new figure by default.
    without : float
        The share of right guesses without the model.

    Returns
    -------
    Axes
        The first panel. A square that stands for less than one guess is filled in part. Kinds of squares differ in filling and
        hatching, not in colour alone.

    Raises
    ------
    ValueError
        If a share is not between `without` and 1, or if one Axes is given for several threats.

    Examples
    --------
    >>> from betastar import plots
    >>> ax = plots.guesses({"membership": 0.55})
    >>> ax.get_title()
    'membership: 55.00 of 100 right'
    """
    if not shares or (ax is not None and len(shares) > 1):
        raise ValueError(f"shares must be of one threat for one Axes and of at least one for a figure, got {len(shares)}.")
    for name, share in shares.items():
        allowed = f"between {without:g}, which are right without the model, and 1"
        validation.numbers(f"shares[{name!r}]", share, allowed, low=without, high=1.0)
    columns = min(2, len(shares))
    rows = -(-len(shares) // columns)
    every = [ax] if ax is not None else panels(rows, columns, (2.5 * columns, 2.5 * rows + 0.6), len(shares))
    for panel, (name, share) in zip(every, shares.items(), strict=True):
        _hundred(panel, without, share)
        right = METRICS["success"].rounded(share, without).removesuffix(" %")
        panel.set_title(f"{plain(name)}: {right} of 100 right", fontsize=TITLE - 1)
    handles, labels = every[0].get_legend_handles_labels()
    figure = every[0].figure
    if ax is None:
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=LEGEND)
    else:
        ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.0, 0.0), frameon=False, fontsize=LEGEND)
    return every[0]


def _hundred(ax: Axes, without: float, share: float) -> None:
    """The squares of one panel, row by row from the top left."""
    from matplotlib.patches import Rectangle

    ax.set(xlim=(-0.1, SIDE + 0.1), ylim=(SIDE + 0.1, -0.1), aspect="equal")
    ax.set_axis_off()
    number = SIDE * SIDE
    plain_look: dict[str, Any] = {"facecolor": OTHER, "edgecolor": "none"}
    hatched: dict[str, Any] = {"facecolor": ATTRIBUTE, "edgecolor": "#000000", "hatch": "/////"}
    kinds = (
        (0.0, number * without, plain_look, "right without the model"),
        (number * without, number * share, hatched, "right because of the model"),
    )
    for place in range(number):
        x, y = place % SIDE + (1 - SQUARE) / 2, place // SIDE + (1 - SQUARE) / 2
        label = "wrong" if place == number - 1 else None
        ax.add_patch(Rectangle((x, y), SQUARE, SQUARE, facecolor="none", edgecolor=OTHER, lw=0.7, label=label))
        for first, last, look, words in kinds:
            start, end = max(first - place, 0.0), min(last - place, 1.0)
            if end > start:
                label = words if place == floor(first) else None
                ax.add_patch(Rectangle((x + SQUARE * start, y), SQUARE * (end - start), SQUARE, lw=0, label=label, **look))


# Figures of audits: what attackers measured, beside the bound.


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
    >>> from betastar import plots
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


def trials(result: Games, ax: Axes | None = None, log: bool = False) -> Axes:
    """Draw the measured ROC of each attacker on real training beside the bound.

    Parameters
    ----------
    result : Games
        What `betastar.audit.games` found.
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
    >>> from betastar import plots
    >>> result = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), games=1000, seed=1)
    >>> ax = plots.trials(audit.Games("a canary", {"updates": result}, leakage=None))
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


def _verdict(result: Audit | Games, threat: Threat) -> str:
    verdict = f"bound violated (p = {nearest(result.p_value, 1)})" if result.violated else "bound not violated"
    return f"{threat.describe()}: {verdict}"
