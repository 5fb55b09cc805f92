"""One training with many canaries, each in or out, or with one of several values: a test of the claimed curve without training
again."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import torch

from betastar import validation
from betastar.audit.common import seed_of
from betastar.audit.evidence import challenges, playing
from betastar.audit.evidence.attackers import CanaryAttacker, Evidence
from betastar.audit.evidence.challenges import MODELS, Canaries, Data, changed, marked_argument, read, seeded, with_mark
from betastar.audit.evidence.playing import Factory, Train
from betastar.audit.verdict.games import UPDATES, WEIGHTS
from betastar.audit.verdict.one_run import FEWEST, OneRun, judge_run
from betastar.dpsgd import DPSGD
from betastar.threats import AttributeInference, Membership, Threat
from betastar.training import Records
from betastar.training.records import pair

#: Canaries of different values move different weights by a clipping norm each: so far are their gradients apart.
APART = sqrt(2.0)


def one_run(
    factory: Factory,
    train: Train,
    data: Data,
    run: DPSGD | Callable[[int], DPSGD],
    *,
    max_grad_norm: float,
    canaries: int = 500,
    values: int | None = None,
    guesses: int | None = None,
    attacker: str = UPDATES,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int | None = None,
    loss_reduction: str = "mean",
    split: Callable[[Any], Records] = pair,
    divisor: float | None = None,
) -> OneRun:
    """Train once, on the data and about half of the canaries, and guess which canaries were used.

    Each canary has a weight of its own, which no other record moves. The right guesses test the trade-off curve that the run
    claims for adding or removing a record, whatever the model and the data (theory, section 16). With `values`, all canaries are
    used, each has one of that many values and a weight for each of them, and the attacker guesses the values: an audit of
    attribute inference.

    Parameters
    ----------
    factory : callable
        As for `games`.
    train : callable
        As for `games`.
    data : Dataset
        The records, with a length. Canaries are added at its end.
    run : DPSGD or callable
        What the training claims to be, as a function from a number of records to it, since the canaries make the data longer; or
        one run, and then canaries take the place of records.
    max_grad_norm : float
        The clipping norm of the training.
    canaries : int
        The number of canaries, of which about half are used (all of them, with `values`).
    values : int, optional
        The number of values of a canary; by default, each is in or out.
    guesses : int, optional
        The number of guesses; by default the number that suits the claim. Those that are surest are made.
    attacker : "updates" or "weights"
        The attacker sees every update of the canaries' weights, or only their final values.
    delta : float
        The δ at which ε is bounded.
    confidence : float
        The confidence of the lower bounds.
    seed : int, optional
        Drawn and reported by default.
    loss_reduction : "mean" or "sum"
        As in `make_private`.
    split : callable
        As for `games`.
    divisor : float, optional
        As for `games`.

    Returns
    -------
    OneRun
        The p-value of the claim, and what is refuted.

    Raises
    ------
    AuditError
        If this training cannot be audited, or is not the one that `run` claims.
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import torch
    >>> from opacus import PrivacyEngine
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> import betastar as bs
    >>> from betastar import audit
    >>> data = TensorDataset(torch.randn(100, 3), torch.arange(100) % 2)
    >>> def train(model, data):
    ...     _, optimizer, loader = PrivacyEngine().make_private(
    ...         module=model,
    ...         optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...         data_loader=DataLoader(data, batch_size=len(data) // 2 + 1),
    ...         noise_multiplier=1.0,
    ...         max_grad_norm=1.0,
    ...     )
    ...     for x, y in loader:
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(model(x), y).backward()
    ...         optimizer.step()
    >>> claim = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.5, steps=2)
    >>> model = lambda: torch.nn.Linear(3, 2)
    >>> audit.one_run(model, train, data, claim, max_grad_norm=1.0, canaries=100, seed=0).violated
    False
    """
    number, seed = validation.one_whole("canaries", canaries, FEWEST), seed_of(seed)
    choices = 1 if values is None else validation.one_whole("values", values, 2)
    validation.choice("attacker", attacker, (UPDATES, WEIGHTS))
    validation.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm = float(validation.positive("max_grad_norm", max_grad_norm))
    playing.check(factory)
    start, noise, coins = playing.streams(seed, 3)
    generator = torch.Generator().manual_seed(coins)
    some = torch.randperm(len(data), generator=generator)[:MODELS]
    like_these = marked_argument(read(data, some, split))[1]
    marks = challenges.marks(like_these, number * choices, generator)  # of the first canary's values, of the second's, …
    like = some[torch.randint(len(some), (number,), generator=generator)]
    if values is None:
        truth = torch.rand(number, generator=generator, dtype=torch.float64) < 0.5
        used = truth.nonzero().flatten().tolist()
    else:
        truth = torch.randint(values, (number,), generator=generator)
        used = (torch.arange(number) * choices + truth).tolist()
    threat: Threat = Membership("add-remove") if values is None else AttributeInference(APART)
    if callable(run):
        whole = changed(data, {}, [with_mark(data[int(like[i // choices])], split, marks[i]) for i in used])
    else:
        if number > len(data):
            text = f"must be at most the number of records, {len(data)}, unless run is a function of it, got {number}."
            raise validation.wrong("canaries", text)
        places = torch.randperm(len(data), generator=generator).tolist()
        whole = changed(data, {places[i // choices]: with_mark(data[places[i // choices]], split, marks[i]) for i in used})
    run = playing.claimed(run, whole)
    rate = playing.rate_of(run)
    batch = playing.divisor_of(divisor, len(whole), rate, loss_reduction)
    with seeded(start):
        model = Canaries(factory(), marks, list(range(len(marks))), [1.0] * len(marks))
    attack = CanaryAttacker(Evidence(run, np.zeros(len(marks))), model, np.ones(len(marks)), batch / norm)
    with seeded(noise):
        playing.fit(train, model, whole, run, attack, divisor is None)
    playing.check_hits(model.seen, rate * float(run.steps) * len(used))
    scores = attack.evidence.logs if attacker == UPDATES else -model.canary.weight.detach().cpu().double().numpy().ravel()
    table = scores if values is None else scores.reshape(number, choices)
    return judge_run(table, truth.numpy(), run, threat, delta, confidence, seed, guesses=guesses)
