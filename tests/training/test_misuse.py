"""Loops, models and data that would make a number too small, if nobody looked: each is refused, or measured right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from opacus.layers import DPLSTM
from opacus.schedulers import ExponentialGradClip
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from betastar.training import AttributeMonitor, GradientError, Records, Secret, private_loader

from .private import VALUES, build, clone, fit, oracle, private, table
from .test_attach import mlp, refuse
from .test_monitor import attach

SECRET = Secret.column(1, VALUES)


def step(parts: Any, loss: Any) -> None:
    model, optimizer, loader = parts
    x, y = next(iter(loader))
    optimizer.zero_grad()
    loss(model, x, y).backward()
    optimizer.step()


def test_further_arguments_of_the_criterion() -> None:
    parts = private(mlp(), table())
    monitor = AttributeMonitor(*parts, lambda out, y, w=1.0: nn.functional.cross_entropy(out, y) * w, SECRET)
    with pytest.raises(ValueError, match="the model's output and the target only"):
        step(parts, lambda m, x, y: monitor.criterion(m(x), y, w=3.0))


def test_a_batch_that_is_overwritten_after_its_pass() -> None:
    parts, criterion, monitor = attach()
    x, y = next(iter(parts[2]))
    wanted = oracle(clone(parts[0]._module, "tanh"), Records((x.clone(),), y), SECRET).max()
    criterion(parts[0](x), y).backward()
    x.mul_(100.0)
    parts[1].step()
    assert monitor.distances[0] == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.parametrize("setup", [{"grad_sample_mode": "ghost"}, {"clip": [0.1, 0.2, 0.3, 0.4], "clipping": "per_layer"}])
def test_clip_schedules_that_reach_the_noise_only(setup: dict[str, Any]) -> None:
    criterion: Any = nn.CrossEntropyLoss()
    made = private(mlp(), table(), criterion=criterion, **setup)
    parts, criterion = (made[0], made[1], made[-1]), made[2] if len(made) == 4 else criterion
    AttributeMonitor(*parts, criterion, SECRET)
    fit(parts, criterion, 1)
    ExponentialGradClip(parts[1], gamma=0.25).step()
    with pytest.raises(ValueError, match="which the noise does not fit"):
        fit(parts, criterion, 1)


def test_an_error_in_the_middle_leaves_nothing_known() -> None:
    parts, criterion, monitor = attach(scope="dataset")
    data = parts[2].dataset
    kept = data.tensors[0][50, 0].item()
    data.tensors[0][50, 0] = torch.nan
    with pytest.raises(GradientError):
        fit(parts, criterion, 1)
    data.tensors[0][50, 0] = kept
    fit(parts, criterion, 2)
    other, criterion, clean = attach(scope="dataset")
    assert monitor.distances[0] == pytest.approx(_first(other, criterion, clean), rel=1e-6)


def _first(parts: Any, criterion: Any, monitor: AttributeMonitor) -> float:
    fit(parts, criterion, 1)
    return float(monitor.distances[0])


class Gate(nn.Module):
    """Reads its table in a second way that only shows for some records."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 9), nn.Linear(9, 2)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.body(x)) * (1 + 5 * (x[:, 5:6] > 0)))


