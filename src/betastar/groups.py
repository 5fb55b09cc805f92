"""Groups of records with targets of their own, reached by own sampling rates or own clipping norms (theory, section 19).

A record of a group is drawn with the rate p of its group at each step, and its gradient has at most the norm c of its group. Its
risk depends on what else could have been in its place:
    add-remove      (1-p)·N(0) + p·N(c)  against  N(0):                    nothing in its place
    same-group      (1-p)·N(0) + p·N(c)  against  (1-p)·N(0) + p·N(-c):    a record of its own group
    substitution    (1-p)·N(0) + p·N(c)  against  (1-q)·N(0) + q·N(-d):    anybody's record; q and d are the largest of all groups
Who is in which group is taken as public: it is decided in advance, or independently of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betastar import validation
from betastar.analyze import TOLERANCE, analyze
from betastar.calibrate import LEAST_RATE, MOST_NOISE, Search, Target, calibrate, found
from betastar.display import Display, Displayed
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.rounding import CALIBRATED, down, plain, shortened, significant
from betastar.threats import Membership, Threat
from betastar.validation import WrongTypeError, WrongValueError, wrong

#: How a group is protected, and what else could have been in the place of a record.
WAYS = ("rate", "clipping")
RELATIONS = ("add-remove", "same-group", "substitution")
#: Headings of a table, the last of which are these relations.
HEADS = ("group", "rate", "norm", "left out", "own group", "anybody")
LEGEND = "β* of a record, proved, if it could have been left out, or replaced by a record of its own group or of anybody."
#: The least clipping norm that is considered, in units of the largest one.
LEAST_NORM = 1e-4
#: Relative accuracy of the noise with which the rates of all groups add up to the batch.
ACCURACY = 1e-7


@dataclass(frozen=True, eq=False)
class Protection:
    """Groups of records, and what must hold for the records of each.

    Parameters
    ----------
    groups : mapping
        The records of each group by the group's name: their numbers, or a mask with an entry for each record. Each record is in
        exactly one group. Groups are taken as public: decide on them in advance, or independently of the records.
    targets : mapping
        What must hold for the records of each group against membership inference, by the group's name.
    by : "rate" or "clipping"
        Whether better protected records are drawn less often, or have their gradients clipped to a smaller norm.
    relation : "add-remove", "same-group" or "substitution"
        What else could have been in the place of a record, for the targets: nothing; a record of the same group; or anybody's
        record, which is possibly drawn more often. A guarantee tells all three.

    Raises
    ------
    TypeError, ValueError
        If a group has no target or no record, or names a record twice; the message says which.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar.training import Protection
    >>> groups = {"careful": [0, 3], "usual": [1, 2, 4, 5, 6, 7]}
    >>> targets = {"careful": bs.Target(bayes_security=0.99), "usual": bs.Target(bayes_security=0.9)}
    >>> Protection(groups, targets).of_records(8).tolist()
    [0, 1, 1, 0, 1, 1, 1, 1]
    """

    groups: Mapping[str, Any]
    targets: Mapping[str, Target]
    by: str = "rate"
    relation: str = "add-remove"

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Mapping):
            raise WrongTypeError(
                "groups", validation.MUST, {"allowed": "a mapping from names to records", "value": _type(self.groups)}
            )
        _check_targets(self.targets, self.groups, "groups")
        validation.choice("by", self.by, WAYS)
        validation.choice("relation", self.relation, RELATIONS)
        groups = {name: _members(name, given) for name, given in self.groups.items()}
        object.__setattr__(self, "groups", MappingProxyType(groups))
        object.__setattr__(self, "targets", MappingProxyType(dict(self.targets)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Protection, (dict(self.groups), dict(self.targets), self.by, self.relation)

    def of_records(self, records: int) -> NDArray[np.int64]:
        """Give the place of each record's group among the groups.

        Parameters
        ----------
        records : int
            The number of records.

        Returns
        -------
        array
            A number for each record.

        Raises
        ------
        ValueError
            If a record is in no group or in two, or if there is no such record.
        """
        places = np.full(records, -1)
        names = list(self.groups)
        for place, (name, members) in enumerate(self.groups.items()):
            if members.dtype == bool and len(members) != records:
                raise wrong("groups", f"of {name!r} must be a mask of the {records} records, got one of {len(members)}.")
            numbers = np.flatnonzero(members) if members.dtype == bool else members
            if numbers[-1] >= records:
                raise wrong("groups", f"of {name!r} must name records from 0 to {records - 1}, got {numbers[-1]}.")
            taken = numbers[places[numbers] >= 0]
            if len(taken):
                first = names[places[taken[0]]]
                raise wrong("groups", f"must have each record once, but record {taken[0]} is in {first!r} and in {name!r}.")
            places[numbers] = place
        missing = np.flatnonzero(places < 0)
        if len(missing):
            raise wrong(
                "groups", f"must have each of the {records} records, but {len(missing)} are in none, the first is {missing[0]}."
            )
        return places


def _type(value: object) -> str:
    return type(value).__name__


def _members(name: str, given: Any) -> NDArray[Any]:
    """The numbers of the records of a group in ascending order, or a mask; a copy that cannot be changed."""
    try:
        members = np.array(given)
    except ValueError:  # lists of different lengths
        members = np.empty(0)
    if members.ndim != 1 or members.dtype.kind not in "iub":
        raise WrongTypeError(
            "groups",
            "{argument} of {name} must be numbers of records or a mask, got {value}.",
            {"name": repr(name), "value": validation._show(given)},
        )
    if not (members.any() if members.dtype == bool else len(members)):
        raise wrong("groups", f"of {name!r} must have at least one record, got none: leave the group out.")
    if members.dtype != bool:
        members = np.sort(members.astype(np.int64))
        if members[0] < 0:
            raise wrong("groups", f"of {name!r} must name records by numbers from 0, got {members[0]}.")
        twice = members[1:][members[1:] == members[:-1]]
        if len(twice):
            raise wrong("groups", f"must have each record once, but {name!r} names record {twice[0]} twice.")
    members.setflags(write=False)
    return members


def _check_targets(targets: object, others: Mapping[str, Any], argument: str) -> None:
    """Refuse what is not a target for each of some groups."""
    if not isinstance(targets, Mapping) or not targets or not all(isinstance(name, str) for name in targets):
        raise WrongTypeError(
            "targets", validation.MUST, {"allowed": "a mapping from names of groups to targets", "value": repr(targets)}
        )
    for name, target in targets.items():
        if not isinstance(target, Target):
            raise WrongTypeError(
                "targets", "{argument} of {name} must be a Target, got {value}.", {"name": repr(name), "value": repr(target)}
            )
        if name not in others:
            raise wrong(
                "targets", f"names the group {name!r}, but {argument} has only {', '.join(map(repr, others)) or 'nothing'}."
            )
    for name in others:
        if name not in targets:
            raise wrong("targets", f"has no target for the group {name!r}; it has {', '.join(map(repr, targets))}.")


@dataclass(frozen=True)
class GroupPlan(Displayed):
    """A run in which groups of records have rates and clipping norms of their own.

    Attributes
    ----------
    noise_multiplier : float
        The standard deviation of the noise, divided by the largest clipping norm.
    steps : int
        The number of updates.
    rates, norms : dict
        The sampling rate of each group, and its clipping norm in units of the largest one.
    relation : "add-remove", "same-group" or "substitution"
        What else could have been in the place of a record, for the targets: nothing, a record of its group, or anybody's record.
    records : int
        The number of records that one person has at most, all of them in the same group.

    Examples
    --------
    >>> import betastar as bs
    >>> rates = {"careful": 0.002, "usual": 0.01}
    >>> plan = bs.GroupPlan(noise_multiplier=3.51, steps=2040, rates=rates, norms={"careful": 1.0, "usual": 1.0})
    >>> print(plan.risk("careful").bayes_security)
    0.989523 [0.989522, 0.989524]
    """

    noise_multiplier: float
    steps: int
    rates: Mapping[str, float]
    norms: Mapping[str, float]
    relation: str = "add-remove"
    records: int = 1

    def __post_init__(self) -> None:
        validation.positive("noise_multiplier", validation.one("noise_multiplier", self.noise_multiplier))
        validation.one_whole("steps", self.steps)
        for name, given in (("rates", self.rates), ("norms", self.norms)):
            if not isinstance(given, Mapping) or not given or list(given) != list(self.rates):
                allowed = "a mapping from groups to numbers, with the same groups in rates and norms"
                raise WrongTypeError(name, validation.MUST, {"allowed": allowed, "value": repr(given)})
            checked = {group: validation.fraction(name, validation.one(name, value)) for group, value in given.items()}
            object.__setattr__(self, name, MappingProxyType(checked))
        validation.choice("relation", self.relation, RELATIONS)
        Membership(records=self.records)

    def __reduce__(self) -> tuple[Any, ...]:
        return GroupPlan, (self.noise_multiplier, self.steps, dict(self.rates), dict(self.norms), self.relation, self.records)

    def question(self, group: str, relation: str | None = None) -> tuple[DPSGD, Threat]:
        """Say which run and which threat the risk of a group is that of.

        Parameters
        ----------
        group : str
            The name of the group.
        relation : "add-remove", "same-group" or "substitution", optional
            What else could have been in the place of a record; by default as for the targets.

        Returns
        -------
        tuple
            A run and a threat, as `analyze` takes them.

        Raises
        ------
        ValueError
            If there is no such group, or if nothing is known of several records of a person.
        """
        validation.choice("group", group, self.rates)
        relation = self.relation if relation is None else validation.choice("relation", relation, RELATIONS)
        return _question(
            relation, self.noise_multiplier, self.steps, (self.rates[group], self.norms[group]), self.largest, self.records
        )

    @property
    def largest(self) -> tuple[float, float]:
        """The largest rate and the largest norm of a group."""
        return max(self.rates.values()), max(self.norms.values())

    def risk(self, group: str, relation: str | None = None, method: str = "certified") -> Risk:
        """Analyse membership inference against the records of a group.

        Parameters
        ----------
        group, relation : str
            As for `question`.
        method : str
            As for `analyze`.

        Returns
        -------
        Risk
            The risk of each record of the group.
        """
        return analyze(*self.question(group, relation), method)

    def sentences(self) -> list[str]:
        """Say what an attacker asks about a record of each group, and β*; the end of a sentence for each group."""
        whose = "a record of {!r} was" if self.records == 1 else f"a person's {self.records} records in {{!r}} were"
        asked = {
            "add-remove": f"whether {whose} trained on or left out",
            "same-group": f"whether {whose} trained on, or others of this group",
            "substitution": f"whether {whose} trained on, or others of any group",
        }[self.relation]
        betas = {group: down(float(self.risk(group).bayes_security.lower)) for group in self.rates}
        return [f"{asked.format(group)} faces β* ≥ {beta}" for group, beta in betas.items()]

    def _display(self, brief: bool) -> Display:
        line = f"{self.steps:,} steps with noise {plain(self.noise_multiplier)}, in {len(self.rates)} groups"
        return Display((line,)) if brief else Display((line, LEGEND), HEADS, tuple(self._rows()))

    def _rows(self) -> list[tuple[str, ...]]:
        """A row for each group: its rate, its norm, and β* with whatever else could have been in the place of a record."""
        rows = []
        for group in self.rates:
            betas = []
            for relation in RELATIONS:
                several = relation == "substitution" and self.records > 1
                betas.append("not known" if several else down(float(self.risk(group, relation).bayes_security.lower)))
            rows.append((group, significant(self.rates[group], 4), significant(self.norms[group], 4), *betas))
        return rows


def _question(
    relation: str, noise: float, steps: int, own: tuple[float, float], largest: tuple[float, float], records: int
) -> tuple[DPSGD, Threat]:
    """The run and the threat of records with their own rate and norm, where those of anybody are at most the largest."""
    (rate, norm), (most, longest) = own, largest
    if relation == "substitution" and own != largest:
        if records > 1:
            raise wrong("relation", "must be 'add-remove' or 'same-group' for persons with several records, got 'substitution'.")
        return DPSGD(noise / longest, rate, steps), Membership(norms=norm / longest, other_rate=most)
    threat = Membership("add-remove" if relation == "add-remove" else "substitution", records=records)
    return DPSGD(noise / norm, rate, steps), threat


def calibrate_groups(
    targets: Mapping[str, Target],
    *,
    sizes: Mapping[str, int],
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    by: str = "rate",
    relation: str = "add-remove",
    records: int = 1,
    method: str = "certified",
) -> GroupPlan:
    """The noise, and the rates or clipping norms, with which each group of records just meets its own target.

    By rate, the records of each group are drawn as often as its target allows, and the noise is such that batches have the mean
    size that was asked for. By clipping, all are drawn equally often: the group that needs least noise has the whole clipping
    norm, and the others less. Sampling is Poisson sampling.

    Parameters
    ----------
    targets : mapping
        What each group must reach, by its name.
    sizes : mapping
        The number of records of each group.
    batch_size : int
        The mean number of records of a batch.
    epochs, steps : float, int, optional
        The length of the training; one of them.
    by : "rate" or "clipping"
        What differs between the groups.
    relation : "add-remove", "same-group" or "substitution"
        What else could have been in the place of a record: nothing, a record of the same group, or anybody's record.
    records : int
        The number of records that one person has at most, all of them in the same group.
    method : str
        As for `analyze`.

    Returns
    -------
    GroupPlan
        It meets every target, which is checked by the same method.

    Raises
    ------
    TypeError, ValueError
        If an argument is not allowed, or a target cannot be reached.

    Examples
    --------
    >>> import betastar as bs
    >>> targets = {"careful": bs.Target(bayes_security=0.99), "usual": bs.Target(bayes_security=0.9)}
    >>> plan = bs.calibrate_groups(targets, sizes={"careful": 1000, "usual": 9000}, batch_size=100, steps=500)
    >>> {group: round(rate, 5) for group, rate in plan.rates.items()}
    {'careful': 0.00109, 'usual': 0.01099}
    """
    if not isinstance(sizes, Mapping):
        raise WrongTypeError(
            "sizes", validation.MUST, {"allowed": "a mapping from groups to numbers of records", "value": repr(sizes)}
        )
    _check_targets(targets, sizes, "sizes")
    numbers = {group: validation.one_whole(f"sizes of {group!r}", size) for group, size in sizes.items()}
    total, batch = sum(numbers.values()), validation.one_whole("batch_size", batch_size)
    if batch > total:
        raise wrong("batch_size", f"must be at most the {total} records of all groups, got {batch}.")
    if (epochs is None) == (steps is None):
        raise WrongTypeError("", f"give {{epochs}} or {{steps}}, one of them: got {epochs!r} and {steps!r}.")
    count = (
        validation.one_whole("steps", steps)
        if epochs is None
        else max(1, round(float(validation.positive("epochs", epochs)) * -(-total // batch)))
    )
    validation.choice("by", by, WAYS)
    validation.choice("relation", relation, RELATIONS)
    Membership(records=records)
    wanted = {group: targets[group] for group in numbers}
    seeker = _Seeker(wanted, numbers, batch, count, relation, records, method)
    return seeker.by_rate() if by == "rate" else seeker.by_clipping()


@dataclass(frozen=True)
class _Seeker:
    """Looks for rates, norms and noise."""

    targets: Mapping[str, Target]
    sizes: Mapping[str, int]
    batch: int
    steps: int
    relation: str
    records: int
    method: str

    @property
    def rate(self) -> float:
        """The rate, if it were the same for all."""
        return self.batch / sum(self.sizes.values())

    @property
    def alone(self) -> Membership:
        """The attacker if all had the rate and the norm of a group."""
        return Membership("add-remove" if self.relation == "add-remove" else "substitution", records=self.records)

    def noises(self, method: str) -> dict[str, float]:
        """The noise that each group needs if all have the same rate and norm."""
        given: dict[str, Any] = {"sample_rate": self.rate, "steps": self.steps, "threat": self.alone, "method": method}
        return {group: float(calibrate(target, **given).noise_multiplier) for group, target in self.targets.items()}

    def by_clipping(self) -> GroupPlan:
        """The group that needs least noise has norm 1."""
        needed = self.noises(self.method)
        noise = min(needed.values())
        norms = {group: 1.0 if own == noise else shortened(noise / own, CALIBRATED, False) for group, own in needed.items()}
        if self.relation == "substitution":
            norms = {
                group: norm if norm == 1.0 else self._against_all("norm", group, noise, (self.rate, 1.0), self.method)
                for group, norm in norms.items()
            }
        return GroupPlan(noise, self.steps, dict.fromkeys(self.sizes, self.rate), norms, self.relation, self.records)

    def by_rate(self) -> GroupPlan:
        """The noise with which the largest rates that meet the targets add up to the batch."""
        from scipy.optimize import brentq  # costs as much as the rest of the import

        def excess(logarithm: float) -> float:
            return log(self._expected(self._rates(exp(logarithm))) / self.batch)

        needed = self.noises("exact").values()
        low, high = log(min(needed)), log(max(needed))
        while excess(high) < 0.0:  # with anybody's record in the place of another, more noise is needed
            low, high = high, high + 0.1
            if high > log(MOST_NOISE):
                raise wrong("targets", f"cannot be reached with batches of {self.batch} records and {self.steps} steps.")
        noise = exp(low if excess(low) >= 0.0 else float(brentq(excess, low, high, xtol=0.1 * ACCURACY)))
        safe = dict.fromkeys(self.targets, 1.0)  # the part of a group's rate that is certified
        while noise < MOST_NOISE:
            noise = shortened(noise, CALIBRATED, True)
            rates = {group: safe[group] * rate for group, rate in self._rates(noise).items()}
            share = self.batch / self._expected(rates)
            if share > 1.0:
                noise *= share * (1.0 + ACCURACY)
                continue
            rates = {group: share * rate for group, rate in rates.items()}  # smaller rates are safer
            plan = GroupPlan(noise, self.steps, rates, dict.fromkeys(self.sizes, 1.0), self.relation, self.records)
            risks = {group: plan.risk(group, method=self.method) for group in self.targets}
            missed = [group for group, target in self.targets.items() if not target.met(risks[group])]
            if not missed:
                return plan
            for group in missed:
                safe[group] *= exp(-max(1.1 * self.targets[group].excess(risks[group]), ACCURACY))
        raise wrong(
            "targets", f"cannot be proved by the method {self.method!r}, got {', '.join(map(str, self.targets.values()))}."
        )

    def _expected(self, rates: Mapping[str, float]) -> float:
        """The mean size of a batch."""
        return sum(self.sizes[group] * rate for group, rate in rates.items())

    def _rates(self, noise: float) -> dict[str, float]:
        """The largest rate of each group that meets its target with this noise."""
        rates = {
            group: float(calibrate(target, noise_multiplier=noise, steps=self.steps, threat=self.alone).sample_rate)
            for group, target in self.targets.items()
        }
        if self.relation != "substitution":
            return rates
        most = max(rates.values())
        return {
            group: rate if rate == most else self._against_all("rate", group, noise, (most, 1.0), "exact")
            for group, rate in rates.items()
        }

    def _against_all(self, what: str, group: str, noise: float, largest: tuple[float, float], method: str) -> float:
        """The largest rate or norm of a group that meets its target if anybody's record could be in the place of one."""

        def make(value: float) -> tuple[DPSGD, Threat]:
            own = (value, 1.0) if what == "rate" else (largest[0], value)
            return _question(self.relation, noise, self.steps, own, largest, self.records)

        target = self.targets[group]
        low, high = (LEAST_RATE, largest[0]) if what == "rate" else (LEAST_NORM, 1.0)
        best = analyze(*make(low), method)
        if not target.met(best):
            reached = significant(target.reached(best), 6, upwards=not target.about.protects)
            raise WrongValueError(
                "targets",
                "{argument} of {group} cannot be reached: {goal}, but {metric} is {reached} even for a record that is hardly "
                "ever used, because a record of a group with a weaker target could be in its place. Give that group a stronger "
                "target, or choose relation 'add-remove' or 'same-group'.",
                {"group": repr(group), "goal": str(target), "metric": target.metric, "reached": reached},
            )
        search = Search(what, make, low, high, True, False, 0.1 * high)
        return found(search, target, method, TOLERANCE, "best")
