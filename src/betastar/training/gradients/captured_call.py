"""CapturedCall: what a pass over variants has seen of one call of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from betastar.training.gradients.factors import Rest


@dataclass(frozen=True)
class CapturedCall:
    """One call of a layer with trainable weights.

    Attributes
    ----------
    module : Module
        The layer.
    input : Tensor
        Its input, one row for each variant.
    error : Tensor
        The gradient of the sum of losses at its output, one row for each variant.
    narrow : tuple, optional
        The columns of the input in which variants differ, and the rest of the input; None stands for the whole input.
    """

    module: nn.Module
    input: Tensor
    error: Tensor
    narrow: tuple[Tensor, Rest] | None = None
