"""The columns of somebody's own table: which are numbers, bits, dates or words, what is done to each, and what is refused."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from betastar.datasets.errors import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from sklearn.pipeline import Pipeline

#: A column of words with more categories is an identifier rather than an attribute.
MANY_CATEGORIES = 500
#: Whole numbers or words that differ in each of so many records identify them.
IDENTIFIES = 20
#: So many columns of 0 and 1 are named.
NAMED = 8
#: A date, with or without a time, as ISO 8601 has it.
DATE = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?"


def plain(frame: DataFrame, needed: Sequence[str]) -> DataFrame:
    """The table with columns of numbers and of words as NumPy has them; raises StudyError for other columns."""
    import numpy as np
    import pandas as pd

    if twice := list(frame.columns[frame.columns.duplicated()]):
        raise StudyError(f"the table has two columns that are called {twice[0]!r}: rename one of them.")
    columns = {}
    for name, column in frame.items():
        out = "" if name in needed else f", or leave it out (--drop {shlex.quote(str(name))})"
        if column.isna().all():
            raise StudyError(f"the column {name!r} holds no value at all: fill it in{out}.")
        if column.dtype == object:
            nested = next((one for one in column if isinstance(one, list | tuple | set | dict | np.ndarray)), None)
            if nested is not None:
                kind = type(nested).__name__
                raise StudyError(f"the column {name!r} is nested (a {kind} in a record): make a column of each part{out}.")
        elif column.dtype.kind in "iufb" and pd.api.types.is_extension_array_dtype(column.dtype):
            missing = bool(column.isna().any())
            column = pd.Series(column.to_numpy(dtype=float, na_value=np.nan) if missing else column.to_numpy(), column.index)
        if column.dtype.kind == "c":
            raise StudyError(f"the column {name!r} holds complex numbers: make a column of each part{out}.")
        if column.dtype.kind == "f" and (endless := int(np.isinf(column).sum())):
            raise StudyError(f"the column {name!r} is infinite in {endless} records: put a number there{out}.")
        columns[name] = column
    return pd.DataFrame(columns)


def features(frame: DataFrame, needed: Sequence[str], keep: Sequence[str] = ()) -> list[str]:
    """Make features of the columns, in place: dates become numbers, missing words a word. What was done, in sentences.

    Parameters
    ----------
    frame : DataFrame
        The table, without the column to predict and without identifiers of persons.
    needed : sequence of str
        The sensitive columns, which stay as they are.
    keep : sequence of str
        Columns that may be unique for each record.

    Raises
    ------
    StudyError
        If a column identifies the records.
    """
    told: list[str] = []
    for name in frame.columns:
        option = shlex.quote(str(name))
        if name not in needed and name not in keep and _identifies(frame[name]):
            raise StudyError(
                f"the column {name!r} is different in each of the {len(frame)} records, as an identifier is, and a model would "
                f"learn the records by heart. Leave it out (--drop {option}), or say that it is a feature (--keep {option})."
            )
        if name not in needed and (days := days_of(frame[name])) is not None:
            frame[name] = days
            told.append(f"The column {name!r} holds dates: the model sees the number of days since 1970.")
        missing = int(frame[name].isna().sum())
        where = f"The column {name!r} is missing in {missing} of {len(frame)} records"
        if missing and frame[name].dtype.kind in "iufb":
            told.append(f"{where}: the median stands there.")
        elif missing:
            told.append(f"{where}: 'missing' is a category of its own.")
        if frame[name].dtype.kind not in "iufb":
            frame[name] = frame[name].astype(object).where(frame[name].notna(), "missing").astype(str)
            number = frame[name].nunique()
            if name not in needed and name not in keep and number > MANY_CATEGORIES:
                raise StudyError(
                    f"the column {name!r} has {number} categories: an identifier? Leave it out (--drop {option}). If it says "
                    f"whose record it is, --person {option} leaves it out and analyses the risk of a person."
                )
    return [*_told_bits(_bits(frame)), *told]


def _bits(frame: DataFrame) -> list[str]:
    """The columns that hold 0 and 1 only, besides missing values."""
    numeric = [name for name in frame.columns if frame[name].dtype.kind in "iufb"]
    return [name for name in numeric if set(frame[name].dropna().unique()) <= {0, 1}]


def _told_bits(bits: Sequence[str]) -> list[str]:
    if len(bits) == 1:
        return [f"The column {bits[0]!r} holds 0 and 1 and stays so: it is not scaled."]
    shown = ", ".join(map(repr, bits[:NAMED])) + (f", … ({len(bits)} of them)" if len(bits) > NAMED else "")
    return [f"The columns {shown} hold 0 and 1 and stay so: they are not scaled."] if bits else []


def _identifies(column: Series) -> bool:
    """Whether whole numbers or words differ in every record."""
    if len(column) < IDENTIFIES or column.dtype.kind in "fbcMm" or column.isna().any():
        return False
    return int(column.nunique()) == len(column) and days_of(column) is None


def days_of(column: Series) -> Series | None:
    """Days since 1970 of a column of dates; None if it holds something else."""
    import pandas as pd

    if column.dtype.kind in "iufbcm":
        return None
    dates = isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M"
    held = column.dropna()
    if not dates and not (all(isinstance(one, str) for one in held) and held.str.strip().str.fullmatch(DATE).all()):
        return None
    try:
        moments = pd.to_datetime(column, format=None if dates else "ISO8601", utc=True)
    except ValueError:  # as 2023-02-30
        return None
    return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)


def encoder(frame: DataFrame) -> Pipeline:
    """Numbers: missing ones become the median, then everything to mean 0 and deviation 1. Bits and one-hot words stay 0 and 1."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numeric = [name for name in frame.columns if frame[name].dtype.kind in "iufb"]
    bits = _bits(frame)
    numbers = [name for name in numeric if name not in bits]
    words = [name for name in frame.columns if name not in numeric]
    encode = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            ("bits", SimpleImputer(strategy="median"), bits),
            ("words", OneHotEncoder(sparse_output=False), words),
        ]
    )
    return Pipeline([("encode", encode)]).fit(frame)
