"""Proofs of the theory page, tried out with arithmetic that shares nothing with betastar's."""

from __future__ import annotations

from math import erf, exp, sqrt

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr

import betastar as bs
from betastar import closed_forms
from betastar.exact import FourierCurve
from betastar.steps import poisson
from betastar.steps.poisson import PoissonFactor


def mixture(points: np.ndarray, mean: np.ndarray, p: float, noise: float) -> np.ndarray:
    """Density of (1-p)N(0,σ²I) + pN(mean,σ²I) at points (…, d)."""
    d = points.shape[-1]
    idle, hit = (np.exp(-((points - m) ** 2).sum(axis=-1) / (2.0 * noise**2)) for m in (np.zeros(d), mean))
    return ((1.0 - p) * idle + p * hit) / (2.0 * np.pi * noise**2) ** (d / 2.0)


@pytest.mark.parametrize(("p", "noise", "distance"), [(0.05, 0.6, 0.4), (0.3, 1.0, 1.5), (1.0, 1.2, 0.9)])
def test_no_random_pair_beats_the_glued_curve(p: float, noise: float, distance: float) -> None:
    """Theorem 1, both orders, α from 1/50 to 50, in the plane: no pair has more to say than two dimensions."""
    random = np.random.default_rng(1)
    axis = np.linspace(-7.0, 7.0, 113) * noise
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    cell = (axis[1] - axis[0]) ** 2
    risk = bs.analyze(bs.DPSGD(noise, p, 1), bs.AttributeInference(distance))
    taus = np.linspace(-np.log(50.0), np.log(50.0), 9)
    above = [risk.delta(abs(t)).upper if t >= 0 else 1 - exp(t) + exp(t) * risk.delta(-t).upper for t in taus.tolist()]
    tried = 0
    while tried < 25:
        a, b = random.uniform(-1.0, 1.0, (2, 2))
        a, b = (v / max(1.0, np.linalg.norm(v)) for v in (a, b))
        if np.linalg.norm(a - b) > distance:
            continue
        tried += 1
        first, second = mixture(points, a, p, noise), mixture(points, b, p, noise)
        divergences = [np.maximum(first - exp(t) * second, 0.0).sum() * cell for t in taus]
        assert np.max(np.array(divergences) - above) < 1e-6


@pytest.mark.parametrize(("p", "noise", "distance"), [(0.01, 0.5, 0.3), (0.2, 1.0, 1.0), (0.9, 2.0, 1.99), (0.5, 0.3, 2.0)])
def test_the_glued_law_is_a_law(p: float, noise: float, distance: float) -> None:
    """Theorem 2: masses add up to 1, the atom is as stated, and the curve has no inward kink at α = 1."""
    start = 1.0 - 0.5 * distance
    first = (1.0 - p) * ndtr(-start / noise) + p * ndtr((1.0 - start) / noise)  # P° and Q° above 1 - R/2
    second = (1.0 - p) * ndtr(-start / noise) + p * ndtr((1.0 - distance - start) / noise)
    atom = (1.0 - p) * erf(start / (sqrt(2.0) * noise))
    assert first + second + atom == pytest.approx(1.0, abs=1e-14)
    assert poisson.glued(p, noise, distance).atom == pytest.approx(atom if distance < 2.0 else 0.0, abs=1e-15)
    assert first - 1.0 <= -second + 1e-15  # slopes at α = 1, from the left and from the right


def test_an_adaptive_adversary_stays_below_the_glued_curve() -> None:
    """Theorem 3 with R < 2: of two steps, the second pair (line either way, or symmetric) is the worst for each first outcome."""
    p, noise, distance = 0.3, 0.8, 1.0
    axis = np.linspace(-6.0, 6.0, 97) * noise
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    cell = (axis[1] - axis[0]) ** 2
    c = sqrt(1.0 - 0.25 * distance**2)
    line, plane = ([1.0, 0.0], [1.0 - distance, 0.0]), ([c, 0.5 * distance], [c, -0.5 * distance])
    pairs = [line, line[::-1], plane]
    worlds = [tuple(mixture(points, np.array(mean), p, noise).ravel() * cell for mean in pair) for pair in pairs]
    best = 0.0
    for first, second in worlds:
        ratios = np.geomspace(1e-4, 1e4, 161)
        rest = [np.max([np.maximum(r * one - other, 0.0).sum() for one, other in worlds]) for r in ratios]
        best = max(best, float(second @ np.interp(first / second, ratios, rest)))
    proved = 1.0 - bs.analyze(bs.DPSGD(noise, p, 2), bs.AttributeInference(distance)).bayes_security.lower
    fixed = bs.analyze(bs.DPSGD(noise, p, 2), bs.AttributeInference(distance)).advantage.estimate
    assert fixed - 1e-3 < best < proved


