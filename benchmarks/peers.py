"""betastar against its peers: error, time and ratio, in one run on one machine. `make bench` runs all of it (minutes).

Errors are against tests/golden (computed without any of them); times are medians of repeated calls, each peer at its default
settings. Machines are noisy: look at the ratios. Results are written to benchmarks/results.json, too.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import betastar as bs
from common import RESULTS, SETTINGS, clear, exact, golden, keep, timed


def certified(relation: str) -> Callable[[float, float, int], float]:
    threat = bs.Membership(relation)
    return lambda p, sigma, steps: float(bs.analyze(bs.DPSGD(sigma, p, steps), threat, "certified").advantage.upper)


def paper(p: float, sigma: float, steps: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.RegimeWarning)
        return float(bs.analyze(bs.DPSGD(sigma, p, steps), method="paper").advantage.estimate)


def affinity(p: float, sigma: float, steps: int) -> float:
    return float(bs.analyze(bs.DPSGD(sigma, p, steps), method="affinity").advantage.estimate)


def dp_accounting(relation: str) -> Callable[[float, float, int], float]:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    kinds = dp.NeighboringRelation
    kind = kinds.REPLACE_ONE if relation == "substitution" else kinds.ADD_OR_REMOVE_ONE

    def call(p: float, sigma: float, steps: int) -> float:
        accountant = PLDAccountant(neighboring_relation=kind)
        accountant.compose(dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(sigma)), steps)
        return float(accountant.get_delta(0.0))

    return call


def riskcal(p: float, sigma: float, steps: int) -> float:
    from riskcal.calibration.dpsgd import get_advantage_for_dpsgd

    return float(get_advantage_for_dpsgd(sigma, p, steps))


def prv_accountant(p: float, sigma: float, steps: int) -> float:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    prv = PoissonSubsampledGaussianMechanism(sampling_probability=p, noise_multiplier=sigma)
    accountant = PRVAccountant(prvs=[prv], max_self_compositions=[steps], eps_error=0.01, delta_error=1e-6)
    return float(accountant.compute_delta(0.0, [steps])[1])


def fourier_accountant(relation: str) -> Callable[[float, float, int], float]:
    import fourier_accountant as fa

    delta = fa.get_delta_S if relation == "substitution" else fa.get_delta_R
    # It wants a positive ε; 1e-9 changes the answer by less than 1e-9.
    return lambda p, sigma, steps: float(delta(target_eps=1e-9, sigma=sigma, q=p, ncomp=steps))


CONTENDERS: list[tuple[str, str, Callable[[float, float, int], float]]] = [
    ("betastar exact", "substitution", exact("substitution")),
    ("betastar certified (upper end)", "substitution", certified("substitution")),
    ("betastar affinity (estimate)", "substitution", affinity),
    ("paper's closed form", "substitution", paper),
    ("dp_accounting", "substitution", dp_accounting("substitution")),
    ("fourier-accountant", "substitution", fourier_accountant("substitution")),
    ("betastar exact", "add-remove", exact("add-remove")),
    ("dp_accounting", "add-remove", dp_accounting("add-remove")),
    ("riskcal", "add-remove", riskcal),
    ("prv_accountant", "add-remove", prv_accountant),
    ("fourier-accountant", "add-remove", fourier_accountant("add-remove")),
]


def measure_advantage(settings: list[Any], console: Console) -> list[dict[str, Any]]:
    rows = []
    ours: dict[tuple[str, Any], float] = {}
    for name, relation, call in CONTENDERS:
        truth = golden(relation)
        errors, times, ratios, failures = [], [], [], 0
        for setting in track(settings, f"{name}, {relation}", console=console, transient=True):
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    answer, seconds = timed(lambda call=call, setting=setting: call(*setting))
            except Exception:  # a peer that raises has failed, whatever it raises
                failures += 1
                continue
            if name == "betastar exact":
                ours[relation, setting] = seconds
            if not 0.0 <= answer <= 1.0 + 1e-9:
                failures += 1
                continue
            errors.append(abs(answer - truth[setting]))
            times.append(seconds)
            ratios.append(seconds / ours[relation, setting])
        rows.append(
            {
                "name": name,
                "relation": relation,
                "median_error": statistics.median(errors) if errors else None,
                "largest_error": max(errors) if errors else None,
                "median_seconds": statistics.median(times) if times else None,
                "median_ratio": statistics.median(ratios) if ratios else None,
                "failures": failures,
                "settings": len(settings),
            }
        )
    return rows


def measure_calibration(settings: list[Any], console: Console) -> dict[str, Any]:
    """Noise for the advantage that each setting has, add/remove as riskcal's."""
    from riskcal.calibration.dpsgd import find_noise_multiplier_for_advantage

    truth = golden("add-remove")
    threat = bs.Membership("add-remove")
    ratios, ours_all, theirs_all, wrong = [], [], [], []
    for setting in track(settings, "calibration against riskcal", console=console, transient=True):
        p, sigma, steps = setting
        target = bs.Target(advantage=truth[setting])

        def calibrate(target: bs.Target = target, p: float = p, steps: int = steps) -> float:
            return float(bs.calibrate(target, sample_rate=p, steps=steps, threat=threat).noise_multiplier)

        noise, ours = timed(calibrate)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            their_noise = find_noise_multiplier_for_advantage(truth[setting], p, steps)
        theirs = time.perf_counter() - start
        ratios.append(theirs / ours)
        ours_all.append(ours)
        theirs_all.append(theirs)
        wrong.append((abs(noise / sigma - 1.0), abs(their_noise / sigma - 1.0)))
    return {
        "median_seconds": statistics.median(ours_all),
        "riskcal_median_seconds": statistics.median(theirs_all),
        "median_ratio": statistics.median(ratios),
        "largest_relative_error": max(w[0] for w in wrong),
        "riskcal_largest_relative_error": max(w[1] for w in wrong),
        "settings": len(settings),
    }


