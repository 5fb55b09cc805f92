"""The clipped gradients of variants of records, from one forward and backward pass of the private model over them.

The captured calls of layers become factors of gradients, in the form that is cheapest for each layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from betastar.training.gradients.factors import Factor, Gradients, Rest, clip
from betastar.training.gradients.record_gradients import (
    TrainedModel,
    is_linear,
    is_transposed_linear,
    listening,
    one_row_each,
    written_gradients,
)
from betastar.training.gradients.side_effects import Draws, DropoutMasks, GradientError, recording, unchanged
from betastar.training.gradients.tiled_factor import Call, EmbeddingCall, LinearCall, TiledFactor
from betastar.training.records import Records
from betastar.training.secrets.secret import Columns, Secret

# ---- The first linear layer runs once for each record: the variants of a record differ in a few columns of its table only.


class FirstLayer(TorchFunctionMode):
    """Runs linear layers that read the table of variants. They differ in a few columns, so that each record is run once.

    W x_i = W x_rest + W_columns v_i, and x_i·x_j = ‖x_rest‖² + v_i·v_j: the columns v_i and √‖x_rest‖² stand for x_i.
    """

    def __init__(self, records: Records, variants: Records, columns: Columns, values: Sequence[int]) -> None:
        super().__init__()
        self._columns, self._rest = columns.where, records.get(columns.argument).clone()
        self._rest[:, self._columns] = 0.0
        self._values = columns.table[list(values)].to(self._rest)
        self._table: Tensor = variants.get(columns.argument)
        self._version = self._table._version

    def _applies(self, x: Tensor) -> bool:
        """Whether the input of a layer is the table of variants, unchanged."""
        return x.data_ptr() == self._table.data_ptr() and x.shape == self._table.shape and x._version == self._version

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace a linear function of the table, and call every other function."""
        if func is not functional.linear or kwargs or not self._applies(args[0]):
            return func(*args, **(kwargs or {}))
        _, weight, *bias = args
        with torch.no_grad():
            base, moves = functional.linear(self._rest, weight, *bias), functional.linear(self._values, weight[:, self._columns])
            return (base[:, None] + moves).flatten(0, 1).requires_grad_()

    def narrow(self, x: Tensor) -> tuple[Tensor, Rest] | None:
        """The columns in which variants differ with the norm of the rest, and the rest; None for another input than the table."""
        if not self._applies(x):
            return None
        n, a = len(self._rest), len(self._values)
        rest = torch.linalg.vector_norm(self._rest, dim=1)[:, None, None].expand(n, a, 1)
        return torch.cat([self._values.expand(n, a, -1), rest], dim=2).flatten(0, 1), Rest(self._rest, self._columns)


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


def _add(small: dict[nn.Parameter, Tensor], parameter: nn.Parameter, rows: Tensor) -> None:
    small[parameter] = small[parameter] + rows if parameter in small else rows


def not_computed(name: str, why: str) -> GradientError:
    """The error for a layer whose gradients cannot be computed."""
    return GradientError(f"gradients of {name} cannot be computed: {why}")


# ---- Gradient checkpointing of Hugging Face's models: it is off during passes over variants, whose memory is bounded anyway.

#: The attribute of a module that says whether it runs again in the backward pass.
FLAG = "gradient_checkpointing"


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


# ---- One forward and backward pass of a private model over variants of records, which leaves the model as it was.
#
# Meanwhile, the hooks of Opacus are off, no gradient is written, and no random number is drawn: dropout has the loop's masks.

#: The sum of the records' losses, from the output of the model, the target and the number of records.
TotalLoss: TypeAlias = Callable[[Any, Any, int], Tensor]
CHECKPOINTING = "Switch off gradient checkpointing, and call layers with trainable weights outside of torch.no_grad()."


#: Tensors of the size of the largest output that a backward pass holds at a time.
ON_THE_WAY = 3
#: The memory that the process takes for each byte of tensors: freed memory is not given back at once, and not all of it fits.
ALLOCATED = 1.75


