"""PrivateTraining: its sums are those of Opacus and of autograd, its plan and its states hold, and bad input is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import betastar as bs
from betastar.training import Budget, BudgetExhausted, GradientError, NotProved, PrivateTraining, Secret
from betastar.training.draws import Draws, poisson
from betastar.training.noise import GaussianNoise

FLAG = Secret.column(1, values=[0.0, 1.0], name="flag")


def table(records: int = 60, columns: int = 4) -> TensorDataset:
    x = torch.randn(records, columns, generator=torch.Generator().manual_seed(0))
    x[:, 1] = (x[:, 1] > 0).float()
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0.3).long())


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def made(model: nn.Module | None = None, data: Any = None, **given: Any) -> PrivateTraining:
    model = mlp() if model is None else model
    options = {"batch_size": 10, "noise_multiplier": 1.0, "criterion": nn.CrossEntropyLoss()} | given
    if "target" in given:
        del options["noise_multiplier"]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=options.pop("lr", 0.1))
    return PrivateTraining(model, optimizer, table() if data is None else data, **options)


# ---- Clipped sums


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 5), nn.Linear(5, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.table(tokens).mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells, self.out = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 8), nn.Embedding(6, 8)
        self.norm, self.qkv, self.mix, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]).repeat(len(tokens), 1))
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.mix(nn.functional.scaled_dot_product_attention(q, k, v))
        return self.out(x.mean(dim=1))


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 6), nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.out = nn.Linear(6, 2)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.base(x) + self.up(self.down(x))))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, dilation=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding="same"),
        nn.Flatten(),
        nn.Linear(3 * 16, 2),
    )


SHAPES = {
    "mlp": (mlp, lambda g: torch.randn(12, 4, generator=g)),
    "cnn": (cnn, lambda g: torch.randn(12, 1, 8, 8, generator=g)),
    "lstm": (lambda: Recurrent(DPLSTM), lambda g: torch.randn(12, 5, 3, generator=g)),
    "embedding": (Embedded, lambda g: torch.randint(9, (12, 6), generator=g)),
    "transformer": (Attention, lambda g: torch.randint(9, (12, 6), generator=g)),
    "lora": (LowRank, lambda g: torch.randn(12, 4, generator=g)),
}


def sums_of(training: PrivateTraining, indices: Tensor) -> dict[str, Tensor]:
    totals, _ = training._summed(indices)
    return {name: totals[p].detach() for name, p in training.model.named_parameters() if p in totals}


@pytest.mark.parametrize("name", SHAPES)
def test_clipped_sums_are_those_of_opacus(name: str) -> None:
    make, inputs = SHAPES[name]
    torch.manual_seed(1)
    model, x = make(), inputs(torch.Generator().manual_seed(2))
    y = torch.arange(12) % 2
    theirs = copy.deepcopy(model)
    training = made(model, TensorDataset(x, y), batch_size=6, max_grad_norm=0.3)
    assert training.gradients.way == "layers"
    chosen = torch.tensor([0, 2, 3, 7, 8, 11])
    ours = sums_of(training, chosen)
    private = GradSampleModule(theirs)
    optimizer = DPOptimizer(
        torch.optim.SGD([p for p in theirs.parameters() if p.requires_grad], lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=0.3,
        expected_batch_size=6,
    )
    nn.functional.cross_entropy(private(x[chosen]), y[chosen]).backward()
    optimizer.clip_and_accumulate()
    for key, p in theirs.named_parameters():
        if p.requires_grad:
            assert torch.allclose(ours[key], p.summed_grad.view_as(p), atol=1e-5), key


def test_operations_in_place_change_nothing() -> None:
    torch.manual_seed(0)
    apart, place = cnn(), cnn()
    place.load_state_dict(apart.state_dict())
    place[2] = nn.ReLU(inplace=True)
    data = TensorDataset(torch.randn(12, 1, 8, 8), torch.arange(12) % 2)
    one, other = (sums_of(made(model, data), torch.arange(12)) for model in (apart, place))
    assert all(torch.equal(one[key], other[key]) for key in one)


class Twice(nn.Module):
    """One linear layer is used twice, and the embedding shares its weight with the output."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.shared, self.out = nn.Embedding(9, 5, padding_idx=0), nn.Linear(5, 5), nn.Linear(5, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        return self.out(self.shared(torch.tanh(self.shared(x))).mean(dim=1))


