"""The audit: play the attacker's game many times, and see that nobody beats the bound.

`mechanism` and `one_run_mechanism` need NumPy alone; `training`, `one_run` and `code` train models and
are loaded when they are used.
"""

from typing import TYPE_CHECKING, Any

from betastar.audit.leakage_estimate import Leakage, leakage
from betastar.audit.mechanism_audit.games import mechanism
from betastar.audit.one_run_audit.claimed_curve import ClaimedCurve
from betastar.audit.one_run_audit.mechanism_games import one_run_mechanism
from betastar.audit.one_run_audit.power import one_run_p_values
from betastar.audit.one_run_audit.verdict import OneRun, RefutedRun, judge_curve, judge_run
from betastar.audit.results import ALARM, Audit, RocPoint

if TYPE_CHECKING:
    from betastar.audit.code_audit.findings import CodeAudit, Finding, ReplayError
    from betastar.audit.code_audit.replays import code
    from betastar.audit.one_run_audit.games import one_run
    from betastar.audit.training_audit.attackers import AuditError
    from betastar.audit.training_audit.games import training
    from betastar.audit.training_audit.trials import Trials

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
    "Trials",
    "code",
    "judge_curve",
    "judge_run",
    "leakage",
    "mechanism",
    "one_run",
    "one_run_mechanism",
    "one_run_p_values",
    "training",
]

#: Names that need torch, and the module of each.
_TRAINED = {
    "CodeAudit": "code_audit.findings",
    "Finding": "code_audit.findings",
    "ReplayError": "code_audit.findings",
    "code": "code_audit.replays",
    "one_run": "one_run_audit.games",
    "AuditError": "training_audit.attackers",
    "Trials": "training_audit.trials",
    "training": "training_audit.games",
}


def __getattr__(name: str) -> Any:
    if name not in _TRAINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_TRAINED[name]}"), name)
