"""A study as an audit needs it: something that makes its model, and something that trains it, again and again."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from betastar import checks
from betastar.run import DPSGD
from betastar.studies import seeds
from betastar.studies.config import Config
from betastar.studies.folder import RunFolder
from betastar.studies.study import Study, StudyError
from betastar.studies.train import network, quietly
from betastar.training import AttributeMonitor

#: The record that the ledger names first.
MOST_EXPOSED = "most-exposed"


@dataclass(frozen=True)
class Attacked:
    """factory() and train(model, data) are as `betastar.audit` wants them. seed: of the weights that training starts from, which
    the attacker may know."""

    study: Study
    data: TensorDataset
    #: Numbers of these records in the study.
    chosen: tuple[int, ...]
    seed: int = 0

    def factory(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return network(self.study)

    def train(self, model: nn.Module, data: Any) -> None:
        for _ in self._steps(model, data):
            pass

    def _steps(self, model: nn.Module, data: Any, watch: Any = None) -> Any:
        recipe = self.study.recipe
        with quietly(torch.get_num_threads()):
            criterion = nn.CrossEntropyLoss()
            model, optimizer, loader = PrivacyEngine(accountant="betastar").make_private(
                module=model,
                optimizer=torch.optim.Adam(model.parameters(), lr=recipe.learning_rate),
                data_loader=DataLoader(data, batch_size=recipe.batch_size),
                noise_multiplier=recipe.noise_multiplier,
                max_grad_norm=recipe.max_grad_norm,
            )
            if watch is not None:
                watch(model, optimizer, loader, criterion)
            for _ in range(recipe.epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                    yield

    def run(self, records: int | None = None) -> DPSGD:
        """What training on so many records is, by Opacus's own reckoning."""
        recipe = self.study.recipe
        batches = -(-(len(self.data) if records is None else records) // recipe.batch_size)
        return DPSGD(recipe.noise_multiplier, 1.0 / batches, batches * recipe.epochs)

    @property
    def max_grad_norm(self) -> float:
        return self.study.recipe.max_grad_norm

    def most_exposed(self) -> int:
        """Which of these records a ledger names first that covers all of them, in one training."""
        monitors: list[AttributeMonitor] = []

        def watch(model: Any, optimizer: Any, loader: Any, criterion: Any) -> None:
            watched: dict[str, Any] = {"scope": "dataset", "ledger": True, "every": 5}
            monitors.append(AttributeMonitor(model, optimizer, loader, criterion, self.study.secret, **watched))

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for _ in self._steps(self.factory(), self.data, watch):
                pass
        ledger = monitors[0].ledger
        assert ledger is not None
        return ledger.most_exposed(1)[0].record


def attacked(config: Config, sample: int | None = None, include: int | None = None) -> Attacked:
    """The training records of a configuration, or so many of them, one of which may be named."""
    config = replace(config, seed=config.chosen_seed())
    study = config.load()
    size = len(study.train)
    number = size if sample is None else int(checks.whole("sample", sample, low=study.recipe.batch_size))
    if number > size:
        raise StudyError(f"sample must be at most the {size} training records, got {sample}.")
    if include is not None and not 0 <= include < size:
        raise StudyError(f"challenge must be one of the {size} training records, 0 to {size - 1}, got {include}.")
    chosen = list(range(number))
    if include is not None and include >= number:
        chosen[-1] = include
    data = study.train if number == size else TensorDataset(*(column[chosen] for column in study.train.tensors))
    return Attacked(study, data, tuple(chosen), seeds.derive(config.chosen_seed(), "weights"))


def of_run(folder: str | Path) -> Config:
    """The configuration of a run, with the seed that chooses the same records."""
    known, data = RunFolder(folder).config, RunFolder(folder).data
    if data is None:
        raise StudyError(f"{folder} has no data.json, which says what the run trained on: run it again in another folder.")
    pairs: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    config = Config(**{**pairs, "seed": data["seed"]})
    if config.clips_gaps:
        raise StudyError(
            f"the run in {folder} clips gaps, which audits of training do not play yet: only betastar audit mechanism."
        )
    return config


def exposed_in(folder: str | Path) -> int:
    """The record that a run's ledger names first."""
    path = RunFolder(folder) / "ledger.csv"
    if not path.exists():
        raise StudyError(f"{path} is not there: the run has no ledger, or is not finished. Name a record instead.")
    with path.open(newline="") as file:
        return int(max(csv.DictReader(file), key=lambda row: float(row["leakage"]))["record"])
