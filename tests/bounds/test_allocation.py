"""Random allocation: against values computed without betastar, limits that are known, games, and attackers who adapt."""

from __future__ import annotations

import json
from itertools import combinations, product
from math import erf, exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

import betastar as bs
from betastar.exact import FourierCurve
from betastar.steps import AllocationStep, allocation
from betastar.steps.allocation import EpochDensity, EpochFactor
from betastar.steps.poisson import PoissonFactor

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "allocation.json").read_text())

batch_numbers = st.floats(0.31, 4.0).map(lambda e: round(10.0**e))
noises = st.floats(-0.6, 1.3).map(lambda e: 10.0**e)


def curve(batches: int, noise: float, mirrored: bool, epochs: int = 1) -> FourierCurve:
    return FourierCurve([EpochFactor(epochs, batches, noise, mirrored)], mirrored)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "{way}-t{batches}s{noise}{mirrored:d}n{epochs}at{tau}".format(**row))
def test_golden_values(row: dict[str, Any]) -> None:
    one = curve(row["batches"], row["noise"], row["mirrored"], row["epochs"])
    answers = one._inversion()(np.array([row["tau"]]))
    assert abs(answers.stick[0] - row["stick"]) <= answers.error[0] + row["stick_error"]
    assert answers.error[0] <= 1e-9
    if "mass" in row:
        assert abs(answers.mass[0] - row["mass"]) <= answers.mass_error[0] + row["mass_error"]
    if row["tau"] == 0.0:
        value, error = one.overlap()
        assert abs(1.0 - value - row["stick"]) <= error + row["stick_error"]


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize(("noise", "epochs"), [(0.6, 1), (1.0, 1), (4.0, 3), (4.0, 100)])
def test_one_batch_is_a_step_without_sampling(noise: float, epochs: int, mirrored: bool) -> None:
    step = FourierCurve([PoissonFactor(epochs, "line", 1.0, noise, 2.0 if mirrored else 1.0)], mirrored)
    one = curve(1, noise, mirrored, epochs)
    assert one.overlap().value == step.overlap().value
    taus = np.array([-1.0, 0.0, 2.0])
    assert one.hockey_sticks(taus)[0] == pytest.approx(step.hockey_sticks(taus)[0], rel=1e-13)


@pytest.mark.parametrize("epochs", [1, 7, 1000])
@pytest.mark.parametrize("noise", [0.4, 1.0, 12.0])
def test_two_batches_by_substitution_are_one_gaussian(noise: float, epochs: int) -> None:
    """Along (1, 1) the two worlds are ±1/√2 apart, and across it they are the same: a Gaussian of μ = √2/σ an epoch."""
    mu = sqrt(2.0 * epochs) / noise
    gaussian = FourierCurve([PoissonFactor(1, "line", 1.0, 2.0 / mu, 2.0)], True)
    one = curve(2, noise, True, epochs)
    value, error = one.overlap()
    assert abs(value - gaussian.overlap().value) <= error + 1e-15
    assert error <= 1e-9
    taus = mu * np.array([0.1, 1.0, 3.0])
    sticks, errors = one.hockey_sticks(taus)
    assert np.all(np.abs(sticks - gaussian.hockey_sticks(taus)[0]) <= errors + 1e-15)


@pytest.mark.parametrize("noise", [2.0, 20.0])
@pytest.mark.parametrize("mirrored", [True, False])
def test_many_batches_tend_to_a_gaussian(noise: float, mirrored: bool) -> None:
    """TV → erf(μ/(2√2)) with μ² the χ²-like variance of the loss, 4·sinh(1/σ²)/t or (e^{1/σ²} - 1)/t."""
    errors = []
    for batches in (100, 10_000, 1_000_000):
        square = (4.0 * np.sinh(noise**-2) if mirrored else np.expm1(noise**-2)) / batches
        errors.append(abs((1.0 - curve(batches, noise, mirrored).overlap().value) / erf(sqrt(square / 8.0)) - 1.0))
    assert errors[2] < 1e-4
    assert errors[0] > errors[1] > errors[2] or errors[0] < 1e-4


