"""Attribute-inference risk while a model trains with Opacus. Needs the extra `betastar[training]`."""

from betastar.training.attribute_privacy import make_attribute_private
from betastar.training.batch_samplers import BallsInBinsSampler, FixedSizeSampler, TruncatedPoissonSampler, private_loader
from betastar.training.budget import Budget, BudgetExhausted, Proof
from betastar.training.checks.sampling import SamplingError
from betastar.training.checks.step_checks import NoiseError, NotProved
from betastar.training.gap_clipping import GapClipping
from betastar.training.gradients.side_effects import GradientError
from betastar.training.ledger import Exposure, Ledger
from betastar.training.monitor import AttributeMonitor
from betastar.training.next_token_loss import NextTokenLoss
from betastar.training.opacus.accountant import BetastarAccountant
from betastar.training.opacus.samplers import ShufflingWarning
from betastar.training.records import Records, by_name
from betastar.training.secrets.secret import Secret
from betastar.training.secrets.tables import RestatedSecretWarning
from betastar.training.secrets.text_tokens import TextField
from betastar.training.writers import JsonLines, TensorBoard, Writer

__all__ = [
    "AttributeMonitor",
    "BallsInBinsSampler",
    "BetastarAccountant",
    "Budget",
    "BudgetExhausted",
    "Exposure",
    "FixedSizeSampler",
    "GapClipping",
    "GradientError",
    "JsonLines",
    "Ledger",
    "NextTokenLoss",
    "NoiseError",
    "NotProved",
    "Proof",
    "Records",
    "RestatedSecretWarning",
    "SamplingError",
    "Secret",
    "ShufflingWarning",
    "TensorBoard",
    "TextField",
    "TruncatedPoissonSampler",
    "Writer",
    "by_name",
    "make_attribute_private",
    "private_loader",
]
