"""Compares the noise that a step has added to the clipped sum with the noise that it is charged with.

The noise should be Z with independent entries of standard deviation σC. Then |Z|²/(σC)² follows a χ² law with as many degrees of
freedom as Z has entries, and given the noise Y of an earlier step ⟨Z, Y⟩/(σC|Y|) is a standard normal number. The check looks at
each tensor and at all steps together. More noise than charged is allowed. A training with the right noise is refused with a
probability of at most ERROR over the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt

from scipy.special import gammainc
from torch import Tensor

from betastar.training.checks.sampling_error import ERROR


class NoiseError(RuntimeError):
    """The noise of a step is not the noise that the step is charged with."""


class NoiseCheck:
    """Checks the noise of one step after the other."""

    def __init__(self) -> None:
        self.steps = 0
        self._squares, self._entries = 0.0, 0
        self._first: list[Tensor] = []
        self._last: list[Tensor] = []

    def step(self, noise: Sequence[Tensor], deviation: float, names: Sequence[str]) -> None:
        """Check one step.

        Parameters
        ----------
        noise : sequence of Tensor
            What was added to the clipped sum of each parameter.
        deviation : float
            σC.
        names : sequence of str
            The names of the parameters.

        Raises
        ------
        NoiseError
            If this is too little noise, or the noise of an earlier step.
        """
        self.steps += 1
        parts = [tensor.detach().flatten() for tensor in noise]
        squares = [float(part.double().square().sum()) / deviation**2 for part in parts]
        self._squares += sum(squares)
        self._entries += sum(len(part) for part in parts)
        likely = ERROR / (self.steps * (self.steps + 1) * (len(parts) + 3))
        checked = [(s, len(part), name) for s, part, name in zip(squares, parts, names, strict=True)]
        for square, entries, name in (*checked, (self._squares, self._entries, "all steps so far")):
            if entries and gammainc(0.5 * entries, 0.5 * square) < likely:
                raise NoiseError(
                    f"the noise on {name} has standard deviation {deviation * sqrt(square / entries):.4g}, but noise_multiplier "
                    f"times max_grad_norm is {deviation:.4g}: something has changed how Opacus adds noise, or has taken it away "
                    "again."
                )
        for earlier in (self._first, self._last):
            norm = sqrt(sum(float(part.double().square().sum()) for part in earlier))
            if norm == 0.0:
                continue
            product = sum(float(a.double() @ b.double()) for a, b in zip(parts, earlier, strict=True))
            if erfc(abs(product) / (deviation * norm) / sqrt(2.0)) < likely:
                raise NoiseError(
                    "the noise is that of an earlier step again: its generator was set back, so that differences of steps show "
                    "the gradients. Do not set the state of the noise generator during training."
                )
        self._last = parts
        self._first = self._first or parts
