"""Batches that are not sampled as the loader says, and records that are not those of the data set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, WeightedRandomSampler

from .attacked_training import BATCH, RECORDS, Attacks, Training

ATTACKS = Attacks()


@ATTACKS.refused_with("the batch has")
def rate_raised_while_a_batch_is_drawn() -> Training:
    t = Training()
    t.attach()

    def batches() -> Iterator[Any]:
        while True:
            t.loader.batch_sampler.sample_rate = 0.95
            batch = next(iter(t.loader))
            t.loader.batch_sampler.sample_rate = BATCH / RECORDS
            yield batch

    t.fit(20, batches=batches(), leaks=False)
    return t


@ATTACKS.refused_with("records sampled with rate")
def another_loader_with_larger_batches() -> Training:
    t = Training()
    t.attach()
    t.fit(40, batches=chain.from_iterable(repeat(DataLoader(t.data, batch_size=20, shuffle=True))), leaks=False)
    return t


@ATTACKS.refused_with("exactly as many records as the one before")
def another_loader_with_fixed_batches() -> Training:
    t = Training()
    t.attach()
    t.fit(60, batches=chain.from_iterable(repeat(DataLoader(t.data, batch_size=BATCH, shuffle=True))), leaks=False)
    return t


@ATTACKS.refused_with("one record was sampled|records sampled with rate")
def another_loader_for_a_few_records() -> Training:
    t = Training()
    t.attach()

    def batches() -> Iterator[Any]:
        while True:
            chosen = [i for i in range(10) if torch.rand(()) < 0.8]
            yield t.data[chosen]

    torch.manual_seed(1)
    t.fit(60, batches=batches(), leaks=False)
    return t


@ATTACKS.refused_with("may draw a record more than once")
def weighted_sampler_as_if_all_took_part() -> Training:
    t = Training()
    loader = DataLoader(t.data, batch_size=BATCH, sampler=WeightedRandomSampler([100.0] + [1.0] * (RECORDS - 1), RECORDS))
    t.attach(loader=loader, amplification=False)
    return t


@ATTACKS.refused_with("may draw a record more than once")
def random_sampler_with_replacement() -> Training:
    t = Training()
    t.attach(loader=DataLoader(t.data, batch_size=BATCH, sampler=RandomSampler(t.data, replacement=True)), amplification=False)
    return t


class Always(Sampler[int]):
    """The first record, over and over."""

    def __iter__(self) -> Iterator[int]:
        return iter([0] * RECORDS)

    def __len__(self) -> int:
        return RECORDS


@ATTACKS.refused_with("may draw a record more than once")
def sampler_of_ones_own() -> Training:
    t = Training()
    t.attach(loader=DataLoader(t.data, batch_size=BATCH, sampler=Always()), amplification=False)
    return t


def twice(batches: Iterator[Any]) -> Iterator[Any]:
    for x, y in batches:
        yield torch.cat([x, x]), torch.cat([y, y])


@ATTACKS.refused_with("a record occurs more than once")
def records_repeated_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.fit(batches=twice(t.batches()), leaks=False)
    return t


@ATTACKS.refused_with("a record occurs more than once")
def records_repeated_without_amplification() -> Training:
    t = Training({"poisson_sampling": False})
    t.attach(amplification=False)
    t.fit(batches=twice(t.batches()), leaks=False)
    return t


@ATTACKS.refused_with("a record occurs more than once")
def batches_of_two_epochs_in_one_step() -> Training:
    t = Training({"poisson_sampling": False})
    t.attach(amplification=False)
    for x, y in chain(t.loader, t.loader):
        t.criterion(t.model(x), y).backward()
    t.optimizer.step()
    return t


@ATTACKS.refused_with("a record occurs more than once|records sampled with rate")
def two_draws_under_one_noise() -> Training:
    t = Training()
    t.attach()
    for number, (x, y) in enumerate(islice(t.batches(), 40)):
        t.optimizer.signal_skip_step(do_skip=number % 2 == 0)
        t.optimizer.zero_grad()
        t.criterion(t.model(x), y).backward()
        t.optimizer.step()
    return t


@ATTACKS.refused_with("a record that the data set does not")
def records_changed_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.fit(batches=((10.0 * x, y) for x, y in t.batches()), leaks=False)
    return t


@ATTACKS.refused_with("a record that the data set does not")
def targets_changed_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.fit(loss=lambda output, y: t.criterion(output, 1 - y), leaks=False)
    return t


@ATTACKS.refused_with("a record that the data set does not")
def data_set_changed_during_training() -> Training:
    t = Training()
    t.attach()
    t.fit(1)
    t.data.tensors[0][:, 3] *= 4.0
    t.fit(2)
    return t


@pytest.mark.parametrize("name", ATTACKS.refused)
def test_refused_for_good(name: str) -> None:
    ATTACKS.require_refusal(name)
