"""A report does not believe what status.json says of a run: it computes it again from the other files, or refuses it."""

from __future__ import annotations

from math import isclose
from pathlib import Path

import numpy as np

from betastar import validation
from betastar.calibrate import Target, plan
from betastar.dpsgd import DPSGD, IN_EPOCHS
from betastar.drawn_steps import DrawnBatch, DrawnSteps, SamplingScheme
from betastar.runs.config import ADULTS_SECRET, PARAMETERS, secret_name
from betastar.runs.folder import CONFIG, EPOCHS, STATUS, STEPS, RunRecord, Status
from betastar.runs.reading import Inside, Json, StudyError


class ReportError(StudyError):
    """What was given cannot be reported on; the text says why, and what is expected."""


#: Two values of the same number that differ by more are of different runs.
SAME = 1e-6


def contradiction(path: Path, claim: str, evidence: str) -> ReportError:
    """The error for a file whose claim another file contradicts."""
    return ReportError(f"{path} says {claim}, but {evidence}: these files are not of one run, or somebody changed them.")


def run_of_status(status: Status, steps: int) -> DPSGD:
    """What was run, if no monitor wrote down the steps: whole epochs, the last of which a budget may have cut short."""
    told = {"sampling": status.sampling, "max_batch_size": status.max_batch_size, "dataset_size": status.records}
    told |= {"times_per_epoch": status.times_per_epoch}
    return _scheme({"sample_rate": status.sample_rate, **told}).run(status.noise_multiplier, steps)


def run_of_steps(steps: list[Json]) -> DPSGD:
    """What was run, step by step. Where epochs count, an unfinished one counts as a whole."""
    return _drawn(steps).run


def distances(steps: list[Json]) -> list[float]:
    """The distance of each step of the run that `run_of_steps` makes; 0 for steps that an unfinished epoch lacks."""
    every: list[float] = _drawn(steps).spread(np.array([float(line["distance"]) for line in steps])).tolist()
    return every


def _drawn(steps: list[Json]) -> DrawnSteps:
    drawn = DrawnSteps()
    for line in steps:
        drawn.add(line["noise_multiplier"], DrawnBatch(_scheme(line), str(line.get("epoch", ""))))
    return drawn


def _scheme(told: Json) -> SamplingScheme:
    """How batches were drawn, as a step or a status says it."""
    sampling, rate = told.get("sampling", "poisson"), validation.fraction("sample_rate", told["sample_rate"])
    most, times = told.get("max_batch_size"), told.get("times_per_epoch", 1)
    batches = round(times / rate) if sampling in IN_EPOCHS else None
    return SamplingScheme(sampling, rate, batches, told.get("dataset_size"), max_batch_size=most, times_per_epoch=times)


def agree(record: RunRecord, run: DPSGD) -> None:
    """Refuse a folder whose configuration, status and steps are not of one run."""
    file, config, status, steps = record.folder / STATUS, record.config, record.status, record.step_count
    if status is None:
        return
    for name in PARAMETERS:
        asked, used = getattr(config, name), getattr(status, name)
        if asked is not None and used != asked:
            raise contradiction(file, f"that {name} was {used!r}", f"{CONFIG} asks for {asked!r}")
    with Inside(file):
        times = validation.one_whole("times_per_epoch", status.times_per_epoch)
        batches = -(-times * status.records // validation.whole("batch_size", status.batch_size))
    if any(not isclose(part.noise_multiplier, status.noise_multiplier, rel_tol=SAME) for part in run.segments):
        raise contradiction(file, f"that noise_multiplier was {status.noise_multiplier!r}", f"{STEPS} has another one")
    rate = times / batches if config.sampling in IN_EPOCHS else status.batch_size / status.records
    if any(not isclose(part.sample_rate, rate, rel_tol=SAME) for part in run.segments):
        sizes = f"{status.records} records in batches of {status.batch_size} give {rate:.6g}"
        raise contradiction(file, f"that sample_rate was {run.segments[0].sample_rate!r}", sizes)
    for part in run.segments:
        asked, said, used = ((one.sampling, one.max_batch_size, one.times_per_epoch) for one in (config, status, part))
        if not used == asked == said or part.dataset_size not in (None, status.records):
            words = f"{CONFIG} asks for {asked[0]!r} with max_batch_size {asked[1]!r}, times_per_epoch {asked[2]!r}"
            words += f", and {STEPS} must agree"
            raise contradiction(file, f"that {status.records} records were drawn by {status.sampling!r}", words)
    if steps != status.epochs * batches:
        epochs = f"{EPOCHS} counts {steps} steps, of {status.epochs * batches}"
        raise contradiction(file, f"that the run ended after {status.epochs} epochs", epochs)
    secret = secret_name(config.sensitive or ADULTS_SECRET, config.along)
    if status.secret and status.secret != secret:
        raise contradiction(file, f"that the secret is {status.secret!r}", f"{CONFIG} asks for {secret!r}")


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
            whole = run if len(run.segments) > 1 else _planned(run, record.step_count)
            asked = plan(attribute=Target.parse(str(config.attribute_target)), run=whole).gap
    secret = secret_name(config.sensitive or ADULTS_SECRET, config.along)
    for name, gap in claimed.items():
        if name != secret or not abs(gap - asked) <= SAME * max(gap, asked):
            raise contradiction(file, f"that {name!r} had the gap {gap:g}", f"{CONFIG} gives {secret!r} {asked:g}")
    return claimed


def _planned(run: DPSGD, steps: int) -> DPSGD:
    """The run with the number of steps that the gap was calibrated for."""
    one = run.segments[0]
    return DPSGD(
        one.noise_multiplier,
        one.sample_rate,
        steps,
        one.sampling,
        max_batch_size=one.max_batch_size,
        dataset_size=one.dataset_size,
        times_per_epoch=one.times_per_epoch,
    )


def label(steps: list[Json]) -> str:
    """Words that say what a figure from measured distances is."""
    notes = [
        "batch scope, measured on the sampled records only: an estimate for the trainer's eyes only"
        if steps[0]["scope"] == "batch"
        else "dataset scope, measured on all records: an after-the-fact statement, and publishing it can leak membership"
    ]
    if skipped := sum(not line["measured"] for line in steps):
        notes.append(f"{skipped} of {len(steps)} steps were not measured and take the distance of the last one that was")
    return "; ".join(notes)