@given(batches=batch_numbers, noise=noises, mirrored=st.booleans())
@settings(max_examples=12, deadline=None)
def test_curve_is_a_curve(batches: int, noise: float, mirrored: bool) -> None:
    """H is between its bounds, decreasing and convex in α; error small; TPR increasing and concave."""
    one = curve(batches, noise, mirrored)
    spread = sqrt(8.0 * -np.log1p(-min(allocation.epoch(batches, noise, mirrored).affinity_gap(), 0.999)))
    alphas = np.exp(spread * np.linspace(-1.0, 2.0, 13))
    sticks, errors = one.hockey_sticks(np.log(alphas))
    assert errors.max() <= 1e-8
    assert np.all(sticks >= np.maximum(1.0 - alphas, 0.0) - errors)
    assert np.all(np.diff(sticks) <= errors[1:] + errors[:-1])
    slopes = np.diff(sticks) / np.diff(alphas)
    doubts = (errors[1:] + errors[:-1]) / np.diff(alphas)
    assert np.all(np.diff(slopes) >= -(doubts[1:] + doubts[:-1]) - 1e-9)
    rates, wrong, _ = one.rates(np.array([1e-6, 1e-3, 0.1, 0.5]))
    assert np.all(np.diff(rates) > 0.0)
    assert np.all(wrong <= 1e-4 * rates)


@given(batches=batch_numbers, noise=noises, mirrored=st.booleans(), epochs=st.sampled_from([1, 10, 1000]))
@settings(max_examples=10, deadline=None)
def test_more_noise_or_more_batches_leak_less(batches: int, noise: float, mirrored: bool, epochs: int) -> None:
    value, error = curve(batches, noise, mirrored, epochs).overlap()
    for other in (curve(batches, 1.1 * noise, mirrored, epochs), curve(2 * batches, noise, mirrored, epochs)):
        more, doubt = other.overlap()
        assert more >= value - error - doubt
    assert epochs > 1 or 1.0 - value <= AllocationStep(batches, noise, mirrored, 1).advantage() + error


@pytest.mark.parametrize(("batches", "noise"), [(2, 20.0), (3, 0.25), (40, 1.0), (1000, 0.4), (10_000, 3.0)])
@pytest.mark.parametrize("mirrored", [True, False])
def test_finer_grids_change_nothing(batches: int, noise: float, mirrored: bool) -> None:
    """The density with more nodes, and the transform with more losses, on the vertical that answers."""
    density, finer = EpochDensity(batches, noise, mirrored), EpochDensity(batches, noise, mirrored, density=0.11)
    for first in (True,) if mirrored else (True, False):
        taus = density.farthest[0 if not first else 1] * np.array([0.0, 0.05, 0.3, 0.6])
        values, others = density.at(taus if first else -taus, first)[0], finer.at(taus if first else -taus, first)[0]
        assert np.abs(values - others).max() <= 1e-12 * values.max()
    one, other = allocation.epoch(batches, noise, mirrored), allocation.epoch(batches, noise, mirrored, 0.12)
    heights = one.dies * np.array([0.0, 0.1, 0.3, 0.6])
    for theta in (0.0, 0.5, 1.0):
        assert (
            np.abs(one.excess(theta + 1j * heights) - other.excess(theta + 1j * heights)).max() <= 1e-12 + one.doubt + other.doubt
        )
    assert one.doubt <= 1e-12


