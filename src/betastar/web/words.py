"""The words of the vocabulary that the page shows, as a script that its other scripts import."""

from __future__ import annotations

import json

from betastar.answers import targets
from betastar.risk.risk import SMALLEST_FPR
from betastar.rounding import plain
from betastar.vocabulary import METHODS, METRICS, PARAMETERS, RUN, SAMPLINGS, SEES, THREATS, Metric, told

#: Parameters that the page has a slider for.
PARAMETERS_OF_PAGE = (*RUN, "max_batch_size", "distance", "records_per_person", "prior", "fpr")


def script() -> str:
    """A JavaScript module with the words."""
    threats = [
        {"name": word.name, "question": word.question, "takes": word.takes + word.optional, "method": word.method}
        for word in THREATS.values()
    ]
    methods = [{"name": word.name, "summary": word.summary} for word in METHODS.values()]
    words = {
        "parameters": {
            name: {"name": PARAMETERS[name].brief.removeprefix("--"), "label": PARAMETERS[name].label}
            for name in PARAMETERS_OF_PAGE
        },
        "threats": threats,
        "methods": methods,
        "samplings": [
            {"name": word.name, "summary": word.summary, "takes": word.takes, "slow": word.slow} for word in SAMPLINGS.values()
        ],
        "sees": [{"name": name, "summary": summary} for name, summary in SEES.items()],
        "metrics": {name: _metric(METRICS[name]) for name in told()},
    }
    return f"export const WORDS = {json.dumps(words, ensure_ascii=False)};\n"


def _metric(metric: Metric) -> dict[str, object]:
    """A metric for the page. `given` (the number that it depends on) and `limit` (of a target) are what the page starts with."""
    example = targets.parse(metric.example.split()[0])
    floor = plain(SMALLEST_FPR) if "smallest_fpr" in metric.also else "{}"
    return {
        "title": metric.title.replace("{}", floor),
        "short": metric.short.replace("{}", floor),
        "sign": metric.sign,
        "end": metric.safe_end,
        "share": metric.share,
        "at": metric.at,
        "given": example.given,
        "limit": example.value,
    }
