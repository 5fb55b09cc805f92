"""What a report is about: facts of a run folder, or of a setting in a JSON file. Reads and checks; no figures, no words."""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from betastar.datasets.seeds import guessable
from betastar.files import refuse_links
from betastar.report import recomputed
from betastar.report.audits import Played, played
from betastar.report.run_files import Inside, ReportError, lines_of, object_of, parsed
from betastar.risk.analyze import analyze
from betastar.risk.plan import enforced
from betastar.risk.risk import Risk
from betastar.rounding import down, plain
from betastar.scenario.run import DPSGD, opacus_differs
from betastar.scenario.threats import RELATIONS, AttributeInference, Membership, Threat
from betastar.vocabulary import PARAMETERS, THREATS

DIAMETERS = ("exact", "ball", "centroid", "extremes")


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


def of_setting(given: dict[str, Any], source: str) -> Facts:
    """From {"noise_multiplier": …, "sample_rate": …, "steps": …}, at the top or under "parameters".

    batch_size and dataset_size may stand for the rate ("opacus": true takes that of Opacus), then epochs for the steps.
    "distance" (clipping norms) adds attribute inference, "threat" names what it is about; other keys are left alone.
    """
    inner = given.get("parameters")
    known = {key: value for key, value in (inner if isinstance(inner, dict) else given).items() if value is not None}

    opacus = known.get("opacus")
    if opacus not in (None, True, False):
        raise ReportError(f"{source}: opacus must be true or false, got {opacus!r}.")

    def need(*names: str) -> list[Any]:
        missing = [name for name in names if name not in known]
        if missing:
            raise ReportError(
                f"{source} has no {missing[0]}: expected noise_multiplier, sample_rate (or batch_size and dataset_size) and "
                "steps (or epochs), at the top or under parameters."
            )
        for name in names:
            if not isinstance(known[name], int | float) or isinstance(known[name], bool):
                raise ReportError(f"{source}: {name} must be one number, got {known[name]!r}; a report is about one setting.")
        return [known[name] for name in names]

    try:
        if "sample_rate" in known and ("steps" in known or "epochs" not in known):
            names: tuple[str, ...] = ("noise_multiplier", "sample_rate", "steps")
            run = DPSGD(*need(*names))
        elif "steps" in known:
            names = ("noise_multiplier", "batch_size", "dataset_size", "steps")
            noise, batch, size, steps = need(*names)
            run = DPSGD(noise, DPSGD.from_epochs(noise, batch, size, 1, opacus=bool(opacus)).sample_rate, steps)
        else:
            names = ("noise_multiplier", "batch_size", "dataset_size", "epochs")
            noise, batch, size, epochs = need(*names)
            run = DPSGD.from_epochs(noise, batch, size, epochs, opacus=bool(opacus))
        distance = known.get("distance", known.get("distances"))
        threat = None if distance is None else AttributeInference(distance)
        if threat is not None:
            threat.steps(run)  # complains of a wrong number of distances
    except (ValueError, TypeError) as problem:
        raise ReportError(str(problem) if isinstance(problem, ReportError) else f"{source}: {problem}") from None
    parameters = {name: known[name] for name in names} | {"sample_rate": run.sample_rate, "steps": run.steps}
    attributes: tuple[Against, ...] = ()
    if threat is not None:
        attributes = (Against(threat, _secret(known.get("threat")), "assumed", run),)
        parameters["distance"] = distance
    told = opacus_differs(known["batch_size"], known["dataset_size"]) if opacus is None and "batch_size" in names else None
    return Facts("A setting of DP-SGD", run, parameters, _python(run, threat), attributes, rate_notice=told)


def _secret(threat: Any) -> str:
    """What an attribute is called; the words for threats are no names."""
    words = (*THREATS, "attribute inference", *RELATIONS)
    return "sensitive attribute" if not isinstance(threat, str) or threat.lower() in words else threat


def of_run(path: Path) -> Facts:
    """From a folder made by `betastar train`, finished or not."""
    if not (path / "config.json").exists():
        inside = sorted(path.glob("*/config.json"))
        several = f" It holds runs of several seeds: name one of them, such as {inside[0].parent}." if inside else ""
        raise ReportError(f"{path} holds no run: expected a folder made by betastar train, with a config.json.{several}")
    refuse_links(path)
    config = object_of(path / "config.json")
    status = object_of(path / "status.json") if (path / "status.json").exists() else {}
    entries = list(lines_of(path / "epochs.jsonl"))
    if not entries:
        raise ReportError(f"{path / 'epochs.jsonl'}: no epoch of this run is finished. Go on with betastar train --resume.")
    with Inside(path / "epochs.jsonl"):
        for entry in entries:
            parts = ["membership", *(name for name in DIAMETERS if name in entries[-1])]
            found = [entry[part] for part in parts] + [entry["proved"][secret] for secret in entries[-1].get("proved", {})]
            _ = int(entry["epoch"]), float(entry["accuracy"]), [float(one[key]) for one in found for key in ("lower", "estimate")]
        last, steps = entries[-1], int(entries[-1]["steps"])
    metrics = list(lines_of(path / "metrics.jsonl"))[:steps]
    run = _run(path, status, metrics, steps)
    with Inside(path / ("status.json" if status else "config.json")):
        parameters = _parameters(config, status, run)
        versions = ", ".join(f"{name} {number}" for name, number in status.get("versions", {}).items())
        restated = tuple(map(str, status.get("restated", ())))
    facts = Facts(
        title=f"{_title(config, status)}: {len(entries)} {'epoch' if len(entries) == 1 else 'epochs'} of DP-SGD",
        run=run,
        parameters=parameters,
        command=_command(config),
        attributes=tuple(_attributes(path, config, status, metrics, last, run)),
        is_run=True,
        finished=bool(status.get("finished")),
        stopped=f"the next step would break the budget of β* ≥ {config.get('target_beta')}." if status.get("stopped") else None,
        budget=recomputed.budget(path, config, status, metrics),
        entries=entries,
        exposures=_exposures(path / "ledger.csv"),
        restated=restated,
        versions=versions,
        audits=played(path, run),
        seed=_seed(path, config),
    )
    proved = [(one, last.get("proved", {}).get(one.name)) for one in facts.attributes if one.kind == "proved"]
    for one, said in [(facts.membership, last["membership"]), *proved]:
        if said is None or not abs(one.integrated - float(said["lower"])) <= recomputed.SAME:
            raise ReportError(
                f"{path / 'epochs.jsonl'} says that β* ({one.name}) is {said and said['lower']}, but noise, rate and steps of "
                f"the run give {one.integrated:.6f}: these files are not of one run."
            )
    recomputed.agree(path, config, status, steps, run)
    return facts