@pytest.mark.parametrize(
    ("batches", "noise", "mirrored"), [(30, 0.8, True), (30, 0.8, False), (200, 0.35, True), (7, 3.0, False)]
)
def test_a_game_agrees_and_never_beats_it(batches: int, noise: float, mirrored: bool) -> None:
    """The best attacker's advantage and its rates, played many times in each world."""
    random, games = np.random.default_rng(batches), min(200_000, 4_000_000 // batches)
    one = curve(batches, noise, mirrored)
    losses = []
    for world in (1.0, -1.0 if mirrored else 0.0):
        x = noise * random.standard_normal((games, batches), dtype=np.float32)
        x[np.arange(games), random.integers(batches, size=games)] += world
        x = x.astype(np.float64) / noise**2
        ahead, behind = (np.logaddexp.reduce(sign * x - 0.5 / noise**2, axis=1) for sign in (1.0, -1.0))
        losses.append(ahead - (behind if mirrored else np.log(batches)))
    for tau in (0.0, 0.5):
        hits, alarms = (float(np.mean(loss > tau)) for loss in losses)
        stick = float(one.hockey_sticks(np.array([tau]))[0][0])
        assert abs(hits - np.exp(tau) * alarms - stick) <= 4.0 * (1.0 + np.exp(tau)) * 0.5 / sqrt(games)
        (best,), _, _ = one.rates(np.array([alarms]))
        assert hits <= best + 4.0 * sqrt(best / games) + 4.0 * np.exp(tau) * sqrt(alarms / games)


def test_epochs_compose_with_steps_of_poisson_sampling() -> None:
    """Against the mean of H of the one over the loss of the other, and the affinity, which multiplies."""
    batches, noise = 4, 1.2
    epoch, steps = EpochFactor(1, batches, noise, True), PoissonFactor(6, "line", 0.2, 1.0, 2.0)
    both = FourierCurve([epoch, steps], True)
    law = allocation.epoch(batches, noise, True)
    alone = FourierCurve([steps], True)
    losses, weight = law.loss.real, law.weight.real
    for tau in (0.0, 1.0):
        # ∫ P(dl)·H_{e^{τ-l}} over both halves of the symmetric law
        ahead = (weight * np.exp(losses)) @ alone.hockey_sticks(tau - losses)[0]
        behind = weight @ alone.hockey_sticks(tau + losses)[0]
        stick, error = both.hockey_stick(tau)
        assert stick == pytest.approx(ahead + behind, abs=1e-9 + error)
    gap, other = law.affinity_gap(), steps.transform(False).affinity_gap()
    assert np.exp(both._composition.inside.value.min()) >= (1.0 - gap) * (1.0 - other) ** 6 - 1e-12


class Backwards:
    """Backward induction over the batches of an epoch: the state is W = Σ (X_i - αY_i) so far, on a grid, with values between."""

    def __init__(self, noise: float, alpha: float) -> None:
        self.spread, self.alpha = 1.0 / noise, alpha
        self.states = np.concatenate([-np.geomspace(60.0, 1e-3, 120), [0.0], np.geomspace(1e-3, 400.0, 160)])
        node, weight = np.polynomial.hermite_e.hermegauss(24)
        self.plane = np.stack([one.ravel() for one in np.meshgrid(node, node, indexing="ij")])
        self.weights = np.multiply.outer(weight, weight).ravel() / weight.sum() ** 2

    def likelihood(self, mean: np.ndarray) -> np.ndarray:
        return np.exp(self.spread * (mean @ self.plane) - 0.5 * self.spread**2 * (mean @ mean))

    def step(self, value: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """E[V(W + X - αY)] for gradients a and b in the plane."""
        moved = self.states[:, None] + self.likelihood(a) - self.alpha * self.likelihood(b)
        slope = (value[-1] - value[-2]) / (self.states[-1] - self.states[-2])
        beyond = np.maximum(moved - self.states[-1], 0.0) * slope
        return (np.interp(moved, self.states, value) + beyond) @ self.weights


@pytest.mark.parametrize("alpha", [1.0, 1.7])
@pytest.mark.parametrize("mirrored", [True, False])
def test_attackers_who_adapt_do_not_beat_the_aligned_pair(mirrored: bool, alpha: float) -> None:
    """Three batches; in each of them the two gradients may depend on all outputs before (theory, section 15)."""
    noise, batches = 0.9, 3
    random, game = np.random.default_rng(3), Backwards(noise, alpha)
    plus, minus = np.array([1.0, 0.0]), np.array([-1.0, 0.0]) if mirrored else np.zeros(2)
    best = aligned = np.maximum(game.states, 0.0)
    for _ in range(batches):
        pairs = [(plus, minus)]
        for _ in range(12):
            angles, sizes = random.uniform(0.0, 2.0 * np.pi, 2), np.sqrt(random.uniform(0.0, 1.0, 2))
            a, b = (sizes * np.stack([np.cos(angles), np.sin(angles)])).T
            pairs.append((a, b if mirrored else minus))
        best = np.max([game.step(best, a, b) for a, b in pairs], axis=0)
        aligned = game.step(aligned, plus, minus)
    start = int(np.searchsorted(game.states, 0.0))
    assert best[start] == pytest.approx(aligned[start], rel=2e-4)
    exact = curve(batches, noise, mirrored).hockey_stick(float(np.log(alpha))).value
    assert aligned[start] / batches == pytest.approx(exact, rel=0.02)


def test_extremes_say_what_is_lost() -> None:
    """δ = 1e-12 has few digits, and the interval says so; a thousand epochs; the least noise."""
    low, middle, high = curve(100, 1.0, True).epsilons(np.array([1e-12]))
    assert low[0] < middle[0] < high[0]
    assert 1e-4 < high[0] - low[0] < 0.1
    for batches, noise, epochs in ((10_000, 0.3, 1), (10_000, 20.0, 1000), (10, allocation.LEAST_NOISE, 1)):
        for mirrored in (True, False):
            value, error = curve(batches, noise, mirrored, epochs).overlap()
            assert 0.0 < value < 1.0
            assert error <= 1e-6


def test_the_lower_end_of_a_law_that_is_hardly_gaussian() -> None:
    """Fewer than 100 batches, with deviations that count beyond what a ray that leans to the other side bears."""
    for batches, noise in ((50, 1.2), (20, 1.75), (99, 0.95)):
        one, other = curve(batches, noise, False), EpochFactor(1, batches, noise, False)
        assert other.transform(False).doubt < 1e-11
        # H(Q‖P) at α is 1 - α + α·H(P‖Q) at 1/α.
        back = one.reversed().hockey_stick(0.5).value
        assert back == pytest.approx(1.0 - np.exp(0.5) * (1.0 - one.hockey_stick(-0.5).value), abs=1e-9)
    step = AllocationStep(100, 1.0, True, 3)
    assert step.advantage() >= 1.0 - curve(100, 1.0, True).overlap().value


# Several times an epoch


def likelihood(x: np.ndarray, means: np.ndarray, noise: float, times: int) -> np.ndarray:
    """(1/C(t, k))·Σ over subsets of k batches of Π e^{(m·x - m²/2)/σ²}, by the definition; batches are on the last axis."""
    factors = np.exp((x * means - 0.5 * means**2) / noise**2)
    subsets = list(combinations(range(x.shape[-1]), times))
    return sum(factors[..., list(subset)].prod(axis=-1) for subset in subsets) / len(subsets)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.8])
