"""Loops, models and data sets that try to get more out of PrivateTraining than its guarantee says; most of them by accident."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from betastar.training import Budget, GradientError, NotProved, PrivateTraining, Records, Secret
from betastar.training.noise import GaussianNoise
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


class OwnLoss(nn.Module):
    """Returns a loss of its own, as language models do: the mean over all positions of the batch that count."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor, counts: Tensor) -> dict[str, Tensor]:
        scores = self.score(x[..., None])[..., 0]
        return {"loss": (scores * counts).sum() / counts.sum(), "scores": scores}


def positions(world: int, records: int = 1200) -> TensorDataset:
    """Records that are alike, but for one, of which all positions count or a single one."""
    x, counts = torch.full((records, 8), 0.95), torch.ones(records, 8)
    x[770], counts[770, 1:] = (100.0, 0.0) if world else (-100.0, 1.0)
    return TensorDataset(x, counts, torch.zeros(records))


def x_and_counts(batch: Any) -> Records:
    return Records(tuple(batch[:2]), batch[2])


def test_a_mean_over_the_positions_of_a_batch_is_differentiated_for_each_record_alone() -> None:
    """The one record moves each other's gradient by a thousandth, which one comparison misses, and their sum by .83 C."""
    totals = []
    for world in (0, 1):
        with pytest.warns(UserWarning, match="depends on the other records of its batch"):
            training = made(OwnLoss(), positions(world), criterion=lambda out, _: out["loss"], split=x_and_counts)
        totals.append(sums_of(training, torch.arange(1200)))
    (key,) = totals[0]
    assert float((totals[0][key] - totals[1][key]).norm()) <= 2.0 * (1.0 + 1e-5)
    secret = Secret.column(0, [-100.0, 0.95, 100.0], unseen=True)
    with pytest.raises(GradientError, match="depends on the other records of its batch"):
        made(OwnLoss(), positions(0), criterion=lambda out, _: out["loss"], split=x_and_counts, secret=secret, gap=0.1)


def with_share(rows: list[Any]) -> Any:
    """Adds what all records share: how many positions of the batch count."""
    x, counts, y = torch.utils.data.default_collate(rows)
    return x, counts, y, counts.mean()


class Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor, counts: Tensor, share: Tensor) -> Tensor:
        return (self.score(x[..., None])[..., 0] * counts).mean(dim=1) / share


def test_a_shared_argument_that_depends_on_the_batch_ends_the_training() -> None:
    training = made(
        Divided(),
        positions(1),
        criterion=lambda scores, _: scores.sum(),
        collate=with_share,
        split=lambda batch: Records((batch[0], batch[1], batch[3]), batch[2]),
        batch_size=1200,
    )
    with pytest.raises(GradientError, match="gives another record"):
        training.step()
    with pytest.raises(NotProved):
        _ = training.guarantee


class Random(nn.Module):
    """Draws random numbers that are not masks of dropout, and mixes the records of a batch by them."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(len(x), 1) * (x[torch.randperm(len(x))] - x)


def test_random_numbers_do_not_hide_that_records_mix() -> None:
    """The gradient of a record alone is another one each time, so only records that cannot mix are differentiated."""
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="random numbers that are not masks of dropout"):
        training = made(nn.Sequential(Random(), mlp()), max_grad_norm=0.01)
    assert training.gradients.way != "layers"
    one, two = (sums_of(training, torch.tensor(some)) for some in ([3], [3, 5]))
    assert (
        sum(float((two[k] - one[k]).square().sum()) for k in one) ** 0.5 <= 0.01 * 3.0
    )  # of which 2 for the mixing of [3] itself


def padded(rows: list[Any]) -> Any:
    """Adds zeros up to the longest record, without a mask."""
    x = nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True)
    return x, torch.stack([y for _, y in rows])


class Lengths(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        x, y = table()[index]
        return x.repeat(1 + index % 5, 1), y


class OverPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x.mean(dim=1))


@pytest.mark.parametrize("protected", [{}, {"secret": Secret.label(2), "gap": 0.1}], ids=["plain", "gap"])
def test_padding_without_a_mask_makes_records_depend_on_each_other(protected: dict[str, Any]) -> None:
    training = made(OverPositions(), Lengths(), collate=padded, batch_size=30, **protected)
    with pytest.raises(GradientError, match="depends on the other records"):
        steps(training, 5)


# ---- Norms


class Ranked(nn.Module):
    """One layer sees two large inputs that are nearly the same, so that the terms of its gradient cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 1, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.score(pairs[:, 0]) - self.score(pairs[:, 1])).squeeze(1)


