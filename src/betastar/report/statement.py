"""The words of a report: verdicts, notices, tables, the statement that the field asks of every claim of privacy, and advice.

Names of metrics and their rounding come from `METRICS`.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from typing import Any, NamedTuple

from betastar import advice
from betastar.advice import Advice, Lever
from betastar.analyze import RegimeWarning, analyze
from betastar.audit.code_findings import PROMISES
from betastar.audit.results import WHO
from betastar.calibrate import Target, enforced
from betastar.dpsgd import DPSGD, all_plain
from betastar.heuristics import final_model
from betastar.quality import quality_sentence
from betastar.report.facts import LEFT_OUT, Against, Facts
from betastar.risk import DIGITS, METRICS, band
from betastar.risk import MEANING as MEANING
from betastar.rounding import nearest, nearest_percent, percent, plain, significant, tiny
from betastar.runs.folder import code_commit
from betastar.runs.reading import Inside, Json
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat

BETA = METRICS["bayes_security"]

#: What a number of each kind is called.
TAGS = {
    "worst": "holds for any data",
    "proved": "proved in advance",
    "assumed": "holds if the distance does",
    "dataset": "after the fact",
    "batch": "an estimate, after the fact",
}


def right(beta: float) -> str:
    """The share of right guesses at even odds."""
    return METRICS["success"].rounded(1.0 - beta / 2.0, 0.5)


# What the report says of itself


def about(facts: Facts, author: str = "", purpose: str = "") -> list[tuple[str, str]]:
    """Date, author, purpose and variant of the report, and fingerprints of data and code, as far as there are any."""
    variant = "internal: some figures depend on the data (betastar report --public leaves them out)"
    if facts.is_public:
        variant = "public: nothing in it depends on the training records"
    code = f"betastar {version('betastar')}" + (f", commit {commit}" if (commit := code_commit()) else "")
    rows = [
        ("Date", date.today().isoformat()),
        ("Made by", author),
        ("Purpose", purpose),
        ("Variant", variant if facts.is_run else ""),
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
    """One threat in a sentence; `beta` is rounded down."""

    title: str
    sentence: str
    beta: str
    band: str
    tag: str
    kind: str


def verdicts(facts: Facts) -> list[Verdict]:
    """The verdict on each threat. Membership comes first, because it is the hardest to resist."""
    member = facts.membership
    text = (
        "An attacker who sees every update and guesses which of two records was used is right at most "
        f"{right(member.lower)} of the time, against 50 % without the model."
    )
    people = []
    if facts.person is not None:
        of_person = (
            f"If they ask about a person with {facts.records_per_person} records, all of which were used or all replaced by "
            f"another's, they are right at most {right(facts.person.lower)} of the time. "
            + ("Nobody has more records than that." if facts.is_public else "Nobody in the training data has more.")
        )
        people = [_verdict(facts.person, of_person)]
    return [_verdict(member, text), *people, *(_verdict(one, _sentence(one)) for one in facts.attributes)]


def _verdict(one: Against, sentence: str) -> Verdict:
    return Verdict(one.title, sentence, BETA.rounded(one.lower), band(one.lower), TAGS[one.kind], one.kind)


def _sentence(one: Against) -> str:
    values = f" ({one.values} values)" if one.values else ""
    share = right(one.lower)
    who = (
        f"An attacker who knows everything about a record except the value of {one.name!r}{values}, and hesitates between two "
        "values that are equally likely, is right"
    )
    if one.kind == "proved":
        return (
            f"{who} at most {share} of the time, against 50 % without the model. Gap clipping fixed this before training (gap "
            f"{plain(one.gap)} clipping norms): it holds for every record and may be published."
        )
    if one.kind == "assumed":
        return f"{who} at most {share} of the time, provided that no step's gradients are farther apart than was said."
    return f"{who} about {share} of the time ({one.label or f'{one.kind} scope: for the trainer’s eyes only'})."


def weaker(facts: Facts) -> str | None:
    """What an attacker is expected to do who sees only the final model; None where the heuristic does not apply."""
    if not all_plain(facts.run):
        return None
    share = nearest_percent(float(final_model(facts.run, facts.membership.threat).success().estimate))
    return (
        "What a weaker attacker is expected to do: one who sees only the final model, and no update, is expected to be right "
        f"about {share} of the time about membership. This is a heuristic, not a bound: there are models that tell more. Do not "
        "rely on it."
    )


# An attacker who knows how frequent the values of an attribute are: right guesses without and with the model

#: Shares that differ from 1 in sum by more than this are not those of all records.
WHOLE = 1e-6
#: A share of right guesses that exceeds another by no more than this is said to be no better.
NO_HELP = 1e-4


def odds(facts: Facts) -> list[str]:
    """What such an attacker reaches, for each attribute (or for membership, of a setting without one); certified, rounded up."""
    shares = facts.shares
    if len(shares) < 2 or abs(sum(shares.values()) - 1.0) > WHOLE:
        return []
    against = facts.attributes or (() if facts.is_run else (facts.membership,))
    return [_odds_sentence(one, shares) for one in against]


def _odds_sentence(one: Against, shares: dict[str, float]) -> str:
    """A naive attacker guesses the most frequent value; the best one with the model is bounded by the trade-off curve."""
    value = max(shares, key=lambda label: shares[label])
    naive = shares[value]
    most = percent(naive, 2)
    if len(shares) == 2:
        rarer = min(shares, key=lambda label: shares[label])
        reach = float(one.certified.success(shares[rarer]).upper)
        known = f"{rarer} has probability {percent(shares[rarer], 2)} and {value} {percent(1.0 - shares[rarer], 2)}"
    else:
        reach = float(one.certified.success(list(shares.values())).upper)
        known = f"the most frequent of the {len(shares)} values, {value}, has probability {most}"
    word = "about" if one.kind in ("batch", "dataset") else "at most"
    gain = f"{word} {percent(reach, 2)} of the time with it"
    if reach - naive <= NO_HELP:
        gain = f"with it no more than {plain(100 * NO_HELP)} points more often"
    what = "membership" if isinstance(one.threat, Membership) else f"the {one.name} of a record"
    return (
        f"The answers are not equally likely: {known}. An attacker who knows that and guesses {what} is right {most} of the time "
        f"without the model, by always saying {value}, and {gain}."
    )


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
    if facts.stopped:
        why = (
            f": {facts.stopped} When it stopped depends on the data; the figure for membership covers the steps that were taken, "
            "not what the moment of the stop may tell."
        )
        remarks.append(Notice("Training was stopped", why))
    if facts.is_public and facts.budget:
        told = (
            ". Whether it did depends on the data and is not told; the figure for membership covers the steps, not what the "
            "moment of the end may tell."
        )
        remarks.append(Notice("A budget could end this run before the steps that are counted here", told))
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
            f": {'; '.join(facts.restated)}. Whoever knows a record's other columns needs no model to guess it, and the figures "
            "for attribute inference do not count that. Name such columns (--with), and they are protected together."
        )
        remarks.append(Notice("Other columns give the attribute away", columns))
    if facts.internal:
        leaks = (
            ". The figures for attribute inference that were measured, and the exposure of records, depend on the data: a "
            "published attribute figure can leak membership."
        )
        remarks.append(Notice("Not for publication as it is", leaks))
    return remarks


# What would help: for each threat, what would reach the next band, or the reader's own target


@dataclass(frozen=True)
class NextStep:
    """Advice on one threat."""

    threat: str
    advice: Advice

    @property
    def sentence(self) -> str:
        return f"{self.threat}: {self.advice.sentence}"


def next_steps(facts: Facts, target: Target | None = None) -> list[NextStep]:
    """The advice for each threat.

    Parameters
    ----------
    facts : Facts
        What the report is about.
    target : Target, optional
        The reader's own target; the next band of each threat by default.

    Returns
    -------
    list of NextStep
        Empty where a target is met or the band is the best one, for runs whose noise or rate changed, and for samplings other
        than Poisson's.
    """
    if len(facts.run.segments) != 1 or not all_plain(facts.run):
        return []
    against = [facts.membership, *facts.attributes]
    said = [(one.title, _advice(one, _levers(facts, one), target)) for one in against]
    return [NextStep(title, advised) for title, advised in said if advised is not None]


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
            return one.run, AttributeInference(enforced(gap))

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
    """

    title: str
    sentence: str
    meaning: str
    violated: bool
    own: bool
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()


