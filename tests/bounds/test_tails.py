"""Far out in the tails: probabilities of 1e-15 have digits, from both sides, against values computed without betastar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar.certified.enclosure import tails
from betastar.certified.grid import GridStep, Nodes, on_grid
from betastar.certified.tails import compose_tails
from betastar.curves import DiscreteCurve, LeastCurve
from betastar.steps import PoissonStep
from betastar.steps.group import group_step

ROWS = json.loads((Path(__file__).parent.parent / "golden" / "tails.json").read_text())
REMOVED = bs.Membership("add-remove")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"σ{row['noise']}p{row['rate']}T{row['steps']}")
def test_encloses_values_that_have_45_digits(row: dict[str, Any]) -> None:
    step = PoissonStep(float(row["rate"]), float(row["noise"]), 1.0, row["steps"])
    above, below = tails((step,), False)
    assert above is not None
    assert below is not None
    for tau, text in row["sticks"].items():
        truth = float(text)
        (high, more), (low, less) = (curve.hockey_stick(float(tau)) for curve in (above, below))
        assert low - less <= truth <= high + more
        assert more + less < 0.8 * truth  # numerical error
        assert high - low < 0.12 * truth  # of the grid
    run = bs.DPSGD(float(row["noise"]), float(row["rate"]), row["steps"])
    taus, truths = (np.array([float(one) for one in some]) for some in (row["sticks"], row["sticks"].values()))
    for method in ("exact", "certified"):
        risk = bs.analyze(run, REMOVED, method)
        assert all(truth in risk.delta(tau) for tau, truth in zip(taus.tolist(), truths.tolist(), strict=True))
        ends = risk.epsilon(truths)
        assert np.all((ends.lower <= taus) & (taus <= ends.upper) & (ends.width < 0.03 * taus))


def plain(steps: list[GridStep], grid: float, reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Losses and masses of P, by convolutions of positive numbers: every mass is right to a few digits less than all."""
    total, first = np.ones(1), 0.0
    for one in steps:
        base, index, mass, _ = one.law(grid, reverse)
        law = np.bincount(index - index.min(), weights=mass + (index == 0))
        for _ in range(one.count):
            total, first = np.convolve(total, law), first + base + grid * index.min()
    return first + grid * np.arange(len(total)), total


@settings(max_examples=12, deadline=None)
@given(
    st.floats(0.001, 0.9),
    st.floats(0.5, 4.0),
    st.sampled_from([1.0, 2.0]),
    st.integers(2, 8),
    st.booleans(),
    st.floats(0.3, 2.0),
)
def test_against_plain_convolution(p: float, noise: float, distance: float, count: int, above: bool, wide: float) -> None:
    """The same masses on the grid, of two kinds of steps: each within its error, down to 1e-24."""
    kinds = [PoissonStep(p, noise, distance, count), PoissonStep(0.5 * p, 1.3 * noise, distance, 2)]
    size = wide * p / noise / 4.0 + 0.002
    steps = [on_grid(kind, Nodes(size, 16), distance == 2.0, above, 1e-26) for kind in kinds]
    curve = compose_tails(steps, size)
    assume(curve is not None)
    assert curve is not None
    for side, reverse in ((curve.forward, False), (curve.backward, True)):
        losses, mass = plain(steps, size, reverse)
        for tau in np.linspace(0.0, side.losses[-1], 9)[:-1]:
            over = losses > tau + 1e-9 * size
            truth = float(-np.expm1(tau - losses[over]) @ mass[over]) + side.infinite
            assert abs(side.hockey_stick(float(tau)) - truth) <= side.doubt(float(tau)) + 1e-9 * truth


def test_a_rate_is_the_lowest_tangent_with_its_errors() -> None:
    above, below = tails((PoissonStep(0.01, 1.0, 1.0, 1000),), False)
    assert isinstance(above, DiscreteCurve)
    assert isinstance(below, DiscreteCurve)
    taus = np.linspace(0.0, 8.0, 4001)
    for fpr in (1e-14, 1e-10, 1e-5):
        for curve, sign in ((above, 1.0), (below, -1.0)):
            values, errors = curve.hockey_sticks(taus)
            rate, error = curve.true_positives(fpr)
            assert (rate + sign * error) == pytest.approx(float(np.min(values + sign * errors + np.exp(taus) * fpr)), rel=2e-3)
    risk = bs.analyze(bs.DPSGD(1.0, 0.01, 1000), REMOVED)
    for fpr in (1e-14, 1e-10):
        (high, more), (low, less) = (curve.true_positives(fpr) for curve in (above, below))
        assert low - less <= risk.tpr(fpr).estimate <= high + more


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_small_probabilities_are_known_from_both_sides(relation: str) -> None:
    """One δ after another: narrow, ordered, and the two methods agree; also for several records, and sums of runs."""
    deltas = np.array([1e-8, 1e-11, 1e-14, 1e-17, 1e-20])
    for run, records in (
        (bs.DPSGD(1.2, 0.005, 3000), 1),
        (bs.DPSGD(2.0, 0.1, 20) + bs.DPSGD(1.0, 0.01, 500), 1),
        (bs.DPSGD(4.0, 0.01, 500), 3),
    ):
        ends = [
            bs.analyze(run, bs.Membership(relation, records=records), method).epsilon(deltas) for method in ("exact", "certified")
        ]
        for one in ends:
            assert np.all(np.diff(one.lower) > 0.0)
            assert np.all(np.diff(one.upper) > 0.0)
            assert np.all(one.width < 0.05 * one.upper)
        assert np.all(np.maximum(ends[0].lower, ends[1].lower) <= np.minimum(ends[0].upper, ends[1].upper))


def test_a_run_without_an_affordable_grid_says_so() -> None:
    assert tails((PoissonStep(1e-6, 1.0, 1.0, 10**12),), False) == (None, None)
    assert tails((group_step(15, 0.2, 0.05, True, 10),), True) == (None, None)
    assert bs.analyze(bs.DPSGD(1.0, 1e-6, 10**12), REMOVED, "certified").epsilon(1e-15).upper == np.inf


def test_the_better_of_two_curves_has_two_directions() -> None:
    above, _ = tails((PoissonStep(0.3, 1.0, 1.0, 3),), False)
    other, _ = tails((PoissonStep(0.2, 0.8, 1.0, 4),), False)
    assert above is not None
    assert other is not None
    least = LeastCurve(above, other)
    for tau in (-1.0, 0.5, 1.5):
        for one, sides in ((least, (above, other)), (least.reversed(), (above.reversed(), other.reversed()))):
            assert sum(one.hockey_stick(tau)) == min(sum(side.hockey_stick(tau)) for side in sides)
    assert LeastCurve(above, above).reversed().hockey_stick(1.0) == above.reversed().hockey_stick(1.0)


def test_a_run_in_which_every_tilt_overflows() -> None:
    """There is no curve for rare events then; what is asked is answered all the same."""
    run = bs.DPSGD(0.8, 1.7e-5, 482) + bs.DPSGD(0.68, 1.0, 486)
    rate = bs.analyze(run, bs.Membership(records=19)).tpr(0.4)
    assert 0.0 <= rate.lower <= rate.estimate <= rate.upper <= 1.0
