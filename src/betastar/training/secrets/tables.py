"""Secrets in tables: how a transformer encodes a raw column, and the columns from which a secret can be read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

if TYPE_CHECKING:
    import pandas as pd


# ---- Encoding: a fitted scikit-learn transformer tells how it encodes a raw column, by transforming made-up records.

#: The number of raw records that the values are tried on: made-up ones, and given ones.
TRIALS = 4
GIVEN_TRIALS = 64
#: Transformers that treat each column by itself. Others may look at the rest of the record.
BY_COLUMN = [
    "StandardScaler",
    "MinMaxScaler",
    "MaxAbsScaler",
    "RobustScaler",
    "QuantileTransformer",
    "PowerTransformer",
    "Binarizer",
    "KBinsDiscretizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "TargetEncoder",
    "SimpleImputer",
    "MissingIndicator",
    "ColumnTransformer",
    "Pipeline",
    "FeatureUnion",
]


def encode(
    transformer: Any, column: str | Sequence[str], values: Any, records: Any = None
) -> tuple[list[int], NDArray[Any], list[Any]]:
    """The output columns that a raw column changes, their content for each value, and the values.

    `column`, `values` and `records` are those of `Secret.from_transformer`.
    """
    import pandas as pd
    from sklearn.pipeline import Pipeline

    if isinstance(transformer, Pipeline) and not hasattr(transformer[-1], "transform"):
        transformer = transformer[:-1]  # the last step is the model itself
    names = [column] if isinstance(column, str) else list(column)
    shown = list(values)
    rows = [(value,) for value in shown] if isinstance(column, str) else [tuple(value) for value in shown]
    if len(rows) < 2:
        raise ValueError(f"values must be at least two for the column {column!r}, got {len(rows)}.")
    known = _columns(transformer)
    for name in names:
        if name not in known:
            raise ValueError(f"the column {name!r} does not exist; the transformer was fitted on {', '.join(map(repr, known))}.")
    if any(len(row) != len(names) for row in rows):
        raise ValueError(f"values must be tuples of {len(names)}, one entry for each of {names}.")
    for k, name in enumerate(names):
        _refuse_unknown(transformer, name, [row[k] for row in rows])

    if records is None and (doubtful := [name for name in _kinds(transformer) if name not in BY_COLUMN]):
        raise ValueError(
            f"the transformer contains {doubtful[0]}, whose output may depend on the whole record: pass records=... (raw "
            "records, a table) so that the values can be tried on them, or use Secret.function."
        )

    def transformed(template: list[Any], rows: Sequence[tuple[Any, ...]]) -> NDArray[Any]:
        """What the transformer makes of a record with each of some values."""
        frame = pd.DataFrame([template] * len(rows), columns=known)
        for k, name in enumerate(names):
            content = [row[k] for row in rows]
            frame[name] = pd.Series(content, dtype=object if any(isinstance(one, str) for one in content) else None)
        table = transformer.transform(frame)
        return np.asarray(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64)

    templates = list(_templates(transformer, known, records))
    tried = [*rows, *_other_categories(transformer, names, rows[0])]
    tables = [transformed(template, tried) for template in templates]
    # Columns that say that the raw value is missing: a record may have them set, but none of its variants.
    missing = tuple(None if isinstance(value, str) else np.nan for value in rows[0])
    try:
        with_gap = _moved(transformed(templates[0], [rows[0], missing]))
    except ValueError:  # the transformer takes no missing values
        with_gap = []
    moved = [sorted({*_moved(table), *with_gap}) for table in tables]
    first = tables[0][: len(rows), moved[0]]
    if any(
        columns != moved[0] or not np.allclose(t[: len(rows), columns], first) for t, columns in zip(tables, moved, strict=True)
    ):
        raise ValueError(
            f"the encoding of {column!r} depends on other columns of the record (an interaction or a normalisation by row); "
            "describe the secret with Secret.function."
        )
    if not moved[0]:
        raise ValueError(f"the transformer drops the column {column!r}: the model never sees it.")
    return moved[0], np.ascontiguousarray(first), shown


def _moved(table: NDArray[Any]) -> list[int]:
    """The columns in which the rows of a table differ."""
    return [int(column) for column in np.flatnonzero((table != table[0]).any(axis=0))]


def _kinds(transformer: Any) -> Iterator[str]:
    """The names of the classes of all transformers inside."""
    if isinstance(transformer, str):
        return
    unchanging = type(transformer).__name__ == "FunctionTransformer" and transformer.func is None
    if not unchanging:
        yield type(transformer).__name__
    for part in (
        getattr(transformer, "transformers_", None)
        or getattr(transformer, "steps", None)
        or getattr(transformer, "transformer_list", [])
    ):
        yield from _kinds(part[1])


def _columns(transformer: Any) -> list[str]:
    """The names of the raw columns."""
    names = getattr(transformer, "feature_names_in_", None)
    if names is None:
        raise ValueError(
            f"the transformer must be fitted on a DataFrame, to know its columns by name; got {type(transformer).__name__}."
        )
    return [str(name) for name in names]


def _templates(transformer: Any, known: list[str], records: Any) -> Iterator[list[Any]]:
    """Raw records to put the values into: given ones, or ones that are made up from the categories of the encoders."""
    if records is not None:
        missing = [name for name in known if name not in records.columns]
        if missing or not len(records):
            raise ValueError(f"records must be a table with all columns of the transformer, {missing or 'rows'} missing.")
        for row in np.unique(np.linspace(0, len(records) - 1, GIVEN_TRIALS).astype(int)):
            yield [records[name].iloc[row] for name in known]
        return
    categories = {name: values for name in known if (values := _categories(transformer, name)) is not None}
    for trial in range(TRIALS):
        yield [categories[name][trial % len(categories[name])] if name in categories else float(trial) for name in known]


def _other_categories(transformer: Any, names: list[str], row: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows with other categories that a record may hold. The columns that they change must be overwritten, too."""
    for k, name in enumerate(names):
        for category in _categories(transformer, name) or []:
            yield (*row[:k], category, *row[k + 1 :])


