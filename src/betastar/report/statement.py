"""The words of a report: verdicts, notices, tables, the statement that the field asks of every claim of privacy, and advice.

Names of metrics and their rounding come from `METRICS`.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from typing import Any, NamedTuple

from betastar import advice
from betastar.advice import Advice, Lever
from betastar.analyze import RegimeWarning, analyze
from betastar.calibrate import Target, enforced
from betastar.dpsgd import DPSGD, all_plain
from betastar.heuristics import final_model
from betastar.quality import quality_sentence
from betastar.report.facts import LEFT_OUT, Against, Facts
from betastar.risk import DIGITS, METRICS, Risk, band
from betastar.rounding import nearest, nearest_percent, percent, plain, significant, tiny
from betastar.runs.folder import code_commit
from betastar.runs.reading import Inside, Json
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat

BETA = METRICS["bayes_security"]


def right(beta: float) -> str:
    """The share of right guesses at even odds."""
    return METRICS["success"].rounded(1.0 - beta / 2.0, 0.5)


# What the report says of itself


def about(facts: Facts, author: str = "", purpose: str = "") -> list[tuple[str, str]]:
    """Date, author, purpose and variant of the report, as far as there are any."""
    variant = "internal: some figures depend on the data (betastar report --public leaves them out)"
    if facts.is_public:
        variant = "public: nothing in it depends on the training records"
    rows = [
        ("Date", date.today().isoformat()),
        ("Made by", author),
        ("Purpose", purpose),
        ("Variant", variant if facts.is_run else ""),
    ]
    return [(name, text) for name, text in rows if text]


def origin(facts: Facts) -> list[tuple[str, str]]:
    """The day of the run, and fingerprints of data and code, as far as there are any."""
    code = f"betastar {version('betastar')}" + (f", commit {commit}" if (commit := code_commit()) else "")
    rows = [
        ("Run of", facts.run_date),
        ("Records", f"SHA-256 {facts.fingerprint}" if facts.fingerprint else ""),
        ("Code of this report", code),
    ]
    return [(name, text) for name, text in rows if text]


def quality(facts: Facts) -> str | None:
    """How good the model is on test records, beside what needs no model."""
    if not facts.entries:
        return None
    return f"{quality_sentence(facts.entries[-1], 'the records that it has not seen')}."


def versions() -> str:
    """The versions of what the report is written with."""
    named = ", ".join(f"{name} {version(name)}" for name in ("betastar", "numpy", "scipy", "matplotlib"))
    return f"{named}, Python {platform.python_version()}"


# Verdicts


@dataclass(frozen=True)
class Verdict:
    """One threat: the one number to rely on, and what it means. Every place that names this number takes it from here.

    Attributes
    ----------
    name, kind : str
        As for `Against`; the kind "budget" is an attribute that a budget protects.
    title, sentence : str
        What the attacker wants, and how often they are right.
    lower : float
        β* to rely on.
    estimate : float or None
        The estimate that goes with it; None under a budget, which proves a limit alone.
    word : str
        "proved", "measured", or what else the number is.
    band : str
        "strong", "moderate" or "weak", by the bands.
    target : Target or None
        The reader's own threshold, or else what the training was to reach.
    met : bool or None
        Whether it is met.
    odds : str
        What an attacker reaches who knows how frequent the values are; empty if that is not known, and under a budget.
    """

    name: str
    kind: str
    title: str
    sentence: str
    lower: float
    estimate: float | None
    word: str
    band: str
    target: Target | None = None
    met: bool | None = None
    odds: str = ""

    @property
    def beta(self) -> str:
        """β* for people, rounded down."""
        return BETA.rounded(self.lower)

    @property
    def sign(self) -> str:
        """What stands between β* and the number: a batch gives an estimate alone."""
        return "≈" if self.kind == "batch" else "≥"

    @property
    def judged(self) -> str:
        """The verdict: by the reader's threshold, or else by the bands."""
        if self.target is not None:
            measured = ", as measured" if self.kind in MEASURED else ""
            return f"{'Meets' if self.met else 'Does not meet'} the target {self.target}{measured}"
        return f"{self.band.capitalize()} by the example bands"

    @property
    def color(self) -> str:
        """The band whose colour the verdict has."""
        return self.band if self.met is None else "strong" if self.met else "weak"

    @property
    def line(self) -> str:
        """The verdict on one line, for a terminal."""
        return f"{self.title}: β* {self.sign} {self.beta}, {self.word}. {self.judged}."

    def as_json(self) -> Json:
        """The verdict as `betastar report --json` prints it."""
        return {
            "threat": self.name,
            "kind": self.kind,
            "known": self.word,
            "bayes_security": {"lower": self.lower, "estimate": self.estimate},
            "band": self.band,
            "met": self.met,
            "odds": self.odds or None,
        }


