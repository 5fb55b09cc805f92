"""Draws the layers of the code and the arrows between them, from the contract in pyproject.toml and from the imports."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "betastar"
#: A folder of each layer that is drawn, what the layer holds, and its place (column, row). The lowest layer is not drawn.
ROOMS = {
    "steps": ("what was run, who attacks", (0, 0)),
    "exact": ("steps to a curve", (0, 1)),
    "risk": ("a curve to answers", (0, 2)),
    "training": ("private steps, monitor", (1, 1)),
    "audit": ("the attacker's games", (2, 2)),
    "plots": ("figures", (3, 1)),
    "runs": ("betastar train", (3, 0)),
    "report": ("a run on paper", (4, 1)),
    "page": ("the page", (5, 2)),
    "cli": ("the commands", (5, 1)),
}
STEP, BOX = (202, 156), (182, 76)
WIDTH, HEIGHT = STEP[0] * 5 + BOX[0] + 20, STEP[1] * 2 + BOX[1] + 20


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("betastar", cache_dir=None)


@cache
def modules() -> list[str]:
    """Every module without the name of the package; a folder's own file has the folder's name."""
    return sorted(m.removeprefix("betastar.") for m in graph().modules if m != "betastar")


@cache
def layers() -> list[list[str]]:
    """The folders and modules of each layer of the contract, upstream first."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]
    return [[name.strip() for name in layer.split(":")] for layer in reversed(contract["layers"])]


def _path(module: str) -> Path:
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def room(module: str) -> str:
    """The layer of a module, by the name that it has in ROOMS; else, by its first folder or module."""
    (layer,) = (layer for layer in layers() if module.split(".")[0] in layer)
    return next((name for name in layer if name in ROOMS), layer[0])


def used_by(module: str) -> list[str]:
    """Modules and packages of betastar that a module imports."""
    found = graph().find_modules_directly_imported_by(f"betastar.{module}")
    return sorted(other.removeprefix("betastar.") for other in found if other.startswith("betastar."))


@cache
def arrows() -> dict[tuple[str, str], int]:
    """(importing room, imported room): number of imports."""
    found: dict[tuple[str, str], int] = {}
    for module in modules():
        for other in used_by(module):
            pair = room(module), room(other)
            if pair[0] != pair[1] and set(pair) <= set(ROOMS):
                found[pair] = found.get(pair, 0) + 1
    return found


def drawn() -> dict[tuple[str, str], int]:
    """The arrows that no chain of other arrows implies; all of them at once cannot be read."""
    found = arrows()

    def reaches(user: str, used: str) -> bool:
        return any(first == user and (second == used or reaches(second, used)) for first, second in found)

    def implied(user: str, used: str) -> bool:
        return any(first == user and second != used and reaches(second, used) for first, second in found)

    return {pair: number for pair, number in found.items() if not implied(*pair)}


def picture() -> str:
    """Rooms as boxes; an arrow leads from a room to one that uses it."""
    boxes, lines = [], []
    left, top = BOX[0] / 2 + 10, BOX[1] / 2 + 10
    centre = {name: (left + STEP[0] * column, top + STEP[1] * row) for name, (_, (column, row)) in ROOMS.items()}
    for name, (words, _) in ROOMS.items():
        x, y = centre[name]
        size = sum(room(module) == name for module in modules())
        boxes.append(
            f'<rect x="{x - BOX[0] / 2}" y="{y - BOX[1] / 2}" width="{BOX[0]}" height="{BOX[1]}" rx="8"/>'
            f'<text x="{x}" y="{y - 12}" class="name">{name}</text><text x="{x}" y="{y + 9}">{words}</text>'
            f'<text x="{x}" y="{y + 28}" class="small">{size} module{"s" * (size > 1)}</text>'
        )
    for (user, used), number in sorted(drawn().items()):
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
        f'aria-label="Folders of betastar, and which imports which"><defs>{tip}<path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{''.join(lines)}{''.join(boxes)}</svg></figure>"
    )


def _edge(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of one box to that of another leaves the first."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    share = min(size / 2 / abs(d) if d else 9.0 for d, size in zip((dx, dy), BOX, strict=True))
    return start[0] + share * dx, start[1] + share * dy


def table() -> str:
    """Every module with the first sentence of its docstring, layer by layer, upstream first."""
    rows = []
    for layer in layers():
        name = room(layer[0])
        rows.append(f"\n### {', '.join(layer)}\n\n| module | what it is | uses |\n|---|---|---|")
        for module in (one for one in modules() if room(one) == name):
            said = (ast.get_docstring(ast.parse(_path(module).read_text())) or "").split("\n")[0].replace("|", "\\|")
            uses = [other for other in used_by(module) if room(other) == name]
            others = sorted({room(other) for other in used_by(module)} - {name})
            used = ", ".join([one.rsplit(".", 1)[-1] for one in uses] + [f"**{one}**" for one in others])
            rows.append(f"| `{module}` | {said} | {used} |")
    return "\n".join(rows)
