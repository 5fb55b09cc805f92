"""What right guesses about the canaries of one run refute: a claimed trade-off curve, or (ε, δ)-DP.

The canaries of one run are not independent games, so that no binomial interval holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from betastar import validation
from betastar.analyze import analyze
from betastar.audit.common import Verdict
from betastar.audit.verdict import intervals
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.rounding import down, plain, tiny, up
from betastar.threats import Membership, Threat

# --- The trade-off curve that a training claims, as straight lines above it: TPR ≤ e^ε·FPR + δ

#: Number of lines, and the δ of the steepest. Fewer lines make a p-value larger, never smaller.
LINES, STEEPEST_DELTA = 400, 1e-13
#: Relative error of a Gaussian's δ, with room; it is rounded up by it.
GAUSSIAN_ROUNDING = 1e-9


@dataclass(frozen=True)
class ClaimedCurve:
    """Lines that no attack may exceed: for each pair (ε, δ), a TPR is at most e^ε times the FPR, plus δ.

    Whatever lines are left out, what follows from the others is true.

    Attributes
    ----------
    epsilons, deltas : tuple of float
        The lines, the steepest first.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @classmethod
    def of_lines(cls, epsilons: ArrayLike, deltas: ArrayLike) -> ClaimedCurve:
        """The curve below these lines: a single pair is (ε, δ)-DP."""
        slopes = np.atleast_1d(validation.numbers("epsilons", epsilons, "finite numbers of at least 0", low=0.0, high=inf))
        heights = np.atleast_1d(validation.probability("deltas", deltas))
        if slopes.ndim != 1 or slopes.shape != heights.shape:
            raise ValueError(f"deltas must have one entry for each of epsilons, got shapes {heights.shape} and {slopes.shape}.")
        order = np.argsort(-slopes)
        return cls(tuple(slopes[order].tolist()), tuple(heights[order].tolist()))

    @classmethod
    def gaussian(cls, mu: float) -> ClaimedCurve:
        """The curve of Gaussian differential privacy: δ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ)."""
        mu = float(validation.numbers("mu", mu, "a finite number of at least 0", low=0.0, high=inf))
        if mu == 0.0:
            return cls((0.0,), (0.0,))
        epsilons = np.linspace(0.0, mu * (0.5 * mu + 7.5), LINES)  # at the end, δ is below Φ(-7.5)
        first = ndtr(0.5 * mu - epsilons / mu)
        second = np.exp(epsilons + log_ndtr(-0.5 * mu - epsilons / mu))
        return cls.of_lines(epsilons, np.clip(first - second + GAUSSIAN_ROUNDING * first, 0.0, 1.0))

    @classmethod
    def of_risk(cls, risk: Risk) -> ClaimedCurve:
        """The lines of `analyze`, with its numerical error on the side of more risk.

        δ is the mean over the two directions, from "in" to "out" and back: the coin of each canary is fair (equation 21).
        """
        if risk.shape != ():
            raise ValueError(f"risk must be of a single run, got a sweep of shape {risk.shape}.")
        steepest = float(risk.epsilon(STEEPEST_DELTA).upper)
        if not steepest < inf:
            ends = np.asarray(risk.epsilon(np.geomspace(1e-12, 0.5, 64)).upper)
            steepest = float(np.max(ends[np.isfinite(ends)], initial=0.0))
        epsilons = np.linspace(0.0, steepest, LINES) if steepest > 0.0 else np.zeros(1)
        return cls.of_lines(epsilons, np.clip(risk.mean_delta(epsilons), 0.0, 1.0))

    @classmethod
    def of_run(cls, run: DPSGD, threat: Threat) -> ClaimedCurve:
        """The curve that `analyze` computes for a run and a threat."""
        return cls.of_risk(analyze(run, threat))

    def tpr(self, fpr: float) -> float:
        """The largest true-positive rate that the lines allow."""
        return float(min(1.0, np.min(np.exp(self.epsilons) * fpr + np.array(self.deltas))))


# --- How likely right guesses are, at most, if the run keeps to a trade-off curve
#
# After Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024), for guesses among any number of
# values, with a proof of its own (theory, section 16).

