"""Golden values of β* and TPR, computed without betastar: `make golden` writes golden.json beside this file.

Three independent ways, each where it is beyond doubt:
  gaussian  no sampling (p = 1): the run is one Gaussian, in closed form (mpmath);
  nested    two steps: H of the product is ∫ P(x)·H_{α/r(x)} dx over the first step, with closed-form H of the second
            (mpmath, adaptive quadrature, 30 digits); points of the curve likewise, at rates that belong to chosen thresholds;
  dense     any number of steps: the Fourier integral of theory section 3 on the line Re z = 1/2 with x on a grid four
            times as fine and v on a grid sixteen times as fine as a careful person would take, in 80-bit arithmetic.
Curves of `dense` are on a uniform grid in u: it resolves every oscillation, and a law whose losses span less than 2π over its
step comes out to rounding. The glued curve enters `nested` through its two halves and its atom, `dense` through its own integral over x > 1 - R/2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

HERE = Path(__file__).parent
LONG = np.clongdouble
mp.mp.dps = 30

Setting = list[tuple[float, float, float, int]]  # segments (rate, noise, distance, steps)


# ---- one Gaussian


def gaussian_beta(setting: Setting) -> Any:
    mu = mp.sqrt(sum(n * (mp.mpf(r) / s) ** 2 for _, s, r, n in setting))
    return mp.erfc(mu / (2 * mp.sqrt(2)))


def gaussian_tpr(setting: Setting, fpr: float) -> Any:
    mu = mp.sqrt(sum(n * (mp.mpf(r) / s) ** 2 for _, s, r, n in setting))
    quantile = mp.sqrt(2) * mp.erfinv(2 * mp.mpf(fpr) - 1)
    return mp.ncdf(quantile + mu)


# ---- two steps, nested


def mixture(p: Any, s: Any, mean: Any, x: Any) -> Any:
    return (1 - p) * mp.npdf(x, 0, s) + p * mp.npdf(x, mean, s)


def above(p: Any, s: Any, mean: Any, x: Any) -> Any:
    """Mass of the mixture above x."""
    return (1 - p) * mp.ncdf(-x / s) + p * mp.ncdf((mean - x) / s)


def one_step(kind: str, p: Any, s: Any, r: Any, alpha: Any) -> Any:
    """H_α of one step: the set where P > αQ is a half-line, found by bisection. `line` is (1, 1-R), `glued` its gluing."""
    if alpha < 1:
        if kind == "glued":
            return 1 - alpha + alpha * one_step(kind, p, s, r, 1 / alpha)
        if r == 1 and alpha <= 1 - p:
            return 1 - alpha
    a, b = mp.mpf(1), 1 - r
    low, high = mp.mpf(-40) * s - 40, mp.mpf(40) * s + 40
    for _ in range(110):
        middle = (low + high) / 2
        if mixture(p, s, a, middle) > alpha * mixture(p, s, b, middle):
            high = middle
        else:
            low = middle
    return above(p, s, a, high) - alpha * above(p, s, b, high)


def nested_beta(kind: str, setting: Setting) -> Any:
    """1 - H_1 of two equal steps."""
    ((p, s, r, n),) = setting
    assert n == 2
    p, s, r = mp.mpf(p), mp.mpf(s), mp.mpf(r)
    b = 1 - r

    def ratio(x: Any) -> Any:
        return mixture(p, s, 1, x) / mixture(p, s, b, x)

    marks = {-12 * s + min(b, 0), min(b, mp.mpf(0)), mp.mpf(0), 1 - r / 2, mp.mpf(1), 1 + 12 * s}
    if kind == "line" and r == 1:  # losses of add/remove are bounded below: the integrand has a kink where r(x) = 1/(1-p)
        kink = mp.mpf(1) / 2 + s * s * mp.log((1 / (1 - p) - (1 - p)) / p)
        marks |= {kink - s * s, kink, kink + s * s}
    marks = sorted(marks)
    grid = [m for i, m in enumerate(marks) if i == 0 or m - marks[i - 1] > mp.mpf("1e-9")]
    if kind == "line":
        return 1 - mp.quad(lambda x: mixture(p, s, 1, x) * one_step(kind, p, s, r, 1 / ratio(x)), grid)
    # First step glued: loss log r(x) with mass P, loss -log r(x) with mass Q, on x > 1 - R/2, and an atom at 0.
    right = [m for m in grid if m >= 1 - r / 2 - mp.mpf("1e-12")]
    atom = (1 - p) * mp.erf((1 - r / 2) / (mp.sqrt(2) * s))
    up = mp.quad(lambda x: mixture(p, s, 1, x) * one_step("glued", p, s, r, 1 / ratio(x)), right)
    down = mp.quad(lambda x: mixture(p, s, b, x) * one_step("glued", p, s, r, ratio(x)), right)
    return 1 - up - down - atom * one_step("glued", p, s, r, mp.mpf(1))


def nested_point(setting: Setting, tau: Any) -> tuple[Any, Any]:
    """(Q(L > τ), P(L > τ)) of two equal steps of the line pair with R = 1 or 2, whose loss increases in x."""
    ((p, s, r, n),) = setting
    assert n == 2
    assert r in (1, 2)
    p, s, r = mp.mpf(p), mp.mpf(s), mp.mpf(r)
    b = 1 - r

    def loss(x: Any) -> Any:
        return mp.log(mixture(p, s, 1, x) / mixture(p, s, b, x))

    floor = mp.log(1 - p) if r == 1 else -mp.inf
    hit = p * mp.exp(-1 / (2 * s * s))

    def start(level: Any) -> Any:
        """The x beyond which the loss of the second step exceeds the level: a linear or quadratic equation for e^{x/σ²}."""
        if level <= floor:
            return -mp.inf
        ratio = mp.exp(level)
        if r == 1:
            return s * s * mp.log((ratio - (1 - p)) / hit)
        half = (1 - p) * (ratio - 1) / (2 * hit)
        root = mp.sqrt(half * half + ratio)
        return s * s * mp.log(half + root if half >= 0 else ratio / (root - half))

    def mass(mean: Any, x: Any) -> Any:
        return mixture(p, s, mean, x) * (1 if (edge := start(tau - loss(x))) == -mp.inf else above(p, s, mean, edge))

    marks = {-12 * s + min(b, 0), min(b, mp.mpf(0)), mp.mpf(0), 1 - r / 2, mp.mpf(1), 1 + 12 * s}
    if r == 1 and tau - floor > floor:  # the second step always exceeds what is left from here on
        kink = mp.mpf(1) / 2 + s * s * mp.log((mp.exp(tau - floor) - (1 - p)) / p)
        marks |= {kink - s * s, kink, kink + s * s}
    turn = mp.mpf(1) / 2 + s * s * mp.log((1 - p) / p)  # where a step begins to tell much
    marks |= {turn - s * s, turn + s * s, turn / 2}
    grid = sorted(marks)
    grid = [m for i, m in enumerate(grid) if i == 0 or m - grid[i - 1] > mp.mpf("1e-9")]
    return mp.quad(lambda x: mass(b, x), grid), mp.quad(lambda x: mass(mp.mpf(1), x), grid)


# ---- many steps, dense


def long_expm1(z: Any) -> Any:
    half = np.sin(z.imag / 2)
    return (np.expm1(z.real) - 2 * np.exp(z.real) * half * half) + 1j * np.exp(z.real) * np.sin(z.imag)


def long_log1p(z: Any) -> Any:
    square = 2 * z.real + z.real**2 + z.imag**2
    size = np.where(square > -0.5, np.log1p(np.maximum(square, -0.9)) / 2, np.log(np.maximum(abs(1 + z), 1e-300)))
    return size + 1j * np.arctan2(z.imag, 1 + z.real)


def dense_nodes(kind: str, p: float, s: float, r: float) -> tuple[Any, Any, bool]:
    """Weights of Q and losses on a shifted line (or, glued, on a half-line by an exponential map), in 80 bits."""
    p, s, r = np.longdouble(p), np.longdouble(s), np.longdouble(r)
    b = 1 - r
    height = np.longdouble(1.1) if p == 1 else min(np.pi * s / 2.2, np.longdouble(1.1))
    h = height / 22
    if kind == "glued" and r < 2:
        u = np.arange(-22, float((1 - (1 - r / 2)) / s) + 10.5, float(min(h, 0.04)), dtype=np.longdouble)
        q = np.logaddexp(np.longdouble(0), u)
        dq = 1 / (1 + np.exp(-u))
        t = (1 - r / 2) / s + q * (1 + 1j * height / (height + q))
        w = (u[1] - u[0]) * dq * (1 + 1j * (height / (height + q)) ** 2)
    else:
        t = np.arange(float(min(b, 0) / s) - 10.5, float(1 / s) + 10.5, float(h), dtype=np.longdouble) + 1j * height
        w = np.full(t.shape, np.longdouble(t[1].real - t[0].real), dtype=LONG)
    upper, lower = (t - 0.5 / s) / s, (b * t - 0.5 * b * b / s) / s
    below = (1 - p) + p * np.exp(lower)
    gap = r * (t - (1 - r / 2) / s) / s
    if p == 1:
        loss = gap
    else:
        ratio = p * np.exp(lower) * long_expm1(gap) / below
        far = np.log(((1 - p) + p * np.exp(upper)) / below)
        loss = np.where((ratio.real > -0.5) & (abs(ratio) < 1e6), long_log1p(np.where(abs(ratio) < 1e6, ratio, 0)), far)
    weight = w * np.exp(-t * t / 2) / np.sqrt(2 * np.longdouble(np.pi)) * below
    return weight, loss, kind == "glued" and r < 2


def dense_log(kind: str, setting: Setting, u: Any) -> Any:
    """log of the composed transform at z = 1/2 + iu."""
    z = np.longdouble(0.5) + 1j * u.astype(np.longdouble)
    total = np.zeros(u.shape, dtype=LONG)
    for p, s, r, n in setting:
        weight, loss, half = dense_nodes(kind, p, s, r)
        gain = (weight * long_expm1(loss)).sum().real if half else 0
        value = np.empty(u.shape, dtype=LONG)
        for i in range(0, len(u), 64):
            value[i : i + 64] = (weight * long_expm1(z[i : i + 64, None] * loss)).sum(axis=1)
        total += np.longdouble(n) * long_log1p(2 * value.real - gain + 0j if half else value)
    return total


class Dense:
    """E[min(P, e^τ Q)] = (2/π) ∫ Re[Ψ(u) e^{(1/2-iu)τ}] / cosh v dv, u = ½ sinh v."""

    def __init__(self, kind: str, setting: Setting, step: float) -> None:
        self.step = step
        self.v = np.arange(0.0, 40.0, step).astype(np.longdouble)
        self.u = np.sinh(self.v) / 2
        self.log = dense_log(kind, setting, self.u)

    def overlap(self, tau: float = 0.0) -> Any:
        f = np.exp(self.log + (np.longdouble(0.5) - 1j * self.u) * np.longdouble(tau)).real / np.cosh(self.v)
        f[0] /= 2
        return 2 / np.longdouble(np.pi) * np.longdouble(self.step) * f.sum()


class Uniform:
    """H_{e^τ} = 1 - e^{τ/2}·(4/π) ∫ Re[Ψ(u) e^{-iuτ}]/(1 + 4u²) du at equal steps of u."""

    def __init__(self, kind: str, setting: Setting, span: float = 200.0) -> None:
        self.step = 2 * np.pi / span  # losses span less than this, on both sides together
        blocks, start = [], 0
        while start < 4_000_000:
            u = self.step * np.arange(start, start + 4096)
            blocks.append((u, dense_log(kind, setting, u)))
            start += 4096
            if np.max(blocks[-1][1].real) < -46:
                break
        self.u = np.concatenate([u for u, _ in blocks]).astype(np.longdouble)
        self.log = np.concatenate([log for _, log in blocks])
        weight = np.longdouble(4 * self.step) / np.longdouble(np.pi) / (1 + 4 * self.u**2)
        weight[0] /= 2
        self.psi = np.exp(self.log) * weight

    def overlap(self, tau: float) -> Any:
        half = np.longdouble(0.5) * np.longdouble(tau)
        phase = self.u * np.longdouble(tau)
        return np.exp(half) * (self.psi.real * np.cos(phase) + self.psi.imag * np.sin(phase)).sum()

    def tpr(self, fpr: float) -> Any:
        """min over τ of 1 - overlap + e^τ·FPR, by golden section."""
        spread = float(np.sqrt(-8 * self.log[0].real))
        low = -8 * spread - spread**2
        high = min(float(-np.log(fpr)), 40.0)
        inverse = (5**0.5 - 1) / 2

        def value(tau: float) -> Any:
            return 1 - self.overlap(tau) + np.exp(np.longdouble(tau)) * np.longdouble(fpr)

        c, d = high - inverse * (high - low), low + inverse * (high - low)
        fc, fd = value(c), value(d)
        for _ in range(50):
            if fc < fd:
                high, d, fd = d, c, fc
                c = high - inverse * (high - low)
                fc = value(c)
            else:
                low, c, fc = c, d, fd
                d = low + inverse * (high - low)
                fd = value(d)
        return min(fc, fd)


# ---- the set

NESTED: list[tuple[str, Setting]] = [
    ("line", [(p, s, r, 2)])
    for p, s, r in [
        (1e-8, 0.2, 2.0), (1e-4, 0.2, 2.0), (0.02, 0.35, 2.0), (0.3, 0.2, 2.0), (0.9, 0.5, 2.0), (0.1, 3.0, 2.0),
        (0.5, 100.0, 2.0), (1e-8, 0.2, 1.0), (1e-4, 0.2, 1.0), (0.02, 0.35, 1.0), (0.3, 0.2, 1.0), (0.9, 0.5, 1.0), (0.1, 3.0, 1.0),
    ]
] + [
    ("glued", [(p, s, r, 2)])
    for p, s, r in [(1e-4, 0.2, 1.0), (0.05, 0.3, 0.5), (0.3, 0.8, 1.0), (0.3, 0.8, 1.7), (0.01, 3.0, 0.1), (0.9, 0.5, 0.6), (0.5, 100.0, 1.0)]
]  # fmt: skip

GAUSSIAN: list[Setting] = [
    [(1.0, s, r, n)]
    for s, r, n in [
        (0.2, 2.0, 1), (0.5, 1.0, 1), (2.0, 2.0, 10), (5.0, 1.0, 3), (20.0, 2.0, 1000), (100.0, 2.0, 10**4), (100.0, 1.0, 3),
        (50.0, 0.3, 10**5), (2.0, 0.25, 40), (100.0, 0.01, 10**9), (1.0, 2.0, 200),
    ]
]  # fmt: skip

DENSE: list[tuple[str, Setting, float]] = [
    # Substitution: the settings of theory section 3, and the corners of the range.
    *[
        ("line", [(p, s, 2.0, n)], 1 / 64)
        for p, s, n in [
            (0.001, 1.0, 50000), (0.001, 0.5, 50000), (1e-4, 5.0, 500000), (1e-4, 0.5, 10000), (0.1, 1.0, 500), (256 / 26048, 3.51, 2020),
            (256 / 26048, 3.51, 2040), (0.02, 0.35, 30), (1e-3, 0.25, 500), (1e-8, 100.0, 10**9), (1e-8, 0.2, 10**9), (1e-8, 0.2, 10**6),
            (1e-6, 0.3, 10**7), (1e-5, 1.0, 10**9), (1e-4, 20.0, 10**9), (0.01, 100.0, 10**8), (0.5, 10.0, 300), (0.5, 2.0, 20), (0.2, 1.0, 500),
            (0.02, 0.6, 5), (0.9, 3.0, 50), (1e-3, 1.0, 1), (0.3, 0.2, 3), (0.05, 0.2, 100), (1e-4, 2.0, 500000), (512 / 157859, 1.8, 6180),
            (0.01, 0.8, 3000), (1e-3, 0.2, 3), (0.7, 30.0, 10**4), (1e-7, 0.5, 10**9),
        ]
    ],
    # Add/remove, where the plateau does not oscillate faster than the grid.
    *[
        ("line", [(p, s, 1.0, n)], step)
        for p, s, n, step in [
            (0.001, 1.0, 50000, 1 / 64), (0.01, 1.0, 1000, 1 / 64), (256 / 26048, 3.51, 2040, 1 / 64), (1e-8, 100.0, 10**9, 1 / 64), (1e-4, 5.0, 500000, 1 / 64),
            (0.1, 1.0, 500, 1 / 64), (0.02, 0.35, 30, 1 / 128), (1e-3, 0.25, 500, 1 / 128), (0.2, 1.0, 500, 1 / 64), (1e-4, 0.5, 10000, 1 / 64),
            (1e-5, 1.0, 10**9, 1 / 64), (0.5, 10.0, 300, 1 / 64), (1e-6, 0.4, 10**8, 1 / 64),
        ]
    ],
    # The glued curve of attribute distances.
    *[
        ("glued", [(p, s, r, n)], 1 / 64)
        for p, s, r, n in [
            (0.01, 3.51, 0.97, 2020), (0.01, 1.0, 1.0, 1000), (0.3, 0.8, 1.0, 6), (1e-3, 0.5, 1.9, 20000), (1e-4, 1.0, 0.05, 10**8), (0.02, 0.3, 0.7, 40),
            (1e-8, 50.0, 1.5, 10**9), (0.5, 5.0, 0.2, 500), (0.001, 2.0, 0.01, 10**6),
        ]
    ],
    # Runs whose noise, rate or distance change.
    ("line", [(0.01, 2.0, 2.0, 500), (0.01, 1.0, 2.0, 300), (0.002, 0.7, 2.0, 1000)], 1 / 64),
    ("line", [(0.05, 4.0, 1.0, 300), (0.01, 1.5, 1.0, 700)], 1 / 64),
    ("glued", [(0.01, 2.0, 0.5, 800), (0.01, 2.0, 1.5, 200), (0.01, 1.0, 1.0, 100)], 1 / 64),
    ("glued", [(0.02, 1.0, 0.3, 300), (0.001, 0.8, 2.0, 5000)], 1 / 64),
]  # fmt: skip

#: What benchmarks/peers.py measures errors against, in both relations.
BENCHMARK = json.loads((HERE.parents[1] / "benchmarks" / "settings.json").read_text())
SETTINGS = len(BENCHMARK)
for rate, noise, count in BENCHMARK:
    for distance in (2.0, 1.0):
        DENSE.append(("line", [(rate, noise, distance, count)], 1 / 64 if distance == 2.0 else 1 / 128))

RATES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5]
#: Settings of DENSE whose curve is computed, too: neither plateau nor atom.
CURVES = [
    ("line", [(0.001, 1.0, 2.0, 50000)]), ("line", [(1e-4, 5.0, 2.0, 500000)]), ("line", [(256 / 26048, 3.51, 2.0, 2040)]),
    ("line", [(0.1, 1.0, 2.0, 500)]), ("line", [(1e-4, 2.0, 2.0, 500000)]), ("line", [(0.01, 1.0, 1.0, 1000)]), ("line", [(0.001, 1.0, 1.0, 50000)]),
    ("line", [(256 / 26048, 3.51, 1.0, 2040)]), ("line", [(0.2, 1.0, 1.0, 500)]), ("glued", [(0.01, 3.51, 0.97, 2020)]), ("glued", [(0.01, 1.0, 1.0, 1000)]),
    ("line", [(0.05, 4.0, 1.0, 300), (0.01, 1.5, 1.0, 700)]), ("glued", [(0.01, 2.0, 0.5, 800), (0.01, 2.0, 1.5, 200), (0.01, 1.0, 1.0, 100)]),
]  # fmt: skip
CURVES += [("line", setting) for kind, setting, _ in DENSE[-2 * SETTINGS :]]
#: Two steps with low noise, and thresholds at which points of their curves are computed.
NESTED_CURVES: list[tuple[Setting, list[float]]] = [
    ([(p, s, r, 2)], taus)
    for p, s, r, taus in [
        (0.3, 0.2, 2.0, [-12.0, -0.001, 0.5, 10.0]), (0.02, 0.35, 2.0, [-1.0, 0.001, 0.1, 1.0, 6.0]), (1e-4, 0.2, 2.0, [1e-6, 1e-3, 0.5]),
        (0.3, 0.2, 1.0, [-0.6, -0.1, 3.0, 12.0]), (0.02, 0.35, 1.0, [-0.03, 0.001, 0.1, 1.0, 6.0]),
        (1e-4, 0.2, 1.0, [-1.5e-4, 1e-3, 0.5]), (0.9, 0.5, 1.0, [-2.0, 0.5, 4.0, 10.0]),
    ]
]  # fmt: skip


def nested_rates(setting: Setting) -> dict[str, str]:
    """Points of the curve; the rate of a threshold is rounded to a number, and TPR moved along the tangent by the difference."""
    rates = {}
    for tau in next((taus for one, taus in NESTED_CURVES if one == setting), []):
        fpr, tpr = nested_point(setting, mp.mpf(tau))
        rates[repr(float(fpr))] = mp.nstr(tpr + mp.exp(tau) * (mp.mpf(float(fpr)) - fpr), 20)
    return rates


def main() -> None:
    rows: list[dict[str, Any]] = []

    def add(way: str, kind: str, setting: Setting, beta: Any, tpr: dict[str, str] | None = None) -> None:
        text = mp.nstr(beta, 20) if isinstance(beta, mp.mpf) else np.format_float_scientific(beta, precision=19)
        rows.append({"way": way, "kind": kind, "segments": setting, "beta": text, "tpr": tpr or {}})
        print(f"{way:9s}{kind:6s}{setting!s:70s} {text}", flush=True)

    for setting in GAUSSIAN:
        rates = {repr(f): mp.nstr(gaussian_tpr(setting, f), 20) for f in RATES}
        add("gaussian", "line", setting, gaussian_beta(setting), rates)
    for kind, setting, step in DENSE:
        dense = Dense(kind, setting, step)
        rates = {}
        if (kind, setting) in CURVES:
            uniform = Uniform(kind, setting)
            rates = {repr(f): np.format_float_scientific(uniform.tpr(f), precision=16) for f in RATES}
        add("dense", kind, setting, dense.overlap(), rates)
    for kind, setting in NESTED:
        add("nested", kind, setting, nested_beta(kind, setting), nested_rates(setting) if kind == "line" else {})
    (HERE / "golden.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
