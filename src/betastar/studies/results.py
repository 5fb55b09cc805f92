"""What studies have in common: results that are kept beside a run, the file of all results, and counts of groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from betastar import files
from betastar.runs.folder import MODEL, RunFolder
from betastar.runs.reading import Json

if TYPE_CHECKING:
    from pandas import DataFrame

#: What is kept of a run, in its folder; and of all runs.
RESULT, RESULTS = "result.json", "results.json"
#: For each column, the number of test records of each group, and for how many the model is right.
Groups = dict[str, dict[str, tuple[int, int]]]


def kept(folder: RunFolder, make: Callable[[], Json]) -> Json:
    """The result that is kept in a folder; it is made first, if there is none."""
    if not (folder / RESULT).exists():
        result = make()
        files.make_private(folder.path)
        folder.write(RESULT, json.dumps(result) + "\n")
        (folder / MODEL).unlink(missing_ok=True)  # hundreds of them, and they are not needed
    told: Json = json.loads((folder / RESULT).read_text())
    return told


def write_results(path: Path, head: Json, runs: Sequence[Json]) -> Json:
    """Write all results, a run a line, and return them."""
    lines = ",\n".join(json.dumps(run) for run in runs)
    files.write(path / RESULTS, json.dumps({**head, "runs": []})[:-2] + f"\n{lines}\n]}}\n", private=False)
    return {**head, "runs": list(runs)}


def group_counts(table: DataFrame, columns: Iterable[str], right: Tensor) -> Groups:
    """For each of these columns, how many test records of each group there are, and for how many the model is right."""
    hit = table.assign(right=right.numpy())
    return {
        name: {
            str(group): (int(row["size"]), int(row["sum"]))
            for group, row in hit.groupby(name)["right"].agg(["size", "sum"]).iterrows()
        }
        for name in columns
    }
