"""The verdict on one training run from guesses about its canaries."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from betastar import validation
from betastar.analyze import analyze
from betastar.audit import intervals
from betastar.audit.one_run_curve import ClaimedCurve, curve_p_value, epsilon_at_least, gaussian_at_least, refutes
from betastar.audit.results import ALARM
from betastar.display import Display, Displayed
from betastar.dpsgd import DPSGD
from betastar.risk import Bound
from betastar.rounding import down, plain, tiny, up
from betastar.threats import Membership, Threat

#: How far below and above the claimed noise multiplier a refuted one is sought, as a factor, and how exactly.
WIDEST, FINEST = 64.0, 1.005


@dataclass(frozen=True)
class RefutedRun:
    """DP-SGD of the same rate and steps whose curve the guesses refute, with the least noise; and its β*.

    Attributes
    ----------
    noise_multiplier : float
        The least noise multiplier that is refuted, at the confidence of the audit.
    bayes_security : Bound
        The Bayes security that a run with this noise has.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> claim, real = bs.DPSGD(2.0, 0.5, 4), bs.DPSGD(0.4, 0.5, 4)
    >>> result = audit.one_run_mechanism(claim, canaries=1000, seed=1, actual=real)
    >>> result.refuted.noise_multiplier < claim.segments[0].noise_multiplier
    True
    """

    noise_multiplier: float
    bayes_security: Bound


@dataclass(frozen=True)
class OneRun(Displayed):
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
        An upper bound on the probability of this many right guesses if the claimed trade-off curve holds.
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
    refuted : RefutedRun or None
        DP-SGD that the guesses refute, if there is one and the claim is a run of one segment.

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
    refuted: RefutedRun | None = None

    @property
    def violated(self) -> bool:
        return self.p_value < ALARM

    @property
    def sentence(self) -> str:
        """The verdict for a person; what was measured is rounded down, what is claimed up."""
        among = f" ({self.values} values each)" if self.values > 2 else ""
        guessed = (
            f"of {self.canaries:,} canaries{among} the attacker guessed {self.guesses:,} and was right for {self.right:,} "
            f"({self.guesses / self.values:,.0f} by chance)"
        )
        if not self.violated:
            return f"No violation: {guessed}, which the claim allows (p-value {down(self.p_value, 3)}). {self._measured()}"
        return (
            f"Bound violated: {guessed}; if the claim held, this many right guesses would have probability {tiny(self.p_value)} "
            f"at most. {self._measured()}"
        )

    def _measured(self) -> str:
        least, sure = down(self.epsilon, 3), f"{100.0 * self.confidence:g} % confidence"
        claimed = up(self.claimed, 3) if self.claimed < inf else "no finite ε"
        said = (f"ε is at least {least}" if float(least) > 0.0 else "No ε is refuted") + f" at δ = {plain(self.delta)} ({sure})"
        said += f"; claimed is {claimed}."
        if self.refuted is None:
            return said
        noise, beta = up(self.refuted.noise_multiplier, 3), up(min(self.refuted.bayes_security.upper, 1.0))
        return (
            f"{said} It is not as private as DP-SGD of the same rate and steps with noise multiplier {noise} and Bayes security "
            f"{beta} ({sure})."
        )

    def _display(self, brief: bool) -> Display:
        return Display((self.sentence,))

    def as_dict(self) -> dict[str, Any]:
        """The object that is printed as JSON."""
        names = (
            "canaries",
            "values",
            "guesses",
            "right",
            "p_value",
            "epsilon",
            "delta",
            "gdp_mu",
            "confidence",
            "seed",
            "threat",
        )
        plain = {name: getattr(self, name) for name in names}
        refuted = None
        if self.refuted is not None:
            beta = self.refuted.bayes_security
            ends = {"lower": beta.lower, "estimate": beta.estimate, "upper": beta.upper}
            refuted = {"noise_multiplier": self.refuted.noise_multiplier, "bayes_security": ends}
        rest = {
            "claimed": self.claimed if self.claimed < inf else None,
            "run": None if self.run is None else repr(self.run),
            "refuted": refuted,
        }
        return {**plain, **rest, "violated": self.violated, "sentence": self.sentence}


def judge_curve(
    scores: ArrayLike,
    truth: ArrayLike,
    claim: ClaimedCurve | None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    *,
    guesses: int | None = None,
    claimed: float = inf,
) -> OneRun:
    """The verdict on a claimed curve (None: no claim) from one run's canaries.

    Parameters
    ----------
    scores, truth : array
        As for `right_guesses`.
    claim : ClaimedCurve or None
        The curve that is claimed for a canary that changes its value.
    delta : float
        The δ at which ε is bounded.
    confidence : float
        The confidence of the lower bounds.
    seed : int
        The seed that decides among equal scores.
    guesses : int, optional
        The number of guesses, decided before the scores were known; `planned_guesses` by default.
    claimed : float
        The ε at δ that is claimed.

    Returns
    -------
    OneRun
        The p-value of the claim, and what is refuted.

    Raises
    ------
    ValueError
        If an argument is not allowed, or the values cannot have been drawn with equal probabilities.
    TypeError
        If the values are not whole numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from betastar import audit
    >>> random = np.random.default_rng(0)
    >>> truth = random.random(1000) < 0.5
    >>> scores = truth + random.normal(scale=2.0, size=1000)
    >>> audit.judge_curve(scores, truth, audit.ClaimedCurve.gaussian(0.5)).violated
    False
    >>> audit.judge_curve(truth + 0.1 * scores, truth, audit.ClaimedCurve.gaussian(0.5)).violated
    True
    """
    delta = validation.probability("delta", delta)
    confidence = validation.probability("confidence", confidence, strict=True)
    canaries, values = len(checked(scores, truth)[0]), number_of_values(scores)
    number = (
        planned_guesses(claim, canaries, values) if guesses is None else validation.one_whole("guesses", guesses, 1, canaries)
    )
    right = right_guesses(scores, truth, number, seed)
    return OneRun(
        canaries=canaries,
        values=values,
        guesses=number,
        right=right,
        p_value=1.0 if claim is None else curve_p_value(right, number, canaries, claim, values),
        epsilon=epsilon_at_least(right, number, canaries, delta, confidence, values),
        delta=delta,
        gdp_mu=gaussian_at_least(right, number, canaries, confidence, values),
        confidence=confidence,
        claimed=float(claimed),
        seed=int(seed),
    )


def judge_run(
    scores: ArrayLike,
    truth: ArrayLike,
    run: DPSGD,
    threat: Threat | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    *,
    guesses: int | None = None,
) -> OneRun:
    """The verdict on a run of DP-SGD, whose claim is the curve that `analyze` computes.

    Parameters
    ----------
    scores, truth : array
        As for `judge_curve`.
    run : DPSGD
        What is claimed to have been run.
    threat : Threat, optional
        What a canary changes; adding or removing a record by default.
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
        If an argument is not allowed.
    TypeError
        If `run` is not a DPSGD.

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
    """
    if not isinstance(run, DPSGD):
        raise TypeError(f"run must be a DPSGD, got {run!r}.")
    if run.shape != ():
        raise ValueError(f"run must be a single run, got a sweep of shape {run.shape}.")
    threat = Membership("add-remove") if threat is None else threat
    risk = analyze(run, threat)
    claimed = float(risk.epsilon(delta).upper)
    claim = ClaimedCurve.of_risk(risk)
    result = judge_curve(scores, truth, claim, delta, confidence, seed, guesses=guesses, claimed=claimed)
    told = {name: getattr(result, name) for name in OneRun.__dataclass_fields__}
    return OneRun(
        **{
            **told,
            "run": run,
            "threat": threat.describe(),
            "refuted": _refuted(result, run, threat) if isinstance(threat, Membership) else None,
        }
    )


def _refuted(result: OneRun, run: DPSGD, threat: Threat) -> RefutedRun | None:
    """The least noise multiplier that is refuted, by bisection: the p-value falls with the noise."""
    if len(run.segments) > 1:
        return None
    segment = run.segments[0]

    def with_noise(noise: float) -> DPSGD:
        return DPSGD(
            noise,
            segment.sample_rate,
            segment.steps,
            segment.sampling,
            max_batch_size=segment.max_batch_size,
            dataset_size=segment.dataset_size,
            times_per_epoch=segment.times_per_epoch,
        )

    def refuted(noise: float) -> bool:
        claim = ClaimedCurve.of_run(with_noise(noise), threat)
        return refutes(result.right, result.guesses, result.canaries, claim, 1.0 - result.confidence, result.values)

    low, high = log(segment.noise_multiplier / WIDEST), log(segment.noise_multiplier * WIDEST)
    if not refuted(exp(high)):
        return None
    while high - low > log(FINEST):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refuted(exp(middle)) else (middle, high)
    return RefutedRun(exp(high), analyze(with_noise(exp(high)), threat).bayes_security)


# --- Guesses: how many, decided in advance, and how many of them are right

#: Fewest canaries that are worth guessing.
FEWEST = 20
#: Shares of the canaries that may be guessed. Fewer guesses are about the surest canaries.
SHARES = (1.0, 0.5, 0.33, 0.2, 0.15, 0.1, 0.05)
#: Without a claim, this share is guessed.
USUAL = 0.2
#: The number of guesses is the best one against noise that is too small by this factor, among this many simulated canaries.
FACTOR, SIMULATED = 2.5, 20_000
#: The plan allows for this many standard deviations fewer right guesses than expected.
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
    generator = np.random.default_rng(0)
    seen = generator.standard_normal((SIMULATED, values))
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
    chosen = np.asarray(truth)
    if table.ndim not in (1, 2) or len(table) < FEWEST or (table.ndim == 2 and table.shape[1] < 2):
        raise ValueError(
            f"scores must be a list for at least {FEWEST} canaries, or a table with a column for each of two or more values, "
            f"got shape {table.shape}."
        )
    if chosen.shape != table.shape[:1]:
        raise ValueError(f"truth must have one entry for each of the {len(table)} canaries, got shape {chosen.shape}.")
    values = number_of_values(table)
    if chosen.dtype.kind not in "biu" or not ((chosen >= 0) & (chosen < values)).all():
        raise TypeError(
            f"truth must be a whole number below {values}, or true or false, for each canary, got {chosen.dtype} values such as "
            f"{chosen[0]!r}."
        )
    chosen = chosen.astype(np.int64)
    for value, number in enumerate(np.bincount(chosen, minlength=values).tolist()):
        if 1.0 / values not in intervals.clopper_pearson(number, len(chosen), 1.0 - UNFAIR / values):
            raise ValueError(
                f"truth must be drawn with equal probabilities for each canary, got value {value} for {number} of {len(chosen)}."
            )
    return table, chosen