class Functional(nn.Module):
    """A weight is used outside of a layer, so that the rules of layers do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.scale * torch.tanh(self.first(x)), self.out.weight)


class PyState(nn.Module):
    """Neither the rules of layers nor torch.func fit: what is computed depends on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.scale * row if float(row.sum()) > 0 else row for row in x]
        return self.out(torch.stack(rows))


def test_shared_weights_have_cross_terms() -> None:
    data = TensorDataset(torch.randint(9, (12, 6), generator=torch.Generator().manual_seed(1)), torch.arange(12) % 9)
    torch.manual_seed(0)
    training = made(Twice(), data, batch_size=6, max_grad_norm=0.5)
    assert training.gradients.way == "layers"
    ours = sums_of(training, torch.arange(12))
    training.gradients.way = "single"
    for key, total in sums_of(training, torch.arange(12)).items():
        assert torch.allclose(total, ours[key], atol=1e-6), key


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch.func with nn.LSTM
@pytest.mark.parametrize(
    ("model", "way"), [(Functional, "vectorized"), (lambda: Recurrent(nn.LSTM), "vectorized"), (PyState, "single")]
)
def test_other_models_are_differentiated_record_by_record(model: Any, way: str) -> None:
    torch.manual_seed(0)
    data = table() if not isinstance(model, type(lambda: 0)) else TensorDataset(torch.randn(20, 5, 3), torch.arange(20) % 2)
    with pytest.warns(UserWarning, match="which takes longer"):
        training = made(model(), data)
    assert training.gradients.way == way
    ours = sums_of(training, torch.arange(10))
    training.gradients.way = "single"
    for key, total in sums_of(training, torch.arange(10)).items():
        assert torch.allclose(total, ours[key], atol=1e-5), key
    training.gradients.way = way
    training.step()


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0])),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]), reduction="sum"),
        lambda output, target: nn.functional.cross_entropy(output, target) + 0.0 * float(target.sum()),
    ],
)
def test_any_reduction_is_that_of_the_single_record(criterion: Any) -> None:
    training = made(criterion=criterion)
    ours = sums_of(training, torch.arange(20))
    training.gradients.way = "single"
    for key, total in sums_of(training, torch.arange(20)).items():
        assert torch.allclose(total, ours[key], atol=1e-6), key


def test_physical_batches_change_nothing() -> None:
    whole, parts = made(), made(memory=1 << 20)
    parts._per_record = (parts._memory or 0) // 3
    for key, total in sums_of(whole, torch.arange(20)).items():
        assert torch.allclose(total, sums_of(parts, torch.arange(20))[key], atol=1e-6)


# ---- Noise and sampling


def test_an_update_is_sum_and_noise_over_the_public_batch_size() -> None:
    training = made(lr=1.0, noise_multiplier=2.0, max_grad_norm=0.5, seed=3)
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    indices = training._draws.indices(0)
    total = sums_of(training, indices)
    noise = training._noise.like(list(training.model.parameters()), 0)
    training.step()
    for (name, p), one in zip(training.model.named_parameters(), noise, strict=True):
        wanted = before[name] - (total[name] + 2.0 * 0.5 * one.float()) / 10.0
        assert torch.allclose(p, wanted, atol=1e-5)


def test_noise_repeats_with_a_seed_only() -> None:
    shape = [torch.zeros(300)]
    one, same, other = GaussianNoise(1), GaussianNoise(1), GaussianNoise(2)
    assert torch.equal(one.like(shape, 5)[0], same.like(shape, 5)[0])
    for z in (one.like(shape, 6)[0], other.like(shape, 5)[0]):
        assert abs(float(torch.corrcoef(torch.stack([one.like(shape, 5)[0], z]))[0, 1])) < 0.3
    torch.manual_seed(0)
    first = made()
    torch.manual_seed(0)
    second = made()
    assert first._noise.digest != second._noise.digest
    assert made(seed=4)._noise.digest == made(seed=4)._noise.digest


@pytest.mark.parametrize("secure", [False, True])
def test_noise_is_normal(secure: bool) -> None:
    from scipy import stats

    z = GaussianNoise(7, secure).normal(200_000, 0)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert abs(z.std() - 1.0) < 0.01
    if secure:  # the least bits vary, so that a value does not tell the bits that made it
        bits = np.bitwise_and(z.astype(np.float64).view(np.uint64), np.uint64(1))
        assert 0.45 < bits.mean() < 0.55


