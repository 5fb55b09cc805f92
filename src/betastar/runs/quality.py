"""How good a model is on test records: for classes the accuracy of the most frequent one and the area under the ROC curve, for
numbers the errors. `betastar.quality.QUALITY` has the names of the figures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata


def baseline(labels: NDArray[np.int64]) -> float:
    """The accuracy of always guessing the most frequent label: it follows from the test records alone.

    Parameters
    ----------
    labels : array of int
        The number of each test record's label.

    Returns
    -------
    float
        NaN if there are no test records.
    """
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else float("nan")


def auc(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float | None:
    """The area under the ROC curve: the mean over the labels of that of each label against all others.

    Parameters
    ----------
    scores : array
        A row for each record, a column for each label.
    labels : array of int
        The number of each record's label.

    Returns
    -------
    float or None
        With two labels it is the usual area. None if all records have the same label, or if a score is not finite.
    """
    if len(np.unique(labels)) < 2 or not np.isfinite(scores).all():
        return None
    areas = []
    for label in np.unique(labels):
        # Of the pairs of a record with the label and one without it, the share that the score orders right; ties count half.
        ranks, own = rankdata(scores[:, label]), labels == label
        with_label, others = int(own.sum()), int((~own).sum())
        areas.append((ranks[own].sum() - with_label * (with_label + 1) / 2) / (with_label * others))
    return float(np.mean(areas))


def errors(predictions: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """How far predictions of numbers are from the labels.

    Parameters
    ----------
    predictions, labels : array
        A number for each record, at least one.

    Returns
    -------
    dict of str to float
        `rmse`, `mae`, and `r2` unless all labels are the same.
    """
    apart = predictions - labels
    told = {"rmse": float(np.sqrt(np.mean(apart**2))), "mae": float(np.mean(np.abs(apart)))}
    spread = float(np.mean((labels - labels.mean()) ** 2))
    return told | ({"r2": 1.0 - float(np.mean(apart**2)) / spread} if spread > 0.0 else {})


def baseline_errors(labels: NDArray[Any]) -> dict[str, float]:
    """The errors of always predicting the mean: they follow from the test records alone.

    Parameters
    ----------
    labels : array
        The label of each test record.

    Returns
    -------
    dict of str to float
        `baseline_rmse` and `baseline_mae`.
    """
    always = errors(np.full(len(labels), labels.mean()), labels)
    return {f"baseline_{name}": always[name] for name in ("rmse", "mae")}
