"""The monitor in real trainings with Opacus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import Dataset

import betastar as bs
from betastar.training import AttributeMonitor, JsonLines, Records, Secret

from .private import VALUES, build, clone, fit, oracle, private, table


def attach(name: str = "tanh", classes: int = 2, **options: Any) -> tuple[Any, Any, AttributeMonitor]:
    """(parts, criterion, monitor)."""
    setup = {
        key: options.pop(key) for key in list(options) if key in ("grad_sample_mode", "optimizer", "clip", "batch", "noise", "lr")
    }
    module, data, secret = build(name, classes=classes)
    criterion = nn.CrossEntropyLoss()
    parts = private(module, data, criterion=criterion, **setup)
    if len(parts) == 4:
        model, optimizer, criterion, loader = parts
    else:
        model, optimizer, loader = parts
    return (model, optimizer, loader), criterion, AttributeMonitor(model, optimizer, loader, criterion, secret, **options)


def weights(parts: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in parts[1].params]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "hooks") for name in ("tanh", "conv", "lstm", "embedding")),
        *((name, "functorch") for name in ("lstm", "embedding")),
        *((name, "ghost") for name in ("conv", "lstm")),
    ],
)
@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")  # Opacus's, for embeddings with functorch
def test_largest_distance_of_each_batch(name: str, mode: str) -> None:
    parts, criterion, monitor = attach(name, grad_sample_mode=mode)
    wanted: list[float] = []

    def watch(x: Any, y: Any) -> None:
        copy = clone(parts[0]._module, name)
        wanted.append(float(oracle(copy, Records((x,), y), monitor.secret).max()))

    fit(parts, criterion, 5, watch)
    np.testing.assert_allclose(monitor.distances, wanted, rtol=1e-4)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_training_is_bit_identical(mode: str, make: Any, scope: str) -> None:
    setup = {"grad_sample_mode": mode, "optimizer": make}
    module, data, _ = build("tanh")
    criterion: Any = nn.CrossEntropyLoss()
    made = private(module, data, criterion=criterion, **setup)
    plain, criterion = (made[0], made[1], made[-1]), made[2] if len(made) == 4 else criterion
    torch.manual_seed(9)
    fit(plain, criterion, 12)
    after = torch.get_rng_state()
    parts, criterion, _monitor = attach("tanh", scope=scope, **setup)
    torch.manual_seed(9)
    fit(parts, criterion, 12)
    assert torch.equal(after, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(parts), strict=True))


def test_a_logical_step_of_several_physical_batches() -> None:
    """BatchMemoryManager: the same distances, and one entry a logical step."""
    parts, criterion, monitor = attach()
    fit(parts, criterion, 6)
    split, criterion, other = attach()
    with BatchMemoryManager(data_loader=split[2], max_physical_batch_size=4, optimizer=split[1]) as loader:
        for x, y in loader:
            split[1].zero_grad()
            criterion(split[0](x), y).backward()
            split[1].step()
    assert 6 <= other.steps == len(split[2])
    np.testing.assert_allclose(other.distances[:6], monitor.distances[:6], rtol=1e-5)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_empty_batches(mode: str) -> None:
    parts, criterion, monitor = attach(batch=1, grad_sample_mode=mode)
    seen = fit(parts, criterion, 30)
    empty = [len(y) == 0 for _, y in seen]
    assert any(empty)
    assert not all(empty)
    assert len(monitor.distances) == 30
    assert ((monitor.distances == 0.0) == empty).all()
    assert monitor.risk().bayes_security.lower > 0.5


def test_all_batches_empty_tell_nothing() -> None:
    parts, criterion, monitor = attach(batch=1)
    model, optimizer, _ = parts
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(torch.zeros(0, 6)), torch.zeros(0, dtype=torch.long)).backward()
        optimizer.step()
    assert monitor.risk().bayes_security.estimate == 1.0
    assert monitor.membership().bayes_security.upper < 1.0


def test_noise_and_clipping_schedules() -> None:
    parts, criterion, monitor = attach(noise=2.0, clip=0.4)
    noise, clip = ExponentialNoise(parts[1], gamma=0.5), ExponentialGradClip(parts[1], gamma=0.5)
    wanted = []

    def watch(x: Any, y: Any) -> None:
        wanted.append(
            float(oracle(clone(parts[0]._module, "tanh"), Records((x,), y), monitor.secret, parts[1].max_grad_norm).max())
        )

    for _ in range(3):
        fit(parts, criterion, 2, watch)
        noise.step()
        clip.step()
    np.testing.assert_allclose(monitor.distances, wanted, rtol=1e-4)
    first = parts[2].sample_rate
    assert monitor.run == bs.DPSGD(2.0, first, 2) + bs.DPSGD(1.0, first, 2) + bs.DPSGD(0.5, first, 2)


def test_risks_of_the_run_carry_the_scope() -> None:
    parts, criterion, monitor = attach()
    fit(parts, criterion, 8)
    run = bs.DPSGD(1.0, parts[2].sample_rate, 8)
    assert monitor.run == run
    for method in ("paper", "exact", "affinity", "certified"):
        mine, direct = monitor.risk(method), bs.analyze(run, bs.AttributeInference(monitor.distances), method)
        assert mine.bayes_security == direct.bayes_security
        assert "batch scope: an estimate for the trainer's eyes only" in repr(mine)
    assert monitor.membership().bayes_security == bs.analyze(run).bayes_security
    assert monitor.membership("add-remove").bayes_security == bs.analyze(run, bs.Membership("add-remove")).bayes_security
    quick = monitor.quick()
    assert quick["membership"] == pytest.approx(monitor.membership("substitution", "affinity").bayes_security.estimate, rel=1e-5)
    assert quick["attribute"] <= monitor.risk("affinity").bayes_security.estimate
    assert monitor.entry()["scope"] == "batch"
    assert "batch" in monitor.progress()
    assert "batch" in repr(monitor)


def test_dataset_scope_sees_every_record() -> None:
    parts, criterion, monitor = attach(scope="dataset", ledger=True)
    data, wanted = parts[2].dataset, []

    def watch(x: Any, y: Any) -> None:
        wanted.append(oracle(clone(parts[0]._module, "tanh"), Records((data[:][0],), data[:][1]), monitor.secret).numpy())

    fit(parts, criterion, 4, watch)
    np.testing.assert_allclose(monitor.distances, [gaps.max() for gaps in wanted], rtol=1e-4)
    assert "dataset scope" in monitor.label
    assert "after-the-fact" in monitor.label
    rate = parts[2].sample_rate
    leakage = [sum(_leak(rate, 1.0, float(gaps[i])) for gaps in wanted) for i in range(len(data))]
    assert monitor.ledger is not None
    np.testing.assert_allclose(monitor.ledger.leakage, leakage, rtol=1e-3)
    top = monitor.ledger.most_exposed(3)
    assert [one.record for one in top] == np.argsort(leakage)[::-1][:3].tolist()
    alone = bs.analyze(monitor.run, bs.AttributeInference([float(gaps[top[0].record]) for gaps in wanted]), "affinity")
    assert top[0].bayes_security == pytest.approx(alone.bayes_security.lower, rel=1e-4)


def _leak(rate: float, noise: float, distance: float) -> float:
    risk = bs.analyze(bs.DPSGD(noise, rate, 1), bs.AttributeInference(distance), "affinity").bayes_security
    return float(-0.5 * np.log1p(-((1.0 - risk.lower) ** 2)))


def test_batch_scope_ledger_estimates_the_dataset_ledger() -> None:
    """Weights that do not move: a record leaks the same at each step, so the sampled steps tell what all steps sum up to."""
    parts, criterion, monitor = attach(lr=0.0, batch=40, ledger=True)
    everyone, criterion_2, full = attach(lr=0.0, batch=40, ledger=True, scope="dataset")
    data = parts[2].dataset
    positions = {tuple(row.tolist()): i for i, row in enumerate(data[:][0])}
    model, optimizer, loader = parts
    for _ in range(60):
        for x, y in loader:
            monitor.records([positions[tuple(row.tolist())] for row in x])
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    fit(everyone, criterion_2, 3)
    assert monitor.ledger is not None
    assert full.ledger is not None
    mine, theirs = monitor.ledger.leakage / monitor.steps, full.ledger.leakage / 3
    assert theirs.max() > 1.5 * theirs.min(), "records differ"
    assert len(np.unique(monitor.ledger.counts)) > 1, "and so does how often they were sampled"
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert "batch" in repr(monitor.ledger)


def test_every_third_step_says_what_it_skipped() -> None:
    parts, criterion, monitor = attach(scope="dataset", every=3, ledger=True)
    fit(parts, criterion, 7)
    full_parts, criterion, full = attach(scope="dataset", ledger=True)
    assert full.ledger is not None
    before: list[Any] = []  # each step
    fit(full_parts, criterion, 7, lambda x, y: before.append(full.ledger.leakage))
    each = np.diff([*before, full.ledger.leakage], axis=0)
    np.testing.assert_allclose(monitor.distances, full.distances[[0, 0, 0, 3, 3, 3, 6]])
    assert monitor.skipped == 4
    assert "4 of 7 steps were not measured" in monitor.label
    assert "4 of 7" in repr(monitor.risk())
    assert monitor.ledger is not None
    np.testing.assert_allclose(monitor.ledger.leakage, 3 * each[0] + 3 * each[3] + each[6], rtol=1e-5)
    assert np.abs(each.sum(axis=0) / monitor.ledger.leakage - 1.0).max() > 1e-3, "what every step would have told differs"


def test_plain_functions_are_called_through_the_monitor() -> None:
    module, data, secret = build("tanh")
    parts = private(module, data)

    def criterion(output: Any, target: Any) -> Any:
        return nn.functional.binary_cross_entropy_with_logits(output[:, 1] - output[:, 0], target.float())

    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, monitor.criterion, 3)
    same, reference, other = attach()
    fit(same, reference, 3)
    np.testing.assert_allclose(monitor.distances, other.distances, rtol=1e-4)  # two classes: the same loss
    before = weights(parts)
    with pytest.raises(RuntimeError, match=r"saw no call of its criterion.* if it is a plain function"):
        fit(parts, criterion, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(parts), strict=True))


def test_two_monitors_at_once_and_detaching() -> None:
    module, data, secret = build("tanh")
    parts, criterion = private(module, data), nn.CrossEntropyLoss()
    first = AttributeMonitor(*parts, criterion, secret)
    second = AttributeMonitor(*parts, criterion, Secret.label(2))
    fit(parts, criterion, 3)
    first.detach()
    fit(parts, criterion, 2)
    assert (first.steps, second.steps) == (3, 5)
    second.detach()
    first.detach()
    fit(parts, criterion, 1)
    assert (first.steps, second.steps) == (3, 5)
    assert second.distances.min() > first.distances.max()  # another label moves the gradient more than another value


class Dicts(Dataset[Any]):
    """Records that are not a pair, and a model with a named argument."""

    def __init__(self) -> None:
        self.data = table()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = self.data[index]
        return {"numbers": x, "label": y, "index": index}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, *, numbers: Any) -> Any:
        return self.head(numbers)


def test_batches_that_are_not_pairs() -> None:
    torch.manual_seed(0)
    parts, criterion = private(Named(), Dicts()), nn.CrossEntropyLoss()
    model, optimizer, loader = parts
    monitor = AttributeMonitor(
        *parts,
        criterion,
        Secret.column(1, VALUES, argument="numbers"),
        split=lambda batch: Records((), batch["label"], {"numbers": batch["numbers"]}),
        ledger=True,
    )
    for batch in loader:
        monitor.records(batch["index"])
        optimizer.zero_grad()
        criterion(model(numbers=batch["numbers"]), batch["label"]).backward()
        optimizer.step()
    assert monitor.distances.min() > 0.0
    assert monitor.ledger is not None
    assert monitor.ledger.measured.any()


def test_a_resumed_run_continues_with_the_same_numbers(tmp_path: Path) -> None:
    lines = tmp_path / "deep" / "metrics.jsonl"
    parts, criterion, monitor = attach(scope="dataset", ledger=True, writers=[JsonLines(lines)])
    fit(parts, criterion, 4)
    torch.save({"monitor": monitor.state_dict(), "model": parts[0].state_dict()}, tmp_path / "state.pt")
    kept = lines.read_text()
    fit(parts, criterion, 2)
    with lines.open("a") as file:
        file.write('{"step": 7, "dist')  # killed in the middle of a line

    again, criterion, other = attach(scope="dataset", ledger=True, writers=[JsonLines(lines)])
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    again[0].load_state_dict(state["model"])
    other.load_state_dict(state["monitor"])
    assert lines.read_text() == kept
    assert other.distances.tolist() == monitor.distances[:4].tolist()
    assert other.run == bs.DPSGD(1.0, parts[2].sample_rate, 4)
    fit(again, criterion, 1)
    assert other.distances[4] == pytest.approx(monitor.distances[4], rel=1e-12)
    entries = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5]
    assert entries[4]["scope"] == "dataset"
    assert 0.0 < entries[4]["bayes_security_attribute"] < 1.0

    *_, stranger = attach(scope="batch")
    with pytest.raises(ValueError, match="belongs to another training: its scope is 'dataset', not 'batch'"):
        stranger.load_state_dict(state["monitor"])


def test_tensorboard_gets_every_step(tmp_path: Path) -> None:
    """The recipe of the documentation: a writer is any function that takes the figures of a step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(tmp_path))

    def scalars(figures: Any) -> None:
        for name, value in figures.items():
            if isinstance(value, float):
                board.add_scalar(f"privacy/{name}", value, figures["step"])

    parts, criterion, _ = attach(writers=[scalars])
    fit(parts, criterion, 3)
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("privacy/distance")] == [1, 2, 3]
