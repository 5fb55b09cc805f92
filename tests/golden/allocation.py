"""Golden values of random allocation, computed without betastar: `make golden` writes allocation.json beside this file.

An epoch of t batches is (1/t)·Σ N(e_i, σ²) against (1/t)·Σ N(-e_i, σ²) (substitution) or N(0, σ²) (add/remove). Three ways, each
where it is beyond doubt:
  nested          two batches (substitution: or three): given all outputs but one, H_α and Q(L > τ) are closed forms of the
                  Gaussian distribution function; the trapezoidal rule over the others;
  two epochs      of two batches: H_α = E[A·H_{αB/A}] over the outputs of the first epoch, with its likelihoods A and B;
  characteristic  any number of batches: E[W₊] = E[W]/2 + (1/π)∫ (1 - Re φ_W(u))/u² du with W = Σ (X_i - αY_i), u real.
Each value comes with twice its change when the grids are made coarser.
"""

from __future__ import annotations

import json
from math import log, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

HERE = Path(__file__).parent
#: Batches, noise, substitution, thresholds.
NESTED = [
    (2, 1.0, True, (0.0, 1.0, 4.0)),
    (2, 0.5, True, (0.0, 3.0)),
    (2, 5.0, True, (0.0, 0.5)),
    (2, 3.0, False, (-0.5, 0.0, 0.7)),
    (2, 0.6, False, (-2.0, 0.0, 3.0)),
    (3, 0.8, True, (0.0, 2.0)),
]
TWO_EPOCHS = [(2, 1.0, True, (0.0, 2.0)), (2, 1.5, False, (-1.0, 0.0, 1.5))]
CHARACTERISTIC = [
    (100, 1.0, True, (0.0, 0.5)),
    (10, 1.0, True, (0.0,)),
    (100, 2.0, True, (0.0,)),
    (50, 0.6, True, (0.0, 1.0)),
    (10000, 1.0, True, (0.0, 0.02)),
    (1000, 0.4, True, (0.0,)),
    (10, 0.5, False, (0.0, 1.0)),
    (100, 0.5, False, (0.0, 1.0)),
    (20, 1.0, False, (-0.3, 0.0, 0.5)),
    (50, 0.3, False, (0.0, 1.0)),
    (100, 2.0, False, (0.0,)),
    (10000, 1.0, False, (-0.01, 0.0, 0.02)),
]


def outputs(s: float, count: int, step: float) -> tuple[Any, Any]:
    """Outputs y ~ N(0, s²) of this many batches (along the first axis), and their weights."""
    one = s * step * np.arange(-int(9.0 / step), int((9.0 + s) / step) + 1)
    weight = np.exp(-0.5 * (one / s) ** 2) * step / sqrt(2.0 * pi)
    grids = np.meshgrid(*[one] * count, indexing="ij")
    weights = np.ones(())
    for _ in range(count):
        weights = np.multiply.outer(weights, weight)
    return np.stack([grid.ravel() for grid in grids]), weights.ravel()


def likelihoods(y: Any, s: float, mirrored: bool) -> tuple[Any, Any]:
    """Σ X_i and Σ Y_i."""
    first = np.exp(y - 0.5 * s * s).sum(axis=0)
    return first, np.exp(-y - 0.5 * s * s).sum(axis=0) if mirrored else np.full(first.shape, float(len(y)))


def nested(t: int, s: float, mirrored: bool, alpha: Any, step: float) -> tuple[Any, Any]:
    """H_α and Q(L > log α), for an array of α."""
    alpha = np.asarray(alpha, dtype=float)[..., None]
    if not mirrored:
        return nested_without(s, alpha, step)
    y, weights = outputs(s, t - 1, step)
    first, second = likelihoods(y, s, mirrored)
    k = np.exp(-0.5 * s * s)
    rest = first - alpha * second  # and X - αY of the last one, which grows with its y
    root = np.sqrt(rest**2 + 4.0 * alpha * k * k)
    with np.errstate(over="ignore"):
        start = np.log(np.where(rest > 0.0, 2.0 * alpha * k / np.maximum(rest + root, 1e-300), (root - rest) / (2.0 * k)))
    above = ndtr(-start / s)
    last, other = ndtr((s * s - start) / s), ndtr((-s * s - start) / s)
    return (rest * above + last - alpha * other) @ weights / t, (second * above + other) @ weights / t


