"""What tuning costs: several models are trained, the best one is released (theory, section 18).

`best_of` says what was done. `tuned` turns what is known of one run into what is known of the whole: at even odds by the
theorem, E[tanh(½·max |L_i|)]; elsewhere by the better of the rank bound and the composition of all runs; from below by attacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import ceil, exp, expm1, inf, log
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from betastar import validation
from betastar.curves import FARTHEST, Answers, Curve, DiscreteCurve, Side, Value
from betastar.dpsgd import DPSGD
from betastar.exact import FourierCurve
from betastar.risk import Bound, Outcome
from betastar.steps.base import EPS, complex_log1p
from betastar.steps.poisson import PoissonFactor
from betastar.threats import FARTHEST as FARTHEST_APART
from betastar.validation import WrongTypeError, WrongValueError

# What was done: how many models were tried, and of which runs.

#: Most models that are tried, on average, and most numbers of models that a law lists.
MOST_TRIALS, MOST_LISTED = 1e6, 10_001
#: How far probabilities may be from adding up to 1.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Trials:
    """The law of K, the number of models that are tried. It must not depend on the data, nor on what the trials show.

    Make one by `fixed`, `poisson`, `geometric` or `given`.

    Parameters
    ----------
    law : str
        "fixed", "poisson", "geometric" or "given".
    mean : float
        The mean of K.
    probabilities : tuple of (int, float)
        With law "given": values of K, and their probabilities.

    Examples
    --------
    >>> import betastar as bs
    >>> bs.Trials.poisson(20).mean
    20.0
    """

    law: str
    mean: float
    probabilities: tuple[tuple[int, float], ...] = ()

    @classmethod
    def fixed(cls, number: int) -> Trials:
        """Always this number of models.

        Parameters
        ----------
        number : int
            The number of models, at least 1.

        Returns
        -------
        Trials
            The law.

        Raises
        ------
        ValueError
            If the number is not whole, below 1 or above a million.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.Trials.fixed(20) == bs.best_of(bs.DPSGD(1.0, 0.01, 100), 20).parts[0].trials
        True
        """
        return cls("fixed", float(validation.one_whole("trials", number, high=int(MOST_TRIALS))))

    @classmethod
    def poisson(cls, mean: float) -> Trials:
        """A Poisson number of models. It may be 0: then nothing is released.

        Parameters
        ----------
        mean : float
            The mean.

        Returns
        -------
        Trials
            The law.

        Raises
        ------
        ValueError
            If the mean is not above 0, or not finite.

        Examples
        --------
        >>> import betastar as bs
        >>> round(bs.Trials.poisson(3).none, 6)
        0.049787
        """
        allowed = f"greater than 0 and at most {MOST_TRIALS:g}"
        return cls("poisson", validation.numbers("trials", _one(mean), allowed, low=0.0, high=MOST_TRIALS, open_low=True))

    @classmethod
    def geometric(cls, mean: float) -> Trials:
        """A geometric number of models, 1 or more: after each model the search ends with probability 1/mean.

        Parameters
        ----------
        mean : float
            The mean.

        Returns
        -------
        Trials
            The law.

        Raises
        ------
        ValueError
            If the mean is below 1, or not finite.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.Trials.geometric(20).none
        0.0
        """
        allowed = f"at least 1 and at most {MOST_TRIALS:g}"
        return cls("geometric", validation.numbers("trials", _one(mean), allowed, low=1.0, high=MOST_TRIALS))

    @classmethod
    def given(cls, probabilities: Any) -> Trials:
        """A law that is listed.

        Parameters
        ----------
        probabilities : sequence or mapping
            The probabilities of 0, 1, 2, … models, or a mapping {number of models: probability}. They add up to 1.

        Returns
        -------
        Trials
            The law.

        Raises
        ------
        ValueError
            If these are no probabilities of numbers of models, or no model is ever trained.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.Trials.given({5: 0.5, 20: 0.5}).mean
        12.5
        """
        rows = probabilities.items() if isinstance(probabilities, Mapping) else enumerate(probabilities)
        law = [
            (validation.one_whole("trials", number, low=0, high=int(MOST_TRIALS)), validation.probability("trials", _one(chance)))
            for number, chance in rows
        ]
        law = sorted((number, chance) for number, chance in law if chance > 0.0)
        total, mean = sum(chance for _, chance in law), sum(number * chance for number, chance in law)
        if len(law) > MOST_LISTED or abs(total - 1.0) > ROUNDING or mean == 0.0:
            said = {"allowed": f"at most {MOST_LISTED} probabilities that add up to 1, not all of them of no model"}
            shown = repr(probabilities)
            raise WrongValueError(
                "trials", validation.MUST, said | {"value": shown if len(shown) <= 80 else f"{len(law)} that add up to {total:g}"}
            )
        if len(law) == 1:
            return cls.fixed(law[0][0])
        return cls("given", mean / total, tuple((number, chance / total) for number, chance in law))

    @classmethod
    def of(cls, trials: Any) -> Trials:
        """What `best_of` takes: a law, a number, or probabilities."""
        if isinstance(trials, Trials):
            return trials
        if isinstance(trials, Mapping | list | tuple | np.ndarray):
            return cls.given(trials)
        return cls.fixed(trials)

    # The generating function φ(z) = E z^K, in the forms that keep their digits.

    @cached_property
    def none(self) -> float:
        """φ(0), the probability that no model is trained."""
        return float(1.0 - self.some(np.ones(1))[0])

    def some(self, t: NDArray[Any]) -> NDArray[Any]:
        """1 - φ(1-t): the probability that one of the models does what each does with probability t."""
        t = np.asarray(t, dtype=np.float64)
        if self.law == "poisson":
            return -np.expm1(-self.mean * t)
        if self.law == "geometric":
            return t / (1.0 / self.mean + (1.0 - 1.0 / self.mean) * t)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log1p(-t)
            if self.law == "fixed":
                return -np.expm1(self.mean * logs)
            return sum(chance * -np.expm1(number * logs) for number, chance in self.probabilities if number) + 0.0 * t

    def never(self, t: NDArray[Any]) -> NDArray[Any]:
        """φ(1-t): the probability that none of the models does so, accurate relative to itself."""
        t = np.asarray(t, dtype=np.float64)
        if self.law == "poisson":
            return np.exp(-self.mean * t)
        if self.law == "geometric":
            return (1.0 - t) / self.mean / (1.0 / self.mean + (1.0 - 1.0 / self.mean) * t)
        if self.law == "fixed":
            return (1.0 - t) ** self.mean
        return sum(chance * (1.0 - t) ** number for number, chance in self.probabilities) + 0.0 * t

    def slope(self, t: NDArray[Any]) -> NDArray[Any]:
        """φ'(1-t)."""
        t = np.asarray(t, dtype=np.float64)
        if self.law == "poisson":
            return self.mean * np.exp(-self.mean * t)
        if self.law == "geometric":
            return 1.0 / self.mean / (1.0 / self.mean + (1.0 - 1.0 / self.mean) * t) ** 2
        rows = self.probabilities or ((int(self.mean), 1.0),)
        return sum(chance * number * (1.0 - t) ** (number - 1) for number, chance in rows if number) + 0.0 * t

    def bend(self, t: NDArray[Any]) -> NDArray[Any]:
        """φ''(1-t)."""
        t = np.asarray(t, dtype=np.float64)
        if self.law == "poisson":
            return self.mean**2 * np.exp(-self.mean * t)
        if self.law == "geometric":
            rest = 1.0 - 1.0 / self.mean
            return 2.0 * rest / self.mean / (1.0 / self.mean + rest * t) ** 3
        rows = self.probabilities or ((int(self.mean), 1.0),)
        return sum(chance * number * (number - 1) * (1.0 - t) ** (number - 2) for number, chance in rows if number > 1) + 0.0 * t

    def power(self, change: NDArray[Any]) -> NDArray[Any]:
        """φ(1 + change) - 1, of a complex change or a real one above 0; nan where φ does not converge."""
        if self.law == "poisson":
            return np.expm1(self.mean * change)
        if self.law == "geometric":
            left = 1.0 / self.mean - (1.0 - 1.0 / self.mean) * change
            return np.where(left.real > 0.0, change / left, np.nan)
        logs = complex_log1p(change) if np.iscomplexobj(change) else np.log1p(change)
        rows = self.probabilities or ((int(self.mean), 1.0),)
        return np.asarray(sum(chance * np.expm1(number * logs) for number, chance in rows if number))

    def draw(self, generator: np.random.Generator) -> int:
        """A number of models."""
        if self.law == "poisson":
            return int(generator.poisson(self.mean))
        if self.law == "geometric":
            return int(generator.geometric(1.0 / self.mean))
        if self.law == "fixed":
            return int(self.mean)
        numbers, chances = zip(*self.probabilities, strict=True)
        return int(generator.choice(numbers, p=chances))

    def __str__(self) -> str:
        if self.law == "fixed":
            return f"{int(self.mean)}"
        words = {"poisson": "a Poisson number of", "geometric": "a geometric number of", "given": "a random number of"}
        return f"{words[self.law]} models, {self.mean:g} on average"


