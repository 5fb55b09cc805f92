"""Mixtures of Gaussians: transforms, curves and grids against naive sums, and adversaries against the aligned pair."""

from __future__ import annotations

from math import exp, pi, sqrt

import numpy as np
import pytest

import betastar as bs
from betastar.certified.grid import Nodes, on_grid
from betastar.exact import FourierCurve
from betastar.steps import MixtureStep
from betastar.steps.group import MixtureFactor, group_step, mixture, worlds_of


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
    curve = FourierCurve([MixtureFactor(1, step)], step.mirrored)
    for one, naive in zip((curve, curve.reversed()), naive_curve(step, taus), strict=True):
        assert one.hockey_sticks(taus)[0] == pytest.approx(naive, abs=2e-9)


@pytest.mark.parametrize("step", MIXTURES)
def test_transform_against_naive_quadrature(step: MixtureStep) -> None:
    x = np.linspace(-step.shifts[-1] - 12.0 * step.noise, step.shifts[-1] + 12.0 * step.noise, 200_001)
    worlds = worlds_of(step)
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


@pytest.mark.parametrize(
    ("records", "rate", "noise", "steps", "mirrored"),
    [(8, 0.6, 0.3, 3, True), (8, 0.6, 0.3, 3, False), (20, 0.0713, 0.1666, 8, True), (3, 0.08, 0.1375, 6, False)],
)
def test_losses_that_overflow(records: int, rate: float, noise: float, steps: int, mirrored: bool) -> None:
    """Where e^L does not fit into a number for some outcomes, paths at different heights agree, and the grid encloses them."""
    step = group_step(records, rate, noise, mirrored, steps)
    lower = MixtureStep(step.weights, step.shifts, noise, mirrored, steps)
    one, other = (FourierCurve([MixtureFactor(steps, each)], mirrored).overlap() for each in (step, lower))
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
    most, _ = FourierCurve([MixtureFactor(1, group_step(2, p, noise, mirrored, 1))], mirrored).hockey_sticks(taus)
    for _ in range(150):
        angles, norms = random.uniform(0.0, 2.0 * pi, 4), np.minimum(random.uniform(0.0, 1.6, 4), 1.0)
        vectors = [r * np.array([np.cos(a), np.sin(a)]) for r, a in zip(norms, angles, strict=True)]
        first, other = world(vectors[:2]), world(vectors[2:] if mirrored else [np.zeros(2)] * 2)
        sticks = np.array([np.maximum(first - exp(t) * other, 0.0).sum() * cell for t in taus])
        assert np.all(sticks <= most + 1e-9)


def test_tails_on_the_grid_enclose_the_curve() -> None:
    for step in (group_step(6, 0.1, 0.7, True, 10), group_step(6, 0.1, 0.7, False, 10)):
        above, below = (on_grid(step, Nodes(0.05), step.mirrored, side, 1e-12) for side in (True, False))
        exact = FourierCurve([MixtureFactor(1, step)], step.mirrored)
        for tau in (0.0, 0.31, 1.0, 2.5):
            values = []
            for grid in (below, above):
                losses = grid.base + 0.05 * grid.ahead_index
                mass = np.append(np.exp(losses) * grid.ahead, [])
                values.append(float(np.maximum(1.0 - np.exp(tau - losses), 0.0) @ mass) + grid.ahead_infinite)
            assert values[0] <= exact.hockey_stick(tau).value + 1e-14
            assert exact.hockey_stick(tau).value <= values[1] + 1e-14