def _refuse_unknown(transformer: Any, name: str, values: list[Any]) -> None:
    """Refuse values that are not among the categories of the encoder."""
    known = _categories(transformer, name)
    strangers = [value for value in values if known is not None and value not in known]
    if strangers:
        listed = ", ".join(map(repr, known or []))
        raise ValueError(f"the column {name!r} never takes the value {strangers[0]!r}; it takes {listed}.")


def _categories(transformer: Any, name: str) -> list[Any] | None:
    """The categories of the first encoder that sees this raw column; None for a column of numbers."""
    for encoder, columns in _encoders(transformer, None):
        if name in columns:
            return [value.item() if hasattr(value, "item") else value for value in encoder.categories_[columns.index(name)]]
    return None


def _encoders(transformer: Any, columns: list[str] | None) -> Iterator[tuple[Any, list[str]]]:
    """Encoders with categories that see raw columns, in pipelines and column transformers, and those columns' names."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    if isinstance(transformer, Pipeline):
        for _, step in transformer.steps:
            yield from _encoders(step, columns)
            if type(step).__name__ != "SimpleImputer":  # later steps see other columns
                break
    elif isinstance(transformer, ColumnTransformer):
        table = pd.DataFrame(columns=_columns(transformer))
        for _, part, chosen in transformer.transformers_:
            picked = [chosen] if isinstance(chosen, str | int) else chosen
            by_name = not isinstance(picked, slice) and all(isinstance(one, str) for one in picked)
            names = (table[list(picked)] if by_name else table.iloc[:, picked]).columns
            if not isinstance(part, str):  # "drop", "passthrough"
                yield from _encoders(part, [str(name) for name in names])
    elif hasattr(transformer, "categories_"):
        yield transformer, columns if columns is not None else _columns(transformer)


# ---- Restated columns: a secret can be read from them.
# Anyone who knows them needs no model, and gap clipping does not protect them.


#: A value of a column restates the secret if the secret has one value with at least the first probability. If the secret has that
#: value with more than the second probability anyway, this says little.
SURE, RARE = 0.99, 0.9
#: Records that agree by chance with a larger probability than the first say nothing. The second is the smallest share of records.
CHANCE, CONCERNED = 1e-3, 0.02
#: The rank correlation above which one number stands for another, and the number of ranges for numbers with more values.
ALIKE, RANGES = 0.98, 50
#: The number of records that are checked when a monitor is attached, and the largest number of columns of an argument.
LOOK_AT, COLUMNS = 2048, 512


class RestatedSecretWarning(UserWarning):
    """The secret can be read off another column or argument of the model, which gap clipping does not protect."""


def warn_of_restated(records: Records, secret: Secret) -> None:
    """Warn if the secret can be read off other columns of the model's inputs."""
    import pandas as pd

    records, places = records.take(slice(0, LOOK_AT)), secret.places()
    if places is None or len(records) < 2 or secret.restated_reported:
        return
    table = {SECRET: secret.own(records).numpy()}
    for key, value in Records(records.inputs, None, records.named, records.shared).rows().items():
        if value.ndim == 2 and value.shape[1] <= COLUMNS:
            columns = value.detach().cpu().double().numpy()
            table |= {f"column {c} of argument {key!r}": columns[:, c] for c in range(columns.shape[1]) if (key, c) not in places}
    telling = restated(pd.DataFrame(table), SECRET)
    if telling:
        warnings.warn(
            f"the secret {secret.name!r} can be read off other inputs: {'; '.join(map(str, telling[:4]))}"
            f"{' and more' if len(telling) > 4 else ''}. They do not change with its values, so that neither its distances nor a "
            "gap covers them: let them change together (Secret.columns, Secret.joint, `betastar train --with`), or leave them "
            "out.",
            RestatedSecretWarning,
            stacklevel=4,
        )