def test_poisson_sampling_draws_each_record_with_its_probability() -> None:
    random = np.random.default_rng(0)
    counts = np.zeros(50)
    sizes = []
    for _ in range(4000):
        drawn = poisson(random, 50, 0.07)
        assert np.array_equal(drawn, np.unique(drawn))
        counts[drawn] += 1
        sizes.append(len(drawn))
    assert abs(counts / 4000 - 0.07).max() < 5 * (0.07 * 0.93 / 4000) ** 0.5
    assert abs(np.var(sizes) - 50 * 0.07 * 0.93) < 0.4
    assert len(poisson(random, 10, 1.0)) == 10
    assert max(len(poisson(random, 100, 1e-8)) for _ in range(50)) <= 1


def test_samplings_draw_what_they_say() -> None:
    fixed = Draws(60, 10, "fixed-size", None, entropy=1)
    assert all(len(set(fixed.indices(i).tolist())) == 10 for i in range(20))
    bins = Draws(60, 10, "balls-in-bins", None, entropy=1)
    for epoch in range(2):
        every = torch.cat([bins.indices(6 * epoch + i) for i in range(6)])
        assert sorted(every.tolist()) == list(range(60))
    assert not torch.equal(bins.indices(0), bins.indices(6))
    often = Draws(60, 10, "balls-in-bins", None, entropy=1, times_per_epoch=2)
    assert often.steps_per_epoch == 12
    assert all(len(set(often.indices(i).tolist())) == len(often.indices(i)) for i in range(24))
    for epoch in range(2):
        every = torch.cat([often.indices(12 * epoch + i) for i in range(12)])
        assert sorted(every.tolist()) == sorted(2 * list(range(60)))
    pairs = Draws(30_000, 15_000, "balls-in-bins", None, entropy=2, times_per_epoch=2)  # of 4 batches: all 6 pairs alike
    drawn = np.zeros((4, 30_000), dtype=int)
    for i in range(4):
        drawn[i, pairs.indices(i).numpy()] = 1
    _, counts = np.unique(drawn.T, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 5000).max() < 5 * 5000**0.5
    with pytest.raises(ValueError, match="times_per_epoch belongs to sampling 'balls-in-bins'"):
        Draws(60, 10, "poisson", None, entropy=1, times_per_epoch=2)
    capped = Draws(60, 10, "poisson", 11, entropy=1)
    sizes = [len(capped.indices(i)) for i in range(200)]
    assert max(sizes) == 11
    assert min(sizes) < 9


# ---- Plan, budget, guarantee


def test_several_batches_of_an_epoch_are_claimed_as_they_are_drawn() -> None:
    training = made(sampling="balls-in-bins", times_per_epoch=2)
    length = training._draws.steps_per_epoch
    for _ in range(2):
        training.step()
    segment = training.run.segments[0]
    assert (segment.times_per_epoch, segment.steps, round(2 / segment.sample_rate)) == (2, length, length)
    state = training.state_dict()
    assert state["draws"]
    assert training.guarantee.membership is not None


def test_a_target_is_met_by_the_plan_and_no_step_more_is_taken() -> None:
    target, attribute = bs.Target(bayes_security=0.9), bs.Target(bayes_security=0.98)
    training = made(target=target, epochs=2, secret=FLAG, attribute_target=attribute)
    planned = training.planned_guarantee()
    assert planned.membership is not None
    assert planned.attribute is not None
    assert target.met(planned.membership)
    assert attribute.met(planned.attribute)
    training.fit(progress=False)
    assert training.steps == 12
    assert float(training.guarantee.membership.bayes_security.lower) == float(planned.membership.bayes_security.lower)
    assert "except the value of 'flag' faces β* ≥ 0.9800" in str(training.guarantee)
    assert list(training.epoch()) == []
    with pytest.raises(ValueError, match="all 12 planned steps were taken"):
        training.step()


def test_persons_cost_more_noise() -> None:
    one = made(target=bs.Target(bayes_security=0.9), steps=5).noise_multiplier
    person = made(target=bs.Target(bayes_security=0.9), steps=5, records=3)
    assert person.noise_multiplier > 2.5 * one
    person.step()
    assert "a person's 3 records" in str(person.guarantee)


