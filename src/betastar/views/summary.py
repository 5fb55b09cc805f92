"""A summary of a run for people: Markdown with figures, in the run's folder."""

from __future__ import annotations

import csv
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from betastar.studies.folder import RunFolder
from betastar.views import plots
from betastar.views.rounding import down, percent


def summarise(path: str | Path) -> Path:
    """Write summary.md and its figures; returns the Markdown file."""
    folder = RunFolder(path)
    config, entries = folder.config, folder.lines("epochs.jsonl")
    status = folder.status
    last = entries[-1]
    name = next((name for name in ("exact", "ball", "centroid", "extremes") if name in last), None)
    plots.save(plots.over_epochs(entries), folder / "epochs")
    plots.save(plots.accuracy(entries), folder / "accuracy")
    text = [f"# {status['study']}: {status['epochs']} epochs of DP-SGD", "", *_verdict(status, last, name), ""]
    text += ["![β* after each epoch](epochs.png)", "", "![privacy against accuracy](accuracy.png)", "", *_table(last, name), ""]
    if (folder / "ledger.csv").exists():
        with (folder / "ledger.csv").open() as file:
            beta = [float(row["bayes_security"]) for row in csv.DictReader(file)]
        plots.save(plots.exposure(beta), folder / "exposure")
        median = sorted(beta)[len(beta) // 2]
        text += [
            f"Records differ: of the {len(beta)} that were looked at, the most exposed one has β\\* ≈ {down(min(beta), 4)}, "
            f"the median {down(median, 4)}. The list is in `ledger.csv`; it is about single people, so keep it to yourself.",
            "",
            "![exposure of records](exposure.png)",
            "",
        ]
    text += [*_assumed(status, name), "", *_repeat(config, status)]
    folder.write("summary.md", "\n".join(text) + "\n")
    return folder / "summary.md"


def _verdict(status: dict[str, Any], last: dict[str, Any], name: str | None) -> list[str]:
    data = " Its records are **synthetic**: a stand-in of the same shape." if "synthetic" in status["study"] else ""
    text = [
        f"The model is right for {100 * last['accuracy']:.1f} % of the records that it has not seen.{data} "
        "An attacker who sees every update and guesses which of two records was used is right at most "
        f"{percent(1 - last['membership']['lower'] / 2)} of the time, against 50 % without the model."
    ]
    if name:
        text += [
            "",
            f"An attacker who knows everything about a record but its {status['secret']} ({status['values']} values), and "
            "hesitates between two values that are equally likely, is right about "
            f"{percent(1 - last[name]['lower'] / 2)} of the time ({status['label']}).",
        ]
    if "proof" in status:
        text += ["", f"**{status['proof']}**"]
    if status["stopped"]:
        text += ["", f"Training was stopped: {status['stopped']}"]
    return text


def _table(last: dict[str, Any], name: str | None) -> list[str]:
    rows = ["| Bayes security β\\* | relied on | attained | paper's closed form |", "|---|---|---|---|"]
    for title, key in (
        ("membership inference", "membership"),
        ("attribute inference", name),
        ("the same, approximate diameter", "centroid"),
    ):
        if key in last and not (key == "centroid" and name == "centroid" and title.startswith("the")):
            one = last[key]
            rows.append(f"| {title} | {down(one['lower'])} | {one['estimate']:.4f} | {one['paper']:.4f} |")
    return rows


def _assumed(status: dict[str, Any], name: str | None) -> list[str]:
    text = [
        "Assumed: the attacker knows all other records and sees every update; each record is sampled independently with "
        f"probability {status['sample_rate']:.4g} at each step (Poisson). Membership is exact for the worst case."
    ]
    if name:
        text[0] += (
            " The attribute figures come from the distances that this run happened to have: a statement after the fact. "
            "“Relied on” holds for all gradients with these distances, “attained” for the worse of two fixed pairs."
        )
    return text


def _repeat(config: dict[str, Any], status: dict[str, Any]) -> list[str]:
    names = ("batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden")
    recipe = ", ".join(f"{name} {status[name]}" for name in names)
    versions = ", ".join(f"{name} {version(name)}" for name in ("betastar", "torch", "opacus"))
    return [f"Parameters: {recipe}, seed {config['seed']}. Made with {versions}, Python {platform.python_version()}."]
