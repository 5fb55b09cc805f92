"""Secrets in texts while transformers train: distances, gaps and audits are those of single records, one text at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from betastar.training import AttributeMonitor, Records, Secret, TextField

from .private import clipped, clipped_sum, diameters, oracle, private, sum_of, training, weighed

PAD, WIDTH = 0, 9
NAMES = [(31,), (32, 33), (34,), (35, 36, 37)]
WORDS = [" ".join(map(str, tokens)) for tokens in NAMES]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


class Attention(nn.Module):
    """One head, with a mask of padding; causal if that is asked for."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.project, self.causal = nn.Linear(width, 3 * width), causal

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, dim=2)
        score = (q @ k.transpose(1, 2)) / q.shape[2] ** 0.5
        hidden = mask[:, None, :] == 0
        if self.causal:
            hidden = hidden | torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return score.masked_fill(hidden, -1e4).softmax(dim=2) @ v


class Transformer(nn.Module):
    """Classifies a text, or predicts its next tokens if it is causal."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 6), nn.Embedding(WIDTH, 6)
        self.attention, self.norm, self.causal = Attention(6, causal), nn.LayerNorm(6), causal
        self.head = nn.Linear(6, 40 if causal else 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]).expand_as(ids))
        x = torch.tanh(self.norm(x + self.attention(x, mask)))
        return self.head(x if self.causal else (x * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True))


class NextToken(nn.Module):
    """The mean over records of the sum over tokens."""

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        losses = functional.cross_entropy(output[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none")
        return losses.sum(dim=1).mean()


def texts(causal: bool, number: int = 24, nobody: int = 0) -> TensorDataset:
    """Texts with a name in them, some of them twice, and some without one."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.full((number, WIDTH), PAD)
    for i in range(number):
        name = list(NAMES[i % 4]) if i >= nobody else [20]
        words = torch.randint(1, 20, (5,), generator=generator).tolist()
        row = [*words[:1], *name, *words[1 : 2 + i % 3], *(name if i % 8 in (0, 2) and i % 3 == 0 else [])]
        ids[i, : len(row)] = torch.tensor(row)
    mask = (ids != PAD).long()
    target = ids.masked_fill(mask == 0, -100) if causal else torch.randint(3, (number,), generator=generator)
    return TensorDataset(ids, mask, target)


def split(batch: Any) -> Records:
    return Records((batch[0], batch[1]), batch[2])


def field(causal: bool) -> TextField:
    return TextField(0, along={1: 0}, labels="target" if causal else None, pad=PAD)


def model(causal: bool) -> Transformer:
    torch.manual_seed(0)
    return Transformer(causal)


def watched(causal: bool, secret: Secret, data: TensorDataset, **options: Any) -> tuple[Any, Any, AttributeMonitor]:
    parts = private(model(causal), data, batch=8)
    criterion = NextToken() if causal else nn.CrossEntropyLoss()
    return parts, criterion, AttributeMonitor(*parts, criterion, secret, split=split, **options)


@pytest.mark.parametrize("causal", [False, True])
def test_distances_are_those_of_single_records(causal: bool) -> None:
    data = texts(causal)
    secret = Secret.word(numbers, field(causal), WORDS, name="who")
    parts, criterion, monitor = watched(causal, secret, data, scope="dataset")
    module, optimizer, loader = parts
    records = split(data.tensors)
    wanted = []
    for ids, mask, target in [batch for batch in loader if len(batch[0])][:3]:
        optimizer.zero_grad()
        criterion(module(ids, mask), target).backward()
        copy = model(causal)
        copy.load_state_dict(module._module.state_dict())
        wanted.append(float(oracle(copy, records, secret, criterion=criterion).max()))
        optimizer.step()
    np.testing.assert_allclose(monitor.distances, wanted, rtol=1e-4)
    assert min(wanted) > 0.1


