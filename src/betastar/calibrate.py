"""calibrate: from a target to the one parameter that is missing, rounded to the safe side and checked.

The risk grows with the rate and the steps and falls with the noise, so one root-finder serves every metric: it works on the
logarithm of the parameter, and on a transform of the metric in which the dependence is nearly a straight line.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import asinh, ceil, exp, expm1, floor, inf, log, log1p, sqrt
from typing import Any

from scipy.special import erfcinv

from betastar import dpsgd, validation
from betastar.analyze import TOLERANCE, reliable, takes_seconds
from betastar.bounds import kinds
from betastar.closed_forms import never_sampled
from betastar.closed_forms import noiseless_curve as ceiling_curve
from betastar.dpsgd import DPSGD, RateWarning, opacus_differs
from betastar.exact.curve import LEAST_NOISE
from betastar.heuristics import SEES
from betastar.risk import Bound, Outcome, Risk
from betastar.rounding import plain
from betastar.scenario.step import AnyStep, Step
from betastar.search import Search, confirmed
from betastar.threats import Membership, Threat
from betastar.validation import WrongTypeError, WrongValueError
from betastar.vocabulary import METRICS, Metric

#: Where the search ends: noise, sampling rate, steps.
MOST_NOISE, LEAST_RATE, MOST_STEPS = 1e7, 1e-12, 10**12


class NoNoiseNeeded(UserWarning):
    """A warning: sampling alone meets the target. The attacker fails because the record is hardly ever used.

    Examples
    --------
    >>> import warnings
    >>> import betastar as bs
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     run = bs.calibrate(bs.Target(bayes_security=0.5), sample_rate=0.001, steps=10)
    >>> caught[0].category is bs.NoNoiseNeeded
    True
    """


def conditions() -> dict[str, str | None]:
    """What each metric of a target depends on. A target on ε at δ is kept as one on δ at ε."""
    return dict(("delta", "epsilon") if metric.name == "epsilon" else (metric.name, metric.at) for metric in METRICS.values())


class Target:
    """What a run must reach: one metric, and what it depends on.

    Parameters
    ----------
    **metric : float
        One of `bayes_security`, `advantage`, `success` (with `prior`, 0.5 by default), `tpr` (with `fpr`), `epsilon` (with
        `delta`), `gdp_mu` and `reconstruction` (with `prior`).

    Raises
    ------
    TypeError
        If there is no metric, more than one, or one without what it depends on.
    ValueError
        If the number is outside its range, or below what an attacker reaches without a model.

    Examples
    --------
    >>> import betastar as bs
    >>> bs.Target(bayes_security=0.98)
    Target(bayes_security=0.98)
    >>> bs.Target(tpr=0.05, fpr=0.01).met(bs.analyze(bs.DPSGD(4.0, 0.01, 500)))
    True
    """

    def __init__(self, **metric: float) -> None:
        self.metric, self.condition = _parse(metric)
        self.value = _valid(self.metric, metric[self.metric])
        self.given = None if self.condition is None else _valid(self.condition, metric.get(self.condition, 0.5))
        idle = self._idle()
        if self.value <= idle and not self.about.protects:
            given = "" if self.given is None else f" with {self.condition}={plain(self.given)}"
            raise ValueError(
                f"{self.metric} must be greater than {plain(idle)}, what it is without a model{given}, got {self.value!r}."
            )

    @property
    def about(self) -> Metric:
        """The metric in the vocabulary; δ at ε belongs to ε."""
        return METRICS["epsilon" if self.metric == "delta" else self.metric]

    def _idle(self) -> float:
        """The metric of an attacker who has no model."""
        return self.about.without_model(self.given)

    def bound(self, risk: Risk) -> Bound:
        reading: Any = getattr(risk, self.metric)
        bound: Bound = reading if self.condition is None else reading(self.given)
        return bound

    def reached(self, risk: Risk) -> float:
        """The metric's number to rely on: the end that is not too optimistic."""
        bound = self.bound(risk)
        return float(getattr(bound, self.about.safe_end))

    def met(self, risk: Risk) -> bool:
        return self.about.met(self.reached(risk), self.value)

    def straight(self, number: float) -> float:
        """A transform in which the metric depends on log noise, log rate or log steps almost linearly; grows with risk."""
        if self.about.protects:
            return 60.0 if number <= 0.0 else log(max(float(erfcinv(min(number, 1.0))), 1e-18))
        return log(max(number - self._idle(), 1e-300)) if number < inf else 60.0

    def __repr__(self) -> str:
        more = "" if self.given is None else f", {self.condition}={self.given!r}"
        return f"Target({self.metric}={self.value!r}{more})"