#: Kinds of numbers that a monitor measured.
MEASURED = ("batch", "dataset")
#: The word for membership if training ended at a moment that depends on the records.
NOT_PROVED = "not proved"


def verdicts(facts: Facts, target: Target | None = None) -> list[Verdict]:
    """The verdict on each threat: membership, a person if one has several records, each group, and each attribute."""
    surer = {one.name for one in facts.attributes if one.kind == "proved" or facts.budgeted is not None}
    attributes = [one for one in facts.attributes if not one.measured or one.name not in surer]
    person = [] if facts.person is None else [facts.person]
    members = [_surer(facts, one) for one in (facts.membership, *person)]
    against = [*members, *facts.of_groups, *attributes, *facts.of_budget]
    return [_verdict(facts, one, target) for one in against]


def _surer(facts: Facts, one: Against) -> Against:
    """A threat of membership with the number to rely on: what the steps prove, or what a budget proves, if that is more."""
    promised = facts.membership_budget
    return one if promised is None or one.lower >= promised else replace(one, kind="budget", known=(promised, None))


def _verdict(facts: Facts, one: Against, target: Target | None) -> Verdict:
    known, member = word(facts, one), isinstance(one.threat, Membership)
    if target is None and one.kind != "budget":
        target = facts.target if member else facts.attribute_target
    met = None if target is None else known != NOT_PROVED and _met(one, target)
    alone = member and (facts.is_run or facts.attributes)
    odds = "" if alone or one.kind == "budget" else _odds(facts, one.certified, "about" if one.measured else "at most")
    sentence = _sentence(facts, one)
    return Verdict(one.name, one.kind, one.title, sentence, one.lower, one.estimate, known, band(one.lower), target, met, odds)


def word(facts: Facts, one: Against) -> str:
    """How the number is known."""
    if one.measured:
        return "measured"
    if one.kind == "worst" and facts.budget is not None:
        return NOT_PROVED
    return "proved if the distance holds" if one.kind == "assumed" else "proved"


def _met(one: Against, target: Target) -> bool:
    """Whether the number to rely on meets the target; a target that does not follow from β* needs the certified curve."""
    numbers = {"bayes_security": one.lower, "advantage": 1.0 - one.lower}
    if target.metric == "success" and target.given == 0.5:
        numbers["success"] = 1.0 - one.lower / 2.0
    if target.metric in numbers:
        return target.about.met(numbers[target.metric], target.value)
    return one.kind != "budget" and target.met(one.certified)


#: What an attacker guesses of a record of a group, or of a person with several, by what else could have been in its place.
GUESSED = {
    "add-remove": "whether {} of the group {!r} was used or left out",
    "same-group": "whether {} of the group {!r} was used, or another of this group in its place,",
    "substitution": "whether {} of the group {!r} was used, or anybody's in its place,",
}
FIXED = "The budget fixed this before training: "
COVERS_STEPS = "This covers the updates, but not what the moment tells at which the budget ended training."


