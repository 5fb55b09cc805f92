"""Numbers for people are rounded outward: what protects down, what an attacker can do up. Every display goes through here.

A float stands for the shortest decimal that reads back as it (its repr). That decimal is rounded outward, and reading decimals
keeps their order: what was printed, when it is read again, is never on the unsafe side of the number; and 0.95 stays 0.95.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite
from typing import Any

#: Said of a bound that is infinite or missing.
NO_BOUND = "no bound"
#: Significant digits of a calibrated noise, rate or gap; it is searched for to 7.
CALIBRATED = 9
#: Digits enough for every float, with any number of places.
WIDE = Context(prec=800)


def shortened(value: float, digits: int, upwards: bool) -> float:
    """The nearest number with this many significant digits that is not below (not above) the value."""
    way = ROUND_CEILING if upwards else ROUND_FLOOR
    return float(Context(prec=digits, rounding=way).plus(_decimal(value)))


def significant(value: float | None, digits: int = 3, upwards: bool = True) -> str:
    """This many significant digits, rounded up (what an attacker can do) or down (β*)."""
    if value is None or not isfinite(value):
        return NO_BOUND
    return _brief(f"{shortened(value, digits, upwards):.{digits}g}")


def down(value: float, places: int = 4) -> str:
    """This many decimal places, rounded down."""
    return _fixed(value, places, ROUND_FLOOR)


def up(value: float, places: int = 4) -> str:
    """This many decimal places, rounded up."""
    return _fixed(value, places, ROUND_CEILING)


def percent(value: float, places: int = 1, upwards: bool = True) -> str:
    """A share as a percentage, rounded up unless told otherwise."""
    text = _fixed(value, places, ROUND_CEILING if upwards else ROUND_FLOOR, times=100)
    return text if text == NO_BOUND else f"{text} %"


def nearest(value: float | None, digits: int = 4) -> str:
    """An estimate, which has no safe side: this many significant digits, rounded to the nearest."""
    return NO_BOUND if value is None or not isfinite(value) else _brief(f"{value:.{digits}g}")


def nearest_amount(value: float, digits: int = 4) -> str:
    """A measured amount, which has no safe side, without a power of ten: 59,400 for 59397.3, unless it is huge or tiny."""
    rounded = float(f"{value:.{digits}g}") if isfinite(value) else value
    if not isfinite(value) or not (rounded == 0.0 or 1e-4 <= abs(rounded) < 1e15):
        return nearest(value, digits)
    text = f"{Decimal(repr(rounded)):,f}"
    return text.removesuffix(".0")


def nearest_percent(value: float, places: int = 1) -> str:
    """A measured share, which has no safe side, as a percentage, rounded to the nearest."""
    return f"{100.0 * value:.{places}f} %"


def tiny(value: float) -> str:
    """Two digits and a power of ten, rounded up."""
    return f"{shortened(value, 2, True):.1e}" if isfinite(value) else NO_BOUND


def plain(value: Any) -> str:
    """A number with all of its digits, as a person writes it: 20 for 20.0, 1e-5 for 1e-05."""
    return str(value) if isinstance(value, int) else _brief(repr(float(value)).removesuffix(".0"))


def _fixed(value: float, places: int, way: str, times: int = 1) -> str:
    if not isfinite(value):
        return NO_BOUND
    rounded = (times * _decimal(value)).quantize(Decimal(1).scaleb(-places), way, WIDE)
    return f"{rounded if rounded else abs(rounded):f}"


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))


def _brief(text: str) -> str:
    return text.replace("e-0", "e-").replace("e+0", "e+")