def _parse(metric: dict[str, float]) -> tuple[str, str | None]:
    """The metric that is named, and what it depends on. ε at δ and δ at ε are the same target."""
    named = [name for name in metric if name in conditions()]
    if len(named) != 1:
        raise TypeError(
            f"Target needs one of {', '.join(conditions())} (or epsilon and delta), got {', '.join(metric) or 'nothing'}."
        )
    name = named[0]
    condition = conditions()[name]
    for other in metric:
        if other not in (name, condition):
            raise TypeError(f"Target({name}=…) takes {condition or 'nothing else'}, got {other}.")
    if condition is not None and condition not in metric and name != "success":
        raise TypeError(f"Target({name}=…) needs {condition}, too.")
    return name, condition


def _valid(name: str, value: Any) -> float:
    if name in ("epsilon", "gdp_mu"):
        return float(validation.numbers(name, value, "a finite number of at least 0", low=0.0, high=inf))
    return float(validation.probability(name, value, strict=True))


def calibrate(
    target: Target,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    dataset_size: int | None = None,
    epochs: float | None = None,
    opacus: bool | None = None,
    sampling: str = "poisson",
    max_batch_size: int | None = None,
    threat: Threat | None = None,
    method: str = "exact",
    tolerance: float = TOLERANCE,
    sees: str = "updates",
) -> DPSGD:
    """The run that just meets the target, with the one parameter that was left out filled in.

    Give noise_multiplier, sample_rate and steps, or noise_multiplier, batch_size, dataset_size and epochs, and leave out one. The
    answer has the least noise, the largest rate or batch, the most steps or epochs, or the fewest records (in whole batches). It
    is checked by the same method.

    Parameters
    ----------
    target : Target
        What the run must reach.
    noise_multiplier : float, optional
        The standard deviation of the noise, divided by the clipping norm.
    sample_rate : float, optional
        The probability of each record at each step.
    steps : int, optional
        The number of updates.
    batch_size : int, optional
        The expected number of records in a batch.
    dataset_size : int, optional
        The number of training records.
    epochs : float, optional
        The number of passes over the data.
    opacus : bool, optional
        The rate that follows from batch_size and dataset_size, as for `DPSGD.from_epochs`.
    sampling : "poisson", "fixed-size", "balls-in-bins" or "shuffled"
        How the batches are drawn, as for `DPSGD`.
    max_batch_size : int, optional
        With "poisson": of a larger batch, so many records are kept at random.
    threat : Threat, optional
        Who attacks; membership inference by substitution by default.
    method : str
        As for `analyze`.
    tolerance : float
        As for `analyze`.
    sees : str
        "updates": what the attacker sees. Figures for one who sees the final model only are a heuristic, and no run is chosen
        by a heuristic.

    Returns
    -------
    DPSGD
        The whole run.

    Raises
    ------
    TypeError
        If not exactly one parameter was left out, or a parameter does not go with another.
    ValueError
        If the target cannot be reached, or does not limit the parameter.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.calibrate(bs.Target(bayes_security=0.98), batch_size=256, dataset_size=26048, epochs=20)
    >>> round(run.noise_multiplier, 2)
    17.71
    """
    if not isinstance(target, Target):
        raise TypeError(f"target must be a Target, got {target!r}.")
    if validation.choice("sees", sees, SEES) == "final-model":
        raise ValueError(
            "sees must be 'updates' to calibrate, got 'final-model': that is a heuristic, which can be wrong on the unsafe side. "
            "Calibrate with sees='updates', and look at analyze(run, sees='final-model') beside it."
        )
    threat = Membership() if threat is None else threat
    given = {
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate,
        "steps": steps,
        "batch_size": batch_size,
        "dataset_size": dataset_size,
        "epochs": epochs,
    }
    known = {name: value for name, value in given.items() if value is not None}
    search = _search(known, target, threat, Drawn(sampling, max_batch_size, opacus))

    @cache
    def risk(value: float, tolerance: float = tolerance) -> Risk:
        return reliable(search.make(value), threat, method, tolerance)

    if search.name == "noise_multiplier":
        without = threat.steps(search.make(1.0))
        if target.met(_sampling_only(without)):
            warnings.warn(
                f"{target!r} needs no noise: a record is used at all with probability {-expm1(never_sampled(without)):.3g} only. "
                f"Returning the least noise that is considered, noise_multiplier={LEAST_NOISE}.",
                NoNoiseNeeded,
                stacklevel=2,
            )
            return search.make(LEAST_NOISE)
    value = confirmed(search, target, risk, takes_seconds(threat, method, tolerance, search.make(search.low)))
    sizes = {"batch_size": batch_size, "dataset_size": dataset_size, search.name: round(value) * search.unit}
    chosen = opacus is not None or sampling != "poisson" or not (sizes["batch_size"] and sizes["dataset_size"])
    if not chosen and (told := opacus_differs(sizes["batch_size"], sizes["dataset_size"])):
        warnings.warn(told, RateWarning, stacklevel=2)
    return search.make(value)


