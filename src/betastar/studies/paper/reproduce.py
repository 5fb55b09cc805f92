"""Run the scripts, and write the comparison "paper | betastar | why they differ" as Markdown and JSON."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from betastar import files
from betastar.datasets.study import StudyError
from betastar.studies.paper import fig1, fig2, fig3, fig5, fig6, fig7, fig8, fig9, numbers, ours, table, tightness
from betastar.studies.paper.sheet import Sheet, training_seconds

SCRIPTS: dict[str, Callable[[Sheet], None]] = {
    "fig1": fig1.make,
    "fig2": fig2.make,
    "fig3": fig3.make,
    "fig4": tightness.fig4,
    "fig5": fig5.make,
    "fig6": fig6.make,
    "fig7": fig7.make,
    "fig8": fig8.make,
    "fig9": fig9.make,
    "fig10": tightness.fig10,
    "table": table.make,
    "numbers": numbers.make,
    "low-noise": ours.low_noise,
    "scopes": ours.scopes,
    "exposure": ours.exposure,
}


def reproduce(
    which: Sequence[str], output: Path, quick: bool = False, jobs: int = 2, tell: Callable[[str], None] = lambda text: None
) -> Path:
    """Make figures and comparisons into a folder; returns the Markdown file."""
    names = list(SCRIPTS) if "all" in which else list(which)
    unknown = [name for name in names if name not in SCRIPTS]
    if unknown:
        raise StudyError(f"there is no {unknown[0]!r} to reproduce; there are {', '.join(['all', *SCRIPTS])}.")
    output.mkdir(parents=True, exist_ok=True)
    sheet = Sheet(output, output / "runs", quick, jobs)
    start = time.perf_counter()
    for name in names:
        tell(name)
        SCRIPTS[name](sheet)
    took = time.perf_counter() - start
    trained = training_seconds(sheet.runs, jobs)
    versions = {name: version(name) for name in ("betastar", "torch", "opacus", "numpy", "scipy", "dp-accounting")}
    versions["python"] = platform.python_version()
    command = f"betastar reproduce {' '.join(which)}{' --quick' if quick else ''}"
    about = {
        "command": command,
        "seeds": list(range(sheet.seeds)),
        "epochs": sheet.epochs,
        "seconds": round(took),
        "training_seconds": round(trained),
        "versions": versions,
    }
    comparison = json.dumps({**about, "rows": [asdict(row) for row in sheet.rows]}, indent=1) + "\n"
    lines = ["# The paper and betastar", "", f"Made by `{command}`, seeds {about['seeds']}: {_times(took, trained)}.", ""]
    lines += ["| | paper | betastar | why they differ |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.paper} | {row.ours} | {row.why} |".replace("β*", "β\\*") for row in sheet.rows]
    figures = sorted(path.name for path in output.glob("*.png"))
    lines += ["", *(f"![{name.removesuffix('.png')}]({name})" for name in figures), "", f"Versions: {versions}."]
    contents: dict[Path, str | bytes] = {
        output / "comparison.json": comparison,
        output / "comparison.md": "\n".join(lines) + "\n",
    }
    files.write_all(contents, private=False)
    return output / "comparison.md"


def _times(took: float, trained: float) -> str:
    return f"{took / 60:.1f} minutes; the trainings, which are kept and used again, take {trained / 60:.1f} minutes"
