"""The worlds that a game is played in: where the challenge's gradient points in each of them, step by step.

In units of the clipping norm, one step shows y = ξ·a + σz in the positive world and y = ξ·b + σz in the other, where ξ = 1
with probability p (theory, sections 1 and 2). Both pairs below attain ‖a‖, ‖b‖ ≤ 1 and ‖a - b‖ = R. Other samplings, and several
records of a person, are played as the attacks on them that exist (theory, sections 12 to 15): `scenario.reductions` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from betastar.arrays import Booleans, Real
from betastar.audit.mechanism_audit import other_kinds
from betastar.bounds import kinds
from betastar.bounds.interpolation import condense
from betastar.bounds.parts import Part
from betastar.dpsgd import DPSGD
from betastar.exact import transform
from betastar.exact.curve import LEAST_NOISE, FourierCurve
from betastar.scenario.step import AnyStep, Step, log_mixture
from betastar.sequences import View
from betastar.threats import FARTHEST, Threat, reduction

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
    transform : callable
        The transform of the exact curve.
    exchanged : bool
        Whether the world of b is the positive one.
    """

    name: str
    places: Callable[[float], tuple[Place, Place]]
    transform: Callable[..., transform.Transform]
    exchanged: bool = False

    def worlds(self, distance: float) -> tuple[Place, Place]:
        a, b = self.places(distance)
        return (b, a) if self.exchanged else (a, b)

    def curve(self, steps: Sequence[Step]) -> FourierCurve:
        """The exact trade-off curve of a game with this pair."""
        louder = [Step(s.rate, max(s.noise, LEAST_NOISE), s.distance, s.count) for s in steps]
        parts = [Part(n, self.transform, rate, noise, r, self.exchanged) for n, rate, noise, r in condense(louder)]
        return FourierCurve(parts, symmetric=self.places is side_by_side or all(part.distance == FARTHEST for part in parts))


LINE = Pair("on a line", on_a_line, transform.line)
SIDE_BY_SIDE = Pair("side by side", side_by_side, transform.symmetric)
ALIGNED = Pair("aligned", on_a_line, transform.line)
LINE_EXCHANGED = Pair("on a line, worlds exchanged", on_a_line, transform.line, exchanged=True)


def worst(steps: Sequence[Step], threat: Threat | View, prior: float) -> Pair:
    """The pair whose best attacker is right most often. Membership has one; a gap has three candidates (theory, section 2)."""
    if not threat.symmetric or all(step.distance == FARTHEST for step in steps):
        return LINE
    pairs = (LINE, SIDE_BY_SIDE) if prior == 0.5 else (LINE, SIDE_BY_SIDE, LINE_EXCHANGED)
    return max(pairs, key=lambda pair: pair.curve(steps).hockey_stick(log((1.0 - prior) / prior)).value)


def attacks(run: DPSGD, threat: Threat) -> list[View]:
    """The steps of attacks that exist: those of the run, or of what is known to be attained under its sampling."""
    reduced = reduction(threat, run)
    if reduced is None:
        return [View(tuple(threat.steps(run)), threat.symmetric, threat.oriented)]
    return list(reduced.proved[:1] if reduced.attained is None else reduced.attained)


def strongest(views: Sequence[View], prior: float) -> tuple[int, Pair]:
    """The number of the attack whose best attacker is right most often, and its pair of gradients."""
    candidates = []
    for i, view in enumerate(views):
        steps = [step for step in view.every if isinstance(step, Step)]
        if len(steps) == len(view.every):
            pair = worst(steps, view, prior)
            curve = pair.curve(steps)
        else:
            pair = ALIGNED
            loud = [kinds.kind(step).louder(step, LEAST_NOISE) for step in view.every]
            curve = FourierCurve(kinds.parts(loud, transform.glued if view.symmetric else transform.line), view.symmetric)
        candidates.append((curve.hockey_stick(log((1.0 - prior) / prior)).value if len(views) > 1 else 0.0, i, pair))
    _, number, pair = max(candidates, key=lambda candidate: candidate[0])
    return number, pair


def play(
    believed: Sequence[AnyStep], actual: Sequence[AnyStep], pair: Pair, prior: float, games: int, seed: np.random.SeedSequence
) -> tuple[Booleans, Real, Real]:
    """Play so many games: the world of each, the attacker's evidence log P/Q over all steps, and a number that breaks ties.

    Outputs are drawn from the actual steps; the attacker weighs them by those that they believe in. Both have the same counts.
    """
    generator = np.random.default_rng(seed)
    positive = generator.random(games) < prior
    evidence = np.zeros(games)
    for claim, truth in zip(believed, actual, strict=True):
        if not isinstance(claim, Step) or not isinstance(truth, Step):
            evidence += other_kinds.evidence(claim, truth, positive, generator)
            continue
        a, b = pair.worlds(truth.distance)
        mean = np.where(positive, np.array(a)[:, None], np.array(b)[:, None])[:, None, :]
        at_once = max(1, BLOCK // (games * len(a)))
        for start in range(0, truth.count, at_once):
            steps = min(at_once, truth.count - start)
            # Equal steps may change places without changing the evidence: those that sample the challenge come first.
            sampled = np.arange(steps)[:, None] < generator.binomial(steps, truth.rate, games)
            output = generator.standard_normal((len(a), steps, games))
            output *= truth.noise
            output += mean * sampled
            evidence += loss(output, claim, pair).sum(axis=0)
    return positive, evidence, generator.random(games)


def loss(output: Real, step: Step, pair: Pair) -> Real:
    """log P/Q of one step's output, whose coordinates are on the first axis."""
    a, b = (_log_against_noise(output, place, step) for place in pair.worlds(step.distance))
    return a - b


def _log_against_noise(output: Real, place: Place, step: Step) -> Real:
    """log of (1-p)N(0,σ²) + pN(a,σ²) over N(0,σ²): log(1 - p + p·e^{(a·y - ‖a‖²/2)/σ²})."""
    variance = max(step.noise, QUIETEST) ** 2
    along = sum(output[i] * (coordinate / variance) for i, coordinate in enumerate(place))
    return log_mixture(along - 0.5 * sum(c * c for c in place) / variance, step.rate)
