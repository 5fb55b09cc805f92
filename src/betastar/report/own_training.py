"""The facts of a training loop of one's own, from the folder that a monitor or gap clipping has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from betastar import files, validation
from betastar.calibrate import enforced
from betastar.dpsgd import DPSGD
from betastar.report import recomputed
from betastar.report.errors import ReportError
from betastar.report.facts import Against, Facts
from betastar.run_files import GAP_CLIPPING, MONITOR, STEPS, TRAINING, TRAINING_FORMAT
from betastar.runs.folder import RunFolder
from betastar.runs.reading import Inside, Json, object_of
from betastar.threats import AttributeInference


def of_own_training(path: Path) -> Facts:
    """The facts of a folder that `save` of a monitor or of gap clipping has made."""
    files.refuse_links(path)
    file, folder = path / TRAINING, RunFolder(path)
    told = object_of(file)
    with Inside(file):
        if told["format"] != TRAINING_FORMAT:
            raise ValueError(f"format must be {TRAINING_FORMAT}, got {told['format']!r}: install the version that made it")
        made_by = validation.choice("made_by", told["made_by"], (MONITOR, GAP_CLIPPING))
        first, *others = parts = [DPSGD(**segment) for segment in told["segments"]]
        run = sum(others, start=first)
        secrets: dict[str, Json] = dict(told["secrets"])
        versions = ", ".join(f"{name} {number}" for name, number in dict(told["versions"]).items())
        target = told.get("budget")
    steps = folder.steps
    if made_by == MONITOR:
        _require_same_steps(path, steps, run)
        attributes: tuple[Against, ...] = (_measured(path, secrets, steps, run),)
    else:
        with Inside(file):
            attributes = tuple(_proved(name, one, run) for name, one in secrets.items())
    least = attributes[0].lower if made_by == MONITOR else 0.0
    return Facts(
        title=f"{path.resolve().name}: {int(run.steps):,} steps of DP-SGD in a loop of one's own",
        name=path.resolve().name,
        run=run,
        parameters=_parameters(run, secrets),
        command=_command(parts),
        public_command=_command(parts),
        budgeted=None if target is None else float(target),
        attributes=attributes,
        is_run=True,
        budget=None if target is None else recomputed.budget_sentence(file, steps, float(target), "a budget"),
        exposures={entry.record: max(entry.bayes_security, least) for entry in folder.ledger},
        versions=versions,
        seed="own",
        described_in=TRAINING,
    )


def _require_same_steps(path: Path, steps: list[Json], run: DPSGD) -> None:
    """Refuse steps that are not those of the run."""
    with Inside(path / STEPS):
        written = recomputed.run_of_steps(steps)
    if written != run:
        raise recomputed.contradiction(path / TRAINING, f"that the run was {run!r}", f"{STEPS} gives {written!r}")


def _measured(path: Path, secrets: dict[str, Json], steps: list[Json], run: DPSGD) -> Against:
    """Attribute inference by the distances that a monitor has measured."""
    if len(secrets) != 1:
        raise ReportError(f"{path / TRAINING} must name the one secret that the monitor watched, got {list(secrets)}.")
    ((name, one),) = secrets.items()
    with Inside(path / STEPS):
        threat = AttributeInference(recomputed.distances(steps))
        kind = "batch" if steps[0]["scope"] == "batch" else "dataset"
        return Against(threat, name, kind, run, recomputed.label(steps), int(one["values"]))


def _proved(name: str, one: Json, run: DPSGD) -> Against:
    """Attribute inference by the gap that was enforced at each step."""
    gap = float(validation.numbers("gap", one["gap"], "between 0 and 2 (units of the clipping norm)", low=0.0, high=2.0))
    return Against(AttributeInference(enforced(gap)), name, "proved", run, values=int(one["values"]), gap=gap)


def _parameters(run: DPSGD, secrets: dict[str, Json]) -> Json:
    """The parameters that are known; noise and rate are those of the first steps."""
    first = run.segments[0]
    known: dict[str, Any] = {"noise_multiplier": first.noise_multiplier, "sample_rate": first.sample_rate, "steps": run.steps}
    gaps = {name: one["gap"] for name, one in secrets.items() if "gap" in one}
    return known | ({"gaps": gaps} if gaps else {}) | ({"segments": len(run.segments)} if len(run.segments) > 1 else {})


def _command(parts: list[DPSGD]) -> str:
    """The command that computes β* against membership inference again."""
    run = " + ".join(f"bs.{part!r}" for part in parts)
    return f'python -c "import betastar as bs; print(bs.analyze({run}).bayes_security)"'
