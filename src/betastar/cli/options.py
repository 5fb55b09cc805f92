"""Options that several commands share, and errors in the spelling that the person used.

The long option is the argument in Python; short spellings are aliases.
"""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from betastar.analyze import METHODS
from betastar.certified.enclosure import EFFORTS
from betastar.dpsgd import SAMPLINGS
from betastar.risk import METRICS
from betastar.validation import ArgumentError, WrongValueError

#: The threats, by what the attacker asks.
THREATS = {
    "membership": "which of two records was used?",
    "membership-add-remove": "was this record used, or none?",
    "attribute": "which value did the attribute have?",
}
#: The metrics that `analyze` and `sweep` report.
TOLD = tuple(name for name, metric in METRICS.items() if metric.told)
#: How many models are tried.
TRIALS_LAWS = ("fixed", "poisson", "geometric")
#: What a command takes unless the person gives it.
TOLERANCE, PRIOR = 1e-4, 0.5
FPR: Any = (0.01, 0.001)
DELTA: Any = (1e-5,)


def of(group: str) -> Callable[..., Any]:
    """Makes the options of a group of the help."""

    def option(*words: str, help: str, **more: Any) -> Any:
        return typer.Option(*words, help=help, rich_help_panel=group, **more)

    return option


training, _attack = of("Training"), of("Attack and method")


def one_of(words: Sequence[str]) -> dict[str, Any]:
    """The options of typer for a word out of several, which a shell completes."""
    return {"metavar": "NAME", "autocompletion": lambda: list(words)}


# ---- What was run

NoiseMultiplier = Annotated[
    float | None,
    training("--noise-multiplier", "--noise", help="Noise multiplier: standard deviation / clipping norm."),
]
SampleRate = Annotated[
    float | None, training("--sample-rate", "--rate", help="Sampling rate: probability of each record at each step.")
]
BatchSize = Annotated[
    int | None,
    training(
        "--batch-size",
        "--batch",
        help="Batch size: expected number of records in a batch. With the number of records it makes the sampling rate.",
    ),
]
DatasetSize = Annotated[int | None, training("--dataset-size", "--records", help="Number of training records.")]
Steps = Annotated[int | None, training("--steps", help="Number of updates.")]
Epochs = Annotated[
    float | None,
    training(
        "--epochs",
        help="Epochs: passes over the training records, instead of steps (with the batch size and the number of records).",
    ),
]
Opacus = Annotated[
    bool | None,
    training(
        "--opacus/--no-opacus",
        help="How batch size and number of records make the sampling rate: as Opacus does, 1/⌈records/batch⌉, or batch/records. "
        "[default: batch/records, and a note where the two differ noticeably]",
    ),
]
Sampling = Annotated[
    str,
    training(
        "--sampling",
        help="How batches are drawn: poisson (each record with the same probability, at each step), fixed-size (a fixed number "
        "of records, without replacement, anew at each step), balls-in-bins (each record in one random batch of an epoch), "
        "shuffled (a permutation of the records at each epoch, cut into batches).",
        **one_of(SAMPLINGS),
    ),
]
TimesPerEpoch = Annotated[
    int,
    training("--times-per-epoch", help="With sampling balls-in-bins: number of batches of an epoch that contain each record."),
]
MaxBatchSize = Annotated[
    int | None,
    training(
        "--max-batch-size",
        "--max-batch",
        help="With Poisson sampling: cut larger batches to this many random records (with the number of records).",
    ),
]

NumberOfTrials = Annotated[
    float | None,
    training(
        "--trials",
        help="Number of independently trained models, of which only the best one is released.",
    ),
]
TrialsLaw = Annotated[
    str,
    training(
        "--trials-law",
        help="Distribution of the number of models, drawn in advance: fixed, or poisson or geometric with --trials as its mean.",
        **one_of(TRIALS_LAWS),
    ),
]

# ---- Who attacks, and how the risk is computed

ThreatName = Annotated[
    str,
    _attack(
        "--threat",
        help=f"The attack, by what the attacker asks: {', '.join(f'{name} ({asked})' for name, asked in THREATS.items())}.",
        **one_of(tuple(THREATS)),
    ),
]
Distance = Annotated[
    float | None,
    _attack(
        "--distance",
        help="With threat attribute: the largest distance between the two gradients at a step, in clipping norms, 0 to 2.",
    ),
]
RecordsPerPerson = Annotated[
    int | None,
    _attack(
        "--records-per-person",
        help="With the threats of membership: the number of records of a person; all are replaced, or left out, together.",
    ),
]
Method = Annotated[
    str | None,
    _attack(
        "--method",
        help="How the risk is computed: exact, certified, affinity or paper. [default: exact; certified for attribute or noise "
        "below 0.5]",
        **one_of(tuple(METHODS)),
    ),
]
Tolerance = Annotated[float, _attack("--tolerance", help="Width of the interval of β* that the method certified aims at.")]
Effort = Annotated[
    str,
    _attack(
        "--effort",
        help="How closely exact and certified examine adaptive attackers: best (seconds), normal (a tenth of a second) or quick "
        "(milliseconds, and a wider bound).",
        **one_of(EFFORTS),
    ),
]
Prior = Annotated[float, _attack("--prior", help="Probability, before the attack, that 'yes' is the right guess.")]
Fpr = Annotated[
    list[float],
    _attack("--fpr", metavar="RATE", help="False-positive rate at which the TPR is reported (may be repeated)."),
]
Delta = Annotated[list[float], _attack("--delta", metavar="DELTA", help="δ at which ε is reported (may be repeated).")]
MetricNames = Annotated[
    list[str] | None,
    _attack("--metric", help=f"Report this metric only: {', '.join(TOLD)} (may be repeated). [default: all]", **one_of(TOLD)),
]

