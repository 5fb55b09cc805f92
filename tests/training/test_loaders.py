"""Trainings with each sampler: engine, accountant, monitor, gap clipping, physical batches, and training that is resumed."""

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
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

import betastar as bs
from betastar.bounds import affinity
from betastar.bounds.charges import charge
from betastar.scenario.run import Segment
from betastar.scenario.sampling_scheme import DrawnBatch, DrawnSteps, SamplingScheme
from betastar.training import (
    AttributeMonitor,
    BetastarAccountant,
    Budget,
    ShufflingWarning,
    make_attribute_private,
    private_loader,
)

from .private import build, fit

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


@pytest.fixture(autouse=True)
def _shuffling_is_known() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShufflingWarning)
        yield


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_accountant_of_an_engine_gives_what_analyze_gives(sampling: str) -> None:
    engine, parts, _ = made(sampling)
    fit(parts, nn.CrossEntropyLoss(), 14)
    run = claimed(sampling, 14)
    assert isinstance(engine.accountant, BetastarAccountant)
    assert engine.accountant.run == run
    assert len(engine.accountant) == 14
    assert engine.accountant.bayes_security() == bs.analyze(run).bayes_security
    if sampling == "shuffled":
        with pytest.raises(ValueError, match="must be analysed with relation 'substitution'"):
            engine.get_epsilon(1e-5)
    else:
        assert engine.get_epsilon(1e-5) == bs.analyze(run, bs.Membership("add-remove")).epsilon(1e-5).upper


def test_opacus_replaces_a_loader_by_poisson_sampling_unless_it_is_told_not_to() -> None:
    engine, parts, _ = made("balls-in-bins", poisson_sampling=True)
    fit(parts, nn.CrossEntropyLoss(), 14)
    assert engine.accountant.run == bs.DPSGD(NOISE, 1 / 6, 14)


@pytest.mark.parametrize("sampling", ["balls-in-bins", "shuffled"])
def test_epochs_that_were_broken_off_count_as_whole_ones(sampling: str) -> None:
    engine, (model, optimizer, batches), secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(model, optimizer, batches, criterion, secret)
    for _ in range(3):
        for x, y in islice(batches, 2):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        list(batches)  # an evaluation in between draws an epoch, of which no step is taken
    assert engine.accountant.run == monitor.run == claimed(sampling, 18)
    assert len(monitor.distances) == 6
    spread = monitor.history._drawn.spread(monitor.distances)
    assert np.flatnonzero(spread).tolist() == [0, 1, 6, 7, 12, 13]
    wanted = bs.analyze(claimed(sampling, 18), bs.AttributeInference(spread)).bayes_security
    assert monitor.risk().bayes_security == wanted


def test_an_accountant_resumes_and_refuses_what_it_does_not_know(tmp_path: Any) -> None:
    engine, parts, _ = made("balls-in-bins")
    fit(parts, nn.CrossEntropyLoss(), 9)
    engine.save_checkpoint(path=tmp_path / "run.pt", module=parts[0], optimizer=parts[1])
    again, loaded, _ = made("balls-in-bins")
    again.load_checkpoint(path=tmp_path / "run.pt", module=loaded[0], optimizer=loaded[1])
    assert again.accountant.run == engine.accountant.run
    fit(loaded, nn.CrossEntropyLoss(), 1)  # of an epoch of its own: nobody has loaded the sampler's state
    assert again.accountant.run == claimed("balls-in-bins", 18)
    again.accountant.history = [(NOISE, 0.5, 3)]
    with pytest.raises(ValueError, match="history was changed from outside"):
        _ = again.accountant.run
    _, data, _ = build("tanh")
    unknown = DataLoader(data, batch_size=BATCH)  # in the same order each time
    engine, parts, _ = made("balls-in-bins", loader=unknown)
    fit(parts, nn.CrossEntropyLoss(), 2)
    with pytest.raises(ValueError, match=r"cannot be analysed: .* got SequentialSampler"):
        engine.get_epsilon(1e-5)
    assert len(engine.accountant) == 2


def test_several_batches_in_a_step_are_not_counted_as_one() -> None:
    engine, (model, optimizer, batches), _ = made("balls-in-bins")
    for x, y in islice(batches, 2):
        nn.CrossEntropyLoss()(model(x), y).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="a step was taken on several batches at once"):
        engine.get_epsilon(1e-5)


def test_an_engine_of_ones_own_says_which_loader_it_is() -> None:
    accountant = BetastarAccountant()
    _, parts, _ = made("fixed-size")
    parts[1].attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=1 / 6))
    accountant.follow(parts[2])
    fit(parts, nn.CrossEntropyLoss(), 3)
    assert accountant.run == claimed("fixed-size", 3)


