"""From a target to the one parameter that is missing, rounded to the safe side and checked: `calibrate`, and `plan` with a gap.

The risk grows with the rate, the steps and the gap, and falls with the noise and the records. So one search serves every metric:
it works on the logarithm of the parameter, and on a transform of the metric in which the dependence is nearly a straight line.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from math import asinh, ceil, exp, expm1, floor, inf, log, log1p, sqrt
from typing import Any

import numpy as np
from scipy.special import erfcinv

from betastar import validation
from betastar.analyze import TOLERANCE, analyze, reliable, takes_seconds
from betastar.closed_forms import log_never_sampled, noiseless_curve
from betastar.dpsgd import DPSGD, IN_EPOCHS, RateWarning, all_plain, batches_per_epoch, missing_numbers, opacus_differs
from betastar.exact import LEAST_NOISE
from betastar.risk import METRICS, Bound, Metric, Outcome, Risk
from betastar.rounding import CALIBRATED, plain, shortened, significant
from betastar.steps.base import Step
from betastar.steps.poisson import PoissonStep
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat
from betastar.tuning import BestOf, Trials, best_of, tuned
from betastar.validation import WrongTypeError, WrongValueError

#: Where the search ends: noise, sampling rate, steps.
MOST_NOISE, LEAST_RATE, MOST_STEPS = 1e7, 1e-12, 10**12
#: The least noise for distances that are tiny.
LEAST_OF_ALL = 1e-9
#: Relative accuracy of a calibrated noise or rate.
ACCURACY = 1e-7
#: The same where each figure to rely on takes seconds, and of a search among rough figures; their tolerance, at least.
CLOSE, ROUGH, ROUGH_TOLERANCE = 1e-4, 1e-2, 1e-3
#: Figures to rely on that such a search looks at before it only moves to the safe side.
TRIES = 4
#: Largest step of the search, in the logarithm of the parameter: far beyond the answer the analysis takes long.
LONGEST_JUMP = 2.0
#: What rounding in single precision may add to a gap: relative, and absolute.
OUTWARD = 1e-6, 1e-6
#: The smallest gap that is looked at: rounding adds more to it.
NO_GAP = 1e-9

# ---- Targets

#: A target as people write it: a metric, a sign, a limit, and what it depends on, as in "tpr<=5%@fpr=0.01".
TARGET = re.compile(r"\s*(\w+)\s*(>=|<=|≥|≤)\s*([^@\s]+\s*%?)\s*(?:@\s*(\w+)\s*=\s*(\S+\s*%?)\s*)?")
#: Words that people use for a metric.
ALSO_CALLED = {"accuracy": "success", "beta": "bayes_security", "mu": "gdp_mu", "delta": "epsilon"}


class Target:
    """What a run must reach: a metric, its limit, and what it depends on.

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
        self.metric = _named(metric)
        self.condition = self.about.at
        self.value = _in_range(self.metric, metric[self.metric])
        self.given = None
        if self.condition is not None:
            if self.condition not in metric and self.about.usual is None:
                raise TypeError(f"Target({self.metric}=…) needs {self.condition} as well.")
            self.given = _in_range(self.condition, metric.get(self.condition, self.about.usual))
        guessing = self.about.without_model(self.given)
        if self.value <= guessing and not self.about.protects and self.metric != "epsilon":
            raise ValueError(f"{self} is impossible: {self.about.guessing.format(plain(guessing))}")

    @classmethod
    def parse(cls, text: str, argument: str = "target") -> Target:
        """The target that a text means.

        Parameters
        ----------
        text : str
            A metric and its limit, such as "bayes_security>=0.95", "success<=52%", "tpr<=0.05@fpr=0.01" or
            "epsilon<=1@delta=1e-5".
        argument : str
            The name of the argument, for errors.

        Returns
        -------
        Target
            The target.

        Raises
        ------
        ValueError
            If the text has no such meaning.

        Examples
        --------
        >>> import betastar as bs
        >>> bs.Target.parse("success<=52%")
        Target(success=0.52, prior=0.5)
        """

        def wrong(allowed: str, **values: str) -> WrongValueError:
            return WrongValueError(argument, f"{{argument}} {allowed}, got {{text}}.", {"text": repr(text), **values})

        match = TARGET.fullmatch(text)
        if not match:
            raise wrong("must be a metric and its limit, as in {example}", example=METRICS["bayes_security"].example)
        word, sign, value, condition, given = match.groups()
        metric = METRICS[validation.word(argument, word, METRICS, ALSO_CALLED)]
        if (sign in (">=", "≥")) != metric.protects:
            raise wrong("must limit what an attacker can do, as in {example}", example=metric.example)
        if condition not in (None, metric.at) or (condition is None and metric.at is not None and metric.usual is None):
            raise wrong("must say it as in {example}", example=metric.example)
        numbers = {}
        for name, number in ((metric.name, value), (metric.at, given)):
            if name is None or number is None:
                continue
            try:
                numbers[name] = _number(number, percent=name != metric.name or metric.limited)
            except (ValueError, InvalidOperation):
                raise wrong("must have a number where {word} stands", word=repr(number)) from None
        try:
            return cls(**numbers)
        except (ValueError, TypeError) as problem:
            values = {"text": repr(text), "problem": str(problem)}
            raise WrongValueError(argument, "{argument} {text}: {problem}", values) from None

    @property
    def about(self) -> Metric:
        """The metric in the table of metrics."""
        return METRICS[self.metric]

    def bound(self, risk: Risk) -> Bound:
        reading: Any = getattr(risk, self.metric)
        bound: Bound = reading if self.condition is None else reading(self.given)
        return bound

    def reached(self, risk: Risk) -> float:
        """The metric's number to rely on: the end that is not too optimistic."""
        return float(getattr(self.bound(risk), self.about.safe_end))

    def met(self, risk: Risk) -> bool:
        number, limit = self._compared(risk)
        return self.about.met(number, limit)

    def excess(self, risk: Risk) -> float:
        """How far the risk is above the target, in a transform that depends on log noise, rate or steps almost linearly."""
        number, limit = self._compared(risk)
        return self._straight(number) - self._straight(limit)

    def _compared(self, risk: Risk) -> tuple[float, float]:
        """The number to rely on and its limit. ε ≤ 1 at δ is compared as δ at ε = 1, which is one reading of the curve."""
        if self.metric == "epsilon":
            assert self.given is not None
            return float(risk.delta(self.value).upper), self.given
        return self.reached(risk), self.value

    def _straight(self, number: float) -> float:
        if self.about.protects:
            return 60.0 if number <= 0.0 else log(max(float(erfcinv(min(number, 1.0))), 1e-18))
        guessing = self.about.without_model(self.given)
        return log(max(number - guessing, 1e-300)) if number < inf else 60.0

    def __str__(self) -> str:
        usual = self.given in (None, self.about.usual)
        more = "" if usual else f"@{self.condition}={plain(self.given)}"
        return f"{self.metric}{self.about.sign}{plain(self.value)}{more}"

    def __repr__(self) -> str:
        more = "" if self.given is None else f", {self.condition}={self.given!r}"
        return f"Target({self.metric}={self.value!r}{more})"


