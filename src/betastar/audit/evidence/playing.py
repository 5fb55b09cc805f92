"""One game on real training: build the model anew, train it on the data of one world by the user's own code, and attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from betastar import validation
from betastar.audit.common import AuditError
from betastar.audit.evidence.attackers import (
    CanaryAttacker,
    Evidence,
    GapClippedGradients,
    RecordAttacker,
    RecordGradients,
    UpdateAttacker,
    confidences,
    margins,
    watching,
    weights,
)
from betastar.audit.evidence.challenges import Canaries, Challenge, Criterion, Data, seeded
from betastar.audit.evidence.recorder import is_private
from betastar.dpsgd import DPSGD
from betastar.training import Records, Secret

Factory = Callable[[], nn.Module]
Train = Callable[[nn.Module, Any], object]


#: What is kept of each game. world: the number of the world, which the attackers do not know; evidence: the log-likelihood of
#: each world, to the attacker who sees every update; trace: how much each step spoke for the first world, against the last;
#: white, black: what the attacker who holds the weights, and the one who only queries the model, learn from; confidences: the
#: final model's log-confidence in each candidate, and then in each record of the population; hits: how often the model saw the
#: canary; farthest: the largest distance between the candidates' gradients.
COLUMNS = ("world", "evidence", "trace", "white", "black", "confidences", "hits", "farthest")


@dataclass(frozen=True)
class Game:
    """What every game of an audit has in common.

    Attributes
    ----------
    factory, train : callable
        The user's functions, as for `betastar.audit.training`.
    challenge : Challenge
        The record that differs between the worlds.
    run : DPSGD
        What the training claims to be.
    criterion : callable
        The loss of the training.
    norm : float
        The clipping norm.
    scale : float
        From a gradient as the optimizer sees it to clipping norms.
    references : int
        The number of other records by which the attacker estimates what they contribute, at each step.
    population : Records
        Some of the other records, with whose outputs those of a candidate are compared.
    secret : Secret or None
        The attribute whose value the attackers want.
    gap : float or None
        The gap of this secret, in clipping norms, if the training clips it.
    private : bool
        Whether Opacus or betastar makes the steps; otherwise the user's own code does.
    """

    factory: Factory
    train: Train
    challenge: Challenge
    run: DPSGD
    criterion: Criterion
    norm: float
    scale: float
    references: int
    population: Records
    secret: Secret | None = None
    gap: float | None = None
    private: bool = True

    def play(self, world: int, seed: int) -> dict[str, Any]:
        """Train in this world, and attack: a value for each of COLUMNS."""
        start, noise, others = streams(seed, 3)
        posed, each = self.challenge, len(self.challenge.places)
        with seeded(start):
            inner, copy, marks = self.factory(), self.factory(), posed.marks
            model = inner if marks is None else Canaries(inner, marks, [0] * len(marks), posed.signs)
        attacker: UpdateAttacker
        if isinstance(model, Canaries):
            evidence = Evidence(self.run, np.zeros(len(posed)), copies=each)
            attacker = CanaryAttacker(evidence, model, np.array(posed.signs), self.scale)
        else:  # a column for each record of a person
            attacker = self._of_record(model, copy, np.zeros((len(posed), each) if each > 1 else len(posed)), others)
        with seeded(noise):
            fit(self.train, model, posed.dataset(world), self.run, attacker, self.private)
        hits, farthest, black, sure = 0, 0.0, np.zeros(0), np.zeros(0)  # a canary does not change outputs
        if isinstance(model, Canaries):
            hits, white = model.seen, model.canary.weight.detach().cpu().double().numpy().ravel()
        else:
            assert isinstance(attacker, RecordAttacker)
            farthest, candidates = attacker.farthest, posed.records()
            attacker.gradients.follow(model)
            black = margins(copy, self.criterion, candidates)
            sure = np.concatenate([confidences(copy, self.criterion, one) for one in (candidates, self.population)])
            white = np.concatenate([black, weights(attacker.gradients, candidates)])
        trace = np.array(attacker.trace)
        if not all(np.isfinite(one).all() for one in (attacker.logs, trace, white, sure)):
            raise AuditError("train must end with finite weights, got some that are not: it diverged.")
        return dict(zip(COLUMNS, (world, attacker.logs, trace, white, black, sure, hits, farthest), strict=True))

    def described(self) -> dict[str, Any]:
        """What tells games of this audit from those of another."""
        with seeded(0):
            weights = sum(parameter.numel() for parameter in self.factory().parameters())
        about = {"run": repr(self.run), "challenge": self.challenge.title, "records": len(self.challenge.data)}
        sizes = {"references": self.references, "population": len(self.population), "weights": weights}
        gap = {} if self.gap is None else {"gap": self.gap}
        return {**about, "max_grad_norm": self.norm, "values": [str(label) for label in self.challenge.labels], **sizes, **gap}

    def _of_record(self, model: nn.Module, copy: nn.Module, logs: NDArray[Any], seed: int) -> RecordAttacker:
        posed, generator = self.challenge, torch.Generator().manual_seed(seed)
        others = (lambda: posed.others(self.references, generator)) if self.references else None
        gradients = RecordGradients(copy, self.criterion, self.norm)
        if self.secret is not None and self.gap is not None:
            gradients = GapClippedGradients(copy, self.criterion, self.norm, self.secret, self.gap)
        there = [candidate is not None for candidate in posed.candidates]
        number = len(posed.data) - len(posed.places)
        evidence = Evidence(self.run, logs)
        return RecordAttacker(evidence, model, gradients, posed.records(), there, self.scale, others, number)


def streams(seed: int, number: int) -> list[int]:
    """Seeds that have nothing to do with each other."""
    return [int(one) for one in np.random.SeedSequence(seed).generate_state(number, np.uint64) >> np.uint64(1)]


def divisor_of(divisor: float | None, records: int, rate: float, loss_reduction: str) -> float:
    """The number by which a training divides its noisy sums: as it says, or as Opacus does."""
    if divisor is not None:
        return float(validation.positive("divisor", divisor))
    return max(1, int(records * rate + 1e-9)) if loss_reduction == "mean" else 1


def fit(train: Train, model: nn.Module, data: Data, run: DPSGD, attacker: UpdateAttacker, private: bool = True) -> None:
    """Let the user's code train while the attacker watches; raises AuditError if that was no training, or not the claimed one."""
    model.train()
    with watching(model, attacker, private):
        try:
            train(model, data)
        except AuditError:
            raise
        except Exception as problem:
            layer = " (with a canary it has one layer more, of its own)" if isinstance(model, Canaries) else ""
            after = f" after step {len(attacker.trace)}" if attacker.trace else ""
            raise AuditError(
                f"train must work again and again on what factory makes{layer}, got {type(problem).__name__}{after}: {problem}"
            ) from problem
    seen = len(attacker.trace)
    if seen == 0:
        raise AuditError("train must update the model that it is given by an optimizer of PyTorch, got no step of one.")
    if seen != run.steps:
        raise AuditError(f"run must have as many steps as train makes on {len(data)} records, {seen}, got {run.steps}.")


