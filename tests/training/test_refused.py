"""What would make a measurement wrong is refused by name, when a monitor is attached or at the step where it shows.

The weights and the state of random numbers stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from opacus.schedulers import ExponentialGradClip
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from betastar.training import AttributeMonitor, GradientError, Secret

from .private import VALUES, build, fit, private, table, tokens, training
from .test_monitor import attach, weights

SECRET, WORD = Secret.column(1, VALUES, name="age"), Secret.column(2, range(11), name="word")


class Model(nn.Module):
    """Layers by name, and any function of them and the input."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


class Weighted(nn.Module):
    """A layer with a parameter of its own, which may take two tensors and return two."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        return self.weight * x + others[0] if others else (x * self.weight, x)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))


def head(run: Callable[[Any, Tensor], Tensor], width: int = 6, **layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return Model(run, head=nn.Linear(width, 2), **layers)


def bag() -> nn.Module:
    starts = lambda ids: torch.arange(len(ids)) * ids.shape[1]  # noqa: E731
    return Model(
        lambda m, ids: m.head(m.bag(ids.flatten(), starts(ids))), bag=nn.EmbeddingBag(11, 4, mode="mean"), head=nn.Linear(4, 3)
    )


def packed(m: Any, x: Tensor) -> Tensor:
    lengths = 2 + torch.arange(len(x)) % 2
    rows = pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
    return m.head(m.lstm(rows)[1][0][0])


def mean_embedding() -> nn.Module:
    return Model(lambda m, x: m.head(m.words(x).mean(dim=1)), words=nn.Embedding(11, 4, max_norm=0.5), head=nn.Linear(4, 3))


def half_trained() -> Any:
    module = mlp()
    optimizer, loader = torch.optim.SGD(module[2].parameters(), lr=0.1), DataLoader(table(), batch_size=20)  # type: ignore[index]
    options = {"module": module, "optimizer": optimizer, "data_loader": loader, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    return PrivacyEngine().make_private(**options)


def eval_mode() -> Any:
    parts = private(mlp(), table())
    parts[0].eval()
    return parts


def swapped(place: int, other: Callable[[Any], Any]) -> Any:
    parts = list(private(mlp(), table()))
    parts[place] = other(parts)
    return parts


class Random(Dataset[Any]):
    """Records to which a generator adds noise."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        x, y = table()[index]
        return x + torch.tensor([self.draw(), 0.0, 0.0, 0.0, 0.0, 0.0]), y


def sorted_by_class() -> TensorDataset:
    return TensorDataset(table().tensors[0], (torch.arange(120) >= 60).long())


