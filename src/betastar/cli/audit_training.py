"""The commands `betastar audit training` and `betastar audit one-run`: a study, a run, or training code of one's own."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from betastar.answers.settings import choose
from betastar.cli.audit_mechanism import Into, Seed, app, check_plot, keep, show
from betastar.cli.options import Command, Force, Json, for_pipelines, option
from betastar.vocabulary import THREATS

if TYPE_CHECKING:
    from betastar.audit import Trials

WHAT = (
    "'adult', 'purchase', the folder of a run, or a Python file that defines factory, train, data, run and max_grad_norm (and "
    "perhaps criterion, secret, threat and loss_reduction)."
)
What = Annotated[str, typer.Argument(metavar="STUDY|RUN|FILE.py", help=WHAT)]
OWN = "the study's, or the run's"
Sample = Annotated[int | None, option("sample")]
Epochs = Annotated[int | None, option("epochs", "Studies, runs: number of epochs.", OWN, min=1)]
Batch = Annotated[int | None, option("batch_size", "Studies, runs: batch size.", OWN, min=1)]
Noise = Annotated[float | None, option("noise_multiplier", "Studies, runs: noise multiplier.", OWN, min=0.01)]
Clip = Annotated[float | None, option("max_grad_norm", "Studies, runs: clipping norm.", OWN, min=1e-6)]
Rate = Annotated[float | None, option("learning_rate", "Studies, runs: learning rate.", OWN, min=0.0)]
Hidden = Annotated[list[int] | None, option("hidden", "Studies, runs: width of a hidden layer (repeat it for more).", OWN, min=1)]
Confidence = Annotated[float, option("confidence", "Of the intervals.")]


def training(
    what: What = "adult",
    threat: Annotated[str | None, option("threat", default="the file's, or membership")] = None,
    challenge: Annotated[str, option("challenge")] = "canary",
    sensitive: Annotated[str | None, option("sensitive", "Adult, threat attribute: the column.", "age")] = None,
    value: Annotated[
        list[str] | None, option("value", "Threat attribute: a possible value of the secret (repeat it).", "all")
    ] = None,
    prior: Annotated[
        list[float] | None, option("prior", "Probability of 'it was in', or of each value (repeat it).", "all alike")
    ] = None,
    distance: Annotated[
        float | None, option("distance", "Threat attribute: of the bound, in clipping norms.", "2, which holds for any")
    ] = None,
    games: Annotated[int, option("games", "How many times the model is trained.")] = 400,
    width: Annotated[float, option("width")] = 0.25,
    references: Annotated[int, option("references")] = 512,
    sample: Sample = None,
    epochs: Epochs = None,
    batch_size: Batch = None,
    noise_multiplier: Noise = None,
    max_grad_norm: Clip = None,
    learning_rate: Rate = None,
    hidden: Hidden = None,
    seed: Seed = None,
    confidence: Confidence = 0.95,
    jobs: Annotated[int, option("jobs", "Trainings at a time; -1 for all cores. The result is the same.")] = 1,
    output: Annotated[Path | None, option("output", "Folder for the games: an audit goes on with those that are there.")] = None,
    plot: Annotated[Path | None, option("plot", "Figure of bound and measured curves: .png, .svg or .pdf.")] = None,
    into: Into = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train many times, each time with the challenge in or out (or with another value), and attack the training.

    Three attackers guess: one sees every update, one has the final weights, one can only ask the final model. Exits with 1 if
    the bound is violated.

    \b
    Examples:
      betastar audit training adult --sample 300 --batch-size 30 --epochs 6 --noise 0.7 --challenge most-exposed --jobs 2
      betastar audit training my_training.py --games 200 --jobs 2 -o audits/mine
      betastar audit training runs/adult --sample 1000 --threat attribute --value 20.0 --value 60.0 --challenge 17
    """
    options = dict(locals())
    from betastar.audit import training as play
    from betastar.audit.training_audit.games import CHUNK
    from betastar.cli import printing

    if plot is not None:
        check_plot(plot, force)
    keep(into, "training", force=force)
    told = _told(options)
    about: dict[str, Any] = {"games": games, "seed": seed, "confidence": confidence, "width": width}
    names = ("what", "sensitive", "sample", "epochs", "batch_size", "learning_rate", "hidden")
    about["depends"] = {name: options[name] for name in names} | {
        "noise": noise_multiplier,  # the names by which folders of games know these two
        "clip": max_grad_norm,
        "file": _digest(what),
    }
    about |= {"prior": (prior[0] if len(prior) == 1 else prior) if prior else 0.5, "jobs": jobs, "folder": output}
    if output is not None and (there := len(list(output.glob("games-*.npz")))):
        printing.complain(f"{there * CHUNK} games are in {output} already.")
    with printing.counting("games", games) as tell:
        found = play(**told, references=references, **about, tell=lambda done, _: tell(done))
    if plot is not None:
        from betastar.figures import plots

        plots.save(plots.trials(found), plot.with_suffix(""), plot.suffix[1:])
    keep(into, "training", found.as_dict(), force)
    printing.as_json(found.as_dict()) if json else _print(found, plot)
    if found.violated:
        raise typer.Exit(1)


