"""Random numbers and state: a model must not change them, a measurement restores them, and dropout repeats its masks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class GradientError(RuntimeError):
    """Gradients of single records cannot be computed, are not finite, or are not those that the training uses."""


@dataclass(frozen=True)
class GeneratorStates:
    """The states of the global generators of PyTorch, for the CPU and for the device of a model, of NumPy and of Python."""

    cpu: Tensor
    cuda: Tensor | None
    device: torch.device
    numpy: Any
    python: Any

    @classmethod
    def now(cls, device: torch.device) -> GeneratorStates:
        """The states at this moment."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda, device, np.random.get_state(legacy=True), random.getstate())

    def same(self, other: GeneratorStates) -> bool:
        """Whether both are alike: no random number was drawn in between."""
        cuda = self.cuda is None or other.cuda is None or torch.equal(self.cuda, other.cuda)
        numpy = np.array_equal(self.numpy[1], other.numpy[1]) and self.numpy[2:] == other.numpy[2:]
        return cuda and numpy and torch.equal(self.cpu, other.cpu) and bool(self.python == other.python)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.cpu)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@contextmanager
def unchanged(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Refuse models that draw random numbers or write into their own state when they run."""
    before = GeneratorStates.now(device)
    state = [*module.parameters(), *module.buffers()]
    versions = [tensor._version for tensor in state]
    yield
    if not before.same(GeneratorStates.now(device)):
        before.restore()
        names = [name for name, part in module.named_modules() if getattr(part, "p", 0) or getattr(part, "dropout", 0)]
        where = f" ({', '.join(names)})" if names else ""
        raise GradientError(
            f"the model draws random numbers when it runs{where}: the gap then does not follow from the weights. "
            "Set the probability of dropout to 0, or use nn.Dropout or torch.nn.functional.dropout, whose masks are repeated."
        )
    if versions != [tensor._version for tensor in state]:
        raise GradientError("the model writes into its own weights or buffers when it runs (running statistics? max_norm?).")


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore weights, buffers and random number generators afterwards, whatever happens inside."""
    tensors = [*module.parameters(), *module.buffers()]
    states = GeneratorStates.now(tensors[0].device)
    copies = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        states.restore()
        with torch.no_grad():
            for tensor, version, copy in copies:
                if tensor._version != version:
                    tensor.copy_(copy)


# ---- Dropout with the masks of the training loop's own forward pass: one mask for all values of a record (theory, section 7).
#
# The loop's forward pass is run once more from the state that the generators had, and each mask that dropout draws is kept. In a
# pass over variants, dropout then applies the masks of the variants' records and draws nothing.

#: Functions that multiply a tensor by a mask. Their arguments begin with the tensor, the probability and whether to train.
DROPOUTS = (torch.dropout, functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d)
ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True)
class Draws:
    """The random numbers of a forward pass: the states of the generators before and after it."""

    before: GeneratorStates
    after: GeneratorStates

    @property
    def any(self) -> bool:
        """Whether a random number was drawn."""
        return not self.before.same(self.after)


@contextmanager
def recording(draws: Draws | None, device: torch.device) -> Iterator[list[Tensor]]:
    """Collect the masks of dropout while a model runs.

    Parameters
    ----------
    draws : Draws, optional
        The forward pass that is repeated inside; the generators are left as they were. By default, masks are drawn.
    device : torch.device
        The device of the model.

    Yields
    ------
    list of Tensor
        Is filled with the masks, one for each call of dropout.

    Raises
    ------
    GradientError
        If the model has not drawn the same random numbers again.
    """
    states = GeneratorStates.now(device)
    masks: list[Tensor] = []

    def kept(x: Tensor, p: float, function: Any) -> Tensor:
        # The order in which entries are drawn depends on the strides of a tensor, which ones_like keeps.
        masks.append(function(torch.ones_like(x), p, True) != 0)
        return masks[-1]

    try:
        if draws is not None:
            draws.before.restore()
        with _Dropout(kept):
            yield masks
        if draws is not None and not draws.after.same(GeneratorStates.now(device)):
            raise GradientError(
                "the model drew other random numbers when its forward pass was repeated, so that its dropout is not known: draw "
                "random numbers by dropout alone."
            )
    finally:
        if draws is not None:
            states.restore()