def nested_without(s: float, alpha: Any, step: float) -> tuple[Any, Any]:
    """The same for add/remove and two batches. Where the first likelihood X is above 2α, the other one does not matter.

    Below, X = 2α/(1 + e^z), and all real z are seen; the other one must exceed 2α/(1 + e^{-z}).
    """
    edge = np.log(2.0 * alpha[..., 0]) + 0.5 * s * s
    sure, sure_tilted = ndtr(-edge / s), ndtr((s * s - edge) / s)
    z = step * np.arange(-int((40.0 + 14.0 * s + s * s) / step), int((40.0 + 14.0 * s + s * s) / step))
    y = np.log(2.0 * alpha) - np.logaddexp(0.0, z) + 0.5 * s * s
    start = np.log(2.0 * alpha) - np.logaddexp(0.0, -z) + 0.5 * s * s
    weights = step / (1.0 + np.exp(-z)) * np.exp(-0.5 * (y / s) ** 2) / (s * sqrt(2.0 * pi))
    missing = 2.0 * alpha / (1.0 + np.exp(-z))
    above, tilted = ndtr(-start / s), ndtr((s * s - start) / s)
    stick = sure_tilted + (1.0 - 2.0 * alpha[..., 0]) * sure + (weights * (tilted - missing * above)).sum(axis=-1)
    return stick / 2.0, sure + (weights * above).sum(axis=-1)


def two_epochs(t: int, s: float, mirrored: bool, alpha: float, step: float) -> tuple[float, float]:
    y, weights = outputs(s, t, step)
    first, second = likelihoods(y, s, mirrored)
    sticks, masses = [], []
    for some in np.array_split(np.arange(len(weights)), 1 + len(weights) // 2000):
        stick, mass = nested(t, s, mirrored, alpha * second[some] / first[some], step)
        sticks.append(float(weights[some] @ (first[some] / t * stick)))
        masses.append(float(weights[some] @ (second[some] / t * mass)))
    return sum(sticks), sum(masses)


def characteristic(t: int, s: float, mirrored: bool, alpha: float, step: float) -> float:
    """H_α. y runs on a line above the real one, where e^{iuw} decays for u > 0; u = e^v."""
    height = min(1.1 * s, 1.3)
    y = height * step * np.arange(-int((10.0 * s + abs(log(alpha))) / (height * step)), int((s * s + 10.0 * s) / (height * step)))
    y = y + 1j * height
    weight = np.exp(-0.5 * (y / s) ** 2) * (height * step / (s * sqrt(2.0 * pi)))
    term = np.exp(y - 0.5 * s * s) - (alpha * np.exp(-y - 0.5 * s * s) if mirrored else alpha)
    v = 0.25 * step * np.arange(-int(4 * 45.0 / step), int(4 * 45.0 / step))
    total = 0.0
    for some in np.array_split(v, 200):
        u = np.exp(some)
        with np.errstate(under="ignore"):
            phi = np.expm1(1j * np.multiply.outer(u, term)) @ weight  # minus 1
            power = 0.5 * np.log1p(np.maximum(2.0 * phi.real + np.abs(phi) ** 2, -1.0 + 1e-16)) + 1j * np.arctan2(
                phi.imag, 1.0 + phi.real
            )
            total -= float((np.expm1(t * power).real / u).sum())
    return (0.5 * t * (1.0 - alpha) + 0.25 * step * total / pi) / t


def main() -> None:
    rows: list[dict[str, Any]] = []

    def add(way: str, t: int, noise: float, mirrored: bool, epochs: int, tau: float, fine: Any, coarse: Any) -> None:
        row = {"way": way, "batches": t, "noise": noise, "mirrored": mirrored, "epochs": epochs, "tau": tau}
        for name, value, other in zip(("stick", "mass"), fine, coarse, strict=False):
            row |= {name: float(value), f"{name}_error": 2.0 * abs(float(value) - float(other)) + 1e-14}
        rows.append(row)
        print(row, flush=True)

    for t, noise, mirrored, taus in NESTED:
        for tau in taus:
            values = [nested(t, 1.0 / noise, mirrored, np.exp(tau), step) for step in (0.02, 0.025)]
            add("nested", t, noise, mirrored, 1, tau, *values)
    for t, noise, mirrored, taus in TWO_EPOCHS:
        for tau in taus:
            values = [two_epochs(t, 1.0 / noise, mirrored, float(np.exp(tau)), step) for step in (0.1, 0.125)]
            add("two epochs", t, noise, mirrored, 2, tau, *values)
    for t, noise, mirrored, taus in CHARACTERISTIC:
        for tau in taus:
            values = [(characteristic(t, 1.0 / noise, mirrored, float(np.exp(tau)), step),) for step in (0.1, 0.13)]
            add("characteristic", t, noise, mirrored, 1, tau, *values)
    (HERE / "allocation.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
