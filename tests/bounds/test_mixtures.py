"""Several records of a person: golden values, figures of the theory, extremes, input and calibration."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar.exact import FourierCurve
from betastar.steps import MixtureStep
from betastar.steps.group import MixtureFactor, group_step
from betastar.steps.poisson import PoissonFactor, PoissonStep

from .given_steps import ANY_RUN, GivenSteps

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "groups.json").read_text())

ADULT = bs.DPSGD(3.51, 256 / 26048, 2040)

RELATIONS = ("substitution", "add-remove")


@pytest.mark.parametrize(
    "row", GOLDEN, ids=lambda row: f"{row['records']}-{row['rate']:.3g}-{row['noise']}-{row['steps']}-{row['mirrored']}"
)
def test_golden_values(row: dict) -> None:
    threat = bs.Membership("substitution" if row["mirrored"] else "add-remove", records=row["records"])
    run = bs.DPSGD(row["noise"], row["rate"], row["steps"])
    exact, certified = bs.analyze(run, threat), bs.analyze(run, threat, "certified", 1e-5)
    truth = float(row["beta"])
    assert exact.bayes_security.estimate == pytest.approx(truth, abs=3e-11 + exact.bayes_security.width)
    assert truth in certified.bayes_security
    assert certified.bayes_security.width <= 1e-5
    for tau, stick in row["sticks"]:
        values, _ = exact._outcomes[0].worst[0].hockey_sticks(np.array([tau]))
        assert values[0] == pytest.approx(float(stick), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("records", "advantage", "epsilon"),
    [(1, 0.051425, 0.45520), (2, 0.102614, 0.97153), (4, 0.203449, 2.09329), (8, 0.393567, 4.60785)],
)
def test_figures_of_the_theory(records: int, advantage: float, epsilon: float) -> None:
    risk = bs.analyze(ADULT, bs.Membership("add-remove", records=records))
    assert risk.advantage.estimate == pytest.approx(advantage, abs=6e-7)
    assert risk.epsilon(1e-5).estimate == pytest.approx(epsilon, abs=6e-6)


def test_one_step_of_a_group_is_not_a_step_with_less_noise() -> None:
    assert bs.analyze(bs.DPSGD(0.5 / 8, 0.01, 1), bs.Membership("add-remove")).advantage.upper == pytest.approx(0.01, abs=1e-5)
    group = bs.analyze(bs.DPSGD(0.5, 0.01, 1), bs.Membership("add-remove", records=8)).advantage
    assert group.estimate == pytest.approx(0.05317, abs=5e-6)


@pytest.mark.parametrize("method", ["exact", "certified"])
def test_mixtures_of_gaussians_as_in_dp_accounting(method: str) -> None:
    steps = (
        MixtureStep((0.2, 0.6, 0.2), (0.0, 1.0, 2.0), 1.0, False, 3),
        MixtureStep((0.33, 0.34, 0.33), (0.0, 2.0, 3.0), 2.0, False, 2),
    )
    epsilon = bs.analyze(ANY_RUN, GivenSteps(steps, False), method).epsilon(1e-6)
    assert pytest.approx(epsilon.estimate, abs=1e-4 if method == "exact" else 2e-3) == 17.193115
    assert epsilon.lower - 1e-6 <= 17.193115 <= epsilon.upper + 1e-6


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_is_todays_step(relation: str) -> None:
    assert bs.Membership(relation, records=1).steps(ADULT) == bs.Membership(relation).steps(ADULT)
    assert all(isinstance(step, PoissonStep) for step in bs.Membership(relation, records=1).steps(ADULT))
    assert bs.Membership(relation, records=1) == bs.Membership(relation)
    assert bs.Membership(relation, records=2) != bs.Membership(relation)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (1e-4, 0.4, 3), (0.3, 2.0, 20), (1e-7, 0.3, 10**6)])
def test_a_mixture_of_one_record_is_the_line_pair(relation: str, rate: float, noise: float, steps: int) -> None:
    mirrored = relation == "substitution"
    one = FourierCurve([MixtureFactor(steps, group_step(1, rate, noise, mirrored, steps))], mirrored)
    line = FourierCurve([PoissonFactor(steps, "line", rate, noise, 2.0 if mirrored else 1.0)], mirrored)
    assert one.overlap().value == pytest.approx(line.overlap().value, rel=1e-10)
    taus = np.array([-1.0, 0.0, 0.3, 1.5])
    (values, errors), (others, other_errors) = one.hockey_sticks(taus), line.hockey_sticks(taus)
    assert np.all(np.abs(values - others) <= errors + other_errors + 1e-12)


@pytest.mark.parametrize("method", ["exact", "certified", "affinity"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_risk_grows_with_the_records(method: str, relation: str) -> None:
    run = bs.DPSGD(1.2, 0.004, 300)
    betas = [bs.analyze(run, bs.Membership(relation, records=k), method).bayes_security for k in (1, 2, 3, 5, 9, 17, 40)]
    for one, more in itertools.pairwise(betas):
        assert more.lower < one.lower
        assert more.upper < one.upper


@settings(max_examples=30, deadline=None)
@given(
    records=st.integers(2, 60),
    rate=st.floats(-6.0, 0.0).map(lambda x: 10.0**x),
    noise=st.floats(-0.7, 1.0).map(lambda x: 10.0**x),
    steps=st.floats(0.0, 4.0).map(lambda x: int(10.0**x)),
    relation=st.sampled_from(RELATIONS),
)
def test_certified_encloses_exact(records: int, rate: float, noise: float, steps: int, relation: str) -> None:
    run, threat = bs.DPSGD(noise, rate, steps), bs.Membership(relation, records=records)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.ToleranceWarning)
        exact, certified = bs.analyze(run, threat), bs.analyze(run, threat, "certified", 1e-3)
    one, other = exact.bayes_security, certified.bayes_security
    assert one.lower <= other.upper * (1.0 + 1e-9) + 1e-12
    assert other.lower <= one.upper * (1.0 + 1e-9) + 1e-12
    for fpr in (1e-3, 0.1):
        one, other = exact.tpr(fpr), certified.tpr(fpr)
        assert one.lower <= other.upper + 1e-9
        assert other.lower <= one.upper + 1e-9


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("records", "rate", "noise", "steps"),
    [
        (100, 1e-8, 0.2, 10**9),
        (100, 1e-8, 0.2, 10**6),
        (1000, 1e-3, 5.0, 100),
        (1000, 0.5, 0.2, 10),
        (3, 0.1, 1e-300, 5),
        (3, 0.1, 1e300, 5),
        (5, 1.0, 0.5, 3),
        (20_000, 0.5, 1.0, 10),
    ],
)
def test_extremes(records: int, rate: float, noise: float, steps: int, relation: str) -> None:
    run, threat = bs.DPSGD(noise, rate, steps), bs.Membership(relation, records=records)
    exact, certified = (bs.analyze(run, threat, method).bayes_security for method in ("exact", "certified"))
    assert 0.0 <= certified.lower <= certified.estimate <= certified.upper <= 1.0
    assert 0.0 <= exact.lower <= exact.estimate <= exact.upper <= 1.0
    assert exact.lower <= certified.upper
    assert certified.lower <= exact.upper


@pytest.mark.parametrize("records", [0, -1, 2.5, 100_001])
def test_numbers_of_records_that_are_refused(records: float) -> None:
    with pytest.raises(ValueError, match="records must be a whole number"):
        bs.Membership(records=records)  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [True, "3", [1, 2], None])
def test_records_that_are_no_number(records: object) -> None:
    with pytest.raises(TypeError, match="records must be"):
        bs.Membership(records=records)  # type: ignore[arg-type]


def test_words_for_a_person() -> None:
    threat = bs.Membership("add-remove", records=8)
    assert threat.describe() == "membership inference (add-remove) of a person with 8 records"
    assert repr(threat) == "Membership(relation='add-remove', records=8)"
    assert bs.Membership().describe() == "membership inference (substitution)"


def test_calibration_for_a_person() -> None:
    threat, target = bs.Membership("add-remove", records=8), bs.Target(bayes_security=0.9)
    run = bs.calibrate(target, sample_rate=0.01, steps=1000, threat=threat)
    assert target.met(bs.analyze(run, threat))
    assert not target.met(bs.analyze(bs.DPSGD(run.noise_multiplier * 0.999, 0.01, 1000), threat))
    assert (
        run.noise_multiplier
        > bs.calibrate(target, sample_rate=0.01, steps=1000, threat=bs.Membership("add-remove")).noise_multiplier
    )
