"""Public coins, batches that are cut off, and runs of several kinds of steps."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

import betastar as bs
from betastar.exact import FourierCurve
from betastar.steps import CoinStep, MixtureStep
from betastar.steps.group import group_step
from betastar.steps.poisson import PoissonFactor, PoissonStep

from .given_steps import ANY_RUN, GivenSteps

ADULT = bs.DPSGD(3.51, 256 / 26048, 2040)


def truncated(size: int, rate: float, most: int, noise: float, count: int, symmetric: bool) -> CoinStep:
    """Poisson sampling, of whose batches at most so many records are kept: whether K others fill the batch is made public."""

    def probability(n: int, j: int) -> float:
        return comb(n, j) * rate**j * (1.0 - rate) ** (n - j)

    few = sum(probability(size - 1, j) for j in range(most))
    many = sum(probability(size - 1, j) for j in range(most, size))
    full = most * sum(probability(size, j) for j in range(most + 1, size + 1)) / (size * many)
    distance = 2.0 if symmetric else 1.0
    return CoinStep((few, many), (PoissonStep(rate, noise, distance, 1), PoissonStep(full, noise / 2.0, 1.0, 1)), count)


@pytest.mark.parametrize("method", ["exact", "certified"])
def test_truncated_batches_are_tighter_than_in_dp_accounting(method: str) -> None:
    steps = (truncated(4, 0.5, 2, 1.0, 3, False), truncated(3, 0.5, 2, 1.0, 2, False))
    epsilon = bs.analyze(ANY_RUN, GivenSteps(steps, False), method).epsilon(1e-6)
    assert epsilon.upper == pytest.approx(16.4565, abs=2e-4 if method == "exact" else 2e-3)
    assert epsilon.upper < 17.904330


def test_a_coin_is_the_mean_of_its_steps() -> None:
    coin = CoinStep((0.3, 0.7), (PoissonStep(0.1, 1.0, 1.0, 1), PoissonStep(0.2, 0.8, 1.0, 1)), 1)
    taus = np.array([-0.3, 0.0, 0.2, 1.0])
    factor = coin.factor("line")
    mean = sum(
        c * FourierCurve([PoissonFactor(1, "line", s.rate, s.noise, 1.0)], False).hockey_sticks(taus)[0]
        for c, s in zip(coin.chances, coin.steps, strict=True)
    )
    assert FourierCurve([factor], False).hockey_sticks(taus)[0] == pytest.approx(mean, rel=1e-12)
    z = np.array([0.5 + 1.0j])
    each = [PoissonFactor(1, "line", s.rate, s.noise, 1.0).transform(False).excess(z)[0] for s in coin.steps]
    assert factor.transform(False).excess(z)[0] == pytest.approx(0.3 * each[0] + 0.7 * each[1], abs=1e-15)


def test_a_coin_with_equal_steps_is_that_step() -> None:
    run = bs.DPSGD(1.0, 0.02, 200)
    for symmetric, distance in ((True, 2.0), (False, 1.0)):
        step = PoissonStep(0.02, 1.0, distance, 200)
        coin = CoinStep((0.4, 0.6), (step, step), 200)
        plain = bs.analyze(run, bs.Membership("substitution" if symmetric else "add-remove"))
        tossed = bs.analyze(run, GivenSteps((coin,), symmetric))
        assert tossed.bayes_security.lower == pytest.approx(plain.bayes_security.lower, abs=1e-9)
        assert tossed.epsilon(1e-5).upper == pytest.approx(plain.epsilon(1e-5).upper, rel=1e-7)


@pytest.mark.parametrize("symmetric", [True, False])
def test_kinds_compose(symmetric: bool) -> None:
    far = 2.0 if symmetric else 1.0
    steps = (
        PoissonStep(0.01, 1.0, far, 200),
        group_step(4, 0.01, 1.5, symmetric, 300),
        truncated(50, 0.1, 8, 1.4, 40, symmetric),
        MixtureStep((0.9, 0.05, 0.05), (0.0, 0.7, 1.9), 1.2, symmetric, 50),
    )
    threat = GivenSteps(steps, symmetric)
    exact, certified = bs.analyze(ANY_RUN, threat), bs.analyze(ANY_RUN, threat, "certified")
    affinity = bs.analyze(ANY_RUN, threat, "affinity").bayes_security
    for one, other in ((exact.bayes_security, certified.bayes_security), (exact.epsilon(1e-5), certified.epsilon(1e-5))):
        assert one.lower == pytest.approx(other.lower, rel=1e-3)
        assert one.upper == pytest.approx(other.upper, rel=1e-3)
    assert affinity.lower <= certified.bayes_security.lower
    assert certified.bayes_security.upper <= affinity.upper
    for left_out in range(len(steps)):
        fewer = GivenSteps(steps[:left_out] + steps[left_out + 1 :], symmetric)
        assert bs.analyze(ANY_RUN, fewer).bayes_security.lower > exact.bayes_security.lower


def test_a_coin_without_a_known_attack_proves_one_side_only() -> None:
    coin = CoinStep((0.5, 0.5), (PoissonStep(0.1, 1.0, 1.0, 1), PoissonStep(0.2, 0.5, 1.0, 1)), 20)
    for method in ("exact", "certified"):
        risk = bs.analyze(ANY_RUN, GivenSteps((coin,), False), method)
        assert risk.bayes_security.upper == 1.0
        assert risk.bayes_security.lower < 0.9
        assert risk.epsilon(1e-5).lower == 0.0
        assert risk.epsilon(1e-5).upper > 1.0


def test_methods_that_a_kind_is_not_valid_for() -> None:
    with pytest.raises(ValueError, match=r"method 'paper' is for one record of norm 1 and Poisson sampling; .*method='exact'"):
        bs.analyze(ADULT, bs.Membership(records=2), "paper")
