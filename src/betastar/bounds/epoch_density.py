r"""Random allocation: the density of the privacy loss of one epoch, by an integral over one frequency (theory, section 15).

A record is in one of t batches, drawn uniformly. With s = 1/σ and independent y_i ~ N(0, s²), one for each batch, the
likelihoods of the two worlds against "no record" are (1/t)·Σ e^{y_i - s²/2} and (1/t)·Σ e^{-y_i - s²/2} (add/remove: 1). The
loss exceeds τ where

    W = Σ sinh(y_i - τ/2) > 0   (substitution),        W = Σ e^{y_i - s²/2} - t·e^τ > 0   (add/remove),

a sum of independent variables, and the first world is the mean over which y_i has the mean s². So its density at τ is

    substitution: ½·E[Σ cosh(y_j - τ/2)·δ(W)] = (1/2π)∫ (D₁·φ^{t-1} + (t-1)·φ₁·D₀·φ^{t-2}) du/u,
        D = -(i/2)·E[(y - mean)/s²·e^{iuw}] = (u/2)·E[cosh(y - τ/2)·e^{iuw}] by integration by parts,
    add/remove: e^τ·t·E[δ(W)] = (1/2π)∫ e^τ·t·φ₁·φ^{t-1}·e^{-iu·t·e^τ} du,

where w is one term of the sum, φ = E[e^{iuw}], and the index 1 means that its y has the mean s². Two paths make the integrals
short:

- y runs above the real line, where e^{iuw} decays twice exponentially: a fixed number of nodes serves every u, and for
  substitution every τ, as τ only shifts the Gaussian weights: all of them come from one product of matrices;
- u runs on a ray that leans towards the side on which e^{iuW} decays; its logarithm is at equal steps, which sees every scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, expm1, floor, inf, log, log1p, pi, sinh, sqrt

import numpy as np

from betastar.arrays import Complex, Real
from betastar.exact.transform import expm1 as complex_expm1
from betastar.exact.transform import log1p as complex_log1p

#: Step in y as a share of the distance to where the integrand grows; steps of the logarithm of u for s ≤ 1, and above.
DENSITY, STEP, COARSE_STEP = 0.15, 0.035, 0.05
#: Largest heights of the path of y above the real line (also in units of s), and by how much u leans.
HEIGHT, HEIGHT_OF_LITTLE, LEAN = 0.5 * pi, 1.2, 0.45
#: The same on the side of losses below 0 where the law is nearly Gaussian there: towards the other side.
LEFT_LEAN = -0.2
#: Deviations beyond which nodes in y have no weight, and which all losses together stay within.
REACH, FAR = 9.5, 8.7
#: Logarithms: of what is left out at the smallest frequencies, and of φ^t where the largest ones end.
NEGLIGIBLE, DEAD, LOST_IN_ROUNDING = -38.0, -45.0, -33.0
#: Add/remove: Σ(w - 1) instead of Σw keeps more digits while frequencies are small.
SMALL_SPREAD, MODERATE_SPREAD, MANY_BATCHES = 0.3, 1.2, 100
#: Losses that are worked on at once: bounds the memory.
TOGETHER = 512
#: Where the lower end of the law is nearly Gaussian: FAR deviations are less than this.
GAUSSIAN_LEFT = 1.3


@dataclass(frozen=True)
class Frequencies:
    """u on a ray, and e^{iuw} - 1 for each u (rows) and each node of y (columns)."""

    u: Complex
    turned: Complex


@dataclass(frozen=True)
class EpochDensity:
    """Density of the loss of one epoch of at least two batches. mirrored: substitution; otherwise add/remove."""

    batches: int
    noise: float
    mirrored: bool
    density: float = DENSITY

    @property
    def step(self) -> float:
        return STEP if self.spread <= 1.0 else COARSE_STEP

    @property
    def spread(self) -> float:
        """s: the standard deviation of each y."""
        return 1.0 / self.noise

    @cached_property
    def _variance(self) -> float:
        """Of the mean of the terms of W at τ = 0, for few deviations."""
        square = min(self.spread**2, 60.0)
        return (4.0 * sinh(square) if self.mirrored else expm1(square)) / self.batches

    @cached_property
    def farthest(self) -> tuple[float, float]:
        """Losses -a and b that the law hardly leaves: under the second world to the left, under the first one to the right.

        To the right, either a sum of many deviations or one that stands out; the loss is not larger than that of the largest y
        (substitution: and the mean of all, as a geometric mean is below the arithmetic one). To the left, by Chernoff.
        """
        s, t = self.spread, self.batches
        alone = np.linspace(0.0, FAR, 200)
        together = np.sqrt(np.maximum(FAR**2 - alone**2, 0.0)) * sqrt(self._variance * (t - 1) / t)
        exponent = np.maximum(0.5 * s * s + alone * s, -0.5 * s * s + np.sqrt(alone**2 + 2.0 * log(t)) * s)
        jump = np.log1p(np.expm1(exponent) / t)
        mean = FAR * s / sqrt(t)
        largest = max(s * s + FAR * s, sqrt(FAR**2 + 2.0 * log(t)) * s)
        if self.mirrored:
            jump = jump - np.log1p(np.expm1(-exponent - s * s) / t)
            right = min(1.02 * float((together + jump).max()), largest + s * s / t + mean)
            return right, right
        right = min(1.02 * float((together + jump).max()), largest - 0.5 * s * s)
        return self._farthest_left(), right

    def _farthest_left(self) -> float:
        """Add/remove: the a with Pr[mean likelihood < e^{-a}] ≤ min over λ of (e^{λe^{-a}}·E[e^{-λX}])^t = e^{-FAR²/2}."""
        s, t = self.spread, self.batches
        y = s * np.linspace(-REACH - s, REACH, 600 + 20 * ceil(s))
        weights = np.exp(-0.5 * (y / s) ** 2)
        weights /= weights.sum()
        largest = max(s * s + (REACH + s) * s, -log(s)) + 4.0
        rates = np.exp(np.arange(-0.5 * log(t) - log(s) - 5.0 - s * s, largest, 0.1))

        def shares(likelihoods: Real) -> Real:
            """(FAR²/2t + log E[e^{-λX}])/λ, of the likelihoods X or of X - 1."""
            exponents = np.log(weights) - np.multiply.outer(rates, likelihoods)
            most = exponents.max(axis=1)
            return (0.5 * FAR**2 / t + most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))) / rates

        least = -float(shares(np.exp(y - 0.5 * s * s)).min())
        return -log(least) if least < 0.5 else -log1p(-float(shares(np.expm1(y - 0.5 * s * s)).min()))

    @property
    def _left(self) -> float:
        """By how much the mean likelihood falls below 1, at most, while its law is nearly Gaussian there."""
        return 1.03 * FAR * sqrt(self._variance)

    @cached_property
    def _centred(self) -> bool:
        """Add/remove: whether 1 is taken from each term of W."""
        little = self.spread <= SMALL_SPREAD or (self.spread <= MODERATE_SPREAD and self.batches >= MANY_BATCHES)
        return not self.mirrored and (little or self._left < GAUSSIAN_LEFT)

    @cached_property
    def _leans(self) -> tuple[float, float, float]:
        """Height of the path of y, and by how much u leans for losses above 0 and below."""
        height = min(HEIGHT_OF_LITTLE * self.spread, HEIGHT)
        lean = min(LEAN, 0.6 * height)
        left = max(LEFT_LEAN, -0.3 * height) if not self.mirrored and self._left < GAUSSIAN_LEFT else lean
        return height, lean, left

    @cached_property
    def _nodes(self) -> tuple[float, Complex]:
        """Step and nodes: of y - τ/2 (substitution), or of y."""
        height, lean, _ = self._leans
        s = self.spread
        width = self.density * (height - lean if s > 1.0 else height)
        low, high = -REACH * s - (0.5 * self.farthest[1] if self.mirrored else 0.0), s * s + REACH * s
        return width, width * np.arange(floor(low / width), ceil(high / width) + 1) + 1j * height

    @cached_property
    def _terms(self) -> Complex:
        """w at each node: its part that depends on y."""
        _, y = self._nodes
        if self.mirrored:
            return np.sinh(y)
        exponent = y - 0.5 * self.spread**2
        return complex_expm1(exponent.real, exponent.imag) if self._centred else np.exp(exponent)

    def _weights(self, taus: Real, mean: float) -> tuple[Complex, Complex]:
        """Weights of the nodes (rows) for y ~ N(mean, s²), at each τ (columns), and (y - mean)/s²."""
        width, nodes = self._nodes
        y = nodes[:, None] + (0.5 * taus if self.mirrored else 0.0 * taus) - mean
        z = y / self.spread
        return width / (sqrt(2.0 * pi) * self.spread) * np.exp(-0.5 * z * z), y / self.spread**2

    def _turned(self, u: Complex) -> Complex:
        exponent = 1j * np.multiply.outer(u, self._terms)
        size = np.clip(exponent.real, -700.0, 300.0)
        return complex_expm1(size, np.where(size < -50.0, 0.0, exponent.imag))

    def _ray(self, lean: float, centred: bool) -> Frequencies:
        """Frequencies from where the integrand is NEGLIGIBLE to where φ^t is dead. centred: as W is with its mean at τ = 0."""
        s, t, far = self.spread, self.batches, self.farthest[1]
        size = 0.5 * s * s + max(s * s, 0.5 * far) if self.mirrored else far
        first = NEGLIGIBLE - log(t) - size - log(-expm1(-far))
        every = first - NEGLIGIBLE - 8.0 + 0.5 * np.arange(500)
        weights, _ = self._weights(np.zeros(1), 0.0)
        last = inf
        for some in np.split(every, 10):
            u = np.exp(some - 1j * lean)
            fallen = t * complex_log1p(self._turned(u) @ weights)[:, 0].real
            if self._centred and not centred:
                fallen = fallen + t * (1j * u).real
            dead = fallen < max(DEAD, t * LOST_IN_ROUNDING)
            if dead.any():
                last = float(some[np.argmax(dead)])
                break
        count = ceil((min(last, float(every[-1])) - first) / self.step) // 2 * 2 + 2
        u = np.exp(first + self.step * np.arange(count) - 1j * lean)
        return Frequencies(u, self._turned(u))

    @cached_property
    def _right(self) -> Frequencies:
        return self._ray(self._leans[1], False)

    @cached_property
    def _left_side(self) -> Frequencies:
        return self._ray(self._leans[2], self._left < GAUSSIAN_LEFT)

    def at(self, taus: Real, first: bool = True) -> tuple[Real, Real]:
        """The density at each τ, and the same with twice the step in u.

        first: under the first world, for τ ≥ 0; otherwise (add/remove) under the second one, for τ ≤ 0.
        """
        values, coarse = np.empty((2, len(taus)))
        for start in range(0, len(taus), TOGETHER):
            some = slice(start, start + TOGETHER)
            integrand = self._symmetric(taus[some]) if self.mirrored else self._one_sided(taus[some], first)
            even, odd = integrand[::2].sum(axis=0).real, integrand[1::2].sum(axis=0).real
            values[some], coarse[some] = self.step / pi * (even + odd), 2.0 * self.step / pi * even
        return values, coarse

    def _symmetric(self, taus: Real) -> Complex:
        t, s, number = self.batches, self.spread, len(taus)
        plain, slope = self._weights(taus, 0.0)
        moved, moved_slope = self._weights(taus, s * s)
        columns = np.concatenate([plain, moved, -0.5j * slope * plain, -0.5j * moved_slope * moved], axis=1)
        sums = self._right.turned @ columns
        phi, phi_moved, d, d_moved = (sums[:, i * number : (i + 1) * number] for i in range(4))
        power = complex_log1p(phi)
        return d_moved * np.exp((t - 1) * power) + (t - 1) * (1.0 + phi_moved) * d * np.exp((t - 2) * power)

    def _one_sided(self, taus: Real, first: bool) -> Complex:
        t, s = self.batches, self.spread
        ray = self._right if first else self._left_side
        zero = np.zeros(1)
        means = (0.0, s * s) if first else (0.0,)
        powers = complex_log1p(ray.turned @ np.concatenate([self._weights(zero, mean)[0] for mean in means], axis=1))
        power = (t - 1) * powers[:, 0] + powers[:, 1] if first else t * powers[:, 0]
        threshold = t * (np.expm1(taus) if self._centred else np.exp(taus))
        exponent = power[:, None] - 1j * np.multiply.outer(ray.u, threshold)
        turned = np.exp(np.minimum(exponent.real, 300.0) + 1j * exponent.imag)
        return np.multiply.outer(ray.u, t * np.exp(taus)) * turned
