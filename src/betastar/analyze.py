"""analyze: a run and a threat to a Risk, by one of four methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from betastar import closed_forms, validation
from betastar.bounds import kinds
from betastar.certified import adaptive, enclosure
from betastar.curves import Curve, LeastCurve
from betastar.dpsgd import DPSGD
from betastar.exact import transform
from betastar.exact.curve import LEAST_NOISE, FourierCurve
from betastar.exact.inversion import TINY
from betastar.heuristics import SEES, FinalModel
from betastar.risk import FINAL_MODEL, Bound, Outcome, Risk, joined
from betastar.scenario.step import LEAST, AllocationStep, AnyStep, Step
from betastar.sequences import View
from betastar.threats import FARTHEST, Membership, Threat, in_order, reduction
from betastar.validation import WrongValueError

#: A method: run, threat, tolerance, and whether attacks that exist are looked for.
Solver = Callable[[DPSGD, Any, float, bool], Outcome]

#: Different steps, at most, for which the exact method looks at attackers who adapt: each kind costs some tenths of a second.
KINDS = 4
#: Width of the certified interval of β* unless another is asked for.
TOLERANCE = 1e-4
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


def analyze(
    run: DPSGD, threat: Threat | None = None, method: str = "exact", tolerance: float = TOLERANCE, sees: str = "updates"
) -> Risk:
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
        attribute inference on a coarse grid, which takes about a tenth of a second; from 0.1 on, they bound it by a curve that
        takes milliseconds, whose advantage is up to 1.5 times as large.
    sees : "updates" or "final-model"
        What the attacker sees. "updates" is every update, as all bounds assume. "final-model" is a heuristic for an attacker who
        sees the final model only, as if all losses were linear: the answer has estimates and no bounds, and nothing to rely on.

    Returns
    -------
    Risk
        Every metric, each with its bounds.

    Raises
    ------
    TypeError
        If run or threat are of another type.
    ValueError
        If the method or the tolerance is not allowed, or the threat does not fit the run, or what the attacker sees.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD.from_epochs(noise_multiplier=3.51, batch_size=256, dataset_size=26048, epochs=20)
    >>> print(bs.analyze(run).bayes_security)
    0.899352 [0.899351, 0.899352]
    >>> print(bs.analyze(run, sees="final-model").bayes_security)
    0.899403 (a heuristic, not a bound)
    """
    threat = Membership() if threat is None else threat
    if validation.choice("sees", sees, SEES) == "final-model":
        return _final_model(run, threat, method)
    outcomes = _solve(run, threat, method, tolerance, attained=True)
    if method == "paper":
        _warn_outside_regime(run, outcomes, threat)
    if method == "certified" and isinstance(threat, Membership) and _is_its_own_attack(run, threat):
        _warn_too_wide(outcomes, tolerance)
    return Risk(outcomes, run.shape, threat.describe(), method)


def _is_its_own_attack(run: DPSGD, threat: Threat) -> bool:
    """Whether the steps that dominate a run are attained; otherwise there is a gap that no grid closes, as for attributes."""
    reduced = reduction(threat, next(run.scalars()))
    return reduced is None or reduced.attained is None


def reliable(run: DPSGD, threat: Threat, method: str, tolerance: float) -> Risk:
    """What `analyze` computes, but only the ends of each bound that a person relies on: no attack is looked for."""
    return Risk(_solve(run, threat, method, tolerance, attained=False), run.shape, threat.describe(), method)


def takes_seconds(threat: Threat, method: str, tolerance: float, run: DPSGD) -> bool:
    """Whether a figure takes seconds, as for an attacker who adapts, while one of tolerance `certified.COARSE` does not."""
    drawn_without_replacement = any(segment.sampling == "fixed-size" for segment in run.segments)
    adapts = threat.symmetric and (drawn_without_replacement or not isinstance(threat, Membership))
    return adapts and method in ("exact", "certified") and tolerance < enclosure.COARSE


def _solve(run: DPSGD, threat: Threat, method: str, tolerance: float, attained: bool) -> list[Outcome]:
    if not isinstance(run, DPSGD):
        raise TypeError(f"run must be a DPSGD, got {run!r}.")
    if not hasattr(threat, "steps"):
        raise TypeError(f"threat must be Membership, AttributeInference or Candidates, got {threat!r}.")
    solve = METHODS[validation.choice("method", method, METHODS)]
    tolerance = validation.numbers("tolerance", tolerance, "at least 1e-8 and below 1", low=1e-8, high=1.0, open_high=True)
    return [_answered(solve, scalar, threat, tolerance, attained) for scalar in run.scalars()]


