"""Gradient checkpointing of Hugging Face's models: it is off during passes over variants, whose memory is bounded anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

#: The attributes of a module that say whether it runs again in the backward pass, and by which function.
FLAG, FUNCTION = "gradient_checkpointing", "_gradient_checkpointing_func"


@contextmanager
def without_checkpointing(module: nn.Module) -> Iterator[None]:
    """Switch gradient checkpointing off inside."""
    parts = [part for part in module.modules() if vars(part).get(FLAG) is True]
    for part in parts:
        setattr(part, FLAG, False)
    try:
        yield
    finally:
        for part in parts:
            setattr(part, FLAG, True)


def runs_forward_hooks_again(module: nn.Module) -> bool:
    """Whether layers are checkpointed in the way without re-entrant backward passes, which Opacus cannot follow."""
    functions = (vars(part).get(FUNCTION) for part in module.modules() if vars(part).get(FLAG) is True)
    return any(getattr(function, "keywords", {}).get("use_reentrant") is False for function in functions)
