"""Tables of measured ratios, from benchmarks/results.json: pages and the README show what `make bench` wrote, or a test fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from betastar.rounding import up

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results.json"
SHAPES = {
    "Adult": "Adult: 108 → 128 → 2, tanh, batch 256, 74 values",
    "Adult, ReLU": "the same with ReLU",
    "Purchase": "Purchase: 600 → 128 → 100, batch 512, 2 values",
    "CNN on images": "CNN: images of 28 × 28 pixels, batch 256",
}


def tables() -> dict[str, str]:
    """Markdown by name: peers, curves, attributes, other, steps, loop."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    rows = ["| | relation | median error | largest error | median time | time / exact | failed |", "|---" * 7 + "|"]
    for one in found["advantage"]:
        name = f"**{one['name']}**" if one["median_ratio"] == 1.0 and one["name"] == "betastar exact" else one["name"]
        errors = f"{one['median_error']:.0e} | {one['largest_error']:.0e}"
        times = f"{1e3 * one['median_seconds']:,.1f} ms | {one['median_ratio']:,.1f}"
        rows.append(f"| {name} | {one['relation']} | {errors} | {times} | {one['failures'] or ''} |")
    curves = ["| | relation | largest error | median time | time / β\\* alone | time / exact | smallest |", "|---" * 7 + "|"]
    for one in found["curves"]:
        name = f"**{one['name']}**" if one["name"] == "betastar exact" else one["name"]
        error = "" if one["largest_error"] is None else f"{one['largest_error']:.0e}"
        times = f"{1e3 * one['median_seconds']:,.1f} ms | {one['median_ratio_to_beta']:,.1f}"
        curves.append(
            f"| {name} | {one['relation']} | {error} | {times} | {one['median_ratio']:,.1f} | {one['smallest_ratio']:,.1f} |"
        )
    attributes = ["| rate, noise, distance, steps | fixed pair | attained | proved | glued curve | time |", "|---" * 6 + "|"]
    for one in found["attributes"]["rows"]:
        setting = ", ".join(f"{number:.3g}" if number < 1000 else f"{number:,}" for number in one["setting"])
        numbers = [f"{one[name]:.5f}" for name in ("fixed_pairs", "lower")] + [up(one[name], 5) for name in ("upper", "glued")]
        attributes.append(f"| {setting} | {' | '.join(numbers)} | {one['seconds']:.1f} s |")
    heat, noise, start = found["heat_map"], found["calibration"], found["import"]
    other = (
        f"Calibrating noise to an advantage takes {1e3 * noise['median_seconds']:.1f} ms against riskcal's "
        f"{noise['riskcal_median_seconds']:.1f} s: {noise['median_ratio']:,.0f} times faster (median). A 100 × 100 "
        f"exact heat map takes {heat['seconds']:.1f} s; dp_accounting takes {heat['dp_accounting_seconds']:.0f} s for "
        f"{heat['dp_accounting_points']} points. "
        f"`import betastar` costs {start['ratio']:.2f} times what numpy and scipy.special cost."
    )
    steps = [
        "| shape | Opacus | its ghost clipping | PrivateTraining | to the faster "
        "| gap clipping | to Opacus | monitored | to Opacus |",
        "|---" * 9 + "|",
    ]
    for name, shape in SHAPES.items():
        one = found["monitor"][name]
        steps.append(_steps_row(shape, one, 1e3, ".1f} ms", one.get("ratio")))
    for name, one in found["transformers"]["rows"].items():
        steps.append(_steps_row(f"transformer, {name}", one, 1.0, ".2f} s", one["monitored ratio"]))
    adult, clocks = found["monitor"]["Adult"], [_clock(found[name]["threads"]) for name in ("monitor", "transformers")]
    times = clocks[0] if clocks[0] == clocks[1] else f"{clocks[0]} (tables), {clocks[1]} (transformers)"
    loop = (
        f"A loop over records and pairs takes {adult['loop']:.1f} s for Adult's shape, {adult['loop ratio']:.0f} times the "
        f"monitored step. Times: {times}."
    )
    return {
        "peers": "\n".join(rows),
        "curves": "\n".join(curves),
        "attributes": "\n".join(attributes),
        "other": other,
        "steps": "\n".join(steps),
        "loop": loop,
        "summary": _summary(found),
    }


def _steps_row(shape: str, one: dict[str, float], scale: float, style: str, monitored: float | None) -> str:
    kinds = ("plain", "ghost", "private", "gap", "monitored")
    plain, ghost, private, gap, watched = (("{:" + style).format(scale * one[kind]) if kind in one else "" for kind in kinds)
    ratios = [one["private ratio"], one.get("gap ratio"), monitored]
    faster, clipped, seen = ("" if ratio is None else f"{ratio:.{2 if i == 0 else 1}f}" for i, ratio in enumerate(ratios))
    return f"| {shape} | {plain} | {ghost} | {private} | {faster} | {gap} | {clipped} | {watched} | {seen} |"


def _summary(found: dict[str, Any]) -> str:
    """Five rows for the README."""

    def of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
        return next(one for one in rows if one["name"] == name and one["relation"] == "substitution")

    def told(one: dict[str, Any]) -> str:
        return f"{one['largest_error']:.0e} in {1e3 * one['median_seconds']:.1f} ms"

    both = ("betastar exact", "dp_accounting")
    runs, curves = ([told(of(found[key], name)) for name in both] for key in ("advantage", "curves"))
    noise, attack = found["calibration"], found["attributes"]["rows"][0]
    proved = f"proved: {up(attack['upper'], 4)}, attained: {attack['lower']:.4f}"
    noises = f"{1e3 * noise['median_seconds']:.1f} ms | riskcal: {noise['riskcal_median_seconds']:.1f} s"
    ratios = [found["monitor"][name]["private ratio"] for name in ("Adult", "CNN on images")]
    ratios.append(found["transformers"]["rows"]["5 M weights"]["private ratio"])
    steps = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    rows = [
        "| | betastar | peer |",
        "|---|---|---|",
        f"| β\\*, twenty runs: largest error, median time | {runs[0]} | dp_accounting: {runs[1]} |",
        f"| a hundred points of a trade-off curve: the same | {curves[0]} | dp_accounting: {curves[1]} |",
        f"| noise for a target, median time | {noises} |",
        f"| advantage of attribute inference, an example | {proved} | none |",
        f"| a private step: table, images, transformer | {steps} | faster mode of Opacus: 1 |",
    ]
    return "\n".join(rows)


def _clock(threads: int) -> str:
    return "processor time of one thread" if threads == 1 else f"wall clock, {threads} threads"


def renewed(text: str) -> str:
    """A text with its tables and sentences of measured ratios as they are now; each is known by its first words."""
    blocks = text.split("\n\n")
    for new in tables().values():
        start = new.splitlines()[0] if new.startswith("|") else new[:33]
        blocks = [new if block.startswith(start) else block for block in blocks]
    return "\n\n".join(blocks)


if __name__ == "__main__":  # the last part of `make bench`
    README = RESULTS.parents[1] / "README.md"
    README.write_text(renewed(README.read_text()))
