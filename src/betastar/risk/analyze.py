"""analyze: a run and a threat to a Risk, by one of four methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from betastar import validation
from betastar.bounds import adaptive, affinity, certified, closed_form, no_noise, transform
from betastar.bounds.discrete import LeastCurve
from betastar.bounds.exact import LEAST_NOISE, TINY, FourierCurve, Part
from betastar.bounds.interpolation import condense
from betastar.risk.curve import Curve
from betastar.risk.interval import Bound
from betastar.risk.metrics import Outcome
from betastar.risk.risk import Risk
from betastar.scenario.run import DPSGD
from betastar.scenario.step import Step, one_step_advantage, visible
from betastar.scenario.threats import FARTHEST, Membership, Threat, in_order
from betastar.vocabulary import METHODS, PARAMETERS

#: Different steps, at most, for which the exact method looks at attackers who adapt: each kind costs some tenths of a second.
KINDS = 4
#: Width of the certified interval of β* unless another is asked for.
TOLERANCE: float = PARAMETERS["tolerance"].default
#: Error of the paper's closed form that its authors call small.
SMALL_ERROR = 0.01
#: An advantage below this one is not looked into.
INVISIBLE = 1e-12


class RegimeWarning(UserWarning):
    """A warning: the paper's closed form is used where it is not a good approximation.

    Examples
    --------
    >>> import warnings
    >>> import betastar as bs
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", bs.RegimeWarning)
    ...     risk = bs.analyze(bs.DPSGD(0.5, 0.001, 5000), method="paper")
    >>> risk.source
    'Bayes security'
    """


class ToleranceWarning(UserWarning):
    """A warning: the certified interval is wider than the tolerance, as no grid that fits in memory is fine enough.

    Both ends hold all the same.

    Examples
    --------
    >>> import warnings
    >>> import betastar as bs
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", bs.ToleranceWarning)
    ...     beta = bs.analyze(bs.DPSGD(1.0, 0.01, 1000), method="certified").bayes_security
    >>> bool(beta.width <= 1e-4)
    True
    """


def analyze(run: DPSGD, threat: Threat | None = None, method: str = "exact", tolerance: float = TOLERANCE) -> Risk:
    """How well a model trained by this run resists a threat.

    Parameters
    ----------
    run : DPSGD
        What was run, or a sweep over several runs.
    threat : Threat, optional
        Who attacks; membership inference by substitution by default.
    method : "exact", "certified", "affinity" or "paper"
        "exact" is an integral with its estimated numerical error. "certified" is proved from both sides. "affinity" is a closed
        form, proved but wide. "paper" is the paper's closed form, an approximation. For attribute inference with distances below
        2, "exact" and "certified" enclose the worst attacker, who changes the pair of gradients by what they saw.
    tolerance : float
        For "certified": the width of the interval of β* that is aimed at. From 0.001 on, "exact" and "certified" compute
        attribute inference on a coarse grid, which takes about a tenth of a second.

    Returns
    -------
    Risk
        Every metric, each with its bounds.

    Raises
    ------
    TypeError
        If run or threat are of another type.
    ValueError
        If the method or the tolerance is not allowed, or the threat does not fit the run.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD.from_epochs(noise_multiplier=3.51, batch_size=256, dataset_size=26048, epochs=20)
    >>> print(bs.analyze(run).bayes_security)
    0.899352 [0.899351, 0.899352]
    """
    threat = Membership() if threat is None else threat
    outcomes = _solve(run, threat, method, tolerance, attained=True)
    if method == "paper":
        _warn_outside_regime(run, outcomes, threat)
    if method == "certified" and isinstance(threat, Membership):  # attributes have a gap that no grid closes
        _warn_too_wide(outcomes, tolerance)
    return Risk(outcomes, run.shape, threat.describe(), method)


def reliable(run: DPSGD, threat: Threat, method: str, tolerance: float) -> Risk:
    """What `analyze` computes, but only the ends of each bound that a person relies on: no attack is looked for."""
    return Risk(_solve(run, threat, method, tolerance, attained=False), run.shape, threat.describe(), method)


def after_each(run: DPSGD, threat: Threat, counts: Sequence[int], tolerance: float, attained: bool) -> list[Bound] | None:
    """β* after each of these numbers of steps of a run, certified, in one pass; None where each takes a computation of its own.

    counts: increasing. attained: the upper ends, too, which are 1 otherwise.
    """
    steps = in_order(threat, run) if threat.symmetric else None
    if steps is None or len(steps) != 1 or not 0.0 < steps[0].distance < FARTHEST:
        return None
    if steps != threat.steps(run):  # of a histogram: no attack on the steps of its largest distance need exist
        return None
    quick = tolerance >= certified.COARSE
    solutions = adaptive.solve_each(steps[0], counts, adaptive.QUICK if quick else adaptive.MODERATE, attained)
    if solutions is None:
        return None
    lowers = [min(1.0 - float(one.above.values[0]), certified.BELOW_ONE) for one in solutions]
    uppers = [1.0 if one.below is None else 1.0 - float(one.below.values[0]) for one in solutions]
    return [
        Bound(lower, 0.5 * (lower + upper) if attained else lower, upper) for lower, upper in zip(lowers, uppers, strict=True)
    ]


def takes_seconds(threat: Threat, method: str, tolerance: float) -> bool:
    """Whether a figure takes seconds, as for an attacker who adapts, while one of tolerance `certified.COARSE` does not."""
    adapts = threat.symmetric and not isinstance(threat, Membership)
    return adapts and method in ("exact", "certified") and tolerance < certified.COARSE


def _solve(run: DPSGD, threat: Threat, method: str, tolerance: float, attained: bool) -> list[Outcome]:
    if not isinstance(run, DPSGD):
        raise TypeError(f"run must be a DPSGD, got {run!r}.")
    if not hasattr(threat, "steps"):
        raise TypeError(f"threat must be Membership, AttributeInference or Candidates, got {threat!r}.")
    solve = METHODS[validation.choice("method", method, METHODS)].solve or OWN_METHODS[method]
    tolerance = validation.numbers("tolerance", tolerance, "at least 1e-8 and below 1", low=1e-8, high=1.0, open_high=True)
    return [solve(scalar, threat, tolerance, attained) for scalar in run.scalars()]


def _invisible(steps: Sequence[Step], threat: Threat) -> Outcome | None:
    """The outcome of a run that leaks less than INVISIBLE: its advantage is at most the sum of the steps' own (proved)."""
    most = sum(step.count * one_step_advantage(step.rate, step.noise, step.distance) for step in steps)
    if most > INVISIBLE or not any(step.distance for step in steps):
        return None
    beta = min(1.0 - (1.0 + 1e-9) * most, certified.BELOW_ONE)
    return Outcome(Bound(beta, beta, 1.0), oriented=threat.oriented)


