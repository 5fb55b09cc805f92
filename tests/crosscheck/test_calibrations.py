"""Calibrations of every parameter to every metric, confirmed by dp_accounting's two roundings of the same run.

The truth lies between the optimistic and the pessimistic rounding. What was calibrated must not be riskier than the target by the
first, and with the next riskier value of the parameter it must be by the second.
"""

from __future__ import annotations

from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtri

import betastar as bs
from tests import brackets

GRID = 1e-4
RELATIONS = {
    "substitution": dp.NeighboringRelation.REPLACE_ONE,
    "add-remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
}
PARAMETERS = ("noise_multiplier", "sample_rate", "steps", "batch_size", "epochs", "dataset_size")
GIVEN = {"tpr": "fpr", "reconstruction": "prior", "epsilon": "delta"}
METRICS = ("bayes_security", "advantage", "success", "tpr", "epsilon", "gdp_mu", "reconstruction")


def hockey_sticks(pmf: Any, ends: np.ndarray) -> np.ndarray:
    """H at e^ε for each ε, from the masses of the losses."""
    dense = pmf.to_dense_pmf()
    mass = np.asarray(dense._probs, dtype=np.float64)
    losses = dense._discretization * (dense._lower_loss + np.arange(len(mass)))
    with np.errstate(over="ignore"):
        first, second = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (mass, mass * np.exp(-losses)))
    i = np.searchsorted(losses, ends, side="right")
    return np.maximum(first[i] - np.exp(ends) * second[i], 0.0) + dense._infinity_mass


class Rounded:
    """One rounding of a run: its hockey sticks, with the record as P (ahead) and without it as P (back)."""

    def __init__(self, run: bs.DPSGD, relation: str, pessimistic: bool) -> None:
        one = pld.from_gaussian_mechanism(
            float(run.noise_multiplier),
            pessimistic_estimate=pessimistic,
            value_discretization_interval=GRID,
            sampling_prob=float(run.sample_rate),
            use_connect_dots=pessimistic,
            neighboring_relation=RELATIONS[relation],
        )
        self.all = one.self_compose(int(run.steps))
        ends = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 3000)])
        self.alphas = np.exp(ends)
        self.ahead, self.back = (hockey_sticks(pmf, ends) for pmf in (self.all._pmf_remove, self.all._pmf_add))

    def tpr(self, fpr: Any) -> Any:
        """min over α of H_α + α·FPR."""
        rates = np.atleast_1d(fpr)[:, None]
        ahead = (self.ahead + self.alphas * rates).min(axis=1)
        back = (1.0 - (1.0 - self.back - rates) / self.alphas).min(axis=1)
        return np.minimum(np.minimum(ahead, back), 1.0)

    def metric(self, target: bs.Target) -> float:
        name, at, advantage = target.metric, target.given, float(self.ahead[0])
        if name == "bayes_security":
            return 1.0 - advantage
        if name == "advantage":
            return advantage
        if name == "success":
            return 0.5 * (1.0 + advantage)
        if name == "epsilon":
            return float(self.all.get_epsilon_for_delta(at))
        if name == "gdp_mu":  # both error rates at least 1e-5
            fprs = np.concatenate([np.geomspace(1e-5, 0.5, 400), 1.0 - np.geomspace(1e-5, 0.5, 100)])
            rates = np.minimum(self.tpr(fprs), 1.0 - 1e-5)
            return float(np.max(ndtri(rates) - ndtri(fprs)))
        return float(self.tpr(at)[0])