#: What sums of that many terms may lose, with room; a p-value is rounded up by it.
SUM_ROUNDING = 1e-8
#: A p-value is too large by at most this, relative to itself; smaller ones than the second number are not told apart.
TOLERANCE, SMALLEST_P_VALUE = 1e-5, 1e-30


def curve_p_value(right: int, guesses: int, canaries: int, claim: ClaimedCurve, values: int = 2) -> float:
    """How likely this many right guesses are, at most, if no attack on a canary exceeds the lines of the claim.

    Each of m canaries has one of M values, all equally likely. The attacker guesses for r of them, r fixed beforehand, and p_a
    is the probability of a right guesses. With R_i = Σ_{a≥i} a·p_a and H_i = Σ_{a≥i} (r - a)·p_a/(M - 1), the claim says
    R_{i+1} ≤ e^ε·H_i + m·δ for each of its lines (equation 21). If Pr[right ≥ v] ≥ τ, then R_i, H_i and the sum of the p_a
    are at least those of the recursion of `refutes`, which puts τ at v (Theorem 12). The p-value is a τ at which that sum
    exceeds 1.

    Parameters
    ----------
    right : int
        The number of right guesses, v.
    guesses : int
        The number of guesses, r, known before any score is.
    canaries : int
        The number of canaries, m, with those for which no guess is made.
    claim : ClaimedCurve
        What is claimed.
    values : int
        The number of values that a canary may have, M; "in" and "out" are two.
    """
    if right == 0 or not refutes(right, guesses, canaries, claim, 1.0, values):
        return 1.0
    high, low = 1.0, 0.1
    while refutes(right, guesses, canaries, claim, low, values):
        high, low = low, 0.1 * low
        if low < SMALLEST_P_VALUE:
            return high
    while high > low * (1.0 + TOLERANCE):
        middle = sqrt(low * high)
        low, high = (low, middle) if refutes(right, guesses, canaries, claim, middle, values) else (middle, high)
    return high


def refutes(right: int, guesses: int, canaries: int, claim: ClaimedCurve, level: float, values: int = 2) -> bool:
    """Whether the claim gives this many right guesses a probability below `level`.

    That is so if the least sum of the p_a with τ = `level` at v exceeds 1. Going down from i = v - 1:
    H_i = max(H_{i+1}, max over lines of e^-ε·(R_{i+1} - m·δ)), p_i = (M - 1)·(H_i - H_{i+1})/(r - i), R_i = R_{i+1} + i·p_i.
    The lines become flatter as R grows. Where H stops growing, nothing changes any more. A sum that is broken off early is
    smaller, which is safe.
    """
    right, guesses, canaries = counts(right, guesses, canaries)
    others = validation.one_whole("values", values, 2) - 1
    lines = [(exp(-epsilon), canaries * delta) for epsilon, delta in zip(claim.epsilons, claim.deltas, strict=True)]
    r_sum, h_sum, mass = right * level, (guesses - right) * level / others, level
    factor, offset = lines[0]
    flatter, beyond, before = 1, len(lines), 0.0
    for i in range(right - 1, -1, -1):
        grown = factor * (r_sum - offset)
        while flatter < beyond and (other := lines[flatter][0] * (r_sum - lines[flatter][1])) >= grown:
            grown, (factor, offset), flatter = other, lines[flatter], flatter + 1
        if grown <= h_sum:
            return False
        added = others * (grown - h_sum) / (guesses - i)
        h_sum, r_sum, mass = grown, r_sum + i * added, mass + added
        if mass > 1.0 + SUM_ROUNDING:
            return True
        if added < before and added * i < SUM_ROUNDING * (1.0 - mass):  # past the largest p_i, and too little is left
            return False
        before = added
    return False


def gaussian_at_least(right: int, guesses: int, canaries: int, confidence: float, values: int = 2) -> float:
    """The largest μ of Gaussian DP that these right guesses refute; 0 if none. Too large with probability ≤ 1 - confidence."""
    miss = 1.0 - validation.probability("confidence", confidence, strict=True)
    return largest_refuted(lambda mu: refutes(right, guesses, canaries, ClaimedCurve.gaussian(mu), miss, values))


