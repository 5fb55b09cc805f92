"""Searches along a curve whose points and tangents are known: smooth curves, steps, and values that are off."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from betastar import exact
from betastar.curves import Answers


def gaussian(mu: float, error: float = 0.0) -> exact.Evaluation:
    """N(μ, 1) against N(0, 1); the values are off by up to `error`, which they say."""
    draw = np.random.default_rng(1)

    def evaluate(taus: NDArray[Any]) -> Answers:
        cut = taus / mu + 0.5 * mu
        mass, power = norm.sf(cut), norm.sf(cut - mu)
        off = error * draw.uniform(-1.0, 1.0, len(taus))
        stick = power - np.exp(taus) * mass + off
        doubt = np.full(len(taus), error)
        return Answers(stick, 1.0 - stick, doubt, mass + off, doubt, np.exp(taus) * (mass + off), norm.pdf(cut) / mu)

    return evaluate


def stairs(losses: list[float], masses: list[float]) -> exact.Evaluation:
    """A law of few losses: Q(L > τ) is a staircase, without a density."""
    places, weights = np.array(losses), np.array(masses)

    def evaluate(taus: NDArray[Any]) -> Answers:
        above = places[None, :] > taus[:, None]
        mass, power = above @ weights, above @ (weights * np.exp(places))
        zero = np.zeros(len(taus))
        stick = power - np.exp(taus) * mass
        return Answers(stick, 1.0 - stick, zero, mass, zero, np.exp(taus) * mass, zero)

    return evaluate


@pytest.mark.parametrize("mu", [1e-3, 0.3, 4.0])
@pytest.mark.parametrize("shift", [0.0, 0.5, 30.0])
def test_rates_are_enclosed_by_tangent_and_chord(mu: float, shift: float) -> None:
    """From good and from bad first guesses."""
    fprs = np.array([1e-6, 1e-3, 0.1, 0.5, 0.9])
    values, errors, taus = exact.rates_on_tangents(gaussian(mu), np.array([shift * mu]), fprs)
    truth = norm.sf(norm.isf(fprs) - mu)
    assert np.all(np.abs(values - truth) <= errors + 1e-12)
    assert np.all(errors <= 3e-8 * values)
    assert taus == pytest.approx(mu * norm.isf(fprs) - 0.5 * mu * mu, abs=1e-3 * mu)


def test_errors_of_the_values_are_kept() -> None:
    fprs = np.array([1e-3, 0.1, 0.5])
    values, errors, _ = exact.rates_on_tangents(gaussian(1.0, 1e-5), np.zeros(1), fprs)
    truth = norm.sf(norm.isf(fprs) - 1.0)
    assert np.all(np.abs(values - truth) <= errors)
    assert np.all(errors < 1e-3)


def test_a_staircase_has_straight_pieces() -> None:
    """Losses -log 4, 0 and log 8: between its corners the curve is the chord."""
    law = stairs([-math.log(4.0), 0.0, math.log(8.0)], [0.4, 0.5, 0.1])
    corners = np.array([[0.0, 0.0], [0.1, 0.8], [0.6, 1.3], [1.0, 1.4]])
    fprs = np.array([0.01, 0.05, 0.1, 0.3, 0.6, 0.8])
    values, errors, _ = exact.rates_on_tangents(law, np.array([5.0]), fprs)
    scaled = np.interp(fprs, corners[:, 0], corners[:, 1])  # P has mass 1.4 here, which changes nothing but the clipping at 1
    assert values == pytest.approx(np.minimum(scaled, 1.0), abs=1e-7)
    assert np.all(errors <= 1e-7)


@pytest.mark.parametrize("guess", [1e-3, 0.5, 100.0])
def test_epsilon_is_enclosed(guess: float) -> None:
    for error in (0.0, 1e-9):
        law = gaussian(1.0, error)
        deltas = np.array([0.3, 0.1, 1e-3, 1e-6])
        lower, values, upper = exact.epsilons_on_tangents(law, np.full(4, guess), deltas)
        truth = gaussian(1.0)
        for low, value, high, delta in zip(lower, values, upper, deltas, strict=True):
            assert low <= value <= high
            assert truth(np.array([low])).stick[0] >= delta * (1.0 - 1e-12)
            assert truth(np.array([high])).stick[0] <= delta * (1.0 + 1e-12)
            assert high - low <= 1e-2 * value + 1e-9


def test_epsilon_of_what_leaks_less_is_zero() -> None:
    lower, values, upper = exact.epsilons_on_tangents(gaussian(1e-3), np.ones(1), np.array([0.1]))
    assert (lower[0], values[0], upper[0]) == (0.0, 0.0, 0.0)