@pytest.mark.parametrize("tau", [0.0, 0.7])
def test_every_path_gives_the_same_value(tau: float) -> None:
    """Theorem 4: the integrals (8) and (9) by the plain trapezoidal rule on several vertical lines."""
    part = poisson.line(0.2, 0.9, 2.0, wide=True)
    v = np.arange(0.0, 24.0, 0.02)
    curve = FourierCurve([PoissonFactor(4, "line", 0.2, 0.9, 2.0)], True)
    truth = curve.hockey_stick(tau).value
    for theta in (0.15, 0.5, 0.9, 1.2, 1.8):
        z = theta + 1j * np.sinh(v)
        f = ((1.0 + part.excess(z)) ** 4 * np.exp((1.0 - z) * tau) / (z * (1.0 - z)) * np.cosh(v)).real
        integral = 0.02 * (f.sum() - 0.5 * f[0]) / np.pi
        assert (1.0 - integral if theta < 1.0 else -integral) == pytest.approx(truth, abs=1e-8)


def test_the_budget_covers_steps_that_are_chosen_by_history() -> None:
    """Theorem 7: after one step, go on far apart, near, or stop, by what was seen; the affinity stays above e^{-Λ}."""
    p, noise = 0.3, 0.7
    x = np.linspace(-7.0, 7.0, 2001)[:, None] * noise
    first, second = (mixture(x, np.array([mean]), p, noise) for mean in (1.0, -1.0))
    each = {r: poisson.exponent("glued", p, noise, r) for r in (2.0, 1.0, 0.5)}
    largest = each[2.0] + max(each[1.0], 3.0 * each[0.5])
    chosen = np.where(x[:, 0] > 0.5, each[1.0], np.where(x[:, 0] < -1.0, 3.0 * each[0.5], 0.0))
    root = np.sqrt(first * second) * (x[1, 0] - x[0, 0])
    assert root.sum() == pytest.approx(exp(-each[2.0]), rel=1e-6)
    assert root @ np.exp(-chosen) >= exp(-largest)
    assert closed_forms.proved(largest) <= 1.0 - sqrt(1.0 - exp(-2.0 * largest)) + 1e-12


def test_composed_curves_do_not_cover_them() -> None:
    """After three steps, one more or 30 with more noise: the same advantage, and a larger one if the history chooses."""
    p, noise = 0.05, 0.5
    start, one, many = bs.DPSGD(noise, p, 3), bs.DPSGD(noise, p, 1), bs.DPSGD(3.507, p, 30)
    x, w = np.polynomial.legendre.leggauss(90)
    first, second = (mixture(4.0 * x[:, None], np.array([mean]), p, noise) for mean in (1.0, -1.0))
    first, second = first / (w @ first), second / (w @ second)
    mass = np.einsum("i,j,k->ijk", w * second, w * second, w * second).ravel()
    loss = np.log(first / second)
    loss = np.add.outer(np.add.outer(loss, loss), loss).ravel()
    taus = 12.0 * np.linspace(0.0, 1.0, 61) ** 3

    def gains(run: bs.DPSGD) -> np.ndarray:
        """∫(rP - Q)₊ of a continuation, for each history with likelihood ratio r."""
        risk = bs.analyze(run)
        h = PchipInterpolator(taus, [risk.delta(tau).estimate for tau in taus.tolist()])(np.minimum(np.abs(loss), 12.0))
        return np.where(loss < 0.0, np.exp(np.minimum(loss, 0.0)) * h, np.expm1(np.maximum(loss, 0.0)) + h)

    short, long = gains(one), gains(many)
    for chosen, run in ((short, one), (long, many)):
        assert mass @ chosen == pytest.approx(bs.analyze(start + run).advantage.upper, abs=1e-4)
        assert mass @ chosen == pytest.approx(0.1378, abs=1e-4)
    assert mass @ np.maximum(short, long) == pytest.approx(0.1420, abs=1e-4)
