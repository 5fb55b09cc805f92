"""M(z) of one step against a naive twin, and the claims that the quadrature rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from betastar.exact import FourierCurve
from betastar.steps import poisson
from betastar.steps.base import DENSITY
from betastar.steps.poisson import PoissonFactor, one_step_overlap

rates = st.floats(-6.0, 0.0).map(lambda e: 10.0**e)
noises = st.floats(-0.69, 1.5).map(lambda e: 10.0**e)
distances = st.floats(0.05, 2.0)


def naive(p: float, sigma: float, distance: float, z: complex) -> complex:
    """∫ P^z Q^{1-z} on the real line by adaptive quadrature."""
    b = 1.0 - distance

    def density(x: float, mean: float) -> float:
        normal = np.exp(-0.5 * (np.array([0.0, mean]) - x) ** 2 / sigma**2) / (sigma * np.sqrt(2 * np.pi))
        return float((1 - p) * normal[0] + p * normal[1])

    def part(x: float, take: str) -> float:
        first, second = density(x, 1.0), density(x, b)
        if first <= 0.0 or second <= 0.0:
            return 0.0
        return float(getattr(np.exp(z * np.log(first) + (1 - z) * np.log(second)), take))

    low, high = min(b, 0.0) - 9 * sigma, 1.0 + 9 * sigma
    points = sorted({b, 0.0, 1.0, 1.0 - distance / 2})
    return complex(*(quad(part, low, high, args=(take,), points=points, limit=400)[0] for take in ("real", "imag")))


@pytest.mark.parametrize(
    ("p", "sigma", "distance"), [(0.1, 1.0, 2.0), (0.3, 0.6, 1.0), (0.05, 2.0, 0.4), (0.7, 0.8, 1.5), (1.0, 1.5, 2.0)]
)
@pytest.mark.parametrize("z", [0.5, 0.5 + 1j, 0.3 + 2j, 1.4 + 0.5j])
def test_line_pair_against_naive_quadrature(p: float, sigma: float, distance: float, z: complex) -> None:
    for wide in (False, True):
        value = 1.0 + poisson.line(p, sigma, distance, wide).excess(np.array([z], dtype=complex))[0]
        assert value == pytest.approx(naive(p, sigma, distance, z), abs=1e-8)


@pytest.mark.parametrize("z", [0.5, 0.5 + 1.5j, 0.2 + 0.7j])
def test_symmetric_pair_against_a_plane_sum(z: complex) -> None:
    p, sigma, distance = 0.2, 0.9, 0.8
    h = distance / 2
    c = np.sqrt(1 - h * h)
    x, y = np.meshgrid(np.linspace(-9, 11, 1201), np.linspace(-10, 10, 1201), indexing="ij")
    cell = (x[1, 0] - x[0, 0]) * (y[0, 1] - y[0, 0])

    def log_density(mx: float, my: float) -> np.ndarray:
        return np.log(
            (1 - p) * np.exp(-(x**2 + y**2) / 2) + p * np.exp(-((x - mx / sigma) ** 2 + (y - my / sigma) ** 2) / 2)
        ) - np.log(2 * np.pi)

    first, second = log_density(c, h), log_density(c, -h)
    truth = np.exp(z * first + (1 - z) * second).sum() * cell
    value = 1.0 + poisson.symmetric(p, sigma, distance).excess(np.array([z], dtype=complex))[0]
    assert value == pytest.approx(truth, abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(rates, noises, distances)
def test_denser_and_wider_nodes_change_nothing(p: float, sigma: float, distance: float) -> None:
    """The constant in bounds.exact for the error of the nodes, with room: relative to M - 1 over the bulk of u."""
    for build in (poisson.line, poisson.glued):
        plain = build(p, sigma, distance)
        spread = np.sqrt(plain.moments(np.array([0.5]))[2][0])
        z = 0.5 + 1j * np.array([0.3, 1.0, 3.0]) / spread
        reference = build(p, sigma, distance, False, 0.5 * DENSITY).excess(z)
        rounding = 1e-15 * np.abs(z) * spread  # first-order terms cancel
        assert np.all(np.abs(plain.excess(z) - reference) <= 1e-9 * np.abs(reference) + rounding)
        assert np.all(np.abs(build(p, sigma, distance, True).excess(z) - reference) <= 2e-9 * np.abs(reference) + rounding)


@settings(max_examples=40, deadline=None)
@given(rates, noises, distances, st.floats(0.0, 1.0))
def test_reversal_exchanges_z_and_one_minus_z(p: float, sigma: float, distance: float, theta: float) -> None:
    line = poisson.line(p, sigma, distance, True)
    there, back = line.moments(np.array([1.0 - theta])), line.reversed().moments(np.array([theta]))
    assert back[0] == pytest.approx(there[0], rel=1e-6, abs=2e-9)


def test_glued_equals_line_at_distance_two() -> None:
    assert np.array_equal(poisson.glued(0.1, 1.0, 2.0).loss, poisson.line(0.1, 1.0, 2.0).loss)
    near = poisson.glued(0.1, 1.0, 2.0 - 1e-9).affinity_gap()
    assert near == pytest.approx(poisson.line(0.1, 1.0, 2.0).affinity_gap(), rel=1e-7)


@settings(max_examples=40, deadline=None)
@given(rates, noises, distances)
def test_affinity_gap_is_minus_the_excess_at_one_half(p: float, sigma: float, distance: float) -> None:
    for build in (poisson.line, poisson.glued):
        transform_of_pair = build(p, sigma, distance)
        assert transform_of_pair.affinity_gap() == pytest.approx(
            -transform_of_pair.moments(np.array([0.5]))[0][0], rel=1e-6, abs=1e-13
        )


def test_small_rate_expansion_of_the_exponent() -> None:
    """λ ≈ (p²/2)·sinh(1/σ²) at R = 2 (theory, section 5), and (p²/8)(e^{1/σ²} - 1) for add/remove."""
    for sigma in (0.7, 1.0, 3.0):
        p = 1e-5
        assert poisson.line(p, sigma, 2.0).affinity_gap() == pytest.approx(p * p / 2 * np.sinh(sigma**-2), rel=2e-3)
        assert poisson.line(p, sigma, 1.0).affinity_gap() == pytest.approx(p * p / 8 * np.expm1(sigma**-2), rel=2e-3)


def test_no_pair_of_the_plane_leaks_more_than_the_glued_curve() -> None:
    """Hockey-stick divergences and squared Hellinger distance of random admissible pairs, by brute force."""
    rng = np.random.default_rng(1)
    x, y = np.meshgrid(np.linspace(-8, 9, 341), np.linspace(-8, 8, 321), indexing="ij")
    cell = (x[1, 0] - x[0, 0]) * (y[0, 1] - y[0, 0])
    for _ in range(40):
        p, sigma = 10 ** rng.uniform(-2, 0), rng.uniform(0.7, 3.0)
        a = rng.normal(size=2)
        a *= rng.uniform() ** 0.5 / np.linalg.norm(a)
        b = rng.normal(size=2)
        b *= rng.uniform() ** 0.5 / np.linalg.norm(b)
        distance = float(np.linalg.norm(a - b))

        def density(mean: np.ndarray, p: float = p, sigma: float = sigma) -> np.ndarray:
            idle = np.exp(-(x**2 + y**2) / 2)
            return ((1 - p) * idle + p * np.exp(-((x - mean[0] / sigma) ** 2 + (y - mean[1] / sigma) ** 2) / 2)) / (2 * np.pi)

        glued = FourierCurve([PoissonFactor(1, "glued", p, sigma, distance)], True)
        for alpha in (0.01, 0.3, 0.9, 1.1, 2.0, 10.0):
            stick = np.maximum(density(a) - alpha * density(b), 0.0).sum() * cell
            assert stick <= glued.hockey_stick(float(np.log(alpha))).value + 1e-6
        gap = 0.5 * ((np.sqrt(density(a)) - np.sqrt(density(b))) ** 2).sum() * cell
        assert gap <= poisson.glued(p, sigma, distance).affinity_gap() * (1 + 1e-6)
        overlap = np.minimum(density(a), density(b)).sum() * cell
        assert overlap >= one_step_overlap(p, sigma, distance) - 1e-6
