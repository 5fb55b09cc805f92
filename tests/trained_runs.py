"""Small runs that tests look at: each is trained once a session, and a test gets a copy of its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from betastar.runs import Config, RunFolder

if TYPE_CHECKING:
    from betastar.runs import Study


def people(number: int = 300) -> pd.DataFrame:
    """A table of people, with a column of each kind; some values are missing."""
    generator = np.random.default_rng(0)
    age = generator.integers(20, 60, number)
    return pd.DataFrame(
        {
            "age": age,
            "town": generator.choice(["north", "south", None], number),
            "pay": np.where(generator.random(number) < 0.1, np.nan, generator.normal(30, 5, number) + age / 5),
            "member": generator.choice([True, False], number),
            "name": [f"person {i}" for i in range(number)],
            "rich": np.where(age + generator.normal(0, 8, number) > 40, "yes", "no"),
        }
    )


def houses(number: int = 400) -> pd.DataFrame:
    """A table of houses, whose price is a number; one price is missing."""
    generator = np.random.default_rng(0)
    rooms, area = generator.integers(1, 7, number), generator.normal(90.0, 25.0, number)
    town = generator.choice(["north", "south"], number)
    price = 40_000.0 * rooms + 2_500.0 * area + 60_000.0 * (town == "south") + generator.normal(0.0, 20_000.0, number)
    frame = pd.DataFrame({"rooms": rooms, "area": area, "town": town, "price": np.round(price, -2)})
    frame.loc[7, "price"] = np.nan  # such a record is not trained on, and can be predicted
    return frame


class TrainedRuns:
    """The tables and the runs of a session, in a folder that no test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kept: dict[tuple[Config, str | None], Path] = {}

    def table(self, name: str, make: Callable[[], pd.DataFrame]) -> str:
        """The path of a table, which is made and written if it is not there."""
        path = self.root / f"{name}.csv"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            make().to_csv(path, index=False)
        return str(path)

    def people(self, number: int = 200, **options: Any) -> Config:
        """The configuration of two short epochs on so many people, of whom four fifths are trained on."""
        path = self.table(f"{number}/people", lambda: people(number))
        usual = {"drop": ("name",), "epochs": 2, "noise_multiplier": 4.0, "batch_size": 40}
        return Config(path, "rich", "age", **{**usual, **options})

    def houses(self, **options: Any) -> Config:
        """The configuration of a regression that learns something."""
        usual = {"epochs": 3, "noise_multiplier": 1.0, "batch_size": 40, "learning_rate": 0.02, "seed": 0}
        return Config(self.table("houses", houses), "price", "rooms", **{**usual, **options})

    def copy(self, config: Config, to: Path, study: Study | None = None) -> RunFolder:
        """A copy of the run of a configuration, which is trained if it was not asked for before."""
        from betastar.runs import train

        key = config, None if study is None else study.fingerprint()
        if key not in self.kept:
            path = self.root / "runs" / str(len(self.kept))
            self.kept[key] = train(config, path, study=study).path
        return RunFolder(shutil.copytree(self.kept[key], to))
