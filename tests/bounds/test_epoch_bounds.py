"""One epoch of random allocation from both sides: against integrals, closed forms, plain convolution and attackers who adapt."""

from __future__ import annotations

from itertools import pairwise
from math import exp, expm1, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import betastar as bs
from betastar.exact import FourierCurve
from betastar.steps import epoch_bounds
from betastar.steps.allocation import EpochFactor
from betastar.steps.epoch_bounds import Direction, EpochCurve, epoch_curve

from .test_allocation import Backwards


def below(curve: EpochCurve, losses: np.ndarray) -> np.ndarray:
    gain, mass = curve.tails(False)(losses)
    return np.maximum(gain - np.expm1(losses) * mass, 0.0)


def above(curve: EpochCurve, losses: np.ndarray) -> np.ndarray:
    value, mass = curve.tails(True)(losses)
    assert not mass.any()
    return value


@given(
    batches=st.floats(0.31, 4.0).map(lambda e: round(10.0**e)),
    noise=st.floats(-0.4, 1.0).map(lambda e: 10.0**e),
    direction=st.sampled_from(["replaced", "added", "removed"]),
)
@settings(max_examples=3, deadline=None)
def test_encloses_the_integral(batches: int, noise: float, direction: Direction) -> None:
    """At its own thresholds, between them, and beyond the last one."""
    curve = epoch_curve(batches, noise, direction)
    exact = FourierCurve(
        [EpochFactor(1, batches, noise, direction == "replaced", direction == "removed")], direction == "replaced"
    )
    losses = np.concatenate([curve.losses[::7], 0.37 * curve.losses[1::9], [1.5 * curve.losses[-1]]])
    sticks, errors = exact.hockey_sticks(losses)
    assert np.all(sticks - errors <= above(curve, losses))
    assert np.all(below(curve, losses) <= sticks + errors)
    assert above(curve, losses[:1])[0] - below(curve, losses[:1])[0] <= 1.5e-4 * sticks[0] + 1e-9


@pytest.mark.parametrize("noise", [0.45, 1.0, 5.0])
def test_two_batches_by_substitution_are_one_gaussian(noise: float) -> None:
    """A closed form: μ = √2/σ."""
    curve, mu = epoch_curve(2, noise, "replaced"), sqrt(2.0) / noise
    losses = np.linspace(0.0, 2.0 * mu, 9)
    sticks = ndtr(mu / 2 - losses / mu) - np.exp(losses) * ndtr(-mu / 2 - losses / mu)
    assert np.all(sticks <= above(curve, losses) + 1e-15)
    assert np.all(below(curve, losses) <= sticks + 1e-15)
    assert above(curve, losses[:1])[0] - below(curve, losses[:1])[0] <= 1e-4


