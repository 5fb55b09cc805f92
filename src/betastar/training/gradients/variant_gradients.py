"""VariantGradients: the clipped gradients of variants of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from betastar.training.gradients.checkpointing import without_checkpointing
from betastar.training.gradients.clipping import clip
from betastar.training.gradients.dropout_masks import Draws
from betastar.training.gradients.factors import Gradients
from betastar.training.gradients.first_layer import AbsentTableRead, FirstLayer, is_table
from betastar.training.gradients.layer_gradients import LayerGradients
from betastar.training.gradients.side_effects import GradientError
from betastar.training.gradients.variant_pass import VariantPass
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret


class VariantGradients:
    """Computes clipped gradients of variants, in clipping norms. `criterion` is the loss of the training."""

    def __init__(self, adapter: OpacusAdapter, criterion: Callable[..., Tensor]) -> None:
        self._adapter = adapter
        self._layers = LayerGradients(adapter)
        self._pass = VariantPass(adapter, criterion, self._layers)
        self._table_is_optional = False  # whether linear layers alone read the table of variants

    @property
    def total_loss(self) -> Callable[[Tensor, int], Tensor]:
        """The sum of the records' losses, from what the criterion returns and the number of records."""
        return self._pass.total_loss

    @property
    def bytes_per_variant(self) -> int:
        """The memory that a pass takes for each variant, as `try_out` has measured it."""
        return self._pass.bytes_per_variant

    def dropout_of(self, batch: Records, draws: Draws | None = None) -> AbstractContextManager[Records]:
        """Let dropout have the masks of a forward pass over a batch. Gives the records, numbered; see `VariantPass`."""
        return self._pass.dropout_of(batch, draws)

    @property
    def one_row(self) -> set[str]:
        """The embeddings that were called with one row for all records."""
        return self._pass.one_row

    @property
    def drops_out(self) -> bool:
        """Whether the model has dropout, inside `dropout_of`."""
        return self._pass.drops_out

    def output(self, records: Records) -> Any:
        """What the model returns for some records, with the masks of dropout that they have."""
        module = self._adapter.module
        with self._adapter.silence(), without_checkpointing(module), self._pass.applied_masks(records.places):
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
        columns = secret.as_columns()
        first_layer = FirstLayer(records, columns, values) if columns and is_table(records, columns) else None
        shape = len(records), len(values)
        if first_layer and self._table_is_optional:
            try:
                gradients = self._clipped(first_layer.without_table(), records, shape, first_layer, pairs)
            except AbsentTableRead:
                self._table_is_optional = False
            else:
                if gradients.norms.isfinite().all():
                    return gradients
        return require_finite(self._clipped(secret.variants(records, values), records, shape, first_layer, pairs))

    def try_out(self, records: Records, secret: Secret, values: Sequence[int]) -> Gradients:
        """Run the model once, measure how much memory a variant takes, and see whether linear layers alone read its table."""
        self._pass.thorough = True
        columns = secret.as_columns()
        first_layer = FirstLayer(records, columns, values) if columns and is_table(records, columns) else None
        shape = len(records), len(values)
        calls = self._pass.run(secret.variants(records, values), len(values), records.places, first_layer, measure=True)
        gradients = require_finite(clip(Gradients(tuple(self._layers.factors(calls, shape))), self._adapter))
        self._pass.thorough = False
        if first_layer:
            try:
                quick = self._clipped(first_layer.without_table(), records, shape, first_layer, pairs=False)
            except Exception:  # the model reads the table in another way, and is given the real one from now on
                return gradients
            self._table_is_optional = torch.allclose(gradients.cross(gradients), quick.cross(quick), rtol=1e-4, atol=1e-7)
        return gradients

    def own(self, records: Records) -> Gradients:
        """The records' own gradients, one variant each, not clipped."""
        return Gradients(tuple(self._layers.factors(self._pass.run(records, 1, records.places), (len(records), 1))))

    def _clipped(
        self, variants: Records, records: Records, shape: tuple[int, int], first_layer: FirstLayer | None, pairs: bool
    ) -> Gradients:
        calls = self._pass.run(variants, shape[1], records.places, first_layer)
        gradients = Gradients(tuple(self._layers.factors(calls, shape)))
        if pairs and gradients.tiled:
            gradients = gradients.with_products()
        return clip(gradients, self._adapter)


def require_finite(gradients: Gradients) -> Gradients:
    """The same gradients, unless one of them is not finite."""
    if not gradients.norms.isfinite().all():
        raise GradientError(
            "the gradient of a record is not finite: check the learning rate and the data. The weights were not changed."
        )
    return gradients
