"""Batch samplers: each record is used as often as they promise, and the same seed gives the same batches, resumed or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from betastar.training import private_loader
from betastar.training.opacus.samplers import SAMPLINGS, EpochSampler

SIZE, STEPS, EPOCHS = 60, 6, 200


def loader(records: int = 50, batch: int = 10, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(records).float()[:, None], torch.arange(records)), batch_size=batch, **options)


def made(name: str, generator: torch.Generator | None = None, records: int = SIZE, steps: int = STEPS) -> EpochSampler:
    given = loader(records, records // steps)
    sampler = private_loader(given, name, generator=generator, max_batch_size=11 if name == "poisson" else None).batch_sampler
    assert isinstance(sampler, EpochSampler)
    return sampler


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uses(sampler: EpochSampler) -> np.ndarray:
    """How often each record is used at each step of an epoch, over 200 epochs: (records, steps)."""
    table = np.zeros((SIZE, STEPS), dtype=int)
    for _ in range(EPOCHS):
        for step, batch in enumerate(sampler):
            np.add.at(table, (batch, step), 1)
    return table


def fits(observed: np.ndarray, expected: Any) -> bool:
    """A chi-square test that a right sampler fails once in 10,000 times."""
    expected = np.broadcast_to(expected, observed.shape)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return stats.chi2.sf(statistic, observed.size - 1) > 1e-4


def test_balls_in_bins_use_each_record_once_an_epoch_at_any_step_independently_of_others() -> None:
    sampler, table, together = made("balls-in-bins", seeded()), np.zeros((SIZE, STEPS)), np.zeros((SIZE, SIZE))
    for _ in range(EPOCHS):
        batches = list(sampler)
        assert len(batches) == STEPS
        assert sorted(record for batch in batches for record in batch) == list(range(SIZE))
        for step, batch in enumerate(batches):
            table[batch, step] += 1
            together[np.ix_(batch, batch)] += 1
    expected = EPOCHS / STEPS
    # The sum over the steps is fixed for each record, which loses it a degree of freedom.
    statistic = ((table - expected) ** 2 / expected).sum()
    assert 1e-4 < stats.chi2.sf(statistic, SIZE * (STEPS - 1)) < 1.0 - 1e-4
    favourite = table + 16 * (np.arange(SIZE)[:, None] % STEPS == np.arange(STEPS))
    assert not fits(favourite, favourite.mean())  # the test sees records that prefer a step by half
    pairs = together[np.triu_indices(SIZE, 1)]
    statistic = ((pairs - expected) ** 2 / (expected * (1 - 1 / STEPS))).sum()
    assert 1e-4 < stats.chi2.sf(statistic, len(pairs)) < 1.0 - 1e-4


def test_several_bins_an_epoch_are_different_and_all_subsets_alike() -> None:
    records, times = 3_000, 2
    given = private_loader(loader(records, 1_500), times_per_epoch=times, generator=seeded())
    assert len(given) == 4  # twice as many batches, of the same size
    epoch = list(given.batch_sampler)  # type: ignore[arg-type]
    assert all(batch == sorted(set(batch)) for batch in epoch)
    table = np.zeros((records, 4), dtype=int)
    for step, batch in enumerate(epoch):
        table[batch, step] = 1
    assert (table.sum(axis=1) == times).all()
    pairs = np.unique(table @ (1 << np.arange(4)), return_counts=True)[1]
    assert len(pairs) == 6
    assert fits(pairs, records / 6)
    assert not fits(np.append(pairs[:5] - 60, pairs[5] + 300), records / 6)


def test_epochs_of_balls_in_bins_are_independent() -> None:
    sampler, again = made("balls-in-bins", seeded(), 400, 4), np.zeros((4, 4))
    bins = [np.argsort(np.concatenate(batches)) for batches in ([*sampler] for _ in range(3))]
    assert len({tuple(order) for order in bins}) == 3
    last = None
    for _ in range(50):
        places = np.zeros(400, dtype=int)
        for step, batch in enumerate(sampler):
            places[batch] = step
        if last is not None:
            np.add.at(again, (last, places), 1)
        last = places
    assert fits(again, again.sum() / 16)


def test_fixed_size_uses_each_record_with_the_rate_at_each_step() -> None:
    sampler = made("fixed-size", seeded())
    assert {len(batch) for batch in sampler} == {10}
    assert all(len(set(batch)) == 10 for batch in sampler)
    table = uses(sampler)
    rate = 10 / SIZE
    # Coins of a binomial law with 200 tosses; each batch has exactly ten records, so that steps lose one degree each.
    statistic = ((table - EPOCHS * rate) ** 2 / (EPOCHS * rate * (1 - rate))).sum() * (SIZE - 1) / SIZE
    assert 1e-4 < stats.chi2.sf(statistic, (SIZE - 1) * STEPS) < 1.0 - 1e-4


def test_truncated_poisson_uses_each_record_with_the_rate_that_is_left() -> None:
    sampler = made("poisson", seeded())
    sizes = np.array([len(batch) for _ in range(EPOCHS) for batch in sampler])
    law = stats.binom(SIZE, 1 / STEPS).pmf(np.arange(SIZE + 1))
    kept = np.append(law[:11], law[11:].sum())
    counts = np.bincount(sizes, minlength=12)
    assert len(counts) == 12  # no batch is larger than 11
    pooled = [slice(0, 6), *(slice(i, i + 1) for i in range(6, 12))]
    assert fits(np.array([counts[one].sum() for one in pooled]), np.array([kept[one].sum() * len(sizes) for one in pooled]))
    rate = float((kept * np.arange(12)).sum()) / SIZE
    table = uses(sampler)
    statistic = ((table - EPOCHS * rate) ** 2 / (EPOCHS * rate * (1 - rate))).sum()
    assert 1e-4 < stats.chi2.sf(statistic, table.size) < 1.0 - 1e-4


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_same_seed_gives_the_same_batches(name: str) -> None:
    one, other = made(name, seeded()), made(name, seeded())
    first = [list(one) for _ in range(3)]
    assert first == [list(other) for _ in range(3)]
    assert all(a != b for a, b in pairwise(first))
    assert first[0] != list(made(name, seeded(6)))
    torch.manual_seed(3)
    default = list(made(name))
    torch.manual_seed(3)
    assert default == list(made(name))


@pytest.mark.parametrize("generator", [True, False], ids=["own generator", "torch's generator"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_resumed_sampler_goes_on_within_an_epoch(name: str, generator: bool) -> None:
    torch.manual_seed(2)
    whole = made(name, seeded() if generator else None)
    first, second = list(whole), iter(whole)
    used = list(islice(second, 2))
    state, random, epoch = whole.state_dict(), torch.get_rng_state(), whole.epoch
    rest, third = list(second), list(whole)
    torch.manual_seed(77)
    again = made(name, seeded(9) if generator else None)
    again.load_state_dict(state)
    torch.set_rng_state(random)
    assert again.epoch == epoch
    assert list(again) == rest
    assert list(again) == third
    assert again.epoch != epoch
    assert len(first) == len(used) + len(rest) == STEPS


@pytest.mark.parametrize("name", SAMPLINGS)
def test_between_epochs_a_state_holds_no_batches(name: str) -> None:
    sampler = made(name, seeded())
    list(sampler)
    state = sampler.state_dict()
    assert state["left"] == []
    following = list(sampler)
    again = made(name, seeded(1))
    again.load_state_dict(state)
    assert list(again) == following


def test_states_of_other_samplers_are_refused() -> None:
    state = made("balls-in-bins", seeded()).state_dict()
    with pytest.raises(ValueError, match=r"the state belongs to another sampler: .*'balls-in-bins'.*, not .*'fixed-size'"):
        made("fixed-size", seeded()).load_state_dict(state)
    with pytest.raises(ValueError, match=r"'batches': 6.*, not .*'batches': 5"):
        made("balls-in-bins", seeded(), steps=5).load_state_dict(state)
    with pytest.raises(ValueError, match="generator must be given to the sampler that was saved and to this one"):
        made("balls-in-bins").load_state_dict(state)


def test_two_iterations_at_a_time_are_two_epochs() -> None:
    sampler = made("balls-in-bins", seeded())
    outer, seen = iter(sampler), []
    first = next(outer)
    epoch = sampler.epoch
    list(sampler)  # somebody evaluates on the training data in between
    assert sampler.epoch != epoch
    seen = [first, *outer]
    assert sampler.epoch == epoch
    assert sorted(record for batch in seen for record in batch) == list(range(SIZE))


# ---------------------------------------------------------------------- private_loader


@pytest.mark.parametrize(("sampling", "most"), [("balls-in-bins", None), ("fixed-size", None), ("poisson", 14)])
def test_a_loader_has_as_many_batches_as_before(sampling: str, most: int | None) -> None:
    made = private_loader(loader(shuffle=True), sampling, max_batch_size=most)
    assert made.batch_sampler.scheme.sample_rate == 0.2  # type: ignore[union-attr]
    assert len(made) == len(list(made)) == 5
    for inputs, numbers in made:
        assert inputs[:, 0].tolist() == numbers.tolist()


def test_the_generator_is_the_given_one_or_that_of_the_loader() -> None:
    def batches(made: DataLoader[Any]) -> list[Any]:
        return [numbers.tolist() for _, numbers in made]

    mine = batches(private_loader(loader(), generator=seeded()))
    assert mine == batches(private_loader(loader(generator=seeded(8)), generator=seeded()))
    given = private_loader(loader(generator=seeded()))
    assert given.batch_sampler.generator is given.generator  # type: ignore[union-attr]


class Named(Dataset[Any]):
    """Records as mappings with a list inside."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.ones(3), "more": [torch.zeros(2, 2), index]}


