"""What tensors and other values contain, as texts that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor


def digest(tensor: Tensor) -> str:
    """A text that is another one for other contents."""
    plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor.cpu()
    return hashlib.blake2b(plain.numpy().tobytes(), digest_size=16).hexdigest()


def leaves(where: str, value: object) -> Iterator[tuple[str, str]]:
    """The numbers, texts and arrays inside a value, with where each is. Other objects are left out."""
    if isinstance(value, bool | int | float | complex | str | np.generic):
        yield where, repr(value)
    elif isinstance(value, Tensor):
        yield where, repr(value.item()) if value.numel() == 1 else digest(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield where, repr(value.item()) if value.size == 1 else hashlib.blake2b(value.tobytes()).hexdigest()
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(f"{where}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from leaves(f"{where}[{number}]", part)
