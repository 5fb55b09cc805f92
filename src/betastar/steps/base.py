"""What the methods ask of a step of a run, whatever its kind.

A kind of step is one class: its own file, a subclass of `Step` with a small `StepFactor` beside it. Steps of different kinds
compose: exactly by their transforms, certified by their masses on a grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf, log, log1p
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from betastar.curves import Answers
from betastar.steps.transform import Transform

EPS = float(np.finfo(float).eps)
#: Rates and distances below the first, and noise above the second, would be lost when they are squared and multiplied.
LEAST, MOST = 1e-40, 1e40
#: Accuracy of a threshold, relative to the noise or to itself: a deviation counts in second order.
EXACT = 1e-10
#: Affinities below this one are lost in the rounding of 1 - ρ, and exponents above the other.
LEAST_AFFINITY = 1e-9
MOST_EXPONENT = -log(LEAST_AFFINITY)

#: Which pair of gradients a step with a choice has: on a line, which is all there is for add/remove; the glued curve, which
#: dominates every pair at a distance (theory, section 2); or the symmetric pair of the plane.
Family = Literal["line", "glued", "symmetric"]
#: (gain, mass) = (P(S) - Q(S), Q(S)) of the outcomes S with a loss above each l.
Tails = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


class Directions(NamedTuple):
    """What a grid needs to know of one step, rounded outwards: up for a bound from above, down for one from below.

    advantage: total variation. ahead: tails of the loss, which is above `most` with a probability that is given to the attacker.
    behind, farthest: the same with the worlds exchanged; None if the pair is symmetric. least: no loss is smaller.
    """

    advantage: float
    ahead: Tails
    most: float
    behind: Tails | None = None
    farthest: float = 0.0
    least: float = -inf


class Step(ABC):
    """`count` equal steps: a pair of worlds P and Q, of which an attacker sees an outcome at each step.

    A subclass is a frozen dataclass.
    """

    count: int
    #: Whether bounds of its tails are proved, so that the certified method answers.
    certifiable: ClassVar[bool] = True

    @abstractmethod
    def factor(self, family: Family) -> StepFactor:
        """The steps as the exact method composes them; of steps with a choice, those of a family of pairs."""

    @abstractmethod
    def directions(self, symmetric: bool, above: bool, slack: float) -> Directions:
        """Tails of one step for the grid, from above or from below.

        symmetric: whether the threat is. Outcomes that all steps together have with probability `slack` are given to the
        attacker.
        """

    def largest_loss(self, slack: float) -> float:
        """The largest loss on the grid."""
        return self.directions(True, True, slack).most

    @abstractmethod
    def advantage(self) -> float:
        """Total variation of one step, or more."""

    @property
    def leaks(self) -> bool:
        """Whether the step tells the two worlds apart at all."""
        return self.advantage() > 0.0

    @abstractmethod
    def log_never_sampled(self) -> float:
        """Logarithm of the probability that one step tells nothing, whatever the noise is."""

    @abstractmethod
    def clamped(self, least_distance: float = LEAST) -> Step:
        """The step, or one that leaks a little more and whose leakage is not lost in rounding."""

    @abstractmethod
    def with_min_noise(self, noise: float) -> Step:
        """The same step with at least so much noise."""

    @property
    @abstractmethod
    def least_noise(self) -> float:
        """The least noise in it."""

    @abstractmethod
    def attained_step(self, symmetric: bool) -> Step | None:
        """A step with the same count that some data attain and that leaks no more; the step itself if data attain it."""

    @abstractmethod
    def gap(self) -> float:
        """Mean distance between the two worlds in units of the noise multiplier, about."""


class StepFactor(ABC):
    """`count` equal steps as a factor of the composed transform; counts may be fractional when they are weights of an
    interpolation.

    A subclass is a frozen dataclass. reverse: the two worlds are exchanged. What is not overridden has no closed form.
    """

    count: float
    reverse: bool

    @property
    @abstractmethod
    def sampled(self) -> float:
        """Probability that a step depends on the challenge: what the nodes do not see is a share of it."""

    @abstractmethod
    def exchanged(self) -> StepFactor:
        """The same steps with the two worlds exchanged."""

    @abstractmethod
    def transform(self, wide: bool) -> Transform:
        """M(z) of one step. wide: with far tails and the sector that the trade-off curve needs."""

    @property
    def least_loss(self) -> float | None:
        """A loss that a step with the record has at least (before it is reversed); None if there is no such loss."""
        return None

    @property
    def mu_square(self) -> float | None:
        """μ² of one step, if its worlds are N(0, 1) and N(μ, 1)."""
        return None

    def exponent(self) -> float:
        """λ = -ln ∫√(PQ) of one step; MOST_EXPONENT stands for all that is larger."""
        gap = self.transform(False).affinity_gap()
        return -log1p(-gap) if gap < 1.0 - LEAST_AFFINITY else MOST_EXPONENT

    def overlap(self) -> float | None:
        """β* of one step."""
        return None

    def closed_form(self) -> bool:
        """Whether `answers` and `guess` are known for one step."""
        return False

    def answers(self, taus: NDArray[Any]) -> Answers:
        """Answers of one step at thresholds ≥ 0, or, of a factor that was reversed for that, at thresholds < 0."""
        raise NotImplementedError

    def guess(self, fprs: NDArray[Any]) -> NDArray[Any]:
        """The thresholds of one step that belong to false-positive rates, nearly."""
        raise NotImplementedError


def attained_steps(steps: Sequence[Step], symmetric: bool) -> list[Step]:
    """Steps that some data attain, all at once, and that leak no more than these; the steps themselves if they are attained."""
    some = [step.attained_step(symmetric) for step in steps]
    return [step for step in some if step is not None]


# One step whose loss increases with the outcome: its answers are those of half-lines.


def on_half_line(taus: NDArray[Any], gain: NDArray[Any], mass: NDArray[Any], density: NDArray[Any]) -> Answers:
    """Gain minus (e^τ - 1) times mass of the half-line where the loss exceeds τ; for τ < 0, of the half-line where it does not.

    (gain, mass): of that half-line for the step, or for τ < 0 for the step reversed. density: of the loss under its second world.
    """
    sizes = np.abs(taus)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        stick = np.maximum(gain - np.where(mass > 0.0, np.expm1(sizes) * mass, 0.0), 0.0)
        hit = np.where(mass > 0.0, np.exp(sizes) * mass, 0.0)
    error = 64.0 * EPS * gain
    if taus[0] >= 0.0:
        return Answers(stick, 1.0 - stick, error, mass, 64.0 * EPS * mass, hit, density)
    alpha = np.exp(taus)
    rest = 1.0 - gain - mass  # Q(L > τ)
    back = -np.expm1(taus) + alpha * stick
    return Answers(
        back, alpha * (1.0 - stick), alpha * error, rest, 64.0 * EPS * np.ones(len(taus)), alpha * rest, density / alpha
    )


def half_line(
    mass: Callable[[NDArray[Any]], NDArray[Any]], goals: NDArray[Any], low: float, high: float, upwards: bool
) -> NDArray[Any]:
    """The ends of half-lines that have so much mass, by bisection. upwards: the mass grows with the end."""
    left, right = np.full(len(goals), low), np.full(len(goals), high)
    for _ in range(60):
        middle = 0.5 * (left + right)
        less = mass(middle) < goals
        if upwards:
            left, right = np.where(less, middle, left), np.where(less, right, middle)
        else:
            left, right = np.where(less, left, middle), np.where(less, middle, right)
    return right


def between(x: NDArray[Any], low: Any, high: Any, noise: float) -> NDArray[Any]:
    """Pr[N(high,σ²) > x] - Pr[N(low,σ²) > x], from the side on which both are small."""
    lower, upper = (low - x) / noise, (high - x) / noise
    flip = lower + upper > 0.0
    small, large = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    # ndtr(large) - ndtr(small) with small ≤ large, both mostly negative: relative accuracy by logarithms.
    return np.exp(log_ndtr(large)) * -np.expm1(log_ndtr(small) - log_ndtr(large))
