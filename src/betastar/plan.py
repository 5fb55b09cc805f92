"""plan: noise, rate, steps and gap from targets on membership and attribute inference at once.

With gap clipping (theory, section 9) the values of a secret are at most `gap` apart at every step, whatever the data: the risk of
attribute inference is then known before training, and depends on a parameter of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from betastar import validation
from betastar.analyze import TOLERANCE, analyze, reliable, takes_seconds
from betastar.calibrate import Target, calibrate
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.rounding import CALIBRATED, plain, shortened, significant
from betastar.search import Search, confirmed
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat

#: What rounding in single precision may add to a gap: relative, and absolute.
OUTWARD = 1e-6, 1e-6
#: Noise that `noise_against_gap` looks at unless it is told otherwise.
NOISES = (4.0, 2.8, 2.0, 1.4, 1.0, 0.7, 0.5)


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
    how: dict[str, Any] = {"method": method, "tolerance": tolerance}
    if made is None:
        wanted: list[tuple[Target, Threat]] = [] if membership is None else [(membership, member)]
        if gap is not None and attribute is not None:
            wanted.append((attribute, AttributeInference(enforced(gap))))
        if not wanted:
            raise TypeError("gap must be given, or a membership target: the attribute target alone cannot decide two parameters.")
        made = _strictest([calibrate(target, threat=threat, opacus=opacus, **given, **how) for target, threat in wanted])
    elif membership is not None and not membership.met(reached := reliable(made, member, method, tolerance)):
        raise ValueError(
            f"{membership!r} is not met by the run, whatever the gap: {membership.metric} is {_told(membership, reached)}. "
            "Leave out its noise, rate or steps, so that it can be chosen."
        )
    return Plan(made, _gap_for(attribute, gap, made, method, tolerance))


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


def _gap_for(attribute: Target | None, gap: float | None, run: DPSGD, method: str, tolerance: float) -> float:
    """The gap that was given, if it meets the target; otherwise the widest that does."""
    if gap is None:
        if attribute is None:
            raise TypeError("gap was left out, but there is no attribute target that it could follow from.")
        return _widest(attribute, run, method, tolerance)
    if attribute is not None:
        reached = reliable(run, AttributeInference(enforced(gap)), method, tolerance)
        if not attribute.met(reached):
            raise ValueError(
                f"{attribute!r} is not met with gap {plain(gap)}: {attribute.metric} is {_told(attribute, reached)}."
            )
    return gap


def _told(target: Target, risk: Risk) -> str:
    """The number to rely on."""
    return significant(target.reached(risk), 6, upwards=target.metric != "bayes_security")


def noise_against_gap(
    attribute: Target, noises: Sequence[float] = NOISES, method: str = "certified", **sampling: Any
) -> list[Plan]:
    """For attribute-only protection: the widest gap with which each noise meets the target. Less noise needs a narrower gap.

    Parameters
    ----------
    attribute : Target
        What must hold against attribute inference.
    noises : sequence of float
        The noise multipliers.
    method : str
        As for `analyze`.
    **sampling : float
        sample_rate and steps, or batch_size, dataset_size and epochs.

    Returns
    -------
    list of Plan
        One for each noise.

    Raises
    ------
    ValueError
        If the target cannot be reached.

    Examples
    --------
    >>> import betastar as bs
    >>> target = bs.Target(bayes_security=0.99)
    >>> wide, narrow = bs.noise_against_gap(target, (2.0, 1.0), method="affinity", sample_rate=0.01, steps=500)
    >>> narrow.gap < wide.gap
    True
    """
    return [plan(attribute=attribute, noise_multiplier=noise, method=method, **sampling) for noise in noises]


def _whole_run(run: DPSGD | None, given: dict[str, Any], opacus: bool | None) -> DPSGD | None:
    """The run, if nothing of it is missing."""
    if run is not None:
        if given:
            raise TypeError(f"{next(iter(given))} cannot go with run, which holds it.")
        if run.shape != ():
            raise TypeError("run must be one run, got a sweep; call plan for each of its settings.")
        return run
    if set(given) == {"noise_multiplier", "sample_rate", "steps"}:
        return DPSGD(**given)
    if set(given) == {"noise_multiplier", "batch_size", "dataset_size", "epochs"}:
        return DPSGD.from_epochs(**given, opacus=opacus)
    return None


def _strictest(runs: Sequence[DPSGD]) -> DPSGD:
    """Of runs that differ in one parameter, the one with most noise, the smallest rate, the fewest steps."""
    return max(runs, key=lambda run: (float(run.noise_multiplier), -float(run.sample_rate), -int(run.steps)))


def _widest(target: Target, run: DPSGD, method: str, tolerance: float) -> float:
    """The widest gap that meets the target."""

    @cache
    def risk(distance: float, tolerance: float = tolerance) -> Risk:
        return reliable(run, AttributeInference(distance), method, tolerance)

    # A gap of 2 is membership inference, of which balls in bins have no certificate; of any smaller gap they have one.
    bins = any(segment.sampling == "balls-in-bins" for segment in run.segments)
    farthest = float(np.nextafter(FARTHEST, 0.0)) if bins else FARTHEST
    if target.met(risk(farthest)):
        return FARTHEST
    search = Search("gap", lambda _: run, enforced(0.0), farthest, True, False, 0.1)
    distance = confirmed(search, target, risk, takes_seconds(AttributeInference(FARTHEST), method, tolerance, run))
    return max(0.0, shortened((distance - OUTWARD[1]) / (1.0 + OUTWARD[0]), CALIBRATED, upwards=False))
