"""A run of any sampling as sequences of steps: some that dominate it, and some of attacks that exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import asin, cos, sqrt
from typing import Any

import numpy as np

from betastar.arrays import Real
from betastar.dpsgd import DPSGD, Segment, is_plain
from betastar.dpsgd import batches_per_epoch as batches
from betastar.dpsgd import epochs_of as epochs
from betastar.rounding import plain
from betastar.scenario.mixture import group_step
from betastar.scenario.step import AllocationStep, AnyStep, CoinStep, MixtureStep, Step
from betastar.scenario.truncation import truncation
from betastar.validation import WrongValueError

# ---- reductions
# A run of any sampling as steps: steps that dominate it, and steps of attacks that exist (theory, sections 12 and 13).
#
# With plain Poisson sampling both are the same. Of some other samplings only bounds are known, or the dominating steps allow
# attackers what no gradients allow. Then the two ends of an answer come from different steps: each of the `proved` views is above
# every attack, each of the `attained` views is below an attack that exists.


@dataclass(frozen=True)
class View:
    """Steps that stand for a run, with all that a method asks of a threat.

    every : the steps, in any order.
    ordered : the same steps, or steps that dominate them, in their order; None if the order is not known or does not matter.
    """

    every: tuple[AnyStep, ...]
    symmetric: bool
    oriented: bool
    ordered: tuple[Step, ...] | None = None

    def steps(self, run: DPSGD) -> tuple[AnyStep, ...]:
        return self.every

    def in_order(self, run: DPSGD) -> tuple[Step, ...] | None:
        return self.ordered

    def describe(self) -> str:
        return "steps"


@dataclass(frozen=True)
class Reduction:
    """proved : views that are above every attack, each of them. attained : views of attacks that exist, or less.

    attained is None if the only proved view is attained itself: what a method says of its steps, at both ends, holds for the run.
    """

    proved: tuple[View, ...]
    attained: tuple[View, ...] | None = None


@dataclass(frozen=True)
class Part:
    """What a segment contributes.

    proved : alternatives, each of which dominates the segment.
    ordered : the first alternative in its order, or steps that dominate it; None if that is not known.
    symmetric, directed : attacks that exist, with worlds that are mirror images (or pairs of gradients at a distance), and with
        worlds of which one is pure noise.
    summed : a further attack that exists, with worlds that are mirror images if those of the threat are, and otherwise of which
        one is pure noise.
    """

    proved: tuple[tuple[AnyStep, ...], ...]
    ordered: tuple[Step, ...] | None = None
    symmetric: tuple[AnyStep, ...] = ()
    directed: tuple[AnyStep, ...] = ()
    summed: tuple[AnyStep, ...] = ()


def combined(parts: Sequence[Part], symmetric: bool, oriented: bool) -> Reduction:
    """The reduction of a run of several segments.

    An attack may leave out segments: it is one on all segments that have an attack of its kind.
    """
    alternatives = max(len(part.proved) for part in parts)
    proved = []
    for i in range(alternatives):
        every = _joined(part.proved[min(i, len(part.proved) - 1)] for part in parts)
        proved.append(View(every, symmetric, oriented, _in_order(parts) if i == 0 else None))
    own = [part.symmetric if symmetric else part.directed for part in parts]
    if alternatives == 1 and _joined(own) == proved[0].every:
        return Reduction(tuple(proved))
    attained = []
    if mirrored := _joined(part.symmetric for part in parts):
        plain = all(isinstance(step, Step) for step in mirrored) and all(len(part.symmetric) <= 1 for part in parts)
        attained.append(View(mirrored, True, oriented, mirrored if plain else None))  # type: ignore[arg-type]
    if directed := _joined(part.directed for part in parts):
        attained.append(View(directed, False, oriented))
    if any(part.summed for part in parts):
        others = _joined(part.summed or (part.symmetric if symmetric else part.directed) for part in parts)
        attained.append(View(others, symmetric, oriented))
    return Reduction(tuple(proved), tuple(attained))


def _joined(every: Any) -> tuple[AnyStep, ...]:
    return tuple(step for steps in every for step in steps)


def _in_order(parts: Sequence[Part]) -> tuple[Step, ...] | None:
    ordered: list[Step] = []
    for part in parts:
        if part.ordered is None:
            return None
        ordered += part.ordered
    return tuple(ordered)


# ---- sampled segments
# Which steps a segment becomes, for each sampling and each game (theory, sections 12 and 13).
#
# Substitution is the game of two gradients a and b of norm at most 1 with ‖a - b‖ ≤ R: membership has R = 2, attributes have
# less. Add/remove is the game of a record and nothing in its place.

#: Distance of two opposite gradients of norm 1.
OPPOSITE = 2.0


@dataclass(frozen=True)
class Distances:
    """The distances of a segment's steps.

    steps : one Step for each distance, with rate and noise of the segment, in any order.
    blocks : steps in their order that dominate these.
    each : the distance of each step, in their order; None if all are the same, or if their order is not known.
    """

    steps: tuple[Step, ...]
    blocks: tuple[Step, ...]
    each: Real | None = None


def at_most_all(records: int, size: int | None, argument: str = "records") -> None:
    """Refuse more records of a person than there are."""
    if size is not None and records > size:
        raise WrongValueError(
            argument,
            "{argument} must be at most the {size} records of the data set, got {value}.",
            {"size": plain(size), "value": str(records)},
        )


def substitution(segment: Segment, distances: Distances, records: int = 1) -> Part:
    """The part of a segment where the challenge's gradient is a or b, or where all of a person's records are replaced."""
    at_most_all(records, segment.dataset_size)
    if segment.mixture is not None:
        raise WrongValueError(
            "relation",
            "{argument} must be 'add-remove' for a run that is a mixture of Gaussians: it says what is seen with a record and "
            "without it, not with another in its place.",
        )
    if records > 1:
        return _group_in_poisson(segment, records, True) if is_plain(segment) else _replaced_group(segment, records)
    if segment.sampling == "fixed-size":
        return _fixed_size(distances)
    if segment.sampling == "balls-in-bins":
        return _balls_in_bins(segment, distances)
    if segment.sampling == "shuffled":
        return _shuffled(segment, distances)
    if segment.max_batch_size is not None:
        return _truncated(segment, distances.steps, True)
    return Part((distances.steps,), distances.blocks, distances.steps)


def add_remove(segment: Segment, records: int = 1) -> Part:
    """The part of a segment where the challenge is a record, or all records of a person, or nothing."""
    at_most_all(records, segment.dataset_size)
    sigma, count = segment.noise_multiplier, segment.steps
    if segment.mixture is not None:
        return _mixture(segment, records)
    if segment.sampling == "shuffled":
        raise WrongValueError(
            "sampling",
            "{argument} 'shuffled' must be analysed with relation 'substitution': a record that is removed shifts all batches "
            "after it, and nothing is proved of that. Or train with sampling 'balls-in-bins' or 'poisson'.",
        )
    if segment.sampling == "balls-in-bins":
        length, number = batches(segment.sample_rate, segment.sampling), epochs(segment)
        together = Step(1.0, sigma / records, 1.0, number)
        one: AnyStep = AllocationStep(length, sigma, False, number) if length > 1 else together
        summed = _summed(segment, records, 1.0) if records > 1 and length > 1 else ()
        return Part(((together if records > 1 else one,),), directed=(one,), summed=summed)
    if records > 1:
        return _group_in_poisson(segment, records, False) if is_plain(segment) else _removed_group(segment, records)
    step = Step(segment.sample_rate, sigma, 1.0, count)
    if segment.sampling == "fixed-size":
        step = replace(step, noise=0.5 * sigma)  # in the place of a record at -1 the challenge is at +1
    elif segment.max_batch_size is not None:
        return _truncated(segment, (step,), False)
    return Part(((step,),), directed=(step,))


def _fixed_size(distances: Distances) -> Part:
    """In units of 2 all gradients relative to the one that the challenge replaces: norms at most 1, distances at most R/2.

    Attacks: the gradient g of all others, a and b on the unit circle, the triangle isosceles; all triangles with ‖a - g‖ as in
    it, ‖a - b‖ = R and ‖b - g‖ ≤ ‖a - g‖ fit into the unit circle, too. And g = b.
    """

    def halved(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(replace(step, noise=0.5 * step.noise, distance=0.5 * step.distance, fixed_size=True) for step in steps)

    legs, removed = [], []
    for step in distances.steps:
        leg = 2.0 * cos(0.5 * asin(0.5 * step.distance))
        legs.append(replace(step, noise=step.noise / leg, distance=step.distance / leg))
        if step.distance > 0.0:
            removed.append(replace(step, noise=step.noise / step.distance, distance=1.0))
    return Part((halved(distances.steps),), halved(distances.blocks), tuple(legs), tuple(removed))


def _truncated(segment: Segment, steps: tuple[Step, ...], mirrored: bool) -> Part:
    """A coin decides whether the others alone fill the batch. Attack: the others' gradients are 0."""
    assert segment.dataset_size is not None
    assert segment.max_batch_size is not None
    cut = truncation(segment.sample_rate, segment.dataset_size, segment.max_batch_size)
    if cut.full == 0.0:
        return Part((steps,), steps if len(steps) == 1 else None, steps if mirrored else (), () if mirrored else steps)

    def crowded(step: Step) -> Step:
        return replace(step, rate=cut.rate, noise=0.5 * step.noise, distance=0.5 * step.distance if mirrored else 1.0)

    coins = tuple(CoinStep((1.0 - cut.full, cut.full), (step, crowded(step)), step.count) for step in steps)
    alone = tuple(replace(step, rate=cut.overall) for step in steps)
    return Part((coins,), None, alone if mirrored else (), () if mirrored else alone)


