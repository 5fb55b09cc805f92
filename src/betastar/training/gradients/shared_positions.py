"""SharedPositions: linear layers run once for each record at positions where its variants are alike.

In a causal model these are the positions before the secret, in every layer. In any model they are the positions beside the
secret, in the layers below the first one that mixes positions. They are found by comparing inputs bit for bit, so that nothing is
assumed of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar.training.gradients.layer_kinds import is_transposed_linear

#: The share of positions from which on it pays to run them once.
WORTHWHILE = 0.2


class SharedPositions:
    """Replaces the forward functions of linear layers for passes over variants.

    Parameters
    ----------
    module : Module
        The model. Frozen layers are run once at shared positions as well.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [part for part in module.modules() if type(part) is nn.Linear or is_transposed_linear(part)]
        self._worthwhile: set[int] = set()  # the layers that had shared positions in the first pass
        self._used: set[int] = set()  # those that had some in this pass
        self._variants = 1
        self._seen: list[tuple[Tensor, Tensor]] = []  # inputs of this pass, and the positions that variants share in them

    @contextmanager
    def running(self, variants: int, first: bool) -> Iterator[None]:
        """Replace forward functions during a pass over so many variants of each record.

        Parameters
        ----------
        variants : int
            The number of variants of each record.
        first : bool
            Whether every layer is looked at. Otherwise those that shared no positions in the first pass are left alone.
        """
        self._variants, self._seen = variants, []
        if first:
            self._worthwhile = {id(layer) for layer in self._layers}
            self._used = set()
        replaced = []
        for layer in self._layers if variants > 1 else ():
            if id(layer) in self._worthwhile and "forward" not in vars(layer):
                layer.forward = self._forward(layer)
                replaced.append(layer)
        try:
            yield
        finally:
            self._seen = []
            for layer in replaced:
                del layer.forward
            if first:
                self._worthwhile = self._used

    def _forward(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        original = layer.forward

        def run(x: Tensor) -> Tensor:
            shared = self._shared(x)
            if shared is None:
                return original(x)
            self._used.add(id(layer))
            weight, bias = layer.weight, layer.bias
            assert isinstance(weight, Tensor)
            matrix = weight.T if is_transposed_linear(layer) else weight
            return _LinearOnce.apply(x, matrix, bias, shared, self._variants)  # type: ignore[no-untyped-call]

        return run

    def _shared(self, x: Tensor) -> Tensor | None:
        """Which positions of an input are alike in all variants of each record; None if it does not pay to run them once."""
        if x.ndim != 3 or not len(x) or len(x) % self._variants:
            return None
        shared = next((positions for seen, positions in self._seen if seen is x), None)
        if shared is None:
            shared = _alike(x.detach().unflatten(0, (-1, self._variants)))
            self._seen.append((x, shared))
        return shared if float(shared.double().mean()) >= WORTHWHILE else None


def _alike(parts: Tensor) -> Tensor:
    """Whether all variants hold the same at each position, for all records. Two of them are compared first, to see where."""
    alike = _apart(parts[:, 1:2], parts[:, :1]) == 0.0
    places = alike.nonzero().flatten().tolist()
    if places:
        span = slice(places[0], places[-1] + 1)
        alike[span] &= _apart(parts[:, 2:, span], parts[:, :1, span]) == 0.0
    return alike


def _apart(some: Tensor, other: Tensor) -> Tensor:
    """The largest difference at each position; not a number where one is infinite. It takes less time than a comparison."""
    return (some - other).abs_().amax(dim=(0, 1, 3)) if some.numel() else other.new_zeros(other.shape[2])


class _LinearOnce(torch.autograd.Function):
    """x Wᵀ + b, computed once for each record at shared positions. The weight gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shared: Tensor, variants: int) -> Tensor:
        ctx.save_for_backward(weight)
        parts = x.unflatten(0, (-1, variants))
        output = x.new_empty(*parts.shape[:3], len(weight))
        alike = int(shared.sum())
        first: slice | Tensor = slice(0, alike) if bool(shared[:alike].all()) else shared
        others: slice | Tensor = slice(alike, None) if isinstance(first, slice) else ~shared
        for some, rows in ((first, parts[:, :1, first]), (others, parts[:, :, others])):
            made = functional.linear(rows.reshape(-1, rows.shape[-1]), weight, bias)  # one product of matrices is the fastest
            output[:, :, some] = made.view(*rows.shape[:-1], len(weight))  # there may be no rows
        return output.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        return error @ weight if ctx.needs_input_grad[0] else None, None, None, None, None
