"""The words of a report: a verdict, what each number is, and the statement that the field asks of every claim of privacy.

Names of metrics and their rounding come from the table of metrics.
"""

from __future__ import annotations

import platform
import warnings
from dataclasses import dataclass
from importlib.metadata import version

from betastar.analyze import RegimeWarning, analyze
from betastar.dpsgd import DPSGD, all_plain
from betastar.report.facts import Against, Facts
from betastar.report.publication import LEFT_OUT
from betastar.risk import DIGITS, METRICS, band
from betastar.risk import MEANING as MEANING
from betastar.rounding import nearest_percent, plain, significant, tiny

BETA = METRICS["bayes_security"]

#: What a number of each kind is called.
TAGS = {
    "worst": "holds for any data",
    "proved": "proved in advance",
    "assumed": "holds if the distance does",
    "dataset": "after the fact",
    "batch": "an estimate, after the fact",
}
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
FPRS = (0.1, 0.01, 0.001)
DELTAS = (1e-5, 1e-6)


def right(beta: float) -> str:
    """The share of right guesses at even odds."""
    return METRICS["success"].rounded(1.0 - beta / 2.0, 0.5)


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


def weaker(facts: Facts) -> str | None:
    """What an attacker is expected to do who sees only the final model; None where the heuristic does not apply."""
    if not all_plain(facts.run):
        return None
    share = nearest_percent(float(analyze(facts.run, facts.membership.threat, sees="final-model").success().estimate))
    return (
        "What a weaker attacker is expected to do: one who sees only the final model, and no update, is expected to be right "
        f"about {share} of the time about membership. This is a heuristic, not a bound: there are models that tell more. Do not "
        "rely on it."
    )


def _verdict(one: Against, sentence: str) -> Verdict:
    return Verdict(one.title, sentence, BETA.rounded(one.lower), band(one.lower), TAGS[one.kind], one.kind)


def _sentence(one: Against) -> str:
    values = f" ({one.values} values)" if one.values else ""
    share = right(one.lower)
    who = (
        f"An attacker who knows everything about a record but its {one.name}{values}, and hesitates between two values that are "
        "equally likely, is right"
    )
    if one.kind == "proved":
        return (
            f"{who} at most {share} of the time, against 50 % without the model. Gap clipping fixed this before training (gap "
            f"{plain(one.gap)} clipping norms): it holds for every record and may be published."
        )
    if one.kind == "assumed":
        return f"{who} at most {share} of the time, provided that no step's gradients are farther apart than was said."
    return f"{who} about {share} of the time ({one.label or f'{one.kind} scope: for the trainer’s eyes only'})."


def notices(facts: Facts) -> list[str]:
    """What a reader must know before any number."""
    remarks = []
    if not facts.finished:
        remarks.append(
            f"This run is not finished. The report covers the {len(facts.entries)} epochs that are; each further step lowers β*."
        )
    if facts.rate_notice:
        remarks.append(f"About the sampling rate: {facts.rate_notice}")
    if facts.stopped:
        remarks.append(
            f"Training was stopped: {facts.stopped} When it stopped depends on the data; the figure for membership covers the "
            "steps that were taken, not what the moment of the stop may tell."
        )
    if facts.is_public and facts.budget:
        remarks.append(
            "A budget could end this run before the steps that are counted here. Whether it did depends on the data and is not "
            "told; the figure for membership covers the steps, not what the moment of the end may tell."
        )
    if facts.person_unknown:
        remarks.append(
            f"Some people have up to {facts.records_per_person} records, and the figures are for one record: "
            f"{facts.person_unknown}"
        )
    if facts.concerned is not None and facts.attributes:
        number = f"the {facts.concerned:,} training records" if facts.internal else "those training records"
        remarks.append(
            f"The figures for attribute inference are about {number} that hold exactly one of the values of "
            f"{facts.attributes[0].name}. Nothing is measured or proved about the others, nor that a record is one of them."
        )
    if facts.restated:
        remarks.append(
            f"Other columns give the attribute away: {'; '.join(facts.restated)}. Whoever knows a record's other columns needs "
            "no model to guess it, and the figures for attribute inference do not count that. Name such columns (--with), and "
            "they are protected together."
        )
    if facts.internal:
        remarks.append(
            "Not for publication as it is. The figures for attribute inference that were measured, and the exposure of records, "
            "depend on the data: a published attribute figure can leak membership."
        )
    return remarks


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
                    f"Proved in advance: the gap of {plain(one.gap)} clipping norms is enforced at every step, for every record, "
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


def versions() -> str:
    """The versions of what the report is written with."""
    named = ", ".join(f"{name} {version(name)}" for name in ("betastar", "numpy", "scipy", "matplotlib"))
    return f"{named}, Python {platform.python_version()}"
