"""analyze: a run and a threat to a Risk, by one of four methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from betastar import closed_forms, coins, validation
from betastar.certified import adaptive, enclosure
from betastar.certified.adaptive import counted
from betastar.certified.enclosure import EFFORTS
from betastar.closed_forms import noiseless_curve
from betastar.curves import Curve, LeastCurve
from betastar.dpsgd import DPSGD, all_plain
from betastar.exact import LEAST_NOISE, TINY, FourierCurve
from betastar.risk import Bound, Outcome, Risk, Tails, joined
from betastar.sequences import Reduction, StepSequence
from betastar.steps.base import Family, Step, attained_steps
from betastar.steps.fixed_size import FixedSizeStep
from betastar.steps.poisson import PoissonStep, all_poisson, factors, only_poisson
from betastar.threats import FARTHEST, Membership, Threat, reduction
from betastar.tuning import BestOf, tuned
from betastar.validation import WrongValueError

#: Different steps up to which the exact method looks closely at attackers who adapt: each kind costs a tenth of a second.
DIFFERENT = 4
#: Width of the certified interval of β* unless another is asked for.
TOLERANCE = 1e-4
#: For the best of several models, the width for one run as a share of it, and the least.
MAGNIFIED, LEAST_TOLERANCE = 0.25, 1e-8
#: Factors of the glued curve beside the programme if noise is little: it matters far out only, and its integrals take long.
MOST_GLUED = 24
#: Least noise, and most different steps, that the pair on a line is integrated for.
LEAST_NOISE_OF_LINE, FEW_ON_LINE = 0.5, 4
#: With how many different distances the best of several runs is attacked; others are rounded down.
FEW_FOR_THE_BEST = 6
#: What two rules for many norms may disagree by, as a share of the advantage, so that the finer one is taken; and the least noise
#: for which they are looked at: their integrals take long with less.
NEAR, LEAST_NOISE_OF_RULES = 1e-5, 0.15
#: Where curves are compared.
PROBES = np.array([0.0, 0.5, 2.0, 8.0])
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
    run: DPSGD | BestOf,
    threat: Threat | None = None,
    method: str = "exact",
    tolerance: float = TOLERANCE,
    effort: str = "best",
) -> Risk:
    """How well a model trained by this run resists a threat.

    Parameters
    ----------
    run : DPSGD or BestOf
        What was run, or a sweep over several runs; or what `best_of` returns.
    threat : Threat, optional
        Who attacks; membership inference by substitution by default.
    method : "exact", "certified", "affinity" or "paper"
        "exact" is an integral with its estimated numerical error. "certified" is proved from both sides. "affinity" is a closed
        form, proved but wide. "paper" is the paper's closed form, an approximation. For attribute inference with distances below
        2, "exact" and "certified" enclose the worst attacker, who changes the pair of gradients by what they saw.
    tolerance : float
        For "certified": the width of the interval of β* that is aimed at.
    effort : "best", "normal" or "quick"
        How closely "exact" and "certified" look at attackers who adapt (attribute inference, and batches of a fixed size).
        "best" takes seconds. "normal" computes on a coarse grid, which takes about a tenth of a second. "quick" bounds them by a
        curve that takes milliseconds, whose advantage is up to 1.5 times as large.

    Returns
    -------
    Risk
        Every metric, each with its bounds.

    Raises
    ------
    TypeError
        If run or threat are of another type.
    ValueError
        If the method, the tolerance or the effort is not allowed, or the threat does not fit the run.

    Examples
    --------
    >>> import betastar as bs
    >>> run = bs.DPSGD.from_epochs(noise_multiplier=3.51, batch_size=256, dataset_size=26048, epochs=20)
    >>> print(bs.analyze(run).bayes_security)
    0.899352 [0.899351, 0.899352]
    """
    threat = Membership() if threat is None else threat
    outcomes = _outcomes(run, threat, method, tolerance, effort, both_ends=True)
    if method == "paper" and isinstance(run, DPSGD):
        _warn_outside_regime(run, threat)
    if (
        method == "certified"
        and isinstance(run, DPSGD)
        and isinstance(threat, Membership)
        and reduction(threat, next(run.scalars())).attacks is None
    ):
        _warn_too_wide(outcomes, tolerance)  # otherwise, and for attributes, there is a gap that no grid closes
    return Risk(outcomes, run.shape, threat.describe(), method, run=run if isinstance(run, DPSGD) else None)


def reliable(run: DPSGD | BestOf, threat: Threat, method: str, tolerance: float = TOLERANCE, effort: str = "best") -> Risk:
    """What `analyze` computes, but only the ends of each bound that a person relies on: no attack is looked for."""
    outcomes = _outcomes(run, threat, method, tolerance, effort, both_ends=False)
    return Risk(outcomes, run.shape, threat.describe(), method, run=run if isinstance(run, DPSGD) else None)


def takes_seconds(run: DPSGD | BestOf, threat: Threat, method: str, effort: str) -> bool:
    """Whether a figure takes seconds, as for an attacker who adapts, while one of effort "normal" does not."""
    if method not in ("exact", "certified") or effort != "best":
        return False
    runs = run.runs if isinstance(run, BestOf) else (run,)
    samplings = {segment.sampling for one in runs for segment in one.segments}
    if method == "certified" and "balls-in-bins" in samplings:
        return True
    fixed_size = "fixed-size" in samplings
    return getattr(threat, "symmetric", True) and (fixed_size or not isinstance(threat, Membership))


def _outcomes(run: DPSGD | BestOf, threat: Threat, method: str, tolerance: float, effort: str, both_ends: bool) -> list[Outcome]:
    """The outcome of each run of a sweep. both_ends: attacks that exist are looked for."""
    if not isinstance(run, DPSGD | BestOf):
        raise TypeError(f"run must be a DPSGD or a BestOf, got {run!r}.")
    if not hasattr(threat, "steps"):
        raise TypeError(f"threat must be Membership, AttributeInference or another object with steps(run), got {threat!r}.")
    validation.choice("method", method, METHODS)
    validation.choice("effort", effort, EFFORTS)
    tolerance = validation.numbers(
        "tolerance", validation.one("tolerance", tolerance), "at least 1e-8 and below 1", low=1e-8, high=1.0, open_high=True
    )
    if isinstance(run, BestOf):
        if method not in ("exact", "certified"):
            raise WrongValueError("method", "{argument} must be 'exact' or 'certified' for the best of several models.")
        return [_tuned(scalar, threat, method, tolerance, effort, both_ends) for scalar in run.scalars()]
    if method == "paper" and not all_plain(run):
        raise WrongValueError("method", "{argument} paper is about Poisson sampling, got {run}; use exact.", {"run": repr(run)})
    return [_outcome(reduction(threat, scalar), method, tolerance, effort, both_ends) for scalar in run.scalars()]


def _tuned(one: BestOf, threat: Threat, method: str, tolerance: float, effort: str, both_ends: bool) -> Outcome:
    """The outcome of the best of several models, perhaps with further runs."""

    def alone(run: DPSGD, tolerance: float) -> Outcome:
        return _outcome(reduction(threat, run), method, tolerance, effort, both_ends)

    searches, then = one.simplified()
    if not searches:
        assert then is not None
        return alone(then, tolerance)
    finer = max(MAGNIFIED * tolerance, LEAST_TOLERANCE)
    every = []
    for search in searches:
        runs = [_with_fixed_pairs(alone(run, finer), reduction(threat, run), method, finer, both_ends) for run in search.runs]
        every.append((search.weights, search.trials, runs))
    return tuned(every, None if then is None else alone(then, finer), both_ends)


def _with_fixed_pairs(outcome: Outcome, reduced: Reduction, method: str, tolerance: float, both_ends: bool) -> Outcome:
    """With attackers on attributes who keep to a pair of gradients: the theorem's attack needs the law of a pair."""
    sequence = reduced.proved[0]
    leaking = [step.clamped().with_min_noise(LEAST_NOISE) for step in sequence.steps if step.leaks]
    fixed = sequence.symmetric and any(isinstance(step, PoissonStep) and step.distance < FARTHEST for step in leaking)
    attained = reduced.attacks is None and all_poisson(leaking)  # steps that only dominate the run cannot be attacked
    if not (both_ends and fixed and attained and outcome.worst):
        return outcome
    if method == "certified":
        return replace(outcome, attacks=(*outcome.attacks, *enclosure.certify(leaking, True, tolerance).below))
    few = enclosure.rounded(leaking, FEW_FOR_THE_BEST, up=False)
    return replace(outcome, attacks=(*outcome.attacks, _composed(few, "symmetric", True)))