def epsilon_at_least(right: int, guesses: int, canaries: int, delta: float, confidence: float, values: int = 2) -> float:
    """The largest ε that these right guesses refute at this δ; 0 if none. Too large with probability at most 1 - confidence."""
    miss = 1.0 - validation.probability("confidence", confidence, strict=True)
    return largest_refuted(lambda one: refutes(right, guesses, canaries, ClaimedCurve.of_lines(one, delta), miss, values))


def largest_refuted(refuted: Callable[[float], bool]) -> float:
    """The largest parameter that is refuted, by bisection; 0 if none is. The one that is returned is refuted."""
    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while refuted(high):
        low, high = high, 2.0 * high
    while high - low > 1e-7 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def counts(right: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    """The three numbers, if they can be those of an audit."""
    canaries = validation.whole("canaries", canaries)
    guesses = validation.whole("guesses", guesses, low=0)
    if guesses > canaries:
        raise ValueError(f"guesses must be at most the number of canaries, {canaries}, got {guesses!r}.")
    right = validation.whole("right", right, low=0)
    if right > guesses:
        raise ValueError(f"right must be at most the number of guesses, {guesses}, got {right!r}.")
    return right, guesses, canaries


# --- Guesses: how many, decided in advance, and how many of them are right

#: Fewest canaries that are worth guessing.
FEWEST = 20
#: Shares of the canaries that may be guessed. Fewer guesses are about the surest canaries.
SHARES = (1.0, 0.5, 0.33, 0.2, 0.15, 0.1, 0.05)
#: Without a claim, this share is guessed.
USUAL = 0.2
#: The number of guesses is the best one against noise that is too small by this factor, among this many simulated canaries.
FACTOR, SIMULATED = 2.5, 20_000
#: This many standard deviations fewer right guesses than expected are planned for.
DOUBT = 3.0
#: The false-positive rate at which a claim is likened to a Gaussian.
LIKENED = 0.1
#: Fair coins are taken for unfair ones in at most one of a billion audits.
UNFAIR = 1e-9


def planned_guesses(claim: ClaimedCurve | None, canaries: int, values: int = 2) -> int:
    """The number of guesses, from the claim and the number of canaries alone: before any canary was used.

    It is the number with the smallest p-value for a Gaussian with FACTOR times the μ of the claim, whose right guesses are DOUBT
    standard deviations fewer than expected. A bad choice costs power; it never makes a p-value too small.
    """
    usual = _even(USUAL * canaries, canaries)
    if claim is None or (highest := claim.tpr(LIKENED)) >= 1.0:
        return usual
    mu = FACTOR * max(float(ndtri(highest) - ndtri(LIKENED)), 1e-3)
    seen = np.random.default_rng(0).standard_normal((SIMULATED, values))
    seen[:, 0] += mu / sqrt(2.0)  # the distance of two values is μ
    ordered = np.sort(seen, axis=1)
    right = (np.argmax(seen, axis=1) == 0)[np.argsort(ordered[:, -2] - ordered[:, -1])]  # the surest guess first
    best, least = usual, inf
    for share in SHARES:
        guesses = _even(share * canaries, canaries)
        rate = float(np.mean(right[: int(share * SIMULATED)]))
        expected = max(0, int(guesses * rate - DOUBT * sqrt(guesses * rate * (1.0 - rate))))
        p_value = curve_p_value(expected, guesses, canaries, claim, values)
        if p_value < least:
            best, least = guesses, p_value
    return best


def _even(number: float, most: int) -> int:
    return 2 * (min(max(int(number), FEWEST), most) // 2)


def right_guesses(scores: ArrayLike, truth: ArrayLike, guesses: int, seed: int = 0) -> int:
    """The number of right guesses among `guesses`.

    Parameters
    ----------
    scores : array of float
        One number for each canary, the higher, the more likely it was in: "in" is guessed for the highest, "out" for as many of
        the lowest. Or a row for each canary with a number for each value: the value with the largest is guessed, for the canaries
        where it is farthest above the next. Computed without knowing the truth.
    truth : array of bool or int
        Whether each canary was in, or the number of its value.
    guesses : int
        The number of guesses, known beforehand.
    seed : int
        The seed of a generator that decides among equal scores, so that the order of the canaries tells nothing.
    """
    table, chosen = checked(scores, truth)
    order = np.random.default_rng(validation.seed(seed)).permutation(len(table))
    table, chosen = table[order], chosen[order]
    if table.ndim == 1:
        rising = chosen[np.argsort(table, kind="stable")]
        half = guesses // 2
        return int(np.count_nonzero(rising[:half] == 0) + np.count_nonzero(rising[len(rising) - (guesses - half) :] == 1))
    ties = np.random.default_rng(validation.seed(seed) + 1).permuted(np.tile(np.arange(table.shape[1]), (len(table), 1)), axis=1)
    ranked = np.lexsort((ties, table), axis=1)
    best, second = (np.take_along_axis(table, ranked[:, -i, None], axis=1)[:, 0] for i in (1, 2))
    surest = np.argsort(second - best, kind="stable")[:guesses]
    return int(np.count_nonzero(ranked[surest, -1] == chosen[surest]))


def number_of_values(scores: ArrayLike) -> int:
    """Two if each canary has one score, otherwise the number of its scores."""
    table = np.asarray(scores)
    return 2 if table.ndim < 2 else int(table.shape[1])


def checked(scores: ArrayLike, truth: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """The scores and the values of the canaries, if they can be those of an audit."""
    table = np.asarray(validation.numbers("scores", scores, "finite numbers, for each canary", low=-inf, high=inf))
    chosen, values = np.asarray(truth), number_of_values(table)
    if table.ndim not in (1, 2) or len(table) < FEWEST or values < 2:
        raise ValueError(
            f"scores must be a list for at least {FEWEST} canaries, or a table with a column for each of two or more values, "
            f"got shape {table.shape}."
        )
    if chosen.shape != table.shape[:1]:
        raise ValueError(f"truth must have one entry for each of the {len(table)} canaries, got shape {chosen.shape}.")
    if chosen.dtype.kind not in "biu" or not ((chosen >= 0) & (chosen < values)).all():
        kind = f"{chosen.dtype} values such as {chosen[0]!r}"
        raise TypeError(f"truth must be a whole number below {values}, or true or false, for each canary, got {kind}.")
    chosen = chosen.astype(np.int64)
    for value, number in enumerate(np.bincount(chosen, minlength=values).tolist()):
        if 1.0 / values not in intervals.clopper_pearson(number, len(chosen), 1.0 - UNFAIR / values):
            raise ValueError(
                f"truth must be drawn with equal probabilities for each canary, got value {value} for {number} of {len(chosen)}."
            )
    return table, chosen


# --- The verdict


@dataclass(frozen=True)
class OneRun(Verdict):
    """What the guesses about one run's canaries say, beside the claim.

    Attributes
    ----------
    canaries : int
        The number of canaries.
    values : int
        The number of values that a canary may have: "in" and "out" are two.
    guesses : int
        The number of guesses, decided before any canary was used.
    right : int
        The number of right ones among these.
    p_value : float
        The probability of this many right guesses, at most, if the claimed trade-off curve holds.
    epsilon : float
        The true ε at δ is not below this one, at `confidence`.
    delta : float
        The δ at which ε is measured.
    gdp_mu : float
        The training is not μ-GDP for a smaller μ, at `confidence`.
    confidence : float
        The confidence of each lower bound.
    claimed : float
        The ε at δ that is claimed.
    seed : int
        The seed of the audit.
    run : DPSGD or None
        What is claimed to have been run.
    threat : str
        What a canary changes.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> result = audit.one_run_mechanism(bs.DPSGD(noise_multiplier=2.0, sample_rate=0.5, steps=4), canaries=1000, seed=1)
    >>> result.canaries, result.guesses >= result.right, result.violated
    (1000, True, False)
    >>> result.epsilon <= result.claimed
    True
    """

    canaries: int
    values: int
    guesses: int
    right: int
    p_value: float
    epsilon: float
    delta: float
    gdp_mu: float
    confidence: float
    claimed: float
    seed: int
    run: DPSGD | None = None
    threat: str = ""

    @property
    def sentence(self) -> str:
        """The verdict for a person; what was measured is rounded down, what is claimed up."""
        among = f" ({self.values} values each)" if self.values > 2 else ""
        guessed = (
            f"of {self.canaries:,} canaries{among} the attacker guessed {self.guesses:,} and was right for {self.right:,} "
            f"({self.guesses / self.values:,.0f} by chance)"
        )
        least, sure = down(self.epsilon, 3), f"{100.0 * self.confidence:g} % confidence"
        measured = (
            f"ε is at least {least}" if float(least) > 0.0 else "No ε is refuted"
        ) + f" at δ = {plain(self.delta)} ({sure})"
        measured += f"; claimed is {up(self.claimed, 3) if self.claimed < inf else 'no finite ε'}."
        if not self.violated:
            return f"No violation: {guessed}, which the claim allows (p-value {down(self.p_value, 3)}). {measured}"
        return (
            f"Bound violated: {guessed}; if the claim held, this many right guesses would have probability {tiny(self.p_value)} "
            f"at most. {measured}"
        )

    def _display(self, brief: bool) -> Display:
        return Display((self.sentence, f"Seed {self.seed}."))


def judge_run(
    scores: ArrayLike,
    truth: ArrayLike,
    claim: DPSGD | ClaimedCurve | None,
    threat: Threat | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    *,
    guesses: int | None = None,
) -> OneRun:
    """The verdict on a claim from one run's canaries.

    Parameters
    ----------
    scores, truth : array
        As for `right_guesses`.
    claim : DPSGD, ClaimedCurve or None
        What is claimed of a canary that changes its value: the curve that `analyze` computes for a run, or any curve. With None
        nothing is claimed.
    threat : Threat, optional
        What a canary changes in a run; adding or removing a record by default.
    delta : float
        The δ at which ε is bounded.
    confidence : float
        The confidence of the lower bounds.
    seed : int
        The seed that decides among equal scores.
    guesses : int, optional
        The number of guesses, decided before the scores were known; what suits the claim by default.

    Returns
    -------
    OneRun
        The p-value of the claim, and what is refuted.

    Raises
    ------
    ValueError
        If an argument is not allowed, or the values cannot have been drawn with equal probabilities.
    TypeError
        If the values are not whole numbers, or the claim is none.

    Examples
    --------
    >>> import numpy as np
    >>> import betastar as bs
    >>> from betastar import audit
    >>> random = np.random.default_rng(0)
    >>> truth = random.random(1000) < 0.5
    >>> scores = truth + random.normal(scale=2.0, size=1000)
    >>> audit.judge_run(scores, truth, bs.DPSGD(noise_multiplier=2.0, sample_rate=1.0, steps=1)).violated
    False
    >>> audit.judge_run(truth + 0.1 * scores, truth, audit.ClaimedCurve.gaussian(0.5)).violated
    True
    """
    delta = validation.probability("delta", delta)
    confidence = validation.probability("confidence", confidence, strict=True)
    if not isinstance(claim, DPSGD | ClaimedCurve | None):
        raise TypeError(f"claim must be a DPSGD or a ClaimedCurve, got {claim!r}.")
    canaries, values = len(checked(scores, truth)[0]), number_of_values(scores)
    run, curve, claimed = None, claim, inf
    if isinstance(claim, DPSGD):
        threat = Membership("add-remove") if threat is None else threat
        run, risk = claim, analyze(claim, threat)
        curve, claimed = ClaimedCurve.of_risk(risk), float(risk.epsilon(delta).upper)
    assert not isinstance(curve, DPSGD)
    number = (
        planned_guesses(curve, canaries, values) if guesses is None else validation.one_whole("guesses", guesses, 1, canaries)
    )
    right = right_guesses(scores, truth, number, seed)
    return OneRun(
        canaries=canaries,
        values=values,
        guesses=number,
        right=right,
        p_value=1.0 if curve is None else curve_p_value(right, number, canaries, curve, values),
        epsilon=epsilon_at_least(right, number, canaries, delta, confidence, values),
        delta=delta,
        gdp_mu=gaussian_at_least(right, number, canaries, confidence, values),
        confidence=confidence,
        claimed=claimed,
        seed=int(seed),
        run=run,
        threat="" if threat is None else threat.describe(),
    )
