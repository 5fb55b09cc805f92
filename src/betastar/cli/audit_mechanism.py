"""The command `betastar audit`: games against the bound."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from betastar import files
from betastar.answers import settings
from betastar.audit import Audit
from betastar.cli.analysis import demand, fields_of, wished
from betastar.cli.options import (
    Attack,
    Batch,
    Command,
    Distance,
    Epochs,
    Force,
    Json,
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
from betastar.rounding import nearest, significant
from betastar.runs.folder import RunFolder
from betastar.vocabulary import PARAMETERS

Seed = Annotated[int | None, option("seed")]
Into = Annotated[Path | None, option("into")]

app = typer.Typer(
    name="audit",
    help="Play the attacker's game, and see that nobody beats the bound.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def mechanism(
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    batch_size: Batch = None,
    dataset_size: Records = None,
    steps: Steps = None,
    epochs: Epochs = None,
    opacus: Opacus = None,
    threat: Attack = PARAMETERS["threat"].default,
    distance: Distance = None,
    prior: Prior = PARAMETERS["prior"].default,
    games: Annotated[int, option("games")] = 100_000,
    seed: Seed = None,
    confidence: Annotated[float, option("confidence")] = 0.95,
    width: Annotated[float, option("width")] = 0.2,
    jobs: Annotated[int, option("jobs")] = 1,
    plot: Annotated[Path | None, option("plot")] = None,
    log: Annotated[bool, option("log")] = False,
    into: Into = None,
    force: Force = False,
    require: Require = None,
    json: Json = False,
) -> None:
    """Games on the mechanism itself: worst-case gradients, and the best attacker there is.

    Exits with 1 if the bound is violated: measured success that has probability below 0.001 if the bound holds.

    \b
    Examples:
      betastar audit mechanism --noise 3.51 --batch 256 --records 26048 --epochs 20 --jobs 2
      betastar audit mechanism --noise 1 --rate 0.01 --steps 500 --threat attribute --distance 0.8 --plot roc.png --seed 1
    """
    options = dict(locals())
    from betastar.audit import mechanism as play
    from betastar.cli import printing

    setting = settings.Setting(**fields_of({**options, "method": None, "fpr": None, "delta": None, "metric": None}))
    wishes, run = wished(require), setting.run()
    for notice in setting.rate_notice:
        printing.complain(notice)
    if plot is not None:
        check_plot(plot, force)
    keep(into, "mechanism", force=force)
    with printing.counting("games", games) as tell:
        audit = play(run, setting.attack, games, seed, confidence, jobs, lambda done, _: tell(done), prior=prior, width=width)
    if plot is not None:
        from betastar.figures import plots

        plots.save(plots.audit(audit, log=log), plot.with_suffix(""), plot.suffix[1:])
    keep(into, "mechanism", {"kind": "mechanism", **audit.as_dict()}, force)
    if json:
        printing.as_json(audit.as_dict())
    else:
        show(audit.sentence, {f"the best there is, gradients {audit.pair}": audit})
        if plot is not None:
            print(f"The curve is in {plot}.")
    demand([(setting, "")], wishes)
    if audit.violated:
        raise typer.Exit(1)


app.command(cls=Command)(for_pipelines(mechanism))


@app.callback()
def _several() -> None:
    """A command of its own for each kind of game."""


def show(sentence: str, audits: dict[str, Audit]) -> None:
    """The verdict, and what was measured beside the bound: a row for each attacker."""
    from betastar.cli import printing

    first = next(iter(audits.values()))
    interval = f"{100 * first.confidence:g} % interval"
    heads = ("attacker", "games", "right guesses", interval, "at most", "advantage", "bound", "p-value")
    rows = [
        (
            who,
            f"{audit.games:,}",
            nearest(audit.success.estimate),
            f"{significant(audit.success.lower, 4, False)} to {significant(audit.success.upper, 4)}",
            significant(audit.allowed.upper, 4),
            nearest(audit.advantage.estimate),
            significant(audit.bound.upper, 4),
            f"{audit.p_value:.2g}",
        )
        for who, audit in audits.items()
    ]
    printing.titled(sentence, heads, rows)
    print(f"\nPlayed: {first.threat.describe()}, seed {first.seed}.")


def keep(folder: Path | None, kind: str, found: dict[str, Any] | None = None, force: bool = False) -> None:
    """The result of an audit in the folder of a run, where its report finds it; without a result, see that there is a place."""
    if folder is None:
        return
    run = RunFolder(folder)
    path = run.audit_path(kind)
    if not run.begun:
        raise ValueError(f"--into must be the folder of a run, got {str(folder)!r}.")
    run.check_format()
    files.check(path)
    if path.exists() and not force:
        raise ValueError(f"--into {str(folder)!r} has an audit of this kind already; write over it with --force.")
    if found is not None:
        run.write_audit(kind, found)


def check_plot(path: Path, force: bool) -> None:
    """Before anything is played."""
    from betastar.answers.sweeps import PICTURES

    if path.suffix not in PICTURES:
        raise ValueError(f"--plot must end with one of {', '.join(PICTURES)}, got {str(path)!r}.")
    files.check(path)
    if path.exists() and not force:
        raise ValueError(f"--plot {str(path)!r} is there already; choose another name, or write over it with --force.")
    if not path.parent.is_dir():
        raise ValueError(f"--plot must be in a folder that exists, got {str(path)!r}.")
    if find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'betastar[plots]'.")
