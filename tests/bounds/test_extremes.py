"""certified at the extremes: a billion steps, little noise, many distances; and the lemmas behind it, by brute force."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom

import betastar as bs
from betastar.certified import enclosure, grid
from betastar.certified.enclosure import certify
from betastar.certified.grid import Blends, GridStep, Nodes, on_grid
from betastar.curves import DiscreteCurve, Value
from betastar.exact import FourierCurve
from betastar.steps.base import Family
from betastar.steps.poisson import PoissonFactor, PoissonStep, condense, tail, threshold

SLACK = 1e-12
GIBIBYTE = 1 << 30


def exact(steps: list[PoissonStep], symmetric: bool, family: Family | None = None) -> Value:
    family = family or ("glued" if symmetric else "line")
    return FourierCurve([PoissonFactor(n, family, p, noise, far) for n, p, noise, far in condense(steps)], symmetric).overlap()


@pytest.mark.parametrize(
    ("rate", "noise", "distance", "count"),
    [
        (1e-8, 0.2158, 2.0, 10**9),  # few hits
        (1e-6, 0.5381, 2.0, 10**9),  # rare large losses and many small ones
        (1e-5, 0.6711, 2.0, 999_999_999),
        (1e-3, 46.88, 2.0, 10**9),  # Gaussian
        (1e-7, 0.1686, 2.0, 10**7),  # hardly any hit
        (1e-8, 0.2057, 1.0, 10**9),
        (1e-6, 0.4901, 1.0, 10**9),
        (1e-5, 0.5816, 1.0, 10**9),
        (1e-3, 125.8, 1.0, 10**9),
        (1e-6, 0.3784, 0.5, 10**9),
        (1e-2, 100.0, 0.01, 10**9),
        (0.3, 0.1, 1.0, 3),
        (1e-6, 0.1, 1.0, 10**6),
    ],
)
def test_encloses_and_is_narrow_whatever_the_number_of_steps(rate: float, noise: float, distance: float, count: int) -> None:
    steps, symmetric = [PoissonStep(rate, noise, distance, count)], distance != 1.0
    truth, error = exact(steps, symmetric)
    proof = certify(steps, symmetric, 1e-4, both_ends=False)
    assert truth - error - 1e-4 <= proof.lower <= truth + error
    if distance in (1.0, 2.0):
        assert truth - error <= proof.upper <= proof.lower + 1e-4


def test_brackets_random_settings_at_the_extremes() -> None:
    draw = np.random.default_rng(11)
    for _ in range(60):
        symmetric = bool(draw.random() < 0.5)
        rate, count = float(10 ** draw.uniform(-8, 0)), int(10 ** draw.uniform(0, 9))
        middling = rate * np.sqrt(count) * draw.uniform(0.3, 30.0)  # noise with which the risk is neither 0 nor 1, about
        steps = [PoissonStep(rate, float(np.clip(middling, 0.07, 100.0)), 2.0 if symmetric else 1.0, count)]
        truth, error = exact(steps, symmetric)
        proof = certify(steps, symmetric, 1e-4)
        assert proof.lower <= truth + error, steps
        assert proof.upper >= truth - error, steps
        assert proof.upper - proof.lower <= 1e-4, steps


@pytest.mark.parametrize("step", [PoissonStep(1e-6, 0.5381, 2.0, 10**9), PoissonStep(4.34e-9, 0.0972, 2.0, 23_151_827)])
def test_memory_stays_below_a_gibibyte(step: PoissonStep) -> None:
    tracemalloc.start()
    proof = certify([step], True, 1e-4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert proof.upper - proof.lower <= 1e-4
    assert peak < GIBIBYTE


def test_nothing_overflows_where_nothing_is_left() -> None:
    for step, symmetric in (
        (PoissonStep(1.0, 0.3345, 0.4357, 883_775_576), True),
        (PoissonStep(0.292, 0.0706, 1.0, 459_295_858), False),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            proof = certify([step], symmetric, 1e-4)
        assert 0.0 <= proof.lower <= proof.upper <= 1e-6


def composed_by_hand(step: GridStep, size: float, reverse: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """(loss, mass, infinite mass) of `count` steps, by plain convolutions."""
    base, index, mass, infinite = step.law(size, reverse)
    single = np.zeros(int(index[-1] - index[0]) + 1)
    single[index - index[0]] += mass
    single[-index[0]] += 1.0
    every = np.ones(1)
    for _ in range(step.count):
        every = np.convolve(every, single)
    losses = step.count * base + size * (step.count * index[0] + np.arange(len(every)))
    return losses, every, 1.0 - (1.0 - infinite) ** step.count


@pytest.mark.parametrize(
    ("p", "sigma", "distance", "symmetric"), [(0.2, 1.0, 2.0, True), (0.05, 1.5, 0.7, True), (0.3, 0.9, 1.0, False)]
)
def test_few_frequencies_agree_with_plain_convolution(
    p: float, sigma: float, distance: float, symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From above never below the composed polygon, from below never above it, and equal to it at the ends of the cells."""
    monkeypatch.setattr(grid, "CELLS", 200)  # wide cells, so that it shows what they do
    size, count = 0.01, 60
    for above in (True, False):
        step = on_grid(PoissonStep(p, sigma, distance, count), Nodes(size, 48), symmetric, above, SLACK)
        curve = grid.compose_at_few_frequencies([step], size, SLACK, above)
        assert curve is not None
        assert curve.error < 1e-9
        for reverse, side in ((False, curve), (True, curve.reversed())):
            losses, mass, infinite = composed_by_hand(step, size, reverse)

            def by_hand(tau: float, losses: np.ndarray = losses, mass: np.ndarray = mass, rest: float = infinite) -> float:
                return float(mass @ np.maximum(-np.expm1(tau - losses), 0.0)) + rest

            assert side.hockey_stick(0.0).value == pytest.approx(by_hand(0.0), abs=2.0 * curve.error)
            gaps = np.array([side.hockey_stick(tau).value - by_hand(tau) for tau in np.linspace(0.0, 5.0, 300)])
            assert np.all((gaps if above else -gaps) >= -curve.error)
            assert np.all(gaps[1:] != 0.0)
            assert np.abs(gaps).max() < 1e-3


