"""Tells kinds of layers apart."""

from __future__ import annotations

from torch import nn

#: The linear layer of Hugging Face whose weight has a row for each input. It is known by its name, as the package may be missing.
TRANSPOSED_LINEAR = "transformers.pytorch_utils.Conv1D"


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether a layer computes x W + b, where PyTorch's linear layer computes x Wᵀ + b."""
    return f"{type(module).__module__}.{type(module).__qualname__}" == TRANSPOSED_LINEAR
