"""The commands `betastar audit …`: training code by the ladder, games on trainings, and the mechanism itself."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from betastar import files, validation
from betastar.cli import options as opt
from betastar.cli import printing
from betastar.cli.analysis import PICTURES, demand, required
from betastar.cli.answers import Question, threat_of
from betastar.runs.folder import RunFolder
from betastar.runs.reading import Json
from betastar.threats import FARTHEST, Membership, Threat
from betastar.tuning import best_of
from betastar.validation import WrongTypeError

if TYPE_CHECKING:
    from betastar.audit.common import Verdict
    from betastar.training import Secret


class _FileFirst(TyperGroup):
    """A Python file in place of a command is audited by the ladder: `betastar audit FILE.py`."""

    def resolve_command(self, context: Any, words: list[str]) -> Any:
        of_file = bool(words) and words[0].rpartition(":")[0 if ".py:" in words[0] else 2].endswith(".py")
        return super().resolve_command(context, ["code", *words] if of_file else words)


app = typer.Typer(
    name="audit",
    cls=_FileFirst,
    help="Audit training code (betastar audit FILE.py), or the mechanism: see what an attacker may find out, and compare it with "
    "the bound.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: What a file of `audit games` must define, and what it may.
NEEDED = ("factory", "train", "data", "run", "max_grad_norm")
OPTIONAL = ("criterion", "secret", "threat", "gap", "split", "loss_reduction", "divisor")
#: What a file of the ladder may define besides the function and its data: arguments of `betastar.audit.training_code`.
OF_CODE: tuple[str, ...] = ("run", "threat", "max_grad_norm", "divisor", "replacements", "secret", "values", "split", "criterion")
OF_CODE += ("loss_reduction", "returns")
REPLAYED = {"membership": Membership(), "membership-add-remove": Membership("add-remove")}

# ---- Options of several audits

Seed = Annotated[int | None, typer.Option("--seed", help="Seed of the audit. [default: drawn, and reported]")]
Confidence = Annotated[float, typer.Option("--confidence", help="Confidence of the intervals.")]
Width = Annotated[float, typer.Option("--width", help="Widest interval of the advantage that is accepted.")]
Jobs = Annotated[int, typer.Option("--jobs", help="Number of processes; -1 for all cores. The result does not depend on it.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder where games are kept; an audit goes on with these.")]
Into = Annotated[Path | None, typer.Option("--into", help="Folder of a run, where the result is kept for its report.")]
InOneRun = Annotated[bool, typer.Option("--one-run", help="Play once, with many canaries, and test the claimed trade-off curve.")]
Canaries = Annotated[int, typer.Option("--canaries", help="With --one-run: number of canaries; about half of them are in.")]
Values = Annotated[
    int | None, typer.Option("--values", help="With --one-run: number of values of a canary. [default: each is in or out]")
]
Guesses = Annotated[
    int | None, typer.Option("--guesses", help="With --one-run: number of guesses, the surest. [default: what suits the claim]")
]
OneDelta = Annotated[float, typer.Option("--delta", help="With --one-run: δ at which ε is bounded.")]
#: Options of audits in one run.
OF_ONE_RUN = ("canaries", "values", "guesses", "delta", "actual_noise", "attacker")
What = Annotated[
    str,
    typer.Argument(
        metavar="STUDY|RUN|FILE.py",
        help=f"'adult', the folder of a run, or a Python file that defines {', '.join(NEEDED[:-1])} and {NEEDED[-1]} (and "
        f"perhaps {', '.join(OPTIONAL[:-1])} and {OPTIONAL[-1]}).",
    ),
]
#: What an option is said to be unless it is given.
UNCHANGED = "[default: as in the run; adult: its usual one]"


@app.callback()
def _several() -> None:
    """A command of its own for each kind of game."""


# ---- The mechanism


@opt.command(app)
def mechanism(
    context: typer.Context,
    noise_multiplier: opt.NoiseMultiplier = None,
    sample_rate: opt.SampleRate = None,
    batch_size: opt.BatchSize = None,
    dataset_size: opt.DatasetSize = None,
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    opacus: opt.Opacus = None,
    sampling: opt.Sampling = "poisson",
    max_batch_size: opt.MaxBatchSize = None,
    trials: opt.NumberOfTrials = None,
    trials_law: opt.TrialsLaw = "fixed",
    threat: opt.ThreatName = "membership",
    distance: opt.Distance = None,
    records_per_person: opt.RecordsPerPerson = None,
    prior: opt.Prior = opt.PRIOR,
    games: Annotated[int, typer.Option("--games", help="How many games are played.")] = 100_000,
    seed: Seed = None,
    confidence: Confidence = 0.95,
    width: Width = 0.2,
    jobs: Jobs = 1,
    plot: opt.Plot = None,
    log: Annotated[bool, typer.Option("--log", help="With --plot: logarithmic axes, which show rare false alarms.")] = False,
    into: Into = None,
    force: opt.Force = False,
    require: opt.Require = None,
    one_run: InOneRun = False,
    canaries: Canaries = 1000,
    values: Values = None,
    guesses: Guesses = None,
    delta: OneDelta = 1e-5,
    actual_noise: Annotated[
        float | None,
        typer.Option(
            "--actual-noise",
            help="With --one-run: noise multiplier that was really run, if it is not what is claimed. [default: the claimed one]",
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Play games on the mechanism itself, with worst-case gradients and the best attacker there is. No model is trained.

    Exits with 1 if the bound is violated: measured success that has probability below 0.001 if the bound holds. With --one-run
    and --actual-noise it shows whether an audit in one run would find a training whose noise is not what it claims.

    \b
    Examples:
      betastar audit mechanism --noise 3.51 --batch 256 --records 26048 --epochs 20 --jobs 2
      betastar audit mechanism --noise 1 --rate 0.01 --steps 500 --threat attribute --distance 0.8 --plot roc.png --seed 1
      betastar audit mechanism --noise 2 --rate 0.01 --steps 300 --trials 20 --games 20000 --seed 1
      betastar audit mechanism --one-run --noise 1 --rate 0.05 --steps 100 --actual-noise 0.3 --canaries 2000 --seed 1
      betastar audit mechanism --one-run --noise 2 --rate 0.5 --steps 4 --threat attribute --distance 1 --values 4
    """
    from betastar.audit import mechanism as play
    from betastar.audit import one_run_mechanism

    question, targets = Question.of({name: value for name, value in locals().items() if name != "delta"}), required(require)
    many = ("trials", "prior", "games", "width", "jobs", "plot", "log", "into", "require")
    _refuse_other_options(context, one_run, many)
    run = question.run
    for notice in question.rate_notices:
        printing.complain(notice)
    if one_run:
        actual = None if actual_noise is None else replace(question, noise_multiplier=actual_noise).run
        told: Json = {"canaries": canaries, "values": values, "guesses": guesses, "delta": delta, "seed": seed}
        _finish(one_run_mechanism(run, question.attack, **told, confidence=confidence, actual=actual), json)
        return
    _check_plot(plot, force)
    _keep(into, force, "mechanism")
    done = run if question.law is None else best_of(run, question.law)
    with printing.counting("games", games) as tell:
        audit = play(done, question.attack, games, seed, confidence, jobs, lambda done, _: tell(done), prior=prior, width=width)
    if plot is not None:
        from betastar import plots

        plots.save(plots.audit(audit, log=log), plot.with_suffix(""), plot.suffix[1:])
    _keep(into, force, "mechanism", {"kind": "mechanism", **audit.as_dict()})
    _finish(audit, json, plot, lambda: demand([(question, "")], targets))


