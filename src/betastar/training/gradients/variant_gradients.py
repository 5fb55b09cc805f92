"""Runs a private model on variants of records and returns their clipped gradients, leaving the model as it was.

Meanwhile, the hooks of Opacus are off, no gradient is written, and no random number is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from betastar.training.gradients.clipping import clip
from betastar.training.gradients.factors import Factor, Gradients, Rest
from betastar.training.gradients.first_layer import AbsentTableRead, FirstLayer, is_table
from betastar.training.gradients.side_effects import GradientError, unchanged
from betastar.training.opacus.adapter import OpacusAdapter, per_sample_gradients
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

#: The columns of a layer's input in which variants differ, and the rest of the input; None stands for the whole input.
Narrow = tuple[Tensor, Rest] | None
#: A layer, its inputs, the error at its output.
Call = tuple[nn.Module, tuple[Any, ...], Tensor, Narrow]
CHECKPOINTING = "Switch off gradient checkpointing, and call layers with trainable weights outside of torch.no_grad()."


class VariantGradients:
    """Computes clipped gradients of variants, in clipping norms. `criterion` is the loss of the training."""

    def __init__(self, adapter: OpacusAdapter, criterion: Callable[..., Tensor]) -> None:
        self._adapter = adapter
        self._criterion = criterion
        units = adapter.units()
        names = {id(module): name or type(module).__name__ for name, module in adapter.module.named_modules()}
        self._units = {id(unit): (unit, names.get(id(unit), type(unit).__name__)) for unit in units}
        owners = Counter(id(parameter) for unit in units for parameter in unit.parameters())
        self._tied = {key for key, number in owners.items() if number > 1}
        self._first_run = True  # until `try_out` has run the model
        self._table_is_optional = False  # whether linear layers alone read the table of variants

    def gradients(self, records: Records, secret: Secret, values: Sequence[int]) -> Gradients:
        """The clipped gradients of each record's variants with these values."""
        columns = secret.as_columns()
        first_layer = FirstLayer(records, columns, values) if columns and is_table(records, columns) else None
        if first_layer and self._table_is_optional:
            try:
                gradients = self._clipped(first_layer.without_table(), (len(records), len(values)), first_layer)
            except AbsentTableRead:
                self._table_is_optional = False
            else:
                if gradients.norms.isfinite().all():
                    return gradients
        gradients = self._clipped(secret.variants(records, values), (len(records), len(values)), first_layer)
        if not gradients.norms.isfinite().all():
            raise GradientError(
                "the gradient of a record is not finite: check the learning rate and the data. The weights were not changed."
            )
        return gradients

    def try_out(self, records: Records, secret: Secret, values: Sequence[int]) -> Gradients:
        """Run the model once, and find out whether it reads the table of variants through linear layers only."""
        self._first_run = True
        gradients = self.gradients(records, secret, values)
        self._first_run = False
        columns = secret.as_columns()
        if columns and is_table(records, columns):
            first_layer = FirstLayer(records, columns, values)
            try:
                quick = self._clipped(first_layer.without_table(), (len(records), len(values)), first_layer)
            except Exception:  # the model reads the table in another way, and is given the real one from now on
                return gradients
            self._table_is_optional = torch.allclose(gradients.cross(gradients), quick.cross(quick), rtol=1e-4, atol=1e-7)
        return gradients

    def own(self, records: Records) -> Gradients:
        """The records' own gradients, one variant each, not clipped."""
        return Gradients(tuple(self._factors(self._run(records, None), (len(records), 1))))

    def _clipped(self, variants: Records, shape: tuple[int, int], first_layer: FirstLayer | None) -> Gradients:
        return clip(Gradients(tuple(self._factors(self._run(variants, first_layer), shape))), self._adapter)

    def _run(self, variants: Records, first_layer: FirstLayer | None) -> list[Call]:
        """The calls of layers in a forward and backward pass over the variants."""
        seen: list[tuple[nn.Module, tuple[Any, ...], Any, Narrow]] = []
        if first_layer:
            first_layer.watch(variants)

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or not isinstance(inputs[0] if inputs else None, Tensor):
                raise _not_computed(self._name(module), "it must map a tensor to a tensor.")
            narrow = first_layer.narrow(inputs[0]) if first_layer and type(module) is nn.Linear else None
            seen.append((module, inputs, output, narrow))

        with (
            self._adapter.silence(),
            unchanged(self._adapter.module, self._first_run),
            self._listening(note, first_layer),
            torch.enable_grad(),
            torch.autocast(self._adapter.device.type, enabled=False),
        ):
            output = self._adapter.module(*variants.inputs, **variants.named)
            total = self.total_loss(self._criterion(output, variants.target), len(variants))
            outputs = [self._connected(module, out) for module, _, out, _ in seen]
            errors = torch.autograd.grad(total, outputs, allow_unused=True)
        if len(seen) > len(outputs):
            again = self._name(seen[len(outputs)][0])
            raise _not_computed(again, f"the backward pass calls it again. {CHECKPOINTING}")
        return [
            (module, inputs, torch.zeros_like(out) if error is None else error, narrow)
            for (module, inputs, out, narrow), error in zip(seen, errors, strict=True)
        ]

    def _connected(self, module: nn.Module, output: Tensor) -> Tensor:
        if not output.requires_grad:
            raise GradientError(
                f"gradients of {self._name(module)} cannot be computed: it is called without them. {CHECKPOINTING}"
            )
        return output

    def total_loss(self, loss: Tensor, rows: int) -> Tensor:
        """The sum of the records' losses."""
        if not isinstance(loss, Tensor) or loss.ndim > 1 or (loss.ndim == 1 and len(loss) != rows):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"criterion must give one loss, or one for each record, got shape {shape} for {rows} records.")
        if loss.ndim == 1:
            return loss.sum()
        return loss * rows if self._adapter.loss_reduction == "mean" else loss

    def _factors(self, calls: list[Call], shape: tuple[int, int]) -> Iterator[Factor]:
        """One factor for each linear layer that reads a table. Gradients of other parameters are stored in full and added up."""
        self._require_complete(calls, shape[0] * shape[1])
        times = Counter(id(module) for module, *_ in calls)
        written: dict[nn.Parameter, Tensor] = {}
        for module, inputs, error, narrow in calls:
            if self._is_plain_linear(module) and inputs[0].ndim == 2 and times[id(module)] == 1:
                yield from self._linear(module, narrow or (inputs[0].detach(), None), error, shape)
                continue
            for parameter, samples in self._samples(module, inputs, error).items():
                if parameter.requires_grad:
                    rows = samples.reshape(len(error), -1)
                    written[parameter] = written[parameter] + rows if parameter in written else rows
        for parameter, rows in written.items():
            yield Factor(rows.reshape(*shape, -1), parameters=(parameter,))

    def _require_complete(self, calls: list[Call], rows: int) -> None:
        """Refuse calls without one row for each variant, and trainable parameters that take part in no call."""
        for module, _, error, _ in calls:
            if len(error) != rows:
                raise _not_computed(
                    self._name(module),
                    f"it sees {len(error)} rows for {rows} records; a gradient must belong to one record (no packed sequences, "
                    "no reshaping across records).",
                )
        called = {id(p) for module, *_ in calls for p in module.parameters() if p.requires_grad}
        missing = {id(p) for p in self._adapter.parameters} - called
        if missing:
            names = [name for name, p in self._adapter.module.named_parameters() if id(p) in missing]
            raise _not_computed(names[0], "its module was not called in the forward pass.")

    def _is_plain_linear(self, module: nn.Module) -> TypeGuard[nn.Linear]:
        """Whether a module is a linear layer of PyTorch that shares no trainable parameter with another one."""
        return type(module) is nn.Linear and not any(id(p) in self._tied for p in module.parameters() if p.requires_grad)

    def _linear(
        self, layer: nn.Linear, input: tuple[Tensor, Rest | None], error: Tensor, shape: tuple[int, int]
    ) -> Iterator[Factor]:
        weight, bias = layer.weight.requires_grad, layer.bias is not None and layer.bias.requires_grad
        rows, errors, rest = input[0].reshape(*shape, -1), error.reshape(*shape, -1), input[1]
        if weight and bias and self._adapter.flat:
            yield Factor(errors, rows, 1.0, (layer.weight, layer.bias), rest=rest)
            return
        if weight:
            yield Factor(errors, rows, 0.0, (layer.weight,), rest=rest)
        if bias:
            yield Factor(errors, parameters=(layer.bias,))

    def _samples(self, module: nn.Module, inputs: tuple[Any, ...], error: Tensor) -> dict[nn.Parameter, Tensor]:
        """The gradients of single records, as Opacus computes them."""
        try:
            with torch.no_grad():
                return per_sample_gradients(module, [x.detach() for x in inputs if isinstance(x, Tensor)], error)
        except AbsentTableRead:
            raise
        except Exception as problem:
            raise _not_computed(self._name(module), str(problem)) from problem

    @contextmanager
    def _listening(self, note: Callable[..., None], first_layer: FirstLayer | None) -> Iterator[None]:
        handles = [unit.register_forward_hook(note) for unit, _ in self._units.values()]
        handles += [unit.register_forward_pre_hook(_refuse_packed) for unit in self._adapter.recurrent()]
        replaced = []
        if first_layer:
            for unit, _ in self._units.values():
                if type(unit) is nn.Linear and "forward" not in vars(unit):
                    unit.forward = first_layer.forward(unit)  # type: ignore[method-assign, assignment]
                    replaced.append(unit)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for unit in replaced:
                del unit.forward

    def _name(self, module: nn.Module) -> str:
        return f"{self._units[id(module)][1]} ({type(module).__name__})"


def _not_computed(name: str, why: str) -> GradientError:
    return GradientError(f"gradients of {name} cannot be computed: {why}")


def _refuse_packed(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if inputs and isinstance(inputs[0], PackedSequence):
        raise GradientError(f"gradients of {type(module).__name__} cannot be computed for packed sequences; pad them instead.")
