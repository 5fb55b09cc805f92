"""The attribute game, played on real training: who sees every update does not beat the bound that was known in advance."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

import betastar as bs
from betastar.training import Secret

from .private import training

STEPS, NOISE, CLIP, RATE = 3, 0.2, 0.5, 0.5
VALUES = torch.tensor([-3.0, 3.0])


def pulled(module: nn.Module, x: Tensor, y: Tensor, gap: float) -> Tensor:
    """ĝ of each record with each value in column 1, by the formula and in double precision, (n, 2, weights)."""
    names = {name: p.detach().double() for name, p in module.named_parameters()}
    both = x.double().repeat_interleave(2, dim=0)
    both[:, 1] = VALUES.repeat(len(x))

    def loss(weights: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, weights, (one[None],)), target[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(names, both, y.repeat_interleave(2))
    flat = torch.cat([found[name].flatten(1) for name in names], dim=1)
    points = (flat * (CLIP / flat.norm(dim=1, keepdim=True)).clamp(max=1.0)).unflatten(0, (len(x), 2))
    mean = points.mean(dim=1, keepdim=True)
    away = points - mean
    return mean + away * (0.5 * gap * CLIP / away.norm(dim=2, keepdim=True)).clamp(max=1.0)


def play(gap: float, games: int, seed: int) -> int:
    """How often the best guess of the challenge record's value is right.

    The attacker knows the weights before each step, the other records and who of them was sampled; what remains of an update is
    the challenge's gradient, if it was sampled, and noise. It weighs both values by their likelihood, over all steps.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    x[:, 1] = VALUES[y]
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    options = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "lr": 0.5, "seed": seed}
    secret = Secret.column(1, VALUES.tolist(), name="value")
    made = training(module, TensorDataset(x, y), secret, batch_size=2, gap=min(gap, 1.999), **options)
    right = 0
    for _ in range(games):
        module.load_state_dict(start)
        made.accept_weights()
        truth = int(torch.randint(2, (1,), generator=generator))
        x[0, 1] = VALUES[truth]
        evidence = 0.0
        for _ in range(STEPS):
            sampled = made._draws.indices(made.steps)
            known = pulled(module, x, y, gap)
            made.step()
            seen = torch.cat([p.grad.flatten() for p in module.parameters()]).double() * made._draws.divisor  # type: ignore[union-attr]
            others = sampled[sampled > 0]
            rest = seen - known[others, y[others]].sum(dim=0)
            evidence += log_likelihood(rest, known[0, 1]) - log_likelihood(rest, known[0, 0])
        right += int((evidence > 0.0) == bool(truth))
    return right


def log_likelihood(rest: Tensor, gradient: Tensor) -> float:
    """Of what remains of an update, if the record has this gradient: sampled or not."""
    spread = 2.0 * (NOISE * CLIP) ** 2
    ahead = float((rest.square().sum() - (rest - gradient).square().sum()) / spread)
    return log(1.0 - RATE + RATE * exp(ahead))


def interval(right: int, games: int) -> tuple[float, float]:
    """95 % for the advantage (Clopper and Pearson)."""
    ends = binomtest(right, games).proportion_ci(0.95, "exact")
    return 2.0 * float(ends.low) - 1.0, 2.0 * float(ends.high) - 1.0


@pytest.mark.parametrize("games", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_attacker_stays_below_the_certified_bound(games: int) -> None:
    bound = bs.analyze(bs.DPSGD(NOISE, RATE, STEPS), bs.AttributeInference(0.1 * (1 + 1e-6)), "certified").advantage.upper
    low, high = interval(play(0.1, games, seed=0), games)
    assert low <= bound, (low, bound)
    assert high > 0.7 * bound  # an attacker worth the name
    # The same attacker on plain DP-SGD beats what gap clipping promises: the game can be lost.
    assert interval(play(2.0, 40, seed=1), 40)[0] > bound
