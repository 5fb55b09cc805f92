"""The commands that need no training: analyze, calibrate, compare, sweep and explore."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from betastar.answers import settings
from betastar.cli.options import (
    Attack,
    Batch,
    Command,
    Delta,
    Distance,
    Epochs,
    Force,
    Fpr,
    Json,
    Method,
    Metric,
    Noise,
    Opacus,
    Prior,
    Rate,
    Records,
    Require,
    Steps,
    for_pipelines,
    option,
)
from betastar.risk.risk import SMALLEST_FPR
from betastar.rounding import plain, significant
from betastar.vocabulary import DIGITS, METHODS, METRICS, PARAMETERS, RUN


def register(app: typer.Typer) -> None:
    for command in (analyze, calibrate, compare, sweep, explore):
        app.command(cls=Command)(for_pipelines(command))


def analyze(
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    batch_size: Batch = None,
    dataset_size: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = PARAMETERS["threat"].default,
    distance: Distance = None,
    method: Method = None,
    prior: Prior = PARAMETERS["prior"].default,
    fpr: Fpr = None,
    delta: Delta = None,
    metric: Metric = None,
    require: Require = None,
    json: Json = False,
) -> None:
    """How well a model trained like this resists an attack.

    \b
    Examples:
      betastar analyze --noise 3.51 --batch 256 --records 26048 --epochs 20
      betastar analyze --noise 1.1 --rate 0.004 --steps 5000 --threat attribute --distance 0.8
      betastar analyze --noise 1.1 --rate 0.004 --steps 5000 --require "bayes_security>=0.95" --json
    """
    options = dict(locals())
    from betastar.answers import json_answers
    from betastar.cli import printing

    setting = settings.Setting(**fields_of(options))
    wishes = wished(require)
    answer = json_answers.answer(setting)
    printing.as_json(answer) if json else printing.one(answer)
    demand([(setting, "")], wishes)


def calibrate(
    target: Annotated[str, option("target")],
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    batch_size: Batch = None,
    dataset_size: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = PARAMETERS["threat"].default,
    distance: Distance = None,
    method: Method = None,
    prior: Prior = PARAMETERS["prior"].default,
    fpr: Fpr = None,
    delta: Delta = None,
    metric: Metric = None,
    json: Json = False,
) -> None:
    """Find the missing parameter that just meets a target.

    Leave out --noise for the least noise, --rate or --batch for the largest, --steps or --epochs for the most, --records for
    the fewest.

    \b
    Examples:
      betastar calibrate --target "success<=0.51" --batch 256 --records 50000 --epochs 30
      betastar calibrate --target "tpr<=0.05@fpr=0.01" --noise 1.5 --batch 256 --records 50000
    """
    options = dict(locals())
    from betastar.answers import json_answers, targets
    from betastar.cli import printing

    setting = settings.Setting(**fields_of(options))
    answer = json_answers.calibrated(setting, targets.parse(target))
    if json:
        printing.as_json(answer)
        return
    name, value = next(iter(answer["found"].items()))
    printing.one(answer, f"{RUN[name].brief} {plain(value)} just meets {answer['target']}.")


def compare(
    setting: Annotated[list[str] | None, option("setting", metavar="FIELDS")] = None,
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    batch_size: Batch = None,
    dataset_size: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = PARAMETERS["threat"].default,
    distance: Distance = None,
    method: Annotated[
        list[str] | None,
        option("method", "Method; repeat it to compare them.", metavar="NAME", autocompletion=lambda: list(METHODS)),
    ] = None,
    prior: Prior = PARAMETERS["prior"].default,
    fpr: Fpr = None,
    delta: Delta = None,
    metric: Metric = None,
    require: Require = None,
    json: Json = False,
) -> None:
    """Several settings, or several methods, in one table.

    What is given as an option holds for every setting that does not say otherwise.

    \b
    Examples:
      betastar compare --batch 256 --records 26048 --epochs 20 --setting noise=2 --setting noise=4,name=careful
      betastar compare --noise 0.8 --rate 0.01 --steps 2000 --method exact --method paper --method affinity
    """
    options = dict(locals())
    from betastar.answers import json_answers
    from betastar.cli import printing

    base = {**fields_of(options), "method": None}
    named = [_read_setting(text, base) for text in setting or ()] or [("", base)]
    ways: list[str | None] = [*method] if method else [None]
    cases = [(name, way, {**fields, "method": way or fields["method"]}) for name, fields in named for way in ways]
    asked = [settings.Setting(**fields) for *_, fields in cases]
    wishes = wished(require)
    found = [json_answers.answer(one) for one in asked]
    names = []
    for (name, way, _), answer in zip(cases, found, strict=True):
        words = [name or printing.label(answer["parameters"]) if setting or not way else "", way or ""]
        names.append(", ".join(word for word in words if word))
    if json:
        printing.as_json({"settings": [{"name": name, **answer} for name, answer in zip(names, found, strict=True)]})
    else:
        printing.side_by_side(found, names)
    demand(zip(asked, names, strict=True), wishes)


def sweep(
    noise_multiplier: Annotated[
        str | None, option("noise_multiplier", "Noise multiplier: a number, 1,2,4, or a grid as .5:5:20log.")
    ] = None,
    sample_rate: Annotated[str | None, option("sample_rate", "Sampling rate, or a grid.")] = None,
    batch_size: Annotated[str | None, option("batch_size", "Batch size, or a grid.")] = None,
    dataset_size: Annotated[str | None, option("dataset_size", "Number of training records, or a grid.")] = None,
    steps: Annotated[str | None, option("steps", "Number of updates, or a grid.")] = None,
    epochs: Annotated[str | None, option("epochs", "Epochs, or a grid.")] = None,
    opacus: Opacus = None,
    threat: Attack = PARAMETERS["threat"].default,
    distance: Distance = None,
    method: Method = None,
    metric: Annotated[
        str,
        option("metric", "What to tell: bayes_security, advantage, success, tpr@fpr=0.01, epsilon@delta=1e-5, …", default=None),
    ] = "bayes_security",
    output: Annotated[
        Path | None, option("output", "File: .csv, .json, or a heat map as .png, .svg or .pdf.", default="CSV on the terminal")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """A metric over a grid, as CSV, JSON or heat map.

    A grid is FIRST:LAST:COUNT, with log for even ratios, or a list with commas. Without --output it is CSV on the terminal.

    \b
    Examples:
      betastar sweep --noise 0.5:5:20log --rate 1e-4:1e-1:20log --steps 1000 -o heat.png
      betastar sweep --noise 1,2,4 --batch 256 --records 50000 --epochs 5:50:10 --metric tpr@fpr=0.01
    """
    options = dict(locals())
    from betastar.answers import sweeps
    from betastar.cli import printing

    texts = {name: options[name] for name in RUN}
    if output is not None:
        sweeps.check_output(output, force)
    grid = sweeps.Grid.read(texts, settings.Setting(threat=threat, distance=distance, method=method, opacus=opacus), metric)
    if output is not None and output.suffix in sweeps.PICTURES:
        grid.axes_of_picture()
    for notice in next((point.rate_notice for point in grid.points() if point.rate_notice), []):
        printing.complain(notice)
    with printing.counting("points", grid.size) as tell:
        found = grid.compute(tell)
    if output is not None:
        sweeps.write(found, output)
        printing.as_json({"output": str(output), "points": found.size}) if json else print(f"{found.size} points in {output}")
    elif json:
        printing.as_json(found.as_json())
    else:
        sys.stdout.write(found.as_csv())


def explore(
    port: Annotated[int, option("port", min=1, max=65535)] = 8765,
    browser: Annotated[bool, option("browser", flag=True)] = True,
    json: Annotated[bool, option("json", "Print where the page is as one JSON object.")] = False,
) -> None:
    """Turn the knobs on a page and see the risk move.

    The page is served on this machine and for this machine only; nothing leaves it.

    \b
    Examples:
      betastar explore
      betastar explore --port 9000 --no-browser
    """
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "plotly") if find_spec(name) is None]
    if missing:
        raise ValueError(f"the page needs {', '.join(missing)}: pip install 'betastar[web]'.")
    from betastar.web.server import serve

    serve(port, browser, json)


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a command to the fields of a setting."""
    fields = {name: options[name] for name in (*RUN, "opacus", "threat", "distance", "method", "prior")}
    lists = {"fpr": "fpr", "delta": "delta", "metrics": "metric"}
    return _whole_epochs(fields | {name: tuple(options[option]) for name, option in lists.items() if options[option]})