# ---- Trainings


@opt.command(app)
def games(
    context: typer.Context,
    what: What = "adult",
    threat: Annotated[
        str | None,
        typer.Option("--threat", metavar="NAME", help=f"{', '.join(opt.THREATS)}. [default: the file's, or membership]"),
    ] = None,
    challenge: Annotated[
        str,
        typer.Option(
            "--challenge",
            help="canary (the worst case), layers (a record that pushes each layer), the number of a record (with commas: of a "
            "person), or most-exposed (the record that the ledger names first).",
        ),
    ] = "canary",
    sensitive: Annotated[str | None, typer.Option("--sensitive", help="Adult: the sensitive column. [default: age]")] = None,
    value: Annotated[
        list[str] | None,
        typer.Option("--value", help="With threat attribute: a value of the secret (may be repeated). [default: all]"),
    ] = None,
    prior: Annotated[
        list[float] | None,
        typer.Option("--prior", help="Probability that the record was in, or of each value (may be repeated). [default: alike]"),
    ] = None,
    distance: Annotated[
        float | None,
        typer.Option("--distance", help="With threat attribute: distance of the bound. [default: the gap that is clipped, or 2]"),
    ] = None,
    records_per_person: opt.RecordsPerPerson = None,
    games: Annotated[int, typer.Option("--games", help="How many times the model is trained.")] = 400,
    width: Width = 0.25,
    references: Annotated[
        int, typer.Option("--references", help="Number of records by which the attacker estimates what the others contribute.")
    ] = 512,
    sample: Annotated[int | None, typer.Option("--sample", help="Number of training records. [default: all]")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help=f"Number of epochs. {UNCHANGED}")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "--batch", min=1, help=f"Batch size. {UNCHANGED}")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", "--noise", min=0.01, help=f"Noise multiplier. {UNCHANGED}")
    ] = None,
    max_grad_norm: Annotated[
        float | None, typer.Option("--max-grad-norm", "--clip", min=1e-6, help=f"Clipping norm. {UNCHANGED}")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", min=0.0, help=f"Learning rate. {UNCHANGED}")
    ] = None,
    hidden: Annotated[
        list[int] | None,
        typer.Option("--hidden", min=1, help=f"Width of a hidden layer (may be repeated, for several layers). {UNCHANGED}"),
    ] = None,
    seed: Seed = None,
    confidence: Confidence = 0.95,
    jobs: Jobs = 1,
    output: Output = None,
    plot: opt.Plot = None,
    one_run: InOneRun = False,
    canaries: Canaries = 500,
    values: Values = None,
    guesses: Guesses = None,
    attacker: Annotated[
        str, typer.Option("--attacker", help="With --one-run: what the attacker sees, updates or weights (the final ones).")
    ] = "updates",
    delta: OneDelta = 1e-5,
    into: Into = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Train many times, each time with the challenge in or out (or with another value), and attack the training.

    Three attackers guess: one sees every update, one has the final weights, one can only ask the final model. With --one-run the
    model is trained once: each canary is in or out, or has one of several values, and the attacker guesses the surest of them; in
    a Python file, run may be a function of the number of records, which the canaries add to. Exits with 1 if the bound is
    violated.

    \b
    Examples:
      betastar audit games adult --one-run --epochs 1 --canaries 1000
      betastar audit games my_training.py --one-run --canaries 200 --values 4 --seed 1
      betastar audit games adult --sample 300 --batch-size 30 --epochs 6 --noise 0.7 --challenge most-exposed --jobs 2
      betastar audit games my_training.py --games 200 --jobs 2 -o audits/mine
      betastar audit games runs/adult --sample 1000 --threat attribute --value 20.0 --value 60.0 --challenge 17
    """
    from betastar.audit import games as play
    from betastar.audit import one_run as play_once
    from betastar.audit.rungs.games import CHUNK

    asked = dict(locals())
    changes = {name: asked[name] for name in CHANGES}
    attack = {name: asked[name] for name in ATTACK}
    many = ("threat", "challenge", "sensitive", "value", "prior", "distance", "records_per_person", "games", "width")
    _refuse_other_options(context, one_run, (*many, "references", "jobs", "output", "plot"))
    if one_run:
        _keep(into, force, "one-run")
        told = _attacked(what, {**attack, "threat": "membership-add-remove"}, changes, canaries=True)
        given = {name: told[name] for name in (*NEEDED, "loss_reduction", "split", "divisor") if name in told}
        once: Json = {"values": values, "guesses": guesses, "attacker": attacker, "delta": delta, "seed": seed}
        with printing.phase(f"training once, with {canaries} canaries"):
            result = play_once(**given, canaries=canaries, **once, confidence=confidence)
        _keep(into, force, "one-run", {"kind": "one-run", **result.as_dict()})
        _finish(result, json)
        return
    _check_plot(plot, force)
    _keep(into, force, "training")
    exposed = ", and training once to find the record that is exposed most" if challenge == "most-exposed" else ""
    with printing.phase(f"preparing {what}{exposed}"):
        told = _attacked(what, attack, changes)
    if output is not None and (there := len(list(output.glob("games-*.npz")))):
        printing.complain(f"{there * CHUNK} games are in {output} already.")
    told |= {"prior": (prior[0] if len(prior) == 1 else prior) if prior else 0.5, "jobs": jobs, "folder": output, "seed": seed}
    with printing.counting("games", games) as tell:
        trials = play(
            **told,
            games=games,
            width=width,
            references=references,
            confidence=confidence,
            depends=_depends(what, attack, changes),
            tell=lambda done, _: tell(done),
        )
    if plot is not None:
        from betastar import plots

        plots.save(plots.trials(trials), plot.with_suffix(""), plot.suffix[1:])
    _keep(into, force, "training", trials.as_dict())
    _finish(trials, json, plot)


#: Options of games: what is changed of a study or a run, and who attacks what.
CHANGES = ("sample", "epochs", "batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden")
ATTACK = ("threat", "challenge", "sensitive", "value", "distance", "records_per_person")


def _attacked(what: str, attack: Json, changes: Json, canaries: bool = False) -> Json:
    """The arguments of an audit that say what is trained, and who attacks it: from a file, a run or a study."""
    if attack["threat"] is not None:
        validation.word("threat", attack["threat"], opt.THREATS)
    told = _file(what, attack) if what.endswith(".py") else _study(what, attack, changes, canaries)
    if attack["threat"] is not None or "threat" not in told:
        told["threat"] = _threat(attack, told.get("gap"))
    if isinstance(told["threat"], Membership):
        for name in ("secret", "gap"):
            told.pop(name, None)
        return told
    if "secret" not in told:
        raise ValueError(f"--threat {attack['threat'] or 'attribute'} needs a secret in {what}, got none.")
    told["values"] = _values(told["secret"], attack["value"])
    told["challenge"] = "random" if attack["challenge"] == "canary" else told["challenge"]
    return told


def _threat(attack: Json, gap: float | None) -> Threat:
    """The threat of the options; unless its distance is given, it is the gap, or the largest that there is."""
    name = attack["threat"] or "membership"
    distance = (FARTHEST if gap is None else gap) if attack["distance"] is None else attack["distance"]
    return threat_of(name, distance if name == "attribute" else None, attack["records_per_person"])


def _values(secret: Secret, wanted: Sequence[str] | None) -> list[object] | None:
    """Values as they are written."""
    if not wanted:
        return None
    known = {str(label): label for label in secret.labels}
    if missing := [one for one in wanted if one not in known]:
        shown = ", ".join(list(known)[:8])
        raise ValueError(f"--value must be one of the values of {secret.name!r} ({shown}, …), got {missing[0]!r}.")
    return [known[one] for one in wanted]


def _file(path: str, attack: Json) -> Json:
    """What training code of one's own defines."""
    names = names_of(path)
    if missing := [name for name in NEEDED if name not in names]:
        raise ValueError(f"{path} must define {', '.join(NEEDED)}; it has no {missing[0]}.")
    return {name: names[name] for name in (*NEEDED, *OPTIONAL) if name in names} | {"challenge": _number(attack["challenge"])}