def _exact(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    steps = threat.steps(run)
    if (little := _invisible(steps, threat)) is not None:
        return little
    quiet = any(step.noise <= LEAST_NOISE for step in steps)
    parts = condense([replace(step, noise=max(step.noise, LEAST_NOISE)) for step in map(visible, steps)])

    def curve(build: Callable[..., transform.Transform], symmetric: bool) -> FourierCurve:
        return FourierCurve([Part(n, build, rate, noise, r) for n, rate, noise, r in parts], symmetric)

    worst: tuple[Curve, ...]
    exist: tuple[Curve, ...]
    solution = None
    if all(r == 2.0 for *_, r in parts):
        worst = exist = (curve(transform.line, True),)
    elif not threat.symmetric:
        worst = exist = (curve(transform.line, False),)
    elif sum(step.count for step in steps) == 1:
        worst = exist = (curve(transform.glued, True),)  # attained: at each α by the line pair, one way or the other
    else:
        worst = (curve(transform.glued, True),)
        exist = (curve(transform.symmetric, True), curve(transform.line, False))
        solution = _adapted(run, threat, tolerance, attained)
        if solution is not None:
            worst = (LeastCurve(solution.above, *worst),)
            exist = exist[-1:] if solution.below is None else (solution.below, exist[-1])
    if quiet:
        worst = (no_noise.curve(steps),)
        exist = exist[-1:]  # the pair in the plane takes long where noise is so little
    if not attained:
        exist = worst
    bottom, bottom_error = worst[0].overlap()
    top, top_error = (bottom, bottom_error) if exist is worst else min(one.overlap() for one in exist)
    upper = min(1.0, max(top + top_error, TINY))
    estimate = min(max(top if solution is None else 0.5 * (bottom + top), TINY), upper)
    return Outcome(Bound(min(max(bottom - bottom_error, 0.0), estimate), estimate, upper), worst, exist, threat.oriented)


def _adapted(run: DPSGD, threat: Threat, tolerance: float, attained: bool) -> adaptive.Solution | None:
    """The worst case of an attacker who adapts, enclosed; None if the steps are of too many kinds, or no grid is affordable."""
    steps = in_order(threat, run)
    if steps is None or steps != threat.steps(run) or len(steps) > KINDS:
        return None
    quick = tolerance >= certified.COARSE
    return adaptive.solve(steps, adaptive.QUICK if quick else adaptive.MODERATE, attained and not quick)


def _certified(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    steps = threat.steps(run)
    if (little := _invisible(steps, threat)) is not None:
        return little
    if threat.symmetric:
        proof = certified.enclose(steps, in_order(threat, run), tolerance, attained)
    else:
        proof = certified.certify(steps, False, tolerance, attained)
    lower, upper = max(proof.lower, 0.0), min(max(proof.upper, TINY), 1.0)
    if proof.adaptive:
        middle = 0.5 * (lower + upper) if attained else lower
    else:
        middle = min(max(_exact(run, threat, tolerance, attained).bayes_security.estimate, lower), upper)
    curves = (proof.above,) if proof.above else ()
    return Outcome(Bound(lower, middle, upper), curves, proof.below if curves else (), threat.oriented)


def _affinity(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    # What `visible` adds to a step is below 1e-24 of β* in all: both ends stay what they are.
    steps = [visible(step) for step in threat.steps(run)]
    families = (transform.line, transform.symmetric) if threat.symmetric else (transform.line,)
    largest = affinity.largest(transform.glued if threat.symmetric else transform.line, steps)
    exist = max(affinity.total(family, steps) for family in families)
    return Outcome(Bound(*affinity.bounds(largest, exist)), oriented=threat.oriented)


def _paper(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    steps = threat.steps(run)
    beta, error = closed_form.bayes_security(steps), closed_form.error_term(steps)
    return Outcome(Bound(max(0.0, beta - error), beta, min(1.0, beta + error)), oriented=threat.oriented)


#: The methods of betastar itself; those of plug-ins are in the vocabulary.
OWN_METHODS: dict[str, Callable[[DPSGD, Any, float, bool], Outcome]] = {
    "exact": _exact,
    "certified": _certified,
    "affinity": _affinity,
    "paper": _paper,
}


def _warn_too_wide(outcomes: Sequence[Outcome], tolerance: float) -> None:
    """Warn once, with the widest interval."""
    widest = max(float(outcome.bayes_security.width) for outcome in outcomes)
    if widest > tolerance:
        warnings.warn(
            f"The certified interval of β* is {widest:.2g} wide, wider than the tolerance {tolerance:g}: no grid that fits in "
            "memory is fine enough. The interval is valid: both ends hold.",
            ToleranceWarning,
            stacklevel=3,
        )


def _warn_outside_regime(run: DPSGD, outcomes: Sequence[Outcome], threat: Threat) -> None:
    """Warn once, with the actual error where it takes about a millisecond to know."""
    every = [threat.steps(scalar) for scalar in run.scalars()]
    doubtful = [i for i, steps in enumerate(every) if closed_form.outside_regime(steps)]
    if len(every) == 1 and len({step.distance for step in every[0]}) == 1:
        truth = _exact(next(iter(run.scalars())), threat, TOLERANCE).bayes_security.estimate
        error = outcomes[0].bayes_security.estimate - truth
        if doubtful or abs(error) > SMALL_ERROR:
            direction = "too optimistic" if error > 0.0 else "too pessimistic"
            warnings.warn(
                f"the paper's closed form says β* = {truth + error:.4g}, the exact value is {truth:.4g}: "
                f"it is {direction} by {abs(error):.2g} here. Use method='exact'.",
                RegimeWarning,
                stacklevel=3,
            )
    elif doubtful:
        least = min(step.noise for i in doubtful for step in every[i])
        warnings.warn(
            f"the paper's closed form is not meant for noise_multiplier below 1, got {least:g}. Use method='exact'.",
            RegimeWarning,
            stacklevel=3,
        )
