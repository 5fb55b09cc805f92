"""What games prove: success, advantage and ROC with their intervals, beside the bound.

Notation: π is the prior of the positive world, P and Q are the laws of what the attacker sees in the positive world and in the
other, and the guessing error is the share of wrong guesses of an attacker without the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from betastar.analyze import analyze
from betastar.audit.common import ALARM, Verdict
from betastar.audit.verdict import intervals
from betastar.audit.verdict.leakage import Leakage
from betastar.display import Display
from betastar.dpsgd import DPSGD, all_plain
from betastar.heuristics import final_model
from betastar.risk import Bound, Risk
from betastar.rounding import down, nearest, nearest_percent, percent, significant, tiny
from betastar.threats import Membership, Threat
from betastar.tuning import BestOf

#: False-positive rates of the ROC points, before their rounding to whole games.
RATES = np.array([*np.geomspace(1e-4, 0.05, 12), *np.arange(0.075, 0.98, 0.025)])


@dataclass(frozen=True)
class RocPoint:
    """A test's rate of false alarms and of right alarms. The true points lie in their rectangles, all of them together.

    Attributes
    ----------
    fpr : Bound
        The rate of false alarms.
    tpr : Bound
        The rate of right alarms.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> result = audit.mechanism(bs.DPSGD(noise_multiplier=1.0, sample_rate=0.05, steps=20), games=2000, seed=1)
    >>> all(point.tpr.lower <= point.tpr.estimate <= point.tpr.upper for point in result.roc)
    True
    """

    fpr: Bound
    tpr: Bound


@dataclass(frozen=True, repr=False)
class Audit(Verdict):
    """Games against a bound: the result of an audit.

    Attributes
    ----------
    run : DPSGD or BestOf
        What is claimed to have been run.
    threat : Threat
        Who attacks.
    pair : str
        The pair of gradients, or what the attacker sees.
    games : int
        The number of games.
    seed : int
        The seed of the games.
    confidence : float
        The confidence of each interval.
    prior : float or tuple of float
        The probability of the positive world, or of each world where there are more than two; these have no ROC.
    right : int
        The number of games in which the attacker's guess was right.
    success : Bound
        The share of right guesses, with its Clopper-Pearson interval.
    bound : Bound
        The advantage that `analyze` computes: no attacker exceeds `upper`, and the best attacker on the worst known pair of
        gradients reaches `estimate`.
    tuned : Bound
        The success with the threshold (and the statistic, where there are several) that did best in every second game, measured
        in the others. It reveals faults that mislead an attacker who believes in the claimed parameters.
    roc : tuple of RocPoint
        Points of the ROC, whose rectangles hold together.
    p_value : float
        The probability of so much success if the bound holds, by the fixed threshold or the tuned one (the smaller of the two,
        doubled: a union bound).
    attack : str
        How an attacker of the final model decides, which reference models chose; empty for the others.
    heuristic : float or None
        The advantage of an attacker of the final model if all losses were linear, `heuristics.final_model(run, threat)`. It
        is no bound. None for other attackers, and where this heuristic does not apply.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> result = audit.mechanism(bs.DPSGD(noise_multiplier=1.0, sample_rate=0.05, steps=20), games=2000, seed=1)
    >>> result.success.lower <= result.right / result.games <= result.success.upper
    True
    >>> result.violated, result.p_value > audit.ALARM
    (False, True)
    """

    derived: ClassVar[tuple[str, ...]] = ("advantage", "allowed", *Verdict.derived)

    run: DPSGD | BestOf
    threat: Threat
    pair: str
    games: int
    seed: int
    confidence: float
    prior: float | tuple[float, ...]
    right: int
    success: Bound
    bound: Bound
    tuned: Bound
    roc: tuple[RocPoint, ...]
    p_value: float
    attack: str = ""
    heuristic: float | None = None

    @property
    def advantage(self) -> Bound:
        """The measured success as an advantage."""
        return _advantage(self.success, guessing_error(self.prior))

    @property
    def allowed(self) -> Bound:
        """The bound as a success."""
        return _success(self.bound, guessing_error(self.prior))

    @property
    def sentence(self) -> str:
        """The verdict for a person; the interval is rounded outwards, what is allowed upwards."""
        return self.told(self.p_value)

    def _display(self, brief: bool) -> Display:
        return display(self.sentence, {self.pair: self}, brief)

    def __repr__(self) -> str:
        verdict = "violated" if self.violated else "no violation"
        limit = significant(self.allowed.upper, 4)
        return f"Audit({self.threat.describe()}, {self.games} games: success={self.success}, at most {limit}, {verdict})"

    def told(self, p_value: float) -> str:
        """The verdict by a p-value that may cover other attackers as well."""
        limit = percent(min(self.allowed.upper, 1.0), 2)
        if p_value >= ALARM:
            shown = down(p_value, 3)
            return f"No violation: {self._measured(self.success, self.games)}; the bound allows {limit} (p-value {shown})."
        tuned = self.tuned.lower > self.success.lower
        measured = self._measured(self.tuned, self.games // 2) if tuned else self._measured(self.success, self.games)
        return (
            f"Bound violated: {measured}, where at most {limit} is possible; if the bound held, this many right guesses would "
            f"have probability {tiny(p_value)} at most."
        )

    def _measured(self, success: Bound, games: int) -> str:
        low, high = percent(success.lower, 2, upwards=False).removesuffix(" %"), percent(success.upper, 2)
        return (
            f"in {games:,} games the attacker was right {nearest_percent(success.estimate, 2)} of the time "
            f"({100.0 * self.confidence:g} % interval {low} to {high})"
        )


def display(sentence: str, audits: Mapping[str, Audit], brief: bool, *more: str) -> Display:
    """The verdict, and what was measured beside the bound: a column for each attacker."""
    first = next(iter(audits.values()))
    lines = (sentence, f"Played: {first.threat.describe()}, seed {first.seed}.", *more)
    if brief:
        return Display(lines)
    interval = f"{100 * first.confidence:g} % interval"
    titles = ("games", "right guesses", interval, "at most", "advantage", "bound", "p-value", "attack")
    return Display(lines, ("", *audits), tuple(zip(titles, *map(_numbers, audits.values()), strict=True)))


def _numbers(audit: Audit) -> tuple[str, ...]:
    """The numbers of an audit for people."""
    return (
        f"{audit.games:,}",
        nearest(audit.success.estimate),
        f"{significant(audit.success.lower, 4, False)} to {significant(audit.success.upper, 4)}",
        significant(audit.allowed.upper, 4),
        nearest(audit.advantage.estimate),
        significant(audit.bound.upper, 4),
        nearest(audit.p_value, 2),
        audit.attack or "likelihood",
    )


# --- From the games to the verdict


@dataclass(frozen=True)
class Claim:
    """What all verdicts of an audit have in common.

    Attributes
    ----------
    run : DPSGD or BestOf
        What is claimed to have been run.
    threat : Threat
        Who attacks.
    prior : float or tuple of float
        The probability of the positive world, or of each world where there are more than two.
    confidence : float
        The confidence of each interval.
    seed : int
        The seed of the games.
    """

    run: DPSGD | BestOf
    threat: Threat
    prior: float | tuple[float, ...]
    confidence: float
    seed: int

    @cached_property
    def bound(self) -> Bound:
        """The advantage that `analyze` computes for a game with this prior.

        Over all priors of more than two worlds the attacker gains most, 1 - β*, from a fair pair of worlds (theory, section 8):
        wrong guesses are at least β*·(1 - max π).
        """
        return self._gain(analyze(self.run, self.threat))

    @cached_property
    def heuristic(self) -> float | None:
        """The advantage of an attacker of the final model if all losses were linear; None where this heuristic does not apply."""
        if not isinstance(self.run, DPSGD) or not isinstance(self.threat, Membership) or not all_plain(self.run):
            return None
        return float(self._gain(final_model(self.run, self.threat)).estimate) if self.threat.general else None

    @property
    def most(self) -> float:
        """The largest success that the bound allows."""
        return _success(self.bound, guessing_error(self.prior)).upper

    def _gain(self, risk: Risk) -> Bound:
        if isinstance(self.prior, tuple) or self.prior == 0.5:
            return risk.advantage
        return _advantage(risk.success(self.prior), guessing_error(self.prior))

    def verdict(self, pair: str, right: int, games: int, attack: str = "", **more: Any) -> Audit:
        """The audit of an attacker who guessed right in `right` of the games."""
        success = intervals.clopper_pearson(right, games, self.confidence)
        about = {name: getattr(self, name) for name in ("run", "threat", "seed", "confidence", "prior", "bound")}
        more = {"tuned": success, "roc": (), "p_value": intervals.p_value(right, games, self.most), **more}
        heuristic = self.heuristic if attack else None
        return Audit(pair=pair, games=games, right=right, success=success, attack=attack, heuristic=heuristic, **about, **more)


def judge(
    claim: Claim,
    positive: NDArray[Any],
    evidence: NDArray[Any],
    ties: NDArray[Any],
    pair: str,
    others: Sequence[NDArray[Any]] = (),
    attack: str = "",
) -> Audit:
    """The audit of games with two worlds.

    The attacker says "positive" if the evidence exceeds log((1-π)/π). That threshold is known before the games and is the best
    one for every pair, symmetric or not (Bayes' rule; at π = 1/2 it is 0 and reaches the total variation). So the number of
    right guesses is binomial, and its interval exact.

    Parameters
    ----------
    claim : Claim
        The claim, the prior, and the confidence.
    positive : array of bool
        Whether the world of each game was the positive one, drawn with the prior.
    evidence : array of float
        The attacker's evidence log P/Q for the positive world.
    ties : array of float
        Random numbers, which break ties of the evidence.
    pair : str
        The pair of gradients, or what the attacker sees.
    others : sequence of array
        More statistics that are large in the positive world. What each says of an odd game may depend on the even ones.
    attack : str
        How an attacker of the final model decides.
    """
    assert not isinstance(claim.prior, tuple)
    games = len(evidence)
    right = _right(positive, evidence, log((1.0 - claim.prior) / claim.prior))
    statistic = max((evidence, *others), key=lambda one: _right(positive[::2], one[::2], _best(positive[::2], one[::2])))
    held_out, again = games // 2, _right(positive[1::2], statistic[1::2], _best(positive[::2], statistic[::2]))
    score = np.empty(games)
    score[np.lexsort((ties, evidence))] = np.arange(games)  # as the evidence, and no two alike
    points = intervals.curve(score[positive], score[~positive], RATES, claim.confidence)
    p_value = min(1.0, 2.0 * min(intervals.p_value(*counts, claim.most) for counts in ((right, games), (again, held_out))))
    tuned = intervals.clopper_pearson(again, held_out, claim.confidence)
    roc = tuple(RocPoint(fpr, tpr) for fpr, tpr in points)
    return claim.verdict(pair, right, games, attack, tuned=tuned, p_value=p_value, roc=roc)


def judge_many(claim: Claim, world: NDArray[Any], evidence: NDArray[Any], pair: str, attack: str = "") -> Audit:
    """The audit of games with more than two worlds.

    The evidence has a column for each world, and the attacker names the likeliest.
    """
    right = int(np.count_nonzero(np.argmax(evidence + np.log(claim.prior), axis=1) == world))
    return claim.verdict(pair, right, len(world), attack)


def _right(positive: NDArray[Any], evidence: NDArray[Any], threshold: float) -> int:
    return int(np.count_nonzero((evidence > threshold) == positive))


def _best(positive: NDArray[Any], evidence: NDArray[Any]) -> float:
    """The threshold with the most right guesses in these games."""
    order = np.argsort(evidence)
    gains = np.cumsum(np.where(positive[order], -1, 1))  # of saying "negative" up to here
    best = int(np.argmax(gains))
    return float(evidence[order[best]]) if gains[best] > 0 else -inf


def guessing_error(prior: float | tuple[float, ...]) -> float:
    """The share of wrong guesses without the model."""
    return 1.0 - max(prior) if isinstance(prior, tuple) else min(prior, 1.0 - prior)


def _advantage(success: Bound, error: float) -> Bound:
    """The share of wrong guesses that the model saves the attacker: 2s - 1 where guessing is wrong half of the time."""
    return Bound(*(1.0 - (1.0 - s) / error for s in (success.lower, success.estimate, success.upper)))


def _success(advantage: Bound, error: float) -> Bound:
    return Bound(*(1.0 - (1.0 - a) * error for a in (advantage.lower, advantage.estimate, advantage.upper)))


# --- The result of games on real training: one audit for each of three attackers

#: The attackers: one sees every update, one holds the final weights, one can only query the final model.
UPDATES, WEIGHTS, OUTPUTS = "updates", "weights", "outputs"
WHO = {UPDATES: "sees every update", WEIGHTS: "has the final weights", OUTPUTS: "asks the final model"}


@dataclass(frozen=True, repr=False)
class Games(Verdict):
    """One audit for each attacker: on every update, on the final weights, on the answers of the final model.

    Attributes
    ----------
    challenge : str
        The record that the games are about.
    audits : dict of str to Audit
        By attacker: "updates", "weights" and "outputs".
    leakage : Leakage or None
        A nearest-neighbour estimate of what the final model's outputs tell, without a model of the attack.
    beyond : float or None
        The distance between the candidates' clipped gradients, where it was larger than that of the bound.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> updates = audit.mechanism(bs.DPSGD(noise_multiplier=1.0, sample_rate=0.05, steps=20), games=1000, seed=1)
    >>> result = audit.Games("a canary", {"updates": updates}, leakage=None)  # as `betastar.audit.games` returns it
    >>> result["updates"].games, result.violated
    (1000, False)
    """

    derived: ClassVar[tuple[str, ...]] = ("kind", "p_value", "comparison", *Verdict.derived)
    kind: ClassVar[str] = "training"

    challenge: str
    audits: dict[str, Audit]
    leakage: Leakage | None
    beyond: float | None = None

    def __getitem__(self, place: str) -> Audit:
        return self.audits[place]

    @property
    def p_value(self) -> float:  # type: ignore[override]
        """The p-value of the strongest attacker, times the number of attackers: a union bound."""
        return min(1.0, len(self.audits) * min(audit.p_value for audit in self.audits.values()))

    @property
    def sentence(self) -> str:
        """The verdict for a person."""
        text = min(self.audits.values(), key=lambda audit: audit.p_value).told(self.p_value)
        if self.violated and self.beyond is not None:
            text += (
                f" But the bound is for a smaller distance than the challenge's gradients have, {self.beyond:.3g} clipping "
                "norms: unless gap clipping enforces it, it is this distance that is refuted."
            )
        return text

    @property
    def comparison(self) -> str:
        """What attackers of the final model reached, beside the heuristic for them; empty where it does not apply."""
        final = {place: audit for place, audit in self.audits.items() if audit.heuristic is not None}
        if not final:
            return ""
        heuristic = max(audit.heuristic or 0.0 for audit in final.values())
        reached = " and ".join(f"{audit.advantage.estimate:.3f} (who {WHO[place]})" for place, audit in final.items())
        exceeded = any(audit.advantage.lower > heuristic for audit in final.values())
        return (
            f"Attackers of the final model reached an advantage of {reached}. If all losses were linear, the worst record would "
            f"allow {heuristic:.3f}: a heuristic and no bound, which {'somebody' if exceeded else 'nobody'} exceeded here."
        )

    def _display(self, brief: bool) -> Display:
        more = [f"Challenge: {self.challenge}.", *filter(None, [self.comparison])]
        more += [] if self.leakage is None else [f"Without a model of the attack: {self.leakage.sentence}", self.leakage.caveat]
        return display(self.sentence, {WHO[place]: audit for place, audit in self.audits.items()}, brief, *more)

    def __repr__(self) -> str:
        parts = (f"{place}: {'violated' if audit.violated else 'no violation'}" for place, audit in self.audits.items())
        return f"Games({self.challenge}, {', '.join(parts)}, p_value={self.p_value:.2g})"