def test_records_that_name_nobody_have_distance_zero() -> None:
    data = texts(False, nobody=6)
    secret = Secret.word(numbers, field(False), WORDS, others="keep", name="who")
    parts, criterion, monitor = watched(False, secret, data, scope="dataset", ledger=True)
    module, optimizer, loader = parts
    ids, mask, target = next(batch for batch in loader if len(batch[0]))
    criterion(module(ids, mask), target).backward()
    wanted = oracle(model(False), split(data.tensors), secret)
    optimizer.step()
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)
    assert monitor.ledger is not None
    assert float(monitor.ledger.leakage[:6].max()) < 1e-12 < float(monitor.ledger.leakage[6:].min())
    assert wanted[:6].tolist() == [0.0] * 6
    assert float(wanted[6:].min()) > 0.0


def test_variants_are_run_of_texts_that_name_somebody_only() -> None:
    data = texts(False, number=24, nobody=20)
    secret = Secret.word(numbers, field(False), WORDS, others="keep", name="who")
    parts, criterion, monitor = watched(False, secret, data, ledger=True)
    module, optimizer, _ = parts
    ids, mask, target = data[12:]
    criterion(module(ids, mask), target).backward()
    rows: list[int] = []
    module._module.head.register_forward_hook(lambda layer, inputs, output: rows.append(len(output)))
    wanted = oracle(model(False), split(data[12:]), secret)
    monitor.records(torch.arange(12, 24))
    optimizer.step()
    assert sum(rows) == 4 * 4  # four values of four texts
    assert monitor.distances[0] == pytest.approx(float(wanted.max()), rel=1e-4)
    assert monitor.ledger is not None
    np.testing.assert_array_equal(monitor.ledger.measured, [False] * 12 + [True] * 12)
    assert float(monitor.ledger.leakage[12:20].max()) == 0.0 < float(monitor.ledger.leakage[20:].min())


@pytest.mark.parametrize("nobody", [0, 9, 24])
def test_the_sum_of_a_gap_holds_texts_that_name_nobody(nobody: int) -> None:
    data = texts(False, nobody=nobody)
    secret = Secret.word(numbers, field(False), WORDS, others="keep", name="who", unseen=True)
    made, records = training(model(False), data, secret, gap=0.05, batch_size=8, split=split), split(data.tensors)
    _, own, used = weighed(clipped_sum(made), records)
    points = clipped(model(False), records, secret)
    wanted = torch.einsum("na,nae->e", used[range(len(own)), own], points)
    assert float((sum_of(made, records) - wanted).norm()) <= 1e-5 * float(wanted.norm())


@pytest.mark.parametrize("causal", [False, True])
def test_gap_clipping_keeps_the_gap(causal: bool) -> None:
    data = texts(causal, nobody=4)
    secret = Secret.word(numbers, field(causal), WORDS, others="keep", name="who")
    criterion = NextToken() if causal else nn.CrossEntropyLoss()
    made = training(model(causal), data, secret, criterion, gap=0.05, batch_size=8, split=split)
    records = split(data.tensors)
    points = clipped(model(causal), records, secret, criterion=criterion)
    assert float(diameters(points).max()) > 0.1
    used = weighed(clipped_sum(made), records)[2]
    assert float(diameters(torch.bmm(used, points)).max()) <= 0.05 * (1.0 + 1e-5) + 1e-7
    made.step()


def test_the_class_of_a_text_is_a_secret() -> None:
    data = texts(False)
    secret = Secret.label(3, name="topic")
    parts, criterion, monitor = watched(False, secret, data, scope="dataset")
    module, optimizer, loader = parts
    ids, mask, target = next(batch for batch in loader if len(batch[0]))
    criterion(module(ids, mask), target).backward()
    wanted = float(oracle(model(False), split(data.tensors), secret).max())
    optimizer.step()
    assert monitor.distances[0] == pytest.approx(wanted, rel=1e-4)
    both = Secret.joint(Secret.word(numbers, field(False), WORDS), secret)
    made = both.variants(split(data.tensors).take([1]), range(12))
    assert made.target.tolist() == [0, 1, 2] * 4
    assert made.inputs[0][::3].unique(dim=0).shape == (4, WIDTH)
