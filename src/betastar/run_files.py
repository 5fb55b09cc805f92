"""Files that a run folder and the folder of a training loop of one's own have in common: their names and contents."""

from __future__ import annotations

from collections.abc import Iterable

#: A line for each step that a monitor has watched, and the exposure of single records.
STEPS, LEDGER = "metrics.jsonl", "ledger.csv"
#: The exposure of single records to membership inference.
MEMBERS = "members.csv"
REPLACED, REMOVED = "bayes_security_replaced", "bayes_security_removed"
#: What a monitor or a PrivateTraining says of a training loop of one's own, and the version of its format.
TRAINING, TRAINING_FORMAT = "training.json", 1
#: What has written it.
MONITOR, PRIVATE_TRAINING = "monitor", "private training"


def ledger_text(entries: Iterable[tuple[int, float, float]]) -> str:
    """The content of ledger.csv: the number of each record that was measured, its leakage and its β*."""
    rows = [f"{record},{leakage!r},{beta!r}" for record, leakage, beta in entries]
    return "\n".join(["record,leakage,bayes_security", *rows]) + "\n"


def members_text(entries: Iterable[tuple[int, int, float, float, float]]) -> str:
    """The content of members.csv: each record that was measured, how often, its norm, and its β* if it is replaced or removed."""
    rows = [f"{record},{times},{norm!r},{replaced!r},{removed!r}" for record, times, norm, replaced, removed in entries]
    return "\n".join([f"record,times,norm,{REPLACED},{REMOVED}", *rows]) + "\n"