class Codes(nn.Module):
    """Reads one column as a category."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(9, 2)

    def forward(self, x: Any) -> Any:
        return self.head(torch.cat([self.embedding(x[:, 0].clamp(0, 3).long()), x], dim=1))


@pytest.mark.parametrize("make", [Gate, Codes])
def test_models_that_read_the_table_in_other_ways(make: Any) -> None:
    torch.manual_seed(0)
    data = table()
    order = data.tensors[0][:, 5].argsort()
    data = TensorDataset(data.tensors[0][order], data.tensors[1][order])
    module, twin = make(), make()
    twin.load_state_dict(module.state_dict())
    wanted = oracle(twin, Records((data[:][0],), data[:][1]), SECRET).max()
    parts, criterion = private(module, data), nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, SECRET, scope="dataset")
    fit(parts, criterion, 1)
    assert monitor.distances[0] == pytest.approx(float(wanted), rel=1e-4)


def test_several_batches_in_one_step() -> None:
    loader = private_loader(DataLoader(table(), batch_size=20), "fixed-size")
    parts, criterion = private(mlp(), table(), poisson_sampling=False, loader=loader), nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, SECRET)
    model, optimizer, loader = parts
    batches = list(loader)[:2]
    wanted = max(float(oracle(clone(model._module, "tanh"), Records((x,), y), SECRET).max()) for x, y in batches)
    for x, y in batches:
        criterion(model(x), y).backward()
    optimizer.step()
    assert monitor.distances[0] == pytest.approx(wanted, rel=1e-4)


def test_a_forward_pass_that_was_not_used_is_forgotten() -> None:
    parts, criterion, monitor = attach()
    x, y = next(iter(parts[2]))
    criterion(parts[0](x), y)
    for module in parts[0]._module.modules():
        vars(module).pop("activations", None)  # Opacus keeps those of the first pass
    for p in parts[1].params:
        p._forward_counter = 0
    fit(parts, criterion, 1)
    assert monitor.steps == 1


def test_losses_that_belong_to_no_record() -> None:
    x = table().tensors[0]
    sorted_by_class = TensorDataset(x, (torch.arange(len(x)) >= 60).long())
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 30.0]))
    refuse("class weights", private(mlp(), sorted_by_class), weighted, scope="dataset", kind=GradientError)

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.head(x - x.mean(0))

    each = nn.CrossEntropyLoss(reduction="none")
    refuse("a model or a criterion that mixes records", private(Centred(), table()), each, scope="dataset", kind=GradientError)


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x.reshape(-1, 3)).reshape(len(x), 6))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = DPLSTM(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        lengths = 2 + torch.arange(len(x)) % 2
        packed = pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][0])


def test_rows_that_are_no_records() -> None:
    refuse(r"gradients of body \(Linear\) cannot be computed: it sees \d+ rows", private(Folded(), table()), kind=GradientError)
    refuse("no packed sequences", private(Packed(), table()), kind=GradientError)


def test_records_that_hold_no_value_of_the_secret() -> None:
    class Slow(Dataset[Any]):
        """Strange values far behind those that are looked at first."""

        def __len__(self) -> int:
            return 2600

        def __getitem__(self, index: int) -> Any:
            x = torch.zeros(6)
            x[1] = 99.0 if index == 2500 else VALUES[index % len(VALUES)]
            return x, index % 2

    parts, criterion = private(mlp(), Slow(), batch=20), nn.CrossEntropyLoss()
    AttributeMonitor(*parts, criterion, SECRET, scope="dataset")
    with pytest.raises(ValueError, match=r"never takes the value 99\.0"):
        fit(parts, criterion, 1)
    with pytest.raises(ValueError, match="different values at different positions"):
        Secret.column(0, [0.0, 1.0]).check(Records((torch.eye(2)[None],), None), complete=False)
    with pytest.raises(ValueError, match="targets differ within a record"):
        Secret.label(2).check(Records((torch.zeros(1, 2),), torch.tensor([[0, 1]])), complete=False)


def test_transformers_that_look_at_the_whole_record() -> None:
    frame = pd.DataFrame(
        {"age": [17.0, 30.0, np.nan, 90.0] * 20, "hours": np.linspace(10, 60, 80), "sex": ["m", "f", np.nan, "x"] * 20}
    )

    def interact(x: Any) -> Any:
        return x.assign(both=x["age"] * (x["hours"] > 40))[["age", "hours", "both"]]

    entangled = make_pipeline(FunctionTransformer(interact)).fit(frame[["age", "hours"]])
    with pytest.raises(ValueError, match=r"contains FunctionTransformer, .*pass records="):
        Secret.from_transformer(entangled, "age", [17, 90])
    with pytest.raises(ValueError, match="depends on other columns"):
        Secret.from_transformer(entangled, "age", [17, 90], records=frame[["age", "hours"]].fillna(40.0))

    imputed = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), ["age", "hours"]),
            (
                "words",
                make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(drop="first", sparse_output=False)),
                ["sex"],
            ),
        ]
    ).fit(frame)
    encoded = torch.tensor(imputed.transform(frame))
    for column, values in (("age", [17.0, 90.0]), ("sex", ["m", "f"])):
        secret = Secret.from_transformer(imputed, column, values)
        variants = secret.variants(Records((encoded,), None), [1]).inputs[0]
        torch.testing.assert_close(variants, torch.tensor(imputed.transform(frame.assign(**{column: values[1]}))))


def test_models_that_write_into_themselves() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(200, (60, 4)), torch.randint(2, (60,)))
    data.tensors[0][:, 2] = torch.arange(60) % 5

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(dim=1)

    module = nn.Sequential(nn.Embedding(200, 4, max_norm=0.5), Mean(), nn.Linear(4, 2))
    before = [p.detach().clone() for p in module.parameters()]
    parts = private(module, data)
    refuse("writes into its own weights or buffers", parts, secret=Secret.column(2, range(5)), kind=GradientError)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_random_numbers_of_other_generators() -> None:
    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.head(x) * float(np.random.random() < 2.0)

    state = np.random.get_state()[2]
    refuse("draws random numbers", private(Drop(), table()), kind=GradientError)
    assert np.random.get_state()[2] == state

    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> Any:
            x, y = table()[index]
            return x + torch.tensor([np.random.normal(), 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float32), y

    refuse("data set that draws random numbers", private(mlp(), Augmented()), scope="dataset")


def test_nothing_stays_behind_in_the_module() -> None:
    module, data, secret = build("lstm")
    parts = private(module, data)
    AttributeMonitor(*parts, nn.CrossEntropyLoss(), secret)
    assert not any("forward" in vars(part) or "max_batch_len" in vars(part) for part in module.modules())
    assert parts[0].hooks_enabled
