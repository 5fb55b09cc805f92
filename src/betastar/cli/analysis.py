"""The commands that need no training: analyze, calibrate, compare, sweep and explore."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from betastar.answers import settings
from betastar.answers.json_answers import Answer
from betastar.answers.settings import Setting
from betastar.answers.targets import Wish, parse
from betastar.cli.options import Fields, JsonOption, RequireOption, command, option
from betastar.risk import SMALLEST_FPR
from betastar.rounding import plain, significant
from betastar.vocabulary import DIGITS, METRICS, OF_THREATS, PARAMETERS, RUN, SAMPLED


def register(app: typer.Typer) -> None:
    for function in (analyze, calibrate, compare, sweep, explore):
        command(app)(function)


def analyze(setting: Setting, required: RequireOption, printed: JsonOption) -> None:
    """Tell how well a model that is trained like this resists an attack.

    \b
    Examples:
      betastar analyze --noise 3.51 --batch 256 --records 26048 --epochs 20
      betastar analyze --noise 1.1 --rate 0.004 --steps 5000 --threat attribute --distance 0.8
      betastar analyze --noise 1.1 --rate 0.004 --steps 5000 --require "bayes_security>=0.95" --json
    """
    from betastar.answers import json_answers
    from betastar.cli import printing

    wishes = wished(required)
    answer = json_answers.answer(setting, advised=True, wishes=wishes)
    printing.as_json(answer) if printed.json else printing.one(answer)
    demand([(setting, "")], wishes)


@dataclass(frozen=True)
class TargetOption:
    target: str


def calibrate(asked: TargetOption, setting: Annotated[Setting, Fields(without=("sees",))], printed: JsonOption) -> None:
    """Find the missing parameter that just meets a target.

    Leave out --noise for the least noise, --rate or --batch for the largest, --steps or --epochs for the most, --records for
    the fewest.

    \b
    Examples:
      betastar calibrate --target "success<=0.51" --batch 256 --records 50000 --epochs 30
      betastar calibrate --target "tpr<=0.05@fpr=0.01" --noise 1.5 --batch 256 --records 50000
    """
    from betastar.answers import json_answers
    from betastar.cli import printing

    answer = json_answers.calibrated(setting, parse(asked.target))
    if printed.json:
        printing.as_json(answer)
        return
    name, value = next(iter(answer["found"].items()))
    printing.one(answer, f"{RUN[name].brief} {plain(value)} just meets {answer['target']}.")


@dataclass(frozen=True)
class CompareOptions:
    """Several settings, or several methods."""

    setting: tuple[str, ...] = ()
    method: tuple[str, ...] = option((), "A method: {methods} (may be repeated, to compare them).")


def compare(
    options: CompareOptions,
    base: Annotated[Answer, Fields(of=Setting, without=("method",))],
    required: RequireOption,
    printed: JsonOption,
) -> None:
    """Compare several settings, or several methods, in one table.

    What is given as an option holds for every setting that does not say otherwise.

    \b
    Examples:
      betastar compare --batch 256 --records 26048 --epochs 20 --setting noise=2 --setting noise=4,name=careful
      betastar compare --noise 0.8 --rate 0.01 --steps 2000 --method exact --method paper --method affinity
    """
    from betastar.answers import json_answers
    from betastar.cli import printing

    named = [_read_setting(text, base) for text in options.setting] or [("", base)]
    ways: tuple[str | None, ...] = options.method or (None,)
    cases = [(name, way, {**given, "method": way or given.get("method")}) for name, given in named for way in ways]
    asked = [Setting(**given) for *_, given in cases]
    wishes = wished(required)
    answers = [json_answers.answer(one) for one in asked]
    shared = printing.shared_by(answers)
    names: list[str] = []
    brief: list[str] = []
    for (name, way, _), answer in zip(cases, answers, strict=True):
        own = answer["parameters"]
        for made, label in ((names, printing.label(own)), (brief, printing.label(own, set(own) - shared) or printing.label(own))):
            words = [name or label if options.setting or not way else "", way or ""]
            made.append(", ".join(word for word in words if word))
    if printed.json:
        printing.as_json({"settings": [{"name": name, **answer} for name, answer in zip(names, answers, strict=True)]})
    else:
        printing.side_by_side(answers, brief)
    demand(zip(asked, names, strict=True), wishes)


@dataclass(frozen=True)
class GridOptions:
    """The axes of a grid, as text."""

    noise_multiplier: str | None = option(None, "Noise multiplier: a number, a list such as 1,2,4, or a grid such as .5:5:20log.")
    sample_rate: str | None = option(None, "Sampling rate, or a grid.")
    batch_size: str | None = option(None, "Batch size, or a grid.")
    dataset_size: str | None = option(None, "Number of training records, or a grid.")
    steps: str | None = option(None, "Number of updates, or a grid.")
    epochs: str | None = option(None, "Epochs, or a grid.")


@dataclass(frozen=True)
class SweepOptions:
    """The metric, and where its values are written."""

    metric: str = option(
        "bayes_security", "The metric, such as bayes_security, advantage, success, tpr@fpr=0.01 or epsilon@delta=1e-5."
    )
    output: Path | None = option(None, "File: .csv, .json, or a heat map as .png, .svg or .pdf.", "CSV on the terminal")
    force: bool = False


def sweep(
    axes: GridOptions,
    base: Annotated[Setting, Fields(without=(*RUN, "prior", "fpr", "delta", "metrics", "sees"))],
    options: SweepOptions,
    printed: JsonOption,
) -> None:
    """Compute a metric over a grid, as CSV, JSON or a heat map.

    A grid is FIRST:LAST:COUNT, with log for even ratios, or a list with commas. Without --output, CSV is printed.

    \b
    Examples:
      betastar sweep --noise 0.5:5:20log --rate 1e-4:1e-1:20log --steps 1000 -o heat.png
      betastar sweep --noise 1,2,4 --batch 256 --records 50000 --epochs 5:50:10 --metric tpr@fpr=0.01
    """
    from betastar.answers import sweeps
    from betastar.cli import printing

    output = options.output
    if output is not None:
        sweeps.check_output(output, options.force)
    grid = sweeps.Grid.read(vars(axes), base, options.metric)
    if output is not None and output.suffix in sweeps.PICTURES:
        grid.axes_of_picture()
    for notice in next((point.rate_notice for point in grid.points() if point.rate_notice), []):
        printing.complain(notice)
    with printing.counting("points", grid.size) as tell:
        result = grid.compute(tell)
    if output is not None:
        sweeps.write(result, output)
        written = {"output": str(output), "points": result.size}
        printing.as_json(written) if printed.json else print(f"{result.size} points in {output}")
    elif printed.json:
        printing.as_json(result.as_json())
    else:
        sys.stdout.write(result.as_csv())


@dataclass(frozen=True)
class ExploreOptions:
    browser: bool = True
    export: Path | None = None
    force: bool = False
    json: bool = option(False, "Print where the page is as one JSON object.")


def explore(options: ExploreOptions) -> None:
    """Open a page with sliders for the parameters of a training, and see how the risk follows them.

    The page is one file. It computes in the browser and sends nothing. It is written to a temporary folder, or with --export
    where you want it.

    \b
    Examples:
      betastar explore
      betastar explore --export page.html
    """
    import webbrowser
    from importlib.util import find_spec

    from betastar import page
    from betastar.cli import printing

    if find_spec("plotly") is None:
        raise ValueError("the page needs plotly: pip install 'betastar[page]'.")
    if options.export is not None:
        size = page.export(options.export, options.force)
        written = {"export": str(options.export), "bytes": size}
        printing.as_json(written) if options.json else print(f"The page is in {options.export}; open it in a browser.")
        return
    path = page.write_temporary()
    opened = options.browser and webbrowser.open(path.as_uri())
    if options.json:
        printing.as_json({"page": str(path), "opened": opened})
    else:
        print(f"The page is in {path}{'' if opened else '; open it in a browser'}. To keep it, use --export.")


def _read_setting(text: str, base: Answer) -> tuple[str, Answer]:
    """A name (or none) and the fields of "noise=3.51,batch=256,name=careful", on top of the base."""
    known = {spelling.removeprefix("--"): name for name, one in RUN.items() for spelling in reversed(one.spellings)}
    more = [PARAMETERS[name] for name in (*SAMPLED, "threat", *OF_THREATS, "sees", "method", "prior")]
    known |= {spelling.removeprefix("--"): one.name for one in more for spelling in reversed(one.spellings)} | {"name": "name"}
    given = {**base, "name": ""}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--setting must be as in noise=3.51,batch=256,records=26048,epochs=20, got {part!r}.")
        name = known[settings.choose("--setting", key, known)]
        given[name] = value if name in ("threat", "method", "name", "sampling", "sees") else _parse_number(value, part)
    return given.pop("name"), given


def _parse_number(value: str, part: str) -> float | int:
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"--setting must have a number after the sign, got {part!r}.") from None
    return int(number) if value.isdigit() else number


def wished(required: RequireOption) -> list[Wish]:
    return [parse(text, "require") for text in required.require]


def demand(cases: Iterable[tuple[Setting, str]], wishes: list[Wish]) -> None:
    """Exit with 1 unless every wish holds for every setting, at the end of the bound that is not too optimistic."""
    from betastar.cli import printing

    missed = 0
    for setting, name in cases if wishes else ():
        risk = setting.risk()
        for wish in wishes:
            if not wish.met(risk):
                missed += 1
                floor = f", down to FPR {plain(SMALLEST_FPR)}" if wish.metric == "gdp_mu" else ""
                reached = significant(wish.reached(risk), DIGITS, not METRICS[wish.metric].protects)
                printing.complain(f"not met{' by ' + name if name else ''}: {wish}; the number to rely on is {reached}{floor}.")
    if missed:
        raise typer.Exit(1)
