"""What a Risk shows of itself: a sentence, the metrics that most people ask for, and the trade-off curve."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from betastar.display import Display, curve
from betastar.rounding import nearest
from betastar.vocabulary import METHODS, METRICS

if TYPE_CHECKING:
    from betastar.risk.risk import Risk

BETA, SUCCESS = METRICS["bayes_security"], METRICS["success"]
HEADS = ("", "rely on", "estimate", "without a model")
#: Metrics of the table, and what they depend on.
SHOWN = (("bayes_security", None), ("success", 0.5), ("tpr", 0.01), ("epsilon", 1e-5))
#: False-positive rates of the curve, closer where it is steep.
RATES = np.concatenate([[0.0], np.geomspace(1e-4, 0.1, 20), np.linspace(0.12, 1.0, 23)])


def display(risk: Risk, brief: bool) -> Display:
    """What is shown of a risk; of a sweep the range of β* only."""
    if risk.shape:
        low, high = (float(end) for end in (np.min(risk.bayes_security.lower), np.max(risk.bayes_security.lower)))
        size = " × ".join(map(str, risk.shape))
        return Display((f"{_threat(risk)}, a sweep of {size} runs: β* from {BETA.rounded(low)} to {BETA.rounded(high)}.",))
    lines = (_sentence(risk), _number(risk), *([note] if (note := _note(risk)) else []))
    if brief:
        return Display(lines)
    rows = []
    for name, at in SHOWN:
        bound = getattr(risk, name) if at is None else getattr(risk, name)(at)
        rows.append(METRICS[name].row({"lower": bound.lower, "estimate": bound.estimate, "upper": bound.upper}, at))
    reached = risk.tradeoff(RATES)
    ends = reached.estimate if _approximate(risk) else reached.upper
    drawing = curve(RATES, ends, "false positives", "true positives", "trade-off curve of the best attack")
    return Display(lines, HEADS, tuple(rows), drawing)


def _approximate(risk: Risk) -> bool:
    """Whether the ends of the bound say little, so that people are told the estimate. A heuristic has no ends at all."""
    return not isfinite(risk.bayes_security.lower) or (risk.method in METHODS and METHODS[risk.method].approximate)


def _sentence(risk: Risk) -> str:
    beta = float(risk.bayes_security.estimate if _approximate(risk) else risk.bayes_security.lower)
    about = "about" if _approximate(risk) or _note(risk) else "at most"
    return (
        f"{_threat(risk)}: at even odds an attacker is right {about} {SUCCESS.rounded(1.0 - beta / 2.0, 0.5)} of the time, "
        "against 50 % without the model."
    )


def _number(risk: Risk) -> str:
    beta = risk.bayes_security
    if not isfinite(beta.lower):
        return f"β* ≈ {nearest(float(beta.estimate))}, a heuristic that bounds nothing; method {risk.method}"
    sign = "≈" if _note(risk) else "≥"
    return f"β* {sign} {BETA.rounded(float(beta.lower))} (estimate {nearest(float(beta.estimate))}), method {risk.method}"


def _threat(risk: Risk) -> str:
    """The threat, without what a monitor says of its measurement."""
    text = risk.threat.split(" [")[0]
    return text[:1].upper() + text[1:]


def _note(risk: Risk) -> str:
    """What a monitor says of its measurement."""
    return risk.threat.partition(" [")[2].removesuffix("]")
