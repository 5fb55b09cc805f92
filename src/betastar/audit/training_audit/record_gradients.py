"""Gradients of single records on a copy of the model, as the attackers compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from betastar.training import Records, Secret

#: The loss of outputs and targets.
Criterion: TypeAlias = Callable[[Any, Any], Tensor]
#: Rows of some records, by the names of their arguments.
Rows: TypeAlias = dict[int | str, Tensor]
#: Gradients that are written out at once.
PORTION = 256


class Gradients:
    """Clipped gradients of single records, in clipping norms, written out: (records, weights)."""

    def __init__(self, copy: nn.Module, criterion: Criterion, norm: float) -> None:
        self.copy, self.criterion, self._norm = copy.cpu().eval(), criterion, norm
        self.names = [name for name, parameter in copy.named_parameters() if parameter.requires_grad]
        self._together = True

    def follow(self, model: nn.Module, trained: list[str] | None = None) -> None:
        """Copy all that the model holds. `trained` names the weights whose gradients count; without it they stay the same."""
        self.copy.load_state_dict(model.state_dict())
        self.names = self.names if trained is None else trained

    def raw(self, records: Records) -> Tensor:
        """The gradients before they are clipped, as the optimizer sees them."""
        weights = {name: p.detach() for name, p in self.copy.named_parameters() if name in self.names}
        rows = records.rows()

        def loss(weights: dict[str, Tensor], row: Rows) -> Tensor:
            one = records.changed(lambda key, value: row[key][None] if key in row else value)
            return self.criterion(functional_call(self.copy, weights, one.inputs, one.named), one.target).sum()

        with torch.enable_grad():
            if self._together:
                try:
                    by_name = vmap(grad(loss), (None, 0), chunk_size=PORTION)(weights, rows)
                    return torch.cat([by_name[name].flatten(1) for name in self.names], dim=1)
                except RuntimeError:  # a layer that cannot be vectorised: one by one
                    self._together = False
            alone = [grad(loss)(weights, {key: value[i] for key, value in rows.items()}) for i in range(len(records))]
            return torch.stack([torch.cat([one[name].flatten() for name in self.names]) for one in alone])

    def __call__(self, records: Records) -> Tensor:
        unclipped = self.raw(records)
        lengths = unclipped.double().norm(dim=1, keepdim=True)
        return unclipped * (1.0 / lengths.clamp(min=self._norm)).to(unclipped.dtype)


class GapClippedGradients(Gradients):
    """The same under gap clipping: pulled towards the mean over all values of the secret (theory, section 9).

    Parameters
    ----------
    copy, criterion, norm : objects
        As for `Gradients`.
    secret : Secret
        The secret whose gap is clipped.
    gap : float
        The largest distance between two values, in clipping norms.
    """

    def __init__(self, copy: nn.Module, criterion: Criterion, norm: float, secret: Secret, gap: float) -> None:
        super().__init__(copy, criterion, norm)
        self._secret, self._gap = secret, gap

    def __call__(self, records: Records) -> Tensor:
        count = self._secret.count
        parts = []
        for start in range(0, len(records), max(1, PORTION // count)):
            some = records.take(slice(start, start + max(1, PORTION // count)))
            variants = super().__call__(self._secret.variants(some, range(count))).unflatten(0, (len(some), count))
            mean = torch.einsum("na,naw->nw", self._secret.shares(some).to(variants), variants)
            away = variants[torch.arange(len(some)), self._secret.own(some)] - mean
            lengths = away.double().norm(dim=1, keepdim=True)
            parts.append(mean + away * (0.5 * self._gap / lengths.clamp(min=max(0.5 * self._gap, 1e-300))).to(away))
        return torch.cat(parts)