def _answered(solve: Solver, run: DPSGD, threat: Threat, tolerance: float, attained: bool) -> Outcome:
    """The outcome of a scalar run: of its steps, or of the views that stand for it, where its sampling is not plain Poisson's."""
    reduced = reduction(threat, run)
    if reduced is None:
        return solve(run, threat, tolerance, attained)
    if solve is _paper:
        raise WrongValueError("method", "{argument} paper is about Poisson sampling, got {run}; use exact.", {"run": repr(run)})
    if reduced.attained is None:
        return solve(run, reduced.proved[0], tolerance, attained)
    certifiable = [view for view in reduced.proved if not any(isinstance(step, AllocationStep) for step in view.every)]
    attacks = list(reduced.attained)
    if solve is _certified and certifiable:
        # An epoch of random allocation is no proof: its figures are left out where others are there.
        attacks = [view for view in attacks if not any(isinstance(step, AllocationStep) for step in view.every)]
    proved = [solve(run, view, tolerance, False) for view in (certifiable if solve is _certified else ()) or reduced.proved]
    if not attained:
        return joined(proved, [], threat.oriented)
    exist = [solve(run, view, tolerance, True) for view in attacks]
    if solve in (_exact, _certified):
        exist += _by_an_attacker_who_adapts(reduced.proved[0], tolerance, solve is _certified)
    return joined(proved, exist, threat.oriented)


def _by_an_attacker_who_adapts(view: View, tolerance: float, fine: bool) -> list[Outcome]:
    """An attack that exists on a run with batches of a fixed size, none if no grid is affordable."""
    steps = view.ordered
    if steps is None or steps != view.every or not any(step.fixed_size for step in steps) or len(steps) > KINDS:
        return []
    if tolerance >= enclosure.COARSE:
        return []
    count = sum(step.count for step in steps)
    solution = adaptive.solve(steps, adaptive.effort(count) if fine else adaptive.MODERATE) if count > 1 else None
    if solution is None or solution.below is None:
        return []
    beta = 1.0 - float(solution.below.values[0])
    return [Outcome(Bound(0.0, beta, beta), (), (solution.below,), view.oriented)]


def _invisible(steps: Sequence[AnyStep], threat: Threat) -> Outcome | None:
    """The outcome of a run that leaks less than INVISIBLE: its advantage is at most the sum of the steps' own (proved)."""
    most = sum(step.count * kinds.kind(step).advantage(step) for step in steps)
    if most > INVISIBLE or not any(kinds.telling(step) for step in steps):
        return None
    beta = min(1.0 - (1.0 + 1e-9) * most, enclosure.BELOW_ONE)
    return Outcome(Bound(beta, beta, 1.0), oriented=threat.oriented)


