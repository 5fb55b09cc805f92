"""Advice: which noise, how many epochs or which distance would reach the next band, or a person's own target.

Each number is rounded to the safe side first, and the rounded number is checked by the method certified. So what is advised is
proved to reach the target, and is at most a few per cent more careful than it has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, floor, log
from typing import Any

from betastar.analyze import TOLERANCE, reliable, takes_seconds
from betastar.answers.settings import Setting
from betastar.answers.targets import Wish
from betastar.calibrate import MOST_NOISE, Target, guess_noise
from betastar.certified.enclosure import COARSE
from betastar.dpsgd import DPSGD
from betastar.exact.curve import LEAST_NOISE
from betastar.risk import SMALLEST_FPR, Risk
from betastar.rounding import plain, shortened
from betastar.threats import FARTHEST, Threat
from betastar.vocabulary import DIGITS, METRICS, next_band

#: Significant digits of what is advised, unless it is a whole number.
ADVISED = 3
#: How often a parameter is looked at, at most, and how near (in its logarithm) to the edge is near enough.
TRIES, NEAR = 10, 0.02
#: How `Target.straight` grows with the logarithm of a parameter, where nothing better is known.
SLOPES = {"noise_multiplier": -1.0, "epochs": 0.5, "steps": 0.5, "distance": 1.0, "gap": 1.0}
#: A parameter with its value, in words.
WORDS = {
    "noise_multiplier": "noise {}",
    "epochs": "{} epochs",
    "steps": "{} steps",
    "distance": "a largest distance of {}",
    "gap": "a gap of {}",
}


@dataclass(frozen=True)
class Lever:
    """A parameter that can be changed alone.

    Attributes
    ----------
    parameter : str
        Its name, one of those in SLOPES.
    value : float
        What it is.
    make : callable
        The run and the threat with another value of it.
    lowest, highest : float
        The values that are considered.
    """

    parameter: str
    value: float
    make: Callable[[float], tuple[DPSGD, Threat]]
    lowest: float
    highest: float

    @property
    def grows(self) -> bool:
        """Whether the risk grows with it."""
        return SLOPES[self.parameter] > 0.0

    def rounded(self, value: float) -> float:
        """The value inside the range, with few digits, on the safe side."""
        value = min(max(value, self.lowest), self.highest)
        if self.parameter in ("epochs", "steps"):
            return float(floor(value * (1.0 + 1e-9)))
        return min(max(shortened(value, ADVISED, not self.grows), self.lowest), self.highest)


@dataclass(frozen=True)
class Option:
    """One change that reaches the target: the value to take, the value that it replaces, and what is proved to be reached."""

    parameter: str
    value: float
    instead_of: float
    reached: float

    def words(self) -> str:
        said = WORDS[self.parameter].format(_number(self.value))
        if self.parameter == "gap" and self.instead_of == FARTHEST:
            return f"gap clipping with {said} (in clipping norms)"  # no gap was enforced
        said = said.removesuffix("s") if self.parameter in ("epochs", "steps") and self.value == 1.0 else said
        return f"{said} instead of {_number(self.instead_of)}"

    def as_json(self) -> dict[str, Any]:
        whole = self.parameter in ("epochs", "steps")
        value = int(self.value) if whole else self.value
        return {"parameter": self.parameter, "value": value, "instead_of": self.instead_of, "reached": self.reached}


@dataclass(frozen=True)
class Advice:
    """What would reach a target: any one of the options does, alone."""

    wish: Wish
    band: str | None
    options: tuple[Option, ...]
    tried: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The advice for people."""
        metric, given = METRICS[self.wish.metric], self.wish.given
        at = "" if given in (None, metric.usual) or "{}" in metric.short else f" at {self.wish.condition} {plain(given)}"
        sign = "≥" if metric.protects else "≤"
        depends = SMALLEST_FPR if metric.name == "gdp_mu" else given
        goal = f"{metric.short.format(depends and plain(depends))}{at} {sign} {plain(self.wish.value)}"
        goal += f" ({self.band} protection)" if self.band else ""
        if not self.options:
            return f"No other {' or '.join(map(_name, self.tried))} alone reaches {goal}."
        text = ", or ".join(option.words() for option in self.options)
        return f"{text[0].upper()}{text[1:]}{',' if len(self.options) > 1 else ''} gives a certified {goal}."

    def as_json(self) -> dict[str, Any]:
        return {
            "target": str(self.wish),
            "band": self.band,
            "sentence": self.sentence,
            "options": [option.as_json() for option in self.options],
        }


