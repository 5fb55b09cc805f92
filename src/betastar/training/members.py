"""How exposed each record is to membership inference: the norms of its clipped gradients, and the figure that follows from them.

A record with smaller gradients leaks less (theory, section 19). What is measured is an estimate for the trainer's eyes, and it
leaks itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from betastar import validation
from betastar.analyze import analyze
from betastar.display import Display, Displayed
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnBatch, DrawnSteps, poisson
from betastar.files import MEMBERS, members_text
from betastar.rounding import down
from betastar.steps.poisson import exponent
from betastar.threats import RELATIONS, Membership

#: What kind of statement a figure of each scope is.
SCOPES = {
    "batch": "an estimate from the steps at which the record was drawn, for the trainer's eyes only: to show it leaks",
    "dataset": "an after-the-fact estimate from all records, for the trainer's eyes only: to show it leaks",
}
#: Norms at which leakage is tabulated, and at which β* is computed, with plain Poisson sampling and with others.
NODES, PLAIN, OTHERS = np.linspace(0.0, 1.0, 65), 33, 9
#: Intervals of the histogram of norms.
BINS = 20
#: Steps that are added up at once.
WAITING = 100


@lru_cache(maxsize=256)
def _roots(rate: float, noise: float) -> NDArray[Any]:
    """√λ of one step of add/remove at each of the norms: almost a straight line."""
    return np.sqrt([0.0] + [exponent("line", min(rate, 1.0), noise / norm, 1.0) for norm in NODES[1:].tolist()])


@dataclass(frozen=True)
class MemberExposure:
    """How exposed one record is to membership inference.

    Attributes
    ----------
    record : int
        The number of the record in the data set.
    times : int
        How often it was measured.
    norm : float
        The norm that would leak as much at every step, in clipping norms.
    bayes_security : float
        The β* that follows; lower is worse.

    Examples
    --------
    >>> from betastar.training import MembershipLedger
    >>> ledger = MembershipLedger(records=3)
    >>> ledger.step(1.0, 0.1, [0, 2], [0.2, 1.0])
    >>> ledger.most_exposed(1)[0].record
    2
    """

    record: int
    times: int
    norm: float
    bayes_security: float


class MembershipLedger(Displayed):
    """Keeps how much each record has leaked to membership inference, by the norms of its clipped gradients.

    In batch scope the norms of a record are known at the steps at which it was drawn. Their mean leakage is taken for all steps,
    and a record that was never drawn has the figure for any record. In dataset scope, all records are measured at every k-th
    step, and the norms are taken for the steps up to the next one. Either is an estimate for the trainer's eyes, and never
    proved: the figure of a record depends on the record, so to publish it leaks.

    Parameters
    ----------
    records : int
        The number of records of the data set.
    scope : "batch" or "dataset"
        Which records are measured.
    person : int
        The number of records that one person has at most. The figure is then that of a person whose records are all alike.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> from betastar.training import MembershipLedger
    >>> ledger = MembershipLedger(records=3)
    >>> for _ in range(100):
    ...     ledger.step(1.0, 0.5, [0, 2], [0.2, 1.0])
    >>> ledger
    MembershipLedger(2 of 3 records measured, 100 steps, batch scope)
    >>> [one.record for one in ledger.most_exposed(2)]
    [2, 0]
    >>> bool(ledger.bayes_security()[1] >= ledger.any_record())
    True
    """

    def __init__(self, records: int, scope: str = "batch", person: int = 1) -> None:
        records = validation.one_whole("records", records)
        self.scope = validation.choice("scope", scope, SCOPES)
        self.person = validation.one_whole("person", person)
        self._times: NDArray[Any] = np.zeros(records, dtype=np.int64)
        self._sums: NDArray[Any] = np.zeros(records)  # of the leakage of each record when it was measured
        self._histogram: NDArray[Any] = np.zeros(BINS, dtype=np.int64)
        self._drawn = DrawnSteps()
        self._last: NDArray[Any] | None = None  # of dataset scope, the norms that were measured last
        self._charge: tuple[float, float, NDArray[Any]] | None = None  # rate, noise and leakage that belong to them
        #: Steps that are not yet added up: what they have in common with others, records and norms.
        self._waiting: list[tuple[tuple[float, float, float, bool], Sequence[Any], Sequence[Any]]] = []

    @property
    def label(self) -> str:
        """What kind of statement the figures are. It belongs next to each of them."""
        return SCOPES[self.scope]

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return len(self._drawn)

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of the steps so far. Raises `ValueError` before the first one."""
        return self._drawn.run

    @property
    def times(self) -> NDArray[Any]:
        """How often each record was measured."""
        self._add_up()
        return self._times

    @property
    def histogram(self) -> NDArray[Any]:
        """How many of all norms that were measured lie in each of 20 intervals from 0 to 1."""
        self._add_up()
        return self._histogram

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Whether each record was measured at least once."""
        return self.times > 0

    # ------------------------------------------------------------------ while training

    def step(self, noise: float, drawn: DrawnBatch | float, records: Any = None, norms: Any = None) -> None:
        """Add one step.

        Parameters
        ----------
        noise : float
            The noise multiplier of the step.
        drawn : DrawnBatch or float
            How its batch was drawn, or the rate of Poisson sampling.
        records : array of int, optional
            The numbers of the records that were measured. In batch scope these are the records that were drawn, and no others;
            if their numbers are not known, their norms count in the histogram only. In dataset scope, all records by default.
        norms : array of float, optional
            The norms of their clipped gradients, in clipping norms. Leave it out if none was measured.

        Raises
        ------
        ValueError
            If there is no such record, a norm is not between 0 and 1, or the numbers differ.
        """
        if not isinstance(drawn, DrawnBatch):
            drawn = poisson(float(validation.fraction("drawn", drawn)))
        noise = float(validation.positive("noise", noise))
        if norms is None:
            self.keep(noise, drawn)
            return
        numbers, sizes = self._checked(records, norms)
        self.keep(noise, drawn, None if records is None else [numbers], [sizes])

    def keep(
        self, noise: float, drawn: DrawnBatch, records: Sequence[Any] | None = None, norms: Sequence[Any] = (), unit: float = 1.0
    ) -> None:
        """Add one step without checking it. In batch scope, many steps are added up at once: what is given must not change.

        Parameters
        ----------
        noise, drawn : objects
            As for `step`.
        records, norms : sequences of tensor or array
            What each part of the batch has as `step` takes it. Norms above 1 count as 1.
        unit : float
            What norms are divided by.
        """
        self._drawn.add(noise, drawn)
        rate = drawn.scheme.sample_rate
        if self.scope == "batch":
            self._waiting.append(((rate, noise, unit, records is None), records or (), norms))
            if len(self._waiting) >= WAITING:
                self._add_up()
            return
        if len(norms):
            self._last, self._charge = _joined([norms]) / unit, None
            self._times += 1
            self._histogram += _counted(self._last)
        if self._last is not None:
            if self._charge is None or self._charge[:2] != (rate, noise):
                self._charge = rate, noise, self._leakage(rate, noise, self._last)
            self._sums += self._charge[2]

    def _add_up(self) -> None:
        """Add up the steps that wait."""
        waiting, self._waiting = self._waiting, []
        for kind in dict.fromkeys(kind for kind, _, _ in waiting):
            rate, noise, unit, unknown = kind
            norms = _joined([norms for one, _, norms in waiting if one == kind]) / unit
            norms = np.where(norms < 1.0, norms, 1.0)
            self._histogram += _counted(norms)
            if not unknown:
                records = self._known(_joined([records for one, records, _ in waiting if one == kind]).astype(np.int64))
                np.add.at(self._times, records, 1)
                np.add.at(self._sums, records, self._leakage(rate, noise, norms))

    def _known(self, records: NDArray[Any]) -> NDArray[Any]:
        """Refuse numbers that no record has."""
        if len(records) and not 0 <= records.min() <= records.max() < len(self._times):
            low, high = int(records.min()), int(records.max())
            raise validation.wrong("records", f"must be between 0 and {len(self._times) - 1}, got {low} to {high}.")
        return records

    def _checked(self, records: Any, norms: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """The numbers of records, and their norms."""
        sizes = np.asarray(norms, dtype=np.float64).ravel()
        every = np.arange(len(self._times) if self.scope == "dataset" else len(sizes))
        numbers = every if records is None else self._known(np.asarray(records).ravel().astype(np.int64))
        if self.scope == "dataset" and not np.array_equal(numbers, np.arange(len(self._times))):
            got = validation._show(numbers.tolist())
            text = f"must be all {len(self._times)} records in their order in dataset scope, got {got}."
            raise validation.wrong("records", text)
        if len(sizes) != len(numbers):
            raise validation.wrong("norms", f"must be one for each of the {len(numbers)} records, got {len(sizes)}.")
        if not (np.isfinite(sizes) & (sizes >= 0.0) & (sizes <= 1.0 + 1e-6)).all():
            raise validation.wrong("norms", f"must be between 0 and 1 (units of the clipping norm), got {sizes.tolist()[:5]}.")
        return numbers, np.minimum(sizes, 1.0)

    @staticmethod
    def _leakage(rate: float, noise: float, norms: NDArray[Any]) -> NDArray[Any]:
        return np.interp(norms, NODES, _roots(rate, noise)) ** 2

    # ------------------------------------------------------------------ answers

    @property
    def norms(self) -> NDArray[Any]:
        """For each record, the norm that would leak as much at every step: 1 if it was never measured."""
        self._add_up()
        every = np.sum([count * _roots(rate, noise) ** 2 for noise, rate, count in self._drawn.triples()], axis=0)
        norms = np.ones(len(self._times))
        if not self.steps:
            return norms
        seen = self.measured
        times = self.steps / self.times[seen] if self.scope == "batch" else 1.0
        norms[seen] = np.interp(np.sqrt(times * self._sums[seen]), np.sqrt(every), NODES)
        return norms

    def any_record(self, relation: str = "substitution") -> float:
        """Give the figure that holds for any record: its gradients have norm 1 at each step.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.

        Returns
        -------
        float
            β*, which no figure of a record is below.
        """
        return self._of_norm(relation, 1.0)

    def _of_norm(self, relation: str, norm: float) -> float:
        risk = analyze(self.run, Membership(relation, self.person, norms=norm), effort="quick")
        return float(risk.bayes_security.lower)

    def bayes_security(self, relation: str = "substitution") -> NDArray[Any]:
        """Estimate the β* of each record against membership inference.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`. With "substitution", the record that may be in its place has norm 1.

        Returns
        -------
        array
            One number for each record, not below `any_record`.

        Raises
        ------
        ValueError
            If no step was taken yet, or if persons with several records are replaced, of which nothing is known.
        """
        from scipy.interpolate import PchipInterpolator

        validation.choice("relation", relation, RELATIONS)
        plain = self._drawn.plain
        nodes = np.linspace(0.0, 1.0, PLAIN if plain else OTHERS)
        betas = np.array([self._of_norm(relation, norm) for norm in nodes.tolist()])
        return np.clip(PchipInterpolator(nodes, betas)(self.norms), betas[-1], betas[0])

    def most_exposed(self, number: int = 10, relation: str = "substitution") -> list[MemberExposure]:
        """List the records with the largest leakage.

        Parameters
        ----------
        number : int
            How many records to list.
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.

        Returns
        -------
        list of MemberExposure
            The most exposed record comes first. Records that were never measured are left out.

        Raises
        ------
        ValueError
            If number is not a whole number of at least 1, or no step was taken yet.
        """
        number = validation.one_whole("number", number)
        betas, norms = self.bayes_security(relation), self.norms
        order = np.argsort(-norms, kind="stable")
        order = order[self.measured[order]][:number]
        return [MemberExposure(int(i), int(self.times[i]), float(norms[i]), float(betas[i])) for i in order]

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the ledger, to be saved.

        Returns
        -------
        dict
            What `load_state_dict` takes.
        """
        state = {"scope": self.scope, "person": self.person, "times": self.times.copy(), "sums": self._sums.copy()}
        return state | {"last": self._last, "drawn": self._drawn.state_dict(), "histogram": self.histogram.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to another scope, another number of records, or other persons.
        """
        mine = {"scope": self.scope, "person": self.person, "records": len(self.times)}
        theirs = {"scope": state["scope"], "person": state["person"], "records": len(state["times"])}
        if theirs != mine:
            raise ValueError(f"state must belong to a ledger like this one, {mine}, got one of {theirs}.")
        self._times, self._sums, self._histogram = (np.array(state[name]) for name in ("times", "sums", "histogram"))
        self._last, self._charge, self._waiting = state["last"], None, []
        self._drawn.load_state_dict(state["drawn"])

    def _display(self, brief: bool) -> Display:
        lines = [repr(self)]
        if not self.steps or not self.measured.any():
            return Display((*lines, self.label))
        relation = "substitution" if self.person == 1 else "add-remove"
        betas = self.bayes_security(relation)[self.measured]
        middle, least = float(np.median(betas)), down(float(betas.min()))
        lines.append(f"{relation}: β* ≈ {least} for the most exposed record, {down(middle)} for the median")
        lines.append(f"any record: β* ≥ {down(self.any_record(relation))}")
        if brief:
            return Display((*lines, self.label))
        rows = [
            (str(one.record), str(one.times), f"{one.norm:.3g}", f"≈ {down(one.bayes_security)}")
            for one in self.most_exposed(5, relation)
        ]
        return Display((*lines, self.label), ("record", "measured", "norm", "β*"), tuple(rows))

    def __repr__(self) -> str:
        steps = f"{self.steps} {'step' if self.steps == 1 else 'steps'}"
        return f"MembershipLedger({int(self.measured.sum())} of {len(self.times)} records measured, {steps}, {self.scope} scope)"


def _joined(parts: Sequence[Sequence[Any]]) -> NDArray[Any]:
    """Tensors or arrays one after the other, in double precision."""
    every = [torch.as_tensor(one).detach().flatten() for some in parts for one in some]
    return torch.cat(every).cpu().double().numpy() if every else np.zeros(0)


def _counted(norms: NDArray[Any]) -> NDArray[Any]:
    """The histogram of some norms between 0 and 1."""
    return np.bincount(np.minimum((norms * BINS).astype(np.int64), BINS - 1), minlength=BINS)


def members_files(ledger: MembershipLedger) -> dict[str, str]:
    """The file of a ledger: for each record that was measured, how often, its norm, and its β* replaced or removed."""
    unknown = np.full(len(ledger.times), np.nan)
    shuffled = any(segment.sampling == "shuffled" for segment in ledger.run.segments)
    removed = unknown if shuffled else ledger.bayes_security("add-remove")
    replaced = ledger.bayes_security() if ledger.person == 1 else unknown
    numbers = np.flatnonzero(ledger.measured)
    columns = (one[numbers].tolist() for one in (ledger.times, ledger.norms, replaced, removed))
    return {MEMBERS: members_text(zip(numbers.tolist(), *columns, strict=True))}
