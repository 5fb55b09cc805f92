"""VariantPass: one forward and backward pass of a private model over variants of records, which leaves the model as it was.

Meanwhile, the hooks of Opacus are off, no gradient is written, and no random number is drawn: dropout has the masks of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from betastar.training.gradients.captured_call import CapturedCall
from betastar.training.gradients.checkpointing import without_checkpointing
from betastar.training.gradients.dropout_masks import Draws, DropoutMasks, recording
from betastar.training.gradients.first_layer import FirstLayer
from betastar.training.gradients.layer_gradients import LayerGradients, not_computed
from betastar.training.gradients.shared_positions import SharedPositions
from betastar.training.gradients.side_effects import GradientError, unchanged
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records

CHECKPOINTING = "Switch off gradient checkpointing, and call layers with trainable weights outside of torch.no_grad()."


#: Tensors of the size of the largest output that a backward pass holds at a time.
ON_THE_WAY = 3
#: The memory that the process takes for each byte of tensors: freed memory is not given back at once, and not all of it fits.
ALLOCATED = 1.75


class VariantPass:
    """Runs a private model on variants.

    Parameters
    ----------
    adapter : OpacusAdapter
        The model that is trained.
    criterion : callable
        The loss of the training.
    layers : LayerGradients
        The layers whose calls are captured.
    """

    def __init__(self, adapter: OpacusAdapter, criterion: Callable[..., Tensor], layers: LayerGradients) -> None:
        self._adapter, self._criterion, self._layers = adapter, criterion, layers
        self._shared = SharedPositions(adapter.module)
        #: Whether random number generators of Python and NumPy are compared as well, until a first pass has passed.
        self.thorough = True
        #: The bytes that the last measured pass has taken for each variant.
        self.bytes_per_variant = 0
        #: The embeddings that were called with one row for all records.
        self.one_row: set[str] = set()
        self._masks: DropoutMasks | None = None

    @contextmanager
    def dropout_of(self, batch: Records, draws: Draws | None) -> Iterator[Records]:
        """Let dropout have the masks of a forward pass over a batch.

        Parameters
        ----------
        batch : Records
            The records.
        draws : Draws, optional
            The random numbers of that pass. By default, masks are drawn from the current states of the generators, which are
            left as they were.

        Yields
        ------
        Records
            The records, numbered, so that those that are taken out of them have their own masks.
        """
        if draws is not None and not draws.any:
            yield batch
            return
        with (
            self._adapter.silence(),
            without_checkpointing(self._adapter.module),
            recording(draws, self._adapter.device) as masks,
            torch.no_grad(),
            torch.autocast(self._adapter.device.type, enabled=False),
        ):
            self._adapter.module(*batch.inputs, **batch.named)
        self._masks = DropoutMasks(tuple(masks), len(batch)) if masks else None
        try:
            yield batch.numbered()
        finally:
            self._masks = None

    @property
    def drops_out(self) -> bool:
        """Whether dropout has masks now."""
        return self._masks is not None

    def applied_masks(self, places: Tensor | None, times: int = 1) -> AbstractContextManager[None]:
        """Let dropout apply the masks of the records at these places of the batch, to so many variants of each."""
        return nullcontext() if self._masks is None or places is None else self._masks.applied(places, times)

    def run(
        self,
        variants: Records,
        times: int,
        places: Tensor | None,
        first_layer: FirstLayer | None = None,
        measure: bool = False,
    ) -> list[CapturedCall]:
        """Run the model and its loss forward and backward.

        Parameters
        ----------
        variants : Records
            The variants, those of a record one after the other.
        times : int
            The number of variants of each record.
        places : Tensor, optional
            The places of the records in the batch whose masks dropout has.
        first_layer : FirstLayer, optional
            Runs linear layers that read a table of variants.
        measure : bool
            Whether the memory that the pass takes is measured, and every layer looked at for work that variants share.

        Returns
        -------
        list of CapturedCall
            The calls of layers with trainable weights.
        """
        seen: list[tuple[nn.Module, Tensor, Tensor, Any]] = []
        if first_layer:
            first_layer.watch(variants)
        rows = len(variants)

        def note(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            input = self._layers.require_one_input(module, inputs, output)
            narrow = first_layer.narrow(input) if first_layer and type(module) is nn.Linear else None
            assert isinstance(output, Tensor)
            seen.append((module, input, output, narrow))

        kept = _SavedBytes(self._adapter.module) if measure else None
        with (
            self._adapter.silence(),
            without_checkpointing(self._adapter.module),
            unchanged(self._adapter.module, self.thorough),
            self._listening(note, first_layer, rows),
            self._shared.running(times if first_layer is None else 1, measure),
            self.applied_masks(places, times),
            torch.enable_grad(),
            torch.autocast(self._adapter.device.type, enabled=False),
        ):
            with kept.counting() if kept else nullcontext():
                output = self._adapter.module(*variants.inputs, **variants.named)
                total = self.total_loss(self._criterion(output, variants.target), rows)
            outputs = [self._connected(module, out) for module, _, out, _ in seen]
            errors = torch.autograd.grad(total, outputs, allow_unused=True)
        if len(seen) > len(outputs):
            again = self._layers.name(seen[len(outputs)][0])
            raise not_computed(again, f"the backward pass calls it again. {CHECKPOINTING}")
        if kept:
            self.bytes_per_variant = -(-kept.whole_pass(outputs) // max(1, rows))
        return [
            CapturedCall(module, input, torch.zeros_like(out) if error is None else error, narrow)
            for (module, input, out, narrow), error in zip(seen, errors, strict=True)
        ]

    def _connected(self, module: nn.Module, output: Tensor) -> Tensor:
        if not output.requires_grad:
            raise not_computed(self._layers.name(module), f"it is called without them. {CHECKPOINTING}")
        return output

    def total_loss(self, loss: Tensor, rows: int) -> Tensor:
        """The sum of the records' losses."""
        if not isinstance(loss, Tensor) or loss.ndim > 1 or (loss.ndim == 1 and len(loss) != rows):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"criterion must give one loss, or one for each record, got shape {shape} for {rows} records.")
        if loss.ndim == 1:
            return loss.sum()
        return loss * rows if self._adapter.loss_reduction == "mean" else loss

    @contextmanager
    def _listening(self, note: Callable[..., None], first_layer: FirstLayer | None, rows: int) -> Iterator[None]:
        handles = [unit.register_forward_hook(note) for unit in self._layers.units]
        handles += [unit.register_forward_pre_hook(_refuse_packed) for unit in self._adapter.recurrent()]
        handles += [
            unit.register_forward_pre_hook(lambda unit, inputs: self._one_row_each(unit, inputs, rows))
            for unit in self._layers.units
            if type(unit) is nn.Embedding
        ]
        replaced = []
        if first_layer:
            for unit in self._layers.units:
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

    def _one_row_each(self, unit: nn.Module, inputs: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
        """Repeat numbers of positions that a model makes itself, in one row for all records, so that each has a gradient."""
        ids = inputs[0]
        if not len(ids) == 1 < rows:
            return inputs
        self.one_row.add(self._layers.name(unit))
        return (ids.expand(rows, *ids.shape[1:]), *inputs[1:])


class _SavedBytes:
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


def _refuse_packed(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if inputs and isinstance(inputs[0], PackedSequence):
        raise GradientError(f"gradients of {type(module).__name__} cannot be computed for packed sequences; pad them instead.")
