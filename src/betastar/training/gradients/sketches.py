"""Sketches: sums of gradients in a few numbers, so that two of them are compared without writing either out.

A sum S of gradients of a weight that serves many positions is replaced by uᵀSv/√k for k pairs of random vectors u and v with
independent standard normal entries. Other sums stand for themselves. The mean of (uᵀEv)² is ‖E‖², so that the sum of squares of
the sketch of a difference E estimates ‖E‖². With k = 32, it is below a hundredth of ‖E‖² with a probability below 1e-13: by
Chernoff's bound, in which E[exp(-θ(uᵀEv)²)] = E[(1 + 2θ Σ_i s_i² u_i²)^(-1/2)] with the singular values s_i of E is the largest
for a single one, as the function is convex.
"""

from __future__ import annotations

import torch
from torch import Tensor

from betastar.training.gradients.factors import Gradients
from betastar.training.gradients.tiled_factor import TiledFactor

#: The number of pairs of random vectors.
PAIRS = 32


class Sketches:
    """Makes sketches with the same random vectors each time. No generator of the training is used for them."""

    def __init__(self) -> None:
        self._vectors: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self._generator = torch.Generator().manual_seed(0)

    def of_sum(self, gradients: Gradients) -> dict[Tensor, Tensor]:
        """The sketch of the sum over all records and variants for each parameter, in double precision."""
        weights = torch.ones_like(gradients.norms)
        sketches: dict[Tensor, Tensor] = {}
        for factor in gradients.factors:
            if isinstance(factor, TiledFactor):
                (weight,) = factor.parameters
                sketches[weight] = factor.sketch(weights, *self._drawn(weight)) / PAIRS**0.5
            else:
                totals = zip(factor.parameters, factor.total(weights), strict=True)
                sketches |= {parameter: total.flatten().double() for parameter, total in totals}
        return sketches

    def of(self, parameter: Tensor, total: Tensor) -> Tensor:
        """The sketch of a sum that is given, after `of_sum` has met the parameter."""
        if parameter not in self._vectors:
            return total.flatten().double()
        left, right = self._vectors[parameter]
        return ((total @ right) * left).sum(dim=0, dtype=torch.float64) / PAIRS**0.5

    def _drawn(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        if weight not in self._vectors:
            left, right = (torch.randn(size, PAIRS, generator=self._generator).to(weight) for size in weight.shape)
            self._vectors[weight] = left, right
        return self._vectors[weight]
