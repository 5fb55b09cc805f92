"""Answers in plain words: the sentence, what is assumed, how sure it is, and what was wrong with the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import betastar as bs
from betastar.answers.settings import Setting
from betastar.certified.enclosure import COARSE
from betastar.rounding import nearest_percent, plain, significant
from betastar.threats import FARTHEST, reduction
from betastar.validation import ArgumentError
from betastar.vocabulary import DIGITS, METHODS, METRICS, SAMPLINGS, THREATS, parameter_of

#: What the number means for a person; `share` is what the attacker reaches, `idle` what they reach without the model.
SENTENCE = "{attacker} is right {about} {share} of the time, against {idle} % without the model."
#: Bounds wider than this are said to be wide.
WIDE = 0.01


def sentence(
    setting: Setting, success: bs.Bound, others: Mapping[str, bs.Bound] | None = None, even: bs.Bound | None = None
) -> str:
    """What the number means for a person, rounded up.

    Parameters
    ----------
    setting : Setting
        What was run, who attacks, and the prior.
    success : Bound
        The share of right guesses with that prior.
    others : mapping of str to Bound, optional
        The same with other samplings.
    even : Bound, optional
        The share of right guesses at even odds, to stand beside another prior.

    Returns
    -------
    str
        With another prior than even odds, both are said, each with what a naive attacker reaches.
    """
    idle = max(setting.prior, 1.0 - setting.prior)
    about = METHODS[setting.chosen_method].approximate
    word, who = "about" if about else "at most", THREATS[setting.threat].attacker

    def share(bound: bs.Bound, prior: float) -> str:
        return METRICS["success"].rounded(float(bound.estimate if about else bound.upper), prior)

    reach = share(success, setting.prior)
    said = SENTENCE.format(attacker=who, about=word, share=reach, idle=f"{100 * idle:.10g}")
    if even is not None:
        known = at_prior(reach, setting.prior, word)
        said = f"{who}{known} At even odds it is {word} {share(even, 0.5)} against 50 %."
    return said + _nothing_better(setting, success, others or {})


def at_prior(share: str, prior: float, word: str = "at most") -> str:
    """What an attacker reaches who knows how frequent one of two answers is, and what a naive one reaches."""
    likelier = "the rarer" if prior < 0.5 else "the likelier"
    return (
        f", and knows that {likelier} of the two answers has probability {plain(prior)}, is right {word} {share} of the time, "
        f"against {100 * max(prior, 1.0 - prior):.10g} % without the model, by always guessing the likelier answer."
    )


def heuristic(setting: Setting, success: bs.Bound) -> str:
    """What is said of an attacker who sees only the final model."""
    share = nearest_percent(float(success.estimate))
    return (
        f"A heuristic, not a bound: an attacker who sees only the final model is expected to be right about {share} of the time. "
        "Do not rely on it: there are models that tell more."
    )


def _nothing_better(setting: Setting, success: bs.Bound, others: Mapping[str, bs.Bound]) -> str:
    """What is said of a sampling of which little is known: the attack that exists, and what other samplings would give."""
    if not others:
        return ""
    attack = nearest_percent(float(success.lower))
    most = {name: METRICS["success"].rounded(float(one.upper), setting.prior) for name, one in others.items()}
    instead = " and ".join(f"at most {share} with sampling {name}" for name, share in most.items())
    return (
        f" Nothing better is proved of {setting.sampling} batches, and an attack is known that is right {attack} of the time. "
        f"It would be {instead}."
    )


def assumptions(setting: Setting) -> list[str]:
    records = setting.records_per_person or 1
    person = [f"a person with {records} records, all of which are replaced, or left out, together"] if records > 1 else []
    return [
        *person,
        "a worst-case record: " + THREATS[setting.threat].assumed.format(distance=setting.distance and plain(setting.distance)),
        "an attacker who knows all other records and sees every update",
        _sampling(setting),
        "ideal Gaussian noise on the sum of clipped gradients",
    ]


def _sampling(setting: Setting) -> str:
    """How the batches are drawn."""
    assumed = SAMPLINGS[setting.sampling].assumed
    if setting.max_batch_size is None:
        return assumed
    return f"{assumed}, and of a batch of more than {setting.max_batch_size} records so many are kept at random"


def certainty(setting: Setting, beta: bs.Bound) -> str:
    """How sure the number is."""
    low, high, width = float(beta.lower), float(beta.upper), float(beta.width)
    between = f"β* lies between {METRICS['bayes_security'].rounded(low)} and {significant(high, DIGITS)}"
    reduced = reduction(setting.attack, setting.run())
    gap = reduced is not None and reduced.attained is not None
    if setting.chosen_method == "exact" and gap:
        return (
            f"Bounded: {between}, up to numerical errors. The lower end holds for every sequence of gradients, the upper end is "
            "an attack that exists; what lies between them is not known."
        )
    if setting.chosen_method == "exact" and setting.distance not in (None, FARTHEST):
        return (
            f"Exact up to numerical errors: {between}. The lower end holds for every sequence of gradients with this distance, "
            "the upper end is an attack that exists."
        )
    text = METHODS[setting.chosen_method].certainty.format(between=between, width=significant(width, 1))
    if setting.chosen_method == "certified" and width > WIDE:
        why = "no finer grid is affordable here" if setting.tolerance < COARSE else "the tolerance asks for a coarse grid"
        if gap:
            why = "no better bound is known for this sampling"
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
