r"""Steps of a person with several records, and other mixtures of several shifts (theory, section 12).

An observer sees P = Σ_j w_j N(s_j, σ²) or Q = Σ_j w_j N(-s_j, σ²) (substitution), or Q = N(0, σ²) (add/remove). No shift s_j is
negative, hence the loss log P/Q increases with the outcome x. Probabilities come as (gain, mass) = (P(S) - Q(S), Q(S)) of a set
S.

A(x) = Σ_j w_j e^{(s_j x - s_j²/2)/σ²} is the likelihood of the person's records against none. The path of the transform must
not cross a branch point of log A(±x). Where the w_j are those of a sum of independent coins and the s_j are 0, 1, 2, …, the zeros
of A nearest to the real line have Im x = ±πσ² (a lemma in theory, section 12), as for one record. Otherwise no zero is nearer to
it than πσ²/(largest - smallest shift): so near to the real line all terms point into one half plane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, inf, log, log1p, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from betastar.curves import Answers
from betastar.steps.base import (
    COARSE_COUNT,
    COARSE_DENSITY,
    COARSE_NOISE,
    DENSITY,
    EPS,
    EXACT,
    LEAST,
    MOST,
    REACH,
    Directions,
    Family,
    Step,
    StepFactor,
    Transform,
    between,
    complex_expm1,
    complex_log1p,
    half_line,
    on_half_line,
)

#: Terms of a binomial law that have less probability than this, together, become part of their neighbours.
NEGLIGIBLE = 1e-100
#: Logarithm of the share of the largest term of a sum below which terms are left out.
UNSEEN = -60.0
#: Entries of a matrix of outcomes and terms that are computed at once, and points of the table that thresholds start from.
BLOCK, TABLE = 1 << 20, 1 << 13
#: What takes the place of WIDE_REACH on a path that does not climb: beyond it there is less than 1e-30.
FAR = 11.5
#: Largest loss of a node, and of minus the logarithm of its weight: their exponentials must not overflow.
LARGEST = 650.0
#: Overlap of the two worlds of one step below which it tells everything.
NOTHING_LEFT = 1e-40
#: Likelihood of the outcome 0, less than 1 by so much, at which no plateau is left.
NO_PLATEAU = 1.0 - 1e-12
#: Nodes at which a sum is computed at once: few enough that not all terms matter at them.
TOGETHER = 128


@dataclass(frozen=True)
class MixtureStep(Step):
    """`count` steps that show Σ_j w_j N(s_j, σ²) or, in the other world, the same with the shifts mirrored, or N(0, σ²).

    It is a step of a person with several records, of whom a random number takes part (theory, section 12).

    weights : the probabilities w_j, whose sum is 1.
    shifts : the sums of gradients s_j ≥ 0, in clipping norms, in increasing order.
    mirrored : the other world has the shifts -s_j (substitution); otherwise it has none (add/remove).
    real_zeros : the shifts are 0, 1, 2, … (or multiples of one number), and the polynomial Σ_j w_j z^j has real zeros only, as
        that of a sum of independent coins has. The exact method is faster then.
    """

    weights: tuple[float, ...]
    shifts: tuple[float, ...]
    noise: float
    mirrored: bool
    count: int
    real_zeros: bool = False

    def factor(self, family: Family) -> MixtureFactor:
        return MixtureFactor(self.count, self)

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        worlds = worlds_of(replace(self, count=1))
        rare = min(0.01, slack / self.count)
        middle = worlds.middle
        far, most = _end_of_grid(worlds, middle, worlds.upper_quantile(rare))
        near, farthest = _end_of_grid(worlds, middle, float(ndtri(rare)) * self.noise)
        least = float(worlds.shifts[worlds.shifts > 0.0][0])
        # Rounding of the weights, of differences of two close tails, and of their sum, outwards.
        rounding = EPS * (64.0 + 8.0 * (1.0 + self.noise / least) + sqrt(len(worlds.shifts)))
        outwards = 1.0 + (rounding if above else -rounding)

        def ahead(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            gain, mass = worlds.tail(worlds.threshold(losses, 0.0 if self.mirrored else near - least, far))
            return outwards * gain, mass

        def behind(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            gain, mass = worlds.head(worlds.threshold(-losses, near, middle))
            return outwards * gain, mass

        advantage = outwards * worlds.advantage()
        if self.mirrored:
            return Directions(advantage, ahead, most)
        return Directions(advantage, ahead, most, behind, farthest, worlds.least_loss)

    def advantage(self) -> float:
        return worlds_of(self).advantage()

    def log_never_sampled(self) -> float:
        sampled = worlds_of(self).sampled
        return log1p(-sampled) if sampled < 1.0 else -inf

    def clamped(self, least_distance: float = LEAST) -> MixtureStep:
        """Less noise, or a shift that is a little likelier, leaks more."""
        step = self
        if 0.0 < worlds_of(step).sampled < LEAST:
            step = replace(step, weights=(1.0, LEAST), shifts=(0.0, step.shifts[-1]))
        return replace(step, noise=min(step.noise, MOST))

    def with_min_noise(self, noise: float) -> MixtureStep:
        return replace(self, noise=max(self.noise, noise))

    @property
    def least_noise(self) -> float:
        return float(self.noise)

    def attained_step(self, symmetric: bool) -> MixtureStep:
        return self

    def gap(self) -> float:
        return (1.0 + self.mirrored) * sum(w * s for w, s in zip(self.weights, self.shifts, strict=True)) / self.noise


def group_step(records: int, rate: float, noise: float, mirrored: bool, count: int) -> MixtureStep:
    """Steps of a person with several records, each of which is sampled with probability `rate`, independently."""
    weights, first = binomial(records, rate)
    shifts = tuple(float(first + j) for j in range(len(weights)))
    return MixtureStep(tuple(weights.tolist()), shifts, noise, mirrored, count, real_zeros=True)


def binomial(trials: int, rate: float) -> tuple[NDArray[Any], int]:
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


class Worlds:
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
        self._tables: dict[tuple[float, float], tuple[NDArray[Any], NDArray[Any]]] = {}
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

    def loss(self, x: NDArray[Any]) -> NDArray[Any]:
        """log P/Q."""
        ahead = self._log_likelihood(x)[0]
        return ahead - self._log_likelihood(-x)[0] if self.mirrored else ahead

    def _log_likelihood(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
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

    def threshold(self, losses: NDArray[Any], low: float, high: float) -> NDArray[Any]:
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

    def _table(self, low: float, high: float) -> tuple[NDArray[Any], NDArray[Any]]:
        if (low, high) not in self._tables:
            table = np.linspace(low, high, TABLE)
            self._tables[low, high] = table, np.maximum.accumulate(self.loss(table))
        return self._tables[low, high]

    def tail(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(gain, mass) of the half-line above x: P(S) - Q(S) and Q(S)."""
        mass = self._sum(lambda x, s: ndtr((-s - x) / self.noise), x) if self.mirrored else ndtr(-x / self.noise)
        return self._gain(x), mass

    def head(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(gain, mass) of the half-line below x with the worlds exchanged: Q(S) - P(S) and P(S)."""
        return self._gain(x), self._sum(lambda x, s: ndtr((x - s) / self.noise), x)

    def _gain(self, x: NDArray[Any]) -> NDArray[Any]:
        return self._sum(lambda x, s: between(x, -s if self.mirrored else 0.0 * s, s, self.noise), x)

    def _sum(self, term: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]], x: NDArray[Any]) -> NDArray[Any]:
        """Σ_j w_j·term(x, s_j), in blocks of x."""
        rows = max(1, BLOCK // len(self.shifts))
        blocks = [term(x[at : at + rows, None], self.shifts[None, :]) @ self.weights for at in range(0, len(x), rows)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def density(self, x: NDArray[Any], exchanged: bool) -> NDArray[Any]:
        """Density of Q at x; exchanged: that of P."""

        def peak(x: NDArray[Any], s: NDArray[Any]) -> NDArray[Any]:
            return np.exp(-0.5 * ((x - s) / self.noise) ** 2) / (sqrt(2.0 * np.pi) * self.noise)

        if exchanged:
            return self._sum(peak, x)
        return self._sum(peak, -x) if self.mirrored else peak(x, np.zeros(1))

    def slope(self, x: NDArray[Any]) -> NDArray[Any]:
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
def worlds_of(step: MixtureStep) -> Worlds:
    """The two worlds of a step; what they have computed serves later questions."""
    return Worlds(step)


@lru_cache(maxsize=512)
def mixture(step: MixtureStep, wide: bool = False, density: float = DENSITY) -> Transform:
    """The transform of one step of a mixture; its count does not matter."""
    worlds = worlds_of(step)
    sigma, mirrored = step.noise, step.mirrored
    if worlds.overlap() < NOTHING_LEFT:  # M(z) ≤ √(2·overlap) at z = 1/2 is lost in rounding
        nothing = np.zeros(0, dtype=np.complex128)
        return Transform(nothing, nothing, mirrored=mirrored, lost=1.0, deficit=1.0, missing=0.0 if mirrored else 1.0)
    reach = FAR if wide else REACH
    end = _end(worlds.weights / worlds.sampled, worlds.shifts / sigma, reach)
    weights, shifts = _seen(worlds.weights, worlds.shifts / sigma, end)
    unseen = float(worlds.weights[len(weights) :].sum())
    height = _height(shifts, sigma, step.real_zeros)
    width = density * height
    right, left = max(1, ceil(end / width)), 0 if mirrored else ceil(reach / width)
    z = width * (np.arange(-left, right) + 0.5) + 1j * height
    loss, log_below = _losses(z, weights, shifts, unseen, mirrored)
    _follow_branch(z, loss, left, weights, shifts, unseen, mirrored)
    log_weight = log_below - 0.5 * z * z + log(width / sqrt(2.0 * pi))
    held = (loss.real < LARGEST) & (log_weight.real > -LARGEST)
    ends = sigma * (float(z[-1].real if held.all() else z[~held][0].real) - 0.5 * width)
    lost = worlds.probability_above(ends)
    deficit = float(np.exp((log_weight + loss)[~held]).sum().real)
    weight, loss = np.exp(log_weight[held]), loss[held]
    at_zero = float(np.expm1(-0.5 * shifts**2) @ weights) - unseen  # A(0) - 1
    rest = log1p(at_zero) if not mirrored and worlds.sampled < 1.0 and at_zero > -NO_PLATEAU else 0.0
    return Transform(weight, loss, mirrored=mirrored, rest=rest, lost=lost, deficit=deficit, irrelevant=0.0)


def _end(shares: NDArray[Any], means: NDArray[Any], reach: float) -> float:
    """Where the nodes end, as t = x/σ: what all shifts but 0 have beyond it is less than what one Gaussian has beyond `reach`."""
    room = reach**2 + 2.0 * np.log(shares)
    counts = (means > 0.0) & (room > 0.0)
    return float((means[counts] + np.sqrt(room[counts])).max())


def _seen(weights: NDArray[Any], means: NDArray[Any], end: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """The terms that matter at a node: a larger shift matters most at the last one."""
    logs = np.log(weights) + means * end - 0.5 * means**2
    last = int(np.flatnonzero(logs > logs.max() + UNSEEN)[-1]) + 1
    return weights[:last], means[:last]


def _height(means: NDArray[Any], sigma: float, real_zeros: bool) -> float:
    """Height of the path above the real line: half way to the branch points, at most 1.2."""
    if len(means) == 1:
        return 1.2
    unit = float(means[1] - means[0]) if real_zeros else float(means[-1] - means[0])
    return min(0.5 * pi / unit, 1.2)


def _losses(
    z: NDArray[Any], weights: NDArray[Any], means: NDArray[Any], unseen: float, mirrored: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """log A(z)/B(z) and log B(z), up to multiples of 2πi, with B(z) = A(-z), or 1. unseen: weight of terms that are 0 in A.

    complex_log1p((A - B)/B) keeps its digits where A ≈ B.
    """
    loss, below = np.empty(len(z), dtype=np.complex128), np.zeros(len(z), dtype=np.complex128)
    logs = np.log(weights) - 0.5 * means**2
    for at in range(0, len(z), TOGETHER):
        some = z[at : at + TOGETHER]
        ahead, seen = _log_sum(some, logs, means)
        if mirrored:
            behind, other = _log_sum(-some, logs, means)
            seen |= other
            gap = np.multiply.outer(some, 2.0 * means[seen])
            shares = np.exp(logs[seen] - np.multiply.outer(some, means[seen]) - behind[:, None])
        else:
            behind = np.zeros(len(some), dtype=np.complex128)
            gap = np.multiply.outer(some, means[seen]) - 0.5 * means[seen] ** 2
            shares = np.broadcast_to(weights[seen], gap.shape).astype(np.complex128)
        far = gap.real.max(axis=1) >= 30.0
        ratio = (shares * complex_expm1(np.minimum(gap.real, 30.0), gap.imag)).sum(axis=1)  # (A - B)/B
        if not mirrored:
            ratio -= weights[~seen].sum() + unseen  # of terms that are 0 in A, but not in B = Σ w
        near = ~far & (ratio.real > -0.5) & (np.abs(ratio) < 1e8)
        loss[at : at + TOGETHER] = np.where(near, complex_log1p(np.where(near, ratio, 0.0)), ahead - behind)
        below[at : at + TOGETHER] = behind
    return loss, below


def _log_sum(z: NDArray[Any], logs: NDArray[Any], means: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """log Σ_j e^{logs_j + z·means_j} at each z, and which terms matter at any of them."""
    size = np.multiply.outer(z.real, means) + logs
    most = size.max(axis=1)
    seen = (size - most[:, None] > UNSEEN).any(axis=0)
    terms = np.exp(size[:, seen] - most[:, None] + 1j * np.multiply.outer(z.imag, means[seen]))
    return np.log(terms.sum(axis=1)) + most, seen


def _follow_branch(
    z: NDArray[Any], loss: NDArray[Any], start: int, weights: NDArray[Any], means: NDArray[Any], unseen: float, mirrored: bool
) -> None:
    """Continue the loss from the real line, where it is real, up to the node `start`, and along the path from there."""
    logs, x = np.log(weights) - 0.5 * means**2, z[start : start + 1].real + 0j
    slope, steps = 0.0, 16
    for side in (1.0, -1.0) if mirrored else (1.0,):  # the phase grows like the mean of the terms, and bends with their spread
        total, seen = _log_sum(side * x, logs, means)
        slope += float(np.exp(logs[seen] + side * x.real * means[seen] - total.real) @ means[seen])
        steps += ceil(4.0 * z[start].imag * float(means[seen][-1] - means[seen][0]))
    heights = z[start].imag * np.arange(steps + 1) / steps
    phases = np.unwrap(_losses(x + 1j * heights, weights, means, unseen, mirrored)[0].imag - slope * heights)
    loss.imag[start] = phases[-1] - phases[0] + slope * heights[-1]
    loss.imag[start:] = np.unwrap(loss.imag[start:])
    loss.imag[start::-1] = np.unwrap(loss.imag[start::-1])


@dataclass(frozen=True)
class MixtureFactor(StepFactor):
    """`count` steps of a mixture."""

    count: float
    step: MixtureStep
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return worlds_of(self.step).sampled

    @property
    def least_loss(self) -> float | None:
        least = worlds_of(self.step).least_loss
        return least if np.isfinite(least) and self.count > 0.0 else None

    @property
    def mu_square(self) -> float | None:
        worlds = worlds_of(self.step)
        if len(worlds.shifts) > 1:
            return None
        return float(((1.0 + worlds.mirrored) * worlds.shifts[0] / worlds.noise) ** 2)

    def exchanged(self) -> MixtureFactor:
        return replace(self, reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        many = self.step.noise >= COARSE_NOISE and abs(self.count) >= COARSE_COUNT
        built = mixture(replace(self.step, count=1), wide, COARSE_DENSITY if many else DENSITY)
        return built.reversed() if self.reverse else built

    def overlap(self) -> float:
        return worlds_of(self.step).overlap()

    def closed_form(self) -> bool:
        return True

    def answers(self, taus: NDArray[Any]) -> Answers:
        worlds = worlds_of(self.step)
        low, high = -worlds.upper_quantile(1e-300), worlds.upper_quantile(1e-300)
        low = low if worlds.mirrored else -38.0 * worlds.noise
        sizes = np.abs(taus)
        if self.reverse:
            x = worlds.threshold(-sizes, low, worlds.middle)
            gain, mass = worlds.head(x)
        else:
            x = worlds.threshold(sizes, worlds.middle, high)
            gain, mass = worlds.tail(x)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            density = worlds.density(x, self.reverse) / worlds.slope(x)
        return on_half_line(taus, gain, mass, density)

    def guess(self, fprs: NDArray[Any]) -> NDArray[Any]:
        worlds = worlds_of(self.step)
        side = worlds.head if self.reverse else worlds.tail
        high = worlds.upper_quantile(1e-300)
        x = half_line(lambda x: side(x)[1], fprs, -high, high, self.reverse)
        return (-1.0 if self.reverse else 1.0) * worlds.loss(x)


def _end_of_grid(worlds: Worlds, middle: float, far: float) -> tuple[float, float]:
    """An outcome, and the size of the loss at which the grid ends: those of `far`, or LARGEST and an outcome beyond it.

    Of outcomes with a larger loss the curve at LARGEST says all that is given to the attacker, or taken from them.
    """
    size = abs(float(worlds.loss(np.array([far]))[0]))
    if size <= LARGEST:
        return far, size
    near = middle
    for _ in range(60):
        between = 0.5 * (near + far)
        near, far = (between, far) if abs(float(worlds.loss(np.array([between]))[0])) < 1.05 * LARGEST else (near, between)
    return far, LARGEST
