"""plan: what was left out is filled in, meets both targets, and just so."""

from __future__ import annotations

from typing import Any

import pytest

import betastar as bs
from betastar import AttributeInference, Target
from betastar.calibrate import enforced

SAMPLING = {"batch_size": 256, "dataset_size": 26048, "epochs": 20}
RUN = bs.DPSGD.from_epochs(noise_multiplier=3.51, **SAMPLING)


@pytest.mark.parametrize(
    ("method", "beta"),
    [("exact", 0.95), ("exact", 1 - 1e-6), ("affinity", 0.99), ("affinity", 0.999), ("certified", 0.99)],
)
def test_the_widest_gap(method: str, beta: float) -> None:
    plan = bs.plan(attribute=Target(bayes_security=beta), run=RUN, method=method)
    assert plan.run is RUN
    assert plan.attribute(method).bayes_security.lower >= beta
    wider = bs.analyze(RUN, AttributeInference(enforced(plan.gap) * (1 + 1e-3)), method).bayes_security.lower
    assert wider < beta
    assert wider == pytest.approx(beta, abs=3e-3 * (1 - beta) + 1e-6)
    assert plan.gap < enforced(plan.gap) == pytest.approx(plan.gap, rel=1e-5, abs=1.1e-6)


def test_other_metrics_and_no_need_for_a_gap() -> None:
    plan = bs.plan(attribute=Target(tpr=0.011, fpr=0.01), run=RUN, method="exact")
    assert plan.attribute("exact").tpr(0.01).upper <= 0.011
    assert bs.analyze(RUN, AttributeInference(1.01 * plan.gap)).tpr(0.01).upper > 0.011
    assert bs.plan(attribute=Target(bayes_security=0.5), run=RUN).gap == 2.0


def test_membership_decides_the_run_and_attribute_the_gap() -> None:
    member, attribute = Target(bayes_security=0.9), Target(bayes_security=0.995)
    how = {"method": "exact"}
    plan = bs.plan(membership=member, attribute=attribute, **SAMPLING, **how)
    assert plan.run == bs.calibrate(member, **SAMPLING)
    assert 0.9 <= plan.membership(method="exact").bayes_security.lower < 0.9001
    assert 0.995 <= plan.attribute("exact").bayes_security.lower < 0.99501
    fewer = bs.plan(membership=member, attribute=attribute, noise_multiplier=3.51, batch_size=256, dataset_size=26048, **how)
    assert fewer.run.steps <= 2040
    rate = bs.plan(membership=member, attribute=attribute, noise_multiplier=3.51, steps=2040, **how)
    assert rate.run.sample_rate == pytest.approx(0.0098, rel=0.02)


@pytest.mark.parametrize("missing", ["noise_multiplier", "steps"])
def test_the_stricter_target_decides(missing: str) -> None:
    given: dict[str, Any] = {"noise_multiplier": 3.51, "sample_rate": 0.0098, "steps": 2040}
    del given[missing]
    for gap in (1.9, 0.01):  # with a wide gap the attribute target is the stricter one, with a narrow one membership
        targets = {"membership": Target(bayes_security=0.9), "attribute": Target(bayes_security=0.99)}
        plan = bs.plan(**targets, gap=gap, method="exact", **given)
        reached = plan.membership(method="exact").bayes_security.lower, plan.attribute("exact").bayes_security.lower
        assert reached[0] >= 0.9
        assert reached[1] >= 0.99
        close = reached[1] - 0.99 if gap == 1.9 else reached[0] - 0.9
        assert close < (5e-4 if missing == "steps" else 2e-5)  # steps are whole


@pytest.mark.slow
def test_less_noise_needs_a_narrower_gap() -> None:
    target = Target(bayes_security=0.99)
    plans = [bs.plan(attribute=target, noise_multiplier=noise, **SAMPLING) for noise in (3.51, 0.5)]
    gaps = [plan.gap for plan in plans]
    assert gaps == sorted(gaps, reverse=True)
    for plan in plans:
        assert 0.99 <= plan.attribute().bayes_security.lower < 0.9901
    assert gaps[0] == pytest.approx(0.1842, abs=1e-3)
    assert gaps[-1] == pytest.approx(0.0047, abs=1e-4)


def test_bad_input() -> None:
    beta = Target(bayes_security=0.99)
    for options, problem, message in (
        ({}, TypeError, "give a target"),
        ({"attribute": 0.99, "run": RUN}, TypeError, "attribute must be a Target, got 0.99"),
        ({"attribute": beta, "gap": 3.0, "run": RUN}, ValueError, r"gap must be between 0 and 2.*got 3\.0"),
        ({"attribute": beta, "gap": [0.1, 0.2], "run": RUN}, TypeError, "gap must be one number"),
        ({"attribute": beta, "run": RUN, "steps": 3}, TypeError, "steps cannot go with run"),
        ({"membership": beta, "attribute": beta, "run": RUN}, ValueError, r"not met by the run.*0\.8993"),
        ({"attribute": beta, "gap": 1.0, "run": RUN}, ValueError, r"not met with gap 1: bayes_security is 0\.9"),
        ({"membership": Target(bayes_security=0.5), "run": RUN}, TypeError, "no attribute target"),
        ({"attribute": beta, "batch_size": 256, "dataset_size": 26048, "epochs": 2}, TypeError, "gap must be given"),
        ({"attribute": beta, "gap": 0.1, "steps": 3}, TypeError, "leave out exactly one"),
        ({"attribute": Target(bayes_security=1 - 1e-13), "run": RUN}, ValueError, "cannot be reached by choosing gap"),
    ):
        with pytest.raises(problem, match=message):
            bs.plan(**options, method="exact")  # type: ignore[arg-type]
