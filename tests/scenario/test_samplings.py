"""Which steps each sampling becomes, its probabilities, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from math import asin, cos, hypot, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import betastar as bs
from betastar.steps import AllocationStep, CoinStep, FixedSizeStep
from betastar.steps.poisson import PoissonStep
from betastar.steps.truncated import at_least, truncation
from betastar.threats import reduction

FIXED = bs.DPSGD(1.0, 0.1, 20, "fixed-size")
BINS = bs.DPSGD(2.0, 0.1, 30, "balls-in-bins")
SHUFFLED = bs.DPSGD(2.0, 0.1, 30, "shuffled")
CUT = bs.DPSGD(1.0, 0.1, 20, max_batch_size=12, dataset_size=100)

CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: bs.DPSGD(1.0, 0.1, 10, "random"), r"sampling must be one of 'poisson', 'fixed-size', .* got 'random'"),
    (
        lambda: bs.DPSGD(1.0, 0.3, 10, "balls-in-bins"),
        r"sample_rate must be 1 divided by a whole number .* 1/3 = 0\.3333\S* would",
    ),
    (
        lambda: bs.DPSGD(1.0, 0.1, 25, "shuffled"),
        r"steps must be a whole number of epochs .* got 25 .* 10 steps; 20 or 30 would work",
    ),
    (lambda: bs.DPSGD(1.0, [0.1, 0.5], 25, "shuffled"), r"got 25 where an epoch has 10 steps"),
    (lambda: bs.DPSGD(1.0, 0.1, 5, "shuffled"), r"an epoch has 10 steps; 10 would work"),
    (lambda: bs.DPSGD(1.0, 0.1, 10, max_batch_size=20), r"dataset_size must be given as well"),
    (lambda: bs.DPSGD(1.0, 0.1, 10, dataset_size=20), r"dataset_size must be left out with sampling 'poisson', unless max_batch"),
    (lambda: bs.DPSGD(1.0, 0.1, 10, max_batch_size=9, dataset_size=100), r"max_batch_size must be at least .* = 10, got 9"),
    (lambda: bs.DPSGD(1.0, 0.1, 10, max_batch_size=0, dataset_size=100), r"max_batch_size must be a whole number of at least 1"),
    (lambda: bs.DPSGD(1.0, 0.1, 10, "fixed-size", max_batch_size=20, dataset_size=100), r"max_batch_size must be left out"),
    (lambda: bs.DPSGD(1.0, 0.105, 10, "fixed-size", dataset_size=100), r"got 10\.5 records; 10/100 = 0\.1 would work"),
    (
        lambda: _epochs("balls-in-bins", epochs=2.5),
        r"epochs must be whole with sampling 'balls-in-bins', got 2\.5; 2 or 3 would work",
    ),
    (lambda: _epochs("shuffled", epochs=0.5), r"epochs must be whole .* got 0\.5; 1 would work"),
    (lambda: _epochs("fixed-size", opacus=True), r"opacus must be left out with sampling 'fixed-size'"),
    (lambda: _epochs("poisson", max_batch_size=5), r"max_batch_size must be at least the expected batch size, .* = 10, got 5"),
    (
        lambda: bs.analyze(SHUFFLED, bs.Membership("add-remove")),
        r"'shuffled' must be analysed with relation 'substitution': a rec",
    ),
    (lambda: bs.analyze(FIXED, method="paper"), r"method paper is about Poisson sampling, .*; use exact"),
    (
        lambda: bs.analyze(FIXED, _Foreign()),
        r"sampling must be 'poisson', without max_batch_size, for a foreign threat, got DPSGD",
    ),
]


class _Foreign:
    symmetric, oriented = True, False

    def steps(self, run: bs.DPSGD) -> tuple[PoissonStep, ...]:
        return tuple(PoissonStep(s.sample_rate, s.noise_multiplier, 1.0, s.steps) for s in run.segments)

    def describe(self) -> str:
        return "a foreign threat"


def _epochs(sampling: str, **more: Any) -> bs.DPSGD:
    return bs.DPSGD.from_epochs(1.0, 10, 100, **{"epochs": 2, **more}, sampling=sampling)


@pytest.mark.parametrize(("call", "message"), CASES)
def test_bad_input_is_refused_with_what_would_work(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_epochs_of_each_sampling() -> None:
    def numbers(sampling: str, **more: Any) -> tuple[float, int, int | None]:
        segment = bs.DPSGD.from_epochs(1.0, 30, 100, 2, sampling=sampling, **more).segments[0]
        return segment.sample_rate, segment.steps, segment.dataset_size

    assert numbers("poisson", opacus=False) == (0.3, 8, None)
    assert numbers("poisson", opacus=True, max_batch_size=40) == (0.25, 8, 100)
    assert numbers("fixed-size") == (0.3, 8, 100)
    assert numbers("balls-in-bins") == numbers("shuffled") == (0.25, 8, 100)


def test_membership() -> None:
    assert bs.Membership().steps(FIXED) == (FixedSizeStep(0.1, 0.5, 1.0, 20),)
    assert bs.Membership("add-remove").steps(FIXED) == (PoissonStep(0.1, 0.5, 1.0, 20),)
    assert bs.Membership().steps(BINS) == (AllocationStep(10, 2.0, True, 3),)
    assert bs.Membership("add-remove").steps(BINS) == (AllocationStep(10, 2.0, False, 3),)
    shuffled = reduction(bs.Membership(), SHUFFLED)
    assert shuffled is not None
    assert [one.steps for one in shuffled.proved] == [(PoissonStep(1.0, 2.0, 2.0, 3),)]
    assert [one.steps for one in shuffled.attacks] == [(AllocationStep(10, 1.0, False, 3),)]
    assert [one.symmetric for one in shuffled.attacks] == [False]
    one_batch = bs.DPSGD(2.0, 1.0, 3, "shuffled")
    assert bs.Membership().steps(one_batch) == (PoissonStep(1.0, 2.0, 2.0, 3),)
    assert reduction(bs.Membership(), one_batch).attacks is None  # type: ignore[union-attr]


def test_runs_of_different_samplings_add_up() -> None:
    run = bs.DPSGD(1.0, 0.1, 10) + FIXED + BINS + SHUFFLED
    reduced = reduction(bs.Membership(), run)
    assert reduced is not None
    poisson, bins = PoissonStep(0.1, 1.0, 2.0, 10), AllocationStep(10, 2.0, True, 3)
    assert [one.steps for one in reduced.proved] == [
        (poisson, FixedSizeStep(0.1, 0.5, 1.0, 20), bins, PoissonStep(1.0, 2.0, 2.0, 3))
    ]
    assert reduced.attacks is not None
    mirrored, directed = reduced.attacks
    assert mirrored.steps[::2] == (poisson, bins)
    fixed = mirrored.steps[1]
    assert isinstance(fixed, PoissonStep)
    assert (fixed.noise, fixed.distance) == pytest.approx((sqrt(0.5), sqrt(2.0)))
    assert directed.steps == (PoissonStep(0.1, 0.5, 1.0, 20), AllocationStep(10, 1.0, False, 3))


def test_attributes_in_epochs_have_the_largest_distance_of_each_epoch() -> None:
    distances = [0.1] * 10 + [0.2] * 9 + [0.5] + [0.3] * 10
    reduced = reduction(bs.AttributeInference(distances), SHUFFLED)
    assert reduced is not None
    assert sorted(step.distance for step in reduced.proved[0].steps) == [0.1, 0.3, 0.5]  # type: ignore[union-attr]
    noises = sorted(step.noise for step in reduced.attacks[0].steps)  # type: ignore[union-attr]
    assert noises == pytest.approx([2.0 / 0.3, 2.0 / 0.2, 2.0 / 0.1])
    values, counts = np.unique(distances, return_counts=True)
    histogram = reduction(bs.AttributeInference(dict(zip(values, counts, strict=True))), SHUFFLED)
    assert histogram is not None
    largest = {step.distance: step.count for step in histogram.proved[0].steps}  # type: ignore[union-attr]
    assert largest == {0.3: 2, 0.5: 1}  # any of the steps may be in any epoch
    (smallest,) = histogram.attacks[0].steps
    assert (smallest.noise, smallest.count) == (20.0, 3)  # type: ignore[union-attr]


def test_attributes_in_bins_have_three_bounds_and_two_attacks() -> None:
    reduced = reduction(bs.AttributeInference(0.5), BINS)
    assert reduced is not None
    assert [one.steps for one in reduced.proved] == [
        (PoissonStep(1.0, 2.0, 0.5, 3),),
        (AllocationStep(10, 2.0, True, 3),),
        (AllocationStep(10, 2.0, True, 3, 0.5),),
    ]
    assert [one.steps for one in reduced.attacks] == [
        (AllocationStep(10, 8.0, True, 3),),
        (AllocationStep(10, 4.0, False, 3),),
    ]
    assert bs.analyze(BINS, bs.AttributeInference(0.0)).bayes_security.lower == 1.0


@given(st.floats(0.01, 2.0), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_attacks_on_fixed_sizes_fit_into_the_unit_ball(distance: float, part: float) -> None:
    """The triangles g, a, b that the attack on a fixed size may use have an enclosing circle of radius at most 1."""
    reduced = reduction(bs.AttributeInference(distance), FIXED)
    assert reduced is not None
    step = reduced.attacks[0].steps[0]
    assert isinstance(step, PoissonStep)
    leg = 1.0 / step.noise
    assert leg == pytest.approx(2.0 * cos(0.5 * asin(0.5 * distance)))
    assert step.distance * leg == pytest.approx(distance)
    other = abs(leg - distance) + part * (leg - abs(leg - distance))  # ‖b - g‖, from the line to the isosceles triangle
    a, b, c = sorted((leg, distance, other))
    if a * a + b * b <= c * c:
        assert 0.5 * c <= 1.0 + 1e-9
    else:
        half = 0.5 * (a + b + c)
        area = sqrt(max(half * (half - a) * (half - b) * (half - c), 1e-300))
        assert a * b * c / (4.0 * area) <= 1.0 + 1e-6
    assert hypot(leg, 0.0) <= 2.0


@pytest.mark.parametrize(("rate", "size", "most"), [(0.1, 100, 12), (0.5, 4, 2), (256 / 26048, 26048, 320), (0.01, 1000, 400)])
def test_probabilities_of_truncation(rate: float, size: int, most: int) -> None:
    others = np.arange(size)
    law = binom.pmf(others, size - 1, rate)
    full = law[most:].sum()
    kept = (rate * law * np.minimum(1.0, most / (others + 1.0))).sum()
    one = truncation(rate, size, most)
    assert one.full == pytest.approx(full, rel=1e-10)
    assert one.overall == pytest.approx(kept, rel=1e-11)
    if full > 1e-300:
        assert one.rate == pytest.approx((rate * law * most / (others + 1.0))[most:].sum() / full, rel=1e-9)
        assert one.rate <= rate
    assert at_least(most, size - 1, rate) == pytest.approx(binom.sf(most - 1, size - 1, rate), rel=1e-10)


def test_truncated_batches() -> None:
    (coin,) = bs.Membership("add-remove").steps(CUT)
    cut = truncation(0.1, 100, 12)
    assert coin == CoinStep((1.0 - cut.full, cut.full), (PoissonStep(0.1, 1.0, 1.0, 20), PoissonStep(cut.rate, 0.5, 1.0, 20)), 20)
    (coin,) = bs.AttributeInference(0.5).steps(CUT)
    assert coin == CoinStep(
        (1.0 - cut.full, cut.full), (PoissonStep(0.1, 1.0, 0.5, 20), PoissonStep(cut.rate, 0.5, 0.25, 20)), 20
    )
    reduced = reduction(bs.Membership(), CUT)
    assert reduced is not None
    assert [one.steps for one in reduced.attacks] == [(PoissonStep(cut.overall, 1.0, 2.0, 20),)]
    never = bs.DPSGD(1.0, 0.1, 20, max_batch_size=100, dataset_size=100)  # a batch is never larger
    assert bs.Membership().steps(never) == bs.Membership().steps(bs.DPSGD(1.0, 0.1, 20))


def test_sweeps_keep_their_sampling() -> None:
    run = bs.DPSGD([1.0, 2.0], 0.1, 20, "fixed-size")
    betas = bs.analyze(run, bs.Membership("add-remove")).bayes_security.estimate
    assert betas[1] > betas[0]
    assert betas[0] == bs.analyze(FIXED, bs.Membership("add-remove")).bayes_security.estimate