def _exact(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    steps = threat.steps(run)
    if (little := _invisible(steps, threat)) is not None:
        return little
    quiet = any(kinds.kind(step).least_noise(step) <= LEAST_NOISE for step in steps)
    seen = [kinds.kind(step).louder(kinds.kind(step).visible(step, LEAST), LEAST_NOISE) for step in steps if kinds.telling(step)]

    def curve(build: Callable[..., transform.Transform], symmetric: bool, of: Sequence[AnyStep] = seen) -> FourierCurve:
        return FourierCurve(kinds.parts(of, build), symmetric)

    worst: tuple[Curve, ...]
    exist: tuple[Curve, ...]
    solution = None
    some = kinds.attained(seen, threat.symmetric)
    if some == seen:
        even = threat.symmetric or all(isinstance(step, Step) and step.distance == FARTHEST for step in seen)
        worst = exist = (curve(transform.line, even),)
    elif not kinds.plain(steps):
        worst = (curve(transform.glued if threat.symmetric else transform.line, threat.symmetric),)
        exist = (curve(transform.line, threat.symmetric, some),) if some else ()
    elif sum(step.count for step in steps) == 1:
        worst = exist = (curve(transform.glued, True),)  # attained: at each α by the line pair, one way or the other
    else:
        worst = (curve(transform.glued, True),)
        exist = (curve(transform.symmetric, True), curve(transform.line, False))
        if tolerance >= enclosure.GLUED:
            exist = exist[-1:]
        solution = _adapted(run, threat, tolerance, attained)
        if solution is not None:
            worst = (LeastCurve(solution.above, *worst),)
            exist = exist[-1:] if solution.below is None else (solution.below, exist[-1])
    if quiet:
        worst = (closed_forms.noiseless_curve(steps),)
        exist = exist[-1:]  # the pair in the plane takes long where noise is so little
    if not attained:
        exist = worst
    bottom, bottom_error = worst[0].overlap()
    ends = [(bottom, bottom_error)] if exist is worst else [one.overlap() for one in exist]
    top, top_error = min(ends, key=lambda end: end[0] + end[1], default=(bottom, 0.0))
    upper = min(1.0, max(top + top_error, TINY)) if exist else 1.0
    estimate = min(max(top if solution is None else 0.5 * (bottom + top), TINY), upper)
    return Outcome(Bound(min(max(bottom - bottom_error, 0.0), estimate), estimate, upper), worst, exist, threat.oriented)


def _adapted(run: DPSGD, threat: Threat, tolerance: float, attained: bool) -> adaptive.Solution | None:
    """The worst case of an attacker who adapts, enclosed; None if the steps are of too many kinds, or no grid is affordable."""
    steps = in_order(threat, run)
    if steps is None or steps != threat.steps(run) or len(steps) > KINDS or tolerance >= enclosure.GLUED:
        return None
    quick = tolerance >= enclosure.COARSE
    return adaptive.solve(steps, adaptive.QUICK if quick else adaptive.MODERATE, attained and not quick)


def _certified(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    steps = threat.steps(run)
    if (little := _invisible(steps, threat)) is not None:
        return little
    if threat.symmetric:
        proof = enclosure.enclose(steps, in_order(threat, run), tolerance, attained)
    else:
        proof = enclosure.certify(steps, False, tolerance, attained)
    lower, upper = max(proof.lower, 0.0), min(max(proof.upper, TINY), 1.0)
    if proof.adaptive:
        middle = 0.5 * (lower + upper) if attained else lower
    else:
        middle = min(max(_exact(run, threat, tolerance, attained).bayes_security.estimate, lower), upper)
    curves = (proof.above,) if proof.above else ()
    return Outcome(Bound(lower, middle, upper), curves, proof.below if curves else (), threat.oriented)


def _final_model(run: DPSGD, threat: Threat, method: str) -> Risk:
    """The last-iterate heuristic: estimates only."""
    if not isinstance(run, DPSGD):
        raise TypeError(f"run must be a DPSGD, got {run!r}.")
    if method != "exact":
        raise ValueError(
            f"sees='final-model' is a heuristic, which only method='exact' computes, got method={method!r}; "
            "sees='updates' answers with a bound."
        )
    outcomes = [_exact(scalar, FinalModel(threat), TOLERANCE) for scalar in run.scalars()]
    return Risk(outcomes, run.shape, threat.describe(), method, heuristic=FINAL_MODEL)


def _affinity(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    # What `visible` adds to a step is below 1e-24 of β* in all: both ends stay what they are.
    steps = [kinds.kind(step).visible(step, LEAST) for step in threat.steps(run)]
    plain = kinds.plain(steps)
    families = (transform.line, transform.symmetric) if threat.symmetric and plain else (transform.line,)
    largest = closed_forms.largest(transform.glued if threat.symmetric else transform.line, steps)
    exist = max(closed_forms.total(family, steps if plain else kinds.attained(steps, threat.symmetric)) for family in families)
    return Outcome(Bound(*closed_forms.bounds(largest, exist)), oriented=threat.oriented)


def _paper(run: DPSGD, threat: Threat, tolerance: float, attained: bool = True) -> Outcome:
    steps = kinds.only_plain("method 'paper'", threat.steps(run))
    beta, error = closed_forms.paper_bayes_security(steps), closed_forms.paper_error_term(steps)
    return Outcome(Bound(max(0.0, beta - error), beta, min(1.0, beta + error)), oriented=threat.oriented)


METHODS: dict[str, Solver] = {
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
    every = [kinds.only_plain("method 'paper'", threat.steps(scalar)) for scalar in run.scalars()]
    doubtful = [i for i, steps in enumerate(every) if closed_forms.outside_regime(steps)]
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