def _whole_epochs(fields: dict[str, Any]) -> dict[str, Any]:
    """20.0 epochs are 20: said back as people say it."""
    epochs = fields["epochs"]
    return {**fields, "epochs": int(epochs) if isinstance(epochs, float) and epochs.is_integer() else epochs}


def _read_setting(text: str, base: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A name (or none) and the fields of "noise=3.51,batch=256,name=careful", on top of the base."""
    known = {spelling.removeprefix("--"): name for name, one in RUN.items() for spelling in reversed(one.spellings)}
    known |= {name: name for name in ("threat", "distance", "method", "prior", "name")}
    fields = {**base, "name": ""}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--setting must be as in noise=3.51,batch=256,records=26048,epochs=20, got {part!r}.")
        name = known[settings.choose("--setting", key, known)]
        fields[name] = value if name in ("threat", "method", "name") else _parse_number(value, part)
    return fields.pop("name"), _whole_epochs(fields)


def _parse_number(value: str, part: str) -> float | int:
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"--setting must have a number after the sign, got {part!r}.") from None
    return int(number) if value.isdigit() else number


def wished(texts: list[str] | None) -> list[Any]:
    from betastar.answers import targets

    return [targets.parse(text, "require") for text in texts or ()]


def demand(cases: Iterable[tuple[settings.Setting, str]], wishes: list[Any]) -> None:
    """Exit with 1 unless every wish holds for every setting, at the end of the bound that is not too optimistic."""
    import betastar
    from betastar.cli import printing

    missed = 0
    for setting, name in cases if wishes else ():
        risk = betastar.analyze(setting.run(), setting.attack, method=setting.chosen_method)
        for wish in wishes:
            if not wish.target.met(risk):
                missed += 1
                floor = f", down to FPR {plain(SMALLEST_FPR)}" if wish.metric == "gdp_mu" else ""
                reached = significant(wish.reached(risk), DIGITS, not METRICS[wish.metric].protects)
                printing.complain(f"not met{' by ' + name if name else ''}: {wish}; the number to rely on is {reached}{floor}.")
    if missed:
        raise typer.Exit(1)
