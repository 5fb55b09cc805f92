"""Checks of what people pass in: an error names the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from betastar.arrays import Real as Array

#: Largest whole number that is taken: 2⁵³.
MOST_WHOLE = 1 << 53


def numbers(
    name: str, value: Any, allowed: str, *, low: float, high: float, open_low: bool = False, open_high: bool = False
) -> Any:
    """A number or an array of numbers within an interval; returned as float or float array."""
    array = _array(name, value, allowed)
    inside = (array > low if open_low else array >= low) & (array < high if open_high else array <= high)
    if not (np.isfinite(array) & inside).all():
        raise ValueError(f"{name} must be {allowed}, got {_show(value)}.")
    return float(array) if array.ndim == 0 else array


def positive(name: str, value: Any) -> Any:
    return numbers(name, value, "a finite number greater than 0", low=0.0, high=np.inf, open_low=True)


def fraction(name: str, value: Any) -> Any:
    return numbers(name, value, "greater than 0 and at most 1", low=0.0, high=1.0, open_low=True)


def probability(name: str, value: Any, *, strict: bool = False) -> Any:
    words = "strictly between 0 and 1" if strict else "between 0 and 1"
    return numbers(name, value, words, low=0.0, high=1.0, open_low=strict, open_high=strict)


def whole(name: str, value: Any, low: int = 1) -> Any:
    """A whole number (or an array of them) of at least `low`; 3.0 counts as whole, 3.5 and True do not.

    Above MOST_WHOLE a float no longer tells neighbouring whole numbers apart.
    """
    array = _array(name, value, f"a whole number of at least {low}")
    allowed = f"a whole number of at least {low}" + (f" and at most {MOST_WHOLE}" if (array > MOST_WHOLE).any() else "")
    whole = np.isfinite(array) & (array >= low) & (array <= MOST_WHOLE)
    if not whole.all() or (array != np.floor(array)).any():
        raise ValueError(f"{name} must be {allowed}, got {_show(value)}.")
    return int(value) if array.ndim == 0 else array.astype(np.int64)


def seed(value: Any) -> int:
    """A whole number of at least 0, however large."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return int(whole("seed", value, low=0))


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    options = list(allowed)
    if value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}.")
    return str(value)


def _array(name: str, value: Any, allowed: str) -> Array:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        raise TypeError(f"{name} must be {allowed}, got {value!r}.")
    if not isinstance(value, Real | Integral):
        kind = np.asarray(value).dtype.kind
        if kind not in "iuf":
            raise TypeError(f"{name} must be {allowed}, got {_show(value)}.")
    return np.asarray(value, dtype=np.float64)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
