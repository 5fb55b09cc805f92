"""Somebody's own table (CSV or Parquet) as a study."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from betastar.datasets import persons
from betastar.datasets.columns import encoder, features, plain
from betastar.datasets.labels import Labels, read_labels
from betastar.datasets.sensitive import check, secret_of, with_public
from betastar.datasets.study import Recipe, Study, StudyError, split, tensors
from betastar.datasets.table_encoder import TableEncoder
from betastar.training import Secret
from betastar.training.secrets.tables import restated

if TYPE_CHECKING:
    from pandas import DataFrame
    from sklearn.pipeline import Pipeline

#: A CSV may be packed.
OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def read(path: str | Path, least: int = 10) -> DataFrame:
    """The table in a CSV or Parquet file; raises StudyError if it is none, or has fewer than the least number of records."""
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise StudyError(f"no file {path}.")
    try:
        if path.suffix in (".parquet", ".pq"):
            frame = pd.read_parquet(path)
        else:
            _check_rows(path)
            frame = pd.read_csv(path, skipinitialspace=True, index_col=False)
    except ImportError:
        raise StudyError(f"{path} is a Parquet file; reading it needs the package pyarrow.") from None
    except StudyError:
        raise
    except (ValueError, EOFError, OSError, NotImplementedError, csv.Error, lzma.LZMAError) as problem:
        raise StudyError(f"{path} is truncated or no table: {str(problem).splitlines()[0]}") from None
    if len(frame) < least:
        raise StudyError(f"{path} has {len(frame)} records; at least {least} are needed.")
    return frame


def _check_rows(path: Path) -> None:
    """Refuse a CSV with a row that has more or fewer values than there are columns: they may belong to other columns."""
    if path.suffix in (".zip", ".tar", ".tgz", ".zst"):
        raise StudyError(f"{path} is an archive: unpack it first. A CSV may be packed as {', '.join(OPEN)}.")
    with OPEN.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, skipinitialspace=True)
        head = next((row for row in rows if row), [])
        if twice := [name for name in head if head.count(name) > 1]:
            raise StudyError(f"{path} has two columns that are called {twice[0]!r}: rename one of them.")
        for row in rows:
            if len(row) != len(head) and any(row):
                comma = " (a comma at the end of the row?)" if len(row) == len(head) + 1 and not row[-1] else ""
                raise StudyError(
                    f"{path}, line {rows.line_num}, has {len(row)} values{comma}, but the first line names {len(head)} columns. "
                    "Correct such rows, so that no value stands in the column of another."
                )


def own(
    path: str | Path,
    target: str,
    sensitive: str,
    values: list[str] | None = None,
    between: tuple[float, float] | None = None,
    drop: list[str] | None = None,
    seed: int = 0,
    along: Sequence[str] = (),
    public: str | Path | None = None,
    keep: Sequence[str] = (),
    person: str | None = None,
    max_records_per_person: int | None = None,
    task: str | None = None,
    label_range: tuple[float, float] | None = None,
) -> Study:
    """The study of a table: train on 80 % of its records.

    Parameters
    ----------
    path : path
        A CSV or Parquet file.
    target : str
        The column to predict.
    sensitive : str
        The column that is the secret; it may be the one to predict.
    values : list of str, optional
        The values of the secret, as in the table; all that occur by default.
    between : (float, float), optional
        The range of the secret, instead of its values.
    drop : list of str, optional
        Columns to leave out.
    seed : int
        The seed of the split.
    along : sequence of str
        Columns that restate the secret, and change together with it.
    public : path, optional
        Other people's records, which tell how frequent the values of the secret are.
    keep : sequence of str
        Columns that are features although they differ in each record.
    person : str, optional
        The column that says whose record it is. It is no feature, and nobody has records in both parts.
    max_records_per_person : int, optional
        Of more training records of a person, so many are kept at random.
    task, label_range : optional
        Whether the column to predict holds classes or numbers, and the range of the numbers, as for `read_labels`.
    """
    frame = read(path)
    for column in (target, sensitive, *along, *(drop or []), *keep, *([] if person is None else [person])):
        if column not in frame.columns:
            raise StudyError(f"{path} has no column {column!r}; it has {', '.join(map(repr, frame.columns))}.")
    if target == sensitive and (along or public is not None):
        raise StudyError(f"{target!r} is the label and the secret: no other column changes with it, and public is not for it.")
    owners = None if person is None else persons.owners(frame, person, (target, sensitive, *along))
    if owners is not None:
        frame = frame.drop(columns=[person])
    frame = plain(frame.drop(columns=[name for name in drop or [] if name != person]), (target, sensitive, *along))
    labelled = frame[target].notna()
    frame = frame[labelled].reset_index(drop=True)
    goal = frame.pop(target)
    if target != sensitive:
        check(frame, [sensitive, *along])
    raw = frame.copy()
    told = features(frame, (sensitive, *along), keep)
    encode = encoder(frame)
    x = encode.transform(frame)
    train, test = split(len(frame), seed)
    people = None
    if owners is not None:
        train, test, people = persons.split(owners[labelled].reset_index(drop=True), seed, max_records_per_person)
        told.append(people.sentence)
    elif max_records_per_person is not None:
        raise StudyError("max_records_per_person needs the column that says whose record it is: give person as well.")
    if lost := int((~labelled).sum()):
        told.append(f"{lost} of {len(labelled)} records have no {target!r}: they are left out.")
    labels = read_labels(goal, train, task, label_range)
    secret = _secret(encode, frame, labels, sensitive, along, values, between, public)
    batch = int(min(256, max(8, len(train) // 50)))
    recipe = Recipe(batch_size=batch, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1e-3, epochs=10)
    parts = tensors(x[train], labels.targets(train, train=True)), tensors(x[test], labels.targets(test, train=False))
    given_away = () if target == sensitive else tuple(str(one) for one in restated(raw, sensitive, along))
    dates = [name for name in frame.columns if frame[name].dtype.kind == "f" and raw[name].dtype.kind not in "iufb"]
    left_out = [*(drop or []), *([] if person is None else [person])]
    known = TableEncoder.of_pipeline(encode, target, labels.classes, left_out, dates, labels.scale)
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
        encoder=known,
    )


def _secret(
    encode: Pipeline,
    frame: DataFrame,
    labels: Labels,
    sensitive: str,
    along: Sequence[str],
    values: list[str] | None,
    between: tuple[float, float] | None,
    public: str | Path | None,
) -> Secret:
    """The sensitive column as a secret, with the frequencies among public records if there are any."""
    if sensitive == labels.column.name:
        return labels.secret(values, between)
    some = frame.sample(min(64, len(frame)), random_state=0)
    secret = secret_of(encode, frame, sensitive, along, values, between, some)
    return secret if public is None else with_public(secret, read(public), sensitive, along)