def setting(number: int) -> tuple[str, str, bs.DPSGD, dict[str, Any], bs.Target]:
    """(relation, parameter, run, its other numbers, a target that the run just meets)."""
    random = np.random.default_rng(number)
    parameter, metric = PARAMETERS[number % len(PARAMETERS)], METRICS[(number // len(PARAMETERS)) % len(METRICS)]
    relation = ("substitution", "add-remove")[int(random.integers(2))]
    noise = float(np.round(np.exp(random.uniform(np.log(0.7), np.log(4.0))), 3))
    if parameter in ("batch_size", "epochs", "dataset_size"):
        batch, epochs = int(random.integers(5, 60)), int(random.integers(1, 8))
        size = batch * int(random.integers(4, 30))
        numbers: dict[str, Any] = {"noise_multiplier": noise, "batch_size": batch, "dataset_size": size, "epochs": epochs}
    else:
        rate = float(np.round(np.exp(random.uniform(np.log(0.01), np.log(0.6))), 4))
        numbers = {"noise_multiplier": noise, "sample_rate": rate, "steps": int(random.integers(2, 200))}
    while True:
        run = bs.DPSGD.from_numbers(**numbers, opacus=None if "sample_rate" in numbers else False)
        risk = bs.analyze(run, bs.Membership(relation))
        if risk.advantage.estimate < 0.95:  # there is something left to protect
            break
        numbers["noise_multiplier"] *= 1.5
    at = {"tpr": {"fpr": 0.01}, "reconstruction": {"prior": 0.05}, "epsilon": {"delta": 1e-4}}.get(metric, {})
    probe = bs.Target(**{metric: 0.75}, **at)
    value = float(np.round(probe.bound(risk).estimate, 5))
    return relation, parameter, run, numbers, bs.Target(**{metric: value}, **at)


def confirm(number: int) -> None:
    relation, parameter, _, numbers, target = setting(number)
    others = {name: value for name, value in numbers.items() if name != parameter}
    opacus = None if "sample_rate" in numbers else False
    found = bs.calibrate(target, **others, threat=bs.Membership(relation), opacus=opacus)
    if parameter in ("noise_multiplier", "sample_rate"):
        factor = 0.99 if parameter == "noise_multiplier" else 1.01
        value = min(factor * float(getattr(found, parameter)), 1.0 if parameter == "sample_rate" else np.inf)
    elif parameter == "steps":
        value = int(found.steps) + 1
    else:  # what the run was made from, and the next riskier one
        sizes = others.get("dataset_size", 0), others.get("batch_size", 1)
        batches = round(int(found.steps) / others["epochs"]) if "epochs" in others else -(-sizes[0] // sizes[1])
        value = {
            "epochs": lambda: int(found.steps) // batches + 1,
            "batch_size": lambda: round(float(found.sample_rate) * others["dataset_size"]) + 1,
            "dataset_size": lambda: (batches - 1) * others["batch_size"],
        }[parameter]()
    sign = -1.0 if target.metric == "bayes_security" else 1.0
    least = Rounded(found, relation, False).metric(target)
    assert sign * least <= sign * target.value + 1e-9
    # The pessimistic one is close: were the calibrated run riskier than the target by a thousandth, it would show.
    close = Rounded(found, relation, True).metric(target)
    assert sign * close <= sign * target.value + 1e-3 * abs(target.value)
    if parameter in ("batch_size", "dataset_size") and not others.get("batch_size", 1) <= value <= others.get(
        "dataset_size", value
    ):
        return  # the parameter is at the end of its range
    riskier = bs.DPSGD.from_numbers(**others, **{parameter: value}, opacus=opacus)
    most = Rounded(riskier, relation, True).metric(target)
    assert sign * most >= sign * target.value - 1e-9


@pytest.mark.parametrize("number", [0, 16, 24])
def test_a_sample_is_confirmed(number: int) -> None:
    confirm(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_a_hundred_calibrations_are_confirmed(number: int) -> None:
    confirm(number)


class Enclosed:
    """The same of the brackets of `tests.brackets`, which take milliseconds and know more threats and samplings."""

    def __init__(self, run: bs.DPSGD, threat: Any, pessimistic: bool) -> None:
        self.known, self.side = brackets.bracket(run, threat), int(pessimistic)

    def metric(self, target: bs.Target) -> float:
        assert self.known is not None
        name = {"success": "success(.5)", "bayes_security": "advantage"}.get(target.metric, target.metric)
        name = f"{'tpr' if name == 'reconstruction' else name}({target.given!r})" if target.metric in GIVEN else name
        value = self.known.sides(name)[self.side]
        return 1.0 - value if target.metric == "bayes_security" else value


@pytest.mark.parametrize("some", [range(1000, 1012), pytest.param(range(1000, 1100), marks=pytest.mark.slow)], ids=len)
def test_a_hundred_calibrations_are_enclosed(some: range) -> None:
    """Of every parameter, metric and threat, with samples of Poisson and of a fixed size."""
    seen = set()
    for number in some:
        _, parameter, run, numbers, target = setting(number)
        threat = (bs.Membership(), bs.Membership("add-remove"), bs.Membership(records=3), bs.AttributeInference(0.7))[
            number // 5 % 4
        ]
        sampling = (
            "fixed-size" if "sample_rate" not in numbers and number % 2 and getattr(threat, "records", 1) == 1 else "poisson"
        )
        others = {name: value for name, value in numbers.items() if name != parameter}
        drawn = {"opacus": None if "sample_rate" in numbers or sampling != "poisson" else False, "sampling": sampling}
        meant = bs.DPSGD.from_numbers(**numbers, **drawn)
        risk = bs.analyze(meant, threat)
        if float(risk.advantage.upper) > 0.95 or run.noise_multiplier < 0.5:
            continue
        bound = target.bound(risk)
        value = float(bound.lower * (1.0 - 1e-4) if target.metric == "bayes_security" else bound.upper * (1.0 + 1e-4))
        target = bs.Target(**{target.metric: value}, **{GIVEN[target.metric]: target.given} if target.metric in GIVEN else {})
        found = bs.calibrate(target, **others, threat=threat, **drawn)
        sign = -1.0 if target.metric == "bayes_security" else 1.0
        assert sign * Enclosed(found, threat, False).metric(target) <= sign * target.value + 1e-8, (number, found, target)
        if parameter in ("noise_multiplier", "sample_rate"):  # the others go in steps
            riskier = bs.DPSGD(0.97 * float(found.noise_multiplier), found.sample_rate, found.steps, sampling)
            assert sign * Enclosed(riskier, threat, True).metric(target) >= sign * target.value - 1e-8, (number, found, target)
        seen.add((parameter, target.metric, str(threat), sampling))
    assert len(seen) >= 0.6 * len(some)
    if len(some) == 100:
        assert all({one[place] for one in seen} == set(every) for place, every in enumerate((PARAMETERS, METRICS)))


@pytest.mark.parametrize(
    ("sampling", "parameter", "target"),
    [
        ("balls-in-bins", "noise_multiplier", bs.Target(tpr=0.05, fpr=0.01)),
        ("balls-in-bins", "epochs", bs.Target(bayes_security=0.8)),
        ("balls-in-bins", "batch_size", bs.Target(epsilon=3.0, delta=1e-4)),
    ],
)
def test_calibrations_of_balls_in_bins_are_confirmed_by_the_certificate(sampling: str, parameter: str, target: bs.Target) -> None:
    """Of which dp_accounting has no curve: the integral is calibrated, and the proved ends confirm it."""
    numbers = {"noise_multiplier": 1.5, "batch_size": 10, "dataset_size": 300, "epochs": 5}
    del numbers[parameter]
    found = bs.calibrate(target, **numbers, sampling=sampling)
    value = {
        "noise_multiplier": lambda: 0.99 * float(found.noise_multiplier),
        "epochs": lambda: round(int(found.steps) * float(found.sample_rate)) + 1,
        # The rate is one divided by the number of batches: the next smaller number.
        "batch_size": lambda: -(-300 // (round(1.0 / float(found.sample_rate)) - 1)),
    }[parameter]()
    riskier = bs.DPSGD.from_numbers(**numbers, **{parameter: value}, sampling=sampling)
    protects = target.metric == "bayes_security"
    proved, more = (target.bound(bs.analyze(run, method="certified")) for run in (found, riskier))
    if protects:
        assert proved.upper >= target.value
        assert more.lower <= target.value
    else:
        assert proved.lower <= target.value
        assert more.upper >= target.value
