"""The gradients of a weight that serves all positions of a record, written out in tiles that fit into the processor's cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

# ---- Calls of layers whose weight serves all positions of a record: its gradient is a sum over positions (theory, section 7).
#
# A gradient is a matrix with rows. Code that needs it writes out some rows at a time: a whole gradient is never in memory.


@dataclass(frozen=True)
class Call(ABC):
    """One call of a layer for n records with a variants each, on s positions.

    Attributes
    ----------
    delta : Tensor
        The errors at the output of the layer, (n, a, s, e).
    """

    delta: Tensor

    @abstractmethod
    def rows(self, some: slice) -> Tensor:
        """Some rows of the gradient of each variant, (n, a, rows, width)."""

    @abstractmethod
    def combined_rows(self, some: slice, weights: Tensor) -> Tensor:
        """Some rows of Σ_i w_i ∇_i for each record, (n, rows, width). weights: (n, a)."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change all tensors alike."""

    def terms(self) -> Tensor:
        """Σ_t ‖δ_t‖‖x_t‖ of each variant, (n, a), in double precision."""
        return torch.linalg.vector_norm(self.delta, dim=3, dtype=torch.float64).sum(dim=2)


@dataclass(frozen=True)
class LinearCall(Call):
    """∇ = Σ_t δ_t ⊗ x_t: a row for each entry of δ."""

    x: Tensor  # (n, a, s, d)

    def rows(self, some: slice) -> Tensor:
        """Some rows of the gradient of each variant, (n, a, rows, d)."""
        n, a = self.delta.shape[:2]
        return torch.bmm(self.delta[..., some].flatten(0, 1).transpose(1, 2), self.x.flatten(0, 1)).unflatten(0, (n, a))

    def combined_rows(self, some: slice, weights: Tensor) -> Tensor:
        """Some rows of Σ_i w_i ∇_i for each record, (n, rows, d)."""
        delta, x, scale = self.delta[..., some], self.x, weights[..., None, None].to(self.delta)
        delta, x = (delta * scale, x) if delta.shape[3] < x.shape[3] else (delta, x * scale)  # scale the narrower one
        return torch.bmm(delta.flatten(1, 2).transpose(1, 2), x.flatten(1, 2))

    def map(self, change: Callable[[Tensor], Tensor]) -> LinearCall:
        """Change all tensors alike."""
        return LinearCall(change(self.delta), change(self.x))

    def terms(self) -> Tensor:
        """Σ_t ‖δ_t‖‖x_t‖ of each variant, (n, a), in double precision."""
        delta, x = (torch.linalg.vector_norm(one, dim=3, dtype=torch.float64) for one in (self.delta, self.x))
        return (delta * x).sum(dim=2)

    def products_by_position(self) -> Tensor:
        """⟨∇_i, ∇_j⟩ = Σ_{t,t'} (x_{i,t}·x_{j,t'}) (δ_{i,t}·δ_{j,t'}), (n, a, a), without writing out a gradient."""
        n, a, s, _ = self.x.shape
        x, delta = self.x.flatten(1, 2), self.delta.flatten(1, 2)
        products = torch.bmm(x, x.transpose(1, 2)).mul_(torch.bmm(delta, delta.transpose(1, 2)))
        return products.view(n, a, s, a, s).sum(dim=(2, 4))


@dataclass(frozen=True)
class EmbeddingCall(Call):
    """∇ has a row for each token of the vocabulary: the sum of the errors at the positions that hold the token."""

    tokens: Tensor  # (n, a, s)

    def rows(self, some: slice) -> Tensor:
        """Some rows of the gradient of each variant, (n, a, rows, e)."""
        return self._summed(self.delta, some).unflatten(0, self.tokens.shape[:2])

    def combined_rows(self, some: slice, weights: Tensor) -> Tensor:
        """Some rows of Σ_i w_i ∇_i for each record, (n, rows, e)."""
        weighted = self.delta * weights[..., None, None].to(self.delta)
        return self._summed(weighted, some, together=True)

    def _summed(self, delta: Tensor, some: slice, together: bool = False) -> Tensor:
        """Errors added up by token, for each variant or, with `together`, for each record."""
        n, a, _, e = delta.shape
        sums = n if together else n * a
        size = some.stop - some.start
        places = self.tokens.reshape(sums, -1) - some.start
        places = places.where((places >= 0) & (places < size), size)  # one more row takes what belongs to other rows
        result = delta.new_zeros(sums, size + 1, e)
        result.scatter_add_(1, places[..., None].expand(-1, -1, e), delta.reshape(sums, -1, e))
        return result[:, :size]

    def map(self, change: Callable[[Tensor], Tensor]) -> EmbeddingCall:
        """Change all tensors alike."""
        return EmbeddingCall(change(self.delta), change(self.tokens))