# ---------------------------------------------------------------------- what Opacus does with the batches


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_noisy_sum_is_divided_by_a_fixed_number(sampling: str) -> None:
    """Hardly any noise: each update is the sum of the clipped gradients of the batch, divided by 20 whatever its size."""
    _, (model, optimizer, batches), _ = made(sampling, noise_multiplier=1e-9)
    sizes = []
    for x, y in batches:
        before = torch.cat([p.detach().flatten().clone() for p in optimizer.params])
        clipped = torch.zeros_like(before)
        for i in range(len(x)):
            one = [
                g.flatten()
                for g in torch.autograd.grad(
                    nn.CrossEntropyLoss()(model._module(x[i : i + 1]), y[i : i + 1]), list(model._module.parameters())
                )
            ]
            gradient = torch.cat(one)
            clipped += gradient * min(1.0, CLIP / (float(gradient.norm()) + 1e-6))
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()
        after = torch.cat([p.detach().flatten() for p in optimizer.params])
        torch.testing.assert_close(before - after, 0.1 * clipped / 20.0, rtol=1e-3, atol=1e-7)
        sizes.append(len(x))
    assert optimizer.expected_batch_size == 20
    assert sampling in ("fixed-size", "shuffled") or len(set(sizes)) > 1


def test_an_empty_batch_is_a_step_of_noise() -> None:
    _, data, secret = build("tanh")
    few = TensorDataset(*(column[:7] for column in data.tensors))  # has all values
    bins = private_loader(DataLoader(few, batch_size=1), generator=torch.Generator().manual_seed(0))
    engine, (model, optimizer, batches), _ = made("balls-in-bins", loader=bins, noise_multiplier=5.0, loss_reduction="sum")
    criterion = nn.CrossEntropyLoss(reduction="sum")
    monitor = AttributeMonitor(model, optimizer, batches, criterion, secret, scope="dataset", budget=Budget(0.01))
    seen = fit((model, optimizer, batches), criterion, 14)
    assert 0 in {len(x) for x, _ in seen}
    assert monitor.proof.steps == len(engine.accountant) == 14


# ---------------------------------------------------------------------- monitor