def _named(metric: dict[str, float]) -> str:
    """The metric that is named, beside what it depends on."""
    named = [name for name in metric if name in METRICS]
    if len(named) != 1:
        raise TypeError(f"Target needs one of {', '.join(METRICS)}, got {', '.join(metric) or 'nothing'}.")
    name, condition = named[0], METRICS[named[0]].at
    for other in metric:
        if other not in (name, condition):
            raise TypeError(f"Target({name}=…) takes {condition or 'nothing else'}, got {other}.")
    return name


def _in_range(name: str, value: Any) -> float:
    if name in ("epsilon", "gdp_mu"):
        return float(validation.numbers(name, validation.one(name, value), "a finite number of at least 0", low=0.0, high=inf))
    return float(validation.probability(name, validation.one(name, value), strict=True))


def _number(text: str, percent: bool) -> float:
    """A number, or a percentage where that makes sense."""
    if percent and text.endswith("%"):
        return float(Decimal(text.removesuffix("%").strip()) / 100)
    return float(text)


# ---- calibrate


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
    times_per_epoch: int = 1,
    trials: Any = None,
    threat: Threat | None = None,
    method: str = "exact",
    tolerance: float = TOLERANCE,
    effort: str = "best",
) -> DPSGD:
    """The run that just meets the target, with the one parameter that was left out filled in.

    Give noise_multiplier, sample_rate and steps, or noise_multiplier, batch_size, dataset_size and epochs (or steps), and leave
    out one. The answer has the least noise, the largest rate or batch, the most steps or epochs, or the fewest records (in whole
    batches). It is checked by the same method.

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
        With "poisson": of a larger batch, this many records are kept at random.
    times_per_epoch : int
        With "balls-in-bins": in how many batches of an epoch each record is.
    trials : int, Trials or probabilities, optional
        The number of models that are tried, as for `best_of`: the target then holds for the best of them, each of which is a run
        like the one that is returned.
    threat : Threat, optional
        Who attacks; membership inference by substitution by default.
    method : str
        As for `analyze`.
    tolerance : float
        As for `analyze`.
    effort : str
        As for `analyze`.

    Returns
    -------
    DPSGD
        The whole run; with trials, each of the runs.

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
    threat = Membership() if threat is None else threat
    numbers = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
    numbers |= {"batch_size": batch_size, "dataset_size": dataset_size, "epochs": epochs}
    given: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    counts_records = sampling != "poisson" or max_batch_size is not None
    missing, needed = missing_numbers(given, counts_records=counts_records, opacus=opacus)
    if len(missing) != 1:
        text = f"leave out exactly one of {_in_braces(needed)}; missing: {_in_braces(missing) or 'none'}."
        raise WrongTypeError("", text)
    name = missing[0]
    _refuse(name, sampling, "dataset_size" in given)
    unit = _unit(name, given, sampling, times_per_epoch)
    # Nobody is warned of Opacus's rate at each step of a search.
    quiet = bool(opacus) if sampling == "poisson" and "sample_rate" not in needed else opacus
    drawn: dict[str, Any] = {"sampling": sampling, "max_batch_size": max_batch_size, "opacus": quiet}
    drawn |= {"times_per_epoch": times_per_epoch}

    law = None if trials is None else Trials.of(trials)

    def make(value: float) -> tuple[DPSGD, Threat]:
        return DPSGD.from_numbers(**{**given, name: value * unit}, **drawn), threat

    search = _search(name, make, given, unit, max_batch_size, target)
    if name == "noise_multiplier":
        without = threat.steps(make(1.0)[0])
        if target.met(_sampling_only(without, law)):
            warnings.warn(
                f"{target} needs no noise: a record is used at all with probability {-expm1(log_never_sampled(without)):.3g} "
                f"only. Returning the least noise that is considered, noise_multiplier={search.low:g}.",
                NoNoiseNeeded,
                stacklevel=2,
            )
            return make(search.low)[0]
    value = found(search, target, method, tolerance, effort, law)
    sizes = {"batch_size": batch_size, "dataset_size": dataset_size, name: round(value) * unit}
    chosen = opacus is not None or sampling != "poisson" or not (sizes["batch_size"] and sizes["dataset_size"])
    if not chosen and (told := opacus_differs(sizes["batch_size"], sizes["dataset_size"])):
        warnings.warn(told, RateWarning, stacklevel=2)
    return make(value)[0]


def _refuse(name: str, sampling: str, records_given: bool) -> None:
    """Refuse to search for what the sampling does not leave open, or what the bound does not depend on."""
    if sampling == "shuffled" and name in ("sample_rate", "batch_size", "dataset_size"):
        text = "{argument} cannot be chosen with sampling 'shuffled': what is proved does not depend on it. "
        raise WrongValueError(name, text + "Leave out {noise_multiplier}, or {steps} (or {epochs}), instead.")
    instead = "Leave out {batch_size}, with {dataset_size} and {epochs}, instead."
    if name == "sample_rate" and sampling == "balls-in-bins":
        text = "{argument} cannot be chosen with sampling 'balls-in-bins', where an epoch has a whole number of batches. "
        raise WrongValueError(name, text + instead)
    if name == "sample_rate" and sampling == "fixed-size" and records_given:
        text = "{argument} cannot be chosen with sampling 'fixed-size' and {dataset_size}, which make a whole batch. "
        raise WrongValueError(name, text + instead)


def _unit(name: str, given: dict[str, Any], sampling: str, times: int) -> int:
    """What one of a parameter stands for in the search."""
    if name == "dataset_size":
        # Between two multiples of the batch the last batch of an epoch is a short one, and the risk no longer falls steadily.
        return int(validation.whole("batch_size", given["batch_size"]))
    if name == "steps" and sampling in IN_EPOCHS:
        return int(batches_per_epoch(validation.fraction("sample_rate", given["sample_rate"]), sampling, times))
    return 1


def _search(
    name: str,
    make: Callable[[float], tuple[DPSGD, Threat]],
    given: dict[str, Any],
    unit: int,
    max_batch_size: int | None,
    target: Target,
) -> Search:
    """The range of the parameter, and a first guess."""
    records = given.get("dataset_size")
    largest_rate = 1.0 if max_batch_size is None or records is None else min(1.0, max_batch_size / records)
    # Checks what was given (and that it is no array) before any search.
    probe, threat = make({"noise_multiplier": 1.0, "sample_rate": largest_rate}.get(name, 1))
    if probe.shape != ():
        raise TypeError("calibrate needs numbers, got arrays; call it for each setting.")
    if name == "noise_multiplier":
        steps = threat.steps(probe)
        return Search(name, make, _least_noise(probe, threat, steps), MOST_NOISE, False, False, guess_noise(steps, target))
    if name == "sample_rate":
        return Search(name, make, LEAST_RATE, largest_rate, True, False, min(0.01, largest_rate))
    if name == "batch_size":
        most = float(min(given["dataset_size"], max_batch_size or given["dataset_size"]))
        return Search(name, make, 1.0, most, True, True, min(64.0, most))
    if name == "dataset_size":
        most = float(max(1, floor(MOST_STEPS / max(given.get("epochs", 1.0), 1.0))))
        return Search(name, make, 1.0, most, False, True, 100.0, unit)
    per_unit = unit if name == "steps" else ceil(given["dataset_size"] / given["batch_size"])
    return Search(name, make, 1.0, float(floor(MOST_STEPS / per_unit)), True, True, 100.0, unit)


def _least_noise(run: DPSGD, threat: Threat, steps: tuple[Step, ...]) -> float:
    """The least noise that is considered. Small distances are protected by less: who sees the coins still errs."""
    widest = max((step.distance for step in steps if isinstance(step, PoissonStep)), default=0.0)
    if not (all_plain(run) and getattr(threat, "symmetric", True) and widest > 0.0):
        return LEAST_NOISE
    return shortened(max(LEAST_NOISE * min(1.0, widest / FARTHEST), LEAST_OF_ALL), CALIBRATED, True)


def _in_braces(names: Iterable[str]) -> str:
    """Names of arguments as the text of an error has them."""
    return ", ".join(f"{{{name}}}" for name in names)


def _sampling_only(steps: tuple[Step, ...], trials: Trials | None) -> Risk:
    """The risk of the same sampling without noise."""
    curve, beta = noiseless_curve(steps), exp(log_never_sampled(steps))
    outcome = Outcome(Bound(beta, beta, beta), (curve,), (curve,))
    if trials is not None:
        outcome = tuned([((1.0,), trials, [outcome])], None, False)
    return Risk([outcome], (), "sampling alone", "ceiling")


def guess_noise(steps: tuple[Step, ...], target: Target) -> float:
    """For targets about β*, from the small-rate exponent (theory, section 5): λ ≈ (p²/2)·sinh(1/σ²) at distance 2, and
    (p²/8)(e^{1/σ²} - 1) at distance 1; other distances in proportion. Otherwise 1. steps: at noise 1."""
    beta = {"bayes_security": target.value, "advantage": 1.0 - target.value, "success": 2.0 * (1.0 - target.value)}.get(
        target.metric
    )
    if beta is None or not 0.0 < beta < 1.0:
        return 1.0
    power = sum(step.count * step.gap() ** 2 for step in steps)
    if power == 0.0:
        return 1.0
    need = 8.0 * float(erfcinv(beta)) ** 2 / power
    near = all(isinstance(step, PoissonStep) and step.distance <= 1.0 for step in steps)
    return min(max(1.0 / sqrt(log1p(need) if near else asinh(need)), LEAST_NOISE), MOST_NOISE)


# ---- plan: both targets at once, with a gap

# With gap clipping (theory, section 9) the values of a secret are at most `gap` apart at every step, whatever the data: the risk
# of attribute inference is then known before training, and depends on a parameter of its own.


def enforced(gap: float) -> float:
    """The distance that gap clipping with this gap is sure to keep, rounding included."""
    return min(FARTHEST, gap * (1.0 + OUTWARD[0]) + OUTWARD[1])


@dataclass(frozen=True)
class Plan:
    """A run with gap clipping: what to train with, and what is known of it in advance.

    Parameters
    ----------
    run : DPSGD
        Noise, rate and steps.
    gap : float
        The largest distance between the gradients of two values of the secret, in clipping norms.

    Examples
    --------
    >>> import betastar as bs
    >>> plan = bs.Plan(bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500), gap=0.1)
    >>> plan.attribute().bayes_security.lower > plan.membership().bayes_security.upper
    True
    """

    run: DPSGD
    gap: float

    def attribute(self, method: str = "certified") -> Risk:
        return analyze(self.run, AttributeInference(enforced(self.gap)), method)

    def membership(self, relation: str = "substitution", method: str = "certified") -> Risk:
        return analyze(self.run, Membership(relation), method)


def plan(
    *,
    membership: Target | None = None,
    attribute: Target | None = None,
    run: DPSGD | None = None,
    gap: float | None = None,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    dataset_size: int | None = None,
    epochs: float | None = None,
    opacus: bool | None = None,
    relation: str = "substitution",
    method: str = "certified",
    tolerance: float = TOLERANCE,
    effort: str = "best",
) -> Plan:
    """The run and the gap that just meet both targets, with what was left out filled in and checked.

    Leave out the gap, or one of noise_multiplier, sample_rate (batch_size) and steps (epochs), or the gap and one of these. In
    the last case the membership target decides the parameter of the run, and the attribute target the gap.

    Parameters
    ----------
    membership : Target, optional
        What must hold against membership inference.
    attribute : Target, optional
        What must hold against attribute inference. At least one of the two targets must be given.
    run : DPSGD, optional
        A whole run, instead of its numbers.
    gap : float, optional
        The largest distance between the gradients of two values, in clipping norms.
    noise_multiplier, sample_rate, steps, batch_size, dataset_size, epochs : float, optional
        The numbers of a run, as for `calibrate`.
    opacus : bool, optional
        The rate that follows from batch_size and dataset_size, as for `DPSGD.from_epochs`.
    relation : "substitution" or "add-remove"
        The membership game.
    method : str
        As for `analyze`.
    tolerance : float
        As for `analyze`.
    effort : str
        As for `analyze`.

    Returns
    -------
    Plan
        The run and the gap.

    Raises
    ------
    TypeError
        If there is no target, or the targets cannot decide what was left out.
    ValueError
        If a target is not met by what was given, or cannot be reached.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500)
    >>> plan = bs.plan(attribute=bs.Target(bayes_security=0.99), run=run)
    >>> plan.attribute().bayes_security.lower >= 0.99
    True
    """
    _check_targets(membership, attribute)
    gap = None if gap is None else _checked(gap)
    numbers = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
    numbers |= {"batch_size": batch_size, "dataset_size": dataset_size, "epochs": epochs}
    given: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    made, member = _whole_run(run, given, opacus), Membership(relation)
    how: dict[str, Any] = {"method": method, "tolerance": tolerance, "effort": effort}
    if made is None:
        wanted: list[tuple[Target, Threat]] = [] if membership is None else [(membership, member)]
        if gap is not None and attribute is not None:
            wanted.append((attribute, AttributeInference(enforced(gap))))
        if not wanted:
            raise TypeError("gap must be given, or a membership target: the attribute target alone cannot decide two parameters.")
        made = _strictest([calibrate(target, threat=threat, opacus=opacus, **given, **how) for target, threat in wanted])
    elif membership is not None and not membership.met(reached := reliable(made, member, **how)):
        raise ValueError(
            f"{membership} is not met by the run, whatever the gap: {membership.metric} is {_told(membership, reached)}. "
            "Leave out its noise, rate or steps, so that it can be chosen."
        )
    return Plan(made, _gap_for(attribute, gap, made, how))


def _check_targets(membership: Target | None, attribute: Target | None) -> None:
    for name, target in {"membership": membership, "attribute": attribute}.items():
        if target is not None and not isinstance(target, Target):
            raise TypeError(f"{name} must be a Target, got {target!r}.")
    if membership is None and attribute is None:
        raise TypeError("give a target: membership=Target(…), attribute=Target(…) or both.")


def _checked(gap: Any) -> float:
    if np.ndim(gap):
        raise TypeError(f"gap must be one number, got {gap!r}; call plan for each of them.")
    return float(validation.numbers("gap", gap, "between 0 and 2 (units of the clipping norm)", low=0.0, high=FARTHEST))


def _gap_for(attribute: Target | None, gap: float | None, run: DPSGD, how: dict[str, Any]) -> float:
    """The gap that was given, if it meets the target; otherwise the widest that does."""
    if gap is None:
        if attribute is None:
            raise TypeError("gap was left out, but there is no attribute target that it could follow from.")
        return _widest(attribute, run, how)
    if attribute is not None:
        reached = reliable(run, AttributeInference(enforced(gap)), **how)
        if not attribute.met(reached):
            raise ValueError(f"{attribute} is not met with gap {plain(gap)}: {attribute.metric} is {_told(attribute, reached)}.")
    return gap


def _told(target: Target, risk: Risk) -> str:
    """The number to rely on."""
    return significant(target.reached(risk), 6, upwards=not target.about.protects)


def _whole_run(run: DPSGD | None, given: dict[str, Any], opacus: bool | None) -> DPSGD | None:
    """The run, if nothing of it is missing."""
    if run is not None:
        if given:
            raise TypeError(f"{next(iter(given))} cannot go with run, which holds it.")
        if run.shape != ():
            raise TypeError("run must be one run, got a sweep; call plan for each of its settings.")
        return run
    missing, _ = missing_numbers(given, opacus=opacus)
    return None if missing else DPSGD.from_numbers(**given, opacus=opacus)


def _strictest(runs: Sequence[DPSGD]) -> DPSGD:
    """Of runs that differ in one parameter, the one with most noise, the smallest rate, the fewest steps."""
    return max(runs, key=lambda run: (float(run.noise_multiplier), -float(run.sample_rate), -int(run.steps)))


def _widest(target: Target, run: DPSGD, how: dict[str, Any]) -> float:
    """The widest gap that meets the target."""
    if target.met(reliable(run, AttributeInference(FARTHEST), **how)):
        return FARTHEST
    search = Search("gap", lambda gap: (run, AttributeInference(enforced(gap))), NO_GAP, FARTHEST, True, False, 0.1)
    return found(search, target, **how)


# ---- The search


@dataclass(frozen=True)
class Search:
    """One unknown: its name, the run and the threat of a value, its range, whether risk grows with it, whether it is whole.

    unit: what one of it stands for; a data set is searched for in whole batches.
    """

    name: str
    make: Callable[[float], tuple[DPSGD, Threat]]
    low: float
    high: float
    grows: bool
    whole: bool
    guess: float
    unit: int = 1


def found(search: Search, target: Target, method: str, tolerance: float, effort: str, trials: Trials | None = None) -> float:
    """The value that just meets the target; where figures take seconds, rough ones lead to it and few to rely on confirm it."""

    def done(value: float) -> tuple[DPSGD | BestOf, Threat]:
        run, threat = search.make(value)
        return (run if trials is None else best_of(run, trials)), threat

    @cache
    def risk(value: float) -> Risk:
        return reliable(*done(value), method, tolerance, effort)

    @cache
    def rough(value: float) -> Risk:
        bins = any(segment.sampling == "balls-in-bins" for segment in search.make(value)[0].segments)
        return reliable(*done(value), "exact" if bins else method, max(tolerance, ROUGH_TOLERANCE), "normal")

    if takes_seconds(*search.make(search.low), method, effort):
        return _solve_with_few(search, target, risk, rough)
    return solve(search, target, risk)


def solve(search: Search, target: Target, risk: Callable[[float], Risk], accuracy: float = ACCURACY) -> float:
    """The largest (or, for noise and records, smallest) value that meets the target."""

    def met(value: float) -> bool:
        return target.met(risk(value))

    def place(value: float) -> float:
        return float(round(value)) if search.whole else value

    def excess(logarithm: float) -> float:
        """Above 0 where the risk is too large."""
        value = place(min(max(exp(logarithm), search.low), search.high))
        return target.excess(risk(value))

    safe, unsafe = (search.low, search.high) if search.grows else (search.high, search.low)
    inside = log(min(max(search.guess, search.low), search.high))
    towards_safe = -1.0 if search.grows else 1.0
    jump = max(0.004, 10.0 * accuracy)
    start = excess(inside)
    direction = towards_safe if start > 0.0 else -towards_safe
    other = inside
    while (excess(other) > 0.0) == (start > 0.0):
        end = log(safe if start > 0.0 else unsafe)
        if other == end:
            return _edge(search, target, risk, safe, unsafe, start > 0.0)
        inside = other
        other = max(end, other - jump) if direction < 0.0 else min(end, other + jump)
        jump = min(4.0 * jump, LONGEST_JUMP)
    low, high = sorted((inside, other))
    if search.whole:
        return _whole(search, met, lambda value: excess(log(value)), exp(low), exp(high))

    from scipy.optimize import brentq  # costs as much as the rest of the import

    def outward(value: float) -> float:
        """A short number, so that what is printed is what was checked."""
        return min(max(shortened(value, CALIBRATED, not search.grows), search.low), search.high)

    value, nudge = outward(exp(float(brentq(excess, low, high, xtol=0.3 * accuracy, rtol=1e-12)))), accuracy
    while not met(value):
        value = outward(value * (1.0 - nudge if search.grows else 1.0 + nudge))
        nudge *= 2.0
    return value


def _solve_with_few(search: Search, target: Target, risk: Callable[[float], Risk], rough: Callable[[float], Risk]) -> float:
    """The value that `solve` looks for, where `risk` takes seconds and `rough` is quick and never below it; `risk` confirms it.

    The search among rough figures gives a value and how the risk grows there; few secant steps lead to the one to rely on.
    """
    safe, unsafe = (search.low, search.high) if search.grows else (search.high, search.low)
    onwards = 1.0 if search.grows else -1.0

    def moved(value: float, by: float) -> float:
        """Further by that much of the logarithm, inside the range, and rounded to the safe side."""
        value *= exp(min(max(by, -LONGEST_JUMP), LONGEST_JUMP))
        rounding = floor if search.grows else ceil
        value = float(rounding(value)) if search.whole else shortened(value, CALIBRATED, not search.grows)
        return min(max(value, search.low), search.high)

    try:
        value = solve(search, target, rough, ROUGH)
    except ValueError:  # no rough figure meets the target, or all do
        return solve(search, target, risk, CLOSE)
    before = moved(value, -0.05 * onwards)
    slope = (target.excess(rough(value)) - target.excess(rough(before))) / log(value / before) if before != value else onwards
    slope = slope if 0.1 < onwards * slope < 100.0 else onwards
    farthest = None  # that meets the target, of those that were looked at
    for _ in range(TRIES):
        over = target.excess(risk(value))
        if target.met(risk(value)) and (farthest is None or onwards * (value - farthest) > 0.0):
            farthest = value
        following = moved(value, -over / slope - CLOSE * onwards)
        if target.met(risk(value)) and (abs(over / slope) <= 4.0 * CLOSE or following == value):
            break
        if following != value:
            secant = (target.excess(risk(following)) - over) / log(following / value)
            slope = secant if 0.5 < secant / slope < 2.0 else slope
        value = following
    if farthest is not None and not (target.met(risk(value)) and onwards * (value - farthest) > 0.0):
        value = farthest
    by = CLOSE
    while not target.met(risk(value)):
        if value == safe:
            return _edge(search, target, risk, safe, unsafe, True)
        value = moved(value, -by * onwards)
        by *= 2.0
    while search.whole and value != unsafe and 4.0 * CLOSE * value < 1.0 and target.met(risk(value + onwards)):
        value += onwards
    return value


def _edge(search: Search, target: Target, risk: Callable[[float], Risk], safe: float, unsafe: float, too_risky: bool) -> float:
    """No crossing inside the range: the safe end fails, or the far end still meets the target."""
    if too_risky:
        reached = target.reached(risk(safe))
        best = f"at most {significant(reached, 6, False)}" if target.about.protects else f"at least {significant(reached, 6)}"
        end = f"{search.name}={safe * search.unit:g}"
        raise WrongValueError(
            search.name,
            "{goal} cannot be reached by choosing {argument}: {metric} is {best}, at {end}.",
            {"goal": str(target), "metric": target.metric, "best": best, "end": end},
        )
    if search.name in ("sample_rate", "batch_size", "noise_multiplier", "dataset_size", "gap"):
        return unsafe
    values = {"goal": str(target), "end": f"{unsafe:g}"}
    raise WrongValueError(search.name, "{goal} does not limit {argument}: {end} still meets it.", values)


def _whole(search: Search, met: Callable[[float], bool], excess: Callable[[float], float], low: float, high: float) -> float:
    """The whole number next to the first that fails: secant steps in the logarithm, halving where they stall."""
    ends = max(float(floor(low)), search.low), min(float(ceil(high)), search.high)
    good, bad = ends if search.grows else ends[::-1]
    safe, unsafe = (search.low, search.high) if search.grows else (search.high, search.low)
    onwards = 1.0 if search.grows else -1.0

    def further(value: float, end: float) -> float:
        """A tenth of it towards an end of the range."""
        return max(end, floor(value * 0.9)) if end < value else min(end, ceil(value * 1.1) + 1.0)

    while good != safe and not met(good):
        good = further(good, safe)
    while bad != unsafe and met(bad):
        good, bad = bad, further(bad, unsafe)
    stalled = 0
    while abs(bad - good) > 1.0:
        f_good, f_bad = excess(good), excess(bad)
        middle = exp(log(good) + (log(bad) - log(good)) * (-f_good / (f_bad - f_good) if f_bad > f_good else 0.5))
        first, last = sorted((good, bad))
        if stalled > 2 or not first < middle < last:
            middle, stalled = 0.5 * (good + bad), 0
        middle = min(max(float(floor(middle) if search.grows else ceil(middle)), first + 1.0), last - 1.0)
        if met(middle):
            # Next to the secant's answer there is usually the first value that fails.
            stalled = stalled + 1 if abs(middle - good) < 0.5 * abs(bad - good) else 0
            good = middle
            if middle + onwards != bad and not met(middle + onwards):
                bad = middle + onwards
        else:
            stalled = stalled + 1 if abs(bad - middle) < 0.5 * abs(bad - good) else 0
            bad = middle
            if middle - onwards != good and met(middle - onwards):
                good = middle - onwards
    return good