def names_of(path: str) -> Json:
    """What a Python file defines."""
    import runpy

    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r}.")
    return runpy.run_path(path)


def _depends(what: str, attack: Json, changes: Json) -> Json:
    """What the games of a folder depend on, by the names that folders of games have for it."""
    given = {**changes, "hidden": list(changes["hidden"] or ()) or None}
    return {
        "what": what,
        "sensitive": attack["sensitive"],
        **{name: given[name] for name in ("sample", "epochs", "batch_size", "learning_rate", "hidden")},
        "noise": changes["noise_multiplier"],
        "clip": changes["max_grad_norm"],
        "file": hashlib.sha256(Path(what).read_bytes()).hexdigest() if Path(what).is_file() else None,
    }


def _number(challenge: str) -> int | list[int] | str:
    """The number of a record, the numbers of a person's records, or a word."""
    parts = challenge.split(",")
    if not all(part.isdigit() for part in parts):
        return challenge
    numbers = [int(part) for part in parts]
    return numbers if len(numbers) > 1 else numbers[0]


def _study(what: str, attack: Json, changes: Json, canaries: bool) -> Json:
    """A study or a run as an audit wants it."""
    from betastar.runs.audited import MOST_EXPOSED, attacked, exposed_in, of_run
    from betastar.runs.config import Config
    from betastar.runs.loop import criterion_of

    folder = Path(what).is_dir()
    if folder and attack["sensitive"] is not None:
        raise ValueError(f"--sensitive must be left out for a run, whose secret is its own, got {attack['sensitive']!r}.")
    config = of_run(what) if folder else Config(study=what, sensitive=attack["sensitive"], seed=0)
    # The sample of an audit is taken of the training records, not of the data set.
    changed = {name: value for name, value in changes.items() if name != "sample" and value}
    config = replace(config, **changed | ({"hidden": tuple(changes["hidden"])} if changes["hidden"] else {}))
    wanted = _number(attack["challenge"])
    if wanted == MOST_EXPOSED and folder:
        wanted = exposed_in(what)
    trained = attacked(config, changes["sample"], wanted if isinstance(wanted, int) else None)
    if wanted == MOST_EXPOSED:
        wanted = trained.most_exposed()
    elif isinstance(wanted, int):
        wanted = trained.chosen.index(wanted)
    elif isinstance(wanted, list):
        if outside := [one for one in wanted if one not in trained.chosen]:
            raise ValueError(f"--challenge must be records of the sample, the first {len(trained.chosen)}, got {outside[0]}.")
        wanted = [trained.chosen.index(one) for one in wanted]
    return {
        "factory": trained.factory,
        "train": trained.train,
        "data": trained.data,
        "run": trained.run if canaries else trained.run(),
        "max_grad_norm": trained.max_grad_norm,
        "criterion": criterion_of(trained.data),
        "secret": trained.study.secret,
        "gap": trained.gap,
        "challenge": wanted,
    }


