"""Outputs of the mechanism itself: games between worst-case pairs of gradients, and the likelihood of both worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from betastar.dpsgd import DPSGD, Segment
from betastar.exact import LEAST_NOISE, FourierCurve
from betastar.sequences import StepSequence
from betastar.steps import AllocationStep, MixtureStep, UnequalStep
from betastar.steps.base import Family, Step
from betastar.steps.poisson import PoissonFactor, PoissonStep, condense, factors, log_mixture
from betastar.threats import FARTHEST, Threat, reduction
from betastar.tuning import Trials

# --- The worlds that a game is played in: where the challenge's gradient points in each of them, step by step
#
# In units of the clipping norm, one step shows y = ξ·a + σz in the positive world and y = ξ·b + σz in the other, where ξ = 1
# with probability p (theory, sections 1 and 2). Both pairs below attain ‖a‖, ‖b‖ ≤ 1 and ‖a - b‖ = R. Other samplings, and
# several records of a person, are played as the attacks on them that exist (theory, sections 12 to 15), `threats.reduction`.

Place = tuple[float, ...]
#: Numbers drawn at once: they fit the cache, and bound the memory whatever the number of steps.
BLOCK = 1 << 16
#: Less noise than this is as good as none.
QUIETEST = 1e-100


def on_a_line(distance: float) -> tuple[Place, Place]:
    """a = 1, b = 1 - R: substitution at R = 2, add or remove at R = 1."""
    return (1.0,), (1.0 - distance,)


def side_by_side(distance: float) -> tuple[Place, Place]:
    """‖a‖ = ‖b‖ = 1 and a·b = 1 - R²/2, in the plane."""
    along, across = sqrt(max(0.0, 1.0 - 0.25 * distance * distance)), 0.5 * distance
    return (along, across), (along, -across)


@dataclass(frozen=True)
class Pair:
    """A pair of worlds for every distance.

    Attributes
    ----------
    name : str
        What the pair is called.
    places : callable
        The clipped gradients a and b of the challenge for a distance.
    family : "line" or "symmetric"
        The family of pairs that it belongs to.
    exchanged : bool
        Whether the world of b is the positive one.
    """

    name: str
    places: Callable[[float], tuple[Place, Place]]
    family: Family
    exchanged: bool = False

    def worlds(self, distance: float) -> tuple[Place, Place]:
        a, b = self.places(distance)
        return (b, a) if self.exchanged else (a, b)

    def curve(self, steps: Sequence[PoissonStep]) -> FourierCurve:
        """The exact trade-off curve of a game with this pair."""
        loud = condense([step.with_min_noise(LEAST_NOISE) for step in steps])
        factors = [PoissonFactor(n, self.family, rate, noise, r, self.exchanged) for n, rate, noise, r in loud]
        return FourierCurve(factors, symmetric=self.family == "symmetric" or all(one.distance == FARTHEST for one in factors))


LINE = Pair("on a line", on_a_line, "line")
SIDE_BY_SIDE = Pair("side by side", side_by_side, "symmetric")
ALIGNED = Pair("aligned", on_a_line, "line")
LINE_EXCHANGED = Pair("on a line, worlds exchanged", on_a_line, "line", exchanged=True)


def worst(steps: Sequence[PoissonStep], symmetric: bool, prior: float) -> Pair:
    """The pair whose best attacker is right most often. Membership has one; a gap has three candidates (theory, section 2)."""
    if not symmetric or all(step.distance == FARTHEST for step in steps):
        return LINE
    pairs = (LINE, SIDE_BY_SIDE) if prior == 0.5 else (LINE, SIDE_BY_SIDE, LINE_EXCHANGED)
    return max(pairs, key=lambda pair: pair.curve(steps).hockey_stick(log((1.0 - prior) / prior)).value)


def attacks(run: DPSGD, threat: Threat) -> list[StepSequence]:
    """The steps of attacks that exist: those of the run, or of what is known to be attained under its sampling."""
    reduced = reduction(threat, run)
    return list(reduced.proved[:1] if reduced.attacks is None else [one for one in reduced.attacks if one.integrable])


def strongest(sequences: Sequence[StepSequence], prior: float) -> tuple[int, Pair]:
    """The number of the attack whose best attacker is right most often, and its pair of gradients."""
    candidates = []
    for i, sequence in enumerate(sequences):
        steps = [step for step in sequence.steps if isinstance(step, PoissonStep)]
        if len(steps) == len(sequence.steps):
            pair = worst(steps, sequence.symmetric, prior)
            curve = pair.curve(steps)
        else:
            pair = ALIGNED
            loud = [step.with_min_noise(LEAST_NOISE) for step in sequence.steps]
            curve = FourierCurve(factors(loud, "glued" if sequence.symmetric else "line"), sequence.symmetric)
        candidates.append((curve.hockey_stick(log((1.0 - prior) / prior)).value if len(sequences) > 1 else 0.0, i, pair))
    _, number, pair = max(candidates, key=lambda candidate: candidate[0])
    return number, pair


def play(
    believed: Sequence[Step],
    actual: Sequence[Step],
    pair: Pair,
    prior: float,
    games: int,
    seed: np.random.SeedSequence,
    trials: Trials | None = None,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Play `games` games: the world of each, the attacker's evidence log P/Q over all steps, and a number that breaks ties.

    Outputs are drawn from the actual steps; the attacker weighs them by those that they believe in. Both have the same counts.
    trials: of each game, this many models are trained, and the one with the largest |log P/Q| is seen.
    """
    generator = np.random.default_rng(seed)
    positive = generator.random(games) < prior
    if trials is None:
        evidence = _evidence(believed, actual, pair, positive, generator)
    else:
        numbers = np.array([trials.draw(generator) for _ in range(games)])
        game = np.repeat(np.arange(games), numbers)
        every = _evidence(believed, actual, pair, positive[game], generator)
        order = np.lexsort((np.abs(every), game))
        evidence = np.zeros(games)  # nothing is seen if no model is trained
        evidence[game[order]] = every[order]  # the last one of each game, which is the largest, stays
    return positive, evidence, generator.random(games)


