"""Games on the mechanism itself: outputs of the worst-case pair of gradients, and the best attacker there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from betastar import validation
from betastar.audit import intervals
from betastar.audit.mechanism_audit import other_kinds
from betastar.audit.mechanism_audit.worst_pairs import attacks, play, strongest
from betastar.audit.parallel import jobs_of, seed_of, spread
from betastar.audit.results import Audit, AuditSetting, judge
from betastar.dpsgd import DPSGD, Segment
from betastar.threats import Membership, Threat

#: Widest interval of the advantage that is worth having, unless another is asked for.
WIDTH = 0.2
#: Steps that one chunk of games plays, and the fewest and most games in it. Each chunk has its own seed, so that results do not
#: depend on which process plays it.
CHUNK, FEWEST, MOST = 1 << 22, 16, 1 << 12


def mechanism(
    run: DPSGD,
    threat: Threat | None = None,
    games: int = 100_000,
    seed: int | None = None,
    confidence: float = 0.95,
    jobs: int = 1,
    tell: Callable[[int, int], None] | None = None,
    *,
    prior: float = 0.5,
    width: float = WIDTH,
    actual: DPSGD | None = None,
) -> Audit:
    """Play the game of a threat many times, and compare the attacker's success with the bound.

    The gradients are the worst-case pair, and the attacker sees every step and weighs both worlds by their likelihood. No
    attacker does better, so the measured success meets the exact one. Where only bounds are known of a sampling, the strongest
    attack that is known to exist is played.

    Parameters
    ----------
    run : DPSGD
        What was run.
    threat : Threat, optional
        Who attacks; membership inference by substitution by default.
    games : int
        The number of games.
    seed : int, optional
        Drawn and reported by default.
    confidence : float
        The confidence of all intervals.
    jobs : int
        The number of processes, -1 for all cores. The result does not depend on it.
    tell : callable, optional
        Called with the number of games played and the number of all games.
    prior : float
        The probability of the positive world.
    width : float
        The widest interval of the advantage that is accepted.
    actual : DPSGD, optional
        What was really run, if that is not what `run` claims; attacker and bound go by the claim. This shows which faults an
        audit of so many games would find.

    Returns
    -------
    Audit
        The measured success beside the bound.

    Raises
    ------
    ValueError
        If an argument is not allowed, or the games are too few for the width.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> run = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.05, steps=100)
    >>> result = audit.mechanism(run, games=2000, seed=1)
    >>> result.violated, result.bound.estimate in result.advantage
    (False, True)
    >>> audit.mechanism(run, games=2000, seed=1, actual=bs.DPSGD(0.5, 0.05, 100)).violated
    True
    """
    threat = Membership() if threat is None else threat
    confidence = validation.probability("confidence", confidence, strict=True)
    prior = validation.probability("prior", prior, strict=True)
    jobs = jobs_of(jobs)
    width = validation.numbers("width", width, "greater than 0 and below 2", low=0.0, high=2.0, open_low=True, open_high=True)
    seed = seed_of(seed)
    games = intervals.enough_games(games, width, min(prior, 1.0 - prior), confidence)
    if isinstance(run, DPSGD) and run.shape:
        raise ValueError(f"run must be one run, got a sweep of shape {run.shape}; audit its runs one by one.")
    setting = AuditSetting(run, threat, prior, confidence, seed)
    _ = setting.bound  # what cannot be analysed is refused before the games
    views = attacks(run, threat)
    number, pair = strongest(views, prior)
    believed, real = views[number].every, attacks(same_steps(run, actual), threat)[number].every
    size = min(max(CHUNK // sum(other_kinds.numbers(step) for step in believed), FEWEST), MOST)
    sizes = [size] * (games // size) + [games % size] * (games % size > 0)
    seeds = np.random.SeedSequence(seed).spawn(len(sizes))
    chunks = [(believed, real, pair, prior, number, own) for number, own in zip(sizes, seeds, strict=True)]
    parts, done = [], 0
    for part in spread(play, chunks, jobs):
        parts.append(part)
        done += len(part[0])
        if tell is not None:
            tell(done, games)
    positive, evidence, ties = (np.concatenate(column) for column in zip(*parts, strict=True))
    return judge(setting, positive, evidence, ties, pair.name)


def same_steps(run: DPSGD, actual: DPSGD | None) -> DPSGD:
    """What was really run: the claimed run, or another one with as many steps."""
    if actual is None:
        return run
    if not isinstance(actual, DPSGD) or [_shape(s) for s in actual.segments] != [_shape(s) for s in run.segments]:
        raise ValueError(
            f"actual must be a DPSGD with as many segments and steps as run, {run!r}, and of the same sampling, got {actual!r}."
        )
    return actual


def _shape(segment: Segment) -> tuple[int, str, bool]:
    return segment.steps, segment.sampling, segment.max_batch_size is None
