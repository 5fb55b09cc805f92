"""What audits show of themselves: the verdict, a column of numbers for each attacker, and the measured ROC curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from betastar.display import Display, curve
from betastar.rounding import nearest, significant

if TYPE_CHECKING:
    from betastar.audit.results import Audit


def table(audits: Mapping[str, Audit]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The titles of the numbers of audits, and a column of numbers for each audit."""
    every = list(audits.values())
    titles = ["games", "right guesses", f"{100 * every[0].confidence:g} % interval", "at most", "advantage", "bound", "p-value"]
    columns = [_numbers(audit) for audit in every]
    if any(audit.attack for audit in every):
        titles.append("attack")
        columns = [[*column, audit.attack or "likelihood"] for column, audit in zip(columns, every, strict=True)]
    if any(audit.heuristic is not None for audit in every):
        titles.append("advantage if losses were linear")
        told = ["" if audit.heuristic is None else nearest(audit.heuristic) for audit in every]
        columns = [[*column, one] for column, one in zip(columns, told, strict=True)]
    return tuple(titles), [tuple(column) for column in columns]


def _numbers(audit: Audit) -> list[str]:
    """The numbers of an audit for people."""
    return [
        f"{audit.games:,}",
        nearest(audit.success.estimate),
        f"{significant(audit.success.lower, 4, False)} to {significant(audit.success.upper, 4)}",
        significant(audit.allowed.upper, 4),
        nearest(audit.advantage.estimate),
        significant(audit.bound.upper, 4),
        nearest(audit.p_value, 2),
    ]


def display(sentence: str, audits: Mapping[str, Audit], brief: bool) -> Display:
    """The verdict, and what was measured beside the bound, by attacker."""
    first = next(iter(audits.values()))
    lines = (sentence, f"Played: {first.threat.describe()}, seed {first.seed}.")
    if brief:
        return Display(lines)
    titles, columns = table(audits)
    rows = zip(titles, *columns, strict=True)
    points = [(0.0, 0.0), *sorted((float(point.fpr.estimate), float(point.tpr.estimate)) for point in first.roc), (1.0, 1.0)]
    x, y = zip(*points, strict=True)
    alone = len(audits) == 1 and first.roc
    drawing = curve(x, y, "false positives", "true positives", "measured ROC curve of the attack") if alone else ""
    return Display(lines, ("", *audits), tuple(rows), drawing)
