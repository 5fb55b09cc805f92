"""Gap clipping (theory, section 9): each record's gradient is pulled towards its mean over the values of the secret.

With ḡ(a) the clipped gradient of a record that holds the value a, and v = Σ_a share_a ḡ(a), which does not depend on the value,
    ĝ(s) = v + clip(ḡ(s) - v, r/2)
stays within r/2 of v, so that any two values are at most r apart; it is a mean of the ḡ(a), so that its norm is at most 1.
What is computed are the weights of the ḡ(a) in ĝ(s).

Several secrets, each with a gap r_j of its own, are pulled one after the other on the table of all combinations of their values.
Lemma. Let |u - u'| ≤ r, |v - v'| ≤ r and F(u, v) = v + clip(u - v, ρ). Then |F(u, v) - F(u', v')| ≤ √2 r.
Proof. On the line between the two, dF = (I - J) dv + J du with J the derivative of clip at u - v: symmetric, with eigenvalues λ
in [0, 1] (clip is the projection onto a ball). As (1 - λ)² + λ² ≤ 1, |dF|² ≤ |du|² + |dv|² ≤ 2r². ∎
So pulling for another secret widens the gap of an earlier one by √2 at most (its mean v moves by at most r, too), and the j-th of
k secrets is clipped to r_j / 2 / √2^(k-1-j). Pulling with A₁ + A₂ instead of A₁·A₂ variants is not possible: the mean over the
values of one secret still moves with the other one, by any amount.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from betastar.training.gradients.factors import ROUNDING, Gradients


def weights(gradients: Gradients, own: Tensor, shares: Tensor, gap: float) -> Tensor:
    """Of the variants' clipped gradients in ĝ, (n, a). own: the value that each record holds. shares: of the mean, (n, a)."""
    away = functional.one_hot(own, shares.shape[1]).to(shares) - shares
    return shares + _shrink(gradients.squares(away), 0.5 * gap)[:, None] * away


def written_sum(gradients: Gradients, own: Tensor, shares: Tensor, gap: float) -> dict[Tensor, Tensor]:
    """Σ_records ĝ for each parameter, in double precision, from v and ḡ(s) - v that are written out.

    v is computed alike whichever value a record holds, and ḡ(s) - v is clipped by the norm of its written entries. Rounding
    before that does not widen the gap.
    """
    parts, squares = [], torch.zeros(len(own), dtype=torch.float64, device=own.device)
    for factor in gradients.factors:  # one after the other, so that they are in the processor's cache
        one = Gradients((factor.widened(),))
        mean = one.combine(shares)
        away = one.pick(own).combine(torch.ones_like(shares[:, :1])) - mean
        squares += away.norms()
        parts.append((one, mean, away))
    shrink = _shrink(squares, 0.5 * gap)
    return {p: total for one, mean, away in parts for p, total in one.sums(mean.plus_multiple(away, shrink)).items()}


def weights_in_turn(gradients: Gradients, own: Tensor, shares: Sequence[Tensor], gaps: Sequence[float]) -> Tensor:
    """The same for several secrets; the values of the last one vary fastest among the variants. shares: one (n, a_j) a secret."""
    double = gradients.double()
    products = double.cross(double)
    largest = double.norms.amax(dim=1)[:, None]
    sizes = [share.shape[1] for share in shares]
    count = products.shape[1]

    def rows(stage: int, index: Tensor) -> Tensor:
        """Weights of the gradients of these variants after the secrets up to `stage`: (n, m) -> (n, m, count)."""
        if stage < 0:
            return functional.one_hot(index, count).to(products)
        size, stride = sizes[stage], int(torch.tensor(sizes[stage + 1 :]).prod())
        digit = index // stride % size
        every = (index - digit * stride)[..., None] + stride * torch.arange(size, device=index.device)
        earlier = rows(stage - 1, every.flatten(1)).unflatten(1, (index.shape[1], size))
        mean = torch.einsum("nmsc,ns->nmc", earlier, shares[stage])
        away = earlier.gather(2, digit[..., None, None].expand(-1, -1, 1, count))[:, :, 0] - mean
        squares = (torch.bmm(away, products) * away).sum(dim=2).clamp(min=0.0) + ROUNDING * largest
        radius = 0.5 * gaps[stage] / 2.0 ** (0.5 * (len(gaps) - 1 - stage))
        return mean + _shrink(squares, radius)[..., None] * away

    return rows(len(gaps) - 1, own[:, None])[:, 0]


def _shrink(squares: Tensor, radius: float) -> Tensor:
    """The factor that clips vectors with these squared norms."""
    norms = squares.sqrt()
    return torch.where(norms <= radius, 1.0, radius / norms)