def _sentence(facts: Facts, one: Against) -> str:
    """What the number means: who the attacker is, how often they are right, and what that rests on."""
    every = "it holds for every record and may be published"
    if one.group is not None and facts.groups is not None:
        whose = "a record" if facts.groups.records == 1 else f"a person with {facts.groups.records} records"
        guessed = GUESSED[facts.groups.relation].format(whose, one.group)
        end = ". Who is in which group is taken as public."
    elif one.kind == "budget":
        paid = "a record sat out the steps that it could not pay for. Who sat out may not be published."
        guessed, end = "which of two records was used", f". {FIXED}{every}; {paid}"
    else:
        end = "." if one.kind != "worst" or facts.budget is None else f". {COVERS_STEPS}"
        guessed = "which of two records was used"
    who = f"An attacker who sees every update and guesses {guessed}"
    if isinstance(one.threat, Membership) and one.name == "person":
        number = facts.records_per_person
        who = f"An attacker who guesses whether a person with {number} records was used, or replaced by another person,"
        end += " Nobody has more records than that." if facts.is_public else " Nobody in the training data has more."
    elif not isinstance(one.threat, Membership):
        values = f" ({one.values} values)" if one.values else ""
        who = (
            f"An attacker who knows everything about a record except the value of {one.name!r}{values}, and hesitates between "
            "two equally likely values,"
        )
        clipped = (
            f". {'Clipping alone' if one.gap == FARTHEST else 'Gap clipping'} fixed this before training (gap {one.gap or 0:.4g} "
            f"clipping norms; a clipping norm is the largest length of one record's gradient): {every}."
        )
        ends = {"proved": clipped, "budget": f". {FIXED}{every}."}
        ends["assumed"] = ", provided that no step's gradients are farther apart than was said."
        end = ends.get(one.kind, f" ({one.label}).")
    best = "" if facts.trials is None else f"Best of {facts.trials}: "
    most = "about" if one.measured else "at most"
    return f"{best}{who} is right {most} {right(one.lower)} of the time, against 50 % without the model{end}"


def weaker(facts: Facts) -> str | None:
    """What an attacker is expected to do who sees the final model alone; None where that says nothing else, or is not known."""
    if facts.trials is not None or not all_plain(facts.run):
        return None
    reached = float(final_model(facts.run, facts.membership.threat).success().estimate)
    if reached - 0.5 > SAYS_SOMETHING_ELSE * (1.0 - facts.membership.lower) / 2.0:
        return None
    return (
        "What a weaker attacker is expected to do: one who sees only the final model, and no update, is expected to be right "
        f"about {nearest_percent(reached)} of the time about membership. This is a heuristic, not a bound: some models tell "
        "more. Do not rely on it."
    )


#: What the final model alone tells is left out if it exceeds this share of the excess over guessing that every update allows.
SAYS_SOMETHING_ELSE = 0.9


# An attacker who knows how frequent the values of an attribute are: right guesses without and with the model

#: Shares that differ from 1 in sum by more than this are not those of all records.
WHOLE = 1e-6


def _odds(facts: Facts, risk: Risk, about: str) -> str:
    """What such an attacker reaches, of whom the curve of a risk is known; certified, rounded up."""
    shares = facts.shares
    if len(shares) < 2 or abs(sum(shares.values()) - 1.0) > WHOLE:
        return ""
    value = max(shares, key=lambda label: shares[label])
    most = percent(shares[value], 2)
    if len(shares) == 2:
        reach, said = float(risk.success(min(shares.values())).upper), f"“{value}” has probability {most}"
    else:
        reach = float(risk.success(list(shares.values())).upper)
        said = f"the most frequent of the {len(shares)} values, “{value}”, has probability {most}"
    return f"With real odds ({said}): guessing alone is right {most} of the time, with the model {about} {percent(reach, 2)}."


# Notices


class Notice(NamedTuple):
    """What a reader must know before any number: how it begins, which is enough for a reminder, and how it goes on."""

    brief: str
    rest: str

    @property
    def text(self) -> str:
        return self.brief + self.rest


def notices(facts: Facts) -> list[Notice]:
    """The notices that a run or a setting needs."""
    remarks = []
    if not facts.finished:
        covered = f". The report covers the {len(facts.entries)} epochs that are; each further step lowers β*."
        remarks.append(Notice("This run is not finished", covered))
    if facts.rate_notice:
        remarks.append(Notice("About the sampling rate", f": {facts.rate_notice}"))
    if facts.person_unknown:
        people = f"Some people have up to {facts.records_per_person} records, and the figures are for one record"
        remarks.append(Notice(people, f": {facts.person_unknown}"))
    if facts.concerned is not None and facts.attributes:
        number = f"the {facts.concerned:,} training records" if facts.internal else "those training records"
        concerned = (
            f"The figures for attribute inference are about {number} that hold exactly one of the values of "
            f"{facts.attributes[0].name}"
        )
        remarks.append(Notice(concerned, ". Nothing is measured or proved about the others, nor that a record is one of them."))
    if facts.restated:
        columns = (
            f": {'; '.join(facts.restated)}. An attacker who knows a record's other columns needs no model to guess it, and the "
            "figures for attribute inference do not count that. Name such columns (--with), and they are protected together."
        )
        remarks.append(Notice("Other columns give the attribute away", columns))
    if facts.internal and facts.measured is None and not facts.exposures:
        remarks.append(Notice("Not for publication as it is", ". The exposure of records depends on the data: to show it leaks."))
    elif facts.internal:
        leaks = (
            ". The figures for attribute inference that were measured, and the exposure of records, depend on the data: a "
            "published attribute figure can leak membership."
        )
        remarks.append(Notice("Not for publication as it is", leaks))
    return remarks


