"""The audit: play the attacker's game many times, and see that nobody beats the bound.

`mechanism` needs NumPy alone; `training` and `one_run` train models and are loaded when they are used.
"""

from typing import TYPE_CHECKING, Any

from betastar.audit.games import mechanism
from betastar.audit.guesses import OneRun
from betastar.audit.neighbours import Leakage, leakage
from betastar.audit.verdict import ALARM, Audit, RocPoint

if TYPE_CHECKING:
    from betastar.audit.chorus import one_run
    from betastar.audit.retrain import Trials, training
    from betastar.audit.witness import AuditError

__all__ = [
    "ALARM",
    "Audit",
    "AuditError",
    "Leakage",
    "OneRun",
    "RocPoint",
    "Trials",
    "leakage",
    "mechanism",
    "one_run",
    "training",
]

_TRAINED = {"one_run": "chorus", "AuditError": "witness", "Trials": "retrain", "training": "retrain"}


def __getattr__(name: str) -> Any:
    if name not in _TRAINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_TRAINED[name]}"), name)
