"""How an answer shows itself: as a few lines when it is printed, as a table to rich, as HTML with a drawing in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Width and height of a drawing in a notebook, and the room for the words at its axes.
SIZE, MARGIN = 220, 34


@dataclass(frozen=True)
class Display:
    """What is shown of an answer.

    Attributes
    ----------
    lines : tuple of str
        Sentences; the first one is the answer.
    heads, rows : tuple
        A table, whose first column is words.
    drawing : str
        An SVG image, or nothing.
    """

    lines: tuple[str, ...]
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    drawing: str = ""


class Displayed:
    """The base of answers that show themselves. A subclass says what: `brief` asks for lines alone, which cost nothing."""

    def _display(self, brief: bool) -> Display:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self._display(brief=True).lines)

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        shown = self._display(brief=False)
        first, *others = shown.lines
        parts: list[RenderableType] = [Text(first, style="bold")]
        if shown.rows:
            table = Table(*shown.heads, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
            for column in table.columns[1:]:
                column.justify = "right"
            for row in shown.rows:
                table.add_row(*map(Text, row))
            parts += [Text(), table, Text()]
        return Group(*parts, *(Text(line) for line in others))

    def _repr_html_(self) -> str:
        from html import escape

        shown = self._display(brief=False)
        first, *others = shown.lines
        parts = [f"<p><b>{escape(first)}</b></p>"]
        if shown.rows:
            heads = "".join(f"<th>{escape(head)}</th>" for head in shown.heads)
            rows = [
                "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for tag, cell in zip(_cells(row), row, strict=True)) + "</tr>"
                for row in shown.rows
            ]
            parts.append(
                f'<table style="text-align: right"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
            )
        parts += [shown.drawing, *(f"<p>{escape(line)}</p>" for line in others)]
        return f"<div>{''.join(parts)}</div>"


def _cells(row: Sequence[str]) -> list[str]:
    return ["th", *["td"] * (len(row) - 1)]


def curve(x: Iterable[float], y: Iterable[float], words_x: str, words_y: str, alt: str) -> str:
    """An SVG image of a curve in the unit square, above a dotted diagonal. Its colour is that of the text around it."""
    from html import escape

    def at(a: float, b: float) -> str:
        return f"{MARGIN + a * SIZE:.1f},{8 + (1.0 - b) * SIZE:.1f}"

    points = " ".join(at(float(a), float(b)) for a, b in zip(x, y, strict=True))
    width, height = MARGIN + SIZE + 8, SIZE + MARGIN + 8
    text = 'font-size="11" fill="currentColor" font-family="sans-serif"'
    ends = "".join(
        f'<text {text} x="{MARGIN + place * SIZE}" y="{SIZE + 22}" text-anchor="middle">{place}</text>'
        f'<text {text} x="{MARGIN - 5}" y="{12 + (1 - place) * SIZE}" text-anchor="end">{place}</text>'
        for place in (0, 1)
    )
    return (
        f'<svg role="img" aria-label="{escape(alt)}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<polygon points="{at(0, 0)} {points} {at(1, 1)}" fill="currentColor" opacity="0.12"/>'
        f'<polyline points="{at(0, 0)} {at(1, 1)}" fill="none" stroke="currentColor" stroke-dasharray="2 4"/>'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/>'
        f'<rect x="{MARGIN}" y="8" width="{SIZE}" height="{SIZE}" fill="none" stroke="currentColor" opacity="0.5"/>{ends}'
        f'<text {text} x="{MARGIN + SIZE / 2}" y="{SIZE + 34}" text-anchor="middle">{escape(words_x)}</text>'
        f'<text {text} transform="translate(14 {8 + SIZE / 2}) rotate(-90)" text-anchor="middle">{escape(words_y)}</text></svg>'
    )