# What would help: for each threat, what would reach the next band, or the reader's own target


def next_steps(facts: Facts, target: Target | None = None) -> list[tuple[str, Advice]]:
    """For each threat, its title and the advice: what reaches the reader's own target, or the next band of this threat.

    Empty where a target is met or the band is the best one, for runs whose noise or rate changed, and for samplings other than
    Poisson's.
    """
    if facts.trials is not None or len(facts.run.segments) != 1 or not all_plain(facts.run):
        return []
    advised = [(one.title, _advice(one, _levers(facts, one), target)) for one in (facts.membership, *facts.attributes)]
    return [(title, advice) for title, advice in advised if advice is not None]


def _advice(one: Against, levers: Iterator[Lever], target: Target | None) -> Advice | None:
    if target is None:
        return advice.towards_next_band(one.lower, levers)
    return None if target.met(one.certified) else advice.towards(target, levers)


def _levers(facts: Facts, one: Against) -> Iterator[Lever]:
    """What can be changed: noise and length, for a distance that is known before; the gap, for an attribute of a run."""
    if one.kind not in ("batch", "dataset"):
        yield from advice.levers(_run_numbers(facts), one.threat)
    if facts.is_run and isinstance(one.threat, AttributeInference):
        now = FARTHEST if one.gap is None else one.gap

        def clipped(gap: float) -> tuple[DPSGD, Threat]:
            return facts.run, AttributeInference(enforced(gap))

        yield Lever("gap", now, clipped, 1e-6 * FARTHEST, now)


def _run_numbers(facts: Facts) -> dict[str, Any]:
    """The numbers of the run: with epochs if it is one of whole epochs, else with steps."""
    first, known = facts.run.segments[0], facts.parameters
    by_steps = {"noise_multiplier": first.noise_multiplier, "sample_rate": first.sample_rate, "steps": first.steps}
    sizes = {"batch_size": known.get("batch_size"), "dataset_size": known.get("records", known.get("dataset_size"))}
    if None in sizes.values() or "epochs" not in known:
        return by_steps
    by_epochs = {"noise_multiplier": first.noise_multiplier, "epochs": known["epochs"], "opacus": False, **sizes}
    return by_epochs if DPSGD.from_numbers(**by_epochs) == facts.run else by_steps


# Audits that were kept with the run: the verdict of each, what it means, and a table of what was measured

#: What was played, by the kind of the audit.
KINDS = {
    "code": "The training code",
    "mechanism": "Games on the mechanism",
    "training": "Games on real training",
    "one-run": "One run, many canaries",
}
#: What it means for a person that nothing was found, and that something was, by the kind of the audit.
NOTHING_FOUND = {
    "code": "What was compared keeps its promises, in these steps and for these records. That is no proof for anything else.",
    "mechanism": "The bound of this report withstood the strongest attacker on the mechanism. No model was trained.",
    "training": "Nobody did better than the bound allows. That is no proof: this many games show only larger faults.",
    "one-run": "The guesses do not contradict the claim. That is no proof, and one run sees less than many games.",
}
FOUND = {
    "code": "The code does not do what the numbers of this report assume. Do not rely on them before it is mended.",
    "mechanism": "The bound of this report is wrong, or what was played is not what it is about. Do not rely on its numbers.",
    "training": "The training is less private than it claims. Do not rely on the numbers of this report before that is mended.",
    "one-run": "The training is less private than it claims. Do not rely on the numbers of this report before that is mended.",
}


