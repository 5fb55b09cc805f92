"""What a report is about: the facts of a run folder, of a setting in JSON, or of a training loop of one's own.

This module reads, with the checks of `recomputed`; `statement` finds the words, and `report` draws.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from betastar import files, validation
from betastar.analyze import analyze
from betastar.calibrate import Target, enforced
from betastar.dpsgd import DPSGD, NUMBERS, RateWarning
from betastar.files import MEMBERS, MONITOR, PRIVATE_TRAINING, TRAINING, TRAINING_FORMAT
from betastar.groups import GroupPlan
from betastar.report import recomputed
from betastar.report.recomputed import ReportError
from betastar.risk import METRICS, Risk
from betastar.rounding import plain
from betastar.runs.config import Config
from betastar.runs.folder import CONFIG, DIAMETERS, EPOCHS, STATUS, STEPS, RunFolder, RunRecord, Status
from betastar.runs.reading import FolderError, Inside, Json, object_of, parsed
from betastar.runs.seeds import guessable
from betastar.threats import FARTHEST, RELATIONS, AttributeInference, Membership, Threat
from betastar.tuning import BestOf, Trials, best_of

BETA = METRICS["bayes_security"]


@dataclass(frozen=True)
class Against:
    """One threat to the run, and what is known about it.

    Attributes
    ----------
    threat : Threat
        Who attacks.
    name : str
        "membership", or the name of the attribute.
    kind : str
        How the number is known: "worst" (it holds for any data), "proved" (by gap clipping), "budget" (fixed in advance),
        "assumed" (it holds if the distance is what was said), "dataset" or "batch" (from distances that a monitor measured in
        that scope).
    run : DPSGD or BestOf
        What was run.
    label : str
        What a number from measured distances is.
    values : int or None
        The number of values of the attribute.
    gap : float or None
        The gap that gap clipping enforced.
    known : (float, float or None) or None
        The lower end and the estimate of β* by the method exact, if a run has them already; β* of a budget.
    group : str or None
        The group of records that it is about.

    `lower` is the one β* to rely on. What is proved takes it from the method certified, like the guarantee of a training; where
    there is no certificate, and of what was measured, it is the lower end of the method exact.
    """

    threat: Threat
    name: str
    kind: str
    run: DPSGD | BestOf
    label: str = ""
    values: int | None = None
    gap: float | None = None
    known: tuple[float, float | None] | None = None
    group: str | None = None

    @cached_property
    def exact(self) -> Risk:
        return analyze(self.run, self.threat)

    @cached_property
    def certified(self) -> Risk:
        return analyze(self.run, self.threat, method="certified")

    @property
    def title(self) -> str:
        if self.group is not None:
            return f"Membership inference: group {self.group!r}"
        if isinstance(self.threat, Membership):
            return "Membership inference" if self.threat.records == 1 else f"A person with {self.threat.records} records"
        return f"Attribute inference: {self.name}"

    @property
    def measured(self) -> bool:
        """Whether the figures come from distances that a monitor measured."""
        return self.kind in ("batch", "dataset")

    @property
    def lower(self) -> float:
        """β* to rely on."""
        certified = not self.measured and self.kind != "budget"
        return float(self.certified.bayes_security.lower) if certified else self.integrated

    @property
    def estimate(self) -> float | None:
        """The estimate of β* that goes with it; None under a budget, which proves a limit alone."""
        certified = not self.measured and self.kind != "budget"
        return float(self.certified.bayes_security.estimate) if certified else self.integral

    @property
    def integrated(self) -> float:
        """β* by the method exact, lower end."""
        return self.known[0] if self.known else float(self.exact.bayes_security.lower)

    @property
    def integral(self) -> float | None:
        """β* by the method exact, the estimate."""
        return self.known[1] if self.known else float(self.exact.bayes_security.estimate)


class KeptAudit(NamedTuple):
    """The result of an audit that was kept with a run: one of `AUDITS`, its file, and what is in it."""

    kind: str
    file: Path
    result: Json


@dataclass(frozen=True)
class Facts:
    """What is known of a run or of a setting. A field that only runs have is empty for a setting."""

    title: str
    run: DPSGD
    parameters: Json
    command: str
    #: The name of the study, without what is said of the run.
    name: str = "A setting"
    attributes: tuple[Against, ...] = ()
    is_run: bool = False
    finished: bool = True
    #: What the run was to reach against membership and attribute inference.
    target: Target | None = None
    attribute_target: Target | None = None
    #: What the run proved under a budget, if its steps keep to it.
    budget: str | None = None
    entries: list[Json] = field(default_factory=list)
    #: β* of single records that were looked at, by their index.
    exposures: dict[int, float] = field(default_factory=dict)
    #: The same against membership inference: if another record is in its place, or if nothing is.
    members: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: Columns from which the secret can be read off, as the run describes them.
    restated: tuple[str, ...] = ()
    #: What was done to the columns of a table, in sentences.
    told: tuple[str, ...] = ()
    #: The training records of the person who has most, if a column says whose record it is; and the limit that was set.
    records_per_person: int | None = None
    max_records_per_person: int | None = None
    #: What the run was made with, if it says so.
    versions: str = ""
    #: Audits that were kept with the run.
    audits: tuple[KeptAudit, ...] = ()
    #: The seed of the run: "given", "guessable" (given, and small enough to be tried), "kept" (drawn), "deleted" (drawn) or "own"
    #: (of a training loop of one's own; it is not known).
    seed: str = ""
    #: The file of the run that describes its columns and secrets.
    described_in: str = STATUS
    #: A notice about the sampling rate of Opacus, if a setting does not choose between the two rates.
    rate_notice: str | None = None
    #: The share of the training records that hold each value of the attribute; of a setting, what is known of the two answers.
    shares: dict[str, float] = field(default_factory=dict)
    #: The number of training records that the attribute is about; None if these are all of them.
    concerned: int | None = None
    #: A hash of the records, and the day of the last epoch, if the run has them.
    fingerprint: str = ""
    run_date: str = ""
    #: β* of the budget, if one could end the run at a moment that depends on the data.
    budgeted: float | None = None
    #: The attribute that the budget protects.
    budget_of: str = "the secret"
    #: The command with the name of the table instead of its path.
    public_command: str = ""
    #: Whether everything that depends on the data is left out.
    is_public: bool = False
    #: Groups of records with rates or clipping norms of their own; and the β* that a budget has proved of membership.
    groups: GroupPlan | None = None
    membership_budget: float | None = None
    #: Whether a `PrivateTraining` was saved, so that the model may have a card.
    private: bool = False
    #: How many models were trained, if this is the best of several.
    trials: Trials | None = None

    @cached_property
    def release(self) -> DPSGD | BestOf:
        """What an attacker sees the result of."""
        return self.run if self.trials is None else best_of(self.run, self.trials)

    def with_prior(self, prior: float) -> Facts:
        """The same with the probability of one of two answers before the attack, which says nothing about the records."""
        known = _prior(prior, "--prior")
        if len(self.attributes) > 1 or (self.is_run and not self.attributes):
            raise ReportError(f"--prior is about the one attribute of a report, and this one has {len(self.attributes)}.")
        return replace(self, shares={} if known is None else {"yes": known, "no": 1.0 - known})

    @cached_property
    def membership(self) -> Against:
        return Against(Membership(), "membership", "worst", self.release)

    @cached_property
    def add_remove(self) -> Against | None:
        """Adding or removing a record; None where nothing is proved of that, because it shifts all batches."""
        if any(segment.sampling == "shuffled" for segment in self.run.segments):
            return None
        return Against(Membership("add-remove"), "membership", "worst", self.release)

    @cached_property
    def person(self) -> Against | None:
        """Membership of the person who has most records; None if nobody has several, or if nothing is proved of that."""
        return None if self.records_per_person in (None, 1) or self.person_unknown else self._of_person()

    @cached_property
    def person_unknown(self) -> str | None:
        """Why nothing is proved of several records of a person under this sampling."""
        if self.records_per_person in (None, 1):
            return None
        try:
            self._of_person().threat.steps(next(iter(self.run.scalars())))
        except ValueError as reason:
            return str(reason)
        return None

    @cached_property
    def of_groups(self) -> list[Against]:
        """Each group of records with a target of its own. Who is in which group is public."""
        asked = {} if self.groups is None else {name: self.groups.question(name) for name in self.groups.rates}
        return [Against(threat, f"group {name}", "worst", run, group=name) for name, (run, threat) in asked.items()]

    @property
    def of_budget(self) -> list[Against]:
        """What a budget proves of its attribute: β*, which was fixed in advance."""
        if self.budget is None or self.budgeted is None:
            return []
        return [Against(AttributeInference(FARTHEST), self.budget_of, "budget", self.run, known=(self.budgeted, None))]

    def _of_person(self) -> Against:
        return Against(Membership(records=self.records_per_person or 1), "person", "worst", self.release)

    @property
    def proof(self) -> str | None:
        """What a budget or gap clipping has proved."""
        proved = [
            f"Proved: an attacker who knows everything about a record except the value of {one.name!r} faces "
            f"β* ≥ {BETA.rounded(one.lower)} (gap {one.gap})."
            for one in self.attributes
            if one.kind == "proved"
        ]
        return " ".join(proved) or self.budget

    @property
    def measured(self) -> Against | None:
        """The attribute that a monitor measured."""
        return next((one for one in self.attributes if one.measured), None)

    @property
    def internal(self) -> bool:
        """Whether some number depends on the data in a way that no theorem covers."""
        return self.measured is not None or bool(self.exposures) or bool(self.members)


def load(source: str | Path) -> Facts:
    """The facts of a run folder, of a JSON file, or of JSON on standard input (-)."""
    path = Path(source)
    if str(source) == "-":
        return of_setting(parsed(sys.stdin.read(), "standard input"), "standard input")
    if (path / TRAINING).exists():
        return of_own_training(path)
    if path.is_dir():
        return of_run(path)
    if not path.exists():
        raise ReportError(f"no file or folder {path}: expected a folder made by betastar train, or a JSON file of a setting.")
    try:
        return of_setting(object_of(path), str(path))
    except FolderError as problem:
        raise ReportError(f"{problem} Expected a folder made by betastar train, or a JSON file of a setting.") from None


def _analysis(arguments: str) -> str:
    """The command that computes β* again: of a setting, or of a loop against membership inference."""
    return f"python -c \"import betastar as bs; print(bs.analyze({arguments}, method='certified').bayes_security)\""


# A setting


def of_setting(given: Json, source: str) -> Facts:
    """The facts of {"noise_multiplier": …, "sample_rate": …, "steps": …}, at the top or under "parameters".

    batch_size and dataset_size may stand for the rate ("opacus": true takes that of Opacus), then epochs for the steps.
    "sampling", "times_per_epoch" and "max_batch_size" say how batches are drawn, as in `DPSGD`.
    "distance" (clipping norms) adds attribute inference, "threat" names what it is about, "prior" is the probability of "yes"
    before the attack; other keys are left alone.
    """
    inner = given.get("parameters")
    known = {key: value for key, value in (inner if isinstance(inner, dict) else given).items() if value is not None}
    opacus = known.get("opacus")
    if opacus not in (None, True, False):
        raise ReportError(f"{source}: opacus must be true or false, got {opacus!r}.")
    ways = ("sampling", "times_per_epoch", "max_batch_size")
    sampled = {name: known[name] for name in ways if known.get(name, "poisson") != "poisson"}
    numbers = _numbers(known, counts_records=bool(sampled), source=source)
    distance = known.get("distance", known.get("distances"))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RateWarning)
            run = DPSGD.from_numbers(**numbers, **sampled, opacus=opacus if "batch_size" in numbers else None)
        threat = None if distance is None else AttributeInference(distance)
        if threat is not None:
            threat.steps(run)  # complains of a wrong number of distances
    except (ValueError, TypeError) as problem:
        raise ReportError(f"{source}: {problem}") from None
    parameters = numbers | {"sample_rate": run.sample_rate, "steps": run.steps} | sampled
    attributes: tuple[Against, ...] = ()
    arguments = f"bs.{run!r}"
    if threat is not None:
        parameters["distance"] = distance
        attributes = (Against(threat, _attribute_name(known.get("threat")), "assumed", run),)
        arguments += f", bs.AttributeInference(distances={np.asarray(threat.distances).tolist()!r})"
    prior = _prior(known.get("prior"), source)
    return Facts(
        "A setting of DP-SGD",
        run,
        parameters,
        _analysis(arguments),
        attributes=attributes,
        rate_notice=str(said[0].message) if said else None,
        shares={} if prior is None else {"yes": prior, "no": 1.0 - prior},
    )


def _prior(given: Any, source: str) -> float | None:
    """The prior, if it is not even odds."""
    if given is None or given == 0.5:
        return None
    try:
        return float(validation.probability("prior", given, strict=True))
    except (ValueError, TypeError) as problem:
        raise ReportError(f"{source}: {problem}") from None


def _numbers(known: Json, counts_records: bool, source: str) -> Json:
    """The numbers that make the run: an answer of betastar has the rate and the steps beside those that they follow from."""
    by_rate = "sample_rate" in known and ("steps" in known or "epochs" not in known)
    needless = ("batch_size", "epochs", *(() if counts_records else ("dataset_size",))) if by_rate else ("sample_rate",)
    needless = needless if "steps" not in known else (*needless, "epochs")
    numbers = {name: known[name] for name in NUMBERS if name in known and name not in needless}
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ReportError(f"{source}: {name} must be one number, got {value!r}; a report is about one setting.")
    return numbers


def _attribute_name(threat: object) -> str:
    """The name of the attribute; a word for a threat is not one."""
    words = ("membership", "membership-add-remove", "attribute", "attribute inference", *RELATIONS)
    return "sensitive attribute" if not isinstance(threat, str) or threat.lower() in words else threat


# A run in a folder


def of_run(path: str | Path) -> Facts:
    """The facts of a folder made by `betastar train`, finished or not."""
    record = RunFolder(path).read()
    config, status = record.config, record.status
    run = _run(record)
    epochs = f"{len(record.epochs)} {'epoch' if len(record.epochs) == 1 else 'epochs'}"
    title = Path(config.study).stem if status is None else status.study
    attributes = tuple(_attributes(record, run))
    # Folders of earlier versions extrapolated beyond what holds for any record.
    least = max((one.lower for one in attributes if one.measured), default=0.0)
    facts = Facts(
        title=f"{title}: {epochs} of DP-SGD",
        name=title,
        run=run,
        parameters=_parameters(config, status, run),
        command=_command(config),
        attributes=attributes,
        is_run=True,
        finished=status is not None and status.finished,
        entries=record.epochs,
        exposures={entry.record: max(entry.bayes_security, least) for entry in record.folder.ledger},
        restated=() if status is None else status.restated,
        told=() if status is None else status.told,
        records_per_person=None if status is None else status.records_per_person,
        max_records_per_person=config.max_records_per_person,
        versions="" if status is None else ", ".join(f"{name} {number}" for name, number in status.versions.items()),
        audits=tuple(KeptAudit(kind, record.folder.audit_path(kind), one) for kind, one in record.folder.audits.items()),
        seed=_seed(record),
        shares={} if status is None else status.shares or {},
        concerned=None if status is None else status.concerned,
        fingerprint=str((record.folder.data or {}).get("sha256", "")),
        run_date=str((record.folder.timings or [{}])[-1].get("date", "")),
        target=_target(record, config.target),
        attribute_target=_target(record, config.attribute_target),
        trials=config.law,
        public_command=_command(replace(config, study=Path(config.study).name)),
    )
    _check_epochs(record, facts)
    recomputed.agree(record, run)
    return facts


def _target(record: RunRecord, text: str | None) -> Target | None:
    with Inside(record.folder / CONFIG):
        return None if text is None else Target.parse(text)


def _check_epochs(record: RunRecord, facts: Facts) -> None:
    """Refuse epochs.jsonl where its last β* is not the one that noise, rate and steps of the run give."""
    last = record.last
    proved = [(one, last.get("proved", {}).get(one.name)) for one in facts.attributes if one.kind == "proved"]
    for claimed, written in [(facts.membership, last["membership"]), *proved]:
        one = claimed if facts.trials is None else replace(claimed, run=facts.run)  # epochs are of one run
        if written is None or not abs(one.integrated - float(written["lower"])) <= recomputed.SAME:
            raise ReportError(
                f"{record.folder / EPOCHS} says that β* ({one.name}) is {written and written['lower']}, but noise, rate and "
                f"steps of the run give {one.integrated:.6f}: these files are not of one run."
            )


def _seed(record: RunRecord) -> str:
    seed = record.config.seed
    if seed is not None:
        return "guessable" if guessable(seed) else "given"
    return "kept" if record.folder.tells_noise else "deleted"


def _run(record: RunRecord) -> DPSGD:
    """What was run, step by step if a monitor wrote it down."""
    folder, status, steps = record.folder, record.status, record.steps
    if not steps and status is None:
        raise ReportError(f"{folder / STATUS} is missing: the run is not finished, and without a monitor only it names noise.")
    if steps and len(steps) < record.step_count:
        raise ReportError(f"{folder / STEPS} has {len(steps)} steps, of the {record.step_count} that {EPOCHS} counts.")
    with Inside(folder / (STEPS if steps else STATUS)):
        if not steps and status is not None:
            return recomputed.run_of_status(status, record.step_count)
        return recomputed.run_of_steps(steps)


def _attributes(record: RunRecord, run: DPSGD) -> Iterator[Against]:
    """Secrets with a gap that was fixed in advance, then what the monitor measured."""
    status, last = record.status, record.last
    values = None if status is None else status.values
    law = record.config.law
    for name, gap in recomputed.gaps(record, run).items():
        release = run if law is None else best_of(run, law)
        yield Against(AttributeInference(enforced(gap)), name, "proved", release, values=values, gap=gap)
    diameter = next((name for name in DIAMETERS if name in last), None)
    if diameter is None:
        return
    known = float(last[diameter]["lower"]), float(last[diameter]["estimate"])
    secret = "sensitive attribute" if status is None or status.secret is None else status.secret
    yield _measured(record.folder / STEPS, record.steps, run, secret, values, known)


def _measured(
    file: Path, steps: list[Json], run: DPSGD, name: str, values: int | None, known: tuple[float, float] | None = None
) -> Against:
    """Attribute inference by the distances that a monitor has measured; `file` has the steps."""
    with Inside(file):
        kind = "batch" if steps[0]["scope"] == "batch" else "dataset"
        return Against(
            AttributeInference(recomputed.distances(steps)), name, kind, run, recomputed.label(steps), values, known=known
        )


def _parameters(config: Config, status: Status | None, run: DPSGD) -> Json:
    """The parameters of a run, as far as they are known."""
    names = ["records", "batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden", "epochs", "gaps"]
    names += ["max_batch_size"] if config.sampling == "poisson" else ["sampling"]
    names += ["times_per_epoch"] if config.times_per_epoch > 1 else []
    known = {name: getattr(status or config, name, None) for name in names}
    shown = {name: value for name, value in known.items() if value not in (None, (), {})}
    return shown | {"steps": run.steps, "sample_rate": run.segments[0].sample_rate}


#: Fields of a configuration whose option has another name, or a shorter one.
OPTION_OF_FIELD = {"values": "value", "along": "with", "noise_multiplier": "noise", "batch_size": "batch"}
OPTION_OF_FIELD |= {"max_grad_norm": "clip", "learning_rate": "lr"}
#: Fields of a configuration that only Python sets.
IN_PYTHON = ("gap", "diameter", "approximate", "max_batch_size", "times_per_epoch", "ledger", "monitor")


def _command(config: Config) -> str:
    """The command, or the Python, that makes such a run again. It leaves out the seed, from which the noise can be computed."""
    usual = Config()
    silent = ("seed",) if config.trials is None else ("seed", "ledger", "monitor")  # models that are tried are never watched
    given = {name: value for name, value in vars(config).items() if name not in silent and value != getattr(usual, name)}
    if any(name in given for name in IN_PYTHON):
        seed = "" if config.seed is None else ", seed=SEED"
        return f"betastar.runs.train(Config({', '.join(f'{name}={value!r}' for name, value in given.items())}{seed}), 'RUN')"
    words = ["betastar", "train", given.pop("study", config.study)]
    scope, every = given.pop("scope", "batch"), given.pop("every", None)
    for name, value in given.items():
        shown = [":".join(map(plain, value))] if name == "label_range" else value if isinstance(value, tuple) else [value]
        words += [word for one in shown for word in ("--" + OPTION_OF_FIELD.get(name, name.replace("_", "-")), str(one))]
    if (scope, every) != ("batch", None):
        words += ["--scope", scope if every is None else f"{scope}/{every}"]
    seed = "" if config.seed is None else " --seed SEED"
    return f"{' '.join(map(_quoted, words))}{seed} -o RUN"


def _quoted(word: str) -> str:
    """A word for a shell, on one line: what cannot be printed (a line break, an escape sequence) is written as its bytes."""
    if word.isprintable():
        return shlex.quote(word)
    shown = (f"\\{one}" if one in "\\'" else one if one.isprintable() else _bytes(one) for one in word)
    return f"$'{''.join(shown)}'"


def _bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


# A training loop of one's own


def of_own_training(path: Path) -> Facts:
    """The facts of a folder that `save` of a monitor or of gap clipping has made."""
    files.refuse_links(path)
    file, folder = path / TRAINING, RunFolder(path)
    told = object_of(file)
    with Inside(file):
        if told["format"] != TRAINING_FORMAT:
            raise ValueError(f"format must be {TRAINING_FORMAT}, got {told['format']!r}: install the version that made it")
        made_by = validation.choice("made_by", told["made_by"], (MONITOR, PRIVATE_TRAINING))
        first, *others = parts = [DPSGD(**segment) for segment in told["segments"]]
        run = sum(others, start=first)
        secrets: dict[str, Json] = dict(told["secrets"])
        versions = ", ".join(f"{name} {number}" for name, number in dict(told["versions"]).items())
        shares = dict(next(iter(secrets.values())).get("shares", {})) if len(secrets) == 1 else {}
        for value, share in shares.items():
            validation.probability(f"shares[{value!r}]", share)
        target = told.get("budget")
        records = int(validation.whole("records", told.get("records", 1), low=1))
        groups = None if "groups" not in told else _groups(told["groups"], run, records)
        promised = told.get("membership_budget")
        if promised is not None:
            promised = float(validation.probability("membership_budget", promised, strict=True))
    steps = folder.steps
    attributes: tuple[Against, ...]
    if made_by == MONITOR and not secrets and (path / MEMBERS).exists():
        attributes = ()  # of a MembershipMonitor
    elif made_by == MONITOR:
        _require_same_steps(path, steps, run)
        if len(secrets) != 1:
            raise ReportError(f"{file} must name the one secret that the monitor watched, got {list(secrets)}.")
        ((name, one),) = secrets.items()
        with Inside(file):
            values = int(one["values"])
        attributes = (_measured(path / STEPS, steps, run, name, values),)
    else:
        with Inside(file):
            gapped = {name: one for name, one in secrets.items() if target is None or one["gap"] is not None}
            attributes = tuple(_proved(name, one, run) for name, one in gapped.items())
    least = attributes[0].lower if made_by == MONITOR and attributes else 0.0
    command = _analysis(" + ".join(f"bs.{part!r}" for part in parts))
    return Facts(
        title=f"{path.resolve().name}: {int(run.steps):,} steps of DP-SGD in a custom loop",
        name=path.resolve().name,
        run=run,
        parameters=_own_parameters(run, secrets),
        command=command,
        public_command=command,
        budgeted=None if target is None else float(target),
        budget_of=next(iter(secrets), "the secret"),
        attributes=attributes,
        is_run=True,
        budget=None if target is None else f"{PROVED} faces β* ≥ {plain(float(target))} {FIXED}. {UNKNOWN_END}",
        exposures={entry.record: max(entry.bayes_security, least) for entry in folder.ledger},
        members=folder.members,
        records_per_person=records,
        max_records_per_person=records,
        groups=groups,
        membership_budget=promised,
        private=made_by == PRIVATE_TRAINING,
        versions=versions,
        seed="own",
        shares=shares,
        described_in=TRAINING,
    )


def _groups(told: Json, run: DPSGD, records: int) -> GroupPlan:
    """The groups of a training, whose largest rate and norm are those of the run."""
    first = run.segments[0]
    plan = GroupPlan(first.noise_multiplier, int(run.steps), told["rates"], told["norms"], told["relation"], records)
    if len(run.segments) > 1 or plan.largest != (first.sample_rate, 1.0):
        raise ValueError(f"groups must have at most the rate {first.sample_rate} and the norm 1, got {plan.largest}")
    return plan


def _require_same_steps(path: Path, steps: list[Json], run: DPSGD) -> None:
    """Refuse steps that are not those of the run."""
    with Inside(path / STEPS):
        written = recomputed.run_of_steps(steps)
    if written != run:
        raise recomputed.contradiction(path / TRAINING, f"that the run was {run!r}", f"{STEPS} gives {written!r}")


def _proved(name: str, one: Json, run: DPSGD) -> Against:
    """Attribute inference by the gap that was enforced at each step."""
    gap = float(validation.numbers("gap", one["gap"], "between 0 and 2 (units of the clipping norm)", low=0.0, high=2.0))
    return Against(AttributeInference(enforced(gap)), name, "proved", run, values=int(one["values"]), gap=gap)


def _own_parameters(run: DPSGD, secrets: dict[str, Json]) -> Json:
    """The parameters that are known; noise and rate are those of the first steps."""
    first = run.segments[0]
    known: dict[str, Any] = {"noise_multiplier": first.noise_multiplier, "sample_rate": first.sample_rate, "steps": run.steps}
    gaps = {name: one["gap"] for name, one in secrets.items() if "gap" in one}
    return known | ({"gaps": gaps} if gaps else {}) | ({"segments": len(run.segments)} if len(run.segments) > 1 else {})


# The variant that may be published: nothing in it depends on the training records.
# What depends on them, and is left out: distances that were measured and every figure that follows from them, the exposure of
# single records, how good the model is, how frequent values are, the number of records and of values, fingerprints of the
# records, columns that restate the attribute, what was done to columns, audits of real trainings, and the moment at which a
# budget ended a run.
# What does not, and stays: noise, sampling rate and planned steps, with every bound that follows from them alone; gaps that were
# enforced, and a budget's β*, which were fixed before training; names of tables and columns; games on the mechanism.

#: Parameters of a run that may follow from the number of records, or from when a budget ended it.
COUNTS = ("records", "batch_size", "epochs")
#: What the statement says is left out.
LEFT_OUT = (
    "Whatever depends on the training records: measured distances and the figures that follow from them, the exposure of single "
    "records, accuracy, how many records there are and how frequent values are, fingerprints of the records, audits of "
    "trainings. The internal report has them. The sampling rate is that of the run, one divided by the number of batches of an "
    "epoch. Together with the batch size it tells the number of records to within a batch, which figures by substitution take as "
    "known anyway."
)
#: What a budget has proved, without the number of steps.
PROVED = "Proved: an attacker who wants the secret of any record"
FIXED = "(budget fixed in advance)"
UNKNOWN_END = "When training ended depends on the records, so that the figure about membership is measured, and not proved."


def public(facts: Facts) -> Facts:
    """The facts without what depends on the training records.

    Parameters
    ----------
    facts : Facts
        What an internal report is about.

    Returns
    -------
    Facts
        The facts of the public report. Those of a setting are its own.

    Raises
    ------
    ReportError
        If the run is not finished, or if nothing data-independent says how long it was planned to be.
    """
    if not facts.is_run:
        return replace(facts, is_public=True)
    if not facts.finished:
        raise ReportError("--public needs a finished run: go on with betastar train --resume, or leave it out.")
    if facts.budgeted is not None:
        raise ReportError(
            "--public must not tell when the budget ended this run, because that depends on the data: leave it out, or train "
            "with attribute_target in place of the budget."
        )
    kept = {name: value for name, value in facts.parameters.items() if name not in COUNTS}
    return replace(
        facts,
        title=f"{facts.name}: {facts.run.steps:,} steps of DP-SGD",
        parameters=kept,
        command=facts.public_command,
        attributes=tuple(replace(one, values=None) for one in facts.attributes if one.kind == "proved"),
        entries=[],
        exposures={},
        members={},
        restated=(),
        told=(),
        records_per_person=facts.max_records_per_person,
        audits=tuple(audit for audit in facts.audits if audit.kind == "mechanism"),
        shares={},
        fingerprint="",
        is_public=True,
    )
