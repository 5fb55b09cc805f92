"""A public coin decides which of several steps is taken: transforms and hockey sticks are means of those of the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from betastar.arrays import Real
from betastar.bounds.one_step import Directions
from betastar.bounds.parts import AnyPart
from betastar.certified.grid import Tails
from betastar.curves import Answers
from betastar.exact.transform import Transform


@dataclass(frozen=True)
class CoinPart:
    """`count` tosses of a coin that chooses one of several parts."""

    count: float
    chances: tuple[float, ...]
    parts: tuple[AnyPart, ...]
    reverse: bool = False

    @property
    def sampled(self) -> float:
        return self._mean([part.sampled for part in self.parts])

    @property
    def least_loss(self) -> float | None:
        least = [part.least_loss for part in self.parts]
        return None if None in least else min(one for one in least if one is not None)

    @property
    def mu_square(self) -> float | None:
        return self.parts[0].mu_square if len(self.parts) == 1 else None

    def exchanged(self) -> CoinPart:
        return replace(self, parts=tuple(part.exchanged() for part in self.parts), reverse=not self.reverse)

    def transform(self, wide: bool) -> Transform:
        every = [part.transform(wide) for part in self.parts]
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
        values = [part.overlap() for part in self.parts]
        return None if None in values else self._mean([value for value in values if value is not None])

    def closed_form(self) -> bool:
        return all(part.closed_form() for part in self.parts)

    def answers(self, taus: Real) -> Answers:
        """Each is a mean of those of the parts."""
        every = np.array([part.answers(taus) for part in self.parts])
        return Answers(*np.tensordot(np.array(self.chances), every, axes=1))

    def guess(self, fprs: Real) -> Real:
        """The τ with Q(L > τ) = FPR, by bisection between what the parts alone would need."""
        guesses = np.array([part.guess(fprs) for part in self.parts])
        return np.median(guesses, axis=0)

    def _mean(self, values: list[float]) -> float:
        return sum(chance * value for chance, value in zip(self.chances, values, strict=True))


def mixed(chances: tuple[float, ...], every: list[Directions]) -> Directions:
    """What a grid needs to know of a toss of the coin: an outcome is the coin and what the step shows."""

    def mean(tails: list[Tails]) -> Tails:
        def of_coin(losses: Real) -> tuple[Real, Real]:
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