class Played(NamedTuple):
    """An audit in words: what was played, the verdict, what it means for a person, and what else there is to know."""

    title: str
    sentence: str
    meaning: str
    violated: bool
    #: Whether this very run was audited.
    own: bool
    remarks: tuple[str, ...] = ()


def played(facts: Facts) -> list[Played]:
    """The audits kept with a run. Another run may have been audited (one on fewer records); the first remark says so."""
    said = []
    for kind, file, result in facts.audits:
        with Inside(file):
            said.append(_audit_in_words(kind, result, facts.run))
    return said


def _audit_in_words(kind: str, result: Json, run: DPSGD) -> Played:
    first, remarks = result, []
    if kind == "training":
        first = next(iter(result["audits"].values()))
        remarks = [f"Challenge: {result['challenge']}.", *filter(None, [result.get("comparison", "")])]
        if result["leakage"] is not None:
            remarks.append(f"Without a model of the attack: {result['leakage']['sentence']} {result['leakage']['caveat']}")
    elif kind == "code":
        rungs = (("replay", "replay"), ("one_run", "one-run"), ("games", "training"), ("layers", "training"))
        given = [(name, result[key]) for key, name in rungs if result[key] is not None]
        remarks = [f"{KINDS.get(name, 'Replayed')}: {one['sentence']}" for name, one in given]
        first = {**result, "threat": result["replay"]["threat"] if result["replay"] else ""}
    own, violated = first["run"] == repr(run), bool(result["violated"])
    if not own:
        other = f"Not this very run, {run!r}, but another one was audited: {first['run']}."
        silent = f"The audit does not say what it claims to have run; this report is about {run!r}."
        remarks.insert(0, silent if first["run"] is None else other)
    title = f"{KINDS[kind]}: {first['threat']}" if first["threat"] else KINDS[kind]
    meaning = (FOUND if violated else NOTHING_FOUND)[kind]
    return Played(title, str(result["sentence"]), meaning, violated, own, tuple(map(str, remarks)))


# Tables of metrics

FPRS = (0.1, 0.01, 0.001)
DELTAS = (1e-5, 1e-6)


def metrics(facts: Facts, brief: bool = False) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """A table of metrics: its columns are threats, and each number is rounded to the safe side.

    Parameters
    ----------
    facts : Facts
        What the report is about.
    brief : bool
        Whether the table leaves out what takes seconds to compute.

    Returns
    -------
    heads : list of str
        The heads of the columns.
    rows : list of (str, list of str)
        The name of a metric, and its value for each threat.
    """
    columns = _columns(facts)
    heads = ["membership, substitution", "membership, add or remove"][: len(columns) - len(facts.attributes)]
    short = {"proved": "proved", "assumed": "for the distance given"}
    heads += [f"{one.name}, {short.get(one.kind, 'measured')}" for one in facts.attributes]
    relied = {verdict.name: verdict.lower for verdict in verdicts(facts) if verdict.kind != "worst"}
    promised = facts.membership_budget or 0.0
    least = [max(one.lower, promised) if one.kind == "worst" else relied.get(one.name, one.lower) for one in columns]
    rows: list[tuple[str, list[str]]] = [(f"{BETA.title}, the number to rely on", [BETA.rounded(beta) for beta in least])]
    if facts.add_remove is not None:  # of shuffling there is an attack that exists, and no estimate
        rows.append((f"{BETA.short}, exact, the estimate", [significant(one.integral, DIGITS) for one in columns]))
    if facts.trials is None and all_plain(facts.run):
        rows.append((f"{BETA.short}, the paper's closed form", [BETA.rounded(_paper(one)) for one in columns]))
    if brief:
        return heads, rows
    rows += [
        (METRICS["advantage"].title, [METRICS["advantage"].rounded(1 - beta) for beta in least]),
        (METRICS["success"].title.format(plain(0.5)), [right(beta) for beta in least]),
    ]
    tpr, epsilon = METRICS["tpr"], METRICS["epsilon"]
    for fpr in FPRS:
        values = [float(one.certified.tpr(fpr).upper) for one in columns]
        rows.append((tpr.short.format(plain(fpr)), [tpr.rounded(value, fpr) for value in values]))
    for delta in DELTAS:
        values = [float(one.certified.epsilon(delta).upper) for one in columns]
        rows.append((epsilon.title.format(plain(delta)), [epsilon.rounded(value, delta) for value in values]))
    rows.append(("δ at ε 1", [tiny(float(one.certified.delta(1.0).upper)) for one in columns]))
    fits, gdp_mu = [one.certified.gdp_mu for one in columns], METRICS["gdp_mu"]
    rows.append((gdp_mu.title.format(plain(fits[0].smallest_fpr)), [gdp_mu.rounded(float(fit.upper)) for fit in fits]))
    return heads, rows