class SavedBytes:
    """Counts the bytes of the tensors that a pass keeps, weights left out."""

    def __init__(self, module: nn.Module) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
        self._held: list[Tensor] = []  # so that no memory is used again, and counted once, while tensors are counted
        self.bytes = 0

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor, unless its memory was counted before."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self._held.append(tensor)
        return tensor

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what a forward pass keeps for its backward pass."""
        with torch.autograd.graph.saved_tensors_hooks(self.add, lambda tensor: tensor):
            yield

    def whole_pass(self, outputs: Sequence[Tensor]) -> int:
        """The bytes of a pass: what is kept, the outputs of layers, an error for each, and a few tensors on the way back."""
        for output in outputs:
            self.add(output.detach())
        counted = self.bytes + sum(out.nbytes for out in outputs) + ON_THE_WAY * max((out.nbytes for out in outputs), default=0)
        return int(ALLOCATED * counted)


class VariantGradients:
    """Computes clipped gradients of variants, in clipping norms.

    Parameters
    ----------
    model : TrainedModel
        The model that is trained.
    total_loss : callable
        The sum of the records' losses, from the output, the target and the number of records.
    """

    def __init__(self, model: TrainedModel, total_loss: TotalLoss) -> None:
        self._model, self._total_loss = model, total_loss
        self._names = {id(module): name or type(module).__name__ for name, module in model.module.named_modules()}
        #: The bytes that a pass takes for each variant, as `try_out` has measured it.
        self.bytes_per_variant = 0
        self._masks: DropoutMasks | None = None

    # ------------------------------------------------------------------ dropout

    @contextmanager
    def dropout_of(self, batch: Records, draws: Draws | None = None) -> Iterator[Records]:
        """Let dropout have the masks of a forward pass over a batch.

        Parameters
        ----------
        batch : Records
            The records.
        draws : Draws, optional
            The random numbers of that pass. By default, masks are drawn.

        Yields
        ------
        Records
            The records, numbered, so that those that are taken out of them have their own masks.
        """
        if draws is not None and not draws.any:
            yield batch
            return
        with (
            self._model.silence(),
            without_checkpointing(self._model.module),
            recording(draws, self._model.device) as masks,
            torch.no_grad(),
            torch.autocast(self._model.device.type, enabled=False),
        ):
            self._model.module(*batch.inputs, **batch.named)
        self._masks = DropoutMasks(tuple(masks), len(batch)) if masks else None
        try:
            yield batch.numbered()
        finally:
            self._masks = None

    @property
    def drops_out(self) -> bool:
        """Whether the model has dropout, inside `dropout_of`."""
        return self._masks is not None

    def masks_of(self, places: Tensor | None, times: int = 1) -> AbstractContextManager[None]:
        """Inside `dropout_of`, let dropout apply the masks of the records at these places of the batch, to variants of each."""
        return nullcontext() if self._masks is None or places is None else self._masks.applied(places, times)

    # ------------------------------------------------------------------ gradients

    def output(self, records: Records) -> Any:
        """What the model returns for some records, with the masks of dropout that they have."""
        module = self._model.module
        with self._model.silence(), without_checkpointing(module), self.masks_of(records.places):
            return module(*records.inputs, **records.named)

    def gradients(self, records: Records, secret: Secret, values: Sequence[int], pairs: bool = False) -> Gradients:
        """The clipped gradients of each record's variants with these values.

        Parameters
        ----------
        records : Records
            The records.
        secret : Secret
            The sensitive attribute.
        values : sequence of int
            The numbers of its values.
        pairs : bool
            Whether the inner products of all pairs of variants will be asked for. They are then computed while gradients are
            written out for their norms.

        Returns
        -------
        Gradients
            In clipping norms.
        """
        calls = self._run_variants(records, secret, values)
        gradients = Gradients(tuple(self._factors(calls, (len(records), len(values)))))
        if pairs and gradients.tiled:
            gradients = gradients.with_products()
        return require_finite(clip(gradients, self._model))

    def try_out(self, records: Records, secret: Secret, values: Sequence[int]) -> None:
        """Run the model once, and measure how much memory a variant takes."""
        calls = self._run_variants(records, secret, values, measure=True)
        require_finite(Gradients(tuple(self._factors(calls, (len(records), len(values))))))

    def own(self, records: Records) -> Gradients:
        """The records' own gradients, one variant each, not clipped."""
        return Gradients(tuple(self._factors(self._run(records, 1, records.places), (len(records), 1))))

    def _run_variants(self, records: Records, secret: Secret, values: Sequence[int], measure: bool = False) -> list[CapturedCall]:
        columns, variants = secret.as_columns(), secret.variants(records, values)
        tensor = records.get(columns.argument) if columns else None
        table = isinstance(tensor, Tensor) and tensor.ndim == 2 and tensor.is_floating_point()
        first_layer = FirstLayer(records, variants, columns, values) if columns and table else None
        return self._run(variants, len(values), records.places, first_layer, measure)

    # ------------------------------------------------------------------ one pass

    def _run(
        self, variants: Records, times: int, places: Tensor | None, first_layer: FirstLayer | None = None, measure: bool = False
    ) -> list[CapturedCall]:
        """Run the model and its loss on `times` variants of each record, forward and backward: the calls of layers.

        With `measure`, the memory that the pass takes is measured.
        """
        seen: list[tuple[nn.Module, Tensor, Tensor, Any]] = []
        rows = len(variants)

        def note(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            input = self._one_input(module, inputs, output)
            narrow = first_layer.narrow(input) if first_layer and is_linear(module) else None
            assert isinstance(output, Tensor)
            seen.append((module, input, output, narrow))

        kept = SavedBytes(self._model.module) if measure else None
        with (
            self._model.silence(),
            without_checkpointing(self._model.module),
            unchanged(self._model.module, self._model.device),
            listening(self._model.units(), note, lambda _, inputs: one_row_each(inputs, rows)),
            first_layer or nullcontext(),
            self.masks_of(places, times),
            torch.enable_grad(),
            torch.autocast(self._model.device.type, enabled=False),
        ):
            with kept.counting() if kept else nullcontext():
                output = self._model.module(*variants.inputs, **variants.named)
                total = self._total_loss(output, variants.target, rows)
            outputs = [self._connected(module, out) for module, _, out, _ in seen]
            try:
                errors = torch.autograd.grad(total, outputs, allow_unused=True)
            except CheckpointError:  # the first layer, which is not replaced in the backward pass
                seen += seen[:1]
        if len(seen) > len(outputs):
            again = self._name(seen[len(outputs)][0])
            raise not_computed(again, f"the backward pass calls it again. {CHECKPOINTING}")
        if kept:
            self.bytes_per_variant = -(-kept.whole_pass(outputs) // max(1, rows))
        return [
            CapturedCall(module, input, torch.zeros_like(out) if error is None else error, narrow)
            for (module, input, out, narrow), error in zip(seen, errors, strict=True)
        ]

    def _connected(self, module: nn.Module, output: Tensor) -> Tensor:
        if not output.requires_grad:
            raise not_computed(self._name(module), f"it is called without them. {CHECKPOINTING}")
        return output

    # ------------------------------------------------------------------ factors of calls

    def _name(self, module: nn.Module) -> str:
        """How error messages name a layer."""
        return f"{self._names.get(id(module), '')} ({type(module).__name__})"

    def _one_input(self, module: nn.Module, inputs: tuple[object, ...], output: object) -> Tensor:
        """Give the input of a layer, and refuse a layer that does not map one tensor to one tensor."""
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if type(module) in REFUSED or len(tensors) != 1 or not isinstance(output, Tensor):
            way = REFUSED.get(type(module), "give each of its tensors to a layer of its own")
            raise not_computed(
                self._name(module),
                f"it must map a tensor to a tensor, but takes {len(tensors)} and returns a {type(output).__name__}. "
                f"To go on, {way}, or freeze it with requires_grad_(False).",
            )
        return tensors[0]

    def _factors(self, calls: Sequence[CapturedCall], shape: tuple[int, int]) -> Iterator[Factor | TiledFactor]:
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
        self, call: CapturedCall, shape: tuple[int, int], tiled: dict[nn.Parameter, list[Call]], small: dict[nn.Parameter, Tensor]
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
            raise not_computed(self._name(call.module), str(problem)) from problem

    def _require_complete(self, calls: Sequence[CapturedCall], rows: int) -> None:
        """Refuse calls without one row for each variant, and trainable parameters that take part in no call."""
        for call in calls:
            if len(call.error) != rows:
                raise not_computed(
                    self._name(call.module),
                    f"it sees {len(call.error)} rows for {rows} records; a gradient must belong to one record (no packed "
                    "sequences, no reshaping across records).",
                )
        called = {id(p) for call in calls for p in call.module.parameters() if p.requires_grad}
        missing = {id(p) for p in self._model.parameters} - called
        if missing:
            names = [name for name, p in self._model.module.named_parameters() if id(p) in missing]
            raise not_computed(names[0], "its module was not called in the forward pass.")


def require_finite(gradients: Gradients) -> Gradients:
    """The same gradients, unless one of them is not finite."""
    if not gradients.norms.isfinite().all():
        raise GradientError(
            "the gradient of a record is not finite: check the learning rate and the data. The weights were not changed."
        )
    return gradients
