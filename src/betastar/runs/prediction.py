"""The model of a run on a table: what it predicts, how good that is, and whether the run has seen these records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from betastar.runs.encoder import TableEncoder
from betastar.runs.folder import RunFolder
from betastar.runs.model import PREDICTION, load
from betastar.runs.quality import baseline_errors, errors
from betastar.runs.reading import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: The table that comes with betastar.
ADULT = "adult"
#: With one of these, a formula of a spreadsheet begins.
FORMULAS = frozenset("=+-@\t\r\n")


@dataclass(frozen=True)
class Prediction:
    """What the model of a run says of a table.

    Attributes
    ----------
    label : str
        The column that is predicted.
    predictions : DataFrame
        A row for each record: its number from 0, the class that is predicted, and the model's probability of it; of a label that
        is a number, the number that is predicted.
    quality : dict of str to float
        How good that is for the records with a label, by the names of `QUALITY`: `accuracy`, or `rmse`, `mae` and `r2`,
        each beside its baseline. It is empty if the table has no labels.
    tested : int or None
        The number of records that the run had kept for testing, if the table is the one that it was trained on.
    test_quality : dict of str to float
        The same for these; empty if there are none.
    """

    label: str
    predictions: DataFrame
    quality: dict[str, float] = field(default_factory=dict)
    tested: int | None = None
    test_quality: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions, if there are classes and labels."""
        return self.quality.get("accuracy")

    def as_csv(self) -> str:
        """The predictions as a table for a spreadsheet.

        A class that a spreadsheet would compute as a formula has an apostrophe in front of it.
        """
        shown = self.predictions
        if shown[PREDICTION].dtype.kind not in "iuf":
            shown = shown.assign(
                **{PREDICTION: shown[PREDICTION].map({one: _harmless(one) for one in shown[PREDICTION].unique()})}
            )
        return str(shown.to_csv(index=False, lineterminator="\n"))


def _harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula. Signed numbers stay as they are."""
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.lstrip(" ")[:1] in FORMULAS else text
    return text


def predict(path: str | Path, table: str | Path, drop: tuple[str, ...] = ()) -> Prediction:
    """Predict the label of each record of a table with the model of a run.

    Parameters
    ----------
    path : path
        The folder of a complete run.
    table : path
        A CSV or Parquet file, or "adult" for the table that comes with betastar.
    drop : tuple of str
        Columns of the table that are left out.

    Returns
    -------
    Prediction
        What the model says.

    Raises
    ------
    StudyError
        If there is no model, or if the table does not fit it.
    """
    model, frame = load(path), _read(table)
    if unknown := [name for name in drop if name not in frame.columns]:
        raise StudyError(f"{table} has no column {unknown[0]!r}; it has {', '.join(map(repr, frame.columns))}.")
    frame = frame.drop(columns=list(drop))
    if not len(frame):
        raise StudyError(f"{table} has no records: there is nothing to predict.")
    said = model.predict(frame)
    label = model.encoder.label
    rows = said.reset_index(drop=True).rename_axis("record").reset_index()
    if label not in frame.columns or frame[label].isna().all():
        return Prediction(label, rows)
    labelled = frame[label].notna()
    known, given = frame[label][labelled], said[PREDICTION][labelled]
    judged = _judged(known, given, model.encoder)
    held_out = _held_out(RunFolder(path), str(table))
    if held_out is None:
        return Prediction(label, rows, judged)
    tested = _judged(known.iloc[held_out], given.iloc[held_out], model.encoder)
    return Prediction(label, rows, judged, len(held_out), tested)


def _judged(labels: Series, predictions: Series, encoder: TableEncoder) -> dict[str, float]:
    """How good predictions are, by the names of `QUALITY`."""
    if encoder.label_scale is None:
        classes = _classes(labels, encoder.classes)
        return {"accuracy": float((classes == predictions).mean()), "baseline": float(classes.value_counts(normalize=True).max())}
    numbers = _numbers(labels)
    return errors(predictions.to_numpy(), numbers) | baseline_errors(numbers)


def _numbers(labels: Series) -> NDArray[Any]:
    import pandas as pd

    numbers: NDArray[Any] = pd.to_numeric(labels, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(numbers).all():
        shown = labels.iloc[int(np.argmin(np.isfinite(numbers)))]
        raise StudyError(f"the label {labels.name!r} must hold finite numbers, as it did in training, got {shown!r}.")
    return numbers


def _read(table: str | Path) -> DataFrame:
    from betastar.runs import adult
    from betastar.runs.tables import read

    return adult.table() if str(table) == ADULT else read(table, least=0)


def _classes(labels: Series, classes: tuple[str, ...]) -> Series:
    """Labels as the names of classes: where some are missing, pandas has read the class 1 as 1.0."""
    text = labels.astype(str)
    return text.where(text.isin(classes), text.str.removesuffix(".0"))


def _held_out(folder: RunFolder, table: str) -> NDArray[Any] | None:
    """The records that the run kept for testing, by their place among those with a label.

    None if the table is not the one that the run was trained on, as far as the fingerprint of the run tells.
    """
    if not folder.begun:
        return None
    config, data = folder.config, folder.data
    if data is None or (table != config.study and ADULT in (table, config.study)):
        return None
    try:
        study = replace(config, study=table, seed=int(data["seed"])).load()
    except (StudyError, OSError):  # another table, or the public records of the run are not there any more
        return None
    return np.asarray(study.raw.index) if study.raw is not None and study.fingerprint() == data["sha256"] else None
