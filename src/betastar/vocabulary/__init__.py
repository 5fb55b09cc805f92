"""Every word that people meet: metrics, threats, methods, figures of quality, and parameters (arguments, options and JSON keys).

The command line, the JSON answers, the page, the targets, the reports and the texts of errors take their words from here.
Whoever adds an entry to METRICS, THREATS or METHODS adds a word to all of them (CONTRIBUTING.md has a recipe for each).
"""

from betastar.quality import QUALITY, QualityFigure, main_figure, quality_sentence
from betastar.risk import BANDS, DIGITS, LEVELS, MEANING, METRICS, Metric, band, decimals, next_band, told
from betastar.vocabulary.json_keys import KEYS
from betastar.vocabulary.methods import LITTLE_NOISE, METHODS, Method, usual_method
from betastar.vocabulary.parameters import PARAMETERS, RUN, SAMPLED, Parameter, filled, listed, parameter_of, parameters_of
from betastar.vocabulary.samplings import SAMPLINGS, SEES, SamplingWord
from betastar.vocabulary.threats import OF_THREATS, THREATS, ThreatWord

__all__ = [
    "BANDS",
    "DIGITS",
    "KEYS",
    "LEVELS",
    "LITTLE_NOISE",
    "MEANING",
    "METHODS",
    "METRICS",
    "OF_THREATS",
    "PARAMETERS",
    "QUALITY",
    "RUN",
    "SAMPLED",
    "SAMPLINGS",
    "SEES",
    "THREATS",
    "Method",
    "Metric",
    "Parameter",
    "QualityFigure",
    "SamplingWord",
    "ThreatWord",
    "band",
    "decimals",
    "filled",
    "listed",
    "main_figure",
    "next_band",
    "parameter_of",
    "parameters_of",
    "quality_sentence",
    "told",
    "usual_method",
]
