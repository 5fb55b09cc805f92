"""The verdicts on three attackers of real training, from what each of them saw in the games."""

from __future__ import annotations

import numpy as np

from betastar.arrays import Real, Whole
from betastar.audit.leakage_estimate import FEWEST, Leakage, leakage
from betastar.audit.results import Audit, AuditSetting, judge, judge_many
from betastar.audit.training_audit.fault_statistics import statistics
from betastar.audit.training_audit.trials import OUTPUTS, UPDATES, WEIGHTS

#: The column of the games that the attackers who learn see.
_SEEN = {WEIGHTS: "white", OUTPUTS: "black"}
#: Log-likelihood of a world that no teaching game was played in.
_NEVER = -1e3


def audits_of(columns: dict[str, Real], setting: AuditSetting, worlds: int) -> dict[str, Audit]:
    """The audit of each attacker. columns: what the games left, as `Schedule.play` returns it."""
    return _of_many_worlds(columns, setting, worlds) if worlds > 2 else _of_two_worlds(columns, setting)


def _of_many_worlds(columns: dict[str, Real], setting: AuditSetting, worlds: int) -> dict[str, Audit]:
    world = columns["world"].astype(int)
    audits = {UPDATES: judge_many(setting, world, columns["evidence"], UPDATES)}
    for place, column in _SEEN.items():
        audits[place] = judge_many(setting, world[1::2], learn(columns[column], world, worlds), place)
    return audits


def _of_two_worlds(columns: dict[str, Real], setting: AuditSetting) -> dict[str, Audit]:
    world = columns["world"].astype(int)
    positive = world == 0
    ties = np.random.default_rng(setting.seed).random(len(world))
    evidence = columns["evidence"][:, 0] - columns["evidence"][:, 1]
    others = statistics(columns["trace"], positive, setting.run)
    audits = {UPDATES: judge(setting, positive, evidence, ties, UPDATES, others)}
    for place, column in _SEEN.items():
        if columns[column].shape[1]:
            learned = learn(columns[column], world, 2)
            audits[place] = judge(setting, positive[1::2], learned[:, 0] - learned[:, 1], ties[1::2], place)
    return audits


def leakage_of(columns: dict[str, Real], priors: tuple[float, ...], confidence: float) -> Leakage | None:
    """The nearest-neighbour estimate of what the final model's outputs tell; None where there are too few games or no outputs."""
    outputs = columns["black"]
    if not outputs.shape[1] or len(outputs) < 2 * FEWEST:
        return None
    width = 1.0 / (1.0 - max(priors))  # accepts every width: the interval is part of the result
    return leakage(columns["world"].astype(int), outputs, prior=priors, confidence=confidence, width=width)


def learn(features: Real, world: Whole, worlds: int) -> Real:
    """Log-likelihood of each world in the odd games, by Gaussians with a common covariance that the even games teach."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    centre, deviation = features[::2].mean(axis=0), features[::2].std(axis=0)
    scaled = (features - centre) / np.where(deviation > 0.0, deviation, 1.0)
    known = np.unique(world[::2])
    logs = np.full((len(world) // 2, worlds), _NEVER)
    if len(known) < 2:
        logs[:, known] = 0.0
        return logs
    attacker = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=np.full(len(known), 1.0 / len(known)))
    logs[:, known] = attacker.fit(scaled[::2], world[::2]).predict_log_proba(scaled[1::2])
    return logs
