"""The page on three attackers against the bound, on Adult. `make audits` plays the games, draws them and writes it.

`python -m studies.audits FOLDER` writes the page again from the games that were played.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jinja2

from betastar.rounding import down, nearest, nearest_percent, up
from studies.pages import WHO
from studies.trainings import Json

TEMPLATE = Path(__file__).with_name("page.md.j2")
#: The audits of the page, by the names of their files.
GAMES = {
    "canary": "Membership, a canary: the worst case",
    "membership": "Membership, the record that the ledger names first",
    "attribute": "The age of that record: 17 or 90?",
}
HEADS = (
    "attacker",
    "attack",
    "games",
    "right guesses",
    "advantage",
    "95 % interval",
    "bound",
    "if losses were linear",
    "p-value",
)


def write(folder: Path) -> Path:
    """Write README.md from the games beside it."""
    games = []
    for name, title in GAMES.items():
        told = json.loads((folder / f"{name}.json").read_text())
        games.append({"name": name, "title": title, "words": _words(told), "table": games_table(told)})
    template = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True)
    path = folder / "README.md"
    path.write_text(template.render(games=games) + "\n", encoding="utf-8")
    return path


def _words(told: Json) -> str:
    first = next(iter(told["audits"].values()))
    text = f"Challenge: {told['challenge']}. {told['sentence']} {told['comparison']}".rstrip()
    if told["leakage"] is not None:
        text += f" Without a model of the attack: {told['leakage']['sentence']}"
    order = "as theory says" if ordered(told) else "**not** as theory says"
    seed = first["seed"]
    return f"{text} The attackers are ordered {order}, within their intervals. Seed {seed}.".replace("β*", "β\\*")


def ordered(told: Json) -> bool:
    """Whether no attacker who sees less is certain to have done better than one who sees more."""
    advantages = [told["audits"][place]["advantage"] for place in WHO if place in told["audits"]]
    return all(less["lower"] <= more["upper"] for i, more in enumerate(advantages) for less in advantages[i + 1 :])


def games_table(told: Json) -> str:
    """A table with a row for each attacker of an audit of training."""
    rows = [HEADS, ("---",) * len(HEADS)]
    for place, audit in told["audits"].items():
        advantage = audit["advantage"]
        interval = f"{down(advantage['lower'], 3)} to {up(advantage['upper'], 3)}"
        share, limit = nearest_percent(audit["success"]["estimate"]), up(audit["bound"]["upper"], 3)
        heuristic = "" if audit.get("heuristic") is None else nearest(audit["heuristic"], 3)
        numbers = (f"{audit['games']}", share, f"{advantage['estimate']:.3f}", interval, limit, heuristic)
        rows.append((WHO[place], audit.get("attack", "likelihood"), *numbers, nearest(audit["p_value"], 2)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
