"""Numbers for people are rounded to the safe side: β* down, what an attacker can do up."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context
from math import ceil, floor


def down(value: float, digits: int = 4) -> str:
    return f"{floor(value * 10**digits + 1e-9) / 10**digits:.{digits}f}"


def up(value: float, digits: int = 4) -> str:
    return f"{ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def percent(value: float, digits: int = 1) -> str:
    """A share, rounded up."""
    return f"{up(100.0 * value, digits)} %"


def tiny(value: float) -> str:
    """Two digits and a power of ten, rounded up."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(float(value))):.1e}"