def _outcome(reduced: Reduction, method: str, tolerance: float, effort: str, both_ends: bool) -> Outcome:
    """The outcome of a scalar run, from the sequences of steps that stand for it."""
    solve = METHODS[method]
    proved, attacks = reduced.proved, reduced.attacks
    if attacks is None:
        return solve(proved[0], tolerance, effort, both_ends)
    if method == "exact" and reduced.near is not None and (near := _near(*reduced.near)) is not None:
        return near
    if method == "affinity" or effort != "best":  # these take a grid
        proved, attacks = (tuple(one for one in every if one.integrable) for every in (proved, attacks))
    elif method == "certified" and not proved[-1].integrable:
        proved = (proved[0], proved[-1])  # an epoch's curve at a distance is below that at distance 2
    above = [solve(sequence, tolerance, effort, False) for sequence in proved]
    if not both_ends:
        return joined(above, [], proved[0].oriented)
    below = [solve(sequence, tolerance, effort, True) for sequence in attacks]
    if method in ("exact", "certified") and effort == "best":
        below += _attack_on_fixed_sizes(reduced.proved[0], fine=method == "certified")
    return joined(above, below, proved[0].oriented)


def _near(fine: StepSequence, coarse: StepSequence) -> Outcome | None:
    """The integral of steps that are nearly those of the run; None if two of them, one finer, do not agree."""
    curves = []
    for sequence in (fine, coarse):
        leaking = [step.clamped() for step in sequence.steps if step.leaks]
        if not leaking or min(step.least_noise for step in leaking) < LEAST_NOISE_OF_RULES:
            return None
        curves.append(_composed(leaking, "line", False))
    best, rough = (np.concatenate([curve.hockey_sticks(PROBES)[0] for curve in (one, one.reversed())]) for one in curves)
    doubt = 2.0 * float(np.max(np.abs(best - rough)))
    if doubt > NEAR * float(np.max(best)):
        return None
    curve = FourierCurve(curves[0].factors, False, doubt)
    beta, error = curve.overlap()
    bayes_security = Bound(max(beta - error, 0.0), max(beta, TINY), min(beta + error, 1.0))
    return Outcome(bayes_security, (curve,), (curve,), fine.oriented)


