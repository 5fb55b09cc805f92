"""betastar: how well a model trained with DP-SGD resists a named attack."""

from betastar.analyze import RegimeWarning, analyze
from betastar.bound import Bound, GaussianFit
from betastar.calibrate import NoNoiseNeeded, Target, calibrate
from betastar.conversions import advantage_from_epsilon, epsilon_from_bayes_security
from betastar.plan import Plan, noise_against_gap, plan
from betastar.risk import Risk
from betastar.run import DPSGD, RateWarning
from betastar.threats import AttributeInference, Candidates, Membership

__version__ = "0.1.0"
__all__ = [
    "DPSGD",
    "AttributeInference",
    "Bound",
    "Candidates",
    "GaussianFit",
    "Membership",
    "NoNoiseNeeded",
    "Plan",
    "RateWarning",
    "RegimeWarning",
    "Risk",
    "Target",
    "advantage_from_epsilon",
    "analyze",
    "calibrate",
    "epsilon_from_bayes_security",
    "noise_against_gap",
    "plan",
]
