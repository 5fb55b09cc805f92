"""Canaries: each moves a weight that no other record moves, by a whole clipping norm, which is the worst case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: Length of a canary's gradient, as a multiple of its output's. Clipping shortens it to the clipping norm; training that does not
#: clip lets all of it through, and the attacker sees that.
CANARY_GRADIENT = 1e5


class _OutputWithGradient(torch.autograd.Function):
    """Returns the output unchanged. In the backward pass the canary layer gets a gradient as long as the output's, times
    CANARY_GRADIENT: what scales the loss (as ghost clipping does) scales it too, and it is never negative."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, canary: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        rows = gradients[0].flatten(1) if gradients[0].ndim > 1 else gradients[0][:, None]
        return gradients[0], CANARY_GRADIENT * rows.norm(dim=1, keepdim=True)


class Canaries(nn.Module):
    """A model with one more layer, whose i-th weight gets a gradient from the i-th canary and from no other record.

    The output is the model's own. `marks` are the inputs by which canaries are known; the k-th moves weight `places[k]`, up or
    down by `signs[k]`. The attributes of the model can be read from this one as well.
    """

    def __init__(self, model: nn.Module, marks: Tensor, places: Sequence[int], signs: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        first = next(model.parameters())
        self.canary = nn.Linear(max(places) + 1, 1, bias=False, device=first.device, dtype=first.dtype)
        nn.init.zeros_(self.canary.weight)
        self._known = dict(zip(_keys(marks), zip(places, signs, strict=True), strict=True))
        self._shape = marks.shape[1:]
        #: How many times canaries were seen by the model.
        self.seen = 0

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        output = self.model(*inputs, **named)
        if not isinstance(output, Tensor):
            kind = type(output).__name__
            raise TypeError(f"canaries need a model that returns a tensor, got {kind}; choose a record of the data as challenge.")
        rows = torch.zeros(len(output), self.canary.in_features, device=output.device, dtype=self.canary.weight.dtype)
        for value in (*inputs, *named.values()):
            if isinstance(value, Tensor) and value.shape[1:] == self._shape:
                for i, key in enumerate(_keys(value)):
                    if key in self._known:
                        place, sign = self._known[key]
                        rows[i, place] = sign
                        self.seen += 1
        return _OutputWithGradient.apply(output, self.canary(rows))  # type: ignore[no-untyped-call]

    def __getitem__(self, index: Any) -> Any:
        return self.model[index]  # type: ignore[index]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def _keys(records: Tensor) -> list[bytes]:
    return [row.tobytes() for row in records.detach().cpu().double().flatten(1).numpy()]


def marks(inputs: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Make so many inputs that are like those given, and equal to none of them or each other.

    Numbers are moved by a thousandth of their deviation; whole numbers (tokens, pixels) are taken from other records, place by
    place.
    """
    chosen = inputs[torch.randint(len(inputs), (number,), generator=generator)]
    if inputs.is_floating_point():
        scale = 1e-3 * float(inputs.double().std()) or 1e-3
        made = chosen + scale * torch.randn(chosen.shape, generator=generator, dtype=chosen.dtype)
    else:
        flat = inputs.flatten(1)
        who = torch.randint(len(inputs), (number, flat.shape[1]), generator=generator)
        made = flat.gather(0, who).reshape(chosen.shape)
    if len({*_keys(made)} - {*_keys(inputs)}) < number:
        raise ValueError(
            f"data must have records that {number} canaries can be told from: too few different inputs of kind {inputs.dtype}."
        )
    return made
