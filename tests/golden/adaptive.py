"""Golden values of the adaptive worst case, computed without betastar: `make golden` writes adaptive.json beside this file.

The dynamic programme of theory section 11, as it is written there: v(r) = min over pairs of E_P[v(r·Q/P)], backwards from
min(1, r), by the trapezoidal rule over the plane of outcomes, with cubic splines of v between the nodes of log r, for every pair
of the one-parameter family in both orders. Nothing is rounded to a safe side: the value is right to about the `error` that is
given with it, twice the change when all grids are made coarser.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

HERE = Path(__file__).parent
#: Grid of outcomes for the first step, relative to that of the others.
KINK = 0.3
#: Rate, noise, distance, steps.
SETTINGS = [
    (0.3, 0.8, 1.0, 2),
    (0.3, 0.8, 1.0, 6),
    (0.1, 1.0, 0.5, 3),
    (0.02, 0.6, 0.3, 4),
    (0.5, 2.0, 1.5, 3),
    (0.05, 0.8, 0.05, 3),
    (0.9, 1.0, 0.7, 2),
]


def outcomes(p: float, sigma: float, distance: float, theta: float, width: float) -> tuple[Any, Any]:
    """(log Q/P, probability under P) of the points of a fine grid of the plane; a is at the angle θ from a - b (along t)."""
    a = np.array([np.sin(theta), np.cos(theta)]) / sigma
    b = a - np.array([0.0, distance / sigma])
    s = np.arange(-8.0, a[0] + 8.0, width) if a[0] > 1e-9 else np.zeros(1)
    t = np.arange(min(b[1], 0.0) - 8.0, a[1] + 8.0, width)
    noise = np.exp(-0.5 * (s[:, None] ** 2 * (a[0] > 1e-9) + t[None, :] ** 2))
    noise /= noise.sum()
    first, second = (
        1.0 - p + p * np.exp(m[0] * s[:, None] + m[1] * t[None, :] - 0.5 * (m[1] ** 2 + (m[0] ** 2 if a[0] > 1e-9 else 0.0)))
        for m in (a, b)
    )
    return np.log(second / first).ravel(), (noise * first).ravel()


def values(
    p: float, sigma: float, distance: float | list[float], steps: int, angles: int, nodes: int, width: float
) -> tuple[Any, list[Any]]:
    """log r, and v with 0, 1, … steps to go. distance: of all steps, or of each of them in their order."""
    distances = distance if isinstance(distance, list) else [distance] * steps
    turns = {far: np.linspace(0.0, np.arccos(0.5 * far), angles) for far in distances}
    pairs = {far: [outcomes(p, sigma, far, theta, width) for theta in thetas] for far, thetas in turns.items()}
    spread = max(float(np.sqrt(weight @ loss**2)) for some in pairs.values() for loss, weight in some)
    half = np.sinh(np.linspace(0.0, 4.0, nodes)) / np.sinh(4.0) * (9.0 * spread * np.sqrt(steps) + 2.0)  # fine near 0
    x = np.concatenate([-half[:0:-1], half])
    functions = [np.minimum(1.0, np.exp(x))]
    after: Any = None  # a spline of log v; min(1, r) has a kink, so that the first step needs a finer grid
    for far in reversed(distances):
        best = np.full(len(x), np.inf)
        for j, theta in enumerate(turns[far]):
            loss, weight = pairs[far][j] if after is not None else outcomes(p, sigma, far, theta, KINK * width)
            keep = weight > 1e-17
            for i in range(len(x)):
                at = x[i] + loss[keep]
                if after is None:
                    v = np.minimum(1.0, np.exp(at))
                else:
                    v = np.exp(after(np.clip(at, x[0], x[-1])) + np.minimum(at - x[0], 0.0))
                best[i] = min(best[i], float(weight[keep] @ v))
        # Exchanging the two worlds: v(r) = r·v(1/r).
        best = np.minimum(best, np.exp(x) * best[::-1])
        functions.append(best)
        after = CubicSpline(x, np.log(best))
    return x, functions


def advantage(setting: tuple[float, float, float, int], angles: int, nodes: int, width: float) -> float:
    x, functions = values(*setting, angles, nodes, width)
    return 1.0 - float(functions[-1][len(x) // 2])


def main() -> None:
    rows = []
    for setting in SETTINGS:
        fine, coarse = advantage(setting, 33, 61, 0.2), advantage(setting, 17, 41, 0.25)
        rows.append({"setting": setting, "advantage": fine, "error": 2.0 * abs(fine - coarse)})
        print(rows[-1], flush=True)
    (HERE / "adaptive.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
