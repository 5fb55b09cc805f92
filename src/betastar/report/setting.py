"""A setting of DP-SGD from a JSON object, for a report: what is run, and the distance of an attribute, if one is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from betastar import validation
from betastar.dpsgd import DPSGD, opacus_differs
from betastar.report.errors import ReportError
from betastar.runs.reading import Json
from betastar.threats import RELATIONS, AttributeInference
from betastar.vocabulary import THREATS

#: What gives a run, by the names that are needed: the rate or the sizes, the steps or the epochs.
BY_RATE = ("noise_multiplier", "sample_rate", "steps")
BY_SIZES = ("noise_multiplier", "batch_size", "dataset_size", "steps")
BY_EPOCHS = ("noise_multiplier", "batch_size", "dataset_size", "epochs")


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
    names: tuple[str, ...] = BY_SIZES if "steps" in known else BY_EPOCHS
    if "sample_rate" in known and ("steps" in known or "epochs" not in known):
        names = BY_RATE
    numbers = _numbers(known, names, source)
    distance = known.get("distance", known.get("distances"))
    try:
        run = _run(names, numbers, known)
        threat = None if distance is None else AttributeInference(distance)
        if threat is not None:
            threat.steps(run)  # complains of a wrong number of distances
    except (ValueError, TypeError) as problem:
        raise ReportError(f"{source}: {problem}") from None
    parameters = dict(zip(names, numbers, strict=True)) | {"sample_rate": run.sample_rate, "steps": run.steps}
    parameters |= _sampled(known)
    if threat is not None:
        parameters["distance"] = distance
    asked = opacus is None and "batch_size" in names and run.sampling == "poisson"
    notice = opacus_differs(known["batch_size"], known["dataset_size"]) if asked else None
    return Setting(run, parameters, threat, _secret(known.get("threat")), notice, _prior(known.get("prior"), source))


def _prior(given: Any, source: str) -> float | None:
    """The prior, if it is not even odds."""
    if given is None or given == 0.5:
        return None
    try:
        return float(validation.probability("prior", given, strict=True))
    except (ValueError, TypeError) as problem:
        raise ReportError(f"{source}: {problem}") from None


def _numbers(known: Json, names: tuple[str, ...], source: str) -> list[Any]:
    if missing := [name for name in names if name not in known]:
        raise ReportError(
            f"{source} has no {missing[0]}: expected noise_multiplier, sample_rate (or batch_size and dataset_size) and "
            "steps (or epochs), at the top or under parameters."
        )
    for name in names:
        if not isinstance(known[name], int | float) or isinstance(known[name], bool):
            raise ReportError(f"{source}: {name} must be one number, got {known[name]!r}; a report is about one setting.")
    return [known[name] for name in names]


def _run(names: tuple[str, ...], numbers: list[Any], known: Json) -> DPSGD:
    sampled = _sampled(known)
    size = {"dataset_size": known["dataset_size"]} if sampled and "dataset_size" in known else {}
    if names is BY_RATE:
        noise, rate, steps = numbers
        return DPSGD(noise, rate, steps, **sampled, **size)
    noise, batch, records, length = numbers
    # Opacus's rate belongs to Poisson sampling; for others it is refused.
    opacus = bool(known.get("opacus")) if sampled.get("sampling", "poisson") == "poisson" else known.get("opacus")
    if names is BY_EPOCHS:
        return DPSGD.from_epochs(noise, batch, records, length, opacus=opacus, **sampled)
    rate = DPSGD.from_epochs(noise, batch, records, 1, opacus=opacus, **sampled).sample_rate
    return DPSGD(noise, rate, length, **sampled, **size)


def _sampled(known: Json) -> Json:
    """How batches are drawn, unless that is plain Poisson sampling."""
    return {name: known[name] for name in ("sampling", "max_batch_size") if known.get(name, "poisson") != "poisson"}


def _secret(threat: object) -> str:
    """The name of the attribute; a word for a threat is not one."""
    words = (*THREATS, "attribute inference", *RELATIONS)
    return "sensitive attribute" if not isinstance(threat, str) or threat.lower() in words else threat
