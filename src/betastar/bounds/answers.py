"""What a trade-off curve answers at thresholds of the privacy loss."""

from __future__ import annotations

from typing import NamedTuple

from betastar.arrays import Real


class Answers(NamedTuple):
    """At each threshold: H_{e^τ}(P‖Q), 1 - H, their error; Q(L > τ), its error, e^τ·Q(L > τ); the density of L under Q."""

    stick: Real
    overlap: Real
    error: Real
    mass: Real
    mass_error: Real
    hit: Real
    density: Real