def _evidence(
    believed: Sequence[Step], actual: Sequence[Step], pair: Pair, positive: NDArray[Any], generator: np.random.Generator
) -> NDArray[Any]:
    """The attacker's evidence in games with these worlds."""
    games = len(positive)
    evidence = np.zeros(games)
    for claim, truth in zip(believed, actual, strict=True):
        if not isinstance(claim, PoissonStep) or not isinstance(truth, PoissonStep):
            evidence += evidence_of_other_kinds(claim, truth, positive, generator)
            continue
        a, b = pair.worlds(truth.distance)
        mean = np.where(positive, np.array(a)[:, None], np.array(b)[:, None])[:, None, :]
        at_once = max(1, BLOCK // max(games * len(a), 1))
        for start in range(0, truth.count, at_once):
            steps = min(at_once, truth.count - start)
            # Equal steps may change places without changing the evidence: those that sample the challenge come first.
            sampled = np.arange(steps)[:, None] < generator.binomial(steps, truth.rate, games)
            output = generator.standard_normal((len(a), steps, games))
            output *= truth.noise
            output += mean * sampled
            evidence += loss(output, claim, pair).sum(axis=0)
    return evidence


def loss(output: NDArray[Any], step: PoissonStep, pair: Pair) -> NDArray[Any]:
    """log P/Q of one step's output, whose coordinates are on the first axis."""
    a, b = (_log_against_noise(output, place, step) for place in pair.worlds(step.distance))
    return a - b


def _log_against_noise(output: NDArray[Any], place: Place, step: PoissonStep) -> NDArray[Any]:
    """log of (1-p)N(0,σ²) + pN(a,σ²) over N(0,σ²): log(1 - p + p·e^{(a·y - ‖a‖²/2)/σ²})."""
    variance = max(step.noise, QUIETEST) ** 2
    along = sum(output[i] * (coordinate / variance) for i, coordinate in enumerate(place))
    return log_mixture(along - 0.5 * sum(c * c for c in place) / variance, step.rate)


# --- Steps that are not those of one record with Poisson sampling: several records of a person, and epochs in bins

#: Numbers drawn at once: bounds the memory, whatever the number of steps and batches.
LARGE_BLOCK = 1 << 20


def evidence_of_other_kinds(claim: Step, truth: Step, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """log P/Q over all steps of this kind, for each game: outputs are drawn from `truth`, and weighed by `claim`."""
    if isinstance(claim, MixtureStep) and isinstance(truth, MixtureStep):
        return _mixtures(claim, truth, positive, generator)
    if isinstance(claim, AllocationStep) and isinstance(truth, AllocationStep):
        return _epochs(claim, truth, positive, generator)
    if isinstance(claim, UnequalStep) and isinstance(truth, UnequalStep):
        return _unequal(claim, truth, positive, generator)
    raise ValueError(f"actual must have the sampling and the records of run: {truth!r} cannot be played for {claim!r}.")


def number_of_outputs(step: Step) -> int:
    """How many outputs the steps of this kind have."""
    return step.count * step.batches if isinstance(step, AllocationStep) else step.count


def _mixtures(claim: MixtureStep, truth: MixtureStep, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Each step shows a random one of the shifts, or in the other world its mirror image or nothing, and noise."""
    shifts, chances = np.array(truth.shifts), np.array(truth.weights)
    sign = np.where(positive, 1.0, -1.0 if truth.mirrored else 0.0)
    total = np.zeros(len(positive))
    at_once = max(1, LARGE_BLOCK // (len(positive) * len(claim.shifts)))
    for start in range(0, truth.count, at_once):
        size = (min(at_once, truth.count - start), len(positive))
        output = sign * generator.choice(shifts, size, p=chances / chances.sum())
        output += truth.noise * generator.standard_normal(size)
        total += (_against_noise(output, claim) - (_against_noise(-output, claim) if claim.mirrored else 0.0)).sum(axis=0)
    return total


def _against_noise(output: NDArray[Any], step: MixtureStep) -> NDArray[Any]:
    """log of Σ_j w_j N(s_j, σ²) over N(0, σ²)."""
    shifts, variance = np.array(step.shifts), step.noise**2
    terms = (np.multiply.outer(output, shifts) - 0.5 * shifts**2) / variance
    answer: NDArray[Any] = logsumexp(terms, b=np.array(step.weights), axis=-1)
    return answer


def _unequal(claim: UnequalStep, truth: UnequalStep, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Each step shows noise, moved by one record or the other if that is drawn."""
    rate, place = np.where(positive, truth.rate, truth.other_rate), np.where(positive, truth.norm, -truth.other_norm)
    total = np.zeros(len(positive))
    at_once = max(1, LARGE_BLOCK // len(positive))
    for start in range(0, truth.count, at_once):
        size = (min(at_once, truth.count - start), len(positive))
        output = place * (generator.random(size) < rate) + truth.noise * generator.standard_normal(size)
        total += claim.loss(output).sum(axis=0)
    return total


def _epochs(claim: AllocationStep, truth: AllocationStep, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """One batch of each epoch, drawn at random, is moved; the others show noise."""
    games = len(positive)
    sign = np.where(positive, 1.0, -1.0 if truth.mirrored else 0.0)
    total = np.zeros(games)
    at_once = max(1, LARGE_BLOCK // max(truth.batches, 1))
    for _ in range(truth.count):
        for start in range(0, games, at_once):
            some = slice(start, min(start + at_once, games))
            number = some.stop - start
            output = truth.noise * generator.standard_normal((number, truth.batches))
            output[np.arange(number), generator.integers(truth.batches, size=number)] += sign[some]
            along = output / claim.noise**2
            ahead = logsumexp(along, axis=1)
            total[some] += ahead - (logsumexp(-along, axis=1) if claim.mirrored else log(claim.batches) + 0.5 / claim.noise**2)
    return total


def same_steps(run: DPSGD, actual: DPSGD | None) -> DPSGD:
    """What was really run: the claimed run, or another one with as many steps."""
    if actual is None:
        return run
    if not isinstance(actual, DPSGD) or [_shape(s) for s in actual.segments] != [_shape(s) for s in run.segments]:
        raise ValueError(
            f"actual must be a DPSGD with as many segments and steps as run, {run!r}, and of the same sampling, got {actual!r}."
        )
    return actual


def _shape(segment: Segment) -> tuple[int, str, bool, int]:
    return segment.steps, segment.sampling, segment.max_batch_size is None, segment.times_per_epoch


# --- Values of a canary, whose gradients are all as far apart


def corners(distance: float, values: int) -> NDArray[Any]:
    """`values` gradients of norm 1, each two of them at this distance, or as far from each other as norm 1 allows."""
    around = distance / sqrt(2.0) * (np.eye(values) - 1.0 / values)
    radius = distance * sqrt(0.5 * (values - 1) / values)
    along = np.full((values, 1), sqrt(max(0.0, 1.0 - radius * radius)))
    return np.hstack([along, around / max(1.0, radius)])


def play_values(
    believed: Sequence[Step], actual: Sequence[Step], values: int, canaries: int, stream: np.random.SeedSequence
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The value of each canary, and the attacker's evidence for each value over all steps."""
    generator = np.random.default_rng(stream)
    truth = generator.integers(0, values, canaries)
    evidence = np.zeros((canaries, values))
    for claim, real in zip(believed, actual, strict=True):
        if not isinstance(claim, PoissonStep) or not isinstance(real, PoissonStep):
            raise ValueError(f"values must be left out unless the sampling is Poisson's, got {values}.")
        places, variance = corners(claim.distance, values), max(claim.noise, QUIETEST) ** 2
        shown = corners(real.distance, values)[truth]
        for _ in range(real.count):
            output = generator.standard_normal(shown.shape) * real.noise
            output += shown * (generator.random((canaries, 1)) < real.rate)
            evidence += log_mixture((output @ places.T - 0.5 * np.sum(places**2, axis=1)) / variance, claim.rate)
    return truth, evidence
