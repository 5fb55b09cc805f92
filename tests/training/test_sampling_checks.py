"""Checks of each sampler's promises: a right sampler passes a long run, and one that breaks its promise is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from betastar.drawn_steps import DrawnBatch, SamplingScheme, poisson
from betastar.training import (
    AttributeMonitor,
    BallsInBinsSampler,
    FixedSizeSampler,
    NotProved,
    SamplingError,
    TruncatedPoissonSampler,
)
from betastar.training.batch_samplers import EpochSampler
from betastar.training.budget import Budget
from betastar.training.checks.sampling import SamplingCheck

from .private import build, fit
from .sampled import CLIP, NOISE, made

SIZE, STEPS = 120, 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bins(seed: int = 0) -> EpochSampler:
    return BallsInBinsSampler(SIZE, STEPS, seeded(seed))


def fixed(seed: int = 0) -> EpochSampler:
    return FixedSizeSampler(SIZE, SIZE // STEPS, generator=seeded(seed))


def cut(seed: int = 0) -> EpochSampler:
    return TruncatedPoissonSampler(SIZE, STEPS, 23, seeded(seed))


def shuffled(seed: int = 0) -> Iterator[tuple[DrawnBatch, list[int]]]:
    scheme = SamplingScheme("shuffled", 1 / STEPS, STEPS, SIZE, 20)
    generator = seeded(seed)
    for epoch in range(10**6):
        for batch in torch.randperm(SIZE, generator=generator).split(20):
            yield DrawnBatch(scheme, str(epoch)), batch.tolist()


def drawn(sampler: EpochSampler) -> Iterator[tuple[DrawnBatch, list[int]]]:
    while True:
        for batch in sampler:
            yield DrawnBatch(sampler.scheme, sampler.epoch), batch


def plain(seed: int = 0) -> Iterator[tuple[DrawnBatch, list[int]]]:
    generator = seeded(seed)
    while True:
        yield poisson(1 / STEPS), (torch.rand(SIZE, generator=generator) < 1 / STEPS).nonzero().flatten().tolist()


def check(steps: Iterable[tuple[DrawnBatch, list[int]]], number: int, keys: Any = None, follow: bool = True) -> None:
    """So many steps, with fingerprints of their records."""
    judge = SamplingCheck(SIZE)
    every = np.arange(SIZE) if keys is None else keys
    for (how, batch), _ in zip(steps, range(number), strict=False):
        judge.step(len(batch), how)
        if follow:
            judge.sampled(every[batch], how, lambda: every)


RIGHT: dict[str, Callable[[int], Iterator[tuple[DrawnBatch, list[int]]]]] = {
    "poisson": plain,
    "balls-in-bins": lambda seed: drawn(bins(seed)),
    "fixed-size": lambda seed: drawn(fixed(seed)),
    "truncated": lambda seed: drawn(cut(seed)),
    "shuffled": shuffled,
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_sampler_passes(name: str, seed: int) -> None:
    check(RIGHT[name](seed), 1200)


@pytest.mark.parametrize("name", RIGHT)
def test_records_that_are_alike_are_no_reason_for_doubt(name: str) -> None:
    check(RIGHT[name](0), 600, keys=np.arange(SIZE) % 5)
    check(RIGHT[name](0), 600, keys=np.zeros(SIZE, dtype=int))


def pretending(claim: EpochSampler, batches: Iterable[list[int]]) -> Iterator[tuple[DrawnBatch, list[int]]]:
    """Other batches in the place of those that a sampler draws."""
    for (how, _), batch in zip(drawn(claim), batches, strict=False):
        yield how, batch


def of(steps: Iterator[tuple[DrawnBatch, list[int]]]) -> Iterator[list[int]]:
    return (batch for _, batch in steps)


def favourites(rate: float) -> Iterator[list[int]]:
    """One record in twenty is drawn four times as often; the others are drawn less, so that sizes are right."""
    generator, weights = seeded(), torch.ones(SIZE)
    weights[:6] = 4.0
    weights *= SIZE / weights.sum()
    while True:
        yield (torch.rand(SIZE, generator=generator) < rate * weights).nonzero().flatten().tolist()


def seeded_again(make: Callable[[int], EpochSampler]) -> Iterator[list[int]]:
    while True:
        yield from make(7)


def with_favourites_in_batches_of(size: int) -> Iterator[list[int]]:
    generator, weights = seeded(), torch.ones(SIZE)
    weights[:6] = 4.0
    while True:
        yield torch.multinomial(weights, size, generator=generator).tolist()


#: What a sampler claims to be, the batches that the loop really uses, and what is said of it.
LIES: dict[str, tuple[Callable[[], EpochSampler], Callable[[], Iterator[list[int]]], str]] = {
    "bins, but shuffled": (bins, lambda: of(shuffled()), "exactly as many records as the one before"),
    "bins, but fixed size": (bins, lambda: of(drawn(fixed(1))), "as the one before|used .* records so far|took part twice|has"),
    "bins, but Poisson": (bins, lambda: of(plain(1)), "used .* records|took part twice|records in .* bins"),
    "bins, but all in one batch": (bins, lambda: repeat(list(range(SIZE))), "the batch has 120 records"),
    "bins, but the same ones each epoch": (bins, lambda: seeded_again(bins), "the same .* records as in the epoch before"),
    "fixed size, but shuffled": (fixed, lambda: of(shuffled()), "records in common"),
    "fixed size, but larger": (fixed, lambda: repeat(list(range(30))), "the batch has 30 records, but the sampler gives 20"),
    "fixed size, but always the same": (fixed, lambda: repeat(list(range(20))), "one record was sampled"),
    "fixed size, but with favourites": (fixed, lambda: with_favourites_in_batches_of(20), "one record was sampled"),
    "truncated, but not": (cut, lambda: of(plain(1)), "cut off at 23"),
    "truncated, but shuffled": (cut, lambda: of(shuffled()), "as the one before|records in common"),
    "truncated, but always full": (
        cut,
        lambda: of(drawn(FixedSizeSampler(SIZE, 23, generator=seeded()))),
        "have the largest size 23",
    ),
    "truncated, but balls in bins": (cut, lambda: (batch[:23] for batch in of(drawn(bins(1)))), "records in common"),
    "truncated, but with favourites": (cut, lambda: (batch[:23] for batch in favourites(1 / STEPS)), "one record was sampled"),
    "with one record twice": (
        fixed,
        lambda: ([*batch[:-1], batch[0]] for batch in of(drawn(fixed(1)))),
        "more than once in a batch",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_sampler_that_breaks_its_promise_is_found_out(name: str) -> None:
    claim, batches, message = LIES[name]
    with pytest.raises(SamplingError, match=message):
        check(pretending(claim(), batches()), 1500)


@pytest.mark.parametrize(
    "name", ["bins, but shuffled", "fixed size, but larger", "truncated, but not", "truncated, but always full"]
)
def test_sizes_alone_tell_some_of_them(name: str) -> None:
    """In batch scope it is not known which records they are."""
    claim, batches, message = LIES[name]
    with pytest.raises(SamplingError, match=message):
        check(pretending(claim(), batches()), 1500, follow=False)


def test_poisson_that_takes_each_record_once_an_epoch_is_found_out() -> None:
    """Its sizes vary as those of Poisson sampling do."""
    lying = ((poisson(1 / STEPS), batch) for batch in of(drawn(bins(1))))
    with pytest.raises(SamplingError, match="records in common"):
        check(lying, 200)


def test_an_epoch_with_a_batch_too_many() -> None:
    how = DrawnBatch(SamplingScheme("shuffled", 0.5, 2, 4, 2), "one")
    judge = SamplingCheck(4)
    for _ in range(2):
        judge.step(1, how)
    with pytest.raises(SamplingError, match="an epoch has 3 steps, but only 2 batches"):
        judge.step(1, how)


def test_a_record_twice_in_an_epoch_of_shuffling() -> None:
    how = DrawnBatch(SamplingScheme("shuffled", 0.5, 2, 4, 2), "one")
    judge, every = SamplingCheck(4), np.arange(4)
    judge.step(2, how)
    judge.sampled(every[[0, 1]], how, lambda: every)
    judge.step(2, how)
    with pytest.raises(SamplingError, match="a record took part twice in an epoch"):
        judge.sampled(every[[1, 2]], how, lambda: every)


@pytest.mark.parametrize("name", RIGHT)
def test_checks_go_on_from_a_state(name: str) -> None:
    one, two, every = SamplingCheck(SIZE), SamplingCheck(SIZE), np.arange(SIZE)
    steps = RIGHT[name](3)
    for _ in range(40):
        how, batch = next(steps)
        one.step(len(batch), how)
        one.sampled(every[batch], how, lambda: every)
    two.load_state_dict(one.state_dict())
    for _ in range(40):
        how, batch = next(steps)
        for judge in (one, two):
            judge.step(len(batch), how)
            judge.sampled(every[batch], how, lambda: every)
    assert _plain(one.state_dict()) == _plain(two.state_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


# ---------------------------------------------------------------------- in a training


class Lying(BallsInBinsSampler):
    """Says that it draws balls in bins, and takes the first records again and again."""

    def _draw(self) -> list[torch.Tensor]:
        return [torch.arange(20) for _ in range(self.steps)]


def test_a_training_with_a_lying_sampler_proves_nothing() -> None:
    _, data, secret = build("tanh")
    _, (model, optimizer, loader), _ = made("balls-in-bins", loader=DataLoader(data, batch_sampler=Lying(SIZE, STEPS, seeded())))
    criterion = nn.CrossEntropyLoss()
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, scope="dataset", budget=Budget(0.01))
    with pytest.raises(SamplingError, match="took part twice in an epoch"):
        fit((model, optimizer, loader), criterion, 3)
    with pytest.raises(NotProved):
        _ = monitor.proof
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (NOISE, CLIP)
