"""A setting to its answer: one JSON object, as the command line prints it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import betastar as bs
from betastar import advice
from betastar.answers import wording
from betastar.answers.settings import Setting
from betastar.answers.targets import Wish
from betastar.vocabulary import METRICS, PARAMETERS, RUN, Metric

Answer = dict[str, Any]
#: The prior of a fair coin.
EVEN = PARAMETERS["prior"].default


def answer(setting: Setting, advised: bool = False, wishes: Sequence[Wish] = ()) -> Answer:
    """Everything that is said about a setting.

    Parameters
    ----------
    setting : Setting
        What was run, and who attacks.
    advised : bool
        Whether the answer has advice, which takes some more certified figures.
    wishes : sequence of Wish
        The person's own targets, for the advice; the next band by default.

    Returns
    -------
    dict
        It can be written as JSON.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        risk = setting.risk()
    success = risk.success(setting.prior)  # needed for the sentence in any case
    at_prior = {"prior": setting.prior, **bound(success)}
    metrics = {name: at_prior if name == "success" else reading(setting, risk, METRICS[name]) for name in setting.metrics}
    even = None if setting.prior == EVEN else risk.success(EVEN)
    more = {"advice": _advice(setting, risk, wishes)} if advised else {}
    return {
        **metrics,
        "sentence": wording.sentence(setting, success, _other_samplings(setting), even),
        "certainty": wording.certainty(setting, risk.bayes_security),
        "assumptions": wording.assumptions(setting),
        "warnings": [*(str(one.message) for one in said), *setting.rate_notice],
        "parameters": parameters(setting),
        "python": setting.python(),
        "command": setting.command(),
        **_final_model(setting),
        **more,
    }


def _advice(setting: Setting, risk: bs.Risk, wishes: Sequence[Wish]) -> Answer | None:
    """What would reach the target or the next band; None if it is reached, or if no bound is certified for the setting."""
    said = advice.advise(setting.given | setting.sampled | {"opacus": setting.opacus}, setting.attack, risk, wishes)
    return None if said is None else said.as_json()


def _final_model(setting: Setting) -> Answer:
    """The heuristic for an attacker who sees only the final model, if it is asked for: beside the bound, never in its place."""
    if setting.sees == PARAMETERS["sees"].default:
        return {}
    risk = bs.analyze(setting.run(), setting.attack, sees=setting.sees)
    metrics = {name: reading(setting, risk, METRICS[name]) for name in setting.metrics}
    said = wording.heuristic(setting, risk.success(setting.prior))
    return {"final_model": {**metrics, "sentence": said}}


def _other_samplings(setting: Setting) -> dict[str, bs.Bound]:
    """The share of right guesses with samplings that are better understood, where little is known of the one that was used."""
    if setting.sampling != "shuffled":
        return {}
    size = None if setting.sample_rate is not None else setting.dataset_size
    others = [replace(setting, sampling=name, dataset_size=size) for name in ("balls-in-bins", "poisson")]
    return {other.sampling: other.risk().success(setting.prior) for other in others}


def calibrated(setting: Setting, wish: Wish) -> Answer:
    """The parameter that was left out, so that the wish is just met, and the answer for it."""
    given = setting.arguments()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = bs.calibrate(
            wish,
            threat=setting.attack,
            method=setting.chosen_method,
            tolerance=setting.tolerance,
            opacus=setting.opacus,
            **given,
            **setting.sampled,
        )
    full = setting.with_run(run)
    name = next(name for name in RUN if name in full.given and name not in setting.given)
    more = answer(full)
    more["warnings"] = [str(one.message) for one in said if one.category is not bs.RateWarning] + more["warnings"]
    more["python"] = setting.python(f"bs.{wish!r}")
    more["command"] = setting.command("calibrate", "--target", f'"{wish}"')
    return {"target": str(wish), "found": {name: getattr(full, name)}, **more}


def parameters(setting: Setting) -> Answer:
    """What was asked, with the rate and the steps that follow from it."""
    run = setting.run()
    full = {**setting.given, "sample_rate": run.sample_rate, "steps": run.steps}
    sees = {"sees": setting.sees} if setting.sees != PARAMETERS["sees"].default else {}
    return {name: full[name] for name in RUN if name in full} | {
        **setting.sampled,
        "threat": setting.threat,
        **setting.taken,
        **sees,
        "method": setting.chosen_method,
        "prior": setting.prior,
    }


def bound(one: bs.Bound) -> dict[str, float | None]:
    """A bound as JSON. An end that is not finite is null."""
    return {name: number(getattr(one, name)) for name in ("lower", "estimate", "upper")}


def number(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def reading(setting: Setting, risk: bs.Risk, metric: Metric) -> Answer | list[Answer]:
    """A metric as JSON: one bound, with the number that it depends on; a list where the setting has several such numbers."""
    read = getattr(risk, metric.name)
    if metric.at is None:
        return {**bound(read), **{name: number(getattr(read, name)) for name in metric.also}}
    given = getattr(setting, metric.at)
    if isinstance(given, tuple):
        return [{metric.at: one, **bound(read(one))} for one in given]
    return {metric.at: given, **bound(read(given))}
