"""MembershipMonitor: measures how exposed each record is to membership inference beside a training loop with Opacus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from betastar import validation
from betastar.display import Display
from betastar.files import MONITOR, TRAINING
from betastar.training import preparing, processes
from betastar.training.gradients.factors import clip
from betastar.training.gradients.record_gradients import RecordLosses
from betastar.training.gradients.side_effects import GradientError, restored
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.members import MembershipLedger, members_files
from betastar.training.opacus.adapter import OpacusAdapter, loss_of
from betastar.training.opacus.internals import UnsupportedOpacus
from betastar.training.opacus.monitor import Criterion, Hook
from betastar.training.records import Records, pair
from betastar.training.saved_training import SavedTraining, described
from betastar.training.source import Source

#: Records in a pass over all of them.
TOGETHER = 256


class MembershipMonitor(SavedTraining):
    """Measures the norms of clipped gradients, from which each record's exposure to membership inference follows.

    Nothing is proved, and what is measured is about single records: it is for the trainer's eyes, and to show it leaks. The loop
    stays as it is. `ledger` has the exposure of each record.

    Parameters
    ----------
    model, optimizer, loader : objects
        What `make_private` of Opacus returned.
    criterion : callable
        The loss that the training loop calls. In dataset scope it is asked for single records.
    scope : "batch" or "dataset"
        "batch" reads the norms that Opacus computes anyway, of the records that are drawn; tell their numbers by `records`.
        "dataset" measures all records at the current weights, which takes a pass over the data.
    every : int
        In dataset scope: measures once in this many steps. The norms are taken for the steps up to the next time.
    split : callable
        Turns a batch into `Records`, if batches are not (inputs, target, ...).

    Raises
    ------
    TypeError, ValueError
        If an argument is not allowed, or if the loop cannot be measured.
    GradientError
        In dataset scope, if gradients of single records cannot be computed, or depend on dropout.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import MembershipMonitor
    >>> from opacus import PrivacyEngine
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.randn(40, 3), torch.arange(40) % 2, torch.arange(40))  # with the number of each record
    >>> module, criterion = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()
    >>> model, optimizer, loader = PrivacyEngine().make_private(
    ...     module=module,
    ...     optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(data, batch_size=10),
    ...     noise_multiplier=2.0,
    ...     max_grad_norm=1.0,
    ... )
    >>> monitor = MembershipMonitor(model, optimizer, loader, criterion)
    >>> for inputs, target, numbers in loader:
    ...     monitor.records(numbers)
    ...     optimizer.zero_grad()
    ...     criterion(model(inputs), target).backward()
    ...     optimizer.step()
    >>> monitor.ledger.steps
    4
    >>> bool((monitor.ledger.bayes_security() >= monitor.ledger.any_record()).all())
    True
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: DataLoader[Any],
        criterion: Criterion,
        *,
        scope: str = "batch",
        every: int = 1,
        split: Callable[[Any], Records] = pair,
    ) -> None:
        if not callable(criterion):
            raise TypeError(f"criterion must be callable, got {criterion!r}.")
        self._adapter = OpacusAdapter(model, optimizer, loader)
        self.every = validation.one_whole("every", every)
        self._source = Source(loader.dataset, loader.collate_fn, split, self._adapter.device)
        self._size = len(self._source)
        #: The exposure of each record.
        self.ledger = MembershipLedger(self._size, scope)
        if scope == "batch" and self.every > 1:
            raise validation.wrong("every", f"must be 1 in batch scope, where the norms are there at each step, got {every}.")
        self._losses = RecordLosses(loss_of(criterion))
        self._gradients = VariantGradients(self._adapter, lambda *given: self._losses(*given).sum())
        self._seen: list[Tensor] = []  # norms that Opacus told since the last step
        self._rows = 0  # of the forward passes since then, as far as they are known
        self._numbers: list[Tensor] = []  # numbers of records that the loop told since then
        outer, inner = self._adapter.outer, self._adapter.optimizer.original_optimizer
        if scope == "dataset":
            with restored(self._adapter.module):
                self._try_out()
        self._handles = [
            outer.register_forward_pre_hook(Hook(outer, self._sees_model)),
            inner.register_step_pre_hook(Hook(inner, self._stepping)),
        ]

    def _try_out(self) -> None:
        """Measure a few records, so that an error shows before the first step."""
        preparing.require_precision(self._adapter.parameters)
        records = preparing.different(self._source)
        with self._gradients.dropout_of(records) as numbered:
            if self._gradients.drops_out:
                raise GradientError(preparing.DROPOUT)
            self._norms_of(numbered)

    def _norms_of(self, records: Records) -> NDArray[Any]:
        """Norms of the clipped gradients of some records, in clipping norms, as Opacus clips them."""
        with torch.autocast(self._adapter.device.type, enabled=False):
            norms = clip(self._gradients.own(records), self._adapter).norms.sqrt()
        return np.minimum(norms.flatten().cpu().double().numpy(), 1.0)

    def records(self, indices: ArrayLike | Tensor) -> None:
        """Tell which records the coming batch holds. In batch scope, call this before each forward pass.

        Parameters
        ----------
        indices : sequence of int
            The numbers of the records in the data set, in the order of the batch.

        Raises
        ------
        ValueError
            Later, when steps are added up, if the data set has no such record.
        """
        # A copy: loops may reuse a tensor.
        self._numbers.append(indices.clone() if isinstance(indices, Tensor) else torch.as_tensor(np.array(indices)))

    def detach(self) -> None:
        """Stop measuring. The figures of the steps so far stay."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._adapter.read_norms(None)

    def _sees_model(self, args: tuple[Any, ...]) -> None:
        if self.ledger.scope == "batch" and self._adapter.trains:
            self._adapter.read_norms(self._seen)
            self._rows += args[0].shape[0] if args and isinstance(args[0], Tensor) else 0

    def _stepping(self, *args: Any) -> None:
        """Record a step that the optimizer is about to take."""
        noise, drawn, norm = self._adapter.noise_multiplier(), self._adapter.drawn(), self._adapter.max_grad_norm()
        if self.ledger.scope == "dataset":
            self.ledger.keep(noise, drawn, norms=[self._measured()] if self.ledger.steps % self.every == 0 else [])
            return
        rows, seen, numbers = self._rows, self._seen.copy(), self._numbers
        self._rows, self._numbers = 0, []
        self._seen.clear()
        if rows and not seen:
            raise UnsupportedOpacus("does not divide the clipping norm by the norms of gradients, which are read there")
        if not self._adapter.flat:
            seen = _of_all_layers(seen, list(self._adapter.layer_norms().values()))
        if numbers and (given := sum(one.numel() for one in numbers)) != (number := sum(one.numel() for one in seen)):
            raise ValueError(f"indices must be one for each of the {number} records of the step, got {given}.")
        if processes.together():
            if not numbers:
                raise ValueError("records must be called before each forward pass with several processes.")
            every = np.full(self._size, -1.0)
            every[torch.cat(numbers).flatten().cpu().numpy()] = torch.cat(seen).cpu().double().numpy()
            every = processes.maxima(every)
            self.ledger.keep(noise, drawn, [np.flatnonzero(every >= 0.0)], [every[every >= 0.0]], norm)
        else:
            self.ledger.keep(noise, drawn, numbers or None, seen, norm)

    def _measured(self) -> NDArray[Any]:
        """The norms of all records at the current weights. Each process measures its share."""
        preparing.require_precision(self._adapter.parameters)
        norms = np.full(len(self._source), -1.0)
        with restored(self._adapter.module):
            for indices, records in self._source.portions(processes.share(self._size)):
                for start in range(0, len(records), TOGETHER):
                    some = slice(start, start + TOGETHER)
                    norms[indices[some].numpy()] = self._norms_of(records.take(some))
        return processes.maxima(norms)

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the monitor, to be saved next to the model's.

        Returns
        -------
        dict
            A monitor that is made alike goes on after `load_state_dict`.
        """
        return {"every": self.every, "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Load the model's state as well.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to another monitor.
        """
        if state["every"] != self.every:
            raise ValueError(f"state must belong to a monitor with every={self.every}, got every={state['every']}.")
        self.ledger.load_state_dict(state["ledger"])

    def _files(self) -> Mapping[str, str]:
        return {TRAINING: described(MONITOR, self.ledger.run, secrets={}), **members_files(self.ledger)}

    def _display(self, brief: bool) -> Display:
        return self.ledger._display(brief)

    def __repr__(self) -> str:
        return f"MembershipMonitor({self.ledger!r})"


def _of_all_layers(norms: list[Tensor], most: list[float]) -> list[Tensor]:
    """The norms of whole clipped gradients, of each pass, from those of one layer after the other."""
    squares = [one.clamp(max=most[i % len(most)]).square() for i, one in enumerate(norms)]
    return [torch.stack(squares[i : i + len(most)]).sum(dim=0).sqrt() for i in range(0, len(squares), len(most))]
