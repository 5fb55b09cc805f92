"""RecordDistances: the diameter of each record, or the largest one, computed in chunks that keep memory bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from betastar.training.gradients import diameter
from betastar.training.gradients.factors import Gradients
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

#: How a diameter is computed. "extremes" compares two values only and is no upper bound.
DIAMETERS: dict[str, Callable[[diameter.Load, int], Tensor]] = {
    "exact": diameter.exact,
    "ball": diameter.ball,
    "centroid": diameter.centroid,
    "extremes": diameter.exact,
}
Seen = Callable[[Records, Gradients], None]
#: Variants in one forward pass: more are no faster.
ROWS = 24576
#: Up to this many values, all pairs of a record are in memory at once.
FEW = 256


class RecordDistances:
    """Computes distances between the variants of records.

    Parameters
    ----------
    variants : VariantGradients
        Computes the gradients.
    secret : Secret
        The sensitive attribute.
    kind : str
        One of `DIAMETERS`.
    values : sequence of int
        The numbers of the values that are compared.
    memory : int
        The number of bytes that the factors of one chunk may take. Activations take a few times as much.
    """

    def __init__(self, variants: VariantGradients, secret: Secret, kind: str, values: Sequence[int], memory: int) -> None:
        self._variants, self._secret, self._values = variants, secret, list(values)
        self._kind = kind
        self._memory = memory
        self._per_variant = 0

    def try_out(self, records: Records) -> None:
        """Measure how much memory a variant takes, and refuse a model that cannot be run on variants."""
        gradients = self._variants.try_out(records, self._secret, self._values[: max(2, ROWS // max(1, 8 * len(records)))])
        self._per_variant = sum(f.delta.shape[2] + (0 if f.x is None else f.x.shape[2]) for f in gradients.factors)

    @property
    def room(self) -> int:
        """The number of variants in one chunk."""
        return max(2, min(ROWS, self.most))

    @property
    def most(self) -> int:
        """The number of variants that memory has room for."""
        return self._memory // (8 * self._per_variant)

    def holds_own(self) -> bool:
        """Whether a chunk holds all variants of a record, with the value that the record holds among them."""
        return self._blocks == 1 and len(self._values) == self._secret.count

    def each(self, records: Records, seen: Seen | None = None) -> Tensor:
        """The diameter of each record, in clipping norms. `seen` is called with records and the gradients of their variants."""
        chunks = [self._measure(part, seen) for part in self._chunks(records)]
        return torch.cat(chunks) if chunks else torch.zeros(0, dtype=torch.float64)

    def largest(self, records: Records, floor: float = 0.0, seen: Seen | None = None) -> float:
        """The largest diameter, or `floor` if that is larger. Records that cannot have the largest one are left out early."""
        best = floor
        candidates: list[tuple[Tensor, Gradients]] = []  # upper bounds and gradients of records that may have the largest one
        for part in self._chunks(records):
            if self._blocks > 1 or DIAMETERS[self._kind] is not diameter.exact:
                best = max(best, float(self._measure(part, seen).max()))
                continue
            gradients = self._gradients(part, 0)
            if seen:
                seen(part, gradients)
            lower, upper = diameter.bounds(gradients)
            best = max(best, float(lower.max()))
            likely = (upper > best).nonzero().flatten()
            if len(likely):
                candidates.append((upper[likely], gradients.records(likely)))
        for upper, gradients in candidates:
            likely = (upper > best).nonzero().flatten()
            if len(likely):
                rest = (gradients if len(likely) == len(upper) else gradients.records(likely)).double()
                best = max(best, float(diameter.exact(lambda _, rest=rest: rest, 1).max()))  # type: ignore[misc]
        return min(best, 2.0)

    @property
    def _blocks(self) -> int:
        return -(-len(self._values) // self.room)

    def _chunks(self, records: Records) -> Sequence[Records]:
        size = max(1, self.room // len(self._values))
        return [records.take(slice(start, start + size)) for start in range(0, len(records), size)]

    def _gradients(self, records: Records, block: int) -> Gradients:
        width = -(-len(self._values) // self._blocks)
        return self._variants.gradients(records, self._secret, self._values[block * width : (block + 1) * width])

    def _measure(self, records: Records, seen: Seen | None = None) -> Tensor:
        measure = DIAMETERS[self._kind]
        if self._blocks == 1:
            raw = self._gradients(records, 0)
            if seen:
                seen(records, raw)
            if measure is diameter.exact and len(self._values) <= FEW:
                return diameter.quick_exact(raw).clamp(max=2.0)
            gradients = raw.double()
            return measure(lambda _: gradients, 1).clamp(max=2.0)
        return measure(lambda block: self._gradients(records, block).double(), self._blocks).clamp(max=2.0)
