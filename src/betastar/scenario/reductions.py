"""A run of any sampling as steps: steps that dominate it, and steps of attacks that exist (theory, sections 12 and 13).

With plain Poisson sampling both are the same. Of some other samplings only bounds are known, or the dominating steps allow
attackers what no gradients allow. Then the two ends of an answer come from different steps: each of the `proved` views is above
every attack, each of the `attained` views is below an attack that exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from betastar.scenario.step import AnyStep, Step

if TYPE_CHECKING:
    from betastar.scenario.run import DPSGD


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
