"""Games on real training: the user's model, data and code, attacked from three places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from betastar import validation
from betastar.arrays import Real
from betastar.audit import intervals
from betastar.audit.leakage_estimate import FEWEST, Leakage, leakage
from betastar.audit.mechanism_audit.games import jobs_of, seed_of, spread
from betastar.audit.results import ALARM, Audit, advantage_bound, judge, judge_many
from betastar.audit.training_audit import one_game
from betastar.audit.training_audit.attackers import AuditError
from betastar.audit.training_audit.challenges import Worlds, worlds
from betastar.audit.training_audit.fault_statistics import statistics
from betastar.audit.training_audit.game_folder import Kept, digest
from betastar.audit.training_audit.one_game import Factory, Replay, Train
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import FARTHEST, AttributeInference, Membership, Threat
from betastar.training import Secret

#: Where an attacker stands: who sees every update, who holds the final weights, who can only ask the final model.
UPDATES, WEIGHTS, OUTPUTS = "updates", "weights", "outputs"
#: Widest interval of the advantage that is worth having, unless another is asked for.
WIDTH = 0.25
#: Games that are kept in one file, and played in one go.
CHUNK = 10


@dataclass(frozen=True)
class Trials:
    """One audit for each place that an attacker stands at: "updates" (during training), "weights", "outputs" (afterwards).

    leakage: a nearest-neighbour estimate of what the final model's outputs tell, without a model of the attack.
    beyond: distance between the candidates' clipped gradients, where it was larger than that of the bound.
    """

    challenge: str
    audits: dict[str, Audit]
    leakage: Leakage | None
    beyond: float | None = None

    def __getitem__(self, place: str) -> Audit:
        return self.audits[place]

    @property
    def p_value(self) -> float:
        """That of the strongest attacker, times the number of attackers: a union bound."""
        return min(1.0, len(self.audits) * min(audit.p_value for audit in self.audits.values()))

    @property
    def violated(self) -> bool:
        return self.p_value < ALARM

    @property
    def sentence(self) -> str:
        text = min(self.audits.values(), key=lambda audit: audit.p_value).told(self.p_value)
        if self.violated and self.beyond is not None:
            text += (
                f" But the bound is for a smaller distance than the challenge's gradients have, {self.beyond:.3g} clipping "
                "norms: unless gap clipping enforces it, it is this distance that is refuted."
            )
        return text

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": "training",
            "challenge": self.challenge,
            "sentence": self.sentence,
            "p_value": self.p_value,
            "violated": self.violated,
            "beyond": self.beyond,
            "audits": {place: audit.as_dict() for place, audit in self.audits.items()},
            "leakage": None if self.leakage is None else self.leakage.as_dict(),
        }


def training(
    factory: Factory,
    train: Train,
    data: Any,
    run: DPSGD | Callable[[int], DPSGD],
    threat: Threat | None = None,
    *,
    max_grad_norm: float,
    challenge: Any = "canary",
    secret: Secret | None = None,
    values: Sequence[Any] | None = None,
    criterion: Any = None,
    games: int = 400,
    seed: int | None = None,
    confidence: float = 0.95,
    prior: float | Sequence[float] = 0.5,
    width: float = WIDTH,
    references: int = 512,
    loss_reduction: str = "mean",
    jobs: int = 1,
    folder: str | Path | None = None,
    depends: Mapping[str, Any] | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Trials:
    """Train many times by the user's own code, each time in a world drawn at random, and see how often attackers find out which.

    factory() makes a new, plain model; train(model, data) trains it in place (make_private inside it). Both are called once a
    game, with randomness of their own. run: what the training claims to be, or a function of the number of records.
    threat: membership by substitution unless given, or attribute inference if there is a secret (then the bound is for the
    distances of the threat, 2 unless given).

    challenge: "canary" (a record whose gradient has the full clipping norm and a weight of its own: the worst case), the number
    of a record in the data, or the record itself. The most exposed record: `monitor.ledger.most_exposed(1)[0].record`.
    values: those values of the secret that the attacker hesitates between, all unless given. prior: probability of the
    positive world, or of each value. criterion: as in training (cross entropy unless given), for what attackers compute.

    Attackers: "updates" weighs both worlds by the likelihood of every update along the challenge's gradients, and also tries
    statistics for trainings that are not what they claim; "weights" and "outputs" learn from the even games (shadow runs) and are
    measured in the odd ones. references: records, drawn anew at every step, from which the attacker estimates what the others
    contribute; 0: it does not.

    A canary shows what clipping and noise do to its own weight: code that gives out something else besides is not seen by it,
    and where each layer is clipped by itself its push is less than the worst. Play with records of the data, too.

    jobs: processes, -1 for all cores. folder: where games are kept, so that an audit that was interrupted goes on, and one with
    more games begins where the last one ended; decide on their number before you look, as the p-value does not know of a second
    look. Code can be compared in part only: depends tells what else the games depend on (a learning rate, a version; as JSON).
    Games that depend on something else are not taken for these. tell: called with the games played and their number.
    """
    run = one_game.claimed(run, data)
    if threat is None:
        threat = Membership() if secret is None else AttributeInference(FARTHEST)
    validation.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm, jobs = float(validation.positive("max_grad_norm", max_grad_norm)), jobs_of(jobs)
    references = validation.whole("references", references, low=0)
    confidence = validation.probability("confidence", confidence, strict=True)
    one_game.check(factory)
    kept = None if folder is None else Kept(Path(folder))
    seed = seed_of(kept.seed if kept is not None and seed is None else seed)
    found = worlds(data, threat, challenge, secret, values, seed)
    chances = priors(prior, found)
    needed = intervals.games_needed(width * min(1.0, 2.0 * (1.0 - max(chances))), confidence)
    games = validation.whole("games", games)
    if games < needed:
        raise validation.wrong(
            "games",
            f"must be at least {needed} for an interval of the advantage no wider than {width:g} at confidence "
            f"{confidence:g}, got {games}.",
        )
    batch = _batch(found, run) if loss_reduction == "mean" else 1
    game = Replay(factory, train, found, run, criterion or nn.CrossEntropyLoss(), norm, batch / norm, references)
    if kept is not None:
        claim = {"run": repr(run), "threat": threat.describe(), "challenge": found.title, "prior": list(chances), "seed": seed}
        claim |= {"records": len(data), "max_grad_norm": norm, "references": references, "loss_reduction": loss_reduction}
        claim |= {"values": [str(label) for label in found.labels], "weights": one_game.size(factory)}
        claim |= {"code": digest([factory, train], found), **(depends or {})}
        kept.claim(claim)
    seen = []
    for part in _chunks(game, chances, games, seed, jobs, kept):
        seen.append(part)
        _check_hits(game, seen)
        if tell is not None:
            tell(min(sum(len(one["world"]) for one in seen), games), games)
    columns = {name: np.concatenate([part[name] for part in seen])[:games] for name in seen[0]}
    about: dict[str, Any] = {"run": run, "threat": threat, "confidence": confidence, "seed": seed}
    distance = max(step.distance for step in threat.steps(run))
    beyond = float(columns["farthest"].max()) if secret is not None else 0.0
    return Trials(
        found.title, *_verdicts(columns, found, chances, about), beyond if beyond > 1.000001 * distance + 1e-6 else None
    )


def _batch(found: Worlds, run: DPSGD) -> int:
    """The batch size that Opacus expects and divides by; it must not tell in which world it is."""
    size, rate = len(found.data), one_game.rate_of(run)
    batches = [max(1, int(number * rate + 1e-9)) for number in {size, size - 1 if None in found.candidates else size}]
    if len(set(batches)) > 1:
        raise AuditError(
            "data must have a number of records at which Opacus expects the same batch size when one is removed: it divides by "
            f"the whole part of records times rate, which changes between {size - 1} and {size} and so tells membership. Leave a "
            "few records out, or choose a canary as challenge."
        )
    return batches[0]


def priors(prior: Any, found: Worlds) -> tuple[float, ...]:
    """Probability of each world."""
    number = len(found)
    if np.ndim(prior) == 0:
        first = float(validation.probability("prior", prior, strict=True))
        if number == 2:
            return (first, 1.0 - first)
        if first != 0.5:
            raise validation.wrong("prior", f"must be one number for each of the {number} values, got {prior!r}.")
        return (1.0 / number,) * number
    chances = tuple(float(one) for one in validation.probability("prior", prior, strict=True))
    if len(chances) != number or abs(sum(chances) - 1.0) > 1e-6:
        raise validation.wrong("prior", f"must be {number} numbers that add up to 1, got {list(prior)!r}.")
    return tuple(chance / sum(chances) for chance in chances)


def _chunks(
    game: Replay, chances: tuple[float, ...], games: int, seed: int, jobs: int, kept: Kept | None
) -> Iterator[dict[str, Real]]:
    """In order: those that are kept, and those that are played."""
    number = -(-games // CHUNK)
    there = {i: kept.read(i) for i in range(number) if kept is not None and kept.path(i).exists()}
    todo = [(game, chances, seed, i, kept) for i in range(number) if i not in there]
    played = spread(_play if jobs == 1 else _alone, todo, jobs)
    for i in range(number):
        yield there[i] if i in there else next(played)


def _alone(*arguments: Any) -> dict[str, Real]:
    torch.set_num_threads(1)
    return _play(*arguments)


def _play(game: Replay, chances: tuple[float, ...], seed: int, chunk: int, kept: Kept | None) -> dict[str, Real]:
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk,)))
    drawn = random.choice(len(chances), size=CHUNK, p=chances)
    seen = [game.play(int(world), int(own)) for world, own in zip(drawn, random.integers(2**62, size=CHUNK), strict=True)]
    names = ("world", "evidence", "trace", "white", "black", "hits", "farthest")
    columns = {name: np.array([getattr(one, name) for one in seen]) for name in names}
    if kept is not None:
        kept.write(chunk, columns)
    return columns


def _check_hits(game: Replay, seen: list[dict[str, Real]]) -> None:
    """A canary that the model never sees says nothing."""
    if game.worlds.marks is None:
        return
    hits = sum(int(part["hits"].sum()) for part in seen)
    there = [np.isin(part["world"], game.worlds.marked).sum() for part in seen]
    one_game.check_hits(hits, one_game.rate_of(game.run) * float(game.run.steps) * float(sum(there)))


def _verdicts(
    columns: dict[str, Real], found: Worlds, chances: tuple[float, ...], about: dict[str, Any]
) -> tuple[dict[str, Audit], Leakage | None]:
    world = columns["world"].astype(int)
    if len(found) > 2:
        audits = {UPDATES: judge_many(world, columns["evidence"], prior=chances, pair=UPDATES, **about)}
        for place in (WEIGHTS, OUTPUTS):
            learned = learn(columns[_COLUMN[place]], world, len(found))
            audits[place] = judge_many(world[1::2], learned, prior=chances, pair=place, **about)
    else:
        positive = world == 0
        bound = advantage_bound(about["run"], about["threat"], chances[0])
        ties = np.random.default_rng(about["seed"]).random(len(world))
        evidence = columns["evidence"][:, 0] - columns["evidence"][:, 1]
        others = statistics(columns["trace"], positive, about["run"])
        fixed: dict[str, Any] = {"bound": bound, "prior": chances[0], **about}
        audits = {UPDATES: judge(positive, evidence, ties, others=others, pair=UPDATES, **fixed)}
        for place in (WEIGHTS, OUTPUTS):
            if columns[_COLUMN[place]].shape[1]:
                learned = learn(columns[_COLUMN[place]], world, 2)
                audits[place] = judge(positive[1::2], learned[:, 0] - learned[:, 1], ties[1::2], pair=place, **fixed)
    asked = columns["black"]
    if not asked.shape[1] or len(asked) < 2 * FEWEST:
        return audits, None
    width = 1.0 / (1.0 - max(chances))  # any: the interval is told
    return audits, leakage(world, asked, prior=chances, confidence=about["confidence"], width=width)


_COLUMN = {WEIGHTS: "white", OUTPUTS: "black"}


def learn(features: Real, world: np.ndarray, number: int) -> Real:
    """Log-likelihood of each world in the odd games, by Gaussians with a common covariance that the even games teach."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    centre, spread = features[::2].mean(axis=0), features[::2].std(axis=0)
    scaled = (features - centre) / np.where(spread > 0.0, spread, 1.0)
    known = np.unique(world[::2])
    found = np.full((len(world) // 2, number), -1e3)
    if len(known) < 2:
        found[:, known] = 0.0
        return found
    attacker = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=np.full(len(known), 1.0 / len(known)))
    found[:, known] = attacker.fit(scaled[::2], world[::2]).predict_log_proba(scaled[1::2])
    return found
