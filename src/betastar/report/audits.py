"""Audits that were kept with a run, for its report: the verdict of each, what it means, and a table of what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from betastar.audit.code_findings import PROMISES
from betastar.audit.results import WHO
from betastar.dpsgd import DPSGD
from betastar.rounding import nearest, significant
from betastar.runs.folder import RunFolder
from betastar.runs.reading import Inside, Json

#: What was played, by the kind of the audit.
KINDS = {
    "code": "Replay of the training code",
    "mechanism": "Games on the mechanism",
    "training": "Games on real training",
    "one-run": "One run, many canaries",
}
#: What it means for a person that nothing was found, and that something was, by the kind of the audit.
NOTHING_FOUND = {
    "code": "The code did what private training promises, in these steps and for these records. That is no proof for others.",
    "mechanism": "The bound of this report withstood the strongest attacker on the mechanism. No model was trained.",
    "training": "Nobody did better than the bound allows. That is no proof: only faults that so many games show would be found.",
    "one-run": "The guesses do not contradict the claim. That is no proof, and one run sees less than many games.",
}
FOUND = {
    "code": "The code does not do what the numbers of this report assume. Do not rely on them before it is mended.",
    "mechanism": "The bound of this report is wrong, or what was played is not what it is about. Do not rely on its numbers.",
    "training": "The training is less private than it claims. Do not rely on the numbers of this report before that is mended.",
    "one-run": "The training is less private than it claims. Do not rely on the numbers of this report before that is mended.",
}
GAMES_HEADS = ("attacker", "games", "right guesses", "interval", "at most", "p-value")
ONE_RUN_HEADS = ("canaries", "guesses", "right guesses", "by chance", "p-value", "ε at least", "ε claimed")
FINDING_HEADS = ("broken promise", "step", "parameter", "measured", "promised")


@dataclass(frozen=True)
class Played:
    """An audit in words.

    Attributes
    ----------
    title, sentence, meaning : str
        What was played, the verdict, and what it means for a person.
    violated : bool
        Whether the bound is violated, or a promise is broken.
    own : bool
        Whether this very run was audited.
    heads : tuple of str
        The heads of the table.
    rows : tuple of tuple of str
        The rows of the table: attackers, guesses about canaries, or broken promises.
    remarks : tuple of str
        What else there is to know.
    kind : str
        One of KINDS.
    """

    title: str
    sentence: str
    meaning: str
    violated: bool
    own: bool
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    kind: str = "mechanism"


def played(folder: RunFolder, run: DPSGD) -> tuple[Played, ...]:
    """The audits in the folder of a run. Another run may have been audited (one on fewer records); the first remark says so."""
    told = []
    for kind, result in folder.audits.items():
        with Inside(folder.audit_path(kind)):
            told.append(_in_words(kind, result, run))
    return tuple(told)


def _in_words(kind: str, told: Json, run: DPSGD) -> Played:
    first = next(iter(told["audits"].values())) if kind == "training" else told
    title, rows, heads, more = _TABLES[kind](told)
    own = first["run"] == repr(run)
    violated = bool(told["violated"])
    return Played(
        title=f"{KINDS[kind]}: {title}" if title else KINDS[kind],
        sentence=str(told["sentence"]),
        meaning=(FOUND if violated else NOTHING_FOUND)[kind],
        violated=violated,
        own=own,
        heads=heads if rows else (),
        rows=rows,
        remarks=(*(() if own else (_other_run(first["run"], run),)), *more),
        kind=kind,
    )


def _other_run(audited: str | None, run: DPSGD) -> str:
    if audited is None:
        return f"The audit does not say what it claims to have run; this report is about {run!r}."
    return f"Not this very run, {run!r}, but another one was audited: {audited}."


#: The title, the rows of the table, its heads, and remarks.
Table = tuple[str, tuple[tuple[str, ...], ...], tuple[str, ...], tuple[str, ...]]


def _of_mechanism(told: Json) -> Table:
    return str(told["threat"]), (_games("the best there is", told),), GAMES_HEADS, ()


def _of_training(told: Json) -> Table:
    rows = tuple(_games(WHO[place], audit) for place, audit in told["audits"].items())
    remarks = [f"Challenge: {told['challenge']}.", *filter(None, [told.get("comparison", "")])]
    if told["leakage"] is not None:
        remarks.append(f"Without a model of the attack: {told['leakage']['sentence']} {told['leakage']['caveat']}")
    return str(next(iter(told["audits"].values()))["threat"]), rows, GAMES_HEADS, tuple(remarks)


def _of_one_run(told: Json) -> Table:
    row = (
        f"{told['canaries']:,}",
        f"{told['guesses']:,}",
        f"{told['right']:,}",
        nearest(told["guesses"] / told["values"]),
        nearest(told["p_value"], 2),
        f"{significant(told['epsilon'], 3, False)} at δ = {nearest(told['delta'], 2)}",
        "no finite ε" if told["claimed"] is None else significant(told["claimed"], 3),
    )
    return str(told["threat"]), (row,), ONE_RUN_HEADS, ()


def _of_code(told: Json) -> Table:
    rows = tuple(
        (
            f"{one['promise']}: {PROMISES[one['promise']]}",
            "" if one["step"] is None else f"{one['step']:,}",
            one["parameter"] or "",
            "" if one["measured"] is None else significant(one["measured"], 3),
            "" if one["allowed"] is None else significant(one["allowed"], 3, False),
        )
        for one in told["findings"]
    )
    records = ", ".join(map(str, told["records"]))
    which = f"record {records}" if len(told["records"]) == 1 else f"one of the records {records}"
    remark = f"Replayed: {told['steps']} steps, on data that differ in {which} ({'; '.join(told['changes'])})."
    return str(told["threat"]), rows, FINDING_HEADS, (remark, *map(str, told["notes"]))


_TABLES = {"code": _of_code, "mechanism": _of_mechanism, "training": _of_training, "one-run": _of_one_run}


def _games(who: str, audit: Json) -> tuple[str, ...]:
    success = audit["success"]
    return (
        who,
        f"{audit['games']:,}",
        nearest(success["estimate"]),
        f"{significant(success['lower'], 4, False)} to {significant(success['upper'], 4)}",
        significant(audit["allowed"]["upper"], 4),
        nearest(audit["p_value"], 2),
    )
