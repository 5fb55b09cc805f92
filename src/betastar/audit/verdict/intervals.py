"""What games prove about rates: exact intervals and tests for binomial counts, and the number of games that they need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from betastar import validation
from betastar.risk import Bound


def clopper_pearson(hits: int, games: int, confidence: float) -> Bound:
    """A rate from a binomial count, wrong with probability at most 1 - confidence whatever it is (Clopper, Pearson 1934)."""
    miss = 0.5 * (1.0 - confidence)
    lower = float(betaincinv(hits, games - hits + 1, miss)) if hits > 0 else 0.0
    upper = float(betaincinv(hits + 1, games - hits, 1.0 - miss)) if hits < games else 1.0
    return Bound(lower, hits / games if games else 0.5, upper)


def p_value(hits: int, games: int, rate: float) -> float:
    """Pr[Binomial(games, rate) ≥ hits]: how likely at least `hits` hits are if the rate is not above `rate`."""
    return float(betainc(hits, games - hits + 1, rate)) if hits > 0 else 1.0


def widest(games: int, confidence: float) -> float:
    """Width of the interval of an advantage 2·rate - 1 for a rate of 1/2, where it is widest."""
    return 2.0 * float(clopper_pearson(games // 2, games, confidence).width)


def games_needed(width: float, confidence: float) -> int:
    """The fewest games whose interval of the advantage is no wider than this."""
    low, high = 1, 2
    while widest(high, confidence) > width:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if widest(middle, confidence) <= width else (middle, high)
    return high


def enough_games(games: object, width: float, guessing_error: float, confidence: float) -> int:
    """The number of games; raises an error if the interval of their advantage may be wider than `width`.

    Parameters
    ----------
    games : object
        The number of games that was given.
    width : float
        The widest interval that is accepted.
    guessing_error : float
        The share of wrong guesses of an attacker without the model.
    confidence : float
        The confidence of the interval.
    """
    number, sure = int(validation.whole("games", games)), f"at confidence {confidence:g}"
    needed = games_needed(width * min(1.0, 2.0 * guessing_error), confidence)
    if number < needed:
        text = f"must be at least {needed} for an interval of the advantage no wider than {width:g} {sure}, got {number}."
        raise validation.wrong("games", text)
    return number


def curve(positive: NDArray[Any], negative: NDArray[Any], rates: NDArray[Any], confidence: float) -> list[tuple[Bound, Bound]]:
    """(FPR, TPR) of the tests "score ≥ the k-th largest negative score", for the ranks k nearest to the given FPRs.

    All the rectangles hold together with probability at least `confidence`. Proof: the ranks are fixed before the games.
    The FPR of such a test, the share of a continuous law above the k-th largest of n draws from it, is the k-th smallest of
    uniform numbers, hence has the law Beta(k, n - k + 1), exactly. The threshold depends on the negative games only, so that
    given it the count of positive scores above is binomial and Clopper-Pearson applies. Then a union bound over the 2·K
    intervals. Scores must have no ties.
    """
    games = len(negative)
    chosen = sorted({round(float(rate) * games) for rate in rates} - {0, games}) if len(positive) else []
    each = 1.0 - (1.0 - confidence) / (2 * max(1, len(chosen)))
    falling, rising = np.sort(negative)[::-1], np.sort(positive)
    points = []
    for rank in chosen:
        lower, upper = (float(betaincinv(rank, games - rank + 1, share)) for share in (0.5 - 0.5 * each, 0.5 + 0.5 * each))
        hits = len(rising) - int(np.searchsorted(rising, falling[rank - 1], side="left"))
        fpr = Bound(lower, min(max(rank / games, lower), upper), upper)
        points.append((fpr, clopper_pearson(hits, len(rising), each)))
    return points
