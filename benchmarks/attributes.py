"""Attribute inference: how tight the certified advantage is, and how long it takes. `make bench` runs it (a minute).

No peer computes attribute inference. Beside what betastar proves and attains stand the advantage of the best fixed pair of
gradients, and what the composition of dominating pairs (the glued curve) proves: what one would have to rely on without the
adaptive programme. Times are processor times. Results are written to benchmarks/results.json.

What is promised is checked (`LIMITS`), at these settings and at random ones: the exit code is 1 if it does not hold.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import betastar as bs
from betastar.certified import adaptive, enclosure
from betastar.exact import FourierCurve
from betastar.steps.base import Family
from betastar.steps.poisson import PoissonFactor, PoissonStep
from common import clear, keep

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
#: Largest ratio of the proved to the attained advantage for runs of at most this many steps.
LIMITS = {10_000: 1.02, 1_000_000: 1.05}
#: Processor seconds of a certified and of a quick figure, and memory in MiB.
SECONDS, QUICK_SECONDS, MEMORY = 5.0, 0.1, 1024
#: Random settings up to each number of steps.
RANDOM = {10_000: 24, 1_000_000: 8}


def random_settings(seed: int = 0) -> list[tuple[float, float, float, int]]:
    """Distances from .01 and noise from .5 on, as people have them, such that the run leaks something."""
    generator = np.random.default_rng(seed)
    settings: list[tuple[float, float, float, int]] = []
    for most, number in RANDOM.items():
        wanted = len(settings) + number
        while len(settings) < wanted:
            low, high = np.log([(1e-4, 0.5, 0.01, 2), (0.5, 10.0, 2.0, most)])
            rate, noise, distance, steps = np.exp(generator.uniform(low, high)).tolist()
            signal = rate * distance / noise * np.sqrt(steps)
            if 0.01 < signal < 3.0 and (most == min(RANDOM) or steps > min(RANDOM)):
                settings.append((float(f"{rate:.3g}"), float(f"{noise:.3g}"), float(f"{distance:.3g}"), round(steps)))
    return settings


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
    pairs: tuple[tuple[Family, bool], ...] = (("line", False), ("symmetric", True))
    fixed = [FourierCurve([PoissonFactor(steps, family, rate, noise, distance)], even).overlap().value for family, even in pairs]
    proved, full = seconds(run, threat, "certified", 1e-4)
    moderate, shorter = seconds(run, threat, "exact", 1e-4)
    forget()
    start = time.process_time()
    quick = adaptive.solve([PoissonStep(rate, noise, distance, steps)], adaptive.COARSE, both_ends=False)
    glance = time.process_time() - start
    return {
        "setting": list(setting),
        "fixed_pairs": 1.0 - min(fixed),
        "lower": proved.lower,
        "upper": proved.upper,
        "glued": 1.0 - enclosure.certify([PoissonStep(rate, noise, distance, steps)], True, 1e-4).lower,
        "seconds": full,
        "exact_ratio": moderate.upper / moderate.lower,
        "exact_seconds": shorter,
        "quick": None if quick is None else float(quick.above.values[0]),
        "quick_seconds": glance,
    }


def tightness(setting: tuple[float, float, float, int]) -> dict[str, Any]:
    """The ratio of the proved to the attained advantage, and the time, at one setting."""
    rate, noise, distance, steps = setting
    proved, taken = seconds(bs.DPSGD(noise, rate, steps), bs.AttributeInference(distance), "certified", 1e-4)
    return {"setting": list(setting), "ratio": proved.upper / proved.lower, "seconds": taken}


def promises(rows: list[dict[str, Any]], random: list[dict[str, Any]], memory: float) -> Iterator[str]:
    """What does not hold."""
    measured = [(row["setting"], row["upper"] / row["lower"], row["seconds"]) for row in rows]
    measured += [(one["setting"], one["ratio"], one["seconds"]) for one in random]
    for setting, ratio, taken in measured:
        limit = next(limit for most, limit in LIMITS.items() if setting[3] <= most)
        if ratio > limit:
            yield f"{setting}: proved / attained is {ratio:.4f}, more than {limit}."
        if taken > SECONDS:
            yield f"{setting}: {taken:.1f} s, more than {SECONDS}."
    for row in rows:
        if row["quick_seconds"] > QUICK_SECONDS:
            yield f"{row['setting']}: a quick figure takes {row['quick_seconds']:.3f} s, more than {QUICK_SECONDS}."
    if memory > MEMORY:
        yield f"{memory:.0f} MiB, more than {MEMORY}."


def main() -> None:
    console = Console()
    rows = [measure(setting) for setting in track(SETTINGS, "attribute inference", console=console, transient=True)]
    table = Table(title="Attribute inference: advantage", box=box.SIMPLE)
    for title in ("p σ R T", "attained", "proved", "glued", "s", "exact, s", "quick, s"):
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
    random = [tightness(setting) for setting in track(random_settings(), "random settings", console=console, transient=True)]
    for most in LIMITS:
        ratios = [one["ratio"] for one in random if one["setting"][3] <= most]
        console.print(f"proved / attained up to {most} steps: at most {max(ratios):.4f} in {len(ratios)} random settings")
    broken = list(promises(rows, random, memory))
    for sentence in broken:
        console.print(f"Does not hold: {sentence}", style="red")
    keep({"attributes": {"rows": rows, "random": random, "MiB": memory}})
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