def _balls_in_bins(segment: Segment, distances: Distances) -> Part:
    """Distance 2: exact. Less: all that is known is one step without sampling an epoch, and the figure of distance 2.

    Attacks: gradients at R/2 and -R/2, or one of them at 0.
    """
    length, number = batches(segment.sample_rate, segment.sampling), epochs(segment)
    sigma = segment.noise_multiplier
    largest, smallest = _by_epoch(segment, distances, length, number)
    open_ = tuple(Step(1.0, sigma, distance, count) for distance, count in largest)
    if length == 1 or all(distance == 0.0 for distance, _ in largest):
        return Part((open_,), open_, open_)
    exact = (AllocationStep(length, sigma, True, number),)
    if all(distance == OPPOSITE for distance, _ in largest):
        return Part((exact,), None, exact if largest == smallest else ())
    telling = [(distance, count) for distance, count in smallest if distance > 0.0]
    mirrored = tuple(AllocationStep(length, sigma * OPPOSITE / distance, True, count) for distance, count in telling)
    alone = tuple(AllocationStep(length, sigma / min(distance, 1.0), False, count) for distance, count in telling)
    return Part((open_, exact), None, mirrored, alone)


def _shuffled(segment: Segment, distances: Distances) -> Part:
    """Proved: one step without sampling an epoch. Attack: all others have the gradient b, so that one batch differs by a - b."""
    length, number = batches(segment.sample_rate, segment.sampling), epochs(segment)
    sigma = segment.noise_multiplier
    largest, smallest = _by_epoch(segment, distances, length, number)
    open_ = tuple(Step(1.0, sigma, distance, count) for distance, count in largest)
    if length == 1 or all(distance == 0.0 for distance, _ in largest):
        return Part((open_,), open_, open_)
    attack = tuple(AllocationStep(length, sigma / distance, False, count) for distance, count in smallest if distance > 0.0)
    return Part((open_,), open_, (), attack)


