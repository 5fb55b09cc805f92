"""Bound: a number that comes as (lower, estimate, upper)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Any

import numpy as np

from betastar.rounding import plain, significant


@dataclass(frozen=True)
class Bound:
    """lower ≤ truth ≤ upper, as far as the method proves it, and the best guess between them.

    Rely on the end that is not too optimistic: `lower` for Bayes security, `upper` for advantage, success, TPR, δ, ε and μ. A
    heuristic has no ends: both are nan, and no target is met by it.
    `float(bound)` is the estimate, for plots and arithmetic: a bound does not know whether its lower or its upper end is the safe
    one. Of a sweep, whose ends are arrays, it raises a TypeError.

    Parameters
    ----------
    lower : float or array
        The lower end; an array for a sweep.
    estimate : float or array
        The best guess.
    upper : float or array
        The upper end.

    Examples
    --------
    >>> import betastar as bs
    >>> bound = bs.Bound(0.25, 0.5, 0.75)
    >>> 0.3 in bound, bound.width
    (True, 0.5)
    >>> float(bound)
    0.5
    """

    lower: Any
    estimate: Any
    upper: Any

    @property
    def width(self) -> Any:
        return self.upper - self.lower

    def __contains__(self, value: object) -> bool:
        number: Any = value
        return bool(np.all((self.lower <= number) & (number <= self.upper)))

    def __float__(self) -> float:
        """The estimate. It is not the number to rely on, which is `lower` for β* and `upper` for what an attacker can do."""
        if np.ndim(self.estimate):
            raise TypeError(
                f"float() needs one bound, but this one is a sweep of shape {np.shape(self.estimate)}: take its arrays, lower, "
                "estimate and upper."
            )
        return float(self.estimate)

    def without_ends(self) -> Bound:
        """The estimate alone."""
        nothing = np.full(np.shape(self.estimate), nan) if np.ndim(self.estimate) else nan
        return replace(self, lower=nothing, upper=nothing)

    def complement(self) -> Bound:
        """1 - this."""
        return Bound(1.0 - self.upper, 1.0 - self.estimate, 1.0 - self.lower)

    def __str__(self) -> str:
        """Six digits, the ends rounded outwards."""
        if np.ndim(self.estimate):
            return repr(self)
        if np.isnan(self.lower) and np.isnan(self.upper):
            return f"{self.estimate:.6g} (a heuristic, not a bound)"
        low, high = (
            significant(end, 6, upwards) if isfinite(end) else str(end)
            for end, upwards in ((self.lower, False), (self.upper, True))
        )
        return f"{self.estimate:.6g} [{low}, {high}]"


@dataclass(frozen=True)
class GaussianFit(Bound):
    """μ of the Gaussian curve that lies above the trade-off curve wherever both error rates are at least `smallest_fpr`.

    Parameters
    ----------
    lower : float or array
        The lower end of μ.
    estimate : float or array
        The best guess of μ.
    upper : float or array
        The upper end of μ.
    regret : float or array
        By how much the Gaussian overstates the success of some attacker, at the worst prior; 0 is a perfect fit.
    smallest_fpr : float or array
        The smallest error rate that the fit covers.

    Examples
    --------
    >>> import betastar as bs
    >>> fit = bs.analyze(bs.DPSGD(noise_multiplier=4.0, sample_rate=0.01, steps=500)).gdp_mu
    >>> fit.smallest_fpr, fit.lower <= fit.upper
    (1e-05, True)
    """

    regret: Any
    smallest_fpr: Any

    def __str__(self) -> str:
        return f"{super().__str__()}, down to FPR {plain(self.smallest_fpr)}" if np.ndim(self.estimate) == 0 else repr(self)


def stack(bounds: list[Bound], shape: tuple[int, ...]) -> Bound:
    """Bounds of the runs of a sweep as one bound of arrays; a single one as it is."""
    if shape == ():
        return bounds[0]

    def join(field: str) -> Any:
        return np.array([getattr(bound, field) for bound in bounds]).reshape(shape)

    first = bounds[0]
    if isinstance(first, GaussianFit):
        floors = {bound.smallest_fpr for bound in bounds if isinstance(bound, GaussianFit)}
        floor = first.smallest_fpr if len(floors) == 1 else join("smallest_fpr")
        return GaussianFit(join("lower"), join("estimate"), join("upper"), join("regret"), floor)
    return Bound(join("lower"), join("estimate"), join("upper"))