@pytest.mark.parametrize("mirrored", [True, False])
def test_attackers_who_adapt_do_not_beat_the_aligned_pair_of_several_batches(mirrored: bool, alpha: float) -> None:
    """Two of three batches: each gradient is any function of the outputs before. By quadrature over all outputs."""
    noise, times, random = 0.9, 2, np.random.default_rng(7)
    node, weight = np.polynomial.hermite_e.hermegauss(28)
    x = noise * np.stack(np.meshgrid(node, node, node, indexing="ij"), axis=-1)
    weights = np.einsum("i,j,k->ijk", weight, weight, weight) / weight.sum() ** 3

    def stick(a: np.ndarray, b: np.ndarray) -> float:
        gap = likelihood(x, a, noise, times) - alpha * likelihood(x, b, noise, times)
        return float((np.maximum(gap, 0.0) * weights).sum())

    ones = np.ones_like(x)
    aligned = stick(ones, -ones if mirrored else 0.0 * ones)
    for _ in range(25):
        pair = []
        for _ in range(2):
            first, second, third = (random.uniform(-1.0, 1.0, (4,) * number) for number in (0, 1, 2))
            cell = np.clip(np.searchsorted([-0.7, 0.0, 0.7], x), 0, 3)  # of each output
            means = [np.broadcast_to(first, x.shape[:3]), second[cell[..., 0]], third[cell[..., 0], cell[..., 1]]]
            pair.append(np.stack(means, axis=-1))
        if random.random() < 0.5:  # nearly aligned
            pair = [0.9 * ones + 0.1 * pair[0], -0.9 * ones + 0.1 * pair[1]]
        assert stick(pair[0], pair[1] if mirrored else 0.0 * ones) <= aligned + 2e-3 * abs(aligned)


