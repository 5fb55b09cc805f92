"""Somebody's own table (CSV or Parquet) as a study: its columns, its label, its secret, and what is refused."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from betastar.rounding import plain
from betastar.runs.config import Recipe, secret_name
from betastar.runs.encoder import DATE, LabelScale, TableEncoder, bits, days_of
from betastar.runs.reading import StudyError
from betastar.runs.study import Study, person_column, split, split_persons, tensors
from betastar.training import Secret
from betastar.training.secrets.tables import restated

if TYPE_CHECKING:
    from pandas import DataFrame, Series


# Columns: numbers, bits, dates and words

#: A column of words with more categories is an identifier rather than an attribute.
MANY_CATEGORIES = 500
#: NDArray[Any] numbers or words that differ in each of this many records identify them.
IDENTIFIES = 20
#: This many columns of 0 and 1 are named.
NAMED = 8


def plain_columns(frame: DataFrame, needed: Sequence[str]) -> DataFrame:
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


def features(frame: DataFrame, needed: Sequence[str]) -> list[str]:
    """Make features of the columns, in place: dates become numbers, missing words a word. What was done, in sentences.

    Parameters
    ----------
    frame : DataFrame
        The table, without the column to predict and without identifiers of persons.
    needed : sequence of str
        The sensitive columns, which stay as they are.

    Raises
    ------
    StudyError
        If a column identifies the records.
    """
    told: list[str] = []
    for name in frame.columns:
        option = shlex.quote(str(name))
        if name not in needed and _identifies(frame[name]):
            raise StudyError(
                f"the column {name!r} is different in each of the {len(frame)} records, as an identifier is, and a model would "
                f"learn the records by heart. Leave it out (--drop {option}). If it is a quantity, write it with a decimal "
                "point, such as 1200.0."
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
            if name not in needed and number > MANY_CATEGORIES:
                raise StudyError(
                    f"the column {name!r} has {number} categories: an identifier? Leave it out (--drop {option}). If it says "
                    f"whose record it is, --person {option} leaves it out and analyses the risk of a person."
                )
    return [*_told_bits(bits(frame)), *told]


def _told_bits(names: Sequence[str]) -> list[str]:
    if len(names) == 1:
        return [f"The column {names[0]!r} holds 0 and 1 and stays so: it is not scaled."]
    shown = ", ".join(map(repr, names[:NAMED])) + (f", … ({len(names)} of them)" if len(names) > NAMED else "")
    return [f"The columns {shown} hold 0 and 1 and stay so: they are not scaled."] if names else []


def _identifies(column: Series) -> bool:
    """Whether whole numbers or words differ in every record."""
    if len(column) < IDENTIFIES or column.dtype.kind in "fbcMm" or column.isna().any():
        return False
    return int(column.nunique()) == len(column) and days_of(column) is None


# The sensitive column as a secret

#: More values of a sensitive column than this must be asked for.
MANY_VALUES = 1000


def secret_of(
    encoder: TableEncoder, frame: DataFrame, sensitive: str, along: Sequence[str] = (), values: list[str] | None = None
) -> Secret:
    """The secret that a column of a table is, with the columns that change together with it.

    values: those that the attacker hesitates between, or their range; see `values_of`.
    """
    names = [sensitive, *along]
    if not along:
        return encoder.secret(names, [(value,) for value in values_of(frame[sensitive], sensitive, values)], sensitive)
    if values is not None:
        raise StudyError("values and range of the sensitive column are those that occur when other columns change with it.")
    rows = sorted(frame[names].drop_duplicates().itertuples(index=False, name=None), key=repr)
    if len(rows) > MANY_VALUES:
        raise StudyError(f"the columns {', '.join(map(repr, names))} take {len(rows)} combinations of values: name fewer.")
    return encoder.secret(names, rows, secret_name(sensitive, along))


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


def range_of(option: str, text: str) -> tuple[float, float]:
    """The two numbers of a range such as "17:90"."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise StudyError(f"{option} must be two numbers as in 17:90, got {text!r}.") from None
    return low, high


