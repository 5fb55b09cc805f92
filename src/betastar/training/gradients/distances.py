"""RecordDistances: the diameter of each record, or the largest one, computed in chunks that keep memory bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from betastar.training.gradients import diameter
from betastar.training.gradients.factors import Gradients
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

#: How a diameter is computed. "extremes" compares two values only and is no upper bound.
DIAMETERS: dict[str, Callable[[diameter.Load, Sequence[int]], Tensor]] = {
    "exact": diameter.exact,
    "ball": diameter.ball,
    "centroid": diameter.centroid,
    "extremes": diameter.exact,
}
Seen = Callable[[Records, Gradients], None]
#: The bytes of one forward and backward pass: larger ones are hardly faster.
PASS = 448 << 20
#: Records and values that the model is tried on first, to see how much memory it takes.
FIRST_RECORDS, FIRST_VALUES = 2, 2


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
        The number of bytes that a pass over variants may take.
    """

    def __init__(self, variants: VariantGradients, secret: Secret, kind: str, values: Sequence[int], memory: int) -> None:
        self._variants, self._secret, self._values = variants, secret, list(values)
        self._kind = kind
        self._memory = memory
        self._per_variant = 0

    def try_out(self, records: Records) -> None:
        """Measure how much memory a variant takes, and refuse a model that cannot be run on variants."""
        few = records.take(slice(0, FIRST_RECORDS))
        self._variants.try_out(few, self._secret, self._values[:FIRST_VALUES])
        self._per_variant = self._variants.bytes_per_variant
        fit = min(PASS, self._memory) // (self._per_variant * len(records))
        some = self._values[: max(FIRST_VALUES, min(fit, diameter.FEW))]
        if self.most >= len(records) * len(some):
            self._variants.try_out(records, self._secret, some)

    def make_room(self, largest: int) -> int:
        """Let memory hold all variants of a record if they take at most so many bytes. Returns the memory."""
        needed = self.bytes_of(len(self._values))
        if needed <= largest:
            self._memory = max(self._memory, needed)
        return self._memory

    @property
    def most(self) -> int:
        """The number of variants that memory has room for."""
        return max(2, self._memory // self._per_variant)

    def bytes_of(self, variants: int) -> int:
        """The memory that a pass over so many variants takes."""
        return variants * self._per_variant

    def chunks(self, records: Records, at_most: int | None = None) -> Iterator[Records]:
        """Parts of some records whose variants are run together; `at_most` limits the number of records in a part."""
        fit = min(PASS, self._memory) // (self._per_variant * len(self._values))
        size = max(1, fit if at_most is None else min(fit, at_most))
        for start in range(0, len(records), size):
            yield records.take(slice(start, start + size))

    def holds_own(self) -> bool:
        """Whether a chunk holds all variants of a record, with the value that the record holds among them."""
        return len(self._sizes) == 1 and len(self._values) == self._secret.count

    def own_is_cheaper(self, records: Records) -> bool:
        """Whether so many records are without the secret that all own gradients are cheaper than variants of these records."""
        without = len(records) - int(self._secret.concerned(records).sum())
        return without * len(self._values) > len(records)

    def each(self, records: Records, seen: Seen | None = None) -> Tensor:
        """The diameter of each record, in clipping norms.

        `seen` is called with records and the gradients of their variants. Without it, those of records that the secret is not
        about, which are alike, are not computed.
        """
        measured = torch.ones(len(records), dtype=torch.bool) if seen else self._secret.concerned(records)
        distances = torch.zeros(len(records), dtype=torch.float64)
        if measured.any():
            parts = [self._measure(part, seen) for part in self._shown(taken(records, measured))]
            distances[measured] = torch.cat(parts).cpu().double()
        return distances

    def largest(self, records: Records, floor: float = 0.0, seen: Seen | None = None) -> float:
        """The largest diameter, or `floor` if that is larger. Records that cannot have the largest one are left out early."""
        best = floor
        candidates: list[tuple[Tensor, Gradients]] = []  # upper bounds and gradients of records that may have the largest one
        for part in self._shown(records if seen else taken(records, self._secret.concerned(records))):
            if len(self._sizes) > 1 or DIAMETERS[self._kind] is not diameter.exact:
                best = max(best, float(self._measure(part, seen).max()))
                continue
            gradients = self._gradients(part, 0)
            if seen:
                seen(part, gradients)
            if gradients.tiled:
                best = max(best, float(self._exact(gradients).max()))
                continue
            lower, upper, squares = diameter.bounds(gradients)
            best = max(best, float(lower.max()))
            likely = (upper > best).nonzero().flatten()
            if len(likely) and squares.shape[2] == 3:
                likely = likely[diameter.upper_bound_in_plane(squares[likely]) > best]
            if len(likely):
                candidates.append((upper[likely], gradients.records(likely)))
        for upper, gradients in candidates:
            likely = (upper > best).nonzero().flatten()
            if len(likely):
                rest = (gradients if len(likely) == len(upper) else gradients.records(likely)).double()
                best = max(best, float(diameter.exact(lambda _, rest=rest: rest, self._sizes).max()))  # type: ignore[misc]
        return min(best, 2.0)

    def _shown(self, records: Records) -> Iterable[Records]:
        """The chunks of some records, with progress in a terminal if the values of a record do not fit into memory at once."""
        parts = list(self.chunks(records))
        if len(self._sizes) == 1 or len(parts) == 1:
            return parts
        console = Console(stderr=True)
        what = f"{self._secret.name}: {len(self._values)} values of each record"
        return track(parts, what, console=console, transient=True, disable=not console.is_terminal)

    @property
    def _sizes(self) -> list[int]:
        """The numbers of values in blocks that fit into memory."""
        values = len(self._values)
        width = -(-values // -(-values // self.most))
        return [min(width, values - start) for start in range(0, values, width)]

    def _gradients(self, records: Records, block: int) -> Gradients:
        width = self._sizes[0]
        values = self._values[block * width : (block + 1) * width]
        return self._variants.gradients(records, self._secret, values, pairs=len(self._sizes) == 1)

    def _measure(self, records: Records, seen: Seen | None = None) -> Tensor:
        measure = DIAMETERS[self._kind]
        if len(self._sizes) > 1:
            return measure(lambda block: self._gradients(records, block).double(), self._sizes).clamp(max=2.0)
        raw = self._gradients(records, 0)
        if seen:
            seen(records, raw)
        if measure is diameter.exact:
            return self._exact(raw)
        gradients = raw.double()
        return measure(lambda _: gradients, self._sizes).clamp(max=2.0)

    def _exact(self, gradients: Gradients) -> Tensor:
        """The diameter over all pairs of one block."""
        if gradients.tiled:
            return diameter.farthest_apart(gradients.differences()).clamp(max=2.0)
        if len(self._values) <= diameter.FEW:
            return diameter.quick_exact(gradients).clamp(max=2.0)
        double = gradients.double()
        return diameter.exact(lambda _: double, self._sizes).clamp(max=2.0)


def taken(records: Records, which: Tensor) -> Records:
    """The records at which `which` is true; the same records if it always is."""
    return records if bool(which.all()) else records.take(which.nonzero().flatten())
