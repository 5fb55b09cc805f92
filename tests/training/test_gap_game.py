"""The attribute game, played on real training: who sees every update does not beat the bound that was known in advance."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import beta as beta_distribution
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import betastar as bs
from betastar.training import Records, Secret

from .private import clipped_sum, training, weighed

STEPS, NOISE, CLIP, RATE = 3, 0.2, 0.5, 0.5


def play(gap: float, games: int, seed: int) -> int:
    """How often the best guess of the challenge record's value is right.

    The attacker knows the weights before each step, the other records and who of them was sampled; what remains of an update is
    the challenge's gradient, if it was sampled, and noise. It weighs both values by their likelihood, over all steps.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    values = torch.tensor([-3.0, 3.0])
    x[:, 1] = values[torch.tensor([0, 1, 0, 1])]
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    secret = Secret.column(1, values.tolist(), name="value")
    options = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "lr": 0.5, "seed": seed}
    made = training(module, TensorDataset(x, y), secret, batch_size=2, gap=min(gap, 1.999), **options)
    parameters = list(module.parameters())

    def pulled(records: Records) -> Tensor:
        """ĝ of each record, written out."""
        gradients, own, each = weighed(clipped_sum(made), records)
        weights = each[range(len(records)), own]
        sums = [gradients.totals(weights * mask) for mask in torch.eye(len(records))[:, :, None]]
        return torch.stack([torch.cat([one[p].flatten() for p in parameters]) for one in sums]).double() * CLIP

    right = 0
    for _ in range(games):
        module.load_state_dict(start)
        made.accept_weights()
        truth = int(torch.randint(2, (1,), generator=generator))
        x[0, 1] = values[truth]
        either = Records((torch.cat([x[:1], x]),), torch.cat([y[:1], y]))  # the challenge with both values, and the others
        either.inputs[0][:2, 1] = values
        evidence = 0.0
        for _ in range(STEPS):
            sampled = made._draws.indices(made.steps)
            known = pulled(either)
            made.step()
            seen = torch.cat([p.grad.flatten() for p in parameters]).double() * made._draws.divisor
            rest = seen - known[1 + sampled[sampled > 0]].sum(dim=0)
            logs = [_log_likelihood(rest, guess) for guess in known[:2]]
            evidence += logs[1] - logs[0]
        right += int((evidence > 0.0) == bool(truth))
    return right


def _log_likelihood(rest: Tensor, gradient: Tensor) -> float:
    """Of what remains of an update, if the record has this gradient: sampled or not."""
    spread = 2.0 * (NOISE * CLIP) ** 2
    away, there = -rest.square().sum() / spread, -(rest - gradient).square().sum() / spread
    return float(torch.logaddexp(away + torch.log(torch.tensor(1.0 - RATE)), there + torch.log(torch.tensor(RATE))))


def interval(right: int, games: int) -> tuple[float, float]:
    """95 % for the advantage (Clopper and Pearson)."""
    low, high = beta_distribution.ppf(0.025, right, games - right + 1), beta_distribution.ppf(0.975, right + 1, games - right)
    return 2.0 * float(low) - 1.0, 2.0 * float(high) - 1.0


@pytest.mark.parametrize("games", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_attacker_stays_below_the_certified_bound(games: int) -> None:
    run = bs.DPSGD(NOISE, RATE, STEPS)
    bound = bs.analyze(run, bs.AttributeInference(0.1 * (1 + 1e-6)), "certified").advantage.upper
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        low, high = interval(play(0.1, games, seed=0), games)
        assert low <= bound, (low, bound)
        assert high > 0.7 * bound  # an attacker worth the name
        # The same attacker on plain DP-SGD beats what gap clipping promises: the game can be lost.
        assert interval(play(2.0, 100, seed=1), 100)[0] > bound
    finally:
        torch.set_num_threads(threads)
