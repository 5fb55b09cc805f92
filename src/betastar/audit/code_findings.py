"""The result of a test of training code: which promises are broken, at which step and at which parameter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from betastar.display import Display, Displayed
from betastar.dpsgd import DPSGD
from betastar.rounding import significant

#: What a private training promises. Each finding is about one of these.
PROMISES = {
    "distance": "one record changes the released sum of gradients by at most the promised distance",
    "not drawn": "a record that is not in the batch changes nothing",
    "once": "each record enters a released sum at most once, clipped",
    "mixing": "the gradient of a record depends on this record alone, not on others of its batch",
    "clipping": "each gradient that depends on the records is clipped before an optimizer applies it",
    "noise": "each released sum has the promised noise, which is new at every step and in every training",
    "sampling": "batches are drawn as it is claimed, whatever the records contain",
    "normaliser": "the number by which the sum is divided does not depend on a record",
    "settings": "learning rate, noise and clipping norm do not depend on a record",
    "steps": "the number of steps does not depend on a record",
    "weights": "weights depend on a record through the released sums alone",
    "buffers": "buffers of the model, such as statistics of batch norm, do not depend on a record",
    "output": "what is printed, logged or returned does not depend on a record, except through the released sums",
}


class ReplayError(ValueError):
    """The training cannot be replayed, so that nothing is said about it; the text says why, and what to do."""


@dataclass(frozen=True)
class Finding:
    """A promise that the training breaks.

    Attributes
    ----------
    promise : str
        Which one, a key of `PROMISES`.
    sentence : str
        What was found, for a person.
    step : int or None
        The first step at which it was found, counted from 1; None if it is not about a step.
    parameter : str or None
        The parameter or buffer that it is about; of a distance, the one with the largest share.
    measured, allowed : float or None
        The measured number, and the largest (of noise: the smallest) that is promised.

    Examples
    --------
    >>> from betastar.audit import Finding
    >>> Finding("steps", "The number of steps depends on the record.").promise
    'steps'
    """

    promise: str
    sentence: str
    step: int | None = None
    parameter: str | None = None
    measured: float | None = None
    allowed: float | None = None


@dataclass(frozen=True, repr=False)
class CodeAudit(Displayed):
    """What a replay of training code found.

    Attributes
    ----------
    findings : tuple of Finding
        The promises that are broken, at most one finding for each of them.
    threat : str
        The pair of data sets that were compared, by the threat that they belong to.
    records : tuple of int
        The numbers of the records of which one differs in each replay.
    changes : tuple of str
        What a record was changed to.
    steps : int
        The number of steps that were replayed.
    drawn : int or None
        The number of these steps whose batch had one of these records; None if that is not known.
    largest : float
        The largest difference that was measured, as a share of what is promised. A share far below 1 says that clipping had
        little to do, so that little was tested.
    seed : int
        The seed of the replays.
    notes : tuple of str
        What was not tested, and why.
    run : DPSGD or None
        What the training claims to be, if that was said.

    Examples
    --------
    >>> from betastar import audit
    >>> finding = audit.Finding("noise", "At step 3 the released sum has no noise.", step=3, parameter="0.weight")
    >>> threat = "membership inference (substitution)"
    >>> # As `betastar.audit.code` returns it:
    >>> result = audit.CodeAudit((finding,), threat, (7,), ("another record",), 20, 4, 0.9, 1)
    >>> print(result.sentence)
    Broken: 1 promise is not kept. At step 3 the released sum has no noise.
    >>> result.violated, result.findings[0].parameter
    (True, '0.weight')
    """

    findings: tuple[Finding, ...]
    threat: str
    records: tuple[int, ...]
    changes: tuple[str, ...]
    steps: int
    drawn: int | None
    largest: float
    seed: int
    notes: tuple[str, ...] = ()
    run: DPSGD | None = None

    @property
    def violated(self) -> bool:
        return bool(self.findings)

    @property
    def sentence(self) -> str:
        """The verdict for a person."""
        if not self.findings:
            return (
                f"No promise broken: in {self.steps} steps, replayed on data that differ in one record, the released "
                f"sums differed by at most {significant(self.largest, 2)} of what is promised, and nothing else differed."
            )
        number = len(self.findings)
        what = "1 promise is" if number == 1 else f"{number} promises are"
        return f"Broken: {what} not kept. " + " ".join(finding.sentence for finding in self.findings)

    @property
    def played(self) -> str:
        """What was replayed, for a person."""
        where = "" if self.drawn is None else f" (in {self.drawn} of them the record is in the batch)"
        which = (
            f"record {self.records[0]}" if len(self.records) == 1 else f"one of the records {', '.join(map(str, self.records))}"
        )
        return f"Replayed: {self.threat}, {which} ({'; '.join(self.changes)}), {self.steps} steps{where}, seed {self.seed}."

    def _display(self, brief: bool) -> Display:
        first = "No promise is broken." if not self.findings else f"Broken: {', '.join(f.promise for f in self.findings)}."
        told = [self.sentence] if not self.findings else [first, *(finding.sentence for finding in self.findings)]
        told.append(self.played)
        lines = (*told, *self.notes)
        if brief or not self.findings:
            return Display(lines)
        rows = tuple(
            (
                finding.promise,
                "" if finding.step is None else str(finding.step),
                finding.parameter or "",
                "" if finding.measured is None else significant(finding.measured, 3),
                "" if finding.allowed is None else significant(finding.allowed, 3, upwards=False),
            )
            for finding in self.findings
        )
        return Display(lines, ("promise", "step", "parameter", "measured", "promised"), rows)

    def __repr__(self) -> str:
        verdict = ", ".join(finding.promise for finding in self.findings) or "no promise broken"
        return f"CodeAudit({verdict}; {self.steps} steps)"

    def as_dict(self) -> dict[str, Any]:
        """The object that is printed as JSON."""
        return {
            "kind": "code",
            "violated": self.violated,
            "sentence": self.sentence,
            "findings": [asdict(finding) | {"means": PROMISES[finding.promise]} for finding in self.findings],
            **{name: getattr(self, name) for name in ("threat", "steps", "drawn", "largest", "seed")},
            "records": list(self.records),
            "changes": list(self.changes),
            "notes": list(self.notes),
            "run": None if self.run is None else repr(self.run),
        }