def measure_heat_map(points: int) -> dict[str, Any]:
    """A 100 × 100 exact heat map against `points` points of dp_accounting (the first settings, again and again)."""
    clear()
    run = bs.DPSGD(np.geomspace(0.5, 5.0, 100)[:, None], np.geomspace(1e-4, 1e-1, 100)[None, :], 1000)
    start = time.perf_counter()
    bs.analyze(run)
    ours = time.perf_counter() - start
    call = dp_accounting("substitution")
    start = time.perf_counter()
    for i in range(points):
        call(*SETTINGS[i % len(SETTINGS)])
    theirs = time.perf_counter() - start
    return {"seconds": ours, "dp_accounting_seconds": theirs, "dp_accounting_points": points, "ratio": theirs / ours}


def measure_import() -> dict[str, float]:
    def seconds(code: str) -> float:
        def once() -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            return time.perf_counter() - start

        return min(once() for _ in range(7))

    nothing, base, ours = seconds("pass"), seconds("import numpy, scipy.special"), seconds("import betastar")
    return {
        "seconds": ours - nothing,
        "numpy_scipy_special_seconds": base - nothing,
        "ratio": (ours - nothing) / (base - nothing),
    }


def show(console: Console, results: dict[str, Any]) -> None:
    table = Table(title=f"Advantage, {results['advantage'][0]['settings']} settings")
    for heading in ("", "relation", "median error", "largest error", "median time", "time / exact", "failures"):
        table.add_column(heading, justify="left" if heading in ("", "relation") else "right")

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    for row in results["advantage"]:
        milliseconds = None if row["median_seconds"] is None else 1e3 * row["median_seconds"]
        table.add_row(
            row["name"],
            row["relation"],
            number(row["median_error"], ".1e"),
            number(row["largest_error"], ".1e"),
            number(milliseconds, ",.2f") + " ms",
            number(row["median_ratio"], ",.1f"),
            str(row["failures"]),
        )
    console.print(table)
    cal, heat, imp = results["calibration"], results["heat_map"], results["import"]
    console.print(
        f"Calibration of noise to an advantage: {1e3 * cal['median_seconds']:.1f} ms against riskcal's "
        f"{cal['riskcal_median_seconds']:.1f} s, median ratio {cal['median_ratio']:,.0f}; largest relative error of the noise "
        f"{cal['largest_relative_error']:.0e} against {cal['riskcal_largest_relative_error']:.0e} ({cal['settings']} settings)."
    )
    console.print(
        f"Heat map of 100 × 100 exact values: {heat['seconds']:.1f} s; dp_accounting for {heat['dp_accounting_points']} points: "
        f"{heat['dp_accounting_seconds']:.1f} s, {heat['ratio']:.1f} times as long."
    )
    console.print(f"import betastar takes {imp['ratio']:.2f} times as long as import numpy, scipy.special.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five settings instead of twenty")
    parser.add_argument("--only", nargs="+", help="measure only these parts anew: advantage, calibration, heat_map, import")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console()
    settings = SETTINGS[::4] if options.quick else SETTINGS
    parts: dict[str, Callable[[], Any]] = {
        "advantage": lambda: measure_advantage(settings, console),
        "calibration": lambda: measure_calibration(settings, console),
        "heat_map": lambda: measure_heat_map(50),
        "import": measure_import,
    }
    if unknown := set(options.only or ()) - set(parts):
        parser.error(f"--only must be among {', '.join(parts)}, got {', '.join(sorted(unknown))}.")
    results: dict[str, Any] = {"python": platform.python_version(), "numpy": np.__version__}
    results |= {name: measure() for name, measure in parts.items() if name in (options.only or parts)}
    show(console, keep(results, options.output))
    console.print(f"Written to {options.output}.")


if __name__ == "__main__":
    main()
