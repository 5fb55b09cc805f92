"""Guesses about the canaries of one run: how many, decided in advance, and how many of them are right."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from betastar import validation
from betastar.arrays import Real, Whole
from betastar.audit import intervals
from betastar.audit.one_run_audit.claimed_curve import ClaimedCurve
from betastar.audit.one_run_audit.curve_p_value import curve_p_value

#: Fewest canaries that are worth guessing.
FEWEST = 20
#: Shares of the canaries that may be guessed. Whoever guesses fewer has the surest ones.
SHARES = (1.0, 0.5, 0.33, 0.2, 0.15, 0.1, 0.05)
#: Without a claim, this share is guessed.
USUAL = 0.2
#: The number of guesses is the best one against noise that is too small by this factor, among so many simulated canaries.
FACTOR, SIMULATED = 2.5, 20_000
#: So many standard deviations fewer right guesses than expected are planned for.
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
    """How many of so many guesses are right.

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


def checked(scores: ArrayLike, truth: ArrayLike) -> tuple[Real, Whole]:
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
