"""Runs a private model on variants of records and returns their clipped gradients, leaving the model as it was.

Opacus's hooks are silent meanwhile, no gradient is written, no random number is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import Tensor, nn
from torch.nn import functional

from betastar.training.gradients import Factor, Gradients
from betastar.training.records import Records
from betastar.training.secret import Columns, Secret
from betastar.training.wiring import Wiring

#: A layer, its inputs, the error at its output, and its first input with as few columns as differ (None: as it is).
Call = tuple[nn.Module, list[Tensor], Tensor, Tensor | None]


class GradientError(RuntimeError):
    """Per-record gradients cannot be had, or are not finite."""


class Tracer:
    """Clipped gradients of variants, in clipping norms."""

    def __init__(self, wiring: Wiring, criterion: Callable[..., Any]) -> None:
        self._wiring = wiring
        self._criterion = criterion
        units = wiring.units()
        names = {id(module): name or type(module).__name__ for name, module in wiring.module.named_modules()}
        self._units = {id(unit): (unit, names.get(id(unit), type(unit).__name__)) for unit in units}
        owners: dict[int, int] = {}
        for unit in units:
            for parameter in unit.parameters():
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        self._tied = {key for key, number in owners.items() if number > 1}
        self._trusted = False  # with a phantom in place of the table of variants

    def gradients(self, records: Records, secret: Secret, values: Sequence[int]) -> Gradients:
        """Of each record's variants with these values."""
        columns = secret.as_columns()
        shortcut = Shortcut(records, columns, values) if columns and _is_table(records, columns) else None
        if shortcut and self._trusted:
            found = self._clipped(shortcut.phantom(), (len(records), len(values)), shortcut)
            if found.norms.isfinite().all():
                return found
        found = self._clipped(secret.variants(records, values), (len(records), len(values)), shortcut)
        if not found.norms.isfinite().all():
            raise GradientError(
                "the gradient of a record is not finite: check the learning rate and the data. The weights were not changed."
            )
        return found

    def try_out(self, records: Records, secret: Secret, values: Sequence[int]) -> Gradients:
        """Run once, and find out whether the model reads the table of variants through linear layers only."""
        slow = self.gradients(records, secret, values)
        self._trusted = True
        quick = self.gradients(records, secret, values)
        self._trusted = torch.allclose(slow.cross(slow), quick.cross(quick), rtol=1e-4, atol=1e-7)
        return slow

    def _clipped(self, variants: Records, shape: tuple[int, int], shortcut: Shortcut | None) -> Gradients:
        return self._wiring.clip(Gradients(tuple(self._factors(self._run(variants, shortcut), shape))))

    def _run(self, variants: Records, shortcut: Shortcut | None) -> list[Call]:
        """Each call of a layer in a forward and backward pass over the variants."""
        seen: list[tuple[nn.Module, tuple[Any, ...], Any, Tensor | None]] = []
        if shortcut:
            shortcut.watch(variants)

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or not isinstance(inputs[0] if inputs else None, Tensor):
                raise GradientError(f"gradients of {self._name(module)} cannot be had: it must map a tensor to a tensor.")
            narrow = shortcut.narrow(inputs[0]) if shortcut and type(module) is nn.Linear else None
            seen.append((module, inputs, output, narrow))

        with self._wiring.silence(), _quiet_random(self._wiring), self._listening(note, shortcut), torch.enable_grad():
            output = self._wiring.module(*variants.inputs, **variants.named)
            total = self._total(self._criterion(output, variants.target), len(variants))
            errors = torch.autograd.grad(total, [out for _, _, out, _ in seen], allow_unused=True)
        return [
            (
                module,
                [x.detach() for x in inputs if isinstance(x, Tensor)],
                torch.zeros_like(out) if error is None else error,
                narrow,
            )
            for (module, inputs, out, narrow), error in zip(seen, errors, strict=True)
        ]

    def _total(self, loss: Any, rows: int) -> Tensor:
        """The sum of the records' losses."""
        if not isinstance(loss, Tensor) or loss.ndim > 1 or (loss.ndim == 1 and len(loss) != rows):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"criterion must give one loss, or one a record, got shape {shape} for {rows} records.")
        if loss.ndim == 1:
            return loss.sum()
        return loss * rows if self._wiring.loss_reduction == "mean" else loss

    def _factors(self, calls: list[Call], shape: tuple[int, int]) -> Iterator[Factor]:
        n, a = shape
        times: dict[int, int] = {}
        for module, *_ in calls:
            times[id(module)] = times.get(id(module), 0) + 1
        written: dict[nn.Parameter, Tensor] = {}
        missing = {id(parameter) for parameter in self._wiring.parameters}
        for module, inputs, error, narrow in calls:
            mine = [p for p in module.parameters() if p.requires_grad]
            missing -= {id(p) for p in mine}
            if (
                type(module) is nn.Linear
                and inputs[0].ndim == 2
                and times[id(module)] == 1
                and not any(id(p) in self._tied for p in mine)
            ):
                yield from self._linear(module, inputs[0] if narrow is None else narrow, error, (n, a))
                continue
            for parameter, samples in self._samples(module, inputs, error).items():
                if parameter.requires_grad:
                    rows = (
                        samples if len(samples) == n * a else functional.pad(samples.flatten(1), (0, 0, 0, n * a - len(samples)))
                    )
                    rows = rows.reshape(n * a, -1)
                    written[parameter] = written[parameter] + rows if parameter in written else rows
        if missing:
            names = [name for name, p in self._wiring.module.named_parameters() if id(p) in missing]
            raise GradientError(f"gradients of {names[0]} cannot be had: its module was not called in the forward pass.")
        for parameter, rows in written.items():
            yield Factor(rows.reshape(n, a, -1), parameters=(parameter,))

    def _linear(self, layer: nn.Linear, x: Tensor, error: Tensor, shape: tuple[int, int]) -> Iterator[Factor]:
        weight, bias = layer.weight.requires_grad, layer.bias is not None and layer.bias.requires_grad
        rows, errors = x.reshape(*shape, -1), error.reshape(*shape, -1)
        if weight and bias and self._wiring.flat:
            yield Factor(errors, rows, 1.0, (layer.weight, layer.bias))
            return
        if weight:
            yield Factor(errors, rows, 0.0, (layer.weight,))
        if bias:
            yield Factor(errors, parameters=(layer.bias,))

    def _samples(self, module: nn.Module, inputs: list[Tensor], error: Tensor) -> dict[nn.Parameter, Tensor]:
        """Per-sample gradients, as Opacus computes them."""
        sampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), ft_compute_per_sample_gradient)
        try:
            with torch.no_grad():
                return sampler(module, inputs, error)
        except Exception as problem:
            raise GradientError(f"gradients of {self._name(module)} cannot be had: {problem}") from problem

    @contextmanager
    def _listening(self, note: Callable[..., None], shortcut: Shortcut | None) -> Iterator[None]:
        handles = [unit.register_forward_hook(note) for unit, _ in self._units.values()]
        replaced = []
        if shortcut:
            for unit, _ in self._units.values():
                if type(unit) is nn.Linear and "forward" not in vars(unit):
                    unit.forward = shortcut.forward(unit)  # type: ignore[method-assign, assignment]
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


