"""All figures. Each function draws into an Axes (a new one if none is given) and returns it."""

from betastar.figures.audits import WHO, audit, trials
from betastar.figures.guesses import guesses
from betastar.figures.risks import EARLY, RATES, heatmap, over_steps, tradeoff
from betastar.figures.runs import accuracy, exposure, over_epochs
from betastar.figures.style import (
    ATTRIBUTE,
    BAYES_SECURITY,
    DASHES,
    FORMATS,
    MEMBERSHIP,
    OTHER,
    PROVED,
    axes,
    image,
    inline,
    legend,
    panels,
    plain,
    save,
    seeds,
)

__all__ = [
    "ATTRIBUTE",
    "BAYES_SECURITY",
    "DASHES",
    "EARLY",
    "FORMATS",
    "MEMBERSHIP",
    "OTHER",
    "PROVED",
    "RATES",
    "WHO",
    "accuracy",
    "audit",
    "axes",
    "exposure",
    "guesses",
    "heatmap",
    "image",
    "inline",
    "legend",
    "over_epochs",
    "over_steps",
    "panels",
    "plain",
    "save",
    "seeds",
    "tradeoff",
    "trials",
]
