"""Games on the mechanism itself: outputs of the worst-case pair of gradients, and the best attacker there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from betastar import validation
from betastar.audit import intervals
from betastar.audit.one_run_curve import ClaimedCurve, curve_p_value
from betastar.audit.one_run_verdict import FEWEST, OneRun, judge_run, planned_guesses, right_guesses
from betastar.audit.parallel import jobs_of, seed_of, spread
from betastar.audit.results import Audit, AuditSetting, judge
from betastar.dpsgd import DPSGD, Segment
from betastar.exact import LEAST_NOISE, FourierCurve
from betastar.sequences import StepSequence
from betastar.steps import AllocationStep, MixtureStep, UnequalStep
from betastar.steps.base import Family, Step
from betastar.steps.poisson import PoissonFactor, PoissonStep, condense, factors, log_mixture
from betastar.threats import FARTHEST, Membership, Threat, reduction
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
    setting = AuditSetting(run, threat, prior, confidence, seed)
    _ = setting.bound  # what cannot be analysed is refused before the games
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
    return judge(setting, positive, evidence, ties, pair.name)


def _one_search(release: BestOf) -> tuple[DPSGD, Trials]:
    """The run and the law of a search that can be played."""
    if len(release.parts) != 1 or release.then is not None or len(release.parts[0].runs) != 1:
        raise ValueError(f"run must be one search with one run, to be played, got {release!r}.")
    return release.parts[0].runs[0], release.parts[0].trials


def same_steps(run: DPSGD, actual: DPSGD | None) -> DPSGD:
    """What was really run: the claimed run, or another one with as many steps."""
    if actual is None:
        return run
    if not isinstance(actual, DPSGD) or [_shape(s) for s in actual.segments] != [_shape(s) for s in run.segments]:
        raise ValueError(
            f"actual must be a DPSGD with as many segments and steps as run, {run!r}, and of the same sampling, got {actual!r}."
        )
    return actual


def _shape(segment: Segment) -> tuple[int, str, bool, int]:
    return segment.steps, segment.sampling, segment.max_batch_size is None, segment.times_per_epoch


# --- The worlds that a game is played in: where the challenge's gradient points in each of them, step by step
#
# In units of the clipping norm, one step shows y = ξ·a + σz in the positive world and y = ξ·b + σz in the other, where ξ = 1
# with probability p (theory, sections 1 and 2). Both pairs below attain ‖a‖, ‖b‖ ≤ 1 and ‖a - b‖ = R. Other samplings, and
# several records of a person, are played as the attacks on them that exist (theory, sections 12 to 15), `threats.reduction`.

Place = tuple[float, ...]
#: Numbers drawn at once: they fit the cache, and bound the memory whatever the number of steps.
BLOCK = 1 << 16
#: Less noise than this is as good as none.
QUIETEST = 1e-100


def on_a_line(distance: float) -> tuple[Place, Place]:
    """a = 1, b = 1 - R: substitution at R = 2, add or remove at R = 1."""
    return (1.0,), (1.0 - distance,)


def side_by_side(distance: float) -> tuple[Place, Place]:
    """‖a‖ = ‖b‖ = 1 and a·b = 1 - R²/2, in the plane."""
    along, across = sqrt(max(0.0, 1.0 - 0.25 * distance * distance)), 0.5 * distance
    return (along, across), (along, -across)


@dataclass(frozen=True)
class Pair:
    """A pair of worlds for every distance.

    Attributes
    ----------
    name : str
        What the pair is called.
    places : callable
        The clipped gradients a and b of the challenge for a distance.
    family : "line" or "symmetric"
        The family of pairs that it belongs to.
    exchanged : bool
        Whether the world of b is the positive one.
    """

    name: str
    places: Callable[[float], tuple[Place, Place]]
    family: Family
    exchanged: bool = False

    def worlds(self, distance: float) -> tuple[Place, Place]:
        a, b = self.places(distance)
        return (b, a) if self.exchanged else (a, b)

    def curve(self, steps: Sequence[PoissonStep]) -> FourierCurve:
        """The exact trade-off curve of a game with this pair."""
        loud = condense([step.with_min_noise(LEAST_NOISE) for step in steps])
        factors = [PoissonFactor(n, self.family, rate, noise, r, self.exchanged) for n, rate, noise, r in loud]
        return FourierCurve(factors, symmetric=self.family == "symmetric" or all(one.distance == FARTHEST for one in factors))


LINE = Pair("on a line", on_a_line, "line")
SIDE_BY_SIDE = Pair("side by side", side_by_side, "symmetric")
ALIGNED = Pair("aligned", on_a_line, "line")
LINE_EXCHANGED = Pair("on a line, worlds exchanged", on_a_line, "line", exchanged=True)


def worst(steps: Sequence[PoissonStep], symmetric: bool, prior: float) -> Pair:
    """The pair whose best attacker is right most often. Membership has one; a gap has three candidates (theory, section 2)."""
    if not symmetric or all(step.distance == FARTHEST for step in steps):
        return LINE
    pairs = (LINE, SIDE_BY_SIDE) if prior == 0.5 else (LINE, SIDE_BY_SIDE, LINE_EXCHANGED)
    return max(pairs, key=lambda pair: pair.curve(steps).hockey_stick(log((1.0 - prior) / prior)).value)


def attacks(run: DPSGD, threat: Threat) -> list[StepSequence]:
    """The steps of attacks that exist: those of the run, or of what is known to be attained under its sampling."""
    reduced = reduction(threat, run)
    return list(reduced.proved[:1] if reduced.attacks is None else [one for one in reduced.attacks if one.integrable])


def strongest(sequences: Sequence[StepSequence], prior: float) -> tuple[int, Pair]:
    """The number of the attack whose best attacker is right most often, and its pair of gradients."""
    candidates = []
    for i, sequence in enumerate(sequences):
        steps = [step for step in sequence.steps if isinstance(step, PoissonStep)]
        if len(steps) == len(sequence.steps):
            pair = worst(steps, sequence.symmetric, prior)
            curve = pair.curve(steps)
        else:
            pair = ALIGNED
            loud = [step.with_min_noise(LEAST_NOISE) for step in sequence.steps]
            curve = FourierCurve(factors(loud, "glued" if sequence.symmetric else "line"), sequence.symmetric)
        candidates.append((curve.hockey_stick(log((1.0 - prior) / prior)).value if len(sequences) > 1 else 0.0, i, pair))
    _, number, pair = max(candidates, key=lambda candidate: candidate[0])
    return number, pair


def play(
    believed: Sequence[Step],
    actual: Sequence[Step],
    pair: Pair,
    prior: float,
    games: int,
    seed: np.random.SeedSequence,
    trials: Trials | None = None,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Play `games` games: the world of each, the attacker's evidence log P/Q over all steps, and a number that breaks ties.

    Outputs are drawn from the actual steps; the attacker weighs them by those that they believe in. Both have the same counts.
    trials: of each game, this many models are trained, and the one with the largest |log P/Q| is seen.
    """
    generator = np.random.default_rng(seed)
    positive = generator.random(games) < prior
    if trials is None:
        evidence = _evidence(believed, actual, pair, positive, generator)
    else:
        numbers = np.array([trials.draw(generator) for _ in range(games)])
        game = np.repeat(np.arange(games), numbers)
        every = _evidence(believed, actual, pair, positive[game], generator)
        order = np.lexsort((np.abs(every), game))
        evidence = np.zeros(games)  # nothing is seen if no model is trained
        evidence[game[order]] = every[order]  # the last one of each game, which is the largest, stays
    return positive, evidence, generator.random(games)