@pytest.mark.parametrize("scope", ["batch", "dataset"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_monitor_analyses_what_the_loader_does(sampling: str, scope: str) -> None:
    engine, parts, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope=scope)
    fit(parts, criterion, 12)
    run = claimed(sampling, 12)
    assert monitor.run == engine.accountant.run == run
    assert monitor.membership().bayes_security == bs.analyze(run).bayes_security
    attribute = monitor.risk().bayes_security
    assert attribute == bs.analyze(run, bs.AttributeInference(monitor.distances)).bayes_security
    assert attribute.lower >= monitor.membership().bayes_security.lower - 1e-9
    quick = monitor.history.quick()
    assert quick["membership"] <= quick["attribute"]
    assert abs(quick["membership"] - monitor.membership().bayes_security.lower) < 0.06  # safe, and an estimate
    entry = monitor.history.entry()
    assert entry["sampling"] == sampling
    assert entry.get("epoch") == (2 if sampling in ("balls-in-bins", "shuffled") else None)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_monitored_weights_are_the_same(sampling: str) -> None:
    _, plain, _ = made(sampling)
    fit(plain, nn.CrossEntropyLoss(), 8)
    _, watched, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    AttributeMonitor(*watched, criterion, secret, scope="dataset", budget=Budget(0.01))
    fit(watched, criterion, 8)
    for a, b in zip(plain[1].params, watched[1].params, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_budget_charges_what_is_proved_for_the_sampling(sampling: str) -> None:
    _, parts, secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", ledger=True, budget=Budget(0.2))
    fit(parts, criterion, 9)
    far = monitor.distances
    if sampling in ("balls-in-bins", "shuffled"):  # once an epoch, at rate 1: R²/(8σ²)
        wanted = sum(float(part.max()) ** 2 / (8.0 * NOISE**2) for part in (far[:6], far[6:]))
    else:
        step = Segment(NOISE, 1 / 6, 1, sampling, SAMPLINGS[sampling].get("max_batch_size"), 120)
        wanted = float(charge(step, far).sum())
    assert monitor.proof.spent == pytest.approx(wanted, rel=4e-3)
    assert monitor.proof.spent >= wanted
    assert monitor.ledger is not None
    assert monitor.ledger.leakage.max() <= wanted * (1.0 + 3e-6)
    # A proof by affinities is below what the method affinity says of the same distances at best.
    assert float(affinity.proved(monitor.proof.spent)) <= float(monitor.risk().bayes_security.upper)


def test_a_budget_stops_within_an_epoch_before_it_is_broken() -> None:
    _, parts, secret = made("balls-in-bins")
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", budget=Budget(0.6))
    with pytest.raises(RuntimeError, match="would break the budget"):
        fit(parts, criterion, 60)
    assert monitor.proof.spent <= Budget(0.6).allowance
    assert monitor.run.steps % 6 == 0


def test_charges_of_samplings() -> None:
    far = np.array([0.0, 0.3, 1.0, 2.0])
    poisson = affinity.leakage(0.1, 1.0, far)
    np.testing.assert_array_equal(charge(Segment(1.0, 0.1, 1), far), poisson)
    np.testing.assert_allclose(charge(Segment(1.0, 0.1, 1, "balls-in-bins"), far), far**2 / 8.0, rtol=3e-6)
    fixed = charge(Segment(1.0, 0.1, 1, "fixed-size"), far)
    np.testing.assert_array_equal(fixed, affinity.leakage(0.1, 0.5, far / 2))
    never = charge(Segment(1.0, 0.1, 1, "poisson", 100, 100), far)
    often = charge(Segment(1.0, 0.1, 1, "poisson", 10, 100), far)
    np.testing.assert_allclose(never, poisson, rtol=1e-8)
    assert (poisson[1:] < often[1:]).all()
    assert (often[1:] < fixed[1:]).all()
    # The coin by brute force: affinities of the two kinds of steps, averaged.
    from scipy import stats

    full = stats.binom(99, 0.1).sf(9)
    rate = 10 * stats.binom(100, 0.1).sf(10) / (100 * full)
    one, other = affinity.leakage(0.1, 1.0, 1.0), affinity.leakage(rate, 0.5, 0.5)
    assert often[2] == pytest.approx(-np.log((1 - full) * np.exp(-one) + full * np.exp(-other)), rel=1e-6)


def test_a_ledger_in_batch_scope_charges_each_record_once_an_epoch() -> None:
    _, (model, optimizer, batches), secret = made("balls-in-bins")
    criterion, data = nn.CrossEntropyLoss(), batches.dataset
    monitor = AttributeMonitor(model, optimizer, batches, criterion, secret, ledger=True)
    gaps = np.zeros((2, len(data)))
    for epoch in range(2):
        for indices in batches.batch_sampler:
            monitor.records(indices)
            x, y = data[indices]
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            measured = []
            original = monitor.ledger.step  # type: ignore[union-attr]
            monitor.ledger.step = lambda *given, keep=measured, go=original: (keep.append(given[0]), go(*given))  # type: ignore
            optimizer.step()
            monitor.ledger.step = original  # type: ignore[union-attr]
            gaps[epoch, indices] = measured[0][indices]
    assert monitor.ledger is not None
    assert (monitor.ledger.counts == 2).all()
    np.testing.assert_allclose(monitor.ledger.leakage, (gaps**2).sum(axis=0) / (8.0 * NOISE**2), rtol=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_physical_batches_make_the_same_steps(sampling: str) -> None:
    engine, (model, optimizer, batches), secret = made(sampling)
    criterion = nn.CrossEntropyLoss()
    whole = AttributeMonitor(model, optimizer, batches, criterion, secret, scope="dataset", budget=Budget(0.01))
    fit((model, optimizer, batches), criterion, 12)
    other, (model_2, optimizer_2, batches_2), secret = made(sampling)
    with BatchMemoryManager(data_loader=batches_2, max_physical_batch_size=7, optimizer=optimizer_2) as physical:
        split = AttributeMonitor(model_2, optimizer_2, physical, criterion, secret, scope="dataset", budget=Budget(0.01))
        seen = fit((model_2, optimizer_2, physical), criterion, 12)
    assert max(len(x) for x, _ in seen) <= 7
    assert split.run == whole.run == other.accountant.run == engine.accountant.run
    np.testing.assert_allclose(split.distances, whole.distances, rtol=1e-3)
    assert split.proof.steps == 12


def test_shuffling_is_warned_of_once() -> None:
    _, parts, secret = made("shuffled")
    criterion = nn.CrossEntropyLoss()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShufflingWarning)
        with pytest.raises(ShufflingWarning, match=r"private_loader\(loader, \"balls-in-bins\"\)"):
            AttributeMonitor(*parts, criterion, secret)
        AttributeMonitor(*parts, criterion, secret)  # a second monitor of the same loader
        _, bins, _ = made("balls-in-bins")
        AttributeMonitor(*bins, criterion, secret)


@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_unequal_size_are_still_shuffled(drop_last: bool) -> None:
    _, data, _ = build("tanh")
    shuffled = DataLoader(data, batch_size=50, shuffle=True, drop_last=drop_last)
    _, parts, secret = made("shuffled", loader=shuffled)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", budget=Budget(0.01))
    fit(parts, criterion, 2 * len(shuffled))
    batches = 2 if drop_last else 3
    assert monitor.run == bs.DPSGD(NOISE, 1 / batches, 2 * batches, "shuffled", dataset_size=120)
    assert monitor.proof.steps == 2 * batches


def test_loaders_that_are_not_recognised_are_refused_as_before() -> None:
    _, data, _ = build("tanh")

    class Own(BatchSampler):
        """A subclass may draw as it likes."""

    for other in (
        DataLoader(data, batch_size=BATCH),
        DataLoader(data, batch_sampler=Own(RandomSampler(data), BATCH, False)),
        DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data, num_samples=60)),
    ):
        _, parts, secret = made("shuffled", loader=other)
        with pytest.raises(ValueError, match="loader must sample each record with the same probability"):
            AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)
        if isinstance(other.batch_sampler.sampler, SequentialSampler):  # type: ignore[union-attr]
            AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret, amplification=False)
    foreign = private_loader(DataLoader(TensorDataset(*(column[:60] for column in data.tensors)), batch_size=BATCH))
    mixed = DataLoader(data, batch_sampler=foreign.batch_sampler)
    _, parts, secret = made("shuffled", loader=mixed)
    with pytest.raises(ValueError, match="a sampler for 60 records, but its data set has 120"):
        AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)


