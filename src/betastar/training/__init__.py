"""Attribute-inference risk while a model trains with Opacus. Needs the extra `betastar[training]`."""

from betastar.training.accountant import BetastarAccountant
from betastar.training.budget import Budget, BudgetExhausted, Proof
from betastar.training.gap import GapClipping, make_attribute_private
from betastar.training.ledger import Exposure, Ledger
from betastar.training.monitor import AttributeMonitor
from betastar.training.noise_check import NoiseError
from betastar.training.purity import GradientError
from betastar.training.records import Records
from betastar.training.restated import RestatedSecretWarning
from betastar.training.sampling_check import SamplingError
from betastar.training.secret import Secret
from betastar.training.step_checks import NotProved
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
    "NoiseError",
    "NotProved",
    "Proof",
    "Records",
    "RestatedSecretWarning",
    "SamplingError",
    "Secret",
    "TensorBoard",
    "Writer",
    "make_attribute_private",
]
