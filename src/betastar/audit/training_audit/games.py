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
from betastar.audit.training_audit.challenges import Challenge, challenge_of
from betastar.audit.training_audit.fault_statistics import statistics
from betastar.audit.training_audit.game_folder import GameFolder, digest
from betastar.audit.training_audit.one_game import Factory, Game, Train
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import FARTHEST, AttributeInference, Membership, Threat
from betastar.training import Secret

#: The attackers: one sees every update, one holds the final weights, one can only query the final model.
UPDATES, WEIGHTS, OUTPUTS = "updates", "weights", "outputs"
#: Widest interval of the advantage that is worth having, unless another is asked for.
WIDTH = 0.25
#: Games that are kept in one file, and played in one go.
CHUNK = 10


@dataclass(frozen=True)
class Trials:
    """One audit for each attacker: on every update, on the final weights, on the answers of the final model.

    Attributes
    ----------
    challenge : str
        The record that the games are about.
    audits : dict of str to Audit
        By attacker: "updates", "weights" and "outputs".
    leakage : Leakage or None
        A nearest-neighbour estimate of what the final model's outputs tell, without a model of the attack.
    beyond : float or None
        The distance between the candidates' clipped gradients, where it was larger than that of the bound.
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
    """Train many times by the user's own code, and count how often attackers find out on which data.

    In each game a world is drawn at random: the challenged record is this or that. The attacker on "updates" weighs the worlds by
    the likelihood of every update along the challenge's gradients, and also tries statistics for trainings that are not what they
    claim. The attackers on "weights" and "outputs" learn from the even games (shadow runs) and are measured in the odd ones.

    A canary shows what clipping and noise do to its own weight. It does not see code that gives out something else, and where
    each layer is clipped by itself its gradient is below the worst case. Play games with records of the data, too.

    Parameters
    ----------
    factory : callable
        `factory()` makes a new, plain model. It is called for each game, with randomness of its own.
    train : callable
        `train(model, data)` trains the model in place, and calls `make_private` of Opacus inside.
    data : Dataset
        The records, with a length.
    run : DPSGD or callable
        What the training claims to be, or a function from a number of records to it.
    threat : Threat, optional
        Membership by substitution; attribute inference at distance 2 if there is a secret.
    max_grad_norm : float
        The clipping norm of the training.
    challenge : "canary", int or record
        "canary" is a record whose gradient has the full clipping norm and a weight of its own: the worst case. Otherwise the
        number of a record in the data, or the record itself, such as the most exposed one,
        `monitor.ledger.most_exposed(1)[0].record`.
    secret : Secret, optional
        The attribute whose value is to be found.
    values : sequence, optional
        The values of the secret that the attacker considers; all of them by default.
    criterion : callable, optional
        The loss of the training; cross entropy by default. The attackers compute with it.
    games : int
        The number of games. Decide on it before you look at the result: the p-value does not know of a second look.
    seed : int, optional
        Drawn and reported by default.
    confidence : float
        The confidence of all intervals.
    prior : float or sequence of float
        The probability of the positive world, or of each value.
    width : float
        The widest interval of the advantage that is accepted.
    references : int
        The number of records, drawn anew at every step, from which the attacker estimates what the other records contribute. With
        0 the attacker does not estimate it.
    loss_reduction : "mean" or "sum"
        As in `make_private`.
    jobs : int
        The number of processes; -1 for all cores.
    folder : path, optional
        Where the games are stored. An audit that was interrupted goes on from there, and so does one with more games.
    depends : mapping, optional
        What else the games depend on, as JSON (a learning rate, a version): code can be compared in part only. A folder with
        games that depend on something else is refused.
    tell : callable, optional
        Called with the number of games played and the number of all games.

    Returns
    -------
    Trials
        One audit for each attacker.

    Raises
    ------
    AuditError
        If this training cannot be audited, or is not the one that `run` claims.
    ValueError
        If an argument is not allowed, or the games are too few for the width.

    Examples
    --------
    >>> import torch
    >>> from opacus import PrivacyEngine
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> import betastar as bs
    >>> from betastar import audit
    >>> data = TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)
    >>> def train(model, data):
    ...     _, optimizer, loader = PrivacyEngine().make_private(
    ...         module=model,
    ...         optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...         data_loader=DataLoader(data, batch_size=20),
    ...         noise_multiplier=1.0,
    ...         max_grad_norm=1.0,
    ...     )
    ...     for x, y in loader:
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(model(x), y).backward()
    ...         optimizer.step()
    >>> claim = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.5, steps=2)
    >>> model = lambda: torch.nn.Linear(3, 2)
    >>> trials = audit.training(model, train, data, claim, max_grad_norm=1.0, games=100, seed=0, width=0.5)
    >>> trials.violated
    False
    """
    run = one_game.claimed(run, data)
    if threat is None:
        threat = Membership() if secret is None else AttributeInference(FARTHEST)
    validation.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm, jobs = float(validation.positive("max_grad_norm", max_grad_norm)), jobs_of(jobs)
    references = validation.whole("references", references, low=0)
    confidence = validation.probability("confidence", confidence, strict=True)
    one_game.check(factory)
    stored = None if folder is None else GameFolder(Path(folder))
    seed = seed_of(stored.seed if stored is not None and seed is None else seed)
    posed = challenge_of(data, threat, challenge, secret, values, seed)
    chances = priors(prior, posed)
    games = _enough(games, width, chances, confidence)
    batch = _batch(posed, run) if loss_reduction == "mean" else 1
    game = Game(factory, train, posed, run, criterion or nn.CrossEntropyLoss(), norm, batch / norm, references)
    if stored is not None:
        more = {"threat": threat.describe(), "prior": list(chances), "seed": seed, "loss_reduction": loss_reduction}
        stored.claim({**game.described(), **more, "code": digest([factory, train], posed), **(depends or {})})
    parts = []
    for part in _chunks(game, chances, games, seed, jobs, stored):
        parts.append(part)
        _check_hits(game, parts)
        if tell is not None:
            tell(min(sum(len(one["world"]) for one in parts), games), games)
    columns = {name: np.concatenate([part[name] for part in parts])[:games] for name in parts[0]}
    about: dict[str, Any] = {"run": run, "threat": threat, "confidence": confidence, "seed": seed}
    beyond = _beyond(columns, threat, run) if secret is not None else None
    return Trials(posed.title, *_verdicts(columns, posed, chances, about), beyond)


def _enough(games: int, width: float, chances: tuple[float, ...], confidence: float) -> int:
    """The number of games, if their interval is narrow enough."""
    needed = intervals.games_needed(width * min(1.0, 2.0 * (1.0 - max(chances))), confidence)
    games = int(validation.whole("games", games))
    if games < needed:
        raise validation.wrong(
            "games",
            f"must be at least {needed} for an interval of the advantage no wider than {width:g} at confidence "
            f"{confidence:g}, got {games}.",
        )
    return games


def _beyond(columns: dict[str, Real], threat: Threat, run: DPSGD) -> float | None:
    """The largest distance between the candidates' gradients, if the bound is for a smaller one."""
    claimed, farthest = max(step.distance for step in threat.steps(run)), float(columns["farthest"].max())
    return farthest if farthest > 1.000001 * claimed + 1e-6 else None