def one_run(
    what: What = "adult",
    canaries: Annotated[int, option("canaries")] = 500,
    attacker: Annotated[str, option("attacker")] = "updates",
    delta: Annotated[float, option("delta", "δ at which ε is bounded.", None)] = 1e-5,
    sample: Sample = None,
    epochs: Epochs = None,
    batch_size: Batch = None,
    noise_multiplier: Noise = None,
    max_grad_norm: Clip = None,
    learning_rate: Rate = None,
    hidden: Hidden = None,
    seed: Seed = None,
    confidence: Confidence = 0.95,
    into: Into = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train once, with many canaries, and bound from below what the training leaks.

    In a Python file, run may be a function of the number of records, which the canaries add to. Exits with 1 if the claim is
    violated.

    \b
    Examples:
      betastar audit one-run adult --epochs 1 --canaries 1000
      betastar audit one-run my_training.py --canaries 200 --seed 1
    """
    options = dict(locals())
    from betastar.audit import one_run as play
    from betastar.cli import printing

    keep(into, "one-run", force=force)
    told = _told({**options, "threat": "membership-add-remove", "challenge": "canary"})
    names = ("factory", "train", "data", "run", "max_grad_norm", "loss_reduction")
    told = {name: told[name] for name in names if name in told}
    about: dict[str, Any] = {"canaries": canaries, "attacker": attacker, "delta": delta, "seed": seed, "confidence": confidence}
    found = play(**told, **about)
    keep(into, "one-run", {"kind": "one-run", **found.as_dict()}, force)
    printing.as_json(found.as_dict()) if json else print(f"{found.sentence}\nSeed {found.seed}.")
    if found.violated:
        raise typer.Exit(1)


def register() -> None:
    app.command(cls=Command)(for_pipelines(training))
    app.command("one-run", cls=Command)(for_pipelines(one_run))


def _told(options: dict[str, Any]) -> dict[str, Any]:
    """What an audit is told: from a file, a run or a study."""
    from betastar.scenario.threats import FARTHEST, AttributeInference, Membership

    challenge, distance = options["challenge"], options.get("distance")
    threats = {"membership": Membership(), "membership-add-remove": Membership("add-remove"), "attribute": None}
    if options["threat"] is not None:
        choose("threat", options["threat"], THREATS)
    told = _file(options) if options["what"].endswith(".py") else _study(options)
    if options["threat"] is not None or "threat" not in told:
        told["threat"] = threats[options["threat"] or "membership"]
    if isinstance(told["threat"], Membership):
        told.pop("secret", None)
        return told
    if "secret" not in told:
        raise ValueError(f"--threat attribute needs a secret in {options['what']}, got none.")
    told["threat"] = told["threat"] or AttributeInference(FARTHEST if distance is None else distance)
    told["values"] = _values(told["secret"], options.get("value"))
    told["challenge"] = "random" if challenge == "canary" else told["challenge"]
    return told


def _values(secret: Any, wanted: list[str] | None) -> list[Any] | None:
    """Values as they are written."""
    if not wanted:
        return None
    known = {str(label): label for label in secret.labels}
    if missing := [one for one in wanted if one not in known]:
        shown = ", ".join(list(known)[:8])
        raise ValueError(f"--value must be one of the values of {secret.name!r} ({shown}, …), got {missing[0]!r}.")
    return [known[one] for one in wanted]


def _file(options: dict[str, Any]) -> dict[str, Any]:
    import runpy

    path, challenge = options["what"], options["challenge"]
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r}.")
    names = runpy.run_path(path)
    needed = ("factory", "train", "data", "run", "max_grad_norm")
    if missing := [name for name in needed if name not in names]:
        raise ValueError(f"{path} must define {', '.join(needed)}; it has no {missing[0]}.")
    optional = ("criterion", "secret", "threat", "loss_reduction")
    return {name: names[name] for name in (*needed, *optional) if name in names} | {"challenge": _number(challenge)}


def _digest(what: str) -> str | None:
    """Of training code, so that games of other code are not taken for its own."""
    return hashlib.sha256(Path(what).read_bytes()).hexdigest() if Path(what).is_file() else None


def _number(challenge: str) -> Any:
    return int(challenge) if challenge.isdigit() else challenge


def _study(options: dict[str, Any]) -> dict[str, Any]:
    from betastar.runs.config import Config
    from betastar.studies.audited import MOST_EXPOSED, attacked, exposed_in, of_run

    what, challenge = options["what"], options["challenge"]
    folder = Path(what).is_dir()
    if folder and options.get("sensitive") is not None:
        raise ValueError(f"--sensitive must be left out for a run, whose secret is its own, got {options['sensitive']!r}.")
    config = of_run(what) if folder else Config(study=what, sensitive=options.get("sensitive"), seed=0)
    names = ("epochs", "batch_size", "noise_multiplier", "max_grad_norm", "learning_rate")
    given: dict[str, Any] = {name: options[name] for name in names if options[name] is not None}
    if options["hidden"]:
        given["hidden"] = tuple(options["hidden"])
    config = replace(config, **given)
    wanted = _number(challenge)
    if challenge == MOST_EXPOSED and folder:
        wanted = exposed_in(what)
    study = attacked(config, options["sample"], wanted if isinstance(wanted, int) else None)
    if wanted == MOST_EXPOSED:
        wanted = study.most_exposed()
    elif isinstance(wanted, int):
        wanted = study.chosen.index(wanted)
    return {
        "factory": study.factory,
        "train": study.train,
        "data": study.data,
        "run": study.run if "canaries" in options else study.run(),
        "max_grad_norm": study.max_grad_norm,
        "secret": study.study.secret,
        "challenge": wanted,
    }


def _print(found: Trials, plot: Path | None) -> None:
    from betastar.figures.plots import WHO

    show(found.sentence, {WHO[place]: audit for place, audit in found.audits.items()})
    print(f"Challenge: {found.challenge}.")
    if found.leakage is not None:
        print(f"\nWithout a model of the attack: {found.leakage.sentence}\n{found.leakage.caveat}")
    if plot is not None:
        print(f"The curves are in {plot}.")
