"""Adult (UCI, CC BY 4.0, see data/ATTRIBUTION.md) as the paper has it: 108 columns after one-hot encoding, age is sensitive."""

from __future__ import annotations

import hashlib
import io
import lzma
from importlib.resources import files
from typing import Any

from betastar.studies.study import Recipe, Study, StudyError, split, tensors
from betastar.training import Secret

SHA256 = "5506925c2f972b5ac74aa402e3f27d4bfc109ccc47a0fe4e32ce4332187f0dc6"
RECIPE = Recipe(batch_size=256, noise_multiplier=3.51, max_grad_norm=2.0, learning_rate=1e-4)
TARGET = "income"
AGES = range(17, 91)


def table(part: str = "data") -> Any:
    """The raw records: "data" (32,561 of them, the paper's) or "test" (16,281)."""
    import pandas as pd

    raw = (files("betastar.studies") / "data" / "adult.csv.xz").read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise StudyError("the packaged file adult.csv.xz is damaged: install betastar again.")
    frame = pd.read_csv(io.BytesIO(lzma.decompress(raw)))
    return frame[frame["part"] == part].drop(columns="part").reset_index(drop=True)


def encoder(frame: Any) -> Any:
    """One-hot encoding, then every column to mean 0 and deviation 1; fitted on all records, so that no category is missing."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = list(frame.select_dtypes("number").columns)
    words = [column for column in frame.columns if column not in numbers]
    encode = ColumnTransformer([("numbers", "passthrough", numbers), ("words", OneHotEncoder(sparse_output=False), words)])
    return Pipeline([("encode", encode), ("scale", StandardScaler())]).fit(frame)


def adult(seed: int = 0) -> Study:
    """80 % to train on (26,048 records), 20 % to test on."""
    frame = table()
    labels = (frame.pop(TARGET) == ">50K").to_numpy()
    encode = encoder(frame)
    x = encode.transform(frame)
    train, test = split(len(frame), seed)
    secret = Secret.from_transformer(encode, "age", AGES)
    return Study("Adult", tensors(x[train], labels[train]), tensors(x[test], labels[test]), secret, ["<=50K", ">50K"], RECIPE)