def _one(value: Any) -> Any:
    """A number; an array is refused."""
    if np.ndim(value):
        raise WrongTypeError("trials", validation.MUST, {"allowed": "one number", "value": repr(value)})
    return value


@dataclass(frozen=True)
class Selection:
    """The best of `trials` models. Each trial draws one of the runs, with these weights, with replacement."""

    runs: tuple[DPSGD, ...]
    weights: tuple[float, ...]
    trials: Trials

    @property
    def single(self) -> DPSGD | None:
        """The run, if it is simply done once."""
        return self.runs[0] if len(self.runs) == 1 and self.trials == Trials("fixed", 1.0) else None

    def __repr__(self) -> str:
        inside = repr(self.runs[0]) if len(self.runs) == 1 else f"[{', '.join(map(repr, self.runs))}]"
        weights = "" if len(self.runs) == 1 else f", weights={list(self.weights)}"
        law = self.trials
        trials = f"bs.Trials.{law.law}({law.mean:g})" if law.law in ("poisson", "geometric") else str(law)
        return f"best_of({inside}, trials={dict(law.probabilities) or trials}{weights})"


class BestOf:
    """What was done: models were tried and the best one released, once or several times, and perhaps further runs.

    Made by `best_of`, and by adding runs to what it returns.

    Parameters
    ----------
    parts : tuple of Selection
        The searches, each of which releases one model.
    then : DPSGD, optional
        Runs that were done once and released.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500)
    >>> len((bs.best_of(run, trials=5) + bs.best_of(run, trials=3) + run).parts)
    2
    """

    def __init__(self, parts: tuple[Selection, ...], then: DPSGD | None = None) -> None:
        self.parts, self.then = parts, then
        runs = [run for part in parts for run in part.runs] + ([] if then is None else [then])
        try:
            self.shape = np.broadcast_shapes(*(run.shape for run in runs))
        except ValueError:
            shapes = ", ".join(str(run.shape) for run in runs)
            raise WrongValueError(
                "runs", "{argument} must broadcast together, got shapes {shapes}.", {"shapes": shapes}
            ) from None

    @property
    def runs(self) -> tuple[DPSGD, ...]:
        """Every run that is part of it."""
        return tuple(run for part in self.parts for run in part.runs) + (() if self.then is None else (self.then,))

    def scalars(self) -> Iterator[BestOf]:
        """One by one, in the order of the shape of a sweep."""
        if self.shape == ():
            yield self
            return
        columns = []
        for run in self.runs:
            every = np.empty(run.shape, dtype=object)
            every.ravel()[:] = list(run.scalars())
            columns.append(np.broadcast_to(every, self.shape).ravel())
        for row in zip(*columns, strict=True):
            left = iter(row)
            parts = tuple(replace(part, runs=tuple(next(left) for _ in part.runs)) for part in self.parts)
            yield BestOf(parts, next(left, None))

    def simplified(self) -> tuple[tuple[Selection, ...], DPSGD | None]:
        """The searches among several models, and what is simply run: a single model is no search."""
        then = self.then
        for part in reversed(self.parts):
            if part.single is not None:
                then = part.single if then is None else part.single + then
        return tuple(part for part in self.parts if part.single is None), then

    def __add__(self, other: object) -> BestOf:
        if isinstance(other, BestOf):
            then = other.then if self.then is None else self.then if other.then is None else self.then + other.then
            return BestOf(self.parts + other.parts, then)
        if isinstance(other, DPSGD):
            return BestOf(self.parts, other if self.then is None else self.then + other)
        return NotImplemented

    def __radd__(self, other: object) -> BestOf:
        return self + other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BestOf) and (self.parts, self.then) == (other.parts, other.then)

    def __hash__(self) -> int:
        return hash((self.parts, self.then))

    def __repr__(self) -> str:
        return " + ".join([*map(repr, self.parts), *([] if self.then is None else [repr(self.then)])])


