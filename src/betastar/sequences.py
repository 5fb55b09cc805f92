"""A run of any sampling as sequences of steps: some that dominate it, and some of attacks that exist (theory, sections 12, 13).

With plain Poisson sampling both are the same. Of some other samplings only bounds are known, or the dominating steps allow
attackers what no gradients allow. Then the two ends of an answer come from different steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import asin, cos, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar.dpsgd import Segment, epochs_of, is_plain, length_of
from betastar.rounding import plain
from betastar.steps.allocation import AllocationStep, RepeatedAllocationAttack, blocks
from betastar.steps.base import LEAST, Step
from betastar.steps.fixed_size import FixedSizeStep
from betastar.steps.group import MixtureStep, group_step
from betastar.steps.poisson import PoissonStep
from betastar.steps.truncated import CoinStep, truncation
from betastar.steps.unequal import UnequalStep
from betastar.validation import WrongValueError


@dataclass(frozen=True)
class StepSequence:
    """Steps that stand for a run, with all that a method asks of a threat.

    steps : the steps, in any order.
    symmetric : the two worlds are mirror images, or dominated by a symmetric curve.
    oriented : "positive" is one of the two worlds; otherwise either may be.
    in_order : the same steps, or steps that dominate them, in their order; None if the order is not known or does not matter.
    """

    steps: tuple[Step, ...]
    symmetric: bool
    oriented: bool
    in_order: tuple[PoissonStep, ...] | None = None

    @property
    def integrable(self) -> bool:
        """Whether the exact method has the transforms of all steps."""
        return all(step.integrable for step in self.steps)


@dataclass(frozen=True)
class Reduction:
    """proved : sequences that are above every attack, each of them. attacks : sequences of attacks that exist, or less.

    attacks is None if the only proved sequence is attained: what a method says of its steps, at both ends, holds for the run.
    near : the same run, nearly, and not quite as nearly, for the method exact: its steps are many, and these are few.
    """

    proved: tuple[StepSequence, ...]
    attacks: tuple[StepSequence, ...] | None = None
    near: tuple[StepSequence, StepSequence] | None = None


@dataclass(frozen=True)
class SegmentSteps:
    """What a segment contributes.

    proved : alternatives, each of which dominates the segment.
    ordered : the first alternative in its order, or steps that dominate it; None if that is not known.
    symmetric, directed : attacks that exist, with worlds that are mirror images (or pairs of gradients at a distance), and with
        worlds of which one is pure noise.
    summed : a further attack that exists, with worlds that are mirror images if those of the threat are, and otherwise of which
        one is pure noise.
    """

    proved: tuple[tuple[Step, ...], ...]
    ordered: tuple[PoissonStep, ...] | None = None
    symmetric: tuple[Step, ...] = ()
    directed: tuple[Step, ...] = ()
    summed: tuple[Step, ...] = ()

    def own(self, symmetric: bool) -> tuple[Step, ...]:
        """The attack whose worlds are like those of the threat."""
        return self.symmetric if symmetric else self.directed


def combined(
    segments: Sequence[SegmentSteps], symmetric: bool, oriented: bool, attacked: Sequence[SegmentSteps] | None = None
) -> Reduction:
    """The reduction of a run of several segments. attacked: segments that leak no more, whose attacks exist, if not these."""
    proved = _proved(segments, symmetric, oriented)
    if attacked is not None:
        return Reduction(proved, _attacks(attacked, symmetric, oriented))
    if len(proved) == 1 and _joined(one.own(symmetric) for one in segments) == proved[0].steps:
        return Reduction(proved)
    return Reduction(proved, _attacks(segments, symmetric, oriented))


def _proved(segments: Sequence[SegmentSteps], symmetric: bool, oriented: bool) -> tuple[StepSequence, ...]:
    """The first alternatives of all segments, the second ones, and so on; a segment that has fewer stays with its last."""
    number = max(len(one.proved) for one in segments)
    ordered = _in_order(segments)
    return tuple(
        StepSequence(
            _joined(one.proved[min(i, len(one.proved) - 1)] for one in segments), symmetric, oriented, ordered if i == 0 else None
        )
        for i in range(number)
    )


def _attacks(segments: Sequence[SegmentSteps], symmetric: bool, oriented: bool) -> tuple[StepSequence, ...]:
    """Attacks of each kind. An attack may leave out segments: it is one on all segments that have an attack of its kind."""
    attacks = []
    if mirrored := _joined(one.symmetric for one in segments):
        poisson = tuple(step for step in mirrored if isinstance(step, PoissonStep))
        known = len(poisson) == len(mirrored) and all(len(one.symmetric) <= 1 for one in segments)
        attacks.append(StepSequence(mirrored, True, oriented, poisson if known else None))
    if directed := _joined(one.directed for one in segments):
        attacks.append(StepSequence(directed, False, oriented))
    if any(one.summed for one in segments):
        summed = _joined(one.summed or one.own(symmetric) for one in segments)
        attacks.append(StepSequence(summed, symmetric, oriented))
    return tuple(attacks)


def _joined(every: Iterable[tuple[Step, ...]]) -> tuple[Step, ...]:
    return tuple(step for steps in every for step in steps)


def _in_order(segments: Sequence[SegmentSteps]) -> tuple[PoissonStep, ...] | None:
    """The steps of all segments in their order; None if one of them is not known."""
    ordered = [one.ordered for one in segments if one.ordered is not None]
    return tuple(step for steps in ordered for step in steps) if len(ordered) == len(segments) else None


# Which steps a segment becomes, for each sampling and each game (theory, sections 12 and 13). Substitution is the game of two
# gradients a and b of norm at most 1 with ‖a - b‖ ≤ R: membership has R = 2, attributes have less. Add/remove is the game of a
# record and nothing in its place.

#: Distance of two opposite gradients of norm 1.
OPPOSITE = 2.0
#: Different distances of epochs that are looked at, at most; others are rounded: each takes some tenths of a second, or more.
DIFFERENT_EPOCHS = 2
#: With less noise an epoch is bounded by a step without sampling as well: its own curve is not integrated, or loses its tail.
LITTLE_NOISE = 0.25


@dataclass(frozen=True)
class Distances:
    """The distances of a segment's steps.

    steps : one Step for each distance, with rate and noise of the segment, in any order.
    blocks : steps in their order that dominate these.
    each : the distance of each step, in their order; None if all are the same, or if their order is not known.
    """

    steps: tuple[PoissonStep, ...]
    blocks: tuple[PoissonStep, ...]
    each: NDArray[Any] | None = None


def at_most_all(records: int, size: int | None, argument: str = "records") -> None:
    """Refuse more records of a person than there are."""
    if size is not None and records > size:
        raise WrongValueError(
            argument,
            "{argument} must be at most the {size} records of the data set, got {value}.",
            {"size": plain(size), "value": str(records)},
        )


def substitution(segment: Segment, distances: Distances, records: int = 1) -> SegmentSteps:
    """The part of a segment where the challenge's gradient is a or b, or where all of a person's records are replaced."""
    at_most_all(records, segment.dataset_size)
    if segment.mixture is not None:
        raise WrongValueError(
            "relation",
            "{argument} must be 'add-remove' for a run that is a mixture of Gaussians: it says what is seen with a record and "
            "without it, not with another in its place.",
        )
    if segment.times_per_epoch > 1:
        return _several_times(segment, records, True, distances)
    if records > 1:
        return _group_in_poisson(segment, records, True) if is_plain(segment) else _replaced_group(segment, records)
    if segment.sampling == "fixed-size":
        return _fixed_size(distances)
    if segment.sampling == "balls-in-bins":
        return _balls_in_bins(segment, distances)
    if segment.sampling == "shuffled":
        return _shuffled(segment, distances)
    if segment.max_batch_size is not None:
        return _truncated(segment, distances.steps)
    return SegmentSteps((distances.steps,), distances.blocks, distances.steps)


def add_remove(segment: Segment, records: int = 1, norm: float = 1.0) -> SegmentSteps:
    """The part of a segment where the challenge is a record, or all records of a person, or nothing.

    norm: the largest norm of their gradients. In the place of nothing they count as with more noise; in the place of others,
    whose norms are up to 1, the distance is up to 1 + norm.
    """
    at_most_all(records, segment.dataset_size)
    if segment.mixture is not None:
        return _mixture(segment, records, norm)
    if segment.sampling == "shuffled":
        raise WrongValueError(
            "sampling",
            "{argument} 'shuffled' must be analysed with relation 'substitution': a record that is removed shifts all batches "
            "after it, and nothing is proved of that. Or train with sampling 'balls-in-bins' or 'poisson'.",
        )
    in_place = segment.noise_multiplier / (1.0 + norm)
    if segment.sampling == "fixed-size":
        if records > 1:
            return _removed_group(segment, records, in_place)
        step = PoissonStep(segment.sample_rate, in_place, 1.0, segment.steps)  # the challenge is opposite to those it replaces
        return SegmentSteps(((step,),), directed=(step,))
    if norm == 0.0 and segment.max_batch_size is None:
        nothing = (PoissonStep(segment.sample_rate, segment.noise_multiplier, 0.0, segment.steps),)
        return SegmentSteps((nothing,), directed=nothing)
    segment = replace(segment, noise_multiplier=segment.noise_multiplier / max(norm, LEAST))
    sigma, count = segment.noise_multiplier, segment.steps
    if segment.times_per_epoch > 1:
        return _several_times(segment, records, False)
    if segment.sampling == "balls-in-bins":
        length, number = length_of(segment), epochs_of(segment)
        together = PoissonStep(1.0, sigma / records, 1.0, number)
        one: Step = AllocationStep(length, sigma, False, number) if length > 1 else together
        if records == 1 or length == 1:
            proved = ((one,), (together,)) if sigma < LITTLE_NOISE and length > 1 else ((one,),)
            return SegmentSteps(proved, directed=(one,))
        each = AllocationStep(length, sigma / sqrt(records), False, records * number)
        return SegmentSteps(((together,), (each,)), directed=(replace(each, noise=sigma),), summed=_summed(segment, records, 1.0))
    if records > 1:
        return _group_in_poisson(segment, records, False) if is_plain(segment) else _removed_group(segment, records, in_place)
    step = PoissonStep(segment.sample_rate, sigma, 1.0, count)
    if segment.max_batch_size is not None:
        return _truncated(segment, (step,), in_place)
    return SegmentSteps(((step,),), directed=(step,))


def unequal(segment: Segment, norm: float, other_rate: float | None) -> SegmentSteps:
    """The part of a plain segment where a record of this norm is replaced by any other, which is drawn with its own rate."""
    rate = segment.sample_rate if other_rate is None else other_rate
    step = (UnequalStep(segment.sample_rate, segment.noise_multiplier, norm, rate, 1.0, segment.steps),)
    return SegmentSteps((step,), directed=step)


def substitution_of_small(segment: Segment, distances: Distances, norm: float) -> SegmentSteps:
    """The part of a segment of any sampling where a record of at least this norm, and at most the norms that belong to the
    distances (less 1), is replaced by any other.

    Attacks: the record has the gradient 0 and the other one norm 1, or the record has that of all others, the other one the
    opposite.
    """
    far = segment.noise_multiplier / (1.0 + norm)
    if segment.sampling == "fixed-size":
        attack: tuple[Step, ...] = (PoissonStep(segment.sample_rate, far, 1.0, segment.steps),)
    elif segment.sampling == "shuffled":
        length, number = length_of(segment), epochs_of(segment)
        attack = (AllocationStep(length, far, False, number) if length > 1 else PoissonStep(1.0, far, 1.0, number),)
    else:
        attack = add_remove(segment).directed
    return replace(substitution(segment, distances), symmetric=(), directed=attack, summed=())


def _fixed_size(distances: Distances) -> SegmentSteps:
    """In units of 2 all gradients relative to the one that the challenge replaces: norms at most 1, distances at most R/2.

    Attacks: the gradient g of all others, a and b on the unit circle, the triangle isosceles; all triangles with ‖a - g‖ as in
    it, ‖a - b‖ = R and ‖b - g‖ ≤ ‖a - g‖ fit into the unit circle, too. And g = b.
    """

    def halved(steps: tuple[PoissonStep, ...]) -> tuple[PoissonStep, ...]:
        return tuple(FixedSizeStep(step.rate, 0.5 * step.noise, 0.5 * step.distance, step.count) for step in steps)

    legs, removed = [], []
    for step in distances.steps:
        leg = 2.0 * cos(0.5 * asin(0.5 * step.distance))
        legs.append(replace(step, noise=step.noise / leg, distance=step.distance / leg))
        if step.distance > 0.0:
            removed.append(replace(step, noise=step.noise / step.distance, distance=1.0))
    return SegmentSteps((halved(distances.steps),), halved(distances.blocks), tuple(legs), tuple(removed))


def _truncated(segment: Segment, steps: tuple[PoissonStep, ...], in_place: float | None = None) -> SegmentSteps:
    """A coin decides whether the others alone fill the batch. Attack: the others' gradients are 0.

    in_place: if a record is removed, the noise in units of the distance to those that it replaces.
    """
    mirrored = in_place is None
    assert segment.dataset_size is not None
    assert segment.max_batch_size is not None
    cut = truncation(segment.sample_rate, segment.dataset_size, segment.max_batch_size)
    if cut.full == 0.0:
        return SegmentSteps((steps,), steps if len(steps) == 1 else None, steps if mirrored else (), () if mirrored else steps)

    def crowded(step: PoissonStep) -> PoissonStep:
        if in_place is not None:
            return replace(step, rate=cut.rate, noise=in_place)
        return replace(step, rate=cut.rate, noise=0.5 * step.noise, distance=0.5 * step.distance)

    coins = tuple(CoinStep((1.0 - cut.full, cut.full), (step, crowded(step)), step.count) for step in steps)
    alone = tuple(replace(step, rate=cut.overall) for step in steps)
    return SegmentSteps((coins,), None, alone if mirrored else (), () if mirrored else alone)


def _balls_in_bins(segment: Segment, distances: Distances) -> SegmentSteps:
    """Distance 2: exact. Less: one step without sampling an epoch, the figure of distance 2, and an epoch's curve above all pairs
    of gradients.

    Attacks: gradients at R/2 and -R/2, or one of them at 0.
    """
    length, number = length_of(segment), epochs_of(segment)
    sigma = segment.noise_multiplier
    largest, smallest = _by_epoch(segment, distances, length, number)
    open_ = tuple(PoissonStep(1.0, sigma, distance, count) for distance, count in largest)
    if length == 1 or all(distance == 0.0 for distance, _ in largest):
        return SegmentSteps((open_,), open_, open_)
    exact = (AllocationStep(length, sigma, True, number),)
    if all(distance == OPPOSITE for distance, _ in largest):
        return SegmentSteps((exact, open_) if sigma < LITTLE_NOISE else (exact,), None, exact if largest == smallest else ())
    leaking = [(distance, count) for distance, count in _few(smallest, min) if distance > 0.0]
    mirrored = tuple(AllocationStep(length, sigma * OPPOSITE / distance, True, count) for distance, count in leaking)
    alone = tuple(AllocationStep(length, sigma / min(distance, 1.0), False, count) for distance, count in leaking)
    each = tuple(AllocationStep(length, sigma, True, count, distance) for distance, count in _few(largest, max) if distance > 0.0)
    return SegmentSteps((open_, exact, each), None, mirrored, alone)


def _several_times(segment: Segment, records: int, mirrored: bool, distances: Distances | None = None) -> SegmentSteps:
    """Balls in bins, each record in several batches of an epoch. Distance 2: blocks of the batches, one ball in each; of several
    records, each has its part of the noise.

    In general: steps without sampling, as often as the record takes part; with several records, all in the same batches. Attacks:
    a statistic that adds up over the batches, and their sum, if the gradients of all others are 0.
    """
    length, number, times, sigma = length_of(segment), epochs_of(segment), segment.times_per_epoch, segment.noise_multiplier
    largest = smallest = [(OPPOSITE if mirrored else 1.0, number)]
    if distances is not None:
        largest, smallest = _by_epoch(segment, distances, length, number)
    open_ = tuple(PoissonStep(1.0, sigma / records, distance, times * count) for distance, count in largest)
    if length == times or all(distance == 0.0 for distance, _ in largest):
        return SegmentSteps((open_,), None, open_ if mirrored else (), () if mirrored else open_)
    leaking = [(distance, count) for distance, count in smallest if distance > 0.0]
    # Gradients at R/2 and -R/2, or one of them at 0: the aligned pairs with more noise.
    noises = [(OPPOSITE * sigma / distance if mirrored else sigma, count) for distance, count in leaking]
    # The gradients of several records are orthogonal.
    attacks = tuple(RepeatedAllocationAttack(length, noise, mirrored, records * count, times=times) for noise, count in noises)
    far, spread = OPPOSITE if mirrored else 1.0, sqrt(length) / (times * records)
    summed = tuple(PoissonStep(1.0, noise * spread, far, count) for noise, count in noises)
    proved = [open_, blocks(length, times, sigma / sqrt(records), mirrored, records * number)]
    if records == 1 and sigma >= LITTLE_NOISE and all(distance == far for distance, _ in largest):
        proved = proved[1:]
    return SegmentSteps(tuple(proved), None, attacks if mirrored else (), () if mirrored else attacks, summed)


def _shuffled(segment: Segment, distances: Distances) -> SegmentSteps:
    """Proved: one step without sampling an epoch. Attack: all others have the gradient b, so that one batch differs by a - b."""
    length, number = length_of(segment), epochs_of(segment)
    sigma = segment.noise_multiplier
    largest, smallest = _by_epoch(segment, distances, length, number)
    open_ = tuple(PoissonStep(1.0, sigma, distance, count) for distance, count in largest)
    if length == 1 or all(distance == 0.0 for distance, _ in largest):
        return SegmentSteps((open_,), open_, open_)
    attack = tuple(AllocationStep(length, sigma / distance, False, count) for distance, count in smallest if distance > 0.0)
    return SegmentSteps((open_,), open_, (), attack)


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


def _few(rows: list[tuple[float, int]], pick: Callable[..., float]) -> list[tuple[float, int]]:
    """Distances and their numbers of epochs as few of them: of neighbours, one is picked."""
    if len(rows) <= DIFFERENT_EPOCHS:
        return rows
    cuts = np.linspace(0, len(rows), DIFFERENT_EPOCHS + 1).astype(int)
    parts = [rows[start:end] for start, end in pairwise(cuts)]
    return [(pick([distance for distance, _ in part]), sum(count for _, count in part)) for part in parts]


def _counted(values: NDArray[Any]) -> list[tuple[float, int]]:
    distinct, counts = np.unique(values, return_counts=True)
    return list(zip(distinct.tolist(), counts.tolist(), strict=True))


def _mixture(segment: Segment, records: int, norm: float) -> SegmentSteps:
    """What a mixture of Gaussians shows is given: exact."""
    if norm != 1.0:
        text = "{argument} must be 1 for a mixture of Gaussians, whose shifts are given, got {value}."
        raise WrongValueError("norms", text, {"value": plain(norm)})
    if records > 1:
        text = "{argument} must be 1 for a mixture of Gaussians, whose shifts are those of a whole person, got {value}."
        raise WrongValueError("records", text, {"value": str(records)})
    assert segment.mixture is not None
    shifts, weights = zip(*segment.mixture, strict=True)
    step = (MixtureStep(weights, shifts, segment.noise_multiplier, False, segment.steps),)
    return SegmentSteps((step,), directed=step)


def _group_in_poisson(segment: Segment, records: int, mirrored: bool) -> SegmentSteps:
    """A random number of a person's records in each batch: exact."""
    step = (group_step(records, segment.sample_rate, segment.noise_multiplier, mirrored, segment.steps),)
    return SegmentSteps((step,), None, step if mirrored else (), () if mirrored else step)