#: What the words of the table mean.
WORDS = (
    "The number to rely on is rounded to the safe side: β* down, what an attacker can do up. The other β* are for comparison.",
    "Substitution: the attacker tells whether one record or any other one in its place was used. Add or remove: whether a record "
    "was used or nothing in its place, as the (ε, δ) of DP libraries has it.",
    "TPR is the share of right alarms, FPR that of false alarms. δ at ε = 1 is the least δ for which the run is (1, δ)-"
    "differentially private.",
)


def _columns(facts: Facts) -> list[Against]:
    """The threats of the tables."""
    both = [facts.membership] if facts.add_remove is None else [facts.membership, facts.add_remove]
    return [*both, *facts.attributes]


def _paper(one: Against) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)  # the first row has the exact value
        assert isinstance(one.run, DPSGD)
        return float(analyze(one.run, one.threat, "paper").bayes_security.estimate)


# What a claim means, and for whom

#: What became of the seed of a run.
SEEDS = {
    "guessable": "But it was chosen, and is small enough to be guessed, which is as good as known: a model that is given away "
    "needs a random one, which betastar train draws when none is given.",
    "given": "It was given (--seed) and is in config.json: keep that, wherever else it is written down, and checkpoint.pt, if "
    "there is one, to yourself.",
    "kept": "It was drawn at random. Keep seed.json and checkpoint.pt to yourself, from which the noise can be computed: they "
    "are deleted when the run is complete.",
    "own": "How the generator of this loop was seeded is not known here. A seed that can be guessed is as good as known, and so "
    "is the state of the generator in a checkpoint: keep both to yourself.",
    "deleted": "It was drawn at random, and deleted with the state of the generator when the run was complete: the noise cannot "
    "be computed from the run's folder.",
}
_SAME = "The seed is in config.json: the noise can be computed from it, so it is not printed here."
#: What the command that is printed repeats of a run.
REPEAT = {
    "guessable": _SAME,
    "given": _SAME,
    "kept": "The command draws another seed than that of this run: the same parameters, other noise.",
    "own": "The command computes β* against membership inference again; training again is up to the loop.",
    "deleted": "The seed of this run is deleted, and the command draws another one: the same parameters, other noise.",
}


#: What is said of the other models, and whether choosing parameters is among what is not covered.
TRIED = (
    "This model is the best of {}. They were trained independently, with parameters drawn at random for each; how many was "
    "decided before. All figures count the choice. They hold if nothing of the other models is ever seen; betastar deleted them."
)
CHOICE = {True: " (the choice of parameters among them)", False: ""}