def test_few_frequencies_where_losses_lie_above_their_base() -> None:
    """The record is hardly ever sampled: the grid of a step starts at ln(1 - p), and 0 is no point of it."""
    step = PoissonStep(1e-3, 0.5, 1.0, 20_000)
    curves: list[DiscreteCurve] = []
    for above in (True, False):
        one = on_grid(step, Nodes(1e-3, 64), False, above, SLACK)
        assert one.base != 0.0
        assert not one.behind.size
        few, all_of_them = grid.compose_at_few_frequencies([one], 1e-3, SLACK, above), grid.compose([one], 1e-3, SLACK, 1e-9)
        assert few is not None
        assert all_of_them is not None
        for tau in (-2.0, -0.1, 0.0, 0.3, 4.0):
            (first, error), (second, other) = few.hockey_stick(tau), all_of_them.hockey_stick(tau)
            assert abs(first - second) <= error + other + (1e-6 if tau else 0.0)
        curves.append(few)
    truth = 1.0 - exact([step], False).value
    assert curves[1].hockey_stick(0.0).value <= truth <= curves[0].hockey_stick(0.0).value


@pytest.mark.parametrize(("p", "sigma", "distance"), [(0.01, 1.0, 2.0), (1e-6, 0.3, 2.0), (1e-3, 20.0, 0.5), (1.0, 3.0, 2.0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_transform_is_below_its_bound(p: float, sigma: float, distance: float, reverse: bool) -> None:
    count, size = 1000, 1e-3 * p / sigma
    for symmetric in (True, False):
        one = on_grid(PoissonStep(p, sigma, distance if symmetric else 1.0, count), Nodes(size, 24), symmetric, True, SLACK)
        law = one.law(size, reverse)
        spectrum = grid._Spectrum.of([law], Blends.none([one]), size)
        frequencies = np.exp(np.random.default_rng(0).uniform(np.log(spectrum.ends[0]), np.log(spectrum.ends[-1]), 400))
        _, index, mass, infinite = law
        values = np.abs(1.0 - infinite + np.expm1(-1j * np.outer(frequencies * size, index)) @ mass) ** count
        bounds = spectrum.bounds[np.searchsorted(spectrum.ends, frequencies, side="right") - 1]
        assert np.all(values <= bounds * (1.0 + 1e-6) + 1e-300)
        assert spectrum.bounds.min() < 1e-3, "it does bound something"


@pytest.mark.parametrize(("p", "sigma", "distance"), [(0.1, 1.0, 2.0), (1e-5, 0.4, 0.8), (0.5, 3.0, 0.1)])
def test_polygons_on_sparse_nodes_enclose_the_curve(p: float, sigma: float, distance: float) -> None:
    size = 1e-2 * p * distance / sigma
    far = 1.0 + PoissonStep(p, sigma, distance, 1).reach(SLACK)
    losses = np.geomspace(1e-2 * size, 5.0, 200)
    gain, mass = tail(threshold(losses, p, sigma, distance, 1.0 - 0.5 * distance, far), p, sigma, distance)
    truth = np.maximum(gain - np.expm1(losses) * mass, 0.0)
    for above in (True, False):
        one = on_grid(PoissonStep(p, sigma, distance, 1), Nodes(size, 8), True, above, SLACK)
        at, ahead = size * one.ahead_index, one.ahead
        curve = np.maximum(np.exp(at)[None, :] - np.exp(losses)[:, None], 0.0) @ ahead + one.ahead_infinite
        gaps = (curve - truth) * (1.0 if above else -1.0)
        assert np.all(gaps >= -1e-15)
        assert np.all(gaps <= 0.05 * truth + 1e-3 * truth[0])


def glued(alpha: np.ndarray, p: float, sigma: float, distance: float) -> np.ndarray:
    """h(α) for α ≥ 1, by its definition."""
    far = 1.0 + PoissonStep(p, sigma, distance, 1).reach(1e-15)
    gain, mass = tail(threshold(np.log(alpha), p, sigma, distance, 1.0 - 0.5 * distance, far), p, sigma, distance)
    return np.maximum(gain - (alpha - 1.0) * mass, 0.0)


def test_a_coin_between_two_distances_dominates() -> None:
    draw = np.random.default_rng(3)
    straight_fails = 0
    for _ in range(300):
        p = 1.0 if draw.random() < 0.1 else float(10 ** draw.uniform(-4, 0))
        sigma, high = float(10 ** draw.uniform(-0.7, 1)), float(10 ** draw.uniform(-2, np.log10(2.0)))
        low = high * float(draw.uniform(0.7, 0.999))
        middle = low + float(draw.uniform(0.05, 0.95)) * (high - low)
        bend = enclosure._bend(p, sigma, high, 1, SLACK)
        weight = enclosure._weight(middle, low, high, bend)
        share = (middle - low) / (high - low)
        assert share <= weight <= 1.0
        assert weight - share <= 0.5 * bend * (high - low) * share * (1.0 - share) * (1.0 + bend * (high - low)) + 1e-12
        top = float(np.exp(min(30.0, transform_loss(p, sigma, low))))
        alpha = np.geomspace(1.0, top, 60)
        here, below, above = (glued(alpha, p, sigma, distance) for distance in (middle, low, high))
        rounding = 1e-13 * p + 1e-9 * here
        assert np.all(here <= below + weight * (above - below) + rounding), (p, sigma, low, middle, high)
        straight_fails += bool(np.any(here > below + share * (above - below) + rounding))
    assert straight_fails > 50, "the chord itself does not dominate"


def transform_loss(p: float, sigma: float, distance: float) -> float:
    return PoissonStep(p, sigma, distance, 1).largest_loss(SLACK)


@pytest.mark.parametrize(
    ("rate", "noise", "number", "least", "most", "each"),
    [
        (0.02, 2.0, 200, 0.3, 1.2, 1),
        (0.0098, 3.51, 2040, 0.05, 1.9, 1),
        (1e-6, 0.4, 100, 0.3, 1.0, 10**7),
        (0.01, 0.3, 80, 0.2, 0.3, 2),
    ],
)
def test_many_distances_stay_within_the_tolerance(
    rate: float, noise: float, number: int, least: float, most: float, each: int
) -> None:
    far = np.exp(np.random.default_rng(5).uniform(np.log(least), np.log(most), number))
    steps = [PoissonStep(rate, noise, float(distance), each) for distance in far]
    truth, error = exact(steps, True)
    proof = certify(steps, True, 1e-4, both_ends=False)
    assert truth - error - 1e-4 <= proof.lower <= truth + error
    assert proof.above is not None
    for tau in (0.2, 1.0):
        parts = [PoissonFactor(n, "glued", p, sigma, distance) for n, p, sigma, distance in condense(steps)]
        value, doubt = FourierCurve(parts, True).hockey_stick(tau)
        high, slack = proof.above.hockey_stick(tau)
        assert value - doubt <= high + slack <= value + doubt + 1e-4


def test_blends_keep_every_step() -> None:
    draw = np.random.default_rng(8)
    steps = [
        PoissonStep(float(draw.choice([0.1, 0.2])), 1.0, float(draw.uniform(0.1, 2.0)), int(draw.integers(1, 9)))
        for _ in range(300)
    ]
    nodes, blends = enclosure.blended(steps, 64, 1e-3, SLACK)
    assert blends is not None
    assert blends.count.sum() == sum(step.count for step in steps)
    assert len(nodes) < 300
    assert np.all((blends.weight >= 0.0) & (blends.weight <= 1.0))
    assert np.all(np.abs(blends.first - blends.second) <= 1)
    rate, far = (np.array([getattr(node, name) for node in nodes]) for name in ("rate", "distance"))
    assert np.all(rate[blends.first] == rate[blends.second])
    for p in (0.1, 0.2):
        rows = rate[blends.first] == p
        mean = blends.mean(far)[rows] @ blends.count[rows]
        total = sum(step.count * step.distance for step in steps if step.rate == p)
        assert total <= mean <= 1.01 * total


def test_a_grid_that_does_not_fit_gives_a_wider_interval_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bs.DPSGD(0.2, 0.01, 50)
    truth = bs.analyze(run).bayes_security.estimate
    monkeypatch.setattr(enclosure, "SIZES", ((1 << 9, 1 << 9),))
    with pytest.warns(bs.ToleranceWarning, match=r"wide.*tolerance 1e-06.*both ends hold") as told:
        beta = bs.analyze(run, method="certified", tolerance=1e-6).bayes_security
    assert f"{float(beta.width):.2g}" in str(told[0].message)
    assert beta.lower <= truth <= beta.upper
    assert 1e-6 < beta.width < 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bs.analyze(run, bs.AttributeInference(0.5), "certified").bayes_security.width > 1e-4, (
            "no grid is to blame for this"
        )


def test_certified_epsilon_beyond_700() -> None:
    """Losses whose exponential overflows: finite ends around the exact value."""
    run = bs.DPSGD(0.25, 0.9, 100)
    certified, exact = bs.analyze(run, method="certified"), bs.analyze(run)
    for delta in (1e-5, 1e-3, 0.5):
        proved, value = certified.epsilon(delta), exact.epsilon(delta).estimate
        assert 0.4 * value <= proved.lower <= value <= proved.upper <= 1.2 * value
        assert value > 900.0


def test_losses_that_are_too_large_are_known_or_not() -> None:
    """A person with many records and little noise: ε is some thousand, and single steps have losses beyond all nodes."""
    run, threat = bs.DPSGD(0.26185, 0.178743, 108), bs.Membership(records=15)
    random, games = np.random.default_rng(0), 4000
    losses = np.zeros(games)
    j, weights = np.arange(16.0), binom.pmf(np.arange(16), 15, 0.178743)
    for _ in range(108):
        x = random.binomial(15, 0.178743, games) + 0.26185 * random.standard_normal(games)
        ahead, behind = (logsumexp((s * np.outer(x, j) - 0.5 * j**2) / 0.26185**2, b=weights, axis=1) for s in (1.0, -1.0))
        losses += ahead - behind
    exact, certified = bs.analyze(run, threat), bs.analyze(run, threat, "certified")
    deltas = np.array([0.9, 0.5, 0.3, 0.1, 0.01])
    for risk in (exact, certified):
        ends = risk.epsilon(deltas)
        assert np.all(np.diff(ends.lower) >= -0.05 * ends.lower[1:])
        for delta, low, middle, high in zip(deltas, ends.lower, ends.estimate, ends.upper, strict=True):
            doubt = 4.0 * np.sqrt(delta / games)
            assert low <= np.quantile(losses, min(1.0 - delta + doubt, 1.0))
            assert np.quantile(losses, max(1.0 - delta - doubt, 0.0)) <= high
            assert np.isinf(middle) or middle <= high
    assert np.all(np.isfinite(certified.epsilon(deltas).upper))
    assert np.all(exact.epsilon(deltas).width < 0.05 * exact.epsilon(deltas).upper)  # by the tails, from both sides
