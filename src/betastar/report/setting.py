"""A setting of DP-SGD from a JSON object, for a report: what is run, and the distance of an attribute, if one is given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from betastar import validation
from betastar.dpsgd import DPSGD, NUMBERS, RateWarning
from betastar.report.errors import ReportError
from betastar.runs.reading import Json
from betastar.threats import RELATIONS, AttributeInference


@dataclass(frozen=True)
class Setting:
    """A setting of DP-SGD; `threat` has the distance that was given, and `secret` is the name of the attribute."""

    run: DPSGD
    parameters: Json
    threat: AttributeInference | None
    secret: str
    #: A notice about the sampling rate of Opacus, if the setting does not choose between the two rates.
    rate_notice: str | None
    #: The probability of "yes" before the attack, if it is not that of a fair coin.
    prior: float | None = None

    @property
    def command(self) -> str:
        """The command that computes β* again."""
        threat = self.threat
        against = "" if threat is None else f", bs.AttributeInference(distances={np.asarray(threat.distances).tolist()!r})"
        return f'python -c "import betastar as bs; print(bs.analyze(bs.{self.run!r}{against}).bayes_security)"'


def read(given: Json, source: str) -> Setting:
    """The setting in {"noise_multiplier": …, "sample_rate": …, "steps": …}, at the top or under "parameters".

    batch_size and dataset_size may stand for the rate ("opacus": true takes that of Opacus), then epochs for the steps.
    "sampling" and "max_batch_size" say how batches are drawn, as in `DPSGD`.
    "distance" (clipping norms) adds attribute inference, "threat" names what it is about, "prior" is the probability of "yes"
    before the attack; other keys are left alone.
    """
    inner = given.get("parameters")
    known = {key: value for key, value in (inner if isinstance(inner, dict) else given).items() if value is not None}
    opacus = known.get("opacus")
    if opacus not in (None, True, False):
        raise ReportError(f"{source}: opacus must be true or false, got {opacus!r}.")
    sampled = {name: known[name] for name in ("sampling", "max_batch_size") if known.get(name, "poisson") != "poisson"}
    numbers = _numbers(known, counts_records=bool(sampled), source=source)
    distance = known.get("distance", known.get("distances"))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RateWarning)
            run = DPSGD.from_numbers(**numbers, **sampled, opacus=opacus if "batch_size" in numbers else None)
        threat = None if distance is None else AttributeInference(distance)
        if threat is not None:
            threat.steps(run)  # complains of a wrong number of distances
    except (ValueError, TypeError) as problem:
        raise ReportError(f"{source}: {problem}") from None
    parameters = numbers | {"sample_rate": run.sample_rate, "steps": run.steps} | sampled
    if threat is not None:
        parameters["distance"] = distance
    notice = str(said[0].message) if said else None
    return Setting(run, parameters, threat, _secret(known.get("threat")), notice, _prior(known.get("prior"), source))


def _prior(given: Any, source: str) -> float | None:
    """The prior, if it is not even odds."""
    if given is None or given == 0.5:
        return None
    try:
        return float(validation.probability("prior", given, strict=True))
    except (ValueError, TypeError) as problem:
        raise ReportError(f"{source}: {problem}") from None


def _numbers(known: Json, counts_records: bool, source: str) -> Json:
    """The numbers that make the run: an answer of betastar has the rate and the steps beside those that they follow from."""
    by_rate = "sample_rate" in known and ("steps" in known or "epochs" not in known)
    needless = ("batch_size", "epochs", *(() if counts_records else ("dataset_size",))) if by_rate else ("sample_rate",)
    needless = needless if "steps" not in known else (*needless, "epochs")
    numbers = {name: known[name] for name in NUMBERS if name in known and name not in needless}
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ReportError(f"{source}: {name} must be one number, got {value!r}; a report is about one setting.")
    return numbers


def _secret(threat: object) -> str:
    """The name of the attribute; a word for a threat is not one."""
    words = ("membership", "membership-add-remove", "attribute", "attribute inference", *RELATIONS)
    return "sensitive attribute" if not isinstance(threat, str) or threat.lower() in words else threat
