"""A study as an audit needs it: something that makes its model, and something that trains it, again and again."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from betastar import validation
from betastar.calibrate import Target, plan
from betastar.dpsgd import DPSGD
from betastar.runs import seeds
from betastar.runs.config import Config
from betastar.runs.folder import DATA, LEDGER, RunFolder
from betastar.runs.loop import network, private, quietly
from betastar.runs.reading import Inside, StudyError
from betastar.runs.study import Study
from betastar.training import PrivateTraining
from betastar.training.draws import Draws

#: The record that the ledger names first.
MOST_EXPOSED = "most-exposed"


@dataclass(frozen=True)
class Attacked:
    """A study as `betastar.audit.games` wants it: `factory()` makes the model, and `train(model, data)` trains it.

    Attributes
    ----------
    study : Study
        The data set, its secret, and the parameters of training.
    data : TensorDataset
        The records to train on.
    chosen : tuple of int
        The numbers of these records in the study.
    seed : int
        The seed of the weights that training starts from, which the attacker may know.
    config : Config
        How batches are drawn, and whether gaps are clipped.
    """

    study: Study
    data: TensorDataset
    chosen: tuple[int, ...]
    seed: int
    config: Config

    @cached_property
    def _first(self) -> nn.Module:
        """A model with the first weights. It may have been pre-trained, which takes long."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return network(self.study)

    def factory(self) -> nn.Module:
        """A new model with the first weights, always the same."""
        return deepcopy(self._first)

    def train(self, model: nn.Module, data: TensorDataset) -> None:
        """Train the model on the data by the loop of `betastar train`."""
        with quietly(torch.get_num_threads()):
            self._epochs(self._private(model, data))

    def _private(self, model: nn.Module, data: TensorDataset) -> PrivateTraining:
        """The training, whose randomness follows from torch's generator, so that a game can be played again."""
        protected = {} if self.gap is None else {"secret": self.study.secret, "gap": self.gap}
        return private(model, data, self.study.recipe, self.config, seed=int(torch.randint(2**62, ())), **protected)

    def _epochs(self, training: PrivateTraining) -> None:
        for _ in range(self.study.recipe.epochs):
            for _ in training.epoch():
                pass

    def run(self, records: int | None = None) -> DPSGD:
        """The run that training on this many records is."""
        recipe = self.study.recipe
        size = len(self.data) if records is None else records
        config = self.config
        draws = Draws(size, recipe.batch_size, config.sampling, config.max_batch_size, 0, config.times_per_epoch)
        return draws.scheme.run(recipe.noise_multiplier, draws.steps_per_epoch * recipe.epochs)

    @cached_property
    def gap(self) -> float | None:
        """The gap of the secret, in clipping norms; None unless the training clips gaps."""
        if self.config.attribute_target is None:
            return self.config.gap
        gap = plan(attribute=Target.parse(self.config.attribute_target), run=self.run()).gap
        return None if gap is None else float(gap)

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm."""
        return self.study.recipe.max_grad_norm

    def most_exposed(self) -> int:
        """The number of the record that a ledger of all records names first, after one training."""
        with torch.random.fork_rng(devices=[]), quietly(torch.get_num_threads()):
            torch.manual_seed(self.seed)
            training = self._private(self.factory(), self.data)
            ledger = training.watch(self.study.secret, scope="dataset", ledger=True, every=5).ledger
            self._epochs(training)
        assert ledger is not None
        return ledger.most_exposed(1)[0].record


def attacked(config: Config, sample: int | None = None, include: int | None = None, study: Study | None = None) -> Attacked:
    """The training records of a configuration, or `sample` of them, one of which may be named. study: as for `train`."""
    config = replace(config, seed=config.chosen_seed())
    study = config.load() if study is None else study
    size = len(study.train)
    number = size if sample is None else int(validation.whole("sample", sample, low=study.recipe.batch_size))
    if number > size:
        raise StudyError(f"sample must be at most the {size} training records, got {sample}.")
    if include is not None and not 0 <= include < size:
        raise StudyError(f"challenge must be one of the {size} training records, 0 to {size - 1}, got {include}.")
    chosen = list(range(number))
    if include is not None and include >= number:
        chosen[-1] = include
    data = study.train if number == size else TensorDataset(*(column[chosen] for column in study.train.tensors))
    return Attacked(study, data, tuple(chosen), seeds.derive(config.chosen_seed(), "weights"), config)


def of_run(path: str | Path) -> Config:
    """The configuration of a run, with the seed that chooses the same records."""
    folder = RunFolder(path)
    config, data = folder.config, folder.data
    if data is None:
        raise StudyError(f"{path} has no {DATA}, which says what the run trained on: run it again in another folder.")
    with Inside(folder / DATA):
        return replace(config, seed=int(data["seed"]))


def exposed_in(path: str | Path) -> int:
    """The record that a run's ledger names first."""
    folder = RunFolder(path)
    if not (entries := folder.ledger):
        raise StudyError(f"{folder / LEDGER} is not there: the run has no ledger, or is not finished. Name a record instead.")
    return max(entries, key=lambda entry: entry.leakage).record