@pytest.mark.parametrize("offset", [0.0, 100.0, 2000.0])
def test_gradients_whose_terms_cancel_are_clipped(offset: float) -> None:
    torch.manual_seed(0)
    pairs = torch.randn(40, 2, 6)
    pairs[:, :, 0] += offset
    data = TensorDataset(pairs, torch.ones(40))
    training = made(Ranked(), data, criterion=lambda score, y: nn.functional.softplus(-score * y).sum())
    assert training.gradients.way == "layers"
    for i in range(40):
        total = sums_of(training, torch.tensor([i]))
        assert sum(float(t.double().square().sum()) for t in total.values()) <= 1.0 + 1e-5
    both, alone = sums_of(training, torch.arange(40)), [sums_of(training, torch.tensor([i])) for i in range(40)]
    for key, total in both.items():
        assert (
            float((total - torch.stack([one[key] for one in alone]).sum(dim=0)).norm()) < 2 * 40 * 64 * 2.0**-23
        )  # the rounding that noise is charged for, of either way


def test_gradients_too_large_for_single_precision_are_refused() -> None:
    """A scale below 1e-38 has few digits left: norms of up to 1.26 C were the result."""
    x = torch.full((40, 1), 0.5)
    training = made(nn.Linear(1, 1, bias=False), TensorDataset(x, x), criterion=lambda output, y: (output * y).sum())
    x[7] = 3e18
    (total,) = sums_of(training, torch.tensor([7])).values()
    assert float(total.norm()) <= 1.0 + 1e-5
    for size in (3e19, 1e22, 7e22):
        x[7] = size
        with pytest.raises(GradientError, match="too large for single precision"):
            sums_of(training, torch.tensor([7]))


class Autoencoder(nn.Module):
    """A weight is used by two kinds of layers, whose gradients have a cross term."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(4, 3, 1), nn.ConvTranspose1d(3, 4, 1)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x[:, :, None])))[:, :2, 0]


def test_a_weight_of_two_kinds_of_layers_has_its_cross_term() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="layers of different kinds share a weight"):
        training = made(Autoencoder(), max_grad_norm=0.1)
    for i in range(20):
        total = sums_of(training, torch.tensor([i]))
        assert sum(float(t.square().sum()) for t in total.values()) ** 0.5 <= 0.1 * (1 + 1e-5)


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


class Assigned(nn.Module):
    """Writes a new tensor into its buffer, or past PyTorch's count of versions."""

    def __init__(self, data: bool) -> None:
        super().__init__()
        self.inside, self.data = mlp(), data
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        if self.data:
            self.mean.data.copy_(mean)
        else:
            self.mean = mean
        return self.inside(x)


