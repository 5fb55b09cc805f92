"""Games of steps that are not those of one record with Poisson sampling: several records of a person, and epochs in bins."""

from __future__ import annotations

from math import log

import numpy as np
from scipy.special import logsumexp

from betastar.arrays import Booleans, Real
from betastar.scenario.step import AllocationStep, AnyStep, MixtureStep

#: Numbers drawn at once: bounds the memory, whatever the number of steps and batches.
BLOCK = 1 << 20


def evidence(claim: AnyStep, truth: AnyStep, positive: Booleans, generator: np.random.Generator) -> Real:
    """log P/Q over all steps of this kind, for each game: outputs are drawn from `truth`, and weighed by `claim`."""
    if isinstance(claim, MixtureStep) and isinstance(truth, MixtureStep):
        return _mixtures(claim, truth, positive, generator)
    if isinstance(claim, AllocationStep) and isinstance(truth, AllocationStep):
        return _epochs(claim, truth, positive, generator)
    raise ValueError(f"actual must have the sampling and the records of run: {truth!r} cannot be played for {claim!r}.")


def numbers(step: AnyStep) -> int:
    """How many outputs the steps of this kind have."""
    return step.count * step.batches if isinstance(step, AllocationStep) else step.count


def _mixtures(claim: MixtureStep, truth: MixtureStep, positive: Booleans, generator: np.random.Generator) -> Real:
    """Each step shows a random one of the shifts, or in the other world its mirror image or nothing, and noise."""
    shifts, chances = np.array(truth.shifts), np.array(truth.weights)
    sign = np.where(positive, 1.0, -1.0 if truth.mirrored else 0.0)
    total = np.zeros(len(positive))
    at_once = max(1, BLOCK // (len(positive) * len(claim.shifts)))
    for start in range(0, truth.count, at_once):
        size = (min(at_once, truth.count - start), len(positive))
        output = sign * generator.choice(shifts, size, p=chances / chances.sum())
        output += truth.noise * generator.standard_normal(size)
        total += (_against_noise(output, claim) - (_against_noise(-output, claim) if claim.mirrored else 0.0)).sum(axis=0)
    return total


def _against_noise(output: Real, step: MixtureStep) -> Real:
    """log of Σ_j w_j N(s_j, σ²) over N(0, σ²)."""
    shifts, variance = np.array(step.shifts), step.noise**2
    terms = (np.multiply.outer(output, shifts) - 0.5 * shifts**2) / variance
    answer: Real = logsumexp(terms, b=np.array(step.weights), axis=-1)
    return answer


def _epochs(claim: AllocationStep, truth: AllocationStep, positive: Booleans, generator: np.random.Generator) -> Real:
    """One batch of each epoch, drawn at random, is moved; the others show noise."""
    games = len(positive)
    sign = np.where(positive, 1.0, -1.0 if truth.mirrored else 0.0)
    total = np.zeros(games)
    at_once = max(1, BLOCK // max(truth.batches, 1))
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
