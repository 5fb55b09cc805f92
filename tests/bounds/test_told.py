"""Attackers who are told when the record takes part: the mixture of Gaussians against sums over all coins."""

from __future__ import annotations

from itertools import pairwise, product
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

import betastar as bs
from betastar import coins
from betastar.certified import enclosure
from betastar.exact import FourierCurve
from betastar.steps.poisson import PoissonFactor, PoissonStep


def gaussian(mu: float, tau: float) -> float:
    """H_{e^τ} of N(μ, 1) against N(0, 1)."""
    if mu == 0.0:
        return max(1.0 - exp(tau), 0.0)
    return float(norm.cdf(0.5 * mu - tau / mu) - exp(tau) * norm.cdf(-0.5 * mu - tau / mu))


def every_coin(steps: list[tuple[float, float, float]], tau: float) -> float:
    """The mean over all subsets of steps; each step: rate, noise, distance."""
    total = 0.0
    for taken in product((False, True), repeat=len(steps)):
        chance = np.prod([p if one else 1.0 - p for one, (p, _, _) in zip(taken, steps, strict=True)])
        mu = sqrt(sum((far / noise) ** 2 for one, (_, noise, far) in zip(taken, steps, strict=True) if one))
        total += float(chance) * gaussian(mu, tau)
    return total


def made(steps: list[tuple[float, float, float]]) -> list[PoissonStep]:
    return [PoissonStep(p, noise, far, 1) for p, noise, far in steps]


@pytest.mark.parametrize(
    ("rate", "noise", "distance", "steps"),
    [(0.2, 0.02, 0.01, 5), (0.2, 0.01, 0.001, 5), (0.01, 0.05, 0.3, 1000), (0.9, 0.5, 0.3, 20), (1e-6, 0.1, 0.2, 10**5)],
)
def test_equal_steps_are_a_binomial_mixture(rate: float, noise: float, distance: float, steps: int) -> None:
    curve = coins.told([PoissonStep(rate, noise, distance, steps)])
    assert curve is not None
    number = np.arange(min(steps, 2000) + 1)
    chance = binom.pmf(number, steps, rate)
    for tau in (-1.0, 0.0, 0.3, 2.0):
        naive = float(
            sum(c * gaussian(distance * sqrt(j) / noise, tau) for j, c in zip(number, chance, strict=True) if c > 1e-30)
        )
        assert curve.hockey_stick(tau).value == pytest.approx(naive, rel=1e-9, abs=1e-15)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0.02, 2.0), st.floats(0.01, 2.0)), min_size=2, max_size=7))
def test_different_steps_are_covered(steps: list[tuple[float, float, float]]) -> None:
    """Of several rates, noises and distances, at every threshold, and hardly more than the truth."""
    curve = coins.told(made(steps))
    assert curve is not None
    for tau in (0.0, 0.4, 3.0):
        value, error = curve.hockey_stick(tau)
        naive = every_coin(steps, tau)
        assert naive <= value + error + 1e-14
        assert value - error <= naive * (1.0 + 2e-3) + 1e-6


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 0.9), st.floats(0.02, 0.06), st.floats(0.005, 1.0)), min_size=2, max_size=6))
def test_the_attack_that_sees_the_coins(steps: list[tuple[float, float, float]]) -> None:
    """It is below what coins tell, and nearly that."""
    curve = coins.seen(made(steps))
    assert curve is not None
    value, error = curve.hockey_stick(0.0)
    naive = every_coin(steps, 0.0)
    assert value - error <= naive + 1e-13
    assert value - error >= 0.9 * naive


def test_the_attack_is_one_with_the_symmetric_pair() -> None:
    """Its advantage is at most that of the pair in the plane, which does not throw away what it sees across."""
    step = PoissonStep(0.2, 0.12, 0.1, 6)
    curve = coins.seen([step])
    assert curve is not None
    plane = FourierCurve([PoissonFactor(6, "symmetric", 0.2, 0.12, 0.1)], True)
    value, error = curve.hockey_stick(0.0)
    assert 0.99 * plane.hockey_stick(0.0).value <= value - error <= plane.hockey_stick(0.0).value


