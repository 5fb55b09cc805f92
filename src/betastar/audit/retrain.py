"""Games on real training: the user's model, data and code, attacked from three places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from betastar import checks
from betastar.arrays import Real
from betastar.audit import intervals, replay
from betastar.audit.games import jobs_of, seed_of, spread
from betastar.audit.neighbours import FEWEST, Leakage, leakage
from betastar.audit.replay import AuditError, Factory, Replay, Train
from betastar.audit.suspicion import statistics
from betastar.audit.verdict import ALARM, Audit, advantage_bound, judge, judge_many
from betastar.audit.worlds import Worlds, worlds
from betastar.run import DPSGD
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat
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
    """

    challenge: str
    audits: dict[str, Audit]
    leakage: Leakage | None

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
        worst = min(self.audits.values(), key=lambda audit: audit.p_value)
        if self.violated != worst.violated:
            return f"No violation: p-value {self.p_value:.3f} over {len(self.audits)} attackers."
        return worst.sentence

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": "training",
            "challenge": self.challenge,
            "sentence": self.sentence,
            "p_value": self.p_value,
            "violated": self.violated,
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

    jobs: processes, -1 for all cores. folder: where games are kept, so that an audit that was interrupted goes on, and one with
    more games begins where the last one ended. The code of a training cannot be compared: depends tells what else its
    games depend on (a learning rate, a version; as JSON), and games that depend on something else are not taken for these. tell:
    called with the games played and their number.
    """
    run = replay.claimed(run, data)
    if threat is None:
        threat = Membership() if secret is None else AttributeInference(FARTHEST)
    checks.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm, jobs = float(checks.positive("max_grad_norm", max_grad_norm)), jobs_of(jobs)
    references = checks.whole("references", references, low=0)
    confidence = checks.probability("confidence", confidence, strict=True)
    replay.check(factory)
    kept = None if folder is None else Kept(Path(folder))
    seed = seed_of(kept.seed if kept is not None and seed is None else seed)
    found = worlds(data, threat, challenge, secret, values, seed)
    chances = priors(prior, found)
    needed = intervals.games_needed(width * min(1.0, 2.0 * (1.0 - max(chances))), confidence)
    games = checks.whole("games", games)
    if games < needed:
        raise ValueError(
            f"games must be at least {needed} for an interval of the advantage no wider than {width:g} at confidence "
            f"{confidence:g}, got {games}."
        )
    rate = float(np.mean([segment.sample_rate for segment in run.segments]))
    batch = max(1, int(len(data) * rate + 1e-9)) if loss_reduction == "mean" else 1
    game = Replay(factory, train, found, run, criterion or nn.CrossEntropyLoss(), norm, batch / norm, references)
    if kept is not None:
        claim = {"run": repr(run), "threat": threat.describe(), "challenge": found.title, "prior": list(chances), "seed": seed}
        claim |= {"records": len(data), "max_grad_norm": norm, "references": references, "loss_reduction": loss_reduction}
        claim |= {"values": [str(label) for label in found.labels], "weights": replay.size(factory), **(depends or {})}
        kept.claim(json.loads(json.dumps(claim)))
    seen = []
    for part in _chunks(game, chances, games, seed, jobs, kept):
        seen.append(part)
        _check_hits(game, seen)
        if tell is not None:
            tell(min(sum(len(one["world"]) for one in seen), games), games)
    columns = {name: np.concatenate([part[name] for part in seen])[:games] for name in seen[0]}
    about: dict[str, Any] = {"run": run, "threat": threat, "confidence": confidence, "seed": seed}
    return Trials(found.title, *_verdicts(columns, found, chances, about))


def priors(prior: Any, found: Worlds) -> tuple[float, ...]:
    """Probability of each world."""
    number = len(found)
    if np.ndim(prior) == 0:
        first = float(checks.probability("prior", prior, strict=True))
        if number == 2:
            return (first, 1.0 - first)
        if first != 0.5:
            raise ValueError(f"prior must be one number for each of the {number} values, got {prior!r}.")
        return (1.0 / number,) * number
    chances = tuple(float(one) for one in checks.probability("prior", prior, strict=True))
    if len(chances) != number or abs(sum(chances) - 1.0) > 1e-6:
        raise ValueError(f"prior must be {number} numbers that add up to 1, got {list(prior)!r}.")
    return chances


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
    names = ("world", "evidence", "trace", "white", "black", "hits")
    columns = {name: np.array([getattr(one, name) for one in seen]) for name in names}
    if kept is not None:
        kept.write(chunk, columns)
    return columns


def _check_hits(game: Replay, seen: list[dict[str, Real]]) -> None:
    """A canary that the model never sees says nothing."""
    if game.worlds.marks is None:
        return
    hits = sum(int(part["hits"].sum()) for part in seen)
    there = [np.isin(part["world"], [i for i, c in enumerate(game.worlds.candidates) if c is not None]).sum() for part in seen]
    expected = sum(segment.sample_rate * segment.steps for segment in game.run.segments) * float(sum(there))
    if hits == 0 and expected > 30.0:  # by chance less than once in 1e13
        raise AuditError(replay.UNSEEN)


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


class Kept:
    """The folder of an audit: what it is about, and its games in files of ten."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = folder / "audit.json"
        self.about: dict[str, Any] | None = json.loads(about.read_text()) if about.exists() else None

    @property
    def seed(self) -> int | None:
        return None if self.about is None else int(self.about["seed"])

    def claim(self, about: dict[str, Any]) -> None:
        """This audit, or none: another one is not written over."""
        if self.about is not None:
            for name, value in about.items():
                if self.about.get(name) != value:
                    kept = self.about.get(name)
                    raise AuditError(f"folder {str(self.folder)!r} holds another audit: its {name} is {kept!r}, not {value!r}.")
            return
        if self.folder.exists() and any(self.folder.iterdir()):
            raise AuditError(f"folder must be new, empty or of an audit, got {str(self.folder)!r}.")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "audit.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    def path(self, chunk: int) -> Path:
        return self.folder / f"games-{chunk:05d}.npz"

    def read(self, chunk: int) -> dict[str, Real]:
        with np.load(self.path(chunk)) as file:
            return {name: file[name] for name in file.files}

    def write(self, chunk: int, columns: dict[str, Real]) -> None:
        partial = self.path(chunk).with_suffix(".partial.npz")
        np.savez(partial, **columns)  # type: ignore[arg-type]
        partial.replace(self.path(chunk))
