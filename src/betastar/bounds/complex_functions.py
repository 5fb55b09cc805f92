"""exp, exp - 1 and log(1 + w) of complex numbers, without cancellation near 0."""

from __future__ import annotations

import numpy as np

from betastar.arrays import Complex, Real


def expm1(re: Real, im: Real) -> Complex:
    """exp(re + i·im) - 1 without cancellation near 0, by the tangent of im/2: one function instead of a sine and a cosine."""
    gain = np.expm1(re)
    tangent = np.tan(0.5 * im)
    square = tangent * tangent
    share = 2.0 * (gain + 1.0) / (1.0 + square)  # 2·e^re·cos²(im/2)
    out = np.empty(gain.shape, dtype=np.complex128)
    np.multiply(share, tangent, out=out.imag)
    np.subtract(gain, share * square, out=out.real)
    return out


def exp(re: Real, im: Real) -> Complex:
    """exp(re + i·im), in the same way."""
    tangent = np.tan(0.5 * im)
    square = tangent * tangent
    share = np.exp(re) / (1.0 + square)
    out = np.empty(share.shape, dtype=np.complex128)
    np.multiply(2.0 * share, tangent, out=out.imag)
    np.multiply(share, 1.0 - square, out=out.real)
    return out


def log1p(w: Complex) -> Complex:
    """Principal logarithm of 1 + w without cancellation near 0; log(0) becomes a very negative number."""
    a, b = w.real, w.imag
    with np.errstate(over="ignore"):
        square = 2.0 * a + a * a + b * b  # |1 + w|² - 1
    out = np.empty(w.shape, dtype=np.complex128)
    near = 0.5 * np.log1p(np.maximum(square, -0.9))
    far = np.log(np.maximum(np.hypot(1.0 + a, b), 1e-150))
    out.real = np.where(np.abs(square) < 0.5, near, far)
    out.imag = np.arctan2(b, 1.0 + a)
    return out
