"""The largest distance between clipped gradients over two values of the secret, for each record.

exact      all pairs of values
centroid   twice the radius of the ball around their mean (the paper's approximation)
exact ≤ centroid. Both work on blocks of values: `load(k)` gives the clipped gradients of block k for some records,
and `sizes` are the numbers of values in the blocks. Gradients are in double precision, because distances far below 1 are
differences of numbers near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from betastar.training.gradients.factors import Centre, Gradients
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

Load = Callable[[int], Gradients]

#: Inner products computed at a time.
TILE = 1 << 22
#: Up to this many values, all inner products of a record are in memory at once.
FEW = 256
#: A larger error, which is assumed where records are left out because of it.
SLACK = 1e-4


def exact(load: Load, sizes: Sequence[int]) -> Tensor:
    """The distance of the farthest pair among all pairs."""
    best: Tensor | None = None
    for i in range(len(sizes)):
        first = load(i)
        for j in range(i, len(sizes)):
            squares = _farthest(first, first if i == j else load(j))
            best = squares if best is None else torch.maximum(best, squares)
    assert best is not None
    return best.clamp(min=0.0).sqrt()


def farthest_apart(products: Tensor) -> Tensor:
    """The distance of the farthest pair, from the inner products of all vectors of a record, (n, a, a), about any origin."""
    norms = products.diagonal(dim1=1, dim2=2)
    squares = norms[:, :, None] + norms[:, None, :] - 2.0 * products
    return squares.flatten(1).amax(dim=1).clamp(min=0.0).sqrt()


def _farthest(first: Gradients, second: Gradients) -> Tensor:
    """Largest squared distance of a variant of the first block from one of the second, for each record."""
    n, a = first.shape
    here, there = first.norms, second.norms
    width = max(1, TILE // max(1, n * there.shape[1]))
    best = torch.zeros(n, dtype=here.dtype, device=here.device)
    for start in range(0, a, width):
        some = slice(start, start + width)
        part = first if width >= a else first.variants(some)
        squares = part.cross(second).mul_(-2.0).add_(here[:, some, None]).add_(there[:, None, :])
        best = torch.maximum(best, squares.flatten(1).amax(dim=1))
    return best


def bounds(gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Cheap bounds (lower, upper) of the diameter of each record, from the distances to a few of its variants.

    The lower bound is a distance that occurs. The upper bound is, by the triangle inequality, the sum of the two largest
    distances from one of these variants.
    """
    a = gradients.shape[1]
    anchors = sorted({0, a // 2, a - 1})
    norms = gradients.norms
    squares = gradients.variants(anchors).cross(gradients).mul_(-2.0).add_(norms[:, anchors, None]).add_(norms[:, None, :])
    lower = squares.sub(SLACK).clamp_(min=0.0).flatten(1).amax(dim=1).sqrt()
    top = squares.add(SLACK).clamp_(min=0.0).sqrt().topk(min(2, a), dim=2).values.sum(dim=2)
    return lower, top.amin(dim=1)


def centroid(load: Load, sizes: Sequence[int]) -> Tensor:
    """Twice the radius of the ball around the mean."""
    one = load(0) if len(sizes) == 1 else None
    if one is not None and (one.tiled or sum(sizes) <= FEW):
        every = one.differences()  # inner products about any origin: the radius of a ball does not depend on it
        norms, dots = every.diagonal(dim1=1, dim2=2), every.mean(dim=2)
        square = dots.mean(dim=1)
    else:
        mean: Centre | None = None
        for k in range(len(sizes)):
            some = load(k)
            part = some.combine(torch.full(some.shape, 1.0 / sum(sizes), dtype=torch.float64, device=some.norms.device))
            mean = part if mean is None else mean + part
        assert mean is not None
        blocks = [(some.norms, some.dot(mean)) for some in map(load, range(len(sizes)))]
        norms, dots = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
        square = mean.norms()
    return 2.0 * ((norms - 2.0 * dots).amax(dim=1) + square).clamp(min=0.0).sqrt()


# ---- Distances of records, computed in chunks that keep memory bounded

#: How a diameter is computed.
DIAMETERS: dict[str, Callable[[Load, Sequence[int]], Tensor]] = {"exact": exact, "centroid": centroid}
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
    memory : int
        The number of bytes that a pass over variants may take.
    """

    def __init__(self, variants: VariantGradients, secret: Secret, kind: str, memory: int) -> None:
        self._variants, self._secret, self._values = variants, secret, list(range(secret.count))
        self._kind = kind
        self._memory = memory
        self._per_variant = 0
        self._checked: set[int] = set()

    def check_once(self, indices: Tensor, records: Records) -> None:
        """Refuse records of the data set that hold no value of the secret, when they are measured for the first time."""
        if self._secret.quick_check and len(indices) and int(indices[0]) not in self._checked:
            self._secret.check(records, complete=False)
            self._checked.add(int(indices[0]))

    def try_out(self, records: Records) -> None:
        """Measure how much memory a variant takes, and refuse a model that cannot be run on variants."""
        few = records.take(slice(0, FIRST_RECORDS))
        self._variants.try_out(few, self._secret, self._values[:FIRST_VALUES])
        self._per_variant = self._variants.bytes_per_variant
        fit = min(PASS, self._memory) // (self._per_variant * len(records))
        some = self._values[: max(FIRST_VALUES, min(fit, FEW))]
        if self.most >= len(records) * len(some):
            self._variants.try_out(records, self._secret, some)

    def make_room(self, largest: int) -> int:
        """Let memory hold all variants of a record if they take at most this many bytes. Returns the memory."""
        needed = self.bytes_of(len(self._values))
        if needed <= largest:
            self._memory = max(self._memory, needed)
        return self._memory

    @property
    def most(self) -> int:
        """The number of variants that memory has room for."""
        return max(2, self._memory // self._per_variant)

    def bytes_of(self, variants: int) -> int:
        """The memory that a pass over this many variants takes."""
        return variants * self._per_variant

    def chunks(self, records: Records, at_most: int | None = None) -> Iterator[Records]:
        """Parts of some records whose variants are run together; `at_most` limits the number of records in a part."""
        fit = min(PASS, self._memory) // (self._per_variant * len(self._values))
        size = max(1, fit if at_most is None else min(fit, at_most))
        for start in range(0, len(records), size):
            yield records.take(slice(start, start + size))

    def each(self, records: Records) -> Tensor:
        """The diameter of each record, in clipping norms; 0 of records that the secret is not about, whose variants are alike."""
        concerned = self._secret.concerned(records)
        distances = torch.zeros(len(records), dtype=torch.float64)
        if concerned.any():
            parts = [self._measure(part) for part in self._shown(taken(records, concerned))]
            distances[concerned] = torch.cat(parts).cpu().double()
        return distances

    def largest(self, records: Records, floor: float = 0.0) -> float:
        """The largest diameter, or `floor` if that is larger. Records that cannot have the largest one are left out early."""
        best = floor
        for part in self._shown(taken(records, self._secret.concerned(records))):
            if len(self._sizes) > 1 or self._kind != "exact":
                best = max(best, float(self._measure(part).max()))
                continue
            gradients = self._gradients(part, 0)
            if gradients.tiled:
                best = max(best, float(self._exact(gradients).max()))
                continue
            lower, upper = bounds(gradients)
            best = max(best, float(lower.max()))
            likely = (upper > best).nonzero().flatten()
            if len(likely):
                rest = gradients.records(likely).double()
                best = max(best, float(exact(lambda _, rest=rest: rest, self._sizes).max()))  # type: ignore[misc]
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

    def _measure(self, records: Records) -> Tensor:
        measure = DIAMETERS[self._kind]
        if len(self._sizes) > 1:
            return measure(lambda block: self._gradients(records, block).double(), self._sizes).clamp(max=2.0)
        gradients = self._gradients(records, 0)
        if measure is exact:
            return self._exact(gradients)
        double = gradients.double()
        return measure(lambda _: double, self._sizes).clamp(max=2.0)

    def _exact(self, gradients: Gradients) -> Tensor:
        """The diameter over all pairs of one block."""
        if gradients.tiled or len(self._values) <= FEW:
            return farthest_apart(gradients.differences()).clamp(max=2.0)
        double = gradients.double()
        return exact(lambda _: double, self._sizes).clamp(max=2.0)


def taken(records: Records, which: Tensor) -> Records:
    """The records at which `which` is true; the same records if it always is."""
    return records if bool(which.all()) else records.take(which.nonzero().flatten())
