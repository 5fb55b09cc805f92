"""Finds columns from which a secret can be read. Whoever knows them needs no model, and gap clipping does not protect them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

if TYPE_CHECKING:
    import pandas as pd

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

    places = secret.places()
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
    for name in frame.columns:
        if name == sensitive or name in along:
            continue
        if _numeric(frame[name]) and _numeric(frame[sensitive]) and _alike(frame[name], frame[sensitive]):
            columns.append(Restated(name, (), 1.0))
            continue
        sure = _sure(frame[name], _coarse(frame[sensitive]))
        share = float(frame[name].isin(list(sure)).mean()) if sure else 0.0
        if share >= CONCERNED:
            columns.append(Restated(name, () if share > 0.999 else tuple(sure), share))
    return sorted(columns, key=lambda one: -one.share)


def _numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers of more than two different values."""
    return column.dtype.kind in "iuf" and column.nunique() > 2


def _alike(one: pd.Series, other: pd.Series) -> bool:
    """Whether one number follows from another one."""
    return bool(abs(one.corr(other, method="spearman")) > ALIKE)


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
