"""Models of Hugging Face as people use them: dictionaries, outputs with names, position ids, checkpointing, and the Trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from betastar.training import (
    AttributeMonitor,
    GradientError,
    NextTokenLoss,
    Records,
    Secret,
    TextField,
    by_name,
)

from .language_models import CLASSES, PLACE, VALUES, VOCABULARY, bert, gpt2, lora
from .private import oracle, private, training

LENGTH = 5


class Texts(Dataset[dict[str, Tensor]]):
    """Texts as dictionaries, some of them padded."""

    def __init__(self, causal: bool, places: bool = True, number: int = 40) -> None:
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(1, VOCABULARY, (number, LENGTH), generator=generator)
        ids[:, PLACE] = torch.tensor(VALUES)[torch.arange(number) % len(VALUES)]
        ids[::3, -1] = 0
        mask = (ids != 0).long()
        labels = ids.masked_fill(mask == 0, -100) if causal else torch.arange(number) % CLASSES
        self.columns = {"input_ids": ids, "attention_mask": mask}
        if places:
            self.columns["position_ids"] = torch.arange(LENGTH).repeat(number, 1)
        self.columns["labels"] = labels

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


class Logits(nn.Module):
    """A criterion that takes the output of a classifier."""

    def forward(self, output: Any, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.logits, target)


def word() -> Secret:
    return Secret.column(PLACE, VALUES, name="word", argument="input_ids")


def made(kind: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return {"bert": bert, "gpt2": gpt2, "lora": lora}[kind](**options).train()


def loss(kind: str) -> nn.Module:
    return Logits() if kind == "bert" else NextTokenLoss()


def steps(parts: Any, criterion: Any, number: int) -> list[Records]:
    """The loop of Hugging Face: dictionaries in, an output with logits out."""
    model, optimizer, loader = parts
    seen = []
    for batch in loader:
        if not len(batch["labels"]):
            continue
        target = batch.pop("labels")
        optimizer.zero_grad()
        criterion(model(**batch), target).backward()
        optimizer.step()
        seen.append(Records((), target, batch))
        if len(seen) == number:
            break
    return seen


@pytest.mark.parametrize("kind", ["bert", "gpt2", "lora"])
def test_dictionaries_and_outputs_with_names(kind: str) -> None:
    module = made(kind)
    copy = made(kind)
    parts, criterion = private(module, Texts(kind != "bert"), batch=8), loss(kind)
    monitor = AttributeMonitor(*parts, criterion, word(), split=by_name())
    (batch,) = steps(parts, criterion, 1)
    assert monitor.distances[0] == pytest.approx(float(oracle(copy, batch, word(), criterion=loss(kind)).max()), abs=1e-5)
    assert monitor.distances[0] > 0.02


def test_batches_without_the_target_are_refused() -> None:
    with pytest.raises(TypeError, match="a dictionary with the entry 'label', got dict with the keys 'input_ids'"):
        by_name("label")({"input_ids": torch.zeros(2, 3)})
    with pytest.raises(TypeError, match="a dictionary with the entry 'labels', got tuple"):
        by_name()((torch.zeros(2, 3), torch.zeros(2)))


def test_losses_of_hugging_face_do_not_belong_to_texts() -> None:
    """The mean over the tokens of all texts of a batch is refused, and the mean over texts of their means is not."""
    module = made("gpt2")

    class Tokens(nn.Module):
        def forward(self, output: Any, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    parts = private(module, Texts(True), batch=8)
    with pytest.raises(GradientError, match="a model or a criterion that mixes records"):
        AttributeMonitor(*parts, Tokens(), word(), split=by_name())
    output, labels = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([[1, 2, 3, 4]] * 3)
    labels[1, 2:] = -100
    labels[2] = -100
    each = [float(Tokens()(type("Output", (), {"logits": output[i : i + 1]}), labels[i : i + 1])) for i in (0, 1)]
    assert NextTokenLoss("none")(output, labels).tolist() == pytest.approx([*each, 0.0])
    assert float(NextTokenLoss("sum")(output, labels)) == pytest.approx(sum(each))
    assert float(NextTokenLoss()(output, labels)) == pytest.approx(sum(each) / 3)
    with pytest.raises(ValueError, match="reduction must be"):
        NextTokenLoss("median")


@pytest.mark.filterwarnings("ignore:gradients are computed by:UserWarning")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "lora"])
def test_gap_clipping_takes_position_ids_that_the_model_makes(kind: str, dropout: float) -> None:
    data = Texts(kind != "bert", places=False)
    trained = training(made(kind, dropout=dropout), data, word(), loss(kind), batch_size=8, gap=0.05, split=by_name(), steps=2)
    assert "knows everything about a record except the value of 'word' faces β* ≥" in str(trained.fit(progress=False).guarantee)


def test_a_frozen_embedding_may_number_positions_itself() -> None:
    criterion = NextTokenLoss()
    parts = private(made("lora", dropout=0.3), Texts(True, places=False), batch=8)
    monitor = AttributeMonitor(*parts, criterion, word(), split=by_name())
    steps(parts, criterion, 2)
    assert monitor.distances.min() > 0.0


def checkpointed(kind: str, again: bool, **options: Any) -> nn.Module:
    module = made(kind, **options)
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": again})
    if again:
        module.enable_input_require_grads()
    return module


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["gpt2", "lora"])
def test_gradient_checkpointing_changes_nothing(kind: str, dropout: float) -> None:
    ends, criterion = [], NextTokenLoss()
    for module in (made(kind, dropout=dropout), checkpointed(kind, True, dropout=dropout)):
        parts = private(module, Texts(True), batch=8)
        torch.manual_seed(1)
        monitor = AttributeMonitor(*parts, criterion, word(), split=by_name())
        steps(parts, criterion, 2)
        ends.append((monitor.distances, torch.cat([p.detach().flatten() for p in module.parameters()])))
    np.testing.assert_allclose(ends[1][0], ends[0][0], rtol=0.0, atol=1e-6)
    torch.testing.assert_close(ends[1][1], ends[0][1], rtol=0.0, atol=1e-6)
    assert any(vars(part).get("gradient_checkpointing") for part in module.modules())


@pytest.mark.filterwarnings("ignore:gradients are computed by:UserWarning")
def test_checkpointing_that_opacus_cannot_follow() -> None:
    criterion = NextTokenLoss()
    options = {"batch_size": 8, "gap": 0.05, "split": by_name(), "steps": 1}
    assert training(checkpointed("gpt2", False), Texts(True), word(), criterion, **options).fit(progress=False).finished


def test_a_secret_in_the_text_of_a_dictionary() -> None:
    """The label of a language model changes with the token."""
    field = TextField("input_ids", labels="target", along={"attention_mask": 0}, fixed=("position_ids",), pad=0)
    secret = Secret.tokens(PLACE, [[value] for value in VALUES], field=field, name="word")
    criterion = NextTokenLoss()
    module, copy = made("gpt2"), made("gpt2")
    parts = private(module, Texts(True), batch=8)
    monitor = AttributeMonitor(*parts, criterion, secret, split=by_name())
    (batch,) = steps(parts, criterion, 1)
    assert monitor.distances[0] == pytest.approx(float(oracle(copy, batch, secret, criterion=criterion).max()), abs=1e-5)
