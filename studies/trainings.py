"""What studies have in common: cases with several seeds, results that are kept beside a run, and counts of groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import joblib
import torch
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


class AnyCase(Protocol):
    """What a study trains, with a folder of its own."""

    @property
    def folder(self) -> str: ...


Case = TypeVar("Case", bound=AnyCase)


def each_run(
    path: Path,
    every: Sequence[tuple[Case, int]],
    jobs: int,
    one: Callable[[Case, int, Path, int], Json],
    tell: Callable[[str], None] | None,
) -> Iterator[tuple[Case, int, Json]]:
    """Run cases with their seeds, `jobs` at a time. `one` gets the case, the seed, a folder and the number of threads."""
    threads = max(1, torch.get_num_threads() // joblib.effective_n_jobs(jobs))
    todo = [joblib.delayed(one)(case, seed, path / "runs" / case.folder / f"seed-{seed}", threads) for case, seed in every]
    results = joblib.Parallel(n_jobs=jobs, return_as="generator")(todo)
    for number, ((case, seed), result) in enumerate(zip(every, results, strict=True), start=1):
        if tell:
            tell(f"{number} of {len(every)}: {case.folder}, seed {seed}")
        yield case, seed, result


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
