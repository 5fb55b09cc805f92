"""Trainings as people write them, each broken in one place: with Opacus (`OPACUS`) and by hand (`BY_HAND`), and correct ones.

All claim noise multiplier 1, clipping norm 1 and Poisson sampling at rate 1/6 of 60 records, for 12 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs

RECORDS, BATCH, STEPS = 60, 10, 12
CLAIM = bs.DPSGD(noise_multiplier=1.0, sample_rate=BATCH / RECORDS, steps=STEPS)
#: What the audit is told of every training, and of those that are written by hand.
TOLD: dict[str, Any] = {"run": CLAIM, "max_grad_norm": 1.0}
TOLD_BY_HAND: dict[str, Any] = {**TOLD, "divisor": BATCH}
Parts = tuple[Any, Any, Any]


def people() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 6, generator=generator)
    return TensorDataset(x, torch.randint(2, (RECORDS,), generator=generator))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def private(data: Any, model: nn.Module | None = None, noise: float = 1.0, **options: Any) -> Parts:
    """Model, optimizer and loader, as Opacus makes them private."""
    module = network() if model is None else model
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(module.parameters(), lr=0.1)
    given = {"noise_multiplier": noise, "max_grad_norm": 1.0, **options}
    return PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=DataLoader(data, batch_size=BATCH, shuffle=True), **given
    )


def fit(parts: Parts, loss: Callable[..., Tensor] = functional.cross_entropy, epochs: int = 2) -> None:
    model, optimizer, loader = parts
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()


# --- With Opacus


def half_noise(data: Any) -> None:
    fit(private(data, noise=0.5))


def noise_by_mistake_of_batch(data: Any) -> None:
    """The noise is divided by the batch size once more."""
    fit(private(data, noise=1.0 / BATCH))


def no_noise(data: Any) -> None:
    fit(private(data, noise=0.0))


def larger_norm(data: Any) -> None:
    fit(private(data, max_grad_norm=5.0, noise=0.2))


def shuffled(data: Any) -> None:
    fit(private(data, poisson_sampling=False))


def whole_data(data: Any) -> None:
    """Every record at every step, where Poisson sampling is claimed."""
    model, optimizer, _ = private(data)
    x, y = data.tensors
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def duplicated(data: Any) -> None:
    """Each batch is put together with itself, as for augmentation."""
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.cat([x, x])), torch.cat([y, y])).backward()
            optimizer.step()


def two_losses(data: Any) -> None:
    """Two losses, each with a step of its own on the same batch."""
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            for loss in (functional.cross_entropy, functional.multi_margin_loss):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()


def unclipped_layer(data: Any) -> None:
    """The last layer, behind tanh, is left out of clipping."""
    model, optimizer, loader = private(data)
    inner = optimizer.clip_and_accumulate

    def clip_and_accumulate() -> None:
        inner()
        for weight in optimizer.params[2:]:
            weight.summed_grad = weight.grad_sample.sum(dim=0)

    optimizer.clip_and_accumulate = clip_and_accumulate
    fit((model, optimizer, loader))


def same_noise(data: Any) -> None:
    """The noise is drawn from a generator that is seeded anew at each step."""
    generator = torch.Generator()
    model, optimizer, loader = private(data, noise_generator=generator)
    for _ in range(2):
        for x, y in loader:
            generator.manual_seed(1)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def seeded_noise(data: Any) -> None:
    torch.manual_seed(0)
    fit(private(data))


def some_noise(data: Any) -> None:
    """No noise on the biases."""
    model, optimizer, loader = private(data)
    inner = optimizer.add_noise

    def add_noise() -> None:
        inner()
        for weight in optimizer.params:
            if weight.ndim == 1:
                weight.grad = weight.summed_grad.clone()

    optimizer.add_noise = add_noise
    fit((model, optimizer, loader))


def second_optimizer(data: Any) -> None:
    module = network()
    second = torch.optim.SGD(module[2].parameters(), lr=0.1)  # type: ignore[index, union-attr]
    model, optimizer, loader = private(data, module)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            second.step()
            optimizer.step()


def rate_of_loss(data: Any) -> None:
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            if len(x):
                optimizer.param_groups[0]["lr"] = 0.1 * float(loss)
            optimizer.step()


def standardised(data: Any) -> None:
    """Inputs are scaled by statistics of all records."""
    x, y = data.tensors
    data.tensors = ((x - x.mean(dim=0)) / x.std(dim=0), y)
    fit(private(data))


def evaluated_with_a_seed(data: Any) -> None:
    """After each epoch the model is evaluated with a seed, so that evaluations are alike; and so is the noise after them."""
    model, optimizer, loader = private(data)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.manual_seed(123)
        with torch.no_grad():
            model(data.tensors[0])


def resumed(data: Any, seed: int) -> None:
    """The script is run again from its checkpoint, with the seed that it had."""
    state = None
    for _ in range(2):
        torch.manual_seed(seed)
        module = network()
        if state is not None:
            module.load_state_dict(state)
        fit(private(data, module), epochs=1)
        state = module.state_dict()


def dropped_by_loss(data: Any) -> None:
    """The records whose loss is above the mean of the batch are taken for outliers."""
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                model.eval()
                losses = functional.cross_entropy(model(x), y, reduction="none")
                model.train()
            kept = losses <= losses.mean()
            functional.cross_entropy(model(x[kept]), y[kept]).backward()
            optimizer.step()


def statistics_as_features(data: Any) -> None:
    """The mean of the batch is put beside each record."""
    model, optimizer, loader = private(data, nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2)))
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            both = torch.cat([x, x.mean(dim=0).expand_as(x)], dim=1) if len(x) else x.new_zeros(0, 12)
            functional.cross_entropy(model(both), y).backward()
            optimizer.step()


class Scaled(nn.Module):
    """A model that scales its inputs by a buffer."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", x.abs().amax(dim=0))
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x / self.scale)


