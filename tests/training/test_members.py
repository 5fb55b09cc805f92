"""How exposed single records are to membership inference: norms against an oracle, figures, a game, states and input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import TensorDataset

import betastar as bs
from betastar.report.facts import load
from betastar.report.report import write
from betastar.training import GradientError, MembershipLedger, MembershipMonitor, PrivateTraining

from .private import build, private, training

MODELS = ("tanh", "conv", "embedding", "lstm")


def norms_one_by_one(module: nn.Module, data: Any, clip: float) -> np.ndarray:
    """The norms of clipped gradients, in clipping norms, by one backward pass a record."""
    found = []
    for x, y in zip(*data.tensors[:2], strict=True):
        loss = nn.functional.cross_entropy(module(x[None]), y[None])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        found.append(min(float(torch.cat([part.flatten() for part in parts]).norm()) / clip, 1.0))
    return np.array(found)


def looped(
    name: str, *, monitored: bool = True, epochs: int = 2, physical: int | None = None, lr: float = 0.0, **options: Any
) -> Any:
    """(monitor, weights, norms by the oracle) of a loop with Opacus; with a learning rate of 0 the norms stay."""
    module, data, _ = build(name)
    scope, clip = options.pop("scope", "batch"), options.get("clip", 0.5)
    total = clip if isinstance(clip, float) else float(np.linalg.norm(clip))
    wanted = norms_one_by_one(copy.deepcopy(module), data, total)
    numbered = TensorDataset(*data.tensors, torch.arange(len(data)))
    criterion: Any = nn.CrossEntropyLoss()
    parts = private(module, numbered, criterion=criterion, lr=lr, **options)
    (model, optimizer, loader), criterion = (parts[0], parts[1], parts[-1]), parts[2] if len(parts) == 4 else criterion
    monitor = MembershipMonitor(model, optimizer, loader, criterion, scope=scope) if monitored else None

    def go(batches: Any) -> None:
        for x, y, numbers in batches:
            if monitor is not None:
                monitor.records(numbers)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()

    torch.manual_seed(9)
    for _ in range(epochs):
        if physical is None:
            go(loader)
        else:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer) as split:
                go(split)
    return monitor, torch.cat([p.detach().flatten() for p in module.parameters()]), wanted


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")  # Opacus's, for embeddings with functorch
def test_norms_are_those_that_opacus_clips_by(name: str, mode: str) -> None:
    monitor, _, wanted = looped(name, grad_sample_mode=mode)
    ledger = monitor.ledger
    assert ledger.histogram.sum() == ledger.times.sum() > 50
    np.testing.assert_allclose(ledger.norms[ledger.measured], wanted[ledger.measured], atol=2e-5)
    assert np.all(ledger.norms[~ledger.measured] == 1.0)


@pytest.mark.parametrize("name", MODELS)
def test_dataset_scope_measures_everybody(name: str) -> None:
    monitor, _, wanted = looped(name, scope="dataset", epochs=1)
    assert monitor.ledger.measured.all()
    np.testing.assert_allclose(monitor.ledger.norms, wanted, atol=2e-5)


def test_physical_batches_and_clipping_by_layer() -> None:
    whole, split = looped("tanh")[0].ledger, looped("tanh", physical=7)[0].ledger
    assert split.steps == whole.steps
    np.testing.assert_allclose(split.norms, whole.norms, atol=1e-6)
    clip = [0.3, 0.1, 0.3, 0.2]
    batch, _, most = looped("tanh", clipping="per_layer", clip=clip)
    every = looped("tanh", clipping="per_layer", clip=clip, scope="dataset", epochs=1)[0].ledger.norms
    seen = batch.ledger.measured
    np.testing.assert_allclose(batch.ledger.norms[seen], every[seen], atol=2e-5)
    assert np.all(every <= most + 1e-6)
    assert np.any(every < most - 0.01)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_the_loop_stays_bit_identical(mode: str, scope: str) -> None:
    one, other = (looped("tanh", monitored=watched, scope=scope, lr=0.1, grad_sample_mode=mode)[1] for watched in (True, False))
    assert torch.equal(one, other)


def test_the_clipping_norm_stays_a_number() -> None:
    """A schedule may read and write it, copies of it are ordinary numbers, and nothing is left after detach."""
    module, data, _ = build("tanh")
    model, optimizer, loader = private(module, data, lr=0.0)
    monitor = MembershipMonitor(model, optimizer, loader, nn.CrossEntropyLoss())
    before, optimizer.max_grad_norm = optimizer.max_grad_norm, 0.25
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert optimizer.max_grad_norm == 0.25
    assert type(copy.copy(optimizer.max_grad_norm)) is float
    monitor.detach()
    assert type(optimizer.max_grad_norm) is float
    assert before == 0.5
    assert monitor.ledger.steps == 6
    assert not monitor.ledger.measured.any()  # no numbers were told
    assert monitor.ledger.histogram.sum() > 50


@pytest.mark.parametrize("name", MODELS)
def test_private_training_knows_its_norms(name: str) -> None:
    module, data, _ = build(name)
    wanted = norms_one_by_one(copy.deepcopy(module), data, 0.5)
    for options in ({}, {"scope": "dataset", "every": 3}):
        made = training(copy.deepcopy(module), data, lr=0.0)
        ledger = made.watch_members(**options)
        for _ in made.epoch():
            pass
        assert made.ledger is ledger
        assert ledger.run == made.run
        np.testing.assert_allclose(ledger.norms[ledger.measured], wanted[ledger.measured], atol=2e-5)
    assert ledger.measured.all()


def test_gap_clipping_is_charged_with_the_largest_norm_over_the_values() -> None:
    module, data, secret = build("tanh")
    wanted = norms_one_by_one(copy.deepcopy(module), data, 0.5)
    made = training(module, data, secret, gap=0.1, lr=0.0)
    ledger = made.watch_members()
    for _ in made.epoch():
        pass
    seen = ledger.measured
    assert np.all(ledger.norms[seen] >= wanted[seen] - 2e-5)
    assert np.any(ledger.norms[seen] < 1.0)


def test_figures_follow_from_norms_and_never_beat_the_bound() -> None:
    ledger = MembershipLedger(6)
    for _ in range(200):
        ledger.step(1.1, 0.05, [0, 1, 2], [0.0, 0.3, 1.0])
    for _ in range(200):
        ledger.step(0.9, 0.02, [3, 4], [0.3, 0.9])
    run = bs.DPSGD(1.1, 0.05, 200) + bs.DPSGD(0.9, 0.02, 200)
    for relation in ("substitution", "add-remove"):
        betas = ledger.bayes_security(relation)
        any_record = bs.analyze(run, bs.Membership(relation)).bayes_security.lower
        assert ledger.any_record(relation) == any_record
        assert betas.min() >= any_record
        assert betas[5] == any_record  # it was never drawn
        assert betas[2] == pytest.approx(any_record, abs=1e-6)
        alone = MembershipLedger(1)
        for noise, rate, norm in ((1.1, 0.05, 0.3), (0.9, 0.02, 0.3)):
            for _ in range(200):
                alone.step(noise, rate, [0], [norm])
        exact = bs.analyze(run, bs.Membership(relation, norms=0.3)).bayes_security.estimate
        assert alone.bayes_security(relation)[0] == pytest.approx(exact, abs=1e-5)
    assert ledger.norms[0] == 0.0
    assert ledger.most_exposed(1)[0].record == 2
    assert len(ledger.most_exposed(9)) == 5


def test_norms_that_change_are_not_understated() -> None:
    """A mean that leaks as much: above the mean norm, and β* at most that of the norms as they were, nearly."""
    norms = np.random.default_rng(0).beta(1.0, 2.0, 500)
    ledger = MembershipLedger(1, "dataset")
    for norm in norms:
        ledger.step(1.0, 0.02, None, [norm])
    assert norms.mean() < ledger.norms[0] < norms.max()
    for relation in ("substitution", "add-remove"):
        truth = bs.analyze(ledger.run, bs.Membership(relation, norms=norms)).bayes_security
        figure, advantage = ledger.bayes_security(relation)[0], 1.0 - truth.estimate
        assert truth.estimate - 0.05 * advantage <= figure <= truth.estimate + 0.005 * advantage


def test_persons() -> None:
    module, data, _ = build("tanh")
    made = training(module, data, records=3, lr=0.0)
    ledger = made.watch_members()
    made.step()
    norm = float(ledger.norms[ledger.measured][0])
    figure = ledger.bayes_security("add-remove")[ledger.measured][0]
    person = bs.analyze(made.run, bs.Membership("add-remove", records=3, norms=norm)).bayes_security
    assert figure == pytest.approx(person.estimate, abs=1e-4)
    with pytest.raises(ValueError, match="records must be 1 with norms below 1"):
        ledger.bayes_security()
    assert "add-remove" in str(ledger)


@pytest.mark.parametrize("sampling", ["fixed-size", "balls-in-bins"])
def test_other_samplings(sampling: str) -> None:
    made = training(*build("tanh")[:2], sampling=sampling)
    ledger = made.watch_members()
    made.step()
    for _ in made.epoch():
        pass
    for relation in ("substitution", "add-remove"):
        betas = ledger.bayes_security(relation)
        assert betas.min() >= ledger.any_record(relation)
        assert betas.max() <= 1.0


def test_a_training_goes_on_with_its_ledger() -> None:
    module, data, _ = build("tanh")
    first = training(copy.deepcopy(module), data)
    ledger = first.watch_members()
    first.step()
    first.step()
    state = copy.deepcopy(first.state_dict())
    other = training(copy.deepcopy(module), data)
    with pytest.raises(ValueError, match="watch_members must be called where the state was saved and here"):
        other.load_state_dict(state)
    again = other.watch_members()
    other.load_state_dict(state)
    assert np.array_equal(again.norms, ledger.norms)
    assert again.steps == 2
    other.step()
    assert again.steps == 3
    with pytest.raises(ValueError, match="before the first step"):
        first.watch_members()
    monitor = looped("tanh")[0]
    resumed = looped("tanh", epochs=0)[0]
    resumed.load_state_dict(monitor.state_dict())
    assert np.array_equal(resumed.ledger.norms, monitor.ledger.norms)


def test_a_report_has_a_section(tmp_path: Path) -> None:
    made = training(*build("tanh")[:2])
    ledger = made.watch_members()
    for _ in made.epoch():
        pass
    made.save(tmp_path / "mine")
    facts = load(tmp_path / "mine")
    assert len(facts.members) == int(ledger.measured.sum())
    replaced, removed = facts.members[ledger.most_exposed(1)[0].record]
    assert replaced == ledger.bayes_security()[ledger.measured].min()
    assert removed == ledger.bayes_security("add-remove")[ledger.measured].min()
    write(tmp_path / "mine", tmp_path / "report.md", records=True)
    text = (tmp_path / "report.md").read_text()
    assert "Exposure of records to membership inference" in text
    assert "showing them leaks" in text
    monitor = looped("tanh")[0]
    monitor.save(tmp_path / "opacus")
    assert len(load(tmp_path / "opacus").members) == int(monitor.ledger.measured.sum())


#: Canaries of a game, each with a weight of its own.
CANARIES = 600


def played(games: int, small: float) -> tuple[dict[float, float], dict[float, float], float]:
    """(share of right guesses, β* by the ledger) of canaries of either norm, and β* of any record; a game has many canaries.

    Each canary moves a weight of its own, by its norm at each step, if it is in; the attacker sees all updates.
    """
    random = np.random.default_rng(5)
    right: dict[float, list[float]] = {small: [], 1.0: []}
    figures: dict[float, float] = {}
    for game in range(games):
        norms = np.where(np.arange(CANARIES) % 2 == 0, small, 1.0)
        inside = random.random(CANARIES) < 0.5
        model = nn.Linear(CANARIES, 1, bias=False)
        rows = torch.diag(torch.tensor(norms * inside, dtype=torch.float32))
        data = TensorDataset(rows, torch.ones(CANARIES, 1))
        made = PrivateTraining(
            model,
            torch.optim.SGD(model.parameters(), lr=1e-3),
            data,
            lambda output, target: (output * target).sum(),
            batch_size=CANARIES // 10,
            noise_multiplier=0.7,
            steps=50,
            seed=game,
        )
        ledger = made.watch_members()
        evidence = np.zeros(CANARIES)
        while not made.finished:
            made.step()
            assert model.weight.grad is not None
            shown = model.weight.grad.flatten().double().numpy() * (CANARIES // 10)
            evidence += np.log1p(0.1 * np.expm1((norms * shown - 0.5 * norms**2) / 0.7**2))
        betas = ledger.bayes_security("add-remove")
        for norm in right:
            mine = norms == norm
            right[norm] += ((evidence > 0.0) == inside)[mine].tolist()
            figures[norm] = min(figures.get(norm, 1.0), float(betas[mine & inside & ledger.measured].min()))
    return {norm: float(np.mean(one)) for norm, one in right.items()}, figures, ledger.any_record("add-remove")


def test_a_game_on_real_training_meets_the_figure_of_a_small_norm() -> None:
    _meets(3, 0.3)


@pytest.mark.slow
def test_a_long_game_on_real_training_meets_the_figures() -> None:
    _meets(60, 0.25)


def _meets(games: int, small: float) -> None:
    right, figures, any_record = played(games, small)
    assert figures[1.0] == pytest.approx(any_record, abs=1e-5)
    exact = bs.analyze(bs.DPSGD(0.7, 0.1, 50), bs.Membership("add-remove", norms=small)).bayes_security.estimate
    assert figures[small] == pytest.approx(exact, abs=1e-4)
    sure = 4.0 * 0.5 / np.sqrt(games * CANARIES / 2)
    for norm, share in right.items():
        best = 1.0 - 0.5 * figures[norm]
        assert best - sure <= share <= best + sure, norm  # met from below, and not beaten
    assert right[small] < 1.0 - 0.5 * any_record - 2.0 * sure


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ((1.0, 0.1, [0], [1.5]), "norms must be between 0 and 1"),
        ((1.0, 0.1, [0], [-0.1]), "norms must be between 0 and 1"),
        ((1.0, 0.1, [0, 1], [0.5]), "norms must be one for each of the 2 records, got 1"),
        ((1.0, 0.1, [3], [0.5]), r"records must be between 0 and 2, got 3 to 3"),
        ((1.0, 1.5, [0], [0.5]), "drawn must be greater than 0 and at most 1, got 1.5"),
        ((0.0, 0.1, [0], [0.5]), "noise must be a finite number greater than 0"),
    ],
)
def test_bad_input_of_the_ledger(step: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MembershipLedger(3).step(*step)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="scope must be one of 'batch', 'dataset', got 'all'"):
        MembershipLedger(3, "all")
    with pytest.raises(ValueError, match=r"records must be all 3 records in their order in dataset scope, got \[2, 1, 0\]"):
        MembershipLedger(3, "dataset").step(1.0, 0.1, [2, 1, 0], [0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match="no step was taken yet"):
        MembershipLedger(3).bayes_security()
    ledger = MembershipLedger(3)
    with pytest.raises(ValueError, match="state must belong to a ledger like this one"):
        ledger.load_state_dict(MembershipLedger(4).state_dict())
    module, data, _ = build("tanh")
    parts = private(module, data)
    with pytest.raises(ValueError, match="every must be 1 in batch scope"):
        MembershipMonitor(*parts, nn.CrossEntropyLoss(), every=2)
    monitor = MembershipMonitor(*parts, nn.CrossEntropyLoss())
    monitor.records([1, 2])
    x, y = next(iter(parts[2]))
    nn.functional.cross_entropy(parts[0](x), y).backward()
    with pytest.raises(ValueError, match=f"indices must be one for each of the {len(x)} records of the step, got 2"):
        parts[1].step()
    parts[1].zero_grad()
    monitor.records(120 + np.arange(len(x)))
    nn.functional.cross_entropy(parts[0](x), y).backward()
    parts[1].step()
    with pytest.raises(ValueError, match=f"records must be between 0 and 119, got 120 to {119 + len(x)}"):
        _ = monitor.ledger.times
    dropout = nn.Sequential(nn.Linear(6, 9), nn.Dropout(), nn.Linear(9, 2))
    with pytest.raises(GradientError, match="the model has dropout"):
        MembershipMonitor(*private(dropout, data), nn.CrossEntropyLoss(), scope="dataset")
