"""Who attacks, and what for. A threat is a distance per step (theory, section 1), never a subsystem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from betastar import sequences, validation
from betastar.arrays import Real, Whole
from betastar.dpsgd import DPSGD, all_plain
from betastar.scenario.mixture import group_step
from betastar.scenario.step import AnyStep, Step
from betastar.sequences import Distances, Reduction, combined
from betastar.validation import WrongValueError

RELATIONS = ("substitution", "add-remove")
#: Distances are measured in clipping norms: two vectors of norm at most 1 are at most 2 apart.
FARTHEST = 2.0
#: Records of a person, at most.
MOST_RECORDS = 100_000
#: Different steps of a segment, at most, when the distances of a run are taken in their order.
BLOCKS = 8


class Threat(Protocol):
    """steps(run): the steps of a scalar run with the distance that the attacker can exploit at each, in any order.

    A threat whose distances differ from step to step may also have in_order(run): steps in their order that dominate these.
    A threat that is about other samplings than Poisson's, too, has reduction(run); without it such runs are refused.
    """

    #: The pair of worlds is symmetric, or dominated by a symmetric curve.
    symmetric: bool
    #: "Positive" is one of the two worlds; otherwise either world may be the positive one.
    oriented: bool

    def steps(self, run: DPSGD) -> tuple[AnyStep, ...]: ...

    def describe(self) -> str: ...


class _Frozen:
    """Equality, hash and repr from the arguments."""

    _arguments: tuple[str, ...] = ()

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._arguments)
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        """All numbers of the arguments; the repr of a long array leaves most of them out."""
        given = (getattr(self, name) for name in self._arguments)
        whole = ((np.shape(value), tuple(value.ravel().tolist())) if isinstance(value, np.ndarray) else value for value in given)
        return (type(self), *whole)


class Membership(_Frozen):
    """Was this record used?

    Parameters
    ----------
    relation : "substitution" or "add-remove"
        With "substitution" (the paper's game) the attacker knows two records and that one of them was used. With "add-remove" the
        record was used, or nothing in its place; positive then means that the record was in.
    records : int
        The number of records of the person whom the attacker asks about. All of them are replaced, or absent, together; each is
        sampled independently of the others.

    Raises
    ------
    ValueError
        If the relation is another word, or records is not a whole number between 1 and 100,000.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.01, steps=500)
    >>> print(bs.analyze(run, bs.Membership("add-remove")).bayes_security)
    0.885917 [0.885916, 0.885917]
    >>> print(bs.analyze(run, bs.Membership("add-remove", records=8)).bayes_security)
    0.275694 [0.275694, 0.275695]
    """

    _arguments = ("relation", "records")

    def __init__(self, relation: str = "substitution", records: int = 1) -> None:
        self.relation = validation.choice("relation", relation, RELATIONS)
        self.records = validation.one_whole("records", records, high=MOST_RECORDS)
        self.symmetric = self.relation == "substitution"
        self.oriented = not self.symmetric

    def steps(self, run: DPSGD) -> tuple[AnyStep, ...]:
        if not all_plain(run):
            return self.reduction(run).proved[0].every
        if self.records > 1:
            return tuple(
                group_step(self.records, s.sample_rate, s.noise_multiplier, self.symmetric, s.steps) for s in run.segments
            )
        distance = FARTHEST if self.symmetric else 1.0
        return tuple(Step(s.sample_rate, s.noise_multiplier, distance, s.steps) for s in run.segments)

    def reduction(self, run: DPSGD) -> Reduction:
        if self.symmetric:
            parts = [
                sequences.substitution(segment, distances, self.records)
                for segment, distances in zip(run.segments, _of_segments(FARTHEST, None, run), strict=True)
            ]
        else:
            parts = [sequences.add_remove(segment, self.records) for segment in run.segments]
        return combined(parts, self.symmetric, self.oriented)

    def describe(self) -> str:
        return f"membership inference ({self.relation})" + (
            f" of a person with {self.records} records" if self.records > 1 else ""
        )

    def __repr__(self) -> str:
        return f"Membership(relation={self.relation!r})" if self.records == 1 else super().__repr__()


class AttributeInference(_Frozen):
    """Given the rest of a record, what is its sensitive value?

    Parameters
    ----------
    distances : float, array or mapping
        The largest distance between the clipped gradients of two values of the attribute, in clipping norms (0 to 2): one number
        for all steps, one number for each step, or a mapping {distance: number of steps}.
    counts : array of int, optional
        The number of steps with each of the distances, if these are not one for each step.

    Raises
    ------
    ValueError
        If a distance is not between 0 and 2, or the shapes differ.
    TypeError
        If counts are given beside a mapping.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.01, steps=500)
    >>> bs.analyze(run, bs.AttributeInference({0.5: 400, 0.2: 100})).threat
    'attribute inference (distances 0.2 to 0.5)'
    """

    _arguments = ("distances", "counts")
    symmetric = True
    oriented = False

    def __init__(self, distances: Any, counts: Any = None) -> None:
        if isinstance(distances, Mapping):
            if counts is not None:
                raise TypeError(f"counts must be left out when distances is a mapping, got {counts!r}.")
            distances, counts = list(distances.keys()), list(distances.values())
        allowed = "between 0 and 2 (units of the clipping norm)"
        self.distances = validation.numbers("distances", distances, allowed, low=0.0, high=FARTHEST)
        self.counts = None if counts is None else np.atleast_1d(validation.whole("counts", counts, low=0))
        if self.counts is not None and np.shape(self.distances) != self.counts.shape:
            shapes = f"{np.shape(self.distances)} and {self.counts.shape}"
            raise ValueError(f"counts must have one entry for each of distances, got shapes {shapes}.")
        if np.ndim(self.distances) > 1 or np.size(self.distances) == 0:
            raise ValueError(f"distances must be a number or a non-empty list, got an array of shape {np.shape(self.distances)}.")

    def steps(self, run: DPSGD) -> tuple[AnyStep, ...]:
        return _assign(self.distances, self.counts, run) if all_plain(run) else self.reduction(run).proved[0].every

    def in_order(self, run: DPSGD) -> tuple[Step, ...] | None:
        return _in_order(self.distances, self.counts, run) if all_plain(run) else self.reduction(run).proved[0].ordered

    def reduction(self, run: DPSGD) -> Reduction:
        return _reduction(self.distances, self.counts, run)

    def describe(self) -> str:
        low, high = float(np.min(self.distances)), float(np.max(self.distances))
        return (
            f"attribute inference (distance {low:g})" if low == high else f"attribute inference (distances {low:g} to {high:g})"
        )


class Candidates(_Frozen):
    """Which of M records was used, or which of M values did it have?

    The farthest two candidates count at each step: an attacker who cannot tell these two apart can tell no two apart.

    Parameters
    ----------
    distances : array
        The M × M matrix of distances between the candidates' clipped gradients, in clipping norms, or one such matrix for each
        step (T × M × M).

    Raises
    ------
    ValueError
        If the matrix is not square, not symmetric, or has entries that are no distances.

    Examples
    --------
    >>> import betastar as bs
    >>> bs.Candidates([[0.0, 0.5, 0.9], [0.5, 0.0, 0.4], [0.9, 0.4, 0.0]]).describe()
    'inference among 3 candidates (largest distance 0.9)'
    """

    _arguments = ("distances",)
    symmetric = True
    oriented = False

    def __init__(self, distances: Any) -> None:
        allowed = "between 0 and 2 (units of the clipping norm)"
        matrix = np.asarray(validation.numbers("distances", distances, allowed, low=0.0, high=FARTHEST))
        if matrix.ndim not in (2, 3) or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] < 2:
            raise ValueError(f"distances must be an M × M or T × M × M array with M of at least 2, got shape {matrix.shape}.")
        if not np.array_equal(matrix, np.swapaxes(matrix, -1, -2)) or np.diagonal(matrix, axis1=-2, axis2=-1).any():
            raise ValueError("distances must be symmetric with zeros on the diagonal, got a matrix that is not.")
        self.distances = matrix
        self.number = int(matrix.shape[-1])
        self._farthest = matrix.max(axis=(-1, -2))
        self._of_steps = self._farthest if self._farthest.ndim else float(self._farthest)

    def steps(self, run: DPSGD) -> tuple[AnyStep, ...]:
        return _assign(self._of_steps, None, run) if all_plain(run) else self.reduction(run).proved[0].every

    def in_order(self, run: DPSGD) -> tuple[Step, ...] | None:
        return _in_order(self._of_steps, None, run) if all_plain(run) else self.reduction(run).proved[0].ordered

    def reduction(self, run: DPSGD) -> Reduction:
        return _reduction(self._of_steps, None, run)

    def describe(self) -> str:
        return f"inference among {self.number} candidates (largest distance {float(self._farthest.max()):g})"


def in_order(threat: Threat, run: DPSGD) -> tuple[Step, ...] | None:
    """The steps of a run in their order, or steps that dominate them; None if the threat does not say.

    What a threat says and what does not dominate its steps is not used: it may have inherited in_order, and changed steps.
    """
    steps = threat.steps(run)
    plain = tuple(step for step in steps if isinstance(step, Step))
    if len(plain) < len(steps):
        return None
    if hasattr(threat, "in_order"):
        ordered: tuple[Step, ...] | None = threat.in_order(run)
        return ordered if ordered is not None and _dominates(ordered, plain) else None
    return plain if len({(step.rate, step.noise, step.distance) for step in plain}) == 1 else None


def reduction(threat: Threat, run: DPSGD) -> Reduction | None:
    """What stands for a run; None for plain Poisson sampling, where the threat's steps do. Refuses what is not known."""
    if all_plain(run):
        return None
    if not hasattr(threat, "reduction"):
        raise WrongValueError(
            "sampling",
            "{argument} must be 'poisson', without max_batch_size, for {threat}, got {run}.",
            {"threat": threat.describe(), "run": repr(run)},
        )
    reduced: Reduction = threat.reduction(run)
    return reduced


