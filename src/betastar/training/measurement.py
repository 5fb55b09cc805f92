"""Measured risk of attribute inference along a training: the distances of its steps, what they add up to, and single records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betastar import validation
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnBatch
from betastar.risk import Risk
from betastar.training import processes
from betastar.training.gradients.distances import DIAMETERS, RecordDistances
from betastar.training.history import SCOPES, History
from betastar.training.ledger import Ledger
from betastar.training.records import Records
from betastar.training.saved_training import SavedTraining, monitor_display, monitor_files
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source
from betastar.training.writers import Writer


def measure_dataset(source: Source, distances: RecordDistances, each: bool) -> tuple[float, NDArray[Any] | None]:
    """The largest distance over all records and, with `each`, the distance of each. Each process measures its share."""
    largest, gaps = 0.0, np.full(len(source), -1.0)
    for indices, records in source.portions(processes.share(len(source))):
        distances.check_once(indices, records)
        if each:
            gaps[indices.numpy()] = distances.each(records).cpu().numpy()
            largest = max(largest, float(gaps.max()))
        else:
            largest = distances.largest(records, largest)
    return processes.maximum(largest), processes.maxima(gaps) if each else None


class AttributeMeasurement(SavedTraining):
    """How far the clipped gradients of a record move, at each step, when its secret takes another value.

    The distance of a record is the largest distance between its clipped gradients over two values of the secret, in units of the
    clipping norm. The distance of a step is the largest one over the records that are measured. It is measured, and never proved.

    Parameters
    ----------
    secret : Secret
        The sensitive attribute.
    source : Source
        The records of the data set.
    distances : RecordDistances
        Computes distances.
    scope : "batch" or "dataset"
        Which records are measured.
    diameter : "exact" or "centroid"
        How the distance of a record is computed.
    every : int
        Every so many steps are measured.
    ledger : bool or int
        Whether the leakage of each record is kept, and in every which measured step single records are measured.
    writers : sequence of Writer
        Where the figures of each step are written.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import PrivateTraining, Secret
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Linear(2, 2)
    >>> training = PrivateTraining(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     TensorDataset(torch.eye(2).repeat(20, 1), torch.arange(40) % 2),
    ...     torch.nn.CrossEntropyLoss(),
    ...     batch_size=10,
    ...     noise_multiplier=2.0,
    ... )
    >>> measured = training.watch(Secret.one_hot([0, 1], name="group"))
    >>> for step in training.epoch():
    ...     pass
    >>> measured
    AttributeMeasurement('group', 4 steps, batch scope)
    """

    def __init__(
        self,
        secret: Secret,
        source: Source,
        distances: RecordDistances,
        *,
        scope: str,
        diameter: str,
        every: int,
        ledger: bool | int,
        writers: Sequence[Writer],
    ) -> None:
        self.secret, self.scope, self.diameter, self.every = secret, scope, diameter, every
        self.writers = list(writers)
        self.history = History(scope, diameter)
        self.ledger = Ledger(len(source), scope) if ledger else None
        self._source, self._distances = source, distances
        self._ledger_every = every * int(ledger)
        self._pending: tuple[float | None, NDArray[Any] | None] = None, None
        self._adopted = False

    # ------------------------------------------------------------------ while training

    @property
    def due(self) -> bool:
        """Whether the coming step is measured."""
        return len(self.history) % self.every == 0

    @property
    def each(self) -> bool:
        """Whether single records are measured at the coming step."""
        return self.ledger is not None and len(self.history) % max(1, self._ledger_every) == 0

    def adopt(self, largest: float, gaps: NDArray[Any] | None) -> None:
        """Take over what a budget has measured of all records at the current weights.

        Parameters
        ----------
        largest : float
            The largest distance.
        gaps : array, optional
            The distance of each record.
        """
        if self.due:
            self._pending, self._adopted = (largest, gaps if self.each else None), True

    def measure(self, batch: Records, indices: Tensor | None, first: bool = True) -> None:
        """Measure the coming step at the current weights.

        Parameters
        ----------
        batch : Records
            Records that take part in it.
        indices : Tensor, optional
            Their numbers in the data set, if known.
        first : bool
            Whether these are its first records. Others add to what was measured.
        """
        if self._adopted:
            return
        if first:
            self._pending = None, None
        if not self.due or (self.scope == "dataset" and not first):
            return
        if self.scope == "dataset":
            self._pending = measure_dataset(self._source, self._distances, self.each)
            return
        if self.secret.quick_check and len(batch):
            self.secret.check(batch, complete=False)
        largest, gaps = self._pending
        if indices is None or not self.each:
            self._pending = self._distances.largest(batch, largest or 0.0), gaps
            return
        gaps = np.full(len(self._source), -1.0) if gaps is None else gaps
        gaps[indices.numpy()] = self._distances.each(batch).cpu().numpy()
        self._pending = max(0.0, largest or 0.0, float(gaps.max())), gaps

    def record(self, drawn: DrawnBatch, noise: float) -> None:
        """Record the step that was measured, and tell the writers; with several processes, the first one does.

        Parameters
        ----------
        drawn : DrawnBatch
            How its batch was drawn.
        noise : float
            Its noise multiplier.
        """
        largest, gaps = self._pending
        if self.scope == "batch" and self.due and processes.together():
            largest = processes.maximum(largest or 0.0)
            if self.each:
                gaps = processes.maxima(np.full(len(self._source), -1.0) if gaps is None else gaps)
        self.history.add(largest, drawn, noise)
        if self.ledger is not None:
            self.ledger.step(gaps, drawn.scheme.sample_rate, noise, drawn, self.history.last_distance)
        self._pending, self._adopted = (None, None), False
        if self.writers and (not processes.together() or torch.distributed.get_rank() == 0):
            entry = self.history.entry()
            for writer in self.writers:
                writer.write(entry)

    # ------------------------------------------------------------------ answers

    @property
    def distances(self) -> NDArray[Any]:
        """The distance R_t of each step so far, in clipping norms."""
        return self.history.distances

    @property
    def label(self) -> str:
        """What kind of statement the figures are. It belongs next to each of them."""
        return self.history.label

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of the steps so far. An unfinished epoch counts as a whole one, where epochs count."""
        return self.history.run

    def risk(self, method: str = "exact") -> Risk:
        """Analyse attribute inference against the steps so far.

        Parameters
        ----------
        method : str
            As in `betastar.analyze`.

        Returns
        -------
        Risk
            Its description contains the `label`.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.history.risk(method)

    def membership(self, relation: str = "substitution", method: str = "exact") -> Risk:
        """Analyse membership inference against the same steps.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.
        method : str
            As in `betastar.analyze`.

        Returns
        -------
        Risk
            The risk of the worst case, which does not depend on the distances.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.history.membership(relation, method)

    def progress(self) -> str:
        """Describe the risk so far in one short line for a progress bar.

        Returns
        -------
        str
            β* of the secret and of membership, as the affinity estimates them.
        """
        return self.history.progress(self.secret.name)

    def metrics(self) -> dict[str, float]:
        """Give the figures of the last step to a logger.

        Returns
        -------
        dict
            Numbers by names that contain the scope.
        """
        return self.history.metrics()

    def summary(self) -> dict[str, Any]:
        """Give all figures in one mapping.

        Returns
        -------
        dict
            It can be written as JSON.
        """
        return {"secret": self.secret.name, "values": self.secret.count, **self.history.summary()}

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the measurement, to be saved next to the model's.

        Returns
        -------
        dict
            A measurement that is made alike goes on with the same figures after `load_state_dict`.
        """
        state: dict[str, Any] = {"made": self._made(), "history": self.history.state_dict()}
        return state if self.ledger is None else state | {"ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Load the model's state as well.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to another secret, scope, diameter or number of records.
        """
        for name, mine in self._made().items():
            theirs = state["made"].get(name)
            if theirs != mine:
                raise ValueError(f"the state belongs to another training: its {name} is {theirs!r}, not {mine!r}.")
        if (self.ledger is None) != ("ledger" not in state):
            raise ValueError("ledger must be given where the state was saved and here, or in neither place.")
        self.history.load_state_dict(state["history"])
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
        for writer in self.writers:
            writer.rewind(len(self.history))

    def _made(self) -> dict[str, Any]:
        """What a saved state must have been made with."""
        names = ("scope", "diameter", "every")
        return {name: getattr(self, name) for name in names} | {"secret": self.secret.digest(), "records": len(self._source)}

    def _files(self) -> Mapping[str, str]:
        return monitor_files(self)

    def _display(self, brief: bool) -> Display:
        return monitor_display(self, brief)

    def __repr__(self) -> str:
        steps = len(self.history)
        return f"{type(self).__name__}({self.secret.name!r}, {steps} {'step' if steps == 1 else 'steps'}, {self.scope} scope)"


def checked_options(secret: Secret, scope: str, diameter: str, every: int, ledger: bool | int) -> dict[str, Any]:
    """The options of a measurement, checked."""
    if not isinstance(secret, Secret):
        raise TypeError(f"secret must be a Secret, got {secret!r}.")
    return {
        "scope": validation.choice("scope", scope, SCOPES),
        "diameter": validation.choice("diameter", diameter, DIAMETERS),
        "every": validation.whole("every", every),
        "ledger": validation.whole("ledger", int(ledger), low=0),
    }
