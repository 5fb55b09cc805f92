"""One training run as an audit: many canaries, a fair coin for each, and an attacker who guesses which of them were in.

After Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run" (2023). The canaries of one run are not independent
games, so that no binomial interval holds; what (ε, δ)-DP allows is bounded here by a proof of its own (see `p_value`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from betastar import validation
from betastar.arrays import Booleans, Real
from betastar.audit import intervals
from betastar.audit.results import ALARM
from betastar.display import Display, Displayed
from betastar.risk.analyze import analyze
from betastar.risk.calibrate import NoNoiseNeeded, Target, calibrate
from betastar.risk.interval import Bound
from betastar.rounding import down, plain, tiny, up
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import Membership

#: Fewest guesses that are worth counting, and how many numbers of guesses are tried.
FEWEST, TRIED = 20, 6
#: Relative error of SciPy's binomial tails, with room; a p-value is rounded up by it.
ROUNDING = 1e-9
#: Fair coins are taken for unfair ones in at most one of a billion audits.
UNFAIR = 1e-9


def p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are, at most, if the training is (ε, δ)-DP for adding or removing a canary.

    Each of m canaries is in by a fair coin; the attacker sees what the training gives out, guesses for r of them, r fixed
    beforehand, and is right for v. With q = e^ε/(1 + e^ε), X binomial(r, q) and f = Pr[X ≥ v]:

        Pr[right ≥ v] ≤ f + (1 - f)·min(1, m·δ·f / (v·Pr[X = v])).

    Proof. Let p_a be the probability of a right guesses. Flip the coin of a canary that was guessed right: the guesses stay,
    and one of the a right ones is wrong. Over all canaries and coins, every outcome with a right guesses is met a times, every
    one with a - 1 is reached r - a + 1 times, and DP, applied for each canary and each setting of the other coins to the set of
    outputs with a right guesses, for all a in A at once, gives: the sum over A of b_a = a·p_a - e^ε·(r - a + 1)·p_{a-1} is at
    most m·δ. Take for A those with b_a > 0. For δ = 0 this says p_a/p_{a-1} ≤ the same ratio of X, hence Pr[right ≥ v] ≤ f.
    In general let g solve a·g(a) - e^ε·(r - a)·g(a + 1) = 1[a ≥ v] - f (Stein's equation of the binomial law). Its mean is
    Σ b_a·g(a) = Pr[right ≥ v] - f. The solution is a·Pr[X = a]·g(a) = f·Pr[X < a] up to v and (1 - f)·Pr[X ≥ a] from v on. So
    0 ≤ g, and g(a) ≤ g(v) = f·(1 - f)/(v·Pr[X = v]), because Pr[X < a]/(a·Pr[X = a]) grows with a and
    Pr[X ≥ a]/(a·Pr[X = a]) falls, each term of their sums doing so. Hence the bound; beyond 1 it says nothing.

    Nothing smaller is true. Call the right side F: it is reached by the mechanism that draws the number of right guesses from
    X, given X ≥ v with probability F and given X < v otherwise, and then which canaries are guessed and which guesses are
    right, all equally likely. Its only b_a above 0 is b_v ≤ m·δ, and its ratios p_a/p_{a+1} are at most those of X. F grows
    with ε, since f and f/Pr[X = v] do, and falls with v.
    The paper's second term is 2·m·δ·max_i (Pr[X ≥ v - i] - f)/i. That is more wherever f is small; where f is near 1 it is
    less, and F shows that it is then too small (v = 1, r = m = 3, ε = 0); no audit is decided there.
    """
    right, guesses, canaries = _counts(right, guesses, canaries)
    epsilon = validation.numbers("epsilon", epsilon, "a finite number of at least 0", low=0.0, high=inf)
    return _p_value(right, guesses, canaries, epsilon, validation.probability("delta", delta))


def _p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    if right == 0:
        return 1.0
    tail = intervals.p_value(right, guesses, 1.0 / (1.0 + exp(-epsilon)))
    share = 0.0
    if delta > 0.0:
        more = np.arange(1, guesses - right + 1)  # log Pr[X = v + j]/Pr[X = v]
        terms = np.concatenate(([0.0], np.cumsum(epsilon + np.log((guesses - right + 1 - more) / (right + more)))))
        peak = float(terms.max())
        share = exp(min(0.0, log(canaries * delta / right) + peak + log(float(np.exp(terms - peak).sum()))))
    return min(1.0, (tail + (1.0 - tail) * share) * (1.0 + ROUNDING))


