"""Adult (UCI, CC BY 4.0, see data/ATTRIBUTION.md) as the paper has it: 108 columns after one-hot encoding, age is sensitive."""

from __future__ import annotations

import hashlib
import io
import lzma
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from betastar.runs.config import Recipe
from betastar.runs.encoder import TableEncoder
from betastar.runs.reading import StudyError
from betastar.runs.study import Study, split, tensors
from betastar.runs.tables import check, secret_of, with_public
from betastar.training.secrets.tables import restated

if TYPE_CHECKING:
    from pandas import DataFrame


SHA256 = "5506925c2f972b5ac74aa402e3f27d4bfc109ccc47a0fe4e32ce4332187f0dc6"
RECIPE = Recipe(batch_size=256, noise_multiplier=3.51, max_grad_norm=2.0, learning_rate=1e-4)
TARGET = "income"
AGES = range(17, 91)


def table(part: str = "data") -> DataFrame:
    """The raw records: "data" (32,561 of them, the paper's) or "test" (16,281)."""
    import pandas as pd

    raw = (files("betastar.runs") / "data" / "adult.csv.xz").read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise StudyError("the packaged file adult.csv.xz is damaged: install betastar again.")
    frame = pd.read_csv(io.BytesIO(lzma.decompress(raw)))
    return frame[frame["part"] == part].drop(columns="part").reset_index(drop=True)


def adult(seed: int = 0, sensitive: str = "age", along: Sequence[str] = (), drop: Sequence[str] = ()) -> Study:
    """80 % to train on (26,048 records), 20 % to test on. The other part of the data set is public: how frequent values are."""
    frame = table()
    labels = (frame.pop(TARGET) == ">50K").to_numpy()
    train, test = split(len(frame), seed)
    raw = frame.iloc[test]
    if unknown := [name for name in drop if name not in frame.columns]:
        raise StudyError(f"Adult has no column {unknown[0]!r}; it has {', '.join(map(repr, frame.columns))}.")
    frame = frame.drop(columns=list(drop))
    check(frame, [sensitive, *along])
    classes = ["<=50K", ">50K"]
    encoder, x = TableEncoder.fitted(frame, TARGET, classes, [*drop, "part"], every=True)
    ages = [f"{AGES[0]}:{AGES[-1]}"] if sensitive == "age" and not along else None
    secret = secret_of(encoder, frame, sensitive, along, ages)
    secret = with_public(secret, table("test"), sensitive, along)
    given_away = tuple(str(one) for one in restated(frame, sensitive, along))
    parts = tensors(x[train], labels[train]), tensors(x[test], labels[test])
    return Study("Adult", *parts, secret, classes, RECIPE, raw=raw, restated=given_away, encoder=encoder)