def played(facts: Facts) -> list[Played]:
    """The audits kept with a run. Another run may have been audited (one on fewer records); the first remark says so."""
    said = []
    for kind, file, result in facts.audits:
        with Inside(file):
            said.append(_audit_in_words(kind, result, facts.run))
    return said


def _audit_in_words(kind: str, result: Json, run: DPSGD) -> Played:
    first = next(iter(result["audits"].values())) if kind == "training" else result
    title, rows, heads, more = _TABLES[kind](result)
    own = first["run"] == repr(run)
    violated = bool(result["violated"])
    return Played(
        title=f"{KINDS[kind]}: {title}" if title else KINDS[kind],
        sentence=str(result["sentence"]),
        meaning=(FOUND if violated else NOTHING_FOUND)[kind],
        violated=violated,
        own=own,
        heads=heads if rows else (),
        rows=rows,
        remarks=(*(() if own else (_other_run(first["run"], run),)), *more),
    )


def _other_run(audited: str | None, run: DPSGD) -> str:
    if audited is None:
        return f"The audit does not say what it claims to have run; this report is about {run!r}."
    return f"Not this very run, {run!r}, but another one was audited: {audited}."


#: The title, the rows of the table, its heads, and remarks.
Table = tuple[str, tuple[tuple[str, ...], ...], tuple[str, ...], tuple[str, ...]]