def test_empty_batches_look_like_the_others() -> None:
    made = private_loader(DataLoader(Named(), batch_size=1), generator=seeded())
    sizes = []
    for batch in (one for _ in range(20) for one in made):
        sizes.append(len(batch["x"]))
        assert batch["x"].shape[1:] == (3,)
        assert batch["more"][0].shape == (sizes[-1], 2, 2)
        assert batch["more"][1].shape == (sizes[-1],)
        assert batch["more"][1].dtype == torch.int64
    assert {0, 1, 2} == set(sizes)


def test_workers_draw_the_same_batches() -> None:
    alone = [numbers.tolist() for _, numbers in private_loader(loader(), generator=seeded())]
    workers = private_loader(loader(num_workers=1), generator=seeded())
    assert alone == [numbers.tolist() for _, numbers in workers]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_loaders_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="max_batch_size must be given with sampling 'poisson'"):
        private_loader(loader(), "poisson")
    with pytest.raises(ValueError, match="max_batch_size must be left out with sampling 'fixed-size', got 12"):
        private_loader(loader(), "fixed-size", max_batch_size=12)
    with pytest.raises(ValueError, match="max_batch_size must be at least the mean batch size, 50 / 5 = 10, got 9"):
        private_loader(loader(), "poisson", max_batch_size=9)
    with pytest.raises(ValueError, match="times_per_epoch belongs to sampling 'balls-in-bins', got sampling 'fixed-size'"):
        private_loader(loader(), "fixed-size", times_per_epoch=2)
    with pytest.raises(ValueError, match="times_per_epoch must be a whole number of at least 1, got 0"):
        private_loader(loader(), times_per_epoch=0)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got 7"):
        private_loader(loader(), generator=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sampling must be one of 'balls-in-bins', 'fixed-size', 'poisson', got 'shuffled'"):
        private_loader(loader(), "shuffled")
    with pytest.raises(TypeError, match="loader must be a DataLoader of PyTorch"):
        private_loader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="loader must draw batches of records by their numbers"):
        private_loader(DataLoader(Stream(), batch_size=2))
    with pytest.raises(TypeError, match="loader must collate records into tensors"):
        private_loader(DataLoader([("a", 1)], batch_size=1, collate_fn=lambda records: "text"))
