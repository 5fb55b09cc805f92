"""A report does not believe what status.json says of a run: it computes it again from the other files, or refuses it."""

from __future__ import annotations

from math import isclose
from pathlib import Path

from betastar import validation
from betastar.bounds import affinity
from betastar.report.errors import ReportError
from betastar.risk.calibrate import Target
from betastar.risk.plan import plan
from betastar.runs.config import PARAMETERS, Config
from betastar.runs.folder import CONFIG, EPOCHS, STATUS, STEPS, RunRecord
from betastar.runs.reading import Inside, Json
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import FARTHEST

#: Two values of the same number that differ by more are of different runs.
SAME = 1e-6
#: The secret of a study that has one of its own.
SECRETS = {"adult": "age", "purchase": "first item"}


def contradiction(path: Path, claim: str, evidence: str) -> ReportError:
    """The error for a file whose claim another file contradicts."""
    return ReportError(f"{path} says {claim}, but {evidence}: these files are not of one run, or somebody changed them.")


def agree(record: RunRecord, run: DPSGD) -> None:
    """Refuse a folder whose configuration, status and steps are not of one run."""
    file, config, status, steps = record.folder / STATUS, record.config, record.status, record.step_count
    if status is None:
        return
    stopped = bool(status.stopped)
    if stopped and config.target_beta is None:
        raise contradiction(file, "that a budget stopped the run", f"{CONFIG} asks for no budget (target_beta)")
    for name in PARAMETERS:
        asked, used = getattr(config, name), getattr(status, name)
        if asked is not None and used != asked and not (name == "epochs" and stopped):
            raise contradiction(file, f"that {name} was {used!r}", f"{CONFIG} asks for {asked!r}")
    with Inside(file):
        batches = -(-status.records // validation.whole("batch_size", status.batch_size))
    if any(not isclose(part.noise_multiplier, status.noise_multiplier, rel_tol=SAME) for part in run.segments):
        raise contradiction(file, f"that noise_multiplier was {status.noise_multiplier!r}", f"{STEPS} has another one")
    if any(not isclose(part.sample_rate, 1.0 / batches, rel_tol=SAME) for part in run.segments):
        sizes = f"{status.records} records in batches of {status.batch_size} give {1.0 / batches:.6g}"
        raise contradiction(file, f"that sample_rate was {run.segments[0].sample_rate!r}", sizes)
    whole = status.epochs * batches
    if steps > whole or (steps < whole and not stopped):
        epochs = f"{EPOCHS} counts {steps} steps, of {whole}"
        raise contradiction(file, f"that the run ended after {status.epochs} epochs", epochs)
    if status.secret and status.secret != _secret(config):
        raise contradiction(file, f"that the secret is {status.secret!r}", f"{CONFIG} asks for {_secret(config)!r}")


def _secret(config: Config) -> str:
    """The name that a run gives to the column that it was told to watch."""
    name = str(config.sensitive or SECRETS.get(config.study))
    return f"{name} with {' and '.join(config.along)}" if config.along else name


def gaps(record: RunRecord, run: DPSGD) -> dict[str, float]:
    """The gaps that a run enforced: as it was asked to, or as the β* that was asked for needs."""
    file, config = record.folder / STATUS, record.config
    claimed = {} if record.status is None else record.status.gaps or {}
    if not claimed:
        return {}
    if not config.clips_gaps:
        raise contradiction(file, f"that the gaps {claimed} were enforced", f"{CONFIG} asks for none (gap)")
    with Inside(record.folder / CONFIG):
        asked = config.gap
        if asked is None:
            target = Target(bayes_security=validation.probability("target_attribute_beta", config.target_attribute_beta))
            asked = plan(attribute=target, run=DPSGD(*_setting(run), record.step_count)).gap
    for name, gap in claimed.items():
        if name != _secret(config) or not abs(gap - asked) <= SAME * max(gap, asked):
            raise contradiction(file, f"that {name!r} had the gap {gap:g}", f"{CONFIG} gives {_secret(config)!r} {asked:g}")
    return claimed


def _setting(run: DPSGD) -> tuple[float, float]:
    return run.segments[0].noise_multiplier, run.segments[0].sample_rate


def budget(record: RunRecord) -> str | None:
    """The proof of a run under a budget, if its steps keep to it."""
    file, status, steps, target = record.folder / STATUS, record.status, record.steps, record.config.target_beta
    if status is None or not status.proof or status.gaps:
        return None
    if target is None:
        raise contradiction(file, repr(status.proof), f"{CONFIG} asks for no budget (target_beta)")
    return budget_sentence(file, steps, target, repr(status.proof))


def budget_sentence(file: Path, steps: list[Json], target: float, claim: str) -> str:
    """What steps under a budget have proved; refuses the claim of a file if they do not keep to the budget."""
    with Inside(file.with_name(STEPS)):
        if not steps or any(line["scope"] != "dataset" for line in steps):
            raise contradiction(file, claim, f"{STEPS} has no steps that measured all records")
        distances = [float(line["distance"]) if line["measured"] else FARTHEST for line in steps]
        each = zip(steps, distances, strict=True)
        spent = sum(float(affinity.leakage(line["sample_rate"], line["noise_multiplier"], distance)) for line, distance in each)
        allowed = affinity.allowance(target)
        if not spent <= allowed:
            spending = f"the steps in {STEPS} spent {spent:.4g} of {allowed:.4g}"
            raise contradiction(file, f"that β* ≥ {target!r} is proved", spending)
    return (
        f"Proved: an attacker who wants the secret of any record faces β* ≥ {target!r} (budget fixed in advance; "
        f"{len(steps)} steps)."
    )


def label(steps: list[Json]) -> str:
    """Words that say what a figure from measured distances is."""
    notes = [
        "batch scope: an estimate for the trainer's eyes only"
        if steps[0]["scope"] == "batch"
        else "dataset scope: an after-the-fact statement, and publishing it can leak membership"
    ]
    if skipped := sum(not line["measured"] for line in steps):
        notes.append(f"{skipped} of {len(steps)} steps were not measured and take the distance of the last one that was")
    return "; ".join(notes)
