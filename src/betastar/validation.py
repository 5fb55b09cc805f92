"""Checks of what people pass in: an error names the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Largest whole number that is taken: 2⁵³.
MOST_WHOLE = 1 << 53
MUST = "{argument} must be {allowed}, got {value}."


class ArgumentError(Exception):
    """What was wrong with an argument.

    `argument` is its Python name. The text has {argument} where this name stands, other names of arguments in braces, and the
    keys of `values` where these stand; so an interface can say it with its own spellings.
    """

    def __init__(self, argument: str, text: str, values: Mapping[str, str] | None = None) -> None:
        super().__init__(argument, text, dict(values or {}))
        self.argument, self.text, self.values = argument, text, dict(values or {})

    def spelled(self, spelling: Callable[[str], str] = str) -> str:
        """The text, with the spelling of each argument's name."""
        return self.text.format_map(_Spelled(spelling, {**self.values, "argument": spelling(self.argument)}))

    def __str__(self) -> str:
        return self.spelled()


class WrongValueError(ArgumentError, ValueError):
    """An argument has a value that is not allowed."""


class WrongTypeError(ArgumentError, TypeError):
    """An argument is of a wrong type, missing, or one too many."""


def wrong(argument: str, text: str) -> WrongValueError:
    """The error that says the argument's name and then the text."""
    return WrongValueError(argument, "{argument} {text}", {"text": text})


class _Spelled(dict[str, str]):
    """Values, and the spelling of every other name."""

    def __init__(self, spelling: Callable[[str], str], values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.spelling = spelling

    def __missing__(self, name: str) -> str:
        return self.spelling(name)


def numbers(
    name: str, value: Any, allowed: str, *, low: float, high: float, open_low: bool = False, open_high: bool = False
) -> Any:
    """A number or an array of numbers within an interval; returned as float, or as a float array that cannot be changed."""
    array = _array(name, value, allowed)
    inside = (array > low if open_low else array >= low) & (array < high if open_high else array <= high)
    if not (np.isfinite(array) & inside).all():
        raise WrongValueError(name, MUST, {"allowed": allowed, "value": _show(value)})
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
        raise WrongValueError(name, MUST, {"allowed": allowed, "value": _show(value)})
    return int(value) if array.ndim == 0 else _frozen(array.astype(np.int64))


def one_whole(name: str, value: Any, low: int = 1, high: int = MOST_WHOLE) -> int:
    """A whole number between two others; an array is refused."""
    allowed = f"a whole number between {low} and {high}"
    if _array(name, value, allowed).ndim:
        raise WrongTypeError(name, MUST, {"allowed": allowed, "value": _show(value)})
    number = int(whole(name, value, low))
    if number > high:
        raise WrongValueError(name, MUST, {"allowed": allowed, "value": _show(value)})
    return number


def seed(value: Any) -> int:
    """A whole number of at least 0, however large."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return int(whole("seed", value, low=0))


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    options = list(allowed)
    if value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise WrongValueError(name, MUST, {"allowed": f"one of {listed}", "value": repr(value)})
    return str(value)


def word(name: str, value: str, allowed: Iterable[str], also_called: Mapping[str, str] | None = None) -> str:
    """One of the words that are allowed; the error suggests the nearest, or what people mean by another word."""
    options = list(allowed)
    if value in options:
        return value
    meant = (also_called or {}).get(value)
    near = [meant] if meant else get_close_matches(str(value), options, 1, 0.4)
    values = {"allowed": ", ".join(options), "value": repr(value), "hint": f" Did you mean {near[0]}?" if near else ""}
    raise WrongValueError(name, "{argument} must be one of {allowed}, got {value}.{hint}", values)


def one(name: str, value: Any) -> Any:
    """Refuse an array where one number is needed; the number itself."""
    if np.ndim(value):
        raise WrongTypeError(name, MUST, {"allowed": "one number", "value": _show(value)})
    return value


def _array(name: str, value: Any, allowed: str) -> NDArray[Any]:
    """A copy that cannot be changed. Decimals and fractions become floats."""
    if isinstance(value, np.ma.MaskedArray):
        raise WrongTypeError(name, "{argument} must be an array without a mask, got {value}.", {"value": _show(value)})
    array = None
    if value is not None and not isinstance(value, bool | str):
        try:
            given = np.asarray(value)
            if given.dtype.kind in "iuf" or (given.dtype.kind == "O" and all(map(_is_number, given.flat))):
                array = np.array(given, dtype=np.float64)
        except Exception:  # a tensor with a gradient, rows of different lengths, a number that is too large
            array = None
    if array is None:
        raise WrongTypeError(name, MUST, {"allowed": allowed, "value": _show(value)})
    if not array.size:
        raise WrongValueError(name, MUST, {"allowed": allowed, "value": "an empty array"})
    return _frozen(array)


def _is_number(value: object) -> bool:
    return isinstance(value, Real | Decimal) and not isinstance(value, bool)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