def values_of(column: Series, name: str, values: list[str] | None) -> list[Any]:
    """The values that an attacker hesitates between: the given ones, for numbers perhaps as one range "17:90"; or all that occur.

    Where whole numbers occur, those between them count as well.
    """
    numeric = column.dtype.kind in "iufb"
    held = sorted(column.unique().tolist())
    if numeric and values is not None and len(values) == 1 and ":" in values[0]:
        low, high = range_of("--value", values[0])
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


# The label: classes, or numbers (regression)

#: A label with more different numbers is predicted as a number.
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

    def targets(self, records: Sequence[int], train: bool) -> NDArray[Any] | NDArray[Any]:
        """The targets of some records: numbers of classes, or a column of numbers, limited to the declared range in training."""
        some = self.column.iloc[list(records)]
        if self.scale is None:
            return some.astype(str).map({name: i for i, name in enumerate(self.classes)}).to_numpy(copy=True)
        numbers = some.to_numpy(dtype=np.float64)
        if not train:
            return self.scale.targets(numbers)[:, None]
        return self.scale.targets(self.scale.limited(numbers)).astype(np.float32)[:, None]

    def secret(self, values: list[str] | None) -> Secret:
        """The label as a secret: its classes, or the numbers that `values_of` finds, as they are trained with."""
        name = str(self.column.name)
        if self.scale is None:
            if values is not None:
                raise StudyError(f"the values of {name!r} are the classes of the label: leave out --value.")
            return Secret.label(len(self.classes), labels=self.classes, name=name, unseen=True)
        limited = self.column
        if self.scale.declared:
            limited = limited.clip(self.scale.low, self.scale.high)
        shown = values_of(limited, name, values)
        return Secret.label(torch.from_numpy(self.scale.targets(shown)), labels=shown, name=name, unseen=True)


def read_labels(column: Series, train: Sequence[int], label_range: tuple[float, float] | None = None) -> Labels:
    """Read the column that the model predicts.

    Parameters
    ----------
    column : Series
        The labels, of which none is missing.
    train : sequence of int
        The training records, whose mean and deviation scale a number if no range is declared.
    label_range : (float, float), optional
        The range of a number, known without the records. Without it, more than `FEW_NUMBERS` different numbers are predicted as
        numbers, and fewer are classes.

    Raises
    ------
    StudyError
        If there is nothing to learn, or if the label cannot be read so.
    """
    name, different = column.name, int(column.nunique())
    if different < 2:
        raise StudyError(f"the label {name!r} is the same in each record ({column.iloc[0]!r}): there is nothing to learn.")
    numeric = column.dtype.kind in "iuf"
    if label_range is not None and not numeric:
        raise StudyError(
            f"the label {name!r} must hold numbers for regression, got {column.iloc[0]!r}. Write plain numbers there, without "
            "units or signs, or leave out --label-range."
        )
    if label_range is not None or (numeric and different > FEW_NUMBERS):
        return _number_labels(column, different, train, label_range)
    if different > MANY_CATEGORIES:
        raise StudyError(
            f"the label {name!r} has {different} classes, more than {MANY_CATEGORIES}: a label of words must have fewer classes."
        )
    told: tuple[str, ...] = ()
    if numeric and different > 2:
        told = (f"The label {name!r} holds {different} numbers, read as classes (--label-range LOW:HIGH: as a number).",)
    return Labels(column, sorted(column.astype(str).unique()), None, told)


