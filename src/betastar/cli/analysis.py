"""The commands that need no training: analyze, calibrate, compare, sweep and explore."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from betastar.answers import settings
from betastar.risk.risk import SMALLEST_FPR
from betastar.rounding import plain, significant
from betastar.vocabulary import METHODS, METRICS, PARAMETERS, RUN, THREATS, TOLD

Noise = Annotated[float | None, typer.Option("--noise", help="Noise multiplier: standard deviation / clipping norm.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Sampling rate: probability of each record at each step.")]
Batch = Annotated[int | None, typer.Option("--batch", help="Batch size, instead of --rate (with --records).")]
Records = Annotated[int | None, typer.Option("--records", help="Number of training records.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Number of updates.")]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Instead of --steps (with --batch and --records).")]
Opacus = Annotated[
    bool | None,
    typer.Option(
        "--opacus/--no-opacus",
        help="With --batch and --records: the rate that Opacus takes, 1/⌈records/batch⌉, or batch/records. "
        "[default: batch/records, and a note where they differ noticeably]",
    ),
]
Attack = Annotated[
    str,
    typer.Option(
        "--threat",
        help="membership (which of two records?), membership-add-remove (this record or none?) or attribute (which value?).",
        autocompletion=lambda: list(THREATS),
    ),
]
Distance = Annotated[
    float | None, typer.Option("--distance", help="Threat attribute: largest distance per step in clipping norms, 0 to 2.")
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="exact, certified, affinity or paper. Default: exact; certified for attribute or noise below 0.5.",
        autocompletion=lambda: list(METHODS),
    ),
]
Prior = Annotated[float, typer.Option("--prior", help="Probability, before the attack, that the guess 'yes' is right.")]
Fpr = Annotated[
    list[float] | None,
    typer.Option("--fpr", metavar="RATE", help="False-positive rate to tell the TPR at; repeat it. [default: .01 .001]"),
]
Delta = Annotated[list[float] | None, typer.Option("--delta", metavar="DELTA", help="δ to tell ε at; repeat it. [default: 1e-5]")]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Only this metric; repeat it. [default: all]",
        autocompletion=lambda: list(TOLD),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require", metavar="LIMIT", help='Exit with 1 unless it holds, as "bayes_security>=0.95" or "tpr<=0.05@fpr=0.01".'
    ),
]


def register(app: typer.Typer) -> None:
    for command in (analyze, calibrate, compare, sweep, explore):
        app.command(rich_help_panel=None)(in_words_of_options(command))


def in_words_of_options(command: Callable[..., None]) -> Callable[..., None]:
    """The core's errors name the option that was wrong."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        from betastar.answers import wording
        from betastar.cli import printing

        options = {name: one.brief for one in PARAMETERS.values() for name in (one.name, *one.arguments)}
        if command is not explore:  # a server must survive a browser that goes away
            printing.quiet_pipe()
        try:
            command(**given)
        except (ValueError, TypeError) as problem:
            raise ValueError(wording.explain(problem, options)) from None
        except ArithmeticError as problem:  # exit code 1 is for --require
            raise ValueError(
                f"these parameters are beyond what this --method can compute ({problem}). Try another one."
            ) from None

    return wrapped


def analyze(
    noise: Noise = None,
    rate: Rate = None,
    batch: Batch = None,
    records: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = "membership",
    distance: Distance = None,
    method: Method = None,
    prior: Prior = 0.5,
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
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help='What must hold: "bayes_security>=0.98", "success<=0.51", "tpr<=0.05@fpr=0.01", "epsilon<=1@delta=1e-5", …',
        ),
    ],
    noise: Noise = None,
    rate: Rate = None,
    batch: Batch = None,
    records: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = "membership",
    distance: Distance = None,
    method: Method = None,
    prior: Prior = 0.5,
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
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            metavar="FIELDS",
            help='One setting, as "noise=3.51,batch=256,records=26048,epochs=20"; a name may be set.',
        ),
    ] = None,
    noise: Noise = None,
    rate: Rate = None,
    batch: Batch = None,
    records: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = "membership",
    distance: Distance = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="Method; repeat it to compare them.", autocompletion=lambda: list(METHODS)),
    ] = None,
    prior: Prior = 0.5,
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
    noise: Annotated[
        str | None, typer.Option("--noise", help="Noise multiplier: a number, 1,2,4, or a grid as .5:5:20log.")
    ] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Sampling rate, or a grid.")] = None,
    batch: Annotated[str | None, typer.Option("--batch", help="Batch size, or a grid.")] = None,
    records: Annotated[str | None, typer.Option("--records", help="Number of training records, or a grid.")] = None,
    steps: Annotated[str | None, typer.Option("--steps", help="Number of updates, or a grid.")] = None,
    epochs: Annotated[str | None, typer.Option("--epochs", help="Epochs, or a grid.")] = None,
    opacus: Opacus = None,
    threat: Attack = "membership",
    distance: Distance = None,
    method: Method = None,
    metric: Annotated[
        str,
        typer.Option("--metric", help="What to tell: bayes_security, advantage, success, tpr@fpr=0.01, epsilon@delta=1e-5, …"),
    ] = "bayes_security",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File: .csv, .json, or a heat map as .png, .svg or .pdf.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    json: Json = False,
) -> None:
    """A metric over a grid, as CSV, JSON or heat map.

    A grid is FIRST:LAST:COUNT, with log for even ratios, or a list with commas. Without --output it is CSV on the terminal.

    \b
    Examples:
      betastar sweep --noise 0.5:5:20log --rate 1e-4:1e-1:20log --steps 1000 -o heat.png
      betastar sweep --noise 1,2,4 --batch 256 --records 50000 --epochs 5:50:10 --metric tpr@fpr=0.01
    """
    from betastar.answers import sweeps
    from betastar.cli import printing

    texts = {
        "noise_multiplier": noise,
        "sample_rate": rate,
        "batch_size": batch,
        "dataset_size": records,
        "steps": steps,
        "epochs": epochs,
    }
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
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port; the next free one is taken if it is busy.")] = 8765,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print where the page is as one JSON object.")] = False,
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
    fields = {name: options[one.brief.removeprefix("--")] for name, one in RUN.items()}
    fields |= {name: options[name] for name in ("opacus", "threat", "distance", "method", "prior")}
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
                reached = significant(wish.reached(risk), 6, not METRICS[wish.metric].protects)
                printing.complain(f"not met{' by ' + name if name else ''}: {wish}; the number to rely on is {reached}{floor}.")
    if missed:
        raise typer.Exit(1)