@pytest.mark.parametrize("direction", ["replaced", "added", "removed"])
def test_against_plain_convolution(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lattice, its masses from sampled outcomes and summed without a Fourier transform."""
    seen = {}
    original = epoch_bounds._tail_of_sum

    def spied(masses: np.ndarray, index: np.ndarray, d: float, count: int) -> object:
        seen.update(masses=masses, index=index, d=d)
        return original(masses, index, d, count)

    monkeypatch.setattr(epoch_bounds, "_tail_of_sum", spied)
    monkeypatch.setattr(epoch_bounds, "CELLS", 1 << 9)
    s, loss, t = 0.8, 0.3, 4
    line = epoch_bounds._line(t, s, loss, direction, 2.0)
    index, d, masses = seen["index"], seen["d"], seen["masses"]
    # Naive: split each of many outcomes between the nodes around it.
    x, width = np.linspace(-9.0, 9.0, 400_001, retstep=True)
    density = np.exp(-0.5 * x * x) / sqrt(2.0 * np.pi) * width
    alpha, record = exp(loss), np.exp(s * x - 0.5 * s * s)
    z = {
        "replaced": record - alpha * np.exp(-s * x - 0.5 * s * s),
        "added": record - alpha,
        "removed": 1.0 - alpha * record,
    }[direction]
    k = d * index
    held = np.clip(z, k[0], k[-1])
    cell = np.clip(np.searchsorted(k, held, side="right") - 1, 0, len(k) - 2)
    share = (held - k[cell]) / (k[cell + 1] - k[cell])
    naive = np.bincount(cell, density * (1.0 - share), len(k)) + np.bincount(cell + 1, density * share, len(k))
    assert naive == pytest.approx(masses, abs=2e-4)
    assert naive @ k == pytest.approx(masses @ k, abs=1e-7)
    dense = np.zeros(index[-1] - index[0] + 1)
    dense[index - index[0]] = masses
    total = np.array([1.0])
    for _ in range(t):
        total = np.convolve(total, dense)
    sums = d * (t * index[0] + np.arange(len(total)))
    excess = np.maximum(z - k[-1], 0.0) @ density
    assert line.above == pytest.approx(float(np.maximum(sums, 0.0) @ total) / t + excess, rel=1e-6)


@pytest.mark.parametrize(
    ("noise", "batches", "epochs", "relation"),
    [(1.0, 100, 10, "substitution"), (0.6, 50, 3, "substitution"), (2.0, 20, 20, "add-remove"), (3.0, 1000, 200, "add-remove")],
)
def test_a_certified_run_encloses_the_exact_one(noise: float, batches: int, epochs: int, relation: str) -> None:
    run, threat = bs.DPSGD(noise, 1 / batches, batches * epochs, "balls-in-bins"), bs.Membership(relation)
    certified, exact = bs.analyze(run, threat, "certified"), bs.analyze(run, threat)
    beta = certified.bayes_security
    assert beta.lower <= exact.bayes_security.lower + 1e-12
    assert exact.bayes_security.upper <= beta.upper + 1e-12
    assert beta.width <= 1.5e-4
    for metric, at in (("tpr", 0.01), ("delta", 1.0), ("epsilon", 1e-5)):
        proved, integral = getattr(certified, metric)(at), getattr(exact, metric)(at)
        assert proved.lower <= integral.estimate <= proved.upper
        assert proved.upper <= 1.01 * integral.estimate + 1e-7  # hockey sticks are known to some 1e-10 an epoch


@pytest.mark.parametrize(
    ("noise", "epochs", "batches", "delta", "low", "high"),
    [(3.0, 10, 10, 1e-6, 1.4575, 1.5257), (3.0, 5, 20, 1e-6, 0.6927, 0.7233), (1.0, 1, 100, 1e-5, 0.6085, 0.6357)],
)
def test_within_the_brackets_of_others(noise: float, epochs: int, batches: int, delta: float, low: float, high: float) -> None:
    """ε of add/remove, which another package encloses; ours is narrower."""
    run = bs.DPSGD(noise, 1 / batches, batches * epochs, "balls-in-bins")
    for method in ("exact", "certified"):
        epsilon = bs.analyze(run, bs.Membership("add-remove"), method).epsilon(delta)
        assert low <= epsilon.lower <= epsilon.upper <= high


@pytest.mark.parametrize("distance", [0.3, 1.0, 1.6])
def test_the_curve_of_a_distance_is_above_attackers_who_adapt(distance: float) -> None:
    """Three batches; in each of them any two gradients at this distance, chosen by all outputs before. And pairs do no more."""
    noise, batches, alpha = 0.9, 3, 1.4
    random, game = np.random.default_rng(5), Backwards(noise, alpha)
    pairs = [(np.array([1.0, 0.0]), np.array([1.0 - distance, 0.0])), (np.array([distance - 1.0, 0.0]), np.array([-1.0, 0.0]))]
    height = sqrt(1.0 - distance**2 / 4)
    pairs += [(np.array([distance / 2, height]), np.array([-distance / 2, height]))]
    while len(pairs) < 12:
        a, turn = random.uniform(-1.0, 1.0, 2), random.uniform(0.0, 2.0 * np.pi)
        b = a + distance * np.array([np.cos(turn), np.sin(turn)])
        if max(a @ a, b @ b) <= 1.0:
            pairs.append((a, b))
    best = np.maximum(game.states, 0.0)
    for _ in range(batches):
        best = np.max([game.step(best, a, b) for a, b in pairs], axis=0)
    start = int(np.searchsorted(game.states, 0.0))
    value = above(epoch_curve(batches, noise, "replaced", distance), np.array([log(alpha)]))[0]
    assert best[start] / batches <= 1.001 * value
    assert value <= 1.5 * best[start] / batches  # and it is no empty bound


def test_the_curve_of_a_distance_grows_up_to_that_of_opposite_gradients() -> None:
    losses = np.array([0.0, 0.1, 0.4])
    curves = [above(epoch_curve(20, 1.0, "replaced", distance), losses) for distance in (1e-3, 0.5, 1.999999, 2.0)]
    assert all(np.all(few < many * (1.0 + 1e-3) + 1e-9) for few, many in pairwise(curves))
    assert curves[2][:2] == pytest.approx(curves[3][:2], rel=1e-3)  # fewer thresholds than for opposite gradients
    assert 0.0 < curves[0][0] < 1e-3


@pytest.mark.parametrize(("noise", "batches", "epochs", "distance"), [(1.0, 5, 4, 0.5), (1.0, 100, 3, 1.0)])
def test_attributes_in_bins_leak_less_than_without_sampling(noise: float, batches: int, epochs: int, distance: float) -> None:
    run, threat = bs.DPSGD(noise, 1 / batches, batches * epochs, "balls-in-bins"), bs.AttributeInference(distance)
    advantage = bs.analyze(run, threat).advantage
    open_ = bs.analyze(bs.DPSGD(noise, 1.0, epochs), threat).advantage
    assert advantage.lower < advantage.upper < 0.8 * open_.estimate
    certified = bs.analyze(run, threat, "certified").advantage
    assert advantage.estimate in bs.Bound(certified.lower, 0.0, certified.upper)
    assert certified.upper == pytest.approx(advantage.upper, rel=1e-6)


def test_the_convex_order_of_the_glued_term() -> None:
    """E(Z - k)₊ of the law on the lattice is not below that of any pair at the distance, at any k, and the mean is 1 - α."""
    s, alpha, distance = 1.1, 1.3, 0.7
    k = np.linspace(-30.0, 30.0, 6001)
    k[3000] = 0.0
    cells = epoch_bounds._cells(k, s, alpha, "replaced", distance)
    assert cells.plain.sum() + cells.atom == pytest.approx(1.0)
    mean = float((cells.first - alpha * cells.second).sum())
    assert mean == pytest.approx(-expm1(log(alpha)), abs=1e-12)
    x, y = np.meshgrid(np.linspace(-8.0, 8.0, 401), np.linspace(-8.0, 8.0, 401))
    weight = np.exp(-0.5 * (x * x + y * y)) * (16.0 / 400) ** 2 / (2.0 * np.pi)
    first = cells.first - alpha * cells.second
    for place in (2000, 2900, 3000, 3100, 4500):
        level = k[place]
        potential = float(first[place + 1 :].sum() - level * cells.plain[place + 1 :].sum())
        if level < 0.0:
            potential -= level * cells.atom
        for angle in np.linspace(0.0, np.arccos(distance / 2), 5):
            for swap in (1.0, -1.0):
                a, b = np.array([np.sin(angle), np.cos(angle)]), np.array([np.sin(angle), np.cos(angle) - distance])
                a, b = (a, b) if swap > 0 else (b, a)
                z = np.exp(s * (a[0] * y + a[1] * x) - 0.5 * s * s * (a @ a))
                z -= alpha * np.exp(s * (b[0] * y + b[1] * x) - 0.5 * s * s * (b @ b))
                assert float((np.maximum(z - level, 0.0) * weight).sum()) <= potential + 1e-4 * (1.0 + potential)


@pytest.mark.filterwarnings("ignore:The certified interval")
@pytest.mark.parametrize("noise", [0.1, 0.26])
@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_little_noise_leaves_what_is_known_without_sampling(noise: float, relation: str) -> None:
    """Each record is in a batch that everybody may know: ε of both methods is finite, and no larger than that."""
    run, threat = bs.DPSGD(noise, 0.1, 10, "balls-in-bins"), bs.Membership(relation)
    known = bs.analyze(bs.DPSGD(noise, 1.0, 1), threat).epsilon(1e-5).upper
    exact, certified = (bs.analyze(run, threat, method).epsilon(1e-5) for method in ("exact", "certified"))
    assert exact.lower <= exact.upper <= known * 1.001
    assert exact.lower <= certified.upper <= known * 1.03
    assert certified.lower <= exact.upper