def rate_of(run: DPSGD) -> float:
    """The mean sampling rate over the steps."""
    return float(sum(segment.sample_rate * segment.steps for segment in run.segments) / run.steps)


def check_hits(hits: int, expected: float) -> None:
    """A canary that the model does not recognise says nothing."""
    least = 0.75 * expected
    if hits < least - 5.0 * least**0.5:  # by chance less than once in a million
        raise AuditError(
            f"the model should have seen canaries about {expected:.0f} times by now, and saw {hits}: if train changes the inputs "
            "before the model sees them, let the model do that, or choose a record of the data as challenge."
        )


def claimed(run: DPSGD | Callable[[int], DPSGD], data: Data) -> DPSGD:
    """What training on these records claims to be."""
    claim = run(len(data)) if callable(run) else run
    if not isinstance(claim, DPSGD) or claim.shape:
        raise AuditError(f"run must be one DPSGD run, or a function from a number of records to one, got {run!r}.")
    return claim


def check(factory: Factory) -> None:
    """Raise AuditError unless the factory makes a new, plain model each time."""
    if not callable(factory):
        raise AuditError(f"factory must be a function that makes a new model, got {factory!r}.")
    with seeded(0):
        one, other = factory(), factory()
    for model in (one, other):
        if not isinstance(model, nn.Module):
            raise AuditError(f"factory must make a model (torch.nn.Module), got {type(model).__name__}.")
        if is_private(model):
            raise AuditError("factory must make a plain model, got one that Opacus has wrapped already; wrap it in train.")
    if one is other or {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}:
        raise AuditError("factory must make a new model each time, got the same weights twice.")
    shapes = [[(name, tuple(p.shape)) for name, p in model.named_parameters()] for model in (one, other)]
    if shapes[0] != shapes[1] or not shapes[0]:
        raise AuditError("factory must make models with the same weights each time, got models that differ, or have none.")
