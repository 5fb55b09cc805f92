"""Records that sit out the steps that they cannot pay for: the proof in small worlds, and what a training does and shows."""

from __future__ import annotations

import itertools
from functools import cache
from math import asin, cos, exp, log, sin
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from torch import Tensor, nn

from betastar import closed_forms
from betastar.training import Budget, GradientError, MembershipProof, PrivateTraining
from betastar.training.budget import NODES, MembershipAccount

from .test_private_training import FLAG, made, sums_of, table

# ---- Small worlds: every attacker who adapts

#: Rate and noise of the worlds, norms that the attacker chooses from at each step, a grid of log P/Q, and one of outputs.
RATE, NOISE = 0.4, 0.9
NORMS = (0.4, 0.7, 1.0)
LOGS = np.linspace(-8.0, 8.0, 161)
OUTPUTS = np.linspace(-5.5, 5.5, 67)


def account(beta: float, persons: int = 1) -> MembershipAccount:
    return MembershipAccount(Budget(beta, per_record=True), np.array([RATE]), NOISE, persons, 0.0)


def charged(made: MembershipAccount, spent: float, norm: float) -> float | None:
    """What a record has spent after a step with this norm; None if it sits out."""
    made.load_state_dict({"spent": [spent], "node": [NODES], "retired": [False]})
    made.measured(np.array([norm]))
    return float(made.spent[0]) if made.pay()[0] else None


def density(mean: float, times: int = 1) -> NDArray[np.float64]:
    """The mass of each output if up to so many records with this mean are drawn, each with a coin of its own."""
    hits = [(1.0 - RATE), RATE] if times == 1 else [(1.0 - RATE) ** 2, 2.0 * RATE * (1.0 - RATE), RATE**2]
    made = sum(w * np.exp(-0.5 * ((OUTPUTS - j * mean) / NOISE) ** 2) for j, w in enumerate(hits))
    return np.asarray(made / made.sum())


