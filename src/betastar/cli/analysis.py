"""The commands that need no training: analyze, calibrate, sweep and explore."""

from __future__ import annotations

import csv
import io
import json as json_format
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import betastar as bs
from betastar import files, validation
from betastar.cli import options as opt
from betastar.cli import printing
from betastar.cli.answers import SHORT, Answer, Question, answer, calibrated, number
from betastar.dpsgd import NUMBERS
from betastar.risk import DIGITS, LEVELS, METRICS, SMALLEST_FPR
from betastar.rounding import plain, significant
from betastar.validation import MUST, WrongTypeError, WrongValueError

#: Files of a figure.
PICTURES = (".png", ".svg", ".pdf")
#: The numbers of a run on the axes of a heat map.
LABELS = {name: name.replace("_", " ") for name in NUMBERS} | {"sample_rate": "sampling rate", "dataset_size": "training records"}


@opt.asks(Question)
def analyze(
    asked: Answer,
    require: opt.Require = None,
    advise: Annotated[
        bool,
        typer.Option("--advise", help="Say what would reach --require, or the next band of β*; this takes a few seconds more."),
    ] = False,
    json: opt.Json = False,
) -> None:
    """Compute how well a training resists an attack.

    \b
    Examples:
      betastar analyze --noise 3.51 --batch 256 --records 26048 --epochs 20
      betastar analyze --noise 1.1 --rate 0.004 --steps 5000 \\
        --threat attribute --distance 0.8
      betastar analyze --noise 1.1 --rate 0.004 --steps 5000 \\
        --require "bayes_security>=0.95" --advise
      betastar analyze --noise 3.51 --batch 256 --records 26048 --epochs 20 \\
        --trials 20
    """
    question, targets = Question.of(asked), required(require)
    if advise and question.law is not None:
        raise WrongTypeError("advise", "{argument} must be left out with {trials}; betastar calibrate --trials finds the noise.")
    told = answer(question, advise, targets)
    printing.as_json(told) if json else printing.one(told)
    demand([(question, "")], targets)


@opt.asks(Question)
def calibrate(
    asked: Answer,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="LIMIT",
            help='What must hold: "bayes_security>=0.98", "success<=51%", "tpr<=0.05@fpr=0.01", "epsilon<=1@delta=1e-5" …',
        ),
    ],
    json: opt.Json = False,
) -> None:
    """Find the missing parameter that just meets a target.

    Leave out --noise for the least noise, --rate or --batch for the largest, --steps or --epochs for the most, --records for
    the fewest.

    \b
    Examples:
      betastar calibrate --target "success<=51%" --batch 256 --records 50000 \\
        --epochs 30
      betastar calibrate --target "tpr<=0.05@fpr=0.01" --noise 1.5 --batch 256 \\
        --records 50000
    """
    told = calibrated(Question.of(asked), bs.Target.parse(target))
    if json:
        printing.as_json(told)
        return
    name, value = next(iter(told["found"].items()))
    printing.one(told, f"--{SHORT.get(name, name)} {plain(value)} just meets {told['target']}.")