def _dominates(more: tuple[Step, ...], less: tuple[Step, ...]) -> bool:
    """Whether the steps can be paired so that rate and noise are the same and no distance of the first is the smaller one."""
    first, second = _by_distance(more), _by_distance(less)
    for kind, (distances, counts) in second.items():
        if kind not in first:
            return False
        others, numbers = first[kind]
        # At each of the distances: are at least as many steps at least so far apart?
        if np.any(numbers[np.searchsorted(others, distances, side="left")] < counts[:-1]):
            return False
    return True


def _by_distance(steps: tuple[Step, ...]) -> dict[tuple[float, float], tuple[Real, Whole]]:
    """For each rate and noise the distances, increasing, and how many steps there are from each of them on, and a last 0."""
    kinds: dict[tuple[float, float], list[tuple[float, int]]] = {}
    for step in steps:
        kinds.setdefault((step.rate, step.noise), []).append((step.distance, step.count))
    return {
        kind: (
            np.array([distance for distance, _ in pairs]),
            np.append(np.cumsum([count for _, count in reversed(pairs)])[::-1], 0),
        )
        for kind, pairs in ((kind, sorted(pairs)) for kind, pairs in kinds.items())
    }


def _assign(distances: Any, counts: Whole | None, run: DPSGD) -> tuple[Step, ...]:
    """Distances to the steps of a run: in order, or as a histogram."""
    return tuple(step for segment in _of_segments(distances, counts, run) for step in segment.steps)