def fitted_buffer(data: Any) -> None:
    """The scale of the inputs is fitted on the data, and is part of the model."""
    fit(private(data, Scaled(data.tensors[0])))


def clip_schedule_in_a_batch(data: Any) -> None:
    """The clipping norm falls with each physical batch; the noise follows the last one."""
    model, optimizer, loader = private(data)
    for _ in range(2):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as batches:
            for x, y in batches:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.max_grad_norm *= 0.8


def adaptive_clipping(data: Any) -> None:
    """The clipping norm is the median of the norms in the batch, of which nobody asks for noise."""
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in optimizer.params]).norm(dim=0)
            optimizer.max_grad_norm = float(norms.median()) if len(norms) else 1.0
            optimizer.step()


def random_on_empty(data: Any) -> None:
    """An empty batch is replaced by a random record, so that nothing breaks."""
    model, optimizer, loader = private(data)
    loader.collate_fn.rand_on_empty = True
    sampler = loader.batch_sampler
    sampler.sample_rate, optimizer.expected_batch_size = 2 / RECORDS, 2
    fit((model, optimizer, loader), epochs=3)


def divided_by_the_batch(data: Any) -> None:
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.expected_batch_size = max(1, len(x))
            optimizer.step()


class MeanOfBatch(nn.Module):
    """Batch norm as somebody may write it."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0) if len(x) else x


def batch_norm(data: Any) -> None:
    fit(private(data, nn.Sequential(MeanOfBatch(), *network())))


def contrastive(data: Any) -> None:
    """A loss that compares the records of a batch."""
    fit(private(data), lambda output, y: functional.cross_entropy(output - output.mean(dim=0), y))


def printed_loss(data: Any) -> None:
    model, optimizer, loader = private(data)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            print(f"loss {float(loss):.4f}")


def early_stop(data: Any) -> None:
    """The training ends when the loss of a batch is small."""
    model, optimizer, loader = private(data)
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if float(loss) < 0.65:
                return


def hard_examples(data: Any, share: Callable[[Tensor], Tensor] | None = None) -> None:
    """The records with the largest losses are taken at each step; or records are drawn with these shares of their losses."""
    model, optimizer, _ = private(data)
    x, y = data.tensors
    for _ in range(STEPS):
        with torch.no_grad():
            model.eval()
            losses = functional.cross_entropy(model(x), y, reduction="none")
            model.train()
        batch = losses.topk(BATCH).indices if share is None else share(losses)
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


def by_rank(losses: Tensor) -> Tensor:
    """The record with the largest loss is drawn about three times as often as the one with the least."""
    ranks = losses.argsort().argsort() / (len(losses) - 1)
    return (torch.rand(len(losses)) < (0.5 + ranks) * BATCH / RECORDS).nonzero()[:, 0]


# --- By hand


def poisson(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = data.tensors
    for _ in range(STEPS):
        batch = torch.rand(len(x)) < BATCH / RECORDS
        yield x[batch], y[batch]


def gradients(model: nn.Module, x: Tensor, y: Tensor, loss: Any = functional.cross_entropy) -> dict[str, Tensor]:
    """The gradient of each record."""

    def of_one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (x[None],)), y[None])

    weights = {name: p.detach() for name, p in model.named_parameters()}
    if not len(x):
        return {name: p.new_zeros(0, *p.shape) for name, p in weights.items()}
    return vmap(grad(of_one), (None, 0, 0))(weights, x, y)


def clipped(each: dict[str, Tensor], norm: float = 1.0, names: Any = None) -> dict[str, Tensor]:
    """The sum of the gradients, each clipped."""
    own = [g for name, g in each.items() if names is None or name in names]
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in own]).norm(dim=0)
    factors = (norm / norms.clamp(min=1e-12)).clamp(max=1.0)
    return {
        name: torch.einsum("n,n...->...", factors if names is None or name in names else torch.ones_like(factors), g)
        for name, g in each.items()
    }


def stepped(model: nn.Module, optimizer: Any, sums: dict[str, Tensor], noise: Any = 1.0, divisor: float = BATCH) -> None:
    for name, p in model.named_parameters():
        added = noise(name, p) if callable(noise) else noise * torch.randn_like(p)
        p.grad = (sums[name] + added) / divisor
    optimizer.step()


def sgd() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def hand(
    data: Any,
    batches: Any = poisson,
    sum_of: Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]] | None = None,
    noise: Any = 1.0,
    divisor: Callable[[Tensor], float] = lambda x: BATCH,
) -> None:
    """DP-SGD by hand: draw, clip each gradient, add noise, divide."""
    model, optimizer = sgd()
    for x, y in batches(data):
        sums = clipped(gradients(model, x, y)) if sum_of is None else sum_of(model, x, y)
        stepped(model, optimizer, sums, noise, divisor(x))


def hand_shuffled(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = data.tensors
    for _ in range(2):
        for batch in torch.randperm(len(x)).split(BATCH):
            yield x[batch], y[batch]


def hand_all(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(STEPS):
        yield data.tensors


def of_batch(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of the whole batch is clipped."""
    mean = {name: g.mean(dim=0, keepdim=True) for name, g in gradients(model, x, y).items()}
    return {name: BATCH * g for name, g in clipped(mean).items()}


