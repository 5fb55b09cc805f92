"""The ladder finds what people break, accuses nobody else, and says what it could not compare."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import betastar as bs
from betastar import audit
from betastar.audit import AuditError
from betastar.audit.verdict.replay import least_radius
from tests.audit import broken
from tests.audit.broken import BY_HAND, CORRECT, OPACUS, TOLD, TOLD_BY_HAND, people
from tests.audit.replayed import quiet
from tests.audit.trainings import claim, factory, make, table
from tests.command import call


def audited(train: Any, data: Any = None, seed: int = 1, **told: Any) -> audit.TrainingCode:
    return quiet(lambda: audit.training_code(train, people() if data is None else data, seed=seed, **told))


#: What is said of the broken trainings.
SAID = {
    "no sampling": "sampling",
    "duplicated records": {"once", "distance"},
    "two losses": {"steps", "distance"},
    "one unclipped layer": "distance",
    "equal noise": "noise",
    "noise drawn once": "noise",
    "no noise": "noise",
    "little noise of NumPy": "noise",
    "a list of updates, no clipping": "distance",
    "clipping of the batch": "distance",
    "noise re-seeded at each evaluation": "noise",
    "resumed with the same seed": "noise",
    "records dropped by loss": {"mixing", "distance"},
    "statistics of the batch as features": {"mixing", "distance"},
    "a buffer fitted without noise": "buffers",
    "a clip schedule between physical batches": {"noise", "distance"},
    "adaptive clipping": {"settings", "distance"},
    "rand_on_empty": "sampling",
    "a divisor that follows the batch": {"normaliser", "distance"},
    "a learning rate that follows the loss": "settings",
    "standardised by all records": {"not drawn", "distance"},
    "hard examples are drawn more often": "mixing",
    "hard examples are drawn by their rank": "mixing",
    "an early stop by the loss": "steps",
    "an early stop by the labels": "steps",
}
EVERY = [("Opacus", name, train, TOLD) for name, train in OPACUS.items()] + [
    ("by hand", name, train, TOLD_BY_HAND) for name, train in BY_HAND.items()
]
#: Of what is broken in both, the kind that runs in every run of the tests; the others run in the whole matrix.
BOTH = OPACUS.keys() & BY_HAND.keys()
OF_HAND = {"no sampling", "one unclipped layer", "equal noise", "records dropped by loss", "a divisor that follows the batch"}
CHOSEN = [one for one in EVERY if one[1] in SAID and (one[1] not in BOTH or (one[0] == "by hand") == (one[1] in OF_HAND))]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda one: f"{one[1]}, {one[0]}")
def test_what_people_break_is_found(case: Any) -> None:
    _, name, train, told = case
    result = audited(train, **told)
    assert result.violated, str(result)
    assert result.replay is not None
    wanted = SAID[name] if isinstance(SAID[name], set) else {SAID[name]}
    assert wanted & {finding.promise for finding in result.replay.findings}, str(result)
    assert result.sentence.startswith("Found by the replay: Broken")


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY, ids=lambda one: f"{one[1]}, {one[0]}")
def test_the_whole_matrix(case: Any) -> None:
    missed = [seed for seed in range(20) if not audited(case[2], seed=seed, **case[3]).violated]
    assert not missed


@pytest.mark.parametrize("name", ["plain", "PrivateTraining", "by hand"])
def test_correct_trainings_are_not_accused(name: str) -> None:
    train, data, told = CORRECT[name]
    result = audited(train, data(), **told)
    assert not result.violated, str(result)
    assert result.sentence.startswith("Nothing was found by the replay.")
    assert "passed" not in result.sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_twenty_seeds_of_correct_trainings(name: str) -> None:
    train, data, told = CORRECT[name]
    for seed in range(20):
        result = audited(train, data(), seed, **told)
        assert not result.violated, str(result)


def test_a_record_that_is_not_drawn_is_found_by_halves() -> None:
    """At a low rate none of the records that are tried first is drawn; the replay finds one that is."""

    def rare(data: Any) -> None:
        model, optimizer = broken.sgd()
        x, y = data.tensors
        for _ in range(3):
            batch = torch.rand(len(x)) < 0.01
            broken.stepped(model, optimizer, broken.clipped(broken.gradients(model, x[batch], y[batch]), 1e9), divisor=2.0)

    told = {"run": bs.DPSGD(1.0, 0.01, 3), "max_grad_norm": 1.0, "divisor": 2.0}
    for seed in range(3):
        result = audited(rare, table(200), seed, **told)
        assert result.violated, str(result)


def test_the_second_rung_finds_what_the_replay_is_not_told() -> None:
    """Without a claim the replay believes the optimizer's noise; the claim is tested by one run."""
    fine = audited(make(4.0, 2), table(), run=lambda n: claim(4.0, 2, n), factory=factory, max_grad_norm=1.0, canaries=100)
    assert fine.one_run is not None
    assert not fine.violated
    replaced = audited(make(1.0, 2), table(), run=claim(1.0, 2), factory=factory, max_grad_norm=1.0)
    assert replaced.one_run is not None
    assert (replaced.one_run.canaries, replaced.violated) == (50, False)
    result = quiet(
        lambda: audit.one_run(factory, make(4.0, 2, scale=0.02), table(), claim(4.0, 2), max_grad_norm=1.0, canaries=50, seed=1)
    )
    assert result.violated


