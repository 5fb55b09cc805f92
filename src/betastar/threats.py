"""Who attacks, and what for. A threat is a distance per step (theory, section 1), never a subsystem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from betastar import sequences, validation
from betastar.dpsgd import DPSGD, IN_EPOCHS, Segment, all_plain, length_of, only_plain
from betastar.sequences import Distances, Reduction, SegmentSteps, StepSequence
from betastar.steps.base import Step
from betastar.steps.poisson import PoissonStep
from betastar.validation import WrongValueError

RELATIONS = ("substitution", "add-remove")
#: Distances are measured in clipping norms: two vectors of norm at most 1 are at most 2 apart.
FARTHEST = 2.0
ALLOWED = "between 0 and 2 (units of the clipping norm)"
#: Records of a person, at most.
MOST_RECORDS = 100_000
#: Different norms of a record, at most; more are rounded.
LEVELS = 128
#: Nodes of Gauss's rules for many norms.
FINE, COARSE = 20, 14
#: Steps in a row of a segment, at most, that are taken in their order; of more, blocks with the largest distance of each.
BLOCKS, FEWER = 1 << 16, 8


class Threat(Protocol):
    """Any object with these two methods is a threat to runs with Poisson sampling.

    It may say more of itself: symmetric (True), whether the two worlds are mirror images, or dominated by a symmetric curve;
    oriented (False), whether "positive" is one of the two worlds, otherwise either world may be the positive one; and
    reduction(run), which is about other samplings, too.
    """

    def steps(self, run: DPSGD) -> tuple[Step, ...]:
        """The steps of a scalar run, with the distance that the attacker can exploit at each, in any order."""
        ...

    def describe(self) -> str: ...


def reduction(threat: Threat, run: DPSGD) -> Reduction:
    """What stands for a scalar run: sequences of steps that dominate it, and of attacks that exist. Refuses what is not known."""
    if hasattr(threat, "reduction"):
        reduced: Reduction = threat.reduction(run)
        return reduced
    only_plain(run, threat.describe())
    steps = tuple(threat.steps(run))
    poisson = tuple(step for step in steps if isinstance(step, PoissonStep))
    alike = len(poisson) == len(steps) and len({(step.rate, step.noise, step.distance) for step in poisson}) == 1
    symmetric, oriented = getattr(threat, "symmetric", True), getattr(threat, "oriented", False)
    return Reduction((StepSequence(steps, symmetric, oriented, poisson if alike else None),))


class _Known:
    """A threat of which the steps are known for every sampling. Equality, hash and repr come from the arguments, which do not
    change."""

    _arguments: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        if "steps" in vars(cls) and "reduction" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} must define reduction(run) as well as steps(run), or be a class of its own: any object with "
                "steps(run) and describe() is a threat."
            )

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._arguments and name in self.__dict__:
            raise AttributeError(f"a threat is frozen; make a new {type(self).__name__} instead of setting {name}")
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or what was saved: its arrays can be changed until they are frozen again."""
        self.__dict__.update(state)
        for value in state.values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def reduction(self, run: DPSGD) -> Reduction:
        raise NotImplementedError

    def steps(self, run: DPSGD) -> tuple[Step, ...]:
        return self.reduction(run).proved[0].steps

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._arguments)
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        """All numbers of the arguments; the repr of a long array leaves most of them out."""
        given = (getattr(self, name) for name in self._arguments)
        whole = ((np.shape(value), tuple(value.ravel().tolist())) if isinstance(value, np.ndarray) else value for value in given)
        return (type(self), *whole)


