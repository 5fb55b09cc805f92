"""One run of the mechanism itself with many canaries, each in directions of its own, and the best attacker there is."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from betastar import validation
from betastar.arrays import Booleans, Real, Whole
from betastar.audit.mechanism_audit.games import same_steps
from betastar.audit.mechanism_audit.worst_pairs import QUIETEST, attacks, play, strongest
from betastar.audit.one_run_audit.guesses import FEWEST
from betastar.audit.one_run_audit.verdict import OneRun, judge_run
from betastar.audit.parallel import seed_of
from betastar.dpsgd import DPSGD
from betastar.scenario.step import AnyStep, Step, log_mixture
from betastar.threats import Membership, Threat


def one_run_mechanism(
    run: DPSGD,
    threat: Threat | None = None,
    canaries: int = 1000,
    *,
    values: int | None = None,
    guesses: int | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int | None = None,
    actual: DPSGD | None = None,
) -> OneRun:
    """Play one run of the mechanism with many canaries, and test the claimed trade-off curve by guesses about them.

    No model is trained. This shows which faults an audit in one run finds, with so many canaries.

    Parameters
    ----------
    run : DPSGD
        What is claimed to have been run.
    threat : Threat, optional
        What a canary changes; adding or removing a record by default.
    canaries : int
        The number of canaries.
    values : int, optional
        The number of values of a canary, whose clipped gradients are as far apart as the threat says. By default, each canary is
        in one of the two worlds of the threat.
    guesses : int, optional
        The number of guesses; by default the number that suits the claim.
    delta : float
        The δ at which ε is bounded.
    confidence : float
        The confidence of the lower bounds.
    seed : int, optional
        Drawn and reported by default.
    actual : DPSGD, optional
        What was really run, if that is not what `run` claims; attacker and claim go by `run`.

    Returns
    -------
    OneRun
        The p-value of the claim, and what is refuted.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> run = bs.DPSGD(noise_multiplier=2.0, sample_rate=0.5, steps=4)
    >>> audit.one_run_mechanism(run, canaries=1000, seed=1).violated
    False
    >>> audit.one_run_mechanism(run, canaries=1000, seed=1, actual=bs.DPSGD(0.6, 0.5, 4)).violated
    True
    """
    threat = Membership("add-remove") if threat is None else threat
    seed = seed_of(seed)
    played = MechanismCanaries(run, threat, canaries, values, actual)
    truth, scores = played.play(np.random.SeedSequence(seed))
    return judge_run(scores, truth, run, threat, delta, confidence, seed, guesses=guesses)


class MechanismCanaries:
    """The canaries of one run of the mechanism.

    Parameters
    ----------
    run, threat, canaries, values, actual : objects
        As for `one_run_mechanism`.
    """

    def __init__(self, run: DPSGD, threat: Threat, canaries: int, values: int | None, actual: DPSGD | None) -> None:
        if not isinstance(run, DPSGD) or run.shape:
            raise ValueError(f"run must be one DPSGD run, got {run!r}.")
        self.number = validation.one_whole("canaries", canaries, FEWEST)
        self.values = None if values is None else validation.one_whole("values", values, 2)
        views = attacks(run, threat)
        which, self._pair = strongest(views, 0.5)
        self._believed, self._real = views[which].every, attacks(same_steps(run, actual), threat)[which].every

    def play(self, stream: np.random.SeedSequence) -> tuple[Booleans | Whole, Real]:
        """Play one run: the world or the value of each canary, and the attacker's scores."""
        if self.values is not None:
            return _play(self._believed, self._real, self.values, self.number, stream)
        truth, scores, _ = play(self._believed, self._real, self._pair, 0.5, self.number, stream)
        return truth, scores


def corners(distance: float, values: int) -> Real:
    """So many gradients of norm 1, each two of them at this distance, or as far from each other as norm 1 allows."""
    around = distance / sqrt(2.0) * (np.eye(values) - 1.0 / values)
    radius = distance * sqrt(0.5 * (values - 1) / values)
    along = np.full((values, 1), sqrt(max(0.0, 1.0 - radius * radius)))
    return np.hstack([along, around / max(1.0, radius)])


def _play(
    believed: Sequence[AnyStep], actual: Sequence[AnyStep], values: int, canaries: int, stream: np.random.SeedSequence
) -> tuple[Whole, Real]:
    """The value of each canary, and the attacker's evidence for each value over all steps."""
    generator = np.random.default_rng(stream)
    truth = generator.integers(0, values, canaries)
    evidence = np.zeros((canaries, values))
    for claim, real in zip(believed, actual, strict=True):
        if not isinstance(claim, Step) or not isinstance(real, Step):
            raise ValueError(f"values must be left out unless the sampling is Poisson's, got {values}.")
        places, variance = corners(claim.distance, values), max(claim.noise, QUIETEST) ** 2
        shown = corners(real.distance, values)[truth]
        for _ in range(real.count):
            output = generator.standard_normal(shown.shape) * real.noise
            output += shown * (generator.random((canaries, 1)) < real.rate)
            evidence += log_mixture((output @ places.T - 0.5 * np.sum(places**2, axis=1)) / variance, claim.rate)
    return truth, evidence
