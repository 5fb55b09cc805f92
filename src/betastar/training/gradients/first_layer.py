"""Runs the first linear layer once for each record: the variants of a record differ in a few columns of its table only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar.training.gradients.factors import Rest
from betastar.training.records import Records
from betastar.training.secrets.secret_types import Columns


class FirstLayer:
    """Runs a linear layer that reads the table of variants. They differ in a few columns, so that each record is run once.

    W x_i = W x_rest + W_columns v_i, and x_i·x_j = ‖x_rest‖² + v_i·v_j: the columns v_i and √‖x_rest‖² stand for x_i.
    """

    def __init__(self, records: Records, columns: Columns, values: Sequence[int]) -> None:
        self._records, self._argument, self._columns = records, columns.argument, columns.where
        self._rest = records.get(columns.argument).clone()
        self._rest[:, self._columns] = 0.0
        self._values = columns.table[list(values)].to(self._rest)

    def without_table(self) -> Records:
        """The variants with an `AbsentTable` in place of their table, which is then never written out."""
        rows = len(self._rest) * len(self._values)
        others = self._records.put(self._argument, None).repeat(len(self._values), len(self._records))
        table = self._rest.new_full((1, 1), torch.nan).expand(rows, self._rest.shape[1])
        return others.put(self._argument, table.as_subclass(AbsentTable))

    def watch(self, variants: Records) -> None:
        """Remember the table of the variants that the model is run on next."""
        self._table: Tensor = variants.get(self._argument)
        self._version = 0 if isinstance(self._table, AbsentTable) else self._table._version

    def _applies(self, x: Tensor) -> bool:
        """Whether the input of a layer is the table of variants, unchanged."""
        if isinstance(x, AbsentTable) or isinstance(self._table, AbsentTable):
            return x is self._table
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


class AbsentTableRead(RuntimeError):  # noqa: N818
    """The model reads its table in another way than through a linear layer."""


class AbsentTable(Tensor):
    """Has the shape of a table and none of its contents. Every function except the replaced linear layers raises an error."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "size", "dim", "is_floating_point"):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise AbsentTableRead(str(func))