def _seed(path: Path, config: dict[str, Any]) -> str:
    if config.get("seed") is not None:
        return "guessable" if guessable(config["seed"]) else "given"
    return "kept" if any((path / name).exists() for name in ("seed.json", "checkpoint.pt")) else "deleted"


def _title(config: dict[str, Any], status: dict[str, Any]) -> str:
    return str(status.get("study") or Path(str(config.get("study", "run"))).stem)


def _run(path: Path, status: dict[str, Any], metrics: list[dict[str, Any]], steps: int) -> DPSGD:
    """What was run, step by step if a monitor wrote it down."""
    if not metrics and not status:
        raise ReportError(
            f"{path / 'status.json'} is missing: the run is not finished, and without a monitor only it names noise."
        )
    if metrics and len(metrics) < steps:
        raise ReportError(f"{path / 'metrics.jsonl'} has {len(metrics)} steps, of the {steps} that epochs.jsonl counts.")
    with Inside(path / ("metrics.jsonl" if metrics else "status.json")):
        if not metrics:
            return DPSGD(status["noise_multiplier"], status["sample_rate"], steps)
        parts = groupby((line["noise_multiplier"], line["sample_rate"]) for line in metrics)
        runs = [DPSGD(noise, rate, len(list(same))) for (noise, rate), same in parts]
        total = runs[0]
        for part in runs[1:]:
            total += part
        return total
    raise AssertionError


def _attributes(
    path: Path, config: dict[str, Any], status: dict[str, Any], metrics: list[dict[str, Any]], last: dict[str, Any], run: DPSGD
) -> Iterator[Against]:
    """Secrets with a gap that was fixed in advance, then what the monitor measured."""
    for name, gap in recomputed.gaps(path, config, status, int(last["steps"]), run).items():
        yield Against(AttributeInference(enforced(gap)), name, "proved", run, values=status.get("values"), gap=gap)
    diameter = next((name for name in DIAMETERS if name in last), None)
    if diameter is None:
        return
    with Inside(path / "metrics.jsonl"):
        threat = AttributeInference([float(line["distance"]) for line in metrics])
        kind, label = "batch" if metrics[0]["scope"] == "batch" else "dataset", recomputed.label(metrics)
    secret, found = str(status.get("secret", "sensitive attribute")), last[diameter]
    known = float(found["lower"]), float(found["estimate"])
    yield Against(threat, secret, kind, run, label, status.get("values"), known=known)


def _exposures(path: Path) -> dict[int, float]:
    if not path.exists():
        return {}
    with Inside(path), path.open(encoding="utf-8", newline="") as file:
        found = {int(row["record"]): float(row["bayes_security"]) for row in csv.DictReader(file)}
        if not all(0.0 <= beta <= 1.0 for beta in found.values()):
            raise ValueError("bayes_security must be between 0 and 1")
        return found


def _parameters(config: dict[str, Any], status: dict[str, Any], run: DPSGD) -> dict[str, Any]:
    names = ("records", "batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden", "epochs", "gaps")
    source = status or config
    found = {name: source[name] for name in names if source.get(name) not in (None, [], {})}
    found |= {"records": int(found["records"])} if "records" in found else {}
    return found | {"steps": run.steps, "sample_rate": run.segments[0].sample_rate}


#: What `betastar train` takes for granted, and parameters that are called otherwise than the field of config.json.
DEFAULTS: dict[str, Any] = {"seed": None, "scope": "batch", "every": 1, "diameter": "exact", "ledger": True, "monitor": True}
CALLED = {"target": "label", "values": "value", "along": "with", "records": "synthetic_records"}


def _command(config: dict[str, Any]) -> str:
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


def _python(run: DPSGD, threat: AttributeInference | None) -> str:
    against = "" if threat is None else f", bs.AttributeInference(distances={np.asarray(threat.distances).tolist()!r})"
    return f'python -c "import betastar as bs; print(bs.analyze(bs.{run!r}{against}).bayes_security)"'
