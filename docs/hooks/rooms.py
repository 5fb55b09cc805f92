"""The rooms of the code and the arrows between them, read from the imports by the code that tests them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests import test_architecture
from tests.test_architecture import ORDER, SOURCE

#: The modules of each room by how they start; the first room that fits holds a module.
ROOMS = {
    "mathematics": ("arrays", "step", "transform", "bounds."),
    "figures": ("views.plots",),
    "training": ("training.",),
    "audit": ("audit.",),
    "studies": ("studies.",),
    "views": ("views.",),
    "core": ("",),
}
#: Where each room is drawn (column, row), and what it is.
PLACES = {
    "mathematics": (0, 1, "one step, and many"),
    "core": (1, 1, "run, threat, risk"),
    "training": (2, 0, "monitor, budget, gap"),
    "audit": (2, 2, "games for real"),
    "figures": (3, 1, "plots"),
    "studies": (4, 0, "Adult, the paper"),
    "views": (4, 2, "commands, report, page"),
}
WIDTH, HEIGHT, BOX = 1000, 340, (168, 76)


@cache
def used_by(module: str) -> frozenset[tuple[str, int]]:
    """Modules that a module imports, with how often."""
    found = [other for other, _ in test_architecture.imports(_path(module)) if other]
    return frozenset((other, found.count(other)) for other in found)


def _path(module: str) -> Path:
    return SOURCE / (module.replace(".", "/") + ".py")


def room(module: str) -> str:
    return next(name for name, starts in ROOMS.items() if module.startswith(starts))


def arrows() -> dict[tuple[str, str], int]:
    """(importing room, imported room): number of imports."""
    found: dict[tuple[str, str], int] = {}
    for module in ORDER:
        for other, number in used_by(module):
            pair = room(module), room(other)
            if pair[0] != pair[1]:
                found[pair] = found.get(pair, 0) + number
    return found


def picture() -> str:
    """Rooms as boxes; an arrow leads from a room to one that uses it."""
    found, boxes, lines = arrows(), [], []
    centre = {name: (90 + 205 * column, 50 + 120 * row) for name, (column, row, _) in PLACES.items()}
    for name, (_, _, words) in PLACES.items():
        x, y = centre[name]
        size = sum(room(module) == name for module in ORDER)
        boxes.append(
            f'<rect x="{x - BOX[0] / 2}" y="{y - BOX[1] / 2}" width="{BOX[0]}" height="{BOX[1]}" rx="8"/>'
            f'<text x="{x}" y="{y - 12}" class="name">{name}</text><text x="{x}" y="{y + 9}">{words}</text>'
            f'<text x="{x}" y="{y + 28}" class="small">{size} modules</text>'
        )
    for (user, used), number in sorted(found.items()):
        (x0, y0), (x1, y1) = _edge(centre[used], centre[user]), _edge(centre[user], centre[used])
        width = 1 + min(number, 40) / 20
        lines.append(
            f'<path d="M{x0:.0f} {y0:.0f}L{x1:.0f} {y1:.0f}" stroke-width="{width:.1f}" marker-end="url(#tip)">'
            f"<title>{user} imports {used} ({number})</title></path>"
        )
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
    tip += 'markerUnits="userSpaceOnUse" orient="auto">'
    return (
        f'<figure class="drawn wide rooms" markdown="0"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Rooms of betastar and who uses whom"><defs>{tip}<path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{''.join(lines)}{''.join(boxes)}</svg></figure>"
    )


def _edge(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of one box to that of another leaves the first."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    share = min(size / 2 / abs(d) if d else 9.0 for d, size in zip((dx, dy), BOX, strict=True))
    return start[0] + share * dx, start[1] + share * dy


def table() -> str:
    """Every module with the first sentence of its docstring, room by room, upstream first."""
    rows = []
    for name in PLACES:
        rows.append(f"\n### {name}\n\n| module | what it is | uses |\n|---|---|---|")
        for module in (one for one in ORDER if room(one) == name):
            said = (ast.get_docstring(ast.parse(_path(module).read_text())) or "").split("\n")[0].replace("|", "\\|")
            uses = sorted(other for other, _ in used_by(module) if room(other) == name and other != module)
            others = sorted({room(other) for other, _ in used_by(module)} - {name})
            used = ", ".join([one.rsplit(".", 1)[-1] for one in uses] + [f"**{one}**" for one in others])
            rows.append(f"| `{module}` | {said} | {used} |")
    return "\n".join(rows)
