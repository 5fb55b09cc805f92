"""Trainings in which groups of records have rates or clipping norms of their own."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import betastar as bs
from betastar.cli.main import app
from betastar.groups import calibrate_groups
from betastar.report.facts import load, public
from betastar.report.model_card import CARD
from betastar.report.statement import verdicts
from betastar.runs.reading import FolderError
from betastar.training import Budget, NotProved, PrivateTraining, Protection
from betastar.training.draws import Draws
from betastar.training.noise import GaussianNoise

from .test_private_attacks import attained
from .test_private_training import FLAG, made, sums_of, table

RECORDS = 60
GROUPS: dict[str, Any] = {"careful": [5, 2, 11, 3, 58], "usual": [i for i in range(RECORDS) if i not in (5, 2, 11, 3, 58)]}
TARGETS = {"careful": bs.Target(bayes_security=0.99), "usual": bs.Target(bayes_security=0.95)}


def protected(by: str = "rate", groups: Any = None, relation: str = "add-remove", **given: Any) -> PrivateTraining:
    protection = Protection(GROUPS if groups is None else groups, TARGETS, by, relation)
    return made(**{"noise_multiplier": None, "protection": protection, "steps": 10} | given)


# ---- What is drawn and what is clipped


def test_each_record_is_drawn_with_the_rate_of_its_group() -> None:
    """Chi-square for each group, for the sizes of batches, and for pairs of records: independent coins."""
    rates = np.repeat([0.02, 0.3, 1.0], [30, 20, 2])
    rates = rates[np.random.default_rng(0).permutation(len(rates))]
    draws, steps = Draws(len(rates), 9, "poisson", None, 5, rates=rates), 3000
    table = np.zeros((steps, len(rates)))
    for step in range(steps):
        batch = draws.indices(step)
        assert (batch[1:] > batch[:-1]).all()
        table[step, batch] = 1.0
    for rate in (0.02, 0.3):
        counts = table[:, rates == rate].sum(axis=0)
        statistic = float(((counts - steps * rate) ** 2 / (steps * rate * (1.0 - rate))).sum())
        assert 1e-4 < stats.chi2.sf(statistic, len(counts)) < 1.0 - 1e-4
    assert table[:, rates == 1.0].all()
    coins = (table - rates)[:, rates < 1.0] / np.sqrt(rates * (1.0 - rates))[rates < 1.0]
    pairs = (coins.T @ coins / steps**0.5)[np.triu_indices(50, 1)]
    assert 1e-4 < stats.chi2.sf(float((pairs**2).sum()), len(pairs)) < 1.0 - 1e-4
    again = (coins[1:] * coins[:-1]).sum(axis=0) / steps**0.5
    assert 1e-4 < stats.chi2.sf(float((again**2).sum()), len(again)) < 1.0 - 1e-4


def test_the_divisor_is_the_public_batch_and_the_run_is_that_of_the_largest_rate() -> None:
    training = protected()
    assert training.groups is not None
    rates = training.groups.rates
    assert training._draws.divisor == 10.0
    assert 5 * rates["careful"] + 55 * rates["usual"] == pytest.approx(10.0, rel=1e-12)
    np.testing.assert_array_equal(training._draws.rates[GROUPS["careful"]], rates["careful"])  # type: ignore[index]
    training.fit(progress=False)
    assert training.run == bs.DPSGD(training.noise_multiplier, rates["usual"], 10)
    assert training.guarantee.membership is not None
    assert training.guarantee.membership.bayes_security == bs.analyze(training.run, method="certified").bayes_security


def test_each_gradient_is_clipped_to_the_norm_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table().tensors
    training = protected("clipping", data=TensorDataset(50.0 * x, y), max_grad_norm=0.1, lr=1.0)
    assert training.groups is not None
    norms = training.groups.norms
    for i in range(RECORDS):
        wanted = 0.1 * norms["careful" if i in GROUPS["careful"] else "usual"]
        total = sums_of(training, torch.tensor([i]))
        norm = sum(float(t.double().square().sum()) for t in total.values()) ** 0.5
        assert wanted * (1.0 - 1e-3) <= norm <= wanted * (1.0 + 1e-5)
    scales: list[float] = []
    monkeypatch.setattr(
        GaussianNoise, "like", lambda self, shapes, step: [torch.ones(p.shape, dtype=torch.float64) for p in shapes]
    )
    monkeypatch.setattr(Draws, "_batch", lambda self, step: np.arange(0))
    before = [p.detach().clone() for p in training.model.parameters()]
    training.step()
    scales = [float((a - b).detach().mean()) * 10.0 for a, b in zip(before, training.model.parameters(), strict=True)]
    least = training.noise_multiplier * 0.1
    assert all(least * (1.0 + 1e-5 / norms["careful"]) <= scale <= least * 1.01 for scale in scales), "rounding, for small norms"


@pytest.mark.parametrize("by", ["rate", "clipping"])
def test_the_guarantee_is_about_each_group(by: str) -> None:
    training = protected(by)
    planned = training.planned_guarantee()
    assert planned.groups is not None
    for group, target in TARGETS.items():
        assert target.value <= planned.groups.risk(group).bayes_security.lower <= target.value + 2e-4
    assert f"whether a record of 'careful' was trained on or left out faces β* ≥ {0.99:.4f}." in str(planned)
    training.step()
    assert training.guarantee.groups is not None
    assert training.guarantee.groups.steps == 1
    assert training.guarantee.groups.risk("careful").bayes_security.lower > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("by", ["rate", "clipping"])
def test_an_attack_on_real_steps_meets_the_figure_of_the_group(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model whose gradient is the record itself. Record 0, of the careful group, is replaced by its opposite."""
    plan = cache(
        lambda: calibrate_groups(targets, sizes={"careful": 2, "usual": 6}, batch_size=4, steps=3, by=by, relation="same-group")
    )
    monkeypatch.setattr("betastar.training.private_training.calibrate_groups", lambda *_, **__: plan())
    targets = {"careful": bs.Target(bayes_security=0.7), "usual": bs.Target(bayes_security=0.3)}

    def training(world: int) -> PrivateTraining:
        x = torch.zeros(8, 1)
        x[0] = 1.0 if world else -1.0
        model, data = nn.Linear(1, 1, bias=False), TensorDataset(10.0 * x, torch.zeros(8, 1))
        protection = Protection({"careful": [0, 1], "usual": range(2, 8)}, targets, by, "same-group")
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        return PrivateTraining(model, sgd, data, lambda output, _: output.sum(), batch_size=4, protection=protection, steps=3)

    games = 600
    measured, bound = attained(training, 3, games), float(plan().risk("careful").advantage.upper)
    assert 0.29 < bound <= 0.3
    assert abs(measured - bound) < 4.0 * games**-0.5