def read(curve: coins.MixtureCurve, rates: Any) -> Any:
    """TPR by a fine search among thresholds."""
    taus = np.concatenate([np.linspace(-30.0, 30.0, 60001), [0.0]])
    values, _ = curve.hockey_sticks(taus)
    return np.array([float(np.min(values + np.exp(taus) * rate)) for rate in rates])


def test_rates_and_epsilon_follow_from_the_curve() -> None:
    curve = coins.told([PoissonStep(0.1, 0.3, 0.2, 8), PoissonStep(0.3, 0.5, 0.7, 3)])
    assert curve is not None
    rates = np.array([1e-4, 0.01, 0.2, 0.6, 0.95])
    assert curve.true_positive_rates(rates)[0] == pytest.approx(read(curve, rates), abs=1e-6)
    deltas = np.array([1e-6, 1e-3, 0.05, 0.9])
    low, value, high = curve.epsilons(deltas)
    assert np.all((low <= value) & (value <= high))
    known = value > 0.0
    assert curve.hockey_sticks(value[known])[0] == pytest.approx(deltas[known], rel=1e-9)
    assert value[-1] == 0.0


def test_no_cliff_where_noise_is_little() -> None:
    """Neighbours in noise differ by what noise explains, at both ends, and the figures of the issue are reached."""
    noises = (0.01, 0.02, 0.04, 0.06, 0.0699, 0.07, 0.0701, 0.08, 0.1, 0.149, 0.151, 0.2)
    for method in ("exact", "certified"):
        risks = [bs.analyze(bs.DPSGD(noise, 0.2, 5), bs.AttributeInference(0.01), method).advantage for noise in noises]
        for noise, risk in zip(noises, risks, strict=True):
            assert risk.lower <= risk.upper <= 1.02 * risk.lower, (method, noise)
        assert all(after.upper <= before.upper * (1.0 + 1e-9) for before, after in pairwise(risks))
        assert risks[1].upper == pytest.approx(0.1572, abs=1e-4)
    assert bs.analyze(bs.DPSGD(0.01, 0.2, 5), bs.AttributeInference(0.001)).advantage.upper == pytest.approx(0.03195, abs=1e-5)


def test_sums_of_runs_and_many_distances_with_little_noise() -> None:
    run = bs.DPSGD(0.05, 0.1, 3) + bs.DPSGD(0.5, 0.2, 3)
    distances = [0.01, 0.3, 0.05, 0.2, 0.8, 1.5]
    told = every_coin([(0.1, 0.05, far) for far in distances[:3]] + [(0.2, 0.5, far) for far in distances[3:]], 0.0)
    for method in ("exact", "certified"):
        risk = bs.analyze(run, bs.AttributeInference(distances), method).advantage
        assert risk.lower <= told
        assert risk.upper <= told * 1.003
    with_many = bs.AttributeInference(np.linspace(0.01, 1.2, 60))
    risk = bs.analyze(bs.DPSGD(0.05, 0.02, 60), with_many)
    assert risk.advantage.upper - risk.advantage.lower <= 0.05 * risk.advantage.upper
    assert risk.epsilon(1e-3).lower <= risk.epsilon(1e-3).upper
    assert risk.tpr(0.01).upper <= 0.01 + risk.advantage.upper


def test_rates_near_one_are_told_little() -> None:
    """Where the record nearly always takes part its coins hardly matter: the bound is the better of the two."""
    steps = [PoissonStep(0.995, 2.0, 0.5, 30)]
    curve, glued = coins.told(steps), enclosure.certify(steps, True, 1e-4)
    assert curve is not None
    assert curve.overlap().value - curve.overlap().error <= glued.lower + 1e-12
    assert coins.told([PoissonStep(1.0, 2.0, 0.5, 30)]) is not None
