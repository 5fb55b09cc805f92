"""Attackers who know when the record takes part: a mixture of Gaussians in closed form (theory, section 11).

Given the coins of Poisson sampling, the steps in which the record takes part add up to N(0, 1) against N(μ, 1), μ² = Σ (R/σ)²,
whatever the attacker chooses by what they saw; the other steps tell nothing. So the pair that shows μ, whose law is known, and an
outcome dominates every run. It costs little where the noise is so small, or the rate so near 1, that an attacker sees the coins
anyway: with ‖a‖ = ‖b‖ = 1 the coordinate across a - b shows them but for rare errors.

Equal steps: μ² is a multiple of a binomial number. Others, from above: the law of μ on nodes at equal ratios, to which one kind
of step is added after another. H grows with μ, and H'' ≥ -(μ/4)·H' at every threshold: so a coin between two nodes, seen by all,
dominates what lies between them. From below: each (R/σ)² is rounded down to a multiple of one number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, log, log1p, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from betastar.curves import Curve, Value
from betastar.steps.base import EPS
from betastar.steps.poisson import PoissonStep

#: μ beyond which the world is known: log P/Q is then below 700 with a probability below 1e-70.
LARGEST = 60.0
#: Ratio of neighbouring nodes of μ, and the smallest one as a share of the largest R/σ (or of LARGEST).
RATIO, SMALLEST = 1.01, 1e-4
#: Multiples of one number that a sum of (R/σ)² is rounded down to, at most.
MULTIPLES = 1 << 14
#: Rounding of the probability of a multiple.
NOISE = 1e-15
#: Numbers of steps that are less likely than this, relative to the likeliest one, count as revealed (or are left out).
UNLIKELY = 1e-24
#: Different numbers of steps beyond which other bounds are better.
MOST_NUMBERS = 1 << 12
#: Probability of a wrong coin, as a share of what the step leaks, beyond which an attacker does not look at it.
DOUBTFUL = 1e-3
#: Largest loss at which the curve is asked for, and halvings of a bracket.
FARTHEST, HALVINGS = 4000.0, 70


class MixtureCurve(Curve):
    """With probability weight_i, N(0, 1) against N(μ_i, 1), μ_i > 0; with probability `told` the world is revealed.

    Otherwise nothing is shown. doubt: mass that may be wrong, in either world. rounding: relative error of the weights.
    """

    def __init__(self, mu: NDArray[Any], weight: NDArray[Any], told: float, doubt: float, rounding: float) -> None:
        self.mu, self.weight, self.told, self.doubt, self.rounding = mu, weight, told, doubt, rounding
        self.start, self.mass_at_start = float(self._sums(np.zeros(1))[0][0]), float(self._masses(np.zeros(1))[0])

    def reversed(self) -> MixtureCurve:
        return self

    def overlap(self) -> Value:
        rest = max(1.0 - self.told - float(self.weight.sum()), 0.0)
        value = rest + 2.0 * float(self.weight @ ndtr(-0.5 * self.mu))
        return Value(value, 16.0 * EPS * value + self.rounding * float(self.weight.sum()) + 2.0 * self.doubt)

    def hockey_stick(self, tau: float) -> Value:
        values, errors = self.hockey_sticks(np.array([tau]))
        return Value(float(values[0]), float(errors[0]))

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """For τ < 0, H_α = 1 - α + α·H_{1/α}."""
        values, errors = self._sums(np.abs(taus))
        alpha = np.exp(np.minimum(taus, 0.0))
        return alpha * values - np.expm1(np.minimum(taus, 0.0)), alpha * errors

    def _sums(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """H_{e^τ} at thresholds τ ≥ 0, as a sum of Φ(μ/2 - τ/μ) - e^τ·Φ(-μ/2 - τ/μ), and its error."""
        near, far = 0.5 * self.mu, taus[:, None] / self.mu
        power, hit = log_ndtr(near - far), taus[:, None] + log_ndtr(-near - far)
        with np.errstate(under="ignore", over="ignore"):
            each = np.exp(power)
            values = (each * -np.expm1(np.minimum(hit - power, 0.0))) @ self.weight
            errors = (each * (64.0 * EPS * (1.0 + (near - far) ** 2 + taus[:, None]) + self.rounding)) @ self.weight
            return self.told + values, errors + (self.doubt * (1.0 + np.exp(taus)) if self.doubt else 0.0)

    def _masses(self, taus: NDArray[Any]) -> NDArray[Any]:
        """Q(L > τ) at thresholds τ ≥ 0."""
        return ndtr(-0.5 * self.mu - taus[:, None] / self.mu) @ self.weight

    def _powers(self, taus: NDArray[Any]) -> NDArray[Any]:
        """P(L > τ) at thresholds τ ≥ 0."""
        return self.told + ndtr(0.5 * self.mu - taus[:, None] / self.mu) @ self.weight

    def _thresholds(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """Where the tangents H + e^τ·FPR are lowest: Q(L > τ) = FPR, or P(L > -τ) = 1 - FPR, or 0 where the curve is straight."""
        ahead = _crossing(lambda taus: self._masses(taus) - fprs, np.full(len(fprs), 700.0))
        behind = _crossing(lambda taus: self._powers(taus) - (1.0 - fprs), np.full(len(fprs), 700.0))
        return np.where(fprs < self.mass_at_start, ahead, -behind)

    def true_positive_rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        taus = self._thresholds(fprs)
        values, errors = self.hockey_sticks(taus)
        return np.clip(values + np.exp(taus) * fprs, fprs, 1.0), errors

    def true_positives(self, fpr: float) -> Value:
        values, errors = self.true_positive_rates(np.array([fpr]))
        return Value(float(values[0]), float(errors[0]))

    def threshold(self, fpr: float) -> float:
        return float(self._thresholds(np.array([fpr]))[0])

    def epsilons(self, deltas: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        def solved(side: float) -> NDArray[Any]:
            def excess(taus: NDArray[Any]) -> NDArray[Any]:
                values, errors = self._sums(taus)
                return values + side * errors - deltas

            found = _crossing(excess, np.full(len(deltas), FARTHEST))
            return np.where(found < FARTHEST, found * (1.0 + side * 1e-12), np.inf)

        lower, value, upper = solved(-1.0), solved(0.0), solved(1.0)
        return np.where(np.isfinite(lower), lower, FARTHEST), value, upper


def _crossing(falling: Callable[[NDArray[Any]], NDArray[Any]], high: NDArray[Any]) -> NDArray[Any]:
    """Where functions of τ ≥ 0 that fall reach 0: at 0 if they start below, and at `high` if they do not reach it."""
    low = np.zeros(len(high))
    with np.errstate(invalid="ignore", over="ignore"):
        below, never = falling(low) <= 0.0, falling(high) > 0.0
        left, right = low, high.copy()
        for _ in range(HALVINGS):
            middle = 0.5 * (left + right)
            over = falling(middle) > 0.0
            left, right = np.where(over, middle, left), np.where(over, right, middle)
    return np.where(below, 0.0, np.where(never, high, right))


def told(steps: Sequence[PoissonStep]) -> MixtureCurve | None:
    """The curve of a run whose coins are public, or one above it. None if too many steps may have the record."""
    kinds = _kinds(steps)
    numbers = {kind: _numbers(count, kind[0]) for kind, count in kinds.items()}
    if any(one is None for one in numbers.values()):
        return None
    known = {kind: one for kind, one in numbers.items() if one is not None}
    rounding = 16.0 * EPS * sum(len(number) + 8 for number, _ in known.values())
    beyond = 2.0 * MOST_NUMBERS * UNLIKELY * len(known)
    if len(known) == 1:
        (((_, square), (number, chance)),) = known.items()
        mu = np.sqrt(number * square) * (1.0 + 8.0 * EPS)
        return _mixture(mu, chance, beyond, 0.0, rounding)
    largest = min(sqrt(max(square for _, square in known)), LARGEST)
    nodes = SMALLEST * largest * RATIO ** np.arange(ceil(log(LARGEST / (SMALLEST * largest)) / log(RATIO)) + 1)
    nodes, law = np.append(0.0, nodes), np.append(1.0, np.zeros(len(nodes)))
    for (_, square), (number, chance) in sorted(known.items(), key=lambda kind: kind[0][1]):
        here = np.flatnonzero(law > UNLIKELY)
        beyond += float(law.sum() - law[here].sum())
        zero = float(chance[number == 0].sum())
        some = number > 0
        mu = np.sqrt(nodes[here, None] ** 2 + number[some] * square).ravel() * (1.0 + 8.0 * EPS)
        new, over = _on_nodes(nodes, mu, np.outer(law[here], chance[some]).ravel())
        kept = np.zeros(len(law))
        kept[here] = zero * law[here]
        law, beyond = kept + new, beyond + over
    return _mixture(nodes, law, beyond, 0.0, rounding)


def seen(steps: Sequence[PoissonStep]) -> MixtureCurve | None:
    """The curve of an attack that exists, or one below it: ‖a‖ = ‖b‖ = 1, and the coordinate across a - b shows the coins.

    Its mean is 0, or c = √(1 - R²/4) if the record takes part: the coin is taken for another one with probability Φ(-c/(2σ)).
    """
    clear, doubt = [], 0.0
    for step in steps:
        half = 0.5 * step.distance
        wrong = float(ndtr(-0.5 * sqrt((1.0 - half) * (1.0 + half)) / step.noise))
        if half > 0.0 and wrong <= DOUBTFUL * step.advantage():
            clear.append(step)
            doubt += wrong * step.count
    kinds = _kinds(clear)
    if not kinds:
        return None
    mean = sum(count * rate for (rate, _), count in kinds.items())
    doubt += 64.0 * EPS * (1.0 + mean)
    if len(kinds) == 1:
        (((rate, square), count),) = kinds.items()
        if (numbers := _numbers(count, rate)) is not None:
            mu = np.minimum(np.sqrt(numbers[0] * square), LARGEST)
            return _mixture(mu, numbers[1], 0.0, doubt, 16.0 * EPS * (len(numbers[0]) + 8))
    from scipy.fft import irfft

    most = sum(count * rate * square for (rate, square), count in kinds.items())
    spread = sqrt(sum(count * rate * square**2 for (rate, square), count in kinds.items()))
    unit = min(most + 12.0 * spread, LARGEST**2) / MULTIPLES
    frequency, turns = np.arange(MULTIPLES // 2 + 1), np.expm1(-2j * np.pi * np.arange(MULTIPLES) / MULTIPLES)
    power = np.zeros(len(frequency), dtype=np.complex128)
    for (rate, square), count in kinds.items():  # what is wrapped around counts as less than it is
        place = min(int(square / unit * (1.0 - 8.0 * EPS)), MULTIPLES - 1)
        kept = 1.0 + rate * turns[frequency * place % MULTIPLES]
        power += count * np.log(np.where(np.abs(kept) < 1e-200, 1e-200, kept))
    law = np.maximum(irfft(np.exp(power), MULTIPLES) - NOISE, 0.0)
    return _mixture(np.minimum(np.sqrt(unit * np.arange(MULTIPLES)), LARGEST), law, 0.0, doubt, 0.0)


def _kinds(steps: Sequence[PoissonStep]) -> dict[tuple[float, float], int]:
    """Counts of steps with each (rate, (R/σ)²)."""
    kinds: Counter[tuple[float, float]] = Counter()
    for step in steps:
        if step.distance > 0.0:
            kinds[step.rate, min(step.distance / step.noise, 2.0 * LARGEST) ** 2] += step.count
    return dict(kinds)


def _numbers(count: int, rate: float) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Numbers of steps in which the record takes part that count, and their probabilities; None if there are too many."""
    if rate >= 1.0:
        return np.array([float(count)]), np.ones(1)
    mode = min(int((count + 1) * rate), count)
    room = ceil(11.0 * sqrt(count * rate * (1.0 - rate))) + 60
    if room > MOST_NUMBERS:
        return None
    number = np.arange(max(0, mode - room), min(count, mode + room) + 1, dtype=np.float64)
    odds = log(rate) - log1p(-rate)
    steps = np.log((count - number[:-1]) / (number[:-1] + 1.0)) + odds
    logs = np.append(0.0, np.cumsum(steps))
    chance = np.exp(logs - logs.max())
    keep = chance > UNLIKELY
    return number[keep], chance[keep] / chance.sum()


