"""The precision in which a training loop computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def require_precision(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse less than single precision, whose rounding is larger than the gap between two values of a secret."""
    strange = [p.dtype for p in parameters if p.dtype not in (torch.float32, torch.float64)]
    if strange:
        raise ValueError(f"module must have weights in float32 or float64, got {strange[0]}: a gap would drown in rounding.")
    if torch.is_autocast_enabled(parameters[0].device.type):
        raise ValueError(
            "the loop runs the model under torch.autocast, whose rounding moves gradients further apart than the values of a "
            "secret do: train in float32 (leave torch.autocast out)."
        )
    if torch.get_float32_matmul_precision() != "highest":
        raise ValueError(
            f"torch.get_float32_matmul_precision() must be 'highest', got {torch.get_float32_matmul_precision()!r}, which "
            "rounds products of matrices: call torch.set_float32_matmul_precision('highest')."
        )