def _sampling_only(steps: tuple[AnyStep, ...]) -> Risk:
    """The risk of the same sampling without noise."""
    curve, beta = ceiling_curve(steps), exp(never_sampled(steps))
    return Risk([Outcome(Bound(beta, beta, beta), (curve,), (curve,))], (), "sampling alone", "ceiling")


@dataclass(frozen=True)
class Drawn:
    """How the batches are drawn."""

    sampling: str
    max_batch_size: int | None
    opacus: bool | None

    def run(self, by_epoch: bool, numbers: dict[str, Any]) -> DPSGD:
        more: dict[str, Any] = {"sampling": self.sampling, "max_batch_size": self.max_batch_size}
        if not by_epoch:
            return DPSGD(**numbers, **more)
        # Nobody is warned of Opacus's rate at each step of a search.
        return DPSGD.from_epochs(**numbers, **more, opacus=bool(self.opacus) if self.sampling == "poisson" else self.opacus)

    @property
    def counts_records(self) -> bool:
        """Whether the number of records matters beside the rate."""
        return self.max_batch_size is not None or self.sampling != "poisson"

    def refuse(self, name: str, given: dict[str, Any]) -> None:
        """Refuse to search for what the sampling does not leave open, or what the bound does not depend on."""
        instead = "Leave out {noise_multiplier}, or {steps} (or {epochs}), instead."
        if self.sampling == "shuffled" and name in ("sample_rate", "batch_size", "dataset_size"):
            text = "{argument} cannot be chosen with sampling 'shuffled': what is proved does not depend on it. " + instead
            raise WrongValueError(name, text)
        if name == "sample_rate" and self.sampling == "balls-in-bins":
            text = (
                "{argument} cannot be chosen with sampling 'balls-in-bins', where an epoch has a whole number of batches. Leave "
            )
            raise WrongValueError(name, text + "out {batch_size}, with {dataset_size} and {epochs}, instead.")
        if name == "sample_rate" and self.sampling == "fixed-size" and "dataset_size" in given:
            text = (
                "{argument} cannot be chosen with sampling 'fixed-size' and {dataset_size}, which make a whole batch. Leave out "
            )
            raise WrongValueError(name, text + "{batch_size}, with {dataset_size} and {epochs}, instead.")


