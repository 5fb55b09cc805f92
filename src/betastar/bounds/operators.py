"""What a step does to a function of the likelihood ratio on a grid, for many pairs at once, with Fourier transforms.

Two functions are followed: the worst case from above (`Above`), and a strategy that exists (`Below`). See `adaptive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, sqrt

import numpy as np

from betastar.arrays import Complex, Real, Whole
from betastar.bounds.grid import EPS, FFT_ERROR
from betastar.bounds.kernels import Kernel, Laws
from betastar.scenario.step import Step

#: Rounding of the probabilities of cells, in units of the rate; and of numbers that are computed without cancellation.
ROUNDING = 256.0 * EPS
#: Rows that a path is predicted with.
GUIDES = 4
#: Where the profile e^{-|x|/2} is smaller than this, what a path lacks is added everywhere.
FAR = 0.1


class Operator:
    """Drifts F(f) = source + jump * f, one a row, on the nodes -half…half."""

    def __init__(self, grid: float, half: int, jumps: Sequence[Real], sources: Sequence[Real]) -> None:
        from scipy.fft import next_fast_len, rfft

        self.grid, self.half = grid, half
        self.length = next_fast_len(2 * half + 1 + 2 * max(len(jump) // 2 for jump in jumps), real=True)
        rows = np.zeros((len(jumps), self.length))
        for row, jump in zip(rows, jumps, strict=True):
            row[np.arange(-(len(jump) // 2), len(jump) // 2 + 1)] = jump
        self.spectra: Complex = rfft(rows, axis=1)
        self.source = np.array(sources)
        self.norm = max(float(np.abs(jump).sum()) for jump in jumps)
        self.nodes = grid * np.arange(-half, half + 1)

    def beyond(self, f: Real, room: int) -> Real:
        """f at `room` nodes beyond the last one, and on the other side."""
        raise NotImplementedError

    def widened(self, f: Real) -> Real:
        more = self.beyond(f, self.half - len(f) // 2)
        return np.concatenate([more[::-1], f, more])

    def _spectrum(self, f: Real) -> tuple[Complex, float]:
        """The transform of f, continued beyond the grid, and its norm."""
        from scipy.fft import rfft

        room = (self.length - len(f)) // 2
        beyond = self.beyond(f, room)
        whole = np.zeros(self.length)
        whole[: len(f)], whole[len(f) : len(f) + room], whole[self.length - room :] = f, beyond, beyond[::-1]
        return rfft(whole), sqrt(float(np.sum(whole * whole)))

    def _drifts(self, f: Real) -> tuple[Real, float]:
        """F(f), and how much rounding may have changed it."""
        from scipy.fft import irfft

        spectrum, norm = self._spectrum(f)
        moved = irfft(self.spectra * spectrum, self.length, axis=1)[:, : len(f)]
        # Three transforms (no node is wrong by more than the Euclidean norm), the products, and the kernel itself.
        error = (3.0 * log2(self.length) + 1.0) * FFT_ERROR * self.norm * norm
        return moved + self.source, error + ROUNDING * (self.norm * float(np.abs(f).max()))


class Above(Operator):
    """f(x) = e^{-x/2}·(min(1, r) - v(r)) from above, for kernels that tell more than their pairs. Profile: e^{-|x|/2}."""

    def __init__(self, step: Step, grid: float, half: int, kernels: Sequence[Kernel]) -> None:
        self.profile = np.exp(-0.5 * grid * np.abs(np.arange(-half, half + 1)))
        sources = [kernel.source_on(half) * self.profile for kernel in kernels]
        super().__init__(grid, half, [kernel.jump for kernel in kernels], sources)
        # A pair's drift is at most its total variation times the profile, and an average of its hockey-stick divergences, which
        # are sums of that many positive terms.
        terms = max(kernel.terms for kernel in kernels)
        self.step = step
        self.rounding = step.rate * (ROUNDING + (ROUNDING + EPS * terms) * min(1.0, step.distance / step.noise))
        self.widest = int(np.argmax([kernel.jump @ np.arange(-kernel.reach, kernel.reach + 1) ** 2 for kernel in kernels]))

    def beyond(self, f: Real, room: int) -> Real:
        """v(r) does not fall beyond the last node, nor does v(r)/r rise before the first one."""
        return f[-1] * np.exp(-0.5 * self.grid * np.arange(1, room + 1))

    def advance(self, f: Real, steps: int) -> tuple[Real, float, float]:
        """f after so many more steps, and what it may be wrong by: relative to the profile, and everywhere."""
        first, error = self._drifts(f)
        if steps == 1:
            end = f + self.best(first)
            return end, self.rounding, error + EPS * float(end.max())
        middle, end = self._predicted(f, steps, self._guides(first))
        violations, _ = self._violations(f, middle, end, steps, first)
        # What the path lacks, as it would spread: the path is corrected once.
        half, whole = self._spread(np.mean(violations, axis=0), steps)
        middle, end = (np.maximum(part, part[::-1]) for part in (middle + half, end + whole))
        violations, more = self._violations(f, middle, end, steps, first)
        lacks = np.maximum(np.max(violations, axis=0), 0.0)
        near = float((lacks / self.profile)[self.profile > FAR].max())
        return end, steps * (near + self.rounding), steps * (max(error, more) + float((lacks - near * self.profile).max()))

    def _violations(self, f: Real, middle: Real, end: Real, steps: int, first: Real) -> tuple[list[Real], float]:
        """What the path through these three lacks to be above all drifts, at its Bernstein coefficients, and rounding."""
        w1 = 2.0 * middle - 0.5 * (f + end)
        slope0, slope1 = w1 - f, end - w1
        bend = (slope1 - slope0) / steps**2
        start, finish = 2.0 / steps * slope0 + bend, 2.0 / steps * slope1 + bend
        (second, more), (third, most) = self._drifts(w1), self._drifts(end)
        pace = (start, 0.5 * (start + finish), finish)
        rounding = 16.0 * EPS * float(np.abs(w1).max() + np.abs(end).max())  # of the pace
        lacks = [self.best(drifts) - have for drifts, have in zip((first, second, third), pace, strict=True)]
        return lacks, max(more, most) + rounding

    def _spread(self, change: Real, steps: int) -> tuple[Real, Real]:
        """What a constant change of the drift does in half of the steps and in all of them."""
        from scipy.fft import irfft, rfft

        jump = np.minimum(self.spectra[self.widest].real, 0.0)
        still = jump > -1e-13
        power = np.maximum(1.0 + jump, 0.0) ** (0.5 * steps)
        total = np.where(still, 0.5 * steps, (power - 1.0) / np.where(still, 1.0, jump)) * rfft(change, self.length)
        half, whole = (irfft(part, self.length)[: len(change)] for part in (total, total * (1.0 + power)))
        return half, whole

    def _predicted(self, f: Real, steps: int, guides: Whole) -> tuple[Real, Real]:
        """About what f is after half of the steps and after all of them: powers of the best of a few rows at each node.

        Shorter and shorter ones: near 0 the best pair changes sides, at every scale down to a single step.
        """
        from scipy.fft import irfft, rfft

        powers = _powers(self.spectra[guides], rfft(self.source[guides], self.length, axis=1), 0.5 * steps)
        stages = []
        for _ in range(2):
            for kept, grown in powers:
                f = self.best(irfft(kept * self._spectrum(f)[0] + grown, self.length, axis=1)[:, : len(f)])
            stages.append(f)
        return stages[0], stages[1]

    def _guides(self, drifts: Real) -> Whole:
        """The few rows that are the best at most nodes, counted by how much they change."""
        total = np.bincount(np.argmax(drifts, axis=0), weights=drifts.max(axis=0), minlength=len(drifts))
        return np.sort(np.argsort(-total)[:GUIDES])

    def best(self, rows: Real) -> Real:
        best = rows.max(axis=0)
        return np.maximum(best, best[::-1])

    def curve(self, f: Real, relative: float, constant: float) -> Real:
        return (f[self.half :] + constant) * np.exp(0.5 * self.nodes[self.half :]) + relative


def _powers(jumps: Complex, source: Complex, steps: float) -> list[tuple[Complex, Complex]]:
    """K^n and (1 + … + K^(n-1))·source, K = 1 + jump, for steps·(1/2 + 1/4 + … + 2^-m + 2^-m), by squaring."""
    still = np.abs(jumps) < 1e-12
    kept = 1.0 + jumps
    halvings = max(0, ceil(log2(steps)))
    size = steps / 2**halvings
    power = np.exp(size * np.log(np.where(np.abs(kept) < 1e-200, 1e-200, kept)))
    total = np.where(still, size, (power - 1.0) / np.where(still, 1.0, jumps))
    powers = [(power, total * source)] * (2 if halvings else 1)
    for _ in range(halvings - 1):
        total, power = total * (1.0 + power), power * power
        powers.insert(0, (power, total * source))
    return powers


class Below(Operator):
    """f(x) = A(x) - 1{x>0} - ½·1{x=0}, where A(x) is the probability under P of deciding for Q, by a strategy that starts at x.

    Its state is log r, rounded at random to a node after each step; it decides by the sign at the end, and when it leaves the
    grid. By symmetry it decides for P under Q with probability A(-x), so that v(r) ≤ A(x) + r·A(-x). Profile: 1.
    Rows: the pairs, and then the same with P and Q exchanged, as they are used at -x.
    """

    def __init__(self, key: tuple[Step, int], grid: float, half: int, laws: Sequence[Laws]) -> None:
        jumps = [one.first for one in laws] + [one.second[::-1] for one in laws]
        sources = []
        for jump in jumps:
            # The mass that moves from x > 0 to below 0 counts as decided for P, and the other way round; half of it at 0.
            reach = len(jump) // 2
            total = np.append(0.0, np.cumsum(jump))
            step_up = 0.5 * (total[1:] + total[:-1])  # Σ_{l<i} + half of l = i: the change of A at the node i, for all i
            source = np.zeros(2 * half + 1)
            inside = min(half, reach)
            source[half - inside : half + inside + 1] = step_up[reach - inside : reach + inside + 1]
            sources.append(source)
        super().__init__(grid, half, jumps, sources)
        self.key, self.wrong = key, max(one.error for one in laws) + ROUNDING * key[1]
        self.ratio = np.exp(self.nodes[half:])

    def beyond(self, f: Real, room: int) -> Real:
        return np.zeros(room)

    def once(self, f: Real) -> tuple[Real, float]:
        """f before one more block, with the best pair at each node, and what rounding may have changed."""
        drifts, error = self._drifts(f)
        return f + self._picked(drifts, self._choice(drifts)), error + self.wrong

    def _choice(self, rows: Real) -> Whole:
        """At each node from 0 on the row that makes A(x) + r·A(-x) smallest."""
        other = np.roll(rows, len(rows) // 2, axis=0)[:, self.half :: -1]
        return np.argmin(rows[:, self.half :] + self.ratio * other, axis=0)

    def _picked(self, rows: Real, choice: Whole) -> Real:
        right = np.take_along_axis(rows[:, self.half :], choice[None, :], axis=0)[0]
        opposite = (choice + len(rows) // 2) % len(rows)
        left = np.take_along_axis(rows[:, self.half :: -1], opposite[None, :], axis=0)[0]
        return np.concatenate([left[:0:-1], [0.5 * (left[0] + right[0])], right[1:]])

    def curve(self, f: Real, wrong: float) -> Real:
        return -(f[self.half :] + wrong) - self.ratio * (f[self.half :: -1] + wrong)
