"""Loops, models and data sets that try to get more out of PrivateTraining than its guarantee says; most of them by accident."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from betastar.training import Budget, GradientError, NotProved, PrivateTraining
from tests.training.test_private_training import FLAG, made, mlp, sums_of, table


def steps(training: PrivateTraining, number: int) -> None:
    for _ in range(number):
        training.step()


# ---- The loss changes between the question and the step: there is one moment for both


def test_a_loss_that_changes_between_steps_keeps_the_gap() -> None:
    """The criterion's temperature is set before each step: the gap holds for the loss that the step uses."""

    class Scaled(nn.Module):
        temperature = 1.0

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return nn.functional.cross_entropy(output * self.temperature, target)

    totals = []
    for value in (0.0, 1.0):
        data = table(30)
        data.tensors[0][4, 1] = value
        criterion = Scaled()
        training = made(data=data, secret=FLAG, gap=0.02, criterion=criterion)
        training.step()
        criterion.temperature = 1000.0
        training.model.load_state_dict(mlp().state_dict())
        training.accept_weights()
        totals.append(sums_of(training, torch.tensor([4])))
    assert sum(float((totals[0][k] - totals[1][k]).square().sum()) for k in totals[0]) ** 0.5 <= 0.02 * (1 + 1e-9)


def test_a_criterion_that_gives_the_step_another_loss_than_the_budget_ends_the_training() -> None:
    """It counts its calls: the measurement before the step sees another loss than the step."""

    class Counting(nn.Module):
        calls = 0

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            self.calls += 1
            return nn.functional.cross_entropy(output * float(self.calls % 7), target)

    with pytest.raises(GradientError, match="changes from one pass to the next"):
        made(criterion=Counting(), secret=FLAG, budget=Budget(0.5), noise_multiplier=3.0)


# ---- Noise


@pytest.mark.parametrize("resumed", [False, True])
def test_seeding_the_process_repeats_no_noise(resumed: bool) -> None:
    """The loop seeds before each step, as an evaluation or a resumed script does; the noise of two steps has no relation."""
    updates: list[Tensor] = []
    training = made(lr=1.0, batch_size=1, noise_multiplier=100.0)
    for _ in range(4):
        torch.manual_seed(0)
        if resumed and training.steps:
            state = training.state_dict()
            training = made(lr=1.0, batch_size=1, noise_multiplier=100.0)
            torch.manual_seed(0)
            training.load_state_dict(state)
        before = torch.cat([p.detach().flatten() for p in training.model.parameters()]).clone()
        training.step()
        updates.append(torch.cat([p.detach().flatten() for p in training.model.parameters()]) - before)
    related = torch.corrcoef(torch.stack(updates)) - torch.eye(4)
    assert float(related.abs().max()) < 0.6


# ---- Records that mix


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self, only_large: bool) -> None:
        super().__init__()
        self.inside, self.only_large = mlp(), only_large

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x - x.mean(dim=0) if len(x) > 4 or not self.only_large else x)


@pytest.mark.parametrize("only_large", [False, True])
def test_a_model_with_statistics_of_the_batch_is_refused_or_differentiated_alone(only_large: bool) -> None:
    """Alone, each record is its own mean. A model that mixes in large batches only is found at the first step."""
    if not only_large:
        with pytest.warns(UserWarning, match="takes longer"):
            training = made(Centred(only_large))
        assert training.gradients.way != "layers"
        one, both = (sums_of(training, torch.tensor(some)) for some in ([3], [3, 5]))
        alone = sums_of(training, torch.tensor([5]))
        assert all(torch.allclose(both[k] - alone[k], one[k], atol=1e-6) for k in one)
        return
    training = made(Centred(only_large), batch_size=20)
    with pytest.raises(GradientError, match="depends on the other records"):
        training.step()
    with pytest.raises(NotProved, match="depends on the other records"):
        training.step()
    with pytest.raises(NotProved):
        _ = training.guarantee


class Dropping(nn.Module):
    """Leaves records with a large loss out, once the batch has a mean to compare them with."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        return (losses * (losses <= losses.mean())).sum()


def test_a_criterion_that_drops_records_sees_one_record_at_a_time() -> None:
    training = made(criterion=Dropping())
    both, one, alone = (sums_of(training, torch.tensor(some)) for some in ([3, 5], [3], [5]))
    assert all(torch.allclose(both[k], one[k] + alone[k], atol=1e-6) for k in one)


class SmallInLargeBatches(nn.Module):
    """Shrinks its outputs where many rows are run together, as the measurement of a budget does."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * (1e-4 if len(x) > 40 else 1.0)


def test_a_model_that_hides_from_the_measurement_of_a_budget_ends_the_training() -> None:
    training = made(SmallInLargeBatches(), secret=FLAG, budget=Budget(0.5), noise_multiplier=5.0, batch_size=5)
    with pytest.raises(GradientError, match=r"where at most .* was measured"):
        steps(training, 50)
    with pytest.raises(NotProved):
        _ = training.guarantee


