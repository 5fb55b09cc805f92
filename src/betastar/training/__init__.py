"""Attribute-inference risk while a model trains with Opacus. Needs the extra `betastar[training]`."""

from betastar.training.accountant import BetastarAccountant
from betastar.training.budget import Budget, BudgetExhausted, Proof
from betastar.training.gap import GapClipping, make_attribute_private
from betastar.training.ledger import Exposure, Ledger
from betastar.training.monitor import AttributeMonitor
from betastar.training.purity import GradientError
from betastar.training.records import Records
from betastar.training.secret import Secret
from betastar.training.writers import JsonLines, TensorBoard, Writer

__all__ = [
    "AttributeMonitor",
    "BetastarAccountant",
    "Budget",
    "BudgetExhausted",
    "Exposure",
    "GapClipping",
    "GradientError",
    "JsonLines",
    "Ledger",
    "Proof",
    "Records",
    "Secret",
    "TensorBoard",
    "Writer",
    "make_attribute_private",
]
