"""Targets as people write them."""

from betastar.calibrate import Target

__all__ = ["Wish", "parse"]
Wish = Target
parse = Target.parse
