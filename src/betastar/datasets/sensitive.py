"""The sensitive column of a table as a secret, and the other columns that give it away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from betastar.datasets.study import StudyError
from betastar.training import Secret

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from sklearn.pipeline import Pipeline

#: More values of a sensitive column than this must be asked for.
MANY_VALUES = 1000


def secret_of(
    encode: Pipeline,
    frame: DataFrame,
    sensitive: str,
    along: Sequence[str] = (),
    values: list[str] | None = None,
    between: tuple[float, float] | None = None,
    records: DataFrame | None = None,
) -> Secret:
    """The secret that a column of a table is.

    Parameters
    ----------
    encode : Pipeline
        The fitted scikit-learn transformer of the table.
    frame : DataFrame
        The table.
    sensitive : str
        The column.
    along : sequence of str
        Columns that change together with it.
    values, between : optional
        The values that the attacker hesitates between, or their range; see `values_of`.
    records : DataFrame, optional
        Some records, on which the transformer is tried.
    """
    if not along:
        shown = values_of(frame[sensitive], sensitive, values, between)
        secret = Secret.from_transformer(encode, sensitive, shown, unseen=True, records=records)
        secret.restated_reported = True  # the study reports them
        return secret
    if values is not None or between is not None:
        raise StudyError("values and range of the sensitive column are those that occur when other columns change with it.")
    names = [sensitive, *along]
    rows = sorted(frame[names].drop_duplicates().itertuples(index=False, name=None), key=repr)
    if len(rows) > MANY_VALUES:
        raise StudyError(f"the columns {', '.join(map(repr, names))} take {len(rows)} combinations of values: name fewer.")
    secret = Secret.from_transformer(encode, names, rows, unseen=True, records=records, name=together(sensitive, along))
    secret.restated_reported = True
    return secret


def together(sensitive: str, along: Sequence[str]) -> str:
    """What a secret of several columns is called."""
    return f"{sensitive} with {' and '.join(along)}"


def with_public(secret: Secret, public: DataFrame, sensitive: str, along: Sequence[str] = ()) -> Secret:
    """The secret with the frequencies that its values have among public records; a value that does not occur counts once."""
    names = [sensitive, *along]
    if missing := [name for name in names if name not in public.columns]:
        raise StudyError(f"the public records have no column {missing[0]!r}; they have {', '.join(map(repr, public.columns))}.")
    held = public[sensitive] if not along else public[names].apply(tuple, axis=1)
    times = held.value_counts()
    counts = np.array([float(times.get(label, 0.0)) for label in secret.labels]) + 1.0
    return secret.with_prior(counts / counts.sum())


def check(frame: DataFrame, names: Sequence[str]) -> None:
    """Raise StudyError unless these columns are there and each record holds a secret in them."""
    for name in names:
        if name not in frame.columns:
            raise StudyError(f"there is no column {name!r}; there are {', '.join(map(repr, frame.columns))}.")
        missing = int(frame[name].isna().sum())
        if missing:
            raise StudyError(
                f"the sensitive column {name!r} is missing (NaN) in {missing} of {len(frame)} records. Fill it in, with a value "
                "of its own if need be, or leave these records out of the table."
            )
        if frame[name].nunique() < 2:
            raise StudyError(f"the sensitive column {name!r} is constant ({frame[name].iloc[0]!r}): there is no secret in it.")


def values_of(column: Series, name: str, values: list[str] | None, between: tuple[float, float] | None) -> list[Any]:
    """The values that an attacker hesitates between: the given values or range, or all that occur.

    Where whole numbers occur, those between them count as well.
    """
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
