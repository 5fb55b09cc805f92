"""Columns that give a secret away: whoever knows them need not look at the model, and gap clipping does not protect them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

#: A column restates the secret where its value leaves less doubt than this; where the secret is rarely another one anyway,
#: that says little.
SURE, RARE = 0.99, 0.9
#: Records that agree by chance with a larger probability say nothing; and how many records it must concern.
CHANCE, CONCERNED = 1e-3, 0.02
#: Rank correlation above which one number stands for another; numbers with more different values are put into so many ranges.
ALIKE, RANGES = 0.98, 50
#: Records that are looked at when a monitor is attached, and columns of an argument at the most.
LOOK_AT, COLUMNS = 2048, 512


class RestatedSecretWarning(UserWarning):
    """Another column or argument holds the secret again."""


def warn_of_restated(records: Records, secret: Secret) -> None:
    """Look for the secret in the other columns of the model's inputs."""
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
    values: tuple[Any, ...]  # empty: wherever it is known
    share: float  # of the records

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.values[:4])) + (", …" if len(self.values) > 4 else "")
        where = f" = {shown}" if self.values else ""
        return f"{self.column}{where} ({100 * self.share:.0f} % of the records)"


def restated(frame: Any, sensitive: str, along: Sequence[str] = ()) -> list[Restated]:
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


def _numeric(column: Any) -> bool:
    return column.dtype.kind in "iuf" and column.nunique() > 2


def _alike(one: Any, other: Any) -> bool:
    return bool(abs(one.corr(other, method="spearman")) > ALIKE)


def _coarse(column: Any) -> Any:
    import pandas as pd

    if not _numeric(column) or column.nunique() <= RANGES:
        return column
    return pd.qcut(column, RANGES, labels=False, duplicates="drop")


def _sure(column: Any, secret: Any) -> list[Any]:
    """Values of a column with which the secret is (almost) always the same, though it is not always the same."""
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
