"""The threats, as people name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ThreatWord:
    """A threat as people name it: the value of --threat, of the JSON key, and of the page's selector."""

    name: str
    #: What the attacker asks.
    question: str
    #: The subject of the sentence about it, and what is assumed; {distance} stands for the distance.
    attacker: str
    assumed: str
    #: The parameters that belong to it.
    takes: tuple[str, ...] = ()
    #: Those that it has a default for.
    optional: tuple[str, ...] = ()
    #: The method unless another is chosen; certified where the exact curve takes long to read.
    method: str = "certified"
    #: The Python code that makes the threat; {distance!r} stands for the distance. A plug-in has `build` instead.
    python: str = ""
    #: The class of a plug-in's threat; it is called with what the threat takes. betastar's own are made by `answers/settings.py`.
    build: Callable[..., Any] | None = None


#: Parameters that belong to some threats only.
OF_THREATS = ("distance", "records_per_person")
THREATS: dict[str, ThreatWord] = {
    threat.name: threat
    for threat in (
        ThreatWord(
            "membership",
            "which of two records was used?",
            "An attacker who guesses membership",
            "the attacker knows two records and guesses which of them was used",
            optional=("records_per_person",),
            method="exact",
            python="bs.Membership()",
        ),
        ThreatWord(
            "membership-add-remove",
            "was this record used, or none?",
            "An attacker who guesses membership",
            "the attacker guesses whether the record was used, or nothing in its place",
            optional=("records_per_person",),
            method="exact",
            python='bs.Membership("add-remove")',
        ),
        ThreatWord(
            "attribute",
            "which value did the attribute have?",
            "An attacker who guesses between two values of the attribute",
            "the attacker knows the rest of the record, and the clipped gradients of the attribute's values are never farther "
            "apart than {distance} clipping norms at any step",
            takes=("distance",),
            python="bs.AttributeInference(distances={distance!r})",
        ),
    )
}
