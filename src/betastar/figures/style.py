"""What all figures share: colours, axes, legends off the data, and files as PNG, SVG and PDF."""

from __future__ import annotations

import re
import warnings
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from betastar import files
from betastar.risk import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

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
    >>> from betastar.figures import plots
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
    >>> from betastar.figures import plots
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
    >>> from betastar.figures import plots
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
    >>> from betastar.figures import plots
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
    >>> from betastar.figures import plots
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
    >>> from betastar.figures import plots
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
