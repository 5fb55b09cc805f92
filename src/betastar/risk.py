"""Risk: what an attacker can do, for one run or for a sweep, each metric with its bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import exp, inf, isfinite, log, nan, tanh
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from betastar import validation
from betastar.curves import Curve, DiscreteCurve, LeastCurve, Side
from betastar.display import Display, Displayed
from betastar.display import curve as draw_curve
from betastar.rounding import nearest, percent, plain, significant

if TYPE_CHECKING:
    from betastar.dpsgd import DPSGD

# The table of metrics.

#: Decimals of a percentage: the first number, and up to the second where that would hide the excess over guessing.
DECIMALS, MOST_DECIMALS = 2, 6
#: Significant digits of every other metric.
DIGITS = 4


@dataclass(frozen=True)
class Metric:
    """A number about a risk. `name` is the attribute of Risk, the argument of Target, the JSON key and the value of --metric."""

    name: str
    #: In a table, and where there is little room; {} stands for what it depends on.
    title: str
    short: str
    #: A target that people can copy.
    example: str
    #: What it depends on: the argument of the method of Risk, the JSON key, and the word after @ in a target.
    at: str | None = None
    #: What `at` is unless it is given.
    usual: float | None = None
    #: A large number is safe, so its lower end is the one to rely on; otherwise it is the upper end.
    protects: bool = False
    #: It is a probability that is shown as a percentage.
    share: bool = False
    #: It lies between 0 and 1.
    limited: bool = True
    #: Further numbers of its bound, which are keys of its JSON, too.
    also: tuple[str, ...] = ()
    #: Why a target that asks for no more than guessing is impossible.
    guessing: str = "guessing alone reaches {}."
    #: `analyze` and `sweep` report it; otherwise it is a target only.
    told: bool = True

    @property
    def sign(self) -> str:
        """How a target compares it."""
        return ">=" if self.protects else "<="

    @property
    def safe_end(self) -> str:
        """The end of its bound to rely on."""
        return "lower" if self.protects else "upper"

    def without_model(self, given: float | None = None) -> float:
        """What an attacker reaches who has no model."""
        if self.protects:
            return 1.0
        if given is None or self.at == "delta":
            return 0.0
        return max(given, 1.0 - given) if self.name == "success" else given

    def met(self, value: float, limit: float) -> bool:
        return value >= limit if self.protects else value <= limit

    def rounded(self, value: float | None, given: float | None = None, digits: int = DIGITS) -> str:
        """The number to rely on, rounded to the safe side. It is written like this wherever people see it."""
        if self.share and value is not None:
            return percent(value, decimals(value - self.without_model(given)))
        return significant(value, digits, upwards=not self.protects)

    def row(self, bound: Mapping[str, Any], given: float | None = None, short: bool = False) -> tuple[str, str, str, str]:
        """A row for people: its title, the number to rely on, the estimate, and what it is without a model.

        Parameters
        ----------
        bound : mapping
            The estimate and the end to rely on, by their names.
        given : float, optional
            What the metric depends on, or what its title names.
        short : bool
            Whether there is little room for the title.
        """
        title = (self.short if short else self.title).format(given and plain(given))
        at = given if self.at else None
        relied, guessing = self.rounded(bound[self.safe_end], at), self.without_model(at)
        if not self.share:
            return title, relied, nearest(bound["estimate"]), plain(guessing)
        near = f"{100 * bound['estimate']:.{decimals(bound[self.safe_end] - guessing)}f} %"
        return title, relied, near, f"{100 * guessing:.10g} %"


def decimals(excess: float) -> int:
    """Decimals of a percentage that show an excess over guessing."""
    number = DECIMALS
    while number < MOST_DECIMALS and 0.0 < 100.0 * excess < 10.0**-number:
        number += 1
    return number


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "bayes_security",
            "Bayes security β*",
            "β*",
            "bayes_security>=0.98",
            protects=True,
        ),
        Metric("advantage", "advantage", "advantage", "advantage<=0.05"),
        Metric(
            "success",
            "right guesses, prior {}",
            "right guesses",
            "success<=0.51 (or success<=0.75@prior=0.3)",
            at="prior",
            usual=0.5,
            share=True,
            guessing="guessing alone succeeds with probability {}.",
        ),
        Metric("tpr", "true positives at FPR {}", "TPR at FPR {}", "tpr<=0.05@fpr=0.01", at="fpr"),
        Metric("epsilon", "ε at δ {}", "ε at δ {}", "epsilon<=1@delta=1e-5", at="delta", limited=False),
        Metric(
            "gdp_mu",
            "Gaussian μ, fitted down to FPR {}",
            "μ down to FPR {}",
            "gdp_mu<=0.3",
            limited=False,
            also=("regret", "smallest_fpr"),
        ),
        Metric(
            "reconstruction",
            "reconstructed records, prior {}",
            "reconstruction",
            "reconstruction<=0.1@prior=0.01",
            at="prior",
            guessing="guessing alone succeeds with probability {}.",
            told=False,
        ),
    )
}


def told() -> tuple[str, ...]:
    """The metrics that `analyze` and `sweep` report."""
    return tuple(name for name, metric in METRICS.items() if metric.told)


# Bound: a number that comes as (lower, estimate, upper).


@dataclass(frozen=True)
class Bound:
    """lower ≤ truth ≤ upper, as far as the method proves it, and the best guess between them.

    Rely on the end that is not too optimistic: `lower` for Bayes security, `upper` for advantage, success, TPR, δ, ε and μ. A
    heuristic has no ends: both are nan, and no target is met by it.
    `float(bound)` is the estimate, for plots and arithmetic: a bound does not know whether its lower or its upper end is the safe
    one. Of a sweep, whose ends are arrays, it raises a TypeError.

    Parameters
    ----------
    lower : float or array
        The lower end; an array for a sweep.
    estimate : float or array
        The best guess.
    upper : float or array
        The upper end.

    Examples
    --------
    >>> import betastar as bs
    >>> bound = bs.Bound(0.25, 0.5, 0.75)
    >>> 0.3 in bound, bound.width
    (True, 0.5)
    >>> float(bound)
    0.5
    """

    lower: Any
    estimate: Any
    upper: Any

    @property
    def width(self) -> Any:
        return self.upper - self.lower

    def __contains__(self, value: object) -> bool:
        number: Any = value
        return bool(np.all((self.lower <= number) & (number <= self.upper)))

    def __float__(self) -> float:
        """The estimate. It is not the number to rely on, which is `lower` for β* and `upper` for what an attacker can do."""
        if np.ndim(self.estimate):
            raise TypeError(
                f"float() needs one bound, but this one is a sweep of shape {np.shape(self.estimate)}: take its arrays, lower, "
                "estimate and upper."
            )
        return float(self.estimate)

    def without_ends(self) -> Bound:
        """The estimate alone."""
        nothing = np.full(np.shape(self.estimate), nan) if np.ndim(self.estimate) else nan
        return replace(self, lower=nothing, upper=nothing)

    def complement(self) -> Bound:
        """1 - this."""
        return Bound(1.0 - self.upper, 1.0 - self.estimate, 1.0 - self.lower)

    def __str__(self) -> str:
        """Six digits, the ends rounded outwards."""
        if np.ndim(self.estimate):
            return repr(self)
        if np.isnan(self.lower) and np.isnan(self.upper):
            return f"{self.estimate:.6g} (a heuristic, not a bound)"
        low, high = (
            significant(end, 6, upwards) if isfinite(end) else str(end) if end == self.lower else "not known"
            for end, upwards in ((self.lower, False), (self.upper, True))
        )
        middle = f"{self.estimate:.6g}" if isfinite(self.estimate) or not isfinite(self.lower) else "not known"
        return f"{middle} [{low}, {high}]"


@dataclass(frozen=True)
class GaussianFit(Bound):
    """μ of the Gaussian curve that lies above the trade-off curve wherever both error rates are at least `smallest_fpr`.

    Parameters
    ----------
    lower : float or array
        The lower end of μ.
    estimate : float or array
        The best guess of μ.
    upper : float or array
        The upper end of μ.
    regret : float or array
        By how much the Gaussian overstates the success of some attacker, at the worst prior; 0 is a perfect fit.
    smallest_fpr : float or array
        The smallest error rate that the fit covers.

    Examples
    --------
    >>> import betastar as bs
    >>> fit = bs.analyze(bs.DPSGD(noise_multiplier=4.0, sample_rate=0.01, steps=500)).gdp_mu
    >>> fit.smallest_fpr, fit.lower <= fit.upper
    (1e-05, True)
    """

    regret: Any
    smallest_fpr: Any

    def __str__(self) -> str:
        return f"{super().__str__()}, down to FPR {plain(self.smallest_fpr)}" if np.ndim(self.estimate) == 0 else repr(self)


def stack(bounds: list[Bound], shape: tuple[int, ...]) -> Bound:
    """Bounds of the runs of a sweep as one bound of arrays; a single one as it is."""
    if shape == ():
        return bounds[0]

    def join(field: str) -> Any:
        return np.array([getattr(bound, field) for bound in bounds]).reshape(shape)

    first = bounds[0]
    if isinstance(first, GaussianFit):
        floors = {bound.smallest_fpr for bound in bounds if isinstance(bound, GaussianFit)}
        floor = first.smallest_fpr if len(floors) == 1 else join("smallest_fpr")
        return GaussianFit(join("lower"), join("estimate"), join("upper"), join("regret"), floor)
    return Bound(join("lower"), join("estimate"), join("upper"))


# Risk: what an attacker can do, for one run or for a sweep.

#: Smallest false-positive rate that the Gaussian fit looks at, unless another is given.
SMALLEST_FPR = 1e-5


class Risk(Displayed):
    """The answer of `analyze`: what an attacker can do. It comes from `analyze`, not from a constructor.

    Each metric is a Bound(lower, estimate, upper); for a sweep, of arrays of its shape. `source` says what the metrics are read
    off: the trade-off curve, or β* alone for methods that have no curve. Printed, a risk is a sentence and its β*; rich and
    notebooks show a table as well, of a sweep with a row for each run, and notebooks the trade-off curve. `plot` draws it.

    Parameters
    ----------
    outcomes : sequence of Outcome
        One for each run of a sweep.
    shape : tuple of int
        The shape of the sweep; () for a single run.
    threat : str
        The description of the threat.
    method : str
        The name of the method.
    heuristic : str, optional
        What the figures are if they are no bounds; None otherwise. Each metric then has an estimate, and nan for its ends.
    run : DPSGD, optional
        What was run. A sweep needs it to name the parameters of each run.

    Examples
    --------
    >>> import betastar as bs
    >>> risk = bs.analyze(bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500))
    >>> print(risk.advantage)
    0.0893302 [0.0893301, 0.0893302]
    >>> print(risk.success(prior=0.5))
    0.544665 [0.544665, 0.544666]
    """

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        shape: tuple[int, ...],
        threat: str,
        method: str,
        heuristic: str | None = None,
        run: DPSGD | None = None,
    ) -> None:
        self.heuristic = heuristic
        self.run = run
        self._outcomes = list(outcomes)
        self.shape = shape
        self.threat = threat
        self.method = method

    @classmethod
    def from_pld(cls, pld: Any) -> Risk:
        """From a dp_accounting privacy loss distribution: pessimistic, so only the unsafe side of each metric is bounded."""
        curve = curve_of(pld)
        beta = max(0.0, curve.overlap().value)
        outcome = Outcome(Bound(beta, beta, 1.0), worst=(curve,), oriented=True)
        return cls([outcome], (), "membership inference (as in the privacy loss distribution)", "privacy loss distribution")

    @property
    def source(self) -> str:
        return self._outcomes[0].source

    @property
    def bayes_security(self) -> Bound:
        """β*: 1 minus the attacker's best advantage. 1 is perfect, 0 is none."""
        return self._each(lambda outcome: outcome.bayes_security)

    @property
    def advantage(self) -> Bound:
        """2·Pr[right guess] - 1 at a fair prior, the total variation of the two worlds."""
        return self._each(lambda outcome: outcome.bayes_security.complement())

    def success(self, prior: Any = 0.5) -> Bound:
        """Probability of a right guess. prior: probability of the positive world, or of each of M secrets."""
        if np.ndim(prior) == 0:
            value = validation.probability("prior", prior)
            return self._each(lambda outcome: outcome.success(value))
        priors = np.asarray(validation.probability("prior", prior))
        if priors.ndim != 1 or priors.size < 2 or abs(priors.sum() - 1.0) > 1e-9:
            raise ValueError(f"prior must be a probability or a list of at least two that add up to 1, got {prior!r}.")
        if priors.size == 2:
            return self.success(float(priors[1]))
        return self._each(lambda outcome: outcome.success_among(float(priors.max())))

    def tpr(self, fpr: Any) -> Bound:
        """True-positive rate of the best attack with this false-positive rate (a number or an array)."""
        return self._at(validation.probability("fpr", fpr), Outcome.tpr)

    def tradeoff(self, fpr: Any) -> Bound:
        """The whole curve: TPR at each FPR of an array; a sweep's shape comes first."""
        return self.tpr(np.atleast_1d(fpr))

    def delta(self, epsilon: Any) -> Bound:
        """δ of (ε, δ)-DP: the worse of the two directions. A number or an array, as for tpr."""
        value = validation.numbers("epsilon", epsilon, "a finite number of at least 0", low=0.0, high=np.inf)
        return self._at(value, Outcome.delta)

    def mean_delta(self, epsilons: Any) -> Any:
        """The mean of δ over the two directions, which is what a fair coin between the two worlds allows: the safe end, for an
        array of ε of a single run. It equals δ if either world may be the positive one."""
        if self.shape != ():
            raise ValueError(f"mean_delta needs a single run, got a sweep of shape {self.shape}.")
        value = validation.numbers("epsilons", epsilons, "finite numbers of at least 0", low=0.0, high=np.inf)
        return self._outcomes[0].mean_delta(np.atleast_1d(value))

    def epsilon(self, delta: Any) -> Bound:
        """ε of (ε, δ)-DP: the worse of the two directions. A number or an array, as for tpr."""
        return self._at(validation.probability("delta", delta, strict=True), Outcome.epsilon)

    def reconstruction(self, prior: Any) -> Bound:
        """Probability that a record is reconstructed if the best guess without the model is right with `prior` (or an array)."""
        return self._at(validation.probability("prior", prior), Outcome.tpr)

    @property
    def gdp_mu(self) -> GaussianFit:
        """μ of Gaussian DP, fitted down to FPR 1e-5, with its regret."""
        return self.gaussian()

    def gaussian(self, smallest_fpr: Any = SMALLEST_FPR) -> GaussianFit:
        """The smallest μ whose Gaussian curve lies above the trade-off curve where both error rates are ≥ smallest_fpr (or an
        array). The smaller that floor, the larger is μ: name it beside μ."""
        value = validation.numbers(
            "smallest_fpr", smallest_fpr, "greater than 0 and below 0.5", low=0.0, high=0.5, open_low=True, open_high=True
        )
        fits: list[Bound] = [outcome.gaussian(float(one)) for outcome in self._outcomes for one in np.ravel(value)]
        fit = self._said(stack(fits, self.shape + np.shape(value)))
        assert isinstance(fit, GaussianFit)
        return fit

    def _at(self, given: Any, metric: Callable[[Outcome, Any], Bound]) -> Bound:
        """A metric at a number, or at each of an array in one pass: a sweep's shape comes first."""
        return self._said(stack([metric(outcome, given) for outcome in self._outcomes], self.shape + np.shape(given)))

    def _each(self, metric: Callable[[Outcome], Bound]) -> Bound:
        return self._said(stack([metric(outcome) for outcome in self._outcomes], self.shape))

    def _said(self, bound: Bound) -> Bound:
        """A bound as it is; of a heuristic, the estimate alone."""
        return bound if self.heuristic is None else bound.without_ends()

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """The numbers that differ between the runs of a sweep, each as an array of its shape; none of a single run."""
        several = self.run is not None and len(self.run.segments) > 1
        found = {}
        for number, segment in enumerate(() if self.run is None else self.run.segments, 1):
            for name, values in zip(PARAMETERS, segment.numbers, strict=True):
                if np.size(values) and np.ptp(values):
                    found[f"{name}, part {number}" if several else name] = np.broadcast_to(values, self.shape)
        return found

    def plot(self, ax: Any = None, log: bool = False) -> Any:
        """Draw the trade-off curve; of a sweep, β* over its parameter or its two parameters. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default, which a notebook shows.
        log : bool
            Whether the axes of a trade-off curve are logarithmic, which shows the rare false alarms.

        Returns
        -------
        Axes
            The figure's, as `betastar.plots.tradeoff` and `betastar.plots.sweep` draw it.

        Raises
        ------
        ValueError
            If the risk is of a sweep over more than two parameters.
        """
        plots = import_module("betastar.plots")  # by name: figures are above answers, and only this method needs them
        return plots.sweep(self, ax) if self.shape else plots.tradeoff(self, ax, log)

    def _display(self, brief: bool) -> Display:
        return display(self, brief)

    def __repr__(self) -> str:
        said = "" if self.heuristic is None else f", {self.heuristic}"
        return f"Risk({self.threat}, {self.method}{said}: bayes_security={self.bayes_security})"


