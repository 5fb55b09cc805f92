"""Curves for the page while somebody moves a slider: as many points as fit into the time, coarse ones first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache

import numpy as np

import betastar as bs
from betastar.analyze import after_each, reliable
from betastar.answers.json_answers import Answer, bound
from betastar.answers.settings import Setting, threat_of
from betastar.certified.enclosure import GLUED
from betastar.dpsgd import IN_EPOCHS, all_plain
from betastar.dpsgd import batches_per_epoch as batches

#: Points over the epochs, and of the trade-off curve: while a slider moves, and at rest.
EPOCHS, RATES = (13, 25), (31, 61)
#: A line of fewer points would mislead.
FEW = 7
SMALLEST_RATE = 1e-6
#: Tolerance while a slider moves, when attackers who adapt are bounded by the glued curve, and at rest.
COARSE, FINE = GLUED, 1e-4


#: A threat as its name and what it takes, which a cache can compare; the threat of a plug-in need not be comparable.
Attack = tuple[str, tuple[tuple[str, float | None], ...]]


def _attack(setting: Setting) -> Attack:
    return setting.threat, tuple(setting.taken.items())


@lru_cache(maxsize=4096)
def _beta(run: bs.DPSGD, attack: Attack, method: str, tolerance: float) -> bs.Bound:
    threat = threat_of(attack[0], **dict(attack[1]))
    if method == "certified":
        return bs.analyze(run, threat, method=method).bayes_security
    # Of an attribute's exact β* only the lower end is quick; and here nobody needs to be warned of the paper's closed form.
    return reliable(run, threat, method, tolerance).bayes_security


@lru_cache(maxsize=64)
def _curve(run: bs.DPSGD, attack: Attack, tolerance: float, attained: bool) -> bs.Risk:
    threat = threat_of(attack[0], **dict(attack[1]))
    if attained:
        return bs.analyze(run, threat, method="certified", tolerance=tolerance)
    return reliable(run, threat, "certified", tolerance)


def over_epochs(setting: Setting, seconds: float, certifying: float = 0.0) -> Answer:
    """β* after each of some epochs (or steps): what to rely on, the paper's closed form, and a certified band if there is time.

    seconds: for the exact line; certifying: for the band. Ends early when the time is over. A line with too few points is left
    out; the band is then the affinity's, which is proved and takes no time, but is wide.
    """
    run = setting.run()
    attack = _attack(setting)
    end = time.monotonic() + seconds
    unit = run.steps / setting.epochs if setting.epochs else 1.0
    number, tolerance = EPOCHS[certifying > 0.0], FINE if certifying else COARSE
    whole = batches(run.sample_rate, run.sampling) if run.sampling in IN_EPOCHS else 1  # steps that are not divided
    points_at = np.round(np.linspace(run.steps / number, run.steps, number) / whole).clip(1) * whole
    steps = np.unique(points_at).astype(int).tolist()

    def at(method: str) -> Callable[[int], bs.Bound]:
        return lambda count: _beta(run.shortened(count), attack, method, tolerance)

    def points(bounds: dict[int, bs.Bound]) -> list[Answer]:
        return [{"at": count / unit, **bound(bounds[count])} for count in sorted(bounds)]

    together = after_each(run, setting.attack, steps, tolerance, certifying > 0.0)
    if together is not None:
        exact = dict(zip(steps, together, strict=True))
        proved = exact if certifying else {}
    else:
        exact = dict(_in_time(at("exact"), steps, end))
        proved = dict(_in_time(at("certified"), steps, time.monotonic() + certifying)) if certifying else {}
    few = min(FEW, len(steps))
    band = None
    if len(proved) >= few:
        band = {"method": "certified", "points": points(proved)}
    elif len(exact) < few:
        band = {"method": "affinity", "points": points({count: at("affinity")(count) for count in steps})}
    return {
        "unit": "epochs" if setting.epochs else "steps",
        "exact": [{"at": count / unit, "lower": float(exact[count].lower)} for count in sorted(exact)]
        if len(exact) >= few
        else [],
        "band": band,
        "paper": points({count: at("paper")(count) for count in steps}) if all_plain(run) else [],
    }


def tradeoff(setting: Setting, fine: bool) -> Answer:
    """Certified TPR at FPRs from tiny to 1, and at those that are asked for; with the attacks that exist, when fine."""
    risk = _curve(setting.run(), _attack(setting), FINE if fine else COARSE, fine)
    number = RATES[fine]
    rates = np.concatenate([np.geomspace(SMALLEST_RATE, 0.5, number * 2 // 3), np.linspace(0.5, 1.0, number // 3)[1:]])

    def point(rate: float) -> Answer:
        one = bound(risk.tpr(rate))
        return {"fpr": rate, **(one if fine else {"lower": None, "estimate": None, "upper": one["upper"]})}

    return {
        "curve": [point(float(rate)) for rate in rates],
        "tpr": [point(rate) for rate in setting.fpr],
        "epsilon": [{"delta": delta, "upper": bound(risk.epsilon(delta))["upper"]} for delta in setting.delta],
    }


def _in_time(read: Callable[[int], bs.Bound], steps: list[int], end: float) -> Iterator[tuple[int, bs.Bound]]:
    """The last first, then the first, then what lies between them, ever finer, until the time is over."""
    for place in _coarse_first(len(steps)):
        if time.monotonic() > end:
            return
        with suppress(ArithmeticError):  # beyond what the method can compute; the other points are not
            yield steps[place], read(steps[place])


def _coarse_first(count: int) -> list[int]:
    order = [count - 1, 0]
    stride = count - 1
    while stride > 1:
        half = -(-stride // 2)
        order += [i for i in range(half, count, half) if i not in order]
        stride = half
    return list(dict.fromkeys(order))
