"""A model that is trained with DP-SGD: what it is made of, and its steps. `betastar train` and audits of a study share it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from betastar.datasets.study import Recipe, Study
from betastar.runs.layers import fully_connected
from betastar.training import AttributeMonitor, GapClipping, Secret, make_attribute_private, private_loader


def network(study: Study) -> nn.Module:
    """The model of a study, with new weights."""
    if study.model is not None:
        return study.model(study.recipe)
    return fully_connected([study.columns, *study.recipe.hidden, len(study.classes) or 1])


def criterion_of(data: TensorDataset) -> nn.Module:
    """The loss of records: the squared error of targets that are numbers, the cross-entropy of those that are classes."""
    return nn.MSELoss() if data.tensors[1].is_floating_point() else nn.CrossEntropyLoss()


def sampled_loader(data: TensorDataset, batch_size: int, sampling: str, max_batch_size: int | None) -> DataLoader[Any]:
    """The loader of a sampling. Opacus makes plain Poisson sampling of it."""
    if sampling == "shuffled":
        return DataLoader(data, batch_size=batch_size, shuffle=True)
    loader: DataLoader[Any] = DataLoader(data, batch_size=batch_size)
    plain = sampling == "poisson" and max_batch_size is None
    return loader if plain else private_loader(loader, sampling, max_batch_size=max_batch_size)


class PrivateTraining:
    """Model, optimizer and loader as Opacus makes them private, and the monitors that watch them.

    Parameters
    ----------
    module : Module
        The model, which is trained in place.
    data : TensorDataset
        The records to train on.
    secret : Secret
        The attribute that monitors watch, or that gap clipping protects.
    recipe : Recipe
        The parameters of training.
    gap, target_attribute_beta : float, optional
        With one of them gaps are clipped, as `make_attribute_private` does.
    sampling : str
        How batches are drawn, as in `betastar.DPSGD`.
    max_batch_size : int, optional
        With Poisson sampling: of a larger batch, so many records are kept at random.
    """

    def __init__(
        self,
        module: nn.Module,
        data: TensorDataset,
        secret: Secret,
        recipe: Recipe,
        gap: float | None = None,
        target_attribute_beta: float | None = None,
        sampling: str = "poisson",
        max_batch_size: int | None = None,
    ) -> None:
        self.module, self.data, self.secret = module, data, secret
        self.engine = PrivacyEngine(accountant="betastar")
        self.criterion = criterion_of(data)
        self.monitors: dict[str, AttributeMonitor] = {}
        self.clipping: GapClipping | None = None
        parts: dict[str, Any] = {
            "module": module,
            "optimizer": torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=recipe.learning_rate),
            "data_loader": sampled_loader(data, recipe.batch_size, sampling, max_batch_size),
            "noise_multiplier": recipe.noise_multiplier,
            "max_grad_norm": recipe.max_grad_norm,
            "poisson_sampling": sampling == "poisson" and max_batch_size is None,
        }
        if gap is None and target_attribute_beta is None:
            self.model, self.optimizer, self.loader = self.engine.make_private(**parts)
            return
        self.model, self.optimizer, self.loader = make_attribute_private(
            **parts,
            criterion=self.criterion,
            secret=secret,
            gap=gap,
            bayes_security=target_attribute_beta,
            epochs=None if target_attribute_beta is None else recipe.epochs,
            engine=self.engine,
        )
        self.clipping = self.optimizer.gap_clipping

    def watch(self, diameter: str = "exact", **options: Any) -> AttributeMonitor:
        """Add a monitor of the secret, with these options of `AttributeMonitor`."""
        parts = (self.model, self.optimizer, self.loader, self.criterion, self.secret)
        self.monitors[diameter] = AttributeMonitor(*parts, diameter=diameter, **options)
        return self.monitors[diameter]

    def one_epoch(self) -> Iterator[tuple[int, Tensor]]:
        """One epoch: the size of each batch and its loss, after its step.

        `betastar train`, and every game of an audit of a study, iterate this and nothing else. The batches come from the sampler
        rather than from the loader, which draws one more random number an epoch and does not say which records it has drawn.
        """
        ledgers = [one for one in self.monitors.values() if one.ledger is not None and one.scope == "batch"]
        for indices in self.loader.batch_sampler:
            for monitor in ledgers:
                monitor.records(indices)
            x, y = self.data[indices]
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            yield len(x), loss.detach()