def _attack_on_fixed_sizes(sequence: StepSequence, fine: bool) -> list[Outcome]:
    """An attacker who adapts to a run with batches of a fixed size: an attack that exists. None if no grid is affordable."""
    steps = sequence.in_order
    if steps is None or counted(steps) != counted(sequence.steps) or not any(isinstance(step, FixedSizeStep) for step in steps):
        return []
    count = sum(step.count for step in steps)
    if count == 1 or len(counted(steps)) > DIFFERENT:
        return []
    solution = adaptive.solve(steps, adaptive.fineness_for(count) if fine else adaptive.MODERATE)
    if solution is None or solution.below is None:
        return []
    beta = 1.0 - float(solution.below.values[0])
    return [Outcome(Bound(0.0, beta, beta), (), (solution.below,), sequence.oriented)]


def _invisible(sequence: StepSequence) -> Outcome | None:
    """The outcome of a run that leaks less than INVISIBLE: its advantage is at most the sum of the steps' own (proved)."""
    most = sum(step.count * step.advantage() for step in sequence.steps)
    if most > INVISIBLE or not any(step.leaks for step in sequence.steps):
        return None
    beta = min(1.0 - (1.0 + 1e-9) * most, enclosure.BELOW_ONE)
    return Outcome(Bound(beta, beta, 1.0), oriented=sequence.oriented)


def _exact(sequence: StepSequence, tolerance: float, effort: str, both_ends: bool) -> Outcome:
    """The integral; where attackers adapt, the programme's two ends as well."""
    if (little := _invisible(sequence)) is not None:
        return little
    if not sequence.integrable:
        return _certified(sequence, tolerance, effort, both_ends)
    worst, attacks, adapts = _exact_curves(sequence, effort, both_ends)
    bottom, bottom_error = worst[0].overlap()
    ends = [(bottom, bottom_error)] if attacks is worst else [curve.overlap() for curve in attacks]
    top, top_error = min(ends, key=lambda end: end[0] + end[1], default=(bottom, 0.0))
    upper = min(1.0, max(top + top_error, TINY)) if attacks else 1.0
    estimate = min(max(0.5 * (bottom + top) if adapts else top, TINY), upper)
    beta = Bound(min(max(bottom - bottom_error, 0.0), estimate), estimate, upper)
    return Outcome(beta, worst, attacks, sequence.oriented, _tails(sequence))


