"""Somebody's own table (CSV or Parquet) as a study: columns of numbers and of words are found by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from betastar.studies.study import Recipe, Study, StudyError, split, tensors
from betastar.training import Secret

#: More values of a sensitive column than this must be asked for.
MANY_VALUES = 1000
#: A column of words with more categories is an identifier rather than an attribute.
MANY_CATEGORIES = 500


def read(path: str | Path) -> Any:
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise StudyError(f"no file {path}.")
    try:
        frame = pd.read_parquet(path) if path.suffix in (".parquet", ".pq") else pd.read_csv(path, skipinitialspace=True)
    except ImportError:
        raise StudyError(f"{path} is a Parquet file; reading it needs the package pyarrow.") from None
    except (ValueError, EOFError, OSError) as problem:
        raise StudyError(f"{path} is truncated or no table: {str(problem).splitlines()[0]}") from None
    if len(frame) < 10:
        raise StudyError(f"{path} has {len(frame)} records; at least 10 are needed.")
    return frame


def own(
    path: str | Path,
    target: str,
    sensitive: str,
    values: list[str] | None = None,
    between: tuple[float, float] | None = None,
    drop: list[str] | None = None,
    seed: int = 0,
) -> Study:
    """Train on 80 % of the records of a table to predict `target`; `sensitive` is the secret.

    values: its values, as in the table; between: the whole numbers from … to …. By default all that occur.
    """
    frame = read(path)
    for column in (target, sensitive, *(drop or [])):
        if column not in frame.columns:
            raise StudyError(f"{path} has no column {column!r}; it has {', '.join(map(repr, frame.columns))}.")
    if target == sensitive:
        raise StudyError(
            f"target and sensitive column are both {target!r}; a label is studied with betastar.training.Secret.label."
        )
    frame = frame.drop(columns=drop or []).dropna(subset=[target]).reset_index(drop=True)
    goal = frame.pop(target).astype(str)
    classes = sorted(goal.unique())
    if len(classes) < 2:
        raise StudyError(f"the target column {target!r} has one class only ({classes[0]!r}): there is nothing to learn.")
    if len(classes) > MANY_CATEGORIES:
        raise StudyError(f"the target column {target!r} has {len(classes)} classes; numbers must be binned first.")
    _check_sensitive(frame, sensitive)
    encode = _encoder(frame, sensitive)
    x, y = encode.transform(frame), goal.map({name: i for i, name in enumerate(classes)}).to_numpy()
    shown = _values(frame[sensitive], sensitive, values, between)
    secret = Secret.from_transformer(
        encode, sensitive, shown, unseen=True, records=frame.sample(min(64, len(frame)), random_state=0)
    )
    train, test = split(len(frame), seed)
    batch = int(min(256, max(8, len(train) // 50)))
    recipe = Recipe(batch_size=batch, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1e-3, epochs=10)
    return Study(Path(path).stem, tensors(x[train], y[train]), tensors(x[test], y[test]), secret, classes, recipe)


def _check_sensitive(frame: Any, sensitive: str) -> None:
    column = frame[sensitive]
    missing = int(column.isna().sum())
    if missing:
        raise StudyError(f"the sensitive column {sensitive!r} is missing in {missing} records: fill it in or drop them.")
    if column.nunique() < 2:
        raise StudyError(f"the sensitive column {sensitive!r} is constant ({column.iloc[0]!r}): there is no secret in it.")


def _values(column: Any, name: str, values: list[str] | None, between: tuple[float, float] | None) -> list[Any]:
    numeric = column.dtype.kind in "iufb"
    held = sorted(column.unique().tolist())
    if values is not None and between is not None:
        raise StudyError("give the values of the sensitive column or their range, not both.")
    if between is not None:
        low, high = between
        if not numeric or low >= high or low > held[0] or high < held[-1]:
            raise StudyError(f"the range {low:g}…{high:g} must contain all values of {name!r}, {held[0]}…{held[-1]}.")
        shown: list[Any] = (
            np.arange(low, high + 1).tolist() if column.dtype.kind in "iu" else sorted({*np.arange(low, high + 1), *held})
        )
    elif values is not None:
        try:
            shown = [float(value) for value in values] if numeric else list(values)
        except ValueError:
            raise StudyError(f"the column {name!r} holds numbers; got the values {', '.join(map(repr, values))}.") from None
        strangers = [value for value in held if value not in shown]
        if strangers:
            raise StudyError(f"the column {name!r} also takes the value {strangers[0]!r}, which is not among the given ones.")
    elif column.dtype.kind in "iu" and held[-1] - held[0] < MANY_VALUES:
        shown = list(range(held[0], held[-1] + 1))
    else:
        shown = held
    if len(shown) > MANY_VALUES:
        raise StudyError(f"the column {name!r} takes {len(shown)} values: round it first, or give its values or range.")
    return shown


def _encoder(frame: Any, sensitive: str) -> Any:
    """Numbers: missing ones become the median, then everything to mean 0 and deviation 1. Words: one-hot."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [column for column in frame.columns if frame[column].dtype.kind in "iufb"]
    words = [column for column in frame.columns if column not in numbers]
    for column in words:
        frame[column] = frame[column].astype(object).where(frame[column].notna(), "missing").astype(str)
        if column != sensitive and frame[column].nunique() > MANY_CATEGORIES:
            raise StudyError(
                f"the column {column!r} has {frame[column].nunique()} categories: an identifier? Leave it out (--drop {column})."
            )
    encode = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            ("words", make_pipeline(OneHotEncoder(sparse_output=False), StandardScaler()), words),
        ]
    )
    return Pipeline([("encode", encode)]).fit(frame)