ADAPTIVE = {
    "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 9.0,
    "min_clipbound": 0.1, "unclipped_num_std": 5.0,
}  # fmt: skip
DRAWS, MIXES = "draws random numbers when it runs", "a model or a criterion that mixes records"
OTHER = "another reduction than the optimizer assumes"
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 30.0]))
#: What is attached (a model, or all parts), options (criterion, secret and those of a monitor), the error.
CASES: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (mlp, {"secret": 3}, TypeError, "secret must be a Secret, got 3"),
    (mlp, {"criterion": "mse"}, TypeError, "criterion must be callable"),
    (mlp, {"scope": "epoch"}, ValueError, "scope must be one of 'batch', 'dataset', got 'epoch'"),
    (mlp, {"diameter": "max"}, ValueError, "diameter must be one of 'exact', 'centroid', got 'max'"),
    (mlp, {"every": 0}, ValueError, "every must be a whole number of at least 1, got 0"),
    (mlp, {"memory": 10}, ValueError, "memory must be at least [0-9]* bytes, got 10"),
    (mlp, {"secret": Secret.column(17, VALUES)}, ValueError, "needs column 17, but the model's input has 6 columns"),
    (mlp, {"secret": Secret.column(1, [17.0, 18.0])}, ValueError, "never takes the value"),
    # What Opacus did not make, or does otherwise.
    (lambda: swapped(0, lambda parts: parts[0]._module), {}, TypeError, "model must be what make_private of Opacus returned"),
    (lambda: swapped(1, lambda parts: parts[1].original_optimizer), {}, TypeError, "optimizer must be what make_private"),
    (lambda: private(mlp(), table(), **ADAPTIVE), {}, ValueError, "optimizer clips adaptively"),
    (lambda: private(mlp(), table(), rand_on_empty=True), {}, ValueError, "rand_on_empty=True"),
    (lambda: private(mlp(), table(), poisson_sampling=False), {}, ValueError, r"got SequentialSampler\. .*private_loader"),
    (
        lambda: swapped(2, lambda _: DataLoader(table(), 20, sampler=WeightedRandomSampler([1.0] * 120, 120))),
        {},
        ValueError,
        r"with the same probability, independently \(Poisson\), got WeightedRandomSampler",
    ),
    (eval_mode, {}, ValueError, r"model is in eval mode: call model\.train\(\)"),
    (lambda: private(mlp(), table(), noise=0.0), {}, ValueError, "noise_multiplier must be greater than 0, got 0"),
    (half_trained, {}, ValueError, r"0\.weight is trainable but not in the optimizer"),
    # Layers whose gradients cannot be told apart, with the way out.
    (bag, {"secret": WORD}, GradientError, r"gradients of bag \(EmbeddingBag\).*use nn\.Embedding and take the mean or sum"),
    (
        lambda: Model(lambda m, x: m.both(x, x.tanh()), both=nn.Bilinear(6, 6, 2)),
        {},
        GradientError,
        r"gradients of both \(Bilinear\).*use nn\.Linear on an outer product",
    ),
    (
        lambda: head(lambda m, x: m.head(m.mixed(x, x.tanh())), mixed=Weighted()),
        {},
        GradientError,
        r"gradients of mixed \(Weighted\).*takes 2 .*give each of its tensors to a layer of",
    ),
    (lambda: head(lambda m, x: m.head(m.pair(x)[0]), pair=Weighted()), {}, GradientError, r"pair \(Weighted\).* returns a tuple"),
    (
        lambda: head(lambda m, x: nn.functional.linear(m.body(x), m.head.weight), 4, body=nn.Linear(6, 4)),
        {},
        GradientError,
        r"gradients of head\.weight cannot be computed: its module was not called",
    ),
    (
        lambda: head(lambda m, x: m.head(m.body(x.reshape(-1, 3)).reshape(len(x), 6)), body=nn.Linear(3, 3)),
        {},
        GradientError,
        r"gradients of body \(Linear\) cannot be computed: it sees \d+ rows",
    ),
    (lambda: head(packed, 4, lstm=DPLSTM(1, 4, batch_first=True)), {}, GradientError, "no packed sequences"),
    # Losses that belong to no record.
    (lambda: head(lambda m, x: m.head(x - x.mean(dim=0))), {"scope": "dataset"}, GradientError, MIXES),
    (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False, track_running_stats=False), nn.Linear(8, 2)),
        {},
        ValueError,
        r"a model that mixes records .*batch norm",
    ),
    (mlp, {"criterion": nn.CrossEntropyLoss(reduction="sum")}, GradientError, f"{OTHER}, 'mean'"),
    (lambda: private(mlp(), table(), loss_reduction="sum"), {}, GradientError, f"{OTHER}, 'sum'"),
    (mlp, {"criterion": WEIGHTED}, GradientError, r"a criterion that mixes records \(class weights"),
    (lambda: private(mlp(), sorted_by_class()), {"criterion": WEIGHTED, "scope": "dataset"}, GradientError, "class weights"),
    (mlp, {"criterion": lambda out, y: out}, ValueError, r"one loss, or one for each record, got shape \(\d+, 2\)"),
    # Random numbers and state.
    (lambda: nn.Sequential(nn.Linear(6, 9), nn.AlphaDropout(), nn.Linear(9, 2)), {}, GradientError, rf"{DRAWS} \(1\)"),
    (lambda: head(lambda m, x: m.head(x) + torch.randn(len(x), 2)), {}, GradientError, DRAWS),
    (lambda: head(lambda m, x: m.head(x) * float(np.random.random() < 2.0)), {}, GradientError, DRAWS),
    (mean_embedding, {"secret": WORD}, GradientError, "writes into its own weights or buffers"),
    (lambda: private(mlp(), Random(lambda: float(torch.randn(())))), {"scope": "dataset"}, ValueError, "data set that draws"),
    (lambda: private(mlp(), Random(np.random.normal)), {"scope": "dataset"}, ValueError, "data set that draws random numbers"),
]