class Kept(nn.Module):
    """Keeps the last record in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.last = mlp(), torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.last = x[-1].detach().clone()
        return self.inside(x)


@pytest.mark.parametrize(
    "given",
    [
        *({"model": one} for one in (Running(), RunningInPython(), Assigned(False), Assigned(True), Kept())),
        {"criterion": RunningLoss()},
    ],
    ids=["buffer", "python", "assigned", "data", "attribute", "loss"],
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


# ---- What a loop sets


def test_what_a_guarantee_rests_on_cannot_be_set() -> None:
    training = made(secret=FLAG, gap=0.1)
    for name in ("max_grad_norm", "noise_multiplier", "model", "optimizer", "gaps", "records"):
        with pytest.raises(AttributeError, match=f"{name} is fixed once a training is made"):
            setattr(training, name, 0.5)
    with pytest.raises(TypeError):
        training.gaps["flag"] = 0.01  # type: ignore[index]


def test_a_training_has_no_copies() -> None:
    """Both copies would add the same noise."""
    training = made()
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a PrivateTraining cannot be copied"):
            copied(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a process with threads that is forked
        child = os.fork()
    if child == 0:
        try:
            training.step()
        except NotProved:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_autocast_around_a_step_is_refused() -> None:
    training = made()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=r"runs under torch\.autocast"):
        training.step()
    training.step()


def test_parameters_that_an_optimizer_gets_later_are_refused() -> None:
    training, other = made(), nn.Parameter(torch.zeros(2))
    training.optimizer.add_param_group({"params": [other]})
    with pytest.raises(ValueError, match="optimizer has parameters that the model has not"):
        training.step()


def test_weights_that_are_trained_further_are_not_called_proved() -> None:
    training = made()
    training.step()
    with torch.no_grad():
        training.model[0].weight.copy_(training.model[0].weight.flip(0))  # the same numbers at other places
    with pytest.raises(NotProved, match="were changed since the last step"):
        _ = training.guarantee


def test_a_step_of_the_optimizer_at_learning_rate_0_is_noticed() -> None:
    """It leaves the weights as they are, and raw gradients in the momenta."""
    training = made(lr=0.0)
    training.step()
    x, y = table().tensors
    nn.functional.cross_entropy(training.model(x), y).backward()
    training.optimizer.step()
    assert not training.state_dict()["accepted"]
    for ask in (training.step, training.membership):
        with pytest.raises(NotProved, match="or the optimizer was called"):
            ask()


def test_no_figure_is_given_of_what_is_not_proved() -> None:
    training = made(Centred(only_large=True), batch_size=20, steps=5, secret=FLAG, gap=2.0)
    with pytest.raises(GradientError):
        training.step()
    for ask in (training.planned_guarantee, training.membership, training.attribute):
        with pytest.raises(NotProved):
            ask()
    measuring = made(secret=FLAG, budget=Budget(0.5), noise_multiplier=3.0)
    measuring.step()
    with pytest.raises(NotProved, match="nothing is proved about membership"):
        measuring.membership()


def test_a_second_training_of_a_model_says_what_it_does_not_cover() -> None:
    first = made()
    first.step()
    with pytest.warns(UserWarning, match="1 steps of another PrivateTraining"):
        made(first.model)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    first = made(lr=0.1)
    first.step()
    state = first.state_dict() | {"optimizer": torch.optim.Adam(mlp()[:1].parameters()).state_dict()}
    second = made()
    with pytest.raises(ValueError, match="parameter group"):
        second.load_state_dict(state)
    second.step()
    assert second.steps == 1


def test_a_state_tells_nothing_of_the_noise_and_the_bins_of_one_epoch_at_most() -> None:
    training = made(sampling="balls-in-bins")
    for _ in training.epoch():
        pass
    assert training.state_dict()["draws"] == {}
    training.step()
    state = training.state_dict()
    told = int(state["draws"]["entropy"], 16)
    related = np.corrcoef(GaussianNoise(told).normal(40, 6), training._noise.normal(40, 6))[0, 1]
    assert abs(related) < 0.7
    branches = [made(sampling="balls-in-bins") for _ in range(2)]
    for branch in branches:
        branch.load_state_dict(state)
    one, two = ([branch._draws.indices(k).tolist() for k in range(6, 18)] for branch in branches)
    assert one[:6] == two[:6]
    assert one[6:] != two[6:]


@pytest.mark.parametrize("secure", [False, True])
def test_noise_reaches_the_weights_without_holes(secure: bool) -> None:
    """With a sum of 0 the gradient is noise alone: in single precision, its last bits do not depend on a first rounding."""
    model = nn.Linear(1000, 2, bias=False)
    data = TensorDataset(torch.zeros(8, 1000), torch.zeros(8).long())
    training = made(model, data, batch_size=3, noise_multiplier=1.0, secure_noise=secure, max_grad_norm=2.0**20, lr=0.0)
    training.step()
    deviation = training.noise_multiplier * training.max_grad_norm * (1.0 + 1e-5 + 2.0**-23 * 8)
    rounded = torch.tensor(training._noise.normal(2000, 0)).float()
    assert not bool(((rounded * (deviation / training._draws.divisor)).view(2, 1000) == model.weight.grad).all())


def test_the_last_bits_of_weights_in_double_precision_do_not_tell_the_sum() -> None:
    """Noise of single precision leaves the bits beyond it to the sum of gradients."""
    model = mlp().double()
    data = table()
    training = made(model, TensorDataset(data.tensors[0].double(), data.tensors[1]))
    training.step()
    for p in model.parameters():
        assert torch.equal(p.grad, p.grad.float().double())


def test_masks_of_dropout_do_not_follow_the_seed_of_the_loop() -> None:
    masks = []
    for _ in range(2):
        torch.manual_seed(0)
        training = made(nn.Sequential(nn.Linear(4, 40), nn.Dropout(0.5), nn.Linear(40, 2)), batch_size=60)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        with training._own_masks(0):
            masks.append(training._pass(training._source.read(range(9)))[1].masks[0])
        assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(*masks)


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
