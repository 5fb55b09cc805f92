"""Playing the games of an audit: in which worlds, in how many processes, and which of them a folder holds already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from betastar.arrays import Real
from betastar.audit.parallel import spread
from betastar.audit.training_audit import one_game
from betastar.audit.training_audit.game_folder import GameFolder
from betastar.audit.training_audit.one_game import Game

#: Games that are kept in one file, and played in one go.
CHUNK = 10
#: What is kept of each game, an array for each name: the attributes of `Observed`.
COLUMNS = ("world", "evidence", "trace", "white", "black", "confidences", "hits", "farthest")


@dataclass(frozen=True)
class Schedule:
    """How the games of an audit are played.

    Attributes
    ----------
    games : int
        The number of games.
    priors : tuple of float
        The probability of each world.
    seed : int
        The seed from which worlds and games follow.
    jobs : int
        The number of processes.
    stored : GameFolder or None
        Where games are kept.
    """

    games: int
    priors: tuple[float, ...]
    seed: int
    jobs: int = 1
    stored: GameFolder | None = None

    def play(self, game: Game, tell: Callable[[int, int], None] | None = None) -> dict[str, Real]:
        """All games: an array for each of COLUMNS. tell: called with the number of games played and the number of all games."""
        parts: list[dict[str, Real]] = []
        for part in self._chunks(game):
            parts.append(part)
            _check_hits(game, parts)
            if tell is not None:
                tell(min(sum(len(one["world"]) for one in parts), self.games), self.games)
        return {name: np.concatenate([part[name] for part in parts])[: self.games] for name in parts[0]}

    def _chunks(self, game: Game) -> Iterator[dict[str, Real]]:
        """The games in order: those that the folder holds, and those that are played now."""
        number, stored = -(-self.games // CHUNK), self.stored
        kept = {i: stored.read(i) for i in range(number) if stored is not None and stored.path(i).exists()}
        missing = [(game, self.priors, self.seed, i, stored) for i in range(number) if i not in kept]
        played = spread(_play if self.jobs == 1 else _play_in_one_thread, missing, self.jobs)
        for i in range(number):
            yield kept[i] if i in kept else next(played)


def _play_in_one_thread(
    game: Game, priors: tuple[float, ...], seed: int, chunk: int, stored: GameFolder | None
) -> dict[str, Real]:
    torch.set_num_threads(1)
    return _play(game, priors, seed, chunk, stored)


def _play(game: Game, priors: tuple[float, ...], seed: int, chunk: int, stored: GameFolder | None) -> dict[str, Real]:
    """One chunk of games, whose worlds and seeds follow from the audit's seed and the number of the chunk."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk,)))
    drawn = random.choice(len(priors), size=CHUNK, p=priors)
    seen = [game.play(int(world), int(own)) for world, own in zip(drawn, random.integers(2**62, size=CHUNK), strict=True)]
    columns = {name: np.array([getattr(one, name) for one in seen]) for name in COLUMNS}
    if stored is not None:
        stored.write(chunk, columns)
    return columns


def _check_hits(game: Game, parts: list[dict[str, Real]]) -> None:
    """A canary that the model never sees says nothing."""
    if game.challenge.marks is None:
        return
    hits = sum(int(part["hits"].sum()) for part in parts)
    marked = [np.isin(part["world"], game.challenge.marked).sum() for part in parts]
    canaries = float(sum(marked)) * len(game.challenge.places)
    one_game.check_hits(hits, one_game.rate_of(game.run) * float(game.run.steps) * canaries)
