"""Clips gradients of variants by the optimizer's own rule."""

from __future__ import annotations

from torch import Tensor

from betastar.training.gradients.factors import Gradients
from betastar.training.opacus.adapter import Wiring

#: Opacus divides by the norm plus this.
TINY = 1e-6


def clip(gradients: Gradients, wiring: Wiring) -> Gradients:
    """The result is in clipping norms."""
    total = wiring.max_grad_norm()
    if wiring.flat:
        scale = (total / (gradients.norms.sqrt() + TINY)).clamp(max=1.0) / total
        return gradients.scaled([scale] * len(gradients.factors), gradients.norms * scale.square())
    limits = {id(p): norm for p, norm in zip(wiring.optimizer.params, wiring.optimizer.max_grad_norms, strict=True)}
    scales: list[Tensor] = []
    for factor in gradients.factors:
        (parameter,) = factor.parameters
        scales.append((limits[id(parameter)] / (factor.norms().sqrt() + TINY)).clamp(max=1.0) / total)
    return gradients.scaled(scales)
