"""Audits that were kept with a run, for its report: the verdict of each, and a table of attackers beside the bound."""

from __future__ import annotations

from dataclasses import dataclass

from betastar.audit.training_audit.trials import WHO
from betastar.rounding import nearest, significant
from betastar.runs.folder import RunFolder
from betastar.runs.reading import Inside, Json
from betastar.scenario.run import DPSGD

#: What was played, by the kind of the audit.
KINDS = {"mechanism": "Games on the mechanism", "training": "Games on real training", "one-run": "One run, many canaries"}
HEADS = ("attacker", "games", "right guesses", "interval", "at most", "p-value")


@dataclass(frozen=True)
class Played:
    """An audit in words.

    Attributes
    ----------
    title, sentence : str
        What was played, and the verdict.
    violated : bool
        Whether the bound is violated.
    own : bool
        Whether this very run was audited.
    rows : tuple of tuple of str
        A row for each attacker, by the columns of HEADS.
    remarks : tuple of str
        What else there is to know.
    kind : str
        One of KINDS.
    """

    title: str
    sentence: str
    violated: bool
    own: bool
    rows: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    kind: str = "mechanism"


def played(folder: RunFolder, run: DPSGD) -> tuple[Played, ...]:
    """The audits in the folder of a run. Another run may have been audited (one on fewer records); the first remark says so."""
    told = []
    for kind, result in folder.audits.items():
        with Inside(folder.audit_path(kind)):
            told.append(_in_words(kind, KINDS[kind], result, run))
    return tuple(told)


def _in_words(kind: str, title: str, told: Json, run: DPSGD) -> Played:
    first = next(iter(told["audits"].values())) if kind == "training" else told
    audited = str(first["run"])
    own = audited == repr(run)
    said: Json = {"sentence": str(told["sentence"]), "violated": bool(told["violated"]), "own": own, "kind": kind}
    remarks: tuple[str, ...] = () if own else (f"Not this very run, {run!r}, but another one was audited: {audited}.",)
    if kind == "mechanism":
        return Played(f"{title}: {told['threat']}", rows=(_row("the best there is", told),), remarks=remarks, **said)
    if kind == "one-run":
        return Played(title, remarks=remarks, **said)
    rows = tuple(_row(WHO[place], audit) for place, audit in told["audits"].items())
    remarks += (f"Challenge: {told['challenge']}.", *filter(None, [told.get("comparison", "")]))
    if told["leakage"] is not None:
        remarks += (f"Without a model of the attack: {told['leakage']['sentence']} {told['leakage']['caveat']}",)
    return Played(f"{title}: {first['threat']}", rows=rows, remarks=remarks, **said)


def _row(who: str, audit: Json) -> tuple[str, ...]:
    success = audit["success"]
    return (
        who,
        f"{audit['games']:,}",
        nearest(success["estimate"]),
        f"{significant(success['lower'], 4, False)} to {significant(success['upper'], 4)}",
        significant(audit["allowed"]["upper"], 4),
        nearest(audit["p_value"], 2),
    )
