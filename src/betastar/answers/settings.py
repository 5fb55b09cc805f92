"""A setting as people give it: plain numbers and words, for the command line and the page alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from shlex import quote
from typing import Any

import betastar as bs
from betastar import plugins
from betastar.dpsgd import IN_EPOCHS, opacus_differs
from betastar.rounding import plain
from betastar.sequences import at_most_all
from betastar.threats import Threat
from betastar.validation import WrongValueError
from betastar.vocabulary import (
    METHODS,
    OF_THREATS,
    PARAMETERS,
    RUN,
    SAMPLED,
    SAMPLINGS,
    SEES,
    THREATS,
    listed,
    told,
    usual_method,
)

#: The threats of betastar itself; each is called with what it takes.
OWN_THREATS: dict[str, Callable[..., Threat]] = {
    "membership": lambda **given: bs.Membership(**_records(given)),
    "membership-add-remove": lambda **given: bs.Membership("add-remove", **_records(given)),
    "attribute": lambda distance: bs.AttributeInference(distance),
}


def _records(given: Mapping[str, Any]) -> dict[str, Any]:
    """The records of a person, as the threat takes them."""
    return {} if "records_per_person" not in given else {"records": given["records_per_person"]}


def threat_of(name: str, **taken: float | None) -> Threat:
    """The threat of this name, with what it takes."""
    build = THREATS[name].build or OWN_THREATS[name]
    threat: Threat = build(**taken)
    return threat


@dataclass(frozen=True)
class Setting:
    """What was run, who attacks, and how to compute it. A field that is left out is None."""

    noise_multiplier: float | None = None
    sample_rate: float | None = None
    batch_size: int | None = None
    dataset_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    opacus: bool | None = None
    sampling: str = PARAMETERS["sampling"].default
    max_batch_size: int | None = None
    threat: str = PARAMETERS["threat"].default
    distance: float | None = None
    records_per_person: int | None = None
    sees: str = PARAMETERS["sees"].default
    method: str | None = None
    tolerance: float = PARAMETERS["tolerance"].default
    prior: float = PARAMETERS["prior"].default
    fpr: tuple[float, ...] = PARAMETERS["fpr"].default
    delta: tuple[float, ...] = PARAMETERS["delta"].default
    metrics: tuple[str, ...] = field(default_factory=told)

    def __post_init__(self) -> None:
        if isinstance(self.epochs, float) and self.epochs.is_integer():
            object.__setattr__(self, "epochs", int(self.epochs))  # 20.0 epochs are 20: said back as people say it
        word = THREATS[choose("threat", self.threat, THREATS)]
        choose("sampling", self.sampling, SAMPLINGS)
        choose("sees", self.sees, SEES)
        if self.method is not None:
            choose("method", self.method, METHODS)
        for metric in self.metrics:
            choose("metric", metric, told())
        if self.records_per_person is not None:
            at_most_all(self.records_per_person, self.dataset_size, "records_per_person")
        for name in OF_THREATS:
            if name in word.takes and getattr(self, name) is None:
                raise WrongValueError(name, "{argument} must be given with threat {word}.", {"word": self.threat})
            if name not in (*word.takes, *word.optional) and getattr(self, name) is not None:
                text = "{argument} must be left out with threat {word}; it belongs to threat {others}."
                others = listed(word.name for word in THREATS.values() if name in (*word.takes, *word.optional))
                raise WrongValueError(name, text, {"word": self.threat, "others": others})

    @property
    def chosen_method(self) -> str:
        return self.method or usual_method(self.threat, self.noise_multiplier)

    @property
    def attack(self) -> Threat:
        return threat_of(self.threat, **self.taken)

    @property
    def taken(self) -> dict[str, float | None]:
        """What the threat takes."""
        word = THREATS[self.threat]
        given = {name: getattr(self, name) for name in word.optional if getattr(self, name) is not None}
        return {name: getattr(self, name) for name in word.takes} | given

    @property
    def given(self) -> dict[str, Any]:
        """The fields of the run that are known."""
        return {name: getattr(self, name) for name in RUN if getattr(self, name) is not None}

    @property
    def sampled(self) -> dict[str, Any]:
        """How it was sampled, unless that is plain Poisson sampling."""
        given = {name: getattr(self, name) for name in SAMPLED}
        return {name: value for name, value in given.items() if value not in (None, SAMPLED[name].default)}

    @property
    def _opacus(self) -> bool | None:
        """What `from_epochs` is told: Opacus's rate belongs to Poisson sampling, where nobody is warned twice."""
        return bool(self.opacus) if self.sampling == "poisson" else self.opacus

    def arguments(self) -> dict[str, Any]:
        """The known fields as the core takes them: by epochs, or by rate and steps."""
        given = self.given
        if self.opacus is not None and "sample_rate" in given:
            why = "it says how {batch_size} and {dataset_size} make the rate."
            raise WrongValueError("opacus", "{argument} must be left out where {sample_rate} is given; " + why)
        sizes = "batch_size" in given and "dataset_size" in given
        # How often a batch is cut off, and how many records of a person are in one, depends on the number of records.
        counts = "dataset_size" in given and not self.sampled
        if "sample_rate" in given and ("batch_size" in given or counts):
            text = "{argument} must be left out where {batch_size} or {dataset_size} are given; they make the rate."
            raise WrongValueError("sample_rate", text)
        if "steps" in given and "epochs" in given:
            raise WrongValueError("steps", "{argument} must be left out where {epochs} are given, or the other way round.")
        if "epochs" in given and "sample_rate" in given:
            text = "{argument} must come with {batch_size} and {dataset_size}; give {steps} with {sample_rate}."
            raise WrongValueError("epochs", text)
        if "steps" in given and sizes:
            # Checks the two sizes, and is the one place that knows the rate.
            sizes_of = given.pop("batch_size"), given["dataset_size"] if self.sampled else given.pop("dataset_size")
            given["sample_rate"] = bs.DPSGD.from_epochs(1.0, *sizes_of, 1, opacus=self._opacus, **self.sampled).sample_rate
        return given

    @property
    def rate_notice(self) -> list[str]:
        """What is said of the rate of Opacus, if nobody chose between the two rates and they differ noticeably."""
        unknown = self.batch_size is None or self.dataset_size is None
        if self.opacus is not None or self.sampling != "poisson" or unknown:
            return []
        assert self.batch_size is not None
        told = opacus_differs(self.batch_size, self.dataset_size)
        return [told.replace("opacus=True", "--opacus").replace("opacus=False", "--no-opacus")] if told else []

    def run(self) -> bs.DPSGD:
        given = self.arguments()
        if set(given) == {"noise_multiplier", "batch_size", "dataset_size", "epochs"}:
            return bs.DPSGD.from_epochs(**given, opacus=self._opacus, **self.sampled)
        if set(given) - ({"dataset_size"} if self.sampled else set()) == {"noise_multiplier", "sample_rate", "steps"}:
            return bs.DPSGD(**given, **self.sampled)
        name = self._first_missing(given)
        other = " (or {sample_rate} and {steps})" if name == "batch_size" and len(given) < 2 else ""
        raise WrongValueError(name, f"{{argument}} must be given, too{other}.")

    def risk(self) -> bs.Risk:
        return bs.analyze(self.run(), self.attack, method=self.chosen_method, tolerance=self.tolerance)

    def _first_missing(self, given: Mapping[str, object]) -> str:
        by_rate = "sample_rate" in given or ("steps" in given and not {"batch_size", "dataset_size"} & set(given))
        wanted = (
            ("noise_multiplier", "sample_rate", "steps")
            if by_rate
            else ("noise_multiplier", "batch_size", "dataset_size", "epochs")
        )
        return next(name for name in wanted if name not in given)

    def python(self, target: str | None = None) -> str:
        """Python code that computes the answer again. `target` is the code of the target, if the answer is a calibration."""
        given = self.arguments()
        if self.opacus is not None and {"batch_size", "dataset_size"} & set(given):
            given["opacus"] = self.opacus
        given |= self.sampled
        inside = ", ".join(f"{name}={value!r}" for name, value in given.items())
        lines, attack = self._python_threat()
        tolerance = "" if self.tolerance == PARAMETERS["tolerance"].default else f", tolerance={self.tolerance!r}"
        if target is None:
            lines.append(f"run = bs.DPSGD{'.from_epochs' if 'epochs' in given else ''}({inside})")
        else:
            extra = "" if attack == "bs.Membership()" else f", threat={attack}"
            method = "" if self.chosen_method == "exact" else f', method="{self.chosen_method}"'
            lines.append(f"run = bs.calibrate({target}, {inside}{extra}{method}{tolerance})")
        lines.append(f'risk = bs.analyze(run, {attack}, method="{self.chosen_method}"{tolerance})')
        lines.append("print(risk.bayes_security)")
        return "\n".join(lines)

    def _python_threat(self) -> tuple[list[str], str]:
        """The imports, and the threat; what a plug-in adds is imported, too."""
        word, solve = THREATS[self.threat], METHODS[self.chosen_method].solve
        imports = ["import betastar as bs"] + ([] if solve is None else [f"import {solve.__module__}"])
        if word.build is None:
            code = word.python.format(**self.taken)
            if self.records_per_person is not None:
                code = f"{code[:-1]}{'' if code.endswith('()') else ', '}records={self.records_per_person!r})"
            return [*imports, ""], code
        name = word.build.__qualname__
        inside = ", ".join(f"{key}={value!r}" for key, value in self.taken.items())
        return [*imports, f"from {word.build.__module__} import {name}", ""], f"{name}({inside})"

    def command(self, verb: str = "analyze", *more: str) -> str:
        """The command line that repeats it."""
        words = [*self._plugins(), "betastar", verb, *more]
        defaults = {one.name: one.default for one in fields(self)} | {"metrics": told()}
        for name in (*RUN, *SAMPLED, "threat", *OF_THREATS, "sees", "method", "tolerance", "prior"):
            if getattr(self, name) not in (None, defaults[name]):
                words += [PARAMETERS[name].brief, _plain(getattr(self, name))]
        words += [] if self.opacus is None else ["--opacus" if self.opacus else "--no-opacus"]
        for name, parameter in (("fpr", "fpr"), ("delta", "delta"), ("metrics", "metric")):
            if getattr(self, name) != defaults[name]:
                words += [word for value in getattr(self, name) for word in (PARAMETERS[parameter].brief, _plain(value))]
        return " ".join(words)

    def _plugins(self) -> list[str]:
        """The variable that names the plug-ins, if one of them is needed."""
        needed = THREATS[self.threat].build is not None or METHODS[self.chosen_method].solve is not None
        named = os.environ.get(plugins.VARIABLE)
        return [f"{plugins.VARIABLE}={quote(named)}"] if needed and named else []

    def with_run(self, run: bs.DPSGD) -> Setting:
        """This setting with the parameter that a calibration has computed."""
        given = set(self.given)
        if {"batch_size", "dataset_size", "steps"} <= given:
            return replace(self, noise_multiplier=run.noise_multiplier)
        if {"sample_rate", "steps"} & given:
            return replace(self, noise_multiplier=run.noise_multiplier, sample_rate=run.sample_rate, steps=run.steps)
        records = self.dataset_size or round((self.batch_size or 1) / run.sample_rate)
        in_batches = bool(self.opacus) or self.sampling in IN_EPOCHS
        batch = self.batch_size or _largest_batch(run.sample_rate, records, in_batches)
        epochs = self.epochs or run.steps // -(-records // batch)
        return replace(self, noise_multiplier=run.noise_multiplier, batch_size=batch, dataset_size=records, epochs=epochs)


def _largest_batch(rate: float, records: int, in_batches: bool) -> int:
    """The largest batch with this rate. in_batches: the rate is 1 / the number of batches, which several sizes have."""
    batches = round(1.0 / rate)
    if not in_batches or batches == 1:
        return round(rate * records)
    return (records - 1) // (batches - 1)


def choose(name: str, value: str, allowed: Iterable[str]) -> str:
    """One of the words that are allowed, or a suggestion of the nearest."""
    if value in (allowed := list(allowed)):
        return value
    near = get_close_matches(str(value), allowed, 1, 0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    values = {"allowed": ", ".join(allowed), "value": repr(value), "hint": hint}
    raise WrongValueError(name, "{argument} must be one of {allowed}, got {value}.{hint}", values)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else plain(value)
