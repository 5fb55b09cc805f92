"""Figures of runs. Each function draws into an Axes (a new one if none is given) and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MEMBERSHIP, ATTRIBUTE, OTHER = "#3b6ea8", "#c8553d", "#6a6f73"


def axes(ax: Any = None, size: tuple[float, float] = (5.2, 3.4)) -> Any:
    """The given Axes, or a new figure's, drawn without a display."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    return ax


def over_epochs(entries: Sequence[dict[str, Any]], ax: Any = None) -> Any:
    """β* against membership and attribute inference after each epoch."""
    ax = axes(ax)
    epochs = [entry["epoch"] for entry in entries]
    ax.plot(epochs, [entry["membership"]["lower"] for entry in entries], color=MEMBERSHIP, label="membership, exact")
    for name, style in (("exact", "-"), ("ball", "-."), ("centroid", "--")):
        if entries and name in entries[0]:
            ax.plot(epochs, [e[name]["estimate"] for e in entries], style, color=ATTRIBUTE, label=f"attribute, {name} diameter")
            if name == "exact":
                low, high = ([e[name][key] for e in entries] for key in ("lower", "estimate"))
                ax.fill_between(epochs, low, high, color=ATTRIBUTE, alpha=0.15, linewidth=0, label="down to every gradient")
    ax.set_xlabel("epoch")
    ax.set_ylabel("Bayes security β*")
    ax.legend(frameon=False, fontsize=8)
    return ax


def accuracy(entries: Sequence[dict[str, Any]], ax: Any = None, title: str = "") -> Any:
    """Privacy against accuracy: each epoch is a point, from the first to the last."""
    ax = axes(ax)
    found = [100.0 * entry["accuracy"] for entry in entries]
    ax.plot(found, [entry["membership"]["lower"] for entry in entries], "o-", color=MEMBERSHIP, ms=3, lw=1, label="membership")
    name = next((name for name in ("exact", "ball", "centroid") if entries and name in entries[0]), None)
    if name:
        ax.plot(found, [entry[name]["estimate"] for entry in entries], "o-", color=ATTRIBUTE, ms=3, lw=1, label="attribute")
    ax.set_xlabel("accuracy on test records (%)")
    ax.set_ylabel("Bayes security β*")
    ax.set_title(title, fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    return ax


def exposure(beta: Any, ax: Any = None) -> Any:
    """How the records' own β* against attribute inference are distributed."""
    ax = axes(ax)
    ax.hist(beta, bins=40, color=ATTRIBUTE, alpha=0.8)
    ax.set_yscale("log")
    ax.set_xlabel("β* of a record against attribute inference (estimate)")
    ax.set_ylabel("records")
    return ax


def save(ax: Any, path: Any, *kinds: str) -> None:
    """As PNG, and in other formats that are named; the files say nothing of when they were made."""
    for kind in kinds or ("png",):
        extra: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
        ax.figure.savefig(f"{path}.{kind}", dpi=150, **extra)
