"""Private training with a guarantee, and measurements beside loops of Opacus. Needs the extra `betastar[training]`.

Names that belong to Opacus are loaded when they are asked for, so that `PrivateTraining` works without it.
"""

import sys
from typing import TYPE_CHECKING, Any

from betastar.groups import Protection
from betastar.training.budget import Budget, BudgetExhausted, MembershipProof, NotProved, Proof
from betastar.training.gradients.side_effects import GradientError
from betastar.training.ledger import Exposure, Ledger
from betastar.training.measurement import AttributeMeasurement
from betastar.training.members import MemberExposure, MembershipLedger
from betastar.training.private_training import Guarantee, PrivateTraining, Step
from betastar.training.records import NextTokenLoss, Records, by_name
from betastar.training.secrets.secret import Secret
from betastar.training.secrets.tables import RestatedSecretWarning
from betastar.training.secrets.texts import TextField
from betastar.training.tune import Tuned, tune
from betastar.training.writers import JsonLines

if TYPE_CHECKING:
    from betastar.training.opacus.accountant import BetastarAccountant
    from betastar.training.opacus.membership_monitor import MembershipMonitor
    from betastar.training.opacus.monitor import AttributeMonitor
    from betastar.training.opacus.samplers import ShufflingWarning, private_loader

#: The module of each name that belongs to Opacus.
_OF_OPACUS = {
    "AttributeMonitor": "monitor",
    "MembershipMonitor": "membership_monitor",
    "BetastarAccountant": "accountant",
    "ShufflingWarning": "samplers",
    "private_loader": "samplers",
}


if "opacus" in sys.modules:  # so that PrivacyEngine(accountant="betastar") works
    import betastar.training.opacus  # noqa: F401


def __getattr__(name: str) -> Any:
    if name not in _OF_OPACUS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"betastar.training.opacus.{_OF_OPACUS[name]}"), name)


__all__ = [
    "AttributeMeasurement",
    "AttributeMonitor",
    "BetastarAccountant",
    "Budget",
    "BudgetExhausted",
    "Exposure",
    "GradientError",
    "Guarantee",
    "JsonLines",
    "Ledger",
    "MemberExposure",
    "MembershipLedger",
    "MembershipMonitor",
    "MembershipProof",
    "NextTokenLoss",
    "NotProved",
    "PrivateTraining",
    "Proof",
    "Protection",
    "Records",
    "RestatedSecretWarning",
    "Secret",
    "ShufflingWarning",
    "Step",
    "TextField",
    "Tuned",
    "by_name",
    "private_loader",
    "tune",
]