def test_a_collate_function_is_called_for_a_tensor_dataset_too() -> None:
    def doubled(rows: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(rows)
        return 2.0 * x, y

    plain, twice = made(seed=1), made(seed=1, collate=doubled)
    assert torch.equal(2.0 * plain._source.read([3, 5]).inputs[0], twice._source.read([3, 5]).inputs[0])


def test_persons_in_batches_that_are_cut_off_are_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match="records must be 1 with max_batch_size"):
        made(records=2, max_batch_size=12)


def test_a_budget_ends_in_time_and_starts_with_the_worst_case() -> None:
    training = made(batch_size=6, noise_multiplier=2.0, secret=FLAG, budget=Budget(0.9))
    while not training.exhausted:
        for _ in training.epoch():
            pass
    proof = training.guarantee.proof
    assert proof is not None
    assert proof.spent <= proof.allowance
    assert training.guarantee.membership is None
    assert training.worst_case_steps > 0
    with pytest.raises(BudgetExhausted):
        training.step()
    short = made(batch_size=6, noise_multiplier=2.0, secret=FLAG, budget=Budget(0.9), steps=training.worst_case_steps)
    short.fit(progress=False)  # nothing is measured, as no measurement can matter
    assert short.guarantee.proof is None
    assert float(short.guarantee.attribute.bayes_security.lower) >= 0.9


def test_two_values_are_never_farther_apart_than_the_gap() -> None:
    """The gradient that a step adds for one record, with each value of its secret."""
    data = table(30)
    changed = [copy.deepcopy(data) for _ in range(2)]
    for value, one in enumerate(changed):
        one.tensors[0][4, 1] = float(value)
    totals = []
    for one in changed:
        training = made(data=one, secret=FLAG, gap=0.05, max_grad_norm=0.7)
        totals.append(sums_of(training, torch.tensor([4])))
    distance = sum(float((totals[0][k] - totals[1][k]).square().sum()) for k in totals[0]) ** 0.5
    assert 0.0 < distance <= 0.05 * 0.7 * (1 + 1e-9)


def test_samplings_have_guarantees() -> None:
    found = {}
    for sampling in ("poisson", "fixed-size", "balls-in-bins"):
        training = made(sampling=sampling)
        list(training.epoch())
        found[sampling] = float(training.guarantee.membership.bayes_security.lower)
    assert found["fixed-size"] < found["balls-in-bins"] < found["poisson"]


# ---- Resuming


def test_a_resumed_training_keeps_its_steps_and_repeats_no_noise(tmp_path: Path) -> None:
    """The script seeds at its start, as scripts do."""
    torch.manual_seed(0)
    first = made(lr=1.0, batch_size=1, noise_multiplier=50.0)
    for _ in range(3):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    updates = []
    for _ in range(2):
        torch.manual_seed(0)
        again = made(lr=1.0, batch_size=1, noise_multiplier=50.0)
        again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        before = torch.cat([p.detach().flatten() for p in again.model.parameters()]).clone()
        again.step()
        updates.append(torch.cat([p.detach().flatten() for p in again.model.parameters()]) - before)
        assert again.run.steps == 4
    assert float((updates[0] - updates[1]).norm()) > 50.0


def test_with_a_seed_a_resumed_training_goes_on_as_if_it_had_not_stopped() -> None:
    for sampling in ("poisson", "balls-in-bins"):
        whole, half = made(seed=5, sampling=sampling), made(seed=5, sampling=sampling)
        for _ in range(9):
            whole.step()
        for _ in range(4):
            half.step()
        rest = made(seed=5, sampling=sampling)
        rest.load_state_dict(half.state_dict())
        assert len(list(rest.epoch())) == 2  # what is left of the epoch
        for _ in range(3):
            rest.step()
        for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_balls_in_bins_go_on_within_an_epoch() -> None:
    training = made(sampling="balls-in-bins")
    first = [training._draws.indices(i) for i in range(2)]
    for _ in range(2):
        training.step()
    again = made(sampling="balls-in-bins")
    again.load_state_dict(training.state_dict())
    rest = [again._draws.indices(i) for i in range(2, 6)]
    assert sorted(torch.cat(first + rest).tolist()) == list(range(60))


def test_states_are_copies_and_belong_to_one_training() -> None:
    training = made()
    training.step()
    state = training.state_dict()
    kept = {name: tensor.clone() for name, tensor in state["model"].items()}
    training.step()
    assert all(torch.equal(kept[name], tensor) for name, tensor in state["model"].items())
    with pytest.raises(ValueError, match="before the first step only"):
        training.load_state_dict(state)
    for other in ({"noise_multiplier": 2.0}, {"batch_size": 12}, {"data": table(61)}, {"secret": FLAG, "gap": 0.1}, {"seed": 1}):
        with pytest.raises(ValueError, match="belongs to another training"):
            made(**other).load_state_dict(state)