@opt.asks(Question)
def sweep(
    asked: Answer,
    noise_multiplier: Annotated[
        str | None,
        opt.training(
            "--noise-multiplier",
            "--noise",
            metavar="GRID",
            help="Noise multiplier: a number, a list such as 1,2,4, or a grid such as 0.5:5:20log.",
        ),
    ] = None,
    sample_rate: Annotated[str | None, opt.training("--sample-rate", "--rate", metavar="GRID", help="Sampling rate.")] = None,
    batch_size: Annotated[str | None, opt.training("--batch-size", "--batch", metavar="GRID", help="Batch size.")] = None,
    dataset_size: Annotated[
        str | None, opt.training("--dataset-size", "--records", metavar="GRID", help="Number of training records.")
    ] = None,
    steps: Annotated[str | None, opt.training("--steps", metavar="GRID", help="Number of updates.")] = None,
    epochs: Annotated[str | None, opt.training("--epochs", metavar="GRID", help="Number of epochs.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            metavar="FIELDS",
            help='Instead of a grid: one setting, such as "noise=3.51,epochs=20", on top of the other options; "name=…" gives it '
            "a name (may be repeated).",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="How the risk is computed: exact, certified, affinity or paper (may be repeated, to compare them).",
        ),
    ] = None,
    tolerance: opt.Tolerance = opt.TOLERANCE,
    effort: opt.Effort = "best",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="The metric, such as bayes_security, advantage, success, tpr@fpr=0.01 or epsilon@delta=1e-5; of settings, its "
            "name (may be repeated). [default: bayes_security; of settings, all]",
        ),
    ] = None,
    require: opt.Require = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Grid: file, .csv, .json, or a heat map as .png, .svg or .pdf. [default: CSV on the terminal]"
        ),
    ] = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Compute a metric over a grid, or compare settings or methods.

    A grid gives CSV, JSON or a heat map; settings and methods stand beside each other in a table. A grid is FIRST:LAST:COUNT,
    with log for even ratios, or a list with commas. Without --output, CSV is printed.

    \b
    Examples:
      betastar sweep --noise 0.5:5:20log --rate 1e-4:1e-1:20log --steps 1000 \\
        -o heat.png
      betastar sweep --noise 1,2,4 --batch 256 --records 50000 --epochs 5:50:10 \\
        --metric tpr@fpr=0.01
      betastar sweep --batch 256 --records 26048 --epochs 20 \\
        --setting noise=2 --setting noise=4,name=careful
      betastar sweep --noise 0.8 --rate 0.01 --steps 2000 \\
        --method exact --method paper --method affinity
    """
    axes = {name: read_axis(name, text) for name, text in locals().items() if name in NUMBERS and text is not None}
    if setting or len(method or ()) > 1:
        if output is not None:
            raise WrongTypeError("output", "{argument} goes with a grid; settings are printed, with {json} as JSON.")
        for name, values in axes.items():
            if len(values) > 1:
                raise WrongTypeError(name, "{argument} must be one number beside {setting} or several of {method}.")
        base = asked | {"metric": metric} | {name: values[0] for name, values in axes.items()}
        compare(base, setting or [], method or [], required(require), json)
        return
    question = Question.of(asked | {"method": method[0] if method else None})
    for name, given in (("prior", asked["prior"]), ("fpr", question.fpr), ("delta", question.delta), ("require", require)):
        if given != getattr(Question, name, None):
            raise WrongTypeError(name, "{argument} goes with {setting}, or with several of {method}.")
    if len(metric or ()) > 1:
        raise WrongTypeError("metric", "{argument} must be one metric for a grid.")
    if output is not None:
        _check_output(output, force)
    grid = Grid.read(axes, question, (metric or ["bayes_security"])[0])
    if output is not None and output.suffix in PICTURES:
        grid.axes_of_picture()
    for notice in next((point.rate_notices for point in grid.points() if point.rate_notices), []):
        printing.complain(notice)
    with printing.counting("points", grid.size) as tell:
        grid.compute(tell)
    if output is not None:
        grid.write(output)
        written = {"output": str(output), "points": grid.size}
        printing.as_json(written) if json else print(f"{grid.size} points in {output}")
    elif json:
        printing.as_json(grid.as_json())
    else:
        sys.stdout.write(grid.as_csv())


def explore(
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the page to this file instead of opening it.")
    ] = None,
    force: opt.Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print where the page is as one JSON object.")] = False,
) -> None:
    """Open a page with sliders for the parameters of a training.

    It shows how the risk follows them. The page is one file, which computes in the browser and sends nothing. It is written to a
    temporary folder, or with --export where you want it.

    \b
    Examples:
      betastar explore
      betastar explore --export page.html
    """
    import webbrowser
    from importlib.util import find_spec

    from betastar import page

    if find_spec("plotly") is None:
        raise ValueError("the page needs plotly: pip install plotly.")
    if export is not None:
        if export.suffix not in (".html", ".htm"):
            raise ValueError(f"--export must end with .html, got {str(export)!r}.")
        printing.check_file("--export", export, force)
        content = page.html().encode()
        files.write(export, content, private=False)
        written = {"export": str(export), "bytes": len(content)}
        printing.as_json(written) if json else print(f"The page is in {export}; open it in a browser.")
        return
    path = page.write_temporary()
    opened = browser and webbrowser.open(path.as_uri())
    if json:
        printing.as_json({"page": str(path), "opened": opened})
    else:
        print(f"The page is in {path}{'' if opened else '; open it in a browser'}. To keep it, use --export.")


# ---- Requirements


def required(texts: Sequence[str] | None) -> list[bs.Target]:
    return [bs.Target.parse(text, "require") for text in texts or ()]


def demand(cases: Iterable[tuple[Question, str]], targets: Sequence[bs.Target]) -> None:
    """Exit with 1 unless every target is met by every question, at the end of the bound that is not too optimistic."""
    missed = [(one, name, target) for one, name in cases for target in targets if not target.met(one.risk)]
    for one, name, target in missed:
        floor = f", down to FPR {plain(SMALLEST_FPR)}" if target.metric == "gdp_mu" else ""
        reached = significant(target.reached(one.risk), DIGITS, not target.about.protects)
        printing.complain(f"not met{' by ' + name if name else ''}: {target}; the number to rely on is {reached}{floor}.")
    if missed:
        raise typer.Exit(1)


# ---- Settings side by side


def compare(base: Answer, settings: Sequence[str], methods: Sequence[str], targets: Sequence[bs.Target], json: bool) -> None:
    """Settings or methods in one table. base: what holds for every setting that does not say otherwise."""
    named = [_read_setting(text, base) for text in settings] or [("", base)]
    ways: Sequence[str | None] = methods or (None,)
    cases = [(name, way, {**given, "method": way or given.get("method")}) for name, given in named for way in ways]
    asked = [Question.of(given) for *_, given in cases]
    answers = [answer(one) for one in asked]
    shared = printing.shared_by(answers)
    names: list[str] = []
    brief: list[str] = []
    for (name, way, _), one in zip(cases, answers, strict=True):
        own = one["parameters"]
        for made, label in ((names, printing.label(own)), (brief, printing.label(own, set(own) - shared) or printing.label(own))):
            words = [name or label if settings or not way else "", way or ""]
            made.append(", ".join(word for word in words if word))
    if json:
        printing.as_json({"settings": [{"name": name, **one} for name, one in zip(names, answers, strict=True)]})
    else:
        printing.side_by_side(answers, brief)
    demand(zip(asked, names, strict=True), targets)


#: The fields of --setting: words, and numbers.
WORDS = ("sampling", "trials_law", "threat", "method", "name")
FIELDS = (*NUMBERS, "times_per_epoch", "max_batch_size", "trials", "distance", "records_per_person", "prior")


def _read_setting(text: str, base: Answer) -> tuple[str, Answer]:
    """A name (or none) and the fields of "noise=3.51,batch=256,name=careful", on top of the base."""
    known = {word: name for name in FIELDS + WORDS for word in (SHORT.get(name, name), name.replace("_", "-"))}
    given = {**base, "name": "", "method": None}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--setting must be as in noise=3.51,batch=256,records=26048,epochs=20, got {part!r}.")
        name = known[validation.word("setting", key, known)]
        try:
            given[name] = value if name in WORDS else int(value) if value.isdigit() else float(value)
        except ValueError:
            raise ValueError(f"--setting must have a number after the sign, got {part!r}.") from None
    return given.pop("name"), given


# ---- Grids


def read_axis(name: str, text: str) -> tuple[float, ...]:
    """ "2", "1,2,4", "0:1:5" (evenly) or ".5:5:20log" (in even ratios)."""
    grid = re.fullmatch(r"([^:,]+):([^:,]+):(\d+)(log)?", text.replace(" ", ""))
    try:
        if grid:
            first, last, count = float(grid[1]), float(grid[2]), int(grid[3])
            if grid[4] and not (first > 0.0 and last > 0.0):
                raise ValueError
            values = (np.geomspace if grid[4] else np.linspace)(first, last, count)
        else:
            values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        allowed = "a number, a list as 1,2,4 or a grid as 0.5:5:20log"
        raise WrongValueError(name, MUST, {"allowed": allowed, "value": repr(text)}) from None
    if not values.size or not np.isfinite(values).all():
        raise WrongValueError(name, "{argument} must have at least one finite value, got {value}.", {"value": repr(text)})
    if name in ("batch_size", "dataset_size", "steps"):
        values = np.unique(np.round(values)) if grid else values
        if (values != np.round(values)).any():
            raise WrongValueError(name, MUST, {"allowed": "whole numbers", "value": repr(text)})
        return tuple(int(value) for value in values)
    return tuple(float(value) for value in values)


@dataclass(frozen=True)
class Grid:
    """Axes of values, what is asked at each point, and the bound there, the last axis fastest."""

    axes: Mapping[str, tuple[float, ...]]
    base: Question
    metric: str
    condition: tuple[str, float] | None
    bounds: list[bs.Bound] = field(default_factory=list)

    @classmethod
    def read(cls, axes: Mapping[str, tuple[float, ...]], base: Question, metric: str) -> Grid:
        name, at, rest = metric.partition("@")
        about = METRICS[validation.word("metric", name, opt.TOLD)]
        wanted = about.at
        if wanted is None:
            if at:
                text = "{argument} {name} depends on nothing else, got {value}."
                raise WrongValueError("metric", text, {"name": name, "value": repr(metric)})
            return cls(axes, base, name, None)
        key, _, value = rest.partition("=")
        if not at and about.usual is not None:
            return cls(axes, base, name, (wanted, about.usual))
        try:
            if key != wanted:
                raise ValueError
            return cls(axes, base, name, (wanted, float(value)))
        except ValueError:
            text = "{argument} {name} must say at which {wanted}, as in {name}@{wanted}=0.01, got {value}."
            raise WrongValueError("metric", text, {"name": name, "wanted": wanted, "value": repr(metric)}) from None

    @property
    def size(self) -> int:
        return prod(map(len, self.axes.values()))

    def axes_of_picture(self) -> tuple[str, str]:
        long = [name for name, values in self.axes.items() if len(values) > 1]
        if len(long) != 2:
            names = ", ".join(f"--{SHORT.get(name, name)}" for name in long) or "none"
            raise ValueError(f"a heat map must have exactly two options with a grid, got {names}. Write a .csv file instead.")
        return long[0], long[1]

    def points(self) -> Iterator[Question]:
        for values in product(*self.axes.values()):
            fields: dict[str, Any] = dict(zip(self.axes, values, strict=True))
            yield replace(self.base, **fields)

    def compute(self, tell: Callable[[int], None] | None = None) -> None:
        """The bound at each point. `tell` is called with the number of points that are done."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a sentence for each point would say nothing
            for point in self.points():
                reading: Any = getattr(point.risk, self.metric)
                self.bounds.append(reading if self.condition is None else reading(self.condition[1]))
                if tell:
                    tell(len(self.bounds))

    def as_csv(self) -> str:
        text = io.StringIO()
        ends = ("lower", "estimate", "upper")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.axes, *ends])
        for values, one in zip(product(*self.axes.values()), self.bounds, strict=True):
            writer.writerow([*values, *(float(getattr(one, end)) for end in ends)])
        return text.getvalue()

    def as_json(self) -> Answer:
        condition = dict([self.condition]) if self.condition else {}
        if self.metric == "gdp_mu":
            condition = {"smallest_fpr": SMALLEST_FPR}
        shape = [len(values) for values in self.axes.values()]
        sides = {
            side: _nested([number(getattr(one, side)) for one in self.bounds], shape) for side in ("lower", "estimate", "upper")
        }
        return {
            "axes": {name: list(values) for name, values in self.axes.items()},
            "metric": self.metric,
            **condition,
            self.metric: sides,
            "threat": self.base.threat,
            **({} if self.base.distance is None else {"distance": self.base.distance}),
            "method": self.base.chosen_method,
        }

    def draw(self) -> Any:
        """A heat map of the number to rely on."""
        from betastar import plots

        down, across = self.axes_of_picture()
        shape = (len(self.axes[down]), len(self.axes[across]))
        metric = METRICS[self.metric]
        values = np.array([getattr(one, metric.safe_end) for one in self.bounds], dtype=float).reshape(shape)
        if self.metric == "gdp_mu":
            condition = f" down to FPR {plain(SMALLEST_FPR)}"
        else:
            condition = "" if self.condition is None else f" at {self.condition[0]} {plain(self.condition[1])}"
        ax = plots.heatmap(
            values,
            plots.axes(size=(6.4, 4.6)),
            x=self.axes[across],
            y=self.axes[down],
            xlabel=LABELS[across],
            ylabel=LABELS[down],
            title=f"{metric.title if metric.protects else metric.name + condition} ({metric.safe_end} end)",
            levels=LEVELS if metric.protects else (),
            limits=(0.0, 1.0) if metric.limited else None,
            risky=not metric.protects,
        )
        fixed = [f"{LABELS[name]} {plain(values[0])}" for name, values in self.axes.items() if len(values) == 1]
        ax.set_title(f"{self.base.attack.describe()}; {', '.join(fixed)}", fontsize=9)
        return ax

    def write(self, path: Path) -> None:
        if path.suffix == ".csv":
            files.write(path, self.as_csv(), private=False)
        elif path.suffix == ".json":
            files.write(path, json_format.dumps(self.as_json(), allow_nan=False) + "\n", private=False)
        else:
            from betastar import plots

            plots.save(self.draw(), path.with_suffix(""), path.suffix.removeprefix("."))


def _check_output(path: Path, force: bool) -> None:
    """Refuse a file that the result cannot be written to, before anything is computed."""
    allowed = (".csv", ".json", *PICTURES)
    if path.suffix not in allowed:
        raise ValueError(f"--output must end with one of {', '.join(allowed)}, got {str(path)!r}.")
    printing.check_file("--output", path, force)


def _nested(values: list[object], shape: list[int]) -> list[object]:
    """A flat list as lists of lists, the last axis innermost."""
    for length in reversed(shape[1:]):
        values = [values[i : i + length] for i in range(0, len(values), length)]
    return values
