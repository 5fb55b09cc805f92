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

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from betastar.threats import FARTHEST
from betastar.training.gradients.distances import RecordDistances, taken
from betastar.training.gradients.factors import ROUNDING, Factor, Gradients, clip
from betastar.training.gradients.record_gradients import TrainedModel
from betastar.training.gradients.variant_gradients import VariantGradients, require_finite
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret


def weights_at_once(gradients: Gradients, own: Tensor, shares: Tensor, gap: float) -> Tensor:
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
        one = Gradients((factor.written(),))
        mean, mine = one.combine(shares), one.pick(own).combine(torch.ones_like(shares[:, :1]))
        if isinstance(factor, Factor):  # few entries, so that what follows costs little in double precision
            mean, mine = mean.double(), mine.double()
        away = mine - mean
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


# ---- The sum of gap-clipped gradients over a batch, computed from the gradients of all variants of its records.

#: Bytes that one pair of combinations of several secrets' values takes: their inner product and their weights.
PER_PAIR = 32
#: Bytes that one entry of a record's written mean and of its difference from the mean take.
WRITTEN = 12


def clipped_secrets(secrets: Sequence[Secret], gaps: Mapping[str, float]) -> list[Secret]:
    """The secrets whose gap is below 2, with the largest gap first.

    The last secret is clipped to its gap, and earlier ones to less, so that the smallest gap comes last.
    """
    return sorted((secret for secret in secrets if gaps[secret.name] < FARTHEST), key=lambda secret: -gaps[secret.name])


#: Is given a record of a batch, and a function from the number of a value to the record's gradient with it, as it was computed.
Checked = Callable[[Records, Callable[[int], dict[Tensor, Tensor]]], None]


class GapClippedSum:
    """Computes Σ ĝ, the sum that gap clipping adds noise to (theory, section 9).

    Parameters
    ----------
    model : TrainedModel
        The model.
    variants : VariantGradients
        Computes gradients of records with other values of the secret.
    distances : RecordDistances
        Cuts batches into parts that fit into memory.
    secrets : sequence of Secret
        The secrets that are clipped, as `clipped_secrets` orders them.
    gaps : mapping
        The gap of each secret by its name, in clipping norms.
    memory : int
        The number of bytes that a pass may take.

    Raises
    ------
    ValueError
        If the secret has more values than fit into memory.
    """

    def __init__(
        self,
        model: TrainedModel,
        variants: VariantGradients,
        distances: RecordDistances,
        secrets: Sequence[Secret],
        gaps: Mapping[str, float],
        memory: int,
    ) -> None:
        self._model, self.variants, self._distances, self._memory = model, variants, distances, memory
        #: Of each record of the last sum: the largest norm of a clipped gradient over the values, which ĝ is not above.
        self.norms = torch.zeros(0)
        self._secrets = list(secrets)
        self.secret = self._secrets[0] if len(self._secrets) == 1 else Secret.joint(*self._secrets)
        self._gaps = [gaps[secret.name] for secret in self._secrets]
        fit = self._distances.most if len(self._secrets) < 2 else min(self._distances.most, isqrt(self._memory // PER_PAIR))
        if self.secret.count > fit:
            raise ValueError(
                f"the secret {self.secret.name!r} has {self.secret.count} values or combinations of them, of which {fit} fit "
                f"into {self._memory} bytes: raise memory, join values into ranges, or protect fewer secrets at a time."
            )

    def total(self, batch: Records, place: int | None = None, check: Checked | None = None) -> dict[Tensor, Tensor]:
        """Add up the gap-clipped gradients of some records.

        Parameters
        ----------
        batch : Records
            The records.
        place : int, optional
            The place of a record whose gradients are checked.
        check : callable, optional
            Checks them.

        Returns
        -------
        dict
            Σ ĝ for each parameter, in double precision.
        """
        clipped: dict[Tensor, Tensor] = {p: torch.zeros_like(p, dtype=torch.float64) for p in self._model.parameters}
        found: list[Tensor] = []
        order: list[Tensor] = []
        norm = self._model.max_grad_norm()
        concerned = self.secret.concerned(batch)
        asked = torch.zeros(len(batch), dtype=torch.bool)
        if place is not None:
            asked[place] = True
        for which, about in ((concerned, True), (~concerned, False)):
            flags = asked[which]
            order.append(which.nonzero()[:, 0])
            for part in self._chunks(taken(batch, which)) if bool(which.any()) else ():
                mine, flags = flags[: len(part)], flags[len(part) :]
                with torch.autocast(self._model.device.type, enabled=False):
                    gradients, total = self._clipped(part) if about else self._own(part)
                sizes = gradients.norms.amax(dim=1).sqrt()
                found.append((sizes if about else sizes / norm).clamp(max=1.0))
                if check is not None and bool(mine.any()):
                    self._check(part, gradients, int(mine.nonzero()[0, 0]), check)
                for parameter, one in total.items():
                    clipped[parameter].add_(one, alpha=norm)
        self.norms = torch.zeros(len(batch), dtype=torch.float64)
        if found:
            self.norms[torch.cat(order).cpu()] = torch.cat(found).double().cpu()
        return clipped

    def _clipped(self, part: Records) -> tuple[Gradients, dict[Tensor, Tensor]]:
        """The gradients of all variants, and Σ ĝ in clipping norms."""
        secret = self.secret.of(part)
        gradients = self.variants.gradients(part, secret, range(secret.count))
        own = secret.own(part).to(gradients.norms.device)
        secrets = [secret] if len(self._secrets) == 1 else self._secrets
        shares = [one.shares(part).to(own.device) for one in secrets]
        if len(shares) == 1 and gradients.quickly_written:
            return gradients, written_sum(gradients, own, shares[0], self._gaps[0])
        return gradients, gradients.totals(self.weights(gradients, own, shares))

    def _own(self, part: Records) -> tuple[Gradients, dict[Tensor, Tensor]]:
        """What the secret is not about has no gap to clip: its own gradients, and their clipped sum in clipping norms."""
        mine = require_finite(self.variants.own(part))
        return mine, clip(mine, self._model).totals(torch.ones_like(mine.norms))

    def _check(self, part: Records, gradients: Gradients, place: int, check: Checked) -> None:
        """Show the gradients of one record to what checks them."""

        def written(value: int) -> dict[Tensor, Tensor]:
            number = value if gradients.shape[1] > 1 else 0
            device = gradients.norms.device
            one = gradients.records(torch.tensor([place], device=device)).whole(torch.tensor([number], device=device))
            return one.totals(torch.ones_like(one.norms))

        check(part.take(slice(place, place + 1)), written)

    def weights(self, gradients: Gradients, own: Tensor, shares: Sequence[Tensor]) -> Tensor:
        """The weight of each variant in ĝ, if the records held the values `own`."""
        if len(shares) == 1:
            return weights_at_once(gradients, own, shares[0], self._gaps[0])
        return weights_in_turn(gradients, own, shares, self._gaps)

    def _chunks(self, batch: Records) -> Iterator[Records]:
        """Parts of the batch whose variants, and whose written means and differences from them, fit into memory."""
        entries = sum(p.numel() for p in self._model.parameters)
        each = self._distances.bytes_of(self.secret.count) + WRITTEN * entries
        if len(self._secrets) > 1:
            each += PER_PAIR * self.secret.count**2
        return self._distances.chunks(batch, self._memory // each)
