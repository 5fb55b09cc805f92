"""Several records of a person, public coins, and the final model alone."""

from __future__ import annotations

import itertools
import json
import time
import warnings
from dataclasses import dataclass
from math import comb, exp, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import betastar as bs
from betastar.bounds import kinds, transform
from betastar.bounds.exact import FourierCurve, Part
from betastar.bounds.grid import Nodes
from betastar.bounds.mixtures import MixturePart, mixture
from betastar.scenario.mixture import binomial, group_step, pair
from betastar.scenario.step import AnyStep, CoinStep, MixtureStep, Step

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "groups.json").read_text())
ADULT = bs.DPSGD(3.51, 256 / 26048, 2040)
RELATIONS = ("substitution", "add-remove")


@dataclass
class GivenSteps:
    """A threat whose steps are given."""

    given: tuple[AnyStep, ...]
    symmetric: bool

    @property
    def oriented(self) -> bool:
        return not self.symmetric

    def steps(self, run: bs.DPSGD) -> tuple[AnyStep, ...]:
        return self.given

    def describe(self) -> str:
        return "given steps"


ANY_RUN = bs.DPSGD(1.0, 0.5, 1)


# ---- figures


@pytest.mark.parametrize(
    "row", GOLDEN, ids=lambda row: f"{row['records']}-{row['rate']:.3g}-{row['noise']}-{row['steps']}-{row['mirrored']}"
)
def test_golden_values(row: dict) -> None:
    threat = bs.Membership("substitution" if row["mirrored"] else "add-remove", records=row["records"])
    run = bs.DPSGD(row["noise"], row["rate"], row["steps"])
    exact, certified = bs.analyze(run, threat), bs.analyze(run, threat, "certified", 1e-5)
    truth = float(row["beta"])
    assert exact.bayes_security.estimate == pytest.approx(truth, abs=3e-11 + exact.bayes_security.width)
    assert truth in certified.bayes_security
    assert certified.bayes_security.width <= 1e-5
    for tau, stick in row["sticks"]:
        values, _ = exact._outcomes[0].worst[0].hockey_sticks(np.array([tau]))
        assert values[0] == pytest.approx(float(stick), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("records", "advantage", "epsilon"),
    [(1, 0.051425, 0.45520), (2, 0.102614, 0.97153), (4, 0.203449, 2.09329), (8, 0.393567, 4.60785)],
)
def test_figures_of_the_theory(records: int, advantage: float, epsilon: float) -> None:
    risk = bs.analyze(ADULT, bs.Membership("add-remove", records=records))
    assert risk.advantage.estimate == pytest.approx(advantage, abs=6e-7)
    assert risk.epsilon(1e-5).estimate == pytest.approx(epsilon, abs=6e-6)


def test_one_step_of_a_group_is_not_a_step_with_less_noise() -> None:
    assert bs.analyze(bs.DPSGD(0.5 / 8, 0.01, 1), bs.Membership("add-remove")).advantage.upper == pytest.approx(0.01, abs=1e-5)
    group = bs.analyze(bs.DPSGD(0.5, 0.01, 1), bs.Membership("add-remove", records=8)).advantage
    assert group.estimate == pytest.approx(0.05317, abs=5e-6)


@pytest.mark.parametrize("method", ["exact", "certified"])
def test_mixtures_of_gaussians_as_in_dp_accounting(method: str) -> None:
    steps = (
        MixtureStep((0.2, 0.6, 0.2), (0.0, 1.0, 2.0), 1.0, False, 3),
        MixtureStep((0.33, 0.34, 0.33), (0.0, 2.0, 3.0), 2.0, False, 2),
    )
    epsilon = bs.analyze(ANY_RUN, GivenSteps(steps, False), method).epsilon(1e-6)
    assert pytest.approx(epsilon.estimate, abs=1e-4 if method == "exact" else 2e-3) == 17.193115
    assert epsilon.lower - 1e-6 <= 17.193115 <= epsilon.upper + 1e-6