class Membership(_Known):
    """Was this record used?

    Parameters
    ----------
    relation : "substitution" or "add-remove"
        With "substitution" (the paper's game) the attacker knows two records and that one of them was used. With "add-remove" the
        record was used, or nothing in its place; positive then means that the record was in.
    records : int
        The number of records of the person whom the attacker asks about. All of them are replaced, or absent, together; each is
        sampled independently of the others.
    norms : float or array
        The largest norm of the record's clipped gradient, in clipping norms (0 to 1): one number for all steps, or one for each
        step; of a person, the largest of all records. A smaller norm leaks less. The record that may be in its place has norm 1.
        The norms must be public or fixed in advance; a figure from measured norms is after the fact, and no guarantee. More than
        128 different norms of a run are rounded to as many, up for what is proved and down for attacks; the method "exact" takes
        Gauss's rule for them instead, whose error is estimated, unless the noise is below 0.15.
    other_rate : float, optional
        With "substitution" and Poisson sampling: the sampling rate of the record that may be in its place, if rates belong to
        persons; the largest rate of anybody covers everybody. By default the rate belongs to the place, and is that of the run.

    Raises
    ------
    ValueError
        If the relation is another word, records is not a whole number between 1 and 100,000, a norm is not between 0 and 1, or
        other_rate is not greater than 0 and at most 1.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.01, steps=500)
    >>> print(bs.analyze(run, bs.Membership("add-remove")).bayes_security)
    0.885917 [0.885916, 0.885917]
    >>> print(bs.analyze(run, bs.Membership("add-remove", records=8)).bayes_security)
    0.275694 [0.275694, 0.275695]
    >>> print(bs.analyze(run, bs.Membership(norms=0.25)).bayes_security)
    0.869737 [0.869736, 0.869737]
    """

    _arguments = ("relation", "records", "norms", "other_rate")

    def __init__(
        self, relation: str = "substitution", records: int = 1, norms: Any = 1.0, other_rate: float | None = None
    ) -> None:
        self.relation = validation.choice("relation", relation, RELATIONS)
        self.records = validation.one_whole("records", records, high=MOST_RECORDS)
        self.norms = validation.numbers("norms", norms, "between 0 and 1 (units of the clipping norm)", low=0.0, high=1.0)
        if np.ndim(self.norms) > 1:
            raise ValueError(f"norms must be a number or a list, got an array of shape {np.shape(self.norms)}.")
        self.other_rate = (
            None if other_rate is None else validation.fraction("other_rate", validation.one("other_rate", other_rate))
        )
        self.oriented = self.relation == "add-remove"
        self.symmetric = not self.oriented and self.general
        if self.oriented and self.other_rate is not None:
            text = "{argument} must be left out with relation 'add-remove', where nothing is in the record's place, got {value}."
            raise WrongValueError("other_rate", text, {"value": f"{self.other_rate:g}"})
        if self.records > 1 and not self.oriented and not self.general:
            raise WrongValueError(
                "records",
                "{argument} must be 1 with {norms} below 1 or {other_rate} and relation 'substitution', got {value}; relation "
                "'add-remove' takes {norms}, too.",
                {"value": str(self.records)},
            )

    @property
    def general(self) -> bool:
        """Whether the figure is that of every record: norm 1 at each step, and the same rate for all."""
        return self.other_rate is None and bool(np.min(self.norms) == 1.0)

    def reduction(self, run: DPSGD) -> Reduction:
        if np.ndim(self.norms) and np.size(self.norms) != run.steps:
            text = "{argument} must be a number or have one entry for each of the {steps} steps, got {value}."
            raise WrongValueError("norms", text, {"steps": str(run.steps), "value": str(np.size(self.norms))})
        if self.oriented:
            return self._by_norm(run, lambda segment, norm: sequences.add_remove(segment, self.records, norm))
        if self.general or (np.min(self.norms) == 1.0 and all(s.sample_rate == self.other_rate for s in run.segments)):
            every = _of_segments(FARTHEST, None, run)
            segments = [
                sequences.substitution(segment, distances, self.records)
                for segment, distances in zip(run.segments, every, strict=True)
            ]
            return sequences.combined(segments, True, False)
        if all_plain(run):
            return self._by_norm(run, lambda segment, norm: sequences.unequal(segment, norm, self.other_rate))
        if self.other_rate is not None:
            raise WrongValueError(
                "other_rate",
                "{argument} must be left out unless sampling is 'poisson' without max_batch_size, got {value} for {run}: with "
                "other samplings the rate belongs to no person.",
                {"value": f"{self.other_rate:g}", "run": repr(run)},
            )
        # Of other samplings: two gradients of norm 1 that are at most 1 + norm apart.
        each, least = _of_segments(1.0 + self.norms, None, run), float(np.min(self.norms))
        small = [sequences.substitution_of_small(*both, least) for both in zip(run.segments, each, strict=True)]
        return sequences.combined(small, True, False)

    def _by_norm(self, run: DPSGD, steps_of: Callable[[Segment, float], SegmentSteps]) -> Reduction:
        """The reduction of all segments, each cut into parts of the same norm."""
        if isinstance(self.norms, float):
            return sequences.combined([steps_of(segment, self.norms) for segment in run.segments], False, self.oriented)
        above: list[SegmentSteps] = []
        below: list[SegmentSteps] = []
        start = 0
        for segment in run.segments:
            inside = self.norms[start : start + segment.steps]
            start += segment.steps
            length = length_of(segment) if segment.sampling in IN_EPOCHS else 1
            rows = inside.reshape(-1, length)
            for parts, (norms, counts) in zip(
                (above, below), (fewer(rows.max(axis=1), up=True), fewer(rows.min(axis=1), up=False)), strict=True
            ):
                for norm, count in zip(norms.tolist(), counts.tolist(), strict=True):
                    parts.append(steps_of(replace(segment, steps=count * length), norm))
        reduced = sequences.combined(above, False, self.oriented, None if above == below else below)
        if above == below or not all_plain(run):
            return reduced
        fine, coarse = (self._near(run, steps_of, size) for size in (FINE, COARSE))
        return replace(reduced, near=(fine, coarse))

    def _near(self, run: DPSGD, steps_of: Callable[[Segment, float], SegmentSteps], size: int) -> StepSequence:
        """Few steps with a fraction of a count each, whose transforms multiply to almost the same."""
        made, start = [], 0
        for segment in run.segments:
            norms, counts = gauss(*np.unique(self.norms[start : start + segment.steps], return_counts=True), size)
            start += segment.steps
            for norm, count in zip(norms.tolist(), counts.tolist(), strict=True):
                made.append(steps_of(replace(segment, steps=count), norm))
        return sequences.combined(made, False, self.oriented).proved[0]

    def describe(self) -> str:
        text = f"membership inference ({self.relation})"
        if self.records > 1:
            text += f" of a person with {self.records} records"
        low, high = float(np.min(self.norms)), float(np.max(self.norms))
        if low < 1.0:
            text += f" of a record with norm {low:g}" if low == high else f" of a record with norms {low:g} to {high:g}"
        return text if self.other_rate is None else f"{text}, others at rate {self.other_rate:g}"

    def __repr__(self) -> str:
        given: dict[str, Any] = {"relation": self.relation}
        if self.records > 1:
            given["records"] = self.records
        if not self.general:
            given |= {"norms": self.norms} | ({} if self.other_rate is None else {"other_rate": self.other_rate})
        return f"Membership({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def only_general(threat: Threat, what: str) -> None:
    """Refuse a threat to a record with norms or rates of its own, for something that knows every record only."""
    if isinstance(threat, Membership) and not threat.general:
        text = "{argument} must be without norms and other_rate for {what}, got {value}; audit.mechanism plays such a game."
        raise WrongValueError("threat", text, {"what": what, "value": repr(threat)})


