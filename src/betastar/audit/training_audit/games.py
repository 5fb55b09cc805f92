"""Games on real training: the user's model, data and code, attacked from three places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from betastar import validation
from betastar.arrays import Real
from betastar.audit import intervals
from betastar.audit.parallel import jobs_of, seed_of
from betastar.audit.results import AuditSetting
from betastar.audit.training_audit import one_game
from betastar.audit.training_audit.attackers import AuditError
from betastar.audit.training_audit.challenges import Challenge, challenge_of
from betastar.audit.training_audit.changed_data import Data
from betastar.audit.training_audit.game_folder import GameFolder, digest
from betastar.audit.training_audit.one_game import Factory, Game, Train
from betastar.audit.training_audit.record_gradients import Criterion
from betastar.audit.training_audit.schedule import CHUNK as CHUNK
from betastar.audit.training_audit.schedule import Schedule
from betastar.audit.training_audit.trials import Trials
from betastar.audit.training_audit.verdicts import audits_of, leakage_of
from betastar.bounds import kinds
from betastar.dpsgd import DPSGD
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat
from betastar.training import Records, Secret
from betastar.training.records import pair

#: Widest interval of the advantage that is worth having, unless another is asked for.
WIDTH = 0.25
#: The number of other records with whose outputs those of a candidate are compared.
POPULATION = 64


def training(
    factory: Factory,
    train: Train,
    data: Data,
    run: DPSGD | Callable[[int], DPSGD],
    threat: Threat | None = None,
    *,
    max_grad_norm: float,
    challenge: Any = "canary",
    secret: Secret | None = None,
    values: Sequence[Any] | None = None,
    gap: float | None = None,
    split: Callable[[Any], Records] = pair,
    criterion: Criterion | None = None,
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
        Membership by substitution; with a secret, attribute inference at the gap, or at distance 2 without one.
    max_grad_norm : float
        The clipping norm of the training.
    challenge : "canary", int or record
        "canary" is a record whose gradient has the full clipping norm and a weight of its own: the worst case. Otherwise the
        number of a record in the data, or the record itself, such as the most exposed one,
        `monitor.ledger.most_exposed(1)[0].record`. For `Membership(records=k)`, a canary in k copies, or k numbers of records.
    secret : Secret, optional
        The attribute whose value the attackers want.
    values : sequence, optional
        The values of the secret that the attacker considers; all of them by default.
    gap : float, optional
        The gap of gap clipping, in clipping norms, if `train` clips gaps of this secret (`make_attribute_private`).
    split : callable
        Turns a batch into `Records`, if batches are not (inputs, target, ...), as for the monitor: texts, several inputs.
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
    claim = one_game.claimed(run, data)
    if gap is not None:
        _check_gap(gap, secret)
    if threat is None:
        threat = Membership() if secret is None else AttributeInference(FARTHEST if gap is None else gap)
    validation.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm, jobs = float(validation.positive("max_grad_norm", max_grad_norm)), jobs_of(jobs)
    references = validation.whole("references", references, low=0)
    confidence = validation.probability("confidence", confidence, strict=True)
    one_game.check(factory)
    stored = None if folder is None else GameFolder(Path(folder))
    seed = seed_of(stored.seed if stored is not None and seed is None else seed)
    posed = challenge_of(data, threat, challenge, secret, values, seed, split)
    priors = _priors(prior, len(posed))
    schedule = Schedule(intervals.enough_games(games, width, 1.0 - max(priors), confidence), priors, seed, jobs, stored)
    batch = _batch(posed, claim) if loss_reduction == "mean" else 1
    population = posed.others(POPULATION, torch.Generator().manual_seed(seed))
    loss = criterion or nn.CrossEntropyLoss()
    game = Game(factory, train, posed, claim, loss, norm, batch / norm, references, population, secret, gap)
    if stored is not None:
        more = {"threat": threat.describe(), "prior": list(priors), "seed": seed, "loss_reduction": loss_reduction}
        stored.claim({**game.described(), **more, "code": digest([factory, train], posed), **(depends or {})})
    setting = AuditSetting(claim, threat, priors[0] if len(posed) == 2 else priors, confidence, seed)
    _ = setting.bound  # what cannot be analysed is refused before the games
    columns = schedule.play(game, tell)
    return Trials(
        challenge=posed.title,
        audits=audits_of(columns, setting, priors),
        leakage=leakage_of(columns, priors, confidence),
        beyond=None if secret is None else _beyond(columns, setting),
    )


def _beyond(columns: dict[str, Real], setting: AuditSetting) -> float | None:
    """The largest distance between the candidates' gradients, if the bound is for a smaller one."""
    # The distance is that of a step, however batches are drawn.
    poisson = [DPSGD(one.noise_multiplier, one.sample_rate, one.steps) for one in setting.run.segments]
    steps = kinds.only_plain("the audit of a training", setting.threat.steps(reduce(add, poisson)))
    claimed, farthest = max(step.distance for step in steps), float(columns["farthest"].max())
    return farthest if farthest > 1.000001 * claimed + 1e-6 else None


def _check_gap(gap: float, secret: Secret | None) -> None:
    """Refuse a gap that is none, or that no secret belongs to."""
    if secret is None:
        raise validation.wrong("gap", f"must be left out without a secret, got {gap!r}.")
    validation.numbers("gap", gap, "between 0 and 2 (units of the clipping norm)", low=0.0, high=FARTHEST)


def _batch(challenge: Challenge, run: DPSGD) -> int:
    """The batch size that Opacus expects and divides by; it must not tell in which world it is."""
    size, rate = len(challenge.data), one_game.rate_of(run)
    least = size - len(challenge.places) if None in challenge.candidates else size
    batches = [max(1, int(number * rate + 1e-9)) for number in {size, least}]
    if len(set(batches)) > 1:
        raise AuditError(
            "data must have a number of records at which Opacus expects the same batch size when some are removed: it divides by "
            f"the whole part of records times rate, which changes between {least} and {size} and so tells membership. Leave a "
            "few records out, or choose a canary as challenge."
        )
    return batches[0]


def _priors(prior: float | Sequence[float], number: int) -> tuple[float, ...]:
    """The probability of each of so many worlds."""
    if np.ndim(prior) == 0:
        first = float(validation.probability("prior", prior, strict=True))
        if number == 2:
            return (first, 1.0 - first)
        if first != 0.5:
            raise validation.wrong("prior", f"must be one number for each of the {number} values, got {prior!r}.")
        return (1.0 / number,) * number
    priors = tuple(float(one) for one in validation.probability("prior", prior, strict=True))
    if len(priors) != number or abs(sum(priors) - 1.0) > 1e-6:
        raise validation.wrong("prior", f"must be {number} numbers that add up to 1, got {np.asarray(prior).tolist()!r}.")
    return tuple(one / sum(priors) for one in priors)
