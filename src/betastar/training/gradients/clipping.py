"""Clips gradients of variants by the rule of the optimizer."""

from __future__ import annotations

from torch import Tensor

from betastar.training.gradients.factors import Gradients
from betastar.training.opacus.adapter import OpacusAdapter

#: Opacus adds this to a norm before it divides by it.
TINY = 1e-6


def clip(gradients: Gradients, adapter: OpacusAdapter) -> Gradients:
    """The clipped gradients, in clipping norms."""
    total = adapter.max_grad_norm()
    if adapter.flat:
        scale = (total / (gradients.norms.sqrt() + TINY)).clamp(max=1.0) / total
        return gradients.scaled([scale] * len(gradients.factors), gradients.norms * scale.square())
    limits = {id(p): norm for p, norm in zip(adapter.all_parameters, adapter.layer_norms(), strict=True)}
    scales: list[Tensor] = []
    for factor in gradients.factors:
        (parameter,) = factor.parameters
        scales.append((limits[id(parameter)] / (factor.norms().sqrt() + TINY)).clamp(max=1.0) / total)
    return gradients.scaled(scales)
