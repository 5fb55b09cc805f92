"""Attribute inference: how tight the certified advantage is, and how long it takes. `make bench` runs it (a minute).

No peer computes attribute inference. Beside what betastar proves and attains stand the advantage of the best fixed pair of
gradients, and what the composition of dominating pairs (the glued curve) proves: what one would have to rely on without the
adaptive programme. Times are processor times. Results are written to benchmarks/results.json.
"""

from __future__ import annotations

import json
import resource
import time
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

import betastar as bs
from betastar.bounds import adaptive, certified, transform
from betastar.bounds.certified import COARSE
from betastar.bounds.exact import FourierCurve, Part
from betastar.scenario.step import Step
from peers import HERE, clear

#: Rate, noise, distance, steps.
SETTINGS = [
    (0.01, 1.0, 1.0, 1000),
    (0.01, 3.51, 0.97, 2020),
    (0.0098, 0.8, 0.3, 2040),
    (256 / 26048, 3.51, 0.1, 2040),
    (0.001, 1.0, 0.3, 50_000),
    (0.3, 0.8, 1.0, 6),
    (0.001, 0.5, 0.01, 10_000),
    (0.01, 5.0, 0.01, 1_000_000),
]


def forget() -> None:
    clear()
    adaptive._kernels.cache_clear()
    adaptive._laws.cache_clear()
    adaptive._solve.cache_clear()


def seconds(run: bs.DPSGD, threat: bs.AttributeInference, method: str, tolerance: float) -> tuple[bs.Bound, float]:
    forget()
    start = time.process_time()
    advantage = bs.analyze(run, threat, method, tolerance).advantage
    return advantage, time.process_time() - start


def measure(setting: tuple[float, float, float, int]) -> dict[str, Any]:
    rate, noise, distance, steps = setting
    run, threat = bs.DPSGD(noise, rate, steps), bs.AttributeInference(distance)
    pairs = ((transform.line, False), (transform.symmetric, True))
    fixed = [FourierCurve([Part(steps, build, rate, noise, distance)], even).overlap().value for build, even in pairs]
    proved, full = seconds(run, threat, "certified", 1e-4)
    moderate, shorter = seconds(run, threat, "exact", 1e-4)
    forget()
    start = time.process_time()
    quick = adaptive.solve([Step(rate, noise, distance, steps)], adaptive.QUICK, attained=False)
    glance = time.process_time() - start
    return {
        "setting": list(setting),
        "fixed_pairs": 1.0 - min(fixed),
        "lower": proved.lower,
        "upper": proved.upper,
        "glued": 1.0 - certified.certify([Step(rate, noise, distance, steps)], True, 0.1 * COARSE).lower,
        "seconds": full,
        "exact_ratio": moderate.upper / moderate.lower,
        "exact_seconds": shorter,
        "quick": None if quick is None else float(quick.above.values[0]),
        "quick_seconds": glance,
    }


def main() -> None:
    console = Console()
    rows = [measure(setting) for setting in track(SETTINGS, "attribute inference", console=console, transient=True)]
    table = Table(title="Attribute inference: advantage")
    for title in ("p σ R T", "attained", "proved", "glued", "seconds", "exact, s", "quick, s"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            " ".join(str(number) if isinstance(number, int) else f"{number:.3g}" for number in row["setting"]),
            *(f"{row[name]:.5f}" for name in ("lower", "upper", "glued")),
            *(f"{row[name]:.2f}" for name in ("seconds", "exact_seconds", "quick_seconds")),
        )
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"largest memory {memory:.0f} MiB")
    path = HERE / "results.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, "attributes": {"rows": rows, "MiB": memory}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
