"""Exact intervals: they hold as often as they say, and say how many games they need."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, binomtest

from betastar.audit.verdict import intervals


@pytest.mark.parametrize(("hits", "games"), [(0, 10), (3, 10), (10, 10), (512, 1000), (1, 100_000)])
def test_clopper_pearson_and_p_value_are_scipys(hits: int, games: int) -> None:
    interval = intervals.clopper_pearson(hits, games, 0.9)
    theirs = binomtest(hits, games).proportion_ci(0.9)
    np.testing.assert_allclose([interval.lower, interval.upper], [theirs.low, theirs.high], rtol=1e-7, atol=1e-12)
    assert hits / games in interval
    for rate in (0.01, 0.5, 0.9):
        assert intervals.p_value(hits, games, rate) == pytest.approx(binom.sf(hits - 1, games, rate), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("width", [1.5, 0.2, 0.01])
def test_games_needed_are_just_enough(width: float, confidence: float) -> None:
    needed = intervals.games_needed(width, confidence)
    assert intervals.widest(needed, confidence) <= width
    assert needed == 2 or intervals.widest(needed - 1, confidence) > width


def test_all_rectangles_of_a_curve_hold_together() -> None:
    """Of 1,000 curves at 80 %, so few are wrong anywhere that the true share may well be 20 % or less."""
    generator = np.random.default_rng(0)
    rates = np.array([0.003, 0.01, 0.1, 0.3, 0.5, 0.9])
    wrong = 0
    for _ in range(1000):
        positive, negative = generator.normal(1.0, size=300), generator.normal(size=400)
        thresholds = np.sort(negative)[::-1][np.round(400 * rates).astype(int) - 1]
        rectangles = intervals.curve(positive, negative, rates, 0.8)
        truth = zip(ndtr(-thresholds), ndtr(1.0 - thresholds), strict=True)
        wrong += not all(a in fpr and b in tpr for (a, b), (fpr, tpr) in zip(truth, rectangles, strict=True))
    assert wrong >= 40, "a union bound wastes little"
    assert binom.sf(wrong - 1, 1000, 0.2) > 1e-3


def test_ranks_are_different_and_inside() -> None:
    games = np.arange(100.0), np.arange(100.0) + 0.5
    shown = intervals.curve(*games, np.array([1e-5, 0.01, 0.011, 0.5, 0.9999]), 0.9)
    assert [fpr.estimate for fpr, _ in shown] == [0.01, 0.5]
    assert intervals.curve(np.zeros(0), np.arange(5.0), np.array([0.5]), 0.9) == []
