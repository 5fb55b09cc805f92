"""Golden values of groups, computed without betastar: `make golden` writes groups.json beside this file.

Three independent ways:
  single   one step: the half-line on which P exceeds αQ, by bisection, and normal tails (mpmath, 30 digits);
  nested   two steps: H of the product is ∫ P(x)·H_{α/r(x)} dx over the first one, by the trapezoidal rule, with the half-line of
           the second one by bisection at each x;
  dense    more steps: (2/π)∫ Re Ψ(½ sinh v)/cosh v dv with x on a real grid that is finer than it must be, in 80-bit arithmetic.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
from scipy.special import ndtr

HERE = Path(__file__).parent
mp.mp.dps = 30


def weights(k: int, p: float) -> list[Any]:
    return [mp.binomial(k, j) * mp.mpf(p) ** j * (1 - mp.mpf(p)) ** (k - j) for j in range(k + 1)]


class Worlds:
    """P = Σ w_j N(j, σ²) against its mirror image, or N(0, σ²)."""

    def __init__(self, k: int, p: float, s: float, mirrored: bool) -> None:
        self.w, self.s, self.mirrored, self.k = weights(k, p), mp.mpf(s), mirrored, k

    def density(self, x: Any) -> tuple[Any, Any]:
        first = mp.fsum(w * mp.npdf(x, j, self.s) for j, w in enumerate(self.w))
        other = mp.fsum(w * mp.npdf(x, -j, self.s) for j, w in enumerate(self.w)) if self.mirrored else mp.npdf(x, 0, self.s)
        return first, other

    def above(self, x: Any) -> tuple[Any, Any]:
        first = mp.fsum(w * mp.ncdf((j - x) / self.s) for j, w in enumerate(self.w))
        other = mp.fsum(w * mp.ncdf((-j - x) / self.s) for j, w in enumerate(self.w)) if self.mirrored else mp.ncdf(-x / self.s)
        return first, other

    def stick(self, alpha: Any) -> Any:
        """H_α: the loss increases with x."""
        if not self.mirrored and alpha <= self.w[0]:
            return 1 - alpha
        low, high = -40 * self.s - self.k, 40 * self.s + self.k
        for _ in range(110):
            middle = (low + high) / 2
            first, other = self.density(middle)
            low, high = (low, middle) if first > alpha * other else (middle, high)
        first, other = self.above(high)
        return first - alpha * other


def nested(k: int, p: float, s: float, mirrored: bool) -> float:
    """β* of two equal steps: 1 - ∫ P(x)·H_{Q(x)/P(x)}(P‖Q) dx."""
    w = np.array([float(one) for one in weights(k, p)])
    j = np.arange(k + 1)

    def densities(x: Any) -> tuple[Any, Any]:
        first, mirror = ((w * np.exp(-0.5 * ((x[:, None] - sign * j) / s) ** 2)).sum(axis=1) for sign in (1, -1))
        return first, mirror if mirrored else np.exp(-0.5 * (x / s) ** 2)

    x = np.linspace(-(k if mirrored else 0) - 9.0 * s, k + 9.0 * s, 6001)
    first, other = densities(x)
    ratio = other / first
    low, high = np.full(len(x), -40.0 * s - k), np.full(len(x), 40.0 * s + k)
    for _ in range(90):
        middle = 0.5 * (low + high)
        one, two = densities(middle)
        larger = one > ratio * two
        low, high = np.where(larger, low, middle), np.where(larger, middle, high)
    above, mirror = ((w * ndtr((sign * j - high[:, None]) / s)).sum(axis=1) for sign in (1, -1))
    sticks = above - ratio * (mirror if mirrored else ndtr(-high / s))
    if not mirrored:
        sticks = np.where(ratio <= w[0], 1.0 - ratio, sticks)
    return float(1.0 - (first * sticks).sum() * (x[1] - x[0]) / (np.sqrt(2.0 * np.pi) * s))


def dense(k: int, p: float, s: float, mirrored: bool, steps: int) -> float:
    long = np.longdouble
    w = np.array([float(one) for one in weights(k, p)], dtype=long)
    j = np.arange(k + 1)
    x = np.linspace(-(k if mirrored else 0) - 12 * s, k + 12 * s, 8001).astype(long)
    cell = x[1] - x[0]

    def world(sign: int) -> Any:
        return (np.exp(-0.5 * ((x[:, None] - sign * j) / long(s)) ** 2) * w).sum(axis=1) / (np.sqrt(2 * long(np.pi)) * long(s))

    first = world(1)
    other = world(-1) if mirrored else np.exp(-0.5 * (x / long(s)) ** 2) / (np.sqrt(2 * long(np.pi)) * long(s))
    keep = (first > 0) & (other > 0)
    root, loss = np.sqrt(first * other)[keep] * cell, np.log(first / other)[keep]
    v = 0.02 * np.arange(600)
    total = long(0)
    for one in v:
        u = 0.5 * np.sinh(one)
        psi = (root * np.exp(1j * u * loss)).sum() ** steps
        total += (0.5 if one == 0.0 else 1.0) * psi.real / np.cosh(one)
        if abs(psi) < 1e-25:
            break
    return float(2 / np.pi * 0.02 * total)


SINGLE = [(2, 0.1, 1.0), (8, 0.01, 0.5), (20, 0.3, 4.0), (100, 0.001, 1.5)]
NESTED = [(2, 0.25, 1.0), (3, 0.05, 0.7)]
DENSE = [(2, 0.05, 0.8, 20), (4, 0.01, 1.0, 100), (8, 256 / 26048, 3.51, 2040), (30, 0.002, 2.0, 500)]


def main() -> None:
    rows: list[dict[str, Any]] = []
    for mirrored in (True, False):
        for k, p, s in SINGLE:
            worlds = Worlds(k, p, s, mirrored)
            sticks = [[tau, mp.nstr(worlds.stick(mp.e ** mp.mpf(tau)), 17)] for tau in (0.0, 0.5, 2.0)]
            row = {"records": k, "rate": p, "noise": s, "steps": 1, "mirrored": mirrored, "sticks": sticks}
            rows.append(row | {"beta": mp.nstr(1 - worlds.stick(mp.mpf(1)), 17)})
        for k, p, s in NESTED:
            beta = repr(nested(k, p, s, mirrored))
            rows.append({"records": k, "rate": p, "noise": s, "steps": 2, "mirrored": mirrored, "sticks": [], "beta": beta})
        for k, p, s, n in DENSE:
            beta = repr(dense(k, p, s, mirrored, n))
            rows.append({"records": k, "rate": p, "noise": s, "steps": n, "mirrored": mirrored, "sticks": [], "beta": beta})
    (HERE / "groups.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