def after(value: NDArray[np.float64], p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """E_P[v(r·Q/P)] at each r: one step, and then an attacker whose overlap ∫min(P, rQ) is v(r)."""
    places = LOGS[:, None] + np.log(q / p)[None, :]
    low, high = value[0] * np.exp(np.minimum(places, LOGS[0]) - LOGS[0]), value[-1]
    inside = np.interp(places, LOGS, value)
    return np.where(places < LOGS[0], low, np.where(places > LOGS[-1], high, inside)) @ p


def least_overlap(choices: Any) -> float:
    """β* against the best attacker: choices(spent) are the steps that the accounts allow, as (P, Q, spent afterwards)."""

    @cache
    def value(spent: Any) -> Any:
        found = np.minimum(1.0, np.exp(LOGS))
        for p, q, then in choices(spent):
            found = np.minimum(found, after(value(then), p, q))
        return found

    start = choices.start
    return float(np.interp(0.0, LOGS, value(start)))


class Absent:
    """A record, against nothing in its place."""

    start = 0.0

    def __init__(self, made: MembershipAccount) -> None:
        self.made, self.empty = made, density(0.0)

    def __call__(self, spent: float) -> Any:
        for norm in NORMS:
            if (then := charged(self.made, spent, norm)) is not None:
                yield density(norm), self.empty, then


class Replaced:
    """A record against another one, each with an account of its own and a norm of its own."""

    start = (0.0, 0.0)

    def __init__(self, made: MembershipAccount, norms: tuple[float, ...] = (0.0, 0.5, 1.0)) -> None:
        self.made, self.norms = made, norms

    def __call__(self, spent: tuple[float, float]) -> Any:
        for both in itertools.product(self.norms, repeat=2):
            then = [s if n == 0.0 else charged(self.made, s, n) for n, s in zip(both, spent, strict=True)]
            if None not in then and any(both):
                yield density(both[0]), density(-both[1]), tuple(then)


class Persons:
    """A person with two records against another one with two; all four records have the full norm."""

    start = 0.0

    def __init__(self, made: MembershipAccount) -> None:
        self.made = made

    def __call__(self, spent: float) -> Any:
        if (then := charged(self.made, spent, 1.0)) is not None:
            yield density(1.0, 2), density(-1.0, 2), then


def test_no_attacker_who_adapts_beats_the_promise() -> None:
    """All attackers who choose norms by the history: by adding, by replacing, and of persons with two records."""
    beta = 0.4
    absent, replaced = least_overlap(Absent(account(beta))), least_overlap(Replaced(account(beta)))
    assert MembershipProof(beta).add_remove == pytest.approx(1.0 - sin(asin(0.6) / 2.0), abs=1e-12)
    assert MembershipProof(beta).add_remove <= absent < 0.75
    assert beta <= replaced < 0.55
    assert 0.1 <= least_overlap(Persons(account(0.1, 2))) < 0.55


def test_what_a_record_alone_may_leak_is_too_much_if_another_one_may_be_in_its_place() -> None:
    """The allowance that the affinity has for this β*, charged with the leakage of being there or not: the attack sees it."""
    careless = account(0.4)
    careless.allowance = Budget(0.4).allowance
    assert least_overlap(Replaced(careless, (1.0,))) < 0.37
    assert least_overlap(Replaced(account(0.4), (1.0,))) >= 0.4


@pytest.mark.parametrize(("rate", "noise", "norm"), [(256 / 26048, 3.51, 1.0), (0.3, 0.8, 0.5), (0.1, 0.3, 1.0), (1.0, 2.0, 0.7)])
def test_a_charge_is_the_affinity_of_being_there_or_not(rate: float, noise: float, norm: float) -> None:
    def root(x: float) -> float:
        nothing = exp(-0.5 * (x / noise) ** 2) / (noise * (2.0 * np.pi) ** 0.5)
        there = (1.0 - rate) + rate * exp((norm * x - 0.5 * norm**2) / noise**2)
        return nothing * there**0.5

    wanted = -log(quad(root, -12.0 * noise, 12.0 * noise + 4.0, epsabs=1e-15, points=[0.0, norm], limit=200)[0])
    (charge,) = closed_forms.absence_leakage(rate, noise, np.array([norm]))
    assert wanted - 1e-12 <= charge <= wanted * (1.0 + 1e-7) + 1e-12


def test_charges_grow_with_the_norm_and_end_where_the_record_is_known_to_be_drawn() -> None:
    for rate, noise in ((0.01, 3.0), (0.3, 0.1), (1e-8, 0.01), (0.5, 1e-3), (1.0, 0.02)):
        charges = closed_forms.absence_leakage(rate, noise, np.linspace(0.0, 1.0, 65))
        assert charges[0] == 0.0
        assert (np.diff(charges[np.isfinite(charges)]) >= 0.0).all()
        assert charges[-1] <= (np.inf if rate == 1.0 else -0.5 * np.log1p(-rate))


# ---- Trainings


def under(beta: float = 0.8, per_record: bool = True, every: int = 1, **given: Any) -> PrivateTraining:
    return made(**{"budget": Budget(beta, per_record, every), "noise_multiplier": 4.0, "batch_size": 20} | given)


def test_a_record_that_cannot_pay_is_not_drawn_and_training_goes_on() -> None:
    """Coins are tossed for all; the noise and the divisor stay; the last steps are noise alone."""
    training, plain = under(0.8, seed=3, steps=60), made(noise_multiplier=4.0, batch_size=20, seed=3)
    sizes = []
    for number in range(60):
        drawn = plain._draws.indices(number)
        step = training.step()
        out = training.retired
        assert step.batch_size == int((~out[drawn.numpy()]).sum())
        sizes.append(int(out.sum()))
    spending = training._spending
    assert spending is not None
    assert (spending.spent <= spending.allowance).all()
    assert sizes[0] == 0 < sizes[-1]
    assert training.finished
    assert training._draws.divisor == 20.0
    assert any(0 < size < 60 for size in sizes), "a record with small gradients pays less"


def test_training_with_every_record_retired_is_noise() -> None:
    """All gradients have the full norm, so that all retire together: training goes on, and nothing says so."""
    x, y = table().tensors
    training = under(data=torch.utils.data.TensorDataset(50.0 * x, y), max_grad_norm=1e-3, steps=40)
    losses = [training.step().loss for _ in range(40)]
    assert training.retired.all()
    assert np.isnan(losses[-1])
    assert training.guarantee.budgeted == MembershipProof(0.8)
    assert str(training.guarantee).splitlines()[-1].startswith("Proved: an attacker who asks whether a record was trained on")


def test_a_plan_that_keeps_to_the_budget_anyway_measures_nothing() -> None:
    training = under(0.5, steps=2)
    assert training.worst_case_steps >= 2
    training.fit(progress=False)
    assert training.guarantee.budgeted is None
    assert training.guarantee.membership is not None
    assert training.guarantee.membership.bayes_security.lower >= 0.5


def test_what_a_training_shows_does_not_depend_on_who_sits_out(tmp_path: Any) -> None:
    told = []
    for size in (1e-3, 30.0):  # gradients that cost next to nothing, and gradients that are all clipped
        x, y = table().tensors
        training = under(0.8, data=torch.utils.data.TensorDataset(x * size, y), model=nn.Linear(4, 2, bias=False), steps=30)
        training.fit(progress=False)
        told.append((training.retired.any(), repr(training), str(training), training.guarantee, training.planned_guarantee()))
        folder = training.save(tmp_path / str(size))
        told[-1] += ((folder / "training.json").read_text(), sorted(path.name for path in folder.iterdir()))
    few, many = told
    assert (few[0], many[0]) == (False, True)
    assert few[1:3] == many[1:3]
    assert str(few[3]) == str(many[3])
    assert str(few[4]) == str(many[4])
    assert few[5:] == many[5:]


class Scaled(nn.Module):
    """A loss whose scale the loop sets."""

    scale = 1e-3

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.scale * nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize("every", [1, 5])
def test_a_gradient_is_clipped_to_the_norm_that_was_charged(every: int) -> None:
    """The loop makes the loss a million times larger after the norms were measured: the sum moves by what was charged."""
    criterion = Scaled()
    training = under(0.8, every=every, criterion=criterion)
    training.step()
    spending = training._spending
    assert spending is not None
    charged_for = spending.norms.copy()
    assert charged_for.max() < 0.05
    criterion.scale = 1e3
    for i in range(60):
        total = sums_of(training, torch.tensor([i]))
        assert sum(float(t.double().square().sum()) for t in total.values()) ** 0.5 <= charged_for[i] * (1.0 + 1e-5)
    training.step()
    assert (spending.norms.max() == 1.0) == (every == 1), "a later measurement sees the larger norms"


def test_dropout_cannot_raise_a_norm_above_what_was_charged() -> None:
    torch.manual_seed(0)
    training = under(0.8, model=nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)), lr=0.0)
    training.step()
    assert training._spending is not None
    for i in range(60):
        total = sums_of(training, torch.tensor([i]))
        norm = sum(float(t.double().square().sum()) for t in total.values()) ** 0.5
        assert norm <= training._spending.norms[i] * (1.0 + 1e-5)


