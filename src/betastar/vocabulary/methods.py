"""The methods: ways to compute a risk, and how sure each is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from betastar.vocabulary.threats import THREATS


@dataclass(frozen=True)
class Method:
    """A way to compute a risk. `name` is the argument of `analyze`, the value of --method and of the page's selector."""

    name: str
    #: What it computes, in a few words.
    summary: str
    #: How sure its number is; {between} stands for "β* lies between … and …", {width} for how far these are apart.
    certainty: str
    #: Its ends say little, so people are told the estimate.
    approximate: bool = False
    #: The function of a plug-in's method, from a run and a threat to an Outcome. betastar's own are in `risk/analyze.py`.
    solve: Callable[..., Any] | None = None


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "exact",
            "an integral, with its estimated numerical error",
            "Exact: an integral whose numerical error, {width} here, is estimated but not proved.",
        ),
        Method(
            "certified",
            "proved from both sides",
            "Certified: {between}; both ends are proved, discretisation, tails and rounding included.",
        ),
        Method(
            "affinity",
            "a closed form, proved but wide",
            "Proved by a closed form, but wide: {between}. The other metrics follow from β* alone.",
        ),
        Method(
            "paper",
            "the paper's closed form, an approximation",
            "Approximate: the paper's closed form. With its error term {between}. The other metrics follow from β* alone; "
            "use the method exact to rely on it.",
            approximate=True,
        ),
    )
}
#: Below this noise each point of the exact curve takes seconds.
LITTLE_NOISE = 0.5


def usual_method(threat: str, noise_multiplier: float | None) -> str:
    """The threat's own; but certified for little noise, where the exact curve takes long to read."""
    little = noise_multiplier is not None and noise_multiplier < LITTLE_NOISE
    return "certified" if little else THREATS[threat].method
