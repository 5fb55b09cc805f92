"""Groups of records with targets of their own: rates or norms that just meet them, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import betastar as bs
from betastar import audit
from betastar.groups import RELATIONS, WAYS, GroupPlan, calibrate_groups

SIZES = {"careful": 100, "middle": 300, "usual": 600}
TARGETS = {"careful": 0.99, "middle": 0.95, "usual": 0.9}
#: What can be reached if anybody's record could be in the place of another one.
AGAINST_ANYBODY = {"careful": 0.94, "middle": 0.92, "usual": 0.9}


def calibrated(by: str, relation: str, **given: Any) -> GroupPlan:
    limits = AGAINST_ANYBODY if relation == "substitution" else TARGETS
    targets = {group: bs.Target(bayes_security=beta) for group, beta in limits.items()}
    return calibrate_groups(targets, **{"sizes": SIZES, "batch_size": 20, "steps": 500, "by": by, "relation": relation} | given)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_each_group_just_meets_its_target(by: str, relation: str) -> None:
    plan = calibrated(by, relation, method="exact")
    limits = AGAINST_ANYBODY if relation == "substitution" else TARGETS
    for group, beta in limits.items():
        assert beta <= plan.risk(group, method="exact").bayes_security.lower <= beta + 2e-6
    assert sum(SIZES[group] * rate for group, rate in plan.rates.items()) == pytest.approx(20.0, rel=1e-12)
    same, differs = (plan.norms, plan.rates) if by == "rate" else (plan.rates, plan.norms)
    assert len(set(same.values())) == 1
    assert differs["careful"] < differs["middle"] < differs["usual"]
    assert max(plan.norms.values()) == 1.0


def test_whose_rate_counts() -> None:
    """The reference value of the theory page: a quarter of the rate, against the same group and against anybody."""
    rate = 256 / 26048
    plan = GroupPlan(3.51, 2040, {"some": rate / 4, "rest": rate}, {"some": 1.0, "rest": 1.0})
    assert plan.risk("some", "same-group", "exact").bayes_security.estimate == pytest.approx(0.97477, abs=1e-5)
    assert plan.risk("some", "substitution", "exact").bayes_security.estimate == pytest.approx(0.93654, abs=1e-5)
    left_out = bs.analyze(bs.DPSGD(3.51, rate / 4, 2040), bs.Membership("add-remove"))
    assert plan.risk("some", method="exact").bayes_security == left_out.bayes_security
    everybody = bs.analyze(bs.DPSGD(3.51, rate, 2040))
    for relation in ("same-group", "substitution"):
        assert plan.risk("rest", relation, "exact").bayes_security == everybody.bayes_security


@pytest.mark.parametrize("by", WAYS)
def test_the_relations_are_ordered_and_the_certificate_encloses(by: str) -> None:
    plan = calibrated(by, "same-group", method="exact")
    for group in SIZES:
        left_out, own, anybody = (plan.risk(group, relation).bayes_security for relation in RELATIONS)
        assert anybody.lower <= own.lower <= left_out.lower
        for relation, bound in zip(RELATIONS, (left_out, own, anybody), strict=True):
            assert bound.lower <= plan.risk(group, relation, "exact").bayes_security.estimate <= bound.upper


def test_a_single_group_is_calibrated_as_everybody_is() -> None:
    target = bs.Target(tpr=0.02, fpr=0.01)
    plan = calibrate_groups({"all": target}, sizes={"all": 1000}, batch_size=20, epochs=10, relation="same-group", method="exact")
    run = bs.calibrate(target, sample_rate=0.02, steps=500)
    assert plan.steps == 500
    assert plan.noise_multiplier == pytest.approx(run.noise_multiplier, rel=1e-6)


def test_persons_have_targets() -> None:
    plan = calibrated("clipping", "add-remove", records=4, method="exact")
    run, threat = plan.question("careful")
    assert threat == bs.Membership("add-remove", records=4)
    assert run.noise_multiplier == pytest.approx(plan.noise_multiplier / plan.norms["careful"])
    with pytest.raises(ValueError, match="relation must be 'add-remove' or 'same-group' for persons with several records"):
        plan.risk("careful", "substitution")


@pytest.mark.slow
@pytest.mark.parametrize("by", WAYS)
def test_the_game_of_each_group_meets_its_guarantee(by: str) -> None:
    plan = calibrated(by, "same-group", method="exact")
    for group in SIZES:
        for relation in RELATIONS:
            played = audit.mechanism(*plan.question(group, relation), games=20_000, seed=3)
            assert not played.violated
            assert 1.0 - plan.risk(group, relation, "exact").bayes_security.estimate in played.advantage


def test_the_game_sees_a_group_that_is_drawn_too_often() -> None:
    """The rate of the weakest group where that of the most careful one is claimed."""
    plan = GroupPlan(1.0, 60, {"careful": 0.02, "usual": 0.2}, {"careful": 1.0, "usual": 1.0})
    run, threat = plan.question("careful")
    assert not audit.mechanism(run, threat, games=1500, seed=1).violated
    assert audit.mechanism(run, threat, games=1500, seed=1, actual=plan.question("usual")[0]).violated


def test_the_table_of_a_plan() -> None:
    plan = GroupPlan(3.51, 2040, {"careful": 0.002, "usual": 0.01}, {"careful": 1.0, "usual": 1.0})
    assert str(plan) == "2,040 steps with noise 3.51, in 2 groups"
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "<th>careful</th>" in plan._repr_html_()
    assert "not known" in GroupPlan(3.51, 2040, plan.rates, plan.norms, records=3)._repr_html_()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"sizes": {"careful": 100, "middle": 300}}, r"targets names the group 'usual', but sizes has only 'careful', 'middle'"),
        ({"sizes": SIZES | {"more": 5}}, r"targets has no target for the group 'more'; it has 'careful', 'middle', 'usual'"),
        ({"sizes": 1000}, "sizes must be a mapping from groups to numbers of records, got 1000"),
        ({"sizes": SIZES | {"usual": 0}}, "sizes of 'usual' must be a whole number of at least 1, got 0"),
        ({"batch_size": 1001}, "batch_size must be at most the 1000 records of all groups, got 1001"),
        ({"epochs": 3}, "give epochs or steps, one of them: got 3 and 500"),
        ({"by": "noise"}, "by must be one of 'rate', 'clipping', got 'noise'"),
        ({"relation": "replace"}, "relation must be one of 'add-remove', 'same-group', 'substitution', got 'replace'"),
        ({"records": 0}, "records must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_input(given: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        calibrated("rate", given.pop("relation", "add-remove"), **given) if "by" not in given else calibrated(
            given["by"], "add-remove"
        )


def test_targets_that_no_rate_and_no_norm_reaches() -> None:
    targets = {group: bs.Target(bayes_security=beta) for group, beta in TARGETS.items()}
    for by in WAYS:
        with pytest.raises(
            ValueError, match=r"targets of 'careful' cannot be reached: bayes_security>=0.99, but .* is 0\.94"
        ) as told:
            calibrate_groups(targets, sizes=SIZES, batch_size=20, steps=500, by=by, relation="substitution", method="exact")
        assert "choose relation 'add-remove' or 'same-group'" in str(told.value)
    with pytest.raises(TypeError, match=r"targets of 'a' must be a Target, got 0.9"):
        calibrate_groups({"a": 0.9}, sizes={"a": 10}, batch_size=2, steps=5)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="targets must be a mapping from names of groups to targets"):
        calibrate_groups({}, sizes={}, batch_size=2, steps=5)


def test_a_plan_with_numbers_that_make_no_sense() -> None:
    for rates, problem in (({"a": 0.0}, "rates must be greater than 0"), ({"b": 0.1}, "the same groups in rates and norms")):
        with pytest.raises((TypeError, ValueError), match=problem):
            GroupPlan(1.0, 10, rates, {"a": 1.0})
    with pytest.raises(ValueError, match="group must be one of 'a', got 'b'"):
        GroupPlan(1.0, 10, {"a": 0.1}, {"a": 1.0}).risk("b")