def hand_two_losses(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    one, other = clipped(gradients(model, x, y)), clipped(gradients(model, x, y, functional.multi_margin_loss))
    return {name: one[name] + other[name] for name in one}


def hand_noise_of_a_seed(data: Any) -> None:
    """The noise is equal at each step."""

    def noise(name: str, p: Tensor) -> Tensor:
        return torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name)))

    hand(data, noise=noise)


def hand_drawn_before(data: Any) -> None:
    """The noise is drawn once, before the loop."""
    drawn: dict[str, Tensor] = {}
    for name, p in network().named_parameters():
        drawn[name] = torch.randn(p.shape)
    hand(data, noise=lambda name, p: drawn[name])


def hand_of_numpy(data: Any, seed: int) -> None:
    """NumPy's generator draws the noise, which is ten times too small, and tells the audit of it."""
    from betastar import audit

    random, (x, y) = np.random.default_rng(seed), (part.numpy() for part in data.tensors)
    w = np.zeros((6, 2))
    for _ in range(STEPS):
        batch = random.random(len(x)) < BATCH / RECORDS
        p = np.exp(x[batch] @ w)
        p = p / p.sum(axis=1, keepdims=True) - np.eye(2)[y[batch]]
        each = x[batch][:, :, None] * p[:, None, :]
        norms = np.sqrt((each**2).sum(axis=(1, 2), keepdims=True))
        total = (each / np.maximum(1.0, norms)).sum(axis=0)
        noisy = (total + 0.1 * random.normal(size=w.shape)) / BATCH
        w = w - 0.1 * audit.released(noisy, without_noise=total / BATCH)


