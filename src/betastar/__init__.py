"""betastar: how well a model trained with DP-SGD resists a named attack."""

from betastar import heuristics as heuristics
from betastar.analyze import RegimeWarning, ToleranceWarning, analyze
from betastar.calibrate import NoNoiseNeeded, Plan, Target, calibrate, plan
from betastar.dpsgd import DPSGD, RateWarning
from betastar.groups import GroupPlan, calibrate_groups
from betastar.risk import Bound, GaussianFit, Risk, advantage_from_epsilon, epsilon_from_bayes_security
from betastar.threats import AttributeInference, Membership
from betastar.tuning import BestOf, Trials, best_of

__version__ = "0.1.0"
__all__ = [
    "DPSGD",
    "AttributeInference",
    "BestOf",
    "Bound",
    "GaussianFit",
    "GroupPlan",
    "Membership",
    "NoNoiseNeeded",
    "Plan",
    "RateWarning",
    "RegimeWarning",
    "Risk",
    "Target",
    "ToleranceWarning",
    "Trials",
    "advantage_from_epsilon",
    "analyze",
    "best_of",
    "calibrate",
    "calibrate_groups",
    "epsilon_from_bayes_security",
    "plan",
]
