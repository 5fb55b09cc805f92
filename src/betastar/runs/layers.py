"""Linear layers with tanh between them."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def fully_connected(sizes: list[int]) -> nn.Sequential:
    """Linear layers of these sizes with tanh between them, as in the paper."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers[:-1])
