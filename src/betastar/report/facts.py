"""What a report is about: facts of a run folder, or of a setting in a JSON file. Reads and checks; no figures, no words."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from betastar.datasets.seeds import guessable
from betastar.report import recomputed, setting
from betastar.report.audits import Played, played
from betastar.report.errors import ReportError
from betastar.risk.analyze import analyze
from betastar.risk.plan import enforced
from betastar.risk.risk import Risk
from betastar.rounding import down, plain
from betastar.runs.folder import CONFIG, DIAMETERS, EPOCHS, STATUS, STEPS, RunFolder, RunRecord
from betastar.runs.reading import Inside, Json, object_of, parsed
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import AttributeInference, Membership, Threat
from betastar.vocabulary import PARAMETERS


@dataclass(frozen=True)
class Against:
    """One threat to the run. kind: worst (holds for any data), proved (by gap clipping), assumed (if the distance is what
    was said), dataset or batch (distances that a monitor measured, in that scope)."""

    threat: Threat
    name: str
    kind: str
    run: DPSGD
    label: str = ""
    values: int | None = None
    gap: float | None = None
    #: Lower end and estimate of β* by the method exact, if a run has them already.
    known: tuple[float, float] | None = None

    @cached_property
    def exact(self) -> Risk:
        return analyze(self.run, self.threat)

    @cached_property
    def certified(self) -> Risk:
        return analyze(self.run, self.threat, method="certified")

    @property
    def title(self) -> str:
        if isinstance(self.threat, Membership):
            return "Membership inference"
        known = {"proved": "proved in advance", "assumed": "for the distance given"}
        return f"Attribute inference: {self.name}, {known.get(self.kind, 'as measured')}"

    @property
    def lower(self) -> float:
        """β* to rely on: where it is called proved, the certified one."""
        return float(self.certified.bayes_security.lower) if self.kind == "proved" else self.integrated

    @property
    def integrated(self) -> float:
        """β* by the method exact, lower end."""
        return self.known[0] if self.known else float(self.exact.bayes_security.lower)

    @property
    def attained(self) -> float:
        """β* against an attack that exists."""
        return self.known[1] if self.known else float(self.exact.bayes_security.estimate)


@dataclass(frozen=True)
class Facts:
    """What is known of a run or of a setting; what only a run has is empty for a setting."""

    title: str
    run: DPSGD
    parameters: dict[str, Any]
    command: str
    attributes: tuple[Against, ...] = ()
    is_run: bool = False
    finished: bool = True
    stopped: str | None = None
    #: What the run proved under a budget, if its steps keep to it.
    budget: str | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)
    #: β* of single records that were looked at, by their index.
    exposures: dict[int, float] = field(default_factory=dict)
    #: Columns from which the secret can be read off, as the run describes them.
    restated: tuple[str, ...] = ()
    #: What the run was made with, if it says so.
    versions: str = ""
    #: Audits that were kept with the run.
    audits: tuple[Played, ...] = ()
    #: The seed of the run: "given", "guessable" (given, and may be found by trying), "kept" (drawn) or "deleted" (drawn).
    seed: str = ""
    #: What is said of the rate of Opacus, if a setting does not choose between the two.
    rate_notice: str | None = None

    @cached_property
    def membership(self) -> Against:
        return Against(Membership(), "membership", "worst", self.run)

    @cached_property
    def add_remove(self) -> Against:
        return Against(Membership("add-remove"), "membership", "worst", self.run)

    @property
    def proof(self) -> str | None:
        """What a budget or gap clipping has proved."""
        proved = [
            f"Proved in advance: whoever knows all of a record but its {one.name} faces β* ≥ {down(one.lower)} (gap {one.gap})."
            for one in self.attributes
            if one.kind == "proved"
        ]
        return " ".join(proved) or self.budget

    @property
    def internal(self) -> bool:
        """Some figure depends on the data in a way that no theorem covers."""
        return any(one.kind in ("batch", "dataset") for one in self.attributes) or bool(self.exposures)


def load(source: str | Path) -> Facts:
    """The facts of a run folder, of a JSON file, or of JSON on standard input (-)."""
    path = Path(source)
    if str(source) == "-":
        return of_setting(parsed(sys.stdin.read(), "standard input"), "standard input")
    if path.is_dir():
        return of_run(path)
    if not path.exists():
        raise ReportError(f"no file or folder {path}: expected a folder made by betastar train, or a JSON file of a setting.")
    return of_setting(object_of(path), str(path))


def of_setting(given: Json, source: str) -> Facts:
    """From a JSON object that `setting.read` understands."""
    told = setting.read(given, source)
    attributes = () if told.threat is None else (Against(told.threat, told.secret, "assumed", told.run),)
    return Facts("A setting of DP-SGD", told.run, told.parameters, told.command, attributes, rate_notice=told.rate_notice)


def of_run(path: str | Path) -> Facts:
    """From a folder made by `betastar train`, finished or not."""
    record = RunFolder(path).read()
    config, status, last = record.config, record.status, record.last
    run = _run(record)
    with Inside(record.folder / (STATUS if status else CONFIG)):
        parameters = _parameters(config, status, run)
        versions = ", ".join(f"{name} {number}" for name, number in status.get("versions", {}).items())
        restated = tuple(map(str, status.get("restated", ())))
    epochs = f"{len(record.epochs)} {'epoch' if len(record.epochs) == 1 else 'epochs'}"
    facts = Facts(
        title=f"{_title(config, status)}: {epochs} of DP-SGD",
        run=run,
        parameters=parameters,
        command=_command(config),
        attributes=tuple(_attributes(record, run)),
        is_run=True,
        finished=bool(status.get("finished")),
        stopped=f"the next step would break the budget of β* ≥ {config.get('target_beta')}." if status.get("stopped") else None,
        budget=recomputed.budget(record),
        entries=record.epochs,
        exposures={entry.record: entry.bayes_security for entry in record.folder.ledger},
        restated=restated,
        versions=versions,
        audits=played(record.folder, run),
        seed=_seed(record),
    )
    proved = [(one, last.get("proved", {}).get(one.name)) for one in facts.attributes if one.kind == "proved"]
    for one, said in [(facts.membership, last["membership"]), *proved]:
        if said is None or not abs(one.integrated - float(said["lower"])) <= recomputed.SAME:
            raise ReportError(
                f"{record.folder / EPOCHS} says that β* ({one.name}) is {said and said['lower']}, but noise, rate and steps of "
                f"the run give {one.integrated:.6f}: these files are not of one run."
            )
    recomputed.agree(record, run)
    return facts


def _seed(record: RunRecord) -> str:
    seed = record.config.get("seed")
    if seed is not None:
        return "guessable" if guessable(seed) else "given"
    return "kept" if record.folder.tells_noise else "deleted"


def _title(config: Json, status: Json) -> str:
    return str(status.get("study") or Path(str(config.get("study", "run"))).stem)


def _run(record: RunRecord) -> DPSGD:
    """What was run, step by step if a monitor wrote it down."""
    folder, status, steps = record.folder, record.status, record.steps
    if not steps and not status:
        raise ReportError(f"{folder / STATUS} is missing: the run is not finished, and without a monitor only it names noise.")
    if steps and len(steps) < record.step_count:
        raise ReportError(f"{folder / STEPS} has {len(steps)} steps, of the {record.step_count} that {EPOCHS} counts.")
    with Inside(folder / (STEPS if steps else STATUS)):
        if not steps:
            return DPSGD(status["noise_multiplier"], status["sample_rate"], record.step_count)
        parts = groupby((line["noise_multiplier"], line["sample_rate"]) for line in steps)
        first, *others = [DPSGD(noise, rate, len(list(same))) for (noise, rate), same in parts]
        return sum(others, start=first)
    raise AssertionError


def _attributes(record: RunRecord, run: DPSGD) -> Iterator[Against]:
    """Secrets with a gap that was fixed in advance, then what the monitor measured."""
    status, last = record.status, record.last
    for name, gap in recomputed.gaps(record, run).items():
        yield Against(AttributeInference(enforced(gap)), name, "proved", run, values=status.get("values"), gap=gap)
    diameter = next((name for name in DIAMETERS if name in last), None)
    if diameter is None:
        return
    with Inside(record.folder / STEPS):
        threat = AttributeInference([float(line["distance"]) for line in record.steps])
        kind, label = "batch" if record.steps[0]["scope"] == "batch" else "dataset", recomputed.label(record.steps)
    known = float(last[diameter]["lower"]), float(last[diameter]["estimate"])
    secret = str(status.get("secret", "sensitive attribute"))
    yield Against(threat, secret, kind, run, label, status.get("values"), known=known)


def _parameters(config: Json, status: Json, run: DPSGD) -> dict[str, Any]:
    names = ("records", "batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden", "epochs", "gaps")
    source = status or config
    found = {name: source[name] for name in names if source.get(name) not in (None, [], {})}
    found |= {"records": int(found["records"])} if "records" in found else {}
    return found | {"steps": run.steps, "sample_rate": run.segments[0].sample_rate}


#: What `betastar train` takes for granted, and parameters that are called otherwise than the field of config.json.
DEFAULTS: dict[str, Any] = {"seed": None, "scope": "batch", "every": 1, "diameter": "exact", "ledger": True, "monitor": True}
CALLED = {"target": "label", "values": "value", "along": "with", "records": "synthetic_records"}


def _command(config: Json) -> str:
    """The command that makes such a run again. The seed is left out: who knows it can compute the noise."""
    words = ["betastar", "train", str(config.get("study", "adult"))]
    for name, value in config.items():
        if name in ("study", "seed") or value is None or value is False or value in ([], {}) or value == DEFAULTS.get(name):
            continue  # a gap of 0 stays, which equals False
        option = _option(CALLED.get(name, name))
        if value is True:
            words.append(option)
        elif name == "between":
            words += [option, ":".join(map(plain, value))]
        elif isinstance(value, dict):
            words += [word for key, one in value.items() for word in (option, f"{key}={one}")]
        else:
            words += [word for one in (value if isinstance(value, list) else [value]) for word in (option, str(one))]
    seed = [] if config.get("seed") is None else ["--seed", "SEED"]
    return " ".join(_quoted(word) for word in [*words, *seed, "-o", "RUN"])


def _option(name: str) -> str:
    """The spelling that is printed; a field that no option sets (of another version's file) is told by its own name."""
    return PARAMETERS[name].brief if name in PARAMETERS else "--" + name.replace("_", "-")


def _quoted(word: str) -> str:
    """For a shell, on one line: what cannot be printed (a line break, an escape sequence) is written as its bytes."""
    if word.isprintable():
        return shlex.quote(word)
    shown = (f"\\{one}" if one in "\\'" else one if one.isprintable() else _bytes(one) for one in word)
    return f"$'{''.join(shown)}'"


def _bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
