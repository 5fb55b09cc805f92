"""The Gaussian that lies above a curve: proved at every slope, also at those between the ones that are looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

import betastar as bs
from betastar import risk
from betastar.curves import DiscreteCurve, Side

FLOOR = 1e-3


@st.composite
def discrete_curves(draw: st.DrawFn) -> DiscreteCurve:
    """A symmetric law of a few losses: its curve has corners, and μ as a function of the slope a narrow peak at each."""
    losses = np.array(sorted(draw(st.sets(st.floats(0.01, 6.0), min_size=1, max_size=5))))
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=len(losses), max_size=len(losses))))
    mass = weights * draw(st.floats(1e-3, 0.9)) / float(np.sum(weights * (1.0 + np.exp(-losses))))
    side = Side.of(losses, mass, 0.0)
    return DiscreteCurve(side, side)


def needed(curve: DiscreteCurve, fprs: np.ndarray) -> float:
    """The μ of a Gaussian curve above this one at all these rates."""
    tprs = np.array([curve.true_positives(fpr).value for fpr in fprs.tolist()])
    inside = tprs <= 1.0 - FLOOR
    return float(np.max((ndtri(tprs) - ndtri(fprs))[inside], initial=0.0))


@settings(max_examples=60, deadline=None)
@given(discrete_curves())
def test_no_rate_needs_a_larger_mu(curve: DiscreteCurve) -> None:
    low, middle, high = risk.gaussian_mu(curve, FLOOR)
    truth = needed(curve, np.geomspace(FLOOR, 1.0 - FLOOR, 2001))
    assert low <= middle <= high
    assert truth <= high * (1.0 + 1e-9)


@pytest.mark.parametrize("mu", [0.01, 0.5, 3.0])
def test_a_gaussian_is_met(mu: float) -> None:
    fit = bs.analyze(bs.DPSGD(2.0 / mu, 1.0, 1)).gdp_mu
    assert fit.estimate == pytest.approx(mu, rel=1e-8)
    assert mu <= fit.upper <= mu * (1.0 + 2e-4)


def test_slopes_between_the_sampled_ones_count() -> None:
    """A corner that no sampled slope meets: the largest μ among the sampled slopes is too small, the proved one is not."""
    side = Side.of(np.array([0.7, 3.1]), np.array([0.2, 0.002]), 0.0)
    curve = DiscreteCurve(side, side)
    dense, few = (risk._mu_at(curve, np.linspace(0.0, 3.0, n))[0][:, 1].max() for n in (20_001, risk.SLOPES))
    rows, proved = risk._largest_mu(curve, 0.0, 3.0)
    assert few < dense <= proved <= rows[:, 1].max() * (1.0 + 2.0 * risk.CLOSE)


HOPELESS = {
    "exact": bs.DPSGD(1.5660695752398077, 0.6163613795276635, 4314),
    "certified": bs.DPSGD(0.75, 1.5e-5, 776) + bs.DPSGD(0.53, 1.0, 58) + bs.DPSGD(8.5, 0.0049, 41691),  # errors above 1
}


@pytest.mark.parametrize("method", HOPELESS)
def test_the_fit_of_a_hopeless_run(method: str) -> None:
    fit = bs.analyze(HOPELESS[method], method=method, tolerance=0.01).gdp_mu
    assert 0.0 <= fit.lower <= fit.estimate <= fit.upper
    assert 0.0 <= fit.regret <= 1.0