# Every metric of one scalar run, read off its trade-off curves, or off β* where a method has no curve.


#: A curve above every attack, and one of an attack that exists, or less.
Tails = tuple[Curve | None, Curve | None]
#: Share of an answer that its numerical error may be before the tails are looked at; an ε for which nobody asks.
VAGUE, LEAST_EPSILON = 0.02, 1e-6


@dataclass(frozen=True)
class Outcome:
    """worst: curves above every attack. attacks: curves of attacks that exist. Both are empty if only β* is known.

    oriented: the positive world is P; otherwise either may be. tails: curves with more digits far out, which are looked at where
    those of the others are few.
    """

    bayes_security: Bound
    worst: tuple[Curve, ...] = ()
    attacks: tuple[Curve, ...] = ()
    oriented: bool = False
    tails: Callable[[], Tails] | None = None

    @property
    def source(self) -> str:
        return "trade-off curve" if self.worst else "Bayes security"

    @property
    def _advantage(self) -> Bound:
        return self.bayes_security.complement()

    def tpr(self, fpr: Any) -> Bound:
        """At a false-positive rate, or at each of an array."""
        if self.worst:
            return self._read(lambda curve, rates: curve.true_positive_rates(rates), fpr, least=fpr, both_ways=not self.oriented)
        adv = self._advantage

        def one(fpr: float) -> Bound:
            highest, middle = (tpr_at_most(a, fpr) for a in (adv.upper, adv.estimate))
            return Bound(tpr_at_least(adv.lower, fpr), middle, highest)

        return _at_each(one, fpr)

    def success(self, prior: float) -> Bound:
        """Best guess of two worlds, the positive one with probability `prior`: 1 - π + π·H at α = (1-π)/π."""
        guessing = max(prior, 1.0 - prior)
        if prior in (0.0, 1.0):
            return Bound(1.0, 1.0, 1.0)
        if self.worst:

            def guess(curve: Curve, tau: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
                values, errors = curve.hockey_sticks(tau)
                return 1.0 - prior + prior * values, prior * errors

            return self._read(guess, log((1.0 - prior) / prior), least=guessing, both_ways=not self.oriented)
        adv = self._advantage
        highest, middle = (success_at_most(a, prior) for a in (adv.upper, adv.estimate))
        return Bound(0.5 * (1.0 + adv.lower) if prior == 0.5 else guessing, middle, highest)

    def success_among(self, largest_prior: float) -> Bound:
        """Best guess among M secrets: ≤ 1 - β*(1 - max π), and ≤ TPR at FPR max π."""
        beta, rate = self.bayes_security, self.tpr(largest_prior)
        upper = min(1.0 - beta.lower * (1.0 - largest_prior), rate.upper)
        estimate = min(1.0 - beta.estimate * (1.0 - largest_prior), rate.estimate)
        return Bound(largest_prior, estimate, upper)

    def delta(self, epsilon: Any) -> Bound:
        """At an ε ≥ 0, or at each of an array."""
        if self.worst:
            return self._read(lambda curve, taus: curve.hockey_sticks(taus), epsilon, least=0.0, both_ways=True)
        adv = self._advantage
        return _at_each(lambda one: Bound(delta_at_least(adv.lower, one), adv.estimate, adv.upper), epsilon)

    def mean_delta(self, epsilons: NDArray[Any]) -> NDArray[Any]:
        """At each ε ≥ 0, the upper end of the mean of δ from P to Q and from Q to P; δ itself if either world may be P."""
        if not self.worst or not self.oriented:
            return np.asarray(self.delta(epsilons).upper)
        ways = [[one.hockey_sticks(epsilons) for one in facing] for facing in (self.worst, [c.reversed() for c in self.worst])]
        each = [np.max([values + errors for values, errors in way], axis=0) for way in ways]
        return np.asarray(0.5 * sum(np.clip(one, 0.0, 1.0) for one in each))

    def epsilon(self, delta: Any) -> Bound:
        """At a δ, or at each of an array."""
        if self.worst:
            deltas = np.ravel(np.asarray(delta, dtype=np.float64))
            return _of_shape(self._enclose(lambda curve: curve.epsilons(deltas), _vague_epsilon), delta)
        beta = self.bayes_security

        def one(delta: float) -> Bound:
            least = epsilon_from_bayes_security(beta.upper, delta)
            middle = epsilon_from_bayes_security(beta.estimate, delta)
            return Bound(least, middle, 0.0 if delta >= 1.0 - beta.lower else inf)

        return _at_each(one, delta)

    def gaussian(self, smallest_fpr: float) -> GaussianFit:
        if not self.worst:
            beta = self.bayes_security
            least, middle = (mu_from_overlap(b) for b in (beta.upper, beta.estimate))
            some = inf if beta.lower < 1.0 else 0.0
            return GaussianFit(least, middle, some, some, smallest_fpr)
        mu = _of_shape(self._enclose(lambda curve: gaussian_mu(curve, smallest_fpr)), smallest_fpr)
        regret = max(gaussian_regret(curve, mu.upper) for curve in self.worst)
        return GaussianFit(mu.lower, mu.estimate, mu.upper, regret, smallest_fpr)

    def _enclose(
        self, metric: Callable[[Curve], tuple[Any, Any, Any]], vague: Callable[[NDArray[Any]], bool] = lambda ends: False
    ) -> Bound:
        """The worst of the curves, both ways, for a metric that gives (lower, value, upper) of a curve.

        vague: whether the ends of a curve are so far apart that the tails are looked at.
        """
        worst = _ends(metric, self.worst)
        below = worst if self.attacks is self.worst else _ends(metric, self.attacks)
        middle = (worst if below is None else below)[1]
        lower = 0.0 if below is None else below[0]
        upper = np.maximum(lower, worst[2])
        if self.tails is not None and (vague(worst) or (below is not None and vague(below))):
            above, under = self.tails()
            upper = upper if above is None else np.minimum(upper, _ends(metric, (above,))[2])
            lower = lower if under is None else np.maximum(lower, np.minimum(_ends(metric, (under,))[0], upper))
            middle = _within(middle, lower, upper)
        middle = np.minimum(middle, upper)  # an attack whose numbers are not known is estimated at the worst
        return Bound(np.minimum(lower, middle), middle, upper)

    def _read(
        self, metric: Callable[[Curve, NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]], given: Any, least: Any, both_ways: bool
    ) -> Bound:
        """The worst of the curves, at most 1 and never below `least`, what an attacker without the model has.

        given: a number or an array, at which the metric is read."""
        facing = _both_ways if both_ways else tuple
        asked = np.ravel(np.asarray(given, dtype=np.float64))
        worst = [metric(curve, asked) for curve in facing(self.worst)]
        below = worst if self.attacks is self.worst else [metric(curve, asked) for curve in facing(self.attacks)]
        least = np.ravel(np.asarray(least, dtype=np.float64))
        upper = np.max([values + errors for values, errors in worst], axis=0)
        lower = np.max([values - errors for values, errors in below], axis=0) if below else least
        estimate = np.max([values for values, _ in (below or worst)], axis=0)
        if self.tails is not None and any(
            np.any(errors > VAGUE * np.maximum(values - least, 0.0) + 1e-300) for values, errors in (*worst, *below)
        ):
            above, under = self.tails()
            if above is not None:
                upper = np.minimum(upper, np.max([np.sum(metric(one, asked), axis=0) for one in facing((above,))], axis=0))
            if under is not None:
                lower = np.maximum(lower, np.max([np.subtract(*metric(one, asked)) for one in facing((under,))], axis=0))
                lower = np.minimum(lower, upper)
            estimate = _within(estimate, lower, upper)
        low, middle, high = (np.minimum(np.maximum(one, least), 1.0) for one in (lower, estimate, np.maximum(lower, upper)))
        middle = np.minimum(middle, high)  # an attack whose numbers are not known is estimated at the worst
        return _of_shape(Bound(np.minimum(low, middle), middle, high), given)


def joined(proved: Sequence[Outcome], exist: Sequence[Outcome], oriented: bool) -> Outcome:
    """One outcome of several: each of `proved` is above every attack, each of `exist` is below an attack that exists."""
    lower = max(one.bayes_security.lower for one in proved)
    upper = min((one.bayes_security.upper for one in exist), default=1.0)
    estimates = [one.bayes_security.estimate for one in exist if one.bayes_security.upper < 1.0]  # of others nothing is known
    estimate = min(estimates, default=lower)
    lower = min(lower, upper)
    curves = [one.worst for one in proved if one.worst]
    least = curves[0] if len(curves) == 1 else (LeastCurve(*(curve for some in curves for curve in some)),) if curves else ()
    attacks = tuple(curve for one in exist for curve in one.attacks) if least else ()
    return Outcome(Bound(lower, min(max(estimate, lower), upper), upper), least, attacks, oriented)


def _within(estimate: Any, lower: Any, upper: Any) -> Any:
    """An estimate; the middle of the ends where it is not between them."""
    return np.where((estimate >= lower) & (estimate <= upper), estimate, 0.5 * (lower + upper))


def _vague_epsilon(ends: NDArray[Any]) -> bool:
    """Whether an ε is not known, or hardly."""
    lower, _, upper = ends
    return bool(np.any(lower + np.maximum(VAGUE * lower, LEAST_EPSILON) < upper))


def _ends(metric: Callable[[Curve], tuple[Any, Any, Any]], curves: Sequence[Curve]) -> Any:
    """(lower, value, upper) of the worst of the curves, both ways; None without curves."""
    if not curves:
        return None
    return np.max([np.stack(np.broadcast_arrays(*metric(curve))) for curve in _both_ways(curves)], axis=0)


def _of_shape(bound: Bound, given: Any) -> Bound:
    """A bound of arrays in the shape of what was given; of numbers if that was a number."""
    ends = (bound.lower, bound.estimate, bound.upper)
    if np.ndim(given) == 0:
        return Bound(*(float(np.ravel(end)[0]) for end in ends))
    return Bound(*(np.reshape(end, np.shape(given)) for end in ends))


def _at_each(metric: Callable[[float], Bound], given: Any) -> Bound:
    """A metric at a number, or at each of an array."""
    if np.ndim(given) == 0:
        return metric(float(given))
    return stack([metric(one) for one in np.ravel(given).tolist()], np.shape(given))


def _both_ways(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """The curves and their reversals, without repeating the symmetric ones."""
    facing: list[Curve] = []
    for curve in curves:
        other = curve.reversed()
        facing += [curve] if other is curve else [curve, other]
    return tuple(facing)


# Between Bayes security and (ε, δ): the two bounds of the paper, and what β* alone says about an attack.
#
# Write TV = 1 - β*. An attack curve TPR(FPR) is concave and somewhere TV above the diagonal; that is all that β* tells.


def advantage_from_epsilon(epsilon: float, delta: float = 0.0) -> float:
    """Largest advantage that (ε, δ)-DP allows: (e^ε - 1 + 2δ)/(e^ε + 1) (Humphries et al.).

    Parameters
    ----------
    epsilon : float
        ε, at least 0.
    delta : float
        δ, between 0 and 1.

    Returns
    -------
    float
        The advantage, between 0 and 1.

    Raises
    ------
    ValueError
        If a number is outside its range.

    Examples
    --------
    >>> import betastar as bs
    >>> round(bs.advantage_from_epsilon(1.0, delta=1e-5), 6)
    0.462123
    """
    epsilon = validation.numbers("epsilon", epsilon, "a finite number of at least 0", low=0.0, high=inf)
    delta = validation.probability("delta", delta)
    fair = exp(-epsilon) / (1.0 + exp(-epsilon))  # 1/(e^ε + 1)
    return min(1.0, tanh(0.5 * epsilon) + 2.0 * delta * fair)


def epsilon_from_bayes_security(bayes_security: float, delta: float = 0.0) -> float:
    """Smallest ε that any (ε, δ)-DP statement about a run with this β* can have: ln((2 - β* - 2δ)/β*), at least 0.

    Parameters
    ----------
    bayes_security : float
        β*. The answer is a lower bound on ε: pass the upper end of β*.
    delta : float
        δ, between 0 and 1.

    Returns
    -------
    float
        ε; infinite for β* = 0.

    Raises
    ------
    ValueError
        If a number is outside its range.

    Examples
    --------
    >>> import betastar as bs
    >>> round(bs.epsilon_from_bayes_security(0.9), 6)
    0.200671
    """
    beta = validation.probability("bayes_security", bayes_security)
    delta = validation.probability("delta", delta)
    inside = 2.0 - beta - 2.0 * delta
    if inside <= beta:
        return 0.0
    if beta == 0.0:
        return inf
    return log(inside / beta) if beta > 1e-300 else log(inside) - log(beta)  # whose ratio would overflow


def tpr_at_most(advantage: float, fpr: float) -> float:
    """TPR ≤ FPR + TV, for every prior (theory, section 8: the paper's second case is not needed)."""
    return min(1.0, fpr + advantage)


def tpr_at_least(advantage: float, fpr: float) -> float:
    """The lowest concave curve that is TV above the diagonal somewhere, at this FPR."""
    if advantage >= 1.0:
        return 1.0
    return max(fpr, min(fpr / (1.0 - advantage), fpr + advantage * (1.0 - fpr)))


def success_at_most(advantage: float, prior: float) -> float:
    """1 - β*·min(π, 1-π)."""
    return 1.0 - (1.0 - advantage) * min(prior, 1.0 - prior)


def delta_at_least(advantage: float, epsilon: float) -> float:
    """δ ≥ (TV(e^ε + 1) - (e^ε - 1))/2."""
    shrink = exp(-epsilon)
    return max(0.0, 0.5 * (advantage * (1.0 + shrink) - (1.0 - shrink)) / shrink) if epsilon < 700.0 else 0.0


def mu_from_overlap(bayes_security: float) -> float:
    """μ of the Gaussian curve with this β*: 2Φ^{-1}(1 - β*/2)."""
    return 0.0 - 2.0 * float(ndtri(0.5 * bayes_security)) if bayes_security > 0.0 else inf


# The Gaussian curve that lies above a trade-off curve: its μ, proved from above, and by how much it overstates.

#: The curve lowered by its error, as it is, and raised.
SIDES = (-1.0, 0.0, 1.0)
#: Slopes that are looked at first, largest log slope, and relative error of the bisections.
SLOPES, LARGEST_SLOPE, ACCURACY = 17, 700.0, 1e-8
#: How close the proved μ comes to the largest one that is known, relative to it; parts of a cell that is divided, how often cells
#: are divided, and the most that are.
CLOSE, PARTS, FINER, MOST_CELLS = 1e-5, 4, 6, 512


def gaussian_mu(curve: Curve, smallest_fpr: float) -> tuple[float, float, float]:
    """The smallest μ whose Gaussian curve is not below this one where both error rates are at least `smallest_fpr`.

    If they touch inside of that region, they share a tangent there, so H is at most the Gaussian's at every slope e^τ that the
    curve has in the region, and equal at one: the largest μ(τ) with equal H. Or they touch at the smallest FPR. Slopes below 1
    are the reversed curve's.
    """
    value, error = curve.overlap()
    candidates = [[mu_from_overlap(min(max(value - side * error, 0.0), 1.0)) for side in SIDES]]
    rate, slack = curve.true_positives(smallest_fpr)
    lowest, middle, highest = (max(rate + side * slack, smallest_fpr) for side in SIDES)
    if lowest <= 1.0 - smallest_fpr:
        rates = (lowest, min(middle, 1.0 - smallest_fpr), min(highest, 1.0 - smallest_fpr))
        candidates.append([float(ndtri(rate) - ndtri(smallest_fpr)) for rate in rates])
    first, last = max(0.0, -curve.reversed().threshold(smallest_fpr)), min(curve.threshold(smallest_fpr), LARGEST_SLOPE)
    most = max(one[2] for one in candidates)
    if first < last:
        rows, inside = _largest_mu(curve, first, last)
        candidates += rows.tolist()
        most = max(most, inside)
    low, middle, _ = (max(column) for column in zip(*candidates, strict=True))
    return low, middle, most * (1.0 + ACCURACY)


def _largest_mu(curve: Curve, first: float, last: float) -> tuple[NDArray[Any], float]:
    """μ at slopes between two, as rows of (lower, value, upper), and a bound of μ at all slopes between them.

    H is convex in α = e^τ, hence below its chords: no slope of a cell needs a larger μ than the chord does. Cells that may hold
    a larger μ than the largest one that is known are divided until the two agree.
    """
    taus = np.linspace(first, last, SLOPES)
    rows, sticks = _mu_at(curve, taus)
    cells = np.stack([taus[:-1], taus[1:], sticks[:-1], sticks[1:]])
    every, done = [rows], 0.0
    for finer in range(FINER + 1):
        bounds = _mu_of_chords(*cells)
        enough = float(np.max(np.concatenate(every)[:, 1])) * (1.0 + CLOSE)
        open_cells = bounds > enough
        done = max(done, float(bounds[~open_cells].max(initial=0.0)))
        if not open_cells.any():
            break
        if finer == FINER or open_cells.sum() > MOST_CELLS:
            done = max(done, float(bounds.max()))
            break
        left, right, above_left, above_right = cells[:, open_cells]
        parts = np.linspace(left, right, PARTS + 1)
        rows, sticks = _mu_at(curve, parts[1:-1].ravel())
        every.append(rows)
        levels = np.concatenate([above_left[None], sticks.reshape(PARTS - 1, -1), above_right[None]])
        cells = np.stack([one.ravel() for one in (parts[:-1], parts[1:], levels[:-1], levels[1:])])
    return np.concatenate(every), done


def _mu_of_chords(left: NDArray[Any], right: NDArray[Any], above_left: NDArray[Any], above_right: NDArray[Any]) -> NDArray[Any]:
    """The smallest μ whose H is nowhere below a chord that has these values at the slopes `left` and `right`, for each chord.

    H_μ minus the chord is convex in α and least where -dH_μ/dα = Φ(-μ/2 - τ/μ) is the fall of the chord.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        width = np.exp(left) * np.expm1(right - left)
        fall = np.clip((above_left - above_right) / width, 0.0, 1.0)
        turn = ndtri(fall)

        def covered(mu: NDArray[Any]) -> Any:
            tau = np.clip(-mu * (turn + 0.5 * mu), left, right)
            chord = above_left - fall * np.exp(left) * np.expm1(tau - left)
            return _gaussian_log_delta(mu, tau) >= np.log(np.maximum(chord, 0.0))

        low, high = np.full(left.shape, log(1e-12)), np.full(left.shape, log(100.0))
        for _ in range(50):  # bisection
            middle = 0.5 * (low + high)
            enough = covered(np.exp(middle))
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(above_left <= 0.0, 0.0, np.where(high >= log(100.0), inf, np.exp(high)))


def _mu_at(curve: Curve, taus: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """μ of the Gaussian with the curve's H_{e^τ} at each τ ≥ 0: with H lowered by its error, as it is, and raised; and that H."""
    values, errors = curve.hockey_sticks(taus)
    goals = np.clip(np.stack([values + side * errors for side in SIDES], axis=1), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        logs = np.log(goals)
    low, high = np.full(goals.shape, log(1e-12)), np.full(goals.shape, log(100.0))
    for _ in range(60):  # bisection
        middle = 0.5 * (low + high)
        below = _gaussian_log_delta(np.exp(middle), taus[:, None]) < logs
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(goals <= 0.0, 0.0, np.where(high >= log(100.0), inf, np.exp(high))), goals[:, 2]


def _gaussian_log_delta(mu: NDArray[Any], tau: NDArray[Any]) -> NDArray[Any]:
    """Logarithm of H_{e^τ} between N(μ, 1) and N(0, 1)."""
    first, second = log_ndtr(0.5 * mu - tau / mu), tau + log_ndtr(-0.5 * mu - tau / mu)
    with np.errstate(divide="ignore"):
        return first + np.log(-np.expm1(np.minimum(second - first, 0.0)))


def gaussian_regret(curve: Curve, mu: float) -> float:
    """Largest difference in the success of an attacker, over priors 1/(1+e^τ): (H_μ(τ) - H(τ)) / (1 + e^τ)."""
    if not 0.0 < mu < inf:
        return 0.0 if mu == 0.0 else 1.0  # a difference of probabilities
    taus = np.linspace(-1.0, 1.0, 41) * min(0.5 * mu * mu + 4.0 * mu, LARGEST_SLOPE)
    sticks, _ = curve.hockey_sticks(taus)
    return max(0.0, float(np.max((_gaussian_delta(mu, taus) - sticks) / (1.0 + np.exp(taus)))))


def _gaussian_delta(mu: float, taus: NDArray[Any]) -> NDArray[Any]:
    """H_{e^τ} between N(μ, 1) and N(0, 1)."""
    return np.exp(log_ndtr(0.5 * mu - taus / mu)) - np.exp(taus + log_ndtr(-0.5 * mu - taus / mu))


# Privacy loss distributions of dp_accounting become curves. Needs the extra `interop`.


def curve_of(pld: Any) -> DiscreteCurve:
    """The trade-off curve of a privacy loss distribution: forward when the record is removed, backward when it is added."""

    def side(pmf: Any) -> Side:
        dense = pmf.to_dense_pmf()
        if not dense._pessimistic_estimate:
            raise ValueError("pld must be made with pessimistic_estimate=True: an optimistic one understates the risk.")
        losses = dense._discretization * (dense._lower_loss + np.arange(len(dense._probs)))
        return Side.of(losses, np.asarray(dense._probs, dtype=np.float64), float(dense._infinity_mass))

    try:
        return DiscreteCurve(side(pld._pmf_remove), side(pld._pmf_add))
    except AttributeError:
        raise TypeError(f"pld must be a dp_accounting PrivacyLossDistribution, got {type(pld).__name__}.") from None


# The bands of β*: a word for a number, for people who have no number of their own yet. They are an example, and whatever
# shows one says so. 0.98 is a coin that comes up right 51 times in 100 instead of 50, which no single person would notice; 0.9,
# the protection that the paper trains for, is 55 times in 100.

#: Lowest β* of each band, the best band first.
BANDS = ((0.98, "strong"), (0.9, "moderate"), (0.0, "weak"))
#: What a band means for a single record.
MEANING = {
    "strong": "the model tells an attacker next to nothing about a single record.",
    "moderate": "the model gives a determined attacker a small but measurable edge.",
    "weak": "the model gives a determined attacker a clear edge over guessing.",
}
#: The β* at which a band begins, which figures mark.
LEVELS = tuple(sorted(least for least, _ in BANDS if least > 0.0))


def band(beta: float) -> str:
    """The name of the band that a β* is in."""
    return next(name for least, name in BANDS if beta >= least)


def next_band(beta: float) -> tuple[float, str] | None:
    """The lowest β* and the name of the next better band; None in the best one."""
    return next(((least, name) for least, name in reversed(BANDS) if least > beta), None)


# What a Risk shows of itself: a sentence, the metrics that most people ask for, and the trade-off curve.

BETA, SUCCESS = METRICS["bayes_security"], METRICS["success"]
HEADS = ("", "rely on", "estimate", "without a model")
#: Metrics of the table, and what they depend on.
SHOWN = (("bayes_security", None), ("success", 0.5), ("tpr", 0.01), ("epsilon", 1e-5))
#: The numbers of a part of a run, in the order of `Segment.numbers`; and how many runs of a sweep are shown.
PARAMETERS = ("noise_multiplier", "sample_rate", "steps")
MOST_ROWS = 20
#: False-positive rates of the curve, closer where it is steep.
RATES = np.concatenate([[0.0], np.geomspace(1e-4, 0.1, 20), np.linspace(0.12, 1.0, 23)])


def display(risk: Risk, brief: bool) -> Display:
    """What is shown of a risk; of a sweep the range of β* only."""
    if risk.shape:
        return _sweep(risk, brief)
    lines = (_sentence(risk), _number(risk), *([note] if (note := _note(risk)) else []))
    if brief:
        return Display(lines)
    rows, unbounded = [], []
    for name, at in SHOWN:
        bound = getattr(risk, name) if at is None else getattr(risk, name)(at)
        if bound.upper == inf:
            unbounded.append(METRICS[name].title.format(plain(at)))
        rows.append(METRICS[name].row({"lower": bound.lower, "estimate": bound.estimate, "upper": bound.upper}, at))
    lines += (said,) if (said := not_known(risk.method, unbounded)) else ()
    return Display(lines, HEADS, tuple(rows), drawing(risk))


def drawing(risk: Risk) -> str:
    """The trade-off curve of a single run as an SVG image."""
    reached = risk.tradeoff(RATES)
    ends = reached.estimate if _approximate(risk) else reached.upper
    return draw_curve(RATES, ends, "false positives", "true positives", "trade-off curve of the best attack")


def _sweep(risk: Risk, brief: bool) -> Display:
    """What is shown of a sweep: the range of β*, and a table of the first runs."""
    beta = risk.bayes_security
    relied = beta.estimate if _approximate(risk) else beta.lower
    low, high = float(np.min(relied)), float(np.max(relied))
    size = " × ".join(map(str, risk.shape))
    about = "≈ " if _approximate(risk) else ""
    line = f"{_threat(risk)}, a sweep of {size} runs: β* from {about}{BETA.rounded(low)} to {about}{BETA.rounded(high)}."
    if brief:
        return Display((line,))
    number = len(risk._outcomes)
    varied = {name: values.ravel() for name, values in risk.parameters.items()}
    rows = []
    for i, outcome in enumerate(risk._outcomes[:MOST_ROWS]):
        one = Risk([outcome], (), risk.threat, risk.method, risk.heuristic)
        bounds = [(METRICS[name], at, getattr(one, name) if at is None else getattr(one, name)(at)) for name, at in SHOWN]
        told = [
            metric.rounded(float(bound.estimate if about else getattr(bound, metric.safe_end)), at)
            for metric, at, bound in bounds
        ]
        names = [plain(float(values[i])) for values in varied.values()] or [str(i)]
        rows.append((*names, *(about + text for text in told)))
    shown = (METRICS[name].short.format("" if at is None else plain(at)) for name, at in SHOWN)
    heads = (*([name.replace("_", " ") for name in varied] or ["run"]), *shown)
    rest = [f"{number - MOST_ROWS} more runs are not shown."] if number > MOST_ROWS else []
    return Display((line, *rest), heads, tuple(rows))


def not_known(method: str, titles: Sequence[str], certified: str = "method='certified'", exact: str = "method='exact'") -> str:
    """What is said of metrics without a finite upper end, and what to do; nothing if there are none.

    certified, exact : how a method is chosen.
    """
    if not titles:
        return ""
    why = {
        "exact": f"losses are too large to be integrated; {certified}, more noise or a larger δ may tell it",
        "certified": f"losses are too large for its grids; {exact}, more noise or a larger δ may tell it",
    }.get(method, f"it does not follow from β* alone, which is all that {method} computes; {exact} tells it")
    return f"The upper end of {' and of '.join(titles)} is not known: {why}."


def _approximate(risk: Risk) -> bool:
    """Whether the ends of the bound say little, so that the estimate is shown. A heuristic has no ends at all."""
    return risk.heuristic is not None or risk.method == "paper"


def _sentence(risk: Risk) -> str:
    beta = float(risk.bayes_security.estimate if _approximate(risk) else risk.bayes_security.lower)
    about = "about" if _approximate(risk) or _note(risk) else "at most"
    return (
        f"{_threat(risk)}: at even odds an attacker is right {about} {SUCCESS.rounded(1.0 - beta / 2.0, 0.5)} of the time, "
        "against 50 % without the model."
    )


def _number(risk: Risk) -> str:
    beta = risk.bayes_security
    if not isfinite(beta.lower):
        return f"β* ≈ {nearest(float(beta.estimate))}, a heuristic that bounds nothing; method {risk.method}"
    sign = "≈" if _note(risk) else "≥"
    return f"β* {sign} {BETA.rounded(float(beta.lower))} (estimate {nearest(float(beta.estimate))}), method {risk.method}"


def _threat(risk: Risk) -> str:
    """The threat, without what a monitor says of its measurement."""
    text = risk.threat.split(" [")[0]
    return text[:1].upper() + text[1:]


def _note(risk: Risk) -> str:
    """What a monitor says of its measurement."""
    return risk.threat.partition(" [")[2].removesuffix("]")