def _exact_curves(sequence: StepSequence, effort: str, both_ends: bool) -> tuple[tuple[Curve, ...], tuple[Curve, ...], bool]:
    """(a curve above every attack, curves of attacks that exist, whether they are those of attackers who adapt).

    The two are the same tuple where the curve above is attained, or if no attack is looked for.
    """
    steps, symmetric = sequence.steps, sequence.symmetric
    leaking = [step.clamped().with_min_noise(LEAST_NOISE) for step in steps if step.leaks]
    attained = attained_steps(leaking, symmetric)
    worst: tuple[Any, ...]
    attacks: tuple[Curve, ...]
    line: tuple[Curve, ...] = ()
    adapts = False
    if attained == leaking:
        even = symmetric or all(isinstance(step, PoissonStep) and step.distance == FARTHEST for step in leaking)
        worst = attacks = (_composed(leaking, "line", even),)
    elif not all_poisson(steps):
        worst = (_composed(leaking, "glued" if symmetric else "line", symmetric),)
        attacks = (_composed(attained, "line", symmetric),) if attained else ()
    elif sum(step.count for step in steps) == 1:
        worst = attacks = (_composed(leaking, "glued", True),)  # attained: at each α by the line pair, one way or the other
    else:
        worst = (_composed(leaking, "glued", True),)
        line = _line(leaking)
        attacks = line if effort == "quick" and line else (*_symmetric(leaking), *line)
        solution = _adapted(sequence, effort, both_ends)
        if solution is not None:
            adapts = True
            loud = all(step.noise >= LEAST_NOISE_OF_LINE for step in leaking if isinstance(step, PoissonStep))
            if len(worst[0].factors) > MOST_GLUED and not loud:
                worst = (_composed(enclosure.rounded(leaking, MOST_GLUED, up=True), "glued", True),)
            worst = (LeastCurve(solution.above, *worst),)
            attacks = attacks[-1:] if solution.below is None else (solution.below, *line)
    poisson = [step for step in steps if isinstance(step, PoissonStep)]
    told = coins.told(poisson) if symmetric and attained != leaking and len(poisson) == len(steps) else None
    if any(step.least_noise <= LEAST_NOISE for step in steps):
        worst = (noiseless_curve(steps) if told is None else LeastCurve(noiseless_curve(steps), told),)
        # The pair in the plane takes long where noise is so little: it is looked at if some steps have more.
        quiet = all(step.least_noise <= LEAST_NOISE for step in steps)
        seen = None if told is None else coins.seen(poisson)
        attacks = attacks[-1:] if seen is None else (seen, *(line if quiet else attacks))
    elif told is not None and attacks is not worst:
        # With little noise and many distances the integrals of the glued curve take long, and are hardly better.
        quiet = min(step.least_noise for step in steps) < LEAST_NOISE_OF_LINE and len(factors(leaking, "glued")) > FEW_ON_LINE
        if quiet and not adapts:
            worst = (told,)
        elif _is_lower(told, worst[0] if solution is None else solution.above):
            worst = (LeastCurve(*worst, told),)
    return worst, attacks if both_ends else worst, adapts


def _symmetric(steps: Sequence[Step]) -> tuple[Curve, ...]:
    """The attack with the symmetric pair; where its integrals take long, what is left of it by an attacker who guesses coins."""
    some = factors(steps, "symmetric")
    if len(some) <= FEW_ON_LINE:
        return (FourierCurve(some, True),)
    seen = coins.seen([step for step in steps if isinstance(step, PoissonStep)])
    return (FourierCurve(some, True),) if seen is None else (seen,)


def _line(steps: Sequence[Step]) -> tuple[Curve, ...]:
    """The attack with the pair on a line; none where integrals of its transform take long, and other attacks are as good."""
    some = factors(steps, "line")
    turns = any(step.distance < 1.0 and step.noise < LEAST_NOISE_OF_LINE for step in steps if isinstance(step, PoissonStep))
    return () if turns or len(some) > FEW_ON_LINE else (FourierCurve(some, False),)


def _is_lower(curve: Curve, other: Curve) -> bool:
    """Whether a curve is below another one somewhere."""
    (values, errors), (others, more) = curve.hockey_sticks(PROBES), other.hockey_sticks(PROBES)
    return bool(np.any(values + errors < others + more))