# ---- State that a pass keeps


class Running(nn.Module):
    """Keeps a running mean of its inputs in a buffer, and subtracts it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = mlp()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(dim=0))
        return self.inside(x - self.mean)


class RunningInPython(nn.Module):
    """The same, hidden in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.mean = mlp(), [torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        self.mean[0] = 0.5 * self.mean[0] + 0.5 * x.detach().mean(dim=0)
        return self.inside(x - self.mean[0])


class RunningLoss(nn.Module):
    """A criterion that divides by a running mean of its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, target)
        self.mean.copy_(0.5 * self.mean + 0.5 * loss.detach())
        return loss / self.mean


@pytest.mark.parametrize(
    "given", [{"model": Running()}, {"model": RunningInPython()}, {"criterion": RunningLoss()}], ids=["buffer", "python", "loss"]
)
@pytest.mark.filterwarnings("ignore:gradients are computed")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_state_that_a_pass_changes_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises((GradientError, RuntimeError)):
        steps(made(**given), 30)


def test_a_buffer_that_the_loop_fits_is_refused() -> None:
    model = mlp()
    model.register_buffer("scale", torch.ones(4))
    training = made(model)
    training.step()
    model.scale.copy_(table().tensors[0].std(dim=0))
    with pytest.raises(NotProved, match="buffers"):
        training.step()


# ---- Data sets


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        x, y = table()[index]
        return x + 0.1 * torch.randn(4), y


class Standardised(Dataset[Any]):
    """Gives a batch with its mean subtracted."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Any:
        x, y = table()[indices]
        return list(zip(x - x.mean(dim=0), y, strict=True))


@pytest.mark.parametrize("data", [Augmented(), Standardised()])
def test_data_that_differs_at_the_second_look_ends_the_training(data: Dataset[Any]) -> None:
    training = made(data=data)
    with pytest.raises(GradientError, match="gives another record"):
        training.step()
    with pytest.raises(NotProved):
        training.step()


# ---- Layers that are changed behind the back


class InPlace(nn.Module):
    """Frozen layers with an in-place operation between them, and a trained one whose input is changed after its call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.first.requires_grad_(False)
        self.second.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.clone())
        z = self.second(y)
        y.mul_(3.0).sin_()
        return self.out(torch.tanh(y + z))


def test_in_place_operations_between_frozen_layers_keep_the_gap() -> None:
    totals = []
    torch.manual_seed(0)
    model = InPlace()
    for value in (0.0, 1.0):
        data = table(30)
        data.tensors[0][4, 1] = value
        totals.append(sums_of(made(copy.deepcopy(model), data, secret=FLAG, gap=0.02), torch.tensor([4])))
    assert 0 < sum(float((totals[0][k] - totals[1][k]).square().sum()) for k in totals[0]) ** 0.5 <= 0.02 * (1 + 1e-9)


class ChangedInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        y = self.first(x)
        with torch.no_grad():
            x.zero_()
        return self.out(y)


def test_an_input_that_is_changed_after_its_layer_is_not_trusted() -> None:
    """PyTorch itself refuses it, and so does the training, before the first step."""
    with pytest.raises(GradientError, match="modified by an inplace operation"):
        made(ChangedInput())


# ---- What an attacker on the mechanism attains


def attained(training: Callable[[int], PrivateTraining], steps: int, games: int) -> float:
    """The advantage of the likelihood-ratio test on the first weight, whose gradient is ±1 for the record at stake."""
    right = 0
    for game in range(games):
        world = game % 2
        private = training(world)
        score = 0.0
        for _ in range(steps):
            before = float(private.model.weight.detach()[0, 0])
            private.step()
            score += before - float(private.model.weight.detach()[0, 0])
        right += (score > 0) == (world == 1)
    return 2.0 * right / games - 1.0


def test_an_attack_on_real_steps_stays_below_the_guarantee_and_meets_it() -> None:
    """A linear model whose gradient is the record itself: the worst case of the mechanism, played for real."""

    def training(world: int) -> PrivateTraining:
        x = torch.zeros(4, 1)
        x[0] = 1.0 if world else -1.0
        model = nn.Linear(1, 1, bias=False)
        data = TensorDataset(10.0 * x, torch.zeros(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return PrivateTraining(
            model, optimizer, data, lambda output, _: output.sum(), batch_size=4, noise_multiplier=2.0, sampling="poisson"
        )

    one = training(0)
    for _ in range(3):
        one.step()
    bound = float(one.guarantee.membership.advantage.upper)
    games = 600
    measured = attained(training, 3, games)
    assert measured < bound + 4.0 * games**-0.5
    assert measured > bound - 4.0 * games**-0.5
