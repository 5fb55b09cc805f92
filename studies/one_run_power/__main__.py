"""The power of audits in one run over canaries and factors: a table and a figure.

`python -m studies.one_run_power` takes a quarter of an hour.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from betastar import DPSGD, plots
from betastar.audit import ALARM, one_run_mechanism
from betastar.rounding import nearest_percent
from studies import command

#: What is claimed, by the name in the table.
CLAIMS = {
    "noise 1, one step": DPSGD(1.0, 1.0, 1),
    "noise 3, one step": DPSGD(3.0, 1.0, 1),
    "noise 1, rate 0.05, 100 steps": DPSGD(1.0, 0.05, 100),
}
CANARIES = (200, 500, 1000, 2000, 5000, 20_000)
#: The noise is too small by these factors; 1 is a correct run.
FACTORS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
#: Audits of each setting; a correct run is audited more often.
AUDITS, CORRECT = 100, 500
LEVEL = 0.05


def play(quick: bool = False) -> list[dict[str, Any]]:
    """The share of audits that accuse, for each claim, number of canaries and factor. quick: few canaries and audits."""
    rows = []
    for name, run in CLAIMS.items():
        for canaries in CANARIES[:2] if quick else CANARIES:
            for i, factor in enumerate(FACTORS):
                actual = DPSGD(run.noise_multiplier / factor, run.sample_rate, run.steps)
                audits = 10 if quick else CORRECT if factor == 1.0 else AUDITS
                seeds = np.random.SeedSequence(i).generate_state(audits).tolist()
                played = (one_run_mechanism(run, None, canaries, seed=seed, actual=actual) for seed in seeds)
                p_values = np.array([one.p_value for one in played])
                shares = {"found": float(np.mean(p_values < ALARM)), "below_level": float(np.mean(p_values < LEVEL))}
                rows.append({"claim": name, "canaries": canaries, "factor": factor, "audits": audits, **shares})
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """The page with the figure and a table for each claim."""
    correct, others = (next(row["audits"] for row in rows if (row["factor"] == 1.0) is right) for right in (True, False))
    parts = [
        "# Power of audits in one run",
        "",
        f"Audits of the mechanism: {others} for each number of canaries and each factor by which the noise is too small, "
        f"{correct} of correct runs. A fault is found if the p-value is below {ALARM:g}; in brackets, how often it is below "
        f"{LEVEL:g}. The number of guesses is decided in advance, by the claim. This page, its figure and `one-run.json` are "
        "made by `python -m studies.one_run_power`.",
        "",
        "![Share of audits that find the fault, over the number of canaries](one-run.png)",
    ]
    for name in CLAIMS:
        parts += ["", f"## Claim: {name}", ""]
        parts.append("| canaries | correct run | " + " | ".join(f"too small by {factor:g}" for factor in FACTORS[1:]) + " |")
        parts.append("|---|" + "---|" * len(FACTORS))
        for canaries in dict.fromkeys(row["canaries"] for row in rows):
            mine = [row for row in rows if row["claim"] == name and row["canaries"] == canaries]
            cells = [f"{nearest_percent(row['found'], 1)} ({nearest_percent(row['below_level'], 1)})" for row in mine]
            parts.append(f"| {canaries:,} | " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The share of audits that find the fault over the number of canaries, with a panel for each claim."""
    every = plots.panels(1, len(CLAIMS), (11.0, 3.2))
    for panel, name in zip(every, CLAIMS, strict=True):
        for factor, marker in zip(FACTORS, "xv^soD", strict=True):
            mine = [row for row in rows if row["claim"] == name and row["factor"] == factor]
            label = "right" if factor == 1.0 else f"too small by {factor:g}"
            panel.plot([row["canaries"] for row in mine], [row["found"] for row in mine], f"{marker}-", ms=4, lw=1, label=label)
        panel.set(xscale="log", xlabel="canaries", ylim=(-0.03, 1.03))
        panel.set_title(f"claim: {name}", fontsize=10)
    every[0].set_ylabel(f"share of audits with p-value < {ALARM:g}")
    outside = (1.0, 0.5)
    every[-1].legend(
        frameon=False,
        fontsize=plots.LEGEND,
        title="noise",
        title_fontsize=plots.LEGEND,
        loc="center left",
        bbox_to_anchor=outside,
    )
    plots.save(every[0], path, "png")


def main() -> None:
    """Play, and write the page, its figure and its data."""
    options = command.parser("one_run_power", "Measure the power of audits in one run.", "few audits, few canaries")
    given = options.parse_args()
    with command.ended("one_run_power"):
        rows = play(given.quick)
        given.output.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        (given.output / "one-run.json").write_text(f"[\n{lines}\n]\n")
        (given.output / "one-run.md").write_text(page(rows))
        draw(rows, given.output / "one-run")
        print(json.dumps(rows) if given.json else given.output / "one-run.md")


if __name__ == "__main__":
    main()
