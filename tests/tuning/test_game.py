"""The attacker's game on the best of several models: the theorem's score meets the figure from below."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

import betastar as bs
from betastar import audit
from betastar.training import PrivateTraining

from ..command import call

RUN = bs.DPSGD(2.0, 0.05, 60)


@pytest.mark.parametrize("trials", [bs.Trials.fixed(8), bs.Trials.poisson(8), bs.Trials.geometric(8)], ids=str)
def test_the_worst_score_attains_the_figure(trials: bs.Trials) -> None:
    result = audit.mechanism(bs.best_of(RUN, trials), games=20_000, seed=1)
    assert not result.violated
    assert result.bound.estimate in result.advantage
    assert result.advantage.lower > bs.analyze(RUN).advantage.upper, "more than one run gives away"


@pytest.mark.parametrize("threat", [bs.Membership("add-remove"), bs.AttributeInference(1.0), bs.Membership(records=3)], ids=repr)
def test_other_threats_stay_below(threat: bs.Membership | bs.AttributeInference) -> None:
    result = audit.mechanism(bs.best_of(RUN, 5), threat, games=10_000, seed=2)
    assert not result.violated
    assert result.advantage.lower <= result.bound.upper
    assert result.advantage.upper > 0.9 * result.bound.lower


def test_too_little_noise_is_found() -> None:
    assert audit.mechanism(bs.best_of(RUN, 8), games=4000, seed=1, actual=bs.DPSGD(1.0, 0.05, 60)).violated


def test_one_search_only() -> None:
    for release in (bs.best_of(RUN, 3) + RUN, bs.best_of([RUN, bs.DPSGD(3.0, 0.05, 60)], 3)):
        with pytest.raises(ValueError, match="run must be one search with one run"):
            audit.mechanism(release, games=1000)


def test_the_command() -> None:
    run = ["--noise", "2", "--rate", ".05", "--steps", "60", "--trials", "8"]
    told = call("audit", "mechanism", *run, "--games", "4000", "--seed", "3", "--json")
    assert told.returncode == 0, told.stderr
    bound = json.loads(told.stdout)["bound"]
    assert bound["upper"] == pytest.approx(bs.analyze(bs.best_of(RUN, 8)).advantage.upper, abs=1e-12)
    refused = call("audit", "mechanism", "--one-run", *run)
    assert refused.returncode != 0
    assert "--trials" in refused.stderr


def clipped(gradients: NDArray[Any]) -> NDArray[Any]:
    return gradients / np.maximum(1.0, np.linalg.norm(gradients, axis=-1, keepdims=True))


def slopes(weights: NDArray[Any], inputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Gradients of the logistic loss of each model at each record."""
    margins = labels * np.einsum("...w,rw->...r", weights, inputs)
    return clipped(-(labels / (1.0 + np.exp(margins)))[..., None] * inputs)


def test_logistic_regressions() -> None:
    """4,000 times the best of five, trained with DP-SGD on 12 people and one whose label is at stake.

    The attacker sees all weights and the coins of the others, and scores by |log-likelihood ratio| (the dream) or gets the most
    accurate model on other people (life).
    """
    rng, games, trials, rate, noise, steps = np.random.default_rng(5), 4000, 5, 0.5, 3.0, 12
    inputs = rng.normal(size=(12, 2))
    labels = np.where(inputs[:, 0] > 0.0, 1.0, -1.0)
    others, challenge = rng.normal(size=(200, 2)), np.array([[4.0, 1.0]])
    world = np.where(rng.random(games) < 0.5, 1.0, -1.0)
    weights, losses = np.zeros((games, trials, 2)), np.zeros((games, trials))
    for _ in range(steps):
        both = np.stack([slopes(weights, challenge, np.array([sign]))[..., 0, :] for sign in (1.0, -1.0)])
        mine = np.where(world[:, None, None] > 0.0, both[0], both[1]) * (rng.random((games, trials, 1)) < rate)
        known = np.einsum("gtrw,gtr->gtw", slopes(weights, inputs, labels), rng.random((games, trials, 12)) < rate)
        seen = mine + noise * rng.normal(size=mine.shape)
        first, second = (np.exp(np.sum(seen * one - 0.5 * one**2, axis=-1) / noise**2) for one in both)
        losses += np.log1p(rate * (first - 1.0)) - np.log1p(rate * (second - 1.0))
        weights = weights - 0.05 * (known + seen) / 6.0
    accuracy = np.mean(np.einsum("gtw,rw->gtr", weights, others) * others[:, 0] > 0.0, axis=-1)
    best = bs.analyze(bs.best_of(bs.DPSGD(noise, rate, steps), trials)).advantage.upper
    played = {}
    for name, score in (("one", -np.arange(trials) + 0.0 * losses), ("life", accuracy), ("dream", np.abs(losses))):
        winner = np.take_along_axis(losses, score.argmax(axis=1)[:, None], axis=1)[:, 0]
        played[name] = float(np.mean(np.sign(winner) * world))
        assert played[name] < best + 3.0 / games**0.5
    assert played["dream"] > 0.9 * best, "with gradients that are opposite and clipped, the theorem is nearly met"
    assert played["dream"] > played["life"] + 0.1


@pytest.mark.slow
def test_private_trainings() -> None:
    """150 times the best of five by `PrivateTraining`, all records in every batch: the updates tell the noisy sums."""
    rng, games, trials, noise, steps = np.random.default_rng(7), 150, 5, 4.0, 3
    torch.manual_seed(0)
    inputs = torch.cat([torch.randn(5, 2), torch.tensor([[4.0, 1.0]])])
    losses, world = np.zeros((games, trials)), np.where(rng.random(games) < 0.5, 1, 0)

    def sums(model: torch.nn.Module, labels: torch.Tensor) -> NDArray[Any]:
        """Of the clipped gradients."""
        each = []
        for x, y in zip(inputs, labels, strict=True):
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x[None]), y[None]).backward()
            each.append(np.concatenate([one.grad.numpy().ravel() for one in model.parameters()]))
        return clipped(np.array(each)).sum(axis=0)

    for game in range(games):
        for trial in range(trials):
            labels = torch.tensor([0, 1, 0, 1, 0, int(world[game])])
            model = torch.nn.Linear(2, 2)
            torch.nn.init.zeros_(model.weight)
            torch.nn.init.zeros_(model.bias)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            plan = {"batch_size": 6, "steps": steps, "noise_multiplier": noise}
            training = PrivateTraining(model, optimizer, TensorDataset(inputs, labels), torch.nn.CrossEntropyLoss(), **plan)
            for _ in range(steps):
                before = np.concatenate([one.detach().numpy().ravel() for one in model.parameters()])
                either = [sums(model, torch.tensor([0, 1, 0, 1, 0, label])) for label in (1, 0)]
                training.step()
                moved = 6.0 * (before - np.concatenate([one.detach().numpy().ravel() for one in model.parameters()]))
                losses[game, trial] += (np.sum((moved - either[1]) ** 2) - np.sum((moved - either[0]) ** 2)) / (2.0 * noise**2)
    winner = np.take_along_axis(losses, np.abs(losses).argmax(axis=1)[:, None], axis=1)[:, 0]
    advantage = float(np.mean(np.where(winner > 0.0, 1.0, -1.0) * (2 * world - 1)))
    figure = bs.analyze(bs.best_of(bs.DPSGD(noise, 1.0, steps), trials)).advantage.upper
    assert figure - 4.0 / games**0.5 < advantage < figure + 3.0 / games**0.5