def _number_labels(column: Series, different: int, train: Sequence[int], label_range: tuple[float, float] | None) -> Labels:
    numbers, name = column.to_numpy(dtype=np.float64)[list(train)], column.name
    told = [
        f"The label {name!r} holds {different} different numbers, so the model predicts a number by least squares. If they are "
        "classes, write them as words."
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


# The table

#: What may stand between the values of a CSV: the first of these that divides its first line.
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
#: A number as it is written where the comma is the decimal sign.
DECIMAL_COMMA = r"[+-]?[\d.]+(,\d+)?"
#: A CSV may be packed.
OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def read(path: str | Path, least: int = 10) -> DataFrame:
    """The table in a CSV or Parquet file; raises StudyError if it is none, or has fewer than the least number of records."""
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise StudyError(f"there is no file {path}: name a CSV or Parquet file, or 'adult', which is included.")
    if path.suffix in (".xlsx", ".xls", ".ods"):
        raise StudyError(f"{path} is a spreadsheet: save it as CSV (UTF-8) first.")
    if not path.stat().st_size:
        raise StudyError(f"{path} is empty: export or download it again.")
    try:
        if path.suffix in (".parquet", ".pq"):
            frame = pd.read_parquet(path)
        else:
            delimiter = _check_rows(path)
            frame = pd.read_csv(path, sep=delimiter, skipinitialspace=True, index_col=False)
            _check_decimals(frame, path, delimiter)
    except ImportError:
        raise StudyError(f"{path} is a Parquet file; reading it needs the package pyarrow.") from None
    except StudyError:
        raise
    except (ValueError, EOFError, OSError, NotImplementedError, csv.Error, lzma.LZMAError) as problem:
        why = str(problem).splitlines()[0].rstrip(".")
        raise StudyError(f"{path} is truncated or no table ({why}): export or download it again.") from None
    if len(frame) < least:
        raise StudyError(f"{path} has {len(frame)} records; at least {least} are needed, to train and to test.")
    return frame


def _check_rows(path: Path) -> str:
    """The character between the values of a CSV.

    A row that has more or fewer values than there are columns is refused: they may belong to other columns.
    """
    if path.suffix in (".zip", ".tar", ".tgz", ".zst"):
        raise StudyError(f"{path} is an archive: unpack it first. A CSV may be packed as {', '.join(OPEN)}.")
    opened = OPEN.get(path.suffix, open)
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
            delimiter = next((one for one in DELIMITERS if len(next(csv.reader([first], delimiter=one), [])) > 1), ",")
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            head = next((row for row in rows if row), [])
            if twice := [name for name in head if head.count(name) > 1]:
                raise StudyError(f"{path} has two columns that are called {twice[0]!r}: rename one of them.")
            width = len(head)
            for row in rows:
                if len(row) != width and any(row):
                    comma = (
                        f" (a {DELIMITERS[delimiter]} at the end of the row?)" if len(row) == width + 1 and not row[-1] else ""
                    )
                    raise StudyError(
                        f"{path}, line {rows.line_num}, has {len(row)} values{comma}, but the first line names {width} columns. "
                        "Correct such rows, so that no value stands in the column of another."
                    )
    except UnicodeDecodeError:
        with opened(path, "rb") as file:
            number, line = next((i, one) for i, one in enumerate(file, 1) if not _is_text(one))
        raise StudyError(
            f"{path}, line {number}, is not UTF-8 (as Latin-1 it reads {line.decode('latin-1').strip()[:60]!r}). Save it as "
            f"UTF-8, in a spreadsheet or by: iconv -f latin1 -t utf-8 {shlex.quote(path.name)} > utf-8.csv"
        ) from None
    return delimiter


def _is_text(line: bytes) -> bool:
    """Whether a line is UTF-8."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _check_decimals(frame: DataFrame, path: Path, delimiter: str) -> None:
    """Refuse numbers with a decimal comma, which would be read as words. They come with other delimiters than the comma."""
    if delimiter == ",":
        return
    for name, column in frame.items():
        if column.dtype.kind in "iufb":
            continue
        held = column.dropna().astype(str)
        if not (held.head(100).str.fullmatch(DECIMAL_COMMA).all() and held.str.fullmatch(DECIMAL_COMMA).all()):
            continue
        if shown := next((one for one in held if "," in one), None):
            raise StudyError(
                f"{path} has numbers with a decimal comma (the column {name!r}, {shown!r}). Write a decimal point; in Python: "
                f"pandas.read_csv({path.name!r}, sep={delimiter!r}, decimal=',').to_csv('points.csv', index=False)"
            )


def own(
    path: str | Path,
    label: str,
    sensitive: str,
    values: list[str] | None = None,
    drop: list[str] | None = None,
    seed: int = 0,
    along: Sequence[str] = (),
    person: str | None = None,
    max_records_per_person: int | None = None,
    label_range: tuple[float, float] | None = None,
) -> Study:
    """The study of a table: train on 80 % of its records.

    Parameters
    ----------
    path : path
        A CSV or Parquet file.
    label : str
        The column to predict.
    sensitive : str
        The column that is the secret; it may be the one to predict.
    values : list of str, optional
        The values of the secret, as in the table, or one range such as "17:90"; by default all that occur.
    drop : list of str, optional
        Columns to leave out.
    seed : int
        The seed of the split.
    along : sequence of str
        Columns that restate the secret, and change together with it.
    person : str, optional
        The column that says whose record it is. It is no feature, and nobody has records in both parts.
    max_records_per_person : int, optional
        A person with more training records keeps this many, at random.
    label_range : (float, float), optional
        The range of a column to predict that holds numbers, as for `read_labels`.
    """
    frame = read(path)
    for column in (label, sensitive, *along, *(drop or []), *([] if person is None else [person])):
        if column not in frame.columns:
            raise StudyError(f"{path} has no column {column!r}; it has {', '.join(map(repr, frame.columns))}.")
    if label == sensitive and along:
        raise StudyError(f"{label!r} is the label and the secret: no other column changes with it.")
    owners = None if person is None else person_column(frame, person, (label, sensitive, *along))
    if owners is not None:
        frame = frame.drop(columns=[person])
    frame = plain_columns(frame.drop(columns=[name for name in drop or [] if name != person]), (label, sensitive, *along))
    labelled = frame[label].notna()
    frame = frame[labelled].reset_index(drop=True)
    goal = frame.pop(label)
    if label != sensitive:
        check(frame, [sensitive, *along])
    raw = frame.copy()
    told = features(frame, (sensitive, *along))
    train, test = split(len(frame), seed)
    people = None
    if owners is not None:
        train, test, people = split_persons(owners[labelled].reset_index(drop=True), seed, max_records_per_person)
        told.append(people.sentence)
    elif max_records_per_person is not None:
        raise StudyError("max_records_per_person needs the column that says whose record it is: give person as well.")
    if lost := int((~labelled).sum()):
        told.append(f"{lost} of {len(labelled)} records have no {label!r}: they are left out.")
    labels = read_labels(goal, train, label_range)
    left_out = [*(drop or []), *([] if person is None else [person])]
    encoder, x = TableEncoder.fitted(frame, label, labels.classes, left_out, labels.scale)
    secret = labels.secret(values) if sensitive == label else secret_of(encoder, frame, sensitive, along, values)
    batch = int(min(256, max(8, len(train) // 50)))
    recipe = Recipe(batch_size=batch, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1e-3, epochs=10)
    parts = tensors(x[train], labels.targets(train, train=True)), tensors(x[test], labels.targets(test, train=False))
    given_away = () if label == sensitive else tuple(str(one) for one in restated(raw, sensitive, along))
    dates = [name for name in frame.columns if frame[name].dtype.kind == "f" and raw[name].dtype.kind not in "iufb"]
    columns = tuple(replace(one, kind=DATE) if one.name in dates else one for one in encoder.columns)
    return Study(
        Path(path).stem,
        *parts,
        secret,
        labels.classes,
        recipe,
        raw=raw.iloc[test],
        restated=given_away,
        told=(*labels.told, *told),
        people=people,
        encoder=replace(encoder, columns=columns),
    )
