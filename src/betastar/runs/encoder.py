"""The encoder of a table: how each column becomes inputs of a model, and what the outputs are. It is kept as readable JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from betastar.runs.reading import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from torch import Tensor

    from betastar.training import Secret


# Labels that are numbers


@dataclass(frozen=True)
class LabelScale:
    """The target of the model is (label - mean) / scale.

    Attributes
    ----------
    mean, scale : float
        The middle of the declared range and half of its length; without one, mean and deviation of the training labels.
    low, high : float or None
        The range that was declared. None: `mean` and `scale` were computed from the training records, without noise, and no
        figure of risk covers them.
    """

    mean: float
    scale: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        given = [one for one in (self.mean, self.scale, self.low, self.high) if one is not None]
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) and np.isfinite(one) for one in given)
        if not numbers or self.scale <= 0.0 or (self.low is None) != (self.high is None):
            raise ValueError(f"the scale of a label must be finite numbers with a scale above 0, got {self}")

    @classmethod
    def of_range(cls, low: float, high: float) -> LabelScale:
        """The scale that makes -1…1 of a range."""
        return cls(low / 2.0 + high / 2.0, high / 2.0 - low / 2.0, low, high)

    @classmethod
    def of_labels(cls, labels: NDArray[Any]) -> LabelScale:
        """The scale that gives these labels mean 0 and deviation 1."""
        return cls(float(labels.mean()), float(labels.std()))

    @property
    def declared(self) -> bool:
        """Whether the scale comes from a range that was declared."""
        return self.low is not None

    def limited(self, labels: NDArray[Any]) -> NDArray[Any]:
        """The labels, those beyond the declared range as its nearer end."""
        return labels if self.low is None else np.clip(labels, self.low, self.high)

    def targets(self, labels: ArrayLike) -> NDArray[Any]:
        """The targets of labels, as numbers of double precision."""
        return (np.asarray(labels, dtype=np.float64) - self.mean) / self.scale

    def labels(self, outputs: ArrayLike) -> NDArray[Any]:
        """The labels that targets, or outputs of the model, stand for."""
        return self.mean + self.scale * np.asarray(outputs, dtype=np.float64)


# Columns

#: Version of the format, in encoder.json.
FORMAT = 1
#: The category of a word that is missing.
MISSING = "missing"
#: What a column holds: numbers, dates (in days since 1970), words, or something whose input is 0 whatever it holds.
NUMBER, DATE, CATEGORY, UNUSED = "number", "date", "category", "unused"
#: A date, with or without a time, as ISO 8601 has it.
ISO_DATE = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?"
#: The number of values of a table that an error names.
NAMED = 8
#: The number of values that are looked at first: most columns of words show there that they hold no dates.
FIRST = 100


def days_of(column: Series) -> Series | None:
    """Days since 1970 of a column of dates; None if it holds something else."""
    import pandas as pd

    if column.dtype.kind in "iufbcm":
        return None
    dates = isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M"
    held = column.dropna()
    if not dates and not (_are_dates(held.head(FIRST)) and _are_dates(held)):
        return None
    try:
        moments = pd.to_datetime(column, format=None if dates else "ISO8601", utc=True)
    except ValueError:  # as 2023-02-30
        return None
    return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)


def bits(frame: DataFrame) -> list[str]:
    """The columns of numbers that hold 0 and 1 only, besides missing values."""
    return [name for name, column in frame.items() if column.dtype.kind in "iufb" and set(column.dropna().unique()) <= {0, 1}]


def _are_dates(values: Series) -> bool:
    """Whether all of these are texts that look like dates."""
    texts = str(values.dtype) == "str" or all(isinstance(one, str) for one in values)
    return bool(texts and values.str.strip().str.fullmatch(ISO_DATE).all())


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes inputs: (value - mean) / scale, for words one input for each category.

    Attributes
    ----------
    name : str
        The name of the column.
    kind : "number", "date", "category" or "unused"
        What it holds. The input of an unused column is 0.
    mean, scale : tuple of float
        One number for each input.
    missing : float or None
        The number that stands for a missing one; None if no number may be missing.
    categories : tuple of str
        The categories of a column of words, one input for each.
    """

    name: str
    kind: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    missing: float | None = None
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        inputs = len(self.categories) if self.kind == CATEGORY else 1
        if self.kind not in (NUMBER, DATE, CATEGORY, UNUSED):
            raise ValueError(f"the kind of the column {self.name!r} must be number, date, category or unused, got {self.kind!r}")
        numbers = [*self.mean, *self.scale, *(() if self.missing is None else (self.missing,))]
        if not (len(self.mean) == len(self.scale) == inputs and all(isinstance(one, int | float) for one in numbers)):
            raise ValueError(f"the column {self.name!r} needs a mean and a scale for each of its {inputs} inputs")
        if not all(isinstance(one, str) for one in (self.name, *self.categories)):
            raise ValueError(f"the name and the categories of the column {self.name!r} must be text")

    def encode(self, column: Series) -> NDArray[Any]:
        """The inputs of the column's values, a row for each; raises StudyError for a value that has none."""
        if self.kind == UNUSED:
            return np.zeros((len(column), 1))
        if self.kind == DATE and (days := days_of(column)) is None:
            shown = next(iter(column.dropna()), None)
            raise StudyError(
                f"the column {self.name!r} must hold dates such as 2024-01-31, as it did in training, got {shown!r}."
            )
        held = self._one_hot(column) if self.kind == CATEGORY else self._numbers(days if self.kind == DATE else column)[:, None]
        return (held - np.array(self.mean)) / np.array(self.scale)

    def _numbers(self, column: Series) -> NDArray[Any]:
        import pandas as pd

        numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        words = column[np.isnan(numbers) & column.notna()]
        if len(words):
            raise StudyError(
                f"the column {self.name!r} must hold numbers, as it did in training, got {words.iloc[0]!r} ({len(words)} such "
                "records)."
            )
        if endless := int(np.isinf(numbers).sum()):
            raise StudyError(f"the column {self.name!r} is infinite in {endless} records: put a number there.")
        if self.missing is None and (gone := int(np.isnan(numbers).sum())):
            raise StudyError(
                f"the column {self.name!r} is missing (NaN) in {gone} records, which it never was in training: fill it in."
            )
        return numbers if self.missing is None else np.where(np.isnan(numbers), self.missing, numbers)

    def _one_hot(self, column: Series) -> NDArray[Any]:
        words = column.astype(object).where(column.notna(), MISSING).astype(str)
        numbers = {category: i for i, category in enumerate(self.categories)}
        places = words.map(numbers)
        strange = words[places.isna()]
        if len(strange):
            known = ", ".join(map(repr, self.categories[:NAMED])) + (", …" if len(self.categories) > NAMED else "")
            what = "is missing" if strange.iloc[0] == MISSING else f"is {strange.iloc[0]!r}"
            raise StudyError(
                f"the column {self.name!r} {what} in a record (and {len(strange)} records hold a category that the model was not "
                f"trained with): it must be one of {known}. Put a known category there, or leave these records out."
            )
        return np.eye(len(self.categories))[places.to_numpy(dtype=int)]


