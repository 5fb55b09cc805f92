"""Turns the captured calls of layers into factors of their gradients, in the form that is cheapest for each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from betastar.training.gradients.captured_call import CapturedCall
from betastar.training.gradients.factors import Factor
from betastar.training.gradients.first_layer import AbsentTableRead
from betastar.training.gradients.layer_calls import Call, EmbeddingCall, LinearCall
from betastar.training.gradients.layer_kinds import is_transposed_linear
from betastar.training.gradients.side_effects import GradientError
from betastar.training.gradients.tiled_factor import TiledFactor
from betastar.training.opacus.adapter import OpacusAdapter, per_sample_gradients

#: What to use in place of layers that take several tensors.
REFUSED = {
    nn.EmbeddingBag: "use nn.Embedding and take the mean or sum in the forward pass",
    nn.Bilinear: "use nn.Linear on an outer product or on both inputs side by side",
}


class LayerGradients:
    """Makes factors of captured calls.

    Parameters
    ----------
    adapter : OpacusAdapter
        The model that is trained.
    """

    def __init__(self, adapter: OpacusAdapter) -> None:
        self._adapter = adapter
        names = {id(module): name or type(module).__name__ for name, module in adapter.module.named_modules()}
        #: The layers for each of which Opacus computes gradients of single records.
        self.units = adapter.units()
        self._names = {id(unit): names.get(id(unit), type(unit).__name__) for unit in self.units}
        owners = Counter(id(parameter) for unit in self.units for parameter in unit.parameters())
        self._tied = {key for key, number in owners.items() if number > 1}

    def name(self, module: nn.Module) -> str:
        """How error messages name a layer."""
        return f"{self._names[id(module)]} ({type(module).__name__})"

    def require_one_input(self, module: nn.Module, inputs: tuple[object, ...], output: object) -> Tensor:
        """Give the input of a layer, and refuse a layer that does not map one tensor to one tensor."""
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if type(module) in REFUSED or len(tensors) != 1 or not isinstance(output, Tensor):
            way = REFUSED.get(type(module), "give each of its tensors to a layer of its own")
            raise not_computed(
                self.name(module),
                f"it must map a tensor to a tensor, but takes {len(tensors)} and returns a {type(output).__name__}. "
                f"To go on, {way}, or freeze it with requires_grad_(False).",
            )
        return tensors[0]

    def factors(self, calls: Sequence[CapturedCall], shape: tuple[int, int]) -> Iterator[Factor | TiledFactor]:
        """Make the factors of the gradients of n records with a variants each; shape is (n, a)."""
        self._require_complete(calls, shape[0] * shape[1])
        times = Counter(id(call.module) for call in calls)
        small: dict[nn.Parameter, Tensor] = {}
        tiled: dict[nn.Parameter, list[Call]] = {}
        for call in calls:
            module = call.module
            if type(module) is nn.Linear and call.input.ndim == 2 and times[id(module)] == 1 and not self._is_tied(module):
                yield from self._table(module, call, shape)
            elif type(module) is nn.Linear or is_transposed_linear(module):
                self._positions(call, shape, tiled, small)
            elif type(module) is nn.Embedding:
                error = call.error.reshape(*shape, -1, module.embedding_dim)
                assert isinstance(module.weight, nn.Parameter)
                tiled.setdefault(module.weight, []).append(EmbeddingCall(error, call.input.reshape(*shape, -1)))
            else:
                for parameter, samples in self._samples(call).items():
                    _add(small, parameter, samples.reshape(*shape, -1))
        for weight, some in tiled.items():
            yield TiledFactor(tuple(some), (weight,))
        if self._adapter.flat and len(small) > 1:
            yield Factor(torch.cat(list(small.values()), dim=2), parameters=tuple(small))
        else:
            yield from (Factor(rows, parameters=(parameter,)) for parameter, rows in small.items())

    def _table(self, layer: nn.Linear, call: CapturedCall, shape: tuple[int, int]) -> Iterator[Factor]:
        """A layer that reads one row for each variant: its gradient is an outer product."""
        weight, bias = layer.weight.requires_grad, layer.bias is not None and layer.bias.requires_grad
        input, rest = call.narrow or (call.input.detach(), None)
        rows, errors = input.reshape(*shape, -1), call.error.reshape(*shape, -1)
        if weight and bias and self._adapter.flat:
            yield Factor(errors, rows, 1.0, (layer.weight, layer.bias), rest=rest)
            return
        if weight:
            yield Factor(errors, rows, 0.0, (layer.weight,), rest=rest)
        if bias:
            yield Factor(errors, parameters=(layer.bias,))

    def _positions(
        self,
        call: CapturedCall,
        shape: tuple[int, int],
        tiled: dict[nn.Parameter, list[Call]],
        small: dict[nn.Parameter, Tensor],
    ) -> None:
        """A layer that reads several positions of each variant, or that is called several times or shares its weight."""
        weight, bias = call.module.weight, call.module.bias
        error = call.error.reshape(*shape, -1, call.error.shape[-1])
        assert isinstance(weight, nn.Parameter)
        if weight.requires_grad:
            x = call.input.detach().reshape(*shape, -1, call.input.shape[-1])
            rows_of, columns_of = (x, error) if is_transposed_linear(call.module) else (error, x)
            tiled.setdefault(weight, []).append(LinearCall(rows_of, columns_of))
        if isinstance(bias, nn.Parameter) and bias.requires_grad:
            _add(small, bias, error.sum(dim=2))

    def _samples(self, call: CapturedCall) -> dict[nn.Parameter, Tensor]:
        """The gradients of single records, as Opacus computes them."""
        try:
            with torch.no_grad():
                samples = per_sample_gradients(call.module, [call.input.detach()], call.error)
        except AbsentTableRead:
            raise
        except Exception as problem:
            raise not_computed(self.name(call.module), str(problem)) from problem
        return {parameter: rows for parameter, rows in samples.items() if parameter.requires_grad}

    def _is_tied(self, module: nn.Module) -> bool:
        """Whether a layer shares a trainable parameter with another one."""
        return any(id(p) in self._tied for p in module.parameters() if p.requires_grad)

    def _require_complete(self, calls: Sequence[CapturedCall], rows: int) -> None:
        """Refuse calls without one row for each variant, and trainable parameters that take part in no call."""
        for call in calls:
            if len(call.error) != rows:
                raise not_computed(
                    self.name(call.module),
                    f"it sees {len(call.error)} rows for {rows} records; a gradient must belong to one record (no packed "
                    "sequences, no reshaping across records).",
                )
        called = {id(p) for call in calls for p in call.module.parameters() if p.requires_grad}
        missing = {id(p) for p in self._adapter.parameters} - called
        if missing:
            names = [name for name, p in self._adapter.module.named_parameters() if id(p) in missing]
            raise not_computed(names[0], "its module was not called in the forward pass.")


def _add(small: dict[nn.Parameter, Tensor], parameter: nn.Parameter, rows: Tensor) -> None:
    small[parameter] = small[parameter] + rows if parameter in small else rows


def not_computed(name: str, why: str) -> GradientError:
    """The error for a layer whose gradients cannot be computed."""
    return GradientError(f"gradients of {name} cannot be computed: {why}")
