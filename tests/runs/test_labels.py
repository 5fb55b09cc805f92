"""The column that is predicted: classes or numbers, how it is read is said, and it can be the secret."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from betastar.runs.encoder import LabelScale
from betastar.runs.reading import StudyError
from betastar.runs.tables import FEW_NUMBERS, Labels, read_labels
from betastar.training import Records

TRAIN = range(80)


def column(values: object) -> pd.Series:
    return pd.Series(values, name="price")


def read(values: object, label_range: tuple[float, float] | None = None) -> Labels:
    return read_labels(column(values), TRAIN, label_range)


def test_a_label_is_a_number_if_it_has_many_values() -> None:
    few, many = np.arange(100) % FEW_NUMBERS, np.arange(100) % (FEW_NUMBERS + 1)
    assert read(few).scale is None
    assert len(read(few).classes) == FEW_NUMBERS
    assert read(few).told == ("The label 'price' holds 20 numbers, read as classes (--label-range LOW:HIGH: as a number).",)
    assert read(few, label_range=(0.0, 19.0)).scale is not None
    assert read(many).classes == []
    assert "holds 21 different numbers, so the model predicts a number by least squares. If they are " in read(many).told[0]
    for obvious in (["yes", "no"] * 50, np.arange(100) % 2, np.arange(100) % 2 == 0):
        assert read(obvious).told == ()
        assert len(read(obvious).classes) == 2


def test_targets_of_numbers() -> None:
    """Without a range: mean 0 and deviation 1 in the training records alone. With one: -1…1, limited to it in training only."""
    prices = np.random.default_rng(0).normal(300.0, 50.0, 100)
    fitted = read(prices)
    train = fitted.targets(TRAIN, train=True)
    assert train.shape == (80, 1)
    assert train.dtype == np.float32
    assert train.mean() == pytest.approx(0.0, abs=1e-6)
    assert train.std() == pytest.approx(1.0, abs=1e-6)
    said = " ".join(fitted.told)
    assert "computed without noise, and no figure of risk covers them: --label-range" in said
    declared = read(prices, label_range=(250.0, 350.0))
    outside = int(((prices[:80] < 250.0) | (prices[:80] > 350.0)).sum())
    assert declared.scale == LabelScale(300.0, 50.0, 250.0, 350.0)
    assert f"{outside} of 80 training records have a 'price' beyond that range" in declared.told[2]
    assert "The declared range 250…350 scales 'price'; nothing of that comes from the records." in declared.told
    limited, whole = declared.targets(TRAIN, train=True), declared.targets(TRAIN, train=False)
    assert np.allclose(limited[:, 0], np.clip((prices[:80] - 300.0) / 50.0, -1.0, 1.0))
    assert declared.scale is not None
    assert declared.scale.labels(whole[:, 0]) == pytest.approx(prices[:80], rel=1e-14)


def test_the_scale_of_a_declared_range_knows_nothing_of_the_records() -> None:
    one, other = np.random.default_rng(1).normal(0.0, 1.0, (2, 100))
    assert read(one, label_range=(-3.0, 3.0)).scale == read(other * 9.0, label_range=(-3.0, 3.0)).scale
    assert read(one).scale != read(other).scale


@given(st.floats(-1e300, 1e300), st.floats(1e-3, 1e300), st.floats(-1.0, 1.0))
def test_labels_come_back(middle: float, half: float, target: float) -> None:
    low, high = middle - half, middle + half
    if not low < high:
        return
    scale = LabelScale.of_range(low, high)
    assert math.isfinite(scale.scale)
    assert scale.labels(scale.targets(low)) == pytest.approx(low, rel=1e-9, abs=1e-9 * half)
    label = float(scale.labels(target))
    assert float(scale.targets(label)) == pytest.approx(target, abs=1e-9 * (1.0 + abs(middle) / half))


@pytest.mark.parametrize(
    ("values", "label_range", "message"),
    [
        (["1 $", "2 $"] * 50, (0.0, 1.0), r"'price' must hold numbers for regression, got '1 \$'"),
        (np.arange(100), (1.0, 1.0), "--label-range must be two finite numbers, the smaller one first, got 1 and 1"),
        (np.arange(100), (0.0, math.inf), "must be two finite numbers"),
        ([3.0] * 100, None, r"'price' is the same in each record \(.*3\.0.*\): there is nothing to learn"),
        ([3.0] * 80 + list(range(21)), None, "is the same in each training record"),
        ([f"w{i}" for i in range(600)], None, "has 600 classes, more than 500: a label of words must have fewer"),
    ],
)
def test_labels_that_cannot_be_read_so(values: object, label_range: tuple[float, float] | None, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        read(values, label_range)


def test_the_label_as_a_secret() -> None:
    classes = read(["b", "a"] * 50).secret(None)
    assert classes.labels == ["a", "b"]
    with pytest.raises(StudyError, match="leave out --value"):
        read(["b", "a"] * 50).secret(["a"])
    prices = np.random.default_rng(0).integers(0, 40, 100)
    declared = read(prices, label_range=(5.0, 30.0))
    secret = declared.secret(None)
    assert secret.labels == list(range(5, 31))
    records = Records((torch.zeros(80, 1),), torch.from_numpy(declared.targets(TRAIN, train=True)))
    held = np.clip(prices[:80], 5, 30)
    assert [secret.labels[i] for i in secret.own(records)] == held.tolist()
    other = secret.variants(records, secret.only(5, 30)).target
    assert other.flatten().tolist() == [-1.0, 1.0] * 80
    with pytest.raises(StudyError, match="takes 1001 values: round it first"):
        read_labels(column(np.arange(1001) / 7.0), range(800)).secret(None)
