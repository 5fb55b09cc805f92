"""What a report says of itself: when, by whom and what for it was made, of which data and code, and how good the model is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from betastar.quality import quality_sentence
from betastar.report.facts import Facts


@dataclass(frozen=True)
class Made:
    """Who made a report, when, what for, and at which commit of their code; what is not known is empty."""

    date: str = ""
    author: str = ""
    purpose: str = ""
    commit: str = ""


def quality(facts: Facts) -> str | None:
    """How good the model is on test records, beside what needs no model."""
    if not facts.entries:
        return None
    return f"{quality_sentence(facts.entries[-1], 'the records that it has not seen')}."


def about(facts: Facts, made: Made) -> list[tuple[str, str]]:
    """Date, author, purpose and variant of the report, and fingerprints of data and code, as far as there are any."""
    variant = "internal: some figures depend on the data (betastar report --public leaves them out)"
    if facts.is_public:
        variant = "public: nothing in it depends on the training records"
    rows = [
        ("Date", made.date),
        ("Made by", made.author),
        ("Purpose", made.purpose),
        ("Variant", variant if facts.is_run else ""),
    ]
    rows += [("Run of", facts.run_date), ("Records", f"SHA-256 {facts.fingerprint}" if facts.fingerprint else "")]
    code = f"betastar {version('betastar')}" + (f", commit {made.commit}" if made.commit else "")
    return [(name, text) for name, text in [*rows, ("Code of this report", code)] if text]
