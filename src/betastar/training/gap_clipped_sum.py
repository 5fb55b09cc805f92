"""The sum of gap-clipped gradients over a batch, computed from the gradients of all variants of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from betastar.scenario.threats import FARTHEST
from betastar.training.attaching import MeasuredTraining
from betastar.training.gradients import gap_weights
from betastar.training.gradients.factors import Gradients
from betastar.training.records import Records
from betastar.training.secrets.secret import Secret

#: Bytes that one pair of combinations of several secrets' values takes: their inner product and their weights.
PER_PAIR = 32


def clipped_secrets(secrets: Sequence[Secret], gaps: Mapping[str, float]) -> list[Secret]:
    """The secrets whose gap is below 2, with the largest gap first.

    The last secret is clipped to its gap, and earlier ones to less, so that the smallest gap comes last.
    """
    return sorted((secret for secret in secrets if gaps[secret.name] < FARTHEST), key=lambda secret: -gaps[secret.name])


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
    memory : int
        The number of bytes that the factors of gradients may take at a time.

    Raises
    ------
    ValueError
        If the secret has more values than fit into memory.
    """

    def __init__(self, training: MeasuredTraining, secrets: Sequence[Secret], gaps: Mapping[str, float], memory: int) -> None:
        self._adapter, self._variants, self._distances = training.adapter, training.variants, training.distances
        self.secret, self._secrets, self._memory = training.secret, list(secrets), memory
        self._gaps = [gaps[secret.name] for secret in self._secrets]
        fit = self._distances.most if len(self._secrets) < 2 else min(self._distances.most, isqrt(memory // PER_PAIR))
        if self.secret.count > fit:
            raise ValueError(
                f"the secret {self.secret.name!r} has {self.secret.count} values or combinations of them, of which {fit} fit "
                f"into memory={memory} bytes: raise memory, join values into ranges, or protect fewer secrets at a time."
            )

    def total(self, batch: Records) -> dict[Tensor, Tensor]:
        """Add up the gap-clipped gradients of some records.

        Parameters
        ----------
        batch : Records
            The records.

        Returns
        -------
        dict
            Σ ĝ for each parameter, in double precision.
        """
        sums: dict[Tensor, Tensor] = {p: torch.zeros_like(p, dtype=torch.float64) for p in self._adapter.all_parameters}
        for part in self._chunks(batch):
            gradients, _, weights = self.weigh(part)
            for parameter, total in gradients.totals(weights).items():
                sums[parameter] += total * self._adapter.max_grad_norm()
        return sums

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
        """Parts of the batch whose variants fit into memory."""
        limit = self._memory // (PER_PAIR * self.secret.count**2) if len(self._secrets) > 1 else None
        return self._distances.chunks(batch, limit)