def best_of(run: DPSGD | Sequence[DPSGD], trials: Any = 20, weights: Sequence[float] | None = None) -> BestOf:
    """Train several models and release only the best one: its weights, its settings, and what is computed from these.

    The trials are independent of each other: each has its own random numbers, and none starts from another, stops because of
    another or chooses its settings by another. Their number is fixed before, or drawn without a look at the data. A score of
    each model picks the winner; it may be any score that does not look at the records of the person at stake except through the
    model. Everything else is deleted: other models, their scores, their curves.

    Parameters
    ----------
    run : DPSGD or sequence of DPSGD
        What each trial does; of several runs, each trial draws one, with replacement.
    trials : int, Trials or probabilities
        The number of models: a number, a law such as `Trials.poisson(20)`, or the probabilities of 0, 1, 2, … models.
    weights : sequence of float, optional
        The probabilities of several runs; by default they are equal.

    Returns
    -------
    BestOf
        What `analyze` takes in place of a run. A DPSGD or another BestOf may be added to it.

    Raises
    ------
    TypeError
        If run is no DPSGD, or trials is not a number.
    ValueError
        If trials is no number or law of models, or the weights are not probabilities.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD.from_epochs(noise_multiplier=3.51, batch_size=256, dataset_size=26048, epochs=20)
    >>> round(bs.analyze(bs.best_of(run, trials=20)).advantage.upper, 4)
    0.2685
    """
    runs = (run,) if isinstance(run, DPSGD) else tuple(run) if isinstance(run, Sequence) else ()
    if not runs or not all(isinstance(one, DPSGD) for one in runs):
        raise WrongTypeError("run", validation.MUST, {"allowed": "a DPSGD, or a list of at least one", "value": repr(run)})
    if weights is None:
        chances = [1.0 / len(runs)] * len(runs)
    else:
        chances = np.ravel(validation.probability("weights", weights)).tolist()
        if len(chances) != len(runs) or abs(sum(chances) - 1.0) > ROUNDING:
            text = "{argument} must add up to 1, one for each of {number} runs, got {value}."
            raise WrongValueError("weights", text, {"number": str(len(runs)), "value": repr(weights)})
    kept = [(one, chance / sum(chances)) for one, chance in zip(runs, chances, strict=True) if chance > 0.0]
    return BestOf((Selection(tuple(one for one, _ in kept), tuple(chance for _, chance in kept), Trials.of(trials)),))


# What is known of one trial, from above: a polygon above H ("connect the dots": H is convex in α, so it lies below its chords).

#: Nodes of the polygon, and the first of them as a share of the advantage.
NODES, FIRST = 3000, 1e-3
#: What is left of H at the last node, relative to the advantage.
LEFT = 1e-15
#: Relative rounding error of sums over the polygon.
PAD = 1e-9


