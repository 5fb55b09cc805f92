"""Whole exact curves: a hundred points against β* alone and against peers, and single answers. `make bench` runs it (minutes).

Errors are against tests/golden. Times are processor times, medians of repeated calls. What is promised is checked (`LIMITS`): the
exit code is 1 if it does not hold. Results are written to benchmarks/results.json.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import betastar as bs
from common import SETTINGS, exact, golden_rows, keep, timed

#: False-positive rates of a curve.
RATES = np.geomspace(1e-6, 0.5, 100)
#: Of betastar: largest error, largest time relative to that of β* alone, and median seconds of a single answer.
LARGEST_ERROR, TO_BETA, SINGLE_SECONDS = 1e-6, 20.0, 0.01


def exact_curve(relation: str) -> Callable[[float, float, int, Any], Any]:
    threat = bs.Membership(relation)
    return lambda p, sigma, steps, rates: bs.analyze(bs.DPSGD(sigma, p, steps), threat).tradeoff(rates).estimate


def dp_accounting_curve(relation: str) -> Callable[[float, float, int, Any], Any]:
    """Its distribution, built and composed; the points are read off it by betastar, which costs next to nothing."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    kinds = dp.NeighboringRelation
    kind = kinds.REPLACE_ONE if relation == "substitution" else kinds.ADD_OR_REMOVE_ONE

    def call(p: float, sigma: float, steps: int, rates: Any) -> Any:
        accountant = PLDAccountant(neighboring_relation=kind)
        accountant.compose(dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(sigma)), steps)
        return bs.Risk.from_pld(accountant._pld).tradeoff(rates).upper

    return call


def riskcal_curve(p: float, sigma: float, steps: int, rates: Any) -> Any:
    from riskcal.calibration.dpsgd import get_beta_for_dpsgd

    return 1.0 - get_beta_for_dpsgd(sigma, p, steps, alpha=rates)


CURVES: list[tuple[str, str, Callable[[float, float, int, Any], Any]]] = [
    ("betastar exact", "substitution", exact_curve("substitution")),
    ("dp_accounting", "substitution", dp_accounting_curve("substitution")),
    ("betastar exact", "add-remove", exact_curve("add-remove")),
    ("dp_accounting", "add-remove", dp_accounting_curve("add-remove")),
    ("riskcal", "add-remove", riskcal_curve),
]


def measure_curves(settings: list[Any], console: Console) -> list[dict[str, Any]]:
    """A hundred points of the trade-off curve; errors are relative to the true-positive rate. riskcal's curve is the worse of the
    two directions, and has no golden values."""
    rows = []
    ours: dict[tuple[str, Any], float] = {}
    for name, relation, call in CURVES:
        truth, alone = golden_rows(relation), exact(relation)
        errors, times, to_beta, to_ours = [], [], [], []
        for setting in track(settings, f"curve, {name}, {relation}", console=console, transient=True):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                _, seconds = timed(lambda call=call, setting=setting: call(*setting, RATES))
                points = truth[setting]["tpr"]
                seen = np.asarray(call(*setting, np.array([float(fpr) for fpr in points])))
            _, beta = timed(lambda alone=alone, setting=setting: alone(*setting))
            if name == "betastar exact":
                ours[relation, setting] = seconds
            if name != "riskcal":
                right = np.array([float(tpr) for tpr in points.values()])
                errors.append(float(np.max(np.abs(seen / right - 1.0))))
            times.append(seconds)
            to_beta.append(seconds / beta)
            to_ours.append(seconds / ours[relation, setting])
        rows.append(
            {
                "name": name,
                "relation": relation,
                "median_error": statistics.median(errors) if errors else None,
                "largest_error": max(errors) if errors else None,
                "median_seconds": statistics.median(times),
                "median_ratio_to_beta": statistics.median(to_beta),
                "largest_ratio_to_beta": max(to_beta),
                "median_ratio": statistics.median(to_ours),
                "smallest_ratio": min(to_ours),
                "points": len(RATES),
                "settings": len(settings),
            }
        )
    return rows


def measure_single(settings: list[Any]) -> dict[str, Any]:
    """Seconds of one exact answer, median and largest over settings and relations."""
    asked: dict[str, Callable[[bs.Risk], Any]] = {
        "tpr": lambda risk: risk.tpr(0.01).upper,
        "epsilon": lambda risk: risk.epsilon(1e-5).upper,
        "delta": lambda risk: risk.delta(1.0).upper,
    }
    answers = {}
    for name, ask in asked.items():
        times = [
            timed(lambda ask=ask, s=setting, r=relation: ask(bs.analyze(bs.DPSGD(s[1], s[0], s[2]), bs.Membership(r))))[1]
            for relation in ("substitution", "add-remove")
            for setting in settings
        ]
        answers[name] = {"median_seconds": statistics.median(times), "largest_seconds": max(times)}
    return answers


def promises(curves: list[dict[str, Any]], single: dict[str, Any]) -> Iterator[str]:
    """What does not hold."""
    for row in curves:
        who = f"{row['name']}, {row['relation']}"
        if row["name"] == "betastar exact":
            if row["largest_error"] > LARGEST_ERROR:
                yield f"{who}: largest error {row['largest_error']:.1e}, more than {LARGEST_ERROR:g}."
            if row["largest_ratio_to_beta"] > TO_BETA:
                yield f"{who}: {row['largest_ratio_to_beta']:.1f} times as long as β* alone, more than {TO_BETA:g}."
        elif row["name"] == "dp_accounting" and row["smallest_ratio"] <= 1.0:
            yield f"{who}: faster than betastar in a setting, by {1.0 / row['smallest_ratio']:.2f}."
    for name, one in single.items():
        if one["median_seconds"] > SINGLE_SECONDS:
            yield f"{name}: {one['median_seconds']:.4f} s in the median, more than {SINGLE_SECONDS:g}."


def show(console: Console, curves: list[dict[str, Any]], single: dict[str, Any]) -> None:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    table = Table(title=f"{curves[0]['points']} points of the curve, {curves[0]['settings']} settings")
    for heading in ("", "relation", "largest error", "median time", "time / β* alone", "largest", "time / exact", "smallest"):
        table.add_column(heading, justify="left" if heading in ("", "relation") else "right")
    for row in curves:
        table.add_row(
            row["name"],
            row["relation"],
            number(row["largest_error"], ".1e"),
            f"{1e3 * row['median_seconds']:,.1f} ms",
            *(f"{row[key]:,.1f}" for key in ("median_ratio_to_beta", "largest_ratio_to_beta", "median_ratio", "smallest_ratio")),
        )
    console.print(table)
    single = ", ".join(
        f"{name} {1e3 * one['median_seconds']:.1f} ms (at most {1e3 * one['largest_seconds']:.0f} ms)"
        for name, one in single.items()
    )
    console.print(f"One exact answer, median: {single}.")


def main() -> None:
    console = Console()
    curves, single = measure_curves(SETTINGS, console), measure_single(SETTINGS)
    show(console, curves, single)
    keep({"curves": curves, "single": single})
    broken = list(promises(curves, single))
    for sentence in broken:
        console.print(f"Does not hold: {sentence}", style="red")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