def _batch(challenge: Challenge, run: DPSGD) -> int:
    """The batch size that Opacus expects and divides by; it must not tell in which world it is."""
    size, rate = len(challenge.data), one_game.rate_of(run)
    batches = [max(1, int(number * rate + 1e-9)) for number in {size, size - 1 if None in challenge.candidates else size}]
    if len(set(batches)) > 1:
        raise AuditError(
            "data must have a number of records at which Opacus expects the same batch size when one is removed: it divides by "
            f"the whole part of records times rate, which changes between {size - 1} and {size} and so tells membership. Leave a "
            "few records out, or choose a canary as challenge."
        )
    return batches[0]


def priors(prior: Any, challenge: Challenge) -> tuple[float, ...]:
    """Probability of each world."""
    number = len(challenge)
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
    game: Game, chances: tuple[float, ...], games: int, seed: int, jobs: int, stored: GameFolder | None
) -> Iterator[dict[str, Real]]:
    """The games in order: those that the folder holds, and those that are played now."""
    number = -(-games // CHUNK)
    there = {i: stored.read(i) for i in range(number) if stored is not None and stored.path(i).exists()}
    todo = [(game, chances, seed, i, stored) for i in range(number) if i not in there]
    played = spread(_play if jobs == 1 else _alone, todo, jobs)
    for i in range(number):
        yield there[i] if i in there else next(played)


def _alone(*arguments: Any) -> dict[str, Real]:
    torch.set_num_threads(1)
    return _play(*arguments)


def _play(game: Game, chances: tuple[float, ...], seed: int, chunk: int, stored: GameFolder | None) -> dict[str, Real]:
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk,)))
    drawn = random.choice(len(chances), size=CHUNK, p=chances)
    seen = [game.play(int(world), int(own)) for world, own in zip(drawn, random.integers(2**62, size=CHUNK), strict=True)]
    names = ("world", "evidence", "trace", "white", "black", "hits", "farthest")
    columns = {name: np.array([getattr(one, name) for one in seen]) for name in names}
    if stored is not None:
        stored.write(chunk, columns)
    return columns


def _check_hits(game: Game, seen: list[dict[str, Real]]) -> None:
    """A canary that the model never sees says nothing."""
    if game.challenge.marks is None:
        return
    hits = sum(int(part["hits"].sum()) for part in seen)
    there = [np.isin(part["world"], game.challenge.marked).sum() for part in seen]
    one_game.check_hits(hits, one_game.rate_of(game.run) * float(game.run.steps) * float(sum(there)))


def _verdicts(
    columns: dict[str, Real], challenge: Challenge, chances: tuple[float, ...], about: dict[str, Any]
) -> tuple[dict[str, Audit], Leakage | None]:
    world = columns["world"].astype(int)
    if len(challenge) > 2:
        audits = {UPDATES: judge_many(world, columns["evidence"], prior=chances, pair=UPDATES, **about)}
        for place in (WEIGHTS, OUTPUTS):
            learned = learn(columns[_COLUMN[place]], world, len(challenge))
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
    width = 1.0 / (1.0 - max(chances))  # accepts every width: the interval is part of the result
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