@pytest.mark.parametrize(("make", "options", "kind", "message"), CASES, ids=[message[:40] for *_, message in CASES])
def test_refused_when_it_is_attached(make: Callable[[], Any], options: dict[str, Any], kind: Any, message: str) -> None:
    made = make()
    parts = private(made, tokens() if options.get("secret") is WORD else table()) if isinstance(made, nn.Module) else made
    state, numpy = torch.get_rng_state(), np.random.get_state()[2]
    before = {name: value.clone() for name, value in parts[0].state_dict().items()}
    given = {"criterion": nn.CrossEntropyLoss(), "secret": SECRET} | options
    with pytest.raises(kind, match=message):
        AttributeMonitor(parts[0], parts[1], parts[-1], given.pop("criterion"), given.pop("secret"), **given)
    assert all(torch.equal(before[name], value) for name, value in parts[0].state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert numpy == np.random.get_state()[2]


LAYERS = [case for case in CASES if ".*use nn" in case[3] or "takes 2" in case[3]]


@pytest.mark.filterwarnings("ignore:gradients are computed by:UserWarning")
@pytest.mark.parametrize(("make", "options", "kind", "message"), LAYERS, ids=["bag", "both", "mixed"])
def test_gap_clipping_refuses_the_same_layers(make: Callable[[], Any], options: dict[str, Any], kind: Any, message: str) -> None:
    """And freezing them is a way out."""
    secret = options.get("secret", SECRET)
    data = tokens() if secret is WORD else table()
    with pytest.raises(kind, match=message):
        training(make(), data, secret, gap=0.1).step()
    module = make()
    for name, layer in module.named_children():
        layer.requires_grad_(name == "head")
    if not hasattr(module, "head"):
        module = nn.Sequential(module, nn.Linear(2, 2))
    AttributeMonitor(*private(module, data), nn.CrossEntropyLoss(), secret)


def test_what_is_legitimate_is_taken() -> None:
    summed = private(mlp(), table(), loss_reduction="sum")
    AttributeMonitor(*summed, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]), reduction="sum"), SECRET)
    AttributeMonitor(*private(mlp(), Random(np.random.normal)), nn.CrossEntropyLoss(), SECRET)  # in batch scope


# ---------------------------------------------------------------------- at a step


def one_step(parts: Any, loss: Callable[..., Tensor]) -> None:
    model, optimizer, loader = parts
    x, y = next(iter(loader))
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()


def test_losses_that_are_not_those_of_the_criterion() -> None:
    parts, criterion, _ = attach()
    before = weights(parts)
    with pytest.raises(RuntimeError, match=r"saw no call of its criterion with what the model returned.*passed as criterion"):
        one_step(parts, lambda out, y: criterion(torch.log_softmax(out, dim=1), y))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(parts), strict=True))
    parts = private(mlp(), table())
    monitor = AttributeMonitor(*parts, lambda out, y, w=1.0: nn.functional.cross_entropy(out, y) * w, SECRET)
    with pytest.raises(ValueError, match="the model's output and the target only"):
        one_step(parts, lambda out, y: monitor.criterion(out, y, w=3.0))


@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_gradients_that_are_not_numbers(scope: str) -> None:
    parts, criterion, monitor = attach(scope=scope)
    fit(parts, criterion, 2)
    with torch.no_grad():
        parts[1].params[0][0, 0] = torch.nan
    before = weights(parts)
    with pytest.raises(GradientError, match=r"not finite.* The weights were not changed"):
        fit(parts, criterion, 1)
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, weights(parts), strict=True))
    assert monitor.steps == 2


@pytest.mark.parametrize("setup", [{"grad_sample_mode": "ghost"}, {"clip": [0.1, 0.2, 0.3, 0.4], "clipping": "per_layer"}])
def test_clip_schedules_that_reach_the_noise_only(setup: dict[str, Any]) -> None:
    made = private(mlp(), table(), criterion=nn.CrossEntropyLoss(), **setup)
    parts, criterion = (made[0], made[1], made[-1]), made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    AttributeMonitor(*parts, criterion, SECRET)
    fit(parts, criterion, 1)
    ExponentialGradClip(parts[1], gamma=0.25).step()
    with pytest.raises(ValueError, match="which the noise does not fit"):
        fit(parts, criterion, 1)


def test_indices_for_the_ledger() -> None:
    parts, criterion, monitor = attach(ledger=True)
    with pytest.raises(ValueError, match=r"indices must be between 0 and 119, got \[200\]"):
        monitor.records([200])
    monitor.records([1, 2])
    with pytest.raises(ValueError, match="indices must be one for each of the"):
        fit(parts, criterion, 1)
    *_, without = attach()
    with pytest.raises(ValueError, match="make it with ledger=True"):
        without.records([1])
    with pytest.raises(ValueError, match="no step was taken yet"):
        without.risk()
    assert "no step yet" in without.progress()


def test_nothing_stays_behind_in_the_module() -> None:
    module, data, secret = build("lstm")
    parts = private(module, data)
    AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)
    assert not any("forward" in vars(part) or "max_batch_len" in vars(part) for part in module.modules())
    assert parts[0].hooks_enabled
