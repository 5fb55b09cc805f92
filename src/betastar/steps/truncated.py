"""Poisson batches of which at most B records are kept at random: a public coin, and its probabilities (theory, section 13).

K ~ Bin(N-1, p) other records are drawn, N being the number of records of the larger data set. Everybody may know whether K ≥ B,
which says nothing of the record. If K < B, the record is in the batch with probability p, in addition to the others. If K ≥ B, it
is in the batch with the probability p·E[B/(K+1) | K ≥ B] = B·Pr[Bin(N,p) > B] / (N·Pr[K ≥ B]), in the place of another.

So a public coin decides which of two steps is taken: transforms and hockey sticks are means of those of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from betastar.curves import Answers
from betastar.steps.base import LEAST, Directions, Family, Step, StepFactor, Tails, Transform
from betastar.steps.poisson import PoissonStep

#: What rounding may change of a probability, relative to itself.
ROUNDING = 1e-12


@dataclass(frozen=True)
class CoinStep(Step):
    """`count` times one of several steps, which a coin chooses with known chances. The attacker sees the coin.

    chances : the probabilities of the steps, whose sum is 1.
    steps : the steps; how often the coin is tossed is `count`, their own counts do not matter.
    """

    chances: tuple[float, ...]
    steps: tuple[PoissonStep, ...]
    count: int

    def factor(self, family: Family) -> CoinFactor:
        chances, steps = self._tossed()
        return CoinFactor(self.count, chances, tuple(step.factor(family) for step in steps))

    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        chances, steps = self._tossed()
        return mixed(chances, [step.directions(symmetric, above, slack) for step in steps])

    def _tossed(self) -> tuple[tuple[float, ...], list[PoissonStep]]:
        """The chances above 0, and their steps as often as the coin is tossed."""
        tossed = [(chance, step) for chance, step in zip(self.chances, self.steps, strict=True) if chance > 0.0]
        return tuple(chance for chance, _ in tossed), [replace(step, count=self.count) for _, step in tossed]

    def advantage(self) -> float:
        return self._mean([step.advantage() for step in self.steps])

    def log_never_sampled(self) -> float:
        leaking = self._mean([step.rate if step.distance > 0.0 else 0.0 for step in self.steps])
        return log1p(-leaking) if leaking < 1.0 else -inf

    def clamped(self, least_distance: float = LEAST) -> CoinStep:
        return replace(self, steps=tuple(step.clamped(least_distance) for step in self.steps))

    def with_min_noise(self, noise: float) -> CoinStep:
        return replace(self, steps=tuple(step.with_min_noise(noise) for step in self.steps))

    @property
    def least_noise(self) -> float:
        return float(min(step.noise for step in self.steps))

    def attained_step(self, symmetric: bool) -> None:
        """The coin is a bound: no data are known that attain it."""
        return

    def gap(self) -> float:
        return self._mean([step.gap() for step in self.steps])

    def _mean(self, values: list[float]) -> float:
        return sum(chance * value for chance, value in zip(self.chances, values, strict=True))


@dataclass(frozen=True)
class CoinFactor(StepFactor):
    """`count` tosses of a coin that chooses one of several factors."""

    count: float
    chances: tuple[float, ...]
    factors: tuple[StepFactor, ...]
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return self._mean([factor.sampled for factor in self.factors])

    @property
    def least_loss(self) -> float | None:
        least = [factor.least_loss for factor in self.factors]
        return None if None in least else min(one for one in least if one is not None)

    @property
    def mu_square(self) -> float | None:
        return self.factors[0].mu_square if len(self.factors) == 1 else None

    def exchanged(self) -> CoinFactor:
        return replace(self, factors=tuple(factor.exchanged() for factor in self.factors), reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        every = [factor.transform(wide) for factor in self.factors]
        weight = np.concatenate([chance * one.weight for chance, one in zip(self.chances, every, strict=True)])
        likeliest = int(np.argmax(self.chances))
        return Transform(
            weight,
            np.concatenate([one.loss for one in every]),
            mirrored=every[0].mirrored,
            atom=self._mean([one.atom for one in every]),
            rest=every[likeliest].rest,
        )

    def overlap(self) -> float | None:
        values = [factor.overlap() for factor in self.factors]
        return None if None in values else self._mean([value for value in values if value is not None])

    def closed_form(self) -> bool:
        return all(factor.closed_form() for factor in self.factors)

    def answers(self, taus: NDArray[Any]) -> Answers:
        """Each is a mean of those of the factors."""
        every = np.array([factor.answers(taus) for factor in self.factors])
        return Answers(*np.tensordot(np.array(self.chances), every, axes=1))

    def guess(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """The τ with Q(L > τ) = FPR, by bisection between what the factors alone would need."""
        guesses = np.array([factor.guess(fprs) for factor in self.factors])
        return np.median(guesses, axis=0)

    def _mean(self, values: list[float]) -> float:
        return sum(chance * value for chance, value in zip(self.chances, values, strict=True))


def mixed(chances: tuple[float, ...], every: list[Directions]) -> Directions:
    """What a grid needs to know of a toss of the coin: an outcome is the coin and what the step shows."""

    def mean(tails: list[Tails]) -> Tails:
        def of_coin(losses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            gain, mass = np.zeros(len(losses)), np.zeros(len(losses))
            for chance, one in zip(chances, tails, strict=True):
                more, other = one(losses)
                gain, mass = gain + chance * more, mass + chance * other
            return gain, mass

        return of_coin

    advantage = sum(chance * one.advantage for chance, one in zip(chances, every, strict=True))
    ahead, most = mean([one.ahead for one in every]), max(one.most for one in every)
    behind = [one.behind for one in every if one.behind is not None]
    if not behind:
        return Directions(advantage, ahead, most)
    return Directions(advantage, ahead, most, mean(behind), max(one.farthest for one in every), min(one.least for one in every))


@dataclass(frozen=True)
class Truncation:
    """full: probability that the others alone fill the batch. rate: that the record takes part then. overall: that it ever does.

    The first two are rounded up, the last one down.
    """

    full: float
    rate: float
    overall: float


def truncation(sample_rate: float, dataset_size: int, max_batch_size: int) -> Truncation:
    """The probabilities of one record."""
    p, others, most = sample_rate, dataset_size - 1, max_batch_size
    full, crowded = at_least(most, others, p), at_least(most + 1, dataset_size, p)
    if full == 0.0:
        return Truncation(0.0, p, p)
    rate = min(p, most / dataset_size * crowded / full * (1.0 + 4.0 * ROUNDING))
    # p·Pr[K < B] + (B/N)·Pr[Bin(N,p) > B] = p - (p·Pr[K ≥ B] - …): what the cut takes away is small, or nothing.
    overall = p - max(p * full - most / dataset_size * crowded, 0.0)
    return Truncation(min(1.0, full * (1.0 + 2.0 * ROUNDING)), rate, overall * (1.0 - 4.0 * ROUNDING))


def at_least(number: int, trials: int, probability: float) -> float:
    """Pr[Bin(trials, probability) ≥ number], as a regularised incomplete beta function: accurate relative to itself."""
    if number <= 0:
        return 1.0
    if number > trials:
        return 0.0
    return float(betainc(number, trials - number + 1, probability))
