"""The bands of β*: a word for a number, for people who have no number of their own yet.

They are an example, and whoever shows one says so. 0.98 is a coin that comes up right 51 times in 100 instead of 50, which no
single person would notice; 0.9, the protection that the paper trains for, is 55 times in 100.
"""

from __future__ import annotations

#: Lowest β* of each band, the best band first.
BANDS = ((0.98, "strong"), (0.9, "moderate"), (0.0, "weak"))
#: What a band means for a single record.
MEANING = {
    "strong": "the model tells an attacker next to nothing about a single record.",
    "moderate": "the model gives a determined attacker a small but measurable edge.",
    "weak": "the model gives a determined attacker a clear edge over guessing.",
}
#: The β* at which a band begins, which figures mark.
LEVELS = tuple(sorted(least for least, _ in BANDS if least > 0.0))


def band(beta: float) -> str:
    """The name of the band that a β* is in."""
    return next(name for least, name in BANDS if beta >= least)


def next_band(beta: float) -> tuple[float, str] | None:
    """The lowest β* and the name of the next better band; None in the best one."""
    return next(((least, name) for least, name in reversed(BANDS) if least > beta), None)