class Shortcut:
    """A linear layer that reads the table of variants: they differ in a few columns, so it is run on the records once.

    W x_i = W x_rest + W_columns v_i, and x_i·x_j = ‖x_rest‖² + v_i·v_j: the columns v_i and √‖x_rest‖² stand for x_i.
    """

    def __init__(self, records: Records, columns: Columns, values: Sequence[int]) -> None:
        self._records, self._argument, self._columns = records, columns.argument, columns.where
        self._rest = records.get(columns.argument).clone()
        self._rest[:, self._columns] = 0.0
        self._values = columns.table[list(values)].to(self._rest)

    def phantom(self) -> Records:
        """The variants with NaN in place of the table: it costs nothing, and whoever else reads it gives itself away."""
        rows = len(self._rest) * len(self._values)
        others = self._records.put(self._argument, None).repeat(len(self._values))
        return others.put(self._argument, self._rest.new_full((1, 1), torch.nan).expand(rows, self._rest.shape[1]))

    def watch(self, variants: Records) -> None:
        self._table: Tensor = variants.get(self._argument)
        self._version = self._table._version

    def _applies(self, x: Tensor) -> bool:
        return x.data_ptr() == self._table.data_ptr() and x.shape == self._table.shape and x._version == self._version

    def forward(self, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            if not self._applies(x):
                return functional.linear(x, layer.weight, layer.bias)
            with torch.no_grad():
                base = functional.linear(self._rest, layer.weight, layer.bias)
                moves = functional.linear(self._values, layer.weight[:, self._columns])
                return (base[:, None] + moves).flatten(0, 1).requires_grad_()

        return run

    def narrow(self, x: Tensor) -> Tensor | None:
        if not self._applies(x):
            return None
        n, a = len(self._rest), len(self._values)
        rest = torch.linalg.vector_norm(self._rest, dim=1)[:, None, None].expand(n, a, 1)
        return torch.cat([self._values.expand(n, a, -1), rest], dim=2).flatten(0, 1)


def _is_table(records: Records, columns: Columns) -> bool:
    tensor = records.get(columns.argument)
    return isinstance(tensor, Tensor) and tensor.ndim == 2 and tensor.is_floating_point()


@contextmanager
def _quiet_random(wiring: Wiring) -> Iterator[None]:
    """Refuse models that draw random numbers: variants would not be comparable, and training would change."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        names = [
            name for name, module in wiring.module.named_modules() if getattr(module, "p", 0) or getattr(module, "dropout", 0)
        ]
        where = f" ({', '.join(names)})" if names else ""
        raise GradientError(
            f"the model draws random numbers when it runs{where}: the gap then does not follow from the weights. "
            "Set the probability of dropout to 0."
        )