def _of_mechanism(told: Json) -> Table:
    return str(told["threat"]), (_game_cells("the best there is", told),), GAMES_HEADS, ()


def _of_training(told: Json) -> Table:
    rows = tuple(_game_cells(WHO[place], audit) for place, audit in told["audits"].items())
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


def _game_cells(who: str, audit: Json) -> tuple[str, ...]:
    success = audit["success"]
    return (
        who,
        f"{audit['games']:,}",
        nearest(success["estimate"]),
        f"{significant(success['lower'], 4, False)} to {significant(success['upper'], 4)}",
        significant(audit["allowed"]["upper"], 4),
        nearest(audit["p_value"], 2),
    )


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
    short = {"proved": "proved", "assumed": "assumed"}
    heads += [f"{one.name}, {short.get(one.kind, 'measured')}" for one in facts.attributes]
    rows: list[tuple[str, list[str]]] = [
        (f"{BETA.title}, exact", [BETA.rounded(one.integrated) for one in columns]),
    ]
    if facts.add_remove is not None:  # of shuffling there is an attack that exists, and no estimate
        rows.append((f"{BETA.short}, exact, the estimate", [significant(one.estimate, DIGITS) for one in columns]))
    if all_plain(facts.run):
        rows.append((f"{BETA.short}, the paper's closed form", [BETA.rounded(_paper(one)) for one in columns]))
    if brief:
        return heads, rows
    rows += [
        (
            f"{BETA.short}, certified",
            [BETA.rounded(float(one.certified.bayes_security.lower)) if one.has_certificate else "none" for one in columns],
        ),
        (METRICS["advantage"].title, [METRICS["advantage"].rounded(1 - one.lower) for one in columns]),
        (METRICS["success"].title.format(plain(0.5)), [right(one.lower) for one in columns]),
    ]
    tpr, epsilon = METRICS["tpr"], METRICS["epsilon"]
    for fpr in FPRS:
        values = [float(one.certified.tpr(fpr).upper) for one in columns]
        rows.append((tpr.short.format(plain(fpr)), [tpr.rounded(value, fpr) for value in values]))
    for delta in DELTAS:
        values = [float(one.certified.epsilon(delta).upper) for one in columns]
        rows.append((epsilon.title.format(plain(delta)), [epsilon.rounded(value, delta) for value in values]))
    fits, gdp_mu = [one.certified.gdp_mu for one in columns], METRICS["gdp_mu"]
    rows.append((gdp_mu.title.format(plain(fits[0].smallest_fpr)), [gdp_mu.rounded(float(fit.upper)) for fit in fits]))
    return heads, rows


#: What the rows of the appendix are, for those who compare reports.
APPENDIX = (
    "δ at ε = 1 is the least δ for which the run is (1, δ)-differentially private, rounded up.",
    "The regret of the Gaussian fit is by how much the curve of Gaussian differential privacy with the μ above overstates the "
    "best attacker, at most: 0 means that μ alone tells the whole curve.",
)


def appendix(facts: Facts) -> list[tuple[str, list[str]]]:
    """Rows that few people need, with the columns of `metrics`."""
    columns = _columns(facts)
    return [
        ("δ at ε 1", [tiny(float(one.certified.delta(1.0).upper)) for one in columns]),
        ("regret of the Gaussian fit", [significant(float(one.certified.gdp_mu.regret), DIGITS) for one in columns]),
    ]


def _columns(facts: Facts) -> list[Against]:
    """The threats of the tables."""
    both = [facts.membership] if facts.add_remove is None else [facts.membership, facts.add_remove]
    return [*both, *facts.attributes]


def _paper(one: Against) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)  # the first row has the exact value
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
_SAME = "The seed is in config.json: whoever knows it can compute the noise, so it is not printed here."
#: What the command that is printed repeats of a run.
REPEAT = {
    "guessable": _SAME,
    "given": _SAME,
    "kept": "The command draws another seed than that of this run: the same parameters, other noise.",
    "own": "The command computes β* against membership inference again; training again is up to the loop.",
    "deleted": "The seed of this run is deleted, and the command draws another one: the same parameters, other noise.",
}


