"""The ladder: one audit of training code, by a replay, one run with many canaries, and games, each slower than the one before."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from betastar import validation
from betastar.audit.common import AuditError, Verdict, seed_of
from betastar.audit.evidence.challenges import LAYERS, Data
from betastar.audit.rungs.games import games as play_games
from betastar.audit.rungs.one_run import one_run
from betastar.audit.rungs.replay import replay
from betastar.audit.verdict.games import Games
from betastar.audit.verdict.one_run import FEWEST, OneRun
from betastar.audit.verdict.replay import Replay
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.rounding import nearest, significant
from betastar.threats import AttributeInference, Membership, Threat


@dataclass(frozen=True, repr=False)
class TrainingCode(Verdict):
    """What the ladder found: the results of its rungs, and what none of them compared.

    Attributes
    ----------
    replay : Replay or None
        What a replay found; None if the training could not be replayed.
    one_run : OneRun or None
        What one run with many canaries says; None if it was not played.
    games : Games or None
        What games with a canary say; None if they were not played.
    layers : Games or None
        What games say with a record that pushes the gradient of each layer; None if they were not played.
    not_compared : tuple of str
        What was not compared, and why.
    seed : int
        The seed of the audit.

    Examples
    --------
    >>> from betastar import audit
    >>> # As `betastar.audit.training_code` returns it:
    >>> replay = audit.Replay((), "membership inference (substitution)", (7,), ("another record",), 20, 4, 0.9, 1)
    >>> result = audit.TrainingCode(replay, None, None, None, ("Games were not played.",), 1)
    >>> print(result.sentence)
    Nothing was found by the replay. Games were not played.
    """

    derived: ClassVar[tuple[str, ...]] = ("kind", "run", *Verdict.derived)
    kind: ClassVar[str] = "code"

    replay: Replay | None
    one_run: OneRun | None
    games: Games | None
    layers: Games | None
    not_compared: tuple[str, ...]
    seed: int

    @property
    def _rungs(self) -> dict[str, Verdict]:
        every = {"replay": self.replay, "one run": self.one_run, "games": self.games, "games about layers": self.layers}
        return {name: one for name, one in every.items() if one is not None}

    @property
    def run(self) -> DPSGD | None:
        """What the training claims to be, if that was said."""
        claims = [one.run for one in (self.replay, self.one_run) if one is not None]
        return claims[0] if claims else None

    @property
    def violated(self) -> bool:
        return any(one.violated for one in self._rungs.values())

    @property
    def sentence(self) -> str:
        """The verdict for a person."""
        return " ".join((self._found, *self.not_compared))

    @property
    def _found(self) -> str:
        found = [f"Found by the {name}: {one.sentence}" for name, one in self._rungs.items() if one.violated]  # type: ignore[attr-defined]
        *names, last = self._rungs
        listed = f"{', the '.join(names)} and the {last}" if names else last
        return " ".join(found) or f"Nothing was found by the {listed}."

    def _display(self, brief: bool) -> Display:
        replayed = [] if self.replay is None else [self.replay.played]
        rows = []
        if self.replay is not None:
            promises = ", ".join(one.promise for one in self.replay.findings) or "none"
            share = f"{self.replay.steps} steps, {significant(self.replay.largest, 2)} of the promised distance"
            rows.append(("replay", "broken promises", promises, share))
        if self.one_run is not None:
            one = self.one_run
            said = f"{one.right} of {one.guesses} guesses about {one.canaries} canaries right"
            rows.append(("one run", "p-value of the claim", nearest(one.p_value, 2), said))
        for games in (self.games, self.layers):
            if games is not None:
                number = f"{next(iter(games.audits.values())).games} games with {games.challenge}"
                rows.append(("games", "p-value of the bound", nearest(games.p_value, 2), number))
        lines = (self._found, *self.not_compared, *replayed, f"Seed {self.seed}.")
        return Display(lines, () if brief else ("rung", "what", "found", "from"), () if brief else tuple(rows))

    def __repr__(self) -> str:
        return f"TrainingCode({', '.join(self._rungs)}: {'broken' if self.violated else 'nothing found'})"


def training_code(
    train: Callable[..., Any],
    data: Data,
    run: DPSGD | Callable[[int], DPSGD] | None = None,
    threat: Threat | None = None,
    *,
    canaries: int = 500,
    games: int = 0,
    seed: int | None = None,
    folder: str | Path | None = None,
    tell: Callable[[str], None] | None = None,
    **told: Any,
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
    canaries : int
        The number of canaries of the one run; 0 leaves it out.
    games : int
        The number of games with a canary, and then with a record that pushes the gradient of each layer; 0 leaves them out.
    seed : int, optional
        Drawn and reported by default.
    folder : path, optional
        Where games are kept.
    tell : callable, optional
        Called with what is done next.
    **told : objects
        What the rungs take: factory, which makes a new, plain model; max_grad_norm; without Opacus or PrivateTraining divisor,
        the number by which noisy sums are divided; secret, split, criterion, loss_reduction; record, replacements, values, steps,
        ignore, returns and limit for the replay; jobs for games.

    Returns
    -------
    TrainingCode
        The verdict. What could not be compared is in it.

    Raises
    ------
    AuditError
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
    refuse = told.keys() - {name for one in (replay, one_run, play_games) for name in inspect.signature(one).parameters}
    if refuse:
        raise TypeError(f"training_code takes what its rungs take, got {sorted(refuse)[0]!r}.")

    def play(rung: Callable[..., Any], **more: Any) -> Any:
        taken = inspect.signature(rung).parameters
        every = {**told, "train": train, "data": data, "run": run, "threat": threat, "seed": seed, **more}
        return rung(**{name: one for name, one in every.items() if name in taken})

    number = max(FEWEST, canaries if callable(run) else min(canaries, len(data)))
    asked = "give games=" if games == 0 else ""
    member = told.get("secret") is None and not isinstance(threat, AttributeInference)
    many, kept = {"games": games, "width": 2.0 - 1e-9}, None if folder is None else Path(folder)
    what = "canary" if member else "random"
    rungs: dict[str, tuple[str, str, Callable[[], Any]]] = {
        "replay": ("The replay was", "", lambda: play(replay)),
        "one_run": ("One run was", _unplayable(canaries, threat, {"run": run, **told}), lambda: play(one_run, canaries=number)),
        "games": ("Games were", asked, lambda: play(play_games, challenge=what, folder=kept, **many)),
        "layers": (
            "Games about layers were",
            asked,
            lambda: play(play_games, challenge=LAYERS, folder=kept and kept / LAYERS, **many),
        ),
    }
    if not games or not member or getattr(threat, "records", 1) > 1:
        del rungs["layers"]
    results: dict[str, Any] = dict.fromkeys(("replay", "one_run", "games", "layers"))
    missing: list[str] = []
    first: AuditError | None = None
    for name, (words, reason, action) in rungs.items():
        if any(one is not None and one.violated for one in results.values()):
            reason = "something was found before"
        if reason:
            missing.append(f"{words} not played: {reason}.")
            continue
        say(name.replace("_", " "))
        try:
            results[name] = action()
        except AuditError as problem:
            first = first or problem
            missing.append(f"{words} not played: {problem}")
        missing += getattr(results[name], "notes", ())
    if first is not None and all(one is None for one in results.values()):
        raise first
    return TrainingCode(**results, not_compared=tuple(dict.fromkeys(missing)), seed=seed)


def _unplayable(canaries: int, threat: Threat | None, told: Mapping[str, Any]) -> str:
    """Why one run with canaries cannot be played; empty if it can."""
    if canaries == 0:
        return "canaries is 0"
    if isinstance(threat, AttributeInference) or told.get("secret") is not None:
        return "its canaries are in or out, and a secret was asked for"
    if isinstance(threat, Membership) and threat.records > 1:
        return "its canaries are single records"
    lacks = [name for name in ("factory", "run", "max_grad_norm") if told.get(name) is None]
    return "" if not lacks else f"give {' and '.join(lacks)}, and train(model, data)"