# ---- Tiles

#: The number of entries that are written out at a time.
TILE = 1 << 20
#: Products of matrices are fastest with a multiple of this many rows.
ALIGNED = 64
#: The largest number of entries of what is not used again at once.
LARGE = 1 << 22
#: A product in double precision takes this many times that of single precision.
DOUBLE = 2


@dataclass(frozen=True)
class TiledFactor:
    """The gradients of one weight for n records with a variants each.

    Attributes
    ----------
    calls : tuple of Call
        The calls of all layers that use the weight. Their gradients add up.
    parameters : tuple of Tensor
        The weight.
    scale : Tensor, optional
        The factors of clipping, (n, a).
    precise : bool
        Whether written gradients are turned into double precision before they are multiplied with each other.
    products : Tensor, optional
        The inner products of ∇_0, ∇_1 - ∇_0, ∇_2 - ∇_0, … before clipping, (n, a, a), in double precision, if they were
        computed. Differences are taken of written gradients, so that entries in single precision are enough for distances far
        below the norms.
    """

    calls: tuple[Call, ...]
    parameters: tuple[Tensor, ...]
    scale: Tensor | None = None
    precise: bool = False
    products: Tensor | None = None
    plus: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """The number of records, and of variants of each."""
        n, a = self.calls[0].delta.shape[:2]
        return n, a

    @property
    def size(self) -> tuple[int, int]:
        """The number of rows of the weight, and their width."""
        rows, width = self.parameters[0].shape
        return rows, width

    # ------------------------------------------------------------------ inner products

    def with_products(self) -> TiledFactor:
        """The same with `products`."""
        n, a = self.shape
        call = self.calls[0]
        if len(self.calls) == 1 and isinstance(call, LinearCall) and self._positions_are_cheaper(call):
            single = [call.map(lambda t, i=i: t[i : i + 1].double()).products_by_position() for i in range(n)]  # type: ignore[misc]
            return replace(self, products=about_first(torch.cat(single)))
        total = torch.zeros(n, a, a, dtype=torch.float64, device=call.delta.device)
        for some, tile in self._tiles():
            tile[:, 1:] -= tile[:, :1]
            total[some] += torch.bmm(tile, tile.transpose(1, 2))
        return replace(self, products=total)

    def _positions_are_cheaper(self, call: LinearCall) -> bool:
        """Whether products of positions take fewer operations than writing gradients out and multiplying them."""
        a, s = self.shape[1], call.x.shape[2]
        d, e = call.x.shape[3], call.delta.shape[3]
        return DOUBLE * (a * s) ** 2 * (d + e) < (a * s + a * a) * d * e and (a * s) ** 2 < LARGE

    def norms(self) -> Tensor:
        """‖∇_i‖², (n, a)."""
        if self.products is not None:
            return squares_from(self.products, self.scale)
        return self._squares if self.scale is None else self._squares * self.scale.square()

    @cached_property
    def _squares(self) -> Tensor:
        total = torch.zeros(self.shape, dtype=self._dtype, device=self.calls[0].delta.device)
        call = self.calls[0]
        if len(self.calls) == 1 and isinstance(call, LinearCall):
            s, d, e = *call.x.shape[2:], call.delta.shape[3]
            if s * (d + e) < d * e:  # each variant against itself alone, in double precision, as its terms may cancel
                single = call.map(lambda t: t.flatten(0, 1)[:, None].double())
                return single.products_by_position().reshape(self.shape)
        for some, tile in self._tiles():
            total[some] += torch.linalg.vector_norm(tile, dim=2).square()
        return total

    def terms(self) -> Tensor:
        """Σ_t ‖δ_t‖‖x_t‖ of each variant over all calls, before clipping, (n, a), in double precision."""
        return torch.stack([call.terms() for call in self.calls]).sum(dim=0)

    def cross(self, other: TiledFactor) -> Tensor:
        """⟨∇_i, ∇'_j⟩, (n, a, a')."""
        (n, a), there = self.shape, other.shape[1]
        products = torch.zeros(n, a, there, dtype=self._dtype, device=self.calls[0].delta.device)
        for (some, mine), (_, theirs) in zip(self._tiles(a + there), other._tiles(a + there), strict=True):
            products[some].baddbmm_(mine, theirs.transpose(1, 2))
        if self.scale is not None and other.scale is not None:
            products = products * self.scale[:, :, None] * other.scale[:, None, :]
        return products

    # ------------------------------------------------------------------ combinations

    def combine(self, weights: Tensor) -> tuple[None, Tensor]:
        """Σ_i w_i ∇_i, (n, entries), as rows one after the other."""
        parts = [part for _, part in self._combined(weights)]
        return None, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _combined(self, weights: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The rows of Σ_i w_i ∇_i, (n, rows · width), some at a time."""
        scaled = weights if self.scale is None else weights * self.scale
        height = max(1, LARGE // (self.shape[0] * self.size[1]))
        for start in range(0, self.size[0], height):
            rows = slice(start, min(start + height, self.size[0]))
            part = self.calls[0].combined_rows(rows, scaled)
            for call in self.calls[1:]:
                part += call.combined_rows(rows, scaled)
            yield rows, part.flatten(1).to(self._dtype)

    def dot(self, centre: tuple[Tensor | None, Tensor]) -> Tensor:
        """⟨∇_i, centre⟩, (n, a)."""
        products = torch.zeros(self.shape, dtype=centre[1].dtype, device=centre[1].device)
        width = self.size[1]
        for some, rows, tile in self._row_tiles(self.shape[1]):
            part = centre[1][some, rows.start * width : rows.stop * width]
            products[some] += torch.bmm(tile.to(part), part[..., None])[..., 0]
        return products if self.scale is None else products * self.scale

    def square(self, weights: Tensor) -> Tensor:
        """‖Σ_i w_i ∇_i‖², (n,), in double precision."""
        total = torch.zeros(self.shape[0], dtype=torch.float64, device=weights.device)
        for _, part in self._combined(weights):
            total += torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).square()
        return total

    def total(self, weights: Tensor) -> list[Tensor]:
        """Σ_records Σ_i w_i ∇_i in the shape of the weight, in the precision of the weight."""
        flat = (weights if self.scale is None else weights * self.scale).reshape(1, -1)
        rows = slice(0, self.size[0])
        parts = [call.map(lambda tensor: tensor.flatten(0, 1)[None]).combined_rows(rows, flat)[0] for call in self.calls]
        return [parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)]

    def sums(self, part: tuple[Tensor | None, Tensor]) -> list[Tensor]:
        """The sum over records of what `combine` gives, in the shape of the weight and in double precision."""
        total = part[1][0].double()
        for record in part[1][1:]:
            total += record
        return [total.view(self.size)]

    def written(self) -> TiledFactor:
        """The same: nothing was left out."""
        return self

    # ------------------------------------------------------------------ parts of it

    def whole(self, number: Tensor) -> TiledFactor:
        """One variant of each record, before clipping. `number` is the variant of each record."""
        return replace(self.pick(number), scale=None)

    def pick(self, number: Tensor) -> TiledFactor:
        """One variant of each record. `number` is the variant of each record."""
        rows = torch.arange(len(number), device=number.device)
        return self._map(lambda tensor: tensor[rows, number][:, None])

    def records(self, index: Tensor) -> TiledFactor:
        """Some records."""
        some = self._map(lambda tensor: tensor[index])
        return some if self.products is None else replace(some, products=self.products[index])

    def variants(self, index: slice | list[int]) -> TiledFactor:
        """Some variants of each record."""
        return self._map(lambda tensor: tensor[:, index])

    def double(self) -> TiledFactor:
        """The same, with written gradients turned into double precision before they are multiplied with each other."""
        return replace(self, precise=True, scale=None if self.scale is None else self.scale.double())

    def scaled(self, scale: Tensor) -> TiledFactor:
        """Multiply the gradient of each variant by a number, (n, a)."""
        return replace(self, scale=scale)

    def _map(self, change: Callable[[Tensor], Tensor]) -> TiledFactor:
        calls = tuple(call.map(change) for call in self.calls)
        return replace(self, calls=calls, scale=None if self.scale is None else change(self.scale), products=None)

    # ------------------------------------------------------------------ tiles

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.precise else self.calls[0].delta.dtype

    def _tiles(self, most: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Gradients of some records in pieces, (records, a, entries of the piece). `most`: the variants that share the memory."""
        if all(isinstance(call, EmbeddingCall) for call in self.calls) and most is None:
            yield from self._compact_tiles()
            return
        for some, _, tile in self._row_tiles(most or self.shape[1]):
            yield some, tile.to(self._dtype)

    def _row_tiles(self, most: int) -> Iterator[tuple[slice, slice, Tensor]]:
        n, (rows, width) = self.shape[0], self.size
        together = max(1, TILE // (most * rows * width))  # records
        height = min(rows, max(1, TILE // (most * width)))
        height -= height % ALIGNED if height > ALIGNED else 0
        for first in range(0, n, together):
            some = slice(first, min(first + together, n))
            calls = self.calls if together >= n else tuple(call.map(lambda t, some=some: t[some]) for call in self.calls)  # type: ignore[misc]
            for start in range(0, rows, height):
                piece = slice(start, min(start + height, rows))
                tile = calls[0].rows(piece)
                for call in calls[1:]:
                    tile = tile + call.rows(piece)
                yield some, piece, tile.flatten(2)

    def _compact_tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """For embeddings: the rows of the tokens that a record's variants hold, and no others."""
        for i in range(self.shape[0]):
            calls = [call.map(lambda t, i=i: t[i : i + 1]) for call in self.calls]  # type: ignore[misc]
            tokens = torch.cat([call.tokens.flatten() for call in calls if isinstance(call, EmbeddingCall)])
            own, numbers = torch.unique(tokens, return_inverse=True)
            tile, start = None, 0
            for call in calls:
                assert isinstance(call, EmbeddingCall)
                mine = numbers[start : start + call.tokens.numel()].view_as(call.tokens)
                start += call.tokens.numel()
                part = replace(call, tokens=mine).rows(slice(0, len(own)))
                tile = part if tile is None else tile + part
            assert tile is not None
            yield slice(i, i + 1), tile.flatten(2).to(self._dtype)


def about_first(products: Tensor) -> Tensor:
    """Turn inner products of ∇_0, ∇_1, … into those of ∇_0, ∇_1 - ∇_0, …, (n, a, a)."""
    changed = products.clone()
    changed[:, 1:] -= products[:, :1]
    changed[:, :, 1:] -= changed[:, :, :1].clone()
    return changed


def squares_from(products: Tensor, scale: Tensor | None) -> Tensor:
    """‖s_i ∇_i‖², (n, a), from the inner products of ∇_0, ∇_1 - ∇_0, …, (n, a, a)."""
    squares = products.diagonal(dim1=1, dim2=2) + 2.0 * products[:, 0] + products[:, :1, 0]
    squares[:, 0] = products[:, 0, 0]
    return squares if scale is None else squares * scale.square()


def differences_from(products: Tensor, scale: Tensor | None) -> Tensor:
    """⟨s_i ∇_i - s_0 ∇_0, s_j ∇_j - s_0 ∇_0⟩, (n, a, a), from the inner products of ∇_0, ∇_1 - ∇_0, …"""
    scale = torch.ones_like(products[:, 0]) if scale is None else scale.double()
    square, first = products[:, 0, 0].clone(), products[:, 0] * scale
    change = scale - scale[:, :1]  # s_i ∇_i - s_0 ∇_0 = (s_i - s_0) ∇_0 + s_i (∇_i - ∇_0)
    first[:, 0] = 0.0
    inner = products * scale[:, :, None] * scale[:, None, :]
    inner[:, 0], inner[:, :, 0] = 0.0, 0.0
    mixed = change[:, :, None] * first[:, None, :]
    return inner + mixed + mixed.transpose(1, 2) + square[:, None, None] * change[:, :, None] * change[:, None, :]
