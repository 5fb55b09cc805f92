"""The heuristic for the final model: against a naive sum, and never a bound."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.special import ndtr

import betastar as bs
from betastar.heuristics import final_model


def test_figure_of_the_final_model() -> None:
    run = bs.DPSGD(0.5, 0.01, 1000)
    risk = final_model(run, bs.Membership("add-remove"))
    assert risk.advantage.estimate == pytest.approx(0.246, abs=5e-4)
    assert bs.analyze(run, bs.Membership("add-remove")).advantage.estimate == pytest.approx(0.542, abs=5e-4)


def naive_final(run: bs.DPSGD, records: int, mirrored: bool) -> float:
    """The advantage of telling Bin + noise from noise (or - Bin + noise), by a sum over outcomes and hits."""
    from scipy.stats import binom

    weights = np.ones(1)
    for segment in run.segments:
        weights = np.convolve(
            weights, binom.pmf(np.arange(records * segment.steps + 1), records * segment.steps, segment.sample_rate)
        )
    noise = sqrt(sum(s.steps * s.noise_multiplier**2 for s in run.segments))
    hits = np.flatnonzero(weights > 1e-17)
    edges = np.linspace(-hits[-1] - 9.0 * noise, hits[-1] + 9.0 * noise, 20_001)
    first = np.diff((weights[hits] * ndtr((edges[:, None] - hits) / noise)).sum(axis=1))
    other = (
        np.diff((weights[hits] * ndtr((edges[:, None] + hits) / noise)).sum(axis=1)) if mirrored else np.diff(ndtr(edges / noise))
    )
    return 0.5 * float(np.abs(first - other).sum())


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize(
    ("run", "records"),
    [
        (bs.DPSGD(0.5, 0.01, 1000), 1),
        (bs.DPSGD(2.0, 0.02, 300) + bs.DPSGD(1.0, 0.1, 50), 2),
        (bs.DPSGD(8.0, 0.5, 5000), 1),
        (bs.DPSGD(3.0, 0.3, 6000) + bs.DPSGD(6.0, 1.0, 20), 1),
    ],
)
def test_final_model_against_a_naive_sum(run: bs.DPSGD, records: int, mirrored: bool) -> None:
    threat = bs.Membership("substitution" if mirrored else "add-remove", records=records)
    assert final_model(run, threat).advantage.estimate == pytest.approx(naive_final(run, records, mirrored), abs=1e-6)


def test_the_final_model_is_never_a_bound() -> None:
    risk = final_model(bs.DPSGD([0.5, 1.0], 0.01, 1000))
    assert risk.heuristic
    assert "not a bound" in repr(risk)
    for bound in (
        risk.bayes_security,
        risk.advantage,
        risk.success(),
        risk.success([0.2, 0.3, 0.5]),
        risk.tpr(0.01),
        risk.delta(1.0),
        risk.epsilon(1e-5),
        risk.reconstruction(0.1),
        risk.gdp_mu,
        risk.tradeoff([0.1, 0.2]),
    ):
        assert np.all(np.isnan(bound.lower))
        assert np.all(np.isnan(bound.upper))
        assert not np.any(np.isnan(bound.estimate))
        assert 0.5 not in bound
    single = final_model(bs.DPSGD(5.0, 0.01, 10))
    assert str(single.bayes_security).endswith("(a heuristic, not a bound)")
    for target in (bs.Target(bayes_security=0.01), bs.Target(advantage=0.999), bs.Target(epsilon=100.0, delta=0.5)):
        assert not target.met(single)
    assert bs.analyze(bs.DPSGD(5.0, 0.01, 10)).heuristic is None


def test_what_the_final_model_is_refused_for() -> None:
    run = bs.DPSGD(1.0, 0.01, 100)
    with pytest.raises(ValueError, match=r"threat must be Membership for the final model, got AttributeInference\(distances=0.5"):
        final_model(run, bs.AttributeInference(0.5))
    with pytest.raises(TypeError, match="run must be a DPSGD, got 3"):
        final_model(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="poisson"):
        final_model(bs.DPSGD(1.0, 0.01, 100, "balls-in-bins"))
