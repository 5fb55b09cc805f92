"""What every script shares: where it writes, how thorough it is, and rows of "paper | betastar | why they differ"."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from betastar import plots
from betastar.runs import Config, RunFolder, StudyError, train, train_seeds
from studies.pages import FORMATS
from studies.purchase import RECORDS, SECRET, purchase
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Row:
    """One comparison; `paper` is the number as printed there, or "" where it has none."""

    what: str
    paper: str
    ours: str
    why: str = ""


@dataclass
class Sheet:
    """What the scripts share.

    Attributes
    ----------
    output : Path
        The folder of the figures.
    runs : Path
        The folder of the trainings, which are made once and resumed.
    quick : bool
        Whether one seed and few epochs are enough.
    jobs : int
        The number of trainings at a time.
    rows : list of Row
        The comparisons.
    redraw : bool
        Whether what was measured before is read, so that nothing is trained and timed again.
    """

    output: Path
    runs: Path
    quick: bool
    jobs: int = 2
    rows: list[Row] = field(default_factory=list)
    redraw: bool = False
    _found: dict[str, Json] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        return 1 if self.quick else 5

    @property
    def epochs(self) -> int:
        return 3 if self.quick else 30

    @property
    def note(self) -> str:
        """A remark that a quick run is not the whole study."""
        return f"quick run: {self.seeds} seed, {self.epochs} epochs (Purchase 2)" if self.quick else ""

    def add(self, what: str, paper: str, ours: str, why: str = "") -> None:
        self.rows.append(Row(what, paper, ours, why))

    def adult(self) -> list[RunFolder]:
        """Adult with the paper's parameters, both diameters."""
        config = Config(study="adult", epochs=self.epochs, approximate=True, every=1)
        return train_seeds(config, self.runs / f"adult-{self.epochs}", range(self.seeds), self.jobs, resume=True)

    def purchase(self) -> list[RunFolder]:
        """The synthetic stand-in for Purchase with the paper's parameters. It takes fewer epochs, as its records are made up."""
        epochs, records = (2, 20_000) if self.quick else (10, RECORDS)
        config = Config(study="purchase", sensitive=SECRET.name, epochs=epochs, ledger=False, seed=0, every=1)
        study = config.applied_to(purchase(seed=config.data_seed(), records=records))
        return [train(config, self.runs / f"purchase-{epochs}" / "seed-0", resume=True, study=study)]

    def measured(self, name: str, measure: Callable[[], Json]) -> Json:
        """What a figure is drawn from, where that takes long: it is kept beside the figures, and read when these are redrawn."""
        path = self.output / "measured" / f"{name}.json"
        if name not in self._found:
            if self.redraw and not path.exists():
                raise StudyError(f"{path} is missing; {name} was not measured here, so it has to be reproduced first.")
            if not self.redraw:
                path.write_text(json.dumps(measure()) + "\n")
            self._found[name] = json.loads(path.read_text())
        return self._found[name]

    def training(self, name: str, folders: Callable[[], list[RunFolder]]) -> Json:
        """The parameters of a training, and the epochs of each of its seeds."""

        def measure() -> Json:
            runs = folders()
            status = runs[0].status
            parameters = {"noise_multiplier": status.noise_multiplier, "sample_rate": status.sample_rate}
            return {**parameters, "seeds": [run.epochs for run in runs]}

        return self.measured(name, measure)

    def save(self, ax: Axes, name: str) -> None:
        plots.save(ax, self.output / name, *FORMATS)


def training_seconds(runs: Path, jobs: int) -> float:
    """How long the trainings took, whenever they were made: the time of their epochs, divided by how many ran at a time."""
    total = 0.0
    for group in runs.iterdir() if runs.exists() else ():
        seconds = [sum(entry["seconds"] for entry in RunFolder(seed).timings) for seed in group.iterdir()]
        total += sum(seconds) / min(jobs, len(seconds))
    return total


def at(training: Json, epoch: int) -> list[Json]:
    """The entries of all seeds after this epoch, or after the last one."""
    return [entries[min(epoch, len(entries)) - 1] for entries in training["seeds"]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