def _replaced_group(segment: Segment, records: int) -> SegmentSteps:
    """All records of a person are replaced: by the records of another, with the opposite gradients at worst."""
    sigma = segment.noise_multiplier
    if segment.sampling in ("balls-in-bins", "shuffled"):
        # All of them may be in one batch: a step without sampling an epoch. In bins also: an epoch of each record, with its part
        # of the noise. Attacks: their gradients are orthogonal (of shuffled batches, one of them differs), or the batches of an
        # epoch are added up.
        length, number = length_of(segment), epochs_of(segment)
        together = (PoissonStep(1.0, sigma / records, OPPOSITE, number),)
        if length == 1:
            return SegmentSteps((together,), together, together)
        if segment.sampling == "shuffled":
            one = (AllocationStep(length, sigma / OPPOSITE, False, number),)
            return SegmentSteps((together,), together, (), one, _summed(segment, records, OPPOSITE))
        each = AllocationStep(length, sigma / sqrt(records), True, records * number)
        return SegmentSteps((together, (each,)), together, (replace(each, noise=sigma),), (), _summed(segment, records, OPPOSITE))
    law = _law_of_group(segment, records)
    # Gradients of j replaced records, relative to those of j others: norms at most 2j. Attacks: the others at 0, or at b.
    return SegmentSteps(((law(0.5 * sigma, True),),), None, (law(sigma, True),), (law(0.5 * sigma, False),))


def _summed(segment: Segment, records: int, distance: float) -> tuple[PoissonStep, ...]:
    """The attack that adds up the batches of an epoch, if the gradients of all others are 0.

    Each of the k records of a person is in one batch of the epoch, wherever it is: the sum of its t batches is ±k + σ√t·z.
    """
    length = length_of(segment)
    return (PoissonStep(1.0, segment.noise_multiplier * sqrt(length) / records, distance, epochs_of(segment)),)


def _removed_group(segment: Segment, records: int, in_place: float) -> SegmentSteps:
    """All records of a person are left out: j of them are in the batch in the place of j others."""
    law = _law_of_group(segment, records)(in_place, False)
    assert segment.dataset_size is not None
    drawn, left = round(segment.sample_rate * segment.dataset_size), segment.dataset_size - records
    if drawn > left:
        raise WrongValueError(
            "records",
            "{argument} must leave a whole batch of {drawn} records in the data set, got {value} of {size}; relation "
            "'substitution' would work.",
            {"drawn": str(drawn), "value": str(records), "size": str(segment.dataset_size)},
        )
    return SegmentSteps(((law,),), directed=(law,))


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
