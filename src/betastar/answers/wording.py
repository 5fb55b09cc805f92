"""Answers in plain words: the sentence, what is assumed, how sure it is, and what was wrong with the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import betastar as bs
from betastar.answers.settings import Setting
from betastar.bounds.certified import COARSE
from betastar.rounding import nearest, nearest_percent, plain, significant
from betastar.scenario.threats import FARTHEST, reduction
from betastar.validation import ArgumentError
from betastar.vocabulary import DIGITS, METHODS, METRICS, SAMPLINGS, THREATS, decimals, parameter_of

#: What the number means for a person; `share` is what the attacker reaches, `idle` what they reach without the model.
SENTENCE = "{attacker} is right {about} {share} of the time, against {idle} % without the model."
#: Bounds wider than this are said to be wide.
WIDE = 0.01


def sentence(setting: Setting, success: bs.Bound, others: Mapping[str, bs.Bound] | None = None) -> str:
    """What the number means for a person, rounded up. others: the same with other samplings."""
    idle = max(setting.prior, 1.0 - setting.prior)
    about = METHODS[setting.chosen_method].approximate
    reach = float(success.estimate if about else success.upper)
    share = METRICS["success"].rounded(reach, setting.prior)
    return SENTENCE.format(
        attacker=THREATS[setting.threat].attacker,
        about="about" if about else "at most",
        share=share,
        idle=f"{100 * idle:.10g}",
    ) + _nothing_better(setting, success, others or {})


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
