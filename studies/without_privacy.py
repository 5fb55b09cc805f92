"""The model of a study, trained with Adam on the same records from the same weights: no clipping, no noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from betastar.datasets import seeds
from betastar.datasets.study import Study
from betastar.runs import quality
from betastar.runs.config import Config
from betastar.runs.private_training import network
from betastar.runs.trained_model import outputs


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
        """The accuracy of whoever always says the most frequent class."""
        return quality.baseline(self.study.train.tensors[1].numpy(), self.study.test.tensors[1].numpy())


def without_privacy(config: Config) -> Trained:
    """Train the model of a configuration whose label is a class."""
    study = config.load()
    recipe = study.recipe
    seeds.start(config.chosen_seed(), "weights")
    model = network(study)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=recipe.learning_rate)
    x, y = study.train.tensors
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(x)).split(recipe.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return Trained(study, outputs(model, study.test.tensors[0]).argmax(dim=1) == study.test.tensors[1])
