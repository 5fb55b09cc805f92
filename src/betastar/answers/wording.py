"""Answers in plain words: the sentence, what is assumed, how sure it is, and what was wrong with the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import betastar as bs
from betastar.answers.settings import Setting
from betastar.bounds.certified import COARSE
from betastar.rounding import plain, significant
from betastar.scenario.threats import FARTHEST
from betastar.validation import ArgumentError
from betastar.vocabulary import DIGITS, METHODS, METRICS, THREATS, parameter_of

#: Bounds wider than this are said to be wide.
WIDE = 0.01


def sentence(setting: Setting, success: bs.Bound) -> str:
    """What the number means for a person, rounded up."""
    idle = max(setting.prior, 1.0 - setting.prior)
    about = METHODS[setting.chosen_method].approximate
    reach = float(success.estimate if about else success.upper)
    share = METRICS["success"].rounded(reach, setting.prior)
    return (
        f"{THREATS[setting.threat].attacker} is right {'about' if about else 'at most'} {share} of the time, "
        f"against {100 * idle:.10g} % without the model."
    )


def assumptions(setting: Setting) -> list[str]:
    return [
        "a worst-case record: " + THREATS[setting.threat].assumed.format(distance=setting.distance and plain(setting.distance)),
        "an attacker who knows all other records and sees every update",
        "Poisson sampling: each step samples every record independently with the same probability",
        "ideal Gaussian noise on the sum of clipped gradients",
    ]


def certainty(setting: Setting, beta: bs.Bound) -> str:
    """How sure the number is."""
    low, high, width = float(beta.lower), float(beta.upper), float(beta.width)
    between = f"β* lies between {METRICS['bayes_security'].rounded(low)} and {significant(high, DIGITS)}"
    if setting.chosen_method == "exact" and setting.distance not in (None, FARTHEST):
        return (
            f"Exact up to numerical errors: {between}. The lower end holds for every sequence of gradients with this distance, "
            "the upper end is an attack that exists."
        )
    text = METHODS[setting.chosen_method].certainty.format(between=between, width=significant(width, 1))
    if setting.chosen_method == "certified" and width > WIDE:
        why = "no finer grid is affordable here" if setting.tolerance < COARSE else "the tolerance asks for a coarse grid"
        return f"{text} The interval is wide, as {why}."
    return text


def explain(problem: Exception, spelling: Callable[[str], str] = str) -> str:
    """An error in the words of an interface: its spelling of each argument, and what usually helps."""
    if not isinstance(problem, ArgumentError):
        return str(problem)
    text = problem.spelled(spelling)
    parameter = parameter_of(problem.argument)
    helps = parameter.suggestion if parameter else ""
    return text if not helps else f"{text} {helps}"


def table(answer: Mapping[str, Any], short: bool = False) -> list[tuple[str, str, str, str]]:
    """Rows for people: metric, the number to rely on, the estimate, and what it is without a model."""
    rows = []
    for metric in METRICS.values():
        bounds = answer.get(metric.name, ())
        for one in bounds if isinstance(bounds, list | tuple) else (bounds,):
            rows.append(metric.row(one, one.get(metric.at or "smallest_fpr"), short))
    return rows
