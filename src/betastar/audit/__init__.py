"""The audit: play the attacker's game, replay training code, and see that nobody beats the bound.

`rungs` has the audits, `evidence` what an attacker sees, `verdict` what that proves. `mechanism` and `one_run_mechanism` need
NumPy alone; the others train models and are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from betastar.audit.common import ALARM, AuditError
from betastar.audit.rungs.mechanism import mechanism, one_run_mechanism
from betastar.audit.verdict.games import Audit, Games, RocPoint
from betastar.audit.verdict.leakage import Leakage, leakage
from betastar.audit.verdict.one_run import ClaimedCurve, OneRun, judge_run

if TYPE_CHECKING:
    from betastar.audit.evidence.recorder import recorded, released
    from betastar.audit.rungs.games import games
    from betastar.audit.rungs.ladder import TrainingCode, training_code
    from betastar.audit.rungs.one_run import one_run
    from betastar.audit.rungs.replay import replay
    from betastar.audit.verdict.replay import Finding, Replay

#: Names that need torch, and the module of each.
_TRAINED = {
    **dict.fromkeys(("recorded", "released"), "evidence.recorder"),
    **dict.fromkeys(("TrainingCode", "training_code"), "rungs.ladder"),
    **dict.fromkeys(("Finding", "Replay"), "verdict.replay"),
    **{name: f"rungs.{name}" for name in ("games", "one_run", "replay")},
}
__all__ = ["ALARM", "Audit", "AuditError", "ClaimedCurve", "Finding", "Games", "Leakage", "OneRun", "Replay", "RocPoint"]
__all__ += ["TrainingCode", "games", "judge_run", "leakage", "mechanism", "one_run", "one_run_mechanism", "recorded", "released"]
__all__ += ["replay", "training_code"]


def __getattr__(name: str) -> Any:
    if name not in _TRAINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_TRAINED[name]}"), name)