# ---- Loops that try to get more out of it


def test_groups_cannot_change_after_a_training_is_made() -> None:
    members, targets = {name: np.array(some) for name, some in GROUPS.items()}, dict(TARGETS)
    protection = Protection(members, targets)
    training = made(noise_multiplier=None, protection=protection, steps=10)
    members["careful"][:] = 0
    members["more"] = np.array([1])
    targets["careful"] = bs.Target(bayes_security=0.5)
    assert copy.deepcopy(protection).of_records(RECORDS).tolist() == protection.of_records(RECORDS).tolist()
    assert protection.of_records(RECORDS).tolist() == [0 if i in GROUPS["careful"] else 1 for i in range(RECORDS)]
    with pytest.raises(ValueError, match="read-only"):
        protection.groups["usual"][0] = 5
    for name in ("groups", "noise_multiplier"):
        with pytest.raises(AttributeError, match=f"{name} is fixed once a training is made"):
            setattr(training, name, None)
    assert training.groups is not None
    with pytest.raises(TypeError, match="does not support item assignment"):
        training.groups.rates["careful"] = 1.0  # type: ignore[index]


def test_a_state_goes_on_with_the_same_groups_only() -> None:
    """The same sizes, rates and norms, but another person in the careful group: that is another training."""
    training = protected()
    training.step()
    state = training.state_dict()
    same = protected(groups={name: np.isin(np.arange(RECORDS), some) for name, some in GROUPS.items()})
    same.load_state_dict(state)
    assert same.guarantee.groups == training.guarantee.groups
    swapped = {"careful": [5, 2, 11, 3, 57], "usual": [i for i in range(RECORDS) if i not in (5, 2, 11, 3, 57)]}
    for other in (protected(groups=swapped), protected("clipping"), made(steps=10)):
        with pytest.raises(ValueError, match="the state belongs to another training"):
            other.load_state_dict(state)


def swapped_records() -> TensorDataset:
    """Two records in each other's place, neither of which is looked at before the first step of a larger data set."""
    x, y = table().tensors
    order = torch.arange(RECORDS)
    order[[4, 5]] = order[[5, 4]]
    return TensorDataset(x[order], y[order])


