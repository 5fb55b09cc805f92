"""Attacks on the final model that learn from reference models: games whose world is known.

Three attacks are known. Cross-validation among the reference models chooses one of them, before any other game is looked at, so
that right guesses in the other games are binomial. The reference models are trained on the same other records, as an attacker
could do who knows everything but the challenge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import TypeAlias

import numpy as np
from scipy.special import logit, logsumexp

from betastar.arrays import Real, Whole

#: Parts of the reference models, each of which is guessed by what the others teach.
FOLDS = 5
#: Fewest reference models of a world that teach anything about it.
LEAST = 2
#: How much more often than the first attack another one must be right among the reference models to be chosen instead of it, in
#: standard deviations of the difference: below that the difference may be chance.
SURER = 1.0
#: Log-likelihood of a world that the reference models do not teach.
_NEVER = -1e3


@dataclass(frozen=True)
class Seen:
    """What an attacker sees of some final models.

    Attributes
    ----------
    features : array of float
        A row of numbers for each model.
    confidences : array of float
        For each model, its log-confidence in each candidate and then in each record of the population; no columns where
        candidates do not change outputs.
    candidates : int
        The number of candidates.
    """

    features: Real
    confidences: Real
    candidates: int

    def __len__(self) -> int:
        return len(self.features)

    def take(self, which: slice | Whole) -> Seen:
        """Some of the models."""
        return Seen(self.features[which], self.confidences[which], self.candidates)


#: From reference models, their worlds 0, 1, … and other models to the log-likelihood of each world for each of these.
Attack: TypeAlias = Callable[[Seen, Whole, Seen], Real]


def linear_discriminant(lesson: Seen, world: Whole, asked: Seen) -> Real:
    """Gaussians with a common covariance."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    known, unknown = _standardised(lesson.features, asked.features)
    worlds = int(world.max()) + 1
    attacker = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=np.full(worlds, 1.0 / worlds))
    answer: Real = attacker.fit(known, world).predict_log_proba(unknown)
    return answer


def likelihood_ratio(lesson: Seen, world: Whole, asked: Seen) -> Real:
    """A Gaussian of its own for each world, as in LiRA (Carlini and others 2022, "Membership inference attacks from first
    principles"), which has one feature: the logit of the confidence."""
    return _own_gaussians(lesson.features, world, asked.features)


def pairwise_ratios(lesson: Seen, world: Whole, asked: Seen) -> Real:
    """For each candidate, how many records of the population it beats, as in RMIA (Zarifzadeh, Liu, Shokri 2024).

    A candidate x beats z if p(x)/p̄(x) ≥ p(z)/p̄(z), where p is the confidence of the model and p̄ the mean one of the reference
    models. The log-odds of the share then have a Gaussian for each world.
    """
    typical = logsumexp(lesson.confidences, axis=0) - log(len(lesson))
    known, unknown = (_beaten(one.confidences - typical, one.candidates) for one in (lesson, asked))
    return _own_gaussians(known, world, unknown)


#: The attacks by their names for people. Where another one is not clearly better, the first is chosen.
ATTACKS: dict[str, Attack] = {
    "linear discriminant": linear_discriminant,
    "likelihood ratio (LiRA)": likelihood_ratio,
    "pairwise ratios (RMIA)": pairwise_ratios,
}


def learn(seen: Seen, world: Whole, prior: Real) -> tuple[Real, str]:
    """The log-likelihood of each world in the odd games, by the attack that the even games choose and teach; and its name."""
    asked, even = seen.take(slice(1, None, 2)), world[::2]
    times = np.bincount(even, minlength=len(prior))
    known = np.flatnonzero(times >= LEAST)
    logs = np.full((len(asked), len(prior)), _NEVER)
    if len(known) < 2:
        logs[:, times == times.max()] = 0.0
        return logs, next(iter(ATTACKS))
    useful = np.flatnonzero(np.isin(even, known))
    lesson, taught = seen.take(2 * useful), np.searchsorted(known, even[useful])
    name = chosen(lesson, taught, prior[known])
    logs[:, known] = ATTACKS[name](lesson, taught, asked)
    return logs, name


def chosen(lesson: Seen, world: Whole, prior: Real) -> str:
    """The name of the attack that is right most often about each part of the reference models, taught by the others."""
    from sklearn.model_selection import StratifiedKFold

    names = [name for name in ATTACKS if ATTACKS[name] is not pairwise_ratios or lesson.confidences.shape[1]]
    if np.bincount(world).min() < FOLDS:
        return names[0]
    right = {name: np.zeros(len(world)) for name in names}
    for teaching, asked in StratifiedKFold(FOLDS).split(np.zeros(len(world)), world):
        for name in names:
            logs = ATTACKS[name](lesson.take(teaching), world[teaching], lesson.take(asked))
            right[name][asked] = np.argmax(logs + np.log(prior), axis=1) == world[asked]
    best = max(names, key=lambda name: float(right[name].sum()))
    gain = right[best] - right[names[0]]
    return best if gain.sum() > SURER * np.sqrt((gain**2).sum()) else names[0]


def _standardised(lesson: Real, asked: Real) -> tuple[Real, Real]:
    """Mean 0 and deviation 1 in the lesson."""
    centre, deviation = lesson.mean(axis=0), lesson.std(axis=0)
    scale = np.where(deviation > 0.0, deviation, 1.0)
    return (lesson - centre) / scale, (asked - centre) / scale


def _own_gaussians(lesson: Real, world: Whole, asked: Real) -> Real:
    """The log-density of each world's Gaussian, whose covariance is shrunk as Ledoit and Wolf (2004) say."""
    from sklearn.covariance import ledoit_wolf

    known, unknown = _standardised(lesson, asked)
    logs = []
    for number in range(int(world.max()) + 1):
        own = known[world == number]
        centre = own.mean(axis=0)
        covariance = ledoit_wolf(own - centre, assume_centered=True)[0]
        spread, axes = np.linalg.eigh(covariance)
        spread = np.maximum(spread, 1e-6)  # of the unit: a feature that is constant in one world decides nearly alone
        away = (unknown - centre) @ axes
        logs.append(-0.5 * ((away**2 / spread).sum(axis=1) + np.log(spread).sum()))
    return np.stack(logs, axis=1)


def _beaten(ratios: Real, candidates: int) -> Real:
    """For each model and candidate, the log-odds of the share of the population that the candidate beats."""
    population = ratios[:, None, candidates:]
    beaten = (ratios[:, :candidates, None] >= population).sum(axis=2)
    return np.asarray(logit((beaten + 0.5) / (population.shape[2] + 1.0)))
