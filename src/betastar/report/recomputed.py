"""What status.json says of a run is not believed: it is computed again from the other files, or refused."""

from __future__ import annotations

from math import isclose
from pathlib import Path
from typing import Any

from betastar.bounds import affinity
from betastar.report.errors import ReportError
from betastar.risk.calibrate import Target
from betastar.risk.plan import plan
from betastar.runs.folder import CONFIG, EPOCHS, STATUS, STEPS, RunRecord
from betastar.runs.reading import Inside, Json
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import FARTHEST

#: Two readings of the same number that differ by more are of different runs.
SAME = 1e-6
#: The secret of a study that has one of its own.
SECRETS = {"adult": "age", "purchase": "first item"}
ASKED = ("batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden", "epochs")


def contradiction(path: Path, said: str, found: str) -> ReportError:
    return ReportError(f"{path} says {said}, but {found}: these files are not of one run, or somebody changed them.")


def agree(record: RunRecord, run: DPSGD) -> None:
    """That what was asked for, what is said of the end, and the steps are of one run."""
    file, config, status, steps = record.folder / STATUS, record.config, record.status, record.step_count
    with Inside(file):
        if not status:
            return
        stopped = bool(status.get("stopped"))
        if stopped and config.get("target_beta") is None:
            raise contradiction(file, "that a budget stopped the run", f"{CONFIG} asks for no budget (target_beta)")
        for name in ASKED:
            asked = config.get(name)
            if asked is not None and status.get(name) != asked and not (name == "epochs" and stopped):
                raise contradiction(file, f"that {name} was {status.get(name)!r}", f"{CONFIG} asks for {asked!r}")
        batches = -(-int(status["records"]) // int(status["batch_size"]))
        if any(not isclose(part.noise_multiplier, status["noise_multiplier"], rel_tol=SAME) for part in run.segments):
            raise contradiction(file, f"that noise_multiplier was {status['noise_multiplier']!r}", f"{STEPS} has another one")
        if any(not isclose(part.sample_rate, 1.0 / batches, rel_tol=SAME) for part in run.segments):
            sizes = f"{status['records']} records in batches of {status['batch_size']} give {1.0 / batches:.6g}"
            raise contradiction(file, f"that sample_rate was {run.segments[0].sample_rate!r}", sizes)
        whole = int(status["epochs"]) * batches
        if steps > whole or (steps < whole and not stopped):
            epochs = f"{EPOCHS} counts {steps} steps, of {whole}"
            raise contradiction(file, f"that the run ended after {status['epochs']} epochs", epochs)
        for name in [status["secret"]] if status.get("secret") else []:
            if name != (wanted := _secret(config)):
                raise contradiction(file, f"that the secret is {name!r}", f"{CONFIG} asks for {wanted!r}")


def _secret(config: Json) -> str:
    """As a run calls the column that it was told to watch."""
    name = str(config.get("sensitive") or SECRETS.get(str(config.get("study"))))
    along = config.get("along") or ()
    return f"{name} with {' and '.join(along)}" if along else name


def gaps(record: RunRecord, run: DPSGD) -> dict[str, float]:
    """The gaps that a run enforced: as it was asked to, or as the β* that was asked for needs."""
    file, config = record.folder / STATUS, record.config
    with Inside(file):
        said = {str(name): float(gap) for name, gap in (record.status.get("gaps") or {}).items()}
        if not said:
            return {}
        asked: Any = config.get("gap")
        target: Any = config.get("target_attribute_beta")
        if asked is None and target is None:
            raise contradiction(file, f"that the gaps {said} were enforced", f"{CONFIG} asks for none (gap)")
        if asked is None:
            asked = plan(attribute=Target(bayes_security=float(target)), run=DPSGD(*_setting(run), record.step_count)).gap
        for name, gap in said.items():
            if name != _secret(config) or abs(gap - asked) > SAME * max(gap, asked):
                raise contradiction(file, f"that {name!r} had the gap {gap:g}", f"{CONFIG} gives {_secret(config)!r} {asked:g}")
        return said
    raise AssertionError


def _setting(run: DPSGD) -> tuple[float, float]:
    return run.segments[0].noise_multiplier, run.segments[0].sample_rate


def budget(record: RunRecord) -> str | None:
    """The proof of a run under a budget, if its steps keep to it."""
    file, status, steps, target = record.folder / STATUS, record.status, record.steps, record.config.get("target_beta")
    if not status.get("proof") or status.get("gaps"):
        return None
    if target is None:
        raise contradiction(file, f"{str(status['proof'])!r}", f"{CONFIG} asks for no budget (target_beta)")
    with Inside(record.folder / STEPS):
        if not steps or any(line["scope"] != "dataset" for line in steps):
            raise contradiction(file, f"{str(status['proof'])!r}", f"{STEPS} has no steps that measured all records")
        far = [float(line["distance"]) if line["measured"] else FARTHEST for line in steps]
        each = zip(steps, far, strict=True)
        spent = sum(float(affinity.leakage(line["sample_rate"], line["noise_multiplier"], one)) for line, one in each)
        allowed = affinity.allowance(float(target))
        if not spent <= allowed:
            spending = f"the steps in {STEPS} spent {spent:.4g} of {allowed:.4g}"
            raise contradiction(file, f"that β* ≥ {target!r} is proved", spending)
    return (
        f"Proved: an attacker who wants the secret of any record faces β* ≥ {target!r} (budget fixed in advance; "
        f"{len(steps)} steps)."
    )


def label(steps: list[Json]) -> str:
    """What a figure from measured distances is."""
    notes = [
        "batch scope: an estimate for the trainer's eyes only"
        if steps[0]["scope"] == "batch"
        else "dataset scope: an after-the-fact statement, and publishing it can leak membership"
    ]
    if skipped := sum(not line["measured"] for line in steps):
        notes.append(f"{skipped} of {len(steps)} steps were not measured and take the distance of the last one that was")
    return "; ".join(notes)
