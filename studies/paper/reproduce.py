"""Run the scripts, and write the comparison "paper | betastar | why they differ" as Markdown and JSON."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from betastar.runs import StudyError
from studies.paper import fig1, fig2, fig3, fig5, fig6, fig7, fig8, fig9, numbers, ours, table, tightness
from studies.paper.sheet import Sheet, training_seconds
from studies.trainings import Json

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


#: What each figure shows, in the order of the page.
CAPTIONS = {
    "fig1": "Figure 1. The β* to rely on, each epoch of each seed: against accuracy (Adult), over epochs (Purchase); dashed, ε.",
    "fig2": "Figure 2. The error of replacing one step's mixture by a Gaussian, for three noises; dotted, the paper's bound.",
    "fig3": "Figure 3. Bayes security over noise and sampling rate after 5,000 steps; white lines are β* of 0.9, 0.95 and 0.98.",
    "fig4": "Figure 4. How far the closed form is off, sampling rate 0.001; a cross marks where an accountant is off, too.",
    "fig5": "Figure 5. Seconds for one answer, against the number of epochs.",
    "fig6": "Figure 6. The advantage that (ε, δ) implies, for smaller and smaller ε, against the advantage itself.",
    "fig7": "Figure 7. Right alarms at each rate of false alarms, by β* alone and by the exact curve. Small: logarithmic axes.",
    "fig8": "Figure 8. Seconds for an epoch of Adult, by what is analysed.",
    "fig9": "Figure 9. β* over the epochs of Adult, all seeds: all pairs of values, their approximation, and what to rely on.",
    "fig10": "Figure 10. How far the closed form is off, for five sampling rates; crosses as in figure 4.",
    "low-noise": "Not in the paper: β* for little noise by three methods, where the closed form is not meant for.",
    "scopes": "Not in the paper: the largest distance in the batch, and over all records, at the same steps.",
    "exposure": "Not in the paper: how exposed single records of Adult are.",
}


def reproduce(
    which: Sequence[str],
    output: Path,
    quick: bool = False,
    jobs: int = 2,
    tell: Callable[[str], None] = lambda text: None,
    redraw: bool = False,
) -> Path:
    """Make figures and comparisons into a folder; returns the Markdown file.

    redraw: only the figures are made, from what was measured in this folder before, and the page that shows them.
    """
    names = list(SCRIPTS) if "all" in which else list(which)
    unknown = [name for name in names if name not in SCRIPTS]
    if unknown:
        raise StudyError(f"there is no {unknown[0]!r} to reproduce; there are {', '.join(['all', *SCRIPTS])}.")
    if find_spec("dp_accounting") is None:
        raise StudyError(
            'dp_accounting, which it compares with, is not installed. In the clone: python -m pip install -e ".[studies]"'
        )
    (output / "measured").mkdir(parents=True, exist_ok=True)
    if redraw and not (output / "comparison.json").exists():
        raise StudyError(f"{output} has no comparison.json: figures are redrawn where they were reproduced.")
    sheet = Sheet(output, output / "runs", quick, jobs, redraw=redraw)
    start = time.perf_counter()
    for name in [name for name in names if not redraw or name in CAPTIONS]:
        tell(name)
        SCRIPTS[name](sheet)
    if redraw:
        (output / "comparison.md").write_text(page(json.loads((output / "comparison.json").read_text()), output))
        return output / "comparison.md"
    took = time.perf_counter() - start
    trained = training_seconds(sheet.runs, jobs)
    versions = {name: version(name) for name in ("betastar", "torch", "opacus", "numpy", "scipy", "dp-accounting")}
    versions["python"] = platform.python_version()
    command = f"python -m studies.paper {' '.join(which)}{' --quick' if quick else ''}"
    comparison: Json = {
        "command": command,
        "seeds": list(range(sheet.seeds)),
        "epochs": sheet.epochs,
        "seconds": round(took),
        "training_seconds": round(trained),
        "versions": versions,
        "rows": [asdict(row) for row in sheet.rows],
    }
    (output / "comparison.json").write_text(json.dumps(comparison, indent=1) + "\n")
    (output / "comparison.md").write_text(page(comparison, output))
    return output / "comparison.md"


def page(comparison: Json, folder: Path) -> str:
    """The comparison as Markdown: its rows, and the figures that are in the folder."""
    times = _times(comparison["seconds"], comparison["training_seconds"])
    lines = ["# The paper and betastar", "", f"Made by `{comparison['command']}`, seeds {comparison['seeds']}: {times}.", ""]
    lines += ["| | paper | betastar | why they differ |", "|---|---|---|---|"]
    for row in comparison["rows"]:
        lines.append(f"| {row['what']} | {row['paper']} | {row['ours']} | {row['why']} |".replace("β*", "β\\*"))
    versions = ", ".join(f"{name} {number}" for name, number in comparison["versions"].items())
    return "\n".join([*lines, "", *_figures(folder), f"Versions: {versions}."]) + "\n"


def _figures(folder: Path) -> list[str]:
    """The figures that are there, in the paper's order, each with its caption."""
    lines = []
    for name, caption in CAPTIONS.items():
        if (folder / f"{name}.png").exists():
            links = f" ([SVG]({name}.svg))" if (folder / f"{name}.svg").exists() else ""
            said = caption.replace("β*", "β\\*")
            lines += [f"![{caption}]({name}.png)", "", f"{said}{links}", ""]
    return lines


def _times(took: float, trained: float) -> str:
    return f"{took / 60:.1f} minutes; the trainings, which are kept and used again, take {trained / 60:.1f} minutes"