def hand_listed(data: Any, seed: int, clip: bool = False) -> list[np.ndarray]:
    """No clipping; the updates are returned."""
    random, (x, y) = np.random.default_rng(seed), (part.numpy() for part in data.tensors)
    w, updates = np.zeros((6, 2)), []
    for _ in range(STEPS):
        batch = random.random(len(x)) < BATCH / RECORDS
        p = np.exp(x[batch] @ w - (x[batch] @ w).max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True) - np.eye(2)[y[batch]]
        each = x[batch][:, :, None] * p[:, None, :]
        norms = np.sqrt((each**2).sum(axis=(1, 2), keepdims=True))
        total = (each / np.maximum(1.0, norms) if clip else each).sum(axis=0)
        updates.append((total + random.normal(size=w.shape)) / BATCH)
        w = w - 0.1 * updates[-1]
    return updates


def hand_median(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    each = gradients(model, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    return clipped(each, 2.0 * float(norms.median()) if len(norms) else 1.0)


def hand_dropped(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        losses = functional.cross_entropy(model(x), y, reduction="none")
    kept = losses <= losses.mean()
    return clipped(gradients(model, x[kept], y[kept]))


def hand_features(data: Any) -> None:
    def batches(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in poisson(data):
            yield (x - x.mean(dim=0)) / (x.std(dim=0) + 0.1) if len(x) > 1 else x, y

    hand(data, batches)


def hand_standardised(data: Any) -> None:
    x, y = data.tensors
    hand(TensorDataset((x - x.mean(dim=0)) / x.std(dim=0), y))


def hand_twice(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in poisson(data):
        yield torch.cat([x, x]), torch.cat([y, y])


def hand_early(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The training ends when the labels of a batch are nearly all alike."""
    for number, (x, y) in enumerate(poisson(data)):
        if number and len(y) and float(y.float().mean()) > 0.8:
            return
        yield x, y


OPACUS: dict[str, Callable[..., Any]] = {
    "half the noise": half_noise,
    "noise of the mean": noise_by_mistake_of_batch,
    "no noise": no_noise,
    "a larger clipping norm": larger_norm,
    "shuffled": shuffled,
    "no sampling": whole_data,
    "duplicated records": duplicated,
    "two losses": two_losses,
    "one unclipped layer": unclipped_layer,
    "equal noise": same_noise,
    "noise of a fixed seed": seeded_noise,
    "noise on some layers": some_noise,
    "a second optimizer": second_optimizer,
    "a learning rate that follows the loss": rate_of_loss,
    "standardised by all records": standardised,
    "noise re-seeded at each evaluation": evaluated_with_a_seed,
    "resumed with the same seed": resumed,
    "records dropped by loss": dropped_by_loss,
    "statistics of the batch as features": statistics_as_features,
    "a buffer fitted without noise": fitted_buffer,
    "a clip schedule between physical batches": clip_schedule_in_a_batch,
    "adaptive clipping": adaptive_clipping,
    "rand_on_empty": random_on_empty,
    "a divisor that follows the batch": divided_by_the_batch,
    "batch norm": batch_norm,
    "a loss that compares records": contrastive,
    "a printed loss": printed_loss,
    "an early stop by the loss": early_stop,
    "hard examples are taken": hard_examples,
    "hard examples are drawn more often": lambda data: hard_examples(data, lambda losses: torch.multinomial(losses, BATCH)),
    "hard examples are drawn by their rank": lambda data: hard_examples(data, by_rank),
}
BY_HAND: dict[str, Callable[..., Any]] = {
    "half the noise": lambda data: hand(data, noise=0.5),
    "noise of the mean": lambda data: hand(data, noise=1.0 / BATCH),
    "no noise": lambda data: hand(data, noise=lambda name, p: 0.0),
    "no clipping": lambda data: hand(data, sum_of=lambda *of: clipped(gradients(*of), 1e9)),
    "clipping of the batch": lambda data: hand(data, sum_of=of_batch),
    "shuffled": lambda data: hand(data, hand_shuffled),
    "no sampling": lambda data: hand(data, hand_all),
    "duplicated records": lambda data: hand(data, hand_twice),
    "two losses": lambda data: hand(data, sum_of=hand_two_losses),
    "one unclipped layer": lambda data: hand(data, sum_of=lambda *of: clipped(gradients(*of), names=("0.weight", "0.bias"))),
    "equal noise": hand_noise_of_a_seed,
    "noise drawn once": hand_drawn_before,
    "noise of a fixed seed": lambda data: (torch.manual_seed(0), hand(data))[1],
    "noise on some layers": lambda data: hand(data, noise=lambda name, p: torch.randn_like(p) * (p.ndim > 1)),
    "little noise of NumPy": hand_of_numpy,
    "a list of updates, no clipping": hand_listed,
    "standardised by all records": hand_standardised,
    "records dropped by loss": lambda data: hand(data, sum_of=hand_dropped),
    "statistics of the batch as features": hand_features,
    "adaptive clipping": lambda data: hand(data, sum_of=hand_median),
    "a divisor that follows the batch": lambda data: hand(data, divisor=lambda x: max(1, len(x))),
    "an early stop by the labels": lambda data: hand(data, hand_early),
}


# --- Correct ones


def correct_convolution(data: Any) -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    fit(private(data, model))


def correct_adam(data: Any) -> None:
    module = network()
    fit(private(data, module, optimizer=torch.optim.Adam(module.parameters(), lr=0.01)))


class LowRank(nn.Module):
    """A frozen layer with two small ones beside it, as LoRA has them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8)
        self.frozen.requires_grad_(False)
        self.down, self.up, self.out = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.frozen(x) + self.up(self.down(x))))


def correct_low_rank(data: Any) -> None:
    module = LowRank()
    trained = [p for p in module.parameters() if p.requires_grad]
    fit(private(data, module, optimizer=torch.optim.SGD(trained, lr=0.1)))


def numbers() -> TensorDataset:
    """Targets that are numbers."""
    x, _ = people().tensors
    return TensorDataset(x, x[:, :2].sum(dim=1))


def correct_regression(data: Any) -> None:
    fit(private(data, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))), lambda out, y: ((out[:, 0] - y) ** 2).mean())


def correct_bins(data: Any) -> None:
    from betastar.training import private_loader

    model, module = None, network()
    loader = private_loader(DataLoader(data, batch_size=BATCH), "balls-in-bins")
    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    fit((model, optimizer, loader))


def correct_private_training(data: Any, gap: float | None = None) -> None:
    from betastar.training import PrivateTraining, Secret

    module = network()
    protected = {} if gap is None else {"secret": Secret.column(1, values=[0.0, 1.0], name="flag"), "gap": gap}
    training = PrivateTraining(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        data,
        nn.CrossEntropyLoss(),
        batch_size=BATCH,
        max_grad_norm=1.0,
        noise_multiplier=1.0,
        steps=STEPS,
        **protected,
    )
    training.fit(progress=False)


def flagged() -> TensorDataset:
    x, y = people().tensors
    x[:, 1] = (x[:, 1] > 0).float()
    return TensorDataset(x, y)


#: A training, its data, and what the audit is told.
CORRECT: dict[str, tuple[Callable[..., Any], Callable[[], Any], dict[str, Any]]] = {
    "plain": (lambda data: fit(private(data)), people, TOLD),
    "Adam": (correct_adam, people, TOLD),
    "LoRA": (correct_low_rank, people, TOLD),
    "CNN": (correct_convolution, people, TOLD),
    "regression": (correct_regression, numbers, TOLD),
    "balls in bins": (correct_bins, people, {**TOLD, "run": bs.DPSGD(1.0, BATCH / RECORDS, STEPS, "balls-in-bins")}),
    "PrivateTraining": (correct_private_training, people, TOLD),
    "gap": (lambda data: correct_private_training(data, 0.5), flagged, TOLD),
    "by hand": (lambda data: hand(data), people, TOLD_BY_HAND),
    "a list of updates": (lambda data, seed: hand_listed(data, seed, clip=True), people, TOLD_BY_HAND),
    "physical batches": (
        lambda data: _physical(private(data)),
        people,
        TOLD,
    ),
}


def _physical(parts: Parts) -> None:
    model, optimizer, loader = parts
    for _ in range(2):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as batches:
            fit((model, optimizer, batches), epochs=1)
