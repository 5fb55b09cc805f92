"""Golden values far out in the tails, computed without betastar: `make golden` writes tails.json beside this file.

A record is added or removed. H_{e^τ} = 1 - (1/π)∫₀^∞ Re M(z)e^{(1-z)τ}/(z(1-z)) du on z = 1/2 + iu, by the trapezoidal rule in u
and in the outcome x, with 45 digits: so many that 1 minus the integral has digits of 1e-18. It takes minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath as mp

HERE = Path(__file__).parent
#: Noise, rate, steps, thresholds.
SETTINGS = (
    ("1.0", "0.01", 1000, ("1", "2", "4", "5", "6")),
    ("0.5", "0.001", 1000, ("1", "5", "10", "15")),
    ("1.0545086", "1.4399e-4", 87671, ("0.3", "0.4", "0.45", "0.5", "0.6")),
)
#: Nodes of x in a deviation, its reach in deviations, and the losses after which the sum in u repeats itself.
DENSE, REACH, PERIOD = 48, 15, 170


def hockey_sticks(noise: str, rate: str, steps: int, taus: tuple[str, ...]) -> list[str]:
    mp.mp.dps = 45
    s, p = mp.mpf(noise), mp.mpf(rate)
    nodes = [mp.mpf(i) / DENSE for i in range(-REACH * DENSE, (REACH + int(1 / s) + 1) * DENSE + 1)]
    losses = [mp.log(1 - p + p * mp.exp(t / s - 1 / (2 * s * s))) for t in nodes]
    step = 2 * mp.pi / PERIOD
    turns = [mp.expj(step * loss) for loss in losses]
    now = [mp.npdf(t) / DENSE * mp.exp(loss / 2) for t, loss in zip(nodes, losses, strict=True)]  # of Q·e^{zL}
    sums: list[Any] = [mp.mpf(0) for _ in taus]
    number = 0
    while True:
        m, z = mp.fsum(now) ** steps, mp.mpc(0.5, number * step)
        for i, tau in enumerate(taus):
            sums[i] += (m * mp.exp((1 - z) * mp.mpf(tau)) / (z * (1 - z))).real / (1 if number else 2)
        if number % 50 == 0 and abs(m) < mp.mpf(10) ** -38:
            return [mp.nstr(1 - step / mp.pi * total, 12) for total in sums]
        now = [one * turn for one, turn in zip(now, turns, strict=True)]
        number += 1


if __name__ == "__main__":
    rows = [
        {"noise": s, "rate": p, "steps": n, "sticks": dict(zip(taus, hockey_sticks(s, p, n, taus), strict=True))}
        for s, p, n, taus in SETTINGS
    ]
    (HERE / "tails.json").write_text(json.dumps(rows, indent=1) + "\n")
