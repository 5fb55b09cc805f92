"""The parameters: what people give, which is an argument in Python, a key in JSON and an option of a command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from betastar.risk import told
from betastar.rounding import plain
from betastar.vocabulary.methods import LITTLE_NOISE, METHODS
from betastar.vocabulary.samplings import SAMPLINGS, SEES
from betastar.vocabulary.threats import THREATS


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
    #: What stands for its value in the help, where the type says too little.
    metavar: str | None = None
    #: There is a --no-… as well.
    negatable: bool = False
    #: What usually helps whoever gave something that is not allowed.
    suggestion: str = ""
    #: The label of its axis, or of its slider on the page.
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
        "Batch size: expected number of records in a batch. With the number of records it makes the sampling rate.",
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
        "Epochs: passes over the training records, instead of steps (with the batch size and the number of records).",
        suggestion="Common values are 1 to 100.",
        label="epochs",
    ),
)
#: What defines a run.
RUN: dict[str, Parameter] = {one.name: one for one in _RUN}

_SAMPLED = (
    Parameter("sampling", "How batches are drawn: {samplings}.", default="poisson", metavar="NAME", label="sampling"),
    Parameter(
        "max_batch_size",
        "With Poisson sampling: of a larger batch, so many records are kept at random (with the number of records).",
        ("--max-batch",),
        suggestion="Common values are 1.1 to 1.5 times the batch size.",
        label="largest batch",
    ),
)
#: How a run was sampled.
SAMPLED: dict[str, Parameter] = {one.name: one for one in _SAMPLED}

_QUESTION = (
    Parameter(
        "opacus",
        "How batch size and number of records make the sampling rate: as Opacus does, 1/⌈records/batch⌉, or batch/records.",
        default="batch/records, and a note where the two differ noticeably",
        negatable=True,
    ),
    Parameter("threat", "The attack, by what the attacker asks: {threats}.", default="membership", metavar="NAME"),
    Parameter(
        "distance",
        "With threat {distance_threats}: the largest distance between the two gradients at a step, in clipping norms, 0 to 2.",
        suggestion="It is measured in clipping norms: 2 is the worst case, 1 a common value.",
        label="largest distance per step, in clipping norms",
        arguments=("distances",),
    ),
    Parameter(
        "records_per_person",
        "With threat {group_threats}: the number of records of a person, all of which are replaced, or left out.",
        suggestion="It is the largest number of records that one person has, as 8.",
        label="records of a person",
        arguments=("records",),
    ),
    Parameter(
        "sees",
        "What the attacker sees: {sees}. The figure for the final model is a heuristic, shown beside the bound.",
        default="updates",
        metavar="NAME",
    ),
    Parameter("method", "How the risk is computed: {methods}.", default="{usual_methods}", metavar="NAME"),
    Parameter(
        "tolerance",
        "Width of the interval of β* that the method certified aims at. From 0.001 on, attribute inference is computed on a "
        "coarse grid, in about a tenth of a second; from 0.1 on, it is bounded within milliseconds, but wider.",
        default=1e-4,
        suggestion="Common values are 1e-4 and, for a quick look, 0.01.",
        label="width of the interval",
    ),
    Parameter(
        "prior",
        "Probability, before the attack, that 'yes' is the right guess.",
        default=0.5,
        suggestion="0.5 is a fair coin.",
        label="probability of “yes” before the attack",
    ),
    Parameter(
        "fpr",
        "False-positive rate at which the TPR is reported (may be repeated).",
        default=(0.01, 0.001),
        metavar="RATE",
        suggestion="Common values are 0.01 and 0.001.",
        label="false-positive rate",
    ),
    Parameter(
        "delta",
        "δ at which ε is reported (may be repeated).",
        default=(1e-5,),
        metavar="DELTA",
        suggestion="Common values are 1e-5, or less than one over the number of records.",
    ),
    Parameter(
        "metric",
        "Report this metric only: {metrics} (may be repeated).",
        default="all",
        metavar="NAME",
        arguments=("metrics",),
    ),
    Parameter(
        "require",
        'Exit with code 1 unless this holds, such as "bayes_security>=0.95" or "tpr<=0.05@fpr=0.01" (may be repeated).',
        metavar="LIMIT",
    ),
    Parameter(
        "target",
        'What must hold, such as "bayes_security>=0.98", "success<=0.51", "tpr<=0.05@fpr=0.01" or "epsilon<=1@delta=1e-5".',
    ),
    Parameter(
        "setting",
        'One setting, such as "noise=3.51,batch=256,records=26048,epochs=20"; "name=…" gives it a name (may be repeated).',
        metavar="FIELDS",
    ),
)

_TRAINING = (
    Parameter("max_grad_norm", "Clipping norm.", ("--clip",)),
    Parameter("learning_rate", "Learning rate.", ("--lr",)),
    Parameter("hidden", "Width of a hidden layer (may be repeated, for several layers)."),
    Parameter("label", "Own table: the column that the model predicts.", former=("--target",), arguments=("target",)),
    Parameter(
        "task",
        "Own table: classification (the label is one of some classes) or regression (the label is a number).",
        default="regression, if the label has more than 20 different numbers",
    ),
    Parameter(
        "label_range",
        "Own table, regression: the range of the label, such as 0:500000, which you know without looking at the records. The "
        "label is scaled by it, and limited to it in training.",
        metavar="LOW:HIGH",
    ),
    Parameter("sensitive", "The sensitive column, whose value the attacker guesses."),
    Parameter("value", "Own table: a value that the sensitive column may have (may be repeated).", arguments=("values",)),
    Parameter("between", "Own table: the range of the sensitive numbers, such as 17:90."),
    Parameter(
        "with",
        "A column that restates the sensitive one, so that the two change together (may be repeated).",
        arguments=("along",),
    ),
    Parameter("drop", "A column that is left out (may be repeated)."),
    Parameter("keep", "Own table: a column that is a feature although it differs in each record (may be repeated)."),
    Parameter(
        "person",
        "Own table: the column that says whose record it is. It is no feature; the risk of a person is reported beside that of a "
        "record.",
    ),
    Parameter("max_records_per_person", "With --person: train on at most so many records of a person, chosen at random."),
    Parameter("public", "Own table, with --gap: a table of public records, which tells how frequent the sensitive values are."),
    Parameter("seeds", "Train with so many seeds, 0, 1, …, each in a folder of its own."),
    Parameter("backend", "The joblib backend for --seeds: loky, threading, dask or ray.", default="loky"),
    Parameter(
        "scope",
        "Whose gradients are measured: batch (those of the batch, an estimate) or dataset (those of all records, slow).",
        default="batch",
    ),
    Parameter("every", "Measure at every k-th step."),
    Parameter(
        "diameter",
        "How the distance between the values is measured: exact (the farthest two), or from above by a ball or by the centroid.",
    ),
    Parameter("approximate", "Measure the paper's approximation as well.", negatable=True),
    Parameter(
        "target_beta",
        "Stop before β* against attribute inference falls below this number; all records are measured.",
    ),
    Parameter(
        "gap",
        "Gap clipping: keep the gradients of the sensitive values at most this far apart at every step, in clipping norms (0 to "
        "2); β* is then proved in advance.",
    ),
    Parameter("target_attribute_beta", "Gap clipping, with the gap that gives this β* against attribute inference."),
    Parameter("resume", "Go on with the run that is in the folder.", negatable=True),
)

_AUDIT = (
    Parameter("games", "How many games are played."),
    Parameter("seed", "Seed of the audit; the same seed gives the same audit.", default="drawn, and reported"),
    Parameter("confidence", "Confidence of the intervals."),
    Parameter("width", "Widest interval of the advantage that is accepted."),
    Parameter("jobs", "Number of processes; -1 for all cores. The result does not depend on it."),
    Parameter(
        "challenge",
        "The record that the games are about: canary (the worst case), the number of a record (with commas: of a person), or "
        "most-exposed (the record that the ledger names first).",
    ),
    Parameter("record", "Number of the record that differs between the replays.", default="some that are drawn"),
    Parameter("ignore", "A promise that is not wanted, such as output (may be repeated).", metavar="PROMISE"),
    Parameter("references", "Number of records, drawn at each step, by which the attacker estimates what the others contribute."),
    Parameter("sample", "Studies and runs: number of training records that are used.", default="all"),
    Parameter("canaries", "Number of canaries. If they are in or out, about half of them are trained on."),
    Parameter("values", "Number of values of a canary, which the attacker guesses.", default="each canary is in or out"),
    Parameter("guesses", "Number of guesses, of which the surest are made.", default="what suits the claim"),
    Parameter("actual_noise", "Noise multiplier that was really run, if it is not what is claimed.", default="the claimed one"),
    Parameter("attacker", "What the attacker sees: updates (every one of them) or weights (the final ones)."),
    Parameter("plot", "File for a figure of the bound and the measured curves: .png, .svg or .pdf."),
    Parameter("log", "With --plot: logarithmic axes, which show rare false alarms."),
    Parameter("into", "Folder of a run, where the result is kept for its report."),
)

_FILES = (
    Parameter("output", "File or folder to write.", ("-o",)),
    Parameter("force", "Write over an existing file."),
    Parameter("json", "Print one JSON object."),
    Parameter("format", "html (one file with everything in it) or md (figures beside it).", default="by the name of --output"),
    Parameter("author", "Who makes the report.", metavar="NAME"),
    Parameter("purpose", "What the report is for.", metavar="TEXT"),
    Parameter("list_records", "List the most exposed records by their index.", former=("--records",)),
    Parameter("export", "Write the page to this file instead of opening it.", metavar="FILE"),
    Parameter("browser", "Open the page in a browser.", negatable=True),
    Parameter("version", "Print the version."),
)
PARAMETERS: dict[str, Parameter] = {one.name: one for one in (*_RUN, *_SAMPLED, *_QUESTION, *_TRAINING, *_AUDIT, *_FILES)}


def parameters_of(argument: str) -> tuple[Parameter, ...]:
    """The parameters that an argument of a Python function may be: the one of this name first."""
    named = [one for one in PARAMETERS.values() if argument in one.arguments]
    return tuple([PARAMETERS[argument], *named] if argument in PARAMETERS else named)


def parameter_of(argument: str) -> Parameter | None:
    """The parameter that an argument of a Python function is."""
    return next(iter(parameters_of(argument)), None)


def filled(text: str) -> str:
    """A text with the words that there are: plug-ins add threats, methods and metrics."""
    slow = [word.name for word in THREATS.values() if word.method == "certified"]
    words = {
        "{threats}": ", ".join(f"{word.name} ({word.question})" for word in THREATS.values()),
        "{distance_threats}": listed([word.name for word in THREATS.values() if "distance" in word.takes]),
        "{group_threats}": listed([word.name for word in THREATS.values() if "records_per_person" in word.optional]),
        "{samplings}": ", ".join(f"{word.name} ({word.summary})" for word in SAMPLINGS.values()),
        "{sees}": listed(f"{name} ({said})" for name, said in SEES.items()),
        "{methods}": listed(METHODS),
        "{usual_methods}": f"exact; certified for {listed([*slow, f'noise below {plain(LITTLE_NOISE)}'])}",
        "{metrics}": listed(told()),
    }
    for placeholder, said in words.items():
        text = text.replace(placeholder, said)
    return text


def listed(words: Iterable[str]) -> str:
    """a, b or c."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