def fewer(norms: NDArray[Any], up: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """(norm, number of steps), at most LEVELS of them: rounded up, or down. What leaks more gets more levels."""
    distinct, counts = np.unique(norms, return_counts=True)
    if len(distinct) <= LEVELS:
        return distinct, counts
    so_far = np.cumsum(counts * distinct)
    places = np.minimum(LEVELS * so_far / so_far[-1], LEVELS - 1).astype(np.int64)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    ends = np.append(starts[1:], len(distinct)) - 1
    return distinct[ends if up else starts], np.add.reduceat(counts, starts)


def gauss(norms: NDArray[Any], counts: NDArray[Any], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(norm, number of steps) of Gauss's rule: Σ f(norm) is the same for polynomials f of a degree below 2·size (Lanczos)."""
    vectors, diagonal, beside = [np.sqrt(counts / counts.sum())], [], []
    for _ in range(size):
        moved = norms * vectors[-1]
        diagonal.append(float(moved @ vectors[-1]))
        for _ in range(2):
            moved = moved - np.stack(vectors).T @ (np.stack(vectors) @ moved)
        beside.append(float(np.linalg.norm(moved)))
        if beside[-1] < 1e-12:
            break
        vectors.append(moved / beside[-1])
    nodes, weights = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1))
    return np.clip(nodes, 0.0, 1.0), counts.sum() * weights[0] ** 2


