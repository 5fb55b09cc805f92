"""Which kind of step is computed where: the one table that all methods go by.

| kind | exact and affinity | certified |
|---|---|---|
| `Step` (Poisson sampling) | `parts.Part` | `one_step.poisson` |
| `MixtureStep` (several records of a person) | `mixtures.MixturePart` | `mixtures.directions` |
| `CoinStep` (a public coin chooses a step) | `coins.CoinPart` | `coins.mixed` |
| `AllocationStep` (an epoch of random allocation) | `allocation.EpochPart` | refused |

Steps of different kinds compose: parts by their transforms, grids by their masses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, log1p, sqrt
from typing import Any, NamedTuple

from betastar.bounds import allocation, coins, mixtures, one_step
from betastar.bounds.allocation import EpochPart
from betastar.bounds.coins import CoinPart
from betastar.bounds.interpolation import condense
from betastar.bounds.mixtures import MixturePart
from betastar.bounds.one_step import Directions
from betastar.bounds.parts import AnyPart, Part
from betastar.certified.grid import GridStep, Nodes
from betastar.exact import transform
from betastar.scenario import mixture
from betastar.scenario import step as poisson
from betastar.scenario.step import LEAST, MOST, AllocationStep, AnyStep, CoinStep, MixtureStep, Step

#: A family of pairs of `transform.py`: `line` for add/remove, `glued` for symmetric threats.
Family = Callable[..., transform.Transform]


class Kind(NamedTuple):
    """What the bounds have to know of a kind of step.

    part : the step as the exact method composes it, given the family of pairs that steps with Poisson sampling belong to
    directions : its tails, for the grid, given whether the threat is symmetric, from above or below, and the slack
    advantage : at most, of one of them
    idle : logarithm of the probability that one of them tells nothing, whatever the noise is
    visible : the step, or one that leaks a little more and whose leakage is not lost, given the smallest distance
    louder : the same step with at least so much noise
    least_noise : the least noise in it
    attained : a step with the same count that some data attain and that leaks no more, given whether the threat is symmetric; or
        None. It is the step itself if its own pair is attained
    gap : mean distance between the two worlds, in units of the noise multiplier: about
    """

    part: Callable[[Any, Family], AnyPart]
    directions: Callable[[Any, bool, bool, float], Directions]
    advantage: Callable[[Any], float]
    idle: Callable[[Any], float]
    visible: Callable[[Any, float], AnyStep]
    louder: Callable[[Any, float], AnyStep]
    least_noise: Callable[[Any], float]
    attained: Callable[[Any, bool], AnyStep | None]
    gap: Callable[[Any], float]


# ---- Poisson sampling

_POISSON = Kind(
    part=lambda step, family: Part(step.count, family, step.rate, step.noise, step.distance),
    directions=one_step.poisson,
    advantage=lambda step: poisson.one_step_advantage(step.rate, step.noise, step.distance),
    idle=lambda step: 0.0 if step.distance == 0.0 else log1p(-step.rate) if step.rate < 1.0 else -inf,
    visible=poisson.visible,
    louder=lambda step, noise: replace(step, noise=max(step.noise, noise)),
    least_noise=lambda step: float(step.noise),
    attained=lambda step, symmetric: step if not symmetric or step.distance == 2.0 else None,
    gap=lambda step: float(step.rate * step.distance / step.noise),
)


# ---- several records


def _visible_mixture(step: MixtureStep, least: float) -> MixtureStep:
    """Less noise, or a shift that is a little likelier, leaks more."""
    sampled = mixture.pair(step).sampled
    if 0.0 < sampled < LEAST:
        step = replace(step, weights=(1.0, LEAST), shifts=(0.0, step.shifts[-1]))
    return replace(step, noise=min(step.noise, MOST))


def _idle_mixture(step: MixtureStep) -> float:
    sampled = mixture.pair(step).sampled
    return log1p(-sampled) if sampled < 1.0 else -inf


_MIXTURE = Kind(
    part=lambda step, family: MixturePart(step.count, step),
    directions=lambda step, symmetric, above, slack: mixtures.directions(step, above, slack),
    advantage=lambda step: mixture.pair(step).advantage(),
    idle=_idle_mixture,
    visible=_visible_mixture,
    louder=lambda step, noise: replace(step, noise=max(step.noise, noise)),
    least_noise=lambda step: float(step.noise),
    attained=lambda step, symmetric: step,
    gap=lambda step: (1.0 + step.mirrored) * sum(w * s for w, s in zip(step.weights, step.shifts, strict=True)) / step.noise,
)


# ---- public coins


def _of_steps(step: CoinStep, change: Callable[[Step], Any]) -> CoinStep:
    attained = None if step.attained is None else change(step.attained)
    return replace(step, steps=tuple(change(one) for one in step.steps), attained=attained)


def _mean(step: CoinStep, value: Callable[[Any], float]) -> float:
    return sum(chance * value(one) for chance, one in zip(step.chances, step.steps, strict=True))


def _idle_coin(step: CoinStep) -> float:
    telling = sum(
        chance * (one.rate if one.distance > 0.0 else 0.0) for chance, one in zip(step.chances, step.steps, strict=True)
    )
    return log1p(-telling) if telling < 1.0 else -inf


def _coin_directions(step: CoinStep, symmetric: bool, above: bool, slack: float) -> Directions:
    tossed = [(chance, one) for chance, one in zip(step.chances, step.steps, strict=True) if chance > 0.0]
    every = [one_step.poisson(replace(one, count=step.count), symmetric, above, slack) for _, one in tossed]
    return coins.mixed(tuple(chance for chance, _ in tossed), every)


def _coin_part(step: CoinStep, family: Family) -> CoinPart:
    tossed = [(chance, one) for chance, one in zip(step.chances, step.steps, strict=True) if chance > 0.0]
    parts = tuple(_POISSON.part(replace(one, count=step.count), family) for _, one in tossed)
    return CoinPart(step.count, tuple(chance for chance, _ in tossed), parts)


_COIN = Kind(
    part=_coin_part,
    directions=_coin_directions,
    advantage=lambda step: _mean(step, _POISSON.advantage),
    idle=_idle_coin,
    visible=lambda step, least: _of_steps(step, lambda one: poisson.visible(one, least)),
    louder=lambda step, noise: _of_steps(step, lambda one: replace(one, noise=max(one.noise, noise))),
    least_noise=lambda step: float(min(one.noise for one in step.steps)),
    attained=lambda step, symmetric: None if step.attained is None else replace(step.attained, count=step.count),
    gap=lambda step: _mean(step, _POISSON.gap),
)


# ---- random allocation

_ALLOCATION = Kind(
    part=lambda step, family: EpochPart(step.count, step.batches, step.noise, step.mirrored),
    directions=lambda step, symmetric, above, slack: allocation.not_certified(),
    advantage=lambda step: allocation.largest_advantage(step.batches, step.noise, step.mirrored),
    idle=lambda step: -inf,  # the record is in every epoch
    visible=lambda step, least: replace(step, noise=min(step.noise, MOST)),
    louder=lambda step, noise: replace(step, noise=max(step.noise, noise, allocation.LEAST_NOISE)),
    least_noise=lambda step: float(step.noise) if step.noise >= allocation.LEAST_NOISE else 0.0,
    attained=lambda step, symmetric: step,
    gap=lambda step: (1.0 + step.mirrored) / (step.noise * sqrt(step.batches)),
)


KINDS: dict[type, Kind] = {Step: _POISSON, MixtureStep: _MIXTURE, CoinStep: _COIN, AllocationStep: _ALLOCATION}


def kind(step: AnyStep) -> Kind:
    """What the bounds know of this step."""
    if type(step) not in KINDS:
        raise ValueError(f"a step must be one of {', '.join(one.__name__ for one in KINDS)}, got {step!r}.")
    return KINDS[type(step)]


def plain(steps: Sequence[AnyStep]) -> bool:
    """Whether all steps are of Poisson sampling and one record: some methods are for these only."""
    return all(isinstance(step, Step) for step in steps)


def telling(step: AnyStep) -> bool:
    """Whether the step tells the two worlds apart at all."""
    return step.distance > 0.0 if isinstance(step, Step) else kind(step).advantage(step) > 0.0


def parts(steps: Sequence[AnyStep], family: Family) -> list[AnyPart]:
    """Steps as the exact method composes them; of many different distances, a few."""
    few: list[AnyPart] = [Part(n, family, p, s, r) for n, p, s, r in condense([s for s in steps if isinstance(s, Step)])]
    return few + [kind(step).part(step, family) for step in steps if not isinstance(step, Step) and telling(step)]


def grid_step(step: AnyStep, nodes: Nodes, symmetric: bool, above: bool, slack: float) -> GridStep:
    """One step on the grid, from above or from below."""
    return one_step.on_grid(step.count, kind(step).directions(step, symmetric, above, slack), nodes, above)


def largest_loss(step: AnyStep, slack: float) -> float:
    """The largest loss on the grid."""
    if isinstance(step, Step):
        return one_step.largest_loss(step, slack)
    return kind(step).directions(step, True, True, slack).most


def attained(steps: Sequence[AnyStep], symmetric: bool) -> list[AnyStep]:
    """Steps that some data attain, all at once, and that leak no more than these; the steps themselves if they are attained."""
    some = [kind(step).attained(step, symmetric) for step in steps]
    return [step for step in some if step is not None]


def only_plain(question: str, steps: Sequence[AnyStep]) -> list[Step]:
    """The steps, for a question that is about Poisson sampling and one record; any others are refused."""
    some = [step for step in steps if isinstance(step, Step)]
    if len(some) < len(steps):
        raise ValueError(f"{question} is for one record and Poisson sampling; analyze with method='exact' answers for this run.")
    return some
