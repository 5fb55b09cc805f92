r"""One epoch of random allocation from both sides, with a proof (theory, section 15).

For a threshold α the epoch's hockey stick is E[W₊]/t with W = Z_1 + ... + Z_t, independent copies of Z = X - αY with the
likelihoods X and Y of one batch against "no record". Each Z is moved to a lattice:

- from above, a cell's mass is split between its two ends so that its mean stays. That makes Z larger in convex order, hence
  E[W₊] larger. Beyond the last node the excess E(Z - B)₊ is added, and below the first one nothing is subtracted;
- from below, an attacker sees of each batch only the cell of Z, and an end of it that is drawn with the same shares. They say
  "P" where the ends add up to more than 0. That is a test, whose rates P(E) and Q(E) are a line below the whole curve.

Both need the law of t - 1 ends, which is one power of a Fourier transform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, expm1, floor, inf, log, log2, sinh, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from betastar.steps.base import EPS, Tails

#: What distinguishes the two worlds: a record that is replaced (gradients at a distance), or one that is added, or removed.
Direction = Literal["replaced", "added", "removed"]
#: Cells of the lattice in the range of Z, and in this many deviations of W, about; points of the composed law, at most.
CELLS, WINDOW, POINTS, MOST_POINTS = 1 << 15, 16.0, 1 << 16, 1 << 21
#: Every multiple is a node within this many cells of 0 and of the median of Z; farther out, this many per octave.
DENSE, PER_OCTAVE = 192, 64
#: The range of Z ends where one of t batches is with this probability, and this many deviations of W, or largest Z, farther out.
RARE, DEVIATIONS, LARGEST = 1e-2, 7.0, 2.0
#: Thresholds on each side: steps per deviation of the loss up to this many deviations, then this many per octave.
PER_DEVIATION, LINEAR, SPARSE = 50, 2.5, 20
#: The same where the values are not attained.
FEWER_PER_DEVIATION, SPARSER = 20, 10
#: Cells of an outcome that an attacker sees, and cells of their statistic in one of its deviations.
ROUNDED, STATISTIC = 20_000, 2000
#: Hockey sticks below this one are not looked at, nor losses above the other one.
FLOOR, FARTHEST = 1e-12, 600.0
#: After this many thresholds without a smaller value only that of a known batch is looked at, unless so little is left.
PATIENCE, LEFT = 8, 1e-9
#: Probability that is wrapped around at each end of the transform; logarithm of the modulus that counts as 0.
WRAPPED, DEAD = 1e-14, -45.0
#: Error of a normal probability relative to itself, and of a fast Fourier transform in units of log₂(length)·Σ|terms|.
NORMAL_ERROR, FFT_ERROR = 16.0 * EPS, 4.0 * EPS
#: Relative room for all that is as small as rounding: the ends of cells, sums of products.
PAD = 1e-12


class Line(NamedTuple):
    """At a threshold: a value above the hockey stick; and P(E) - Q(E) and Q(E) of a test, whose line is below the curve."""

    above: float
    gain: float
    mass: float


@dataclass(frozen=True)
class EpochCurve:
    """The hockey stick of one epoch: values above it at some losses ≥ 0, and lines below it."""

    losses: NDArray[Any]
    above: NDArray[Any]
    gain: NDArray[Any]
    mass: NDArray[Any]

    def tails(self, above: bool) -> Tails:
        """Of the polygon through the values above; or of the best line at each loss."""
        return self._polygon if above else self._lines

    def _polygon(self, losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The polygon in α as a gain, without a mass: all that a node above needs is the value."""
        i = np.clip(np.searchsorted(self.losses, losses, side="right") - 1, 0, len(self.losses) - 2)
        left, right = self.losses[i], self.losses[i + 1]
        share = np.clip(np.expm1(losses - left) / np.expm1(right - left), 0.0, 1.0)
        return (1.0 + 8.0 * EPS) * (self.above[i] + share * (self.above[i + 1] - self.above[i])), np.zeros(len(losses))

    def _lines(self, losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        middle = np.searchsorted(self.losses, losses)
        near = np.clip(middle[:, None] + np.array([-2, -1, 0, 1]), 0, len(self.losses) - 1)
        values = self.gain[near] - np.expm1(losses)[:, None] * self.mass[near]
        best = near[np.arange(len(losses)), np.argmax(values, axis=1)]
        return self.gain[best], self.mass[best]


@lru_cache(maxsize=128)
def epoch_curve(batches: int, noise: float, direction: Direction, distance: float = 2.0) -> EpochCurve:
    """Bounds of one epoch of at least two batches.

    Parameters
    ----------
    batches, noise : t and σ.
    direction : "replaced", with the distance of the two gradients; "added": of H(P‖Q) with the record in P; "removed": of H(Q‖P).
    distance : R. Below 2 the values are above those of all pairs of gradients, and there are no lines: no single pair has them.
    """
    s = 1.0 / noise
    if direction == "replaced":
        width = min(sqrt(4.0 * sinh(min(s * s, 600.0)) / batches), 2.0 * s) * 0.5 * distance
        mu = distance * s
    else:
        width, mu = min(sqrt(expm1(min(s * s, 600.0)) / batches), s), s
    dense, sparse = (PER_DEVIATION, SPARSE) if distance == 2.0 else (FEWER_PER_DEVIATION, SPARSER)
    fine = width / dense * np.arange(ceil(dense * LINEAR))
    coarse = LINEAR * width * 2.0 ** (np.arange(12 * sparse) / sparse)
    losses: list[float] = []
    lines: list[Line] = []
    stalled = False
    for loss in np.concatenate([fine, coarse]).tolist():
        if loss > FARTHEST:
            break
        stalled = stalled and loss > coarse[0]  # farther out it stays like that
        stalled |= len(lines) > PATIENCE and lines[-1].above == lines[-PATIENCE].above
        line = lines[-1] if stalled else _line(batches, s, loss, direction, distance)
        # The batch in which the record is may be known: a Gaussian mechanism.
        known = float(ndtr(0.5 * mu - loss / mu) - exp(loss) * ndtr(-0.5 * mu - loss / mu)) + PAD
        best = min(line.above, known, lines[-1].above if lines else 1.0)  # it does not grow
        losses.append(loss)
        lines.append(line._replace(above=best))
        if best < (LEFT if stalled else FLOOR) or known < 2.0 * PAD:
            break  # nothing but rounding is left
    above, gain, mass = (np.array(column) for column in zip(*lines, strict=True))
    return EpochCurve(np.array(losses), above, gain, mass)


@lru_cache(maxsize=128)
def attack_curve(batches: int, times: int, noise: float, direction: Direction) -> EpochCurve:
    """The curve of one attack on epochs in which a record is in `times` of the batches, from both sides.

    The attacker adds up what each batch would say if the record were in it with the probability times/batches, by itself:
    log (1 - p + pX)/(1 - p + pY), rounded. This sum has the same law whichever batches the record is in.
    """
    s, rate = 1.0 / noise, times / batches
    z = np.linspace(-9.0 - 2.0 * s, 9.0 + 2.0 * s, ROUNDED)
    middle = 0.5 * (z[1:] + z[:-1])
    ahead = np.logaddexp(np.log1p(-rate) if rate < 1.0 else -inf, log(rate) + s * middle - 0.5 * s * s)
    behind = ahead[::-1] if direction == "replaced" else np.zeros(len(middle))
    said = np.concatenate([[ahead[0] - behind[0]], ahead - behind, [ahead[-1] - behind[-1]]])
    low, high = np.append(-inf, z), np.append(z, inf)
    (plain, e0), (first, e1), (second, e2) = (
        _normal(low, high, mean) for mean in (0.0, s, -s if direction == "replaced" else 0.0)
    )
    d = max(sqrt(batches * float(plain @ said**2)) / STATISTIC, 1e-300)
    index = np.round(said / d).astype(np.int64)
    laws, wrong = [], []
    for hit in (first, second):
        index_of_sum, law, error = _sum_of_two_kinds(plain, batches - times, hit, times, index, d)
        laws.append((index_of_sum, law))
        wrong.append(error + 2.0 * batches * float(e0.sum() + e1.sum() + e2.sum()))
    start, stop = min(i[0] for i, _ in laws), max(i[-1] for i, _ in laws) + 1
    p, q = np.zeros(stop - start), np.zeros(stop - start)
    for whole, (places, law) in zip((p, q), laws, strict=True):
        whole[places[0] - start : places[-1] + 1 - start] = np.maximum(law, 0.0)
    if direction == "removed":
        p, q, wrong = q[::-1], p[::-1], wrong[::-1]
    return _curve_of_laws(p, q, d, wrong[0] + PAD, wrong[1] + PAD)


def _curve_of_laws(p: NDArray[Any], q: NDArray[Any], d: float, error_p: float, error_q: float) -> EpochCurve:
    """The curve of a statistic on a lattice that has these laws up to errors of their probabilities, and grows with log p/q."""
    above_p, above_q = (np.cumsum(law[::-1], dtype=np.longdouble)[::-1].astype(np.float64) for law in (p, q))
    deviation = max(sqrt(max(1.0 - float(np.sqrt(p * q).sum()), 0.0)), 1e-6) * sqrt(8.0)
    fine = deviation / PER_DEVIATION * np.arange(ceil(PER_DEVIATION * LINEAR))
    losses = np.append(fine, LINEAR * deviation * 2.0 ** (np.arange(8 * SPARSE) / SPARSE))
    losses = losses[losses < FARTHEST]
    columns: list[tuple[float, float, float]] = []
    for loss in losses.tolist():
        best = int(np.argmax(above_p - exp(loss) * above_q))
        gain, mass = float(above_p[best] - above_q[best]) - error_p - error_q, float(above_q[best]) + error_q
        value = float(np.maximum(p - exp(loss) * q, 0.0).sum()) + error_p + exp(loss) * error_q
        columns.append((min(value, columns[-1][0] if columns else 1.0), gain, mass))
        if value < FLOOR or (len(columns) > PATIENCE and columns[-1][0] == columns[-PATIENCE][0]):
            break
    above, gains, masses = np.array(columns).T
    return EpochCurve(losses[: len(above)], above, gains, masses)


def _sum_of_two_kinds(
    plain: NDArray[Any], others: int, hit: NDArray[Any], times: int, index: NDArray[Any], d: float
) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Law of a sum of `others` terms of one kind and `times` of another: its places on the lattice, and a bound of its error."""
    from scipy.fft import irfft, next_fast_len, rfft

    ends = np.array([_window(law, index * d, count) for law, count in ((plain, others), (hit, times)) if count])
    start, stop = floor(float(ends[:, 0].sum()) / d) - 1, ceil(float(ends[:, 1].sum()) / d) + 2
    length = next_fast_len(min(stop - start, MOST_POINTS), real=True)
    wrapped = 4.0 * WRAPPED if stop - start <= length else 1.0
    power, doubt, each = 0.0 + 0.0j, 0.0, FFT_ERROR * log2(length)
    for law, count in ((plain, others), (hit, times)):
        if count:
            transform = rfft(np.bincount(index % length, weights=law, minlength=length))
            with np.errstate(divide="ignore"):
                power = power + count * np.log(transform)
            doubt = doubt + count * (each / np.maximum(np.abs(transform), EPS) + 8.0 * EPS)
    alive = power.real > DEAD
    composed = np.where(alive, np.exp(np.where(alive, power, 0.0)), 0.0)
    grown = np.abs(composed) * np.expm1(np.minimum(doubt, 50.0))
    error = sqrt(2.0 * float(grown @ grown)) + each * sqrt(2.0 * float(np.sum(np.abs(composed) ** 2)))
    error += 2.0 * exp(DEAD) * len(composed) + wrapped
    return start + np.arange(length), np.roll(irfft(composed, length), -start), error


class _Cells(NamedTuple):
    """Probabilities of the cells of Z without the record, with it in world P and in world Q, and bounds of their errors.

    The first cell is below the first node, the last one above the last node. atom: the probability of Z = 0 besides.
    """

    plain: NDArray[Any]
    first: NDArray[Any]
    second: NDArray[Any]
    errors: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    atom: float


def _line(batches: int, s: float, loss: float, direction: Direction, distance: float) -> Line:
    """The bounds at one threshold α = e^loss."""
    alpha, t = exp(loss), batches
    low, high, deviation = _range(t, s, alpha, direction, distance)
    d = max((high - low) / CELLS, WINDOW * deviation / POINTS)
    index = _nodes(low, high, d, _median(s, alpha, direction, distance))
    k = d * index
    cells = _cells(k, s, alpha, direction, distance)
    q, p, other = cells.plain, cells.first, cells.second
    widths = np.diff(k)
    # Shares of the right ends that keep the mean, E[Z; cell] = P(cell) - α·Q(cell).
    right = np.clip((p[1:-1] - alpha * other[1:-1] - k[:-1] * q[1:-1]) / widths, 0.0, q[1:-1])
    share = np.divide(right, q[1:-1], out=np.full_like(right, 0.5), where=q[1:-1] > 0.0)

    def ends(cell: NDArray[Any]) -> NDArray[Any]:
        at = np.zeros(len(k))
        at[0], at[-1] = cell[0], cell[-1]
        at[:-1] += cell[1:-1] * (1.0 - share)
        at[1:] += cell[1:-1] * share
        return at

    masses = ends(q)
    masses[np.searchsorted(index, 0)] += cells.atom
    error_q, error_p, error_other = cells.errors
    tail, doubt = _tail_of_sum(masses, index, d, t - 1)
    doubt += 2.0 * (t - 1) * float(error_q.sum())
    beyond = tail(-index)  # Pr[the other ends add up to more than -k]
    excess = max(float(p[-1] - alpha * other[-1] - k[-1] * q[-1]), 0.0)
    size, far = float(np.abs(k) @ masses), np.maximum(np.abs(np.append(k[0], k)), np.abs(np.append(k, k[-1])))
    above = float((k * masses) @ beyond) + excess
    # A probability that is moved by a cell changes E[W₊] by its product with the width; one that is missing, with all of it.
    above += 4.0 * float((error_p + alpha * error_other + far * error_q).sum()) + t * above * float(error_q.sum())
    above += size * doubt + PAD * (size + 1.0)
    if distance < 2.0:
        return Line(above, 0.0, 0.0)
    hit, alarm = float(ends(p) @ beyond), float(ends(other) @ beyond)
    error, miss = doubt + float(error_p.sum()) + PAD, doubt + float(error_other.sum()) + PAD
    return Line(above, hit - error - (alarm + miss), alarm + miss)


def _range(t: int, s: float, alpha: float, direction: Direction, distance: float) -> tuple[float, float, float]:
    """The smallest and the largest node, and the deviation of W. Any range is right; in this one little is lost."""
    square = min(s * s, 300.0)
    variance = (1.0 + (direction == "replaced") * alpha**2) * expm1(square)
    if direction == "replaced":
        variance -= 2.0 * alpha * expm1((1.0 - distance) * square)
    elif direction == "removed":
        variance *= alpha**2
    big = exp(min(-s * float(ndtri(RARE / t)) - 0.5 * s * s, 600.0))  # the largest of t likelihoods is hardly larger
    up, down = (0.0 if direction == "removed" else big), (0.0 if direction == "added" else alpha * big)
    deviation = min(sqrt(t * max(variance, 0.0)), sqrt(t) * (up + down))
    spread = min(DEVIATIONS * deviation, LARGEST * max(up, down, 1.0))
    low, high = -spread - down - up, t * (alpha - 1.0) + spread + up + down
    low, high = max(low, -alpha) if direction == "added" else low, min(high, 1.0) if direction == "removed" else high
    return low, high, deviation


def _median(s: float, alpha: float, direction: Direction, distance: float) -> float:
    """Z where the batch shows 0, about."""
    fall = exp(-0.5 * s * s)
    if direction == "replaced":
        return fall - alpha * exp(-0.5 * (1.0 - distance) ** 2 * s * s)
    return fall - alpha if direction == "added" else 1.0 - alpha * fall


def _nodes(low: float, high: float, d: float, median: float) -> NDArray[Any]:
    """Multiples of d between the ends: dense around 0 and around the median, sparse far from both."""
    first, last = floor(low / d), ceil(high / d)
    reach = last - first
    places = np.arange(DENSE + 1)
    if reach > DENSE:
        octaves = np.arange(1, ceil(PER_OCTAVE * log2(reach / DENSE)) + 1) / PER_OCTAVE
        places = np.append(places, np.round(DENSE * 2.0**octaves).astype(np.int64))
    sides = np.concatenate([-places, places])
    every = np.concatenate([sides, sides + round(median / d), [first, last]])
    return np.unique(every[(every >= first) & (every <= last)])


def _normal(low: NDArray[Any], high: NDArray[Any], mean: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pr[low < N(mean, 1) < high] from the side on which it is small, and a bound of its error."""
    low, high = low - mean, high - mean
    flip = low + high > 0.0
    small, large = ndtr(np.where(flip, -high, low)), ndtr(np.where(flip, -low, high))
    return np.maximum(large - small, 0.0), NORMAL_ERROR * large


def _cells(k: NDArray[Any], s: float, alpha: float, direction: Direction, distance: float) -> _Cells:
    """The cells of Z = X - αY between the nodes, by the outcomes z (in deviations) at which Z is k, with which it grows."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if direction == "added":  # X - α
            z = np.where(k > -alpha, (np.log(np.maximum(k + alpha, 0.0)) + 0.5 * s * s) / s, -inf)
        elif direction == "removed":  # 1 - αX, with the sign of z turned
            z = np.where(k < 1.0, -(np.log(np.maximum(1.0 - k, 0.0) / alpha) + 0.5 * s * s) / s, inf)
    if direction != "replaced":
        low, high = np.append(-inf, z), np.append(z, inf)
        means = (0.0, s, 0.0) if direction == "added" else (0.0, 0.0, -s)
        (plain, e0), (first, e1), (second, e2) = (_normal(low, high, mean) for mean in means)
        return _Cells(plain, first, second, (e0, e1, e2), 0.0)
    # Above 0 the pair 1 and 1 - R is the worst one, below 0 the pair R - 1 and -1, with z turned. For R = 2 they are the same.
    ahead, behind = k[k >= 0.0], k[k <= 0.0]
    z_ahead = _root(ahead, s, alpha, distance)
    z_behind = -_root(-behind / alpha, s, 1.0 / alpha, distance)
    b = 1.0 - distance
    parts = []
    for low, high, means in (
        (np.append(-inf, z_behind[:-1]), z_behind, (0.0, -b * s, -s)),
        (z_ahead, np.append(z_ahead[1:], inf), (0.0, s, b * s)),
    ):
        parts.append([_normal(low, high, mean) for mean in means])
    (plain, e0), (first, e1), (second, e2) = (
        tuple(np.concatenate([below[i], above[i]]) for i in (0, 1)) for below, above in zip(*parts, strict=True)
    )
    return _Cells(plain, first, second, (e0, e1, e2), max(1.0 - float(plain.sum()), 0.0))


def _root(k: NDArray[Any], s: float, alpha: float, distance: float) -> NDArray[Any]:
    """z with e^{sz - s²/2} - α·e^{bsz - b²s²/2} = k for k ≥ 0, b = 1 - R: by the inverse sine for R = 2, or by bisection."""
    if distance == 2.0:
        return np.asarray((0.5 * log(alpha) + np.arcsinh(0.5 * k * exp(0.5 * s * s) / sqrt(alpha))) / s)
    b = 1.0 - distance
    zero = log(alpha) / (s * distance) + 0.5 * (1.0 + b) * s
    with np.errstate(divide="ignore"):
        far = np.maximum((np.log(2.0 * k) + 0.5 * s * s) / s, zero + log(2.0) / (distance * s))
    left, right = np.full(len(k), zero), far
    for _ in range(60):
        middle = 0.5 * (left + right)
        # Logarithms: X - αY > k where 1 - αY/X > k/X.
        less = -np.expm1(-s * distance * (middle - zero)) < k * np.exp(-s * middle + 0.5 * s * s)
        left, right = np.where(less, middle, left), np.where(less, right, middle)
    return np.where(k > 0.0, right, zero)


def _tail_of_sum(
    masses: NDArray[Any], index: NDArray[Any], d: float, count: int
) -> tuple[Callable[[NDArray[Any]], NDArray[Any]], float]:
    """Pr[a sum of `count` ends > i·d] as a function of i, and a bound of its error."""
    from scipy.fft import irfft, next_fast_len, rfft

    low, high = _window(masses, index * d, count)
    start = floor(low / d) - 1
    length = next_fast_len(min(ceil(high / d) - start + 2, MOST_POINTS), real=True)
    wrapped = 2.0 * WRAPPED if ceil(high / d) - start + 2 <= length else 1.0
    transform = rfft(np.bincount(index % length, weights=masses, minlength=length))
    size = np.abs(transform)
    with np.errstate(divide="ignore"):
        alive = count * np.log(size) > DEAD
    composed = np.zeros(len(transform), dtype=np.complex128)
    composed[alive] = np.exp(count * np.log(transform[alive]))
    # ‖error‖₁ ≤ √n·‖error‖₂ = norm of the error of the transform; then the inverse transform's own, and what counts as 0.
    each = FFT_ERROR * log2(length)
    grown = np.abs(composed[alive]) * np.expm1(np.minimum(count * (each / size[alive] + 8.0 * EPS), 50.0))
    error = sqrt(2.0 * float(grown @ grown)) + each * sqrt(2.0 * float(np.sum(np.abs(composed) ** 2)))
    error += 2.0 * exp(DEAD) * len(transform) + wrapped
    law = np.roll(irfft(composed, length), -start)
    above = np.append(np.cumsum(law[::-1], dtype=np.longdouble)[::-1], 0.0).astype(np.float64)

    def tail(at: NDArray[Any]) -> NDArray[Any]:
        return np.clip(above[np.clip(at + 1 - start, 0, length)], 0.0, 1.0)

    return tail, error


def _window(masses: NDArray[Any], values: NDArray[Any], count: int) -> tuple[float, float]:
    """Values outside of which a sum is with probability WRAPPED at most, on either side, by Chernoff."""
    deviation = sqrt(count * float(masses @ values**2))
    ends = []
    for sign in (-1.0, 1.0):
        far = max(float((sign * values).max()), 1e-300)
        tilts = np.concatenate([np.geomspace(0.1, 60.0, 24) / deviation, np.geomspace(0.1, 600.0, 24) / far])
        tilts = tilts[tilts * far <= 600.0]
        means = np.exp(np.outer(sign * tilts, values)) @ masses
        ends.append(min(count * far, float(np.min((count * np.log(means) - log(WRAPPED)) / tilts))))
    return -ends[0], max(ends[1], -ends[0])
