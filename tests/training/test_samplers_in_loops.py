"""Loops of Opacus with each sampler: what the accountant and a monitor analyse, and what is refused."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import betastar as bs
from betastar.drawn_steps import DrawnBatch, DrawnSteps, SamplingScheme
from betastar.training import AttributeMonitor, BetastarAccountant, Records, ShufflingWarning, private_loader

from .private import build, clipped, clone, fit

pytestmark = pytest.mark.filterwarnings("ignore::betastar.training.ShufflingWarning")
CRITERION = nn.CrossEntropyLoss()

#: 120 records, six batches an epoch.
BATCH, NOISE, CLIP = 20, 2.0, 0.5

SAMPLINGS: dict[str, dict[str, Any]] = {
    "balls-in-bins": {},
    "fixed-size": {},
    "poisson": {"max_batch_size": 24},
    "shuffled": {},
}


def loader(data: Any, sampling: str, seed: int = 4) -> DataLoader[Any]:
    made = DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))
    if sampling == "shuffled":
        return made
    return private_loader(made, sampling, generator=torch.Generator().manual_seed(seed + 1), **SAMPLINGS[sampling])


def made(sampling: str, name: str = "tanh", **options: Any) -> tuple[PrivacyEngine, tuple[Any, Any, Any], Any]:
    """(engine, (model, optimizer, loader), secret) of plain Opacus with the accountant of betastar."""
    module, data, secret = build(name)
    engine = PrivacyEngine(accountant="betastar")
    parts = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=options.pop("loader", None) or loader(data, sampling),
        **{"noise_multiplier": NOISE, "max_grad_norm": CLIP, "poisson_sampling": False}
        | {"noise_generator": torch.Generator().manual_seed(3)}
        | options,
    )
    return engine, parts, secret


def claimed(sampling: str, steps: int, noise: float = NOISE) -> bs.DPSGD:
    """What so many steps are; unfinished epochs count as whole ones."""
    whole = 6 * -(-steps // 6) if sampling in ("balls-in-bins", "shuffled") else steps
    return bs.DPSGD(noise, 1 / 6, whole, sampling, dataset_size=120, **SAMPLINGS[sampling])


def watched(sampling: str, **options: Any) -> tuple[Any, Any, AttributeMonitor]:
    """(engine, parts, monitor); options of a monitor, and those of `made`."""
    mine = {name: options.pop(name) for name in ("scope", "ledger") if name in options}
    engine, parts, secret = made(sampling, **options)
    return engine, parts, AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret, **mine)


def step(parts: Any, monitor: AttributeMonitor, x: Any, y: Any) -> None:
    parts[1].zero_grad()
    monitor.criterion(parts[0](x), y).backward()
    parts[1].step()


@pytest.mark.parametrize(
    ("sampling", "scope"), [("balls-in-bins", "batch"), ("fixed-size", "dataset"), ("poisson", "batch"), ("shuffled", "dataset")]
)
def test_what_the_loader_does_is_analysed(sampling: str, scope: str) -> None:
    engine, parts, monitor = watched(sampling, scope=scope)
    fit(parts, monitor.criterion, 8)
    run = claimed(sampling, 8)
    assert isinstance(engine.accountant, BetastarAccountant)
    assert monitor.run == engine.accountant.run == run
    assert len(engine.accountant) == 8
    beta = bs.analyze(run).bayes_security
    assert engine.accountant.bayes_security() == monitor.membership().bayes_security == beta
    if sampling == "shuffled":
        with pytest.raises(ValueError, match="must be analysed with relation 'substitution'"):
            engine.get_epsilon(1e-5)
    else:
        with pytest.warns(UserWarning, match="⌊N·rate⌋"):
            epsilon = engine.get_epsilon(1e-5)
        assert epsilon == bs.analyze(run, bs.Membership("add-remove")).epsilon(1e-5).upper
    attribute = monitor.risk().bayes_security
    distances = monitor._drawn.spread(monitor.distances)
    assert attribute == bs.analyze(run, bs.AttributeInference(distances)).bayes_security
    assert attribute.lower >= beta.lower - 1e-9
    quick = monitor.quick()
    assert quick["membership"] <= quick["attribute"]
    assert abs(quick["membership"] - beta.lower) < 0.06  # safe, and an estimate
    entry = monitor.entry()
    assert entry["sampling"] == sampling
    assert entry.get("epoch") == (2 if sampling in ("balls-in-bins", "shuffled") else None)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_physical_batches_make_the_same_steps_and_the_monitor_changes_no_weight(sampling: str) -> None:
    _, plain, _ = made(sampling)
    fit(plain, CRITERION, 12)
    engine, parts, whole = watched(sampling, scope="dataset")
    fit(parts, whole.criterion, 12)
    assert all(torch.equal(a, b) for a, b in zip(plain[1].params, parts[1].params, strict=True))
    other, (model, optimizer, batches), secret = made(sampling)
    with BatchMemoryManager(data_loader=batches, max_physical_batch_size=7, optimizer=optimizer) as physical:
        split = AttributeMonitor(model, optimizer, physical, CRITERION, secret, scope="dataset")
        seen = fit((model, optimizer, physical), CRITERION, 12)
    assert max(len(x) for x, _ in seen) <= 7
    assert split.run == whole.run == other.accountant.run == engine.accountant.run
    np.testing.assert_allclose(split.distances, whole.distances, rtol=1e-3)
    assert split.steps == 12


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_noisy_sum_is_divided_by_a_fixed_number(sampling: str) -> None:
    """Hardly any noise: each update is the sum of the clipped gradients of the batch, divided by 20 whatever its size."""
    _, parts, secret = made(sampling, noise_multiplier=1e-9)
    sizes = []
    for x, y in parts[2]:
        before = torch.cat([p.detach().flatten().clone() for p in parts[1].params])
        records = Records((x,), y)
        points = clipped(clone(parts[0]._module, "tanh"), records, secret, CLIP)
        total = CLIP * points[range(len(x)), secret.own(records)].sum(dim=0)
        parts[1].zero_grad()
        CRITERION(parts[0](x), y).backward()
        parts[1].step()
        after = torch.cat([p.detach().flatten() for p in parts[1].params])
        torch.testing.assert_close((before - after).double(), 0.1 * total / 20.0, rtol=1e-3, atol=1e-7)
        sizes.append(len(x))
    assert parts[1].expected_batch_size == 20
    assert sampling in ("fixed-size", "shuffled") or len(set(sizes)) > 1


def test_opacus_replaces_a_loader_by_poisson_sampling_unless_it_is_told_not_to() -> None:
    engine, parts, _ = made("balls-in-bins", poisson_sampling=True)
    fit(parts, CRITERION, 14)
    assert engine.accountant.run == bs.DPSGD(NOISE, 1 / 6, 14)


@pytest.mark.parametrize("sampling", ["balls-in-bins", "shuffled"])
def test_epochs_that_were_broken_off_count_as_whole_ones(sampling: str) -> None:
    engine, parts, monitor = watched(sampling)
    for _ in range(3):
        for x, y in islice(parts[2], 2):
            step(parts, monitor, x, y)
        list(parts[2])  # an evaluation in between draws an epoch, of which no step is taken
    assert engine.accountant.run == monitor.run == claimed(sampling, 18)
    assert len(monitor.distances) == 6
    assert np.flatnonzero(monitor._drawn.spread(monitor.distances)).tolist() == [0, 1, 6, 7, 12, 13]


def test_an_accountant_resumes(tmp_path: Any) -> None:
    engine, parts, _ = made("balls-in-bins")
    fit(parts, CRITERION, 9)
    engine.save_checkpoint(path=tmp_path / "run.pt", module=parts[0], optimizer=parts[1])
    again, loaded, _ = made("balls-in-bins")
    again.load_checkpoint(path=tmp_path / "run.pt", module=loaded[0], optimizer=loaded[1])
    assert again.accountant.run == engine.accountant.run
    fit(loaded, CRITERION, 1)  # of an epoch of its own: nobody has loaded the sampler's state
    assert again.accountant.run == claimed("balls-in-bins", 18)


def test_several_batches_in_a_step_are_not_counted_as_one() -> None:
    engine, (model, optimizer, batches), _ = made("balls-in-bins")
    for x, y in islice(batches, 2):
        CRITERION(model(x), y).backward()
    before = [p.detach().clone() for p in optimizer.params]
    with pytest.raises(ValueError, match="a step was taken on several batches at once"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, optimizer.params, strict=True))
    assert len(engine.accountant) == 0


def test_an_engine_of_ones_own_says_which_loader_it_is() -> None:
    accountant = BetastarAccountant()
    _, parts, _ = made("fixed-size")
    parts[1].attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=1 / 6))
    accountant.follow(parts[2])
    fit(parts, CRITERION, 3)
    assert accountant.run == claimed("fixed-size", 3)


def test_each_record_several_times_an_epoch() -> None:
    """The accountant, the monitor and a broken-off epoch; the noisy sum is divided by half of the mean size."""
    _, data, _ = build("tanh")
    bins = private_loader(DataLoader(data, batch_size=20), times_per_epoch=2, generator=torch.Generator().manual_seed(0))
    engine, parts, monitor = watched("balls-in-bins", loader=bins)
    seen = fit(parts, monitor.criterion, 14)
    assert sum(len(x) for x, _ in seen[:12]) == 240
    run = bs.DPSGD(NOISE, 1 / 6, 24, "balls-in-bins", dataset_size=120, times_per_epoch=2)
    assert engine.accountant.run == monitor.run == run
    assert engine.accountant.bayes_security() == bs.analyze(run).bayes_security
    assert monitor.entry()["times_per_epoch"] == 2
    assert parts[1].expected_batch_size == 10
    again = BetastarAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    assert again.run == run


def test_an_empty_batch_is_a_step_of_noise() -> None:
    _, data, _ = build("tanh")
    few = TensorDataset(*(column[:7] for column in data.tensors))  # has all values
    bins = private_loader(DataLoader(few, batch_size=1), generator=torch.Generator().manual_seed(0))
    engine, parts, monitor = watched("balls-in-bins", loader=bins, noise_multiplier=5.0, scope="dataset")
    seen = fit(parts, monitor.criterion, 14)
    assert 0 in {len(x) for x, _ in seen}
    assert len(monitor.distances) == len(engine.accountant) == 14


def test_steps_of_several_samplings_add_up() -> None:
    steps = DrawnSteps()
    bins, poisson = SamplingScheme("balls-in-bins", 0.25, 4, 100), SamplingScheme("poisson", 0.1)
    drawn = [(1.0, poisson, "", 3), (1.0, bins, "a", 4), (2.0, bins, "b", 1), (1.5, bins, "b", 1), (1.5, bins, "c", 2)]
    for noise, scheme, epoch, count in [*drawn, (1.0, poisson, "", 2)]:
        for _ in range(count):
            steps.add(noise, DrawnBatch(scheme, epoch))
    one, two = (bs.DPSGD(noise, 0.25, count, "balls-in-bins", dataset_size=100) for noise, count in ((1.0, 4), (1.5, 8)))
    assert steps.run == bs.DPSGD(1.0, 0.1, 3) + one + two + bs.DPSGD(1.0, 0.1, 2)
    assert (len(steps), steps.epochs) == (13, 3)
    spread = steps.spread(np.arange(1.0, 14.0))
    assert spread.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 10, 11, 0, 0, 12, 13]
    again = DrawnSteps()
    again.load_state_dict(steps.state_dict())
    assert again.run == steps.run


def test_a_ledger_in_batch_scope_charges_each_record_once_an_epoch() -> None:
    _, parts, monitor = watched("balls-in-bins", ledger=True)
    data, gaps, measured = parts[2].dataset, np.zeros((2, 120)), []
    assert monitor.ledger is not None
    original = monitor.ledger.step
    monitor.ledger.step = lambda *given: (measured.append(given[0]), original(*given))  # type: ignore[assignment, func-returns-value]
    for epoch in range(2):
        for indices in parts[2].batch_sampler:
            monitor.records(indices)
            step(parts, monitor, *data[indices])
            gaps[epoch, indices] = measured[-1][indices]
    assert (monitor.ledger.counts == 2).all()
    np.testing.assert_allclose(monitor.ledger.leakage, (gaps**2).sum(axis=0) / (8.0 * NOISE**2), rtol=1e-5)


def test_shuffling_is_warned_of_once() -> None:
    _, parts, secret = made("shuffled")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShufflingWarning)
        with pytest.raises(ShufflingWarning, match=r"private_loader\(loader, \"balls-in-bins\"\)"):
            AttributeMonitor(*parts, CRITERION, secret)
        AttributeMonitor(*parts, CRITERION, secret)  # a second monitor of the same loader
        watched("balls-in-bins")


@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_unequal_size_are_still_shuffled(drop_last: bool) -> None:
    _, data, _ = build("tanh")
    shuffled = DataLoader(data, batch_size=50, shuffle=True, drop_last=drop_last)
    _, parts, monitor = watched("shuffled", loader=shuffled, scope="dataset")
    fit(parts, monitor.criterion, 2 * len(shuffled))
    batches = 2 if drop_last else 3
    assert monitor.run == bs.DPSGD(NOISE, 1 / batches, 2 * batches, "shuffled", dataset_size=120)


def test_loaders_that_are_not_recognised_are_refused() -> None:
    _, data, _ = build("tanh")

    class Own(BatchSampler):
        """A subclass may draw as it likes."""

    for other in (
        DataLoader(data, batch_size=BATCH),
        DataLoader(data, batch_sampler=Own(RandomSampler(data), BATCH, False)),
        DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data, num_samples=60)),
    ):
        with pytest.raises(ValueError, match="loader must sample each record with the same probability"):
            made("shuffled", loader=other)
    foreign = private_loader(DataLoader(TensorDataset(*(column[:60] for column in data.tensors)), batch_size=BATCH))
    with pytest.raises(ValueError, match="a sampler for 60 records, but its data set has 120"):
        made("shuffled", loader=DataLoader(data, batch_sampler=foreign.batch_sampler))


def test_a_fixed_size_that_does_not_divide_the_data_set() -> None:
    _, data, _ = build("tanh")
    drawn = private_loader(DataLoader(data, batch_size=35), "fixed-size", generator=torch.Generator().manual_seed(1))
    assert [len(y) for _, y in drawn] == [30] * 4  # what Opacus divides by: 120 // 4
    few = private_loader(DataLoader(TensorDataset(*(part[:118] for part in data.tensors)), batch_size=35), "fixed-size")
    _, parts, monitor = watched("fixed-size", loader=few)
    fit(parts, monitor.criterion, 5)
    assert parts[1].expected_batch_size == 29
    assert monitor.run == bs.DPSGD(NOISE, 29 / 118, 5, "fixed-size", dataset_size=118)


def test_noise_that_changes_within_an_epoch_counts_with_its_least() -> None:
    engine, parts, monitor = watched("balls-in-bins")
    scheduler = ExponentialNoise(parts[1], gamma=0.9)
    fit(parts, monitor.criterion, 3)
    scheduler.step()
    for number, (x, y) in enumerate(parts[2]):  # a new epoch, within which the noise changes
        step(parts, monitor, x, y)
        if number == 2:
            scheduler.step()
    assert monitor.run == engine.accountant.run == claimed("balls-in-bins", 6) + claimed("balls-in-bins", 6, NOISE * 0.9**2)
