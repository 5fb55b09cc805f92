"""What the keys of the JSON answers mean."""

#: Keys of the JSON answers that are neither a metric nor a parameter.
KEYS = {
    "lower": "Lower end of a bound; null where there is no finite one.",
    "estimate": "The best estimate between the two ends.",
    "upper": "Upper end of a bound; null where there is no finite one.",
    "regret": "How far the Gaussian curve lies above the true one.",
    "smallest_fpr": "Smallest false-positive rate that the Gaussian fit looks at.",
    "sentence": "What the number means for a person.",
    "certainty": "How sure the number is.",
    "assumptions": "What is assumed.",
    "warnings": "What to be careful about.",
    "parameters": "What was asked, with the rate and the steps that follow from it.",
    "python": "Python that repeats it.",
    "command": "The command that repeats it.",
    "advice": "What would reach the target or the next band, certified; null if it is reached.",
    "options": "Changes that reach it, each of them alone.",
    "parameter": "The parameter that is changed.",
    "value": "What it has to be.",
    "instead_of": "What it is.",
    "reached": "The metric that is then proved.",
    "band": "The band of β* that is reached; null for a target of one's own.",
    "found": "The parameter that was left out.",
    "settings": "The answer for each setting of a comparison.",
    "name": "The name of a setting.",
    "axes": "The values of each parameter of a sweep.",
    "points": "How many settings a sweep has.",
}
