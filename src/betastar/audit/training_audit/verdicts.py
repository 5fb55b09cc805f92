"""The verdicts on three attackers of real training, from what each of them saw in the games."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from betastar.arrays import Real
from betastar.audit.leakage_estimate import FEWEST, Leakage, leakage
from betastar.audit.results import Audit, AuditSetting, judge, judge_many
from betastar.audit.training_audit.fault_statistics import statistics
from betastar.audit.training_audit.learned_attacks import Seen, learn
from betastar.audit.training_audit.trials import OUTPUTS, UPDATES, WEIGHTS

#: The column of the games that the attackers who learn see.
_SEEN = {WEIGHTS: "white", OUTPUTS: "black"}


def audits_of(columns: dict[str, Real], setting: AuditSetting, priors: tuple[float, ...]) -> dict[str, Audit]:
    """The audit of each attacker. columns: what the games left, as `Schedule.play` returns it."""
    return dict(_of_many_worlds(columns, setting, priors) if len(priors) > 2 else _of_two_worlds(columns, setting, priors))


def _of_many_worlds(columns: dict[str, Real], setting: AuditSetting, priors: tuple[float, ...]) -> Iterator[tuple[str, Audit]]:
    world = columns["world"].astype(int)
    yield UPDATES, judge_many(setting, world, columns["evidence"], UPDATES)
    for place, learned, attack in _learned(columns, priors):
        audit = judge_many(setting, world[1::2], learned, place)
        yield place, replace(audit, attack=attack, heuristic=setting.heuristic)


def _of_two_worlds(columns: dict[str, Real], setting: AuditSetting, priors: tuple[float, ...]) -> Iterator[tuple[str, Audit]]:
    positive = columns["world"].astype(int) == 0
    ties = np.random.default_rng(setting.seed).random(len(positive))
    evidence = columns["evidence"][:, 0] - columns["evidence"][:, 1]
    others = statistics(columns["trace"], positive, setting.run)
    yield UPDATES, judge(setting, positive, evidence, ties, UPDATES, others)
    for place, learned, attack in _learned(columns, priors):
        audit = judge(setting, positive[1::2], learned[:, 0] - learned[:, 1], ties[1::2], place)
        yield place, replace(audit, attack=attack, heuristic=setting.heuristic)


def _learned(columns: dict[str, Real], priors: tuple[float, ...]) -> Iterator[tuple[str, Real, str]]:
    """For each attacker of the final model, the log-likelihood of each world in the odd games, and the attack that was chosen."""
    for place, column in _SEEN.items():
        if columns[column].shape[1]:
            seen = Seen(columns[column], columns["confidences"], columns["black"].shape[1])
            yield place, *learn(seen, columns["world"].astype(int), np.array(priors))


def leakage_of(columns: dict[str, Real], priors: tuple[float, ...], confidence: float) -> Leakage | None:
    """The nearest-neighbour estimate of what the final model's outputs tell; None where there are too few games or no outputs."""
    outputs = columns["black"]
    if not outputs.shape[1] or len(outputs) < 2 * FEWEST:
        return None
    width = 1.0 / (1.0 - max(priors))  # accepts every width: the interval is part of the result
    return leakage(columns["world"].astype(int), outputs, prior=priors, confidence=confidence, width=width)