@pytest.mark.parametrize(
    "given",
    [
        {"noise_multiplier": None, "protection": Protection(GROUPS, TARGETS), "steps": 10},
        {"noise_multiplier": 4.0, "budget": Budget(0.8, per_record=True), "batch_size": 20},
        {"secret": FLAG, "budget": Budget(0.9, per_record=True), "noise_multiplier": 20.0},
        {"sampling": "balls-in-bins"},
    ],
)
def test_records_keep_their_numbers(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By these, a training knows who is in a group, what a record has spent, and whether an epoch has drawn it."""
    monkeypatch.setattr("betastar.training.preparing.SPREAD", 3)
    training = made(**given)
    training.step()
    state = training.state_dict()
    made(**given).load_state_dict(state)
    with pytest.raises(ValueError, match="the state belongs to another training: its dataset is"):
        made(data=swapped_records(), **given).load_state_dict(state)
    data = TensorDataset(*(tensor.clone() for tensor in table().tensors))
    training = made(data=data, **given)
    training.step()
    for tensor in data.tensors:
        tensor.copy_(tensor.flip(0))
    with pytest.raises(NotProved, match="in another order"):
        training.fit(epochs=1, progress=False)
    with pytest.raises(NotProved, match="in another order"):
        _ = training.guarantee


def test_weights_that_others_change_void_the_guarantee_of_groups() -> None:
    training = protected()
    training.step()
    next(training.model.parameters()).data.add_(1.0)
    with pytest.raises(NotProved):
        _ = training.guarantee


#: What measures or protects single records, and what it may go with; a text is what it is refused with.
COINS = "sampling 'poisson' without max_batch_size"
ALONE: dict[str, dict[str, Any]] = {
    "rates": {"noise_multiplier": None, "protection": Protection(GROUPS, TARGETS), "steps": 10},
    "norms": {"noise_multiplier": None, "protection": Protection(GROUPS, TARGETS, "clipping"), "steps": 10},
    "budget": {"noise_multiplier": 4.0, "batch_size": 20, "budget": Budget(0.8, per_record=True)},
    "batch": {},
    "dataset": {},
}
WITH: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "gap": (
        {"secret": FLAG, "gap": 0.2},
        {"norms": "choose by='rate'", "budget": "gap and budget", "dataset": "scope must be 'batch' with gap clipping"},
    ),
    "persons": ({"records": 2}, {}),
    "bins": ({"sampling": "balls-in-bins"}, dict.fromkeys(("rates", "norms", "budget"), COINS)),
    "fixed size": ({"sampling": "fixed-size"}, dict.fromkeys(("rates", "norms", "budget"), COINS)),
    "truncated": ({"max_batch_size": 30}, dict.fromkeys(("rates", "norms", "budget"), COINS)),
    "shuffled": ({"sampling": "shuffled"}, dict.fromkeys(ALONE, "sampling must be one of")),
}


@pytest.mark.parametrize("other", WITH)
@pytest.mark.parametrize("one", ALONE)
def test_each_works_with_each_or_says_why_not(one: str, other: str) -> None:
    """Several processes: test_processes.py; loaders of Opacus: test_samplers_in_loops.py."""
    options, refusals = WITH[other]

    def begun() -> PrivateTraining:
        training = made(**(ALONE[one] | options))
        if one in ("batch", "dataset"):
            training.watch_members(scope=one)
        training.step()
        return training

    if one in refusals:
        with pytest.raises((TypeError, ValueError), match=refusals[one]):
            begun()
        return
    training = begun()
    said, persons = str(training.guarantee), other == "persons"
    who = "a person's 2 records" if persons else "a record"
    assert f"asks whether {who} {'were' if persons else 'was'} trained on faces β* ≥" in said
    assert ("value of 'flag' faces" in said) == (other == "gap")
    assert ("of 'careful'" in said or "in 'careful'" in said) == (one in ("rates", "norms"))
    assert ("budget fixed in advance" in said) == (one == "budget")
    if training.ledger is not None:
        assert training.ledger.person == training.records
    if training.ledger is not None and other != "bins":  # which takes long: see test_members.py
        bound = training.membership("add-remove").bayes_security
        assert training.ledger.any_record("add-remove") <= bound.upper + 1e-9, "nobody is told less risk than is known"


def test_the_question_about_a_group_is_that_of_persons_and_of_the_largest_rate() -> None:
    persons, gap = protected(records=3), protected(secret=FLAG, gap=0.1)
    assert persons.groups is not None
    assert persons.groups.question("careful")[1] == bs.Membership("add-remove", records=3)
    gap.step()
    assert gap.run.segments[0].sample_rate == gap.groups.largest[0]  # type: ignore[union-attr]


def test_a_budget_charges_each_record_with_the_rate_and_the_norm_of_its_group() -> None:
    retiring = protected(budget=Budget(0.93, per_record=True), steps=40)
    retiring.step()
    spending = retiring._spending
    assert spending is not None
    assert spending.spent[5] < 0.1 * spending.spent[0]
    small = protected("clipping", budget=Budget(0.93, per_record=True), steps=40, max_grad_norm=1e-3)
    small.step()
    total = sums_of(small, torch.tensor([5]))
    norm = sum(float(t.double().square().sum()) for t in total.values()) ** 0.5
    assert norm <= 1e-3 * small.groups.norms["careful"] * (1 + 1e-5)  # type: ignore[union-attr]


def test_the_report_and_the_model_card_state_each_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("betastar.report.report.draw", lambda facts: iter(()))
    training = protected(relation="same-group")
    training.step()
    folder = training.save(tmp_path / "mine")
    facts = load(folder)
    assert facts.groups == training.guarantee.groups
    said = verdicts(public(facts))
    assert [one.title for one in said] == [
        "Membership inference",
        *(f"Membership inference: group '{group}'" for group in GROUPS),
    ]
    assert "whether a record of the group 'careful' was used, or another of this group" in said[1].sentence
    assert "Who is in which group is taken as public" in said[1].sentence
    assert said[1].lower == training.guarantee.groups.risk("careful").bayes_security.lower  # type: ignore[union-attr]
    answer = CliRunner().invoke(app, ["report", str(folder)])
    assert f"the model card in {folder / CARD}." in answer.stdout
    card = (folder / CARD).read_text()
    for one in said:
        assert f"{one.title}: **β\\* ≥ {one.beta}, proved." in card
    assert "| group 'careful' | probability 0.0" in card
    persons = protected(records=3)
    persons.step()
    said = verdicts(load(persons.save(tmp_path / "persons")))
    assert "guesses whether a person with 3 records of the group 'usual' was used or left out" in said[-1].sentence
    retiring = made(budget=Budget(0.8, per_record=True), batch_size=20, noise_multiplier=4.0)
    retiring.step()
    facts = load(retiring.save(tmp_path / "retiring"))
    (one,) = verdicts(facts)
    assert (one.kind, facts.membership_budget) == ("worst", 0.8), "after a step more is proved than the budget"
    assert one.lower == facts.membership.lower > 0.8
    (one,) = verdicts(replace(facts, membership_budget=0.9999))
    assert (one.kind, one.lower, one.estimate, one.word) == ("budget", 0.9999, None, "proved")
    assert "a record sat out the steps that it could not pay for" in one.sentence
    told = json.loads((folder / "training.json").read_text())
    told["groups"]["rates"]["usual"] = 0.5
    (folder / "training.json").write_text(json.dumps(told))
    with pytest.raises(FolderError, match="groups must have at most the rate"):
        load(folder)


# ---- Bad input


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        (
            {"careful": [0], "usual": range(1, 59)},
            r"groups must have each of the 60 records, but 1 are in none, the first is 59\.",
        ),
        (
            {"careful": [0, 7], "usual": range(1, 60)},
            "groups must have each record once, but record 7 is in 'careful' and in 'usual'",
        ),
        ({"careful": [7, 7], "usual": range(60)}, "groups must have each record once, but 'careful' names record 7 twice"),
        ({"careful": [60], "usual": range(60)}, "groups of 'careful' must name records from 0 to 59, got 60"),
        ({"careful": [-1], "usual": range(60)}, "groups of 'careful' must name records by numbers from 0, got -1"),
        (
            {"careful": [], "usual": range(60)},
            "groups of 'careful' must be numbers of records or a mask|must have at least one record",
        ),
        ({"careful": np.zeros(60, bool), "usual": range(60)}, "groups of 'careful' must have at least one record, got none"),
        (
            {"careful": np.ones(59, bool), "usual": range(60)},
            "groups of 'careful' must be a mask of the 60 records, got one of 59",
        ),
        ({"careful": [0.5], "usual": range(60)}, "groups of 'careful' must be numbers of records or a mask, got"),
        ({"careful": [[0], [1, 2]], "usual": range(60)}, "groups of 'careful' must be numbers of records or a mask, got"),
        ({"careful": [0]}, "targets names the group 'usual', but groups has only 'careful'"),
        ({**GROUPS, "none": [1]}, "targets has no target for the group 'none'; it has 'careful', 'usual'"),
        ([0, 1], "groups must be a mapping from names to records, got list"),
    ],
)
def test_groups_that_are_no_partition(groups: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        protected(groups=groups)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"noise_multiplier": 1.0}, "protection calibrates the noise to its own targets: leave out noise_multiplier, got 1.0"),
        ({"target": bs.Target(bayes_security=0.9)}, "protection calibrates the noise to its own targets: leave out target"),
        ({"steps": None}, "a target needs epochs or steps"),
        ({"protection": {"careful": 0.9}}, "protection must be a Protection, got"),
        ({"relation": "substitution"}, "targets of 'careful' cannot be reached: bayes_security>=0.99"),
        ({"relation": "substitution", "records": 2}, "relation must be 'add-remove' or 'same-group' for persons"),
    ],
)
def test_what_cannot_go_with_protection_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        protected(**given)
