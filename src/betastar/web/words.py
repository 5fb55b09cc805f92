"""The words of the vocabulary that the page shows, as a script that its other scripts import."""

from __future__ import annotations

import json

from betastar.answers import targets, wording
from betastar.answers.settings import Setting
from betastar.risk import SMALLEST_FPR
from betastar.rounding import plain
from betastar.vocabulary import (
    METHODS,
    METRICS,
    PARAMETERS,
    RUN,
    SAMPLINGS,
    SEES,
    THREATS,
    Metric,
    Parameter,
    ThreatWord,
    filled,
    told,
)
from betastar.web import models

#: Parameters that the page has a slider for, and those that it has a selector for.
PARAMETERS_OF_PAGE = (*RUN, "max_batch_size", "distance", "records_per_person", "prior", "fpr")
SELECTED = ("sampling", "threat", "sees", "method", "target")
#: A distance that no text has otherwise: the page puts its own in its place.
MARKER = 1.23456789


def script() -> str:
    """A JavaScript module with the words."""
    words = {
        "parameters": {name: _parameter(PARAMETERS[name]) for name in PARAMETERS_OF_PAGE},
        "selectors": {name: filled(PARAMETERS[name].help) for name in SELECTED},
        "threats": [_threat(word) for word in THREATS.values()],
        "methods": [{"name": word.name, "summary": word.summary} for word in METHODS.values()],
        "samplings": [
            {"name": word.name, "summary": word.summary, "takes": word.takes, "slow": word.slow} for word in SAMPLINGS.values()
        ],
        "sees": [{"name": name, "summary": summary} for name, summary in SEES.items()],
        "metrics": {name: _metric(METRICS[name]) for name in told()},
        "sentence": wording.SENTENCE,
    }
    return f"export const WORDS = {json.dumps(words, ensure_ascii=False)};\n"


def _parameter(word: Parameter) -> dict[str, object]:
    """A parameter for the page; `allowed` says in words what its limits are."""
    return {
        "name": word.brief.removeprefix("--"),
        "label": word.label,
        "help": filled(word.help),
        "allowed": models.allowed(word.name),
        "limits": models.limits(word.name),
        "whole": models.is_whole(word.name),
    }


def _threat(word: ThreatWord) -> dict[str, object]:
    """A threat for the page, with what is assumed of a Poisson-sampled run; {distance} stands for the distance."""
    distance = MARKER if "distance" in word.takes else None
    assumed = wording.assumptions(Setting(1.0, 0.5, steps=1, threat=word.name, distance=distance))
    return {
        "name": word.name,
        "question": word.question,
        "takes": word.takes + word.optional,
        "method": word.method,
        "attacker": word.attacker,
        "assumptions": [text.replace(plain(MARKER), "{distance}") for text in assumed],
        "python": word.python,
    }


def _metric(metric: Metric) -> dict[str, object]:
    """A metric for the page. `given` (the number that it depends on) and `limit` (of a target) are what the page starts with."""
    example = targets.parse(metric.example.split()[0])
    floor = plain(SMALLEST_FPR) if "smallest_fpr" in metric.also else "{}"
    return {
        "title": metric.title.replace("{}", floor),
        "short": metric.short.replace("{}", floor),
        "meaning": "",
        "sign": metric.sign,
        "end": metric.safe_end,
        "share": metric.share,
        "limited": metric.limited,
        "at": metric.at,
        "given": example.given,
        "limit": example.value,
    }