SECRET = "the secret"


@dataclass(frozen=True)
class Restated:
    """A column that gives the secret away, for all records or where it has some values."""

    column: str
    values: tuple[object, ...]  # empty if the column gives the secret away for all records
    share: float  # of the records

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.values[:4])) + (", …" if len(self.values) > 4 else "")
        where = f" = {shown}" if self.values else ""
        return f"{self.column}{where} ({100 * self.share:.0f} % of the records)"


def restated(frame: pd.DataFrame, sensitive: str, along: Sequence[str] = ()) -> list[Restated]:
    """Columns, other than those that change with it, from which the sensitive one can be read off."""
    columns = []
    secret = frame[sensitive]
    coarse, ranks = _coarse(secret), secret.rank() if _numeric(secret) else None
    for name in frame.columns:
        if name == sensitive or name in along:
            continue
        if ranks is not None and _numeric(frame[name]) and _alike(frame[name], ranks):
            columns.append(Restated(name, (), 1.0))
            continue
        sure = _sure(frame[name], coarse)
        share = float(frame[name].isin(list(sure)).mean()) if sure else 0.0
        if share >= CONCERNED:
            columns.append(Restated(name, () if share > 0.999 else tuple(sure), share))
    return sorted(columns, key=lambda one: -one.share)


def _numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers of more than two different values."""
    return column.dtype.kind in "iuf" and column.nunique() > 2


def _alike(one: pd.Series, ranks: pd.Series) -> bool:
    """Whether a number follows from another one, whose ranks are given: by Spearman's correlation."""
    held = one.notna() & ranks.notna()
    other = ranks if held.all() else ranks[held].rank()
    return bool(abs(one[held].rank().corr(other)) > ALIKE)


def _coarse(column: pd.Series) -> pd.Series:
    """Numbers with many values, put into ranges."""
    import pandas as pd

    if not _numeric(column) or column.nunique() <= RANGES:
        return column
    return pd.qcut(column, RANGES, labels=False, duplicates="drop")


def _sure(column: pd.Series, secret: pd.Series) -> list[object]:
    """Values of a column at which the secret is almost always the same, although it varies otherwise."""
    import pandas as pd

    if column.nunique() > RANGES and _numeric(column):
        return []
    counts = pd.crosstab(column, secret)
    usual = secret.value_counts(normalize=True)
    kept = []
    for value, row in counts.iterrows():
        most = row.idxmax()
        if row.max() >= SURE * row.sum() and usual[most] <= RARE and usual[most] ** row.sum() <= CHANCE:
            kept.append(value)
    return kept