# ---- Code


@opt.command(app)
def code(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:FUNCTION]",
            help="A Python file that defines data and a function of them that trains, with the function's name after a colon "
            f"(train unless it is given). It may define {', '.join(OF_CODE[:-1])} and {OF_CODE[-1]}, and a factory of models for "
            "a function of (model, data).",
        ),
    ],
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat",
            metavar="NAME",
            help=f"What differs: {' (another record) or '.join(REPLAYED)} (no record). [default: the file's, or membership]",
        ),
    ] = None,
    record: Annotated[
        int | None,
        typer.Option("--record", help="Number of the record that differs between the replays. [default: some that are drawn]"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of steps after which a replay is ended.")] = 20,
    canaries: Annotated[
        int, typer.Option("--canaries", min=0, help="Number of canaries of the one run; 0 leaves it out. It needs a factory.")
    ] = 500,
    games: Annotated[int, typer.Option("--games", min=0, help="Number of games, which train again and again.")] = 0,
    limit: Annotated[
        float, typer.Option("--limit", min=1.0, help="Seconds after which a training of a replay is ended.")
    ] = 600.0,
    jobs: Jobs = 1,
    output: Output = None,
    seed: Seed = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="PROMISE", help="A promise that is not wanted, such as output (may be repeated)."),
    ] = None,
    into: Into = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Audit training code by one ladder: a replay (seconds), one run with many canaries (a minute), and games on request.

    The replay trains on data that differ in one record, with the same random numbers, and says which promise breaks, at which
    step and parameter. The word code may be left out. Exits with 1 if something is found; the verdict says what was not compared.

    \b
    Examples:
      betastar audit my_training.py
      betastar audit my_training.py:fit --threat membership-add-remove --steps 50 --seed 1
      betastar audit my_training.py --games 200 --jobs 2 -o audits/mine
      betastar audit my_training.py --ignore output --json --into runs/adult
    """
    from betastar.audit import training_code

    _keep(into, force, "code")
    told = _told(file)
    if threat is not None:
        if threat not in REPLAYED:
            raise ValueError(f"--threat must be one of {', '.join(REPLAYED)}, got {threat!r}.")
        told["threat"] = REPLAYED[threat]
        told.pop("secret", None)
    told |= {"record": record, "steps": steps, "limit": limit, "ignore": tuple(ignore or ()), "seed": seed}
    with printing.phase(f"auditing {file}"):
        result = training_code(**told, canaries=canaries, games=games, jobs=jobs, folder=output)
    _keep(into, force, "code", result.as_dict())
    _finish(result, json)


def _told(file: str) -> Json:
    """The arguments of a replay that a file defines."""
    path, _, name = file.rpartition(":") if ".py:" in file else (file, "", "train")
    names = names_of(path)
    if missing := [one for one in (name, "data") if one not in names]:
        raise ValueError(f"{path} must define {missing[0]}, got {', '.join(one for one in names if one[:1] != '_')}.")
    told = {one: names[one] for one in OF_CODE if one in names} | {"train": names[name], "data": names["data"]}
    if not callable(names[name]):
        raise ValueError(f"{name} of {path} must be a function, got {names[name]!r}.")
    given = [one for one in inspect.signature(names[name]).parameters.values() if one.default is one.empty]
    if len(given) not in (1, 2):
        raise ValueError(
            f"{name} of {path} must take data, or (data, seed), or (model, data) beside a factory of models, got {len(given)} "
            "arguments."
        )
    if len(given) == 2 and "factory" in names and given[1].name != "seed":
        told["factory"] = names["factory"]
    return told


# ---- What all audits print and keep


def _refuse_other_options(context: typer.Context, one_run: bool, of_many_games: Sequence[str]) -> None:
    """Refuse options that were given and do not go with one run, or with many games."""
    for name in of_many_games if one_run else OF_ONE_RUN:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise WrongTypeError(name, "{argument} " + ("does not go" if one_run else "goes") + " with {one_run}.")


def _finish(result: Verdict, json: bool, plot: Path | None = None, check: Callable[[], None] = lambda: None) -> None:
    """Print a result; exits with 1 if a claim is violated. check: what else may end the command."""
    printing.as_json(result.as_dict()) if json else printing.console().print(result)
    if plot is not None and not json:
        print(f"The curve is in {plot}.")
    check()
    if result.violated:
        raise typer.Exit(1)


def _keep(folder: Path | None, force: bool, kind: str, result: Json | None = None) -> None:
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
    if result is not None:
        run.write_audit(kind, result)


def _check_plot(path: Path | None, force: bool) -> None:
    """That a figure can be written, before anything is played."""
    if path is None:
        return
    if path.suffix not in PICTURES:
        raise ValueError(f"--plot must end with one of {', '.join(PICTURES)}, got {str(path)!r}.")
    printing.check_file("--plot", path, force)
    if find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib.")
