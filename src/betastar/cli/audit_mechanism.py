"""The command `betastar audit mechanism`, and what all audits print and keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from betastar import files
from betastar.answers.settings import Setting
from betastar.audit import Audit
from betastar.audit.results import table
from betastar.cli.analysis import demand, wished
from betastar.cli.options import Fields, JsonOption, RequireOption, command, option
from betastar.runs.folder import RunFolder
from betastar.runs.reading import Json

app = typer.Typer(
    name="audit",
    help="Play the attacker's game many times, and compare how often they are right with the bound.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class MechanismOptions:
    games: int = 100_000
    seed: int | None = None
    confidence: float = option(0.95, "Confidence of the intervals and of the band.")
    width: float = 0.2
    jobs: int = 1
    plot: Path | None = option(None, "File for a figure of the bound and the measured curve: .png, .svg or .pdf.")
    log: bool = False


@dataclass(frozen=True)
class KeepOptions:
    """Where the result of an audit is kept."""

    into: Path | None = None
    force: bool = False


@command(app)
def mechanism(
    setting: Annotated[Setting, Fields(without=("method", "tolerance", "fpr", "delta", "metrics"))],
    options: MechanismOptions,
    kept: KeepOptions,
    required: RequireOption,
    printed: JsonOption,
) -> None:
    """Play games on the mechanism itself, with worst-case gradients and the best attacker there is.

    Exits with 1 if the bound is violated: measured success that has probability below 0.001 if the bound holds.

    \b
    Examples:
      betastar audit mechanism --noise 3.51 --batch 256 --records 26048 --epochs 20 --jobs 2
      betastar audit mechanism --noise 1 --rate 0.01 --steps 500 --threat attribute --distance 0.8 --plot roc.png --seed 1
    """
    from betastar.audit import mechanism as play
    from betastar.cli import printing

    wishes, run = wished(required), setting.run()
    for notice in setting.rate_notice:
        printing.complain(notice)
    check_plot(options.plot, kept.force)
    keep(kept, "mechanism")
    with printing.counting("games", options.games) as tell:
        audit = play(
            run,
            setting.attack,
            options.games,
            options.seed,
            options.confidence,
            options.jobs,
            lambda done, _: tell(done),
            prior=setting.prior,
            width=options.width,
        )
    if options.plot is not None:
        from betastar.figures import plots

        plots.save(plots.audit(audit, log=options.log), options.plot.with_suffix(""), options.plot.suffix[1:])
    keep(kept, "mechanism", {"kind": "mechanism", **audit.as_dict()})
    if printed.json:
        printing.as_json(audit.as_dict())
    else:
        show(audit.sentence, {f"the best there is, gradients {audit.pair}": audit})
        if options.plot is not None:
            print(f"The curve is in {options.plot}.")
    demand([(setting, "")], wishes)
    if audit.violated:
        raise typer.Exit(1)


@dataclass(frozen=True)
class MechanismCanariesOptions:
    canaries: int = option(1000, "Number of canaries.")
    values: int | None = None
    guesses: int | None = None
    delta: float = option(1e-5, "δ at which ε is bounded.")
    seed: int | None = None
    confidence: float = option(0.95, "Confidence of the lower bounds.")
    actual_noise: float | None = None


@command(app, "one-run-mechanism")
def one_run_mechanism(
    setting: Annotated[Setting, Fields(without=("method", "tolerance", "fpr", "delta", "metrics", "prior", "sees"))],
    options: MechanismCanariesOptions,
    printed: JsonOption,
) -> None:
    """Play one run of the mechanism with many canaries, and test the trade-off curve that is claimed.

    No model is trained. With --actual-noise it shows whether an audit in one run would find a training whose noise is not what it
    claims. Exits with 1 if the claim is violated.

    \b
    Examples:
      betastar audit one-run-mechanism --noise 1 --rate 0.05 --steps 100 --threat membership-add-remove --seed 1
      betastar audit one-run-mechanism --noise 1 --rate 0.05 --steps 100 --actual-noise 0.3 --canaries 2000 --seed 1
      betastar audit one-run-mechanism --noise 2 --rate 0.5 --steps 4 --threat attribute --distance 1 --values 4
    """
    from betastar.audit import one_run_mechanism as play
    from betastar.cli import printing

    run, actual = setting.run(), None
    for notice in setting.rate_notice:
        printing.complain(notice)
    if options.actual_noise is not None:
        actual = replace(setting, noise_multiplier=options.actual_noise).run()
    told = {name: value for name, value in vars(options).items() if name != "actual_noise"}
    result = play(run, setting.attack, **told, actual=actual)
    printing.as_json(result.as_dict()) if printed.json else print(f"{result.sentence}\nSeed {result.seed}.")
    if result.violated:
        raise typer.Exit(1)


@app.callback()
def _several() -> None:
    """A command of its own for each kind of game."""


def show(sentence: str, audits: dict[str, Audit]) -> None:
    """The verdict, and what was measured beside the bound: a column for each attacker."""
    from betastar.cli import printing

    first = next(iter(audits.values()))
    titles, columns = table(audits)
    shown = printing.console()
    shown.print(sentence, style="bold")
    shown.print()
    printing.beside(shown, titles, list(audits), columns)
    print(f"\nPlayed: {first.threat.describe()}, seed {first.seed}.")


def keep(options: KeepOptions, kind: str, result: Json | None = None) -> None:
    """The result of an audit in the folder of a run, where its report finds it; without a result, see that there is a place."""
    folder = options.into
    if folder is None:
        return
    run = RunFolder(folder)
    path = run.audit_path(kind)
    if not run.begun:
        raise ValueError(f"--into must be the folder of a run, got {str(folder)!r}.")
    run.check_format()
    files.check(path)
    if path.exists() and not options.force:
        raise ValueError(f"--into {str(folder)!r} has an audit of this kind already; write over it with --force.")
    if result is not None:
        run.write_audit(kind, result)


def check_plot(path: Path | None, force: bool) -> None:
    """That a figure can be written, before anything is played."""
    from betastar.answers.sweeps import PICTURES

    if path is None:
        return
    if path.suffix not in PICTURES:
        raise ValueError(f"--plot must end with one of {', '.join(PICTURES)}, got {str(path)!r}.")
    files.check(path)
    if path.exists() and not force:
        raise ValueError(f"--plot {str(path)!r} is there already; choose another name, or write over it with --force.")
    if not path.parent.is_dir():
        raise ValueError(f"--plot must be in a folder that exists, got {str(path)!r}.")
    if find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'betastar[plots]'.")