@dataclass(frozen=True)
class TableEncoder:
    """How the records of a table become inputs of a model, and what its outputs are.

    Unless they were declared, the numbers in it (means, deviations, medians) and the categories are those of the table that it
    was fitted on, without noise: no figure of risk covers them.

    Attributes
    ----------
    label : str
        The column that the model predicts.
    classes : tuple of str
        The class of each output; empty if the label is a number.
    columns : tuple of Column
        The columns, in the order of their inputs.
    left_out : tuple of str
        Columns that the table may have and the model does not see.
    label_scale : LabelScale or None
        How the one output becomes a label that is a number; None if there are classes.
    declared : bool
        Whether all numbers and categories were known without the records.
    """

    label: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()
    label_scale: LabelScale | None = None
    declared: bool = False

    @classmethod
    def fitted(
        cls,
        frame: DataFrame,
        label: str,
        classes: Sequence[object],
        left_out: Sequence[str] = (),
        label_scale: LabelScale | None = None,
        every: bool = False,
    ) -> tuple[TableEncoder, NDArray[Any]]:
        """The encoder of a table, and what it makes of the table.

        Numbers get mean 0 and deviation 1, after missing ones became the median. Columns of 0 and 1 and one-hot words stay so.

        Parameters
        ----------
        frame : DataFrame
            The table: numbers, and words of which none is missing.
        label, classes, left_out, label_scale
            As for the encoder.
        every : bool
            Whether all inputs get mean 0 and deviation 1, and no number may be missing.
        """
        from sklearn.preprocessing import StandardScaler

        numeric = [name for name in frame.columns if frame[name].dtype.kind in "iufb"]
        zero_one = bits(frame)
        ordered = sorted(frame.columns, key=lambda name: (name not in numeric, name in zero_one))
        columns = []
        for name in ordered:
            column = frame[name]
            words = () if name in numeric else tuple(sorted(column.astype(str).unique()))
            still = (0.0,) * (len(words) or 1), (1.0,) * (len(words) or 1)
            median = None if words or every else float(np.nanmedian(column.to_numpy(dtype=float, na_value=np.nan)))
            columns.append(Column(str(name), CATEGORY if words else NUMBER, *still, median, words))
        inputs = np.hstack([column.encode(frame[name]) for name, column in zip(ordered, columns, strict=True)])
        scaled = inputs.shape[1] if every else sum(name in numeric and name not in zero_one for name in ordered)
        if scaled:
            scaler, start = StandardScaler().fit(inputs[:, :scaled]), 0
            inputs[:, :scaled] = (inputs[:, :scaled] - scaler.mean_) / scaler.scale_
            for i, column in enumerate(columns):
                place = slice(start, start := start + len(column.mean))
                if start <= scaled:
                    mean, scale = (tuple(map(float, one[place])) for one in (scaler.mean_, scaler.scale_))
                    columns[i] = replace(column, mean=mean, scale=scale)
        return cls(label, tuple(map(str, classes)), tuple(columns), tuple(left_out), label_scale), inputs

    def secret(self, names: Sequence[str], values: Sequence[Any], name: str) -> Secret:
        """The secret that some columns are together. values: for each value of the secret, the content of these columns."""
        import pandas as pd
        import torch

        from betastar.training import Secret

        places: list[int] = []
        inputs, start = [], 0
        for column in self.columns:
            width = len(column.mean)
            if column.name in names:
                places += range(start, start + width)
                inputs.append(column.encode(pd.Series([row[names.index(column.name)] for row in values])))
            start += width
        labels = [row[0] for row in values] if len(names) == 1 else list(values)
        secret = Secret.columns(places, torch.from_numpy(np.hstack(inputs)), labels=labels, name=name, unseen=True)
        secret.restated_reported = True  # the study reports them
        return secret

    @property
    def width(self) -> int:
        """The number of inputs of the model."""
        return sum(len(column.mean) for column in self.columns)

    @property
    def outputs(self) -> int:
        """The number of outputs of the model: one for each class, or one for a label that is a number."""
        return len(self.classes) if self.label_scale is None else 1

    def model_words(self, hidden: tuple[int, ...]) -> str:
        """The model with hidden layers of these widths, in words for its card."""
        sizes = " → ".join(map(str, [self.width, *hidden, self.outputs]))
        return f"A fully connected network with tanh ({sizes})"

    @property
    def fitted_words(self) -> str:
        """What the encoder holds of the records, in words for the card of its model."""
        if self.declared:
            return "how each column becomes inputs. Its numbers and categories were declared and tell nothing about the records."
        return (
            "how each column becomes inputs. Its means, deviations, medians and categories are those of the table, computed "
            "without noise. No figure of risk covers them: read the file before you give it away."
        )

    def encode(self, frame: DataFrame) -> NDArray[Any]:
        """Encode the records of a table.

        Parameters
        ----------
        frame : DataFrame
            The table. It must have the columns of the encoder and may have the label and the columns that were left out.

        Returns
        -------
        array
            A row for each record, a column for each input.

        Raises
        ------
        StudyError
            If a column is missing or unknown, or holds a value that the model was not trained with.
        """
        self._check_columns([str(name) for name in frame.columns])
        table = frame.rename(columns=str)
        return np.hstack([column.encode(table[column.name]) for column in self.columns])

    def tensor(self, frame: DataFrame) -> Tensor:
        """Encode the records of a table as the model takes them.

        Parameters
        ----------
        frame : DataFrame
            The table, as for `encode`.

        Returns
        -------
        Tensor
            In single precision.
        """
        import torch

        return torch.as_tensor(self.encode(frame), dtype=torch.float32)

    def _check_columns(self, names: list[str]) -> None:
        needed = [column.name for column in self.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise StudyError(f"the table has two columns that are called {twice[0]!r}: rename one of them.")
        if missing := [name for name in needed if name not in names]:
            raise StudyError(
                f"the table has no column {', '.join(map(repr, missing[:NAMED]))}, which the model was trained with; "
                f"it has {', '.join(map(repr, names[:20]))}."
            )
        known = {*needed, self.label, *self.left_out}
        if unknown := [name for name in names if name not in known]:
            raise StudyError(
                f"the model was not trained with the column {unknown[0]!r}: leave it out (--drop {shlex.quote(unknown[0])}), if "
                "it is no misspelt name of another one."
            )

    def to_json(self) -> str:
        """The text of encoder.json: a line for each column."""
        columns = [{name: value for name, value in asdict(column).items() if value not in (None, ())} for column in self.columns]
        head: dict[str, Any] = {"format": FORMAT, "label": self.label, "classes": self.classes, "left_out": self.left_out}
        if self.label_scale is not None:
            head["label_scale"] = asdict(self.label_scale)
        if self.declared:
            head["declared"] = True
        lines = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}," for name, value in head.items()]
        each = ",\n".join(f"  {json.dumps(column, ensure_ascii=False, allow_nan=False)}" for column in columns)
        return "\n".join(["{", *lines, ' "columns": [', each, " ]", "}", ""])

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TableEncoder:
        """The encoder that an object of JSON describes; raises ValueError, TypeError or KeyError for another object."""
        if values["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {values['format']!r}: install the version of betastar that made it")
        columns: list[dict[str, Any]] = [
            {key: tuple(one) if isinstance(one, list) else one for key, one in column.items()} for column in values["columns"]
        ]
        scale = values.get("label_scale")
        return cls(
            str(values["label"]),
            tuple(map(str, values["classes"])),
            tuple(Column(**column) for column in columns),
            tuple(map(str, values["left_out"])),
            None if scale is None else LabelScale(**scale),
            bool(values.get("declared", False)),
        )