# ---- What a loop may do


def test_evaluation_copies_and_averages_do_nothing() -> None:
    plain, busy = made(seed=1), made(seed=1)
    average = torch.optim.swa_utils.AveragedModel(busy.model)
    for _ in range(6):
        plain.step()
        busy.step()
        busy.model.eval()
        with torch.no_grad():
            busy.model(torch.randn(3, 4))
        torch.manual_seed(0)
        copy.deepcopy(busy.model)(torch.randn(3, 4)).sum().backward()
        average.update_parameters(busy.model)
    for a, b in zip(plain.model.parameters(), busy.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert busy.guarantee


def test_changed_weights_are_refused_unless_accepted() -> None:
    training = made()
    training.step()
    with torch.no_grad():
        training.model[0].weight.mul_(0.5)
    with pytest.raises(NotProved, match="accept_weights"):
        training.step()
    training.accept_weights()
    training.step()


def test_layers_are_frozen_and_unfrozen_between_steps() -> None:
    training = made()
    training.model[0].requires_grad_(False)
    before = training.model[0].weight.clone()
    training.step()
    assert torch.equal(before, training.model[0].weight)
    training.model[0].requires_grad_(True)
    training.step()
    assert not torch.equal(before, training.model[0].weight)


def test_dropout_and_momentum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2))
    training = PrivateTraining(
        model, torch.optim.Adam(model.parameters()), table(), nn.CrossEntropyLoss(), batch_size=20, noise_multiplier=1.0
    )
    for _ in training.epoch():
        pass
    clipped = made(copy.deepcopy(model), secret=FLAG, gap=0.1)
    for _ in clipped.epoch():
        pass
    assert clipped.guarantee.attribute is not None


def test_an_empty_batch_is_a_step_of_noise() -> None:
    training = made(data=table(1000), batch_size=1)
    sizes = [training.step().batch_size for _ in range(40)]
    assert 0 in sizes
    assert training.run.steps == 40


# ---- Bad input


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


def spoiled() -> TensorDataset:
    data = table()
    data.tensors[0][17, 2] = torch.nan
    return data


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 61}, "batch_size must be at most the 60 records"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be"),
        ({"data": Words()}, "at least one record"),
        ({"data": spoiled()}, "record 17 of the dataset holds a number that is not finite"),
        ({"sampling": "shuffled"}, "sampling must be"),
        ({"max_batch_size": 5}, "max_batch_size must be at least batch_size, 10"),
        ({"epochs": 1, "steps": 3}, "epochs or steps, not both"),
        ({"target": bs.Target(bayes_security=0.9)}, "a target needs epochs or steps"),
        ({"secret": FLAG}, "secret needs gap, attribute_target or budget"),
        ({"gap": 0.1}, "gap needs a secret"),
        ({"secret": FLAG, "gap": 2.5}, "gap must be"),
        ({"secret": FLAG, "gap": 0.1, "budget": Budget(0.9)}, "two ways to the same end"),
        ({"secret": Secret.column(1, values=[0.0, 2.0], name="flag"), "gap": 0.1}, "flag"),
        ({"memory": 10}, "memory must be at least"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))}, r"1 \(BatchNorm1d\).*GroupNorm"),
        ({"criterion": nn.Sequential(nn.Linear(2, 2))}, "criterion has trainable parameters"),
    ],
)
def test_bad_input(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        made(**given)


scale = [1.0]


def test_a_record_without_a_loss_adds_nothing() -> None:
    data = table()
    data.tensors[1][7] = -100  # what CrossEntropyLoss ignores: the mean over nothing
    training = made(data=data, batch_size=60)
    assert all(not total.any() for total in sums_of(training, torch.tensor([7])).values())
    assert training.step().loss > 0.0


def test_a_gradient_that_is_not_finite_is_named_and_no_step_is_taken() -> None:
    training = made(batch_size=60, criterion=lambda output, target: nn.functional.cross_entropy(output, target) * scale[0])
    scale[0] = float("inf")
    try:
        with pytest.raises(GradientError, match="the gradient of record 0 is not finite"):
            training.step()
    finally:
        scale[0] = 1.0
    assert training.steps == 0
    training.step()
