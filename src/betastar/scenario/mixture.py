"""One step of a person with several records, in real arithmetic (theory, section 12).

An observer sees P = Σ_j w_j N(s_j, σ²) or Q = Σ_j w_j N(-s_j, σ²) (substitution), or Q = N(0, σ²) (add/remove). No shift s_j is
negative, hence the loss log P/Q increases with the outcome x. As in `step.py`, probabilities come as (gain, mass) of a set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from math import ceil, inf, log, log1p, sqrt

import numpy as np
from scipy.special import log_ndtr, ndtr

from betastar.arrays import Real
from betastar.scenario.step import EXACT, MOST, MixtureStep, between

#: Terms of a binomial law that have less probability than this, together, become part of their neighbours.
NEGLIGIBLE = 1e-100
#: Logarithm of the share of the largest term of a sum below which terms are left out.
UNSEEN = -60.0
#: Entries of a matrix of outcomes and terms that are computed at once, and points of the table that thresholds start from.
BLOCK, TABLE = 1 << 20, 1 << 13


def group_step(records: int, rate: float, noise: float, mirrored: bool, count: int) -> MixtureStep:
    """Steps of a person with so many records, each of which is sampled with probability `rate`, independently."""
    weights, first = binomial(records, rate)
    shifts = tuple(float(first + j) for j in range(len(weights)))
    return MixtureStep(tuple(weights.tolist()), shifts, noise, mirrored, count, real_zeros=True)


def binomial(trials: int, rate: float) -> tuple[Real, int]:
    """The probabilities of a binomial law that count, and the number of hits that the first of them belongs to.

    Ratios of neighbours are multiplied, outwards from the mode, in extended precision. The probability of what is left out goes
    to the nearest number of hits that is kept: below, that leaks more; above, NEGLIGIBLE is less than rounding is allowed for.
    """
    if rate >= 1.0:
        return np.ones(1), trials
    mode = min(int((trials + 1) * rate), trials)
    wide = np.longdouble
    odds = wide(rate) / (wide(1.0) - wide(rate))
    # A sum of coins is farther than x from its mean μ with probability below e^{-x²/(2μ+x)}, by Chernoff.
    decay = -log(NEGLIGIBLE)
    mean = trials * rate + 1.0
    far = ceil(0.5 * decay + sqrt(0.25 * decay**2 + 2.0 * decay * mean)) + 2
    low, high = max(0, mode - far), min(trials, mode + far)
    up = np.arange(mode, high, dtype=wide)
    down = np.arange(mode, low, -1, dtype=wide)
    above = np.cumprod((trials - up) / (up + 1.0) * odds)
    below = np.cumprod(down / ((trials - down + 1.0) * odds))[::-1]
    if mode == 0:
        start = np.exp(trials * np.log1p(-wide(rate)))
        weights = start * np.concatenate([[wide(1.0)], above])
    else:
        weights = np.concatenate([below, [wide(1.0)], above])
        weights /= weights.sum()
    kept = np.flatnonzero((np.cumsum(weights) > NEGLIGIBLE) & (np.cumsum(weights[::-1])[::-1] > NEGLIGIBLE))
    first, last = int(kept[0]), int(kept[-1]) + 1
    chosen = weights[first:last].copy()
    chosen[0] += weights[:first].sum()
    chosen[-1] += weights[last:].sum()
    return chosen.astype(np.float64), low + first


class Pair:
    """The two worlds of a mixture: losses, tails and thresholds."""

    def __init__(self, step: MixtureStep) -> None:
        used = [(w, s) for w, s in zip(step.weights, step.shifts, strict=True) if w > 0.0]
        self.weights = np.array([w for w, _ in used])
        self.shifts = np.array([s for _, s in used])
        # More noise than MOST leaks less than MOST does; less than a thousandth of every shift tells what no noise would tell.
        least = min((s for _, s in used if s > 0.0), default=1.0)
        self.noise, self.mirrored = min(max(step.noise, 1e-3 * least), MOST), step.mirrored
        self._variance = self.noise**2
        self._logs = np.log(self.weights)
        self._tables: dict[tuple[float, float], tuple[Real, Real]] = {}
        #: Probability of a shift that is not 0: a sum of what is small, not 1 minus what is large.
        self.sampled = min(float(self.weights[self.shifts > 0.0].sum()), 1.0)

    @property
    def least_loss(self) -> float:
        """The loss of a step, with the record, is at least the logarithm of the probability of no shift; -∞ for substitution."""
        return log1p(-self.sampled) if self.sampled < 1.0 and not self.mirrored else -inf

    @cached_property
    def middle(self) -> float:
        """The outcome at which both worlds are equally likely."""
        if self.mirrored:
            return 0.0
        if len(self.shifts) == 1:
            return float(0.5 * self.shifts[0])
        return float(self.threshold(np.zeros(1), 0.0, float(self.shifts[-1]))[0])

    def loss(self, x: Real) -> Real:
        """log P/Q."""
        ahead = self._log_likelihood(x)[0]
        return ahead - self._log_likelihood(-x)[0] if self.mirrored else ahead

    def _log_likelihood(self, x: Real) -> tuple[Real, Real]:
        """log Σ_j w_j e^{(s_j x - s_j²/2)/σ²}, by log1p and expm1 while it is moderate, and its derivative."""
        value, slope = np.empty(len(x)), np.empty(len(x))
        rows = max(1, BLOCK // len(self.shifts))
        for at in range(0, len(x), rows):
            exponents = np.multiply.outer(x[at : at + rows] / self._variance, self.shifts)
            exponents -= 0.5 * self.shifts**2 / self._variance
            sizes = exponents + self._logs
            most = sizes.max(axis=1)
            seen = (sizes - most[:, None] > UNSEEN).any(axis=0)
            shares = np.exp(sizes[:, seen] - most[:, None])
            total = shares.sum(axis=1)
            value[at : at + rows] = most + np.log(total)
            moderate = (most < 1.0) & (most > -1.0)
            if moderate.any():
                excess = np.expm1(np.minimum(exponents[moderate], 600.0)) @ self.weights
                value[at : at + rows][moderate] = np.log1p(np.maximum(excess, -0.999999))
            slope[at : at + rows] = (shares @ self.shifts[seen]) / total / self._variance
        return value, slope

    def threshold(self, losses: Real, low: float, high: float) -> Real:
        """x in [low, high] with loss(x) = l for each l: from a table, by Newton's method, and by bisection what still moves."""
        table, known = self._table(low, high)
        cell = np.clip(np.searchsorted(known, losses, side="right") - 1, 0, TABLE - 2)
        left, right = table[cell], table[cell + 1]
        rise = known[cell + 1] - known[cell]
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.clip(np.nan_to_num((losses - known[cell]) / rise, nan=0.5, posinf=0.5, neginf=0.5), 0.0, 1.0)
            x, before = left + part * (right - left), left
            for _ in range(3):
                value, slope = self._log_likelihood(x)
                if self.mirrored:
                    other, more = self._log_likelihood(-x)
                    value, slope = value - other, slope + more
                newton = x - (value - losses) / slope
                x, before = np.clip(np.where(np.isfinite(newton), newton, left), left, right), x
        moves = np.flatnonzero(np.abs(x - before) > EXACT * (self.noise + np.abs(x)))
        if moves.size:
            left, right = left[moves], right[moves]
            for _ in range(48):
                middle = 0.5 * (left + right)
                below = self.loss(middle) <= losses[moves]
                left, right = np.where(below, middle, left), np.where(below, right, middle)
            x[moves] = right
        return x

    def _table(self, low: float, high: float) -> tuple[Real, Real]:
        if (low, high) not in self._tables:
            table = np.linspace(low, high, TABLE)
            self._tables[low, high] = table, np.maximum.accumulate(self.loss(table))
        return self._tables[low, high]

    def tail(self, x: Real) -> tuple[Real, Real]:
        """(gain, mass) of the half-line above x: P(S) - Q(S) and Q(S)."""
        mass = self._sum(lambda x, s: ndtr((-s - x) / self.noise), x) if self.mirrored else ndtr(-x / self.noise)
        return self._gain(x), mass

    def head(self, x: Real) -> tuple[Real, Real]:
        """(gain, mass) of the half-line below x with the worlds exchanged: Q(S) - P(S) and P(S)."""
        return self._gain(x), self._sum(lambda x, s: ndtr((x - s) / self.noise), x)

    def _gain(self, x: Real) -> Real:
        return self._sum(lambda x, s: between(x, -s if self.mirrored else 0.0 * s, s, self.noise), x)

    def _sum(self, term: Callable[[Real, Real], Real], x: Real) -> Real:
        """Σ_j w_j·term(x, s_j), in blocks of x."""
        rows = max(1, BLOCK // len(self.shifts))
        blocks = [term(x[at : at + rows, None], self.shifts[None, :]) @ self.weights for at in range(0, len(x), rows)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def density(self, x: Real, exchanged: bool) -> Real:
        """Density of Q at x; exchanged: that of P."""

        def peak(x: Real, s: Real) -> Real:
            return np.exp(-0.5 * ((x - s) / self.noise) ** 2) / (sqrt(2.0 * np.pi) * self.noise)

        if exchanged:
            return self._sum(peak, x)
        return self._sum(peak, -x) if self.mirrored else peak(x, np.zeros(1))

    def slope(self, x: Real) -> Real:
        """Derivative of the loss."""
        return self._log_likelihood(x)[1] + (self._log_likelihood(-x)[1] if self.mirrored else 0.0)

    def upper_quantile(self, probability: float) -> float:
        """An outcome above which P has at most this probability, and hardly less."""
        low, high = -40.0 * self.noise, float(self.shifts[-1]) + 40.0 * self.noise
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.probability_above(middle) > probability else (low, middle)
        return high

    def probability_above(self, x: float) -> float:
        """P(outcome > x)."""
        return float(np.exp(log_ndtr((self.shifts - x) / self.noise)) @ self.weights)

    def advantage(self) -> float:
        """Total variation of one step: the gain of the half-line on which P is the larger one."""
        return min(float(self._gain(np.array([self.middle]))[0]), 1.0)

    def overlap(self) -> float:
        """β* of one step: the mass of that half-line under Q and of the rest under P."""
        x = np.array([self.middle])
        return min(float(self.tail(x)[1][0] + self.head(x)[1][0]), 1.0)


@lru_cache(maxsize=64)
def pair(step: MixtureStep) -> Pair:
    """The pair of a step; what it has computed serves later questions."""
    return Pair(step)
