"""The ladder: one audit of training code, by a replay, one run with many canaries, and games, each slower than the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from betastar import validation
from betastar.audit.attackers import AuditError, Criterion
from betastar.audit.challenges import Data
from betastar.audit.code_audit import code
from betastar.audit.code_findings import CodeAudit, ReplayError
from betastar.audit.one_run_games import one_run
from betastar.audit.one_run_verdict import FEWEST, OneRun
from betastar.audit.parallel import seed_of
from betastar.audit.results import Trials
from betastar.audit.training_audit import training
from betastar.display import Display, Displayed
from betastar.dpsgd import DPSGD
from betastar.rounding import nearest, significant
from betastar.threats import AttributeInference, Membership, Threat
from betastar.training import Records, Secret
from betastar.training.records import pair


@dataclass(frozen=True, repr=False)
class TrainingCode(Displayed):
    """What the ladder found: the results of its rungs, and what none of them compared.

    Attributes
    ----------
    replay : CodeAudit or None
        What a replay found; None if the training could not be replayed.
    one_run : OneRun or None
        What one run with many canaries says; None if it was not played.
    games : Trials or None
        What games say; None if they were not played.
    not_compared : tuple of str
        What was not compared, and why.
    seed : int
        The seed of the audit.

    Examples
    --------
    >>> from betastar import audit
    >>> # As `betastar.audit.training_code` returns it:
    >>> replay = audit.CodeAudit((), "membership inference (substitution)", (7,), ("another record",), 20, 4, 0.9, 1)
    >>> result = audit.TrainingCode(replay, None, None, ("Games were not played.",), 1)
    >>> print(result.sentence)
    Nothing was found by the replay. Games were not played.
    """

    replay: CodeAudit | None
    one_run: OneRun | None
    games: Trials | None
    not_compared: tuple[str, ...]
    seed: int

    @property
    def _rungs(self) -> dict[str, CodeAudit | OneRun | Trials]:
        every = {"replay": self.replay, "one run": self.one_run, "games": self.games}
        return {name: one for name, one in every.items() if one is not None}

    @property
    def violated(self) -> bool:
        return any(one.violated for one in self._rungs.values())

    @property
    def sentence(self) -> str:
        """The verdict for a person."""
        return " ".join((self._found, *self.not_compared))

    @property
    def _found(self) -> str:
        found = [f"Found by the {name}: {one.sentence}" for name, one in self._rungs.items() if one.violated]
        names = list(self._rungs)
        listed = names[0] if len(names) == 1 else f"{', the '.join(names[:-1])} and the {names[-1]}"
        return " ".join(found) or f"Nothing was found by the {listed}."

    def _display(self, brief: bool) -> Display:
        lines = [self._found, *self.not_compared]
        if self.replay is not None:
            lines.append(self.replay.played)
        lines.append(f"Seed {self.seed}.")
        if brief:
            return Display(tuple(lines))
        rows = []
        if self.replay is not None:
            promises = ", ".join(one.promise for one in self.replay.findings) or "none"
            share = f"{self.replay.steps} steps, {significant(self.replay.largest, 2)} of the promised distance"
            rows.append(("replay", "broken promises", promises, share))
        if self.one_run is not None:
            one = self.one_run
            said = f"{one.right} of {one.guesses} guesses about {one.canaries} canaries right"
            rows.append(("one run", "p-value of the claim", nearest(one.p_value, 2), said))
        if self.games is not None:
            number = next(iter(self.games.audits.values())).games
            rows.append(
                ("games", "p-value of the bound", nearest(self.games.p_value, 2), f"{number} games with {self.games.challenge}")
            )
        return Display(tuple(lines), ("rung", "what", "found", "from"), tuple(rows))

    def __repr__(self) -> str:
        return f"TrainingCode({', '.join(self._rungs)}: {'broken' if self.violated else 'nothing found'})"

    def as_dict(self) -> dict[str, Any]:
        """The object that is printed as JSON."""
        rungs = {"replay": self.replay, "one_run": self.one_run, "games": self.games}
        claims = [one.run for one in (self.replay, self.one_run) if one is not None]
        return {
            "kind": "code",
            "violated": self.violated,
            "sentence": self.sentence,
            "not_compared": list(self.not_compared),
            "run": repr(claims[0]) if claims and claims[0] is not None else None,
            "seed": self.seed,
            **{name: None if one is None else one.as_dict() for name, one in rungs.items()},
        }


def training_code(
    train: Callable[..., Any],
    data: Data,
    run: DPSGD | Callable[[int], DPSGD] | None = None,
    threat: Threat | None = None,
    *,
    factory: Callable[[], nn.Module] | None = None,
    max_grad_norm: float | None = None,
    divisor: float | None = None,
    canaries: int = 500,
    games: int = 0,
    secret: Secret | None = None,
    split: Callable[[Any], Records] = pair,
    criterion: Criterion | None = None,
    loss_reduction: str = "mean",
    seed: int | None = None,
    jobs: int = 1,
    folder: str | Path | None = None,
    tell: Callable[[str], None] | None = None,
    **replayed: Any,
) -> TrainingCode:
    """Audit training code by one ladder: a replay, then one run with many canaries, then games. It ends where something is found.

    The replay takes seconds and says which promise breaks, and where. One run compares what an attacker sees with the claimed
    trade-off curve; it needs a `factory` of models and `train(model, data)`, since canaries get a weight of their own. Games
    train again and again.

    Parameters
    ----------
    train : callable
        `train(data)`, or `train(data, seed)`, or with a factory `train(model, data)`.
    data : Dataset
        The records, with a length.
    run : DPSGD or callable, optional
        What the training claims to be, or a function from a number of records to it. With such a function, canaries are added to
        the data; otherwise they take the place of records.
    threat : Threat, optional
        Membership by substitution by default.
    factory : callable, optional
        Makes a new, plain model.
    max_grad_norm, divisor : float, optional
        The clipping norm; and, without Opacus or PrivateTraining, the number by which noisy sums are divided.
    canaries : int
        The number of canaries of the one run; 0 leaves it out.
    games : int
        The number of games; 0 leaves them out.
    secret, split, criterion, loss_reduction : objects
        As for the rungs.
    seed : int, optional
        Drawn and reported by default.
    jobs : int
        The number of processes for games.
    folder : path, optional
        Where games are kept.
    tell : callable, optional
        Called with what is done next.
    **replayed : objects
        Further arguments of the replay: record, replacements, values, steps, ignore, returns, limit.

    Returns
    -------
    TrainingCode
        The verdict. What could not be compared is in it.

    Raises
    ------
    ReplayError
        If the training can neither be replayed nor played with canaries.
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import torch
    >>> import betastar as bs
    >>> from betastar import audit
    >>> data = torch.utils.data.TensorDataset(torch.randn(60, 3), torch.arange(60) % 2)
    >>> def train(data, seed):  # nobody has clipped
    ...     generator = torch.Generator().manual_seed(seed)
    ...     x, y = data.tensors
    ...     w = torch.zeros(3)
    ...     for _ in range(10):
    ...         batch = torch.rand(60, generator=generator) < 0.2
    ...         total = x[batch].T @ (torch.sigmoid(x[batch] @ w) - y[batch])
    ...         w = w - 0.1 * audit.released((total + torch.randn(3, generator=generator)) / 12)
    >>> claim = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.2, steps=10)
    >>> result = audit.training_code(train, data, claim, max_grad_norm=1.0, divisor=12, seed=1)
    >>> [finding.promise for finding in result.replay.findings]
    ['distance']
    """
    seed, say = seed_of(seed), tell or (lambda _: None)
    canaries, games = validation.one_whole("canaries", canaries, 0), validation.one_whole("games", games, 0)
    told: dict[str, Any] = {"factory": factory, "max_grad_norm": max_grad_norm, "divisor": divisor, "secret": secret}
    missing: list[str] = []
    replay: CodeAudit | None = None
    refused: ReplayError | None = None
    say("replaying the training")
    try:
        replay = code(train, data, run, threat, **told, split=split, criterion=criterion, seed=seed, **replayed)
        missing += replay.notes
    except ReplayError as problem:
        refused = problem
        missing.append(f"The replay was not played: {problem}")
    once: OneRun | None = None
    many: Trials | None = None
    found = replay is not None and replay.violated
    wanted = {"One run": canaries > 0, "Games": games > 0}
    reason = _unplayable(factory, run, max_grad_norm, threat, secret)
    common: dict[str, Any] = {
        "max_grad_norm": max_grad_norm,
        "divisor": divisor,
        "loss_reduction": loss_reduction,
        "split": split,
    }
    for name, is_wanted in wanted.items():
        if found or not is_wanted or (name == "One run" and reason):
            if found:
                why = "something was found before"
            else:
                why = reason if is_wanted else "canaries is 0" if name == "One run" else "give games="
            missing.append(f"{name} {'was' if name == 'One run' else 'were'} not played: {why}.")
            continue
        try:
            if name == "One run":
                say(f"training once, with {canaries} canaries")
                number = canaries if callable(run) else min(canaries, len(data))
                once = one_run(factory, train, data, run, canaries=max(FEWEST, number), seed=seed, **common)  # type: ignore[arg-type]
                found = once.violated
            else:
                say(f"playing {games} games")
                more: dict[str, Any] = {
                    "secret": secret,
                    "criterion": criterion,
                    "jobs": jobs,
                    "folder": folder,
                    "width": 2.0 - 1e-9,
                }
                challenge = "canary" if secret is None else "random"
                many = training(factory, train, data, run, threat, challenge=challenge, games=games, seed=seed, **more, **common)  # type: ignore[arg-type]
        except AuditError as problem:
            missing.append(f"{name} {'was' if name == 'One run' else 'were'} not played: {problem}")
    if replay is None and once is None and many is None:
        assert refused is not None
        raise refused
    return TrainingCode(replay, once, many, tuple(dict.fromkeys(missing)), seed)


def _unplayable(factory: object, run: object, norm: float | None, threat: Threat | None, secret: Secret | None) -> str:
    """Why one run with canaries cannot be played; empty if it can."""
    if isinstance(threat, AttributeInference) or secret is not None:
        return "its canaries are in or out, and a secret was asked for"
    if isinstance(threat, Membership) and threat.records > 1:
        return "its canaries are single records"
    needs = {"factory": factory, "run": run, "max_grad_norm": norm}
    lacks = [name for name, one in needs.items() if one is None]
    return "" if not lacks else f"give {' and '.join(lacks)}, and train(model, data)"