def _composed(steps: Sequence[Step], family: Family, symmetric: bool) -> FourierCurve:
    return FourierCurve(factors(steps, family), symmetric)


def _adapted(sequence: StepSequence, effort: str, both_ends: bool) -> adaptive.Solution | None:
    """The worst case of attackers who adapt, enclosed; None if the order of the steps is not known, or no grid is affordable."""
    steps = sequence.in_order
    if steps is None or effort == "quick" or counted(steps) != counted(sequence.steps):
        return None
    if effort == "normal":
        return adaptive.solve(steps, adaptive.COARSE, False)
    different, count = len(counted(steps)), sum(step.count for step in steps)
    if different == 1:
        fineness = adaptive.MODERATE
    elif count <= (adaptive.SHORT.alone if different <= DIFFERENT else adaptive.FEW_STEPS):
        fineness = adaptive.SHORT
    else:
        fineness = (
            adaptive.MODERATE if different <= DIFFERENT else adaptive.MANY if count <= adaptive.MANY.alone else adaptive.LONG
        )
        if different <= DIFFERENT < len(steps):  # they alternate
            fineness = replace(fineness, alone=adaptive.SHORT.alone)
    return adaptive.solve(steps, fineness, both_ends)


def _certified(sequence: StepSequence, tolerance: float, effort: str, both_ends: bool) -> Outcome:
    """Both ends from grids, with a proof; between them the exact method's estimate."""
    if (little := _invisible(sequence)) is not None:
        return little
    if sequence.symmetric:
        proof = enclosure.enclose(sequence.steps, sequence.in_order, tolerance, effort, both_ends)
    else:
        proof = enclosure.certify(sequence.steps, False, tolerance, both_ends)
    lower, upper = max(proof.lower, 0.0), min(max(proof.upper, TINY), 1.0)
    if proof.adaptive or not sequence.integrable:
        middle = 0.5 * (lower + upper) if both_ends else lower
    else:
        middle = min(max(_exact(sequence, tolerance, effort, both_ends).bayes_security.estimate, lower), upper)
    curves = (proof.above,) if proof.above else ()
    return Outcome(Bound(lower, middle, upper), curves, proof.below if curves else (), sequence.oriented, _tails(sequence))


def _tails(sequence: StepSequence) -> Callable[[], Tails]:
    """What has digits far out, and is computed when it is needed."""
    return partial(enclosure.tails, tuple(sequence.steps), sequence.symmetric)


def _affinity(sequence: StepSequence, tolerance: float, effort: str, both_ends: bool) -> Outcome:
    """The closed form with a proof."""
    # What `clamped` adds to a step is below 1e-24 of β* in all: both ends stay what they are.
    steps = [step.clamped() for step in sequence.steps]
    poisson = all_poisson(steps)
    attained = steps if poisson else attained_steps(steps, sequence.symmetric)
    least = closed_forms.total("line", attained)
    if sequence.symmetric and poisson:
        least = max(least, closed_forms.total("symmetric", attained))
    largest = closed_forms.largest("glued" if sequence.symmetric else "line", steps)
    return Outcome(Bound(*closed_forms.bounds(largest, least)), oriented=sequence.oriented)


def _paper(sequence: StepSequence, tolerance: float, effort: str, both_ends: bool) -> Outcome:
    """The paper's closed form and its error term."""
    steps = only_poisson("method 'paper'", sequence.steps)
    beta, error = closed_forms.paper_bayes_security(steps), closed_forms.paper_error_term(steps)
    return Outcome(Bound(max(0.0, beta - error), beta, min(1.0, beta + error)), oriented=sequence.oriented)


#: A method: steps, tolerance, effort, and whether attacks that exist are looked for.
METHODS: dict[str, Callable[[StepSequence, float, str, bool], Outcome]] = {
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


def _warn_outside_regime(run: DPSGD, threat: Threat) -> None:
    """Warn once, with the least noise, where the paper itself advises against its closed form."""
    every = [only_poisson("method 'paper'", reduction(threat, scalar).proved[0].steps) for scalar in run.scalars()]
    doubtful = [step.noise for steps in every if closed_forms.outside_regime(steps) for step in steps]
    if doubtful:
        warnings.warn(
            f"the paper's closed form is not meant for noise_multiplier below 1, got {min(doubtful):g}. Use method='exact'.",
            RegimeWarning,
            stacklevel=3,
        )
