"""The column that a model predicts, as classes or as numbers (regression), and this column as a secret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from betastar import validation
from betastar.arrays import Real, Whole
from betastar.datasets.columns import MANY_CATEGORIES
from betastar.datasets.errors import StudyError
from betastar.datasets.label_scale import LabelScale
from betastar.datasets.sensitive import values_of
from betastar.rounding import plain
from betastar.training import Secret

if TYPE_CHECKING:
    from pandas import Series

#: What the model may predict: one of some classes, or a number.
TASKS = ("classification", "regression")
#: A label with more different numbers is predicted as a number, unless the task says otherwise.
FEW_NUMBERS = 20


@dataclass(frozen=True)
class Labels:
    """The labels of all records.

    Attributes
    ----------
    column : Series
        The column as it was read, without missing values.
    classes : list of str
        The class of each output of the model; empty if the label is a number.
    scale : LabelScale or None
        How a number becomes a target; None if there are classes.
    told : tuple of str
        How the label was read, in sentences.
    """

    column: Series
    classes: list[str]
    scale: LabelScale | None
    told: tuple[str, ...]

    def targets(self, records: Sequence[int], train: bool) -> Whole | Real:
        """The targets of some records: numbers of classes, or a column of numbers, limited to the declared range in training."""
        some = self.column.iloc[list(records)]
        if self.scale is None:
            return some.astype(str).map({name: i for i, name in enumerate(self.classes)}).to_numpy(copy=True)
        numbers = some.to_numpy(dtype=np.float64)
        if not train:
            return self.scale.targets(numbers)[:, None]
        return self.scale.targets(self.scale.limited(numbers)).astype(np.float32)[:, None]

    def secret(self, values: list[str] | None, between: tuple[float, float] | None) -> Secret:
        """The label as a secret: its classes, or the numbers that `values_of` finds, as they are trained with."""
        name = str(self.column.name)
        if self.scale is None:
            if values is not None or between is not None:
                raise StudyError(f"the values of {name!r} are the classes of the label: leave out the values and the range.")
            return Secret.label(len(self.classes), labels=self.classes, name=name, unseen=True)
        limited = self.column
        if self.scale.declared:
            limited = limited.clip(self.scale.low, self.scale.high)
        shown = values_of(limited, name, values, between)
        return Secret.label(torch.from_numpy(self.scale.targets(shown)), labels=shown, name=name, unseen=True)


def read_labels(
    column: Series, train: Sequence[int], task: str | None = None, label_range: tuple[float, float] | None = None
) -> Labels:
    """Read the column that the model predicts.

    Parameters
    ----------
    column : Series
        The labels, of which none is missing.
    train : sequence of int
        The training records, whose mean and deviation scale a number if no range is declared.
    task : "classification" or "regression", optional
        What the model predicts; by default regression for more than `FEW_NUMBERS` different numbers.
    label_range : (float, float), optional
        The range of a number, known without the records.

    Raises
    ------
    StudyError
        If there is nothing to learn, or if the label cannot be read so.
    """
    name, different = column.name, int(column.nunique())
    if task is not None:
        validation.choice("task", task, TASKS)
    if different < 2:
        raise StudyError(f"the label {name!r} is the same in each record ({column.iloc[0]!r}): there is nothing to learn.")
    numeric = column.dtype.kind in "iuf"
    if label_range is not None and task == "classification":
        raise StudyError("--label-range is for a label that is a number: choose between it and --task classification.")
    asked = task == "regression" or label_range is not None
    if asked and not numeric:
        raise StudyError(
            f"the label {name!r} must hold numbers for regression, got {column.iloc[0]!r}. Write plain numbers there, without "
            "units or signs, or leave out --task and --label-range."
        )
    if asked or (task is None and numeric and different > FEW_NUMBERS):
        return _numbers(column, different, train, label_range)
    if different > MANY_CATEGORIES:
        help = "--task regression predicts a number" if numeric else "a label of words must have fewer classes"
        raise StudyError(f"the label {name!r} has {different} classes, more than {MANY_CATEGORIES}: {help}.")
    told: tuple[str, ...] = ()
    if numeric and different > 2:
        told = (f"The label {name!r} holds {different} different numbers, read as classes (--task regression: as a number).",)
    return Labels(column, sorted(column.astype(str).unique()), None, told)


def _numbers(column: Series, different: int, train: Sequence[int], label_range: tuple[float, float] | None) -> Labels:
    numbers, name = column.to_numpy(dtype=np.float64)[list(train)], column.name
    told = [
        f"The label {name!r} holds {different} different numbers, so the model predicts a number by least squares (--task "
        "classification: a class)."
    ]
    if label_range is None:
        if not numbers.std():
            raise StudyError(f"the label {name!r} is the same in each training record: there is nothing to learn.")
        told.append(
            f"Mean and deviation of {name!r} in the training records scale it. They were computed without noise, and no figure "
            "of risk covers them: --label-range LOW:HIGH scales by a range that you know without the records."
        )
        return Labels(column, [], LabelScale.of_labels(numbers), tuple(told))
    low, high = (float(one) for one in label_range)
    if not (np.isfinite([low, high]).all() and low < high):
        raise StudyError(f"--label-range must be two finite numbers, the smaller one first, got {plain(low)} and {plain(high)}.")
    told.append(f"The declared range {plain(low)}…{plain(high)} scales {name!r}; nothing of that comes from the records.")
    if outside := int(((numbers < low) | (numbers > high)).sum()):
        told.append(
            f"{outside} of {len(numbers)} training records have a {name!r} beyond that range: they are trained with its "
            "nearer end."
        )
    return Labels(column, [], LabelScale.of_range(low, high), tuple(told))