def test_a_fixed_size_that_does_not_divide_the_data_set() -> None:
    from betastar.training import FixedSizeSampler

    _, data, _ = build("tanh")
    drawn = DataLoader(data, batch_sampler=FixedSizeSampler(120, 35, generator=torch.Generator().manual_seed(1)))
    _, parts, secret = made("fixed-size", loader=drawn)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, 5)
    assert parts[1].expected_batch_size == 30  # a fixed number, but Opacus's: 120 // 4
    assert monitor.run == bs.DPSGD(NOISE, 35 / 120, 5, "fixed-size", dataset_size=120)


def test_noise_that_changes_within_an_epoch_counts_with_its_least() -> None:
    engine, parts, secret = made("balls-in-bins")
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    scheduler = ExponentialNoise(parts[1], gamma=0.9)
    fit(parts, criterion, 3)
    scheduler.step()
    # The loop goes on with a new epoch, after which the noise changes within one.
    model, optimizer, batches = parts
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if number == 2:
            scheduler.step()
    least = NOISE * 0.9**2
    assert monitor.run == claimed("balls-in-bins", 6) + claimed("balls-in-bins", 6, least)
    assert bs.analyze(engine.accountant.run).bayes_security.upper <= monitor.membership().bayes_security.upper


# ---------------------------------------------------------------------- gap clipping


def gapped(sampling: str, **options: Any) -> tuple[tuple[Any, Any, Any], Any]:
    module, data, secret = build("tanh")
    criterion = nn.CrossEntropyLoss()
    parts = make_attribute_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader(data, sampling),
        criterion=criterion,
        secret=secret,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        noise_generator=torch.Generator().manual_seed(3),
        poisson_sampling=False if sampling == "shuffled" else None,
        **{"gap": 0.1} | options,
    )
    return parts, criterion


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_gap_clipping_promises_what_the_sampling_gives(sampling: str) -> None:
    parts, criterion = gapped(sampling)
    clipping = parts[1].gap_clipping
    promised = clipping.risk(method="exact", steps=8).bayes_security
    fit(parts, criterion, 8)
    assert clipping.run == claimed(sampling, 8)
    assert clipping.risk(method="exact").bayes_security == promised
    assert promised == bs.analyze(claimed(sampling, 8), bs.AttributeInference(clipping.distance())).bayes_security
    assert promised.lower > bs.analyze(claimed(sampling, 8)).bayes_security.lower


@pytest.mark.parametrize("sampling", ["fixed-size", "balls-in-bins"])
def test_a_target_sets_the_gap_for_the_sampling(sampling: str) -> None:
    parts, criterion = gapped(sampling, gap=None, bayes_security=0.97, epochs=2)
    clipping = parts[1].gap_clipping
    (gap,) = clipping.gaps.values()
    assert 0.0 < gap < 2.0
    fit(parts, criterion, 12)
    assert clipping.risk().bayes_security.lower >= 0.97


