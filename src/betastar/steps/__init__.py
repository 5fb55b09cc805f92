"""Steps of a run: one class a kind of step, with everything that the methods ask of it."""

from betastar.steps.allocation import AllocationStep
from betastar.steps.base import Step
from betastar.steps.fixed_size import FixedSizeStep
from betastar.steps.group import MixtureStep
from betastar.steps.poisson import PoissonStep
from betastar.steps.truncated import CoinStep
from betastar.steps.unequal import UnequalStep

__all__ = ["AllocationStep", "CoinStep", "FixedSizeStep", "MixtureStep", "PoissonStep", "Step", "UnequalStep"]