def _search(given: dict[str, Any], target: Target, threat: Threat, drawn: Drawn) -> Search:
    """Which parameter is missing, and how a run follows from it."""
    by_rate = "sample_rate" in given or "steps" in given
    beside = {"dataset_size": given["dataset_size"]} if drawn.counts_records and by_rate and "dataset_size" in given else {}
    given = {name: value for name, value in given.items() if name not in beside}
    by_epoch = any(name in given for name in ("batch_size", "dataset_size", "epochs"))
    wanted = (
        ("noise_multiplier", "batch_size", "dataset_size", "epochs") if by_epoch else ("noise_multiplier", "sample_rate", "steps")
    )
    for name in given:
        if name not in wanted:
            others = _in_braces(sorted(set(given) - {name}))
            raise WrongTypeError(name, f"{{argument}} cannot go with {others}: give {_in_braces(wanted)} but one.")
    missing = [name for name in wanted if name not in given]
    if len(missing) != 1:
        text = f"leave out exactly one of {_in_braces(wanted)}; missing: {_in_braces(missing) or 'none'}."
        raise WrongTypeError("", text)
    name = missing[0]
    drawn.refuse(name, beside)
    unit = 1
    if name == "dataset_size":
        # Between two multiples of the batch the last batch of an epoch is a short one, and the risk no longer falls steadily.
        unit = int(validation.whole("batch_size", given["batch_size"]))
    elif name == "steps" and drawn.sampling in dpsgd.IN_EPOCHS:
        unit = int(dpsgd.batches_per_epoch(validation.fraction("sample_rate", given["sample_rate"]), drawn.sampling))

    def make(value: float) -> DPSGD:
        return drawn.run(by_epoch, {**given, **beside, name: value * unit})

    largest_rate = 1.0 if drawn.max_batch_size is None or not beside else min(1.0, drawn.max_batch_size / beside["dataset_size"])
    # Checks what was given (and that it is no array) before any search.
    probe = make({"noise_multiplier": 1.0, "sample_rate": largest_rate}.get(name, 1))
    if probe.shape != ():
        raise TypeError("calibrate needs numbers, got arrays; call it for each setting.")
    if name == "noise_multiplier":
        return Search(name, make, LEAST_NOISE, MOST_NOISE, False, False, guess_noise(threat.steps(probe), target))
    if name == "sample_rate":
        return Search(name, make, LEAST_RATE, largest_rate, True, False, min(0.01, largest_rate))
    if name == "batch_size":
        most = float(min(given["dataset_size"], drawn.max_batch_size or given["dataset_size"]))
        return Search(name, make, 1.0, most, True, True, min(64.0, most))
    if name == "dataset_size":
        return Search(name, make, 1.0, float(max(1, floor(MOST_STEPS / max(given["epochs"], 1.0)))), False, True, 100.0, unit)
    most = MOST_STEPS // unit if name == "steps" else floor(MOST_STEPS / ceil(given["dataset_size"] / given["batch_size"]))
    return Search(name, make, 1.0, float(most), True, True, 100.0, unit)


def _in_braces(names: Iterable[str]) -> str:
    """Names of arguments as the text of an error has them."""
    return ", ".join(f"{{{name}}}" for name in names)


def guess_noise(steps: tuple[AnyStep, ...], target: Target) -> float:
    """For targets about β*, from the small-rate exponent (theory, section 5): λ ≈ (p²/2)·sinh(1/σ²) at distance 2, and
    (p²/8)(e^{1/σ²} - 1) at distance 1; other distances in proportion. Otherwise 1. steps: at noise 1."""
    beta = {"bayes_security": target.value, "advantage": 1.0 - target.value, "success": 2.0 * (1.0 - target.value)}.get(
        target.metric
    )
    if beta is None or not 0.0 < beta < 1.0:
        return 1.0
    power = sum(step.count * kinds.kind(step).gap(step) ** 2 for step in steps)
    if power == 0.0:
        return 1.0
    need = 8.0 * float(erfcinv(beta)) ** 2 / power
    near = all(isinstance(step, Step) and step.distance <= 1.0 for step in steps)
    return min(max(1.0 / sqrt(log1p(need) if near else asinh(need)), LEAST_NOISE), MOST_NOISE)