def _in_order(distances: Any, counts: Whole | None, run: DPSGD) -> tuple[Step, ...]:
    """Steps in their order that dominate those of the run: at most BLOCKS blocks a segment, each with its largest distance."""
    return tuple(step for segment in _of_segments(distances, counts, run) for step in segment.blocks)


def _reduction(distances: Any, counts: Whole | None, run: DPSGD) -> Reduction:
    of_segments = zip(run.segments, _of_segments(distances, counts, run), strict=True)
    return combined([sequences.substitution(segment, far) for segment, far in of_segments], True, False)


def _of_segments(distances: Any, counts: Whole | None, run: DPSGD) -> list[Distances]:
    """The distances of each segment's steps: one for all, one for each step in their order, or a histogram."""
    if isinstance(distances, float):
        alike = [(Step(s.sample_rate, s.noise_multiplier, distances, s.steps),) for s in run.segments]
        return [Distances(steps, steps) for steps in alike]
    total = int(run.steps)
    if counts is not None:
        if len(run.segments) > 1:
            raise ValueError(
                "counts must be left out for a run of several segments, whose steps are not alike; give one distance per step."
            )
        if int(counts.sum()) != total:
            raise ValueError(f"counts must add up to the {total} steps of the run, got {int(counts.sum())}.")
        largest = float(distances[counts > 0].max())  # a histogram has no order
        return [Distances(_grouped(distances, counts, run, 0), _grouped(np.array([largest]), np.array([total]), run, 0))]
    if len(distances) != total:
        raise ValueError(f"distances must be a number or have one entry for each of the {total} steps, got {len(distances)}.")
    segments: list[Distances] = []
    start = 0
    for i, segment in enumerate(run.segments):
        inside = distances[start : start + segment.steps]
        cuts = np.flatnonzero(np.diff(inside)) + 1
        if len(cuts) >= BLOCKS:
            cuts = np.linspace(0, len(inside), BLOCKS + 1).astype(np.int64)[1:-1]
        blocks = [part for part in np.split(inside, cuts) if len(part)]
        largest_of = np.array([part.max() for part in blocks])
        steps = _grouped(*np.unique(inside, return_counts=True), run, i)
        segments.append(Distances(steps, _grouped(largest_of, np.array([len(part) for part in blocks]), run, i), inside))
        start += segment.steps
    return segments


def _grouped(distances: Real, counts: Whole, run: DPSGD, which: int) -> tuple[Step, ...]:
    segment = run.segments[which]
    return tuple(
        Step(segment.sample_rate, segment.noise_multiplier, float(distance), int(count))
        for distance, count in zip(distances, counts, strict=True)
        if count
    )
