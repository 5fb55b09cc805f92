"""The page of docs/audits: three attackers against the bound, on Adult. `make audits` plays the games and writes it.

`python -m betastar.report.audit_page docs/audits` writes it again, with its figures, from the games that were played.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import fields
from pathlib import Path

from betastar import files
from betastar.audit import Audit, Trials
from betastar.audit.results import RocPoint
from betastar.audit.training_audit.trials import WHO
from betastar.dpsgd import DPSGD
from betastar.figures import plots
from betastar.risk import Bound
from betastar.rounding import down, nearest, nearest_percent, up
from betastar.runs.reading import FolderError, Inside, Json, object_of
from betastar.threats import AttributeInference, Membership, Threat

TEMPLATES = Path(__file__).parent / "templates"
#: The audits of the page, by the names of their files.
GAMES = {
    "canary": "Membership, a canary: the worst case",
    "membership": "Membership, the record that the ledger names first",
    "attribute": "The age of that record: 17 or 90?",
}
#: Who attacks there.
THREATS: dict[str, Threat] = {"canary": Membership(), "membership": Membership(), "attribute": AttributeInference(2.0)}
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
    """Write README.md and its figures from the files beside it."""
    import jinja2

    games = []
    for name, title in GAMES.items():
        with Inside(folder / f"{name}.json"):
            told = object_of(folder / f"{name}.json")
            plots.save(plots.trials(_trials(told, THREATS[name])), folder / name, *plots.FORMATS)
            games.append({"name": name, "title": title, "words": _words(told), "table": games_table(told)})
    template = jinja2.Template((TEMPLATES / "audit_page.md.j2").read_text(encoding="utf-8"), trim_blocks=True)
    path = folder / "README.md"
    files.write(path, template.render(games=games) + "\n", private=False)
    return path


def _trials(told: Json, threat: Threat) -> Trials:
    """The audits that a file tells of, for a figure."""
    return Trials(told["challenge"], {place: _audit(one, threat) for place, one in told["audits"].items()}, leakage=None)


def _audit(told: Json, threat: Threat) -> Audit:
    if told["threat"] != threat.describe():
        raise FolderError(f"the threat must be {threat.describe()}, got {told['threat']}.")
    roc = tuple(RocPoint(**{rate: Bound(**point[rate]) for rate in ("fpr", "tpr")}) for point in told["roc"])
    bounds = {name: Bound(**value) for name, value in told.items() if isinstance(value, dict)}
    kept = {one.name for one in fields(Audit)}
    given = {**told, **bounds, "run": _run(told["run"]), "threat": threat, "roc": roc}
    return Audit(**{name: value for name, value in given.items() if name in kept})


def _run(text: str) -> DPSGD:
    """The run that prints itself as this text."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise FolderError(f"the run must be DPSGD(…) with the names of its parameters, got {text}.")
    return DPSGD(**{one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg})


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