def test_games_are_played_only_if_they_are_asked_for() -> None:
    told: dict[str, Any] = {"run": claim(1.0, 1), "factory": factory, "max_grad_norm": 1.0, "canaries": 0}
    without, played = (audited(make(1.0, 1), table(), games=games, **told) for games in (0, 10))
    assert without.games is None
    assert "Games were not played: give games=." in without.not_compared
    assert "One run was not played: canaries is 0." in without.not_compared
    assert played.games is not None
    assert played.layers is not None
    assert played.games["updates"].games == played.layers["updates"].games == 10
    assert played.layers.challenge == "inputs that push the gradient of 0.weight and 2.weight"
    assert len(json.loads(json.dumps(played.as_dict()))["layers"]["audits"]) == 3


def test_one_run_of_a_loop_by_hand() -> None:
    """A canary's weight is clipped and noisy like any other, whoever makes the step."""

    def train(model: nn.Module, data: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            for i in (torch.rand(len(data)) < 0.25).nonzero().flatten().tolist():
                optimizer.zero_grad()
                x, y = data[i]
                nn.functional.cross_entropy(model(x[None]), y[None]).backward()
                size = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()  # type: ignore[union-attr]
                for name, p in model.named_parameters():
                    sums[name] += p.grad / max(1.0, float(size))
            broken.stepped(model, optimizer, sums)

    told: dict[str, Any] = {"max_grad_norm": 1.0, "divisor": broken.BATCH, "canaries": 40}
    right = audited(train, table(40), run=bs.DPSGD(1.0, 0.25, 4), factory=factory, **told)
    assert right.one_run is not None
    assert not right.violated, str(right)
    wrong = audit.one_run(factory, train, table(200), bs.DPSGD(30.0, 0.25, 4), seed=1, **{**told, "canaries": 200})
    assert wrong.p_value < 0.05


def test_what_was_not_compared_is_in_the_verdict() -> None:
    train, data, told = CORRECT["a list of updates"]
    result = audited(train, data(), **told)
    said = " ".join(result.not_compared)
    for text in (
        "Noise was not compared",
        "Sampling was not compared",
        "Steps after the first",
        "One run was not played: give factory",
    ):
        assert text in said
        assert text in result.sentence
    without_claim = audited(lambda data: broken.fit(broken.private(data)))
    assert "Sampling was not compared: give run" in without_claim.sentence
    long = audited(lambda data: broken.fit(broken.private(data), epochs=2), steps=3, **TOLD)
    assert "Steps after 3 were not compared" in long.sentence


@pytest.mark.parametrize(("noise", "found"), [(1.0, False), (0.5, True)])
def test_a_loop_without_a_model(noise: float, found: bool) -> None:
    """A logistic regression of tensors alone, whose noise has a generator of its own."""

    def train(data: Any, seed: int) -> None:
        generator, (x, y) = torch.Generator().manual_seed(seed), data.tensors
        w = torch.randn(6, generator=generator)
        for _ in range(broken.STEPS):
            batch = torch.rand(len(x), generator=generator) < broken.BATCH / broken.RECORDS
            each = x[batch] * (torch.sigmoid(x[batch] @ w) - y[batch])[:, None]
            total = (each / each.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(dim=0)
            w = w - 0.1 * audit.released((total + noise * torch.randn(6, generator=generator)) / broken.BATCH)

    for seed in range(5):
        result = audited(train, seed=seed, **TOLD_BY_HAND)
        assert result.violated == found, str(result)
        assert "Noise of the first step was not compared: no model was used before it." in result.not_compared


def test_weights_may_be_returned_in_place_of_updates() -> None:
    def train(data: Any, seed: int, clip: bool = True) -> list[np.ndarray]:
        updates = broken.hand_listed(data, seed, clip)
        return list(np.cumsum([np.zeros((6, 2)), *(-0.1 * one for one in updates)], axis=0))

    told = {**TOLD_BY_HAND, "divisor": broken.BATCH / 0.1, "returns": "weights"}
    assert not audited(train, **told).violated
    assert audited(lambda data, seed: train(data, seed, clip=False), **told).violated


def forgetful(data: Any, seed: int) -> list[np.ndarray]:
    return [np.zeros(2), np.zeros(3)]


def failing(data: Any) -> None:
    for number, _ in enumerate(broken.poisson(data)):
        if number == 3:
            raise OSError("the disk is full")
        broken.stepped(*broken.sgd(), broken.clipped(broken.gradients(broken.network(), *data.tensors)))


def endless(data: Any) -> None:
    audit.released(torch.zeros(2))
    never(data)


def never(data: Any) -> None:
    while True:
        time.sleep(0.01)


def unrepeatable(data: Any) -> None:
    broken.hand(data, noise=lambda name, p: torch.randn(p.shape, generator=torch.Generator().manual_seed(time.time_ns())))


@pytest.mark.parametrize(
    ("train", "told", "text"),
    [
        (forgetful, {}, r"updates of one shape, got \[\(3,\)\] at step 2, \[\(2,\)\] at step 1"),
        (failing, {}, "raised OSError after step 3: the disk is full"),
        (never, {"limit": 0.2}, "got no step of one within 0.2 seconds"),
        (unrepeatable, {}, "does not do the same twice.*step 1"),
        (lambda data, seed: ["updates"], {}, "an update must be an array"),
        (lambda data: None, {"returns": "gradients"}, "returns must be one of"),
        (lambda data: None, {"games": -1}, "games must be"),
    ],
)
def test_bad_trainings_get_one_sentence(train: Any, told: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        audited(train, **TOLD_BY_HAND, **told)
    assert isinstance(caught.value, AuditError) or "must be" in str(caught.value)


def test_a_training_that_takes_too_long_is_compared_as_far_as_it_came() -> None:
    result = audited(endless, **TOLD_BY_HAND, limit=0.3)
    assert "Steps after 1 were not compared: train was ended after 0.3 seconds." in result.not_compared
    assert result.replay is not None
    assert [finding.promise for finding in result.replay.findings] == ["noise"]


@pytest.mark.parametrize("dimension", [2, 7])
def test_the_least_radius_is_below_that_of_any_ball(dimension: int) -> None:
    """Vectors in a unit ball around any centre have a radius of at most 1; opposite ones reach it."""
    generator = torch.Generator().manual_seed(dimension)
    for _ in range(20):
        inside = torch.randn(5, dimension, generator=generator)
        inside = inside / inside.norm(dim=1, keepdim=True) * torch.rand(5, 1, generator=generator)
        assert least_radius(list(inside[1:] - inside[0])) <= 1.0 + 1e-6
    one = torch.eye(dimension)[0]
    assert least_radius([2.0 * one]) == pytest.approx(1.0, abs=1e-6)
    assert least_radius([one, -one, 0.5 * one]) == pytest.approx(1.0, abs=1e-2)


def test_updates_are_recorded_and_released_in_their_form() -> None:
    update = {"w": np.ones(2), "b": [torch.ones(1), (2.0, 3.0)]}
    assert audit.released(update) is update
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    with audit.recorded(optimizer) as updates:
        for _ in range(3):
            optimizer.zero_grad()
            (2.0 * weight).sum().backward()
            optimizer.step()
    assert [float(one["0.0"]) for one in updates] == [2.0, 2.0, 2.0]


def test_the_command_and_its_json(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from tests.audit import broken\ndata, run, max_grad_norm, divisor = broken.people(), broken.CLAIM, 1.0, 10\n"
        "def train(data, seed):\n    return broken.hand_listed(data, seed, True)\n"
        "def loose(data, seed):\n    return broken.hand_listed(data, seed)\n"
    )
    fine, wrong = call("audit", str(file), "--seed", "1", "--json"), call("audit", f"{file}:loose", "--seed", "1", "--json")
    assert (fine.returncode, wrong.returncode) == (0, 1), fine.stderr
    told = json.loads(fine.stdout)
    assert (told["kind"], told["violated"], told["one_run"]) == ("code", False, None)
    assert any("Noise was not compared" in one for one in told["not_compared"])
    assert json.loads(wrong.stdout)["replay"]["findings"][0]["promise"] == "distance"