@pytest.mark.parametrize(("batches", "times", "noise"), [(10, 2, 1.0), (7, 3, 0.7), (12, 11, 3.0)])
@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_several_batches_are_enclosed(batches: int, times: int, noise: float, relation: str) -> None:
    """The best attacker's advantage, played many times in each world by the definition, lies between the two ends."""
    run = bs.DPSGD(noise, times / batches, batches, "balls-in-bins", times_per_epoch=times)
    risk = bs.analyze(run, bs.Membership(relation))
    random, games = np.random.default_rng(batches), 40_000
    mirrored, rates = relation == "substitution", []
    for world in (1.0, -1.0 if mirrored else 0.0):
        x = noise * random.standard_normal((games, batches))
        chosen = np.argsort(random.random((games, batches)), axis=1)[:, :times]
        np.put_along_axis(x, chosen, np.take_along_axis(x, chosen, 1) + world, 1)
        ones = np.ones(batches)
        ahead, behind = (likelihood(x, sign * ones, noise, times) for sign in (1.0, -1.0 if mirrored else 0.0))
        rates.append(float(np.mean(ahead > behind)))
    advantage, doubt = rates[0] - rates[1], 4.0 * sqrt(0.5 / games)
    assert risk.advantage.lower <= advantage + doubt
    assert advantage - doubt <= risk.advantage.upper
    assert risk.advantage.width <= 0.06 * risk.advantage.estimate
    certified = bs.analyze(run, bs.Membership(relation), "certified")
    for metric, at in (("tpr", 0.01), ("delta", 1.0)):
        ends, proved = getattr(risk, metric)(at), getattr(certified, metric)(at)
        assert ends.lower <= ends.estimate <= ends.upper
        assert proved.lower <= ends.upper
        assert proved.upper == pytest.approx(ends.upper, rel=0.02, abs=1e-4)


def test_a_record_in_all_batches_or_in_one_of_them() -> None:
    all_of_them = bs.DPSGD(2.0, 1.0, 12, "balls-in-bins", times_per_epoch=4)
    for threat in (bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference(0.7), bs.Membership(records=3)):
        plain = bs.analyze(bs.DPSGD(2.0, 1.0, 12), threat).bayes_security
        assert plain.estimate in bs.analyze(all_of_them, threat).bayes_security
    assert bs.DPSGD(1.0, 0.1, 10, "balls-in-bins", times_per_epoch=1) == bs.DPSGD(1.0, 0.1, 10, "balls-in-bins")


@pytest.mark.parametrize(
    "threat", [bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference(0.5), bs.Membership(records=2)]
)
def test_more_batches_of_an_epoch_leak_more(threat: bs.Membership) -> None:
    """And with several records, and attributes, all ends are in order."""
    before = 0.0
    for times in (1, 2, 4):
        risk = bs.analyze(bs.DPSGD(2.0, times / 20, 40, "balls-in-bins", times_per_epoch=times), threat).advantage
        assert before < risk.lower <= risk.upper
        before = risk.lower


# Several records of a person