# ---------------------------------------------------------------------- resuming


def state(parts: Any, watcher: Any, accountant: Any) -> dict[str, Any]:
    model, optimizer, batches = parts
    return {
        "model": {name: value.clone() for name, value in model._module.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "accountant": accountant.state_dict(),
        "watcher": watcher.state_dict(),
        "sampler": batches.batch_sampler.state_dict(),
        "noise": optimizer.generator.get_state(),
    }


def restore(parts: Any, watcher: Any, accountant: Any, saved: dict[str, Any]) -> None:
    model, optimizer, batches = parts
    model._module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    accountant.load_state_dict(saved["accountant"])
    watcher.load_state_dict(saved["watcher"])
    batches.batch_sampler.load_state_dict(saved["sampler"])
    optimizer.generator.set_state(saved["noise"])


def one_epoch(parts: Any, criterion: Any, steps: int = 6) -> None:
    model, optimizer, batches = parts
    for x, y in islice(batches, steps):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("clips", [False, True], ids=["monitor", "gap clipping"])
@pytest.mark.parametrize("sampling", [name for name in SAMPLINGS if name != "shuffled"])
def test_a_training_resumed_within_an_epoch_is_the_same(sampling: str, clips: bool) -> None:
    def make() -> tuple[Any, Any, Any, Any]:
        if clips:
            parts, criterion = gapped(sampling)
            return parts, criterion, parts[1].gap_clipping, parts[1].gap_clipping._adapter.accountant
        engine, parts, secret = made(sampling)
        criterion = nn.CrossEntropyLoss()
        monitor = AttributeMonitor(*parts, criterion, secret, scope="dataset", ledger=True, budget=Budget(0.01))
        return parts, criterion, monitor, engine.accountant

    parts, criterion, watcher, accountant = make()
    one_epoch(parts, criterion)
    iterator = iter(parts[2])
    model, optimizer, _ = parts

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        criterion(model(batch[0]), batch[1]).backward()
        optimizer.step()

    for batch in islice(iterator, 2):
        step(batch)
    saved = state(parts, watcher, accountant)
    for batch in iterator:
        step(batch)
    one_epoch(parts, criterion)

    again, criterion, watcher_2, accountant_2 = make()
    restore(again, watcher_2, accountant_2, saved)
    one_epoch(again, criterion)  # the rest of the epoch: four steps
    assert len(accountant_2) == 12
    one_epoch(again, criterion)
    for a, b in zip(parts[1].params, again[1].params, strict=True):
        assert torch.equal(a, b)
    assert watcher_2.run == watcher.run == accountant.run == accountant_2.run == claimed(sampling, 18)
    if not clips:
        assert (watcher.distances == watcher_2.distances).all()
        assert watcher.proof == watcher_2.proof
        assert (watcher.ledger.leakage == watcher_2.ledger.leakage).all()


def test_a_monitor_of_another_sampling_does_not_go_on() -> None:
    _, parts, secret = made("balls-in-bins")
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret)
    fit(parts, criterion, 1)
    _, others, _ = made("fixed-size")
    other = AttributeMonitor(*others, criterion, secret)
    with pytest.raises(ValueError, match="belongs to another monitor: its sampling is"):
        other.load_state_dict(monitor.state_dict())


# ---------------------------------------------------------------------- counting


def test_steps_of_several_samplings_add_up() -> None:
    steps = DrawnSteps()
    bins = SamplingScheme("balls-in-bins", 0.25, 4, 100)
    poisson = SamplingScheme("poisson", 0.1)
    for noise, scheme, epoch, count in (
        (1.0, poisson, "", 3),
        (1.0, bins, "a", 4),
        (2.0, bins, "b", 1),
        (1.5, bins, "b", 1),
        (1.5, bins, "c", 2),
        (1.0, poisson, "", 2),
    ):
        for _ in range(count):
            steps.add(noise, DrawnBatch(scheme, epoch))
    bin_runs = bs.DPSGD(1.0, 0.25, 4, "balls-in-bins", dataset_size=100) + bs.DPSGD(
        1.5, 0.25, 8, "balls-in-bins", dataset_size=100
    )
    assert steps.run == bs.DPSGD(1.0, 0.1, 3) + bin_runs + bs.DPSGD(1.0, 0.1, 2)
    assert (len(steps), steps.epochs) == (13, 3)
    spread = steps.spread(np.arange(1.0, 14.0))
    assert spread.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 10, 11, 0, 0, 12, 13]
    again = DrawnSteps()
    again.load_state_dict(steps.state_dict())
    assert again.run == steps.run
