"""Answers in plain words: the sentence, what is assumed, how sure it is, and what was wrong with the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import betastar as bs
from betastar.answers.settings import Setting
from betastar.bounds.certified import COARSE
from betastar.rounding import nearest, plain, significant
from betastar.scenario.threats import FARTHEST
from betastar.validation import ArgumentError
from betastar.vocabulary import DIGITS, METHODS, METRICS, THREATS, decimals, parameter_of

#: Bounds wider than this are said to be wide.
WIDE = 0.01


def sentence(setting: Setting, success: bs.Bound, even: bs.Bound | None = None) -> str:
    """What the number means for a person, rounded up.

    Parameters
    ----------
    setting : Setting
        What was run, who attacks, and the prior.
    success : Bound
        The share of right guesses with that prior.
    even : Bound, optional
        The share of right guesses at even odds, to stand beside another prior.

    Returns
    -------
    str
        With another prior than even odds, both are said, each with what a naive attacker reaches.
    """
    about = METHODS[setting.chosen_method].approximate
    word, who = "about" if about else "at most", THREATS[setting.threat].attacker

    def share(bound: bs.Bound, prior: float) -> str:
        return METRICS["success"].rounded(float(bound.estimate if about else bound.upper), prior)

    if even is None:
        idle = max(setting.prior, 1.0 - setting.prior)
        return (
            f"{who} is right {word} {share(success, setting.prior)} of the time, against {100 * idle:.10g} % without the model."
        )
    known = at_prior(share(success, setting.prior), setting.prior, word)
    return f"{who}{known} At even odds it is {word} {share(even, 0.5)} against 50 %."


def at_prior(share: str, prior: float, word: str = "at most") -> str:
    """What an attacker reaches who knows how frequent one of two answers is, and what a naive one reaches."""
    likelier = "the rarer" if prior < 0.5 else "the likelier"
    return (
        f", and knows that {likelier} of the two answers has probability {plain(prior)}, is right {word} {share} of the time, "
        f"against {100 * max(prior, 1.0 - prior):.10g} % without the model, by always guessing the likelier answer."
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
            at = one.get(metric.at or "smallest_fpr")
            title = (metric.short if short else metric.title).format(at and plain(at))
            idle = metric.without_model(one.get(metric.at))
            relied = metric.rounded(one[metric.safe_end], one.get(metric.at))
            if metric.share:
                near = f"{100 * one['estimate']:.{decimals(one[metric.safe_end] - idle)}f} %"
                rows.append((title, relied, near, f"{100 * idle:.10g} %"))
            else:
                rows.append((title, relied, nearest(one["estimate"]), plain(idle)))
    return rows