def truncated(size: int, rate: float, most: int, noise: float, count: int, symmetric: bool) -> CoinStep:
    """Poisson sampling, of whose batches at most so many records are kept: whether K others fill the batch is made public."""

    def probability(n: int, j: int) -> float:
        return comb(n, j) * rate**j * (1.0 - rate) ** (n - j)

    few = sum(probability(size - 1, j) for j in range(most))
    many = sum(probability(size - 1, j) for j in range(most, size))
    full = most * sum(probability(size, j) for j in range(most + 1, size + 1)) / (size * many)
    distance = 2.0 if symmetric else 1.0
    attained = Step(few * rate + many * full, noise, distance, 1)  # all other gradients are 0
    return CoinStep((few, many), (Step(rate, noise, distance, 1), Step(full, noise / 2.0, 1.0, 1)), count, attained)


@pytest.mark.parametrize("method", ["exact", "certified"])
def test_truncated_batches_are_tighter_than_in_dp_accounting(method: str) -> None:
    steps = (truncated(4, 0.5, 2, 1.0, 3, False), truncated(3, 0.5, 2, 1.0, 2, False))
    epsilon = bs.analyze(ANY_RUN, GivenSteps(steps, False), method).epsilon(1e-6)
    assert epsilon.upper == pytest.approx(16.4565, abs=2e-4 if method == "exact" else 2e-3)
    assert epsilon.upper < 17.904330


# ---- one record, and more


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_is_todays_step(relation: str) -> None:
    assert bs.Membership(relation, records=1).steps(ADULT) == bs.Membership(relation).steps(ADULT)
    assert all(isinstance(step, Step) for step in bs.Membership(relation, records=1).steps(ADULT))
    assert bs.Membership(relation, records=1) == bs.Membership(relation)
    assert bs.Membership(relation, records=2) != bs.Membership(relation)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (1e-4, 0.4, 3), (0.3, 2.0, 20), (1e-7, 0.3, 10**6)])
def test_a_mixture_of_one_record_is_the_line_pair(relation: str, rate: float, noise: float, steps: int) -> None:
    mirrored = relation == "substitution"
    one = FourierCurve([MixturePart(steps, group_step(1, rate, noise, mirrored, steps))], mirrored)
    line = FourierCurve([Part(steps, transform.line, rate, noise, 2.0 if mirrored else 1.0)], mirrored)
    assert one.overlap().value == pytest.approx(line.overlap().value, rel=1e-10)
    taus = np.array([-1.0, 0.0, 0.3, 1.5])
    (values, errors), (others, other_errors) = one.hockey_sticks(taus), line.hockey_sticks(taus)
    assert np.all(np.abs(values - others) <= errors + other_errors + 1e-12)


