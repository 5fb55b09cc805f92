"""The audit: play the attacker's game many times, and check that no attacker beats the bound.

`mechanism` and `one_run_mechanism` need NumPy alone; `training`, `one_run` and `code` train models and
are loaded when they are used.
"""

from typing import TYPE_CHECKING, Any

from betastar.audit.code_findings import CodeAudit, Finding, ReplayError
from betastar.audit.leakage_estimate import Leakage, leakage
from betastar.audit.mechanism_audit import mechanism, one_run_mechanism, one_run_p_values
from betastar.audit.one_run_curve import ClaimedCurve
from betastar.audit.one_run_verdict import OneRun, RefutedRun, judge_curve, judge_run
from betastar.audit.results import ALARM, Audit, RocPoint, Trials

if TYPE_CHECKING:
    from betastar.audit.attackers import AuditError
    from betastar.audit.code_audit import code
    from betastar.audit.code_recording import recorded, released
    from betastar.audit.ladder import TrainingCode, training_code
    from betastar.audit.one_run_games import one_run
    from betastar.audit.training_audit import training

__all__ = [
    "ALARM",
    "Audit",
    "AuditError",
    "ClaimedCurve",
    "CodeAudit",
    "Finding",
    "Leakage",
    "OneRun",
    "RefutedRun",
    "ReplayError",
    "RocPoint",
    "TrainingCode",
    "Trials",
    "code",
    "judge_curve",
    "judge_run",
    "leakage",
    "mechanism",
    "one_run",
    "one_run_mechanism",
    "one_run_p_values",
    "recorded",
    "released",
    "training",
    "training_code",
]

#: Names that need torch, and the module of each.
_TRAINED = {
    "code": "code_audit",
    "one_run": "one_run_games",
    "AuditError": "attackers",
    "training": "training_audit",
    "TrainingCode": "ladder",
    "training_code": "ladder",
    "recorded": "code_recording",
    "released": "code_recording",
}


def __getattr__(name: str) -> Any:
    if name not in _TRAINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_TRAINED[name]}"), name)