# ---- What is printed and written

Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="LIMIT",
        help='Exit with code 1 unless this holds, such as "bayes_security>=0.95" or "tpr<=5%@fpr=0.01" (may be repeated).',
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="File for a figure of the bound and what was measured: .png, .svg or .pdf."),
]

# ---- Commands

#: What usually helps a person who gave a value that is not allowed.
HINTS = {
    "noise_multiplier": "Common values are 0.5 to 10.",
    "sample_rate": "It is the batch size divided by the number of records, e.g. 0.01.",
    "batch_size": "Common values are 64 to 4096.",
    "dataset_size": "It is the number of training records, e.g. 50000.",
    "steps": "It is the total number of updates, e.g. 2000.",
    "epochs": "Common values are 1 to 100.",
    "max_batch_size": "Common values are 1.1 to 1.5 times the batch size.",
    "trials": "Common values are 5 to 100.",
    "distance": "It is measured in clipping norms: 2 is the worst case, 1 a common value.",
    "records_per_person": "It is the largest number of records that one person has, e.g. 8.",
    "tolerance": "Common values are 1e-4 and 0.01.",
    "prior": "0.5 is a fair coin.",
    "fpr": "Common values are 0.01 and 0.001.",
    "delta": "Common values are 1e-5, or less than one over the number of records.",
}
#: Arguments in Python whose option has another name.
OTHER_NAMES = {
    "distances": "distance",
    "records": "records_per_person",
    "metrics": "metric",
    "values": "value",
    "along": "with",
}
#: What stands for a value in the help, by typer's word for its type.
METAVARS = {
    f"{kind}>": word
    for word, kinds in {
        "N": ("int", "int range", "list[int]"),
        "X": ("float", "float range", "list[float]"),
        "TEXT": ("str", "list[str]"),
        "PATH": ("path",),
    }.items()
    for kind in kinds
}


class Command(TyperCommand):
    """A command whose errors name an option as the person spelled it, and whose reader may go away."""

    for_pipelines = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["words"] = [word.split("=")[0] for word in args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options in their groups, those without a group last."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for one in self.get_params(ctx):
            if (row := one.get_help_record(ctx)) is not None:
                argument = one.param_type_name == "argument"
                name, typed, kind = row[0].partition(" <")
                word = name if argument or not typed else f"{name} {METAVARS[kind]}"
                group = "Arguments" if argument else getattr(one, "rich_help_panel", None) or "Options"
                groups.setdefault(group, []).append((word, re.sub(r" +\[x>=[^]]*\]", "", row[1])))
        groups["Options"] = groups.pop("Options")
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        if self.for_pipelines and hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head -1` ends it without a word, as it does other commands
        try:
            return super().invoke(ctx)
        except ArgumentError as problem:
            option = self._option(problem.argument)
            hint = HINTS.get(option.name or "", "") if option is not None and isinstance(problem, WrongValueError) else ""
            raise ValueError(f"{problem.spelled(lambda name: self._spelling(name, ctx.meta['words']))} {hint}".strip()) from None
        except ArithmeticError as problem:  # exit code 1 is for --require
            if not self.for_pipelines:
                raise
            text = f"these parameters are beyond what this --method can compute ({problem}). Try another one."
            raise ValueError(text) from None

    def _option(self, argument: str) -> Any:
        """The option of an argument in Python."""
        options = {one.name: one for one in self.params if one.param_type_name == "option"}
        return options.get(argument) or options.get(OTHER_NAMES.get(argument, ""))

    def _spelling(self, argument: str, words: list[str]) -> str:
        """How the person spelled the option of an argument, or its shortest spelling if they did not give it."""
        option = self._option(argument)
        if option is None:
            return argument
        long = [spelling for spelling in option.opts if spelling.startswith("--")]
        return next((word for word in words if word in option.opts), min(long, key=len))


class LongCommand(Command):
    """A command that works for minutes: it goes on if its reader goes away."""

    for_pipelines = False


def asks(question: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a question: its fields, other than those that the command has itself."""
    hints = get_type_hints(question, include_extras=True)

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        (_, *own) = inspect.signature(function, eval_str=True).parameters.values()
        names = [one.name for one in fields(question) if one.name not in {one.name for one in own}]
        defaults = {one.name: one.default for one in fields(question)}

        @wraps(function)
        def asked(**given: Any) -> None:
            function({name: given.pop(name) for name in names}, **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        asked_for = [inspect.Parameter(name, keyword, default=defaults[name], annotation=hints[name]) for name in names]
        both = [*(one.replace(kind=keyword) for one in own), *asked_for]
        asked.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        asked.__annotations__ = {}  # typer takes those of the signature
        return asked

    return decorated


def command(app: typer.Typer, name: str | None = None, cls: type[Command] = Command) -> Callable[[Any], Any]:
    """Add a function to an app, as one of these commands."""
    return app.command(name, cls=cls)