class Polygon:
    """Values above H_{e^τ} of both directions, at nodes τ from 0 on, convex in α = e^τ; beyond the last node it is constant.

    It is the curve of a symmetric pair whose |L| exceeds s with probability `tail[i]` for s between nodes i and i+1, and with
    `sticks[-1]` beyond all nodes: that much is infinite.
    """

    def __init__(self, taus: NDArray[Any], sticks: NDArray[Any]) -> None:
        corners = _lower_hull(taus, np.minimum.accumulate(np.clip(sticks, 0.0, 1.0)))
        self.taus, self.sticks = taus[corners], sticks[corners]
        # Of the chord from each node to the next: the slope times α, which does not overflow.
        steep = -np.diff(self.sticks) / np.expm1(np.diff(self.taus))
        #: Q(L > s) and P(L > s), for s between a node and the next.
        self.fpr, self.tpr = np.exp(-self.taus[:-1]) * steep, self.sticks[:-1] + steep
        # Where the tail would exceed 1, the hull of the curve on both sides of α = 1 is a chord across it.
        self.tail = np.minimum(self.fpr + self.tpr, 1.0)

    @classmethod
    def above(cls, sticks: Callable[[NDArray[Any]], NDArray[Any]]) -> Polygon:
        """A polygon above a convex function of α ≥ 1, given at any τ ≥ 0."""
        probes = np.concatenate([[0.0], np.geomspace(1e-12, FARTHEST, 120)])
        levels = sticks(probes)
        if levels[0] <= 0.0:
            return cls(np.array([0.0, 1.0]), np.zeros(2))
        last = int(np.argmax(levels - levels[-1] <= LEFT * levels[0]))
        reach = float(probes[max(last, 1)])
        taus = np.concatenate([[0.0], np.geomspace(min(FIRST * levels[0], 0.1 * reach), reach, NODES)])
        return cls(taus, sticks(taus) * (1.0 + 64.0 * EPS))

    def at(self, taus: NDArray[Any]) -> NDArray[Any]:
        """The polygon at each τ, of any sign: H_α = 1 - α + α·H_{1/α}."""
        size = np.abs(taus)
        cell = np.clip(np.searchsorted(self.taus, size, side="right") - 1, 0, len(self.taus) - 2)
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.expm1(size - self.taus[cell]) / np.expm1(self.taus[cell + 1] - self.taus[cell])
            values = self.sticks[cell] + np.minimum(part, 1.0) * (self.sticks[cell + 1] - self.sticks[cell])
        values = np.where(size >= self.taus[-1], self.sticks[-1], values)
        return np.where(taus < 0.0, -np.expm1(np.minimum(taus, 0.0)) + np.exp(np.minimum(taus, 0.0)) * values, values)

    @cached_property
    def law(self) -> tuple[NDArray[Any], NDArray[Any], float]:
        """Losses, their probabilities under the first world, and that of an infinite loss."""
        size, infinite = self.taus[1:], float(self.sticks[-1])
        mass = np.maximum(-np.diff(np.append(self.tail, min(infinite, float(self.tail[-1])))), 0.0)  # of |L|
        up = mass / (1.0 + np.exp(-size))
        losses = np.concatenate([-size[::-1], [0.0], size])
        return losses, np.concatenate([(mass - up)[::-1], [1.0 - self.tail[0]], up]), infinite

    @cached_property
    def tradeoff(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Corners (a, b) of the largest b = P(test) that the polygon allows with a = Q(test), from a = 0 to a = 1."""
        first, second = self.fpr[::-1], self.tpr[::-1]
        keep = first + second <= 1.0  # the others lie beyond the axis of symmetry
        first, second = np.append(0.0, first[keep]), np.append(self.sticks[-1], second[keep])
        a, b = np.concatenate([first, 1.0 - second[::-1], [1.0]]), np.concatenate([second, 1.0 - first[::-1], [1.0]])
        return np.maximum.accumulate(a), np.maximum.accumulate(np.clip(b, 0.0, 1.0))


def _lower_hull(taus: NDArray[Any], values: NDArray[Any]) -> list[int]:
    """Places of the corners of the lower convex hull in α = e^τ."""
    # Differences of α between nodes, by logarithms: α itself may be too large, and differences too small.
    place, level = taus.tolist(), values.tolist()
    hull: list[int] = []
    for i in range(len(place)):
        while len(hull) > 1:
            j, k = hull[-2], hull[-1]
            # Is k above the chord from j to i? Its share of the way in α.
            share = expm1(place[k] - place[j]) / expm1(place[i] - place[j])
            if level[k] < level[j] + share * (level[i] - level[j]):
                break
            hull.pop()
        hull.append(i)
    return hull


# At even odds: the theorem (theory, section 18).


def advantage_above(polygon: Polygon, trials: Trials) -> float:
    """E[tanh(½·max |L_i|)] = ∫ tanh(s/2) dφ(G(s)) of the pair of a polygon, rounded up; G = 1 - tail."""
    half = 0.5 * polygon.taus
    # tanh a - tanh b = sinh(a-b)/(cosh a·cosh b)
    rises = np.sinh(np.diff(half)) / (np.cosh(half[:-1]) * np.cosh(half[1:]))
    beyond = 2.0 / (1.0 + exp(float(polygon.taus[-1]))) * float(trials.some(polygon.sticks[-1:])[0])
    return min(1.0, (float(rises @ trials.some(polygon.tail)) + beyond) * (1.0 + PAD))


#: Nodes of a panel, its first end as a share of the advantage, how often panels are halved, and to which accuracy.
PANEL, NEAR, HALVINGS, ACCURATE = 12, 1e-2, 3, 1e-10
#: Largest s of the integral.
LONGEST = 690.0

#: At each s > 0: the tail P(|L| > s), and its error.
Tail = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


def exact_tail(curves: Sequence[FourierCurve], weights: Sequence[float]) -> Tail:
    """The tail of |L| of one trial: P(L > s) + Q(L > s) of the direction with the larger H at e^s."""

    def tail(s: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        ways = []
        for reverse in (False,) if all(curve.reversed() is curve for curve in curves) else (False, True):
            total = np.zeros((3, len(s)))
            for curve, weight in zip(curves, weights, strict=True):
                one = (curve.reversed() if reverse else curve).answers(s)
                # P(L > s) = H + e^s·Q(L > s)
                total += weight * np.stack(
                    [one.stick, one.stick + one.hit + one.mass, one.error + (1.0 + np.exp(s)) * one.mass_error]
                )
            ways.append(total)
        worse = ways[0] if len(ways) == 1 else np.where(ways[0][0] >= ways[1][0], ways[0], ways[1])
        known = np.isfinite(worse).all(axis=0)
        return np.where(known, np.clip(worse[1], 0.0, 1.0), 1.0), np.where(known, worse[2], 1.0)

    return tail


def advantage_of_tail(tail: Tail, trials: Trials, advantage: float) -> tuple[Bound, Bound]:
    """(advantage, β*) of the best model: ∫ (1 - φ(1-t(s)))·½sech²(s/2) ds and ∫ φ(1-t(s))·½sech²(s/2) ds, with their errors.

    advantage: of one trial, which says where the integrand begins.
    """
    points, weights = np.polynomial.legendre.leggauss(PANEL)
    points, weights = 0.5 * (points + 1.0), 0.5 * weights

    def integrals(low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
        """Each panel's integrals of 1-φ and of φ: as they are, with the tail lowered and with the tail raised by its error."""
        s = low[:, None] + (high - low)[:, None] * points
        t, error = tail(s.ravel())
        sides = [np.clip(t + side * error, 0.0, 1.0) for side in (0.0, -1.0, 1.0)]
        rows = np.stack([*(trials.some(one) for one in sides), *(trials.never(one) for one in sides)])
        speed = 0.5 / np.cosh(0.5 * s) ** 2
        return np.einsum("rpn,pn,n->rp", rows.reshape(6, *s.shape), speed, weights) * (high - low)

    count = ceil(np.log2(LONGEST / (NEAR * advantage)))
    edges = np.concatenate([[0.0], LONGEST * 0.5 ** np.arange(count, -1.0, -1.0)])
    low, high = edges[:-1], edges[1:]
    middle = 0.5 * (low + high)
    whole, left, right = np.split(integrals(np.concatenate([low, low, middle]), np.concatenate([high, middle, high])), 3, axis=1)
    total, doubt = np.zeros(6), np.zeros(2)
    for turn in range(HALVINGS + 1):
        parts = left + right
        off = np.abs(parts - whole)[[0, 3]]
        enough = ACCURATE * (total + parts.sum(axis=1))[[0, 3], None] + np.abs(parts[[2, 5]] - parts[[1, 4]])  # the tail's error
        open_ = (off > enough).any(axis=0) & (turn < HALVINGS)
        total += parts[:, ~open_].sum(axis=1)
        doubt += off[:, ~open_].sum(axis=1)
        if not open_.any():
            break
        whole = np.concatenate([left[:, open_], right[:, open_]], axis=1)
        low, high = np.concatenate([low[open_], middle[open_]]), np.concatenate([middle[open_], high[open_]])
        middle = 0.5 * (low + high)
        left, right = np.split(integrals(np.concatenate([low, middle]), np.concatenate([middle, high])), 2, axis=1)
    beyond, most, least = 2.0 * exp(-LONGEST), total.tolist(), doubt.tolist()
    some = Bound(max(most[1] - least[0], 0.0), most[0], min(most[2] + least[0] + beyond, 1.0))
    none = Bound(max(most[5] - least[1], 0.0), most[3], min(most[4] + least[1] + beyond, 1.0))
    return some, none


# At any slope: the rank bound, and the composition of all models.

#: Values of log R that are tried: how many, the largest and the smallest.
RANKS, MOST_SHIFT, SMALLEST_SHIFT = 64, 100.0, 0.02
#: Nodes of the polygon whose trade-off curve is used, and the first of them as a share of the advantage.
CORNERS, NEAREST = 500, 0.02
#: Places at which the supremum is computed, and the first of them above 0.
PLACES, FIRST_PLACE = 400, 1e-3


class RankBound:
    """H_α ≤ ∫ (A(a) - R·B(a))₊ da + E_Q[sup over a of (min(A(a), R·B(a)) - α·B(a)·e^{-L})₊] for every R ≥ 1 and α ≥ 1.

    A(a) = φ'(1-a), B(a) = φ'(1-b(a)), and b(a) is the largest Q'(test) with Q(test) = a. The best R is looked for.
    """

    def __init__(self, polygon: Polygon, trials: Trials) -> None:
        # A polygon with fewer nodes lies above, and so does its trade-off curve.
        reach = float(polygon.taus[-1])
        nodes = np.append(0.0, np.geomspace(min(NEAREST * float(polygon.sticks[0]), 0.1 * reach), reach, CORNERS))
        a, b = Polygon(nodes, polygon.at(nodes)).tradeoff
        some = np.diff(a) > 0.0
        width, first, last, rise = (one[some] for one in (np.diff(a), a[:-1], a[1:], np.diff(b)))
        low, high = b[:-1][some], b[1:][some]
        # Both A and B fall and are convex: on a cell A is at most its chord, B at least its tangent in the middle.
        ahead, rear = trials.slope(first), trials.slope(last)
        most, middle, least = trials.slope(low), trials.slope(0.5 * (low + high)), trials.slope(high)
        fall = 0.5 * rise * trials.bend(0.5 * (low + high))
        with np.errstate(divide="ignore"):
            largest = float(np.max(np.log(ahead[ahead > 0.0]) - np.log(least[ahead > 0.0]), initial=0.0))
        largest = min(largest, MOST_SHIFT) if largest > 0.0 else 1.0
        ratios = np.exp(np.geomspace(min(SMALLEST_SHIFT, 0.1 * largest), largest, RANKS))[:, None]
        inside = rear >= ratios * most  # the integrand is positive all over the cell
        self.cost = np.where(inside, 0.5 * (ahead + rear) - ratios * middle, np.maximum(ahead - ratios * least, 0.0)) @ width
        #: Places t, and for each R the supremum of (min(A, R·B) - t·B)₊ there: a convex function of t.
        self.places = np.append(0.0, np.geomspace(FIRST_PLACE, 1.0001 * float(ratios[-1, 0]), PLACES))
        self.heights = np.empty((RANKS, len(self.places)))
        for i, t in enumerate(self.places.tolist()):
            one = np.minimum(np.maximum(ahead - t * (middle + fall), rear - t * (middle - fall)), ahead - t * least)
            self.heights[:, i] = np.max(np.minimum(one, most * np.maximum(ratios - t, 0.0)), axis=1, initial=0.0)
        self.losses, self.masses, self.infinite = polygon.law

    def at(self, taus: NDArray[Any]) -> NDArray[Any]:
        """The bound at each τ ≥ 0."""
        return np.array([self._at(tau) for tau in np.asarray(taus, dtype=np.float64).tolist()])

    def _at(self, tau: float) -> float:
        relevant = self.losses > tau - log(self.places[-1])
        t = np.exp(tau - self.losses[relevant])
        cell = np.searchsorted(self.places, t, side="right") - 1
        mass = self.masses[relevant]
        right = mass * (t - self.places[cell]) / (self.places[cell + 1] - self.places[cell])
        size = len(self.places)
        weights = np.bincount(cell, mass - right, size) + np.bincount(cell + 1, right, size)
        weights[0] += self.infinite
        return min(1.0, float(np.min(self.cost + self.heights @ weights)) * (1.0 + PAD))


#: Nodes of the law of one trial in a deviation, at the most in all, and of all models together.
FINE, MOST_POINTS, MOST_TOGETHER = 64.0, 1 << 16, 1 << 21
#: Probability that may be wrapped around at each end.
SLACK = 1e-14
#: Error of a fast Fourier transform, in units of log₂(length)·Σ|terms|.
FFT_ERROR = 4.0 * EPS


def composed(parts: Sequence[tuple[Polygon, Trials]]) -> DiscreteCurve | None:
    """A curve above that of all models of all parts together, everything released, the numbers of models too.

    On a grid, from above; φ of the transform of one trial is the transform of a random number of them. None if no grid works.
    """
    parts = [(polygon, trials) for polygon, trials in parts if polygon.sticks[0] > 0.0]
    if not parts:
        nothing = Side(np.zeros(1), np.ones(1), 0.0)
        return DiscreteCurve(nothing, nothing)
    step = min(max(_deviation(polygon) / FINE, float(polygon.taus[-1]) / MOST_POINTS) for polygon, _ in parts)
    for _ in range(40):
        if (curve := _composed_on(parts, step)) is not None:
            return curve
        step *= 2.0
    return None


def _deviation(polygon: Polygon) -> float:
    """Standard deviation of the loss, where it is finite: √E|L|²."""
    losses, mass, _ = polygon.law
    return float(np.sqrt(mass @ losses**2))


def _composed_on(parts: Sequence[tuple[Polygon, Trials]], step: float) -> DiscreteCurve | None:
    """The same on a grid with this step; None if it would be too long."""
    from scipy.fft import irfft, next_fast_len, rfft

    laws = []
    for polygon, trials in parts:
        places = np.arange(ceil(polygon.taus[-1] / step) + 2)
        if len(places) > MOST_POINTS * 2:
            return None
        on = Polygon(step * places, polygon.at(step * places) * (1.0 + 64.0 * EPS))
        losses, mass, infinite = on.law
        laws.append((np.rint(losses / step).astype(np.int64), mass, infinite, trials))
    window = [_window(laws, step, sign) for sign in (-1.0, 1.0)]
    if max(window) > step * MOST_TOGETHER:
        return None
    start, size = -ceil(window[0] / step) - 1, ceil(window[1] / step) + ceil(window[0] / step) + 4
    if size > MOST_TOGETHER:
        return None
    length = next_fast_len(size, real=True)
    together, error = np.ones(length // 2 + 1, dtype=np.complex128), 0.0
    for index, mass, infinite, trials in laws:
        change = rfft(np.bincount(index % length, weights=mass, minlength=length)) - (mass.sum() + infinite)
        together *= 1.0 + trials.power(change)
        # φ is at most E K times as steep as its argument; ‖error‖₁ ≤ √n·‖error‖₂, the norm of the error of the transform.
        error += trials.mean * FFT_ERROR * np.log2(length) * (2.0 * float(mass.sum()) + infinite) * length**0.5
    error += FFT_ERROR * np.log2(length) * float(np.sqrt(2.0 * np.sum(np.abs(together) ** 2))) + 3.0 * SLACK
    lost = 1.0 - float(np.prod([trials.never(np.array([infinite]))[0] for _, _, infinite, trials in laws]))
    lost = min(1.0, lost + 4.0 * EPS)
    law = np.maximum(np.roll(irfft(together, length), -start), 0.0)
    side = Side.of(step * (start + np.arange(length)), law, lost)
    return DiscreteCurve(side, side, float(error))


def _window(laws: Sequence[tuple[NDArray[Any], NDArray[Any], float, Trials]], step: float, sign: float) -> float:
    """A loss beyond which all models together have at most SLACK mass, upwards or (sign -1) downwards, by Chernoff."""
    farthest = max(float(np.abs(index).max()) for index, *_ in laws) * step
    width = sum(trials.mean * float(mass @ (index * step) ** 2) for index, mass, _, trials in laws) ** 0.5
    ends = []
    for tilt in np.unique(
        np.concatenate([np.geomspace(1e-3, 60.0, 60) / max(width, 1e-300), np.geomspace(1e-3, 600.0, 60) / farthest])
    ):
        if tilt * farthest > 600.0:
            break
        growth = 0.0
        for index, mass, infinite, trials in laws:
            change = float(np.expm1(sign * tilt * step * index) @ mass) - infinite
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                growth += float(np.log1p(trials.power(np.array([max(change, -1.0)]))[0]))
        if growth < inf:
            ends.append((growth - log(SLACK)) / tilt)
    return max(min(ends, default=inf), step)


class Ceiling(Protocol):
    """A bound of both directions at τ ≥ 0, and curves, all of which are above; computed when they are asked for."""

    @property
    def rank(self) -> RankBound | None: ...

    @property
    def everything(self) -> Sequence[Curve]: ...


class TunedCurve(Curve):
    """Above the trade-off curve of what is released: the least of what is proved of it at each slope.

    advantage: H is at most this at every α ≥ 1. backwards: the curve of (Q, P).
    """

    #: Thresholds at which the rank bound is looked at for a rate.
    SLOPES = np.concatenate([[0.0], np.geomspace(0.003, 60.0, 300)])

    def __init__(self, advantage: float, ceiling: Ceiling, backwards: bool = False) -> None:
        self.advantage, self.ceiling, self.backwards = advantage, ceiling, backwards

    def reversed(self) -> TunedCurve:
        if all(curve.reversed() is curve for curve in self.ceiling.everything):
            return self
        return TunedCurve(self.advantage, self.ceiling, not self.backwards)

    @cached_property
    def _curves(self) -> list[Curve]:
        return [curve.reversed() if self.backwards else curve for curve in self.ceiling.everything]

    def _proved(self, taus: NDArray[Any]) -> NDArray[Any]:
        """The lesser of the advantage and the rank bound at each τ ≥ 0."""
        rank = self.ceiling.rank
        return np.minimum(self.advantage, rank.at(taus)) if rank else np.full(len(taus), self.advantage)

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        taus = np.asarray(taus, dtype=np.float64)
        values, below = self._proved(np.abs(taus)), np.minimum(taus, 0.0)
        values = np.where(taus < 0.0, -np.expm1(below) + np.exp(below) * values, values)
        for curve in self._curves:
            values = np.minimum(values, np.sum(curve.hockey_sticks(taus), axis=0))
        return values, np.zeros(len(taus))

    def hockey_stick(self, tau: float) -> Value:
        return Value(float(self.hockey_sticks(np.array([tau]))[0][0]), 0.0)

    def overlap(self) -> Value:
        return Value(1.0 - self.hockey_stick(0.0).value, 0.0)

    @cached_property
    def _levels(self) -> NDArray[Any]:
        return self._proved(self.SLOPES)

    def true_positive_rates(self, fprs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        fprs = np.asarray(fprs, dtype=np.float64)
        alpha, levels = np.exp(self.SLOPES)[:, None], self._levels[:, None]
        # min over α of H_α + α·FPR; for α < 1, H_α = 1 - α + α·H_{1/α}
        rates = np.min(np.minimum(levels + alpha * fprs, 1.0 - (1.0 - levels - fprs) / alpha), axis=0)
        for curve in self._curves:
            rates = np.minimum(rates, np.sum(curve.true_positive_rates(fprs), axis=0))
        return np.clip(rates, fprs, 1.0), np.zeros(len(fprs))

    def true_positives(self, fpr: float) -> Value:
        return Value(float(self.true_positive_rates(np.array([fpr]))[0][0]), 0.0)

    def threshold(self, fpr: float) -> float:
        """The logarithm of the slope of a short chord."""
        ends = np.array([0.999 * fpr, fpr + 0.001 * (1.0 - fpr)])
        rise = np.diff(self.true_positive_rates(ends)[0])
        return log(max(float(rise[0]), 1e-300)) - log(max(float(ends[1] - ends[0]), 1e-300))


# From below: attacks that exist.


class PointsCurve(Curve):
    """The curve of an attacker who tosses a coin between tests. points: their FPR and TPR, computed when they are needed."""

    def __init__(self, points: Callable[[], tuple[NDArray[Any], NDArray[Any]]]) -> None:
        self.points = points

    @cached_property
    def _reversed(self) -> PointsCurve:
        fpr, tpr = self._hull
        other = PointsCurve(lambda: (1.0 - tpr, 1.0 - fpr))
        other.__dict__["_reversed"] = self
        return other

    def reversed(self) -> PointsCurve:
        return self._reversed

    def hockey_sticks(self, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        fpr, tpr = self._hull
        with np.errstate(over="ignore"):
            values = np.max(tpr - np.exp(np.minimum(taus, FARTHEST))[:, None] * fpr, axis=1)
        return np.maximum(np.maximum(values, 0.0), -np.expm1(np.minimum(taus, 0.0))), np.zeros(len(taus))

    def hockey_stick(self, tau: float) -> Value:
        return Value(float(self.hockey_sticks(np.array([tau]))[0][0]), 0.0)

    def overlap(self) -> Value:
        fpr, tpr = self.points()
        return Value(1.0 - float(np.max(tpr - fpr, initial=0.0)), 0.0)

    @cached_property
    def _hull(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The upper concave hull of the points, (0, 0) and (1, 1)."""
        each = (np.clip(one, 0.0, 1.0).tolist() for one in self.points())
        hull: list[tuple[float, float]] = []
        for x, y in sorted({(0.0, 0.0), (1.0, 1.0), *zip(*each, strict=True)}):
            while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0]) <= (y - hull[-2][1]) * (
                hull[-1][0] - hull[-2][0]
            ):
                hull.pop()
            hull.append((x, y))
        first, second = zip(*hull, strict=True)
        return np.array(first), np.array(second)

    def true_positives(self, fpr: float) -> Value:
        return Value(float(np.interp(fpr, *self._hull)), 0.0)

    def threshold(self, fpr: float) -> float:
        first, second = self._hull
        cell = int(np.clip(np.searchsorted(first, fpr) - 1, 0, len(first) - 2))
        rise, run = second[cell + 1] - second[cell], first[cell + 1] - first[cell]
        return log(max(rise, 1e-300)) - log(max(run, 1e-300))


#: False-positive rates of the tests of one trial that attacks are made of: from almost 0 to almost 1.
RATES = ndtr(np.linspace(-7.0, 7.0, 201))


def is_pair(curve: Curve) -> bool:
    """Whether a curve is known to be of one pair of laws. The glued curve takes another one at each slope."""
    if isinstance(curve, FourierCurve):
        steps = [one for one in curve.factors if isinstance(one, PoissonFactor)]
        return not any(one.family == "glued" and one.distance < FARTHEST_APART for one in steps)
    return isinstance(curve, DiscreteCurve)


def attack_on(curves: Sequence[Curve], weights: Sequence[float], trials: Trials) -> PointsCurve:
    """Attacks on the best model by someone who chose the score, from tests of one trial with rates (a, b).

    The score puts the models that pass a test on top, or those that fail it, and the guess is "positive" if the winner passes. Of
    one pair of laws, the best interleaving of the two. And: a random model wins, and the guess is the test itself.
    """
    return PointsCurve(lambda: _tests(curves, weights, trials))


def _tests(curves: Sequence[Curve], weights: Sequence[float], trials: Trials) -> tuple[NDArray[Any], NDArray[Any]]:
    rates = [np.sum(np.array([[1.0], [-1.0]]) * np.stack(curve.true_positive_rates(RATES)), axis=0) for curve in curves]
    power = np.maximum(np.average(rates, axis=0, weights=weights), RATES)
    points = []
    for rate, sign in ((RATES, 1.0), (power, -1.0)):
        every = [trials.some(rate), trials.never(1.0 - rate) - trials.none, (1.0 - trials.none) * rate]
        points.append(np.concatenate([one * (1.0 + sign * 16.0 * EPS * trials.mean) for one in every]))
    if all(map(is_pair, curves)):  # otherwise each test may be another attacker's: no two of them together
        cells = [np.diff(np.concatenate([[0.0], np.maximum.accumulate(rate), [1.0]])) for rate in (RATES, power)]
        false, true = interleaved(cells[1], cells[0], trials)
        fewer, more = interleaved(cells[0][::-1], cells[1][::-1], trials)  # the worlds exchanged: "negative" in these orders
        points = [np.concatenate([points[0], false, 1.0 - more]), np.concatenate([points[1], true, 1.0 - fewer])]
    return np.clip(points[0], 0.0, 1.0), np.clip(points[1], 0.0, 1.0)


#: Slopes of the tests of which the best order is looked for.
ORDERS = np.concatenate([[0.0], np.geomspace(0.02, 3.0, 120), np.linspace(3.05, 12.0, 180), np.geomspace(12.2, 40.0, 30)])


def interleaved(first: NDArray[Any], second: NDArray[Any], trials: Trials) -> tuple[NDArray[Any], NDArray[Any]]:
    """(FPR, TPR) of the best model's test, for several slopes α, with the best order of this kind.

    first, second: probabilities of outcomes of one trial in both worlds, by falling L. From the best score on, the order takes
    outcomes with which the guess is "positive" from the start of the list, and others from its end: a shortest path.
    """
    size = len(first)
    some = []
    for cells in (first, second):
        ahead, behind = (np.append(0.0, np.cumsum(part)) for part in (cells, cells[::-1]))
        some.append(trials.some(np.clip(ahead[:, None] + behind, 0.0, 1.0)))  # of the best outcomes: i positive, j others
    gains = [np.diff(one, axis=0) for one in some]
    alpha = np.exp(ORDERS)[:, None]
    best, taken = np.zeros((len(alpha), size + 1)), []
    for done in range(size - 1, -1, -1):
        i = np.arange(done + 1)
        positive = gains[0][i, done - i] - alpha * gains[1][i, done - i] + best[:, 1:]
        taken.append(positive > best[:, :-1])
        best = np.maximum(positive, best[:, :-1])
    which, i = np.arange(len(alpha)), np.zeros(len(alpha), dtype=np.int64)
    rates = np.zeros((2, len(alpha)))
    for done, take in enumerate(reversed(taken)):
        now = take[which, i]
        for rate, gain in zip(rates, gains, strict=True):
            rate += np.where(now, gain[i, done - i], 0.0)
        i += now
    error = 8.0 * EPS * size
    return rates[1] + error, rates[0] - error


#: At each threshold τ: P(L > τ) and Q(L > τ), nan where they are not known, and how far all probabilities of cells may be off.
Tails = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any], float]]
#: Cells of |L| of an attack that scores by it, and the first of them as a share of the advantage.
CELLS, SMALLEST = 1000, 1e-4
#: A probability that does not matter, and the error of one that is not known.
INVISIBLE, UNKNOWN = 1e-30, 1e-6


def attack_by_size(tails: Tails, trials: Trials, advantage: float) -> tuple[NDArray[Any], NDArray[Any], float]:
    """What is released if the model with the largest |L|, rounded to cells, wins: probabilities in both worlds of each cell, and
    of both signs of L; and their error. advantage: of one trial, which says how small cells are."""
    edges = np.geomspace(SMALLEST * advantage, FARTHEST, CELLS - 1)
    released = []
    *rows, error = tails(np.concatenate([-edges[::-1], [0.0], edges]))
    known = np.logical_and.reduce(np.isfinite(rows))
    known &= known[::-1]  # both or none of τ and -τ
    if not known[len(edges)]:  # nothing is known at 0
        return np.ones(1), np.ones(1), inf
    for row in rows:
        # From the lowest L on.
        cells = -np.diff(np.minimum.accumulate(np.clip(np.concatenate([[1.0], row[known], [0.0]]), 0.0, 1.0)))
        half = len(cells) // 2
        up, down = cells[half:], cells[half - 1 :: -1]
        beyond = np.append(np.cumsum((up + down)[::-1])[::-1], 0.0)
        wins = -np.diff(trials.some(np.clip(beyond, 0.0, 1.0)))
        share = np.divide(up, up + down, out=np.full(len(up), 0.5), where=up + down > 0.0)
        released.append(np.concatenate([wins * share, wins * (1.0 - share)]))
    # Laws whose masses are off by e in all: those of K models are off by at most K·e.
    return released[0], released[1], trials.mean * error


def _tests_of_size(released: Callable[[], tuple[NDArray[Any], NDArray[Any], float]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(FPR, TPR) of the likelihood-ratio tests between two laws of finitely many outcomes, each of which may be off."""
    first, second, error = released()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        order = np.argsort(-np.where(first > 0.0, first / second, 0.0), kind="stable")
    return np.cumsum(second[order]) + error, np.cumsum(first[order]) - error


def tails_of(curve: FourierCurve | DiscreteCurve, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], float]:
    """P(L > τ) and Q(L > τ) of a pair that exists, and how far all probabilities of cells may be off."""
    if isinstance(curve, DiscreteCurve):
        return *curve.tails(taus), 4.0 * curve.error
    ahead, behind = curve.answers(taus[taus >= 0.0]), curve.reversed().answers(-taus[taus < 0.0])
    first = np.concatenate([1.0 - behind.mass, ahead.stick + ahead.hit])
    second = np.concatenate([1.0 - behind.stick - behind.hit, ahead.mass])
    doubt = np.concatenate([_doubt(behind), _doubt(ahead)])
    known = doubt < UNKNOWN
    return np.where(known, first, np.nan), np.where(known, second, np.nan), 2.0 * float(np.max(doubt[known], initial=0.0))


def _doubt(answers: Answers) -> NDArray[Any]:
    """How far the probabilities may be off, where they are not too small to matter."""
    visible = answers.mass > INVISIBLE
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(visible, answers.error + answers.mass_error * (1.0 + answers.hit / answers.mass), 0.0)


# All together: from what is known of the runs to what is known of the release.


class OneTrial:
    """What is known of one trial: an outcome for each run that it may be, with its probability."""

    def __init__(self, outcomes: Sequence[Outcome], weights: Sequence[float]) -> None:
        self.outcomes, self.weights = list(outcomes), list(weights)
        self.symmetric = all(curve.reversed() is curve for outcome in outcomes for curve in outcome.worst)
        #: Curves of the exact method, if there is one for each run.
        self.fourier = [curve for outcome in outcomes for curve in outcome.worst if isinstance(curve, FourierCurve)]
        if len(self.fourier) < len(outcomes) or any(len(outcome.worst) != 1 for outcome in outcomes):
            self.fourier = []

    @property
    def advantage(self) -> float:
        """At least that of one trial."""
        return sum(
            weight * (1.0 - float(one.bayes_security.lower)) for weight, one in zip(self.weights, self.outcomes, strict=True)
        )

    def sticks(self, taus: NDArray[Any]) -> NDArray[Any]:
        """H at each τ ≥ 0, from above, of the worse direction."""
        ways = np.zeros((1 if self.symmetric else 2, len(taus)))
        for weight, outcome in zip(self.weights, self.outcomes, strict=True):
            for i, way in enumerate(ways):
                facing = [curve.reversed() if i else curve for curve in outcome.worst]
                alone = np.full(len(taus), 1.0 - float(outcome.bayes_security.lower))  # H ≤ H₁ for α ≥ 1
                way += weight * np.max([np.sum(curve.hockey_sticks(taus), axis=0) for curve in facing] or [alone], axis=0)
        return np.max(ways, axis=0)

    @cached_property
    def polygon(self) -> Polygon:
        return Polygon.above(self.sticks)

    def attacks(self) -> Iterator[list[Curve]]:
        """Curves of attacks that exist, one for each run."""
        number = min(len(outcome.attacks) for outcome in self.outcomes)
        for i in range(number):
            yield [outcome.attacks[i] for outcome in self.outcomes]


class Best:
    """The best of several trials."""

    def __init__(self, trial: OneTrial, trials: Trials) -> None:
        self.trial, self.trials = trial, trials

    @cached_property
    def rank(self) -> RankBound:
        return RankBound(self.trial.polygon, self.trials)

    @cached_property
    def repeated(self) -> FourierCurve | None:
        """All trials one after another, where the exact method knows their curve."""
        if self.trials.law != "fixed" or len(self.trial.fourier) != 1:
            return None
        one = self.trial.fourier[0]
        factors: list[Any] = list(one.factors)
        return FourierCurve([replace(factor, count=self.trials.mean * factor.count) for factor in factors], one.symmetric)

    @cached_property
    def everything(self) -> Sequence[Curve]:
        return [curve for curve in (composed([(self.trial.polygon, self.trials)]), self.repeated) if curve is not None]

    def above(self) -> tuple[Bound, float]:
        """(β* of the worst attack as the theorem has it, with its numerical error; the advantage, from above)."""
        if self.trial.fourier and self.trial.advantage > 0.0:
            some, none = advantage_of_tail(exact_tail(self.trial.fourier, self.trial.weights), self.trials, self.trial.advantage)
        else:
            most = advantage_above(self.trial.polygon, self.trials)
            some, none = Bound(most, most, most), Bound(1.0 - most, 1.0 - most, 1.0 - most)
        if self.trial.symmetric:
            return none, some.upper
        for curve in [self.repeated] if self.trial.fourier and self.repeated else self.everything:  # may be better
            value, error = curve.overlap()
            if value - error > none.lower:
                none, some = Bound(value - error, value, value + error), Bound(0.0, 0.0, 1.0 - value + error)
        return none, some.upper

    def outcome(self, both_ends: bool) -> Outcome:
        """Every metric of it, from above and, with both_ends, from below."""
        beta, advantage = self.above()
        oriented = self.trial.outcomes[0].oriented
        worst = (TunedCurve(advantage, self),)
        if not both_ends:
            return Outcome(Bound(beta.lower, beta.estimate, 1.0), worst, (), oriented)
        attained = self.trial.symmetric and self.trial.fourier and all(map(is_pair, self.trial.fourier))
        attained = attained and all(one.attacks is one.worst for one in self.trial.outcomes)
        attacks: list[Curve] = []
        upper = beta.upper if attained else 1.0
        for curves in self.trial.attacks():
            attacks.append(attack_on(curves, self.trial.weights, self.trials))
            pairs = [curve for curve in curves if isinstance(curve, FourierCurve | DiscreteCurve) and is_pair(curve)]
            if len(pairs) < len(curves):
                upper = min(upper, attacks[-1].overlap().value)
                continue
            by_size = cache(partial(self._by_size, pairs))
            if all(isinstance(curve, FourierCurve) for curve in pairs):  # of others, only what they say at even odds is proved
                attacks.append(PointsCurve(partial(_tests_of_size, by_size)))
            if not attained:
                first, second, error = by_size()
                upper = min(upper, 1.0 - float(np.maximum(first - second, 0.0).sum()) + error)
        lower = min(beta.lower, upper)
        estimate = beta.estimate if attained else upper if self.trial.fourier else 0.5 * (lower + upper)
        return Outcome(Bound(lower, min(max(estimate, lower), upper), upper), worst, tuple(attacks), oriented)

    def _by_size(self, pairs: Sequence[FourierCurve | DiscreteCurve]) -> tuple[NDArray[Any], NDArray[Any], float]:
        """What the attack that scores by |L| sees."""

        def tails(taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], float]:
            first, second, error = zip(*(tails_of(pair, taus) for pair in pairs), strict=True)
            mean = [np.average(np.array(rows), axis=0, weights=self.trial.weights) for rows in (first, second)]
            return mean[0], mean[1], max(error)

        return attack_by_size(tails, self.trials, self.trial.advantage)


class Together:
    """Several releases, and perhaps a run, one after another: the least of the composition of their curves and of everything."""

    rank = None

    def __init__(self, parts: Sequence[Best], outcomes: Sequence[Outcome], then: Outcome | None) -> None:
        self.parts, self.outcomes, self.then = parts, outcomes, then

    @cached_property
    def everything(self) -> Sequence[Curve]:
        once = Trials.fixed(1)
        rest = [] if self.then is None else [(OneTrial([self.then], [1.0]).polygon, once)]
        released = [(OneTrial([outcome], [1.0]).polygon, once) for outcome in self.outcomes]
        every = [(part.trial.polygon, part.trials) for part in self.parts]
        curves: list[Curve] = [curve for curve in (composed(released + rest), composed(every + rest)) if curve is not None]
        repeated = [part.repeated for part in self.parts]
        if self.then is not None:
            repeated.append(OneTrial([self.then], [1.0]).fourier[0] if OneTrial([self.then], [1.0]).fourier else None)
        known = [curve for curve in repeated if curve is not None]
        if len(known) == len(repeated) and len({curve.symmetric for curve in known}) == 1:
            curves.append(FourierCurve([factor for curve in known for factor in curve.factors], known[0].symmetric))
        return curves

    def outcome(self) -> Outcome:
        """From above all of it; from below an attack on one part."""
        every = [*self.outcomes, *([] if self.then is None else [self.then])]
        overlaps = [curve.overlap() for curve in self.everything]
        lower = max([0.0, *(value - error for value, error in overlaps)])
        upper = min(float(one.bayes_security.upper) for one in every)
        lower = min(lower, upper)
        attacks = tuple(curve for one in every for curve in one.attacks)
        return Outcome(Bound(lower, 0.5 * (lower + upper), upper), (TunedCurve(1.0, self),), attacks, every[0].oriented)


def tuned(
    searches: Sequence[tuple[Sequence[float], Trials, Sequence[Outcome]]], then: Outcome | None, both_ends: bool
) -> Outcome:
    """What is known of a release. searches: of each, the weights of its runs, the law of their number, and what is known of each
    run; then: of the runs that are released as well."""
    parts = [Best(OneTrial(outcomes, weights), trials) for weights, trials, outcomes in searches]
    outcomes = [part.outcome(both_ends) for part in parts]
    return outcomes[0] if len(parts) == 1 and then is None else Together(parts, outcomes, then).outcome()
