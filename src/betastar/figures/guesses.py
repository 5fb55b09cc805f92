"""Of a hundred guesses, how many are right: a picture for people who do not read curves."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import TYPE_CHECKING, Any

from betastar import validation
from betastar.figures.style import ATTRIBUTE, LEGEND, OTHER, TITLE, panels, plain
from betastar.risk import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    >>> from betastar.figures import plots
    >>> ax = plots.guesses({"membership": 0.55})
    >>> ax.get_title()
    'membership: 55.00 of 100 right'
    """
    if not shares or (ax is not None and len(shares) > 1):
        raise ValueError(f"shares must be of one threat for one Axes and of at least one for a figure, got {len(shares)}.")
    for name, share in shares.items():
        allowed = f"between {without:g}, which are right without the model, and 1"
        validation.numbers(f"shares[{name!r}]", share, allowed, low=without, high=1.0)
    every = [ax] if ax is not None else panels(1, len(shares), (2.5 * len(shares), 3.1))
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
