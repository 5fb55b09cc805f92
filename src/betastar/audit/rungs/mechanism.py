"""Games on the mechanism itself, many of them or one with many canaries: no model is trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from betastar import validation
from betastar.audit.common import jobs_of, seed_of, spread
from betastar.audit.evidence.mechanism import attacks, number_of_outputs, play, play_values, same_steps, strongest
from betastar.audit.verdict import intervals
from betastar.audit.verdict.games import Audit, Claim, judge
from betastar.audit.verdict.one_run import FEWEST, OneRun, judge_run
from betastar.dpsgd import DPSGD
from betastar.threats import Membership, Threat
from betastar.tuning import BestOf, Trials

#: Widest interval of the advantage that is worth having, unless another is asked for.
WIDTH = 0.2
#: Steps that one chunk of games plays, and the fewest and most games in it. Each chunk has its own seed, so that results do not
#: depend on which process plays it.
CHUNK, FEWEST_IN_CHUNK, MOST_IN_CHUNK = 1 << 22, 16, 1 << 12


def mechanism(
    run: DPSGD | BestOf,
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
    attack that is known to exist is played. Of the best of several models (`betastar.best_of`), the score is the worst one at
    even odds: the model wins whose evidence is largest, either way.

    Parameters
    ----------
    run : DPSGD or BestOf
        What was run. Of a BestOf, one search with one run.
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
        audit of that many games would find.

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
    if isinstance(run, DPSGD | BestOf) and run.shape:
        raise ValueError(f"run must be one run, got a sweep of shape {run.shape}; audit its runs one by one.")
    claim = Claim(run, threat, prior, confidence, seed)
    _ = claim.bound  # what cannot be analysed is refused before the games
    one, trials = _one_search(run) if isinstance(run, BestOf) else (run, None)
    views = attacks(one, threat)
    number, pair = strongest(views, prior)
    believed, real = views[number].steps, attacks(same_steps(one, actual), threat)[number].steps
    outputs = sum(number_of_outputs(step) for step in believed) * (1.0 if trials is None else max(1.0, trials.mean))
    size = int(min(max(CHUNK // outputs, FEWEST_IN_CHUNK), MOST_IN_CHUNK))
    sizes = [size] * (games // size) + [games % size] * (games % size > 0)
    seeds = np.random.SeedSequence(seed).spawn(len(sizes))
    chunks = [(believed, real, pair, prior, number, own, trials) for number, own in zip(sizes, seeds, strict=True)]
    parts, done = [], 0
    for part in spread(play, chunks, jobs):
        parts.append(part)
        done += len(part[0])
        if tell is not None:
            tell(done, games)
    positive, evidence, ties = (np.concatenate(column) for column in zip(*parts, strict=True))
    return judge(claim, positive, evidence, ties, pair.name)


def _one_search(release: BestOf) -> tuple[DPSGD, Trials]:
    """The run and the law of a search that can be played."""
    if len(release.parts) != 1 or release.then is not None or len(release.parts[0].runs) != 1:
        raise ValueError(f"run must be one search with one run, to be played, got {release!r}.")
    return release.parts[0].runs[0], release.parts[0].trials


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

    No model is trained. This shows which faults an audit in one run finds, with that many canaries.

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
    if not isinstance(run, DPSGD) or run.shape:
        raise ValueError(f"run must be one DPSGD run, got {run!r}.")
    number, stream = validation.one_whole("canaries", canaries, FEWEST), np.random.SeedSequence(seed)
    views = attacks(run, threat)
    which, pair = strongest(views, 0.5)
    believed, real = views[which].steps, attacks(same_steps(run, actual), threat)[which].steps
    if values is None:
        truth, scores, _ = play(believed, real, pair, 0.5, number, stream)
    else:
        truth, scores = play_values(believed, real, validation.one_whole("values", values, 2), number, stream)
    return judge_run(scores, truth, run, threat, delta, confidence, seed, guesses=guesses)