def _by_epoch(
    segment: Segment, distances: Distances, length: int, number: int
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """(distance, epochs) of the largest and of the smallest distance of each epoch.

    Where the order of the steps is not known, the epochs have the largest (the smallest) of all distances, one each.
    """
    if len(distances.steps) == 1:
        same = [(distances.steps[0].distance, number)]
        return same, same
    if distances.each is not None:
        rows = distances.each.reshape(number, length)
        return _counted(rows.max(axis=1)), _counted(rows.min(axis=1))
    every = np.sort(np.repeat([step.distance for step in distances.steps], [step.count for step in distances.steps]))
    return _counted(every[-number:]), _counted(every[:number])


def _counted(values: Real) -> list[tuple[float, int]]:
    distinct, counts = np.unique(values, return_counts=True)
    return list(zip(distinct.tolist(), counts.tolist(), strict=True))


def _mixture(segment: Segment, records: int) -> Part:
    """What a mixture of Gaussians shows is given: exact."""
    if records > 1:
        text = "{argument} must be 1 for a mixture of Gaussians, whose shifts are those of a whole person, got {value}."
        raise WrongValueError("records", text, {"value": str(records)})
    assert segment.mixture is not None
    shifts, weights = zip(*segment.mixture, strict=True)
    step = (MixtureStep(weights, shifts, segment.noise_multiplier, False, segment.steps),)
    return Part((step,), directed=step)


def _group_in_poisson(segment: Segment, records: int, mirrored: bool) -> Part:
    """A random number of a person's records in each batch: exact."""
    step = (group_step(records, segment.sample_rate, segment.noise_multiplier, mirrored, segment.steps),)
    return Part((step,), None, step if mirrored else (), () if mirrored else step)


def _replaced_group(segment: Segment, records: int) -> Part:
    """All records of a person are replaced: by the records of another, with the opposite gradients at worst."""
    sigma = segment.noise_multiplier
    if segment.sampling in ("balls-in-bins", "shuffled"):
        # All of them may be in one batch: what is proved is a step without sampling an epoch. Attacks: one of them differs, or
        # the batches of an epoch are added up.
        length, number = batches(segment.sample_rate, segment.sampling), epochs(segment)
        together = (Step(1.0, sigma / records, OPPOSITE, number),)
        if length == 1:
            return Part((together,), together, together)
        if segment.sampling == "shuffled":
            one = (AllocationStep(length, sigma / OPPOSITE, False, number),)
            return Part((together,), together, (), one, _summed(segment, records, OPPOSITE))
        return Part(
            (together,), together, (AllocationStep(length, sigma, True, number),), (), _summed(segment, records, OPPOSITE)
        )
    law = _law_of_group(segment, records)
    # Gradients of j replaced records, relative to those of j others: norms at most 2j. Attacks: the others at 0, or at b.
    return Part(((law(0.5 * sigma, True),),), None, (law(sigma, True),), (law(0.5 * sigma, False),))


def _summed(segment: Segment, records: int, distance: float) -> tuple[Step, ...]:
    """The attack that adds up the batches of an epoch, if the gradients of all others are 0.

    Each of the k records of a person is in one batch of the epoch, wherever it is: the sum of its t batches is ±k + σ√t·z.
    """
    length = batches(segment.sample_rate, segment.sampling)
    return (Step(1.0, segment.noise_multiplier * sqrt(length) / records, distance, epochs(segment)),)


def _removed_group(segment: Segment, records: int) -> Part:
    """All records of a person are left out: j of them are in the batch in the place of j others."""
    law = _law_of_group(segment, records)(0.5 * segment.noise_multiplier, False)
    assert segment.dataset_size is not None
    drawn, left = round(segment.sample_rate * segment.dataset_size), segment.dataset_size - records
    if drawn > left:
        raise WrongValueError(
            "records",
            "{argument} must leave a whole batch of {drawn} records in the data set, got {value} of {size}; relation "
            "'substitution' would work.",
            {"drawn": str(drawn), "value": str(records), "size": str(segment.dataset_size)},
        )
    return Part(((law,),), directed=(law,))


def _law_of_group(segment: Segment, records: int) -> Callable[[float, bool], MixtureStep]:
    """How many of a person's records are in a batch of fixed size: a hypergeometric law."""
    if segment.max_batch_size is not None:
        raise WrongValueError(
            "records",
            "{argument} must be 1 with max_batch_size, got {value}: nothing is proved of several records in batches that are cut "
            "off. Leave out max_batch_size, or train with sampling 'fixed-size' or 'balls-in-bins'.",
            {"value": str(records)},
        )
    if segment.dataset_size is None:
        raise WrongValueError(
            "dataset_size",
            "{argument} must be given for several records of a person with sampling 'fixed-size': batch_size and dataset_size "
            "decide how many of them may be in a batch. DPSGD.from_epochs has both.",
        )
    size = segment.dataset_size
    from scipy.stats import hypergeom

    drawn = round(segment.sample_rate * size)
    numbers = np.arange(max(0, drawn - (size - records)), min(records, drawn) + 1)
    weights = hypergeom.pmf(numbers, size, records, drawn)
    weights = weights / weights.sum()
    return lambda noise, mirrored: MixtureStep(
        tuple(weights.tolist()), tuple(float(j) for j in numbers), noise, mirrored, segment.steps
    )