@pytest.mark.parametrize("method", ["exact", "certified", "affinity"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_risk_grows_with_the_records(method: str, relation: str) -> None:
    run = bs.DPSGD(1.2, 0.004, 300)
    betas = [bs.analyze(run, bs.Membership(relation, records=k), method).bayes_security for k in (1, 2, 3, 5, 9, 17, 40)]
    for one, more in itertools.pairwise(betas):
        assert more.lower < one.lower
        assert more.upper < one.upper


@settings(max_examples=30, deadline=None)
@given(
    records=st.integers(2, 60),
    rate=st.floats(-6.0, 0.0).map(lambda x: 10.0**x),
    noise=st.floats(-0.7, 1.0).map(lambda x: 10.0**x),
    steps=st.floats(0.0, 4.0).map(lambda x: int(10.0**x)),
    relation=st.sampled_from(RELATIONS),
)
def test_certified_encloses_exact(records: int, rate: float, noise: float, steps: int, relation: str) -> None:
    run, threat = bs.DPSGD(noise, rate, steps), bs.Membership(relation, records=records)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.ToleranceWarning)
        exact, certified = bs.analyze(run, threat), bs.analyze(run, threat, "certified", 1e-3)
    one, other = exact.bayes_security, certified.bayes_security
    assert one.lower <= other.upper * (1.0 + 1e-9) + 1e-12
    assert other.lower <= one.upper * (1.0 + 1e-9) + 1e-12
    for fpr in (1e-3, 0.1):
        one, other = exact.tpr(fpr), certified.tpr(fpr)
        assert one.lower <= other.upper + 1e-9
        assert other.lower <= one.upper + 1e-9


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("records", "rate", "noise", "steps"),
    [
        (100, 1e-8, 0.2, 10**9),
        (100, 1e-8, 0.2, 10**6),
        (1000, 1e-3, 5.0, 100),
        (1000, 0.5, 0.2, 10),
        (3, 0.1, 1e-300, 5),
        (3, 0.1, 1e300, 5),
        (5, 1.0, 0.5, 3),
        (100_000, 0.5, 1.0, 10),
    ],
)
def test_extremes(records: int, rate: float, noise: float, steps: int, relation: str) -> None:
    run, threat = bs.DPSGD(noise, rate, steps), bs.Membership(relation, records=records)
    exact, certified = (bs.analyze(run, threat, method).bayes_security for method in ("exact", "certified"))
    assert 0.0 <= certified.lower <= certified.estimate <= certified.upper <= 1.0
    assert 0.0 <= exact.lower <= exact.estimate <= exact.upper <= 1.0
    assert exact.lower <= certified.upper
    assert certified.lower <= exact.upper


def test_many_records_cost_little() -> None:
    def seconds(records: int, method: str) -> float:
        mixture.cache_clear()
        pair.cache_clear()
        started = time.process_time()
        for relation in RELATIONS:
            for noise in (0.9, 0.95, 1.0, 1.05, 1.1):
                bs.analyze(bs.DPSGD(noise, 0.01, 100), bs.Membership(relation, records=records), method).epsilon(1e-5)
        return time.process_time() - started

    for method in ("exact", "certified"):
        seconds(1, method)
        assert seconds(100, method) <= 20.0 * max(seconds(1, method), 0.05)


# ---- twins and adversaries