def _evidence(
    believed: Sequence[Step], actual: Sequence[Step], pair: Pair, positive: NDArray[Any], generator: np.random.Generator
) -> NDArray[Any]:
    """The attacker's evidence in games with these worlds."""
    games = len(positive)
    evidence = np.zeros(games)
    for claim, truth in zip(believed, actual, strict=True):
        if not isinstance(claim, PoissonStep) or not isinstance(truth, PoissonStep):
            evidence += evidence_of_other_kinds(claim, truth, positive, generator)
            continue
        a, b = pair.worlds(truth.distance)
        mean = np.where(positive, np.array(a)[:, None], np.array(b)[:, None])[:, None, :]
        at_once = max(1, BLOCK // max(games * len(a), 1))
        for start in range(0, truth.count, at_once):
            steps = min(at_once, truth.count - start)
            # Equal steps may change places without changing the evidence: those that sample the challenge come first.
            sampled = np.arange(steps)[:, None] < generator.binomial(steps, truth.rate, games)
            output = generator.standard_normal((len(a), steps, games))
            output *= truth.noise
            output += mean * sampled
            evidence += loss(output, claim, pair).sum(axis=0)
    return evidence


def loss(output: NDArray[Any], step: PoissonStep, pair: Pair) -> NDArray[Any]:
    """log P/Q of one step's output, whose coordinates are on the first axis."""
    a, b = (_log_against_noise(output, place, step) for place in pair.worlds(step.distance))
    return a - b


def _log_against_noise(output: NDArray[Any], place: Place, step: PoissonStep) -> NDArray[Any]:
    """log of (1-p)N(0,σ²) + pN(a,σ²) over N(0,σ²): log(1 - p + p·e^{(a·y - ‖a‖²/2)/σ²})."""
    variance = max(step.noise, QUIETEST) ** 2
    along = sum(output[i] * (coordinate / variance) for i, coordinate in enumerate(place))
    return log_mixture(along - 0.5 * sum(c * c for c in place) / variance, step.rate)


# --- Steps that are not those of one record with Poisson sampling: several records of a person, and epochs in bins

#: Numbers drawn at once: bounds the memory, whatever the number of steps and batches.
LARGE_BLOCK = 1 << 20


def evidence_of_other_kinds(claim: Step, truth: Step, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """log P/Q over all steps of this kind, for each game: outputs are drawn from `truth`, and weighed by `claim`."""
    if isinstance(claim, MixtureStep) and isinstance(truth, MixtureStep):
        return _mixtures(claim, truth, positive, generator)
    if isinstance(claim, AllocationStep) and isinstance(truth, AllocationStep):
        return _epochs(claim, truth, positive, generator)
    if isinstance(claim, UnequalStep) and isinstance(truth, UnequalStep):
        return _unequal(claim, truth, positive, generator)
    raise ValueError(f"actual must have the sampling and the records of run: {truth!r} cannot be played for {claim!r}.")


def number_of_outputs(step: Step) -> int:
    """How many outputs the steps of this kind have."""
    return step.count * step.batches if isinstance(step, AllocationStep) else step.count


def _mixtures(claim: MixtureStep, truth: MixtureStep, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Each step shows a random one of the shifts, or in the other world its mirror image or nothing, and noise."""
    shifts, chances = np.array(truth.shifts), np.array(truth.weights)
    sign = np.where(positive, 1.0, -1.0 if truth.mirrored else 0.0)
    total = np.zeros(len(positive))
    at_once = max(1, LARGE_BLOCK // (len(positive) * len(claim.shifts)))
    for start in range(0, truth.count, at_once):
        size = (min(at_once, truth.count - start), len(positive))
        output = sign * generator.choice(shifts, size, p=chances / chances.sum())
        output += truth.noise * generator.standard_normal(size)
        total += (_against_noise(output, claim) - (_against_noise(-output, claim) if claim.mirrored else 0.0)).sum(axis=0)
    return total


def _against_noise(output: NDArray[Any], step: MixtureStep) -> NDArray[Any]:
    """log of Σ_j w_j N(s_j, σ²) over N(0, σ²)."""
    shifts, variance = np.array(step.shifts), step.noise**2
    terms = (np.multiply.outer(output, shifts) - 0.5 * shifts**2) / variance
    answer: NDArray[Any] = logsumexp(terms, b=np.array(step.weights), axis=-1)
    return answer


def _unequal(claim: UnequalStep, truth: UnequalStep, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Each step shows noise, moved by one record or the other if that is drawn."""
    rate, place = np.where(positive, truth.rate, truth.other_rate), np.where(positive, truth.norm, -truth.other_norm)
    total = np.zeros(len(positive))
    at_once = max(1, LARGE_BLOCK // len(positive))
    for start in range(0, truth.count, at_once):
        size = (min(at_once, truth.count - start), len(positive))
        output = place * (generator.random(size) < rate) + truth.noise * generator.standard_normal(size)
        total += claim.loss(output).sum(axis=0)
    return total


def _epochs(claim: AllocationStep, truth: AllocationStep, positive: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """One batch of each epoch, drawn at random, is moved; the others show noise."""
    games = len(positive)
    sign = np.where(positive, 1.0, -1.0 if truth.mirrored else 0.0)
    total = np.zeros(games)
    at_once = max(1, LARGE_BLOCK // max(truth.batches, 1))
    for _ in range(truth.count):
        for start in range(0, games, at_once):
            some = slice(start, min(start + at_once, games))
            number = some.stop - start
            output = truth.noise * generator.standard_normal((number, truth.batches))
            output[np.arange(number), generator.integers(truth.batches, size=number)] += sign[some]
            along = output / claim.noise**2
            ahead = logsumexp(along, axis=1)
            total[some] += ahead - (logsumexp(-along, axis=1) if claim.mirrored else log(claim.batches) + 0.5 / claim.noise**2)
    return total


# --- One run with many canaries, each in directions of its own


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
        self._believed, self._real = views[which].steps, attacks(same_steps(run, actual), threat)[which].steps

    def play(self, stream: np.random.SeedSequence) -> tuple[NDArray[Any] | NDArray[Any], NDArray[Any]]:
        """Play one run: the world or the value of each canary, and the attacker's scores."""
        if self.values is not None:
            return _play_values(self._believed, self._real, self.values, self.number, stream)
        truth, scores, _ = play(self._believed, self._real, self._pair, 0.5, self.number, stream)
        return truth, scores


def corners(distance: float, values: int) -> NDArray[Any]:
    """`values` gradients of norm 1, each two of them at this distance, or as far from each other as norm 1 allows."""
    around = distance / sqrt(2.0) * (np.eye(values) - 1.0 / values)
    radius = distance * sqrt(0.5 * (values - 1) / values)
    along = np.full((values, 1), sqrt(max(0.0, 1.0 - radius * radius)))
    return np.hstack([along, around / max(1.0, radius)])


def _play_values(
    believed: Sequence[Step], actual: Sequence[Step], values: int, canaries: int, stream: np.random.SeedSequence
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The value of each canary, and the attacker's evidence for each value over all steps."""
    generator = np.random.default_rng(stream)
    truth = generator.integers(0, values, canaries)
    evidence = np.zeros((canaries, values))
    for claim, real in zip(believed, actual, strict=True):
        if not isinstance(claim, PoissonStep) or not isinstance(real, PoissonStep):
            raise ValueError(f"values must be left out unless the sampling is Poisson's, got {values}.")
        places, variance = corners(claim.distance, values), max(claim.noise, QUIETEST) ** 2
        shown = corners(real.distance, values)[truth]
        for _ in range(real.count):
            output = generator.standard_normal(shown.shape) * real.noise
            output += shown * (generator.random((canaries, 1)) < real.rate)
            evidence += log_mixture((output @ places.T - 0.5 * np.sum(places**2, axis=1)) / variance, claim.rate)
    return truth, evidence


# --- How often an audit in one run finds a fault, and how often it accuses a correct run


def one_run_p_values(
    run: DPSGD,
    canaries: int,
    audits: int = 100,
    seed: int = 0,
    actual: DPSGD | None = None,
    threat: Threat | None = None,
    values: int | None = None,
) -> NDArray[Any]:
    """The p-values of many audits in one run of the mechanism.

    Parameters
    ----------
    run : DPSGD
        What is claimed.
    canaries : int
        The number of canaries of each audit.
    audits : int
        The number of audits.
    seed : int
        The seed of all audits together.
    actual : DPSGD, optional
        What was really run, if that is not what is claimed.
    threat : Threat, optional
        What a canary changes; adding or removing a record by default.
    values : int, optional
        The number of values of a canary, as for `one_run_mechanism`.

    Returns
    -------
    array of float
        A p-value for each audit.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> claimed, real = bs.DPSGD(2.0, 1.0, 1), bs.DPSGD(0.5, 1.0, 1)
    >>> float((audit.one_run_p_values(claimed, canaries=1000, audits=10, actual=real) < audit.ALARM).mean())
    1.0
    """
    audits = validation.one_whole("audits", audits)
    threat = Membership("add-remove") if threat is None else threat
    played = MechanismCanaries(run, threat, canaries, values, actual)
    claim, choices = ClaimedCurve.of_run(run, threat), 2 if values is None else values
    guesses = planned_guesses(claim, played.number, choices)
    rights = []
    for stream in np.random.SeedSequence(validation.seed(seed)).spawn(audits):
        truth, scores = played.play(stream)
        rights.append(right_guesses(scores, truth, guesses))
    known = {right: curve_p_value(right, guesses, played.number, claim, choices) for right in set(rights)}
    return np.array([known[right] for right in rights])
