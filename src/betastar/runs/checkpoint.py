"""The state of a training, and weights, as bytes and back; reading those that somebody else made runs no code of theirs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from betastar.runs.reading import FolderError

#: An array of NumPy is kept as a tensor under this key: torch.load reads tensors and plain Python only.
ARRAY = "array of NumPy"


def pack(state: dict[str, Any]) -> bytes:
    """The content of a file that holds this state."""
    buffer = io.BytesIO()
    torch.save(_without_arrays(state), buffer)
    return buffer.getvalue()


def unpack(path: Path) -> dict[str, Any]:
    """The state in a file; raises FolderError for a file that `pack` did not make."""
    try:
        return dict(_with_arrays(torch.load(io.BytesIO(path.read_bytes()), weights_only=True)))
    except OSError:
        raise
    except Exception as problem:  # of pickle, zipfile or torch
        first = (str(problem) or type(problem).__name__).splitlines()[0]
        raise FolderError(f"{path} is damaged or not of betastar train: {first}") from None


def pack_weights(weights: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file that holds these weights and nothing else."""
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous() for name, tensor in weights.items()}, metadata={"format": "pt"})


def unpack_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a safetensors file; raises FolderError for another file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except (SafetensorError, KeyError, ValueError, RuntimeError) as problem:
        raise FolderError(f"{path} is damaged or no safetensors file: {str(problem).splitlines()[0]}.") from None


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {ARRAY: torch.from_numpy(value)}
    if isinstance(value, np.generic):
        return value.item()
    return _inside(value, _without_arrays)


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {ARRAY}:
        return value[ARRAY].numpy()
    return _inside(value, _with_arrays)


def _inside(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with everything inside of it changed."""
    if type(value) is dict:  # not the ordered ones of torch, which have attributes
        return {name: change(one) for name, one in value.items()}
    return type(value)(change(one) for one in value) if type(value) in (list, tuple) else value
