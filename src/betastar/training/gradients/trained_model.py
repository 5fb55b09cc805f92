"""TrainedModel: a model as the computation of gradients sees it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from betastar.training.gradients.record_gradients import units


class TrainedModel:
    """A model whose gradients of single records are clipped as a whole.

    Parameters
    ----------
    module : Module
        The model.
    max_grad_norm : float
        The clipping norm.

    Attributes
    ----------
    flat : bool
        Whether the gradient is clipped as a whole, not layer by layer.
    ignores_padding_idx : bool
        Whether the row of an embedding that belongs to its padding_idx gets gradients all the same, as Opacus has it.
    limits_cancellation : bool
        Whether gradients whose terms cancel are clipped further (`record_gradients.CANCELLATION`).
    """

    flat = True
    ignores_padding_idx = False
    limits_cancellation = True

    def __init__(self, module: nn.Module, max_grad_norm: float) -> None:
        self.module = module
        self._max_grad_norm = max_grad_norm

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained at this moment."""
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return next(self.module.parameters()).device

    def max_grad_norm(self) -> float:
        """The clipping norm C."""
        return self._max_grad_norm

    def layer_norms(self) -> dict[Tensor, float]:
        """The norm that the gradient of each parameter is clipped to; empty if gradients are clipped as a whole."""
        return {}

    def units(self) -> list[nn.Module]:
        """The layers that have trainable parameters of their own."""
        return units(self.module)

    def silence(self) -> AbstractContextManager[None]:
        """A context in which the model runs without anybody else seeing it."""
        return nullcontext()
