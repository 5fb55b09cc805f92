"""What the benchmarks share: settings, golden values, and how a call is timed."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import betastar as bs
from betastar.steps import poisson

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
SETTINGS = [tuple(row) for row in json.loads((HERE / "settings.json").read_text())]
#: Peers answer in seconds; a call that takes longer than this is not repeated.
PATIENCE = 0.2


def golden_rows(relation: str) -> dict[tuple[float, float, int], dict[str, Any]]:
    distance = 2.0 if relation == "substitution" else 1.0
    every = json.loads((HERE.parent / "tests" / "golden" / "golden.json").read_text())
    rows_of = {}
    for row in every:
        if row["kind"] == "line" and len(row["segments"]) == 1:
            rate, noise, far, steps = row["segments"][0]
            if far == distance:
                rows_of[rate, noise, steps] = row
    return rows_of


def golden(relation: str) -> dict[tuple[float, float, int], float]:
    return {setting: 1.0 - float(row["beta"]) for setting, row in golden_rows(relation).items()}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Answer and median seconds of a call, of processor time: what others do on the machine counts little."""
    times: list[float] = []
    answer: Any = float("nan")
    while len(times) < 7 and (not times or times[0] < PATIENCE):
        clear()
        start = time.process_time()
        answer = call()
        times.append(time.process_time() - start)
    return answer, statistics.median(times)


def clear() -> None:
    """Forget what betastar remembers between calls: each is timed as the first of its kind."""
    for build in (poisson.line, poisson.glued, poisson.symmetric):
        build.cache_clear()


def exact(relation: str) -> Callable[[float, float, int], float]:
    threat = bs.Membership(relation)
    return lambda p, sigma, steps: float(bs.analyze(bs.DPSGD(sigma, p, steps), threat).advantage.estimate)


def keep(results: dict[str, Any], path: Path = RESULTS) -> dict[str, Any]:
    """Write results over those of their name in the file; what the file then holds."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | results, indent=1) + "\n")
    return known | results
