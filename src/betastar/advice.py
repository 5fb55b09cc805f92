"""Advice: which noise, how many epochs or which distance would reach the next band, or a person's own target.

Each number is rounded to the safe side first, and the rounded number is checked by the method certified. So what is advised is
proved to reach the target, and is at most a few per cent more careful than it has to be.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, floor, log
from typing import Any

import numpy as np

from betastar.analyze import reliable, takes_seconds
from betastar.calibrate import MOST_NOISE, ROUGH_TOLERANCE, Target, guess_noise
from betastar.dpsgd import DPSGD, RateWarning
from betastar.exact import LEAST_NOISE
from betastar.risk import DIGITS, SMALLEST_FPR, Risk, next_band
from betastar.rounding import plain, shortened
from betastar.threats import FARTHEST, AttributeInference, Threat

#: Significant digits of what is advised, unless it is a whole number.
ADVISED = 3
#: How often a parameter is looked at, at most, and how near (in its logarithm) to the edge is near enough.
TRIES, NEAR = 10, 0.02
#: How `Target.excess` grows with the logarithm of a parameter, where nothing better is known.
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

    target: Target
    band: str | None
    options: tuple[Option, ...]
    tried: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The advice for people."""
        metric, given = self.target.about, self.target.given
        at = "" if given in (None, metric.usual) or "{}" in metric.short else f" at {self.target.condition} {plain(given)}"
        sign = "≥" if metric.protects else "≤"
        depends = SMALLEST_FPR if metric.name == "gdp_mu" else given
        goal = f"{metric.short.format(depends and plain(depends))}{at} {sign} {plain(self.target.value)}"
        goal += f" ({self.band} protection)" if self.band else ""
        if not self.options:
            return f"No other {' or '.join(map(_name, self.tried))} alone reaches {goal}."
        text = ", or ".join(option.words() for option in self.options)
        return f"{text[0].upper()}{text[1:]}{',' if len(self.options) > 1 else ''} gives a certified {goal}."

    def as_json(self) -> dict[str, Any]:
        return {
            "target": str(self.target),
            "band": self.band,
            "sentence": self.sentence,
            "options": [option.as_json() for option in self.options],
        }


def advise(numbers: Mapping[str, Any], threat: Threat, risk: Risk, targets: Sequence[Target] = ()) -> Advice | None:
    """What would reach a person's own target, or the next band.

    Parameters
    ----------
    numbers : mapping
        The run, as arguments of `DPSGD.from_numbers`.
    threat : Threat
        Who attacks. Of attribute inference with one distance, a smaller distance is an option as well.
    risk : Risk
        What was found.
    targets : sequence of Target
        The person's own targets; the first that is not met is meant.

    Returns
    -------
    Advice or None
        None if all targets are met, or if there is no better band.
    """
    if targets:
        missed = next((one for one in targets if not one.met(risk)), None)
        return None if missed is None else towards(missed, levers(numbers, threat, distance=True))
    return towards_next_band(float(risk.bayes_security.lower), levers(numbers, threat, distance=True))


def towards_next_band(beta: float, ways: Iterator[Lever]) -> Advice | None:
    """What would reach the next band; None if there is none."""
    better = next_band(beta)
    return None if better is None else towards(Target(bayes_security=better[0]), ways, better[1])


def levers(numbers: Mapping[str, Any], threat: Threat, distance: bool = False) -> Iterator[Lever]:
    """What can be changed in a run: the noise, the epochs (or steps), and the distance between the values of an attribute."""

    def changed(name: str) -> Callable[[float], tuple[DPSGD, Threat]]:
        def make(value: float) -> tuple[DPSGD, Threat]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RateWarning)
                return DPSGD.from_numbers(**{**numbers, name: int(value) if name in ("epochs", "steps") else value}), threat

        return make

    yield Lever("noise_multiplier", numbers["noise_multiplier"], changed("noise_multiplier"), LEAST_NOISE, MOST_NOISE)
    length = "epochs" if "epochs" in numbers else "steps"
    if numbers[length] > 1:
        yield Lever(length, numbers[length], changed(length), 1.0, float(floor(numbers[length])))
    if distance and isinstance(threat, AttributeInference) and np.ndim(threat.distances) == 0 and threat.distances:
        run, farthest = changed("noise_multiplier")(numbers["noise_multiplier"])[0], float(threat.distances)
        yield Lever("distance", farthest, lambda value: (run, AttributeInference(value)), 1e-6 * FARTHEST, farthest)


def towards(target: Target, ways: Iterator[Lever], band: str | None = None) -> Advice | None:
    """The changes that reach a target, each alone; None if no bound is certified for any of them."""
    options: list[Option] = []
    tried: list[str] = []
    for lever in ways:
        try:
            option = _reach(target, lever)
        except (ValueError, ArithmeticError):  # not every sampling allows every number, or has a certified bound
            continue
        tried.append(lever.parameter)
        options += [] if option is None else [option]
    return Advice(target, band, tuple(options), tuple(tried)) if tried else None


def _reach(target: Target, lever: Lever) -> Option | None:
    """The mildest change of one parameter that reaches the target: secant steps in the logarithm, to a value that is checked."""
    slope = SLOPES[lever.parameter]
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
        over = target.excess(risk)
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
    return Option(lever.parameter, mildest, lever.value, target.reached(met[mildest]))


def _start(target: Target, lever: Lever) -> float:
    """A first value: for the noise the small-rate approximation, for the others what the leakage of today suggests."""
    if lever.parameter == "noise_multiplier":
        run, threat = lever.make(1.0)
        guess = guess_noise(threat.steps(run), target)
        return guess if guess > lever.value else 2.0 * lever.value
    return lever.value * exp(-target.excess(_certified(lever, lever.value)) / SLOPES[lever.parameter])


def _certified(lever: Lever, value: float) -> Risk:
    """The risk with another value of the parameter."""
    run, threat = lever.make(value)
    if takes_seconds(run, threat, "certified", "best"):
        return reliable(run, threat, "certified", ROUGH_TOLERANCE, "normal")
    return reliable(run, threat, "certified")


def _name(parameter: str) -> str:
    return WORDS[parameter].format("").strip().removesuffix(" of").removeprefix("a ")


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else plain(shortened(value, DIGITS + 2, True))
