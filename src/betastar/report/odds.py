"""An attacker who knows how frequent the values of an attribute are: right guesses without and with the model."""

from __future__ import annotations

from betastar.report.facts import Against, Facts
from betastar.rounding import percent, plain
from betastar.threats import Membership

#: Shares that differ from 1 in sum by more than this are not those of all records.
WHOLE = 1e-6
#: A share of right guesses that exceeds another by no more than this is said to be no better.
NO_HELP = 1e-4


def sentences(facts: Facts) -> list[str]:
    """What such an attacker reaches, for each attribute (or for membership, of a setting without one); certified, rounded up."""
    shares = facts.shares
    if len(shares) < 2 or abs(sum(shares.values()) - 1.0) > WHOLE:
        return []
    against = facts.attributes or (() if facts.is_run else (facts.membership,))
    return [_sentence(one, shares) for one in against]


def _sentence(one: Against, shares: dict[str, float]) -> str:
    """A naive attacker guesses the most frequent value; the best one with the model is bounded by the trade-off curve."""
    value = max(shares, key=lambda label: shares[label])
    naive = shares[value]
    most = percent(naive, 2)
    if len(shares) == 2:
        rarer = min(shares, key=lambda label: shares[label])
        reach = float(one.certified.success(shares[rarer]).upper)
        known = f"{rarer} has probability {percent(shares[rarer], 2)} and {value} {percent(1.0 - shares[rarer], 2)}"
    else:
        reach = float(one.certified.success(list(shares.values())).upper)
        known = f"the most frequent of the {len(shares)} values, {value}, has probability {most}"
    word = "about" if one.kind in ("batch", "dataset") else "at most"
    gain = f"{word} {percent(reach, 2)} of the time with it"
    if reach - naive <= NO_HELP:
        gain = f"with it no more than {plain(100 * NO_HELP)} points more often"
    what = "membership" if isinstance(one.threat, Membership) else f"the {one.name} of a record"
    return (
        f"The answers are not equally likely: {known}. An attacker who knows that and guesses {what} is right {most} of the time "
        f"without the model, by always saying {value}, and {gain}."
    )