def advise(setting: Setting, beta: float, wishes: Sequence[Wish] = ()) -> Advice | None:
    """What would reach a person's own target, or the next band.

    Parameters
    ----------
    setting : Setting
        What was run, and who attacks.
    beta : float
        The β* to rely on today.
    wishes : sequence of Wish
        The person's own targets; the first that is not met is meant.

    Returns
    -------
    Advice or None
        None if all targets are met, or if there is no better band.
    """
    if wishes:
        risk = setting.risk()
        wish = next((one for one in wishes if not one.target.met(risk)), None)
        return None if wish is None else towards(wish, levers(setting))
    return towards_next_band(beta, levers(setting))


def towards_next_band(beta: float, ways: Iterator[Lever]) -> Advice | None:
    """What would reach the next band; None if there is none."""
    better = next_band(beta)
    if better is None:
        return None
    return towards(Wish("bayes_security", better[0], None, None), ways, better[1])


def levers(setting: Setting) -> Iterator[Lever]:
    """What can be changed in a setting: the noise, the epochs (or steps), and the distance between the values of an attribute."""

    def changed(name: str) -> Callable[[float], tuple[DPSGD, Threat]]:
        def make(value: float) -> tuple[DPSGD, Threat]:
            field: dict[str, Any] = {name: int(value) if name in ("epochs", "steps") else value}
            other = replace(setting, **field)
            return other.run(), other.attack

        return make

    if setting.noise_multiplier is not None:
        yield Lever("noise_multiplier", setting.noise_multiplier, changed("noise_multiplier"), LEAST_NOISE, MOST_NOISE)
    length = "epochs" if setting.epochs is not None else "steps"
    value = getattr(setting, length)
    if value is not None and value > 1:
        yield Lever(length, value, changed(length), 1.0, float(floor(value)))
    if setting.distance:
        yield Lever("distance", setting.distance, changed("distance"), 1e-6 * FARTHEST, setting.distance)


def towards(wish: Wish, ways: Iterator[Lever], band: str | None = None) -> Advice | None:
    """The changes that reach a target, each alone; None if no bound is certified for any of them."""
    options: list[Option] = []
    tried: list[str] = []
    for lever in ways:
        try:
            option = _reach(wish, lever)
        except (ValueError, ArithmeticError):  # not every sampling allows every number, or has a certified bound
            continue
        tried.append(lever.parameter)
        options += [] if option is None else [option]
    return Advice(wish, band, tuple(options), tuple(tried)) if tried else None


def _reach(wish: Wish, lever: Lever) -> Option | None:
    """The mildest change of one parameter that reaches the target: secant steps in the logarithm, to a value that is checked."""
    target = wish.target
    slope, goal = SLOPES[lever.parameter], target.straight(target.value)
    met: dict[float, Risk] = {}
    failed: list[float] = [lever.value]
    before: tuple[float, float] | None = None
    value = _start(target, lever)
    for _ in range(TRIES):
        value = lever.rounded(value)
        if value in met or value in failed:
            break
        risk = _certified(lever, value)
        if target.met(risk):
            met[value] = risk
        else:
            failed.append(value)
        over = target.straight(target.reached(risk)) - goal
        if before is not None and before[0] != value:
            secant = (over - before[1]) / log(value / before[0])
            slope = secant if 0.2 < secant / SLOPES[lever.parameter] < 50.0 else slope
        before = value, over
        best, last = (max(met, default=None), min(failed)) if lever.grows else (min(met, default=None), max(failed))
        if best is not None and (abs(log(best / last)) <= NEAR or (value == best and abs(over / slope) <= NEAR)):
            break
        towards = value * exp(-over / slope - 0.3 * NEAR * (1.0 if slope > 0.0 else -1.0))
        if best is not None and not min(best, last) < towards < max(best, last):
            towards = (best * last) ** 0.5
        value = towards
    if not met:
        return None
    mildest = max(met) if lever.grows else min(met)
    return Option(lever.parameter, mildest, lever.value, wish.reached(met[mildest]))


def _start(target: Target, lever: Lever) -> float:
    """A first value: for the noise the small-rate approximation, for the others what the leakage of today suggests."""
    if lever.parameter == "noise_multiplier":
        run, threat = lever.make(1.0)
        guess = guess_noise(threat.steps(run), target)
        return guess if guess > lever.value else 2.0 * lever.value
    number = target.reached(_certified(lever, lever.value))
    return lever.value * exp((target.straight(target.value) - target.straight(number)) / SLOPES[lever.parameter])


def _certified(lever: Lever, value: float) -> Risk:
    """The risk with another value of the parameter."""
    run, threat = lever.make(value)
    tolerance = COARSE if takes_seconds(threat, "certified", TOLERANCE, run) else TOLERANCE
    return reliable(run, threat, "certified", tolerance)


def _name(parameter: str) -> str:
    return WORDS[parameter].format("").strip().removesuffix(" of").removeprefix("a ")


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else plain(shortened(value, DIGITS + 2, True))
