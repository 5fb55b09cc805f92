"""Trainings with each sampler: engine, accountant, and what Opacus does with the batches."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs
from betastar.drawn_steps import DrawnBatch, DrawnSteps, SamplingScheme
from betastar.training import AttributeMonitor, BetastarAccountant, private_loader

from .private import build, fit
from .sampled import CLIP, NOISE, SAMPLINGS, claimed, made

pytestmark = pytest.mark.filterwarnings("ignore::betastar.training.ShufflingWarning")


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
        with pytest.warns(UserWarning, match="⌊N·rate⌋"):
            epsilon = engine.get_epsilon(1e-5)
        assert epsilon == bs.analyze(run, bs.Membership("add-remove")).epsilon(1e-5).upper


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
    spread = monitor._drawn.spread(monitor.distances)
    assert np.flatnonzero(spread).tolist() == [0, 1, 6, 7, 12, 13]
    wanted = bs.analyze(claimed(sampling, 18), bs.AttributeInference(spread)).bayes_security
    assert monitor.risk().bayes_security == wanted


def test_an_accountant_resumes(tmp_path: Any) -> None:
    engine, parts, _ = made("balls-in-bins")
    fit(parts, nn.CrossEntropyLoss(), 9)
    engine.save_checkpoint(path=tmp_path / "run.pt", module=parts[0], optimizer=parts[1])
    again, loaded, _ = made("balls-in-bins")
    again.load_checkpoint(path=tmp_path / "run.pt", module=loaded[0], optimizer=loaded[1])
    assert again.accountant.run == engine.accountant.run
    fit(loaded, nn.CrossEntropyLoss(), 1)  # of an epoch of its own: nobody has loaded the sampler's state
    assert again.accountant.run == claimed("balls-in-bins", 18)


def test_several_batches_in_a_step_are_not_counted_as_one() -> None:
    engine, (model, optimizer, batches), _ = made("balls-in-bins")
    for x, y in islice(batches, 2):
        nn.CrossEntropyLoss()(model(x), y).backward()
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
    fit(parts, nn.CrossEntropyLoss(), 3)
    assert accountant.run == claimed("fixed-size", 3)


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


def test_each_record_several_times_an_epoch() -> None:
    """The accountant, the monitor and a broken-off epoch; the noisy sum is divided by half of the mean size."""
    _, data, _ = build("tanh")
    bins = private_loader(DataLoader(data, batch_size=20), times_per_epoch=2, generator=torch.Generator().manual_seed(0))
    engine, (model, optimizer, batches), secret = made("balls-in-bins", loader=bins)
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(model, optimizer, batches, criterion, secret)
    seen = fit((model, optimizer, batches), criterion, 14)
    assert sum(len(x) for x, _ in seen[:12]) == 240
    run = bs.DPSGD(NOISE, 1 / 6, 24, "balls-in-bins", dataset_size=120, times_per_epoch=2)
    assert engine.accountant.run == monitor.run == run
    assert engine.accountant.bayes_security() == bs.analyze(run).bayes_security
    assert monitor.entry()["times_per_epoch"] == 2
    assert optimizer.expected_batch_size == 10
    again = BetastarAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    assert again.run == run


def test_an_empty_batch_is_a_step_of_noise() -> None:
    _, data, secret = build("tanh")
    few = TensorDataset(*(column[:7] for column in data.tensors))  # has all values
    bins = private_loader(DataLoader(few, batch_size=1), generator=torch.Generator().manual_seed(0))
    engine, (model, optimizer, batches), _ = made("balls-in-bins", loader=bins, noise_multiplier=5.0, loss_reduction="sum")
    criterion = nn.CrossEntropyLoss(reduction="sum")
    monitor = AttributeMonitor(model, optimizer, batches, criterion, secret, scope="dataset")
    seen = fit((model, optimizer, batches), criterion, 14)
    assert 0 in {len(x) for x, _ in seen}
    assert len(monitor.distances) == len(engine.accountant) == 14


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