def statement(facts: Facts) -> list[tuple[str, str]]:
    """What a claim means, and for whom: the unit of privacy, adjacency, checkpoints, sampling, accountant and trust."""
    sampling = _sampling(facts.run)
    made = ", as it was done in this run." if facts.is_run else "; a training that draws batches otherwise is not covered."
    left_out = [("Left out", LEFT_OUT)] if facts.is_run and facts.is_public else []
    return [
        ("Unit of privacy", "One record (one row of the training data). A person with several rows is protected less."),
        (
            "Adjacency",
            "β* against membership: one record is replaced by any other (substitution). The usual (ε, δ) of DP libraries is for "
            "adding or removing a record, "
            + (
                "of which nothing is proved here: it shifts all batches." if facts.add_remove is None else "in the second column."
            ),
        ),
        (
            "Covered outputs",
            "Every update of every step, so every checkpoint and the final model, together, and whatever is computed from them."
            + ("" if facts.trials is None else f" {TRIED.format(facts.trials)}"),
        ),
        ("Sampling", sampling + made),
        (
            "Noise",
            "Ideal Gaussian noise on the sum of clipped gradients. Floating-point arithmetic and the pseudo-random generator are "
            "outside of the model; the noise can be computed from the seed" + _seed(facts),
        ),
        (
            "Accountant",
            f"betastar {version('betastar')}, method certified: proved from both sides, discretisation and rounding included. β* "
            "of measured distances, and the estimates, are by the method exact, its numerical error estimated and added.",
        ),
        (
            "Trust model",
            "Central: those who train see the data and are trusted. The attacker knows all other records, the algorithm and "
            "every update, and may have unlimited computing power.",
        ),
        (
            "Source",
            "The run's own record of noise, rate and steps, from which all figures were computed again. It stays with those "
            "who trained the model."
            if facts.is_run and facts.is_public
            else "The files in the run's folder. Proofs and figures are computed again from noise, rate, steps and distances in "
            "them; files that contradict each other are refused. They are not signed: anybody who can write into the folder can "
            "change them all. What the columns are, how many values the attribute has and what restates it is taken from "
            f"{facts.described_in}, unverified."
            if facts.is_run
            else "The setting that was given. Whether a training keeps to it is not checked here.",
        ),
        (
            "Not covered",
            f"Other runs on the same records{CHOICE[facts.trials is None]}, preparation of the data such as scaling, and "
            "the test records, on which the model is judged."
            if facts.is_run and not facts.is_public
            else f"Other runs on the same records{CHOICE[facts.trials is None]} and preparation of the data.",
        ),
        *left_out,
    ]


def _sampling(run: DPSGD) -> str:
    """How batches are drawn, in a sentence without its end."""
    first = run.segments[0]
    rate, steps = nearest(first.sample_rate, 6), run.steps
    if first.sampling == "poisson":
        most = first.max_batch_size
        cut = "" if most is None else f"; of a batch of more than {most} records, that many are kept at random"
        return f"Poisson: each record is drawn independently with probability {rate} at each of the {steps} steps{cut}"
    batches, times = round(first.times_per_epoch / first.sample_rate), first.times_per_epoch
    if first.sampling == "balls-in-bins":
        number = "one" if times == 1 else f"exactly {times}"
        return f"Balls in bins: in each epoch, each record is in {number} of {batches} batches, drawn uniformly and independently"
    if first.sampling == "shuffled":
        return (
            f"Shuffled: in each epoch the records are permuted and cut into {batches} batches. What is proved is as if everybody "
            "knew in which batch a record is, and nothing better is known; for balls in bins and Poisson sampling more is"
        )
    return f"Fixed size: each of the {steps} steps draws equally many records without replacement, each with probability {rate}"


def _seed(facts: Facts) -> str:
    if not facts.is_run:
        return ". One that can be guessed is as good as known: a model that is given away needs a random one."
    return ", so the seed is not in this report. " + SEEDS[facts.seed]


def claims(facts: Facts) -> list[tuple[str, str]]:
    """Each number of the report, and what it is: proved, or a statement after the fact."""
    member = "A theorem about noise, rate and steps alone: it holds for any data and the worst record, and may be published."
    if facts.budget is not None:
        member = "Not proved: the figure covers the steps, and when training ended depends on the records."
    rows = [("Membership inference", member)]
    if facts.budget:
        rows.append(("Budget", f"{facts.budget} It may be published."))
    for one in facts.attributes:
        if one.kind == "proved":
            about = (
                f"Proved: the gap of {plain(one.gap)} clipping norms is enforced at every step, for every record, whatever the "
                "data. It may be published."
            )
        elif one.kind == "assumed":
            about = "It holds for the distance that was given. That training keeps to it is not checked here."
        else:
            about = "A statement after the fact: it comes from the distances that this run happened to have. " + (
                "They are those of the sampled records only, so it is an estimate, for the trainer's eyes only: a record "
                "outside of the batch may be exposed more, and publishing the figure reveals who was sampled."
                if one.kind == "batch"
                else "They are the largest over all records. A published attribute figure can leak membership."
            )
        rows.append((one.title, about))
    if facts.exposures or facts.members:
        rows.append(("Exposure of records", "An estimate, after the fact, about single people: keep it to yourself."))
    return rows


PROTECTED = (
    "Protected: the value of this attribute in this record, given everything else about the record, as far as the figure says.",
    "Not protected: what can be guessed from the record's other columns, or from what the model teaches about the population; "
    "and whether the record was used at all, for which the figure of membership inference holds.",
)
