"""Gradients of many variants of a record, as factors: distances need only their inner products (theory, section 7).

The gradient of a linear layer is an outer product δ ⊗ x of the back-propagated error and the input, so that
    ⟨∇_i, ∇_j⟩ = (x_i·x_j + 1)(δ_i·δ_j)                    (the 1 is the bias)
and no gradient is ever stored. For small weights, the gradient of each variant is stored as δ, without x. A weight that serves
many positions of a record has a `TiledFactor` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from betastar.training.gradients.record_gradients import CANCELLATION, TrainedModel
from betastar.training.gradients.tiled_factor import TiledFactor, about_first, differences_from, squares_from

#: The error of double precision in the squared norm of a combination, relative to those of its parts.
ROUNDING = 1e-13


@dataclass(frozen=True)
class Rest:
    """The part of an input that all variants of a record share. The factor's x holds the other columns and this part's norm."""

    table: Tensor  # (n, d), 0 in the columns in which variants differ
    columns: list[int]  # the columns in which variants differ


@dataclass(frozen=True)
class Factor:
    """Gradients of some parameters for n records with a variants each; ⟨∇_i, ∇_j⟩ = s_i s_j (x_i·x_j + plus)(δ_i·δ_j)."""

    delta: Tensor  # (n, a, e)
    x: Tensor | None = None  # (n, a, d)
    plus: float | Tensor = 1.0
    parameters: tuple[Tensor, ...] = ()
    scale: Tensor | None = None  # s, (n, a): the factors of clipping
    rest: Rest | None = None  # the shared part of the input, if x leaves it out

    @property
    def shape(self) -> tuple[int, int]:
        """The number of records, and of variants of each."""
        n, a, _ = self.delta.shape
        return n, a

    def norms(self) -> Tensor:
        """‖∇_i‖², (n, a)."""
        squares = torch.linalg.vector_norm(self.delta, dim=-1)
        if self.scale is not None:
            squares = squares * self.scale
        if self.x is None:
            return squares.square() * self.plus
        return squares.square() * (torch.linalg.vector_norm(self.x, dim=-1).square() + self.plus)

    def cross(self, other: Factor) -> Tensor:
        """⟨∇_i, ∇'_j⟩, (n, a, a')."""
        products = torch.bmm(self.delta, other.delta.transpose(1, 2))
        if self.x is not None and other.x is not None:
            products = torch.bmm(self.x, other.x.transpose(1, 2)).add_(self.plus).mul_(products)
        elif self.plus != 1.0:
            products = products * self.plus
        if self.scale is not None and other.scale is not None:
            products = products.mul_(self.scale[:, :, None]).mul_(other.scale[:, None, :])
        return products

    def differences(self) -> Tensor:
        """⟨∇_i - ∇_0, ∇_j - ∇_0⟩, (n, a, a), in double precision."""
        double = self.double()
        products = about_first(double.cross(double))
        products[:, 0], products[:, :, 0] = 0.0, 0.0
        return products

    def combine(self, weights: Tensor) -> tuple[Tensor | None, Tensor]:
        """Σ_i w_i ∇_i for the weights and the bias of the layer, (n, e, d) and (n, e)."""
        scaled = (weights if self.scale is None else weights * self.scale)[..., None].to(self.delta)
        if self.x is None:
            return None, torch.bmm(self.delta.transpose(1, 2), scaled)[..., 0]
        if self.x.shape[2] < self.delta.shape[2]:  # scale the narrower one
            both = torch.bmm(self.delta.transpose(1, 2), torch.cat([self.x * scaled, scaled], dim=2))
            return both[..., :-1], both[..., -1]
        weighted = self.delta * scaled
        return torch.bmm(weighted.transpose(1, 2), self.x), weighted.sum(dim=1)

    def dot(self, centre: tuple[Tensor | None, Tensor]) -> Tensor:
        """⟨∇_i, centre⟩, (n, a)."""
        matrix, vector = centre
        products = torch.bmm(self.delta, vector[..., None])[..., 0] * self.plus
        if self.x is not None and matrix is not None:
            products = products + (torch.bmm(self.x, matrix.transpose(1, 2)) * self.delta).sum(dim=-1)
        return products if self.scale is None else products * self.scale

    def square(self, weights: Tensor) -> Tensor:
        """‖Σ_i w_i ∇_i‖², (n,), in double precision, from all inner products or from the sum itself, whichever is smaller."""
        _, a, e = self.delta.shape
        width = 1 if self.x is None else self.x.shape[2]
        double = self.double()
        if a * (e + width) < e * width:
            squares = torch.einsum("ni,nij,nj->n", weights, double.cross(double), weights)
            return squares.clamp(min=0.0) + ROUNDING * double.norms().amax(dim=1)
        matrix, vector = double.combine(weights)
        squares = self.plus * vector.square().sum(dim=1)
        return squares if matrix is None else squares + matrix.square().sum(dim=(1, 2))

    def total(self, weights: Tensor) -> list[Tensor]:
        """Σ_records Σ_i w_i ∇_i for each of the parameters, in their shapes and in double precision."""
        if self.rest is not None or self.x is None:
            narrow, vector = self.double().combine(weights.double())
            if narrow is None or self.rest is None:
                return self.split(vector.sum(dim=0))
            matrix = vector.T @ self.rest.table.double()
            matrix[:, self.rest.columns] = narrow.sum(dim=0)[:, :-1]
            return [matrix, vector.sum(dim=0)][: len(self.parameters)]
        scaled = (weights if self.scale is None else weights * self.scale)[..., None].double()
        weighted = (self.delta * scaled).flatten(0, 1)
        return [weighted.T @ self.x.flatten(0, 1).double(), weighted.sum(dim=0)][: len(self.parameters)]

    def split(self, entries: Tensor) -> list[Tensor]:
        """The entries of a stored gradient as one tensor for each of the parameters, in its shape."""
        parts = entries.split([p.numel() for p in self.parameters])
        return [part.reshape(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def sums(self, part: tuple[Tensor | None, Tensor]) -> list[Tensor]:
        """The sum over records of what `combine` gives, for each of the parameters and in double precision."""
        matrix, vector = part
        total = vector.sum(dim=0, dtype=torch.float64)
        if matrix is None:
            return self.split(total)
        summed = matrix.sum(dim=0, dtype=torch.float64)
        if self.rest is not None:
            narrow, summed = summed, vector.T.double() @ self.rest.table.double()
            summed[:, self.rest.columns] = narrow
        return [summed, total][: len(self.parameters)]

    def written(self) -> Factor:
        """The same with columns of the gradient alone: those of the shared part of the input are δ times its table."""
        if self.rest is None or self.x is None:
            return self
        squares = torch.linalg.vector_norm(self.rest.table, dim=1, dtype=torch.float64).square()
        return replace(self, x=self.x[..., :-1], plus=self.plus + squares)

    def sizes(self) -> tuple[int, int]:
        """The number of entries of a combination of variants, for each record, and of all variants."""
        _, a, e = self.delta.shape
        width = 0 if self.x is None else self.x.shape[2]
        return e * (width + 1), a * (e + width)

    def whole(self, number: Tensor) -> Factor:
        """One variant of each record, before clipping, with its whole input. `number` is the variant of each record."""
        rows = torch.arange(len(number), device=number.device)
        x = None if self.x is None else self.x[rows, number]
        if x is not None and self.rest is not None:
            narrow, x = x, self.rest.table.clone()
            x[:, self.rest.columns] = narrow[:, :-1]
        return replace(self, delta=self.delta[rows, number][:, None], x=None if x is None else x[:, None], scale=None, rest=None)

    def records(self, index: Tensor) -> Factor:
        """Some records."""
        rest = None if self.rest is None else Rest(self.rest.table[index], self.rest.columns)
        return replace(self._map(lambda tensor: tensor[index]), rest=rest)

    def variants(self, index: slice | list[int]) -> Factor:
        """Some variants of each record."""
        return self._map(lambda tensor: tensor[:, index])

    def pick(self, number: Tensor) -> Factor:
        """One variant of each record. `number` is the variant of each record."""
        rows = torch.arange(len(number), device=number.device)
        return self._map(lambda tensor: tensor[rows, number][:, None])

    def double(self) -> Factor:
        """The same in double precision."""
        return self._map(Tensor.double)

    def scaled(self, scale: Tensor) -> Factor:
        """Multiply the gradient of each variant by a number, (n, a)."""
        return replace(self, scale=scale)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Factor:
        """Change all tensors alike. The shared part of the input is left out of the result."""
        x = None if self.x is None else change(self.x)
        scale = None if self.scale is None else change(self.scale)
        return replace(self, delta=change(self.delta), x=x, scale=scale, rest=None)


@dataclass(frozen=True)
class Gradients:
    """The factors of all parameters."""

    factors: tuple[Factor | TiledFactor, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of records, and of variants of each."""
        return self.factors[0].shape

    @cached_property
    def tiled(self) -> bool:
        """Whether gradients of some weights are written out in tiles."""
        return any(isinstance(factor, TiledFactor) for factor in self.factors)

    @cached_property
    def quickly_written(self) -> bool:
        """Whether it takes less to write out a combination of the variants of a record than to read the variants."""
        sizes = [factor.sizes() for factor in self.factors if isinstance(factor, Factor)]
        return self.tiled or sum(entries for entries, _ in sizes) <= sum(read for _, read in sizes)

    def with_products(self) -> Gradients:
        """The same, with the inner products of all pairs of variants where gradients have to be written out for them."""
        return Gradients(tuple(f.with_products() if isinstance(f, TiledFactor) else f for f in self.factors))

    def differences(self) -> Tensor:
        """⟨∇_i - ∇_0, ∇_j - ∇_0⟩, (n, a, a), in double precision."""
        assert all(factor.products is not None for factor in self.factors if isinstance(factor, TiledFactor))
        parts = [factor.differences() for factor in self.factors if isinstance(factor, Factor)]
        return sum_of(parts + [differences_from(*one) for one in self._summed_products()])

    @cached_property
    def norms(self) -> Tensor:
        """‖∇_i‖², (n, a)."""
        summed = self._summed_products()
        parts = [factor.norms() for factor in self.factors if isinstance(factor, Factor) or not summed]
        return sum_of(parts + [squares_from(*one) for one in summed])

    def _summed_products(self) -> list[tuple[Tensor, Tensor | None]]:
        """The products of tiled factors that are clipped alike, added up, and their scale; none if they were not computed."""
        alike: dict[int, tuple[list[Tensor], Tensor | None]] = {}
        for factor in self.factors:
            if isinstance(factor, TiledFactor) and factor.products is not None:
                alike.setdefault(id(factor.scale), ([], factor.scale))[0].append(factor.products)
        return [(sum_of(parts), scale) for parts, scale in alike.values()]

    def cross(self, other: Gradients) -> Tensor:
        """⟨∇_i, ∇'_j⟩, (n, a, a')."""
        pairs = zip(self.factors, other.factors, strict=True)
        return sum_of([mine.cross(theirs) for mine, theirs in pairs])  # type: ignore[arg-type]  # of the same kind

    def combine(self, weights: Tensor) -> Centre:
        """Σ_i w_i ∇_i for each record."""
        return Centre([factor.combine(weights) for factor in self.factors], [factor.plus for factor in self.factors])

    def dot(self, centre: Centre) -> Tensor:
        """⟨∇_i, centre⟩, (n, a)."""
        return torch.stack([factor.dot(part) for factor, part in zip(self.factors, centre.parts, strict=True)]).sum(dim=0)

    def squares(self, weights: Tensor) -> Tensor:
        """‖Σ_i w_i ∇_i‖² for each record, (n,), in double precision."""
        return torch.stack([factor.square(weights) for factor in self.factors]).sum(dim=0)

    def totals(self, weights: Tensor) -> dict[Tensor, Tensor]:
        """Σ_records Σ_i w_i ∇_i for each parameter, in double precision where gradients are not written out in tiles."""
        totals: dict[Tensor, Tensor] = {}
        for factor in self.factors:
            totals |= dict(zip(factor.parameters, factor.total(weights), strict=True))
        return totals

    def sums(self, centre: Centre) -> dict[Tensor, Tensor]:
        """The sum over records of a combination of their gradients, for each parameter and in double precision."""
        sums: dict[Tensor, Tensor] = {}
        for factor, part in zip(self.factors, centre.parts, strict=True):
            sums |= dict(zip(factor.parameters, factor.sums(part), strict=True))
        return sums

    def scaled(self, scales: Sequence[Tensor], norms: Tensor | None = None) -> Gradients:
        """Multiply the gradient of each variant by a number, (n, a) for each factor. `norms`, if known, are the result's."""
        scaled = Gradients(tuple(factor.scaled(scale) for factor, scale in zip(self.factors, scales, strict=True)))
        if norms is not None:
            vars(scaled)["norms"] = norms
        return scaled

    def records(self, index: Tensor) -> Gradients:
        """The gradients of some records."""
        return Gradients(tuple(factor.records(index) for factor in self.factors))

    def variants(self, index: slice | list[int]) -> Gradients:
        """The gradients of some variants of each record."""
        return Gradients(tuple(factor.variants(index) for factor in self.factors))

    def pick(self, number: Tensor) -> Gradients:
        """One variant of each record. `number` is the variant of each record."""
        return Gradients(tuple(factor.pick(number) for factor in self.factors))

    def whole(self, number: Tensor) -> Gradients:
        """One variant of each record, before clipping, with its whole input. `number` is the variant of each record."""
        whole = Gradients(tuple(factor.whole(number) for factor in self.factors))
        summed = self._summed_products()
        if summed:  # norms are then known
            rows = torch.arange(len(number), device=number.device)
            known = [squares_from(products, None)[rows, number][:, None] for products, _ in summed]
            vars(whole)["norms"] = sum_of([*known, *(f.norms() for f in whole.factors if isinstance(f, Factor))])
        return whole

    def double(self) -> Gradients:
        """The gradients in double precision."""
        return Gradients(tuple(factor.double() for factor in self.factors))


