"""How good a model is on test records: what accuracy is compared with, and the area under the ROC curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata


def baseline(train: NDArray[np.int64], test: NDArray[np.int64]) -> float:
    """The accuracy on test records of whoever always guesses the label that is most frequent among the training records.

    Parameters
    ----------
    train, test : array of int
        The number of each record's label.

    Returns
    -------
    float
        NaN if there are no test records.
    """
    return float(np.mean(test == np.bincount(train).argmax())) if len(test) else float("nan")


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