@dataclass(frozen=True)
class DropoutMasks:
    """The masks of a forward pass over the records of a batch.

    Attributes
    ----------
    masks : tuple of Tensor
        Whether dropout keeps an entry, for each of its calls.
    records : int
        The number of records in the batch.
    """

    masks: tuple[Tensor, ...]
    records: int

    @contextmanager
    def applied(self, places: Tensor, times: int) -> Iterator[None]:
        """Let dropout apply these masks to variants.

        Parameters
        ----------
        places : Tensor
            The place in the batch of each record that has variants.
        times : int
            The number of variants of each record.
        """
        used = 0

        def kept(x: Tensor, p: float, function: Any) -> Tensor:
            nonlocal used
            used += 1
            return self.rows(used - 1, places, times, x.shape)

        with _Dropout(kept):
            yield
        if used != len(self.masks):
            raise _other_calls(len(self.masks))

    def rows(self, call: int, places: Tensor, times: int, shape: torch.Size) -> Tensor:
        """The mask of a call for the variants of some records."""
        if call >= len(self.masks):
            raise _other_calls(len(self.masks))
        mask = self.masks[call]
        each, rest = divmod(len(mask), self.records) if mask.ndim else (0, 0)
        if each and not rest and shape == (each * len(places) * times, *mask.shape[1:]):
            chosen = mask.unflatten(0, (self.records, each))[places.to(mask.device)]
            return chosen.repeat_interleave(times, dim=0).flatten(0, 1)
        if shape == mask.shape:  # one for all records
            return mask
        raise GradientError(
            f"dropout sees a tensor of shape {tuple(shape)} for {len(places)} records with {times} values each, and one of shape "
            f"{tuple(mask.shape)} for {self.records} records: its first dimension must count the records, and the other ones "
            "must not depend on the secret. Set the probability of this dropout to 0."
        )


class _Dropout(TorchFunctionMode):
    """Replaces every function that draws a mask of dropout."""

    def __init__(self, kept: Callable[[Tensor, float, Any], Tensor]) -> None:
        super().__init__()
        self._kept = kept  # which entries of a tensor are kept, by the probability and the replaced function

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace dropout, and call every other function."""
        named = kwargs or {}
        if func in DROPOUTS:
            given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | named
            x, p = given["input"], float(given.get("p", 0.5))
            if p > 0.0 and given.get("training", given.get("train", True)):
                dropped = self._drop(x, p, func)
                return x.copy_(dropped) if given.get("inplace", False) else dropped
        elif func is functional.scaled_dot_product_attention:
            given = dict(zip(ATTENTION, args, strict=False)) | named
            if given.get("dropout_p", 0.0) > 0.0:
                return self._attention(**given)
        return func(*args, **named)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        """Attention whose weights have a mask of dropout, computed as PyTorch does on a CPU."""
        mask, scale = given.get("attn_mask"), given.get("scale")
        if query.device.type != "cpu":
            raise GradientError(
                f"the masks of dropout inside scaled_dot_product_attention are not known on {query.device.type}: set the "
                "probability of attention dropout to 0, or build the model with attn_implementation='eager'."
            )
        if given.get("enable_gqa"):
            key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], dim=-3) for one in (key, value))
        scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if given.get("is_causal"):
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)
        hidden = (scores == -torch.inf).all(dim=-1, keepdim=True)  # positions that may look at none get zeros
        weights = scores.masked_fill(hidden, 0.0).softmax(dim=-1).masked_fill(hidden, 0.0)
        return self._drop(weights, given["dropout_p"], torch.dropout) @ value

    def _drop(self, x: Tensor, p: float, function: Any) -> Tensor:
        kept = self._kept(x, p, function).to(x.dtype)
        return x * (kept.div_(1.0 - p) if p < 1.0 else kept)


def _other_calls(number: int) -> GradientError:
    return GradientError(
        f"the loop's forward pass calls dropout {number} times, and the same pass over other values of the secret does not: "
        "which layers run must not depend on the secret."
    )