class AttributeInference(_Known):
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
        self.distances = validation.numbers("distances", distances, ALLOWED, low=0.0, high=FARTHEST)
        self.counts = None if counts is None else np.atleast_1d(validation.whole("counts", counts, low=0))
        if self.counts is not None and np.shape(self.distances) != self.counts.shape:
            shapes = f"{np.shape(self.distances)} and {self.counts.shape}"
            raise ValueError(f"counts must have one entry for each of distances, got shapes {shapes}.")
        if np.ndim(self.distances) > 1 or np.size(self.distances) == 0:
            raise ValueError(f"distances must be a number or a non-empty list, got an array of shape {np.shape(self.distances)}.")

    @classmethod
    def among(cls, distances: Any) -> AttributeInference:
        """Which of M records was used, or which of M values did it have?

        The farthest two candidates count at each step: an attacker who cannot tell these two apart can tell no two apart.

        Parameters
        ----------
        distances : array
            The M × M matrix of distances between the candidates' clipped gradients, in clipping norms, or one such matrix for
            each step (T × M × M).

        Returns
        -------
        AttributeInference
            The threat with the largest distance, or with that of each step.

        Raises
        ------
        ValueError
            If the matrix is not square, not symmetric, or has entries that are no distances.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.AttributeInference.among([[0.0, 0.5, 0.9], [0.5, 0.0, 0.4], [0.9, 0.4, 0.0]])
        AttributeInference(distances=0.9, counts=None)
        """
        matrix = np.asarray(validation.numbers("distances", distances, ALLOWED, low=0.0, high=FARTHEST))
        if matrix.ndim not in (2, 3) or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] < 2:
            raise ValueError(f"distances must be an M × M or T × M × M array with M of at least 2, got shape {matrix.shape}.")
        if not np.array_equal(matrix, np.swapaxes(matrix, -1, -2)) or np.diagonal(matrix, axis1=-2, axis2=-1).any():
            raise ValueError("distances must be symmetric with zeros on the diagonal, got a matrix that is not.")
        return cls(matrix.max(axis=(-1, -2)))

    def reduction(self, run: DPSGD) -> Reduction:
        every = zip(run.segments, _of_segments(self.distances, self.counts, run), strict=True)
        return sequences.combined([sequences.substitution(segment, distances) for segment, distances in every], True, False)

    def describe(self) -> str:
        low, high = float(np.min(self.distances)), float(np.max(self.distances))
        return (
            f"attribute inference (distance {low:g})" if low == high else f"attribute inference (distances {low:g} to {high:g})"
        )


def _of_segments(distances: Any, counts: NDArray[Any] | None, run: DPSGD) -> list[Distances]:
    """The distances of each segment's steps: one for all, one for each step in their order, or a histogram."""
    if isinstance(distances, float):
        alike = [(PoissonStep(s.sample_rate, s.noise_multiplier, distances, s.steps),) for s in run.segments]
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
            cuts = np.linspace(0, len(inside), FEWER + 1).astype(np.int64)[1:-1]
        blocks = [part for part in np.split(inside, cuts) if len(part)]
        largest_of = np.array([part.max() for part in blocks])
        steps = _grouped(*np.unique(inside, return_counts=True), run, i)
        segments.append(Distances(steps, _grouped(largest_of, np.array([len(part) for part in blocks]), run, i), inside))
        start += segment.steps
    return segments


def _grouped(distances: NDArray[Any], counts: NDArray[Any], run: DPSGD, which: int) -> tuple[PoissonStep, ...]:
    segment = run.segments[which]
    return tuple(
        PoissonStep(segment.sample_rate, segment.noise_multiplier, float(distance), int(count))
        for distance, count in zip(distances, counts, strict=True)
        if count
    )
