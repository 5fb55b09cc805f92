"""Models that take several tensors, and records that are no rows of a table: what works, and errors that name what to pass."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from betastar.training import AttributeMonitor, Records, Secret

from .private import oracle, private, training

NUMBER = 60
TABLE = torch.randn(NUMBER, 4, generator=torch.Generator().manual_seed(0))
TABLE[:, 1] = torch.arange(NUMBER) % 3
TOKENS = torch.randint(0, 20, (NUMBER, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.arange(NUMBER) % 2
IMAGES = torch.rand(NUMBER, 3, 5, 5, generator=torch.Generator().manual_seed(2))
GRADE = Secret.column(1, values=range(3), name="grade")


class Both(nn.Module):
    """A table and a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.columns, self.last = nn.Embedding(20, 8), nn.Linear(4, 8), nn.Linear(16, 2)

    def forward(self, table: Tensor, tokens: Tensor) -> Tensor:
        return self.last(torch.cat([self.columns(table).tanh(), self.words(tokens).mean(dim=1)], dim=1))


class Parts(Dataset[Any]):
    """Records that are made by a function of their number."""

    def __init__(self, record: Callable[[int], Any]) -> None:
        self.record = record

    def __len__(self) -> int:
        return NUMBER

    def __getitem__(self, index: int) -> Any:
        return self.record(index)


def three(batch: Any) -> Records:
    return Records((batch[0], batch[1]), batch[2])


def monitor(data: Dataset[Any], secret: Secret, module: nn.Module | None = None, **options: Any) -> AttributeMonitor:
    return AttributeMonitor(*private(module or Both(), data), nn.CrossEntropyLoss(), secret, **options)


BOTH = TensorDataset(TABLE, TOKENS, TARGET)


@pytest.mark.parametrize(
    ("secret", "argument", "column"),
    [(GRADE, 0, 1), (Secret.column(5, values=range(20), name="last word", argument=1, unseen=True), 1, 5)],
)
def test_the_distance_is_that_of_the_argument_that_holds_the_secret(secret: Secret, argument: int, column: int) -> None:
    torch.manual_seed(0)
    module = Both()
    before = deepcopy(module)
    model, optimizer, loader = private(module, BOTH, clip=1.0)
    watched = AttributeMonitor(model, optimizer, loader, criterion := nn.CrossEntropyLoss(), secret, split=three, scope="dataset")
    table, tokens, target = next(iter(loader))
    criterion(model(table, tokens), target).backward()
    optimizer.step()
    every = Records((TABLE, TOKENS), TARGET)
    assert watched.distances == pytest.approx([float(oracle(before, every, secret, 1.0).max())], rel=1e-3)
    changed = secret.variants(every.take([3]), [2]).inputs[argument][0, column]
    assert int(changed) == 2


def test_gap_clipping_takes_split_as_well() -> None:
    torch.manual_seed(0)
    made = training(Both(), BOTH, GRADE, gap=0.1, split=three)
    for _ in made.epoch():
        pass
    assert made.guarantee.attribute is not None


NESTED = Parts(lambda i: ((TABLE[i], TOKENS[i]), TARGET[i]))
NAMED = Parts(lambda i: {"table": TABLE[i], "tokens": TOKENS[i], "label": TARGET[i]})
SPLIT = r".*split=lambda batch: Records\(\(table, tokens\), target\)"


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (BOTH, {}, rf"cannot be called with argument 0 of a batch \(.*'tokens'\); pass split={SPLIT}"),
        (NESTED, {}, rf"argument 0 is a list of tensors.* an argument of its own; pass split={SPLIT}"),
        (NAMED, {}, rf"a batch must be \(inputs, target, ...\), got dict with the keys 'table', 'tokens', 'label'; pass {SPLIT}"),
        (BOTH, {"split": lambda batch: batch}, rf"split must return Records, got tuple: pass{SPLIT}"),
        (BOTH, {"split": lambda batch: Records(tuple(batch))}, rf"cannot be called with argument 0, 1, 2 of a batch{SPLIT}"),
    ],
)
def test_batches_that_are_not_inputs_and_target(data: Dataset[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        monitor(data, GRADE, **options)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (Secret.column(1, range(3), argument=2), rf"argument 2, .*; it is called with 0, 1\. .*argument=0.*split={SPLIT}"),
        (Secret.column(1, range(3), argument="table"), r"argument 'table', which the model is not called with"),
        (Secret.column(5, range(3)), r"has 4 columns\. It is looked for in argument 0 .* also gets 1: argument= says which"),
        (Secret.column(1, range(3), argument=1), r"never takes.* in argument 1 of the model, which also gets 0: argument= says"),
    ],
)
def test_a_secret_in_another_argument(secret: Secret, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        monitor(BOTH, secret, split=three)


def test_one_input_needs_no_argument() -> None:
    with pytest.raises(ValueError, match=r"needs column 9, but the model's input has 4 columns\.$"):
        monitor(TensorDataset(TABLE, TARGET), Secret.column(9, range(3)), nn.Linear(4, 2))


@pytest.mark.parametrize("secret", [Secret.column(2, [0.0, 1.0]), Secret.column(9, [0.0, 1.0]), Secret.one_hot([1, 2])])
def test_a_column_of_images_points_to_what_works(secret: Secret) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(75, 2))
    with pytest.raises(ValueError, match=r"shape \(3, 5, 5\), as an image or a sequence is.* with Secret\.function"):
        monitor(TensorDataset(IMAGES, TARGET), secret, module)
    with pytest.raises(ValueError, match=r"Each record is a single number: .*Secret\.function"):
        monitor(TensorDataset(TARGET, TARGET), Secret.column(0, [0, 1]), nn.Embedding(2, 2))