def test_what_was_spent_is_resumed() -> None:
    """Whoever saves and resumes in the middle, between measurements, has spent what they would have spent."""
    training = under(0.8, every=4, seed=1)
    for _ in range(6):
        training.step()
    state = training.state_dict()
    other = under(0.8, every=4, seed=1)
    other.load_state_dict(state)
    mine, theirs = training._spending, other._spending
    assert mine is not None
    assert theirs is not None
    np.testing.assert_array_equal(theirs.spent, mine.spent)
    np.testing.assert_array_equal(theirs.norms, mine.norms)
    other.step()
    assert (theirs.spent > mine.spent)[~theirs.retired].all()
    assert (state["budget"]["spent"] == mine.spent).all(), "the state is a copy"
    for wrong in (under(0.7, every=4, seed=1), under(0.8, every=2, seed=1), made(batch_size=20, noise_multiplier=4.0, seed=1)):
        with pytest.raises(ValueError, match="its budget is"):
            wrong.load_state_dict(state)


def test_persons_share_a_budget() -> None:
    """The angle of a record of a person with k records is a k-th."""
    one, four = under(0.8)._spending, under(0.8, records=4, noise_multiplier=30.0)._spending
    assert one is not None
    assert four is not None
    for made_, persons in ((one, 1), (four, 4)):
        assert cos(0.5 * asin(0.2) / persons) == pytest.approx(exp(-made_.allowance), abs=1e-9)


def test_a_record_without_a_finite_gradient_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("betastar.training.preparing.SPREAD", 3)  # this record is not looked at before
    x, y = table().tensors
    x = x.clone()
    training = under(data=torch.utils.data.TensorDataset(x, y), batch_size=1)
    x[7, 0] = torch.nan
    with pytest.raises(GradientError, match="record 7 is not finite"):
        training.step()
    assert training.steps == 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"per_record": False}, r"budget needs a secret, which it protects. Without a secret, Budget\(..., per_record=True\)"),
        ({"max_batch_size": 30}, "so that each record has a coin of its own, got .*'max_batch_size': 30"),
        ({"beta": 0.99}, "budget must pay for a step with the full clipping norm, and bayes_security=0.99 does not"),
        ({"secret": FLAG, "every": 2}, "every must be 1 for the budget of a secret, which measures before each step, got 2"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
    ],
)
def test_what_cannot_go_with_it_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        under(**given)


def test_retired_belongs_to_a_budget() -> None:
    with pytest.raises(ValueError, match="retired belongs to a budget for membership"):
        _ = made().retired
