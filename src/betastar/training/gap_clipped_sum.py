"""The sum of gap-clipped gradients over a batch, computed from the gradients of all variants of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from betastar.threats import FARTHEST
from betastar.training.attaching import MeasuredTraining
from betastar.training.gradients import gap_weights
from betastar.training.gradients.clipping import clip
from betastar.training.gradients.distances import taken
from betastar.training.gradients.factors import Gradients
from betastar.training.gradients.sketches import Sketches
from betastar.training.gradients.variant_gradients import require_finite
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

#: Bytes that one pair of combinations of several secrets' values takes: their inner product and their weights.
PER_PAIR = 32
#: Bytes that one entry of a record's written mean and of its difference from the mean take.
WRITTEN = 12


def clipped_secrets(secrets: Sequence[Secret], gaps: Mapping[str, float]) -> list[Secret]:
    """The secrets whose gap is below 2, with the largest gap first.

    The last secret is clipped to its gap, and earlier ones to less, so that the smallest gap comes last.
    """
    return sorted((secret for secret in secrets if gaps[secret.name] < FARTHEST), key=lambda secret: -gaps[secret.name])


@dataclass(frozen=True)
class GapClippedTotals:
    """Sums over the records of a batch for each parameter.

    Attributes
    ----------
    clipped : dict
        Σ ĝ, in double precision.
    unclipped : dict
        The sketch of the sum of the records' own gradients before any clipping.
    """

    clipped: dict[Tensor, Tensor]
    unclipped: dict[Tensor, Tensor]


class GapClippedSum:
    """Computes Σ ĝ, the sum that gap clipping adds noise to (theory, section 9).

    Parameters
    ----------
    training : MeasuredTraining
        The training. Its secret is the joint one of all secrets that are clipped.
    secrets : sequence of Secret
        The secrets that are clipped, as `clipped_secrets` orders them. It is empty for plain DP-SGD.
    gaps : mapping
        The gap of each secret by its name, in clipping norms.

    Raises
    ------
    ValueError
        If the secret has more values than fit into memory.
    """

    def __init__(self, training: MeasuredTraining, secrets: Sequence[Secret], gaps: Mapping[str, float]) -> None:
        self._adapter, self._variants, self._distances = training.adapter, training.variants, training.distances
        self.secret, self._secrets, self._memory = training.secret, list(secrets), training.memory
        #: Makes the sketches of sums of own gradients.
        self.sketches = Sketches()
        self._gaps = [gaps[secret.name] for secret in self._secrets]
        fit = self._distances.most if len(self._secrets) < 2 else min(self._distances.most, isqrt(self._memory // PER_PAIR))
        if self.secret.count > fit:
            raise ValueError(
                f"the secret {self.secret.name!r} has {self.secret.count} values or combinations of them, of which {fit} fit "
                f"into {self._memory} bytes: raise memory, join values into ranges, or protect fewer secrets at a time."
            )

    def total(self, batch: Records) -> GapClippedTotals:
        """Add up the gap-clipped gradients of some records, and their own gradients.

        Parameters
        ----------
        batch : Records
            The records.

        Returns
        -------
        GapClippedTotals
            Both sums for each parameter.
        """
        parameters, norm = self._adapter.all_parameters, self._adapter.max_grad_norm()
        clipped: dict[Tensor, Tensor] = {p: torch.zeros_like(p, dtype=torch.float64) for p in parameters}
        unclipped: dict[Tensor, Tensor] = {}
        for total, mine in self._parts(batch):
            for parameter, part in total.items():
                clipped[parameter].add_(part, alpha=norm)
            for parameter, sketch in self.sketches.of_sum(mine).items():
                unclipped[parameter] = unclipped.get(parameter, 0.0) + sketch
        return GapClippedTotals(clipped, unclipped)

    def _parts(self, batch: Records) -> Iterator[tuple[dict[Tensor, Tensor], Gradients]]:
        """Σ ĝ of some records in clipping norms, and their own gradients. What the secret is not about has no gap to clip."""
        concerned = self.secret.concerned(batch)
        for part in self._chunks(taken(batch, concerned)):
            gradients = self._variants.gradients(part, self.secret, range(self.secret.count))
            own = self.secret.own(part).to(gradients.norms.device)
            yield self._sum(gradients, own, part), gradients.whole(own)
        for part in self._distances.chunks(taken(batch, ~concerned)):
            mine = require_finite(self._variants.own(part))
            yield clip(mine, self._adapter).totals(torch.ones_like(mine.norms)), mine

    def _sum(self, gradients: Gradients, own: Tensor, records: Records) -> dict[Tensor, Tensor]:
        """Σ ĝ in clipping norms."""
        if gradients.tiled and len(self._secrets) == 1:
            shares = self._secrets[0].shares(records).to(own.device)
            return gap_weights.written_sum(gradients, own, shares, self._gaps[0])
        return gradients.totals(self.weights(gradients, own, records))

    def weigh(self, records: Records) -> tuple[Gradients, Tensor, Tensor]:
        """Compute ĝ as a weighted mean of the clipped gradients of a record's variants.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        tuple
            The clipped gradients of the variants, the number of the value that each record holds, and the weights.
        """
        gradients = self._variants.gradients(records, self.secret, range(self.secret.count))
        own = self.secret.own(records).to(gradients.norms.device)
        return gradients, own, self.weights(gradients, own, records)

    def weights(self, gradients: Gradients, own: Tensor, records: Records) -> Tensor:
        """The weight of each variant in ĝ, if the records held the values `own`."""
        shares = [secret.shares(records).to(own.device) for secret in self._secrets]
        if not shares:
            return functional.one_hot(own, self.secret.count).double()
        if len(shares) == 1:
            return gap_weights.weights(gradients, own, shares[0], self._gaps[0])
        return gap_weights.weights_in_turn(gradients, own, shares, self._gaps)

    def _chunks(self, batch: Records) -> Iterator[Records]:
        """Parts of the batch whose variants, and whose written means and differences from them, fit into memory."""
        entries = sum(p.numel() for p in self._adapter.parameters)
        each = self._distances.bytes_of(self.secret.count) + WRITTEN * entries
        if len(self._secrets) > 1:
            each += PER_PAIR * self.secret.count**2
        return self._distances.chunks(batch, self._memory // each)
