"""Calls of layers whose weight serves all positions of a record: its gradient is a sum over positions (theory, section 14).

A gradient is a matrix with rows. Whoever needs it writes out some rows at a time, so that a whole gradient is never in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


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
    def sketch(self, left: Tensor, right: Tensor) -> Tensor:
        """uᵀ∇v for each variant and each pair of a column u of `left` and a column v of `right`, (n, a, columns)."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change all tensors alike."""


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

    def sketch(self, left: Tensor, right: Tensor) -> Tensor:
        """uᵀ∇v = Σ_t (u·δ_t)(x_t·v) for each variant and each pair of columns, (n, a, columns)."""
        return ((self.delta @ left) * (self.x @ right)).sum(dim=2)

    def map(self, change: Callable[[Tensor], Tensor]) -> LinearCall:
        """Change all tensors alike."""
        return LinearCall(change(self.delta), change(self.x))

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

    def sketch(self, left: Tensor, right: Tensor) -> Tensor:
        """uᵀ∇v = Σ_t u_token(t) (δ_t·v) for each variant and each pair of columns, (n, a, columns)."""
        return (left[self.tokens] * (self.delta @ right)).sum(dim=2)

    def map(self, change: Callable[[Tensor], Tensor]) -> EmbeddingCall:
        """Change all tensors alike."""
        return EmbeddingCall(change(self.delta), change(self.tokens))
