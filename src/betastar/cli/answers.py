"""A question to its answer: one JSON object, with the sentence, what is assumed, and how sure it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import isfinite
from typing import Any

import betastar as bs
from betastar import validation
from betastar.advice import advise
from betastar.analyze import METHODS
from betastar.calibrate import ALSO_CALLED
from betastar.certified.enclosure import EFFORTS
from betastar.cli import options as opt
from betastar.cli.options import PRIOR, THREATS, TOLD, TRIALS_LAWS
from betastar.dpsgd import IN_EPOCHS, NUMBERS, SAMPLINGS
from betastar.risk import DIGITS, METRICS, Metric, not_known
from betastar.rounding import NO_BOUND, nearest_percent, plain, significant
from betastar.sequences import at_most_all
from betastar.threats import FARTHEST, Threat, reduction
from betastar.validation import WrongValueError

Answer = dict[str, Any]
#: The short spelling of an option, for a command that is printed to be repeated.
SHORT = {
    "noise_multiplier": "noise",
    "sample_rate": "rate",
    "batch_size": "batch",
    "dataset_size": "records",
    "max_batch_size": "max-batch",
}
#: Below this noise each point of the exact curve takes seconds, so the method is certified unless another is chosen.
LITTLE_NOISE = 0.5
#: Bounds wider than this are said to be wide.
WIDE = 0.01


def threat_of(name: str, distance: float | None = None, records_per_person: int | None = None) -> Threat:
    """The threat of this name."""
    validation.word("threat", name, THREATS)
    if name == "attribute":
        if distance is None:
            raise WrongValueError("distance", "{argument} is missing: threat attribute needs it.")
        if records_per_person is not None:
            text = "{argument} must be left out with threat attribute, got {value}; it belongs to the threats of membership."
            raise WrongValueError("records_per_person", text, {"value": str(records_per_person)})
        return bs.AttributeInference(distance)
    if distance is not None:
        text = "{argument} must be left out with threat {word}, got {value}; it belongs to threat attribute."
        raise WrongValueError("distance", text, {"word": name, "value": plain(distance)})
    relation = "add-remove" if name == "membership-add-remove" else "substitution"
    return bs.Membership(relation) if records_per_person is None else bs.Membership(relation, records=records_per_person)


@dataclass(frozen=True)
class Question:
    """What was run, who attacks, and how to compute it: the options of `analyze`. What is left out is None."""

    noise_multiplier: opt.NoiseMultiplier = None
    sample_rate: opt.SampleRate = None
    batch_size: opt.BatchSize = None
    dataset_size: opt.DatasetSize = None
    steps: opt.Steps = None
    epochs: opt.Epochs = None
    opacus: opt.Opacus = None
    sampling: opt.Sampling = "poisson"
    times_per_epoch: opt.TimesPerEpoch = 1
    max_batch_size: opt.MaxBatchSize = None
    trials: opt.NumberOfTrials = None
    trials_law: opt.TrialsLaw = "fixed"
    threat: opt.ThreatName = "membership"
    distance: opt.Distance = None
    records_per_person: opt.RecordsPerPerson = None
    method: opt.Method = None
    tolerance: opt.Tolerance = opt.TOLERANCE
    effort: opt.Effort = "best"
    prior: opt.Prior = opt.PRIOR
    fpr: opt.Fpr = opt.FPR
    delta: opt.Delta = opt.DELTA
    metric: opt.MetricNames = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Question:
        """The question that the options of a command ask; a command has options beside these."""
        given: dict[str, Any] = {one.name: options[one.name] for one in fields(cls) if options.get(one.name) is not None}
        return cls(**given | {name: tuple(value) for name, value in given.items() if isinstance(value, list)})

    def __post_init__(self) -> None:
        if isinstance(self.epochs, float) and self.epochs.is_integer():
            object.__setattr__(self, "epochs", int(self.epochs))  # 20.0 epochs are 20: said back as people say it
        validation.word("sampling", self.sampling, SAMPLINGS)
        validation.word("trials_law", self.trials_law, TRIALS_LAWS)
        if self.trials is None and self.trials_law != "fixed":
            raise WrongValueError("trials", "{argument} is missing: it is the mean number of models.")
        validation.word("effort", self.effort, EFFORTS)
        if self.method is not None:
            validation.word("method", self.method, METHODS)
        for metric in self.metric or ():
            validation.word("metric", metric, TOLD, ALSO_CALLED)
        if self.records_per_person is not None:
            at_most_all(self.records_per_person, self.dataset_size, "records_per_person")
        threat_of(self.threat, self.distance, self.records_per_person)

    @property
    def law(self) -> bs.Trials | None:
        """How many models are tried; None if it is one run."""
        if self.trials is None:
            return None
        law: bs.Trials = getattr(bs.Trials, self.trials_law)(self.trials)
        return law

    @property
    def metrics(self) -> Sequence[str]:
        return self.metric or TOLD

    @property
    def chosen_method(self) -> str:
        little = self.noise_multiplier is not None and self.noise_multiplier < LITTLE_NOISE
        return self.method or ("certified" if little or self.threat == "attribute" else "exact")

    @cached_property
    def attack(self) -> Threat:
        return threat_of(self.threat, self.distance, self.records_per_person)

    @property
    def given(self) -> dict[str, Any]:
        """The numbers of the run that are known."""
        return {name: getattr(self, name) for name in NUMBERS if getattr(self, name) is not None}

    @property
    def sampled(self) -> dict[str, Any]:
        """How batches are drawn, unless that is plain Poisson sampling."""
        names = ("sampling", "times_per_epoch", "max_batch_size")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Question, name)}

    @property
    def numbers(self) -> dict[str, Any]:
        """The arguments of `DPSGD.from_numbers`."""
        return {**self.given, **self.sampled, **({} if self.opacus is None else {"opacus": self.opacus})}

    @cached_property
    def _built(self) -> tuple[bs.DPSGD, list[str]]:
        """The run, and what is said of the rate of Opacus if nobody chose between the two rates."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run = bs.DPSGD.from_numbers(**self.numbers)
        return run, [_as_options(str(one.message)) for one in said]

    @property
    def run(self) -> bs.DPSGD:
        return self._built[0]

    @property
    def rate_notices(self) -> list[str]:
        return self._built[1]

    @cached_property
    def risk(self) -> bs.Risk:
        done = self.run if self.law is None else bs.best_of(self.run, self.law)
        return bs.analyze(done, self.attack, self.chosen_method, self.tolerance, self.effort)

    def command(self, verb: str = "analyze", *more: str) -> str:
        """The command line that repeats it."""
        words = ["betastar", verb, *more]
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None or value == one.default or one.name == "opacus":
                continue
            option = "--" + SHORT.get(one.name, one.name.replace("_", "-"))
            for each in value if isinstance(value, list | tuple) else (value,):
                words += [option, each if isinstance(each, str) else plain(each)]
        return " ".join(words + ([] if self.opacus is None else ["--opacus" if self.opacus else "--no-opacus"]))

    def with_run(self, run: bs.DPSGD) -> Question:
        """This question with the parameter that a calibration has computed."""
        given = set(self.given)
        if {"sample_rate", "steps"} & given and "batch_size" not in given:
            return replace(self, noise_multiplier=run.noise_multiplier, sample_rate=run.sample_rate, steps=run.steps)
        records = self.dataset_size or round((self.batch_size or 1) / run.sample_rate)
        in_batches = bool(self.opacus) or self.sampling in IN_EPOCHS
        batch = self.batch_size or _largest_batch(run.sample_rate, records, in_batches, self.times_per_epoch)
        full = replace(self, noise_multiplier=run.noise_multiplier, batch_size=batch, dataset_size=records)
        return (
            full if self.steps else replace(full, epochs=self.epochs or run.steps // -(-self.times_per_epoch * records // batch))
        )


def _largest_batch(rate: float, records: int, in_batches: bool, times: int) -> int:
    """The largest batch with this rate. in_batches: the rate is 1 / the number of batches, which several sizes have."""
    batches = round(times / rate)
    if not in_batches or batches == times:
        return round(rate * records)
    return (times * records - 1) // (batches - 1)


def _as_options(text: str) -> str:
    """A notice in the words of the command line."""
    return text.replace("opacus=True", "--opacus").replace("opacus=False", "--no-opacus")


# ---- Answers


def answer(question: Question, advised: bool = False, targets: Sequence[bs.Target] = ()) -> Answer:
    """Everything that is said about a question. advised: with what would reach the targets, or the next band."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        risk = question.risk
    success = risk.success(question.prior)
    even = None if question.prior == PRIOR else risk.success(PRIOR)
    more: Answer = {}
    if advised:
        advice = advise(question.numbers, question.attack, risk, targets)
        more = {"advice": None if advice is None else advice.as_json()}
    metrics = _metrics(question, risk)
    titles = [title for title, relied, *_ in rows(metrics) if relied == NO_BOUND]
    unknown = not_known(question.chosen_method, titles, "--method certified", "--method exact")
    return {
        **metrics,
        "sentence": _sentence(question, success, even),
        "certainty": _certainty(question, risk.bayes_security),
        "assumptions": _assumptions(question),
        "warnings": [*(str(one.message) for one in said), *question.rate_notices, *([unknown] if unknown else [])],
        "parameters": _parameters(question),
        "command": question.command(),
        **more,
    }


def calibrated(question: Question, target: bs.Target) -> Answer:
    """The parameter that was left out, so that the target is just met, and the answer for it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        how: Answer = {"method": question.chosen_method, "tolerance": question.tolerance, "effort": question.effort}
        run = bs.calibrate(target, threat=question.attack, trials=question.law, **how, **question.numbers)
    full = question.with_run(run)
    name = next(name for name in NUMBERS if name in full.given and name not in question.given)
    more = answer(full)
    more["warnings"] = [str(one.message) for one in said if one.category is not bs.RateWarning] + more["warnings"]
    more["command"] = question.command("calibrate", "--target", f'"{target}"')
    return {"target": str(target), "found": {name: getattr(full, name)}, **more}


def _parameters(question: Question) -> Answer:
    """What was asked, with the rate and the steps that follow from it."""
    run = question.run
    full = {**question.given, "sample_rate": run.sample_rate, "steps": run.steps}
    others = {"distance": question.distance, "records_per_person": question.records_per_person}
    return {name: full[name] for name in NUMBERS if name in full} | {
        **question.sampled,
        **({} if question.law is None else {"trials": question.trials, "trials_law": question.trials_law}),
        "threat": question.threat,
        **{name: value for name, value in others.items() if value is not None},
        "method": question.chosen_method,
        "prior": question.prior,
    }


def _metrics(question: Question, risk: bs.Risk) -> Answer:
    return {name: _reading(question, risk, METRICS[name]) for name in question.metrics}


def _reading(question: Question, risk: bs.Risk, metric: Metric) -> Answer | list[Answer]:
    """A metric as JSON: one bound, with the number that it depends on; a list where the question has several such numbers."""
    read = getattr(risk, metric.name)
    if metric.at is None:
        return {**bound(read), **{name: number(getattr(read, name)) for name in metric.also}}
    given = getattr(question, metric.at)
    if isinstance(given, list | tuple):
        return [{metric.at: one, **bound(read(one))} for one in given]
    return {metric.at: given, **bound(read(given))}


def bound(one: bs.Bound) -> dict[str, float | None]:
    """A bound as JSON. An end that is not finite is null."""
    return {name: number(getattr(one, name)) for name in ("lower", "estimate", "upper")}


def number(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def rows(answer: Mapping[str, Any], short: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Rows for people: metric, the number to rely on, the estimate, and what it is without a model."""
    for metric in METRICS.values():
        bounds = answer.get(metric.name, ())
        for one in bounds if isinstance(bounds, list | tuple) else (bounds,):
            yield metric.row(one, one.get(metric.at or "smallest_fpr"), short)


# ---- Words


def _sentence(question: Question, success: bs.Bound, even: bs.Bound | None) -> str:
    """What the number means for a person, rounded up. even: the right guesses at even odds, to stand beside another prior."""
    about = question.chosen_method == "paper"
    word = "about" if about else "at most"
    guesses = "between two values of the attribute" if question.threat == "attribute" else "membership"

    def share(bound: bs.Bound, prior: float) -> str:
        return METRICS["success"].rounded(float(bound.estimate if about else bound.upper), prior)

    reach, prior = share(success, question.prior), question.prior
    idle = f"{100 * max(prior, 1.0 - prior):.10g} %"
    model = "the model" if question.law is None else "it"
    said = f"An attacker who guesses {guesses} is right {word} {reach} of the time, against {idle} without {model}."
    if even is not None:
        likelier = "the rarer" if prior < 0.5 else "the likelier"
        said = (
            f"An attacker who guesses {guesses}, and knows that {likelier} of the two answers has probability {plain(prior)}, is "
            f"right {word} {reach} of the time, against {idle} without the model, by always guessing the likelier answer. "
            f"At even odds it is {word} {share(even, 0.5)} against 50 %."
        )
    if question.law is not None:
        said = f"Best of {question.law}: {said[0].lower()}{said[1:]}"
    return said if question.sampling != "shuffled" else f"{said} {_instead_of_shuffling(question, success)}"


def _instead_of_shuffling(question: Question, success: bs.Bound) -> str:
    """The attack on shuffled batches that exists, and what samplings that are better understood would give."""
    size = None if question.sample_rate is not None else question.dataset_size
    others = [replace(question, sampling=name, dataset_size=size) for name in ("balls-in-bins", "poisson")]
    most = [METRICS["success"].rounded(float(one.risk.success(one.prior).upper), one.prior) for one in others]
    instead = " and ".join(f"at most {share} with sampling {one.sampling}" for one, share in zip(others, most, strict=True))
    return (
        "Nothing better is proved of shuffled batches, and an attack is known that is right "
        f"{nearest_percent(float(success.lower))} of the time. It would be {instead}."
    )


#: What is assumed of trials.
TRIED = (
    "the best of {}: trained independently, with the same settings or with settings drawn at random for each; how many is "
    "decided before, without a look at the data; only the winner is released, no score, curve or weight of another; the score "
    "does not see the records at stake"
)


def _assumptions(question: Question) -> list[str]:
    records = question.records_per_person or 1
    person = [f"a person with {records} records, all of which are replaced, or left out, together"] if records > 1 else []
    knows = {
        "membership": "the attacker knows two records and guesses which of them was used",
        "membership-add-remove": "the attacker guesses whether the record was used, or nothing in its place",
        "attribute": "the attacker knows the rest of the record, and the clipped gradients of the attribute's values are never "
        f"farther apart than {question.distance and plain(question.distance)} clipping norms at any step",
    }
    times = question.times_per_epoch
    number = "one batch" if times == 1 else f"exactly {times} of the batches"
    drawn = {
        "poisson": "Poisson sampling: each step samples every record independently with the same probability",
        "fixed-size": "batches of a fixed size: each step draws this many records without replacement, anew",
        "balls-in-bins": f"balls in bins: each record is in {number} of an epoch, uniformly and independently of the others",
        "shuffled": "shuffled batches: the records are permuted uniformly at each epoch, and cut into batches",
    }[question.sampling]
    if question.max_batch_size is not None:
        drawn += f", and of a batch of more than {question.max_batch_size} records this many are kept at random"
    tried = [] if question.law is None else [TRIED.format(question.law)]
    return [
        *person,
        *tried,
        f"a worst-case record: {knows[question.threat]}",
        "an attacker who knows all other records and sees every update",
        drawn,
        "ideal Gaussian noise on the sum of clipped gradients",
    ]


def _certainty_of_best(question: Question, between: str, width: float) -> str:
    """How sure a number about the best of several models is."""
    proved = "both ends are proved" if question.chosen_method == "certified" else "up to numerical errors, which are estimated"
    attack = "" if width < WIDE * WIDE else " The upper end is an attack that exists; what lies between is not known."
    return (
        f"{question.chosen_method.capitalize()}, for the best model: {between}; {proved}.{attack} The other metrics are bounds: "
        "the number to rely on is above every attack, the estimate is an attack that exists."
    )


def _certainty(question: Question, beta: bs.Bound) -> str:
    """How sure the number is."""
    method, width = question.chosen_method, float(beta.width)
    between = (
        f"β* lies between {METRICS['bayes_security'].rounded(float(beta.lower))} and {significant(float(beta.upper), DIGITS)}"
    )
    if question.law is not None:
        return _certainty_of_best(question, between, width)
    gap = reduction(question.attack, question.run).attacks is not None
    if method == "exact" and gap:
        return (
            f"Bounded: {between}, up to numerical errors. The lower end holds for every sequence of gradients, the upper end is "
            "an attack that exists; what lies between them is not known."
        )
    if method == "exact" and question.distance not in (None, FARTHEST):
        return (
            f"Exact up to numerical errors: {between}. The lower end holds for every sequence of gradients with this distance, "
            "the upper end is an attack that exists."
        )
    text = {
        "exact": f"Exact: an integral whose numerical error, {significant(width, 1)} here, is estimated but not proved.",
        "certified": f"Certified: {between}; both ends are proved, discretisation, tails and rounding included.",
        "affinity": f"Proved by a closed form, but wide: {between}. The other metrics follow from β* alone.",
        "paper": f"Approximate: the paper's closed form. With its error term {between}. The other metrics follow from β* alone; "
        "use the method exact to rely on it.",
    }[method]
    if method == "certified" and width > WIDE:
        why = "no finer grid is affordable here" if question.effort == "best" else "the effort asks for a coarse grid"
        why = "no better bound is known for this sampling" if gap else why
        return f"{text} The interval is wide, as {why}."
    return text
