"""How a label that is a number becomes the target of a model, and an output of the model a number again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from betastar.arrays import Real


@dataclass(frozen=True)
class LabelScale:
    """The target of the model is (label - mean) / scale.

    Attributes
    ----------
    mean, scale : float
        The middle of the declared range and half of its length; without one, mean and deviation of the training labels.
    low, high : float or None
        The range that was declared. None: `mean` and `scale` were computed from the training records, without noise, and no
        figure of risk covers them.
    """

    mean: float
    scale: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        given = [one for one in (self.mean, self.scale, self.low, self.high) if one is not None]
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) and np.isfinite(one) for one in given)
        if not numbers or self.scale <= 0.0 or (self.low is None) != (self.high is None):
            raise ValueError(f"the scale of a label must be finite numbers with a scale above 0, got {self}")

    @classmethod
    def of_range(cls, low: float, high: float) -> LabelScale:
        """The scale that makes -1…1 of a range."""
        return cls(low / 2.0 + high / 2.0, high / 2.0 - low / 2.0, low, high)

    @classmethod
    def of_labels(cls, labels: Real) -> LabelScale:
        """The scale that gives these labels mean 0 and deviation 1."""
        return cls(float(labels.mean()), float(labels.std()))

    @property
    def declared(self) -> bool:
        """Whether the scale comes from a range that was declared."""
        return self.low is not None

    def limited(self, labels: Real) -> Real:
        """The labels, those beyond the declared range as its nearer end."""
        return labels if self.low is None else np.clip(labels, self.low, self.high)

    def targets(self, labels: ArrayLike) -> Real:
        """The targets of labels, as numbers of double precision."""
        return (np.asarray(labels, dtype=np.float64) - self.mean) / self.scale

    def labels(self, outputs: ArrayLike) -> Real:
        """The labels that targets, or outputs of the model, stand for."""
        return self.mean + self.scale * np.asarray(outputs, dtype=np.float64)
