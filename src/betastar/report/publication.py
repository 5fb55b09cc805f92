"""The variant of a report that may be published: nothing in it depends on the training records.

What depends on them, and is left out: distances that were measured and every figure that follows from them, the exposure of
single records, how good the model is, how frequent values are, the number of records and of values, fingerprints of the
records, columns that restate the attribute, what was done to columns, audits of real trainings, and the moment at which a budget
ended a run.
What does not, and stays: noise, sampling rate and planned steps, with every bound that follows from them alone; gaps that were
enforced, and a budget's β*, which were fixed before training; names of tables and columns; games on the mechanism.
"""

from __future__ import annotations

from dataclasses import replace

from betastar.report.errors import ReportError
from betastar.report.facts import Facts
from betastar.rounding import plain

#: Parameters of a run that may follow from the number of records, or from when a budget ended it.
COUNTS = ("records", "batch_size", "epochs")
#: What the statement says is left out.
LEFT_OUT = (
    "Whatever depends on the training records: measured distances and the figures that follow from them, the exposure of single "
    "records, accuracy, how many records there are and how frequent values are, fingerprints of the records, audits of "
    "trainings. The internal report has them. The sampling rate is that of the run, one divided by the number of batches of an "
    "epoch: whoever knows the batch size learns the number of records from it to within a batch, which figures by substitution "
    "take as known anyway."
)
#: What a budget has proved, without the number of steps.
PROVED = "Proved: an attacker who wants the secret of any record"


def public(facts: Facts) -> Facts:
    """The facts without what depends on the training records.

    Parameters
    ----------
    facts : Facts
        What an internal report is about.

    Returns
    -------
    Facts
        The facts of the public report. Those of a setting are its own.

    Raises
    ------
    ReportError
        If the run is not finished, or if nothing data-independent says how long it was planned to be.
    """
    if not facts.is_run:
        return replace(facts, is_public=True)
    if not facts.finished:
        raise ReportError("--public needs a finished run: go on with betastar train --resume, or leave it out.")
    if facts.budgeted is not None and facts.planned is None:
        raise ReportError(
            "--public must not tell when the budget ended this run, because that depends on the data, and its folder does not "
            "say how many epochs were planned: train with betastar train --epochs, or leave out --public."
        )
    run = facts.planned or facts.run
    kept = {name: value for name, value in facts.parameters.items() if name not in COUNTS}
    return replace(
        facts,
        run=run,
        title=f"{facts.name}: {run.steps:,} steps of DP-SGD",
        parameters=kept | {"steps": run.steps},
        command=facts.public_command,
        attributes=tuple(replace(one, run=run, values=None) for one in facts.attributes if one.kind == "proved"),
        stopped=None,
        budget=facts.budget and f"{PROVED} faces β* ≥ {plain(facts.budgeted)} (budget fixed in advance).",
        entries=[],
        exposures={},
        restated=(),
        told=(),
        records_per_person=facts.max_records_per_person,
        audits=tuple(audit for audit in facts.audits if audit.kind == "mechanism"),
        shares={},
        fingerprint="",
        is_public=True,
    )
