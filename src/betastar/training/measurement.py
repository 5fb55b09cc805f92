"""Measured risk of attribute inference along a training: the distances of its steps, what they add up to, and single records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import erfc, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import erfcinv
from torch import Tensor

from betastar import validation
from betastar.analyze import analyze
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnBatch, DrawnSteps, SamplingScheme
from betastar.files import LEDGER, MONITOR, STEPS, TRAINING, ledger_text
from betastar.risk import Risk
from betastar.rounding import down
from betastar.threats import FARTHEST, AttributeInference, Membership
from betastar.training import processes
from betastar.training.gradients.distances import DIAMETERS, RecordDistances
from betastar.training.ledger import LeakageSum, Ledger
from betastar.training.records import Records
from betastar.training.saved_training import HEADS, SavedTraining, described, rows, shares_of
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source
from betastar.training.writers import JsonLines, Writer

#: What kind of statement a figure of each scope is (theory, section 6).
SCOPES = {
    "batch": "batch scope: an estimate for the trainer's eyes only, as a record outside the batch may have a larger gap "
    "and publishing the figure reveals who was sampled",
    "dataset": "dataset scope: the largest gap over all records, an after-the-fact statement; publishing it can leak membership",
}


class _Measured(AttributeInference):
    """Distances that a monitor measured, with the label of their scope."""

    def __init__(self, distances: NDArray[Any], label: str) -> None:
        super().__init__(distances)
        self.label = label

    def describe(self) -> str:
        return f"{super().describe()} [{self.label}]"


@lru_cache(maxsize=16)
def _leakage_of_bins(scheme: SamplingScheme, noise: float) -> float:
    """Λ of one epoch of balls in bins against membership inference, by the affinity."""
    assert scheme.batches is not None
    beta = analyze(scheme.run(noise, scheme.batches), method="affinity").bayes_security.estimate
    return float(erfcinv(float(beta))) ** 2


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
        One step in this many is measured.
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
        self._steps: list[float] = []  # the distance of each step so far
        self._measured: list[bool] = []
        self._drawn = DrawnSteps()
        self._last: tuple[SamplingScheme, float] | None = None  # sampling and noise of the last step
        self._leakage, self._leakage_of_membership = LeakageSum(), LeakageSum()
        self.ledger = Ledger(len(source), scope) if ledger else None
        self._source, self._distances = source, distances
        self._ledger_every = every * int(ledger)
        self._pending: tuple[float | None, NDArray[Any] | None] = None, None
        self._adopted = False

    # ------------------------------------------------------------------ while training

    @property
    def due(self) -> bool:
        """Whether the coming step is measured."""
        return self.steps % self.every == 0

    @property
    def each(self) -> bool:
        """Whether single records are measured at the coming step."""
        return self.ledger is not None and self.steps % max(1, self._ledger_every) == 0

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
        last = self._steps[-1] if self._steps else FARTHEST  # of a step that is not measured, the last distance is taken
        self._steps.append(last if largest is None else largest)
        self._measured.append(largest is not None)
        self._drawn.add(noise, drawn)
        self._last = drawn.scheme, noise
        self._leakage.add(self._steps[-1], drawn, noise)
        if drawn.scheme.sampling != "balls-in-bins":
            self._leakage_of_membership.add(FARTHEST, drawn, noise)
        if self.ledger is not None:
            self.ledger.step(gaps, drawn.scheme.sample_rate, noise, drawn, self._steps[-1])
        self._pending, self._adopted = (None, None), False
        if self.writers and (not processes.together() or torch.distributed.get_rank() == 0):
            entry = self.entry()
            for writer in self.writers:
                writer(entry)

    # ------------------------------------------------------------------ answers

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return len(self._steps)

    @property
    def distances(self) -> NDArray[Any]:
        """The distance R_t of each step so far, in clipping norms."""
        return np.array(self._steps)

    @property
    def skipped(self) -> int:
        """The number of steps that were not measured."""
        return self.steps - sum(self._measured)

    @property
    def label(self) -> str:
        """What kind of statement the figures are. It belongs next to each of them."""
        if not self.skipped:
            return SCOPES[self.scope]
        few = f"{self.skipped} of {self.steps} steps were not measured and take the distance of the last one that was"
        return f"{SCOPES[self.scope]}; {few}"

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of the steps so far. An unfinished epoch counts as a whole one, where epochs count."""
        return self._drawn.run

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
        return analyze(self.run, _Measured(self._drawn.spread(self.distances), self.label), method)

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
        return analyze(self.run, Membership(relation), method)

    def progress(self) -> str:
        """Describe the risk so far in one short line for a progress bar.

        Returns
        -------
        str
            β* of the secret and of membership, as the affinity estimates them.
        """
        if not self.steps:
            return "β* of the secret and of membership: no step yet"
        beta = self.quick()
        attribute, membership = down(beta["attribute"], 3), down(beta["membership"], 3)
        word = "≈" if self.scope == "batch" else "after the fact ≈"
        return f"β* {word} {attribute} for {self.secret.name} ({self.scope}), {membership} for membership"

    def quick(self) -> dict[str, float]:
        """Estimate β* so far as erfc(√Λ°), which costs nothing. Logs and progress bars show it.

        Returns
        -------
        dict
            "attribute" and "membership". An attribute is charged with the membership figure where that is less.
        """
        membership = self._leakage_of_membership.largest
        for noise, scheme, _ in self._drawn.whole_epochs():
            if scheme.sampling == "balls-in-bins":
                membership += _leakage_of_bins(scheme, noise)
        attribute = min(self._leakage.largest, membership)
        return {"attribute": erfc(sqrt(attribute)), "membership": erfc(sqrt(membership))}

    def entry(self) -> dict[str, Any]:
        """Give the figures of the last step, as writers get them.

        Returns
        -------
        dict
            A flat mapping.
        """
        assert self._last is not None
        (scheme, noise), beta = self._last, self.quick()
        more = {"bayes_security_attribute": beta["attribute"], "bayes_security_membership": beta["membership"]}
        return self._entry(self.steps, noise, scheme, self._drawn.epochs) | more

    def entries(self) -> list[dict[str, Any]]:
        """Give all steps.

        Returns
        -------
        list of dict
            Flat mappings, without the figures that go with each step.
        """
        return [self._entry(number, *drawn) for number, drawn in enumerate(self._drawn.each(), start=1)]

    def _entry(self, number: int, noise: float, scheme: SamplingScheme, epoch: int) -> dict[str, Any]:
        return {
            "step": number,
            "scope": self.scope,
            "diameter": self.diameter,
            "distance": self._steps[number - 1],
            "measured": self._measured[number - 1],
            "noise_multiplier": noise,
            "sample_rate": scheme.sample_rate,
            **scheme.told(),
            **({"epoch": epoch} if scheme.in_epochs else {}),
        }

    def metrics(self) -> dict[str, float]:
        """Give the figures of the last step to a logger.

        Returns
        -------
        dict
            Numbers by names that contain the scope.
        """
        names = ("distance", "bayes_security_attribute", "bayes_security_membership")
        entry = self.entry()
        return {f"privacy/{self.scope}/{name}": float(entry[name]) for name in names}

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the measurement, to be saved next to the model's.

        Returns
        -------
        dict
            A measurement that is made alike goes on with the same figures after `load_state_dict`.
        """
        state: dict[str, Any] = {"made": self._made(), "distances": list(self._steps), "measured": list(self._measured)}
        state |= {"drawn": self._drawn.state_dict()}
        state |= {"leaked": [one.state_dict() for one in (self._leakage, self._leakage_of_membership)]}
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
        self._steps, self._measured = list(state["distances"]), list(state["measured"])
        self._drawn.load_state_dict(state["drawn"])
        self._last = None
        for noise, scheme, _ in self._drawn.each():
            self._last = scheme, noise
        for leakage, leaked in zip((self._leakage, self._leakage_of_membership), state["leaked"], strict=True):
            leakage.load_state_dict(leaked)
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
        for writer in self.writers:
            if isinstance(writer, JsonLines):
                writer.rewind(self.steps)

    def _made(self) -> dict[str, Any]:
        """What a saved state must have been made with."""
        names = ("scope", "diameter", "every")
        return {name: getattr(self, name) for name in names} | {"secret": self.secret.digest(), "records": len(self._source)}

    def _files(self) -> dict[str, str]:
        secret = {self.secret.name: {"values": self.secret.count, "shares": shares_of(self.secret, self._source)}}
        contents = {TRAINING: described(MONITOR, self.run, secrets=secret)}
        contents[STEPS] = "".join(json.dumps(entry) + "\n" for entry in self.entries())
        if self.ledger is not None:
            betas = self.ledger.beside(float(self.risk().bayes_security.lower))
            each = enumerate(zip(self.ledger.measured, self.ledger.leakage, betas, strict=True))
            contents[LEDGER] = ledger_text((i, float(leakage), float(beta)) for i, (measured, leakage, beta) in each if measured)
        return contents

    def _display(self, brief: bool) -> Display:
        name, steps = self.secret.name, self.steps
        head = f"{name} ({self.secret.count} values), {steps:,} {'step' if steps == 1 else 'steps'}: {self.progress()}"
        if brief or not steps:
            return Display((head, self.label))
        table = [*rows("membership", self.membership()), *rows(f"{name}, measured", self.risk(), "≈ ")]
        return Display((head, self.label), HEADS, tuple(table))

    def __repr__(self) -> str:
        steps = f"{self.steps} {'step' if self.steps == 1 else 'steps'}"
        return f"{type(self).__name__}({self.secret.name!r}, {steps}, {self.scope} scope)"


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
