"""Golden values of unequal norms and rates, computed without betastar: `make golden` writes unequal.json beside this file.

P = (1-p)N(0, σ²) + pN(n, σ²) against Q = (1-q)N(0, σ²) + qN(-m, σ²); m = 0: the record against nothing. By mpmath, 30 digits:
  one step: the half-line on which P exceeds αQ, by bisection, and normal tails, both ways;
  more steps: β* = (2/π)∫ Re Ψ(½ sinh v)/cosh v dv with Ψ(u) = (∫√(PQ)·e^{iu log P/Q} dx)^T, both by the trapezoidal rule.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath as mp

HERE = Path(__file__).parent
mp.mp.dps = 30
TAUS = (0.0, 0.4, 1.5)

#: p, n, q, m, σ of one step; and with the number of steps.
SINGLE = [
    (0.1, 0.5, 0.1, 1, 1.0),
    (0.02, 0.25, 0.3, 1, 0.6),
    (0.3, 0.8, 0.05, 0.4, 2.0),
    (0.5, 0.01, 0.2, 1, 0.5),
    (1, 0.3, 0.4, 1, 1.2),
]
MANY = [
    (0.1, 0.5, 0.1, 1, 0.7, 50),
    (0.1, 0.1, 0.1, 1, 0.7, 50),
    (256 / 26048 / 4, 1, 256 / 26048, 1, 3.51, 2040),
    (0.02, 0.3, 0.005, 1, 1.0, 300),
    (256 / 26048, 0.25, 256 / 26048, 0, 3.51, 2040),
    (0.1, 0.5, 0.1, 0, 0.7, 50),
]


def worlds(x: Any, p: Any, n: Any, q: Any, m: Any, s: Any) -> tuple[Any, Any]:
    rest = mp.npdf(x, 0, s)
    return (1 - p) * rest + p * mp.npdf(x, n, s), (1 - q) * rest + q * mp.npdf(x, -m, s)


def sticks(p: Any, n: Any, q: Any, m: Any, s: Any) -> list[list[Any]]:
    """τ, H_{e^τ}(P‖Q), H_{e^τ}(Q‖P)."""
    rows = []
    for tau in TAUS:
        both = []
        for sign in (1, -1):  # x → -x exchanges the worlds
            a, n1, b, m1 = (p, n, q, m) if sign == 1 else (q, m, p, n)
            low, high = -40 * s - 1, 40 * s + 1
            for _ in range(130):
                middle = (low + high) / 2
                first, other = worlds(middle, a, n1, b, m1, s)
                low, high = (low, middle) if first > mp.exp(tau) * other else (middle, high)
            first = (1 - a) * mp.ncdf(-high / s) + a * mp.ncdf((n1 - high) / s)
            other = (1 - b) * mp.ncdf(-high / s) + b * mp.ncdf((-m1 - high) / s)
            both.append(mp.nstr(first - mp.exp(tau) * other, 17))
        rows.append([tau, *both])
    return rows


def composed(p: Any, n: Any, q: Any, m: Any, s: Any, steps: int) -> Any:
    """β* of many steps. The nodes in x are finer than the nearest singularity asks for."""
    cell = s / 16
    points = [cell * k for k in range(int((-m - 11 * s) / cell), int((n + 11 * s) / cell) + 1)]
    pairs = [worlds(x, p, n, q, m, s) for x in points]
    table = [(mp.sqrt(a * b) * cell, mp.log(a / b)) for a, b in pairs]
    total, step = mp.mpf(0), mp.mpf(1) / 32
    for k in range(1000):
        v = k * step
        u = mp.sinh(v) / 2
        psi = mp.fsum(root * mp.expj(u * loss) for root, loss in table) ** steps
        total += (mp.mpf(1) / 2 if k == 0 else 1) * psi.real / mp.cosh(v)
        if abs(psi) < mp.mpf(10) ** -22:
            break
    return 2 / mp.pi * step * total


def main() -> None:
    rows: list[dict[str, Any]] = []
    for numbers in SINGLE:
        exact = sticks(*(mp.mpf(one) for one in numbers))
        rows.append({"step": numbers, "count": 1, "sticks": exact, "beta": mp.nstr(1 - mp.mpf(exact[0][1]), 17)})
    for *numbers, count in MANY:
        beta = composed(*(mp.mpf(one) for one in numbers), count)
        rows.append({"step": numbers, "count": count, "sticks": [], "beta": mp.nstr(beta, 17)})
    (HERE / "unequal.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
