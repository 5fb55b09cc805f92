"""The search for the one parameter of a run, or the gap, with which a target is just met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, floor, log
from typing import TYPE_CHECKING

from betastar.certified.enclosure import COARSE
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.rounding import CALIBRATED, shortened, significant
from betastar.validation import WrongValueError

if TYPE_CHECKING:
    from betastar.calibrate import Target

#: Relative accuracy of a calibrated noise or rate.
ACCURACY = 1e-7
#: The same where each figure to rely on takes seconds, and of a search among rough figures.
CLOSE, ROUGH = 1e-4, 1e-2
#: Figures to rely on that such a search looks at before it only moves to the safe side.
TRIES = 4
#: Largest step of the search, in the logarithm of the parameter: far beyond the answer the analysis takes long.
LONGEST_JUMP = 2.0


@dataclass(frozen=True)
class Search:
    """One unknown: its name, how a run follows from its value, its range, whether risk grows with it, whether it is whole.

    unit: what one of it stands for; a data set is searched for in whole batches.
    """

    name: str
    make: Callable[[float], DPSGD]
    low: float
    high: float
    grows: bool
    whole: bool
    guess: float
    unit: int = 1


def solve(search: Search, target: Target, risk: Callable[[float], Risk], accuracy: float = ACCURACY) -> float:
    """The largest (or, for noise and records, smallest) value that meets the target."""
    goal = target.straight(target.value)

    def met(value: float) -> bool:
        return target.met(risk(value))

    def place(value: float) -> float:
        return float(round(value)) if search.whole else value

    def excess(logarithm: float) -> float:
        """Above 0 where the risk is too large."""
        value = place(min(max(exp(logarithm), search.low), search.high))
        return target.straight(target.reached(risk(value))) - goal

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
    from scipy.optimize import brentq

    def outward(value: float) -> float:
        """A short number, so that what is printed is what was checked."""
        return min(max(shortened(value, CALIBRATED, not search.grows), search.low), search.high)

    value, nudge = outward(exp(float(brentq(excess, low, high, xtol=0.3 * accuracy, rtol=1e-12)))), accuracy
    while not met(value):
        value = outward(value * (1.0 - nudge if search.grows else 1.0 + nudge))
        nudge *= 2.0
    return value


def confirmed(search: Search, target: Target, risk: Callable[..., Risk], takes_seconds: bool) -> float:
    """The value that `solve` looks for. If risk(value) takes seconds, risk(value, COARSE) is quick and is used for the search."""
    if not takes_seconds:
        return solve(search, target, risk)
    return _solve_with_few(search, target, risk, lambda value: risk(value, COARSE))


def _solve_with_few(search: Search, target: Target, risk: Callable[[float], Risk], rough: Callable[[float], Risk]) -> float:
    """The value that `solve` looks for, where `risk` takes seconds and `rough` is quick and never below it; `risk` confirms it.

    The search among rough figures gives a value and how the risk grows there; few secant steps lead to the one to rely on.
    """
    goal = target.straight(target.value)
    safe, unsafe = (search.low, search.high) if search.grows else (search.high, search.low)
    onwards = 1.0 if search.grows else -1.0

    def excess(figure: Risk) -> float:
        return target.straight(target.reached(figure)) - goal

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
    slope = (excess(rough(value)) - excess(rough(before))) / log(value / before) if before != value else onwards
    slope = slope if 0.1 < onwards * slope < 100.0 else onwards
    farthest = None  # that meets the target, of those that were looked at
    for _ in range(TRIES):
        over = excess(risk(value))
        if target.met(risk(value)) and (farthest is None or onwards * (value - farthest) > 0.0):
            farthest = value
        following = moved(value, -over / slope - CLOSE * onwards)
        if target.met(risk(value)) and (abs(over / slope) <= 4.0 * CLOSE or following == value):
            break
        if following != value:
            secant = (excess(risk(following)) - over) / log(following / value)
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
            {"goal": repr(target), "metric": target.metric, "best": best, "end": end},
        )
    if search.name in ("sample_rate", "batch_size", "noise_multiplier", "dataset_size", "gap"):
        return unsafe
    values = {"goal": repr(target), "end": f"{unsafe:g}"}
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