def group_likelihood(x: np.ndarray, far: float, noise: float, records: int) -> np.ndarray:
    """The mean over all ways to allocate the records of Π e^{(n·x - n²/2)/σ²}, n records in a batch, gradients ±1."""
    batches = x.shape[-1]
    total = np.zeros(len(x))
    for places in product(range(batches), repeat=records):
        n = far * np.bincount(places, minlength=batches)
        total += np.exp((x @ n - 0.5 * float(n @ n)) / noise**2)
    return total / batches**records


@pytest.mark.parametrize(("batches", "records", "noise"), [(6, 2, 1.0), (5, 3, 2.0)])
@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_a_person_whose_gradients_are_aligned_stays_inside(batches: int, records: int, noise: float, relation: str) -> None:
    """One epoch, played many times in each world by the definition: the best attacker of this game is below the upper end, which
    is no worse than without sampling, and one whose records have orthogonal gradients is at the lower end or below."""
    random, games, mirrored = np.random.default_rng(records), 40_000, relation == "substitution"
    run = bs.DPSGD(noise, 1 / batches, batches, "balls-in-bins")
    rates = []
    for world in (1.0, -1.0 if mirrored else 0.0):
        held = random.multinomial(records, [1 / batches] * batches, games)
        x = world * held + noise * random.standard_normal((games, batches))
        behind = group_likelihood(x, -1.0, noise, records) if mirrored else 1.0
        rates.append(float(np.mean(group_likelihood(x, 1.0, noise, records) > behind)))
    played, doubt = rates[0] - rates[1], 4.0 * sqrt(0.5 / games)
    open_ = bs.analyze(bs.DPSGD(noise / records, 1.0, 1), bs.Membership(relation)).advantage
    for method in ("exact", "certified") if mirrored else ("exact",):
        ends = bs.analyze(run, bs.Membership(relation, records=records), method).advantage
        assert played - doubt <= ends.upper < open_.lower
        assert ends.upper - ends.lower < 0.35 * ends.upper
        orthogonal = curve(batches, noise, mirrored, records).overlap().value
        assert ends.lower >= 1.0 - orthogonal - 1e-3


@given(batches=st.integers(2, 40), noise=st.floats(0.3, 8.0), records=st.integers(2, 9), times=st.integers(1, 3))
@settings(max_examples=4, deadline=None)
def test_persons_in_bins_are_no_worse_than_without_sampling(batches: int, noise: float, records: int, times: int) -> None:
    times = min(times, batches)
    run = bs.DPSGD(noise, times / batches, batches, "balls-in-bins", times_per_epoch=times)
    for relation in ("substitution", "add-remove"):
        inside = bs.analyze(run, bs.Membership(relation, records=records))
        without = bs.analyze(bs.DPSGD(noise / records, 1.0, times), bs.Membership(relation))
        assert inside.advantage.lower <= inside.advantage.estimate <= inside.advantage.upper
        assert inside.advantage.upper <= without.advantage.upper + 1e-9
        assert inside.epsilon(1e-5).upper <= without.epsilon(1e-5).upper * (1.0 + 1e-6)
        assert inside.tpr(1e-3).upper <= without.tpr(1e-3).upper * (1.0 + 1e-6)


@pytest.mark.parametrize("noise", [3.2, 4.0, 4.7, 6.0])
def test_epochs_of_two_batches(noise: float) -> None:
    """Removal, two batches: E[(2 - X₁ - X₂)₊]/2 of lognormal variables with mean 1, by quadrature over one of them."""
    s = 1.0 / noise

    def shortfall(z: float) -> float:
        room = 2.0 - exp(s * z - 0.5 * s * s)
        edge = (log(room) + 0.5 * s * s) / s if room > 0.0 else -np.inf
        return float(norm.pdf(z) * (room * norm.cdf(edge) - norm.cdf(edge - s)))

    advantage = 0.5 * quad(shortfall, -12.0, (log(2.0) + 0.5 * s * s) / s, epsabs=1e-13, epsrel=1e-13, limit=200)[0]
    found = bs.analyze(bs.DPSGD(noise, 0.5, 2, "balls-in-bins"), bs.Membership("add-remove")).advantage
    assert found.lower <= advantage <= found.upper
    assert found.width < 1e-6