def epsilon_at_least(right: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The largest ε that so many right guesses refute at this δ; 0 if none. Too large with probability at most 1 - confidence."""
    right, guesses, canaries = _counts(right, guesses, canaries)
    delta = validation.probability("delta", delta)
    return _refuted(right, guesses, canaries, delta, 1.0 - validation.probability("confidence", confidence, strict=True))


def _refuted(right: int, guesses: int, canaries: int, delta: float, miss: float) -> float:
    """The largest ε that is refuted, by bisection: the p-value grows with ε, and is at most `miss` at the ε that is returned."""
    low, high = 0.0, 1.0
    if _p_value(right, guesses, canaries, low, delta) > miss:
        return 0.0
    while _p_value(right, guesses, canaries, high, delta) <= miss:
        low, high = high, 2.0 * high
    while high - low > 1e-7 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _p_value(right, guesses, canaries, middle, delta) <= miss else (low, middle)
    return low


def _counts(right: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    canaries = validation.whole("canaries", canaries)
    guesses = validation.whole("guesses", guesses)
    if guesses > canaries:
        raise ValueError(f"guesses must be at most the number of canaries, {canaries}, got {guesses!r}.")
    right = validation.whole("right", right, low=0)
    if right > guesses:
        raise ValueError(f"right must be at most the number of guesses, {guesses}, got {right!r}.")
    return right, guesses, canaries


@dataclass(frozen=True)
class EquivalentRun:
    """A reading, no proof: DP-SGD of the same rate and steps whose ε at δ is the bound that was measured, and its β*."""

    noise_multiplier: float
    bayes_security: Bound


@dataclass(frozen=True)
class OneRun(Displayed):
    """What the guesses about one run's canaries say, beside the claim.

    Attributes
    ----------
    canaries : int
        The number of canaries.
    guesses : int
        The number of guesses with the largest ε.
    right : int
        The number of right ones among these.
    tried : tuple of (int, int)
        Guesses and right guesses for each number of guesses. The number of canaries fixes these numbers, and every statement
        holds for all of them together.
    epsilon : float
        The true ε at δ is not below this one, at `confidence`.
    delta : float
        The δ at which ε is measured.
    confidence : float
        The confidence of the lower bound.
    claimed : float
        The ε at δ that is claimed.
    p_value : float
        The probability of so many right guesses, for any of the numbers, if the claim holds.
    seed : int
        The seed of the audit.
    run : DPSGD or None
        What is claimed to have been run.
    twin : EquivalentRun or None
        DP-SGD that leaks as much, if something was measured and the claim is a run of one segment.
    """

    canaries: int
    guesses: int
    right: int
    tried: tuple[tuple[int, int], ...]
    epsilon: float
    delta: float
    confidence: float
    claimed: float
    p_value: float
    seed: int
    run: DPSGD | None = None
    twin: EquivalentRun | None = None

    @property
    def violated(self) -> bool:
        return self.p_value < ALARM

    @property
    def sentence(self) -> str:
        """The verdict for a person; what was measured is rounded down, what is claimed up."""
        least = down(self.epsilon, 3)
        measured = (
            f"of {self.canaries:,} canaries the attacker guessed {self.guesses:,} and was right for {self.right:,}, "
            + (f"so that ε is at least {least}" if float(least) > 0.0 else "which refutes no ε")
            + f" at δ = {plain(self.delta)} ({100.0 * self.confidence:g} % confidence)"
        )
        claimed = up(self.claimed, 3) if self.claimed < inf else "no finite ε"
        if not self.violated:
            p_value = down(self.p_value, 3)
            return f"No violation: {measured}; claimed is {claimed} (p-value {p_value}).{self._reading()}"
        return (
            f"Bound violated: {measured}, where {claimed} is claimed; if the claim held, so many right guesses would have "
            f"probability {tiny(self.p_value)} at most.{self._reading()}"
        )

    def _display(self, brief: bool) -> Display:
        return Display((self.sentence,))

    def _reading(self) -> str:
        if self.twin is None:
            return ""
        noise, beta = up(self.twin.noise_multiplier, 3), up(min(self.twin.bayes_security.upper, 1.0))
        return (
            f" A reading, not a proof: as much as DP-SGD of the same rate and steps with noise multiplier {noise} leaks, "
            f"whose Bayes security is {beta}."
        )

    def as_dict(self) -> dict[str, Any]:
        """The object that is printed as JSON."""
        names = ("canaries", "guesses", "right", "epsilon", "delta", "confidence", "claimed", "p_value", "seed")
        plain = {name: getattr(self, name) for name in names}
        plain["claimed"] = self.claimed if self.claimed < inf else None
        twin = None
        if self.twin is not None:
            beta = self.twin.bayes_security
            ends = {"lower": beta.lower, "estimate": beta.estimate, "upper": beta.upper}
            twin = {"noise_multiplier": self.twin.noise_multiplier, "bayes_security": ends}
        rest = {"tried": [list(pair) for pair in self.tried], "run": None if self.run is None else repr(self.run), "twin": twin}
        return {**plain, **rest, "violated": self.violated, "sentence": self.sentence}


def numbers_of_guesses(canaries: int) -> tuple[int, ...]:
    """All of the canaries, a half of them, a quarter, …: even numbers, known before any score is."""
    return tuple(2 * (canaries >> (i + 1)) for i in range(TRIED) if 2 * (canaries >> (i + 1)) >= FEWEST)


def best_guesses(scores: ArrayLike, included: ArrayLike, seed: int = 0) -> tuple[tuple[int, int], ...]:
    """(guesses, right guesses) for each of `numbers_of_guesses`: "in" for the highest scores, "out" for as many of the lowest.

    Parameters
    ----------
    scores : array of float
        The higher the score, the more likely the canary was in; computed without knowing which canaries were.
    included : array of bool
        The coins: whether each canary was in.
    seed : int
        The seed of a generator that decides among equal scores, so that the order of the canaries tells nothing.
    """
    values, coins = _canaries(scores, included)
    order = np.lexsort((np.random.default_rng(validation.seed(seed)).permutation(len(values)), values))
    rising = coins[order]
    counts = []
    for guesses in numbers_of_guesses(len(values)):
        half = guesses // 2
        counts.append((guesses, int(np.count_nonzero(~rising[:half]) + np.count_nonzero(rising[-half:]))))
    return tuple(counts)


def judge_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    claimed: float,
    delta: float,
    confidence: float = 0.95,
    seed: int = 0,
    *,
    run: DPSGD | None = None,
) -> OneRun:
    """The verdict on a claimed ε at δ (infinite: no claim) from one run's canaries.

    Valid for all the numbers of guesses together: each gets its share of the error probability (a union bound). Little is
    refuted unless canaries·δ is small.
    """
    delta = validation.probability("delta", delta)
    confidence = validation.probability("confidence", confidence, strict=True)
    if claimed != inf:
        claimed = validation.numbers("claimed", claimed, "a number of at least 0, or infinite", low=0.0, high=inf)
    tried = best_guesses(scores, included, seed)
    canaries, miss = np.size(scores), (1.0 - confidence) / len(tried)
    bounds = [_refuted(right, guesses, canaries, delta, miss) for guesses, right in tried]
    against = [1.0 if claimed == inf else _p_value(right, guesses, canaries, claimed, delta) for guesses, right in tried]
    best = min(range(len(tried)), key=lambda i: (-bounds[i], against[i]))
    return OneRun(
        canaries=canaries,
        guesses=tried[best][0],
        right=tried[best][1],
        tried=tried,
        epsilon=bounds[best],
        delta=delta,
        confidence=confidence,
        claimed=float(claimed),
        p_value=min(1.0, len(tried) * min(against)),
        seed=int(seed),
        run=run,
        twin=None if run is None else _equivalent_run(run, bounds[best], delta),
    )


def one_run_verdict(
    scores: ArrayLike, included: ArrayLike, run: DPSGD, delta: float, confidence: float = 0.95, seed: int = 0
) -> OneRun:
    """The verdict on a run of DP-SGD: its claim is the ε at δ that analyze computes for adding or removing a record."""
    if not isinstance(run, DPSGD):
        raise TypeError(f"run must be a DPSGD, got {run!r}.")
    if run.shape != ():
        raise ValueError(f"run must be a single run, got a sweep of shape {run.shape}.")
    claimed = float(analyze(run, Membership("add-remove")).epsilon(delta).upper)
    return judge_one_run(scores, included, claimed, delta, confidence, seed, run=run)


def _equivalent_run(run: DPSGD, epsilon: float, delta: float) -> EquivalentRun | None:
    if epsilon == 0.0 or len(run.segments) > 1 or not 0.0 < delta < 1.0:
        return None
    threat, (rate, steps) = Membership("add-remove"), (run.sample_rate, run.steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoNoiseNeeded)
        try:
            twin = calibrate(Target(epsilon=epsilon, delta=delta), sample_rate=rate, steps=steps, threat=threat)
        except (NoNoiseNeeded, ValueError):  # no noise is so little, or so much
            return None
    return EquivalentRun(float(twin.noise_multiplier), analyze(twin, threat).bayes_security)


def _canaries(scores: ArrayLike, included: ArrayLike) -> tuple[Real, Booleans]:
    values = np.asarray(validation.numbers("scores", scores, "finite numbers, one for each canary", low=-inf, high=inf))
    coins = np.asarray(included)
    if values.ndim != 1 or len(values) < FEWEST:
        raise ValueError(f"scores must be a list for at least {FEWEST} canaries, got shape {values.shape}.")
    if coins.shape != values.shape:
        raise ValueError(f"included must have one entry for each of the {len(values)} canaries, got shape {coins.shape}.")
    if coins.dtype.kind not in "biu" or not np.isin(coins, (0, 1)).all():
        raise TypeError(f"included must be true or false for each canary, got {coins.dtype} values such as {coins[0]!r}.")
    coins = coins.astype(bool)
    inside = int(np.count_nonzero(coins))
    if 0.5 not in intervals.clopper_pearson(inside, len(coins), 1.0 - UNFAIR):
        raise ValueError(f"included must come from a fair coin for each canary, got {inside} of {len(coins)} that were in.")
    return values, coins
