"""Batches of a fixed size: which pairs of gradients there are, that cells cover them, and the figures of the worst case."""

from __future__ import annotations

from math import asin, cos, pi, sin, sqrt
from typing import Any

import numpy as np
import pytest

import betastar as bs
from betastar.steps import FixedSizeStep
from betastar.steps.poisson import GradientPair


def triple(random: np.random.Generator, distance: float) -> tuple[Any, Any]:
    """a - g and b - g of three random points of the unit disc, with ‖a - b‖ ≤ R."""
    while True:
        points = random.uniform(-1.0, 1.0, (3, 2))
        if random.random() < 0.5:
            points /= np.linalg.norm(points, axis=1, keepdims=True)
        g, a, b = points
        if np.all(np.linalg.norm(points, axis=1) <= 1.0 + 1e-12) and np.linalg.norm(a - b) <= distance:
            return a - g, b - g


def family(distance: float, sigma: float) -> list[tuple[Any, Any]]:
    """Fine nodes of the triangles that matter, made here from their angles, in both orders."""
    found = []
    largest = asin(0.5 * distance)
    for theta in np.linspace(0.0, 0.5 * pi - largest, 25):
        a = 2.0 * np.array([sin(theta), cos(theta)])
        found.append((a, a - np.array([0.0, distance])))
    for gamma in np.linspace(0.02, 1.0, 25) * largest:
        for beta in np.linspace(0.5 * (pi - gamma), 0.5 * pi, 13):
            u, v = 2.0 * sin(beta), 2.0 * sin(beta + gamma)
            found.append((np.array([u, 0.0]), v * np.array([cos(gamma), sin(gamma)])))
    return [(a / sigma, b / sigma) for a, b in found] + [(b / sigma, a / sigma) for a, b in found]


@pytest.mark.parametrize("distance", [0.6, 1.3, 2.0])
def test_no_triple_in_the_ball_beats_the_triangles_that_matter(distance: float) -> None:
    """Against random concave functions of the two densities, as in the test of the pairs of Poisson sampling."""
    random = np.random.default_rng(8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    plane = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / (2.0 * np.pi)
    for _ in range(6):
        p, sigma = random.uniform(0.02, 0.9), random.uniform(1.6, 4.0)
        slopes, shares = np.exp(random.normal(size=3)), random.dirichlet(np.ones(3))

        def value(a: Any, b: Any, p: float = p, slopes: Any = slopes, shares: Any = shares) -> float:
            x, y = (1.0 - p + p * np.exp(plane @ m - 0.5 * m @ m) for m in (a, b))
            return float(
                sum(share * (mass @ (x * y * slope / (x + slope * y))) for slope, share in zip(slopes, shares, strict=True))
            )

        least = min(value(a, b) for a, b in family(distance, sigma))
        tried = [triple(random, distance) for _ in range(150)]
        assert min(value(a / sigma, b / sigma) for a, b in tried) >= least - 2e-5


@pytest.mark.parametrize("distance", [1.6, 2.0])
def test_cells_cover_the_triangles_on_the_circle(distance: float) -> None:
    """Each triangle has norms that are not larger, and a scalar product that is not smaller, than those of some cell's pair."""
    step = FixedSizeStep(0.1, 0.5, 0.5 * distance, 1)
    covering = np.array([_products(pair, 0.5) for pair in step.covering_pairs(6)])
    random = np.random.default_rng(1)
    for _ in range(2000):
        gamma = random.uniform(1e-6, 1.0) * asin(0.5 * distance)
        beta = random.uniform(0.5 * (pi - gamma), 0.5 * pi)
        alpha = pi - beta - gamma
        mine = sin(beta) ** 2, sin(alpha) ** 2, sin(alpha) * sin(beta) * cos(gamma)
        room = covering - np.array(mine)
        assert np.any((room[:, 0] >= -1e-9) & (room[:, 1] >= -1e-9) & (room[:, 2] <= 1e-9))


def _products(pair: GradientPair, noise: float) -> tuple[float, float, float]:
    across, first, second = (noise * part for part in pair)
    return across**2 + first**2, across**2 + second**2, across**2 + first * second


@pytest.mark.parametrize("distance", [0.3, 1.0, 2.0])
def test_pairs_that_are_claimed_to_exist_fit_into_the_ball(distance: float) -> None:
    for pair in FixedSizeStep(0.1, 0.5, 0.5 * distance, 1).existing_pairs(7):
        u2, v2, scalar = (4.0 * one for one in _products(pair, 0.5))  # in clipping norms
        d2 = u2 + v2 - 2.0 * scalar
        assert d2 <= distance**2 + 1e-9
        sides = sorted((u2, v2, d2))
        if sides[0] + sides[1] <= sides[2] + 1e-12:
            assert sides[2] <= 4.0 + 1e-9
        else:
            area = 0.5 * sqrt(max(u2 * v2 - scalar**2, 1e-300))
            assert sqrt(u2 * v2 * d2) / (4.0 * area) <= 1.0 + 1e-9


def test_figures_of_a_fixed_size() -> None:
    """100 of 1000, noise 1, 20 steps: the best fixed pair has .4671, one who adapts .517, pairs of the doubled ball .5430."""
    run = bs.DPSGD(1.0, 0.1, 20, "fixed-size")
    risk = bs.analyze(run).advantage
    assert 0.510 < risk.lower < 0.5172
    assert 0.5155 < risk.upper < 0.536
    attribute = bs.analyze(run, bs.AttributeInference(1.0)).advantage
    assert 0.360 < attribute.lower < 0.3631
    assert 0.3620 < attribute.upper < 0.3670


@pytest.mark.slow
def test_certified_figures_of_a_fixed_size() -> None:
    run = bs.DPSGD(1.0, 0.1, 20, "fixed-size")
    risk = bs.analyze(run, method="certified").advantage
    assert 0.5140 < risk.lower < 0.5172
    assert 0.5155 < risk.upper < 0.5300
    attribute = bs.analyze(run, bs.AttributeInference(1.0), method="certified").advantage
    assert 0.3610 < attribute.lower < 0.3631
    assert 0.3628 < attribute.upper < 0.3640
