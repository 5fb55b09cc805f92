"""Turns the captured calls of layers into factors of their gradients, in the form that is cheapest for each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar.training.gradients.factors import Factor, Rest
from betastar.training.gradients.record_gradients import is_linear, is_transposed_linear, written_gradients
from betastar.training.gradients.side_effects import GradientError
from betastar.training.gradients.tiled_factor import Call, EmbeddingCall, LinearCall, TiledFactor
from betastar.training.gradients.trained_model import TrainedModel
from betastar.training.records import Records
from betastar.training.secrets.secret import Columns

# ---- The first linear layer runs once for each record: the variants of a record differ in a few columns of its table only.


class FirstLayer:
    """Runs a linear layer that reads the table of variants. They differ in a few columns, so that each record is run once.

    W x_i = W x_rest + W_columns v_i, and x_i·x_j = ‖x_rest‖² + v_i·v_j: the columns v_i and √‖x_rest‖² stand for x_i.
    """

    def __init__(self, records: Records, columns: Columns, values: Sequence[int]) -> None:
        self._argument, self._columns = columns.argument, columns.where
        self._rest = records.get(columns.argument).clone()
        self._rest[:, self._columns] = 0.0
        self._values = columns.table[list(values)].to(self._rest)

    def watch(self, variants: Records) -> None:
        """Remember the table of the variants that the model is run on next."""
        self._table: Tensor = variants.get(self._argument)
        self._version = self._table._version

    def _applies(self, x: Tensor) -> bool:
        """Whether the input of a layer is the table of variants, unchanged."""
        return x.data_ptr() == self._table.data_ptr() and x.shape == self._table.shape and x._version == self._version

    def forward(self, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        """The forward function that replaces the layer's own."""

        def run(x: Tensor) -> Tensor:
            if not self._applies(x):
                return functional.linear(x, layer.weight, layer.bias)
            with torch.no_grad():
                base = functional.linear(self._rest, layer.weight, layer.bias)
                moves = functional.linear(self._values, layer.weight[:, self._columns])
                return (base[:, None] + moves).flatten(0, 1).requires_grad_()

        return run

    def narrow(self, x: Tensor) -> tuple[Tensor, Rest] | None:
        """The columns in which variants differ with the norm of the rest, and the rest; None for another input than the table."""
        if not self._applies(x):
            return None
        n, a = len(self._rest), len(self._values)
        rest = torch.linalg.vector_norm(self._rest, dim=1)[:, None, None].expand(n, a, 1)
        return torch.cat([self._values.expand(n, a, -1), rest], dim=2).flatten(0, 1), Rest(self._rest, self._columns)


def is_table(records: Records, columns: Columns) -> bool:
    """Whether the argument that holds these columns is a table of numbers."""
    tensor = records.get(columns.argument)
    return isinstance(tensor, Tensor) and tensor.ndim == 2 and tensor.is_floating_point()


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


# ---- Factors of calls

#: What to use in place of layers that take several tensors.
REFUSED = {
    nn.EmbeddingBag: "use nn.Embedding and take the mean or sum in the forward pass",
    nn.Bilinear: "use nn.Linear on an outer product or on both inputs side by side",
}


class LayerGradients:
    """Makes factors of captured calls.

    Parameters
    ----------
    model : TrainedModel
        The model that is trained.
    """

    def __init__(self, model: TrainedModel) -> None:
        self._model = model
        self._names = {id(module): name or type(module).__name__ for name, module in model.module.named_modules()}

    def name(self, module: nn.Module) -> str:
        """How error messages name a layer."""
        return f"{self._names.get(id(module), '')} ({type(module).__name__})"

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
        times = Counter(id(p) for call in calls for p in call.module.parameters(recurse=False))
        small: dict[nn.Parameter, Tensor] = {}
        tiled: dict[nn.Parameter, list[Call]] = {}
        for call in calls:
            module = call.module
            once = all(times[id(p)] == 1 for p in module.parameters(recurse=False) if p.requires_grad)
            if is_linear(module) and call.input.ndim == 2 and once:
                yield from self._table(module, call, shape)  # type: ignore[arg-type]
            elif is_linear(module) or is_transposed_linear(module):
                self._positions(call, shape, tiled, small)
            elif type(module) is nn.Embedding:
                error = call.error.reshape(*shape, -1, module.embedding_dim)
                if module.padding_idx is not None and not self._model.ignores_padding_idx:
                    error = error * (call.input.reshape(*shape, -1, 1) != module.padding_idx)
                assert isinstance(module.weight, nn.Parameter)
                tiled.setdefault(module.weight, []).append(EmbeddingCall(error, call.input.reshape(*shape, -1)))
            else:
                for parameter, samples in self._samples(call).items():
                    _add(small, parameter, samples.reshape(*shape, -1))
        for weight, some in tiled.items():
            yield TiledFactor(tuple(some), (weight,))
        if self._model.flat and len(small) > 1:
            yield Factor(torch.cat(list(small.values()), dim=2), parameters=tuple(small))
        else:
            yield from (Factor(rows, parameters=(parameter,)) for parameter, rows in small.items())

    def _table(self, layer: nn.Linear, call: CapturedCall, shape: tuple[int, int]) -> Iterator[Factor]:
        """A layer that reads one row for each variant: its gradient is an outer product."""
        weight, bias = layer.weight.requires_grad, layer.bias is not None and layer.bias.requires_grad
        input, rest = call.narrow or (call.input.detach(), None)
        rows, errors = input.reshape(*shape, -1), call.error.reshape(*shape, -1)
        if weight and bias and self._model.flat:
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
        """The gradients of single records."""
        try:
            with torch.no_grad():
                return written_gradients(call.module, call.input.detach(), call.error)
        except Exception as problem:
            raise not_computed(self.name(call.module), str(problem)) from problem

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
        missing = {id(p) for p in self._model.parameters} - called
        if missing:
            names = [name for name, p in self._model.module.named_parameters() if id(p) in missing]
            raise not_computed(names[0], "its module was not called in the forward pass.")


def _add(small: dict[nn.Parameter, Tensor], parameter: nn.Parameter, rows: Tensor) -> None:
    small[parameter] = small[parameter] + rows if parameter in small else rows


def not_computed(name: str, why: str) -> GradientError:
    """The error for a layer whose gradients cannot be computed."""
    return GradientError(f"gradients of {name} cannot be computed: {why}")