@dataclass
class Centre:
    """A combination of gradients for each record, in full, layer by layer."""

    parts: list[tuple[Tensor | None, Tensor]]
    plus: list[float | Tensor]

    def norms(self) -> Tensor:
        """‖centre‖², (n,), in double precision."""
        total = torch.zeros(len(self.parts[0][1]), dtype=torch.float64, device=self.parts[0][1].device)
        for (matrix, vector), plus in zip(self.parts, self.plus, strict=True):
            total += plus * torch.linalg.vector_norm(vector, dim=1, dtype=torch.float64).square()
            if matrix is not None:
                total += torch.linalg.vector_norm(matrix, dim=(1, 2), dtype=torch.float64).square()
        return total

    def double(self) -> Centre:
        """The same in double precision."""
        return Centre([(None if m is None else m.double(), v.double()) for m, v in self.parts], self.plus)

    def __add__(self, other: Centre) -> Centre:
        return self.plus_multiple(other, torch.ones(len(self.parts[0][1]), device=self.parts[0][1].device))

    def __sub__(self, other: Centre) -> Centre:
        return self.plus_multiple(other, -torch.ones(len(self.parts[0][1]), device=self.parts[0][1].device))

    def plus_multiple(self, other: Centre, times: Tensor) -> Centre:
        """Add a multiple of another combination, (n,), in place, as combinations are large."""
        for (matrix, vector), (others, entries) in zip(self.parts, other.parts, strict=True):
            for mine, theirs in ((matrix, others), (vector, entries)):
                if mine is not None and theirs is not None:
                    mine.addcmul_(theirs, times.to(mine).view(-1, *[1] * (mine.ndim - 1)))
        return self


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of some tensors of the same shape."""
    total, *others = tensors
    for other in others:
        total = total + other
    return total


# ---- Clipping by the rule of the optimizer

#: Opacus adds this to a norm before it divides by it.
TINY = 1e-6


def clip(gradients: Gradients, model: TrainedModel) -> Gradients:
    """The clipped gradients, in clipping norms."""
    total = model.max_grad_norm()
    if model.flat:
        squares = gradients.norms
        if model.limits_cancellation:
            for factor in gradients.factors:
                if isinstance(factor, TiledFactor):
                    squares = torch.maximum(squares, (factor.terms() / CANCELLATION).square())
        scale = (total / (squares.sqrt() + TINY)).clamp(max=1.0).to(gradients.norms.dtype) / total
        return gradients.scaled([scale] * len(gradients.factors), gradients.norms * scale.square())
    limits = model.layer_norms()
    scales: list[Tensor] = []
    for factor in gradients.factors:
        (parameter,) = factor.parameters
        scales.append((limits[parameter] / (factor.norms().sqrt() + TINY)).clamp(max=1.0) / total)
    return gradients.scaled(scales)