def statement(facts: Facts) -> list[tuple[str, str]]:
    """What a claim means, and for whom: the unit of privacy, adjacency, checkpoints, sampling, accountant and trust."""
    sampling = _sampling(facts.run)
    drew = "Opacus" if all_plain(facts.run) else "betastar"
    made = f", as {drew} drew it in this run." if facts.is_run else "; a training that draws batches otherwise is not covered."
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
            "Every update of every step, so every checkpoint and the final model, together, and whatever is computed from them.",
        ),
        ("Sampling", sampling + made),
        (
            "Noise",
            "Ideal Gaussian noise on the sum of clipped gradients. Floating-point arithmetic and the pseudo-random generator are "
            "outside of the model; whoever knows the seed can compute the noise" + _seed(facts),
        ),
        (
            "Accountant",
            f"betastar {version('betastar')}. β*, advantage and right guesses: exact (an integral, or for attributes a dynamic "
            "programme, its numerical error estimated and added). TPR, ε, δ and μ: certified (proved from both sides, "
            "discretisation and rounding included)"
            + ("." if facts.membership.has_certificate else "; of membership exact, as balls in bins have no certificate."),
        ),
        (
            "Trust model",
            "Central: whoever trains sees the data and is trusted. The attacker knows all other records, the algorithm and every "
            "update, and may have unlimited computing power.",
        ),
        (
            "Source",
            "The run's own record of noise, rate and steps, from which all figures were computed again. It stays with whoever "
            "trained the model."
            if facts.is_run and facts.is_public
            else "The files in the run's folder. Proofs and figures are computed again from noise, rate, steps and distances in "
            "them; files that contradict each other are refused. They are not signed: whoever can write into the folder can "
            "change them all. What the columns are, how many values the attribute has and what restates it is taken from "
            f"{facts.described_in}, unverified."
            if facts.is_run
            else "The setting that was given. Whether a training keeps to it is not checked here.",
        ),
        (
            "Not covered",
            "Other runs on the same records (the choice of parameters among them), preparation of the data such as scaling, and "
            "the test records, on which the model is judged."
            if facts.is_run and not facts.is_public
            else "Other runs on the same records (the choice of parameters among them) and preparation of the data.",
        ),
        *left_out,
    ]


def _sampling(run: DPSGD) -> str:
    """How batches are drawn, in a sentence without its end."""
    first = run.segments[0]
    rate, steps = plain(first.sample_rate), run.steps
    if first.sampling == "poisson":
        most = first.max_batch_size
        cut = "" if most is None else f"; of a batch of more than {most} records, so many are kept at random"
        return f"Poisson: each record is drawn independently with probability {rate} at each of the {steps} steps{cut}"
    batches = round(1.0 / first.sample_rate)
    if first.sampling == "balls-in-bins":
        return f"Balls in bins: in each epoch, each record is in one of {batches} batches, drawn uniformly and independently"
    if first.sampling == "shuffled":
        return (
            f"Shuffled: in each epoch the records are permuted and cut into {batches} batches. What is proved is as if everybody "
            "knew in which batch a record is, and nothing better is known; of balls in bins and of Poisson sampling it is"
        )
    return f"Fixed size: each of the {steps} steps draws equally many records without replacement, each with probability {rate}"


def _seed(facts: Facts) -> str:
    if not facts.is_run:
        return ". One that can be guessed is as good as known: a model that is given away needs a random one."
    return ", so the seed is not in this report. " + SEEDS[facts.seed]


def claims(facts: Facts) -> list[tuple[str, str]]:
    """Each number of the report, and what it is: proved, or a statement after the fact."""
    rows = [
        (
            "Membership inference",
            "A theorem about noise, rate and steps alone: it holds for any data and the worst record, and may be published.",
        )
    ]
    if facts.budget:
        rows.append(("Budget", f"{facts.budget} It may be published."))
    for one in facts.attributes:
        if one.kind == "proved":
            rows.append(
                (
                    one.title,
                    f"Proved: the gap of {plain(one.gap)} clipping norms is enforced at every step, for every record, "
                    "whatever the data. It may be published.",
                )
            )
        elif one.kind == "assumed":
            rows.append((one.title, "It holds for the distance that was given. That training keeps to it is not checked here."))
        else:
            rows.append(
                (
                    one.title,
                    "A statement after the fact: it comes from the distances that this run happened to have. "
                    + (
                        "They are those of the sampled records only, so it is an estimate, for the trainer's eyes only: a record "
                        "outside of the batch may be exposed more, and publishing the figure reveals who was sampled."
                        if one.kind == "batch"
                        else "They are the largest over all records. A published attribute figure can leak membership."
                    ),
                )
            )
    if facts.exposures:
        rows.append(("Exposure of records", "An estimate, after the fact, about single people: keep it to yourself."))
    return rows


PROTECTED = (
    "Protected: the value of this attribute in this record, given everything else about the record, as far as the figure says.",
    "Not protected: what can be guessed from the record's other columns, or from what the model teaches about the population; "
    "and whether the record was used at all, for which the figure of membership inference holds.",
)
