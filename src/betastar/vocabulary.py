"""Every word that people meet: metrics, threats, methods, and the parameters that are arguments, options and JSON keys.

The command line, the JSON answers, the page, the targets, the reports and the texts of errors take their words from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from betastar.rounding import percent, plain, significant

#: Decimals of a percentage: so many, and more (up to the second number) where these hide the excess over guessing.
DECIMALS, MOST_DECIMALS = 2, 6
#: Significant digits of every other metric.
DIGITS = 4


@dataclass(frozen=True)
class Metric:
    """A number about a risk. `name` is the attribute of Risk, the argument of Target, the JSON key and the value of --metric."""

    name: str
    #: In a table, and where there is little room; {} stands for what it depends on.
    title: str
    short: str
    #: A target that people can copy.
    example: str
    #: What it depends on: the argument of the method of Risk, the JSON key, and the word after @ in a target.
    at: str | None = None
    #: What `at` is unless it is given.
    usual: float | None = None
    #: A large number is safe, so its lower end is the one to rely on; otherwise it is the upper end.
    protects: bool = False
    #: It is a probability that people are told as a percentage.
    share: bool = False
    #: It lies between 0 and 1.
    limited: bool = True
    #: `analyze` and `sweep` tell it; otherwise it is a target only.
    told: bool = True

    @property
    def sign(self) -> str:
        """How a target compares it."""
        return ">=" if self.protects else "<="

    @property
    def safe_end(self) -> str:
        """The end of its bound to rely on."""
        return "lower" if self.protects else "upper"

    def without_model(self, given: float | None = None) -> float:
        """What an attacker reaches who has no model."""
        if self.protects:
            return 1.0
        if given is None or self.at == "delta":
            return 0.0
        return max(given, 1.0 - given) if self.name == "success" else given

    def met(self, value: float, limit: float) -> bool:
        return value >= limit if self.protects else value <= limit

    def rounded(self, value: float | None, given: float | None = None, digits: int = DIGITS) -> str:
        """The number to rely on, rounded to the safe side. It is written like this wherever people see it."""
        if self.share and value is not None:
            return percent(value, decimals(value - self.without_model(given)))
        return significant(value, digits, upwards=not self.protects)


def decimals(excess: float) -> int:
    """Decimals of a percentage that show an excess over guessing."""
    number = DECIMALS
    while number < MOST_DECIMALS and 0.0 < 100.0 * excess < 10.0**-number:
        number += 1
    return number


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("bayes_security", "Bayes security β*", "β*", "bayes_security>=0.95", protects=True),
        Metric("advantage", "advantage", "advantage", "advantage<=0.05"),
        Metric(
            "success",
            "right guesses, prior {}",
            "right guesses",
            "success<=0.51 (or success<=0.75@prior=0.3)",
            at="prior",
            usual=0.5,
            share=True,
        ),
        Metric("tpr", "true positives at FPR {}", "TPR at FPR {}", "tpr<=0.05@fpr=0.01", at="fpr"),
        Metric("epsilon", "ε at δ {}", "ε at δ {}", "epsilon<=1@delta=1e-5", at="delta", limited=False),
        Metric("gdp_mu", "Gaussian μ, fitted down to FPR {}", "μ down to FPR {}", "gdp_mu<=0.3", limited=False),
        Metric("reconstruction", "", "", "reconstruction<=0.1@prior=0.01", at="prior", told=False),
    )
}
#: The metrics that `analyze` and `sweep` tell.
TOLD = tuple(name for name, metric in METRICS.items() if metric.told)


@dataclass(frozen=True)
class ThreatWord:
    """A threat as people name it on the command line, in JSON and on the page."""

    name: str
    #: What the attacker asks.
    question: str
    #: It in Python; {distance} stands for the distance.
    python: str
    #: Who is the subject of the sentence about it, and what is assumed of them.
    attacker: str
    assumed: str


THREATS: dict[str, ThreatWord] = {
    threat.name: threat
    for threat in (
        ThreatWord(
            "membership",
            "which of two records?",
            "bs.Membership()",
            "An attacker who guesses membership",
            "the attacker knows two records and guesses which of them was used",
        ),
        ThreatWord(
            "membership-add-remove",
            "this record or none?",
            'bs.Membership("add-remove")',
            "An attacker who guesses membership",
            "the attacker guesses whether the record was used, or nothing in its place",
        ),
        ThreatWord(
            "attribute",
            "which value?",
            "bs.AttributeInference(distances={distance!r})",
            "An attacker who guesses between two values of the attribute",
            "the attacker knows the rest of the record, and the clipped gradients of the attribute's values are never farther "
            "apart than {distance} clipping norms at any step",
        ),
    )
}
#: Ways to compute a risk.
METHODS = ("exact", "certified", "affinity", "paper")
#: Below this noise each point of the exact curve takes seconds.
LITTLE_NOISE = 0.5


def usual_method(threat: str, noise_multiplier: float | None) -> str:
    """Exact; but certified where the exact curve takes long to read: for attribute inference, and for little noise."""
    little = noise_multiplier is not None and noise_multiplier < LITTLE_NOISE
    return "certified" if little or threat == "attribute" else "exact"


@dataclass(frozen=True)
class Parameter:
    """Something that people give. `name` is the Python argument and the JSON key, and makes the long option."""

    name: str
    help: str
    #: Other spellings of the option, which --help shows, and former ones, which are understood but not shown.
    aliases: tuple[str, ...] = ()
    former: tuple[str, ...] = ()
    #: What it is unless it is given: a value, or words in the help.
    default: Any = None
    #: What usually helps whoever gave something that is not allowed.
    suggestion: str = ""
    #: On an axis.
    label: str = ""
    #: Other names of it in Python.
    arguments: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.option, *self.aliases)

    @property
    def brief(self) -> str:
        """The shortest spelling in words, for a command that is printed to be repeated."""
        return min((one for one in self.spellings if one.startswith("--")), key=len)


_RUN = (
    Parameter(
        "noise_multiplier",
        "Noise multiplier: standard deviation / clipping norm.",
        ("--noise",),
        suggestion="Common values are 0.5 to 10.",
        label="noise multiplier",
    ),
    Parameter(
        "sample_rate",
        "Sampling rate: probability of each record at each step.",
        ("--rate",),
        suggestion="It is the batch size divided by the number of records, as 0.01.",
        label="sampling rate",
    ),
    Parameter(
        "batch_size",
        "Batch size, instead of the sampling rate (with the number of records).",
        ("--batch",),
        suggestion="Common values are 64 to 4096.",
        label="batch size",
    ),
    Parameter(
        "dataset_size",
        "Number of training records.",
        ("--records",),
        suggestion="It is the number of training records, as 50000.",
        label="training records",
    ),
    Parameter("steps", "Number of updates.", suggestion="It is the number of updates in all, as 2000.", label="steps"),
    Parameter(
        "epochs",
        "Epochs, instead of steps (with the batch size and the number of records).",
        suggestion="Common values are 1 to 100.",
        label="epochs",
    ),
)
#: What defines a run.
RUN: dict[str, Parameter] = {one.name: one for one in _RUN}

_QUESTION = (
    Parameter(
        "opacus",
        "With batch size and records: the rate that Opacus takes, 1/⌈records/batch⌉, or batch/records.",
        default="batch/records, and a note where they differ noticeably",
    ),
    Parameter(
        "threat",
        "Who attacks: " + ", ".join(f"{one.name} ({one.question})" for one in THREATS.values()) + ".",
        default="membership",
    ),
    Parameter(
        "distance",
        "Threat attribute: largest distance per step in clipping norms, 0 to 2.",
        suggestion="It is measured in clipping norms: 2 is the worst case, 1 a common value.",
        arguments=("distances",),
    ),
    Parameter(
        "method",
        f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.",
        default=f"exact; certified for attribute or noise below {plain(LITTLE_NOISE)}",
    ),
    Parameter(
        "prior",
        "Probability, before the attack, that the guess 'yes' is right.",
        default=0.5,
        suggestion="0.5 is a fair coin.",
    ),
    Parameter(
        "fpr",
        "False-positive rate to tell the TPR at; repeat it.",
        default=(0.01, 0.001),
        suggestion="Common values are 0.01 and 0.001.",
    ),
    Parameter(
        "delta",
        "δ to tell ε at; repeat it.",
        default=(1e-5,),
        suggestion="Common values are 1e-5, or less than one over the number of records.",
    ),
    Parameter("metric", "Only this metric; repeat it.", default="all", arguments=("metrics",)),
    Parameter("require", 'Exit with 1 unless it holds, as "bayes_security>=0.95" or "tpr<=0.05@fpr=0.01".'),
    Parameter(
        "target", 'What must hold: "bayes_security>=0.98", "success<=0.51", "tpr<=0.05@fpr=0.01", "epsilon<=1@delta=1e-5", …'
    ),
    Parameter("setting", 'One setting, as "noise=3.51,batch=256,records=26048,epochs=20"; a name may be set.'),
)

_TRAINING = (
    Parameter("max_grad_norm", "Clipping norm.", ("--clip",)),
    Parameter("learning_rate", "Learning rate.", ("--lr",)),
    Parameter("hidden", "Width of a hidden layer (repeat it for more)."),
    Parameter("label", "Own table: the column to predict.", former=("--target",)),
    Parameter("sensitive", "The sensitive column."),
    Parameter("value", "Own table: a value of the sensitive column (repeat it).", arguments=("values",)),
    Parameter("between", "Own table: range of the sensitive numbers, as 17:90."),
    Parameter("with", "A column that restates the sensitive one and changes with it (repeat it).", arguments=("along",)),
    Parameter("drop", "A column to leave out (repeat it)."),
    Parameter("public", "Own table, --gap: public records that tell how frequent the sensitive values are."),
    Parameter("data", "Purchase: path or URL of the archive; without it a synthetic stand-in."),
    Parameter("checksum", "Purchase: SHA-256 that the archive must have."),
    Parameter("synthetic_records", "Purchase: size of the stand-in.", former=("--records",), arguments=("records",)),
    Parameter("seeds", "Run seeds 0, 1, … in folders of their own."),
    Parameter("backend", "joblib backend for --seeds: loky, threading, dask or ray.", default="loky"),
    Parameter("scope", "batch (an estimate) or dataset (all records, slow)."),
    Parameter("every", "Measure at every k-th step."),
    Parameter("diameter", "exact, ball or centroid."),
    Parameter("approximate", "Measure the paper's approximation as well."),
    Parameter("target_beta", "Stop before β* against attribute inference falls below this; measures all records."),
    Parameter("gap", "Keep the sensitive values this close at every step (0 to 2): proved in advance."),
    Parameter("target_attribute_beta", "The same, with the gap that gives this β* against attribute inference."),
    Parameter("resume", "Go on with the run in the folder."),
)

_AUDIT = (
    Parameter("games", "How many games are played."),
    Parameter("seed", "Repeats an audit.", default="drawn, and told"),
    Parameter("confidence", "Of the intervals and of the band."),
    Parameter("width", "Widest interval of the advantage that is accepted."),
    Parameter("jobs", "Processes; -1 for all cores. The result is the same."),
    Parameter("challenge", "canary (the worst case), the number of a record, or most-exposed (what the ledger names first)."),
    Parameter("references", "Records by which the attacker knows the others, at each step."),
    Parameter("sample", "Studies, runs: train on so many of the training records.", default="all"),
    Parameter("canaries", "So many; about half of them are trained on."),
    Parameter("attacker", "updates (sees every one) or weights (the final ones)."),
    Parameter("plot", "Figure of bound and measured curve: .png, .svg or .pdf."),
    Parameter("log", "With --plot: logarithmic, for the rare false alarms."),
    Parameter("into", "Folder of a run: keep the result there, for its report."),
)

_FILES = (
    Parameter("output", "File or folder to write.", ("-o",)),
    Parameter("force", "Write over an existing file."),
    Parameter("json", "Print one JSON object."),
    Parameter("format", "html (one file with everything in it) or md (figures beside it).", default="by the name of --output"),
    Parameter("list_records", "List the most exposed records by their index.", former=("--records",)),
    Parameter("quick", "Minutes instead of an hour: one seed, few epochs."),
    Parameter("port", "Port; the next free one is taken if it is busy."),
    Parameter("browser", "Open the page in a browser."),
    Parameter("version", "Print the version."),
)
PARAMETERS: dict[str, Parameter] = {one.name: one for one in (*_RUN, *_QUESTION, *_TRAINING, *_AUDIT, *_FILES)}

_ARGUMENTS = {name: one for one in PARAMETERS.values() for name in (*one.arguments, one.name)}


def parameter_of(argument: str) -> Parameter | None:
    """The parameter that an argument of a Python function is."""
    return _ARGUMENTS.get(argument)


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
    "found": "The parameter that was left out.",
    "settings": "The answer for each setting of a comparison.",
    "name": "The name of a setting.",
    "axes": "The values of each parameter of a sweep.",
    "points": "How many settings a sweep has.",
}