def _on_nodes(nodes: NDArray[Any], mu: NDArray[Any], mass: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Each mass between two nodes as a coin between them that tells at least as much; and what lies beyond the last one.

    H'' ≥ -b·H' up to the right node μ₂ = 4b: the share of the rise between the two is at most that of 1 - e^{-bμ}.
    """
    over = mu >= nodes[-1]
    mu, mass, beyond = mu[~over], mass[~over], float(mass[over].sum())
    left = np.searchsorted(nodes, mu, side="right") - 1
    bend = 0.25 * nodes[left + 1]
    share = np.expm1(-bend * (mu - nodes[left])) / np.expm1(-bend * (nodes[left + 1] - nodes[left]))
    part = mass * np.minimum(share * (1.0 + 64.0 * EPS), 1.0)
    return np.bincount(left, mass - part, len(nodes)) + np.bincount(left + 1, part, len(nodes)), beyond


def _mixture(mu: NDArray[Any], mass: NDArray[Any], told: float, doubt: float, rounding: float) -> MixtureCurve:
    """The curve of a law of μ."""
    told += float(mass[mu > LARGEST].sum())
    some = (mu > 0.0) & (mu <= LARGEST) & (mass > 0.0)
    return MixtureCurve(mu[some], mass[some], min(told, 1.0), doubt, rounding)
