"""The adaptive worst case of attribute inference: proved, attained, and computed in ways that share nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import cos, sin
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar.certified import adaptive, enclosure, kernels
from betastar.certified.adaptive import Fineness, fineness_for
from betastar.exact import FourierCurve
from betastar.steps.base import Family
from betastar.steps.poisson import PoissonFactor, PoissonStep
from tests.golden.adaptive import values

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "adaptive.json").read_text())
#: Coarse, for tests that solve often.
SMALL = Fineness((13, 5), inflation=0.005, cells=(0.2, 0.08))


def solve(rate: float, noise: float, distance: float, count: int, fineness: Fineness = SMALL) -> adaptive.Solution:
    solution = adaptive.solve([PoissonStep(rate, noise, distance, count)], fineness)
    assert solution is not None
    assert solution.below is not None
    return solution


def ends(solution: adaptive.Solution) -> tuple[float, float]:
    assert solution.below is not None
    return float(solution.below.values[0]), float(solution.above.values[0])


def fixed_pairs(rate: float, noise: float, distance: float, steps: int) -> float:
    """The advantage of the better of two attackers who do not adapt."""
    pairs: tuple[tuple[Family, bool], ...] = (("line", False), ("symmetric", True))
    curves = [FourierCurve([PoissonFactor(steps, family, rate, noise, distance)], symmetric) for family, symmetric in pairs]
    return max(1.0 - curve.overlap().value for curve in curves)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["setting"]))
def test_encloses_the_golden_value(row: dict[str, Any]) -> None:
    """Against the programme as it is written, with quadrature over the plane and splines (golden/adaptive.py)."""
    low, high = ends(solve(*row["setting"], fineness_for(row["setting"][3])))
    assert low - row["error"] <= row["advantage"] <= high + row["error"]
    assert high <= 1.004 * low


@pytest.mark.parametrize(
    ("rate", "noise", "distance", "steps", "most"),
    [
        (0.01, 1.0, 1.0, 1000, 0.1795),
        (0.01, 3.51, 0.97, 2020, 0.0513),
        (0.0098, 0.8, 0.3, 2040, 0.166),
        (0.001, 1.0, 0.3, 50000, 0.0525),
        (0.3, 0.8, 1.0, 6, 0.4092),
    ],
)
def test_the_interval_is_narrow(rate: float, noise: float, distance: float, steps: int, most: float) -> None:
    low, high = ends(solve(rate, noise, distance, steps, fineness_for(steps)))
    assert high <= most
    assert low <= high <= 1.02 * low


@pytest.mark.parametrize(
    ("rate", "noise", "distance", "count"),
    [
        (0.3, 0.8, 1.0, 6),
        (0.01, 1.0, 0.3, 300),
        (0.05, 0.6, 1.7, 40),
        (0.5, 4.0, 0.8, 100),
        (0.002, 2.0, 0.05, 900),
        (0.9, 1.5, 0.2, 12),
    ],
)
def test_lies_between_fixed_pairs_and_the_glued_curve(rate: float, noise: float, distance: float, count: int) -> None:
    """For every threshold, not only for β*."""
    solution = solve(rate, noise, distance, count)
    assert solution.below is not None
    exact = bs.analyze(bs.DPSGD(noise, rate, count), bs.AttributeInference(distance))
    low, high = ends(solution)
    assert low <= high
    assert low <= exact.advantage.upper + 1e-9, "the glued curve dominates what is attained"
    assert high >= exact.advantage.estimate - 1e-9, "a fixed pair is an adversary, too"
    for epsilon in (0.1, 0.7):
        delta = exact.delta(epsilon)
        assert solution.above.hockey_stick(epsilon).value >= delta.estimate - 1e-9
        assert solution.below.hockey_stick(epsilon).value <= delta.upper + 1e-9
        assert solution.below.hockey_stick(epsilon).value <= solution.above.hockey_stick(epsilon).value
    for fpr in (1e-3, 0.05, 0.4):
        assert fpr <= solution.below.true_positives(fpr).value <= solution.above.true_positives(fpr).value


def test_blocks_agree_with_single_steps() -> None:
    for setting in ((0.02, 0.8, 0.5, 300), (0.2, 2.0, 1.2, 200)):
        low, high = ends(solve(*setting, replace(SMALL, share=0.0, pause=0.0)))
        for share in (0.05, 0.15, 0.4):
            block_low, block_high = ends(solve(*setting, replace(SMALL, share=share, pause=share / 5)))
            assert high - 1e-12 <= block_high <= 1.02 * high, "blocks are on the safe side of single steps"
            assert 0.98 * low <= block_low <= high, "a strategy that chooses less often"


@pytest.mark.slow
def test_refinement_narrows() -> None:
    setting, widths = (0.05, 0.9, 0.6, 40), []
    for angles, inflation, cell in ((5, 0.02, 0.2), (9, 0.005, 0.1), (17, 0.00125, 0.05), (33, 0.0003, 0.025)):
        low, high = ends(solve(*setting, Fineness((angles, 9), inflation=inflation, cells=(cell, cell))))
        widths.append(high - low)
    assert all(after < 0.5 * before for before, after in pairwise(widths)), widths


def test_distance_two_is_membership() -> None:
    exact = bs.analyze(bs.DPSGD(1.0, 0.05, 200)).advantage.estimate
    low, high = ends(solve(0.05, 1.0, 2.0, 200))
    assert low <= exact <= high <= 1.02 * low


def test_grows_with_the_distance_and_the_steps() -> None:
    for settings_ in ([(0.05, 1.0, r, 60) for r in (0.1, 0.5, 0.9, 1.3, 1.8)], [(0.05, 1.0, 0.5, n) for n in (2, 10, 50, 250)]):
        advantages = [ends(solve(*one)) for one in settings_]
        assert all(before[1] < after[0] for before, after in pairwise(advantages))


def test_other_pairs_do_no_more() -> None:
    """Random admissible pairs in three dimensions against the family, for random mixtures of thresholds (theory, section 11)."""
    rng = np.random.default_rng(5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    plane = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / (2.0 * np.pi)

    def value(p: float, a: Any, b: Any, slopes: Any, shares: Any) -> float:
        """E[g] for g(x, y) = Σ share·softmin(x, slope·y), smooth so that Gauss-Hermite is accurate."""
        x, y = (1.0 - p + p * np.exp(plane @ m - 0.5 * m @ m) for m in (a, b))
        return float(sum(share * (mass @ (x * y * slope / (x + slope * y))) for slope, share in zip(slopes, shares, strict=True)))

    for _ in range(40):
        p, sigma, distance = rng.uniform(0.02, 0.9), rng.uniform(0.8, 3.0), rng.uniform(0.1, 1.9)
        slopes, shares = np.exp(rng.normal(size=3)), rng.dirichlet(np.ones(3))
        family = []
        for theta in PoissonStep(p, sigma, distance, 1).angles(41):
            a = np.array([sin(theta), cos(theta)]) / sigma
            b = a - np.array([0.0, distance / sigma])
            family += [value(p, a, b, slopes, shares), value(p, b, a, slopes, shares)]
        for _ in range(25):
            a, b = (v / np.linalg.norm(v) * rng.uniform() ** (1 / 3) for v in rng.normal(size=(2, 3)))
            if np.linalg.norm(a - b) > distance:
                b = a + (b - a) * distance / np.linalg.norm(a - b)
            length, along = np.linalg.norm(a), a @ b / np.linalg.norm(a)  # only the scalar products count
            flat = np.array([length, 0.0]) / sigma, np.array([along, np.sqrt(max(b @ b - along**2, 0.0))]) / sigma
            assert value(p, *flat, slopes, shares) >= min(family) - 1e-6


def hockey_stick(p: float, noise: float, distance: float, theta: float, alphas: Any) -> Any:
    """H_α(P‖Q) of a pair by a fine sum over the plane."""
    a = np.array([sin(theta), cos(theta)]) / noise
    b = a - np.array([0.0, distance / noise])
    s, t = np.arange(-8.0, a[0] + 8.0, 0.04), np.arange(min(b[1], 0.0) - 8.0, a[1] + 8.0, 0.01)
    base = np.exp(-0.5 * s**2)[:, None] * np.exp(-0.5 * t**2)[None, :] * 0.04 * 0.01 / (2.0 * np.pi)
    x, y = (1.0 - p + p * np.exp(m[0] * s[:, None] + m[1] * t[None, :] - 0.5 * m @ m) for m in (a, b))
    return np.array([float((base * np.maximum(x - alpha * y, 0.0)).sum()) for alpha in alphas])


@pytest.mark.parametrize(("p", "noise", "distance"), [(0.3, 0.8, 1.0), (0.02, 1.0, 0.4), (0.1, 2.0, 1.6)])
def test_nodes_cover_the_pairs_between_them(p: float, noise: float, distance: float) -> None:
    """The chord of two angles, with what `between` adds, is above the curve of an angle between them, in both directions."""
    low, high = 0.3, 0.8
    ahead, more, behind, less = kernels.between(p, noise, distance, 0.5 * (low + high), high - low)
    alphas = 1.0 + p * np.array([0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
    ends_, middles = [hockey_stick(p, noise, distance, t, alphas) for t in (low, high)], np.linspace(low, high, 6)[1:-1]
    added = np.array([float(more @ np.maximum(np.exp(ahead) - alpha, 0.0)) for alpha in alphas])
    gaps = []
    for theta in middles:
        part = (theta - low) / (high - low)
        chord = (1.0 - part) * ends_[0] + part * ends_[1]
        gaps.append(hockey_stick(p, noise, distance, theta, alphas) - chord)
        assert np.all(gaps[-1] <= added + 1e-9)
    assert np.max(gaps) < 0.5 * added.max(), "it is not wasteful without need"
    assert np.all(less >= 0.0)
    assert np.all(behind > 0.0)


@pytest.mark.parametrize(
    ("p", "noise", "distance"), [(0.566, 0.354, 0.7), (0.996, 0.314, 1.52), (0.99, 0.2, 0.9), (0.3, 0.8, 1.0)]
)
def test_kernels_are_monotone(p: float, noise: float, distance: float) -> None:
    """No kernel has a negative weight, which the induction needs, however much is added for the angles between nodes."""
    step = PoissonStep(p, noise, distance, 3)
    angles = step.angles(5)
    of_angles = adaptive._kernels(step, 0.05, 1200, 5, (0.3, 0.15))
    for kernel in of_angles:
        assert kernel.jump[kernel.reach] >= -1.0
        assert np.delete(kernel.jump, kernel.reach).min() >= 0.0
        profile = np.exp(-0.025 * np.abs(np.arange(-kernel.reach, kernel.reach + 1)))
        assert kernel.jump.sum() <= 1e-12, "a constant does not grow"
        assert kernel.jump @ profile <= 1e-12, "nor does the profile"
    alphas = np.exp(0.05 * np.array([0, 1, 4, 20, 100, 300]))
    for i, middle in enumerate(0.5 * (angles[1:] + angles[:-1])):
        most = np.maximum(*(kernel.source_on(300)[300 + np.array([0, 1, 4, 20, 100, 300])] for kernel in of_angles[i : i + 2]))
        assert np.all(hockey_stick(p, noise, distance, middle, alphas) <= most + 1e-7)


def test_angles_are_covered_for_large_thresholds() -> None:
    """With little noise a is far from b, and the thresholds that matter near a are larger than any that matter near b."""
    p, noise, distance, low, high = 0.999, 0.2, 0.9, 0.3, 0.8
    ahead, more, _, _ = kernels.between(p, noise, distance, 0.5 * (low + high), high - low)
    alphas = np.exp(np.array([30.0, 33.0, 36.0]))
    ends_, middle = (
        [hockey_stick(p, noise, distance, t, alphas) for t in (low, high)],
        hockey_stick(p, noise, distance, 0.55, alphas),
    )
    added = np.array([float(more @ np.maximum(np.exp(ahead) - alpha, 0.0)) for alpha in alphas])
    assert np.all(added > 0.0)
    assert np.all(middle <= 0.5 * (ends_[0] + ends_[1]) + added)


@settings(max_examples=40, deadline=None)
@given(st.floats(-5.0, -0.02), st.floats(-0.7, 0.8), st.floats(-3.0, 0.3), st.floats(0.0, 1.0))
def test_outcomes_that_tell_more_and_less(log_rate: float, log_noise: float, log_distance: float, part: float) -> None:
    """Spread and merged outcomes have the masses of P and Q, and enclose the total variation p·erf(R/(2√2σ)) of a step."""
    p, noise, distance = 10**log_rate, 10**log_noise, min(10**log_distance, 2.0)
    step = PoissonStep(p, noise, distance, 1)
    pair = step.turned(part * step.widest_angle)
    loss, mass = kernels.spread(p, pair, (0.3, 0.1))
    gain, other = kernels.merged(p, pair, (0.3, 0.1))
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert other.sum() == pytest.approx(1.0, abs=1e-12)
    assert float(mass @ np.expm1(loss)) == pytest.approx(0.0, abs=1e-12 * p)
    assert float(gain.sum()) == pytest.approx(0.0, abs=1e-12 * p)
    truth = bs.analyze(bs.DPSGD(noise, p, 1), bs.AttributeInference(distance)).advantage.estimate
    assert gain[gain > 0.0].sum() <= truth * (1.0 + 1e-9)
    assert truth * (1.0 - 1e-9) <= float(mass @ np.maximum(np.expm1(loss), 0.0)) <= 1.05 * truth


def test_the_optimal_adversary_is_played() -> None:
    """A game: the pair is chosen by the likelihood ratio so far, outcomes are drawn, and the guess is its sign."""
    p, sigma, distance, steps = setting = (0.3, 0.8, 1.0, 4)
    thetas = np.linspace(0.0, np.arccos(0.5 * distance), 5)
    x, value_functions = values(*setting, 5, 31, 0.4)
    rng, games = np.random.default_rng(7), 200_000

    def likelihoods(z: Any, theta: Any, swap: Any) -> tuple[Any, Any]:
        first = np.stack([np.sin(theta), np.cos(theta)]) / sigma
        second = first - np.array([[0.0], [distance / sigma]])
        a, b = np.where(swap, second, first), np.where(swap, first, second)
        return tuple(1.0 - p + p * np.exp((m * z).sum(axis=0) - 0.5 * (m * m).sum(axis=0)) for m in (a, b))  # type: ignore[return-value]

    # The best pair at each node of x, with t steps to go, by a sum over the plane.
    z = np.stack(np.meshgrid(np.arange(-5.0, 6.5, 0.25), np.arange(-5.0, 6.5, 0.25))).reshape(2, -1)
    base = np.exp(-0.5 * (z * z).sum(axis=0)) * 0.25**2 / (2.0 * np.pi)
    options = [(theta, swap) for theta in thetas for swap in (False, True)]
    densities = [likelihoods(z, np.full(z.shape[1], theta), np.full(z.shape[1], swap)) for theta, swap in options]

    def choice(v: Any) -> Any:
        def after(at: Any) -> Any:
            return np.where(at < x[0], np.exp(at - x[0]) * v[0], np.interp(at, x, v))

        means = [[float(base @ (first * after(one + np.log(second / first)))) for one in x] for first, second in densities]
        return np.argmin(means, axis=0)

    policies = [choice(v) for v in value_functions[:-1]]
    right = 0
    for world in (0, 1):
        state = np.zeros(games)
        for t in range(steps):
            nearest = np.clip(np.searchsorted(0.5 * (x[1:] + x[:-1]), state), 0, len(x) - 1)
            pick = policies[steps - 1 - t][nearest]
            theta, swap = thetas[pick // 2], pick % 2 == 1
            first = np.stack([np.sin(theta), np.cos(theta)]) / sigma
            second = first - np.array([[0.0], [distance / sigma]])
            mean = np.where(swap == (world == 0), second, first)
            seen = rng.normal(size=(2, games)) + mean * (rng.random(games) < p)
            p_seen, q_seen = likelihoods(seen, theta, swap)
            state += np.log(q_seen / p_seen)
        right += int(np.sum(state < 0.0) if world == 0 else np.sum(state > 0.0)) + 0.5 * np.sum(state == 0.0)
    played, error = 2.0 * right / (2 * games) - 1.0, 2.0 * np.sqrt(0.25 / (2 * games))
    low, high = ends(solve(*setting, fineness_for(steps)))
    assert low - 5e-4 - 4.0 * error <= played <= high + 4.0 * error
    fixed = fixed_pairs(*setting)
    assert played - 4.0 * error > fixed, "better than any fixed pair"


def test_steps_that_differ_in_their_order() -> None:
    first, second = PoissonStep(0.05, 1.0, 0.3, 30), PoissonStep(0.02, 0.7, 0.9, 40)
    solutions = [
        adaptive.solve(order, SMALL) for order in ([first, second], [second, first], [replace(first, distance=0.9), second])
    ]
    lows, highs = zip(*(ends(one) for one in solutions if one is not None), strict=True)
    glued = enclosure.certify([first, second], True, 1e-4)
    assert max(lows[:2]) <= 1.0 - glued.lower
    assert max(highs[:2]) <= min(1.02 * max(lows[:2]), lows[2])


@pytest.mark.parametrize("distances", [[0.5, 0.5, 1.5, 1.5], [1.5, 0.5, 1.5, 0.5], [1.5, 1.5, 0.5, 0.5], [0.3, 1.2, 0.8, 0.5]])
def test_the_order_of_distances_by_the_programme_as_written(distances: list[float]) -> None:
    """In its order, whatever that is; and with coins between fewer kinds than there are distances."""
    x, functions = values(0.45, 1.25, distances, 4, 9, 31, 0.3)
    truth = 1.0 - float(functions[-1][len(x) // 2])
    steps = [PoissonStep(0.45, 1.25, distance, 1) for distance in distances]
    for fineness in (adaptive.SHORT, replace(adaptive.SHORT, kinds=2), replace(adaptive.SHORT, kinds=2, proved=True)):
        solution = adaptive.solve(steps, fineness)
        assert solution is not None
        low, high = ends(solution)
        assert low - 3e-4 <= truth <= high + 3e-4
        assert high <= 1.01 * low or fineness.kinds == 2
    exact = bs.analyze(bs.DPSGD(1.25, 0.45, 4), bs.AttributeInference(distances)).advantage
    assert exact.upper - exact.lower <= 0.01 * exact.upper


@pytest.mark.parametrize(("rate", "noise"), [(0.02, 1.0), (0.1, 0.6)])
def test_a_block_covers_every_order_of_its_steps(rate: float, noise: float) -> None:
    rng = np.random.default_rng(3)
    distances = rng.uniform(0.2, 1.5, 3)
    steps = [PoissonStep(rate, noise, float(rng.choice(distances)), 1) for _ in range(80)]
    plan = adaptive._plan(steps, replace(adaptive.SHORT, nodes=600))
    assert plan is not None
    kinds, reach = plan.schedule.kinds, min(plan.half, int(plan.tail / plan.grid) + 2)
    operator = adaptive.Above(
        kinds, plan.grid, plan.half, [adaptive._kernels(kind, plan.grid, reach, 13, plan.fineness.cells) for kind in kinds]
    )
    f, one = operator.widened(np.zeros(1)), np.eye(len(kinds))
    for i in range(30):
        f, _, _ = operator.advance(f, 1, one[i % len(kinds)])
    numbers = np.array([4.0, 3.0, 5.0])
    block, relative, constant = operator.advance(f, 12, numbers)
    upper = block + relative * operator.profile + constant
    order = np.repeat(np.arange(3), numbers.astype(int))
    for _ in range(6):
        g = f
        for i in rng.permutation(order):
            g, _, _ = operator.advance(g, 1, one[i])
        assert np.all(g <= upper + 1e-14)
        assert upper.max() <= 1.1 * g.max(), "and is hardly larger"


def test_many_distances_in_blocks_and_one_by_one() -> None:
    """Blocks, coins between kinds, and rounded distances only widen the interval; it stays narrow."""
    rng = np.random.default_rng(8)
    steps = [PoissonStep(0.02, 0.9, float(distance), 1) for distance in rng.uniform(0.05, 1.5, 50)]
    one_by_one = adaptive.solve(steps, replace(adaptive.SHORT, kinds=50))
    coins = adaptive.solve(steps, adaptive.SHORT)
    proved = adaptive.solve(steps, replace(adaptive.SHORT, kinds=25, proved=True))
    assert one_by_one is not None
    assert coins is not None
    assert proved is not None
    (low, high), (second, coin), (_, most) = ends(one_by_one), ends(coins), ends(proved)
    assert second <= high
    assert second >= 0.98 * low
    assert high <= coin <= 1.01 * high
    assert high <= most <= 1.04 * high
    assert low <= high <= 1.015 * low


def test_proved_distances_near_one_are_above_the_attack() -> None:
    """The pair on a line changes its shape where the other gradient passes 0: no coin between distances may hide that."""
    distances = [0.7, 0.69, 0.99, 0.62, 1.02, 1.08, 1.003, 0.41, 0.61, 0.66, 0.53, 0.88, 0.46, 1.19, 0.53]
    run, threat = bs.DPSGD(3.83, 0.0024, 15), bs.AttributeInference(distances)
    proved, seen = bs.analyze(run, threat, "certified").advantage, bs.analyze(run, threat, "exact").advantage
    assert proved.upper > seen.lower > 0.0
    assert proved.width <= 0.02 * proved.upper
    assert max(proved.lower, seen.lower) <= min(proved.upper, seen.upper)


def test_steps_that_hardly_leak_are_taken_at_once() -> None:
    """Also where steps follow that leak more."""
    steps = [PoissonStep(0.004, 0.9, 1.0, 54), PoissonStep(1e-5, 21.0, 1.0, 15_000), PoissonStep(0.0026, 7.0, 1.0, 3000)]
    plan = adaptive._plan(steps, adaptive.MODERATE)
    assert plan is not None
    blocks = list(plan.schedule.blocks(plan.fineness.share, False, plan.fineness.alone))
    assert [blocks[0][0], blocks[-1][1]] == [0, 18_054]
    assert len(blocks) < 150


@pytest.mark.parametrize(
    ("distances", "fineness"),
    [
        (np.linspace(0.5, 2.0, 24), replace(adaptive.SHORT, alone=0)),
        (np.tile([0.7, 1.4, 2.0], 20), replace(adaptive.SHORT, pause=0.5)),
    ],
    ids=["coins", "blocks of the strategy"],
)
def test_steps_at_distance_two_beside_others(distances: np.ndarray, fineness: Fineness) -> None:
    """At distance 2 there is one pair, at others there are many: they are combined all the same."""
    steps = [PoissonStep(0.02, 0.9, float(distance), 1) for distance in distances]
    solution, plain = adaptive.solve(steps, fineness), adaptive.solve(steps, replace(adaptive.SHORT, kinds=30))
    assert solution is not None
    assert plain is not None
    low, high = ends(solution)
    assert low <= ends(plain)[1]
    assert ends(plain)[0] <= high <= 1.06 * low


@pytest.mark.parametrize(
    ("rate", "noise", "distance", "steps"),
    [
        (1e-8, 1.0, 0.3, 1000),
        (1e-8, 1.0, 1.0, 10**9),
        (0.01, 0.2, 1.0, 100),
        (0.01, 0.07, 1.0, 1000),
        (0.5, 0.3, 1.0, 10000),
        (1.0, 2.0, 0.5, 10),
        (0.999999, 2.0, 0.5, 10),
        (0.1, 1.0, 0.5, 1),
        (0.1, 1.0, 0.5, 2),
        (0.001, 1.0, 1e-6, 100),
        (0.1, 1.0, 1e-12, 100),
        (0.01, 1.0, 1.999, 200),
        (0.3, 50.0, 0.01, 3),
    ],
)
def test_extremes(rate: float, noise: float, distance: float, steps: int) -> None:
    """The interval is valid wherever there is one: it holds a fixed pair's advantage. Elsewhere there is none (None)."""
    solution = adaptive.solve([PoissonStep(rate, noise, distance, steps)], SMALL)
    if solution is None:
        hopeless = enclosure.certify([PoissonStep(rate, noise, distance, steps)], True, 1e-4).upper < 1e-3
        elsewhere = steps >= 10**8 or noise < kernels.LEAST_NOISE or distance / noise < adaptive.LEAST_RATIO
        assert rate == 1.0 or hopeless or elsewhere
        return
    low, high = ends(solution)
    assert 0.0 <= low <= high <= 1.0
    assert high >= fixed_pairs(rate, noise, distance, steps) - 1e-9
    assert low <= 1.0 - enclosure.certify([PoissonStep(rate, noise, distance, steps)], True, 1e-4).lower