def naive_curve(step: MixtureStep, taus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """H of one step in both directions, by a sum over a fine grid of outcomes."""
    x = np.linspace(-step.shifts[-1] - 10.0 * step.noise, step.shifts[-1] + 10.0 * step.noise, 400_001)

    def world(sign: float) -> np.ndarray:
        peaks = (w * np.exp(-0.5 * ((x - sign * s) / step.noise) ** 2) for w, s in zip(step.weights, step.shifts, strict=True))
        return sum(peaks) / (sqrt(2.0 * pi) * step.noise) * (x[1] - x[0])

    first = world(1.0)
    other = world(-1.0) if step.mirrored else np.exp(-0.5 * (x / step.noise) ** 2) / (sqrt(2.0 * pi) * step.noise) * (x[1] - x[0])
    ahead = np.array([np.maximum(first - exp(t) * other, 0.0).sum() for t in taus])
    return ahead, np.array([np.maximum(other - exp(t) * first, 0.0).sum() for t in taus])


MIXTURES = [
    group_step(3, 0.2, 0.9, True, 1),
    group_step(12, 0.05, 1.7, False, 1),
    MixtureStep((0.5, 0.3, 0.2), (0.0, 0.4, 2.5), 0.8, True, 1),
    MixtureStep((0.6, 0.4), (0.5, 1.5), 1.1, False, 1),
]


@pytest.mark.parametrize("step", MIXTURES)
def test_one_step_against_a_naive_sum(step: MixtureStep) -> None:
    taus = np.array([0.0, 0.1, 0.7, 2.0])
    curve = FourierCurve([MixturePart(1, step)], step.mirrored)
    for one, naive in zip((curve, curve.reversed()), naive_curve(step, taus), strict=True):
        assert one.hockey_sticks(taus)[0] == pytest.approx(naive, abs=2e-9)


@pytest.mark.parametrize("step", MIXTURES)
def test_transform_against_naive_quadrature(step: MixtureStep) -> None:
    x = np.linspace(-step.shifts[-1] - 12.0 * step.noise, step.shifts[-1] + 12.0 * step.noise, 200_001)
    worlds = pair(step)
    other, loss = worlds.density(x, False), worlds.loss(x)
    for z in (0.5 + 0.0j, 0.5 + 0.7j, 0.5 + 5.0j, 0.2 + 1.0j):
        naive = np.sum(other * np.expm1(z * loss)) * (x[1] - x[0])
        for wide in (False, True):
            assert mixture(step, wide).excess(np.array([z]))[0] == pytest.approx(naive, abs=1e-9)


@pytest.mark.parametrize("records", [2, 5, 11])
@pytest.mark.parametrize("noise", [0.3, 1.0, 10.0])
def test_all_zeros_of_a_group_are_real(records: int, noise: float) -> None:
    """Lemma F: the zeros of Σ Bin(k, p)(j)·e^{-j²/(2σ²)} z^j are real and negative."""
    import mpmath as mp

    rate = 0.1
    with mp.workdps(200):
        binomial = [mp.binomial(records, j) * mp.mpf(rate) ** j * (1 - mp.mpf(rate)) ** (records - j) for j in range(records + 1)]
        terms = [w * mp.exp(-((mp.mpf(j) / noise) ** 2) / 2) for j, w in enumerate(binomial)]
        roots = mp.polyroots(terms[::-1], maxsteps=1000, extraprec=1000)
    assert all(root.real < 0 for root in roots)
    assert all(abs(root.imag) < abs(root.real) * 1e-9 for root in roots)


def test_denser_nodes_and_a_lower_path_change_nothing() -> None:
    step = group_step(30, 0.1, 0.8, True, 1)
    z = np.array([0.5, 0.5 + 0.5j, 0.5 + 4.0j, 0.3 + 0.2j])
    denser = mixture(step, False, 0.08).excess(z)
    lower = mixture(MixtureStep(step.weights, step.shifts, step.noise, True, 1), False).excess(z)
    assert mixture(step).excess(z) == pytest.approx(denser, abs=1e-13)
    assert mixture(step).excess(z) == pytest.approx(lower, abs=1e-13)


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize(("records", "rate", "noise", "steps"), [(8, 0.6, 0.3, 3), (20, 0.0713, 0.1666, 8), (3, 0.08, 0.1375, 6)])
def test_losses_that_overflow(records: int, rate: float, noise: float, steps: int, mirrored: bool) -> None:
    """Where e^L does not fit into a number for some outcomes, paths at different heights agree, and the grid encloses them."""
    step = group_step(records, rate, noise, mirrored, steps)
    lower = MixtureStep(step.weights, step.shifts, noise, mirrored, steps)
    one, other = (FourierCurve([MixturePart(steps, each)], mirrored).overlap() for each in (step, lower))
    assert mixture(step).lost > 1e-20
    assert abs(one.value - other.value) <= one.error + other.error
    relation = "substitution" if mirrored else "add-remove"
    assert (
        one.value
        in bs.analyze(bs.DPSGD(noise, rate, steps), bs.Membership(relation, records=records), "certified").bayes_security
    )


@pytest.mark.parametrize("mirrored", [True, False])
def test_no_directions_beat_the_aligned_pair(mirrored: bool) -> None:
    """Two records of a person whose gradients have any directions and norms, in the plane (theory, section 12)."""
    random = np.random.default_rng(3)
    p, noise = 0.25, 1.0
    axis = np.linspace(-9.0, 9.0, 145)
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    cell = (axis[1] - axis[0]) ** 2 / (2.0 * pi * noise**2)

    def world(gradients: list[np.ndarray]) -> np.ndarray:
        total = np.zeros(points.shape[:2])
        for taken in range(4):
            inside = [g for i, g in enumerate(gradients) if taken >> i & 1]
            chance = p ** len(inside) * (1.0 - p) ** (2 - len(inside))
            total += chance * np.exp(-((points - sum(inside, np.zeros(2))) ** 2).sum(axis=-1) / (2.0 * noise**2))
        return total

    taus = np.array([-1.5, -0.4, 0.0, 0.4, 1.5])
    most, _ = FourierCurve([MixturePart(1, group_step(2, p, noise, mirrored, 1))], mirrored).hockey_sticks(taus)
    for _ in range(150):
        angles, norms = random.uniform(0.0, 2.0 * pi, 4), np.minimum(random.uniform(0.0, 1.6, 4), 1.0)
        vectors = [r * np.array([np.cos(a), np.sin(a)]) for r, a in zip(norms, angles, strict=True)]
        first, other = world(vectors[:2]), world(vectors[2:] if mirrored else [np.zeros(2)] * 2)
        sticks = np.array([np.maximum(first - exp(t) * other, 0.0).sum() * cell for t in taus])
        assert np.all(sticks <= most + 1e-9)


def test_probabilities_of_a_binomial_law() -> None:
    from scipy.stats import binom

    for records, rate in ((2, 0.5), (100, 0.03), (1000, 1e-8), (100_000, 0.5)):
        weights, first = binomial(records, rate)
        places = first + np.arange(1, len(weights) - 1)
        expected = binom.pmf(places, records, rate)
        assert weights.sum() == pytest.approx(1.0, abs=1e-14)
        assert weights[1:-1][expected > 1e-90] == pytest.approx(expected[expected > 1e-90], rel=1e-11)
    assert binomial(7, 1.0)[1] == 7


def test_tails_on_the_grid_enclose_the_curve() -> None:
    for step in (group_step(6, 0.1, 0.7, True, 10), group_step(6, 0.1, 0.7, False, 10)):
        above, below = (kinds.grid_step(step, Nodes(0.05), step.mirrored, side, 1e-12) for side in (True, False))
        exact = FourierCurve([MixturePart(1, step)], step.mirrored)
        for tau in (0.0, 0.31, 1.0, 2.5):
            values = []
            for grid in (below, above):
                losses = grid.base + 0.05 * grid.ahead_index
                mass = np.append(np.exp(losses) * grid.ahead, [])
                values.append(float(np.maximum(1.0 - np.exp(tau - losses), 0.0) @ mass) + grid.ahead_infinite)
            assert values[0] <= exact.hockey_stick(tau).value + 1e-14
            assert exact.hockey_stick(tau).value <= values[1] + 1e-14


# ---- coins and runs of several kinds


def test_a_coin_is_the_mean_of_its_steps() -> None:
    coin = CoinStep((0.3, 0.7), (Step(0.1, 1.0, 1.0, 1), Step(0.2, 0.8, 1.0, 1)), 1)
    taus = np.array([-0.3, 0.0, 0.2, 1.0])
    (part,) = kinds.parts([coin], transform.line)
    mean = sum(
        c * FourierCurve([Part(1, transform.line, s.rate, s.noise, 1.0)], False).hockey_sticks(taus)[0]
        for c, s in zip(coin.chances, coin.steps, strict=True)
    )
    assert FourierCurve([part], False).hockey_sticks(taus)[0] == pytest.approx(mean, rel=1e-12)
    z = np.array([0.5 + 1.0j])
    parts = [Part(1, transform.line, s.rate, s.noise, 1.0).transform(False).excess(z)[0] for s in coin.steps]
    assert part.transform(False).excess(z)[0] == pytest.approx(0.3 * parts[0] + 0.7 * parts[1], abs=1e-15)


def test_a_coin_with_equal_steps_is_that_step() -> None:
    run = bs.DPSGD(1.0, 0.02, 200)
    for symmetric, distance in ((True, 2.0), (False, 1.0)):
        step = Step(0.02, 1.0, distance, 200)
        coin = CoinStep((0.4, 0.6), (step, step), 200, step)
        plain = bs.analyze(run, bs.Membership("substitution" if symmetric else "add-remove"))
        tossed = bs.analyze(run, GivenSteps((coin,), symmetric))
        assert tossed.bayes_security.lower == pytest.approx(plain.bayes_security.lower, abs=1e-9)
        assert tossed.epsilon(1e-5).upper == pytest.approx(plain.epsilon(1e-5).upper, rel=1e-7)


@pytest.mark.parametrize("symmetric", [True, False])
def test_kinds_compose(symmetric: bool) -> None:
    far = 2.0 if symmetric else 1.0
    steps = (
        Step(0.01, 1.0, far, 200),
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
    coin = CoinStep((0.5, 0.5), (Step(0.1, 1.0, 1.0, 1), Step(0.2, 0.5, 1.0, 1)), 20)
    for method in ("exact", "certified"):
        risk = bs.analyze(ANY_RUN, GivenSteps((coin,), False), method)
        assert risk.bayes_security.upper == 1.0
        assert risk.bayes_security.lower < 0.9
        assert risk.epsilon(1e-5).lower == 0.0
        assert risk.epsilon(1e-5).upper > 1.0


def test_methods_that_a_kind_is_not_valid_for() -> None:
    with pytest.raises(ValueError, match=r"method 'paper' is for one record and Poisson sampling; .*method='exact'"):
        bs.analyze(ADULT, bs.Membership(records=2), "paper")


# ---- input, calibration


@pytest.mark.parametrize("records", [0, -1, 2.5, 100_001])
def test_numbers_of_records_that_are_refused(records: float) -> None:
    with pytest.raises(ValueError, match="records must be a whole number"):
        bs.Membership(records=records)  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [True, "3", [1, 2], None])
def test_records_that_are_no_number(records: object) -> None:
    with pytest.raises(TypeError, match="records must be"):
        bs.Membership(records=records)  # type: ignore[arg-type]


def test_words_for_a_person() -> None:
    threat = bs.Membership("add-remove", records=8)
    assert threat.describe() == "membership inference (add-remove) of a person with 8 records"
    assert repr(threat) == "Membership(relation='add-remove', records=8)"
    assert bs.Membership().describe() == "membership inference (substitution)"


def test_calibration_for_a_person() -> None:
    threat, target = bs.Membership("add-remove", records=8), bs.Target(bayes_security=0.9)
    run = bs.calibrate(target, sample_rate=0.01, steps=1000, threat=threat)
    assert target.met(bs.analyze(run, threat))
    assert not target.met(bs.analyze(bs.DPSGD(run.noise_multiplier * 0.999, 0.01, 1000), threat))
    assert (
        run.noise_multiplier
        > bs.calibrate(target, sample_rate=0.01, steps=1000, threat=bs.Membership("add-remove")).noise_multiplier
    )


# ---- the final model


def test_figure_of_the_final_model() -> None:
    run = bs.DPSGD(0.5, 0.01, 1000)
    risk = bs.analyze(run, bs.Membership("add-remove"), sees="final-model")
    assert risk.advantage.estimate == pytest.approx(0.246, abs=5e-4)
    assert bs.analyze(run, bs.Membership("add-remove")).advantage.estimate == pytest.approx(0.542, abs=5e-4)


def naive_final(run: bs.DPSGD, records: int, mirrored: bool) -> float:
    """The advantage of telling Bin + noise from noise (or - Bin + noise), by a sum over outcomes and hits."""
    from scipy.stats import binom

    weights = np.ones(1)
    for segment in run.segments:
        weights = np.convolve(
            weights, binom.pmf(np.arange(records * segment.steps + 1), records * segment.steps, segment.sample_rate)
        )
    noise = sqrt(sum(s.steps * s.noise_multiplier**2 for s in run.segments))
    hits = np.flatnonzero(weights > 1e-17)
    edges = np.linspace(-hits[-1] - 9.0 * noise, hits[-1] + 9.0 * noise, 20_001)
    first = np.diff((weights[hits] * ndtr((edges[:, None] - hits) / noise)).sum(axis=1))
    other = (
        np.diff((weights[hits] * ndtr((edges[:, None] + hits) / noise)).sum(axis=1)) if mirrored else np.diff(ndtr(edges / noise))
    )
    return 0.5 * float(np.abs(first - other).sum())


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize(
    ("run", "records"),
    [
        (bs.DPSGD(0.5, 0.01, 1000), 1),
        (bs.DPSGD(2.0, 0.02, 300) + bs.DPSGD(1.0, 0.1, 50), 2),
        (bs.DPSGD(8.0, 0.5, 5000), 1),
        (bs.DPSGD(3.0, 0.3, 6000) + bs.DPSGD(6.0, 1.0, 20), 1),
    ],
)
def test_final_model_against_a_naive_sum(run: bs.DPSGD, records: int, mirrored: bool) -> None:
    threat = bs.Membership("substitution" if mirrored else "add-remove", records=records)
    assert bs.analyze(run, threat, sees="final-model").advantage.estimate == pytest.approx(
        naive_final(run, records, mirrored), abs=1e-6
    )


def test_segments_of_the_final_model_add_up() -> None:
    whole, halves = bs.DPSGD(2.0, 0.5, 8000), bs.DPSGD(2.0, 0.5, 3000) + bs.DPSGD(2.0, 0.5, 5000)
    one, other = (bs.analyze(run, sees="final-model").bayes_security.estimate for run in (whole, halves))
    assert one == pytest.approx(other, rel=1e-9)


def test_the_final_model_is_never_a_bound() -> None:
    risk = bs.analyze(bs.DPSGD([0.5, 1.0], 0.01, 1000), sees="final-model")
    assert risk.heuristic
    assert "not a bound" in repr(risk)
    for bound in (
        risk.bayes_security,
        risk.advantage,
        risk.success(),
        risk.success([0.2, 0.3, 0.5]),
        risk.tpr(0.01),
        risk.delta(1.0),
        risk.epsilon(1e-5),
        risk.reconstruction(0.1),
        risk.gdp_mu,
        risk.tradeoff([0.1, 0.2]),
    ):
        assert np.all(np.isnan(bound.lower))
        assert np.all(np.isnan(bound.upper))
        assert not np.any(np.isnan(bound.estimate))
        assert 0.5 not in bound
    single = bs.analyze(bs.DPSGD(5.0, 0.01, 10), sees="final-model")
    assert str(single.bayes_security).endswith("(a heuristic, not a bound)")
    for target in (bs.Target(bayes_security=0.01), bs.Target(advantage=0.999), bs.Target(epsilon=100.0, delta=0.5)):
        assert not target.met(single)
    assert bs.analyze(bs.DPSGD(5.0, 0.01, 10)).heuristic is None


def test_what_the_final_model_is_refused_for() -> None:
    run = bs.DPSGD(1.0, 0.01, 100)
    with pytest.raises(ValueError, match="sees='final-model' is for membership inference"):
        bs.analyze(run, bs.AttributeInference(0.5), sees="final-model")
    with pytest.raises(ValueError, match="only method='exact' computes"):
        bs.analyze(run, method="certified", sees="final-model")
    with pytest.raises(ValueError, match="sees must be one of"):
        bs.analyze(run, sees="everything")
    with pytest.raises(ValueError, match="sees must be 'updates' to calibrate"):
        bs.calibrate(bs.Target(bayes_security=0.9), sample_rate=0.01, steps=100, sees="final-model")
    with pytest.raises(ValueError, match="poisson"):
        bs.analyze(bs.DPSGD(1.0, 0.01, 100, "balls-in-bins"), sees="final-model")
